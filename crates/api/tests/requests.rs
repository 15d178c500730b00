//! Every request, as its JSON: a client writes it, a server reads the same back.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value, reason = "a test")]

use std::{sync::Arc, time::Duration};

use leasehold_api::{
    acquire::ClaimBody,
    fields::{self, StoreId},
    inspect::{LeaksQuery, ResourceQuery, ResourcesQuery},
    list::{OneOrMany, Unreadable},
    orders::OrderBody,
    release::ReleaseBody,
    renew::RenewBody,
    wait::{WaitBody, WaitingClaim},
};
use leasehold_core::{
    Claim, ClaimRef, ClientId, Cursor, Eviction, FencingToken, Handover, Holder, Listing, OperatorAction,
    OperatorCommand, OwnerToken, Query, ReleaseRequest, RenewRequest, Resource, Share, ValueHash,
    WhenBlocked,
};
use serde_json::{Value, json, to_value};

const OWNER: &str = "07070707070707070707070707070707";

fn owner() -> OwnerToken {
    OwnerToken::from_bytes([7; 16])
}

fn report() -> Resource {
    "acme:report/a b".parse().unwrap()
}

fn claim() -> Claim {
    let holder = Arc::new(Holder::new("vm", 12, "nightly"));
    Claim::new(report(), owner(), Share::WHOLE, Duration::from_secs(30), holder)
}

fn named() -> ClaimRef {
    claim().reference()
}

fn read_claim(body: &Value) -> Claim {
    let body = serde_json::to_vec(body).unwrap();
    ClaimBody::read(&body).unwrap().into_one().unwrap().claim().unwrap()
}

#[test]
fn a_claim() {
    let body = to_value(ClaimBody::from(&claim())).unwrap();
    let expected = json!({
        "resource": "acme:report/a b", "owner": OWNER, "ttl_ms": 30000, "host": "vm", "pid": 12, "label": "nightly",
    });
    assert_eq!(body, expected);
    assert_eq!(format!("{:?}", read_claim(&body)), format!("{:?}", claim()));
}

#[test]
fn a_claim_with_everything() {
    let mut claim = claim()
        .queued()
        .by_client(ClientId::from_number(0xabc).unwrap())
        .taking_over(Handover::with_tombstone(OwnerToken::from_bytes([8; 16]), Duration::from_secs(180)))
        .above(FencingToken::new(34).unwrap())
        .with_note([0xff, 0x00]);
    (claim.share, claim.resource) = (Share::new(2, 5).unwrap(), report().hashed(b"sesame"));
    let body = to_value(ClaimBody::from(&claim)).unwrap();
    let expected = json!({
        "key": claim.resource.key(), "owner": OWNER, "ttl_ms": 30000, "share": {"weight": 2, "capacity": 5},
        "when_blocked": "queue", "place_ttl_ms": 6000, "succeeds": {"owner": "08".repeat(16), "bury_ms": 180_000},
        "floor": "34", "note_base64": "/wA=", "host": "vm", "pid": 12, "label": "nightly", "process": "0000000000000abc",
    });
    assert_eq!(body, expected);
    assert_eq!(format!("{:?}", read_claim(&body)), format!("{claim:?}"));
}

#[test]
fn a_claim_of_a_person() {
    let body = json!({
        "resource": "report/42", "owner": OWNER, "ttl_ms": 1, "wait_ms": 10_000, "share": "write", "when_blocked": "leave",
        "note": "grün", "level": "best-effort", "hangup": "leave",
    });
    let claim = read_claim(&body);
    assert_eq!((claim.share, claim.when_blocked), (Share::WRITE, WhenBlocked::Leave));
    assert_eq!(claim.note.as_deref(), Some("grün".as_bytes()));
    assert_eq!(
        read_claim(&json!({"resource": "r/1", "owner": OWNER, "ttl_ms": 1, "share": "read"})).share,
        Share::READ
    );
}

