//! A server that stalls: waiters keep their order.
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use common::{LONG, claim, client, eventually, granted, in_time, open, report};
use leasehold::{Backend as _, Handover, Query};
use leasehold_testkit::servers::RedisServer;

/// Long enough that several requests get no reply, and shorter than a place ttl.
const STALL: Duration = Duration::from_millis(3_500);
/// Long enough that every waiter gets replies again and renews its place.
const CALM: Duration = Duration::from_millis(2_500);
/// Shorter than a stall.
const TTL: Duration = Duration::from_millis(800);
const WAITERS: usize = 5;

/// Each stall leaves the waiters with requests without a reply. During the last stall the lease of the holder
/// expires: when the server continues, it executes such a request of the first waiter, and that grant lasts
/// no longer than the ttl.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_keep_their_order_through_stalls() {
    let server = RedisServer::start();
    // The connections outlast the stalls, so that requests are executed in the order in which they were sent.
    let url = format!("{}?timeout=10s", server.url());
    let holder = open(&url).await;
    let ours = claim(&report(), LONG);
    granted(&holder, &ours).await;

    let order: Arc<Mutex<Vec<usize>>> = Arc::default();
    let mut waiters = Vec::new();
    for number in 0..WAITERS {
        let (client, order) = (client(&url).await, Arc::clone(&order));
        waiters.push(tokio::spawn(async move {
            let request = client.lease("report", "42").ttl(TTL).fair().wait_forever();
            let lease = request.acquire().await.unwrap();
            order.lock().unwrap().push(number);
            lease.release().await.unwrap();
        }));
        eventually("the waiter is queued", || async {
            let page = holder.inspect(&Query::One(report())).await.unwrap();
            page.into_snapshots()[0].queue_length as usize == number + 1
        })
        .await;
    }
    for _ in 0..2 {
        server.freeze();
        tokio::time::sleep(STALL).await;
        server.thaw();
        tokio::time::sleep(CALM).await;
    }
    let mut last = claim(&report(), STALL / 2);
    last = last.taking_over(Handover::from(ours.owner));
    granted(&holder, &last).await;
    server.freeze();
    tokio::time::sleep(STALL).await;
    server.thaw();
    for waiter in waiters {
        in_time("a grant", waiter).await.unwrap();
    }
    assert_eq!(*order.lock().unwrap(), [0, 1, 2, 3, 4]);
}
