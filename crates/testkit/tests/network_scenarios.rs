//! The network scenarios pass on Redis.

use std::time::Duration;

use leasehold::Released;
use leasehold_testkit::{
    Proxy,
    calls::{LONG_TTL, claim, granted, release, report},
    scenarios::NetworkScenario,
    servers::RedisServer,
};

async fn scenario(server: &RedisServer, timeout: &str) -> NetworkScenario {
    let proxy = Proxy::start(server.port(), 1).await;
    let url = format!("redis://127.0.0.1:{}/?timeout={timeout}", proxy.port());
    let through = leasehold::open(&url).await.expect("the server runs");
    let direct = leasehold::open(&server.url()).await.expect("the server runs");
    NetworkScenario { proxy, through, direct }
}

/// The number of scripts that the server has executed.
fn executed_scripts(server: &RedisServer) -> u64 {
    let stats = server.command(&["INFO", "commandstats"]);
    let line = stats.lines().find(|line| line.starts_with("cmdstat_evalsha:")).unwrap_or("").to_owned();
    line.split("calls=").nth(1).and_then(|rest| rest.split(',').next()?.parse().ok()).unwrap_or(0)
}

#[tokio::test]
async fn a_partition_past_the_ttl_ends_the_lease_before_the_next_grant() {
    let server = RedisServer::start();
    let scenario = scenario(&server, "500ms").await;
    let (_, next) = scenario.partition_past_the_ttl(Duration::from_secs(3)).await;
    let stored = server.command(&["GET", "lock:v1:{report/42}:owner"]);
    assert!(stored.contains(&next.token().to_string()), "{stored}");
}

#[tokio::test]
async fn a_lost_reply_is_unknown_and_a_repeated_acquire_returns_the_same_grant() {
    let server = RedisServer::start();
    let scenario = scenario(&server, "500ms").await;
    let (ours, grant) = scenario.lost_reply(|proxy| proxy.lose_replies(1)).await;
    assert_eq!(server.command(&["GET", "lock:v1:{report/42}:fence"]), grant.token.to_string());
    assert_eq!(release(&*scenario.through, &ours).await, Released::Now);
}

#[tokio::test]
async fn a_tombstone_stops_a_late_acquire() {
    let server = RedisServer::start();
    let scenario = scenario(&server, "500ms").await;
    scenario.late_acquire(None, || executed_scripts(&server)).await;
    granted(&*scenario.direct, &claim(&report(), LONG_TTL)).await;
}

#[tokio::test]
async fn a_connection_cut_anywhere_never_makes_a_wrong_reply() {
    let server = RedisServer::start();
    scenario(&server, "500ms").await.connection_cut_anywhere(&[1, 7, 30, 60]).await;
}

#[tokio::test]
async fn a_silent_connection_is_replaced() {
    let server = RedisServer::start();
    scenario(&server, "500ms").await.silent_connection_is_replaced().await;
}

#[tokio::test]
async fn a_slow_network_is_only_slow() {
    let server = RedisServer::start();
    scenario(&server, "5s").await.slow_network(Duration::from_millis(60)).await;
}

#[tokio::test]
async fn a_frozen_server_costs_a_timeout_and_its_late_execution_does_no_harm() {
    let server = RedisServer::start();
    scenario(&server, "300ms").await.frozen_server(|| server.freeze(), || server.thaw()).await;
}
