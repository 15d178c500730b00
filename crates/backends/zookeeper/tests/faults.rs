//! Faults of the network and of servers: partitions, crashes, stops, lost and late requests and replies.
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]

mod common;

use std::{sync::Arc, time::Duration};

use common::{
    LONG_TTL, TIME_LIMIT, claim, client, eventually, granted, in_time, is_blocked, open, release, report,
    url_through,
};
use leasehold::{
    Backend as _, BackendExt as _, Client, Effect, ErrorKind, GoneReason, Query, Released, RenewRequest,
    Renewal, System, Verdict,
};
use leasehold_testkit::{
    Proxy,
    calls::{holders_and_waiters, token_of},
    scenarios::NetworkScenario,
    servers::{Ensemble, ZooKeeperServer},
};
use leasehold_zookeeper::{Config, ZooKeeper};

/// The server, through a proxy and directly.
async fn scenario(server: &ZooKeeperServer, seed: u64) -> NetworkScenario {
    let proxy = Proxy::start(server.port(), seed).await;
    let (through, direct) = (open(&url_through(proxy.port())).await, open(&server.url()).await);
    NetworkScenario { proxy, through: Arc::new(through), direct: Arc::new(direct) }
}

#[tokio::test]
async fn after_a_partition_the_lease_is_lost_before_the_next_grant_and_stays_lost() {
    let server = ZooKeeperServer::start();
    let scenario = scenario(&server, 1).await;
    let (lost, next) = scenario.partition_past_the_ttl(LONG_TTL).await;
    // Once the first client can queue again, all its delayed requests have reached the server.
    let ours = Client::new(scenario.through.clone());
    let again = tokio::spawn(ours.lease("report", "42").wait(TIME_LIMIT).acquire());
    let queued = || async { holders_and_waiters(&*scenario.direct, &report()).await == (1, 1) };
    eventually("the first client waits again", queued).await;
    assert!(lost.check().is_err(), "a lost lease stays lost");
    next.check().unwrap();
    let token = next.token();
    next.release().await.unwrap();
    assert!(in_time("the third grant", again).await.unwrap().unwrap().token() > token);
}

#[tokio::test]
async fn a_server_that_is_killed_and_restarted_keeps_the_lease_and_the_queue() {
    let server = ZooKeeperServer::start();
    let (ours, theirs) = (client(&server.url()).await, client(&server.url()).await);
    let lease = ours.lease("report", "42").acquire().await.unwrap();
    let next = tokio::spawn(theirs.lease("report", "42").wait(TIME_LIMIT * 2).acquire());
    eventually("the second client waits", || async { theirs.holders_and_waiters().await == (1, 1) }).await;
    server.kill();
    assert!(!next.is_finished());
    server.run_again();
    let granted = next.is_finished();
    assert!(
        !granted || lease.check().is_err(),
        "the next claim is granted only after the holder has stopped"
    );
    // Depending on how long the restart took, the holder has lost its lease or still has it. Both are right.
    let token = lease.token();
    // If the reply to the release is lost with a connection, the engine repeats the release until it is
    // answered.
    drop(in_time("the release", lease.release()).await);
    let next = in_time("the next grant", next).await.unwrap().unwrap();
    assert!(next.token() > token, "tokens grow across a restart");
}

#[tokio::test]
async fn a_short_stop_of_the_server_keeps_the_lease_and_a_long_one_ends_it() {
    let server = ZooKeeperServer::start();
    let ours = client(&server.url().replace("session_timeout=2s", "session_timeout=4s")).await;
    let lease = ours.lease("report", "42").acquire().await.unwrap();
    server.freeze();
    tokio::time::sleep(Duration::from_millis(700)).await;
    server.thaw();
    lease.check().expect("a short stop is not a loss");
    // A stop that is longer than the guaranteed time ends the lease, whatever the server replies later.
    server.freeze();
    in_time("the loss", lease.ended()).await;
    assert!(lease.check().is_err());
    server.thaw();
    let next = ours.lease("report", "42").wait(TIME_LIMIT).acquire().await.unwrap();
    assert!(next.token() > lease.token());
}

#[tokio::test]
async fn a_lost_reply_has_an_unknown_effect_and_the_repeated_claim_finds_its_node() {
    let server = ZooKeeperServer::start();
    let scenario = scenario(&server, 2).await;
    let (ours, _) = scenario.lost_reply(|proxy| proxy.lose_replies(1)).await;
    assert_eq!(release(&*scenario.through, &ours).await, Released::Now);
    assert_eq!(holders_and_waiters(&*scenario.direct, &report()).await, (0, 0));
}

#[tokio::test]
async fn a_request_executed_after_its_owner_gave_up_has_no_effect() {
    let server = ZooKeeperServer::start();
    let scenario = scenario(&server, 3).await;
    token_of(&*scenario.through, &report()).await;
    let received = || server.number("zk_packets_received").unsigned_abs();
    let late = scenario.late_acquire(Some(Duration::from_millis(200)), received).await;
    granted(&*scenario.direct, &claim(&report())).await;
    assert!(matches!(scenario.through.acquire_one(&late).await.unwrap(), Verdict::Cancelled));
    let contenders = holders_and_waiters(&*scenario.direct, &report()).await;
    assert_eq!(contenders, (1, 0), "the tombstone has refused the late request");
}

