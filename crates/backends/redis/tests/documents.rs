//! The tests that every description of a Redis lock lists, on a real server.
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]

mod common;

use std::{collections::HashSet, sync::Arc, time::Duration};

use common::{
    LONG, SHORT, TIMEOUT, claim, client, granted, in_time, is_blocked, open, owner, release, renew, report,
};
use leasehold::{EndReason, ErrorKind, FencingToken, GoneReason, Released, Renewal, Resource};
use leasehold_testkit::{Proxy, servers::RedisServer};

const OWNER: &str = "lock:v1:{report/42}:owner";
const FENCE: &str = "lock:v1:{report/42}:fence";

#[tokio::test]
async fn acquire_succeeds_when_the_key_is_absent() {
    let server = RedisServer::start();
    let redis = open(&server.url()).await;
    let claim = claim(&report(), LONG);
    let grant = granted(&redis, &claim).await;
    let value = server.command(&["GET", OWNER]);
    assert!(value.starts_with(&format!("{}|{}|", claim.owner.reveal(), grant.token)), "{value}");
    let left: u64 = server.command(&["PTTL", OWNER]).parse().unwrap();
    assert!(left > 50_000 && left <= 60_000, "set with PX: {left} ms are left");
}

#[tokio::test]
async fn a_second_acquire_fails_while_the_key_exists() {
    let server = RedisServer::start();
    let redis = open(&server.url()).await;
    granted(&redis, &claim(&report(), LONG)).await;
    assert!(is_blocked(&redis, &claim(&report(), LONG)).await);
}

#[tokio::test]
async fn release_succeeds_for_the_owner_and_not_for_others() {
    let server = RedisServer::start();
    let redis = open(&server.url()).await;
    let (ours, theirs) = (claim(&report(), LONG), claim(&report(), LONG));
    granted(&redis, &ours).await;
    assert_eq!(release(&redis, &theirs).await, Released::AlreadyGone);
    assert_eq!(server.command(&["EXISTS", OWNER]), "1", "it is still held");
    assert_eq!(release(&redis, &ours).await, Released::Now);
    assert_eq!(server.command(&["EXISTS", OWNER]), "0");
}

#[tokio::test]
async fn extend_succeeds_for_the_owner_and_not_for_others() {
    let server = RedisServer::start();
    let redis = open(&server.url()).await;
    let (ours, theirs) = (claim(&report(), SHORT), claim(&report(), LONG));
    granted(&redis, &ours).await;
    let answer = renew(&redis, theirs.reference(), LONG).await;
    assert!(matches!(answer, Renewal::Gone { why: GoneReason::NotThere }), "{answer:?}");
    let answer = renew(&redis, ours.reference(), LONG).await;
    assert!(matches!(&answer, Renewal::Renewed(kept) if kept.remaining == LONG), "{answer:?}");
    assert!(server.command(&["PTTL", OWNER]).parse::<u64>().unwrap() > 50_000);
}

#[tokio::test]
async fn a_lease_expires_after_its_ttl() {
    let server = RedisServer::start();
    let redis = open(&server.url()).await;
    let first = claim(&report(), SHORT);
    granted(&redis, &first).await;
    assert!(is_blocked(&redis, &claim(&report(), LONG)).await);
    tokio::time::sleep(SHORT + Duration::from_millis(200)).await;
    granted(&redis, &claim(&report(), LONG)).await;
}

