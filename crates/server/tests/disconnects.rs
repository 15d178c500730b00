//! A caller that goes away while its claim waits: the server stops keeping the place, and releases nothing.

#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::{sync::Arc, time::Duration};

use leasehold::Memory;
use serde_json::json;
use support::{Connection, OTHER, OWNER, TestServer, config, post, waiting};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// A server with a held resource, on which places last for half a second.
async fn held() -> TestServer {
    let server = TestServer::start().await;
    assert_eq!(server.acquire("report/1", OWNER).await.status, 200);
    server
}

fn short_place(hangup: bool) -> serde_json::Value {
    let mut claim = waiting("report/1", OTHER, 60_000);
    claim["place_ttl_ms"] = json!(1000);
    if hangup {
        (claim["hangup"], claim["place_ttl_ms"]) = (json!("leave"), json!(60_000));
    }
    claim
}

async fn queue_then_hang_up(server: &TestServer, mut connection: Connection, hangup: bool) {
    let (request, task) = (post("/v1/acquire", &short_place(hangup)), connection.task.abort_handle());
    let waiting = tokio::spawn(async move { connection.send(request).await });
    server.until_queued("report/1", 1).await;
    // Longer than the place lasts: so the server renews it.
    if !hangup {
        tokio::time::sleep(Duration::from_millis(2500)).await;
        assert_eq!(server.queue_length("report/1").await, 1, "the server keeps the place");
    }
    task.abort();
    waiting.abort();
    server.until_queued("report/1", 0).await;
}

#[tokio::test]
async fn a_disconnect_ends_the_keeping_of_a_place_on_http_1() {
    let server = held().await;
    queue_then_hang_up(&server, Connection::http1(server.address).await, false).await;
}

#[tokio::test]
async fn a_disconnect_ends_the_keeping_of_a_place_on_http_2() {
    let server = held().await;
    queue_then_hang_up(&server, Connection::http2(server.address).await, false).await;
}

#[tokio::test]
async fn a_reset_stream_ends_the_keeping_of_a_place_and_not_the_connection() {
    let server = held().await;
    let mut connection = Connection::http2(server.address).await;
    {
        let claim = short_place(false);
        let waiting = connection.post("/v1/acquire", &claim);
        tokio::select! {
            answer = waiting => panic!("{answer:?}"),
            () = server.until_queued("report/1", 1) => {}
        }
    }
    server.until_queued("report/1", 0).await;
    assert_eq!(connection.get("/v1/info").await.status, 200);
}

/// A claim as it is on the wire.
fn request_text(claim: &serde_json::Value) -> String {
    let body = claim.to_string();
    format!(
        "POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

async fn send_bytes(server: &TestServer, text: &str) -> TcpStream {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    stream
}

#[tokio::test]
async fn a_half_closed_connection_counts_as_a_disconnect() {
    let server = held().await;
    let mut stream = send_bytes(&server, &request_text(&short_place(false))).await;
    server.until_queued("report/1", 1).await;
    stream.shutdown().await.unwrap(); // FIN, and the process still reads
    server.until_queued("report/1", 0).await;
}

/// A byte behind the body hid the end of the connection: the claim of a dead caller was granted a minute later.
#[tokio::test]
async fn what_follows_the_request_hides_no_disconnect() {
    let next = "GET /v1/info HTTP/1.1\r\nHost: localhost\r\n\r\n";
    for hangup in [false, true] {
        for behind in ["\r\n", next, &next.repeat(1000)] {
            let server = held().await;
            let stream = send_bytes(&server, &(request_text(&short_place(hangup)) + behind)).await;
            if behind.len() < 1000 {
                server.until_queued("report/1", 1).await;
            }
            drop(stream);
            server.until_queued("report/1", 0).await;
        }
    }
}

/// A request without a body was not watched.
#[tokio::test]
async fn what_follows_a_request_without_a_body_hides_no_disconnect() {
    let server = held().await;
    let cursor = server.get("/v1/resource?name=report/1").await.body["cursor"].as_str().unwrap().to_owned();
    let watch = format!(
        "GET /v1/resource?name=report/1&cursor={cursor}&wait_ms=60000 HTTP/1.1\r\nHost: localhost\r\n\r\n"
    );
    let stream = send_bytes(&server, &(watch + "GET")).await;
    let connections = async |count: &str| {
        let line = format!("leasehold_http_connections {count}");
        let is_so = async || server.get("/metrics").await.text.lines().any(|found| found == line);
        let until = async {
            while !is_so().await {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(support::PATIENCE, until).await.expect("another number of connections");
    };
    connections("2").await; // with the one that asks
    drop(stream);
    connections("1").await;
}

#[tokio::test]
async fn requests_may_follow_without_waiting_for_the_answers() {
    let server = TestServer::start().await;
    let claim = |owner: &str, wait_ms| {
        let mut claim = waiting("report/1", owner, wait_ms);
        claim["ttl_ms"] = json!(1000);
        request_text(&claim)
    };
    // The second claim waits until the first lease has run out. What follows was read long before.
    let info = "GET /v1/info HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let mut stream = send_bytes(&server, &(claim(OWNER, 0) + &claim(OTHER, 30_000) + info)).await;
    let mut answers = String::new();
    stream.read_to_string(&mut answers).await.unwrap();
    assert_eq!(answers.matches("HTTP/1.1 200").count(), 3, "{answers}");
    assert_eq!(answers.matches("\"granted\"").count(), 2, "{answers}");
}

#[tokio::test]
async fn hangup_leave_cancels_the_claim_at_once() {
    for http2 in [false, true] {
        let server = held().await;
        let connection = match http2 {
            false => Connection::http1(server.address).await,
            true => Connection::http2(server.address).await,
        };
        // The place would last for a minute.
        queue_then_hang_up(&server, connection, true).await;
        let again = server.acquire("report/1", OTHER).await;
        assert_eq!(again.problem(), (410, "lost"));
        assert_eq!(again.body["why"], json!("buried"));
    }
}

#[tokio::test]
async fn the_same_claim_held_through_another_server_is_not_ended_by_a_late_disconnect() {
    let memory = Arc::new(Memory::new());
    let first = TestServer::with(memory.clone(), config()).await;
    let second = TestServer::with(memory, config()).await;
    assert_eq!(first.acquire("report/1", OWNER).await.status, 200);
    let mut connection = Connection::http1(first.address).await;
    let hang_up = connection.task.abort_handle();
    let waiting =
        tokio::spawn(async move { connection.send(post("/v1/acquire", &short_place(false))).await });
    first.until_queued("report/1", 1).await;
    let release = json!({"resource": "report/1", "owner": OWNER});
    // Both servers may see the wake-up. The claim is granted once, and stays so when the first caller goes.
    let mut asked_again = tokio::spawn({
        let mut connection = Connection::http1(second.address).await;
        async move { connection.post("/v1/acquire", &short_place(false)).await }
    });
    assert_eq!(second.post("/v1/release", release).await.status, 200);
    let granted = (&mut asked_again).await.unwrap();
    assert_eq!(granted.status, 200, "{granted:?}");
    hang_up.abort();
    waiting.abort();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let renewed =
        second.post("/v1/renew", json!({"resource": "report/1", "owner": OTHER, "ttl_ms": 30000})).await;
    assert_eq!((renewed.status, &renewed.body["grant"]), (200, &granted.body["token"]));
}
