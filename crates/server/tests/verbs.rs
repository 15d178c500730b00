//! Every route, with the statuses of the API.

#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::sync::Arc;

use http_body_util::Full;
use hyper::Request;
use leasehold::Memory;
use serde_json::{Value, json};
use support::{OTHER, OWNER, TestServer, config, waiting};

const HASH: &str = "owner_hash";

fn lease(owner: &str) -> Value {
    json!({"resource": "report/1", "owner": owner, "ttl_ms": 30000})
}

fn end(owner: &str) -> Value {
    json!({"resource": "report/1", "owner": owner})
}

#[tokio::test]
async fn a_lease_is_granted_renewed_and_released() {
    let server = TestServer::start().await;
    let granted = server.post("/v1/acquire", lease(OWNER)).await;
    assert_eq!((granted.status, &granted.body["verdict"]), (200, &json!("granted")));
    assert_eq!((&granted.body["resource"], &granted.body["key"]), (&json!("report/1"), &json!("report/1")));
    assert_eq!(granted.body[HASH].as_str().unwrap().len(), 32);
    let token = granted.body["token"].as_str().unwrap();
    assert_eq!(
        granted.body["pass"],
        json!(format!("{token} {} report/1", granted.body[HASH].as_str().unwrap()))
    );
    assert_eq!(granted.body["ttl_ms"], json!(30000));
    assert!(granted.body["remaining_ms"].as_u64().unwrap() <= 30000);

    let again = server.post("/v1/acquire", lease(OWNER)).await;
    assert_eq!(
        (again.status, &again.body["token"]),
        (200, &granted.body["token"]),
        "sent again, it is the same grant"
    );

    let kept = server.post("/v1/renew", lease(OWNER)).await;
    assert_eq!(
        (kept.status, &kept.body["verdict"], &kept.body["grant"]),
        (200, &json!("kept"), &json!(token))
    );
    assert_eq!((&kept.body["asked"], &kept.body["evicting"]), (&Value::Null, &json!(false)));

    let released = server.post("/v1/release", end(OWNER)).await;
    assert_eq!((released.status, &released.body["verdict"]), (200, &json!("released")));
    let released = server.post("/v1/release", end(OWNER)).await;
    assert_eq!((released.status, &released.body["verdict"]), (200, &json!("already_gone")));
    let lost = server.post("/v1/renew", lease(OWNER)).await;
    assert_eq!(lost.problem(), (410, "lost"));
    assert_eq!((&lost.body["why"], &lost.body["effect"]), (&json!("not_there"), &json!("none")));
}

#[tokio::test]
async fn answers_name_the_store_and_are_not_cached() {
    let server = TestServer::start().await;
    for answer in
        [server.get("/v1/info").await, server.get("/v1/nothing").await, server.acquire("r/1", OWNER).await]
    {
        assert_eq!(answer.header("leasehold-api"), "1.0");
        assert_eq!(answer.header("leasehold-store"), server.get("/v1/info").await.body["store"]["id"]);
        assert_eq!(answer.header("leasehold-level"), "database");
        assert_eq!(answer.header("cache-control"), "no-store");
        assert!(!answer.text.contains(OWNER), "{}", answer.text);
    }
}

#[tokio::test]
async fn an_answer_repeats_the_id_of_its_request() {
    let server = TestServer::start().await;
    let mut connection = server.connect().await;
    for path in ["/v1/info", "/v1/nothing", "/healthz"] {
        let request = Request::builder().uri(path).header("leasehold-request", "f00d-7");
        let answer = connection.send(request.body(Full::default()).unwrap()).await.unwrap();
        assert_eq!(answer.header("leasehold-request"), "f00d-7");
    }
    assert_eq!(connection.get("/v1/info").await.header("leasehold-request"), "");
    let long = Request::builder().uri("/v1/info").header("leasehold-request", "7".repeat(65));
    let answer = connection.send(long.body(Full::default()).unwrap()).await.unwrap();
    assert_eq!((answer.status, answer.header("leasehold-request")), (200, ""), "a long one is not repeated");
}

