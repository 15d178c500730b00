//! Locks of other programs in the owner key: shown without their value, and removed only by an operator.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests on real servers run in real time")]

mod common;

use std::time::Duration;

use common::{LONG, claim, client, granted, in_time, is_blocked, open, report};
use leasehold::{
    Backend, BackendExt as _, Blocked, Claim, CommandOutcome, Eviction, ForeignLock, Listing, OperatorAction,
    OperatorCommand, Page, Query, Share, Snapshot, ValueHash, Verdict,
};
use leasehold_redis::Redis;
use leasehold_testkit::servers::RedisServer;

const OWNER: &str = "lock:v1:{report/42}:owner";
const SECRET: &str = "3f1c-the-release-secret";

fn put_string(server: &RedisServer) {
    assert_eq!(server.command(&["SET", OWNER, SECRET, "NX"]), "OK");
}

fn put_redisson_hash(server: &RedisServer) {
    server.command(&["HSET", OWNER, SECRET, "1"]);
}

async fn blocked(redis: &Redis, claim: &Claim) -> Blocked {
    match redis.acquire_one(claim).await {
        Ok(Verdict::Blocked(blocked)) => blocked,
        other => panic!("expected Blocked, got {other:?}"),
    }
}

async fn snapshot(redis: &Redis) -> Snapshot {
    let page = redis.inspect(&Query::One(report())).await.unwrap();
    let Page::Resources { mut snapshots, .. } = page else { panic!("{page:?}") };
    snapshots.remove(0)
}

async fn foreign(redis: &Redis) -> ForeignLock {
    snapshot(redis).await.foreign.pop().expect("another program holds it")
}

async fn order(redis: &Redis, action: OperatorAction) -> CommandOutcome {
    redis.order(&OperatorCommand::new(report(), action, "ops", "its program is gone")).await.unwrap()
}

async fn evict_foreign(redis: &Redis, value: ValueHash) -> CommandOutcome {
    order(redis, OperatorAction::EvictForeign { value }).await
}

#[tokio::test]
async fn a_foreign_lock_is_shown_by_its_key_and_hash_and_never_by_its_value() {
    for (put, form) in [(put_string as fn(&RedisServer), "string"), (put_redisson_hash, "hash")] {
        let server = RedisServer::start();
        let redis = open(&server.url()).await;
        put(&server);
        let verdict = blocked(&redis, &claim(&report(), LONG)).await;
        let (lock, shown) = (verdict.foreign.clone().unwrap(), snapshot(&redis).await);
        assert_eq!((lock.key.as_str(), lock.form.as_str(), lock.remaining), (OWNER, form, None));
        assert_eq!(shown.foreign, std::slice::from_ref(&lock));
        assert!(verdict.holders.is_empty() && shown.holders.is_empty() && shown.holder_count == 0);
        assert_eq!((verdict.changes_in, shown.is_in_use()), (None, true));
        let error = client(&server.url()).await.lease("report", "42").try_acquire().await;
        let list = redis.inspect(&Query::Resources(Listing::default())).await.unwrap();
        for text in [format!("{verdict:?}"), format!("{shown:?}"), format!("{error:?}"), format!("{list:?}")]
        {
            assert!(!text.contains("3f1c"), "{text}");
        }
        assert!(format!("{list:?}").contains(OWNER), "{list:?}");
        server.command(&["PEXPIRE", OWNER, "50000"]);
        let verdict = blocked(&redis, &claim(&report(), LONG)).await;
        let left = verdict.foreign.unwrap().remaining.unwrap();
        assert!(left > Duration::from_secs(20) && verdict.changes_in.unwrap() <= left, "{left:?}");
    }
}

#[tokio::test]
async fn the_cursor_and_the_hash_change_with_the_foreign_value() {
    let server = RedisServer::start();
    let redis = open(&server.url()).await;
    let (mut cursors, mut hashes) = (Vec::new(), Vec::new());
    for words in [
        ["SET", OWNER, "a"].as_slice(),
        &["SET", OWNER, "b"],
        &["HSET", OWNER, "c", "1"],
        &["HSET", OWNER, "d", "1"],
    ] {
        if words.len() == 4 {
            server.command(&["DEL", OWNER]);
        }
        server.command(words);
        let blocked = blocked(&redis, &claim(&report(), LONG)).await;
        assert_eq!(blocked.cursor, snapshot(&redis).await.cursor);
        cursors.push(blocked.cursor);
        hashes.push(blocked.foreign.unwrap().value_hash);
    }
    for i in 0..cursors.len() {
        for j in 0..i {
            assert!(cursors[i] != cursors[j] && hashes[i] != hashes[j], "{i} and {j}");
        }
    }
}

