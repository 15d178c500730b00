//! Locks of other programs, and values that cannot be read, on the nodes of a quorum.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests on real servers run in real time")]

mod common;

use std::{sync::Arc, time::Duration};

use common::{LONG, claim, granted, open, release, report};
use leasehold::{
    Backend, BackendExt as _, CommandOutcome, ErrorKind, Listing, OperatorAction, OperatorCommand, Page,
    Query, Released, Resource, Snapshot, Verdict,
};
use leasehold_testkit::servers::RedisNodes;

const GATE: Duration = Duration::from_secs(600);
const OWNER: &str = "lock:v1:{report/42}:owner";
const SECRET: &str = "3f1c-the-release-secret";

async fn open_quorum(nodes: &RedisNodes) -> Arc<dyn Backend> {
    leasehold::open(&nodes.url()).await.unwrap()
}

async fn list(backend: &dyn Backend) -> Vec<Snapshot> {
    let page = backend.inspect(&Query::Resources(Listing::default())).await.unwrap();
    let Page::Resources { snapshots, .. } = page else { panic!("{page:?}") };
    snapshots
}

#[tokio::test]
async fn a_foreign_lock_on_a_majority_is_shown_and_hides_nothing() {
    for words in [["SET", OWNER, SECRET].as_slice(), &["HSET", OWNER, SECRET, "1"]] {
        let nodes = RedisNodes::long_lived(3, GATE);
        let backend = open_quorum(&nodes).await;
        let other: Resource = "report/7".parse().unwrap();
        granted(&*backend, &claim(&other, LONG)).await;
        for server in &nodes.servers[..2] {
            server.command(words);
        }
        let ours = claim(&report(), LONG);
        let verdict = backend.acquire_one(&ours).await.unwrap();
        let Verdict::Blocked(blocked) = &verdict else { panic!("{verdict:?}") };
        let lock = blocked.foreign.clone().expect("another program holds it");
        assert!(blocked.holders.is_empty() && lock.key == OWNER && lock.remaining.is_none(), "{blocked:?}");
        // `Now` if the vote of the third node has not been taken back yet.
        let released = release(&*backend, &ours).await;
        assert!(matches!(released, Released::AlreadyGone | Released::Now), "{released:?}");

        let rows = list(&*backend).await;
        assert_eq!(rows.len(), 2, "{rows:?}");
        let shown = &rows[0].foreign[0];
        assert_eq!((&rows[0].resource, rows[0].holder_count), (&report(), 0));
        let form = if words[0] == "SET" { "string on 2 of 3 nodes" } else { "hash on 2 of 3 nodes" };
        assert_eq!((shown.form.as_str(), shown.value_hash), (form, lock.value_hash));
        assert_eq!((&rows[1].resource, rows[1].holder_count), (&other, 1));
        assert!(!format!("{rows:?}{verdict:?}").contains("3f1c"), "{rows:?}");
    }
}

#[tokio::test]
async fn a_foreign_lock_is_removed_on_each_node_by_itself() {
    let nodes = RedisNodes::long_lived(3, GATE);
    let backend = open_quorum(&nodes).await;
    for server in &nodes.servers {
        server.command(&["HSET", OWNER, SECRET, "1"]);
    }
    let value = list(&*backend).await[0].foreign[0].value_hash;
    let evict = OperatorAction::EvictForeign { value };
    let order = OperatorCommand::new(report(), evict, "ops", "its program is gone");
    let error = backend.order(&order).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("--store redis://HOST"), "{error}");
    for server in &nodes.servers {
        let node = open(&server.url()).await;
        assert!(matches!(node.order(&order).await.unwrap(), CommandOutcome::Done));
    }
    granted(&*backend, &claim(&report(), LONG)).await;
}

#[tokio::test]
async fn a_minority_of_foreign_locks_holds_nothing() {
    let nodes = RedisNodes::long_lived(3, GATE);
    let backend = open_quorum(&nodes).await;
    nodes.servers[0].command(&["HSET", OWNER, SECRET, "1"]);
    assert!(list(&*backend).await.is_empty());
    let ours = claim(&report(), LONG);
    granted(&*backend, &ours).await;
    assert_eq!(list(&*backend).await[0].holder_count, 1);
    assert_eq!(release(&*backend, &ours).await, Released::Now);
    assert_eq!(nodes.servers[0].command(&["HGET", OWNER, SECRET]), "1", "it is unchanged");
}

#[tokio::test]
async fn a_register_that_cannot_be_read_makes_one_row_unreadable() {
    let nodes = RedisNodes::long_lived(3, GATE);
    let backend = open_quorum(&nodes).await;
    granted(&*backend, &claim(&"report/7".parse().unwrap(), LONG)).await;
    let register = "lock:v1:{report/42}:register";
    for server in &nodes.servers[..2] {
        server.command(&["RPUSH", register, "x"]);
    }
    let rows = list(&*backend).await;
    assert_eq!(rows.len(), 2, "{rows:?}");
    let why = rows[0].unreadable.clone().unwrap();
    assert!(why.contains(register) && why.contains("is a list") && why.contains("node 127.0.0.1:"), "{why}");
    let error = backend.inspect(&Query::One(report())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    nodes.servers[1].command(&["DEL", register]);
    assert_eq!(list(&*backend).await.len(), 1, "a majority can read it, and it is free");
}

#[tokio::test]
async fn a_lock_with_an_impossible_number_is_a_foreign_lock() {
    let nodes = RedisNodes::long_lived(3, GATE);
    let backend = open_quorum(&nodes).await;
    let value = format!("{}|99999999999999999999|1|x0000000000000001|1|h", "ab".repeat(16));
    for server in &nodes.servers {
        server.command(&["SET", OWNER, &value]);
    }
    assert_eq!(list(&*backend).await[0].foreign.len(), 1);
    let verdict = backend.acquire_one(&claim(&report(), LONG)).await.unwrap();
    assert!(matches!(&verdict, Verdict::Blocked(blocked) if blocked.foreign.is_some()), "{verdict:?}");
}

#[tokio::test]
async fn a_node_with_a_corrupt_register_does_not_vote_and_its_register_is_not_overwritten() {
    let nodes = RedisNodes::long_lived(3, GATE);
    let backend = open_quorum(&nodes).await;
    let register = "lock:v1:{report/42}:register";
    let junk = |count: usize| {
        for server in &nodes.servers[..count] {
            server.command(&["SET", register, "junk"]);
        }
    };
    let is_junk = |count: usize| {
        nodes.servers[..count].iter().all(|server| server.command(&["GET", register]) == "junk")
    };
    junk(1);
    let ours = claim(&report(), LONG);
    granted(&*backend, &ours).await;
    assert!(is_junk(1), "the other two voted");
    assert_eq!(release(&*backend, &ours).await, Released::Now);
    junk(2);
    // Claims that are sent together and alone.
    let other: Resource = "report/7".parse().unwrap();
    let claims = [claim(&report(), LONG), claim(&other, LONG)];
    let mut verdicts = backend.acquire(&claims).await;
    assert!(matches!(verdicts.pop(), Some(Ok(Verdict::Granted(_)))), "{verdicts:?}");
    for error in [verdicts.remove(0).unwrap_err(), backend.acquire_one(&claims[0]).await.unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(
            error.to_string().contains(register) && error.to_string().contains("found 'junk'"),
            "{error}"
        );
    }
    assert!(is_junk(2), "nothing was overwritten");
    let rows = list(&*backend).await;
    let why = rows.iter().find(|row| row.resource == report()).unwrap().unreadable.clone().unwrap();
    assert!(why.contains(register) && why.contains("found 'junk'"), "{why}");
}
