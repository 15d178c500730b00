//! Waiters in processes of their own, which are killed and stopped: those behind them are granted without them.
//!
//! This program is also the client process: it is one when it is started with a URL.
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]

mod common;

use std::{
    future::Future,
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};

use common::{LONG, TIMEOUT, claim, eventually, granted, in_time, open, release, report};
use leasehold::{Backend as _, BackendExt as _, Client, Query, QueueEntry, Verdict};
use leasehold_redis::Redis;
use leasehold_testkit::{
    ClientProcess, client_process,
    scenarios::ProcessScenario,
    servers::{RedisCluster, RedisServer},
};

/// A live waiter is granted at once, because nobody receives the wake-ups of the dead ones. On a loaded machine the server
/// may learn of a death only after it has sent a wake-up: then it takes a second, and until the next waiter is heard. Without
/// passing over, it would take six.
const GRANTED_WITHIN: Duration = Duration::from_secs(4);
const TTL: Duration = Duration::from_secs(2);
const PERMITS: u32 = 3;
const DEAD_PERMIT_WAITERS: usize = 5;

fn main() -> ExitCode {
    client_process::program_with_tests(
        "redis",
        program,
        &[
            ("a_hundred_killed_waiters_do_not_delay_the_next_one", a_hundred_killed_waiters),
            ("on_a_cluster_killed_waiters_do_not_delay_the_next_one", killed_waiters_on_a_cluster),
            ("a_killed_holder_and_a_killed_waiter_cost_the_ttl_of_the_lease", killed_holder_and_waiter),
            ("a_stopped_waiter_loses_a_turn_and_not_its_place", stopped_waiter),
            ("killed_waiters_for_permits_do_not_delay_the_next_ones", killed_waiters_for_permits),
            ("a_waiter_whose_wakeups_nobody_receives_is_silent_at_once", silent_at_once),
            ("waiters_of_a_client_that_lost_its_listener_keep_their_places", lost_listener),
        ],
    )
}

/// The client process: with `permits` as its second argument, it waits for permits until it is killed.
fn program() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.get(1).is_none_or(|second| second != "permits") {
        return client_process::main();
    }
    run(async {
        let client = leasehold::connect(&arguments[0]).await.expect("the server is there");
        println!("waiting");
        let semaphore = client.semaphore("report", "42", PERMITS);
        let mut waiting = tokio::task::JoinSet::new();
        for _ in 0..DEAD_PERMIT_WAITERS {
            waiting.spawn(semaphore.permits(1).fair().wait_forever().acquire());
        }
        waiting.join_next().await;
    });
    ExitCode::SUCCESS
}

fn run<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime can be made").block_on(work)
}

fn this_program() -> PathBuf {
    std::env::current_exe().expect("this program has a path")
}

fn assert_soon(what: &str, took: Duration) {
    println!("{what}: {took:?}");
    assert!(took < GRANTED_WITHIN, "{what}: {took:?}");
}

fn a_hundred_killed_waiters() {
    let server = RedisServer::start();
    let (program, url) = (this_program(), server.url());
    let scenario = ProcessScenario { program: &program, url: &url, ttl: LONG };
    assert_soon("granted after a release", scenario.killed_waiters_are_passed_over());
}

fn killed_waiters_on_a_cluster() {
    let cluster = RedisCluster::start();
    let (program, url) = (this_program(), cluster.url());
    let scenario = ProcessScenario { program: &program, url: &url, ttl: LONG };
    assert_soon("granted after a release", scenario.killed_waiters_are_passed_over());
}

fn killed_holder_and_waiter() {
    let server = RedisServer::start();
    let (program, url) = (this_program(), server.url());
    let took = ProcessScenario { program: &program, url: &url, ttl: TTL }.holder_and_first_waiter_killed();
    assert_soon("granted after the lease had expired", took.saturating_sub(TTL));
}

fn stopped_waiter() {
    let server = RedisServer::start();
    let (program, url) = (this_program(), server.url());
    ProcessScenario { program: &program, url: &url, ttl: LONG }.stopped_waiter_loses_a_turn();
}

