//! Connections: none is leaked, callers do not wait for each other's failures, and no error shows a password.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests on real servers run in real time")]

#[path = "common/acl.rs"]
mod acl;
mod common;

use std::{
    error::Error as _,
    sync::Arc,
    time::{Duration, Instant},
};

use common::{LONG, TIMEOUT, claim, eventually, granted, in_time, open, report};
use leasehold::{Backend, BackendExt as _, Effect, ErrorKind, RenewRequest, System, Verdict};
use leasehold_core::QuorumNode as _;
use leasehold_redis::{Config, RedisNode};
use leasehold_testkit::servers::{RedisNodes, RedisServer};

fn node(url: &str) -> RedisNode {
    RedisNode::new(Config::parse(url).unwrap(), Arc::new(System::current()))
}

/// If callers connected one after the other, the last one would wait for the timeouts of all.
#[tokio::test]
async fn callers_that_wait_for_a_connection_share_its_failure() {
    let server = RedisServer::start();
    let redis = Arc::new(open(&format!("{}?timeout=500ms", server.url())).await);
    granted(&*redis, &claim(&report(), LONG)).await;
    server.freeze();
    redis.acquire_one(&claim(&report(), LONG)).await.expect_err("the server is frozen");
    let began = Instant::now();
    let ask = |_| {
        let redis = Arc::clone(&redis);
        tokio::spawn(async move { redis.acquire_one(&claim(&report(), LONG)).await.map(drop) })
    };
    for asked in (0..40).map(ask).collect::<Vec<_>>() {
        let error = in_time("an error", asked).await.unwrap().expect_err("the server is frozen");
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::None), "{error}");
    }
    assert!(
        began.elapsed() < Duration::from_secs(15),
        "the callers connected one after the other: {:?}",
        began.elapsed()
    );
    server.thaw();
    granted(&*redis, &claim(&"report/43".parse().unwrap(), LONG)).await;
}

/// The error of a server for an unknown command repeats the arguments.
#[tokio::test]
async fn a_password_is_in_no_error_when_the_server_repeats_what_it_was_sent() {
    let server = RedisServer::with(&["--requirepass", "hunter2", "--rename-command", "HELLO", "GOODDAY"]);
    let url = format!("redis://:hunter2@127.0.0.1:{}/", server.port());
    let error = node(&url).listen(&report(), LONG).await.expect_err("it cannot subscribe");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    let mut texts = format!("{error} {error:?}");
    let mut source = error.source();
    while let Some(cause) = source {
        texts += &format!(" {cause} {cause:?}");
        source = cause.source();
    }
    assert!(!texts.contains("hunter2"), "{texts}");
    assert!(texts.contains("HELLO"), "{texts}");
}

/// Without the permission `+subscribe`, no new connection is made for each attempt.
#[tokio::test]
async fn a_node_that_refuses_subscriptions_keeps_one_connection() {
    let nodes = RedisNodes::start(1, &[]);
    let url = acl::create_user_on_nodes(&nodes).replace("redlock", "redis");
    let server = &nodes.servers[0];
    server.command(&["ACL", "SETUSER", "app", "-subscribe"]);
    let node = node(&url);
    for _ in 0..5 {
        let error = node.listen(&report(), LONG).await.expect_err("it may not subscribe");
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    }
    let ours = server.command(&["CLIENT", "LIST"]).matches("user=app").count();
    assert_eq!(ours, 1, "number of connections");
    server.command(&["ACL", "SETUSER", "app", "+subscribe"]);
    let woken = tokio::spawn(async move { node.listen(&report(), TIMEOUT * 2).await });
    let channel = "lock:v1:{report/42}:news";
    eventually("the subscription", || async { server.command(&["PUBLISH", channel, ""]) == "1" }).await;
    in_time("the wake-up", woken).await.unwrap().unwrap();
}

/// Without the permission for `WAIT` no acknowledgement is known, so the grant is released.
#[tokio::test]
async fn a_user_that_may_not_wait_for_replicas_is_denied_and_holds_nothing() {
    let (server, url) = acl::start();
    let redis = open(&format!("{url}?replicas=1")).await;
    let error = redis.acquire_one(&claim(&report(), LONG)).await.expect_err("it may not wait");
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

/// One claim holds and another one waits; then the client is dropped.
async fn use_and_drop(url: &str) {
    let redis = open(url).await;
    granted(&redis, &claim(&report(), LONG)).await;
    let theirs = claim(&report(), LONG).queued();
    let Ok(Verdict::Blocked(blocked)) = redis.acquire_one(&theirs).await else { panic!("it is held") };
    redis.wait(&theirs.reference(), &blocked.cursor, Duration::from_millis(500)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_client_leaves_no_connections() {
    let of_app = |server: &RedisServer| server.command(&["CLIENT", "LIST"]).matches("user=app").count();
    let (server, url) = acl::start();
    use_and_drop(&url).await;
    eventually("no connection to the server", || async { of_app(&server) == 0 }).await;

    let (cluster, url) = tokio::task::block_in_place(|| acl::start_cluster(&[]));
    use_and_drop(&url).await;
    eventually("no connection to the cluster", || async {
        cluster.nodes.iter().map(of_app).sum::<usize>() == 0
    })
    .await;

    let nodes = RedisNodes::start(1, &[]);
    let node = node(&acl::create_user_on_nodes(&nodes).replace("redlock", "redis"));
    node.listen(&report(), Duration::from_millis(100)).await.unwrap();
    drop(node);
    eventually("no connection to the node", || async { of_app(&nodes.servers[0]) == 0 }).await;
}
