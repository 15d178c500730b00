//! Connections: none is left behind, none keeps others waiting in line, and none tells a secret.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests on real servers run in real time")]

#[path = "common/acl.rs"]
mod acl;
mod common;

use std::{
    error::Error as _,
    sync::Arc,
    time::{Duration, Instant},
};

use common::{LONG, PATIENCE, claim, eventually, granted, in_time, open, report};
use leasehold::{Backend, Effect, ErrorKind, RenewRequest, System, Verdict};
use leasehold_core::QuorumNode as _;
use leasehold_redis::{Config, RedisNode};
use leasehold_testkit::servers::{RedisNodes, RedisServer};

fn node(url: &str) -> RedisNode {
    RedisNode::new(Config::parse(url).unwrap(), Arc::new(System::current()))
}

/// Each of many callers would wait for the failures of all before it, were they to try one after the other.
#[tokio::test]
async fn whoever_waits_for_a_connection_shares_the_failure() {
    let server = RedisServer::start();
    let redis = Arc::new(open(&format!("{}?timeout=500ms", server.url())).await);
    granted(&*redis, &claim(&report(), LONG)).await;
    server.freeze();
    redis.acquire(&claim(&report(), LONG)).await.expect_err("nobody answers");
    let began = Instant::now();
    let ask = |_| {
        let redis = Arc::clone(&redis);
        tokio::spawn(async move { redis.acquire(&claim(&report(), LONG)).await.map(drop) })
    };
    for asked in (0..40).map(ask).collect::<Vec<_>>() {
        let error = in_time("an error", asked).await.unwrap().expect_err("nobody answers");
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::None), "{error}");
    }
    assert!(began.elapsed() < Duration::from_secs(15), "one after the other: {:?}", began.elapsed());
    server.thaw();
    granted(&*redis, &claim(&"report/43".parse().unwrap(), LONG)).await;
}

/// A server that does not know a command repeats its arguments.
#[tokio::test]
async fn a_password_is_in_no_error_when_the_server_repeats_what_it_was_sent() {
    let server = RedisServer::with(&["--requirepass", "hunter2", "--rename-command", "HELLO", "GOODDAY"]);
    let url = format!("redis://:hunter2@127.0.0.1:{}/", server.port());
    let error = node(&url).listen(&report(), LONG).await.expect_err("it cannot listen");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    let mut told = format!("{error} {error:?}");
    let mut source = error.source();
    while let Some(cause) = source {
        told += &format!(" {cause} {cause:?}");
        source = cause.source();
    }
    assert!(!told.contains("hunter2"), "{told}");
    assert!(told.contains("HELLO"), "{told}");
}

/// Without `+subscribe` nothing can be heard, and no connection is made in vain again and again.
#[tokio::test]
async fn a_node_that_lets_nobody_listen_is_not_connected_to_again_and_again() {
    let nodes = RedisNodes::start(1, &[]);
    let url = acl::let_in(&nodes).replace("redlock", "redis");
    let server = &nodes.servers[0];
    server.command(&["ACL", "SETUSER", "app", "-subscribe"]);
    let node = node(&url);
    for _ in 0..5 {
        let error = node.listen(&report(), LONG).await.expect_err("it may not listen");
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    }
    let ours = server.command(&["CLIENT", "LIST"]).matches("user=app").count();
    assert_eq!(ours, 1, "connections");
    server.command(&["ACL", "SETUSER", "app", "+subscribe"]);
    let heard = tokio::spawn(async move { node.listen(&report(), PATIENCE * 2).await });
    let news = "lock:v1:{report/42}:news";
    eventually("it listens", || async { server.command(&["PUBLISH", news, ""]) == "1" }).await;
    in_time("the hint", heard).await.unwrap().unwrap();
}

/// `WAIT` speaks of nothing then, and what was granted is given up.
#[tokio::test]
async fn whoever_may_not_ask_for_replicas_is_denied_and_holds_nothing() {
    let (server, url) = acl::start();
    let redis = open(&format!("{url}?replicas=1")).await;
    let error = redis.acquire(&claim(&report(), LONG)).await.expect_err("it may not wait");
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Denied, Effect::None), "{error}");
    assert!(error.to_string().contains("'wait'"), "{error}");
    assert_eq!(server.command(&["EXISTS", "lock:v1:{report/42}:owner"]), "0");

    let plain = open(&url).await;
    let ours = claim(&report(), LONG);
    granted(&plain, &ours).await;
    let error = redis
        .renew(&[RenewRequest::new(ours.reference(), LONG)])
        .await
        .remove(0)
        .expect_err("it may not wait");
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Denied, Effect::Unknown), "{error}");
}

/// Someone holds, someone else waits and listens; then all of it is dropped.
async fn use_and_drop(url: &str) {
    let redis = open(url).await;
    granted(&redis, &claim(&report(), LONG)).await;
    let theirs = claim(&report(), LONG).queued();
    let Ok(Verdict::Blocked(blocked)) = redis.acquire(&theirs).await else { panic!("it is held") };
    redis.wait(&theirs.reference(), &blocked.cursor, Duration::from_millis(500)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_left_of_a_client_that_is_dropped() {
    let of_app = |server: &RedisServer| server.command(&["CLIENT", "LIST"]).matches("user=app").count();
    let (server, url) = acl::start();
    use_and_drop(&url).await;
    eventually("the server is left", || async { of_app(&server) == 0 }).await;

    let (cluster, url) = tokio::task::block_in_place(|| acl::start_cluster(&[]));
    use_and_drop(&url).await;
    eventually("the cluster is left", || async { cluster.nodes.iter().map(of_app).sum::<usize>() == 0 })
        .await;

    let nodes = RedisNodes::start(1, &[]);
    let node = node(&acl::let_in(&nodes).replace("redlock", "redis"));
    node.listen(&report(), Duration::from_millis(100)).await.unwrap();
    drop(node);
    eventually("the node is left", || async { of_app(&nodes.servers[0]) == 0 }).await;
}
