//! etcd leases: one for each claim, granted in advance, used again, revoked if a request had no reply (ADR
//! 0023).

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use leasehold::{
    Backend, BackendExt as _, CommandOutcome, Effect, ErrorKind, Eviction, Handover, OperatorAction,
    OperatorCommand, OwnerToken, ReleaseRequest, Released, Renewal,
};
use leasehold_testkit::servers::EtcdCluster;
use sha2::{Digest as _, Sha256};

use crate::common::{
    LOCK, LONG, blocked, claim, client, eventually, grant_minute_lease, granted, kind_and_effect, lease_of,
    open, release, renew, report, request_count,
};

#[tokio::test]
async fn after_the_first_acquire_no_acquire_waits_for_a_lease_and_each_is_one_transaction() {
    let cluster = EtcdCluster::start(1);
    let etcd = open(&cluster.url()).await;
    let pair = async || {
        let ours = claim(&report(), LONG);
        granted(&etcd, &ours).await;
        release(&etcd, &ours).await;
    };
    pair().await;
    // The ready leases are granted in the background of the first acquires.
    eventually("no more leases are granted", || async {
        let before = request_count(&cluster, "LeaseGrant");
        pair().await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        request_count(&cluster, "LeaseGrant") == before
    })
    .await;
    // A lease needs a keep-alive before its use if the last one is more than a second ago.
    tokio::time::sleep(Duration::from_millis(1200)).await;
    let kept = request_count(&cluster, "LeaseKeepAlive");
    let (grants, transactions) = (request_count(&cluster, "LeaseGrant"), request_count(&cluster, "Txn"));
    for _ in 0..30 {
        pair().await;
    }
    assert_eq!(request_count(&cluster, "LeaseGrant"), grants, "no grants");
    assert_eq!(
        request_count(&cluster, "Txn"),
        transactions + 60,
        "one transaction to acquire, one to release"
    );
    let kept = request_count(&cluster, "LeaseKeepAlive") - kept;
    assert!(kept <= 10, "{kept} keep-alives for 30 acquires");
}

#[tokio::test]
async fn on_a_contended_resource_the_first_transaction_also_queues_the_claim() {
    let cluster = EtcdCluster::start(1);
    let etcd = open(&cluster.url()).await;
    let holder = claim(&report(), LONG);
    granted(&etcd, &holder).await;
    let wait = async || {
        let waiting = claim(&report(), LONG).queued();
        let before = request_count(&cluster, "Txn");
        assert!(blocked(&etcd, &waiting).await.queued);
        let took = request_count(&cluster, "Txn") - before;
        assert_eq!(release(&etcd, &waiting).await, Released::Now);
        took
    };
    assert_eq!(wait().await, 3, "no contention was expected: one try, one read, one write");
    eventually("a lease for a waiter is ready", || async { wait().await == 1 }).await;
    release(&etcd, &holder).await;
    let before = request_count(&cluster, "Txn");
    granted(&etcd, &claim(&report(), LONG).queued()).await;
    assert_eq!(
        request_count(&cluster, "Txn"),
        before + 1,
        "contention was expected, and the resource is free"
    );
}

#[tokio::test]
async fn no_claim_keeps_another_alive() {
    let cluster = EtcdCluster::start(1);
    let etcd = open(&cluster.url()).await;
    let (kept, dead) =
        (claim(&report(), Duration::from_secs(3)), claim(&"b/2".parse().unwrap(), Duration::from_secs(3)));
    granted(&etcd, &kept).await;
    granted(&etcd, &dead).await;
    let other = claim(&dead.resource, LONG);
    eventually("the claim that is not renewed ends", || async {
        let renewal = renew(&etcd, kept.reference(), kept.ttl).await;
        assert!(matches!(renewal, Renewal::Renewed(_)), "the other claim is renewed: {renewal:?}");
        matches!(etcd.acquire_one(&other).await, Ok(leasehold::Verdict::Granted(_)))
    })
    .await;
}

