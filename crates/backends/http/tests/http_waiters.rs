//! Many waiters share few requests, and a wake-up reaches only those that it is for.
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]

mod common;

use std::{sync::Arc, time::Duration};

use common::{TestServer, open, open_store, url};
use leasehold_core::{Backend, BackendExt as _, Claim, ClaimRef, Cursor, Resource, Verdict};
use leasehold_testkit::{
    Proxy,
    calls::{LONG_TTL, blocked, claim, eventually, granted, in_time, release, report},
};
use tokio::task::JoinHandle;

const LONG: Duration = Duration::from_secs(120);

fn wait(backend: &Arc<dyn Backend>, claim: ClaimRef, cursor: Cursor, at_most: Duration) -> JoinHandle<()> {
    let backend = Arc::clone(backend);
    tokio::spawn(async move { backend.wait(&claim, &cursor, at_most).await.expect("the server is there") })
}

/// Claims in the queue of this resource, with their cursors.
async fn queue(backend: &dyn Backend, resource: &Resource, count: usize) -> Vec<(Claim, Cursor)> {
    let mut queued = Vec::new();
    while queued.len() < count {
        let claims: Vec<Claim> =
            (0..(count - queued.len()).min(500)).map(|_| claim(resource, LONG_TTL).queued()).collect();
        for (claim, verdict) in claims.iter().zip(backend.acquire(&claims).await) {
            match verdict {
                Ok(Verdict::Blocked(blocked)) => queued.push((claim.clone(), blocked.cursor)),
                verdict => panic!("the resource is held, but {verdict:?}"),
            }
        }
    }
    queued
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_waiters_cost_a_few_connections() {
    let (_directory, path) = common::sqlite();
    let server = TestServer::start(open_store(format!("sqlite:{}", path.display())));
    let proxy = Proxy::start(server.port, 7).await;
    let backend = open(&url(proxy.port())).await;
    let holder = claim(&report(), LONG_TTL);
    granted(&*backend, &holder).await;
    let queued = queue(&*backend, &report(), 2000).await;
    let before = proxy.connections();
    let mut waits = Vec::new();
    for (number, (claim, cursor)) in queued.iter().enumerate() {
        waits.push(wait(&backend, claim.reference(), *cursor, LONG));
        if number % 40 == 0 {
            // They do not all begin at once, so that requests have to be merged.
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    eventually("all claims wait at the server", || async { metric(server.port, "waiting") == 2000 }).await;
    let (opened, open) = (proxy.connections() - before, metric(server.port, "connections"));
    println!("{opened} connections were opened for 2000 waiters, and {open} are open");
    assert!(opened <= 100, "{opened} connections were opened");
    // Four requests, or what 2000 claims need; idle connections; and that of the metrics.
    assert!(open <= 14, "{open} connections are open");
    assert_eq!(waits.iter().filter(|wait| wait.is_finished()).count(), 0, "nothing has happened yet");
    // The head of the queue is woken, and nobody else.
    release(&*backend, &holder).await;
    let head = waits.remove(0);
    in_time("the wake-up of the head", head).await.expect("no panic");
    tokio::time::sleep(Duration::from_millis(300)).await;
    let woken = waits.iter().filter(|wait| wait.is_finished()).count();
    assert!(woken < 100, "{woken} others were woken");
    // A claim that leaves wakes the next, also one that is in a request since long.
    release(&*backend, &queued[0].0).await;
    let next = waits.remove(0);
    in_time("the wake-up of the next", next).await.expect("no panic");
    waits.iter().for_each(JoinHandle::abort);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_goes_away_leaves_nothing_behind() {
    let (_directory, path) = common::sqlite();
    let server = TestServer::start(open_store(format!("sqlite:{}", path.display())));
    let backend = open(&server.url()).await;
    let holder = claim(&report(), LONG_TTL);
    granted(&*backend, &holder).await;
    let waiter = claim(&report(), LONG_TTL).queued();
    for _ in 0..50 {
        let seen = blocked(&*backend, &waiter).await;
        let waiting = wait(&backend, waiter.reference(), seen.cursor, LONG);
        tokio::time::sleep(Duration::from_millis(5)).await;
        waiting.abort();
        let _ = waiting.await;
    }
    // The server has no waiting claim any more, and a new wait is woken.
    eventually("no claim waits at the server", || async { metric(server.port, "waiting") == 0 }).await;
    let seen = blocked(&*backend, &waiter).await;
    let waiting = wait(&backend, waiter.reference(), seen.cursor, LONG);
    eventually("one claim waits at the server", || async { metric(server.port, "waiting") == 1 }).await;
    release(&*backend, &holder).await;
    in_time("the wake-up", waiting).await.expect("no panic");
    assert!(matches!(backend.acquire_one(&waiter).await, Ok(Verdict::Granted(_))));
}

#[tokio::test]
async fn a_short_wait_ends_in_time_beside_a_long_one() {
    let (_directory, path) = common::sqlite();
    let server = TestServer::start(open_store(format!("sqlite:{}", path.display())));
    let backend = open(&server.url()).await;
    granted(&*backend, &claim(&report(), LONG_TTL)).await;
    let queued = queue(&*backend, &report(), 2).await;
    let long = wait(&backend, queued[0].0.reference(), queued[0].1, LONG);
    let short = wait(&backend, queued[1].0.reference(), queued[1].1, Duration::from_millis(200));
    tokio::time::timeout(Duration::from_secs(10), short).await.expect("in time").expect("no panic");
    assert!(!long.is_finished());
}

/// A number in the metrics of the server.
fn metric(port: u16, name: &str) -> u64 {
    let (text, beginning) = (common::metrics(port), format!("leasehold_http_{name} "));
    let line = text.lines().find(|line| line.starts_with(&beginning)).unwrap_or_else(|| panic!("{text}"));
    line.rsplit(' ').next().and_then(|number| number.parse().ok()).expect("a number")
}
