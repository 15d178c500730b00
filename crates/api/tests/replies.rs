//! Every reply and every problem, as its JSON: a server writes it, a client reads the same back.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value, reason = "a test")]

use std::{sync::Arc, time::Duration};

use leasehold_api::{
    Problem, ProblemKind, acquire,
    fields::StoreId,
    info::{CallerBody, InfoReply},
    inspect::{AuditPage, LeaksPage, ResourcesPage, SnapshotBody},
    list::{Claims, Entry, Leases},
    orders, release, renew,
};
use leasehold_core::{
    AuditRecord, BackendInfo, Blocked, Busy, Claim, CommandOutcome, Cursor, Effect, EndReason, Error,
    ErrorKind, FencingToken, FinishRequest, ForeignLock, GoneReason, Grant, Guarantee, HeldBy, Holder, Leak,
    OperatorAction, OperatorCommand, OwnerToken, QueueEntry, ReleaseRequest, Released, RenewRequest, Renewal,
    Renewed, Resource, Result, Share, Snapshot, ValueHash, Verb, Verdict, WallTime,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, from_value, json, to_value};

const HASH: &str = "c121d3ba5db191d1e907811f256e934f";

fn owner() -> OwnerToken {
    OwnerToken::from_bytes([7; 16])
}

fn token(number: u64) -> FencingToken {
    FencingToken::new(number).unwrap()
}

fn store() -> StoreId {
    "0123456789abcdef".parse().unwrap()
}

fn claim() -> Claim {
    let holder = Arc::new(Holder::new("vm", 12, "nightly"));
    let resource = Resource::new("report", "4 2").unwrap();
    Claim::new(resource, owner(), Share::WHOLE, Duration::from_secs(30), holder)
}

