//! The servers of a store, through a server: the nodes of a quorum, one of which dies.
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]

mod common;

use std::time::Duration;

use common::TestServer;
use leasehold::{Client, NodeStatus};
use leasehold_testkit::{calls::eventually, servers::RedisNodes};

async fn nodes(client: &Client) -> Vec<NodeStatus> {
    client.nodes().await.expect("the server tells")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_of_a_server_sees_the_nodes_and_why_one_does_not_count() {
    let set = tokio::task::block_in_place(|| RedisNodes::long_lived(3, Duration::from_secs(600)));
    let server = TestServer::start(common::open_store(set.url()));
    let client = Client::new(common::open(&server.url()).await);
    let up = nodes(&client).await;
    let names: Vec<_> = set.servers.iter().map(|server| format!("127.0.0.1:{}", server.port())).collect();
    assert_eq!(up.iter().map(|node| node.name.clone()).collect::<Vec<_>>(), names);
    assert!(
        up.iter().all(|node| node.counts && node.round_trip.is_some() && node.clocks.is_some()),
        "{up:?}"
    );
    set.servers[1].kill();
    // The server keeps an answer for some seconds.
    eventually("the dead node is named", || async {
        let node = nodes(&client).await.remove(1);
        !node.counts && node.why.is_some_and(|why| why.contains("connection refused"))
    })
    .await;
    assert!(nodes(&client).await.into_iter().filter(|node| node.counts).count() == 2);
    drop(server);
}
