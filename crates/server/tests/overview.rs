//! `GET /v1/overview`: searched, sorted, paged, and nothing that the caller may not see.

#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::{fs, sync::Arc, time::Duration};

use leasehold::{Backend, Memory, OwnerToken, Resource, System};
use leasehold_core::{Claim, Holder, Share};
use leasehold_server::{Access, NewToken, TokenFile};
use serde_json::{Value, json};
use support::{Answer, OTHER, OWNER, TestServer, config, waiting};

const MANY: usize = 10_000;

/// A store with many resources: every tenth of the kind `order`, every hundredth with a waiter.
async fn full_store() -> Arc<Memory> {
    let memory = Arc::new(Memory::new());
    let holder = Arc::new(Holder::new("host", 1, "test"));
    for number in 0..MANY {
        let kind = if number % 10 == 0 { "order" } else { "report" };
        let resource = Resource::new(kind, &format!("N{number:05}")).unwrap();
        let owner = |from: usize| OwnerToken::from_bytes((from as u128 + 1).to_be_bytes());
        let ttl = Duration::from_secs(3600);
        let mut claim = Claim::new(resource, owner(number), Share::WHOLE, ttl, Arc::clone(&holder));
        claim.place_ttl = ttl;
        memory.acquire(&[claim.clone()]).await.remove(0).unwrap();
        if number % 100 == 0 {
            claim.owner = owner(number + MANY);
            memory.acquire(&[claim.queued()]).await.remove(0).unwrap();
        }
    }
    memory
}

async fn overview(server: &TestServer, query: &str) -> Answer {
    server.get(&format!("/v1/overview?{query}")).await
}