fn named(fields: Value) -> Value {
    let mut body = json!({"resource": "report/4 2", "key": "report/4%202", "owner_hash": HASH});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

fn held_by() -> HeldBy {
    let mut by = HeldBy::new(Arc::new(Holder::new("vm", 12, "nightly")), token(34), 1);
    (by.held_for, by.remaining, by.ttl) =
        (Duration::from_secs(2), Duration::from_secs(4), Some(Duration::from_secs(30)));
    (by.note, by.handovers, by.evicting, by.kept) = (Some((*b"here").into()), 3, true, true);
    by.asked = Some(FinishRequest::new(Duration::from_secs(60), "ops", "stuck"));
    by
}

fn held_by_json() -> Value {
    json!({
        "holder": {"host": "vm", "pid": 12, "label": "nightly"}, "token": "34", "weight": 1, "held_for_ms": 2000,
        "remaining_ms": 4000, "ttl_ms": 30000, "note": "here", "handovers": 3,
        "asked": {"within_ms": 60000, "by": "ops", "why": "stuck"}, "evicting": true, "kept": true,
    })
}

fn blocked(queued: bool) -> Blocked {
    let mut blocked = Blocked::default();
    (blocked.queued, blocked.ahead, blocked.cursor) = (queued, 2, Cursor(0x1f));
    (blocked.holders, blocked.changes_in) = (vec![held_by()], Some(Duration::from_millis(4100)));
    blocked.foreign = Some(ForeignLock::new("lock:x", "string", ValueHash::of(b"x")));
    blocked
}

fn foreign_json() -> Value {
    json!({"key": "lock:x", "form": "string", "value_hash": ValueHash::of(b"x").to_string(), "remaining_ms": null})
}

/// Checks the answer, reads it as a client does, alone and as an entry of a list, and gives what it means.
fn through<T, C>(
    entry: Entry<T>,
    status: u16,
    expected: Value,
    outcome: impl Fn(Entry<T>) -> Result<C>,
) -> Result<C>
where
    T: Serialize + DeserializeOwned + Clone,
    C: std::fmt::Debug,
{
    assert_eq!(entry.status(), status);
    let body = match &entry {
        Entry::Reply(_, reply) => to_value(reply).unwrap(),
        Entry::Problem(problem) => to_value(problem).unwrap(),
    };
    assert_eq!(body, expected);
    assert!(!body.to_string().contains(&owner().reveal()));
    let mut extended = body.clone();
    extended["a field of a later version"] = json!(1);
    let alone = outcome(Entry::read(status, extended.to_string().as_bytes()).unwrap());
    let listed = to_value(&entry).unwrap();
    assert_eq!(listed["status"], json!(status));
    let in_list = outcome(from_value(listed).unwrap());
    assert_eq!(format!("{alone:?}"), format!("{in_list:?}"));
    alone
}

#[test]
fn granted() {
    let grant = Grant::new(token(34), Duration::from_micros(29_998_700)).acknowledged(2);
    let entry = acquire::reply(&claim(), Ok(Verdict::Granted(grant)), Duration::from_millis(6120), &store());
    let expected = named(json!({
        "verdict": "granted", "token": "34", "pass": format!("34 {HASH} report/4 2"), "ttl_ms": 30000,
        "remaining_ms": 29998, "waited_ms": 6120, "acks": 2,
    }));
    let read = through(entry, 200, expected, |entry| acquire::outcome(&claim(), entry)).unwrap();
    let Verdict::Granted(read) = read else { panic!("{read:?}") };
    assert_eq!(read, Grant::new(token(34), Duration::from_millis(29_998)).acknowledged(2));
}

#[test]
fn a_shared_grant_has_a_number_and_no_token() {
    let mut claim = claim();
    claim.share = Share::READ;
    let verdict = Ok(Verdict::Granted(Grant::new(token(34), Duration::from_secs(30))));
    let entry = acquire::reply(&claim, verdict, Duration::ZERO, &store());
    let expected = named(json!({
        "verdict": "granted", "number": "34", "ttl_ms": 30000, "remaining_ms": 30000, "waited_ms": 0,
    }));
    let read = through(entry, 200, expected, |entry| acquire::outcome(&claim, entry)).unwrap();
    assert!(matches!(read, Verdict::Granted(grant) if grant.token == token(34)));
}

#[test]
fn queued() {
    let entry =
        acquire::reply(&claim(), Ok(Verdict::Blocked(blocked(true))), Duration::from_secs(10), &store());
    let expected = named(json!({
        "verdict": "queued", "place_ms": 6000, "ahead": 2, "holders": [held_by_json()], "foreign": foreign_json(),
        "paused": false, "changes_in_ms": 4100, "cursor": "0123456789abcdef.1f", "waited_ms": 10000,
    }));
    let read = through(entry, 202, expected, |entry| acquire::outcome(&claim(), entry)).unwrap();
    assert_eq!(format!("{read:?}"), format!("{:?}", Verdict::Blocked(blocked(true))));
}

#[test]
fn the_end_of_a_pause_is_not_lost() {
    for queued in [false, true] {
        let mut paused = blocked(queued);
        (paused.paused, paused.pause_ends_in) = (true, Some(Duration::from_secs(7)));
        let entry = acquire::reply(&claim(), Ok(Verdict::Blocked(paused.clone())), Duration::ZERO, &store());
        let read = acquire::outcome(&claim(), entry).unwrap();
        assert_eq!(format!("{read:?}"), format!("{:?}", Verdict::Blocked(paused)));
    }
}

#[test]
fn contended() {
    let entry =
        acquire::reply(&claim(), Ok(Verdict::Blocked(blocked(false))), Duration::from_secs(10), &store());
    let expected = named(json!({
        "type": "urn:leasehold:contended", "title": "Another claim holds the resource", "status": 423, "kind": "contended",
        "detail": "held by 12@vm nightly for 4s more, 2 ahead in the queue", "effect": "none", "verdict": "blocked",
        "hint": "ask again after retry_after_ms, with jitter, or wait with wait_ms",
        "holders": [held_by_json()], "foreign": foreign_json(), "ahead": 2, "paused": false, "retry_after_ms": 4000,
        "changes_in_ms": 4100, "cursor": "0123456789abcdef.1f", "waited_ms": 10000,
    }));
    let read = through(entry, 423, expected, |entry| acquire::outcome(&claim(), entry)).unwrap();
    assert_eq!(format!("{read:?}"), format!("{:?}", Verdict::Blocked(blocked(false))));
}

fn lost(detail: &str, verdict: &str, why: &str) -> Value {
    named(json!({
        "type": "urn:leasehold:lost", "title": "The claim does not hold the resource, and is not queued", "status": 410,
        "kind": "lost", "effect": "none", "detail": detail, "verdict": verdict, "why": why,
        "hint": "stop the work, then acquire again with a new owner token",
    }))
}

#[test]
fn cancelled_and_mismatch() {
    let entry = acquire::reply(&claim(), Ok(Verdict::Cancelled), Duration::ZERO, &store());
    let expected = lost("it was cancelled: this owner token is used up", "cancelled", "buried");
    let read = through(entry, 410, expected, |entry| acquire::outcome(&claim(), entry)).unwrap();
    assert!(matches!(read, Verdict::Cancelled));

    let entry = acquire::reply(&claim(), Ok(Verdict::Mismatch { capacity: 5 }), Duration::ZERO, &store());
    let expected = named(json!({
        "type": "urn:leasehold:mismatch", "title": "Other claims use the resource with another capacity", "status": 409,
        "kind": "mismatch", "effect": "none", "verdict": "mismatch", "capacity": 5,
        "detail": "others use it as a semaphore of 5, this claim as an exclusive lease: agree on one, or let an operator resize it",
    }));
    let read = through(entry, 409, expected, |entry| acquire::outcome(&claim(), entry)).unwrap();
    assert!(matches!(read, Verdict::Mismatch { capacity: 5 }));
}

#[test]
fn renewals() {
    let request = RenewRequest::new(claim().reference(), Duration::from_secs(30));
    let outcome = |entry| renew::outcome(&request, entry);
    let mut renewed = Renewed::new(token(34), Duration::from_secs(29));
    (renewed.asked, renewed.evicting) = (held_by().asked, true);
    let expected = named(json!({
        "verdict": "kept", "grant": "34", "ttl_ms": 30000, "remaining_ms": 29000,
        "asked": {"within_ms": 60000, "by": "ops", "why": "stuck"}, "evicting": true,
    }));
    let entry = renew::reply(&request, Ok(Renewal::Renewed(renewed.clone())));
    let read = through(entry, 200, expected, outcome).unwrap();
    assert!(matches!(read, Renewal::Renewed(read) if read == renewed));

    let entry = renew::reply(&request, Ok(Renewal::Queued { remaining: Duration::from_secs(6) }));
    let read = through(entry, 202, named(json!({"verdict": "queued", "place_ms": 6000})), outcome).unwrap();
    assert!(matches!(read, Renewal::Queued { remaining } if remaining == Duration::from_secs(6)));

    for (why, detail, name) in [
        (GoneReason::NotThere, "it expired, was released, or never existed", "not_there"),
        (GoneReason::Evicted, "an operator evicted it", "evicted"),
        (GoneReason::Cancelled, "it was cancelled: this owner token is used up", "buried"),
    ] {
        let entry = renew::reply(&request, Ok(Renewal::Gone { why }));
        let read = through(entry, 410, lost(detail, "gone", name), outcome).unwrap();
        assert!(matches!(read, Renewal::Gone { why: read } if read == why));
    }
}

#[test]
fn releases() {
    let request = ReleaseRequest::new(claim().reference());
    for (released, verdict) in [(Released::Now, "released"), (Released::AlreadyGone, "already_gone")] {
        let entry = release::reply(&request, Ok(released));
        let read = through(entry, 200, named(json!({"verdict": verdict})), |entry| {
            release::outcome(&request, entry)
        });
        assert_eq!(read.unwrap(), released);
    }
}

#[test]
fn commands() {
    let command = OperatorCommand::new(claim().resource, OperatorAction::Resume, "ops", "over");
    let outcome = |entry| orders::outcome(&command, entry);
    let entry = orders::reply(&command, Ok(CommandOutcome::Done));
    let expected = json!({"verdict": "done", "resource": "report/4 2", "key": "report/4%202"});
    assert_eq!(through(entry, 200, expected, outcome).unwrap(), CommandOutcome::Done);
    for token in [Some(token(35)), None] {
        let entry = orders::reply(&command, Ok(CommandOutcome::HolderChanged { token }));
        let body = to_value(&entry).unwrap();
        assert_eq!((&body["kind"], &body["status"]), (&json!("not_that_one"), &json!(412)));
        assert_eq!(through(entry, 412, body, outcome).unwrap(), CommandOutcome::HolderChanged { token });
    }
    let another = json!({"verdict": "done", "resource": "report/43", "key": "report/43"});
    let error = outcome(Entry::read(200, another.to_string().as_bytes()).unwrap()).unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::Unknown));
}

