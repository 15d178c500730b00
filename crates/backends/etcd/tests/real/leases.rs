//! etcd leases: granted in advance, one for each claim, used again, revoked when in doubt.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use leasehold::{
    Backend, CommandOutcome, Effect, ErrorKind, Eviction, Handover, OperatorAction, OperatorCommand,
    OwnerToken, ReleaseRequest, Released, Renewal,
};
use leasehold_testkit::servers::EtcdCluster;
use sha2::{Digest as _, Sha256};

use crate::common::{
    LOCK, LONG, blocked, calls, claim, client, eventually, granted, lease_of, lease_of_a_minute, open,
    release, renew, report, says,
};

#[tokio::test]
async fn after_the_first_no_acquire_pays_for_a_grant_and_each_is_one_transaction() {
    let cluster = EtcdCluster::start(1);
    let etcd = open(&cluster.url()).await;
    let pair = async || {
        let ours = claim(&report(), LONG);
        granted(&etcd, &ours).await;
        release(&etcd, &ours).await;
    };
    pair().await;
    // What lies ready is granted beside the first ones.
    eventually("a quiet server", || async {
        let before = calls(&cluster, "LeaseGrant");
        pair().await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        calls(&cluster, "LeaseGrant") == before
    })
    .await;
    // A lease is kept anew before its use once it is a second old, and not again soon after.
    tokio::time::sleep(Duration::from_millis(1200)).await;
    let kept = calls(&cluster, "LeaseKeepAlive");
    let (grants, transactions) = (calls(&cluster, "LeaseGrant"), calls(&cluster, "Txn"));
    for _ in 0..30 {
        pair().await;
    }
    assert_eq!(calls(&cluster, "LeaseGrant"), grants, "no grants");
    assert_eq!(calls(&cluster, "Txn"), transactions + 60, "one transaction to acquire, one to release");
    let kept = calls(&cluster, "LeaseKeepAlive") - kept;
    assert!(kept <= 10, "{kept} keep-alives for 30 acquires");
}

#[tokio::test]
async fn where_others_were_met_the_same_transaction_takes_the_place() {
    let cluster = EtcdCluster::start(1);
    let etcd = open(&cluster.url()).await;
    let holder = claim(&report(), LONG);
    granted(&etcd, &holder).await;
    let wait = async || {
        let waiting = claim(&report(), LONG).queued();
        let before = calls(&cluster, "Txn");
        assert!(blocked(&etcd, &waiting).await.queued);
        let took = calls(&cluster, "Txn") - before;
        assert_eq!(release(&etcd, &waiting).await, Released::Now);
        took
    };
    assert_eq!(wait().await, 3, "nobody was expected: a try, a look, and the place");
    eventually("a lease for a place lies ready", || async { wait().await == 1 }).await;
    release(&etcd, &holder).await;
    let before = calls(&cluster, "Txn");
    granted(&etcd, &claim(&report(), LONG).queued()).await;
    assert_eq!(calls(&cluster, "Txn"), before + 1, "others were expected, and it is free");
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
    eventually("the one that nobody renews ends", || async {
        let answer = renew(&etcd, kept.reference(), kept.ttl).await;
        assert!(matches!(answer, Renewal::Renewed(_)), "the other goes on: {answer:?}");
        matches!(etcd.acquire(&other).await, Ok(leasehold::Verdict::Granted(_)))
    })
    .await;
}

#[tokio::test]
async fn burying_revokes_the_lease() {
    let cluster = EtcdCluster::start(1);
    let etcd = open(&cluster.url()).await;
    let ours = claim(&report(), LONG);
    granted(&etcd, &ours).await;
    let key = cluster.keys(&format!("{LOCK}/")).remove(0);
    let lease = lease_of(&cluster, &key);
    assert!(cluster.etcdctl(&["lease", "list"]).contains(&lease));
    let request = ReleaseRequest::new(ours.reference()).with_tombstone(LONG);
    assert_eq!(etcd.release(&request).await.unwrap(), Released::Now);
    eventually("the lease is revoked", || async { !cluster.etcdctl(&["lease", "list"]).contains(&lease) })
        .await;
    assert_eq!(cluster.keys("leasehold/v1/lock/"), Vec::<String>::new());
}

