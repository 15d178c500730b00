//! What is said about the members themselves.

use std::sync::Arc;

use leasehold_testkit::{
    nodes::{nodes, server_of_another_protocol, until_refused, why},
    servers::EtcdCluster,
};

use crate::{
    access::with_users,
    common::{client, eventually, in_time},
};

async fn cluster() -> Arc<EtcdCluster> {
    Arc::new(tokio::task::spawn_blocking(|| EtcdCluster::start(3)).await.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_three_members_a_frozen_one_and_a_dead_one_are_named() {
    let cluster = cluster().await;
    let client = client(&cluster.url()).await;
    let up = nodes(&client).await;
    let names: Vec<_> = cluster.ports().iter().map(|port| format!("127.0.0.1:{port}")).collect();
    assert_eq!(up.iter().map(|node| node.name.clone()).collect::<Vec<_>>(), names);
    assert!(
        up.iter().all(|node| node.counts && node.round_trip.is_some() && node.clocks.is_none()),
        "{up:?}"
    );
    let leader = cluster.leader();
    let (one, other) = ((leader + 1) % 3, (leader + 2) % 3);
    cluster.freeze(one);
    let frozen = nodes(&client).await;
    assert_eq!(why(&frozen[one]), "no answer within 1s");
    assert_eq!((why(&frozen[leader]), why(&frozen[other])), ("it counts", "it counts"));
    cluster.thaw(one);
    cluster.kill(one);
    until_refused(&client, one).await;
    let lease = in_time("a grant", client.lease("report", "42").acquire()).await.unwrap();
    lease.release().await.unwrap();
    // Without a majority the last one answers, and says that it has no leader.
    cluster.kill(other);
    eventually("no leader", || async { why(&nodes(&client).await[leader]).contains("no leader") }).await;
    let again = Arc::clone(&cluster);
    tokio::task::spawn_blocking(move || again.run_again(other)).await.unwrap();
    eventually("a majority", || async {
        nodes(&client).await.iter().filter(|node| node.counts).count() == 2
    })
    .await;
}

#[tokio::test]
async fn a_host_that_is_no_member_is_named_beside_the_one_that_counts() {
    let cluster = EtcdCluster::start(1);
    let other = EtcdCluster::start(1);
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", cluster.ports()[0], server_of_another_protocol().await);
    let client = client(&format!("etcd://{hosts},127.0.0.1:{}", other.ports()[0])).await;
    let found = nodes(&client).await;
    assert_eq!((found.len(), why(&found[0])), (3, "it counts"));
    assert!(!found[1].counts && !why(&found[1]).contains('\n'), "{found:?}");
    assert!(why(&found[2]).contains("another etcd cluster"), "{found:?}");
}

#[tokio::test]
async fn a_user_with_the_least_permissions_may_ask() {
    let cluster = with_users(EtcdCluster::start(1));
    let client = client(&format!("etcd://app:first@127.0.0.1:{}", cluster.ports()[0])).await;
    let node = nodes(&client).await.remove(0);
    assert_eq!((why(&node), &*node.name), ("it counts", &*format!("127.0.0.1:{}", cluster.ports()[0])));
}

#[tokio::test]
async fn a_cluster_without_space_takes_no_writes() {
    let cluster = EtcdCluster::with(1, &["--quota-backend-bytes", "20000000"]);
    let client = client(&cluster.url()).await;
    assert_eq!(why(&nodes(&client).await[0]), "it counts");
    let value = "x".repeat(100_000);
    eventually("the space is used up", || async {
        let put = cluster.command(&["put", "filler", &value]).output().unwrap();
        !put.status.success()
    })
    .await;
    let node = nodes(&client).await.remove(0);
    assert!(why(&node).contains("etcd reports") && why(&node).contains("NOSPACE"), "{node:?}");
}