#[test]
fn an_answer_to_another_question_is_never_believed() {
    let mut other = claim();
    other.owner = OwnerToken::from_bytes([8; 16]);
    let verdicts = [
        Verdict::Granted(Grant::new(token(34), Duration::from_secs(30))),
        Verdict::Blocked(blocked(true)),
        Verdict::Blocked(blocked(false)),
        Verdict::Cancelled,
        Verdict::Mismatch { capacity: 5 },
    ];
    for verdict in verdicts {
        let entry = acquire::reply(&other, Ok(verdict), Duration::ZERO, &store());
        let error = acquire::outcome(&claim(), entry).unwrap_err();
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::Unknown));
    }
    let (ours, theirs) = (
        RenewRequest::new(claim().reference(), claim().ttl),
        RenewRequest::new(other.reference(), other.ttl),
    );
    for renewal in
        [Renewal::Renewed(Renewed::new(token(34), claim().ttl)), Renewal::Gone { why: GoneReason::NotThere }]
    {
        assert_eq!(
            renew::outcome(&ours, renew::reply(&theirs, Ok(renewal))).unwrap_err().effect(),
            Effect::Unknown
        );
    }
    let (ours, theirs) = (ReleaseRequest::new(claim().reference()), ReleaseRequest::new(other.reference()));
    let entry = release::reply(&theirs, Ok(Released::AlreadyGone));
    assert_eq!(release::outcome(&ours, entry).unwrap_err().effect(), Effect::Unknown);
    let nameless = json!({"type": "", "title": "", "status": 410, "kind": "lost", "effect": "none", "verdict": "cancelled"});
    let entry = Entry::read(410, nameless.to_string().as_bytes()).unwrap();
    assert_eq!(acquire::outcome(&claim(), entry).unwrap_err().effect(), Effect::Unknown);
}

