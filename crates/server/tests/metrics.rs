//! Metrics.

#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::{fs, sync::Arc};

use leasehold::{Memory, System};
use leasehold_server::{Access, NewToken, Server, TokenFile};
use serde_json::json;
use support::{Connection, OTHER, OWNER, TestServer, config, waiting};
use tokio::net::TcpListener;

fn value(text: &str, series: &str) -> f64 {
    let line = text.lines().find(|line| line.strip_prefix(series).is_some_and(|rest| rest.starts_with(' ')));
    line.unwrap_or_else(|| panic!("{series} is not in {text}")).rsplit(' ').next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn requests_refusals_waiting_and_calls_of_the_store_are_counted() {
    let server = TestServer::start().await;
    let before = server.get("/metrics").await;
    assert_eq!(
        (before.status, before.header("content-type")),
        (200, "text/plain; version=0.0.4; charset=utf-8")
    );
    assert_eq!(
        value(&before.text, r#"leasehold_http_requests_total{route="/v1/acquire",status="200"}"#),
        0.0,
        "there from the start"
    );
    assert_eq!(value(&before.text, r#"leasehold_http_refused_total{kind="contended"}"#), 0.0);
    assert_eq!(value(&before.text, r#"leasehold_store_call_seconds_count{verb="order"}"#), 0.0);

    server.acquire("report/1", OWNER).await;
    assert_eq!(server.acquire("report/1", OTHER).await.status, 423);
    server.get("/v1/nothing").await;
    let mut connection = server.connect().await;
    let poll =
        tokio::spawn(
            async move { connection.post("/v1/acquire", &waiting("report/1", OTHER, 60_000)).await },
        );
    server.until_queued("report/1", 1).await;
    let text = server.get("/metrics").await.text;
    assert_eq!(value(&text, r#"leasehold_http_requests_total{route="/v1/acquire",status="200"}"#), 1.0);
    assert_eq!(value(&text, r#"leasehold_http_requests_total{route="/v1/acquire",status="423"}"#), 1.0);
    assert_eq!(value(&text, r#"leasehold_http_requests_total{route="other",status="404"}"#), 1.0);
    assert_eq!(value(&text, r#"leasehold_http_refused_total{kind="contended"}"#), 1.0);
    assert_eq!(value(&text, "leasehold_http_waiting"), 1.0);
    assert!(value(&text, "leasehold_http_connections") >= 2.0);
    assert!(value(&text, r#"leasehold_store_call_seconds_count{verb="acquire"}"#) >= 3.0);
    assert!(value(&text, r#"leasehold_store_call_seconds_bucket{verb="acquire",le="+Inf"}"#) >= 3.0);
    let names: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap();
        let name =
            ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
        assert!(names.iter().any(|known| known.split(' ').next() == Some(name)), "{name} has no TYPE");
    }
    assert!(!text.contains("report") && !text.contains(OWNER) && !text.contains(OTHER));
    poll.abort();
}

#[tokio::test]
async fn an_address_of_its_own_has_metrics_and_health_without_a_token_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let (path, token) = (directory.path().join("tokens.toml"), NewToken::fresh(&System::current()));
    let entry = format!(
        "[[token]]\nid = \"{}\"\nsha256 = \"{}\"\nsubject = \"a\"\nroles = [\"client\"]\n",
        token.id, token.sha256
    );
    fs::write(&path, entry).unwrap();
    let mut config = config();
    let tokens = TokenFile::open(&path, Arc::new(System::current())).unwrap();
    config.access = Access::Tokens(Arc::clone(&tokens));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = Server::new(Arc::new(Memory::new()), Arc::new(System::current()), config).unwrap();
    let mut server = TestServer::run(server.with_metrics(listener)).await;
    assert_eq!(server.get("/metrics").await.status, 401, "the API wants a token");
    let metrics = Connection::http1(address).await.get("/metrics").await;
    assert_eq!(metrics.status, 200);
    assert_eq!(value(&metrics.text, r#"leasehold_http_bad_file{file="tokens"}"#), 0.0);
    fs::write(&path, "nonsense").unwrap();
    tokens.look();
    let metrics = Connection::http1(address).await.get("/metrics").await;
    assert_eq!(value(&metrics.text, r#"leasehold_http_bad_file{file="tokens"}"#), 1.0);
    for path in ["/healthz", "/readyz"] {
        assert_eq!(Connection::http1(address).await.get(path).await.status, 200);
    }
    for path in ["/v1/info", "/v1/resources", "/", "/openapi.json"] {
        assert_eq!(Connection::http1(address).await.get(path).await.problem(), (404, "not_found"), "{path}");
    }
    let claim = json!({"resource": "r/1", "owner": OWNER, "ttl_ms": 1000});
    assert_eq!(Connection::http1(address).await.post("/v1/acquire", &claim).await.status, 404);
    // While an open request holds up the draining, this address says so.
    let mut open = server.connect().await;
    let body = waiting("r/1", OWNER, 1);
    let mut request = support::post("/v1/acquire", &body);
    request.headers_mut().insert("authorization", format!("Bearer {}", token.token).parse().unwrap());
    assert_eq!(open.send(request).await.unwrap().status, 200);
    server.stop();
    server.task.await.unwrap();
}
