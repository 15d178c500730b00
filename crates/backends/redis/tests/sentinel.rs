//! Behind Sentinel: failovers that lose grants, and two primaries at once.
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]

mod common;

use std::time::{Duration, Instant};

use common::{LONG, TIMEOUT, claim, client, eventually, granted, in_time, open, report, token_of};
use leasehold::{BackendExt as _, Renewal};
use leasehold_testkit::servers::Replication;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_finds_the_primary_and_follows_a_failover() {
    let servers = Replication::start(1);
    let client = client(&servers.url()).await;
    let before = client.lease("report", "42").acquire().await.unwrap();
    let old = servers.primary_port();
    servers.servers[0].kill();
    let asking = tokio::spawn({
        let client = client.clone();
        async move {
            let lease = client.lease("report", "43").wait(TIMEOUT).acquire().await;
            (lease, Instant::now())
        }
    });
    tokio::task::block_in_place(|| servers.await_failover(old));
    let switched = Instant::now();
    let (lease, granted_at) = in_time("a grant of the new primary", asking).await.unwrap();
    let lease = lease.unwrap();
    let took = granted_at.saturating_duration_since(switched);
    println!("granted {took:?} after the switch");
    assert!(took < Duration::from_secs(2), "{took:?} after the switch");
    assert!(lease.token() > before.token(), "each epoch adds a minute to tokens");
}

/// Makes the replica follow another address, so that it gets no more data.
fn cut_off(servers: &Replication) {
    servers.servers[1].command(&["REPLICAOF", "127.0.0.1", "1"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_that_loses_the_lock_and_the_fence_grants_again_with_a_higher_token() {
    let servers = Replication::start(1);
    let redis = open(&servers.url()).await;
    cut_off(&servers);
    let ours = claim(&report(), LONG);
    let before = granted(&redis, &ours).await.token;
    let old = servers.primary_port();
    servers.servers[0].kill();
    tokio::task::block_in_place(|| servers.await_failover(old));
    let theirs = claim(&report(), LONG);
    eventually("the new primary", || async { redis.acquire_one(&theirs).await.is_ok() }).await;
    assert!(granted(&redis, &theirs).await.token > before, "best effort: granted twice, with a higher token");
    let answer = common::renew(&redis, ours.reference(), LONG).await;
    assert!(matches!(answer, Renewal::Gone { .. }), "the next renewal of the first holder fails: {answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_primaries_the_new_one_has_the_higher_tokens() {
    let servers = Replication::start(1);
    let (redis, old) = (open(&servers.url()).await, servers.primary_port());
    token_of(&redis, &report()).await;
    servers.servers[0].freeze();
    tokio::task::block_in_place(|| servers.await_failover(old));
    eventually("the new primary", || async { redis.acquire_one(&claim(&report(), LONG)).await.is_ok() })
        .await;
    let new = token_of(&redis, &"report/43".parse().unwrap()).await;
    // The old primary comes back and does not know of the failover yet. Its tokens are lower.
    servers.servers[0].thaw();
    let stale = open(&servers.servers[0].url()).await;
    let late = token_of(&stale, &"report/43".parse().unwrap()).await;
    assert!(late < new, "{late} was granted after {new}, by the old primary");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_primary_is_left_behind_and_a_demoted_one_is_not_written_to() {
    let servers = Replication::start(1);
    let (redis, old) = (open(&format!("{}?timeout=500ms", servers.url())).await, servers.primary_port());
    granted(&redis, &claim(&report(), LONG)).await;
    servers.servers[0].freeze();
    tokio::task::block_in_place(|| servers.await_failover(old));
    eventually("the new primary", || async { redis.acquire_one(&claim(&report(), LONG)).await.is_ok() })
        .await;
    servers.servers[0].thaw();
    let new = servers.primary_port();
    assert_ne!(new, old);
    token_of(&redis, &"report/44".parse().unwrap()).await;
    let seen = servers.servers[1].command(&["EXISTS", "lock:v1:{report/44}:fence"]);
    assert_eq!(seen, "1", "written to the new primary");
}

#[tokio::test]
async fn an_unknown_service_is_reported() {
    let servers = Replication::start(0);
    let url = servers.url().replace("/main", "/other") + "?timeout=100ms";
    let config = leasehold_redis::Config::parse(&url).unwrap();
    let environment = std::sync::Arc::new(leasehold::System::current());
    let error = leasehold_redis::Redis::connect(config, environment).await.unwrap_err();
    assert!(error.to_string().contains("knows no service"), "{error}");
}
