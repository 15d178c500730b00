//! Something that is not our server answers: a proxy, a page, another server. No answer of it is a grant.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests on real servers run in real time")]

mod common;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use common::{open, url};
use leasehold::System;
use leasehold_core::{
    Backend, BackendExt as _, Effect, ErrorKind, FencingToken, OperatorAction, OperatorCommand, Query,
};
use leasehold_http::{Config, Http};
use leasehold_testkit::calls::{LONG_TTL, claim, in_time, kind_and_effect, report};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

const STORE: &str = "0123456789abcdef";

/// What the liar does with a request that is not for `/v1/info`.
#[derive(Clone)]
enum Lie {
    /// Writes this text as it is. `REQUEST` stands for the id of the request.
    Says(String),
    /// Reads the request and closes the connection.
    HangsUp,
    /// Reads the request and says nothing.
    IsMute,
}

struct Liar {
    port: u16,
    lie: Arc<Mutex<Lie>>,
    /// The paths of the requests that it has read.
    seen: Arc<Mutex<Vec<String>>>,
}

impl Liar {
    async fn start() -> Liar {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (lie, seen) = (Arc::new(Mutex::new(Lie::HangsUp)), Arc::new(Mutex::new(Vec::new())));
        let shared = (Arc::clone(&lie), Arc::clone(&seen));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&shared.0), Arc::clone(&shared.1)));
            }
        });
        Liar { port, lie, seen }
    }

    fn says(&self, status: &str, headers: &str, body: &str) {
        let length = body.len();
        let text = format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {length}\r\n\r\n{body}");
        *self.lie.lock().unwrap() = Lie::Says(text);
    }

    fn requests(&self) -> usize {
        self.seen.lock().unwrap().len()
    }
}

async fn serve(mut stream: TcpStream, lie: Arc<Mutex<Lie>>, seen: Arc<Mutex<Vec<String>>>) {
    while let Some((head, _)) = read(&mut stream).await {
        let path = head.split(' ').nth(1).unwrap_or("").to_owned();
        let id =
            head.lines().find_map(|line| line.strip_prefix("leasehold-request: ")).unwrap_or("").to_owned();
        if path == "/v1/info" {
            stream
                .write_all(answer("200 OK", &ours(), &info().to_string()).replace("REQUEST", &id).as_bytes())
                .await
                .unwrap();
            continue;
        }
        seen.lock().unwrap().push(path);
        let lie = lie.lock().unwrap().clone();
        match lie {
            Lie::Says(text) => {
                let _ = stream.write_all(text.replace("REQUEST", &id).as_bytes()).await;
                if text.contains("CUT") {
                    return;
                }
            }
            Lie::HangsUp => return,
            Lie::IsMute => tokio::time::sleep(Duration::from_secs(60)).await,
        }
    }
}

async fn read(stream: &mut TcpStream) -> Option<(String, Vec<u8>)> {
    let (mut bytes, mut chunk) = (Vec::new(), [0; 4096]);
    loop {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
        if let Some(end) = end {
            let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            let length: usize = length.and_then(|text| text.parse().ok()).unwrap_or(0);
            if bytes.len() >= end + 4 + length {
                return Some((head, bytes[end + 4..].to_vec()));
            }
        }
        match stream.read(&mut chunk).await {
            Ok(0) | Err(_) => return None,
            Ok(count) => bytes.extend_from_slice(&chunk[..count]),
        }
    }
}

fn answer(status: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n{body}", body.len())
}

fn ours() -> String {
    format!(
        "Leasehold-Api: 1.0\r\nLeasehold-Store: {STORE}\r\nLeasehold-Request: REQUEST\r\nContent-Type: application/json\r\n"
    )
}

fn info() -> Value {
    json!({
        "api": "1.0", "server": "0", "survives_server": true, "draining": false,
        "store": {"id": STORE, "backend": "sqlite", "level": "database", "because": "", "tokens_break_when": ""},
        "capabilities": {"queue": true, "shares": true, "handover": true, "keep_for": true, "own_ttl": true, "orders": true,
            "self_granting": false, "passes_over": true},
        "limits": {"queue": 10, "note": 10, "entries": 10, "page": 10, "ttl_ms": 86_400_000_u64, "wait_ms": 60000,
            "place_ttl_ms": 60000, "bury_ms": 60000},
        "caller": {"subject": null, "roles": [], "namespaces": null, "kinds": null}
    })
}

/// A grant as the server writes it, of this claim.
fn grant(claim: &leasehold_core::Claim) -> Value {
    use leasehold_api::{acquire, fields::StoreId};
    use leasehold_core::{Grant, Verdict};
    let given = Grant::new(FencingToken::new(7).unwrap(), LONG_TTL);
    let store = STORE.parse::<StoreId>().unwrap();
    serde_json::to_value(acquire::reply(claim, Ok(Verdict::Granted(given)), Duration::ZERO, &store)).unwrap()
}

/// The backend, on the liar.
async fn backend(liar: &Liar) -> Arc<dyn Backend> {
    open(&format!("{}?timeout=1s", url(liar.port))).await
}