#[test]
fn many_requests_in_one() {
    let bodies = [ClaimBody::from(&claim())];
    let body = ClaimBody::write_many(&bodies, Some(9000)).to_string();
    let Ok(OneOrMany::Many(many)) = ClaimBody::read(body.as_bytes()) else { panic!("{body}") };
    assert_eq!((many.entries.len(), many.timeout_ms), (1, Some(9000)));
    let body = RenewBody::write_many(&[], None).to_string();
    assert_eq!(body, r#"{"leases":[]}"#);
    assert!(matches!(RenewBody::read(body.as_bytes()), Ok(OneOrMany::Many(many)) if many.entries.is_empty()));
    assert!(matches!(ReleaseBody::read(body.as_bytes()), Ok(OneOrMany::Many(_))));
}

#[test]
fn a_renewal_and_a_release() {
    let request = RenewRequest::new(named(), Duration::from_secs(30)).with_note(*b"here");
    let body = to_value(RenewBody::from(&request)).unwrap();
    assert_eq!(body, json!({"resource": "acme:report/a b", "owner": OWNER, "ttl_ms": 30000, "note": "here"}));
    let read = RenewBody::read(body.to_string().as_bytes()).unwrap().into_one().unwrap().request().unwrap();
    assert_eq!(format!("{read:?}"), format!("{request:?}"));

    let request =
        ReleaseRequest::new(named()).with_tombstone(Duration::from_secs(180)).keeping(Duration::from_secs(5));
    let body = to_value(ReleaseBody::from(&request)).unwrap();
    let expected =
        json!({"resource": "acme:report/a b", "owner": OWNER, "bury_ms": 180_000, "keep_for_ms": 5000});
    assert_eq!(body, expected);
    let read = ReleaseBody::read(body.to_string().as_bytes()).unwrap().into_one().unwrap().request().unwrap();
    assert_eq!(format!("{read:?}"), format!("{request:?}"));
}

#[test]
fn a_wait_names_the_store_of_its_cursor() {
    let (store, other) = (StoreId::of("sqlite:/a"), StoreId::of("sqlite:/b"));
    let waiting = WaitingClaim::new(&named(), Cursor(0x1f), &store);
    let body = to_value(WaitBody { claims: vec![waiting], wait_ms: 5000 }).unwrap();
    let expected = json!({
        "claims": [{"resource": "acme:report/a b", "owner": OWNER, "cursor": format!("{store}.1f")}], "wait_ms": 5000,
    });
    assert_eq!(body, expected);
    let read = WaitBody::read(body.to_string().as_bytes()).unwrap();
    assert_eq!(read.claims[0].claim(&store).unwrap(), (named(), Some(Cursor(0x1f))));
    assert_eq!(read.claims[0].claim(&other).unwrap().1, None);
    for text in
        ["", ".", "1f", &format!("{store}."), &format!("{store}.+1"), &format!("{store}.11112222333344445")]
    {
        assert_eq!(fields::read_cursor(text, &store), None, "{text}");
    }
}

#[test]
fn orders() {
    let token = FencingToken::new(34).unwrap();
    let command = |action| OperatorCommand::new(report(), action, "ops", "stuck");
    let ask = OperatorAction::Ask { within: Duration::from_secs(60) };
    let foreign = OperatorAction::EvictForeign { value: ValueHash::of(b"x") };
    let resize = OperatorAction::Resize { capacity: 3.try_into().unwrap() };
    let table = [
        (command(ask).for_token(token), json!({"action": "ask", "token": "34", "within_ms": 60000})),
        (command(OperatorAction::Evict(Eviction::AtExpiry)), json!({"action": "evict", "any": true})),
        (
            command(OperatorAction::Evict(Eviction::Now)).for_token(token),
            json!({"action": "evict-now", "token": "34"}),
        ),
        (command(foreign), json!({"action": "evict-foreign", "value_hash": ValueHash::of(b"x").to_string()})),
        (
            command(OperatorAction::Pause { lasting: Duration::from_secs(5) }),
            json!({"action": "pause", "lasting_ms": 5000}),
        ),
        (command(OperatorAction::Resume), json!({"action": "resume"})),
        (command(resize), json!({"action": "resize", "capacity": 3})),
    ];
    for (command, mut expected) in table {
        (expected["resource"], expected["why"], expected["by"]) =
            ("acme:report/a b".into(), "stuck".into(), "ops".into());
        let body = OrderBody::of(&command).unwrap();
        assert_eq!(to_value(&body).unwrap(), expected);
        let read = OrderBody::read(expected.to_string().as_bytes()).unwrap();
        assert!(!read.lacks_token());
        assert_eq!(format!("{:?}", read.command("ops").unwrap()), format!("{command:?}"));
    }
}

#[test]
fn an_order_says_which_holder_and_only_what_its_action_takes() {
    let read = |body: Value| OrderBody::read(body.to_string().as_bytes()).unwrap();
    assert!(read(json!({"resource": "r/1", "action": "evict", "why": "x"})).lacks_token());
    assert!(!read(json!({"resource": "r/1", "action": "pause", "why": "x"})).lacks_token());
    for wrong in [
        json!({"resource": "r/1", "action": "pause", "why": "x"}),
        json!({"resource": "r/1", "action": "resume", "why": "x", "lasting_ms": 1}),
        json!({"resource": "r/1", "action": "evict", "why": "x", "token": "1", "any": true}),
        json!({"resource": "r/1", "action": "resize", "why": "x", "capacity": 0}),
        json!({"action": "resume", "why": "x"}),
    ] {
        assert!(read(wrong.clone()).command("ops").is_err(), "{wrong}");
    }
}

#[test]
fn queries() {
    let listing = Listing::of("acme:").limit(10).after("acme:x".into());
    let query = ResourcesQuery::from(&listing);
    assert_eq!(to_value(&query).unwrap(), json!({"prefix": "acme:", "after": "acme:x", "limit": 10}));
    assert_eq!(format!("{:?}", query.listing()), format!("{listing:?}"));
    assert_eq!(to_value(ResourcesQuery::from(&Listing::default())).unwrap(), json!({}));

    assert!(matches!(LeaksQuery::of(&listing).query().unwrap(), Query::Leaks(_)));
    let foreign = LeaksQuery::foreign("lock:*", &Listing::default());
    assert_eq!(to_value(&foreign).unwrap(), json!({"pattern": "lock:*"}));
    assert!(matches!(foreign.query().unwrap(), Query::Foreign { pattern, .. } if pattern == "lock:*"));

    for resource in [report(), report().hashed(b"sesame")] {
        assert_eq!(ResourceQuery::of(&resource).resource().unwrap(), resource);
    }
    assert_eq!(to_value(ResourceQuery::of(&report())).unwrap(), json!({"name": "acme:report/a b"}));
    assert!(ResourceQuery::default().resource().is_err());
}

#[test]
fn what_is_no_request_is_refused_and_owners_are_not_repeated() {
    let good = json!({"resource": "r/1", "owner": OWNER, "ttl_ms": 1});
    for (field, value) in [
        ("unknown", json!(1)),
        ("owner", json!("0707")),
        ("owner", json!("0707070707070707070707070707070G")),
        ("ttl_ms", json!(-1)),
        ("ttl_ms", json!("1")),
        ("ttl_ms", json!(1.5)),
        ("share", json!("whole")),
        ("share", json!({"weight": 1, "capacity": 2, "of": 3})),
        ("floor", json!(34)),
        ("floor", json!("034")),
        ("level", json!("strong")),
        ("when_blocked", json!("wait")),
        ("succeeds", json!({"owner": OWNER, "x": 1})),
    ] {
        let mut body = good.clone();
        body[field] = value;
        let error = ClaimBody::read(body.to_string().as_bytes()).expect_err(field);
        let Unreadable::Form(error) = error else { panic!("{field}: {error:?}") };
        assert!(!error.to_string().contains("0707"), "{error}");
    }
    for (field, value) in [
        ("key", json!("r/1")),
        ("resource", json!("r")),
        ("share", json!({"weight": 3, "capacity": 2})),
        ("note_base64", json!("%")),
        ("process", json!("0000000000000000")),
    ] {
        let mut body = good.clone();
        body[field] = value;
        let read = ClaimBody::read(body.to_string().as_bytes()).unwrap().into_one().unwrap();
        assert!(read.claim().is_err(), "{field}");
    }
    assert!(matches!(ClaimBody::read(b"{"), Err(Unreadable::Syntax(_))));
    assert!(matches!(ClaimBody::read(b"[]"), Err(Unreadable::Form(_))));
    assert!(matches!(ClaimBody::read(br#"{"claims":[],"wait_ms":1}"#), Err(Unreadable::Form(_))));
    assert!(!format!("{:?}", ClaimBody::read(good.to_string().as_bytes())).contains(OWNER));
}

#[test]
fn what_remains_is_rounded_down_and_what_to_wait_for_up() {
    let odd = Duration::from_micros(1500);
    assert_eq!(
        (fields::ms_down(odd), fields::ms_up(odd), fields::ttl_ms(Duration::from_micros(5))),
        (1, 2, 1)
    );
    assert_eq!(fields::ms_up(Duration::MAX), u64::MAX);
}
