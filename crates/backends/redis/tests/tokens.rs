//! Tokens never go back after a flush, a restart, a failover or lost keys; and every key has an expiry.
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]

mod common;

use std::{num::NonZeroU32, time::Duration};

use common::{LONG, claim, eventually, granted, open, report, token_of};
use leasehold::{Backend, BackendExt as _, Effect, ErrorKind, FencingToken};
use leasehold_testkit::servers::{RedisServer, Replication};

const FENCE: &str = "lock:v1:{report/42}:fence";

#[tokio::test]
async fn tokens_grow_after_flushall() {
    let server = RedisServer::start();
    let redis = open(&server.url()).await;
    let before = token_of(&redis, &report()).await;
    server.command(&["FLUSHALL"]);
    assert!(token_of(&redis, &report()).await > before);
}

#[tokio::test]
async fn tokens_grow_after_a_restart_without_data() {
    let server = RedisServer::start();
    let redis = open(&server.url()).await;
    let before = granted(&redis, &claim(&report(), LONG)).await.token;
    server.kill();
    server.run_again();
    eventually("a grant after the restart", || async {
        redis.acquire_one(&claim(&report(), LONG)).await.is_ok()
    })
    .await;
    server.command(&["FLUSHALL"]);
    assert!(token_of(&redis, &report()).await > before);
}

#[tokio::test]
async fn after_a_restart_with_its_data_the_holder_keeps_its_grant() {
    let server = RedisServer::with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let redis = open(&server.url()).await;
    let ours = claim(&report(), LONG);
    let before = granted(&redis, &ours).await;
    server.kill();
    server.run_again();
    eventually("an answer", || async { redis.acquire_one(&ours).await.is_ok() }).await;
    let again = granted(&redis, &ours).await;
    assert_eq!(again.token, before.token, "the same grant");
    assert!(again.remaining <= before.remaining);
}

#[tokio::test]
async fn tokens_grow_after_a_failover_to_a_replica_without_data() {
    let servers = Replication::without_sentinels(1);
    let (primary, replica) = (&servers.servers[0], &servers.servers[1]);
    // A replica that no longer follows the primary, and has no data.
    replica.command(&["REPLICAOF", "NO", "ONE"]);
    replica.command(&["FLUSHALL"]);
    let before = token_of(&open(&primary.url()).await, &report()).await;
    primary.kill();
    assert!(token_of(&open(&replica.url()).await, &report()).await > before);
}

#[tokio::test]
async fn tokens_grow_although_the_fence_key_is_gone() {
    let server = RedisServer::start();
    let redis = open(&server.url()).await;
    let before = token_of(&redis, &report()).await;
    let left: u64 = server.command(&["PTTL", FENCE]).parse().unwrap();
    assert!(left > 3_600_000, "the fence is kept for hours: {left} ms");
    server.command(&["DEL", FENCE]);
    assert!(token_of(&redis, &report()).await > before);
}

#[tokio::test]
async fn and_every_key_has_a_ttl() {
    let server = RedisServer::start();
    let redis = open(&server.url()).await;
    let holder = claim(&report(), LONG).with_note(*b"note");
    granted(&redis, &holder).await;
    let waiting = claim(&report(), LONG).queued();
    let verdict = redis.acquire_one(&waiting).await.unwrap();
    let leasehold::Verdict::Blocked(blocked) = verdict else { panic!("{verdict:?}") };
    let mut reader = claim(&"index/main".parse().unwrap(), LONG);
    reader.share = leasehold::Share::READ;
    granted(&redis, &reader).await;
    let request = leasehold::ReleaseRequest::new(claim(&report(), LONG).reference()).with_tombstone(LONG);
    redis.release_one(&request).await.unwrap();
    let command = leasehold::OperatorAction::Pause { lasting: LONG };
    redis.order(&leasehold::OperatorCommand::new(report(), command, "ops", "test")).await.unwrap();
    let watching = claim(&report(), LONG).reference();
    redis.wait(&watching, &blocked.cursor, Duration::from_millis(50)).await.unwrap();
    let keys = server.command(&["KEYS", "*"]);
    assert!(keys.split(' ').count() >= 9, "{keys}");
    for key in keys.split(' ') {
        let left: i64 = server.command(&["PTTL", key]).parse().unwrap();
        assert!(left > 0, "{key} has no ttl");
    }
}