#[tokio::test]
async fn only_a_whole_answer_of_our_server_to_our_request_is_a_grant() {
    let liar = Liar::start().await;
    let backend = backend(&liar).await;
    let (claim, other) = (claim(&report(), LONG_TTL), claim(&report(), LONG_TTL));
    let list = |entry: Value| json!({"claims": [entry]}).to_string();
    let granted = list(grant(&claim));
    liar.says("200 OK", &ours(), &granted);
    backend.acquire_one(&claim).await.expect("the truth is believed");
    let mut unknown_verdict = grant(&claim);
    unknown_verdict["verdict"] = json!("promised");
    let html = "<html>302 to the login page</html>";
    let lies = [
        ("another claim", "200 OK", ours(), list(grant(&other))),
        ("another request", "200 OK", ours().replace("REQUEST", "7"), granted.clone()),
        ("no request", "200 OK", ours().replace("Leasehold-Request: REQUEST\r\n", ""), granted.clone()),
        ("another version", "200 OK", ours().replace("1.0", "2.0"), granted.clone()),
        ("without our headers", "200 OK", String::new(), granted.clone()),
        ("an unknown verdict", "200 OK", ours(), list(unknown_verdict)),
        ("two grants", "200 OK", ours(), json!({"claims": [grant(&claim), grant(&claim)]}).to_string()),
        ("no grant", "200 OK", ours(), json!({"claims": []}).to_string()),
        ("the wrong form", "200 OK", ours(), grant(&claim).to_string()),
        ("half of it", "200 OK", ours(), granted[..granted.len() / 2].to_owned()),
        ("a page", "200 OK", "Content-Type: text/html\r\n".to_owned(), html.to_owned()),
        ("a page with our headers", "200 OK", ours(), html.to_owned()),
        ("a redirect", "307 Temporary Redirect", "Location: /v1/renew\r\n".to_owned(), String::new()),
        (
            "a redirect with our headers",
            "307 Temporary Redirect",
            format!("{}Location: /v1/renew\r\n", ours()),
            granted.clone(),
        ),
        ("a proxy's 502", "502 Bad Gateway", String::new(), html.to_owned()),
        ("a proxy's 429", "429 Too Many Requests", "Retry-After: 1\r\n".to_owned(), String::new()),
        ("a 503 with our headers", "503 Service Unavailable", ours(), html.to_owned()),
    ];
    for (what, status, headers, body) in lies {
        liar.says(status, &headers, &body);
        let before = liar.requests();
        let error = backend.acquire_one(&claim).await.expect_err(what);
        assert_eq!(kind_and_effect(&error), (ErrorKind::Unavailable, Effect::Unknown), "{what}: {error:?}");
        assert_eq!(liar.requests(), before + 1, "{what}: it is sent once, and no redirect is followed");
    }
    liar.says("200 OK", &ours(), &granted);
    backend.acquire_one(&claim).await.expect("the truth is believed again");
}

#[tokio::test]
async fn an_answer_of_another_store_is_no_grant_and_none_follows() {
    let liar = Liar::start().await;
    let backend = backend(&liar).await;
    let claim = claim(&report(), LONG_TTL);
    let granted = json!({"claims": [grant(&claim)]}).to_string();
    liar.says("200 OK", &ours().replace(STORE, "fedcba9876543210"), &granted);
    let error = backend.acquire_one(&claim).await.expect_err("another store");
    assert_eq!(kind_and_effect(&error), (ErrorKind::Unavailable, Effect::Unknown), "{error:?}");
    // Another client of this address may hold the lease on the other store.
    liar.says("200 OK", &ours(), &granted);
    let error = backend.acquire_one(&claim).await.expect_err("one of the two stores is wrong");
    assert_eq!(kind_and_effect(&error), (ErrorKind::Unavailable, Effect::None), "{error:?}");
}

#[tokio::test]
async fn an_answer_that_is_cut_endless_or_missing_has_an_unknown_effect() {
    let liar = Liar::start().await;
    let backend = backend(&liar).await;
    let claim = claim(&report(), LONG_TTL);
    let granted = json!({"claims": [grant(&claim)]}).to_string();
    let cut = format!("HTTP/1.1 200 OK\r\n{}X: CUT\r\nContent-Length: 9999\r\n\r\n{granted}", ours());
    let huge =
        format!("HTTP/1.1 200 OK\r\n{}X: CUT\r\nContent-Length: {}\r\n\r\n{granted}", ours(), u64::MAX / 2);
    let chunked = format!(
        "HTTP/1.1 200 OK\r\n{}X: CUT\r\nTransfer-Encoding: chunked\r\n\r\nffffff\r\n{granted}",
        ours()
    );
    let lies = [
        Lie::Says(cut),
        Lie::Says(huge),
        Lie::Says(chunked),
        Lie::Says("SSH-2.0-OpenSSH_9.2\r\n CUT".to_owned()),
        Lie::HangsUp,
        Lie::IsMute,
    ];
    for (number, lie) in lies.into_iter().enumerate() {
        *liar.lie.lock().unwrap() = lie;
        let reply = in_time("an error", backend.acquire_one(&claim)).await;
        let error = reply.expect_err("it is not whole");
        assert_eq!(kind_and_effect(&error), (ErrorKind::Unavailable, Effect::Unknown), "{number}: {error:?}");
    }
}