#[tokio::test]
async fn evict_foreign_removes_only_the_lock_with_this_hash_and_grants_the_next_waiter() {
    for put in [put_string as fn(&RedisServer), put_redisson_hash] {
        let server = RedisServer::start();
        let redis = open(&server.url()).await;
        put(&server);
        let waiting = client(&server.url()).await;
        let waiter =
            tokio::spawn(async move { waiting.lease("report", "42").wait(LONG).acquire().await.unwrap() });
        common::eventually("it waits", || async { snapshot(&redis).await.queue_length == 1 }).await;
        let lock = foreign(&redis).await;
        let wrong = ValueHash::of(b"another value");
        assert!(matches!(evict_foreign(&redis, wrong).await, CommandOutcome::HolderChanged { token: None }));
        assert_eq!(foreign(&redis).await, lock, "nothing changed");
        assert!(matches!(evict_foreign(&redis, lock.value_hash).await, CommandOutcome::Done));
        let lease = in_time("the waiter is granted", waiter).await.unwrap();
        assert!(matches!(
            evict_foreign(&redis, lock.value_hash).await,
            CommandOutcome::HolderChanged { token: Some(_) }
        ));
        lease.release().await.unwrap();
        let Page::Audit { records, .. } = redis.inspect(&Query::Audit(Listing::default())).await.unwrap()
        else {
            panic!("audit records")
        };
        let records: Vec<_> =
            records.iter().rev().map(|record| (record.command.as_str(), record.done)).collect();
        assert_eq!(records, [("evict-foreign", false), ("evict-foreign", true), ("evict-foreign", false)]);
    }
}

#[tokio::test]
async fn commands_for_a_holder_do_not_touch_a_foreign_lock() {
    let server = RedisServer::start();
    let redis = open(&server.url()).await;
    put_string(&server);
    for action in [
        OperatorAction::Ask { within: LONG },
        OperatorAction::Evict(Eviction::AtExpiry),
        OperatorAction::Evict(Eviction::Now),
    ] {
        let outcome = order(&redis, action).await;
        assert!(matches!(outcome, CommandOutcome::HolderChanged { token: None }), "{outcome:?}");
    }
    assert_eq!(server.command(&["GET", OWNER]), SECRET);
}

#[tokio::test]
async fn pause_and_resume_work_beside_a_foreign_lock() {
    for put in [put_string as fn(&RedisServer), put_redisson_hash] {
        let server = RedisServer::start();
        let redis = open(&server.url()).await;
        put(&server);
        assert!(matches!(order(&redis, OperatorAction::Pause { lasting: LONG }).await, CommandOutcome::Done));
        let shown = snapshot(&redis).await;
        assert!(shown.paused_for.is_some() && shown.foreign.len() == 1, "{shown:?}");
        assert!(blocked(&redis, &claim(&report(), LONG)).await.paused);
        let value = foreign(&redis).await.value_hash;
        assert!(matches!(evict_foreign(&redis, value).await, CommandOutcome::Done));
        assert!(is_blocked(&redis, &claim(&report(), LONG)).await, "still paused");
        assert!(matches!(order(&redis, OperatorAction::Resume).await, CommandOutcome::Done));
        granted(&redis, &claim(&report(), LONG)).await;
    }
}

#[tokio::test]
async fn readers_and_permits_wait_behind_a_foreign_lock_too() {
    let server = RedisServer::start();
    let redis = open(&server.url()).await;
    put_string(&server);
    let mut reader = claim(&report(), LONG).queued();
    reader.share = Share::READ;
    assert!(blocked(&redis, &reader).await.foreign.is_some());
    let value = foreign(&redis).await.value_hash;
    assert!(matches!(evict_foreign(&redis, value).await, CommandOutcome::Done));
    granted(&redis, &reader).await;
}