#[tokio::test]
async fn a_busy_resource_is_423_with_its_holder_and_leaves_nothing_behind() {
    let server = TestServer::start().await;
    let mut holder = lease(OWNER);
    (holder["host"], holder["pid"], holder["label"], holder["note"]) =
        (json!("vm"), json!(7), json!("nightly"), json!("here"));
    server.post("/v1/acquire", holder).await;
    let busy = server.post("/v1/acquire", lease(OTHER)).await;
    assert_eq!(busy.problem(), (423, "contended"));
    assert_eq!(busy.body["holders"][0]["holder"], json!({"host": "vm", "pid": 7, "label": "nightly"}));
    assert_eq!(busy.body["holders"][0]["note"], json!("here"));
    let retry_after: u64 = busy.header("retry-after").parse().unwrap();
    assert_eq!(retry_after, busy.body["retry_after_ms"].as_u64().unwrap().div_ceil(1000));
    assert_eq!(server.queue_length("report/1").await, 0);
}

#[tokio::test]
async fn a_place_is_202_and_kept_by_renewing_it() {
    let server = TestServer::start().await;
    server.post("/v1/acquire", lease(OWNER)).await;
    let mut claim = lease(OTHER);
    (claim["when_blocked"], claim["place_ttl_ms"]) = (json!("queue"), json!(20000));
    let queued = server.post("/v1/acquire", claim.clone()).await;
    assert_eq!((queued.status, &queued.body["verdict"]), (202, &json!("queued")));
    assert_eq!((&queued.body["place_ms"], &queued.body["ahead"]), (&json!(20000), &json!(0)));
    let kept =
        server.post("/v1/renew", json!({"resource": "report/1", "owner": OTHER, "ttl_ms": 20000})).await;
    assert_eq!((kept.status, &kept.body["verdict"]), (202, &json!("queued")));

    let cursor = queued.body["cursor"].clone();
    let wait =
        json!({"claims": [{"resource": "report/1", "owner": OTHER, "cursor": cursor}], "wait_ms": 60000});
    let (woken, released) =
        tokio::join!(server.post("/v1/wait", wait), server.post("/v1/release", end(OWNER)));
    assert_eq!((released.status, woken.status, &woken.body["ask"]), (200, 200, &json!([0])));
    assert_eq!(server.post("/v1/acquire", claim).await.status, 200);
}

#[tokio::test]
async fn shares_mismatches_and_handover() {
    let server = TestServer::start().await;
    let mut reader = lease(OWNER);
    reader["share"] = json!("read");
    let granted = server.post("/v1/acquire", reader).await;
    assert_eq!(granted.status, 200);
    assert!(
        granted.body["number"].is_string()
            && granted.body["token"].is_null()
            && granted.body["pass"].is_null()
    );
    let mismatch = server.post("/v1/acquire", lease(OTHER)).await;
    assert_eq!(mismatch.problem(), (409, "mismatch"));
    assert_eq!(mismatch.body["capacity"], json!(u32::MAX));

    server.acquire("report/2", OWNER).await;
    let successor = json!({"resource": "report/2", "owner": OTHER, "ttl_ms": 30000, "succeeds": {"owner": OWNER, "bury_ms": 60000}});
    assert_eq!(server.post("/v1/acquire", successor).await.status, 200);
    assert_eq!(server.acquire("report/2", OWNER).await.problem(), (410, "lost"));
}

#[tokio::test]
async fn a_buried_owner_is_used_up_and_a_kept_resource_stays_closed() {
    let server = TestServer::start().await;
    server.acquire("report/1", OWNER).await;
    let release = json!({"resource": "report/1", "owner": OWNER, "bury_ms": 60000, "keep_for_ms": 20000});
    assert_eq!(server.post("/v1/release", release).await.status, 200);
    let buried = server.acquire("report/1", OWNER).await;
    assert_eq!((buried.problem(), &buried.body["why"]), ((410, "lost"), &json!("buried")));
    assert_eq!(server.acquire("report/1", OTHER).await.problem(), (423, "contended"));
}

