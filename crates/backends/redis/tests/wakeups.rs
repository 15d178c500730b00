//! Wake-ups: who is woken, who is not, and what becomes of them when the subscription dies.
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]

mod common;

use std::{sync::Arc, time::Duration};

use common::{LONG, PATIENCE, claim, client, eventually, granted, in_time, open, release, report};
use leasehold::{Backend, Blocked, Claim, Verdict};
use leasehold_redis::Redis;
use leasehold_testkit::servers::RedisServer;

async fn queued(redis: &Redis, claim: &Claim) -> Blocked {
    match redis.acquire(claim).await {
        Ok(Verdict::Blocked(blocked)) => blocked,
        other => panic!("a place was due, not {other:?}"),
    }
}

fn wait(redis: &Arc<Redis>, claim: &Claim, blocked: &Blocked) -> tokio::task::JoinHandle<()> {
    let (redis, claim, cursor) = (Arc::clone(redis), claim.reference(), blocked.cursor);
    tokio::spawn(async move { redis.wait(&claim, &cursor, LONG).await.expect("wait answers") })
}

async fn subscribers(server: &RedisServer) -> usize {
    server.command(&["CLIENT", "LIST", "TYPE", "pubsub"]).lines().filter(|line| !line.is_empty()).count()
}

#[tokio::test]
async fn a_release_wakes_the_claim_that_can_move_and_no_other() {
    let server = RedisServer::start();
    let redis = Arc::new(open(&server.url()).await);
    let ours = claim(&report(), LONG);
    granted(&*redis, &ours).await;
    let line: Vec<_> = (0..3)
        .map(|_| {
            let mut c = claim(&report(), LONG).queued();
            c.place_ttl = LONG;
            c
        })
        .collect();
    let mut waits = Vec::new();
    for claim in &line {
        let blocked = queued(&redis, claim).await;
        waits.push(wait(&redis, claim, &blocked));
    }
    eventually("the subscription", || async { subscribers(&server).await == 1 }).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(waits.iter().all(|wait| !wait.is_finished()));
    release(&*redis, &ours).await;
    in_time("the first one's wake-up", &mut waits[0]).await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!waits[1].is_finished() && !waits[2].is_finished(), "they cannot move yet");
    granted(&*redis, &line[0]).await;
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
    // And from then on it hears again.
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
async fn the_expiry_of_a_dead_holder_lets_the_next_one_in() {
    let server = RedisServer::start();
    let dead = open(&server.url()).await;
    granted(&dead, &claim(&report(), Duration::from_secs(2))).await;
    let client = client(&server.url()).await;
    let lease = client.lease("report", "42").wait(PATIENCE).acquire();
    in_time("the grant", lease).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_dead_head_of_the_line_costs_its_place_ttl() {
    let server = RedisServer::start();
    let dead = open(&server.url()).await;
    let ours = claim(&report(), LONG);
    granted(&dead, &ours).await;
    let mut waiting = claim(&report(), LONG).queued();
    waiting.place_ttl = Duration::from_secs(2);
    queued(&dead, &waiting).await;
    let client = client(&server.url()).await;
    let next = tokio::spawn(client.lease("report", "42").wait(PATIENCE).acquire());
    tokio::time::sleep(Duration::from_millis(300)).await;
    release(&dead, &ours).await;
    in_time("the grant", next).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_hand_over_takes_as_many_commands_with_ten_as_with_two_thousand_waiters() {
    let server = RedisServer::start();
    let redis = open(&server.url()).await;
    let commands = |server: &RedisServer| -> u64 {
        let stats = server.command(&["INFO", "stats"]);
        let line = stats.lines().find(|line| line.starts_with("total_commands_processed:")).unwrap();
        line.split(':').nth(1).unwrap().trim().parse().unwrap()
    };
    let mut costs = Vec::new();
    let mut line: std::collections::VecDeque<Claim> = std::collections::VecDeque::new();
    let mut holder = claim(&report(), LONG);
    granted(&redis, &holder).await;
    for length in [10, 2000] {
        while line.len() < length {
            let mut waiting = claim(&report(), LONG).queued();
            waiting.place_ttl = LONG;
            queued(&redis, &waiting).await;
            line.push_back(waiting);
        }
        let before = commands(&server);
        release(&redis, &holder).await;
        holder = line.pop_front().unwrap();
        granted(&redis, &holder).await;
        costs.push(commands(&server) - before);
    }
    assert!(costs[1] <= costs[0] + 1, "commands on the server for a hand-over: {costs:?}");
}
