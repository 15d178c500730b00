//! Clients whose network or servers are slow for a while: once that is over, nothing of theirs is left behind.
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]

mod common;

use std::time::{Duration, Instant};

use common::{PATIENCE, client, eventually, frames::Frames, in_time, through};
use leasehold_testkit::servers::{Ensemble, ZooKeeperServer};

/// How long somebody waits for what nobody uses.
const SOON: Duration = Duration::from_secs(5);

/// Two tasks of one client ask while its replies are late, so that the first one asks again and again. Then it is granted,
/// and hands over to the second one.
async fn two_tasks_of_a_slow_client(server: &ZooKeeperServer, session: &str) {
    let frames = Frames::start(server.port()).await;
    let a = client(&through(frames.port()).replace("session_timeout=2s", session)).await;
    let (b, c) = (client(&server.url()).await, client(&server.url()).await);
    let held = b.lease("report", session).acquire().await.expect("it is free");
    frames.lag(Duration::from_millis(1_300));
    let ask = || {
        let request = a.lease("report", session).wait(PATIENCE);
        tokio::spawn(async move {
            let lease = request.acquire().await?;
            lease.release().await
        })
    };
    let tasks = [ask(), ask()];
    tokio::time::sleep(Duration::from_millis(2_600)).await;
    frames.lag(Duration::from_millis(650));
    tokio::time::sleep(Duration::from_millis(2_600)).await;
    frames.lag(Duration::ZERO);
    held.release().await.expect("release answers");
    for task in tasks {
        in_time("a task of the slow client", task).await.expect("no panic").expect("nobody else holds it");
    }
    // The slow client lives on, and has nothing to do.
    let next = c.lease("report", session).wait(SOON).acquire().await.expect("nobody holds it");
    let seen = c.look("report", session).await.expect("look answers");
    assert_eq!((seen.holder_count, seen.queue_length), (1, 0), "{seen:?}");
    next.release().await.expect("release answers");
}

#[tokio::test]
async fn two_tasks_that_asked_again_and_again_leave_nothing() {
    let server = ZooKeeperServer::start();
    tokio::join!(
        two_tasks_of_a_slow_client(&server, "session_timeout=2s"),
        two_tasks_of_a_slow_client(&server, "session_timeout=3s"),
        two_tasks_of_a_slow_client(&server, "session_timeout=4s"),
    );
}

/// A majority of the servers stops for short times, again and again.
#[tokio::test(flavor = "multi_thread")]
async fn stops_of_a_majority_leave_nothing() {
    const RESOURCES: [&str; 4] = ["1", "2", "3", "4"];
    let ensemble = Ensemble::start();
    // What is vouched for is short and the driver patient, so that a claim is asked for more than once in one stop.
    let url = ensemble.url().replace("session_timeout=3s&tick=200ms", "session_timeout=4s&tick=1600ms");
    let (a, b) = (client(&url).await, client(&url).await);
    let until = Instant::now() + Duration::from_secs(20);
    let mut tasks = tokio::task::JoinSet::new();
    for client in [&a, &b] {
        for task in 0..3 * RESOURCES.len() {
            let (client, id) = (client.clone(), RESOURCES[task % RESOURCES.len()]);
            tasks.spawn(async move {
                while Instant::now() < until {
                    let request = client.lease("report", id).wait(Duration::from_secs(3));
                    if let Ok(lease) = request.acquire().await {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                        drop(lease.release().await);
                    }
                }
            });
        }
    }
    let stops = [500, 1_500, 800, 2_500, 600, 1_200, 3_500, 700].map(Duration::from_millis);
    for stop in stops.into_iter().cycle().take_while(|_| Instant::now() < until) {
        let stopped = [ensemble.leader(), ensemble.follower()];
        stopped.iter().for_each(|server| server.freeze());
        tokio::time::sleep(stop).await;
        stopped.iter().for_each(|server| server.thaw());
        tokio::time::sleep(Duration::from_millis(700)).await;
    }
    while let Some(done) = in_time("the last tasks", tasks.join_next()).await {
        done.unwrap();
    }
    in_time("what is left to do", a.shutdown()).await;
    in_time("what is left to do", b.shutdown()).await;
    // The first two are still there, idle.
    let c = client(&url).await;
    for id in RESOURCES {
        eventually("the ensemble answers", || async { c.look("report", id).await.is_ok() }).await;
        let seen = c.look("report", id).await.unwrap();
        assert_eq!((seen.holder_count, seen.queue_length), (0, 0), "report/{id} is left behind: {seen:?}");
        let next = c.lease("report", id).wait(PATIENCE).acquire().await.unwrap();
        next.release().await.unwrap();
    }
}
