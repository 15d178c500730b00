//! Faults of the network and of the server: partitions, lost and late answers, cut connections, a server that ends or drains.
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]

mod common;

use std::{path::Path, sync::Arc, time::Duration};

use common::{TestServer, open, open_store, url};
use leasehold::Client;
use leasehold_core::{BackendExt as _, Effect, ErrorKind, Released, RenewRequest, Renewal};
use leasehold_testkit::{
    Proxy,
    calls::{LONG_TTL, blocked, claim, eventually, granted, in_time, kind_and_effect, release, report},
    scenarios::NetworkScenario,
};

fn store_of(path: &Path) -> String {
    format!("sqlite:{}", path.display())
}

async fn scenario(server: &TestServer, seed: u64) -> NetworkScenario {
    let proxy = Proxy::start(server.port, seed).await;
    let through = open(&format!("{}?timeout=500ms&connect_timeout=500ms", url(proxy.port()))).await;
    NetworkScenario { proxy, through, direct: open(&server.url()).await }
}

#[tokio::test]
async fn after_a_partition_the_lease_is_lost_before_the_next_grant_and_stays_lost() {
    let (_directory, path) = common::sqlite();
    let server = TestServer::start(open_store(store_of(&path)));
    let (lost, next) = scenario(&server, 1).await.partition_past_the_ttl(Duration::from_secs(3)).await;
    assert!(next.token() > lost.token());
}

#[tokio::test]
async fn a_lost_answer_has_an_unknown_effect_and_the_repeated_claim_finds_its_grant() {
    let (_directory, path) = common::sqlite();
    let server = TestServer::start(open_store(store_of(&path)));
    let scenario = scenario(&server, 2).await;
    let (ours, _) = scenario.lost_reply(|proxy| proxy.lose_replies(1)).await;
    assert_eq!(release(&*scenario.through, &ours).await, Released::Now);
}

#[tokio::test]
async fn a_connection_may_be_cut_after_any_byte() {
    let (_directory, path) = common::sqlite();
    let server = TestServer::start(open_store(store_of(&path)));
    let cuts: Vec<usize> = (0..40).chain((40..700).step_by(37)).collect();
    for cut in scenario(&server, 3).await.connection_cut_anywhere(&cuts).await {
        // No byte arrived, or some did: this client cannot know.
        cut.assert_unknown_effect();
    }
}

#[tokio::test]
async fn a_silent_connection_is_replaced() {
    let (_directory, path) = common::sqlite();
    let server = TestServer::start(open_store(store_of(&path)));
    assert!(scenario(&server, 4).await.silent_connection_is_replaced().await <= 2);
}

#[tokio::test]
async fn a_slow_network_loses_no_lease() {
    let (_directory, path) = common::sqlite();
    let server = TestServer::start(open_store(store_of(&path)));
    scenario(&server, 5).await.slow_network(Duration::from_millis(60)).await;
}

#[tokio::test]
async fn a_server_that_is_not_there_has_no_effect() {
    let (_directory, path) = common::sqlite();
    let server = TestServer::start(open_store(store_of(&path)));
    let backend = open(&format!("{}?timeout=2s", server.url())).await;
    let ours = claim(&report(), LONG_TTL);
    granted(&*backend, &ours).await;
    let port = server.port;
    drop(server);
    // The connection may break under the first request. After that there is none.
    eventually("a refused connection", || async {
        let error = backend.acquire_one(&ours).await.expect_err("nobody is there");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        error.effect() == Effect::None
    })
    .await;
    // Leases are in the store, not in the server.
    let _server = TestServer::at(port, "a store of a test", open_store(store_of(&path)));
    let renewal = RenewRequest::new(ours.reference(), LONG_TTL);
    let renewed = backend.renew(std::slice::from_ref(&renewal)).await.remove(0);
    assert!(matches!(renewed, Ok(Renewal::Renewed(_))), "{renewed:?}");
}

#[tokio::test]
async fn a_server_on_another_store_is_never_believed() {
    let ((_one, path), (_two, other)) = (common::sqlite(), common::sqlite());
    let server = TestServer::start(open_store(store_of(&path)));
    let backend = open(&server.url()).await;
    let ours = claim(&report(), LONG_TTL);
    granted(&*backend, &ours).await;
    let port = server.port;
    drop(server);
    let replaced = TestServer::at(port, "another store", open_store(store_of(&other)));
    eventually("an answer of the other store", || async {
        let error = backend.acquire_one(&ours).await.expect_err("the other store is not ours");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
        error.to_string().contains("another store") && error.effect() == Effect::Unknown
    })
    .await;
    drop(replaced);
}

#[tokio::test]
async fn a_wait_returns_when_the_server_drains_or_dies() {
    for dies in [false, true] {
        let (_directory, path) = common::sqlite();
        let mut server = TestServer::start(open_store(store_of(&path)));
        let backend = open(&server.url()).await;
        granted(&*backend, &claim(&report(), LONG_TTL)).await;
        let waiter = claim(&report(), LONG_TTL).queued();
        let seen = blocked(&*backend, &waiter).await;
        let waiting = {
            let backend = Arc::clone(&backend);
            let claim = waiter.reference();
            tokio::spawn(async move { backend.wait(&claim, &seen.cursor, Duration::from_secs(60)).await })
        };
        let is_waiting = || async { common::metrics(server.port).contains("\nleasehold_http_waiting 1\n") };
        eventually("the claim waits at the server", is_waiting).await;
        assert!(!waiting.is_finished());
        if dies {
            drop(server);
            let error =
                in_time("the end of the wait", waiting).await.expect("no panic").expect_err("it died");
            assert_eq!(kind_and_effect(&error), (ErrorKind::Unavailable, Effect::None), "{error:?}");
        } else {
            server.drain();
            in_time("the end of the wait", waiting).await.expect("no panic").expect("it is a hint");
            // An idle connection that the server has just closed breaks under the request. A new one is refused.
            eventually("a refusal without an effect", || async {
                let error = backend.acquire_one(&waiter).await.expect_err("no new claims");
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
                error.effect() == Effect::None
            })
            .await;
        }
    }
}

#[tokio::test]
async fn leases_and_waiters_survive_the_replacement_of_a_server() {
    let (_directory, path) = common::sqlite();
    let server = TestServer::start(open_store(store_of(&path)));
    let (ours, theirs) = (Client::new(open(&server.url()).await), Client::new(open(&server.url()).await));
    let held = ours.lease("report", "42").ttl(LONG_TTL).acquire().await.unwrap();
    let next = tokio::spawn(theirs.lease("report", "42").ttl(LONG_TTL).wait(LONG_TTL).acquire());
    eventually("the second client waits", || async {
        !ours.look("report", "42").await.unwrap().queue.is_empty()
    })
    .await;
    let port = server.port;
    drop(server);
    let _server = TestServer::at(port, "a store of a test", open_store(store_of(&path)));
    held.check().expect("the lease is in the store");
    let token = held.token();
    drop(in_time("the release", held.release()).await);
    let next = in_time("the next grant", next).await.expect("no panic").expect("it waits on");
    assert!(next.token() > token);
}