/// A resize marks the holder as having extras; the request to finish is the first extra that is written.
#[tokio::test]
async fn a_request_to_finish_after_a_resize_has_an_expiry() {
    let server = RedisServer::start();
    let redis = open(&server.url()).await;
    granted(&redis, &claim(&report(), LONG)).await;
    for command in [
        leasehold::OperatorAction::Resize { capacity: NonZeroU32::new(2).unwrap() },
        leasehold::OperatorAction::Ask { within: LONG },
    ] {
        redis.order(&leasehold::OperatorCommand::new(report(), command, "ops", "test")).await.unwrap();
    }
    let left: i64 = server.command(&["PTTL", "lock:v1:{report/42}:claims"]).parse().unwrap();
    assert!(left > 0, "{left}");
}

#[tokio::test]
async fn a_token_is_above_the_floor_and_a_floor_far_in_the_future_is_refused() {
    let server = RedisServer::start();
    let redis = open(&server.url()).await;
    let now = token_of(&redis, &report()).await;
    let floor = FencingToken::new(now.get() + 3_600_000_000).unwrap();
    let ours = claim(&report(), LONG).above(floor);
    assert!(granted(&redis, &ours).await.token > floor);
    common::release(&redis, &ours).await;
    assert!(token_of(&redis, &report()).await > floor, "the next token is above the floor too");
    let left: u64 = server.command(&["PTTL", FENCE]).parse().unwrap();
    assert!(left > 2 * 3_600_000, "the fence is kept until the clock has reached it: {left} ms");
    let far_ahead = FencingToken::new((1 << 53) - 2).unwrap();
    let error =
        redis.acquire_one(&claim(&"report/43".parse().unwrap(), LONG).above(far_ahead)).await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Invalid, Effect::None));
    assert_eq!(server.command(&["KEYS", "*43*"]), "");
}

/// The clock of the server was set back by years: clients that have seen its tokens are not refused.
#[tokio::test]
async fn a_floor_that_the_server_itself_granted_is_not_refused() {
    let server = RedisServer::start();
    let redis = open(&server.url()).await;
    let now = token_of(&redis, &report()).await;
    let ahead = FencingToken::new(now.get() + 2 * FencingToken::FLOOR_LEAD_MAX).unwrap();
    server.command(&["SET", FENCE, &ahead.to_string(), "PX", "600000"]);
    let ours = claim(&report(), LONG).above(ahead);
    assert!(granted(&redis, &ours).await.token > ahead);
    common::release(&redis, &ours).await;
    let beyond = FencingToken::new(ahead.get() + 10).unwrap();
    let error = redis.acquire_one(&claim(&report(), LONG).above(beyond)).await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Invalid, Effect::None));
    assert!(error.to_string().contains(&beyond.to_string()), "{error}");
}

#[tokio::test]
async fn keys_without_expiry_are_found_those_of_leasehold_and_foreign_ones() {
    let server = RedisServer::start();
    let redis = open(&server.url()).await;
    granted(&redis, &claim(&report(), LONG)).await;
    let leaks = async |query| match redis.inspect(&query).await.unwrap() {
        leasehold::Page::Leaks { found, next: None } => found,
        other => panic!("{other:?}"),
    };
    let ours = || leasehold::Query::Leaks(leasehold::Listing::default());
    let foreign =
        || leasehold::Query::Foreign { pattern: "lock:*".to_owned(), listing: leasehold::Listing::default() };
    assert!(leaks(ours()).await.is_empty() && leaks(foreign()).await.is_empty());
    server.command(&["PERSIST", "lock:v1:{report/42}:owner"]);
    server.command(&["SET", "lock:order:1001", "uuid"]);
    server.command(&["SET", "lock:order:1002", "uuid", "PX", "60000"]);
    let found = leaks(ours()).await;
    assert_eq!((found.len(), found[0].key.as_str()), (1, "lock:v1:{report/42}:owner"));
    let found = leaks(foreign()).await;
    assert_eq!(
        (found.len(), found[0].key.as_str(), found[0].form.as_str()),
        (1, "lock:order:1001", "string")
    );
}
