//! What goes wrong with networks and servers, and what must come of it.
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]

mod common;

use std::time::Duration;

use common::{
    PATIENCE, claim, client, eventually, granted, in_time, is_blocked, open, release, report, through,
};
use leasehold::{
    Backend, Effect, Error, ErrorKind, GoneReason, Query, ReleaseRequest, Released, RenewRequest, Renewal,
    Verdict,
};
use leasehold_testkit::{
    Proxy,
    proxy::Direction,
    servers::{Ensemble, ZooKeeperServer},
};

fn says(error: &Error) -> (ErrorKind, Effect) {
    (error.kind(), error.effect())
}

async fn there(backend: &dyn Backend) -> (u32, u32) {
    let page = backend.inspect(&Query::One(report())).await.expect("inspect answers");
    let seen = page.into_snapshots().remove(0);
    (seen.holder_count, seen.queue_length)
}

#[tokio::test]
async fn a_partition_past_the_session_is_a_loss_told_in_time_and_healing_revives_nothing() {
    let server = ZooKeeperServer::start();
    let proxy = Proxy::start(server.port(), 1).await;
    let (ours, theirs) = (client(&through(proxy.port())).await, client(&server.url()).await);
    let lease = ours.lease("report", "42").acquire().await.unwrap();
    proxy.black_hole();
    let next = tokio::spawn(theirs.lease("report", "42").wait(PATIENCE).acquire());
    in_time("the loss", lease.ended()).await;
    assert!(!next.is_finished(), "told before anyone else is granted");
    assert!(lease.check().is_err());
    let next = in_time("the next grant", next).await.unwrap().unwrap();
    assert!(next.token() > lease.token());
    proxy.heal();
    // Once the lost one can be asked for again, everything of it has come through.
    let again = tokio::spawn(ours.lease("report", "42").wait(PATIENCE).acquire());
    eventually("it waits again", || async { theirs.backend_line().await == (1, 1) }).await;
    assert!(lease.check().is_err(), "loss latches");
    next.check().unwrap();
    let token = next.token();
    next.release().await.unwrap();
    assert!(in_time("the third grant", again).await.unwrap().unwrap().token() > token);
}

#[tokio::test]
async fn a_server_killed_and_restarted_keeps_lease_and_line() {
    let server = ZooKeeperServer::start();
    let (ours, theirs) = (client(&server.url()).await, client(&server.url()).await);
    let lease = ours.lease("report", "42").acquire().await.unwrap();
    let next = tokio::spawn(theirs.lease("report", "42").wait(PATIENCE * 2).acquire());
    eventually("it waits", || async { theirs.backend_line().await == (1, 1) }).await;
    server.kill();
    assert!(!next.is_finished());
    server.run_again();
    let granted = next.is_finished();
    assert!(!granted || lease.check().is_err(), "nobody is granted beside a holder who was not told");
    // Whether the restart took longer than what was vouched for is the machine's affair: it was told, or it holds on.
    let token = lease.token();
    // A farewell whose answer is lost with a connection is said again, until it is answered.
    drop(in_time("the release", lease.release()).await);
    let next = in_time("the next grant", next).await.unwrap().unwrap();
    assert!(next.token() > token, "tokens grow across a restart");
}

#[tokio::test]
async fn a_server_that_stops_for_a_while_costs_nothing_or_is_told() {
    let server = ZooKeeperServer::start();
    let ours = client(&server.url().replace("session_timeout=2s", "session_timeout=4s")).await;
    let lease = ours.lease("report", "42").acquire().await.unwrap();
    server.freeze();
    tokio::time::sleep(Duration::from_millis(700)).await;
    server.thaw();
    lease.check().expect("a short stop is not a loss");
    // And one past all that is vouched for is told, whatever the server will say later.
    server.freeze();
    in_time("the loss", lease.ended()).await;
    assert!(lease.check().is_err());
    server.thaw();
    let next = ours.lease("report", "42").wait(PATIENCE).acquire().await.unwrap();
    assert!(next.token() > lease.token());
}

#[tokio::test]
async fn a_reply_lost_after_execution_is_unknown_and_asking_again_finds_the_same_node() {
    let server = ZooKeeperServer::start();
    let proxy = Proxy::start(server.port(), 2).await;
    let (zookeeper, direct) = (open(&through(proxy.port())).await, open(&server.url()).await);
    let first = claim(&report());
    granted(&zookeeper, &first).await;
    release(&zookeeper, &first).await;
    proxy.lose_replies(1);
    let ours = claim(&report());
    let error = in_time("the answer", zookeeper.acquire(&ours)).await.unwrap_err();
    assert_eq!(says(&error), (ErrorKind::Unavailable, Effect::Unknown));
    eventually("the server has executed it", || async { there(&direct).await == (1, 0) }).await;
    let before = direct.inspect(&Query::One(report())).await.unwrap().into_snapshots().remove(0);
    let grant = in_time("asking again", granted(&zookeeper, &ours)).await;
    assert_eq!(grant.token, before.holders[0].token, "granted once");
    assert_eq!(there(&direct).await, (1, 0), "one node");
    assert_eq!(release(&zookeeper, &ours).await, Released::Now);
    assert_eq!(there(&direct).await, (0, 0));
}

