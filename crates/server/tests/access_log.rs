//! The access log.
//!
//! One test, in a process of its own: a log statement that another test reaches first, while this one sets its subscriber, may stay
//! switched off for both.

#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::{
    io,
    sync::{Arc, Mutex},
};

use serde_json::json;
use support::{OTHER, OWNER, TestServer};
use tracing_subscriber::fmt::MakeWriter;

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Log;
    fn make_writer(&'a self) -> Log {
        self.clone()
    }
}

#[tokio::test]
async fn the_access_log_has_no_secrets_and_no_names() {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt()
        .with_writer(log.clone())
        .with_max_level(tracing::Level::TRACE)
        .with_ansi(false)
        .finish();
    let _logging = tracing::subscriber::set_default(subscriber);
    let server = TestServer::start().await;
    server.acquire("report/secret-name", OWNER).await;
    server.post("/v1/renew", json!({"resource": "report/secret-name", "owner": OWNER, "ttl_ms": 0})).await;
    server
        .post(
            "/v1/acquire",
            json!({"resource": "report/secret-name", "owner": OTHER, "ttl_ms": 1000, "wait_ms": 10}),
        )
        .await;
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(
        text.contains("/v1/acquire") && text.contains("status=423") && text.contains("problem=\"invalid\""),
        "{text}"
    );
    for secret in [OWNER, OTHER, &OWNER[..16], "secret-name"] {
        assert!(!text.contains(secret), "{secret} is in {text}");
    }
}
