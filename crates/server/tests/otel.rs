//! Traces: a collector on loopback gets the spans of a request.

#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::{
    io::{Read as _, Write as _},
    net::TcpListener,
    sync::mpsc,
    time::Duration,
};

use leasehold_server::Traces;
use serde_json::json;
use support::{OWNER, TestServer, post};
use tracing_subscriber::layer::SubscriberExt as _;

/// The bodies of the requests that a collector gets.
fn collector() -> (String, mpsc::Receiver<(String, Vec<u8>)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let (bodies, received) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().take(100) {
            let mut stream = stream.unwrap();
            let (mut bytes, mut chunk) = (Vec::new(), [0; 4096]);
            let (head, length) = loop {
                let count = stream.read(&mut chunk).unwrap();
                bytes.extend_from_slice(&chunk[..count]);
                if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
                    let head = String::from_utf8(bytes[..end].to_vec()).unwrap().to_lowercase();
                    let length: usize = head
                        .split("content-length: ")
                        .nth(1)
                        .unwrap()
                        .lines()
                        .next()
                        .unwrap()
                        .parse()
                        .unwrap();
                    bytes.drain(..end + 4);
                    break (head, length);
                }
            };
            while bytes.len() < length {
                let count = stream.read(&mut chunk).unwrap();
                bytes.extend_from_slice(&chunk[..count]);
            }
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
            if bodies.send((head, bytes)).is_err() {
                return;
            }
        }
    });
    (endpoint, received)
}

fn contains(body: &[u8], part: &[u8]) -> bool {
    body.windows(part.len()).any(|window| window == part)
}

/// The environment and the subscriber belong to a whole process, so the test runs itself again.
#[test]
fn a_request_is_a_span_in_the_trace_of_its_caller_with_the_call_of_the_store_below_it() {
    if std::env::var_os("OTEL_EXPORTER_OTLP_ENDPOINT").is_none() {
        let (endpoint, received) = collector();
        let this = std::env::current_exe().unwrap();
        let run = |endpoint: &str| {
            let mut command = std::process::Command::new(&this);
            command.env("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint).output().unwrap()
        };
        let refused = run("https://collector.example");
        assert!(String::from_utf8_lossy(&refused.stdout).contains("plain HTTP"), "{refused:?}");
        let traced = run(&endpoint);
        assert!(traced.status.success(), "{}", String::from_utf8_lossy(&traced.stdout));
        let mut spans = Vec::new();
        while let Ok((head, body)) = received.recv_timeout(Duration::from_secs(5)) {
            assert!(
                head.starts_with("post /v1/traces ") && head.contains("application/x-protobuf"),
                "{head}"
            );
            spans.extend(body);
        }
        for part in ["POST /v1/acquire", "store.acquire", "http.response.status_code", "leasehold"] {
            assert!(contains(&spans, part.as_bytes()), "{part} is not among the spans");
        }
        let trace: Vec<u8> = (1..=16).collect();
        assert!(contains(&spans, &trace), "the trace of the caller");
        assert!(!contains(&spans, OWNER.as_bytes()) && !contains(&spans, b"report/1"), "no names, no owners");
        return;
    }
    let traces = match Traces::from_environment() {
        Ok(traces) => traces.unwrap(),
        Err(error) => panic!("{error}"),
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(traces.layer())).unwrap();
    runtime.block_on(async {
        let server = TestServer::start().await;
        let mut request =
            post("/v1/acquire", &json!({"resource": "report/1", "owner": OWNER, "ttl_ms": 1000}));
        let parent = "00-0102030405060708090a0b0c0d0e0f10-1112131415161718-01";
        request.headers_mut().insert("traceparent", parent.parse().unwrap());
        assert_eq!(server.connect().await.send(request).await.unwrap().status, 200);
    });
    traces.end();
}
