//! Several claims or releases in one call: each is a step of its own, with its own result. ADR 0038.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests on real servers run in real time")]

#[path = "common/acl.rs"]
mod acl;
mod common;

use std::sync::Arc;

use common::{LONG, claim, granted, in_time, is_blocked, kind_and_effect, open};
use leasehold::{Backend, Blocked, Claim, Effect, ErrorKind, ReleaseRequest, Released, Resource, Verdict};
use leasehold_testkit::{
    proxy::{Misdelivery, Proxy},
    servers::RedisServer,
};

fn resource(number: usize) -> Resource {
    format!("report/{number}").parse().unwrap()
}

fn key(number: usize, part: &str) -> String {
    format!("lock:v1:{{report/{number}}}:{part}")
}

fn claims(count: usize) -> Vec<Claim> {
    (0..count).map(|number| claim(&resource(number), LONG)).collect()
}

fn releases(claims: &[Claim]) -> Vec<ReleaseRequest> {
    claims.iter().map(|claim| ReleaseRequest::new(claim.reference())).collect()
}

fn script_calls(server: &RedisServer) -> u64 {
    let stats = server.command(&["INFO", "commandstats"]);
    let calls = |name: &str| {
        let line = stats.lines().find(|line| line.starts_with(&format!("cmdstat_{name}:")))?;
        line.split("calls=").nth(1)?.split(',').next()?.parse::<u64>().ok()
    };
    calls("evalsha").unwrap_or(0) + calls("eval").unwrap_or(0)
}

/// The grant of this claim is the one that the server has stored.
fn check_grant(server: &RedisServer, claim: &Claim, outcome: &leasehold::Result<Verdict>) {
    let Ok(Verdict::Granted(grant)) = outcome else { panic!("{}: {outcome:?}", claim.resource) };
    assert_eq!(grant.remaining, LONG);
    let stored = server.command(&["GET", &format!("lock:v1:{{{}}}:owner", claim.resource.key())]);
    assert!(stored.starts_with(&format!("{}|{}|", claim.owner.reveal(), grant.token)), "{stored}");
}

fn blocked(outcome: leasehold::Result<Verdict>) -> Blocked {
    match outcome {
        Ok(Verdict::Blocked(blocked)) => blocked,
        other => panic!("expected Blocked, got {other:?}"),
    }
}

#[tokio::test]
async fn sixteen_claims_and_releases_take_one_script_each() {
    let server = RedisServer::start();
    let redis = open(&server.url()).await;
    assert_eq!(redis.info().limits.gather, 16);
    let claims = claims(16);
    let before = script_calls(&server);
    let outcomes = redis.acquire(&claims).await;
    assert_eq!(outcomes.len(), 16);
    for (claim, outcome) in claims.iter().zip(&outcomes) {
        check_grant(&server, claim, outcome);
    }
    let released = redis.release(&releases(&claims)).await;
    assert!(released.iter().all(|released| *released.as_ref().unwrap() == Released::Now), "{released:?}");
    // Both scripts were unknown to the server at first, and each was sent a second time with its source.
    assert_eq!(script_calls(&server) - before, 4);
    redis.acquire(&claims).await;
    redis.release(&releases(&claims)).await;
    assert_eq!(script_calls(&server) - before, 6);
    assert_eq!(server.command(&["EXISTS", &key(3, "owner")]), "0");
}

