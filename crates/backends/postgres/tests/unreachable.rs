//! Servers that cannot be reached, or refuse: the error names the host, the port and the cause.
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]
#![allow(clippy::unwrap_used, reason = "a test is a program of its own")]

mod common;

use common::{LONG, claim, connect, eventually, granted, kind_and_effect, open, report};
use leasehold::{BackendExt as _, Effect, Error, ErrorKind};
use leasehold_testkit::servers::PostgresServer;

async fn refused(url: &str) -> Error {
    let error = connect(url).await.unwrap_err();
    assert_eq!(error.effect(), Effect::None, "{error:?}");
    assert!(!error.to_string().contains('\n'), "it is one line: {error}");
    error
}

#[tokio::test]
async fn a_port_without_a_server_is_named() {
    let error = refused("postgres://u@127.0.0.1:1/x").await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(error.to_string().contains("cannot connect to 127.0.0.1:1: connection refused"), "{error}");
}

#[tokio::test]
async fn a_host_name_that_does_not_exist_is_named() {
    let error = refused("postgres://u@no-such-host.invalid/x").await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    let text = "cannot connect to no-such-host.invalid:5432: the host name cannot be resolved";
    assert!(error.to_string().contains(text), "{error}");
}

#[tokio::test]
async fn a_mute_server_is_named() {
    // It accepts connections and never says anything.
    let mute = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let place = mute.local_addr().unwrap().to_string();
    let error = refused(&format!("postgres://u@{place}/x?connect_timeout=300ms")).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(error.to_string().contains(&format!("cannot connect to {place}")), "{error}");
    drop(mute);
}

#[tokio::test]
async fn a_server_that_is_no_postgres_is_named() {
    let other = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let place = other.local_addr().unwrap().to_string();
    let closing = tokio::spawn(async move {
        // The first bytes of another protocol, and the end.
        let (stream, _) = other.accept().await.unwrap();
        stream.readable().await.unwrap();
        let _ = stream.try_write(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    });
    let error = refused(&format!("postgres://u@{place}/x")).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(error.to_string().contains(&format!("cannot connect to {place}")), "{error}");
    closing.await.unwrap();
}

#[tokio::test]
async fn what_the_server_refuses_comes_with_its_name() {
    let server = PostgresServer::start();
    server.require_passwords();
    server.sql("CREATE ROLE app LOGIN PASSWORD 'right'");
    let place = format!("127.0.0.1:{}", server.port());
    for (account, database, kind, words) in [
        ("app:wrong", "postgres", ErrorKind::Denied, "password authentication failed"),
        ("app", "postgres", ErrorKind::Denied, "password missing"),
        ("postgres", "nowhere", ErrorKind::Invalid, "\"nowhere\" does not exist"),
    ] {
        let error = refused(&format!("postgres://{account}@{place}/{database}")).await;
        assert_eq!(error.kind(), kind, "{error:?}");
        let text = error.to_string();
        assert!(text.contains(&format!("cannot connect to {place}: ")) && text.contains(words), "{text}");
        assert!(!text.contains("wrong"), "no password: {text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_dies_is_named_by_every_request() {
    let server = PostgresServer::start();
    let place = format!("127.0.0.1:{}", server.port());
    let postgres = open(&format!("{}?connections=1", server.url())).await;
    let ours = claim(&report(), LONG);
    granted(&postgres, &ours).await;
    server.kill();
    let is_refused = || async {
        let error = postgres.acquire_one(&ours).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
        assert!(error.to_string().contains(&place), "{error}");
        kind_and_effect(&error).1 == Effect::None && error.to_string().contains("connection refused")
    };
    eventually("the connection is refused", is_refused).await;
}
