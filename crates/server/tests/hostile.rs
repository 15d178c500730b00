//! Requests that are wrong, huge, slow, or sent by a web page: each gets a clear answer and harms nobody.

#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use leasehold::Memory;
use leasehold_server::{Access, Roles};
use serde_json::{Value, json};
use support::{OWNER, PATIENCE, TestServer, config, post};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

fn lease() -> Value {
    json!({"resource": "report/1", "owner": OWNER, "ttl_ms": 30000})
}

fn with(field: &str, value: Value) -> Value {
    let mut body = lease();
    body[field] = value;
    body
}

#[tokio::test]
async fn every_number_is_bounded() {
    let server = TestServer::start().await;
    let far: u64 = (1 << 53) - 2;
    for body in [
        with("ttl_ms", json!(0)),
        with("wait_ms", json!(120_001)),
        with("wait_ms", json!(-1)),
        with("wait_ms", json!(u64::MAX)),
        with("ttl_ms", json!(1.5)),
        with("place_ttl_ms", json!(0)),
        with("place_ttl_ms", json!(120_001)),
        with("place_ttl_ms", json!(u64::MAX)),
        with("floor", json!(far.to_string())),
        with("floor", json!("9007199254740992")),
        with("succeeds", json!({"owner": "f".repeat(32)})),
        with("succeeds", json!({"owner": support::OTHER, "bury_ms": 48 * 3_600_000 + 1})),
        with("owner", json!("0".repeat(32))),
        with("owner", json!("a".repeat(32))),
        with("share", json!({"weight": 0, "capacity": 5})),
        with("unknown", json!(1)),
        with("pid", json!(u64::MAX)),
    ] {
        let refused = server.post("/v1/acquire", body.clone()).await;
        assert_eq!(refused.problem(), (422, "invalid"), "{body}");
        assert_eq!(refused.body["effect"], json!("none"));
        assert!(!refused.text.contains(OWNER), "{}", refused.text);
    }
    assert_eq!(
        server.get("/v1/resource?name=report/1").await.body["last_token"],
        Value::Null,
        "nothing was granted"
    );
    let long = server.post("/v1/acquire", with("ttl_ms", json!(u64::MAX))).await;
    assert_eq!(
        (long.status, &long.body["ttl_ms"]),
        (200, &json!(24 * 3_600_000)),
        "the answer says what was given"
    );
    let too_long = with("level", json!("consensus"));
    assert_eq!(server.post("/v1/acquire", too_long).await.problem(), (422, "guarantee_too_weak"));
    for release in [json!({"bury_ms": u64::MAX}), json!({"keep_for_ms": u64::MAX})] {
        let mut body = json!({"resource": "report/1", "owner": OWNER});
        body.as_object_mut().unwrap().extend(release.as_object().unwrap().clone());
        assert_eq!(server.post("/v1/release", body).await.problem(), (422, "invalid"));
    }
    let renew = json!({"leases": [lease()], "timeout_ms": 60_001});
    assert_eq!(server.post("/v1/renew", renew).await.problem(), (422, "invalid"));
    assert_eq!(server.get("/v1/resource?name=report/1&wait_ms=99999").await.problem(), (422, "invalid"));
    assert_eq!(server.get("/v1/resources?limit=many").await.problem(), (422, "invalid"));
    assert_eq!(server.get("/v1/resources?offset=1").await.problem(), (422, "invalid"));
}

#[tokio::test]
async fn a_floor_that_a_client_can_have_seen_is_taken() {
    let server = TestServer::start().await;
    let granted = server.post("/v1/acquire", lease()).await;
    let token: u64 = granted.body["token"].as_str().unwrap().parse().unwrap();
    server.post("/v1/release", json!({"resource": "report/1", "owner": OWNER})).await;
    let mut next = with("floor", json!((token + 5).to_string()));
    next["owner"] = json!(support::OTHER);
    let granted = server.post("/v1/acquire", next).await;
    assert_eq!(granted.status, 200);
    assert!(granted.body["token"].as_str().unwrap().parse::<u64>().unwrap() > token + 5);
}