#[test]
fn a_verdict_of_a_later_version_cannot_be_read() {
    let body = named(json!({"verdict": "promised"}));
    assert!(Entry::<acquire::AcquireReply>::read(200, body.to_string().as_bytes()).is_err());
}

/// Every part that programs can read.
fn parts(error: &Error) -> String {
    let busy = error.busy();
    format!(
        "{error:?} {:?} {:?} {:?} {:?} {busy:?} {:?} {:?} {:?}",
        error.kind(),
        error.verb(),
        error.backend(),
        error.resource(),
        error.capacity(),
        error.stale_token(),
        error.ending()
    )
}

#[test]
fn every_error_comes_back_whole() {
    let busy = || blocked(false).into_busy();
    let plain = [
        ErrorKind::Invalid,
        ErrorKind::Unsupported,
        ErrorKind::GuaranteeTooWeak,
        ErrorKind::Unavailable,
        ErrorKind::Corrupt,
        ErrorKind::ShutDown,
        ErrorKind::Limit,
    ];
    let mut errors: Vec<Error> = plain.into_iter().map(|kind| Error::new(kind, "the message")).collect();
    errors.push(Error::contended(busy()));
    errors.push(Error::contended(Busy::default()));
    errors.push(Error::mismatch(5, 1));
    errors.push(Error::stale(token(3), token(4)));
    errors.push(Error::new(ErrorKind::Lost, "over").with_ending(EndReason::Evicted));
    for error in errors {
        for error in [
            error.clone(),
            error.clone().with_effect(Effect::Unknown).at(Verb::Acquire, "redis").on(&claim().resource),
            error.at(Verb::Order, "postgres").on(&claim().resource.hashed(b"sesame")),
        ] {
            let problem = Problem::from(&error);
            let read: Problem = from_value(to_value(&problem).unwrap()).unwrap();
            assert_eq!(parts(&Error::from(&read)), parts(&error));
        }
    }
}