#[tokio::test]
async fn leases_that_were_revoked_behind_our_back_cost_one_grant() {
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
    let answer = renew(&etcd, ours.reference(), LONG).await;
    assert!(matches!(answer, Renewal::Renewed(kept) if kept.token == token));
    // And one that is held is gone, as soon as it is looked at.
    for lease in cluster.etcdctl(&["lease", "list"]).lines().skip(1) {
        cluster.etcdctl(&["lease", "revoke", lease.trim()]);
    }
    assert!(matches!(renew(&etcd, ours.reference(), LONG).await, Renewal::Gone { .. }));
    assert!(granted(&etcd, &claim(&report(), LONG)).await.token > token);
}

#[tokio::test]
async fn what_etcd_grants_may_be_more_and_what_was_asked_for_is_told() {
    // The shortest lease is one and a half elections.
    let cluster = EtcdCluster::with(1, &["--election-timeout", "4000"]);
    let etcd = open(&cluster.url()).await;
    let ours = claim(&report(), Duration::from_secs(1));
    let grant = granted(&etcd, &ours).await;
    assert_eq!(grant.remaining, Duration::from_secs(1));
    let key = cluster.keys(&format!("{LOCK}/")).remove(0);
    let told = cluster.etcdctl(&["lease", "timetolive", &lease_of(&cluster, &key)]);
    assert!(told.contains("granted with TTL(6s)"), "{told}");
    let answer = renew(&etcd, ours.reference(), Duration::from_secs(1)).await;
    let Renewal::Renewed(kept) = answer else { panic!("it holds: {answer:?}") };
    assert!(kept.remaining <= Duration::from_secs(1));
}