#[tokio::test]
async fn a_connection_cut_after_any_byte_never_leads_to_a_wrong_result() {
    let server = ZooKeeperServer::start();
    let scenario = scenario(&server, 4).await;
    for cut in scenario.connection_cut_anywhere(&[1, 40, 150, 400]).await {
        cut.assert_unknown_effect();
    }
}

#[tokio::test]
async fn after_a_session_has_ended_the_next_renewal_says_gone_and_a_new_session_begins() {
    let server = ZooKeeperServer::start();
    let proxy = Proxy::start(server.port(), 5).await;
    let (ours, direct) = (open(&url_through(proxy.port())).await, open(&server.url()).await);
    let held = claim(&report());
    let first = granted(&ours, &held).await;
    proxy.black_hole();
    eventually("the session ends", || async { holders_and_waiters(&direct, &report()).await == (0, 0) })
        .await;
    proxy.heal();
    let renewed = in_time("the renewal", async {
        loop {
            let renewal =
                ours.renew(&[RenewRequest::new(held.reference(), Duration::from_secs(60))]).await.remove(0);
            if let Ok(renewal) = renewal {
                return renewal;
            }
        }
    })
    .await;
    assert!(matches!(renewed, Renewal::Gone { why: GoneReason::NotThere }), "{renewed:?}");
    let second = in_time("the next grant", granted(&ours, &claim(&report()))).await;
    assert!(second.token > first.token);
    assert!(is_blocked(&direct, &claim(&report())).await);
}

#[tokio::test]
async fn an_ensemble_that_loses_a_follower_and_then_its_leader_loses_no_lease() {
    let ensemble = Ensemble::start();
    let url = ensemble.url();
    let (ours, theirs) = (client(&url).await, client(&url).await);
    let mut token = None;
    for victim in ["follower", "leader"] {
        let lease = ours.lease("report", "42").wait(TIME_LIMIT).acquire().await.unwrap();
        assert!(token < Some(lease.token()), "tokens grow across leaders");
        let next = tokio::spawn(theirs.lease("report", "42").wait(TIME_LIMIT * 2).acquire());
        eventually("the second client waits", || async { theirs.holders_and_waiters().await == (1, 1) })
            .await;
        let server = if victim == "leader" { ensemble.leader() } else { ensemble.follower() };
        server.kill();
        let granted = next.is_finished();
        assert!(
            !granted || lease.check().is_err(),
            "the next claim is granted only after the holder has stopped"
        );
        // The remaining servers have elected a leader.
        eventually("the ensemble serves", || async { theirs.holders_and_waiters().await.0 > 0 }).await;
        let before = lease.token();
        // If the reply to the release is lost with the server, the engine repeats the release until it is
        // answered.
        drop(in_time("the release", lease.release()).await);
        let next = in_time("the next grant", next).await.unwrap().unwrap();
        assert!(next.token() > before, "tokens grow");
        token = Some(next.token());
        next.release().await.unwrap();
        server.run_again();
    }
}

/// Reads holders and waiters through a client.
trait ReadsQueue {
    /// How many claims hold and wait for the resource; (0, 0) if the servers do not answer.
    async fn holders_and_waiters(&self) -> (u32, u32);
}

impl ReadsQueue for leasehold::Client {
    async fn holders_and_waiters(&self) -> (u32, u32) {
        match self.inspect(&Query::One(report())).await {
            Ok(page) => {
                let snapshot = page.into_snapshots().remove(0);
                (snapshot.holder_count, snapshot.queue_length)
            }
            Err(_) => (0, 0),
        }
    }
}

#[tokio::test]
async fn an_error_of_connecting_says_which_server_and_why() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent_port = silent.local_addr().unwrap().port();
    let mute = format!("127.0.0.1:{silent_port}");
    let table = [
        ("127.0.0.1:1".to_owned(), "cannot connect to 127.0.0.1:1: connection refused".to_owned()),
        (
            "127.0.0.1:1,127.0.0.1:2".to_owned(),
            "cannot connect to 127.0.0.1:1: connection refused; 127.0.0.1:2: connection refused".to_owned(),
        ),
        (
            "no-such-host.invalid".to_owned(),
            "cannot connect to no-such-host.invalid:2181: the host name cannot be resolved".to_owned(),
        ),
        (mute.clone(), format!("cannot connect to {mute}: it accepts a connection, but gave no session")),
    ];
    for (servers, message) in table {
        let config = Config::parse(&format!("zookeeper://{servers}?connect_timeout=1s")).unwrap();
        let error = ZooKeeper::connect(config, Arc::new(System::current())).await.unwrap_err();
        assert!(error.to_string().starts_with(&message), "{error}");
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::None), "{error:?}");
    }
}
