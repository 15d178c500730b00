//! A proxy that delivers replies to the wrong request: no such reply is believed. ADR 0033.
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]

mod common;

use std::sync::Arc;

use common::{LONG, claim, eventually, in_time};
use leasehold::{Backend, BackendExt as _, Effect, ErrorKind, Resource, Verdict};
use leasehold_testkit::{
    misdelivery,
    proxy::{Misdelivery, Proxy},
    servers::{RedisServer, Replication},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_that_belong_to_another_request_are_rejected() {
    let server = RedisServer::start();
    misdelivery::check(server.port(), |port| async move {
        let url = format!("redis://127.0.0.1:{port}/?timeout=500ms");
        Arc::new(common::open(&url).await) as Arc<dyn Backend>
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_replicas_replies_that_belong_to_another_request_are_rejected() {
    let servers = Replication::without_sentinels(1);
    misdelivery::check(servers.servers[0].port(), |port| async move {
        let url = format!("redis://127.0.0.1:{port}/?timeout=500ms&replicas=1&replica_timeout=2s");
        Arc::new(common::open(&url).await) as Arc<dyn Backend>
    })
    .await;
}

/// One additional reply shifts all later ones. The calls on that connection end with an unknown effect, and
/// the next call uses a new connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_with_shifted_replies_is_closed() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port(), 7).await;
    let direct = common::open(&server.url()).await;
    let url = format!("redis://127.0.0.1:{}/?timeout=500ms", proxy.port());
    let ours = Arc::new(common::open(&url).await);
    let resource = |number: u32| -> Resource { format!("report/{number}").parse().expect("a valid name") };
    for number in 0..16 {
        common::granted(&direct, &claim(&resource(number), LONG)).await;
    }
    common::granted(&*ours, &claim(&resource(99), LONG)).await;
    let connections = proxy.connections();
    proxy.misdeliver(Misdelivery::Repeat, 1);
    // Half of the resources are held, the other half is free.
    let ask = |number| {
        let (ours, claim) = (Arc::clone(&ours), claim(&resource(number), LONG));
        tokio::spawn(async move { (number, ours.acquire_one(&claim).await) })
    };
    let mut unknown = 0;
    // Replies that arrive together are repeated together: the second round gets those of the first, and all
    // later ones shift.
    for _ in 0..2 {
        let asked: Vec<_> = (0..32).map(ask).collect();
        for answer in asked {
            match in_time("an answer", answer).await.expect("no panic") {
                (number, Ok(Verdict::Granted(_))) => assert!(number >= 16, "report/{number} is held"),
                (_, Ok(Verdict::Blocked(_))) => {}
                (number, Ok(verdict)) => panic!("report/{number}: {verdict:?}"),
                (_, Err(error)) => {
                    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::Unknown));
                    unknown += 1;
                }
            }
        }
    }
    assert!(unknown > 0, "no reply was shifted");
    proxy.heal();
    eventually("it works again", || async { ours.acquire_one(&claim(&resource(98), LONG)).await.is_ok() })
        .await;
    assert!(proxy.connections() > connections, "over a new connection");
}