#[tokio::test]
async fn what_is_no_request_has_its_own_status() {
    let server = TestServer::start().await;
    let mut connection = server.connect().await;
    let request = |content_type: &str, body: &'static str| {
        let request =
            Request::builder().method("POST").uri("/v1/acquire").header("content-type", content_type);
        request.body(Full::<Bytes>::from(body)).unwrap()
    };
    let json = "application/json; charset=utf-8";
    assert_eq!(connection.send(request(json, "{")).await.unwrap().problem(), (400, "malformed"));
    assert_eq!(connection.send(request(json, "")).await.unwrap().problem(), (400, "malformed"));
    assert_eq!(connection.send(request(json, "[]")).await.unwrap().problem(), (422, "invalid"));
    assert_eq!(connection.send(request("text/plain", "{}")).await.unwrap().problem(), (415, "not_json"));
    let form = request("application/x-www-form-urlencoded", "a=b");
    assert_eq!(connection.send(form).await.unwrap().problem(), (415, "not_json"));
    assert_eq!(connection.get("/v1/acquire").await.problem(), (405, "method_not_allowed"));
    assert_eq!(connection.get("/v2/acquire").await.problem(), (404, "not_found"));
    assert_eq!(connection.get("/v1/resource").await.problem(), (422, "invalid"));
    let nested = "[".repeat(100_000);
    let deep = Request::builder().method("POST").uri("/v1/acquire").header("content-type", json);
    let deep = connection.send(deep.body(Full::from(nested)).unwrap()).await.unwrap();
    assert_eq!(deep.problem(), (400, "malformed"));
}

#[tokio::test]
async fn a_huge_body_is_refused_without_reading_it() {
    let server = TestServer::start().await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let head = "POST /v1/renew HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1073741824\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    assert!(first_line(&mut stream).await.starts_with("HTTP/1.1 413"));
    // Without a length, it is cut at the limit.
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let head = "POST /v1/renew HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let chunk = format!("100000\r\n{}\r\n", " ".repeat(1 << 20));
    for _ in 0..9 {
        if stream.write_all(chunk.as_bytes()).await.is_err() {
            break; // it has closed the connection already
        }
    }
    assert!(first_line(&mut stream).await.starts_with("HTTP/1.1 413"));
}

async fn first_line(stream: &mut TcpStream) -> String {
    let mut bytes = vec![0; 1000];
    let count = tokio::time::timeout(PATIENCE, stream.read(&mut bytes)).await.unwrap().unwrap_or(0);
    String::from_utf8_lossy(&bytes[..count]).lines().next().unwrap_or("").to_owned()
}

#[tokio::test]
async fn slow_peers_cost_a_bounded_time() {
    let mut config = config();
    config.timeouts.first_byte = Duration::from_millis(200);
    config.timeouts.headers = Duration::from_millis(200);
    config.timeouts.body = Duration::from_millis(200);
    let server = TestServer::with(Arc::new(Memory::new()), config).await;
    let begun = "POST /v1/renew HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{";
    for (sent, expected) in [
        ("", ""),
        ("PR", ""),
        ("PRI", ""),
        ("PRI * HTTP/2.0\r\n\r\nSM", ""),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", ""),
        ("GET /v1/info HTTP/1.1\r\nHo", ""),
        (begun, "HTTP/1.1 408"),
    ] {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(sent.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await;
        // Reset is as good as closed: bytes of the request were left unread.
        assert!(read.is_ok(), "after {sent:?} the connection stays open");
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.starts_with(expected), "{sent:?}: {answer}");
    }
}