#[tokio::test]
async fn a_release_with_a_tombstone_revokes_the_lease() {
    let cluster = EtcdCluster::start(1);
    let etcd = open(&cluster.url()).await;
    let ours = claim(&report(), LONG);
    granted(&etcd, &ours).await;
    let key = cluster.keys(&format!("{LOCK}/")).remove(0);
    let lease = lease_of(&cluster, &key);
    assert!(cluster.etcdctl(&["lease", "list"]).contains(&lease));
    let request = ReleaseRequest::new(ours.reference()).with_tombstone(LONG);
    assert_eq!(etcd.release_one(&request).await.unwrap(), Released::Now);
    eventually("the lease is revoked", || async { !cluster.etcdctl(&["lease", "list"]).contains(&lease) })
        .await;
    assert_eq!(cluster.keys("leasehold/v1/lock/"), Vec::<String>::new());
}

#[tokio::test]
async fn after_an_operator_revoked_all_leases_an_acquire_grants_a_new_one() {
    let cluster = EtcdCluster::start(1);
    let etcd = open(&cluster.url()).await;
    let ours = claim(&report(), LONG);
    granted(&etcd, &ours).await;
    release(&etcd, &ours).await;
    for lease in cluster.etcdctl(&["lease", "list"]).lines().skip(1) {
        cluster.etcdctl(&["lease", "revoke", lease.trim()]);
    }
    let ours = claim(&report(), LONG).queued();
    let token = granted(&etcd, &ours).await.token;
    let renewal = renew(&etcd, ours.reference(), LONG).await;
    assert!(matches!(renewal, Renewal::Renewed(kept) if kept.token == token));
    // A claim whose lease was revoked is gone, and the next renewal reports it.
    for lease in cluster.etcdctl(&["lease", "list"]).lines().skip(1) {
        cluster.etcdctl(&["lease", "revoke", lease.trim()]);
    }
    assert!(matches!(renew(&etcd, ours.reference(), LONG).await, Renewal::Gone { .. }));
    assert!(granted(&etcd, &claim(&report(), LONG)).await.token > token);
}

#[tokio::test]
async fn if_etcd_grants_a_longer_lease_the_holder_still_gets_the_requested_ttl() {
    // The shortest lease of etcd is one and a half election timeouts.
    let cluster = EtcdCluster::with(1, &["--election-timeout", "4000"]);
    let etcd = open(&cluster.url()).await;
    let ours = claim(&report(), Duration::from_secs(1));
    let grant = granted(&etcd, &ours).await;
    assert_eq!(grant.remaining, Duration::from_secs(1));
    let key = cluster.keys(&format!("{LOCK}/")).remove(0);
    let printed = cluster.etcdctl(&["lease", "timetolive", &lease_of(&cluster, &key)]);
    assert!(printed.contains("granted with TTL(6s)"), "{printed}");
    let renewal = renew(&etcd, ours.reference(), Duration::from_secs(1)).await;
    let Renewal::Renewed(kept) = renewal else { panic!("it holds: {renewal:?}") };
    assert!(kept.remaining <= Duration::from_secs(1));
}

