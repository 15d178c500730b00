//! What is said about the servers themselves: one server, behind Sentinel, a cluster, and the nodes of a quorum.
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]

mod common;

use std::{net::TcpListener, time::Duration};

use common::{LONG, TIMEOUT, claim, eventually, in_time, report};
use leasehold::{BackendExt as _, Client, NodeStatus};
use leasehold_testkit::{
    nodes::{nodes, server_of_another_protocol, until_refused, why},
    servers::{RedisCluster, RedisNodes, RedisServer, Replication, ServerClock},
};

const GATE: Duration = Duration::from_secs(600);

async fn connect(url: &str) -> Client {
    leasehold::connect(url).await.expect("the servers are there")
}

fn names(servers: &[RedisServer]) -> Vec<String> {
    servers.iter().map(|server| format!("127.0.0.1:{}", server.port())).collect()
}

fn named(nodes: &[NodeStatus]) -> Vec<String> {
    nodes.iter().map(|node| node.name.clone()).collect()
}

/// How many seconds the clock of a node is ahead of ours.
fn seconds_ahead(node: &NodeStatus) -> i64 {
    let (theirs, ours) = node.clocks.expect("Redis tells its time");
    (theirs.as_micros().cast_signed() - ours.as_micros().cast_signed()) / 1_000_000
}

#[tokio::test]
async fn one_server_is_up_then_mute_then_dead_then_up_again() {
    let server = RedisServer::with(&["--requirepass", "hunter2"]);
    let url = server.url().replace("://", "://:hunter2@");
    let client = connect(&url).await;
    let up = nodes(&client).await.remove(0);
    assert_eq!((up.name.as_str(), why(&up)), (&*format!("127.0.0.1:{}", server.port()), "it counts"));
    assert!(up.round_trip.is_some() && seconds_ahead(&up) == 0, "{up:?}");
    server.freeze();
    let mute = nodes(&client).await.remove(0);
    assert_eq!((why(&mute), mute.round_trip, mute.clocks), ("no answer within 1s", None, None));
    server.thaw();
    server.kill();
    until_refused(&client, 0).await;
    server.run_again();
    // The connection of the client broke when the server died.
    eventually("it counts again", || async { nodes(&client).await[0].counts }).await;
}

#[tokio::test]
async fn a_restarted_server_counts_although_the_connection_broke_unnoticed() {
    let server = RedisServer::start();
    let client = connect(&server.url()).await;
    assert!(nodes(&client).await[0].counts);
    server.kill();
    server.run_again();
    assert_eq!(why(&nodes(&client).await[0]), "it counts");
}

