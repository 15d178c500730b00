//! Tokens never go back: whatever is lost, flushed, restarted or failed over.
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]

mod common;

use std::{num::NonZeroU32, time::Duration};

use common::{LONG, claim, eventually, granted, open, report, token_of};
use leasehold::{Backend, Effect, ErrorKind, FencingToken};
use leasehold_testkit::servers::{RedisServer, Replication};

const FENCE: &str = "lock:v1:{report/42}:fence";

#[tokio::test]
async fn after_flushall() {
    let server = RedisServer::start();
    let redis = open(&server.url()).await;
    let before = token_of(&redis, &report()).await;
    server.command(&["FLUSHALL"]);
    assert!(token_of(&redis, &report()).await > before);
}

#[tokio::test]
async fn after_a_restart_without_data() {
    let server = RedisServer::start();
    let redis = open(&server.url()).await;
    let before = granted(&redis, &claim(&report(), LONG)).await.token;
    server.kill();
    server.run_again();
    eventually("a grant after the restart", || async {
        redis.acquire(&claim(&report(), LONG)).await.is_ok()
    })
    .await;
    server.command(&["FLUSHALL"]);
    assert!(token_of(&redis, &report()).await > before);
}

#[tokio::test]
async fn after_a_restart_with_its_data_the_holder_goes_on() {
    let server = RedisServer::with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let redis = open(&server.url()).await;
    let ours = claim(&report(), LONG);
    let before = granted(&redis, &ours).await;
    server.kill();
    server.run_again();
    eventually("an answer", || async { redis.acquire(&ours).await.is_ok() }).await;
    let again = granted(&redis, &ours).await;
    assert_eq!(again.token, before.token, "it is the same grant");
    assert!(again.remaining <= before.remaining);
}

#[tokio::test]
async fn after_failover_to_a_replica_that_has_seen_nothing() {
    let servers = Replication::without_sentinels(1);
    let (primary, replica) = (&servers.servers[0], &servers.servers[1]);
    // A replica that follows no longer, and knows of nothing.
    replica.command(&["REPLICAOF", "NO", "ONE"]);
    replica.command(&["FLUSHALL"]);
    let before = token_of(&open(&primary.url()).await, &report()).await;
    primary.kill();
    assert!(token_of(&open(&replica.url()).await, &report()).await > before);
}

#[tokio::test]
async fn although_the_fence_key_has_a_ttl_and_goes() {
    let server = RedisServer::start();
    let redis = open(&server.url()).await;
    let before = token_of(&redis, &report()).await;
    let left: u64 = server.command(&["PTTL", FENCE]).parse().unwrap();
    assert!(left > 3_600_000, "it stays for hours: {left} ms");
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
    let verdict = redis.acquire(&waiting).await.unwrap();
    let leasehold::Verdict::Blocked(blocked) = verdict else { panic!("{verdict:?}") };
    let mut reader = claim(&"index/main".parse().unwrap(), LONG);
    reader.share = leasehold::Share::READ;
    granted(&redis, &reader).await;
    let request = leasehold::ReleaseRequest::new(claim(&report(), LONG).reference()).with_tombstone(LONG);
    redis.release(&request).await.unwrap();
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

/// The order to resize puts something beside the lease, and the next one is the first to write it down.
#[tokio::test]
async fn what_is_asked_of_a_holder_after_a_resize_has_a_ttl() {
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
async fn a_floor_is_passed_and_an_absurd_one_refused() {
    let server = RedisServer::start();
    let redis = open(&server.url()).await;
    let now = token_of(&redis, &report()).await;
    let floor = FencingToken::new(now.get() + 3_600_000_000).unwrap();
    let ours = claim(&report(), LONG).above(floor);
    assert!(granted(&redis, &ours).await.token > floor);
    common::release(&redis, &ours).await;
    assert!(token_of(&redis, &report()).await > floor, "and the next one is above it too");
    let left: u64 = server.command(&["PTTL", FENCE]).parse().unwrap();
    assert!(left > 2 * 3_600_000, "it stays longer than the clock needs to get there: {left} ms");
    let absurd = FencingToken::new((1 << 53) - 2).unwrap();
    let error = redis.acquire(&claim(&"report/43".parse().unwrap(), LONG).above(absurd)).await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Invalid, Effect::None));
    assert_eq!(server.command(&["KEYS", "*43*"]), "");
}

/// The clock of the server was set back by years: what its clients have seen is no reason to refuse them.
#[tokio::test]
async fn a_floor_that_the_server_gave_out_itself_is_not_refused() {
    let server = RedisServer::start();
    let redis = open(&server.url()).await;
    let now = token_of(&redis, &report()).await;
    let ahead = FencingToken::new(now.get() + 2 * FencingToken::FLOOR_LEAD_MAX).unwrap();
    server.command(&["SET", FENCE, &ahead.to_string(), "PX", "600000"]);
    let ours = claim(&report(), LONG).above(ahead);
    assert!(granted(&redis, &ours).await.token > ahead);
    common::release(&redis, &ours).await;
    let beyond = FencingToken::new(ahead.get() + 10).unwrap();
    let error = redis.acquire(&claim(&report(), LONG).above(beyond)).await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Invalid, Effect::None));
    assert!(error.to_string().contains(&beyond.to_string()), "{error}");
}

#[tokio::test]
async fn a_key_that_would_never_end_is_found_ours_and_others() {
    let server = RedisServer::start();
    let redis = open(&server.url()).await;
    granted(&redis, &claim(&report(), LONG)).await;
    let leaks = async |query| match redis.inspect(&query).await.unwrap() {
        leasehold::Page::Leaks { found, next: None } => found,
        other => panic!("{other:?}"),
    };
    let ours = || leasehold::Query::Leaks(leasehold::Listing::default());
    let theirs =
        || leasehold::Query::Foreign { pattern: "lock:*".to_owned(), listing: leasehold::Listing::default() };
    assert!(leaks(ours()).await.is_empty() && leaks(theirs()).await.is_empty());
    server.command(&["PERSIST", "lock:v1:{report/42}:owner"]);
    server.command(&["SET", "lock:order:1001", "uuid"]);
    server.command(&["SET", "lock:order:1002", "uuid", "PX", "60000"]);
    let found = leaks(ours()).await;
    assert_eq!((found.len(), found[0].key.as_str()), (1, "lock:v1:{report/42}:owner"));
    let found = leaks(theirs()).await;
    assert_eq!(
        (found.len(), found[0].key.as_str(), found[0].form.as_str()),
        (1, "lock:order:1001", "string")
    );
}