#[tokio::test]
async fn a_release_wakes_the_next_waiter_and_no_other() {
    let cluster = EtcdCluster::start(1);
    let etcd = Arc::new(open(&cluster.url()).await);
    let ours = claim(&report(), LONG);
    granted(&*etcd, &ours).await;
    let mut waits = Vec::new();
    let mut places = Vec::new();
    for _ in 0..8 {
        let mut place = claim(&report(), LONG).queued();
        place.place_ttl = LONG;
        let cursor = blocked(&*etcd, &place).await.cursor;
        let (etcd, reference) = (Arc::clone(&etcd), place.reference());
        waits.push(tokio::spawn(async move { etcd.wait(&reference, &cursor, LONG).await }));
        places.push(place);
    }
    release(&*etcd, &ours).await;
    eventually("the first waiter is woken", || async { waits[0].is_finished() }).await;
    granted(&*etcd, &places[0]).await;
    // The first waiter holds now. No other waiter can be granted, so none is woken.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(waits[1..].iter().all(|wait| !wait.is_finished()), "only the first waiter was woken");
    release(&*etcd, &places[0]).await;
    eventually("the next waiter is woken", || async { waits[1].is_finished() }).await;
    waits.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn a_key_of_a_newer_version_is_refused_and_the_error_names_it() {
    let cluster = EtcdCluster::start(1);
    let etcd = open(&cluster.url()).await;
    let key = format!("{LOCK}/abc");
    cluster.etcdctl(&["put", &key, "00000001 {\"v\":9}"]);
    let error = etcd.acquire_one(&claim(&report(), LONG)).await.unwrap_err();
    assert_eq!(kind_and_effect(&error), (ErrorKind::Corrupt, Effect::None));
    assert!(error.to_string().contains(&key), "{error}");
}

#[tokio::test]
async fn a_key_without_a_lease_is_listed_as_a_leak() {
    let cluster = EtcdCluster::start(1);
    let etcd = open(&cluster.url()).await;
    granted(&etcd, &claim(&report(), LONG)).await;
    cluster.etcdctl(&["put", &format!("{LOCK}/abc"), "put by hand"]);
    let query = leasehold::Query::Leaks(leasehold::Listing::of(""));
    let leasehold::Page::Leaks { found, .. } = etcd.inspect(&query).await.unwrap() else { panic!("leaks") };
    let keys: Vec<_> = found.into_iter().map(|leak| leak.key).collect();
    assert_eq!(keys, [format!("{LOCK}/abc")]);
}

/// The hash of an owner token, as it is stored.
fn hash_owner(owner: OwnerToken) -> String {
    Sha256::digest(owner.to_bytes())[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test]
async fn a_place_that_was_taken_over_belongs_to_the_successor_and_a_late_release_does_not_end_it() {
    let cluster = EtcdCluster::start(1);
    let (etcd, other) = (open(&cluster.url()).await, open(&cluster.url()).await);
    let holder = claim(&report(), LONG);
    granted(&etcd, &holder).await;
    let first = claim(&report(), LONG).queued();
    assert!(blocked(&etcd, &first).await.queued);
    let behind = claim(&report(), LONG).queued();
    assert!(blocked(&etcd, &behind).await.queued);
    let successor = claim(&report(), LONG).queued().taking_over(Handover::from(first.owner));
    assert_eq!(blocked(&other, &successor).await.ahead, 0, "it has the place of the first waiter");
    assert_eq!(release(&etcd, &first).await, Released::AlreadyGone, "its place belongs to the successor now");
    assert!(blocked(&etcd, &first).await.queued, "it queues again, with a key of another name");
    assert_eq!(blocked(&etcd, &first).await.ahead, 2, "at the end");
    release(&etcd, &holder).await;
    granted(&other, &successor).await;
    assert!(matches!(renew(&other, successor.reference(), LONG).await, Renewal::Renewed(_)));
    assert_eq!(release(&other, &successor).await, Released::Now);
    assert_eq!(release(&etcd, &behind).await, Released::Now);
    granted(&etcd, &first).await;
    assert_eq!(release(&etcd, &first).await, Released::Now);
    assert_eq!(cluster.keys("leasehold/"), Vec::<String>::new(), "nothing is left");
}

#[tokio::test]
async fn a_claim_in_the_older_layout_with_two_keys_is_renewed_and_released() {
    let cluster = EtcdCluster::start(1);
    let etcd = open(&cluster.url()).await;
    let ours = claim(&report(), LONG);
    let (lease, hash) = (grant_minute_lease(&cluster), hash_owner(ours.owner));
    let value = format!(
        "00000001 {{\"v\":1,\"who\":\"1@host old\",\"owner\":\"{hash}\",\"weight\":1,\"held\":true,\
         \"ttl_ms\":60000,\"since_us\":1}}"
    );
    let put = |key: &str, value: &str| cluster.etcdctl(&["put", &format!("--lease={lease}"), key, value]);
    put(&format!("{LOCK}/{lease}"), &value);
    put(&format!("leasehold/v1/own/report/42/{hash}"), &lease);
    assert_eq!(blocked(&etcd, &claim(&report(), LONG)).await.holders[0].holder.label, "old");
    let renewal = renew(&etcd, ours.reference(), LONG).await;
    assert!(matches!(renewal, Renewal::Renewed(_)), "{renewal:?}");
    granted(&etcd, &ours).await;
    assert_eq!(release(&etcd, &ours).await, Released::Now);
    assert_eq!(cluster.keys("leasehold/"), Vec::<String>::new(), "both keys are deleted");
}

#[tokio::test]
async fn a_waiter_does_not_poll_because_of_a_key_that_never_expires() {
    let cluster = EtcdCluster::start(1);
    let leases = client(&cluster.url()).await;
    for key in [format!("{LOCK}/abc"), "leasehold/v1/pause/report/42".to_owned()] {
        cluster.etcdctl(&["put", &key, "put by hand, without a lease"]);
        let before = request_count(&cluster, "Txn");
        let wait = Duration::from_secs(3);
        leases.lease("report", "42").ttl(LONG).wait(wait).acquire().await.unwrap_err();
        let count = request_count(&cluster, "Txn") - before;
        assert!(count < 40, "{key}: {count} transactions in three seconds");
        cluster.etcdctl(&["del", &key]);
    }
}

#[tokio::test]
async fn a_repeated_eviction_does_not_put_off_the_end() {
    let cluster = EtcdCluster::start(1);
    let etcd = open(&cluster.url()).await;
    granted(&etcd, &claim(&report(), LONG)).await;
    let evict =
        OperatorCommand::new(report(), OperatorAction::Evict(Eviction::AtExpiry), "ops", "a new disk");
    let key = cluster.keys(LOCK).remove(0);
    assert_eq!(etcd.order(&evict).await.unwrap(), CommandOutcome::Done);
    let lease = lease_of(&cluster, &key);
    assert_eq!(etcd.order(&evict).await.unwrap(), CommandOutcome::Done);
    assert_eq!(lease_of(&cluster, &key), lease, "the lease of the first eviction stays");
}

#[tokio::test]
async fn a_refused_command_leaves_no_etcd_lease() {
    let cluster = EtcdCluster::start(1);
    let etcd = open(&cluster.url()).await;
    cluster.etcdctl(&["put", &format!("{LOCK}/abc"), "put by hand"]);
    let resize = OperatorCommand::new(
        report(),
        OperatorAction::Resize { capacity: NonZeroU32::new(3).unwrap() },
        "ops",
        "more room",
    );
    let error = etcd.order(&resize).await.unwrap_err();
    assert_eq!(kind_and_effect(&error), (ErrorKind::Unsupported, Effect::None));
    eventually("no lease is left", || async {
        cluster.etcdctl(&["lease", "list"]).contains("found 0 leases")
    })
    .await;
}

#[tokio::test]
async fn a_dropped_client_revokes_its_ready_leases() {
    let cluster = EtcdCluster::start(1);
    let etcd = open(&cluster.url()).await;
    let (ours, held) = (claim(&report(), LONG), claim(&"b/2".parse().unwrap(), LONG));
    granted(&etcd, &ours).await;
    granted(&etcd, &held).await;
    release(&etcd, &ours).await;
    drop(etcd);
    eventually("only the lease of the held claim is left", || async {
        cluster.etcdctl(&["lease", "list"]).contains("found 1 leases")
    })
    .await;
    assert_eq!(cluster.keys("leasehold/v1/lock/").len(), 1, "the claim itself outlives its client");
}

#[tokio::test]
async fn a_waiter_that_lost_its_place_leaves_no_etcd_lease() {
    let cluster = EtcdCluster::start(1);
    let etcd = open(&cluster.url()).await;
    granted(&etcd, &claim(&report(), LONG)).await;
    let held = cluster.keys(&format!("{LOCK}/"));
    let mut waiting = claim(&report(), LONG).queued();
    waiting.place_ttl = LONG;
    assert!(blocked(&etcd, &waiting).await.queued);
    let place = cluster.keys(&format!("{LOCK}/")).into_iter().find(|key| !held.contains(key)).unwrap();
    let lease = lease_of(&cluster, &place);
    cluster.etcdctl(&["del", &place]);
    assert!(blocked(&etcd, &waiting).await.queued, "it stands at the end of the queue");
    assert_ne!(lease_of(&cluster, &place), lease);
    eventually("the lease of the lost place is revoked", || async {
        !cluster.etcdctl(&["lease", "list"]).contains(&lease)
    })
    .await;
}
