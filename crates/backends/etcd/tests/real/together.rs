//! Many claims, and many releases, in one transaction (ADR 0041). The suite for all backends has more cases.

use std::{collections::HashSet, time::Duration};

use leasehold::{
    Backend, BackendExt as _, Claim, Effect, ErrorKind, ReleaseRequest, Released, Result, Verdict,
};
use leasehold_etcd::Etcd;
use leasehold_testkit::{
    proxy::{Direction, Misdelivery},
    servers::EtcdCluster,
};

use crate::common::{
    LOCK, LONG, claim, eventually, field, granted, kind_and_effect, open, proxied, release, report,
    request_count,
};

const MANY: usize = 16;

/// Claims of this many resources.
fn claims(kind: &str, count: usize) -> Vec<Claim> {
    (0..count).map(|number| claim(&format!("{kind}/{number}").parse().unwrap(), LONG)).collect()
}

fn releases(claims: &[Claim]) -> Vec<ReleaseRequest> {
    claims.iter().map(|claim| ReleaseRequest::new(claim.reference())).collect()
}

fn is_granted(verdict: &Result<Verdict>) -> bool {
    matches!(verdict, Ok(Verdict::Granted(_)))
}

async fn acquire_and_release(etcd: &Etcd, claims: &[Claim]) {
    let verdicts = etcd.acquire(claims).await;
    assert!(verdicts.len() == claims.len() && verdicts.iter().all(is_granted), "{verdicts:?}");
    let released = etcd.release(&releases(claims)).await;
    assert!(released.iter().all(|released| matches!(released, Ok(Released::Now))), "{released:?}");
}

#[tokio::test]
async fn many_claims_are_one_transaction_and_so_are_many_releases() {
    let cluster = EtcdCluster::start(1);
    let etcd = open(&cluster.url()).await;
    acquire_and_release(&etcd, &claims("warm", MANY)).await;
    let before = request_count(&cluster, "Txn");
    acquire_and_release(&etcd, &claims("report", MANY)).await;
    assert_eq!(request_count(&cluster, "Txn") - before, 2);
    assert_eq!(cluster.keys("leasehold/"), Vec::<String>::new(), "nothing is left");
}

#[tokio::test]
async fn two_claims_of_one_resource_in_one_call_have_different_revisions() {
    let cluster = EtcdCluster::start(1);
    let etcd = open(&cluster.url()).await;
    let ours: Vec<Claim> = (0..3).map(|_| claim(&report(), LONG).queued()).collect();
    let verdicts = etcd.acquire(&ours).await;
    assert!(is_granted(&verdicts[0]), "{verdicts:?}");
    let ahead = |verdict: &Result<Verdict>| match verdict {
        Ok(Verdict::Blocked(blocked)) if blocked.queued => blocked.ahead,
        verdict => panic!("expected a place in the queue, got {verdict:?}"),
    };
    assert_eq!(verdicts[1..].iter().map(ahead).collect::<Vec<_>>(), [0, 1]);
    let keys = cluster.keys(&format!("{LOCK}/"));
    let revisions: HashSet<_> = keys.iter().map(|key| field(&cluster, key, "CreateRevision")).collect();
    assert_eq!((keys.len(), revisions.len()), (3, 3), "one contender each, and a revision of its own");
    let released = etcd.release(&releases(&ours)).await;
    assert!(released.iter().all(|released| matches!(released, Ok(Released::Now))), "{released:?}");
    assert_eq!(cluster.keys("leasehold/"), Vec::<String>::new());
}

#[tokio::test]
async fn a_missing_etcd_lease_of_one_claim_does_not_fail_the_others() {
    let cluster = EtcdCluster::start(1);
    let etcd = open(&cluster.url()).await;
    acquire_and_release(&etcd, &claims("warm", MANY)).await;
    // Several of the leases that are ready for the next claims. The heading comes first.
    let listed = cluster.etcdctl(&["lease", "list"]);
    for lease in listed.lines().skip(1).step_by(2) {
        cluster.etcdctl(&["lease", "revoke", lease]);
    }
    acquire_and_release(&etcd, &claims("report", MANY)).await;
}

#[tokio::test]
async fn if_etcd_allows_few_operations_the_claims_are_sent_in_parts_or_alone() {
    for operations in ["6", "12"] {
        let cluster = EtcdCluster::with(1, &["--max-txn-ops", operations]);
        let etcd = open(&cluster.url()).await;
        for round in 0..4 {
            acquire_and_release(&etcd, &claims(&format!("round{round}"), MANY)).await;
        }
        let before = request_count(&cluster, "Txn");
        acquire_and_release(&etcd, &claims("last", MANY)).await;
        let sent = request_count(&cluster, "Txn") - before;
        assert!(sent <= 2 * MANY as u64, "no request is refused any more: {sent} requests");
    }
}

