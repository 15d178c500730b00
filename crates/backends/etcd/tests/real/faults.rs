//! Faults on a real server: a network that fails (through a proxy), a server that is killed, frozen,
//! compacted or full.

use std::{sync::Arc, time::Duration};

use leasehold::{Backend, BackendExt as _, Effect, ErrorKind, ReleaseRequest, Released, Renewal, Verdict};
use leasehold_testkit::{proxy::Direction, scenarios::NetworkScenario, servers::EtcdCluster};

use crate::common::{
    LOCK, LONG, blocked, claim, client, eventually, granted, in_time, kind_and_effect, open, proxied,
    release, renew, report,
};

/// The first member, through a proxy and directly.
async fn scenario(cluster: &EtcdCluster, seed: u64) -> NetworkScenario {
    let (proxy, through) = proxied(cluster, seed).await;
    let (through, direct) = (open(&through).await, open(&cluster.url()).await);
    NetworkScenario { proxy, through: Arc::new(through), direct: Arc::new(direct) }
}

#[tokio::test]
async fn a_partition_longer_than_the_ttl_is_reported_in_time_and_healing_restores_nothing() {
    let cluster = EtcdCluster::start(1);
    let scenario = scenario(&cluster, 1).await;
    let (lost, next) = scenario.partition_past_the_ttl(Duration::from_secs(4)).await;
    // The late release does not end the new lease.
    let _ = in_time("the late release", lost.release()).await;
    next.check().unwrap();
    assert_eq!(cluster.keys(&format!("{LOCK}/")).len(), 1);
    next.release().await.unwrap();
}

#[tokio::test]
async fn a_lost_reply_has_unknown_effect_and_a_repeated_acquire_returns_the_same_grant() {
    let cluster = EtcdCluster::start(1);
    let scenario = scenario(&cluster, 2).await;
    let (ours, grant) = scenario.lost_reply(|proxy| proxy.hold(Direction::Replies)).await;
    let keys = cluster.keys(&format!("{LOCK}/"));
    assert_eq!(keys.len(), 1, "granted once");
    let printed = cluster.etcdctl(&["get", &keys[0], "-w", "fields"]);
    assert!(printed.contains(&format!("\"CreateRevision\" : {}", grant.token)), "{printed}");
    assert_eq!(release(&*scenario.through, &ours).await, Released::Now);
}

#[tokio::test]
async fn an_acquire_that_is_executed_after_its_owner_gave_up_is_refused() {
    let cluster = EtcdCluster::start(1);
    let (proxy, through) = proxied(&cluster, 3).await;
    let (slow, direct) = (open(&through).await, open(&cluster.url()).await);
    granted(&slow, &claim(&"warm/up".parse().unwrap(), LONG)).await;
    let ours = claim(&report(), LONG);
    proxy.hold(Direction::Requests);
    let error = slow.acquire_one(&ours).await.unwrap_err();
    assert_eq!(kind_and_effect(&error), (ErrorKind::Unavailable, Effect::Unknown));
    let request = ReleaseRequest::new(ours.reference()).with_tombstone(ReleaseRequest::tombstone_ttl(LONG));
    assert_eq!(direct.release_one(&request).await.unwrap(), Released::AlreadyGone);
    proxy.heal();
    // The delayed request arrives first, then the repeated one.
    eventually("a reply", || async { matches!(slow.acquire_one(&ours).await, Ok(Verdict::Cancelled)) }).await;
    assert_eq!(cluster.keys(&format!("{LOCK}/")), Vec::<String>::new(), "the tombstone refused it");
    granted(&direct, &claim(&report(), LONG)).await;
}

#[tokio::test]
async fn a_connection_that_is_cut_anywhere_never_gives_a_wrong_result() {
    let cluster = EtcdCluster::start(1);
    let scenario = scenario(&cluster, 4).await;
    granted(&*scenario.through, &claim(&"warm/up".parse().unwrap(), LONG)).await;
    scenario.connection_cut_anywhere(&[1, 20, 90, 300]).await;
    assert_eq!(cluster.keys(&format!("{LOCK}/")), Vec::<String>::new());
}

#[tokio::test]
async fn a_refused_connection_has_no_effect_and_one_without_replies_is_replaced() {
    let cluster = EtcdCluster::start(1);
    let (proxy, through) = proxied(&cluster, 5).await;
    let etcd = open(&through).await;
    let ours = claim(&report(), LONG);
    granted(&etcd, &ours).await;
    let before = proxy.connections();
    proxy.hold(Direction::Replies);
    assert!(etcd.acquire_one(&claim(&report(), LONG)).await.is_err());
    proxy.heal();
    eventually("a reply", || async { etcd.acquire_one(&claim(&report(), LONG)).await.is_ok() }).await;
    assert!(proxy.connections() > before, "a new connection was made");
    drop(proxy);
    eventually("the proxy is gone", || async {
        let error = etcd.acquire_one(&claim(&report(), LONG)).await.unwrap_err();
        kind_and_effect(&error) == (ErrorKind::Unavailable, Effect::None)
    })
    .await;
}

