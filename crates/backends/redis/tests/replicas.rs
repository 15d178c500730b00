//! Grants and renewals that replicas acknowledge (`replicas=`).
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]

mod common;

use common::{LONG, claim, granted, open, report};
use leasehold::{Backend, BackendExt as _, Effect, ErrorKind, RenewRequest, Renewal};
use leasehold_testkit::servers::Replication;

const OWNER: &str = "lock:v1:{report/42}:owner";

#[tokio::test]
async fn a_grant_says_how_many_replicas_have_it() {
    let servers = Replication::without_sentinels(2);
    let redis = open(&format!("{}?replicas=2", servers.servers[0].url())).await;
    let ours = claim(&report(), LONG);
    assert_eq!(granted(&redis, &ours).await.acks, Some(2));
    for replica in &servers.servers[1..] {
        assert_eq!(replica.command(&["EXISTS", OWNER]), "1");
    }
    let answer = common::renew(&redis, ours.reference(), LONG).await;
    assert!(matches!(answer, Renewal::Renewed(_)), "{answer:?}");
    assert_eq!(common::release(&redis, &ours).await, leasehold::Released::Now);
}

#[tokio::test]
async fn a_grant_with_too_few_acknowledgements_is_released_and_the_error_says_so() {
    let servers = Replication::without_sentinels(2);
    let url = |policy: &str| format!("{}?replica_timeout=1s&replicas={policy}", servers.servers[0].url());
    let (both, most) = (open(&url("2")).await, open(&url("majority")).await);
    servers.servers[1].freeze();
    let ours = claim(&report(), LONG);
    let error = both.acquire_one(&ours).await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::None));
    assert!(error.to_string().contains("1 replicas acknowledged in time, 2 were asked for"), "{error}");
    assert_eq!(servers.servers[0].command(&["EXISTS", OWNER]), "0");
    // The primary and one of two replicas are a majority.
    let theirs = claim(&report(), LONG);
    assert!(granted(&most, &theirs).await.acks >= Some(1));

    servers.servers[2].freeze();
    let answer = most.renew(&[RenewRequest::new(theirs.reference(), LONG)]).await.remove(0);
    let error = answer.unwrap_err();
    assert_eq!(
        (error.kind(), error.effect()),
        (ErrorKind::Unavailable, Effect::Unknown),
        "the renewal does not count"
    );
    // Asking again on a new connection, where the script writes nothing, does not count either.
    let again = open(&url("majority")).await;
    let error = again.acquire_one(&theirs).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
}