#[tokio::test]
async fn a_claim_that_fails_does_not_fail_the_others() {
    let server = RedisServer::start();
    let redis = open(&server.url()).await;
    // Another library's lock, a fence that is no number, a fence of another type, and a state that is no state.
    server.command(&["HSET", &key(3, "owner"), "uuid:7", "1"]);
    server.command(&["SET", &key(5, "fence"), "no number"]);
    server.command(&["HSET", &key(7, "fence"), "a", "b"]);
    server.command(&["SET", &key(9, "state"), "x"]);
    let claims = claims(16);
    let outcomes = redis.acquire(&claims).await;
    for (number, (claim, outcome)) in claims.iter().zip(outcomes).enumerate() {
        match number {
            3 => assert_eq!(blocked(outcome).foreign.unwrap().form, "hash"),
            5 | 7 | 9 => {
                let part = if number == 9 { "state" } else { "fence" };
                let error = outcome.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
                assert!(error.to_string().contains(&key(number, part)), "{error}");
            }
            _ => check_grant(&server, claim, &outcome),
        }
    }
    assert_eq!(server.command(&["HGET", &key(3, "owner"), "uuid:7"]), "1", "the foreign lock is unchanged");
    assert_eq!(server.command(&["HGET", &key(7, "fence"), "a"]), "b");
    for number in [5, 7, 9] {
        assert_eq!(server.command(&["EXISTS", &key(number, "owner")]), "0", "{number} was not granted");
    }
}

/// The server refuses a script as a whole if the user may not touch one of its keys.
#[tokio::test]
async fn a_resource_that_the_user_may_not_use_does_not_fail_the_others() {
    let (server, url) = acl::start();
    let redis = open(&url).await;
    let app = |permission: &str| assert_eq!(server.command(&["ACL", "SETUSER", "app", permission]), "OK");
    app("resetkeys");
    app("~lock:v1:{report/?}:*");
    let mut claims = claims(4);
    claims[2] = claim(&resource(77), LONG);
    for (number, (claim, outcome)) in claims.iter().zip(redis.acquire(&claims).await).enumerate() {
        match number {
            2 => assert_eq!(kind_and_effect(&outcome.unwrap_err()), (ErrorKind::Denied, Effect::None)),
            _ => check_grant(&server, claim, &outcome),
        }
    }
    for (number, outcome) in redis.release(&releases(&claims)).await.into_iter().enumerate() {
        match number {
            2 => assert_eq!(kind_and_effect(&outcome.unwrap_err()), (ErrorKind::Denied, Effect::None)),
            _ => assert_eq!(outcome.unwrap(), Released::Now),
        }
    }
}

#[tokio::test]
async fn claims_on_one_resource_are_executed_in_order() {
    let server = RedisServer::start();
    let redis = open(&server.url()).await;
    // Free: the first one is granted, and the second one sees it.
    let (first, second) = (claim(&resource(1), LONG), claim(&resource(1), LONG));
    let mut outcomes = redis.acquire(&[first.clone(), second.clone(), first.clone()]).await;
    check_grant(&server, &first, &outcomes[0]);
    let token = |outcome: &leasehold::Result<Verdict>| match outcome {
        Ok(Verdict::Granted(grant)) => grant.token,
        other => panic!("{other:?}"),
    };
    assert_eq!(token(&outcomes[2]), token(&outcomes[0]), "the same claim again: the same grant");
    let seen = blocked(outcomes.remove(1));
    assert_eq!(seen.holders[0].token, token(&outcomes[0]));
    assert_eq!(seen.ahead, 0);

    // Held: those that queue get their places in order, and one that leaves does not overtake them.
    let (one, two) = (claim(&resource(1), LONG).queued(), claim(&resource(1), LONG).queued());
    let other = claim(&resource(2), LONG);
    let batch = [one.clone(), other.clone(), second.clone(), two.clone(), second];
    let outcomes: Vec<_> = redis.acquire(&batch).await;
    check_grant(&server, &other, &outcomes[1]);
    let ahead: Vec<u32> =
        outcomes.into_iter().enumerate().filter(|(n, _)| *n != 1).map(|(_, o)| blocked(o).ahead).collect();
    assert_eq!(ahead, [0, 1, 1, 2]);

    // The releases are in order, too: the holder leaves, and the first in the queue comes next.
    let requests = [&first, &first, &two].map(|claim| ReleaseRequest::new(claim.reference()));
    let released: Vec<_> = redis.release(&requests).await.into_iter().map(Result::unwrap).collect();
    assert_eq!(released, [Released::Now, Released::AlreadyGone, Released::Now]);
    granted(&redis, &one).await;
}

