//! What a token may do, as the library meets it.
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]

mod common;

use std::{path::Path, sync::Arc, time::Duration};

use common::{TestServer, config, open_store, url};
use leasehold::{Client, System};
use leasehold_core::{Backend as _, BackendExt as _, Effect, ErrorKind};
use leasehold_http::{Config, Http};
use leasehold_server::{Access, NewToken, TokenFile};
use leasehold_testkit::calls::{LONG_TTL, claim, kind_and_effect, report};

/// A server with one token, with these lines in its entry. The server, and a client with the token.
async fn server(directory: &Path, lines: &str) -> (TestServer, Http) {
    let new = NewToken::fresh(&System::current());
    let entry =
        format!("[[token]]\nid = \"{}\"\nsha256 = \"{}\"\nsubject = \"test\"\n{lines}\n", new.id, new.sha256);
    let file = directory.join("tokens.toml");
    std::fs::write(&file, entry).expect("it can be written");
    let mut config = config("a store with tokens");
    let tokens = TokenFile::open(&file, Arc::new(System::current())).expect("it is well formed");
    config.access = Access::Tokens(tokens);
    let store = open_store(format!("sqlite:{}", directory.join("leases.db").display()));
    let server = TestServer::with(0, config, store);
    let config = Config::parse(&url(server.port)).expect("the URL is well formed").token(&new.token);
    let http = Http::connect(config, Arc::new(System::current())).await.expect("the server answers");
    (server, http)
}

#[tokio::test]
async fn a_ttl_is_shortened_to_that_of_the_token_and_renewed_by_it() {
    let directory = tempfile::tempdir().expect("a directory can be made");
    let (server, http) = server(directory.path(), "roles = [\"client\"]\nttl_ms_max = 6000").await;
    assert_eq!(http.info().limits.ttl, Duration::from_secs(6));
    let client = Client::new(Arc::new(http));
    let lease = client.lease("report", "42").ttl(Duration::from_secs(3600)).acquire().await.expect("free");
    assert_eq!(lease.ttl(), Duration::from_secs(6));
    tokio::time::sleep(Duration::from_secs(3)).await;
    lease.check().expect("it is renewed");
    let _still_there = server;
    lease.release().await.expect("held");
}

#[tokio::test]
async fn what_a_token_may_not_do_is_denied_without_an_effect() {
    let directory = tempfile::tempdir().expect("a directory can be made");
    let (_server, http) = server(directory.path(), "roles = [\"client\"]\nnamespaces = [\"acme\"]").await;
    let error = http.acquire_one(&claim(&report(), LONG_TTL)).await.expect_err("another namespace");
    assert_eq!(kind_and_effect(&error), (ErrorKind::Denied, Effect::None), "{error:?}");
    let ours = report().in_namespace("acme").expect("a namespace");
    http.acquire_one(&claim(&ours, LONG_TTL)).await.expect("its own namespace");
}