#[tokio::test]
async fn a_release_wakes_the_next_one_in_line_and_nobody_else() {
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
    eventually("the head is woken", || async { waits[0].is_finished() }).await;
    granted(&*etcd, &places[0]).await;
    // That place has become a seat: nobody can move, so nobody is told.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(waits[1..].iter().all(|wait| !wait.is_finished()), "only the head was woken");
    release(&*etcd, &places[0]).await;
    eventually("the next is woken", || async { waits[1].is_finished() }).await;
    waits.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn what_a_newer_leasehold_wrote_is_refused_by_name() {
    let cluster = EtcdCluster::start(1);
    let etcd = open(&cluster.url()).await;
    let key = format!("{LOCK}/abc");
    cluster.etcdctl(&["put", &key, "00000001 {\"v\":9}"]);
    let error = etcd.acquire(&claim(&report(), LONG)).await.unwrap_err();
    assert_eq!(says(&error), (ErrorKind::Corrupt, Effect::None));
    assert!(error.to_string().contains(&key), "{error}");
}

#[tokio::test]
async fn a_key_without_a_lease_is_found() {
    let cluster = EtcdCluster::start(1);
    let etcd = open(&cluster.url()).await;
    granted(&etcd, &claim(&report(), LONG)).await;
    cluster.etcdctl(&["put", &format!("{LOCK}/abc"), "put by hand"]);
    let query = leasehold::Query::Leaks(leasehold::Listing::of(""));
    let leasehold::Page::Leaks { found, .. } = etcd.inspect(&query).await.unwrap() else { panic!("leaks") };
    let keys: Vec<_> = found.into_iter().map(|leak| leak.key).collect();
    assert_eq!(keys, [format!("{LOCK}/abc")]);
}

/// As the store knows an owner.
fn mark(owner: OwnerToken) -> String {
    Sha256::digest(owner.to_bytes())[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test]
async fn a_place_that_was_taken_over_is_found_by_its_heir_and_not_ended_by_a_late_farewell() {
    let cluster = EtcdCluster::start(1);
    let (etcd, other) = (open(&cluster.url()).await, open(&cluster.url()).await);
    let holder = claim(&report(), LONG);
    granted(&etcd, &holder).await;
    let first = claim(&report(), LONG).queued();
    assert!(blocked(&etcd, &first).await.queued);
    let behind = claim(&report(), LONG).queued();
    assert!(blocked(&etcd, &behind).await.queued);
    let heir = claim(&report(), LONG).queued().taking_over(Handover::from(first.owner));
    assert_eq!(blocked(&other, &heir).await.ahead, 0, "it stands where the first one stood");
    assert_eq!(release(&etcd, &first).await, Released::AlreadyGone, "its place is another's now");
    assert!(blocked(&etcd, &first).await.queued, "it comes again, under a name of its own");
    assert_eq!(blocked(&etcd, &first).await.ahead, 2, "at the end");
    release(&etcd, &holder).await;
    granted(&other, &heir).await;
    assert!(matches!(renew(&other, heir.reference(), LONG).await, Renewal::Renewed(_)));
    assert_eq!(release(&other, &heir).await, Released::Now);
    assert_eq!(release(&etcd, &behind).await, Released::Now);
    granted(&etcd, &first).await;
    assert_eq!(release(&etcd, &first).await, Released::Now);
    assert_eq!(cluster.keys("leasehold/"), Vec::<String>::new(), "nothing is left");
}

#[tokio::test]
async fn a_claim_in_the_older_layout_of_two_keys_goes_on() {
    let cluster = EtcdCluster::start(1);
    let etcd = open(&cluster.url()).await;
    let ours = claim(&report(), LONG);
    let (lease, mark) = (lease_of_a_minute(&cluster), mark(ours.owner));
    let value = format!(
        "00000001 {{\"v\":1,\"who\":\"1@host old\",\"owner\":\"{mark}\",\"weight\":1,\"held\":true,\
         \"ttl_ms\":60000,\"since_us\":1}}"
    );
    let put = |key: &str, value: &str| cluster.etcdctl(&["put", &format!("--lease={lease}"), key, value]);
    put(&format!("{LOCK}/{lease}"), &value);
    put(&format!("leasehold/v1/own/report/42/{mark}"), &lease);
    assert_eq!(blocked(&etcd, &claim(&report(), LONG)).await.holders[0].holder.label, "old");
    let answer = renew(&etcd, ours.reference(), LONG).await;
    assert!(matches!(answer, Renewal::Renewed(_)), "{answer:?}");
    granted(&etcd, &ours).await;
    assert_eq!(release(&etcd, &ours).await, Released::Now);
    assert_eq!(cluster.keys("leasehold/"), Vec::<String>::new(), "both keys are gone");
}

#[tokio::test]
async fn whoever_waits_for_what_never_ends_by_itself_asks_no_more_often() {
    let cluster = EtcdCluster::start(1);
    let leases = client(&cluster.url()).await;
    for key in [format!("{LOCK}/abc"), "leasehold/v1/pause/report/42".to_owned()] {
        cluster.etcdctl(&["put", &key, "put by hand, without a lease"]);
        let before = calls(&cluster, "Txn");
        let wait = Duration::from_secs(3);
        leases.lease("report", "42").ttl(LONG).wait(wait).acquire().await.unwrap_err();
        let asked = calls(&cluster, "Txn") - before;
        assert!(asked < 40, "{key}: {asked} transactions in three seconds");
        cluster.etcdctl(&["del", &key]);
    }
}

#[tokio::test]
async fn an_eviction_that_is_said_again_does_not_put_off_the_end() {
    let cluster = EtcdCluster::start(1);
    let etcd = open(&cluster.url()).await;
    granted(&etcd, &claim(&report(), LONG)).await;
    let evict =
        OperatorCommand::new(report(), OperatorAction::Evict(Eviction::AtExpiry), "ops", "a new disk");
    let key = cluster.keys(LOCK).remove(0);
    assert_eq!(etcd.order(&evict).await.unwrap(), CommandOutcome::Done);
    let lease = lease_of(&cluster, &key);
    assert_eq!(etcd.order(&evict).await.unwrap(), CommandOutcome::Done);
    assert_eq!(lease_of(&cluster, &key), lease, "what was left when it was said first is what is left");
}

#[tokio::test]
async fn an_order_that_is_refused_leaves_no_etcd_lease() {
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
    assert_eq!(says(&error), (ErrorKind::Unsupported, Effect::None));
    eventually("no lease", || async { cluster.etcdctl(&["lease", "list"]).contains("found 0 leases") }).await;
}

#[tokio::test]
async fn a_client_that_ends_leaves_none_of_its_ready_leases_behind() {
    let cluster = EtcdCluster::start(1);
    let etcd = open(&cluster.url()).await;
    let (ours, held) = (claim(&report(), LONG), claim(&"b/2".parse().unwrap(), LONG));
    granted(&etcd, &ours).await;
    granted(&etcd, &held).await;
    release(&etcd, &ours).await;
    drop(etcd);
    eventually("the lease of what is held, and no other", || async {
        cluster.etcdctl(&["lease", "list"]).contains("found 1 leases")
    })
    .await;
    assert_eq!(cluster.keys("leasehold/v1/lock/").len(), 1, "a claim outlives the client that made it");
}