#[tokio::test]
async fn a_primary_that_too_few_replicas_follow_does_not_count() {
    let server = RedisServer::start();
    let client = connect(&format!("{}?replicas=2", server.url())).await;
    let node = nodes(&client).await.remove(0);
    assert_eq!(why(&node), "0 replicas follow the primary, 2 must acknowledge");
    assert!(node.round_trip.is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_sentinel_it_is_the_primary_of_the_moment() {
    let servers = Replication::start(1);
    let client = connect(&servers.url()).await;
    assert_eq!(named(&nodes(&client).await), names(&servers.servers[..1]));
    let old = servers.primary_port();
    servers.servers[0].kill();
    let meanwhile = nodes(&client).await;
    assert!(!meanwhile[0].counts || named(&meanwhile) == names(&servers.servers[1..]), "{meanwhile:?}");
    tokio::task::block_in_place(|| servers.await_failover(old));
    eventually("the new primary counts", || async {
        let found = nodes(&client).await;
        found[0].counts && named(&found) == names(&servers.servers[1..])
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_names_every_primary_and_the_one_that_is_down() {
    let cluster = tokio::task::block_in_place(RedisCluster::without_replicas);
    let client = connect(&cluster.url()).await;
    let up = nodes(&client).await;
    let mut expected = names(&cluster.nodes);
    expected.sort();
    assert_eq!(named(&up), expected);
    assert!(up.iter().all(|node| node.counts && node.clocks.is_some()), "{up:?}");
    cluster.nodes[1].kill();
    let killed = &names(&cluster.nodes)[1];
    until_refused(&client, expected.iter().position(|name| name == killed).expect("it is a primary")).await;
    let after = nodes(&client).await;
    let down: Vec<_> = after.iter().filter(|node| !node.counts).collect();
    assert_eq!(down.len(), 1, "{after:?}");
    assert_eq!((down[0].name.as_str(), why(down[0]).contains(killed)), (&**killed, true), "{after:?}");
}

#[tokio::test]
async fn every_node_of_a_quorum_votes_and_tells_its_time() {
    let clock = ServerClock::new();
    let mut set = RedisNodes { servers: (0..4).map(|_| RedisServer::start()).collect() };
    set.servers.push(RedisServer::in_environment(&[], clock.environment()));
    let set = set.grown_old(GATE);
    let client = connect(&set.url()).await;
    clock.set_ahead(30);
    let found = nodes(&client).await;
    assert_eq!(named(&found), names(&set.servers), "in the order of the URL");
    assert!(found.iter().all(|node| node.counts && node.round_trip.is_some()), "{found:?}");
    let ahead: Vec<i64> = found.iter().map(seconds_ahead).collect();
    assert_eq!(&ahead[..4], [0; 4]);
    assert!((29..=30).contains(&ahead[4]), "{ahead:?}");
}

#[tokio::test]
async fn each_node_without_a_vote_says_why() {
    let set = RedisNodes::long_lived(5, GATE);
    let client = connect(&set.url()).await;
    set.servers[1].kill();
    until_refused(&client, 1).await;
    set.servers[2].freeze();
    set.servers[3].kill();
    set.servers[3].run_again();
    set.servers[4].command(&["SET", "lock:v1:birth", "hello"]);
    let found = nodes(&client).await;
    assert_eq!(named(&found), names(&set.servers));
    assert_eq!(why(&found[0]), "it counts");
    assert!(why(&found[1]).ends_with("connection refused"), "{:?}", found[1]);
    assert_eq!(why(&found[2]), "no answer within 1s");
    // The first look after the restart, or a later one of this client, which has quarantined it.
    assert!(why(&found[3]).contains("lost its data") || why(&found[3]).contains("quarantined"), "{found:?}");
    assert!(why(&found[4]).contains("lock:v1:birth cannot be read"), "{:?}", found[4]);
    set.servers[2].thaw();
    eventually("the frozen node votes", || async { nodes(&client).await[2].counts }).await;
}

#[tokio::test]
async fn a_restarted_node_is_quarantined_and_a_node_with_another_password_is_named() {
    let set = RedisNodes::long_lived(3, GATE);
    let url = set.url().replace("://", "://:hunter2@");
    set.servers.iter().for_each(|node| {
        node.command(&["CONFIG", "SET", "requirepass", "hunter2"]);
    });
    let client = connect(&url).await;
    assert!(nodes(&client).await.iter().all(|node| node.counts));
    set.servers[0].kill();
    set.servers[0].run_again();
    // It runs without a password now, which a login with one does not accept.
    let refused = nodes(&client).await.remove(0);
    assert!(why(&refused).contains("password"), "{refused:?}");
    set.servers[0].command(&["CONFIG", "SET", "requirepass", "hunter2"]);
    eventually("it is quarantined", || async { why(&nodes(&client).await[0]).contains("quarantined") }).await;
}

/// The other nodes are a majority, so the client starts without them.
#[tokio::test]
async fn a_mute_node_and_a_lying_one_delay_nothing() {
    let mute = TcpListener::bind(("127.0.0.1", 0)).expect("a port is free");
    let mute_port = mute.local_addr().expect("it listens").port();
    let set = RedisNodes::long_lived(3, GATE);
    for server in &set.servers {
        let mark = server.command(&["GET", "lock:v1:birth"]).replace("|3|", "|5|");
        server.command(&["SET", "lock:v1:birth", &mark]);
    }
    let ports =
        set.servers.iter().map(RedisServer::port).chain([mute_port, server_of_another_protocol().await]);
    let client = connect(&RedisNodes::url_of(ports)).await;
    let found = nodes(&client).await;
    assert_eq!(found.iter().map(|node| node.counts).collect::<Vec<_>>(), [true, true, true, false, false]);
    assert!(why(&found[3]).contains("no answer"), "{found:?}");
    assert!(!why(&found[4]).is_empty() && !why(&found[4]).contains('\n'), "{found:?}");
    let lease = client.lease("report", "42").wait(TIMEOUT).acquire().await;
    let lease = lease.expect("three of five are a majority");
    lease.release().await.expect("three of five are a majority");
}

#[tokio::test]
async fn asking_changes_nothing_and_may_be_given_up() {
    let server = RedisServer::start();
    let redis = common::open(&server.url()).await;
    let client = Client::new(std::sync::Arc::new(redis));
    for _ in 0..20 {
        let given_up = tokio::time::timeout(Duration::from_micros(50), client.nodes()).await;
        assert!(given_up.is_err() || given_up.is_ok_and(|nodes| nodes.is_ok()));
    }
    let redis = common::open(&server.url()).await;
    in_time("a grant", redis.acquire_one(&claim(&report(), LONG))).await.expect("it serves");
    assert!(nodes(&client).await[0].counts);
}
