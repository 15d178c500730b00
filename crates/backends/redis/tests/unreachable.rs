//! A server that cannot be reached: the error has its host, its port and the cause.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests on real connections run in real time"
)]

mod common;

use std::net::TcpListener;

use common::{LONG, claim, granted, in_time, open, report};
use leasehold::{BackendExt as _, Effect, Error, ErrorKind};
use leasehold_testkit::servers::RedisServer;

async fn refused(url: &str) -> Error {
    let error = in_time("an error", leasehold::open(url)).await.expect_err(url);
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::None), "{error}");
    assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
    error
}

/// Each form of a URL with this host, and options that make it fail soon.
fn urls(host: &str) -> [String; 4] {
    let options = "timeout=300ms&connect_timeout=300ms";
    let login = ":hunter2@";
    [
        format!("redis://{login}{host}/?{options}"),
        format!("redis+sentinel://{login}{host}/main?{options}"),
        format!("redis+cluster://{login}{host}?{options}"),
        format!("redlock://{login}{host},127.0.0.1:2,127.0.0.1:3?{options}"),
    ]
}

#[tokio::test]
async fn a_port_that_nobody_listens_on_is_refused() {
    for url in urls("127.0.0.1:1") {
        let error = refused(&url).await.to_string();
        if url.starts_with("redlock") {
            assert!(error.contains("127.0.0.1:1, 127.0.0.1:2, 127.0.0.1:3: cannot connect to"), "{error}");
        } else {
            assert!(error.contains("127.0.0.1:1: connection refused"), "{error}");
        }
        assert!(error.contains("cannot connect to") && error.ends_with("connection refused"), "{error}");
    }
}

#[tokio::test]
async fn a_name_that_does_not_exist_is_named() {
    // No host has such a name: RFC 6761.
    for url in &urls("nosuch.invalid:6379")[..3] {
        let error = refused(url).await.to_string();
        assert!(
            error.contains("cannot resolve the host of") && error.contains("nosuch.invalid:6379: "),
            "{error}"
        );
    }
    let url = "redlock://a.invalid,b.invalid,c.invalid?connect_timeout=300ms";
    let error = refused(url).await.to_string();
    assert!(error.contains("cannot resolve the host of") && error.contains(".invalid:"), "{error}");
}

#[tokio::test]
async fn a_server_that_accepts_and_says_nothing_is_named() {
    let mute = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let host = mute.local_addr().unwrap().to_string();
    for url in &urls(&host)[..3] {
        let error = refused(url).await.to_string();
        assert!(error.contains(&format!("{host}: no answer in time")), "{error}");
    }
}

#[tokio::test]
async fn a_server_that_stops_answering_is_named() {
    let server = RedisServer::start();
    let redis = open(&format!("{}?timeout=300ms", server.url())).await;
    granted(&redis, &claim(&report(), LONG)).await;
    server.freeze();
    let error = redis.acquire_one(&claim(&report(), LONG)).await.unwrap_err();
    server.thaw();
    let expected = format!("127.0.0.1:{} did not answer in time", server.port());
    assert!(error.to_string().contains(&expected), "{error}");
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::Unknown));
}