#[tokio::test]
async fn lists_have_one_outcome_for_each_entry() {
    let server = TestServer::start().await;
    server.acquire("report/1", OTHER).await;
    let claims = json!({"timeout_ms": 20000, "claims": [
        {"resource": "report/1", "owner": OWNER, "ttl_ms": 30000},
        {"resource": "report/2", "owner": OWNER, "ttl_ms": 30000},
        {"resource": "no resource", "owner": OWNER, "ttl_ms": 30000},
        {"resource": "report/3", "owner": OWNER, "ttl_ms": 0},
        {"resource": "report/4", "owner": OWNER, "ttl_ms": 1, "wait_ms": 5},
        {"resource": "report/5", "owner": OWNER, "ttl_ms": 30000},
    ]});
    let answer = server.post("/v1/acquire", claims).await;
    assert_eq!(answer.status, 200);
    let statuses = |list: &Value| {
        list.as_array().unwrap().iter().map(|entry| entry["status"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(statuses(&answer.body["claims"]), [423, 200, 422, 422, 422, 200]);
    assert_eq!(answer.body["claims"][5]["resource"], json!("report/5"));

    let leases = json!({"leases": [
        {"resource": "report/2", "owner": OWNER, "ttl_ms": 30000}, {"resource": "report/9", "owner": OWNER, "ttl_ms": 30000},
    ]});
    let answer = server.post("/v1/renew", leases).await;
    assert_eq!((answer.status, statuses(&answer.body["leases"])), (200, vec![200, 410]));
    let leases = json!({"leases": [{"resource": "report/2", "owner": OWNER}, {"resource": "report/9", "owner": OWNER}]});
    let answer = server.post("/v1/release", leases).await;
    assert_eq!(answer.body["leases"][0]["verdict"], json!("released"));
    assert_eq!(answer.body["leases"][1]["verdict"], json!("already_gone"));

    for (path, list) in [("/v1/acquire", "claims"), ("/v1/renew", "leases"), ("/v1/release", "leases")] {
        let empty = server.post(path, json!({list: []})).await;
        assert_eq!(
            (empty.status, &empty.body),
            (200, &json!({list: []})),
            "the form of the question decides"
        );
        let many = vec![json!({"resource": "report/2", "owner": OWNER, "ttl_ms": 1}); 1001];
        let many = if path == "/v1/release" {
            vec![json!({"resource": "report/2", "owner": OWNER}); 1001]
        } else {
            many
        };
        assert_eq!(server.post(path, json!({list: many})).await.problem(), (413, "too_large"));
    }
}

#[tokio::test]
async fn a_resource_is_read_and_watched_by_its_cursor() {
    let server = TestServer::start().await;
    let granted = server.acquire("report/1", OWNER).await;
    let held = server.get("/v1/resource?name=report/1").await;
    assert_eq!((held.status, &held.body["holder_count"]), (200, &json!(1)));
    assert_eq!(held.body["holders"][0]["token"], granted.body["token"]);
    let cursor = held.body["cursor"].as_str().unwrap();
    let path = format!("/v1/resource?name=report/1&wait_ms=60000&cursor={cursor}");
    let mut observer = server.connect().await;
    let release = async {
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        server.post("/v1/release", end(OWNER)).await
    };
    let sent = tokio::time::Instant::now();
    let (seen, released) = tokio::join!(observer.get(&path), release);
    assert_eq!((released.status, seen.status, &seen.body["holder_count"]), (200, 200, &json!(0)));
    assert!(sent.elapsed() < support::PATIENCE, "it was woken by the change");
    server.acquire("report/1", OWNER).await;
    // Another store's cursor says nothing about this one: the answer comes at once.
    let other = server.get("/v1/resource?name=report/1&wait_ms=60000&cursor=0123456789abcdef.1").await;
    assert_eq!(other.body["holder_count"], json!(1));
    let by_key = server.get("/v1/resource?key=report/1").await;
    assert_eq!(by_key.body["resource"], json!("report/1"));
}

#[tokio::test]
async fn resources_come_in_pages() {
    let server = TestServer::start().await;
    for id in ["a", "b", "c"] {
        server.acquire(&format!("report/{id}"), OWNER).await;
    }
    server.acquire("acme:report/a", OWNER).await;
    let keys = |page: &Value| {
        page["resources"].as_array().unwrap().iter().map(|one| one["key"].clone()).collect::<Vec<_>>()
    };
    let page = server.get("/v1/resources?prefix=report/&limit=2").await;
    assert_eq!(keys(&page.body), ["report/a", "report/b"]);
    let next = page.body["next"].as_str().unwrap();
    let page = server.get(&format!("/v1/resources?prefix=report/&after={next}")).await;
    assert_eq!((keys(&page.body), &page.body["next"]), (vec![json!("report/c")], &Value::Null));
}

#[tokio::test]
async fn orders_are_carried_out_and_audited() {
    let server = TestServer::start().await;
    let granted = server.acquire("report/1", OWNER).await;
    let order = |action: &str| json!({"resource": "report/1", "action": action, "why": "stuck", "by": "ops"});
    assert_eq!(server.post("/v1/orders", order("evict")).await.problem(), (428, "token_required"));
    let mut evict = order("evict");
    evict["token"] = json!("99");
    let refused = server.post("/v1/orders", evict.clone()).await;
    assert_eq!(refused.problem(), (412, "not_that_one"));
    assert_eq!(refused.body["token"], granted.body["token"]);
    evict["token"] = granted.body["token"].clone();
    let done = server.post("/v1/orders", evict).await;
    assert_eq!((done.status, &done.body["verdict"]), (200, &json!("done")));
    let kept = server.post("/v1/renew", lease(OWNER)).await;
    assert_eq!(kept.body["evicting"], json!(true));

    let mut ask = order("ask");
    (ask["any"], ask["within_ms"]) = (json!(true), json!(60000));
    assert_eq!(server.post("/v1/orders", ask).await.status, 200);
    let mut now = order("evict-now");
    now["any"] = json!(true);
    assert_eq!(server.post("/v1/orders", now).await.status, 200);
    let lost = server.post("/v1/renew", lease(OWNER)).await;
    assert_eq!((lost.problem(), &lost.body["why"]), ((410, "lost"), &json!("evicted")));

    let audit = server.get("/v1/audit").await;
    let record = &audit.body["records"][0];
    assert_eq!(
        (&record["command"], &record["by"], &record["done"]),
        (&json!("evict-now"), &json!("ops"), &json!(true))
    );
    assert_eq!(
        server.post("/v1/orders", json!({"resource": "r/1", "action": "resume", "why": " "})).await.problem(),
        (422, "invalid")
    );
}

/// Orders about resources whose keys begin with the key are not about this one, and must not hide it.
#[tokio::test]
async fn the_audit_trail_of_one_resource_is_whole() {
    let server = TestServer::start().await;
    let pause = async |resource: &str, why: &str| {
        let order = json!({"resource": resource, "action": "pause", "why": why, "lasting_ms": 60_000});
        assert_eq!(server.post("/v1/orders", order).await.status, 200);
    };
    for number in 0..5 {
        pause("report/1", &format!("reason {number}")).await;
        for other in 10..20 {
            pause(&format!("report/{other}"), "another resource").await;
        }
    }
    let why = |body: &Value| {
        let records = body["records"].as_array().unwrap();
        assert!(records.iter().all(|record| record["key"] == json!("report/1")), "{body}");
        records.iter().map(|record| record["why"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let newest_first: Vec<String> = (0..5).rev().map(|number| format!("reason {number}")).collect();
    let all = server.get("/v1/audit?key=report/1&limit=50").await.body;
    assert_eq!((why(&all), &all["next"]), (newest_first.clone(), &Value::Null));
    assert_eq!(why(&server.get("/v1/audit?key=report/1").await.body), newest_first, "without a limit");
    for limit in [1, 2, 5] {
        let (mut seen, mut after, mut pages) = (Vec::new(), String::new(), 0);
        loop {
            let page = server.get(&format!("/v1/audit?key=report/1&limit={limit}{after}")).await.body;
            let found = why(&page);
            assert!(found.len() <= limit, "{page}");
            seen.extend(found);
            pages += 1;
            assert!(pages < 20, "{page}");
            let Some(next) = page["next"].as_str() else { break };
            after = format!("&after={next}");
        }
        assert_eq!(seen, newest_first, "{limit} at a time");
    }
    let begins = server.get("/v1/audit?prefix=report/1&limit=100").await.body;
    assert_eq!(begins["records"].as_array().unwrap().len(), 55);
    assert_eq!(why(&server.get("/v1/audit?key=report/2").await.body), Vec::<String>::new());
    let both = server.get("/v1/audit?key=report/1&prefix=report").await;
    assert_eq!(both.problem(), (422, "invalid"));
    assert_eq!(server.get("/v1/audit?key=nonsense").await.problem(), (422, "invalid"));
    // A timeline has an order at once, also if it was read just before.
    let commands = async || {
        let body = server.get("/v1/timeline?name=report/1").await.body;
        body["entries"].as_array().unwrap().iter().filter(|entry| entry["kind"] == json!("paused")).count()
    };
    let before = commands().await;
    pause("report/1", "again").await;
    assert_eq!(commands().await, before + 1);
}

#[tokio::test]
async fn leaks_and_info() {
    let server = TestServer::start().await;
    let leaks = server.get("/v1/leaks").await;
    assert_eq!((leaks.status, &leaks.body["leaks"]), (200, &json!([])));
    assert_eq!(server.get("/v1/leaks?pattern=lock:*").await.problem(), (422, "unsupported"));
    let info = server.get("/v1/info").await;
    assert_eq!(info.body["store"]["backend"], json!("memory"));
    assert_eq!(info.body["caller"]["roles"], json!(["viewer", "client", "operator"]));
    assert_eq!((&info.body["api"], &info.body["draining"]), (&json!("1.0"), &json!(false)));
}

#[tokio::test]
async fn everything_works_over_http_2() {
    let server = TestServer::start().await;
    let mut connection = support::Connection::http2(server.address).await;
    assert_eq!(connection.post("/v1/acquire", &lease(OWNER)).await.status, 200);
    assert_eq!(
        connection.post("/v1/acquire", &waiting("report/1", OTHER, 50)).await.problem(),
        (423, "contended")
    );
    assert_eq!(connection.post("/v1/release", &end(OWNER)).await.status, 200);
}

#[tokio::test]
async fn with_bury_always_an_acquire_that_is_repeated_after_the_release_is_refused() {
    for bury_always in [false, true] {
        let mut config = config();
        config.bury_always = bury_always;
        let server = TestServer::with(Arc::new(Memory::new()), config).await;
        assert_eq!(server.post("/v1/acquire", lease(OWNER)).await.status, 200);
        assert_eq!(server.post("/v1/release", end(OWNER)).await.body["verdict"], json!("released"));
        let repeated = server.post("/v1/acquire", lease(OWNER)).await;
        let expected = if bury_always { (410, json!("buried")) } else { (200, Value::Null) };
        assert_eq!((repeated.status, repeated.body["why"].clone()), expected);
    }
    let mut config = config();
    config.bury_always = true;
    let server = TestServer::with(Arc::new(Memory::new()), config).await;
    server.post("/v1/acquire", lease(OWNER)).await;
    let mut successor = lease(OTHER);
    successor["succeeds"] = json!({"owner": OWNER});
    assert_eq!(server.post("/v1/acquire", successor).await.status, 200);
    let repeated = server.post("/v1/acquire", lease(OWNER)).await;
    assert_eq!(repeated.body["why"], json!("buried"), "its lease was handed over");
}
