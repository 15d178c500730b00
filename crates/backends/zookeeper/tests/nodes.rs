//! What is said about the servers themselves.
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]

mod common;

use common::{client, eventually};
use leasehold::NodeStatus;
use leasehold_testkit::{
    nodes::{nodes, server_of_another_protocol, why},
    servers::{Ensemble, ZooKeeperServer},
};

fn named<'a>(nodes: &'a [NodeStatus], server: &ZooKeeperServer) -> &'a NodeStatus {
    let name = format!("127.0.0.1:{}", server.port());
    nodes.iter().find(|node| node.name == name).expect("every server of the URL is named")
}

#[tokio::test]
async fn a_host_that_is_no_zookeeper_is_named_beside_the_one_that_counts() {
    let server = ZooKeeperServer::start();
    let url = server.url().replace("/?", &format!(",127.0.0.1:{}/?", server_of_another_protocol().await));
    let client = client(&url).await;
    let found = nodes(&client).await;
    assert_eq!((found.len(), why(&found[0])), (2, "it counts"));
    assert!(why(&found[1]).contains("does not answer as ZooKeeper"), "{found:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_three_servers_a_frozen_one_and_a_dead_one_are_named() {
    let ensemble = tokio::task::block_in_place(Ensemble::start);
    let client = client(&ensemble.url()).await;
    let up = nodes(&client).await;
    assert_eq!(up.len(), 3);
    assert!(
        up.iter().all(|node| node.counts && node.round_trip.is_some() && node.clocks.is_none()),
        "{up:?}"
    );
    let leader = tokio::task::block_in_place(|| ensemble.leader());
    let followers: Vec<_> =
        ensemble.servers().iter().filter(|server| server.port() != leader.port()).collect();
    followers[0].freeze();
    let frozen = nodes(&client).await;
    assert_eq!(why(named(&frozen, followers[0])), "no answer within 1s");
    assert_eq!(why(named(&frozen, leader)), "it counts");
    followers[0].thaw();
    followers[0].kill();
    eventually("it is gone", || async {
        why(named(&nodes(&client).await, followers[0])).ends_with("connection refused")
    })
    .await;
    // The last one answers, and has no majority.
    followers[1].kill();
    eventually("no majority", || async { why(named(&nodes(&client).await, leader)).contains("majority") })
        .await;
}
