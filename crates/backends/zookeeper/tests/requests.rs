//! How many requests each verb sends, counted by the server: no more than Curator's recipe.
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]

mod common;

use std::time::Duration;

use common::{TIME_LIMIT, claim, client, granted, in_time, open, release, report};
use leasehold::{Backend, BackendExt as _, Handover, Query, Verdict};
use leasehold_testkit::servers::ZooKeeperServer;

/// How many requests the server has received so far. Asking for this number is counted too: see [`SLACK`].
fn received(server: &ZooKeeperServer) -> i64 {
    server.number("zk_packets_received")
}

/// How many counted requests are not those of the verb: asking for the number, and heartbeats of idle
/// sessions. Measured.
const SLACK: i64 = 8;

#[tokio::test]
async fn an_acquire_sends_two_requests_and_a_release_one() {
    let server = ZooKeeperServer::start();
    let zookeeper = open(&server.url()).await;
    // The first claim creates the folder, which costs more requests.
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
    println!("{spent} requests for {pairs} pairs; Curator's recipe sends {}", 3 * pairs);
    assert!(spent >= 3 * pairs && spent <= 3 * pairs + SLACK, "{spent} requests for {pairs} pairs");
}

#[tokio::test]
async fn a_contended_acquire_sends_four_requests_and_a_release_one() {
    let server = ZooKeeperServer::start();
    let (a, b) = (open(&server.url()).await, open(&server.url()).await);
    let mut held = claim(&report());
    granted(&a, &held).await;
    let (rounds, before) = (50, received(&server));
    for round in 0..rounds {
        let (holder, waiter): (&dyn Backend, &dyn Backend) = if round % 2 == 0 { (&a, &b) } else { (&b, &a) };
        let next = claim(&report()).queued();
        let Ok(Verdict::Blocked(blocked)) = waiter.acquire_one(&next).await else { panic!("it is held") };
        assert_eq!(blocked.holders.len(), 1, "the waiter is told who holds it");
        let reference = next.reference();
        let woken = waiter.wait(&reference, &blocked.cursor, TIME_LIMIT);
        let (woken, released) = tokio::join!(woken, release(holder, &held));
        woken.unwrap();
        assert_eq!(released, leasehold::Released::Now);
        granted(waiter, &next).await;
        held = next;
    }
    let spent = received(&server) - before;
    println!("{spent} requests for {rounds} contended acquires; Curator's recipe sends {}", 5 * rounds);
    assert!(spent <= 5 * rounds + SLACK, "{spent} requests for {rounds} contended acquires");
}

#[tokio::test]
async fn a_handover_sends_three_requests() {
    let server = ZooKeeperServer::start();
    let zookeeper = open(&server.url()).await;
    let mut held = claim(&report());
    granted(&zookeeper, &held).await;
    let (rounds, before) = (100, received(&server));
    for _ in 0..rounds {
        let next = claim(&report()).queued().taking_over(Handover::from(held.owner));
        granted(&zookeeper, &next).await;
        held = next;
    }
    let spent = received(&server) - before;
    println!("{spent} requests for {rounds} handovers");
    assert!(spent <= 3 * rounds + SLACK, "{spent} requests for {rounds} handovers");
    let page = zookeeper.inspect(&Query::One(report())).await.unwrap();
    let holder = &page.into_snapshots()[0].holders[0];
    assert_eq!(i64::from(holder.handovers), rounds);
}

#[tokio::test]
async fn waiting_sends_only_the_safety_poll_and_a_release_wakes_one_waiter() {
    let server = ZooKeeperServer::start();
    let leases = client(&server.url()).await;
    let lease = leases.lease("report", "42").acquire().await.unwrap();
    // Fair waiters each have a contender of their own, as if each was another process.
    let waiters = 20;
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..waiters {
        waiting.spawn(leases.lease("report", "42").fair().wait(TIME_LIMIT * 2).acquire());
    }
    common::eventually("all of them wait", || async {
        let page = leases.inspect(&Query::One(report())).await.unwrap();
        page.into_snapshots().remove(0).queue_length == waiters
    })
    .await;
    let watches = server.number("zk_watch_count");
    assert!(
        watches <= i64::from(waiters) + 2,
        "each waiter watches one node, but there are {watches} watches"
    );
    // While nothing changes, every waiter polls now and then, and the holder renews.
    let (before, lasting) = (received(&server), Duration::from_secs(4));
    tokio::time::sleep(lasting).await;
    let spent = received(&server) - before;
    println!("{spent} requests in {lasting:?} for {waiters} waiters");
    assert!(spent <= i64::from(waiters) * 4 + 40, "{spent} requests in {lasting:?}");
    lease.release().await.unwrap();
    for _ in 0..waiters {
        let next = in_time("the next grant", waiting.join_next()).await.unwrap().unwrap().unwrap();
        next.release().await.unwrap();
    }
}
