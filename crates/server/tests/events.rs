//! `GET /v1/events`: what changes in the store, and how a stream begins, lags and ends.

#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::{fs, sync::Arc, time::Duration};

use leasehold::{Memory, System};
use leasehold_server::{Access, Config, NewToken, TokenFile};
use serde_json::json;
use support::{Connection, Events, OTHER, OWNER, TestServer, config};

/// Looks at the store often, so that a test need not wait.
fn eager() -> Config {
    let mut config = config();
    config.sampling.every = Duration::from_millis(30);
    config
}

async fn start(config: Config) -> TestServer {
    TestServer::with(Arc::new(Memory::new()), config).await
}

/// A stream that begins now: what happens after this is seen.
async fn follow(server: &TestServer, headers: &[(&str, &str)]) -> Events {
    let mut events = Events::open(server.address, headers).await;
    let first = events.next().await.unwrap();
    assert_eq!((first.name.as_str(), &first.data["reason"]), ("resync", &json!("start")));
    events
}

/// A sample has been taken, so that changes from now on can be told.
async fn sampled(server: &TestServer) -> String {
    server.get("/v1/overview").await.body["event_id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn changes_of_the_store_are_events() {
    let server = start(eager()).await;
    sampled(&server).await;
    let mut events = follow(&server, &[]).await;
    let granted = server.acquire("report/1", OWNER).await;
    let event = events.next().await.unwrap();
    assert_eq!((&event.data["kind"], &event.data["resource"]), (&json!("granted"), &json!("report/1")));
    assert_eq!(event.data["token"], granted.body["token"]);
    let mut queued =
        json!({"resource": "report/1", "owner": OTHER, "ttl_ms": 30_000, "when_blocked": "queue"});
    queued["place_ttl_ms"] = json!(60_000);
    server.post("/v1/acquire", queued).await;
    assert_eq!(events.change().await.0, "queued");
    let pause = json!({"resource": "report/1", "action": "pause", "why": "test", "lasting_ms": 60_000});
    let paused = server.post("/v1/orders", pause).await;
    assert_eq!(paused.status, 200, "{paused:?}");
    assert_eq!(events.change().await.0, "paused");
    let resume = json!({"resource": "report/1", "action": "resume", "why": "test"});
    assert_eq!(server.post("/v1/orders", resume).await.status, 200);
    assert_eq!(events.change().await.0, "resumed");
    let evict =
        json!({"resource": "report/1", "action": "evict-now", "any": true, "why": "test", "by": "ann"});
    let evicted = server.post("/v1/orders", evict).await;
    assert_eq!(evicted.status, 200, "{evicted:?}");
    let event = events.next().await.unwrap();
    assert_eq!(
        (&event.data["kind"], &event.data["by"], &event.data["why"]),
        (&json!("evicted"), &json!("ann"), &json!("test"))
    );
    server.post("/v1/release", json!({"resource": "report/1", "owner": OTHER})).await;
    server.post("/v1/acquire", json!({"resource": "job/1", "owner": OWNER, "ttl_ms": 6000})).await;
    let mut seen = Vec::new();
    while seen.last() != Some(&("expired".to_owned(), "job/1".to_owned())) {
        seen.push(events.change().await);
    }
    assert!(seen.contains(&("granted".to_owned(), "job/1".to_owned())), "{seen:?}");
}

#[tokio::test]
async fn a_reader_that_comes_back_goes_on_where_it_was() {
    let server = start(eager()).await;
    let before = sampled(&server).await;
    server.acquire("report/1", OWNER).await;
    server.acquire("report/2", OWNER).await;
    let mut events = Events::open(server.address, &[("last-event-id", &before)]).await;
    assert_eq!(events.change().await, ("granted".to_owned(), "report/1".to_owned()));
    let second = events.next().await.unwrap();
    assert_eq!(second.data["resource"], json!("report/2"));
    drop(events);
    server.acquire("report/3", OWNER).await;
    let mut events = Events::open(server.address, &[("last-event-id", &second.id)]).await;
    assert_eq!(events.change().await, ("granted".to_owned(), "report/3".to_owned()));
    for other in ["0123abcd-7", "nonsense", &second.id.replace('-', "-99999")] {
        let mut events = Events::open(server.address, &[("last-event-id", other)]).await;
        let first = events.next().await.unwrap();
        assert_eq!(
            (first.name.as_str(), &first.data["reason"]),
            ("resync", &json!("other_server")),
            "{other}"
        );
    }
}

#[tokio::test]
async fn a_reader_that_was_passed_reads_anew() {
    let mut config = eager();
    config.sampling.changes = 5;
    let server = start(config).await;
    let before = sampled(&server).await;
    let mut open = follow(&server, &[]).await;
    for number in 0..20 {
        server.acquire(&format!("report/{number}"), OWNER).await;
    }
    let last = async {
        loop {
            let seen = server.get("/v1/overview").await.body;
            if seen["held"] == json!(20) {
                return seen["event_id"].as_str().unwrap().to_owned();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let last = tokio::time::timeout(support::PATIENCE, last).await.unwrap();
    let mut late = Events::open(server.address, &[("last-event-id", &before)]).await;
    let first = late.next().await.unwrap();
    assert_eq!((first.name.as_str(), &first.data["reason"]), ("resync", &json!("lag")));
    assert_eq!(first.id, last, "it goes on from the newest one");
    // An open stream has all of them, or is told that it missed some.
    let mut seen = 0;
    while seen < 20 {
        let event = open.next().await.unwrap();
        seen = if event.name == "resync" || event.id == last { 20 } else { seen + 1 };
    }
}

#[tokio::test]
async fn a_stream_shows_only_what_its_caller_may_see_and_ends_with_its_token() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tokens.toml");
    let [scoped, all] = [NewToken::fresh(&System::current()), NewToken::fresh(&System::current())];
    let entry = |token: &NewToken, more: &str| {
        let NewToken { id, sha256, .. } = token;
        format!(
            "[[token]]\nid = \"{id}\"\nsha256 = \"{sha256}\"\nsubject = \"{id}\"\nroles = [\"client\"]\n{more}\n"
        )
    };
    let namespaces = "namespaces = [\"acme\"]\nwaiters_max = 1";
    fs::write(&path, entry(&scoped, namespaces) + &entry(&all, "")).unwrap();
    let mut config = eager();
    let file = TokenFile::open(&path, Arc::new(System::current())).unwrap();
    config.access = Access::Tokens(Arc::clone(&file));
    let server = start(config).await;
    let [scoped_header, all_header] = [&scoped, &all].map(|token| format!("Bearer {}", token.token));
    let mut events = follow(&server, &[("authorization", &scoped_header)]).await;
    let mut everything = follow(&server, &[("authorization", &all_header)]).await;
    let second = Connection::http1(server.address).await.events(&[("authorization", &scoped_header)]).await;
    assert_eq!(second.status(), 429, "a stream counts as a waiting claim of the token");
    let mut request =
        hyper::Request::builder().uri("/v1/overview").body(http_body_util::Full::default()).unwrap();
    request.headers_mut().insert("authorization", all_header.parse().unwrap());
    assert_eq!(server.connect().await.send(request).await.unwrap().status, 200);
    for resource in ["secret:report/1", "acme:report/2"] {
        let claim = json!({"resource": resource, "owner": OWNER, "ttl_ms": 60_000});
        let mut request = support::post("/v1/acquire", &claim);
        request.headers_mut().insert("authorization", all_header.parse().unwrap());
        assert_eq!(server.connect().await.send(request).await.unwrap().status, 200);
    }
    assert_eq!(events.change().await, ("granted".to_owned(), "acme:report/2".to_owned()));
    let mut seen = [everything.change().await.1, everything.change().await.1];
    seen.sort();
    assert_eq!(seen, ["acme:report/2", "secret:report/1"]);
    // Revoked.
    fs::write(&path, entry(&all, "")).unwrap();
    file.look();
    assert_eq!(events.next().await, None, "the stream ends with its token");
}

#[tokio::test]
async fn draining_ends_the_stream() {
    let mut server = start(eager()).await;
    let mut events = follow(&server, &[]).await;
    server.stop();
    let last = events.next().await.unwrap();
    assert_eq!(last.name, "draining");
    assert_eq!(events.next().await, None);
    tokio::time::timeout(support::PATIENCE, server.task).await.expect("the server ends").unwrap();
}