#[tokio::test]
async fn the_token_grows_on_each_grant_and_not_on_a_failed_one() {
    let server = RedisServer::start();
    let redis = open(&server.url()).await;
    let mut last: Option<FencingToken> = None;
    for _ in 0..5 {
        let ours = claim(&report(), LONG);
        let token = granted(&redis, &ours).await.token;
        assert!(last.is_none_or(|last| token > last));
        assert!(is_blocked(&redis, &claim(&report(), LONG)).await);
        assert_eq!(
            server.command(&["GET", FENCE]),
            token.to_string(),
            "a failed claim does not raise the fence"
        );
        release(&redis, &ours).await;
        last = Some(token);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_hundred_concurrent_claims_one_is_granted() {
    let server = RedisServer::start();
    let redis = Arc::new(open(&server.url()).await);
    let claims: Vec<_> = (0..100)
        .map(|_| {
            let redis = Arc::clone(&redis);
            tokio::spawn(async move { !is_blocked(&*redis, &claim(&report(), LONG)).await })
        })
        .collect();
    let mut winners = 0;
    for claim in claims {
        winners += u32::from(claim.await.unwrap());
    }
    assert_eq!(winners, 1);
}

#[tokio::test]
async fn release_after_expiry_says_so_and_does_not_delete_the_next_holders() {
    let server = RedisServer::start();
    let redis = open(&server.url()).await;
    let (first, second) = (claim(&report(), SHORT), claim(&report(), LONG));
    granted(&redis, &first).await;
    tokio::time::sleep(SHORT + Duration::from_millis(200)).await;
    granted(&redis, &second).await;
    assert_eq!(release(&redis, &first).await, Released::AlreadyGone);
    assert!(server.command(&["GET", OWNER]).starts_with(&second.owner.reveal()));
}

/// A table whose writes carry a fencing token, as in a database.
#[derive(Default)]
struct ReportJobState {
    status: String,
    last_fencing_token: u64,
}

impl ReportJobState {
    /// `UPDATE … SET status = ?, last_fencing_token = ? WHERE … AND ? > last_fencing_token`: returns the
    /// number of rows.
    fn update(&mut self, status: &str, token: FencingToken) -> u32 {
        if token.get() <= self.last_fencing_token {
            return 0;
        }
        (self.status, self.last_fencing_token) = (status.to_owned(), token.get());
        1
    }
}

#[tokio::test]
async fn a_stale_owner_is_refused_by_the_table_while_the_new_owners_write_stands() {
    let server = RedisServer::start();
    let redis = open(&server.url()).await;
    let mut table = ReportJobState::default();
    let stale = granted(&redis, &claim(&report(), SHORT)).await.token;
    tokio::time::sleep(SHORT + Duration::from_millis(200)).await;
    let fresh = granted(&redis, &claim(&report(), LONG)).await.token;
    assert_eq!(table.update("B update", fresh), 1);
    assert_eq!(table.update("A stale update", stale), 0, "no row is updated");
    assert_eq!(table.status, "B update");
}

#[tokio::test]
async fn a_renewal_that_fails_stops_the_work() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let lease = client.lease("report", "42").ttl(Duration::from_secs(3)).acquire().await.unwrap();
    // The key is deleted by hand; the next renewal notices it.
    server.command(&["DEL", OWNER]);
    let ended = in_time("the loss", lease.hold(std::future::pending::<()>())).await;
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(lease.ended().await, EndReason::NotOurs);
}

#[tokio::test]
async fn a_release_that_timed_out_can_be_repeated() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port(), 1).await;
    let redis = open(&format!("redis://127.0.0.1:{}/?timeout=300ms", proxy.port())).await;
    let ours = claim(&report(), Duration::from_secs(3));
    granted(&redis, &ours).await;
    proxy.black_hole();
    let request = leasehold::ReleaseRequest::new(ours.reference());
    let error =
        in_time("the timeout", leasehold::BackendExt::release_one(&redis, &request)).await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, leasehold::Effect::Unknown));
    proxy.heal();
    proxy.reset();
    // The repetition succeeds, whether the first release was executed or not, and the next claim is granted.
    common::eventually("a release that is answered", || async {
        leasehold::BackendExt::release_one(&redis, &request).await.is_ok()
    })
    .await;
    granted(&redis, &claim(&report(), LONG)).await;
}

#[tokio::test]
async fn a_ttl_of_zero_is_refused() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    // There is no negative `Duration`.
    let error = client.lease("report", "42").ttl(Duration::ZERO).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert_eq!(server.command(&["DBSIZE"]), "0");
}

#[tokio::test]
async fn owner_tokens_are_unique() {
    let tokens: HashSet<_> = (0..10_000).map(|_| owner()).collect();
    assert_eq!(tokens.len(), 10_000);
}

#[test]
fn the_normal_form_of_names_does_not_change() {
    for (name, key) in [
        ("report/42", "report/42"),
        ("acme:report/a b", "acme:report/a%20b"),
        ("report/{x}|y", "report/%7Bx%7D%7Cy"),
        ("report/É", "report/%C3%89"),
    ] {
        assert_eq!(name.parse::<Resource>().unwrap().key(), key);
    }
}

#[tokio::test]
async fn a_foreign_set_nx_blocks_and_is_not_changed() {
    let server = RedisServer::start();
    let redis = open(&server.url()).await;
    assert_eq!(server.command(&["SET", OWNER, "worker-4:0b5c", "NX", "PX", "60000"]), "OK");
    let ours = claim(&report(), LONG);
    let verdict = leasehold::BackendExt::acquire_one(&redis, &ours).await.unwrap();
    let leasehold::Verdict::Blocked(blocked) = verdict else { panic!("{verdict:?}") };
    assert!(blocked.holders.is_empty() && blocked.foreign.is_some());
    assert!(blocked.changes_in.unwrap() > TIMEOUT);
    assert_eq!(release(&redis, &ours).await, Released::AlreadyGone);
    assert_eq!(server.command(&["GET", OWNER]), "worker-4:0b5c", "the foreign key is unchanged");
    server.command(&["DEL", OWNER]);
    granted(&redis, &ours).await;
    // The other way round: a foreign SET NX fails while leasehold holds the resource.
    assert_eq!(server.command(&["SET", OWNER, "worker-5", "NX", "PX", "1000"]), "");
}