#[tokio::test]
async fn a_frozen_server_costs_a_timeout_and_a_late_acquire_is_refused() {
    let cluster = EtcdCluster::start(1);
    let etcd = open(&format!("{}?timeout=500ms&connect_timeout=500ms", cluster.url())).await;
    granted(&etcd, &claim(&"warm/up".parse().unwrap(), LONG)).await;
    let ours = claim(&report(), LONG);
    cluster.freeze(0);
    let error = in_time("the timeout", etcd.acquire_one(&ours)).await.unwrap_err();
    assert_eq!(kind_and_effect(&error), (ErrorKind::Unavailable, Effect::Unknown));
    cluster.thaw(0);
    let request = ReleaseRequest::new(ours.reference()).with_tombstone(ReleaseRequest::tombstone_ttl(LONG));
    eventually("the release", || async { etcd.release_one(&request).await.is_ok() }).await;
    assert!(matches!(etcd.acquire_one(&ours).await, Ok(Verdict::Cancelled)));
    assert_eq!(cluster.keys(&format!("{LOCK}/")), Vec::<String>::new());
    eventually("a grant", || async { etcd.acquire_one(&claim(&report(), LONG)).await.is_ok() }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_lease_is_lost_when_the_server_is_frozen_or_killed_and_restarted() {
    let cluster = Arc::new(EtcdCluster::start(1));
    let leases = client(&format!("{}?timeout=1s", cluster.url())).await;
    let lease = leases.lease("report", "42").ttl(Duration::from_secs(20)).acquire().await.unwrap();
    let waiting = tokio::spawn(leases.lease("report", "42").fair().ttl(LONG).wait_forever().acquire());
    cluster.freeze(0);
    tokio::time::sleep(Duration::from_secs(2)).await;
    cluster.thaw(0);
    lease.check().unwrap();
    cluster.kill(0);
    let again = Arc::clone(&cluster);
    tokio::task::spawn_blocking(move || again.run_again(0)).await.unwrap();
    let etcd = open(&cluster.url()).await;
    eventually("the server still has the holder", || async {
        matches!(etcd.acquire_one(&claim(&report(), LONG)).await, Ok(Verdict::Blocked(seen))
            if seen.holders.first().is_some_and(|by| by.token == lease.token()))
    })
    .await;
    lease.check().unwrap();
    let token = lease.token();
    let _ = in_time("the release", lease.release()).await;
    let next = in_time("the next grant", waiting).await.unwrap().unwrap();
    assert!(next.token() > token, "tokens grow across a restart");
}

#[tokio::test]
async fn a_waiter_whose_place_expired_queues_again_at_the_end() {
    let cluster = EtcdCluster::start(1);
    let etcd = open(&cluster.url()).await;
    let ours = claim(&report(), LONG);
    granted(&etcd, &ours).await;
    let mut waiter = claim(&report(), LONG).queued();
    waiter.place_ttl = Duration::from_secs(1);
    blocked(&etcd, &waiter).await;
    eventually("the place expires", || async { cluster.keys(&format!("{LOCK}/")).len() == 1 }).await;
    let next = claim(&report(), LONG).queued();
    blocked(&etcd, &next).await;
    release(&etcd, &ours).await;
    assert_eq!(blocked(&etcd, &waiter).await.ahead, 1, "it queued again, at the end");
    granted(&etcd, &next).await;
}

#[tokio::test]
async fn compaction_wakes_waiters_from_before_it_and_loses_no_lease() {
    let cluster = EtcdCluster::start(1);
    let etcd = open(&cluster.url()).await;
    let ours = claim(&report(), LONG);
    granted(&etcd, &ours).await;
    let seen = blocked(&etcd, &claim(&report(), LONG)).await;
    for number in 0..5 {
        cluster.etcdctl(&["put", "other", &number.to_string()]);
    }
    let printed = cluster.etcdctl(&["get", "other", "-w", "fields"]);
    let revision = printed.lines().find_map(|line| line.strip_prefix("\"ModRevision\" : ")).unwrap();
    cluster.etcdctl(&["compact", revision]);
    let observer = claim(&report(), LONG).reference();
    in_time("the wait", etcd.wait(&observer, &seen.cursor, LONG)).await.unwrap();
    let renewal = renew(&etcd, ours.reference(), LONG).await;
    assert!(matches!(renewal, Renewal::Renewed(_)), "{renewal:?}");
}

#[tokio::test]
async fn a_full_database_refuses_acquires_and_allows_renewals_and_releases() {
    let cluster = EtcdCluster::with(1, &["--quota-backend-bytes", "100000"]);
    let etcd = open(&cluster.url()).await;
    let ours = claim(&report(), LONG);
    granted(&etcd, &ours).await;
    let big = "x".repeat(60_000);
    // A put can fail because the machine is slow, so the alarm decides when the database is full.
    eventually("the alarm", || async {
        cluster.command(&["put", "big", &big]).output().unwrap();
        cluster.etcdctl(&["alarm", "list"]).contains("NOSPACE")
    })
    .await;
    let error = etcd.acquire_one(&claim(&"b/2".parse().unwrap(), LONG)).await.unwrap_err();
    assert_eq!(kind_and_effect(&error), (ErrorKind::Unavailable, Effect::None), "{error:?}");
    let renewal = renew(&etcd, ours.reference(), LONG).await;
    assert!(matches!(renewal, Renewal::Renewed(_)), "{renewal:?}");
    assert_eq!(release(&etcd, &ours).await, Released::Now, "etcd allows transactions that only delete");
}