#[tokio::test]
async fn a_claim_that_is_not_free_does_not_fail_the_others() {
    let cluster = EtcdCluster::start(1);
    let (etcd, other) = (open(&cluster.url()).await, open(&cluster.url()).await);
    let ours = claims("report", 4);
    let theirs = claim(&ours[1].resource, LONG);
    granted(&other, &theirs).await;
    cluster.etcdctl(&["put", &format!("leasehold/v1/lock/{}/abc", ours[2].resource), "00000001 {\"v\":9}"]);
    let mut verdicts = etcd.acquire(&ours).await;
    assert!(is_granted(&verdicts[0]) && is_granted(&verdicts[3]), "{verdicts:?}");
    assert!(matches!(&verdicts[1], Ok(Verdict::Blocked(_))), "{verdicts:?}");
    let error = verdicts.remove(2).unwrap_err();
    assert_eq!(kind_and_effect(&error), (ErrorKind::Corrupt, Effect::None), "{error}");
    // A release of a claim that another client has written to since, or that does not exist.
    let released = etcd.release(&releases(&ours)).await;
    let expected = [Released::Now, Released::AlreadyGone, Released::AlreadyGone, Released::Now];
    assert_eq!(released.into_iter().map(Result::unwrap).collect::<Vec<_>>(), expected);
    assert_eq!(release(&other, &theirs).await, Released::Now);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_claim_believes_the_reply_to_another_call() {
    let cluster = EtcdCluster::start(1);
    let (proxy, url) = proxied(&cluster, 41).await;
    let (a, b, direct) = (open(&url).await, open(&url).await, open(&cluster.url()).await);
    let mut swapped = 0;
    for round in 0..8 {
        let warm = [claims(&format!("wa{round}"), 4), claims(&format!("wb{round}"), 4)];
        for (etcd, warm) in [(&a, &warm[0]), (&b, &warm[1])] {
            eventually("the connection works again", || async {
                etcd.acquire(warm).await.iter().all(is_granted)
            })
            .await;
        }
        // A reply to the one call has as many parts as a reply to the other one. In half of the rounds the
        // resources are the same, and B finds them held.
        let ours = claims(&format!("r{round}"), 4);
        let theirs = claims(&format!("{}{round}", if round % 2 == 0 { "r" } else { "s" }), 4);
        proxy.misdeliver(Misdelivery::Swap, 1);
        let before = proxy.misdelivered();
        let (first, second) = tokio::join!(a.acquire(&ours), b.acquire(&theirs));
        swapped += proxy.misdelivered() - before;
        proxy.heal();
        for (claim, verdict) in ours.iter().chain(&theirs).zip(first.iter().chain(&second)) {
            match verdict {
                Ok(Verdict::Granted(grant)) => {
                    // Asking again over a connection without faults gives the same grant.
                    assert_eq!(granted(&direct, claim).await.token, grant.token);
                }
                Ok(Verdict::Blocked(_)) => assert_eq!(round % 2, 0, "nobody else asks for it"),
                Ok(verdict) => panic!("unexpected: {verdict:?}"),
                Err(error) => assert_eq!(error.effect(), Effect::Unknown, "{error:?}"),
            }
        }
    }
    assert!(swapped > 0, "no reply was delivered to the wrong request");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_is_dropped_leaves_nothing_that_a_tombstone_does_not_refuse() {
    let cluster = EtcdCluster::start(1);
    let (proxy, url) = proxied(&cluster, 42).await;
    let (slow, direct) = (open(&url).await, open(&cluster.url()).await);
    // Either the requests are late, or they are executed and their replies are late.
    for (held, expected) in
        [(Direction::Requests, Released::AlreadyGone), (Direction::Replies, Released::Now)]
    {
        let kind = format!("{held:?}").to_lowercase();
        acquire_and_release(&slow, &claims("warm", MANY)).await;
        let ours = claims(&kind, MANY);
        proxy.hold(held);
        let dropped = tokio::time::timeout(Duration::from_millis(400), slow.acquire(&ours)).await;
        assert!(dropped.is_err(), "{kind} are held back: {dropped:?}");
        let tombstones: Vec<_> =
            releases(&ours).into_iter().map(|release| release.with_tombstone(LONG)).collect();
        for released in direct.release(&tombstones).await {
            assert_eq!(released.unwrap(), expected, "{kind}");
        }
        proxy.heal();
        eventually("the claims are refused", || async {
            let verdicts = slow.acquire(&ours).await;
            verdicts.iter().all(|verdict| matches!(verdict, Ok(Verdict::Cancelled)))
        })
        .await;
        assert_eq!(cluster.keys("leasehold/v1/lock/"), Vec::<String>::new(), "{kind}");
        eventually("the connection works again", || async {
            slow.acquire_one(&claim(&"warm/up".parse().unwrap(), LONG)).await.is_ok()
        })
        .await;
        cluster.etcdctl(&["del", "--prefix", "leasehold/v1/lock/"]);
    }
}

#[tokio::test]
async fn the_names_of_contenders_are_used_again() {
    let cluster = EtcdCluster::start(1);
    let etcd = open(&cluster.url()).await;
    let mut names = HashSet::new();
    for _ in 0..100 {
        let ours = claim(&report(), LONG);
        granted(&etcd, &ours).await;
        names.extend(cluster.keys(&format!("{LOCK}/")));
        assert_eq!(etcd.release_one(&ReleaseRequest::new(ours.reference())).await.unwrap(), Released::Now);
    }
    assert!(names.len() <= 64, "{} names for one resource", names.len());
}