#[tokio::test]
async fn a_peer_that_does_not_read_its_answers_is_cut() {
    let mut config = config();
    config.timeouts.write = Duration::from_millis(300);
    let server = TestServer::with(Arc::new(Memory::new()), config).await;
    let stream = TcpStream::connect(server.address).await.unwrap();
    let (mut reading, mut writing) = stream.into_split();
    let pushed = async {
        // Answers pile up until the server cannot write, and then it does not read either.
        loop {
            if writing.write_all(b"GET /v1/info HTTP/1.1\r\nHost: localhost\r\n\r\n").await.is_err() {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, pushed).await.expect("the server closes the connection");
    let mut rest = Vec::new();
    let _ = reading.read_to_end(&mut rest).await;
}

#[tokio::test]
async fn forged_hosts_and_pages_of_other_sites_are_refused() {
    let server = TestServer::start().await;
    let mut connection = server.connect().await;
    let mut forged = post("/v1/acquire", &lease());
    forged.headers_mut().insert("host", "evil.example:7420".parse().unwrap());
    assert_eq!(connection.send(forged).await.unwrap().problem(), (421, "wrong_host"));
    for (name, value) in [
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-site", "same-site"),
        ("origin", "https://evil.example"),
    ] {
        let mut request = post("/v1/acquire", &lease());
        request.headers_mut().insert(name, value.parse().unwrap());
        assert_eq!(connection.send(request).await.unwrap().problem(), (403, "denied"));
        let mut request = Request::builder().uri("/v1/resources").body(Full::default()).unwrap();
        request.headers_mut().insert(name, value.parse().unwrap());
        assert_eq!(connection.send(request).await.unwrap().problem(), (403, "denied"), "reads, too");
    }
    assert_eq!(server.get("/v1/resource?name=report/1").await.body["holder_count"], json!(0));
    let mut probe = Request::builder().uri("/readyz").body(Full::default()).unwrap();
    probe.headers_mut().insert("host", "10.0.0.1".parse().unwrap());
    assert_eq!(connection.send(probe).await.unwrap().status, 200, "probes come by address");
    assert!(connection.get("/v1/info").await.headers.get("access-control-allow-origin").is_none());
}

#[tokio::test]
async fn without_tokens_callers_are_clients_and_never_operators() {
    let mut config = config();
    config.access = Access::default();
    let server = TestServer::with(Arc::new(Memory::new()), config).await;
    assert_eq!(server.acquire("report/1", OWNER).await.status, 200);
    let order = json!({"resource": "report/1", "action": "evict-now", "any": true, "why": "mine"});
    assert_eq!(server.post("/v1/orders", order).await.problem(), (403, "denied"));
    assert_eq!(server.get("/v1/leaks").await.problem(), (403, "denied"));
    assert_eq!(server.get("/v1/info").await.body["caller"]["roles"], json!(["viewer", "client"]));
}

#[tokio::test]
async fn viewers_only_look() {
    let mut config = config();
    config.access = Access::Open(Roles::VIEWER);
    let server = TestServer::with(Arc::new(Memory::new()), config).await;
    assert_eq!(server.get("/v1/resources").await.status, 200);
    for path in ["/v1/acquire", "/v1/renew", "/v1/release", "/v1/wait", "/v1/orders"] {
        assert_eq!(server.post(path, lease()).await.problem(), (403, "denied"), "{path}");
    }
}

#[tokio::test]
async fn connections_are_capped() {
    let mut config = config();
    config.limits.connections = 3;
    let server = TestServer::with(Arc::new(Memory::new()), config).await;
    let mut open = Vec::new();
    for _ in 0..3 {
        let mut connection = server.connect().await;
        assert_eq!(connection.get("/healthz").await.status, 200);
        open.push(connection);
    }
    let mut refused = TcpStream::connect(server.address).await.unwrap();
    let _ = refused.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
    assert_eq!(first_line(&mut refused).await, "");
    assert_eq!(open[0].get("/healthz").await.status, 200, "those that are open go on");
}

#[tokio::test]
async fn every_number_of_the_other_routes_is_bounded() {
    let server = TestServer::start().await;
    let claim = json!({"resource": "report/1", "owner": OWNER});
    let with = |body: &Value, field: &str, value: Value| {
        let mut body = body.clone();
        body[field] = value;
        body
    };
    let order = |action: &str, field: &str, value: Value| {
        let body = json!({"resource": "report/1", "action": action, "why": "test", "any": action == "ask"});
        with(&body, field, value)
    };
    let wait = json!({"claims": [with(&claim, "cursor", json!(""))], "wait_ms": 0});
    let mut bodies = vec![
        ("/v1/orders", order("resize", "capacity", json!(0))),
        ("/v1/orders", order("resize", "capacity", json!(1_u64 << 32))),
        ("/v1/orders", order("pause", "token", json!("0"))),
        ("/v1/orders", order("pause", "why", json!("x".repeat(1025)))),
    ];
    // Of any number: negative, a fraction, a text, beyond 64 bits.
    for value in [json!(-1), json!(0.5), json!("1"), json!(1e30), json!(true)] {
        bodies.extend([
            ("/v1/renew", with(&claim, "ttl_ms", value.clone())),
            ("/v1/release", with(&claim, "bury_ms", value.clone())),
            ("/v1/release", with(&claim, "keep_for_ms", value.clone())),
            ("/v1/wait", with(&wait, "wait_ms", value.clone())),
            ("/v1/renew", json!({"leases": [], "timeout_ms": value.clone()})),
            ("/v1/orders", order("ask", "within_ms", value.clone())),
            ("/v1/orders", order("pause", "lasting_ms", value.clone())),
            ("/v1/orders", order("resize", "capacity", value)),
        ]);
    }
    bodies.extend([
        ("/v1/renew", with(&claim, "ttl_ms", json!(0))),
        ("/v1/wait", with(&wait, "wait_ms", json!(60_001))),
        ("/v1/renew", json!({"leases": [], "timeout_ms": 0})),
    ]);
    for (path, body) in bodies {
        let refused = server.post(path, body.clone()).await;
        assert_eq!(refused.problem(), (422, "invalid"), "{path} {body}");
        assert_eq!(refused.body["effect"], json!("none"), "{path} {body}");
    }
    for query in [
        "/v1/resources?limit=-1",
        "/v1/resources?limit=4294967296",
        "/v1/audit?limit=1.5",
        "/v1/leaks?limit=x",
        "/v1/resource?name=report/1&wait_ms=-1",
        "/v1/resource?name=report/1&wait_ms=18446744073709551616",
        "/v1/resources?limit=1&limit=2",
    ] {
        assert_eq!(server.get(query).await.problem(), (422, "invalid"), "{query}");
    }
    // The largest that the type takes: answered, in bounds, and not with an error of the server.
    for (path, body) in [
        ("/v1/renew", with(&claim, "ttl_ms", json!(u64::MAX))),
        ("/v1/orders", order("ask", "within_ms", json!(u64::MAX))),
        ("/v1/orders", order("pause", "lasting_ms", json!(u64::MAX))),
        ("/v1/orders", order("resize", "capacity", json!(u32::MAX))),
    ] {
        let answer = server.post(path, body.clone()).await;
        assert!(answer.status < 500, "{path} {body}: {answer:?}");
    }
}

#[tokio::test]
async fn lists_are_bounded_and_each_bad_entry_is_refused_alone() {
    let server = TestServer::start().await;
    let claim =
        |number: usize| json!({"resource": format!("report/{number}"), "owner": OWNER, "ttl_ms": 30000});
    for (path, list) in [("/v1/acquire", "claims"), ("/v1/renew", "leases")] {
        let entries: Vec<Value> = (0..1001).map(claim).collect();
        assert_eq!(server.post(path, json!({list: entries})).await.problem(), (413, "too_large"), "{path}");
    }
    let mut entries: Vec<Value> = (0..4).map(claim).collect();
    entries[1]["resource"] = json!("no resource");
    entries[2]["ttl_ms"] = json!(0);
    let answer = server.post("/v1/acquire", json!({"claims": entries})).await;
    let statuses: Vec<_> =
        answer.body["claims"].as_array().unwrap().iter().map(|one| &one["status"]).collect();
    assert_eq!(statuses, [200, 422, 422, 200]);
}

#[tokio::test]
async fn a_gigabyte_over_http2_is_cut_at_the_limit() {
    let server = TestServer::start().await;
    let mut connection = support::Connection::http2(server.address).await;
    // More than is ever read. That the rest of a gigabyte is not read shows on HTTP/1.1.
    let body = Full::from(vec![b' '; 9 << 20]);
    let request =
        Request::builder().method("POST").uri("/v1/renew").header("content-type", "application/json");
    let refused = connection.send(request.body(body).unwrap()).await.unwrap();
    assert_eq!(refused.problem(), (413, "too_large"));
    assert_eq!(connection.get("/v1/info").await.status, 200, "other requests of the connection go on");
}

#[tokio::test]
async fn thousands_of_connections_do_not_keep_others_out() {
    let mut config = config();
    config.limits.connections = 1500;
    config.timeouts.first_byte = Duration::from_secs(2);
    let server = TestServer::with(Arc::new(Memory::new()), config).await;
    let mut before = server.connect().await;
    assert_eq!(before.get("/v1/info").await.status, 200);
    let mut idle = Vec::new();
    for _ in 0..3000 {
        idle.extend(TcpStream::connect(server.address).await);
    }
    assert_eq!(before.get("/v1/info").await.status, 200, "those that are served go on");
    // Connections without a request are closed, and then there is room.
    let room = async {
        loop {
            let mut stream = TcpStream::connect(server.address).await.unwrap();
            let _ = stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
            if first_line(&mut stream).await.ends_with("200 OK") {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, room).await.expect("there is room again");
}