#[tokio::test]
async fn a_batch_of_releases_frees_what_is_held_and_nothing_else() {
    let server = RedisServer::start();
    let (redis, other) = (open(&server.url()).await, open(&server.url()).await);
    let claims = claims(6);
    redis.acquire(&claims[..5]).await;
    let theirs = claim(&resource(5), LONG);
    granted(&other, &theirs).await;
    // Someone waits for 2, and 3 gets a tombstone.
    let waiting = claim(&resource(2), LONG).queued();
    assert!(is_blocked(&other, &waiting).await);
    let mut requests = releases(&claims);
    requests[3] = requests[3].clone().with_tombstone(LONG);
    requests.push(ReleaseRequest::new(claims[0].reference()));
    let released: Vec<_> = redis.release(&requests).await.into_iter().map(Result::unwrap).collect();
    let (now, gone) = (Released::Now, Released::AlreadyGone);
    assert_eq!(released, [now, now, now, now, now, gone, gone]);
    granted(&other, &waiting).await;
    let verdict = leasehold::BackendExt::acquire_one(&redis, &claims[3]).await;
    assert!(matches!(verdict, Ok(Verdict::Cancelled)), "{verdict:?}");
    assert!(is_blocked(&redis, &claims[5]).await, "the lease of another owner stays");
}

#[tokio::test]
async fn flushed_scripts_are_loaded_again_for_a_batch() {
    let server = RedisServer::start();
    let redis = open(&server.url()).await;
    let claims = claims(16);
    for _ in 0..2 {
        server.command(&["SCRIPT", "FLUSH"]);
        for (claim, outcome) in claims.iter().zip(redis.acquire(&claims).await) {
            check_grant(&server, claim, &outcome);
        }
        server.command(&["SCRIPT", "FLUSH"]);
        let released = redis.release(&releases(&claims)).await;
        assert!(released.iter().all(|released| *released.as_ref().unwrap() == Released::Now));
    }
}

/// No result of a batch is believed if its reply belongs to another request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_misdelivered_reply_makes_every_result_of_a_batch_unknown() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port(), 7).await;
    let redis = Arc::new(open(&format!("redis://127.0.0.1:{}/?timeout=500ms", proxy.port())).await);
    for how in [Misdelivery::Stale, Misdelivery::Repeat] {
        // An earlier batch of the same size was granted: its reply has the right form.
        let earlier = claims(8);
        let outcomes = redis.acquire(&earlier).await;
        assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
        redis.release(&releases(&earlier)).await;
        let again = redis.acquire(&claims(8)).await;
        assert!(again.iter().all(|outcome| matches!(outcome, Ok(Verdict::Granted(_)))), "{again:?}");

        let connections = proxy.connections();
        proxy.misdeliver(how, 1);
        let mut unknown = 0;
        // The first call may be the one whose reply is kept for the next.
        for _ in 0..2 {
            for outcome in in_time("a batch", redis.acquire(&claims(8))).await {
                match outcome {
                    Ok(Verdict::Blocked(_)) => {}
                    Ok(verdict) => panic!("{how:?}: {verdict:?}, but all are held"),
                    Err(error) => {
                        assert_eq!(kind_and_effect(&error), (ErrorKind::Unavailable, Effect::Unknown));
                        unknown += 1;
                    }
                }
            }
        }
        assert!(unknown > 0 && unknown % 8 == 0, "{how:?}: {unknown} of 16 are unknown");
        proxy.heal();
        common::eventually("it works again", || async {
            redis.acquire(&claims(2)).await.iter().all(Result::is_ok)
        })
        .await;
        assert!(proxy.connections() > connections, "over a new connection");
        server.command(&["FLUSHDB"]);
    }
}
