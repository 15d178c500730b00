//! Clients whose network or servers are slow for a while. Once that is over, none of their contenders may
//! remain.
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]

mod common;

use std::time::{Duration, Instant};

use common::{TIME_LIMIT, client, eventually, frame_proxy::FrameProxy, in_time, url_through};
use leasehold_testkit::servers::{Ensemble, ZooKeeperServer};

/// How long a claim waits for a resource that must be free.
const FREE_WITHIN: Duration = Duration::from_secs(5);

/// Two tasks of one client acquire while its replies are late, so that the engine repeats the first request
/// several times. Then the first task is granted, and hands over to the second one.
async fn two_tasks_of_a_slow_client(server: &ZooKeeperServer, session: &str) {
    let proxy = FrameProxy::start(server.port()).await;
    let a = client(&url_through(proxy.port()).replace("session_timeout=2s", session)).await;
    let (b, c) = (client(&server.url()).await, client(&server.url()).await);
    let held = b.lease("report", session).acquire().await.expect("it is free");
    proxy.delay_replies(Duration::from_millis(1_300));
    let acquire_and_release = || {
        let request = a.lease("report", session).wait(TIME_LIMIT);
        tokio::spawn(async move {
            let lease = request.acquire().await?;
            lease.release().await
        })
    };
    let tasks = [acquire_and_release(), acquire_and_release()];
    tokio::time::sleep(Duration::from_millis(2_600)).await;
    proxy.delay_replies(Duration::from_millis(650));
    tokio::time::sleep(Duration::from_millis(2_600)).await;
    proxy.delay_replies(Duration::ZERO);
    held.release().await.expect("the release is answered");
    for task in tasks {
        in_time("a task of the slow client", task).await.expect("no panic").expect("no other claim holds it");
    }
    // The slow client still has its session, but no claim.
    let next = c.lease("report", session).wait(FREE_WITHIN).acquire().await.expect("no claim holds it");
    let snapshot = c.look("report", session).await.expect("look is answered");
    assert_eq!((snapshot.holder_count, snapshot.queue_length), (1, 0), "{snapshot:?}");
    next.release().await.expect("the release is answered");
}

#[tokio::test]
async fn two_tasks_whose_requests_were_repeated_leave_no_contender() {
    let server = ZooKeeperServer::start();
    tokio::join!(
        two_tasks_of_a_slow_client(&server, "session_timeout=2s"),
        two_tasks_of_a_slow_client(&server, "session_timeout=3s"),
        two_tasks_of_a_slow_client(&server, "session_timeout=4s"),
    );
}

/// A majority of the servers is stopped for short times, several times.
#[tokio::test(flavor = "multi_thread")]
async fn short_stops_of_a_majority_leave_no_contender() {
    const RESOURCES: [&str; 4] = ["1", "2", "3", "4"];
    let ensemble = Ensemble::start();
    // Leases are short and the driver waits long, so that the engine repeats a claim more than once during
    // one stop.
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
    in_time("the cleanup of the first client", a.shutdown()).await;
    in_time("the cleanup of the second client", b.shutdown()).await;
    // The sessions of the first two clients still exist.
    let c = client(&url).await;
    for id in RESOURCES {
        eventually("the ensemble answers", || async { c.look("report", id).await.is_ok() }).await;
        let snapshot = c.look("report", id).await.unwrap();
        assert_eq!(
            (snapshot.holder_count, snapshot.queue_length),
            (0, 0),
            "report/{id} still has contenders: {snapshot:?}"
        );
        let next = c.lease("report", id).wait(TIME_LIMIT).acquire().await.unwrap();
        next.release().await.unwrap();
    }
}
