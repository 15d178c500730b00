//! Wake-ups: which waiters are woken, and what happens when the subscription is lost.
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]

mod common;

use std::{sync::Arc, time::Duration};

use common::{LONG, TIMEOUT, claim, client, eventually, granted, in_time, open, release, report};
use leasehold::{Backend, BackendExt as _, Blocked, Claim, Verdict};
use leasehold_redis::Redis;
use leasehold_testkit::servers::RedisServer;

async fn queued(redis: &Redis, claim: &Claim) -> Blocked {
    match redis.acquire_one(claim).await {
        Ok(Verdict::Blocked(blocked)) => blocked,
        other => panic!("expected a place in the queue, got {other:?}"),
    }
}

fn wait(redis: &Arc<Redis>, claim: &Claim, blocked: &Blocked) -> tokio::task::JoinHandle<()> {
    let (redis, claim, cursor) = (Arc::clone(redis), claim.reference(), blocked.cursor);
    tokio::spawn(async move { redis.wait(&claim, &cursor, LONG).await.expect("wait succeeds") })
}

async fn subscribers(server: &RedisServer) -> usize {
    server.command(&["CLIENT", "LIST", "TYPE", "pubsub"]).lines().filter(|line| !line.is_empty()).count()
}

#[tokio::test]
async fn a_release_wakes_the_waiter_that_can_be_granted_and_no_other() {
    let server = RedisServer::start();
    let redis = Arc::new(open(&server.url()).await);
    let ours = claim(&report(), LONG);
    granted(&*redis, &ours).await;
    let queue: Vec<_> = (0..3)
        .map(|_| {
            let mut c = claim(&report(), LONG).queued();
            c.place_ttl = LONG;
            c
        })
        .collect();
    let mut waits = Vec::new();
    for claim in &queue {
        let blocked = queued(&redis, claim).await;
        waits.push(wait(&redis, claim, &blocked));
    }
    eventually("the subscription", || async { subscribers(&server).await == 1 }).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(waits.iter().all(|wait| !wait.is_finished()));
    release(&*redis, &ours).await;
    in_time("the wake-up of the first waiter", &mut waits[0]).await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!waits[1].is_finished() && !waits[2].is_finished(), "they cannot be granted yet");
    granted(&*redis, &queue[0]).await;
}

#[tokio::test]
async fn one_connection_listens_for_any_number_of_resources() {
    const RESOURCES: usize = 500;
    let server = RedisServer::start();
    let redis = Arc::new(open(&server.url()).await);
    let (mut holders, mut waits) = (Vec::new(), Vec::new());
    for number in 0..RESOURCES {
        let resource = format!("report/{number}").parse().unwrap();
        let holder = claim(&resource, LONG);
        granted(&*redis, &holder).await;
        let mut waiting = claim(&resource, LONG).queued();
        waiting.place_ttl = LONG;
        let blocked = queued(&redis, &waiting).await;
        waits.push(wait(&redis, &waiting, &blocked));
        holders.push(holder);
    }
    eventually("the subscription", || async { subscribers(&server).await == 1 }).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    for holder in &holders {
        release(&*redis, holder).await;
    }
    for wait in waits {
        in_time("a wake-up", wait).await.unwrap();
    }
    assert_eq!(subscribers(&server).await, 1);
}

#[tokio::test]
async fn all_waiters_ask_again_after_the_subscription_was_lost() {
    let server = RedisServer::start();
    let redis = Arc::new(open(&server.url()).await);
    let ours = claim(&report(), LONG);
    granted(&*redis, &ours).await;
    let mut waiting = claim(&report(), LONG).queued();
    waiting.place_ttl = LONG;
    let blocked = queued(&redis, &waiting).await;
    let woken = wait(&redis, &waiting, &blocked);
    eventually("the subscription", || async { subscribers(&server).await == 1 }).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    in_time("the wake-up", woken).await.unwrap();
    // The next subscription delivers wake-ups again.
    let blocked = queued(&redis, &waiting).await;
    let woken = wait(&redis, &waiting, &blocked);
    eventually("the subscription", || async { subscribers(&server).await == 1 }).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let woken =
        if woken.is_finished() { wait(&redis, &waiting, &queued(&redis, &waiting).await) } else { woken };
    tokio::time::sleep(Duration::from_millis(200)).await;
    release(&*redis, &ours).await;
    in_time("the wake-up", woken).await.unwrap();
}

#[tokio::test]
async fn a_waiter_is_granted_when_the_lease_of_a_dead_holder_expires() {
    let server = RedisServer::start();
    let dead = open(&server.url()).await;
    granted(&dead, &claim(&report(), Duration::from_secs(2))).await;
    let client = client(&server.url()).await;
    let lease = client.lease("report", "42").wait(TIMEOUT).acquire();
    in_time("the grant", lease).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_dead_head_of_the_queue_is_passed_over() {
    let server = RedisServer::start();
    let dead = open(&server.url()).await;
    let ours = claim(&report(), LONG);
    granted(&dead, &ours).await;
    let mut waiting = claim(&report(), LONG).queued();
    waiting.place_ttl = LONG;
    queued(&dead, &waiting).await;
    let client = client(&server.url()).await;
    let next = tokio::spawn(client.lease("report", "42").wait(TIMEOUT).acquire());
    tokio::time::sleep(Duration::from_millis(300)).await;
    release(&dead, &ours).await;
    in_time("the grant", next).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn passing_the_lease_on_takes_as_many_commands_with_ten_as_with_two_thousand_waiters() {
    let server = RedisServer::start();
    let redis = open(&server.url()).await;
    let commands = |server: &RedisServer| -> u64 {
        let stats = server.command(&["INFO", "stats"]);
        let line = stats.lines().find(|line| line.starts_with("total_commands_processed:")).unwrap();
        line.split(':').nth(1).unwrap().trim().parse().unwrap()
    };
    let mut costs = Vec::new();
    let mut queue: std::collections::VecDeque<Claim> = std::collections::VecDeque::new();
    let mut holder = claim(&report(), LONG);
    granted(&redis, &holder).await;
    for length in [10, 2000] {
        while queue.len() < length {
            let mut waiting = claim(&report(), LONG).queued();
            waiting.place_ttl = LONG;
            queued(&redis, &waiting).await;
            queue.push_back(waiting);
        }
        let before = commands(&server);
        release(&redis, &holder).await;
        holder = queue.pop_front().unwrap();
        granted(&redis, &holder).await;
        costs.push(commands(&server) - before);
    }
    assert!(costs[1] <= costs[0] + 1, "commands on the server for passing the lease on: {costs:?}");
}
