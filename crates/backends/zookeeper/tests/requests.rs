//! How many requests an acquire costs, counted by the server: no more than Curator's recipe makes.
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]

mod common;

use std::time::Duration;

use common::{PATIENCE, claim, client, granted, in_time, open, release, report};
use leasehold::{Backend, Query, Verdict};
use leasehold_testkit::servers::ZooKeeperServer;

/// Requests that the server has received so far. What it counts for being asked is taken off by whoever compares.
fn received(server: &ZooKeeperServer) -> i64 {
    server.number("zk_packets_received")
}

/// What asking for the number adds to it, and heartbeats of idle sessions meanwhile: measured, not assumed.
const SLACK: i64 = 8;

#[tokio::test]
async fn an_acquire_makes_two_requests_and_a_release_one() {
    let server = ZooKeeperServer::start();
    let zookeeper = open(&server.url()).await;
    // The first one makes the folder.
    let first = claim(&report());
    granted(&zookeeper, &first).await;
    release(&zookeeper, &first).await;
    let (pairs, before) = (100, received(&server));
    for _ in 0..pairs {
        let ours = claim(&report());
        granted(&zookeeper, &ours).await;
        release(&zookeeper, &ours).await;
    }
    let spent = received(&server) - before;
    println!("{spent} requests for {pairs} pairs; Curator's recipe makes {}", 3 * pairs);
    assert!(spent >= 3 * pairs && spent <= 3 * pairs + SLACK, "{spent} requests for {pairs} pairs");
}

#[tokio::test]
async fn a_contended_acquire_makes_four_requests_and_a_release_one() {
    let server = ZooKeeperServer::start();
    let (a, b) = (open(&server.url()).await, open(&server.url()).await);
    let mut held = claim(&report());
    granted(&a, &held).await;
    let (rounds, before) = (50, received(&server));
    for round in 0..rounds {
        let (holder, waiter): (&dyn Backend, &dyn Backend) = if round % 2 == 0 { (&a, &b) } else { (&b, &a) };
        let next = claim(&report()).queued();
        let Ok(Verdict::Blocked(blocked)) = waiter.acquire(&next).await else { panic!("it is held") };
        assert_eq!(blocked.holders.len(), 1, "and it is known who holds it");
        let reference = next.reference();
        let woken = waiter.wait(&reference, &blocked.cursor, PATIENCE);
        let (woken, released) = tokio::join!(woken, release(holder, &held));
        woken.unwrap();
        assert_eq!(released, leasehold::Released::Now);
        granted(waiter, &next).await;
        held = next;
    }
    let spent = received(&server) - before;
    println!("{spent} requests for {rounds} contended acquires; Curator's recipe makes {}", 5 * rounds);
    assert!(spent <= 5 * rounds + SLACK, "{spent} requests for {rounds} contended acquires");
}

#[tokio::test]
async fn waiting_costs_nothing_but_the_safety_poll_and_a_release_wakes_one() {
    let server = ZooKeeperServer::start();
    let leases = client(&server.url()).await;
    let lease = leases.lease("report", "42").acquire().await.unwrap();
    // Each with a place of its own, as in as many processes.
    let waiters = 20;
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..waiters {
        waiting.spawn(leases.lease("report", "42").fair().wait(PATIENCE * 2).acquire());
    }
    common::eventually("all wait", || async {
        let page = leases.inspect(&Query::One(report())).await.unwrap();
        page.into_snapshots().remove(0).queue_length == waiters
    })
    .await;
    let watches = server.number("zk_watch_count");
    assert!(watches <= i64::from(waiters) + 2, "each watches one node: {watches} watches");
    // For a while nothing happens: every waiter looks now and then, and the holder goes on.
    let (before, lasting) = (received(&server), Duration::from_secs(4));
    tokio::time::sleep(lasting).await;
    let spent = received(&server) - before;
    println!("{spent} requests in {lasting:?} for {waiters} who wait");
    assert!(spent <= i64::from(waiters) * 4 + 40, "{spent} requests in {lasting:?}");
    lease.release().await.unwrap();
    for _ in 0..waiters {
        let next = in_time("the next grant", waiting.join_next()).await.unwrap().unwrap().unwrap();
        next.release().await.unwrap();
    }
}
