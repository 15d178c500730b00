//! A cluster of three members: no lease is lost when one member is lost, even the leader.

use std::{sync::Arc, time::Duration};

use leasehold_testkit::servers::EtcdCluster;

use crate::common::{LONG, TIMEOUT, client, in_time};

/// Loses a member. The holder keeps its lease for longer than its ttl, and the waiter is granted a higher
/// token later.
async fn keeps_lease_without(
    cluster: &Arc<EtcdCluster>,
    member: usize,
    lose: impl FnOnce(&EtcdCluster, usize),
) {
    let ttl = Duration::from_secs(8);
    let (ours, waiter) = (client(&cluster.url()).await, client(&cluster.url()).await);
    let lease = ours.lease("report", "42").ttl(ttl).acquire().await.unwrap();
    let waiting = tokio::spawn(waiter.lease("report", "42").ttl(LONG).wait(LONG).acquire());
    lose(cluster, member);
    tokio::time::sleep(ttl + Duration::from_secs(4)).await;
    lease.check().expect("a change of the leader does not lose the lease");
    assert!(!waiting.is_finished(), "no other claim was granted");
    let token = lease.token();
    in_time("the release", lease.release()).await.expect("two of three members are enough");
    let next = in_time("the next grant", waiting).await.unwrap().unwrap();
    assert!(next.token() > token);
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_lease_is_lost_when_one_of_three_members_is_killed() {
    let cluster = Arc::new(tokio::task::spawn_blocking(|| EtcdCluster::start(3)).await.unwrap());
    let leader = cluster.leader();
    let follower = (0..3).find(|index| *index != leader).unwrap();
    keeps_lease_without(&cluster, follower, EtcdCluster::kill).await;
    let again = Arc::clone(&cluster);
    tokio::task::spawn_blocking(move || again.run_again(follower)).await.unwrap();
    keeps_lease_without(&cluster, cluster.leader(), EtcdCluster::kill).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_is_frozen_and_comes_back_ends_no_lease() {
    let cluster = Arc::new(tokio::task::spawn_blocking(|| EtcdCluster::start(3)).await.unwrap());
    let leader = cluster.leader();
    keeps_lease_without(&cluster, leader, EtcdCluster::freeze).await;
    cluster.thaw(leader);
    let leases = client(&cluster.url()).await;
    let lease = in_time("a grant", leases.lease("report", "42").wait(TIMEOUT).acquire()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    lease.check().unwrap();
    lease.release().await.unwrap();
}
