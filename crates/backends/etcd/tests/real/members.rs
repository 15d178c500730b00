//! Three members: the loss of one, the leader included, loses no lease.

use std::{sync::Arc, time::Duration};

use leasehold_testkit::servers::EtcdCluster;

use crate::common::{LONG, PATIENCE, client, in_time};

/// A member goes; the holder goes on past its ttl, and whoever waits is granted a higher token afterwards.
async fn outlives(cluster: &Arc<EtcdCluster>, gone: usize, go: impl FnOnce(&EtcdCluster, usize)) {
    let ttl = Duration::from_secs(8);
    let (ours, theirs) = (client(&cluster.url()).await, client(&cluster.url()).await);
    let lease = ours.lease("report", "42").ttl(ttl).acquire().await.unwrap();
    let waiting = tokio::spawn(theirs.lease("report", "42").ttl(LONG).wait(LONG).acquire());
    go(cluster, gone);
    tokio::time::sleep(ttl + Duration::from_secs(4)).await;
    lease.check().expect("a change of leaders is no loss");
    assert!(!waiting.is_finished(), "nobody else was granted");
    let token = lease.token();
    in_time("the release", lease.release()).await.expect("two of three serve");
    let next = in_time("the next grant", waiting).await.unwrap().unwrap();
    assert!(next.token() > token);
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_loss_of_any_one_member_loses_no_lease() {
    let cluster = Arc::new(tokio::task::spawn_blocking(|| EtcdCluster::start(3)).await.unwrap());
    let leader = cluster.leader();
    let follower = (0..3).find(|index| *index != leader).unwrap();
    outlives(&cluster, follower, EtcdCluster::kill).await;
    let again = Arc::clone(&cluster);
    tokio::task::spawn_blocking(move || again.run_again(follower)).await.unwrap();
    outlives(&cluster, cluster.leader(), EtcdCluster::kill).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_is_frozen_and_comes_back_does_no_harm() {
    let cluster = Arc::new(tokio::task::spawn_blocking(|| EtcdCluster::start(3)).await.unwrap());
    let leader = cluster.leader();
    outlives(&cluster, leader, EtcdCluster::freeze).await;
    cluster.thaw(leader);
    let leases = client(&cluster.url()).await;
    let lease = in_time("a grant", leases.lease("report", "42").wait(PATIENCE).acquire()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    lease.check().unwrap();
    lease.release().await.unwrap();
}
