//! A proxy that gives replies to the wrong request: none is believed.
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]

mod common;

use std::sync::Arc;

use common::{LONG, claim, eventually, in_time};
use leasehold::{Backend, Effect, ErrorKind, Resource, Verdict};
use leasehold_testkit::{
    misdelivery,
    proxy::{Misdelivery, Proxy},
    servers::{RedisServer, Replication},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_answer_is_believed_that_belongs_to_another_request() {
    let server = RedisServer::start();
    misdelivery::check(server.port(), |port| async move {
        let url = format!("redis://127.0.0.1:{port}/?timeout=500ms");
        Arc::new(common::open(&url).await) as Arc<dyn Backend>
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nor_is_a_number_of_replicas_that_belongs_to_another_request() {
    let servers = Replication::without_sentinels(1);
    misdelivery::check(servers.servers[0].port(), |port| async move {
        let url = format!("redis://127.0.0.1:{port}/?timeout=500ms&replicas=1&replica_timeout=2s");
        Arc::new(common::open(&url).await) as Arc<dyn Backend>
    })
    .await;
}

/// One reply too many shifts all that follow. Those who wait on that connection are told that nobody knows, and the next
/// request goes over a new one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_on_which_replies_are_shifted_is_given_up() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port(), 7).await;
    let direct = common::open(&server.url()).await;
    let url = format!("redis://127.0.0.1:{}/?timeout=500ms", proxy.port());
    let ours = Arc::new(common::open(&url).await);
    let resource = |number: u32| -> Resource { format!("report/{number}").parse().expect("a name") };
    for number in 0..16 {
        common::granted(&direct, &claim(&resource(number), LONG)).await;
    }
    common::granted(&*ours, &claim(&resource(99), LONG)).await;
    let connections = proxy.connections();
    proxy.misdeliver(Misdelivery::Repeat, 1);
    // Half of them are held by someone else, the other half is free.
    let ask = |number| {
        let (ours, claim) = (Arc::clone(&ours), claim(&resource(number), LONG));
        tokio::spawn(async move { (number, ours.acquire(&claim).await) })
    };
    let mut unknown = 0;
    // Replies that arrive together are repeated together: the second wave gets those of the first, and all later ones shift.
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
    eventually("it works again", || async { ours.acquire(&claim(&resource(98), LONG)).await.is_ok() }).await;
    assert!(proxy.connections() > connections, "over a new connection");
}