fn names(body: &Value) -> Vec<String> {
    body["items"].as_array().unwrap().iter().map(|item| item["key"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn the_server_is_told_how_long_a_wait_is_stuck() {
    let mut config = config();
    config.sampling.stuck_after = Duration::ZERO;
    let server = TestServer::with(full_store().await, config).await;
    let body = overview(&server, "limit=1").await.body;
    assert_eq!((&body["stuck"], &body["stuck_after_ms"]), (&json!(100), &json!(0)));
    assert_eq!(body["items"][0]["stuck"], json!(true));
}

#[tokio::test]
async fn ten_thousand_resources_are_searched_sorted_and_paged() {
    let server = TestServer::with(full_store().await, config()).await;
    let first = overview(&server, "").await.body;
    assert_eq!(
        (&first["held"], &first["waiting"], &first["matched"]),
        (&json!(MANY), &json!(100), &json!(MANY))
    );
    assert_eq!((&first["stuck"], &first["truncated"]), (&json!(0), &json!(false)));
    assert_eq!(names(&first).len(), 50);
    let waiting = &first["items"][0];
    assert_eq!((&waiting["queue_length"], &waiting["holder_count"]), (&json!(1), &json!(1)));
    assert_eq!(waiting["holders"][0]["state"], json!("renewing"));
    assert_eq!(first["oldest_wait"]["key"], waiting["key"], "those with waiters come first");

    let found = overview(&server, "q=n0012&limit=200").await.body;
    assert_eq!(
        (&found["matched"], names(&found).len()),
        (&json!(10), 10),
        "upper and lower case are the same"
    );
    let one = overview(&server, "key=order/N00010&sort=name").await.body;
    assert_eq!(names(&one), ["order/N00010"]);
    let orders = overview(&server, "kind=order&sort=name&limit=3").await.body;
    assert_eq!(names(&orders), ["order/N00000", "order/N00010", "order/N00020"]);
    assert_eq!(orders["matched"], json!(MANY / 10));

    for sort in ["wait", "hold", "name", "waiters"] {
        let (mut seen, mut after) = (Vec::new(), String::new());
        loop {
            let page = overview(&server, &format!("kind=order&sort={sort}&limit=200{after}")).await.body;
            seen.extend(names(&page));
            let Some(next) = page["next"].as_str() else { break };
            after = format!("&after={next}");
        }
        let mut unique = seen.clone();
        unique.sort();
        unique.dedup();
        assert_eq!((seen.len(), unique.len()), (MANY / 10, MANY / 10), "{sort}: each once");
    }
    let refused = overview(&server, "limit=201").await;
    assert_eq!(refused.problem(), (422, "invalid"));
    assert_eq!(overview(&server, "after=nonsense").await.problem(), (422, "invalid"));
    assert_eq!(overview(&server, "sort=colour").await.problem(), (422, "invalid"));
}

#[tokio::test]
async fn a_caller_sees_only_its_namespaces_and_kinds() {
    let directory = tempfile::tempdir().unwrap();
    let (path, token) = (directory.path().join("tokens.toml"), NewToken::fresh(&System::current()));
    let all = NewToken::fresh(&System::current());
    let entry = format!(
        "[[token]]\nid = \"{}\"\nsha256 = \"{}\"\nsubject = \"a\"\nroles = [\"client\"]\nnamespaces = [\"acme\"]\n\
         [[token]]\nid = \"{}\"\nsha256 = \"{}\"\nsubject = \"b\"\nroles = [\"client\"]\n",
        token.id, token.sha256, all.id, all.sha256
    );
    fs::write(&path, entry).unwrap();
    let mut config = config();
    config.access = Access::Tokens(TokenFile::open(&path, Arc::new(System::current())).unwrap());
    let server = TestServer::with(Arc::new(Memory::new()), config).await;
    let send = async |token: &str, mut request: hyper::Request<_>| {
        request.headers_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        server.connect().await.send(request).await.unwrap()
    };
    for (resource, owner) in [("acme:report/1", OWNER), ("secret:report/2", OTHER)] {
        let claim =
            support::post("/v1/acquire", &json!({"resource": resource, "owner": owner, "ttl_ms": 60_000}));
        assert_eq!(send(&all.token, claim).await.status, 200);
    }
    let get = |path: &str| hyper::Request::builder().uri(path).body(http_body_util::Full::default()).unwrap();
    let seen = send(&token.token, get("/v1/overview")).await;
    assert_eq!(names(&seen.body), ["acme:report/1"]);
    assert_eq!((&seen.body["held"], &seen.body["matched"]), (&json!(1), &json!(1)));
    for query in ["", "?q=secret", "?after=0.secret:report/1&sort=name"] {
        let answer = send(&token.token, get(&format!("/v1/overview{query}"))).await;
        assert!(answer.status == 200 && !answer.text.contains("secret"), "{answer:?}");
    }
    assert_eq!(send(&all.token, get("/v1/overview")).await.body["held"], json!(2));
    assert_eq!(server.get("/v1/overview").await.status, 401);
}

#[tokio::test]
async fn the_longest_wait_and_who_waits_are_shown() {
    let mut config = config();
    config.sampling.every = Duration::from_millis(50);
    let server = TestServer::with(Arc::new(Memory::new()), config).await;
    server.acquire("report/1", OWNER).await;
    let mut body = waiting("report/1", OTHER, 20_000);
    (body["host"], body["label"]) = (json!("vm"), json!("nightly"));
    let poll = server.post("/v1/acquire", body);
    let looked = async {
        server.until_queued("report/1", 1).await;
        loop {
            let seen = overview(&server, "").await.body;
            if seen["waiting"] == json!(1) {
                return seen;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let seen = tokio::select! {
        seen = looked => seen,
        answer = poll => panic!("{answer:?}"),
    };
    assert_eq!(seen["oldest_wait"]["resource"], json!("report/1"));
    assert_eq!(seen["items"][0]["first_waiter"]["label"], json!("nightly"));
    assert!(!seen.to_string().contains(OWNER) && !seen.to_string().contains(OTHER));
}

#[tokio::test]
async fn what_is_only_kept_closed_is_shown_to_those_who_look_for_it() {
    let server = TestServer::with(Arc::new(Memory::new()), config()).await;
    server.acquire("report/1", OWNER).await;
    server.acquire("report/2", OTHER).await;
    let release = json!({"resource": "report/1", "owner": OWNER, "keep_for_ms": 3_600_000});
    assert_eq!(server.post("/v1/release", release).await.status, 200);
    let all = overview(&server, "").await.body;
    assert_eq!(
        (names(&all), &all["matched"], &all["kept"]),
        (vec!["report/2".to_owned()], &json!(1), &json!(1))
    );
    for (query, expected) in [
        ("only=kept", vec!["report/1"]),
        ("key=report/1", vec!["report/1"]),
        ("q=1", vec!["report/1"]),
        ("kind=report&sort=name", vec!["report/1", "report/2"]),
        ("only=held", vec!["report/2"]),
    ] {
        assert_eq!(names(&overview(&server, query).await.body), expected, "{query}");
    }
}