#[tokio::test]
async fn an_order_is_sent_once_whatever_happens() {
    let liar = Liar::start().await;
    let backend = backend(&liar).await;
    let command = OperatorCommand::new(report(), OperatorAction::Resume, "test", "why");
    for lie in [Lie::HangsUp, Lie::IsMute, Lie::Says("nonsense CUT".to_owned())] {
        *liar.lie.lock().unwrap() = lie;
        let before = liar.requests();
        let error = in_time("an error", backend.order(&command)).await.expect_err("there is no answer");
        assert_eq!(kind_and_effect(&error), (ErrorKind::Unavailable, Effect::Unknown), "{error:?}");
        assert_eq!(liar.requests(), before + 1, "sent once");
    }
}

#[tokio::test]
async fn a_refusal_of_our_server_says_its_effect_and_looking_never_has_one() {
    let liar = Liar::start().await;
    let backend = backend(&liar).await;
    let problem = json!({"type": "urn:leasehold:draining", "title": "t", "status": 503, "kind": "draining", "effect": "none",
        "detail": "shutting down"});
    liar.says("503 Service Unavailable", &ours(), &problem.to_string());
    let error = backend.acquire_one(&claim(&report(), LONG_TTL)).await.expect_err("refused");
    assert_eq!(kind_and_effect(&error), (ErrorKind::Unavailable, Effect::None), "{error:?}");
    liar.says("502 Bad Gateway", "", "");
    let error = backend.inspect(&Query::One(report())).await.expect_err("it is a proxy");
    assert_eq!(kind_and_effect(&error), (ErrorKind::Unavailable, Effect::None), "{error:?}");
}

#[tokio::test]
async fn what_is_no_leasehold_server_is_told_in_one_line() {
    let liar = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = liar.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = liar.accept().await {
            let _ = read(&mut stream).await;
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi").await;
        }
    });
    let connect = |text: String| {
        let config = Config::parse(&text).unwrap();
        async { Http::connect(config, Arc::new(System::current())).await.expect_err("no server") }
    };
    let error = connect(url(port)).await;
    assert_eq!(kind_and_effect(&error), (ErrorKind::Unavailable, Effect::None));
    assert!(error.to_string().contains("not as a leasehold server does"), "{error}");
    let error = connect("http://127.0.0.1:1".to_owned()).await;
    assert_eq!(kind_and_effect(&error), (ErrorKind::Unavailable, Effect::None));
    assert!(
        error.to_string().contains("cannot connect to http://127.0.0.1:1: connection refused"),
        "{error}"
    );
}

#[tokio::test]
async fn the_servers_of_the_store_are_those_that_the_server_names() {
    let liar = Liar::start().await;
    let http = open(&url(liar.port)).await;
    let ask = || async { http.inspect(&Query::Nodes).await };
    let reply = |nodes: Value| {
        json!({
            "backend": "redlock", "level": "quorum", "because": "", "state": "degraded", "sentence": "", "calls": [],
            "nodes": nodes, "quorum": null, "findings": [],
        })
        .to_string()
    };
    let named = json!([
        {"name": "10.0.0.1:6379", "counts": true, "why": null, "round_trip_ms": 0.5, "clock_ahead_ms": 30_000.0},
        {"name": "node 2", "counts": false, "why": "no answer", "round_trip_ms": null, "clock_ahead_ms": null},
    ]);
    liar.says("200 OK", &ours(), &reply(named));
    let nodes = ask().await.unwrap().into_nodes();
    assert_eq!((nodes.len(), nodes[0].counts, nodes[1].why.as_deref()), (2, true, Some("no answer")));
    assert_eq!(nodes[0].round_trip, Some(Duration::from_micros(500)));
    let (theirs, ours_now) = nodes[0].clocks.unwrap();
    assert_eq!(theirs.as_micros() - ours_now.as_micros(), 30_000_000);
    assert_eq!(liar.seen.lock().unwrap().last().unwrap(), "/v1/store");

    liar.says("200 OK", &ours(), &reply(Value::Null));
    let none = ask().await.unwrap_err();
    assert_eq!(kind_and_effect(&none), (ErrorKind::Unsupported, Effect::None), "{none:?}");
    assert!(none.to_string().contains("no servers"), "{none}");

    liar.says("404 Not Found", &ours(), "{}");
    let old = ask().await.unwrap_err();
    assert_eq!(kind_and_effect(&old), (ErrorKind::Unsupported, Effect::None), "{old:?}");
    assert!(old.to_string().contains("earlier version"), "{old}");

    liar.says("200 OK", &ours(), r#"{"nodes": 7}"#);
    let unreadable = ask().await.unwrap_err();
    assert_eq!(kind_and_effect(&unreadable), (ErrorKind::Unavailable, Effect::None), "{unreadable:?}");
}