#[test]
fn a_failure_of_the_store_as_json() {
    let error = Error::new(ErrorKind::Unavailable, "the server did not answer");
    let error = error.with_effect(Effect::Unknown).at(Verb::Acquire, "redis").on(&claim().resource);
    let entry = acquire::reply(&claim(), Err(error.clone()), Duration::ZERO, &store());
    let expected = named(json!({
        "type": "urn:leasehold:unavailable", "title": "The store does not answer", "status": 503, "kind": "unavailable",
        "detail": "the server did not answer", "effect": "unknown", "hint": "try again; check the store",
        "verb": "acquire", "backend": "redis",
    }));
    let read = through(entry, 503, expected, |entry| acquire::outcome(&claim(), entry)).unwrap_err();
    assert_eq!(parts(&read), parts(&error));
}

#[test]
fn a_store_that_refuses_the_server_is_unavailable_not_denied() {
    let problem = Problem::from(&Error::new(ErrorKind::Denied, "wrong password"));
    assert_eq!((problem.status, problem.kind.as_str()), (503, "unavailable"));
    assert_eq!(problem.detail.as_deref(), Some("the store refused the server: wrong password"));
}

#[test]
fn every_kind_has_a_status_a_name_and_an_error() {
    for kind in ProblemKind::ALL {
        assert_eq!(ProblemKind::named(kind.as_str()), Some(*kind));
        let problem = Problem::new(*kind, "the message");
        let read: Problem = from_value(to_value(&problem).unwrap()).unwrap();
        assert_eq!((read.problem_kind(), read.status), (*kind, kind.status()));
        assert_eq!(Error::from(&read).kind(), kind.error_kind());
        assert_eq!(Error::from(&read).effect(), Effect::None);
    }
    let later = json!({"type": "", "title": "t", "status": 507, "kind": "full", "effect": "?"});
    let later: Problem = from_value(later).unwrap();
    let error = Error::from(&later);
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::Unknown));
    let throttled = Error::from(&Problem::new(ProblemKind::Throttled, "20 a second"));
    assert_eq!(throttled.to_string(), "20 a second: wait for Retry-After, then send it again");
}

#[test]
fn a_resource_and_a_page_of_them() {
    let mut snapshot = Snapshot::empty(claim().resource);
    (snapshot.capacity, snapshot.holders, snapshot.holder_count) = (1, vec![held_by()], 1);
    snapshot.foreign = vec![blocked(true).foreign.unwrap()];
    let waiter = QueueEntry::new(held_by().holder, 1, Duration::from_secs(1), Duration::from_secs(5))
        .with_silent(true);
    (snapshot.queue, snapshot.queue_length) = (vec![waiter], 1);
    (snapshot.last_token, snapshot.paused_for) = (Some(token(34)), Some(Duration::from_secs(9)));
    snapshot.cursor = Cursor(0x1f);
    let body = SnapshotBody::of(&snapshot, &store());
    let expected = json!({
        "resource": "report/4 2", "key": "report/4%202", "capacity": 1, "holders": [held_by_json()], "holder_count": 1,
        "foreign": [foreign_json()], "queue": [{
            "holder": {"host": "vm", "pid": 12, "label": "nightly"}, "weight": 1, "waited_ms": 1000, "remaining_ms": 5000,
            "silent": true, "foreign": false,
        }], "queue_length": 1, "last_token": "34", "paused_for_ms": 9000, "cursor": "0123456789abcdef.1f",
    });
    assert_eq!(to_value(&body).unwrap(), expected);
    let hashed = Snapshot::unreadable(claim().resource.hashed(b"sesame"), "key x: found y");
    let page = ResourcesPage::of(&[snapshot.clone(), hashed.clone()], Some("report/5".into()), &store());
    let read: ResourcesPage = from_value(to_value(&page).unwrap()).unwrap();
    let expected =
        leasehold_core::Page::Resources { snapshots: vec![snapshot, hashed], next: Some("report/5".into()) };
    assert_eq!(format!("{:?}", read.to_core().unwrap()), format!("{expected:?}"));
}