#[tokio::test]
async fn a_request_executed_after_its_owner_gave_up_comes_to_nothing() {
    let server = ZooKeeperServer::start();
    let proxy = Proxy::start(server.port(), 3).await;
    let (slow, direct) = (open(&through(proxy.port())).await, open(&server.url()).await);
    let first = claim(&report());
    granted(&slow, &first).await;
    release(&slow, &first).await;
    proxy.hold(Direction::Requests);
    let ours = claim(&report());
    assert!(tokio::time::timeout(Duration::from_millis(200), slow.acquire(&ours)).await.is_err());
    let request = ReleaseRequest::new(ours.reference())
        .with_tombstone(ReleaseRequest::tombstone_ttl(Duration::from_secs(60)));
    assert_eq!(direct.release(&request).await.unwrap(), Released::AlreadyGone);
    let before = server.number("zk_packets_received");
    proxy.heal();
    eventually("the late execution", || async { server.number("zk_packets_received") > before }).await;
    let next = claim(&report());
    granted(&direct, &next).await;
    assert!(matches!(slow.acquire(&ours).await.unwrap(), Verdict::Cancelled));
    assert_eq!(there(&direct).await, (1, 0), "the tombstone stopped it");
}

#[tokio::test]
async fn a_connection_cut_anywhere_never_makes_a_wrong_answer() {
    let server = ZooKeeperServer::start();
    let proxy = Proxy::start(server.port(), 4).await;
    let (zookeeper, direct) = (open(&through(proxy.port())).await, open(&server.url()).await);
    let cuts = [Direction::Requests, Direction::Replies]
        .into_iter()
        .flat_map(|way| [1, 40, 150, 400].map(|n| (way, n)));
    let mut last = None;
    for (way, bytes) in cuts {
        let ours = claim(&report());
        proxy.cut_after(way, bytes);
        let first = match in_time("the answer", zookeeper.acquire(&ours)).await {
            Ok(Verdict::Granted(grant)) => Some(grant),
            Ok(other) => panic!("{way:?} after {bytes}: {other:?}"),
            Err(error) => {
                assert_eq!(says(&error), (ErrorKind::Unavailable, Effect::Unknown));
                None
            }
        };
        // Whatever became of it, asking again and releasing is safe.
        let mut again = None;
        while again.is_none() {
            again = match in_time("the second answer", zookeeper.acquire(&ours)).await {
                Ok(Verdict::Granted(grant)) => Some(grant.token),
                Ok(other) => panic!("{way:?} after {bytes}, again: {other:?}"),
                Err(_) => None,
            };
        }
        assert!(first.is_none_or(|first| Some(first.token) == again), "one grant, one token");
        assert!(last < again, "tokens grow");
        last = again;
        assert_eq!(there(&direct).await, (1, 0), "{way:?} after {bytes}");
        eventually("the release", || async {
            zookeeper.release(&ReleaseRequest::new(ours.reference())).await.is_ok()
        })
        .await;
        assert_eq!(there(&direct).await, (0, 0), "{way:?} after {bytes}: nothing is left");
    }
}

#[tokio::test]
async fn a_session_that_ended_is_gone_at_the_next_renewal_and_a_new_one_takes_over() {
    let server = ZooKeeperServer::start();
    let proxy = Proxy::start(server.port(), 5).await;
    let (ours, direct) = (open(&through(proxy.port())).await, open(&server.url()).await);
    let held = claim(&report());
    let first = granted(&ours, &held).await;
    proxy.black_hole();
    eventually("the session ends", || async { there(&direct).await == (0, 0) }).await;
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
async fn an_ensemble_loses_a_follower_and_then_its_leader_and_no_lease() {
    let ensemble = Ensemble::start();
    let url = ensemble.url();
    let (ours, theirs) = (client(&url).await, client(&url).await);
    let mut token = None;
    for victim in ["follower", "leader"] {
        let lease = ours.lease("report", "42").wait(PATIENCE).acquire().await.unwrap();
        assert!(token < Some(lease.token()), "tokens grow across leaders");
        let next = tokio::spawn(theirs.lease("report", "42").wait(PATIENCE * 2).acquire());
        eventually("it waits", || async { theirs.backend_line().await == (1, 1) }).await;
        let server = if victim == "leader" { ensemble.leader() } else { ensemble.follower() };
        server.kill();
        let granted = next.is_finished();
        assert!(!granted || lease.check().is_err(), "nobody is granted beside a holder who was not told");
        // Served again by those that are left.
        eventually("the ensemble serves", || async { theirs.backend_line().await.0 > 0 }).await;
        let before = lease.token();
        // A farewell whose answer is lost with a server is said again, until it is answered.
        drop(in_time("the release", lease.release()).await);
        let next = in_time("the next grant", next).await.unwrap().unwrap();
        assert!(next.token() > before, "tokens grow");
        token = Some(next.token());
        next.release().await.unwrap();
        server.run_again();
    }
}

/// What a client sees of the line.
trait BackendLine {
    async fn backend_line(&self) -> (u32, u32);
}

impl BackendLine for leasehold::Client {
    async fn backend_line(&self) -> (u32, u32) {
        match self.inspect(&Query::One(report())).await {
            Ok(page) => {
                let seen = page.into_snapshots().remove(0);
                (seen.holder_count, seen.queue_length)
            }
            Err(_) => (0, 0),
        }
    }
}
