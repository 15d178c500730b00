//! `https://`: HTTP/2, certificates, and a token.
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]

mod common;

use std::{path::Path, sync::Arc, time::Duration};

use common::{TestServer, config, open_store};
use leasehold::System;
use leasehold_core::{Backend as _, BackendExt as _, Effect, ErrorKind, Released, RenewRequest, Verdict};
use leasehold_http::{Config, Http};
use leasehold_server::{Access, NewToken, Tls, TokenFile};
use leasehold_testkit::{
    Proxy,
    calls::{LONG_TTL, blocked, claim, granted, in_time, kind_and_effect, release, report},
    scenarios::NetworkScenario,
};

/// A server with TLS that knows one token, and one client certificate.
fn server(directory: &Path) -> (TestServer, String) {
    for name in ["localhost", "billing.example.org"] {
        common::certificate(directory, name);
    }
    let (token, by_certificate) = (NewToken::fresh(&System::current()), NewToken::fresh(&System::current()));
    let entry = |new: &NewToken, more: &str| {
        format!(
            "[[token]]\nid = \"{}\"\nsha256 = \"{}\"\nsubject = \"{}\"\nroles = [\"client\", \"operator\"]\n{more}\n",
            new.id, new.sha256, new.id
        )
    };
    let tokens = entry(&token, "") + &entry(&by_certificate, "certificate = \"billing.example.org\"");
    std::fs::write(directory.join("tokens.toml"), tokens).expect("it can be written");
    let file = |name: &str| directory.join(name);
    let mut config = config("a store with TLS");
    let tls =
        Tls::read(&file("localhost.crt"), &file("localhost.key"), Some(&file("billing.example.org.crt")));
    config.tls = Some(tls.expect("the files are there"));
    config.access = Access::Tokens(
        TokenFile::open(&file("tokens.toml"), Arc::new(System::current())).expect("it is well formed"),
    );
    let store = format!("sqlite:{}", file("leases.db").display());
    (TestServer::with(0, config, open_store(store)), token.token)
}

async fn connect(url: &str) -> leasehold_core::Result<Http> {
    Http::connect(Config::parse(url).expect("the URL is well formed"), Arc::new(System::current())).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_over_tls_with_a_token_or_a_certificate() {
    let directory = tempfile::tempdir().expect("a directory can be made");
    let (server, token) = server(directory.path());
    let (path, port) = (directory.path().display(), server.port);
    let identity =
        format!("cert_file={path}/billing.example.org.crt&key_file={path}/billing.example.org.key");
    for url in [
        format!("https://:{token}@localhost:{port}?ca_file={path}/localhost.crt"),
        format!("https://localhost:{port}?ca_file={path}/localhost.crt&{identity}"),
    ] {
        let backend = Arc::new(connect(&url).await.expect("the server answers"));
        let (holder, waiter) = (claim(&report(), LONG_TTL), claim(&report(), LONG_TTL).queued());
        granted(&*backend, &holder).await;
        let seen = blocked(&*backend, &waiter).await;
        let waiting = {
            let (backend, claim) = (Arc::clone(&backend), waiter.reference());
            tokio::spawn(async move { backend.wait(&claim, &seen.cursor, Duration::from_secs(60)).await })
        };
        assert_eq!(release(&*backend, &holder).await, Released::Now);
        in_time("the wake-up", waiting).await.expect("no panic").expect("the server is there");
        assert!(matches!(backend.acquire_one(&waiter).await, Ok(Verdict::Granted(_))));
        release(&*backend, &waiter).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_cannot_be_trusted_is_told_without_an_effect() {
    let directory = tempfile::tempdir().expect("a directory can be made");
    let (server, token) = server(directory.path());
    let (path, port) = (directory.path().display(), server.port);
    let table = [
        (format!("https://localhost:{port}?ca_file={path}/localhost.crt"), ErrorKind::Denied, "token"),
        (
            format!("https://:{token}@localhost:{port}?ca_file={path}/billing.example.org.crt"),
            ErrorKind::Denied,
            "ca_file=",
        ),
        (
            format!("https://:{token}@127.0.0.1:{port}?ca_file={path}/localhost.crt"),
            ErrorKind::Denied,
            "another host name",
        ),
        (
            format!("https://:{token}@localhost:{port}?ca_file={path}/missing.crt"),
            ErrorKind::Invalid,
            "missing.crt",
        ),
        (format!("http://:{token}@localhost:{port}"), ErrorKind::Unavailable, "localhost"),
    ];
    for (url, kind, words) in table {
        let error = connect(&url).await.expect_err(words);
        assert_eq!(kind_and_effect(&error), (kind, Effect::None), "{words}: {error:?}");
        assert!(error.to_string().contains(words) && !error.to_string().contains(&token), "{error}");
    }
}

/// The server over HTTP/2, through a proxy and directly.
async fn scenario(directory: &Path, server: &TestServer, token: &str, seed: u64) -> NetworkScenario {
    let proxy = Proxy::start(server.port, seed).await;
    let open = async |port: u16, options: &str| {
        let ca = directory.join("localhost.crt");
        let url = format!("https://:{token}@localhost:{port}?ca_file={}{options}", ca.display());
        Arc::new(connect(&url).await.expect("the server answers"))
    };
    let through = open(proxy.port(), "&timeout=500ms&connect_timeout=500ms").await;
    NetworkScenario { proxy, through, direct: open(server.port, "").await }
}

/// On HTTP/2 all requests share a connection: one that does not answer must not be used again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_connection_of_http_2_is_replaced() {
    let directory = tempfile::tempdir().expect("a directory can be made");
    let (server, token) = server(directory.path());
    let scenario = scenario(directory.path(), &server, &token, 1).await;
    assert!(scenario.silent_connection_is_replaced().await <= 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_of_http_2_may_be_cut_after_any_byte() {
    let directory = tempfile::tempdir().expect("a directory can be made");
    let (server, token) = server(directory.path());
    let cuts: Vec<usize> = (0..20).chain((20..2000).step_by(97)).collect();
    // Cut in the handshake, nothing was sent: then the error says so.
    scenario(directory.path(), &server, &token, 2).await.connection_cut_anywhere(&cuts).await;
}

/// Otherwise a large answer, or a connection that hangs, would delay renewals.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_and_releases_have_a_connection_of_their_own() {
    let directory = tempfile::tempdir().expect("a directory can be made");
    let (server, token) = server(directory.path());
    let scenario = scenario(directory.path(), &server, &token, 3).await;
    let ours = claim(&report(), LONG_TTL);
    granted(&*scenario.through, &ours).await;
    let renewal = RenewRequest::new(ours.reference(), LONG_TTL);
    for _ in 0..3 {
        scenario.through.renew(std::slice::from_ref(&renewal)).await.remove(0).expect("it is held");
    }
    release(&*scenario.through, &ours).await;
    // On HTTP/2, requests share a connection: one is for claims, the other one for renewals and releases.
    assert_eq!(scenario.proxy.connections(), 2);
}