#[test]
fn audit_records_and_leaks() {
    let command =
        OperatorCommand::new(claim().resource, OperatorAction::Resume, "ops", "over").for_token(token(34));
    let record = AuditRecord::of(&command, WallTime::from_micros(1_794_834_402_125_654), true);
    let page = AuditPage::of(std::slice::from_ref(&record), None);
    let expected = json!({"records": [{
        "at": "2026-11-16T13:06:42.125Z", "at_us": 1_794_834_402_125_654_u64, "resource": "report/4 2", "key": "report/4%202",
        "token": "34", "by": "ops", "why": "over", "command": "resume", "done": true,
    }], "next": null});
    assert_eq!(to_value(&page).unwrap(), expected);
    let read: AuditPage = from_value(expected).unwrap();
    assert_eq!(read.to_core().unwrap().into_records(), [record]);

    let mut leak = Leak::new("lock:x", "string");
    leak.idle = Some(Duration::from_secs(3));
    let page = LeaksPage::of(&[leak.clone()], Some("7".into()));
    let expected = json!({"leaks": [{"key": "lock:x", "form": "string", "idle_ms": 3000}], "next": "7"});
    assert_eq!(to_value(&page).unwrap(), expected);
    let read: LeaksPage = from_value(expected).unwrap();
    assert!(matches!(read.to_core(), leasehold_core::Page::Leaks { found, .. } if found == [leak]));
}

#[test]
fn info() {
    let mut info = BackendInfo::new("sqlite", Guarantee::Database);
    (info.because, info.tokens_break_when) = ("one file".into(), "a restored backup".into());
    (info.capabilities.handover, info.capabilities.removes_silent) = (false, true);
    (info.limits.batch, info.limits.ttl) = (7, Duration::from_secs(60));
    let caller = CallerBody {
        subject: None,
        roles: vec!["viewer".into()],
        namespaces: Some(vec!["-".into()]),
        kinds: None,
    };
    let body = to_value(InfoReply::new(&info, &store(), "0.1.0", caller)).unwrap();
    let expected = json!({
        "api": "1.0", "server": "0.1.0",
        "store": {
            "id": "0123456789abcdef", "backend": "sqlite", "level": "database", "because": "one file",
            "tokens_break_when": "a restored backup",
        },
        "capabilities": {
            "queue": true, "shares": true, "handover": false, "keep_for": true, "own_ttl": true, "orders": true,
            "self_granting": false, "passes_over": true, "removes_silent": true,
        },
        "limits": {
            "queue": 1_000_000, "note": 4096, "entries": 1000, "page": 1000, "ttl_ms": 60000, "wait_ms": 60000,
            "place_ttl_ms": 120_000, "bury_ms": 172_800_000,
        },
        "caller": {"subject": null, "roles": ["viewer"], "namespaces": ["-"], "kinds": null},
        "survives_server": true, "draining": false,
    });
    assert_eq!(body, expected);
    let read = from_value::<InfoReply>(body).unwrap().backend_info();
    assert_eq!(
        (read.name, read.guarantee, read.capabilities),
        ("sqlite", Guarantee::Database, info.capabilities)
    );
    assert_eq!((read.limits.ttl, read.limits.batch, read.limits.gather), (info.limits.ttl, 1000, 1000));
}

#[test]
fn lists_of_outcomes() {
    let granted = acquire::reply(
        &claim(),
        Ok(Verdict::Granted(Grant::new(token(34), Duration::from_secs(30)))),
        Duration::ZERO,
        &store(),
    );
    let buried = acquire::reply(&claim(), Ok(Verdict::Cancelled), Duration::ZERO, &store());
    let text = serde_json::to_string(&Claims { claims: vec![granted, buried] }).unwrap();
    assert!(
        text.starts_with(r#"{"claims":[{"status":200,"verdict":"granted","resource":"report/4 2""#),
        "{text}"
    );
    let read: Claims<acquire::AcquireReply> = serde_json::from_str(&text).unwrap();
    assert_eq!(read.claims.iter().map(Entry::status).collect::<Vec<_>>(), [200, 410]);
    let request = ReleaseRequest::new(claim().reference());
    let text =
        serde_json::to_string(&Leases { leases: vec![release::reply(&request, Ok(Released::Now))] }).unwrap();
    assert!(text.starts_with(r#"{"leases":[{"status":200,"verdict":"released","#), "{text}");
}