async fn queue(redis: &Redis) -> Vec<QueueEntry> {
    let page = redis.inspect(&Query::One(report())).await.expect("the server is there");
    page.into_snapshots().remove(0).queue
}

async fn queue_has(redis: &Redis, length: usize) {
    eventually("the waiters are queued", || async { queue(redis).await.len() == length }).await;
}

fn killed_waiters_for_permits() {
    let server = RedisServer::start();
    let url = server.url();
    run(async {
        let redis = open(&url).await;
        let (holder, live) = (client(&url).await, client(&url).await);
        let mut held = Vec::new();
        for _ in 0..PERMITS {
            held.push(
                holder
                    .semaphore("report", "42", PERMITS)
                    .permits(1)
                    .acquire()
                    .await
                    .expect("a permit is free"),
            );
        }
        let dead = ClientProcess::start_with(&this_program(), &[&url, "permits"]);
        queue_has(&redis, DEAD_PERMIT_WAITERS).await;
        let semaphore = live.semaphore("report", "42", PERMITS);
        let waiting: Vec<_> =
            (0..PERMITS).map(|_| tokio::spawn(semaphore.permits(1).fair().wait(TIMEOUT).acquire())).collect();
        queue_has(&redis, DEAD_PERMIT_WAITERS + PERMITS as usize).await;
        dead.kill();
        let released = Instant::now();
        for permit in held {
            permit.release().await.expect("it is released");
        }
        let mut permits = Vec::new();
        for waiter in waiting {
            permits.push(waiter.await.expect("it does not panic").expect("it is granted"));
        }
        assert_soon("three permits granted", released.elapsed());
    });
}

async fn client(url: &str) -> Client {
    leasehold::connect(url).await.expect("the server is there")
}

async fn until_subscribers(server: &RedisServer, count: usize) {
    let subscribers = || server.command(&["CLIENT", "LIST", "TYPE", "pubsub"]);
    eventually("the subscriptions", || async {
        subscribers().lines().filter(|line| !line.is_empty()).count() == count
    })
    .await;
}

/// No time passes here: the first request after the release is granted.
fn silent_at_once() {
    let server = RedisServer::start();
    let url = server.url();
    run(async {
        let redis = open(&url).await;
        let ours = claim(&report(), LONG);
        granted(&redis, &ours).await;
        let dead = ClientProcess::start(&this_program(), &url, "report/42", LONG);
        queue_has(&redis, 1).await;
        until_subscribers(&server, 1).await;
        // The subscription is there, but the waiter says so with its next request.
        eventually("the waiter has said that it hears", || async {
            let records = server.command(&["HVALS", "lock:v1:{report/42}:claims"]);
            records.contains("|+")
        })
        .await;
        let live = claim(&report(), LONG).queued();
        assert!(matches!(redis.acquire_one(&live).await, Ok(Verdict::Blocked(_))));
        dead.kill();
        until_subscribers(&server, 0).await;
        release(&redis, &ours).await;
        assert!(queue(&redis).await[0].silent, "nobody received the wake-up of the first waiter");
        granted(&redis, &live).await;
    });
}

/// The connection for wake-ups breaks, and meanwhile the holder releases. The waiters may lose a turn, but they ask at once, and
/// all of them are granted.
fn lost_listener() {
    let server = RedisServer::start();
    let url = server.url();
    run(async {
        let redis = open(&url).await;
        let ours = claim(&report(), LONG);
        granted(&redis, &ours).await;
        let waiting = client(&url).await;
        let mut waiters = tokio::task::JoinSet::new();
        for _ in 0..10 {
            let request = waiting.lease("report", "42").fair().wait(TIMEOUT);
            waiters.spawn(async move { request.acquire().await?.release().await });
        }
        queue_has(&redis, 10).await;
        until_subscribers(&server, 1).await;
        server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        release(&redis, &ours).await;
        while let Some(waiter) = in_time("a grant", waiters.join_next()).await {
            waiter.expect("it does not panic").expect("it is granted");
        }
    });
}
