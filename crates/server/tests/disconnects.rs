//! A caller that goes away while its claim waits: the server stops keeping the place, and releases nothing.

#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::{sync::Arc, time::Duration};

use leasehold::Memory;
use serde_json::json;
use support::{Connection, OTHER, OWNER, TestServer, config, post, waiting};
use tokio::io::AsyncWriteExt as _;

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

#[tokio::test]
async fn a_half_closed_connection_counts_as_a_disconnect() {
    let server = held().await;
    let mut stream = tokio::net::TcpStream::connect(server.address).await.unwrap();
    let body = short_place(false).to_string();
    let head = format!(
        "POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    server.until_queued("report/1", 1).await;
    stream.shutdown().await.unwrap(); // FIN, and the process still reads
    server.until_queued("report/1", 0).await;
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
