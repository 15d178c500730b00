//! Tests of what `docs/backends/zookeeper.md` says: stored nodes, users, limits, unsupported features,
//! operator's commands.
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]

mod common;

use std::time::Duration;

use common::{LONG_TTL, TIME_LIMIT, claim, client, eventually, granted, in_time, open, release, report};
use leasehold::{
    Backend, BackendExt as _, Effect, EndReason, ErrorKind, Eviction, FencingToken, GoneReason, Handover,
    OperatorAction, OperatorCommand, Query, ReleaseRequest, Released, RenewRequest, Renewal, Share, Verdict,
};
use leasehold_testkit::servers::{Ensemble, ZooKeeperServer};
use zookeeper_client::{Acls, Client, CreateMode, Error as Driver};

async fn raw(server: &ZooKeeperServer) -> Client {
    Client::connect(&format!("127.0.0.1:{}", server.port())).await.expect("the server answers")
}

#[tokio::test]
async fn a_contender_is_in_curators_folder_and_its_czxid_is_the_token() {
    let server = ZooKeeperServer::start();
    let url = server.url().replace("/?", "/app/x?");
    let zookeeper = open(&url).await;
    let ours = claim(&report());
    let grant = granted(&zookeeper, &ours).await;
    let raw = raw(&server).await;
    let folder = "/app/x/leasehold/v1/locks/report/42";
    let names = raw.list_children(folder).await.unwrap();
    let [name] = names.as_slice() else { panic!("{names:?}") };
    assert!(name.starts_with("_c_") && name.contains("-lock-") && name.len() == 3 + 36 + 6 + 10, "{name}");
    let (data, stat) = raw.get_data(&format!("{folder}/{name}")).await.unwrap();
    assert_eq!(u64::try_from(stat.czxid).unwrap(), grant.token.get());
    assert!(stat.ephemeral_owner != 0);
    let data = String::from_utf8(data).unwrap();
    assert!(data.contains("1@host test") && !data.contains(&ours.owner.reveal()), "{data}");
    release(&zookeeper, &ours).await;
    assert!(raw.list_children(folder).await.unwrap().is_empty());
}

#[tokio::test]
async fn others_are_told_when_the_session_of_a_dead_holder_has_ended_at_the_latest() {
    let server = ZooKeeperServer::start();
    let (ours, theirs) = (open(&server.url()).await, open(&server.url()).await);
    granted(&ours, &claim(&report())).await;
    let Ok(Verdict::Blocked(blocked)) = theirs.acquire_one(&claim(&report())).await else {
        panic!("it is held")
    };
    let (session, by) = (Duration::from_secs(2), &blocked.holders[0]);
    assert!(by.remaining > session && by.remaining < session * 2, "{by:?}");
    assert!(by.remaining > theirs.info().limits.ttl, "longer than the holder itself relies on");
}

#[tokio::test]
async fn the_nodes_of_a_user_are_private_to_that_user() {
    let server = ZooKeeperServer::start();
    let as_user =
        |login: &str| server.url().replace("://", &format!("://{login}@")).replace("/?", "/private?");
    let ours = open(&as_user("ann:sesame")).await;
    granted(&ours, &claim(&report())).await;
    // The same user with the password in a file.
    let file = std::env::temp_dir().join(format!("leasehold-zookeeper-password-{}", std::process::id()));
    std::fs::write(&file, "sesame\n").unwrap();
    let same = open(&format!("{}&password_file={}", as_user("ann"), file.display())).await;
    assert!(matches!(same.acquire_one(&claim(&report())).await, Ok(Verdict::Blocked(_))));
    std::fs::remove_file(&file).unwrap();
    for stranger in ["bob:sesame", "ann:guess"] {
        let config = leasehold_zookeeper::Config::parse(&as_user(stranger)).unwrap();
        let environment = std::sync::Arc::new(leasehold::System::current());
        let error = leasehold_zookeeper::ZooKeeper::connect(config, environment).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(!error.to_string().contains("sesame") && !error.to_string().contains("guess"), "{error}");
    }
    let read = raw(&server).await.list_children("/private/leasehold/v1/locks").await;
    assert!(matches!(read, Err(Driver::NoAuth)), "{read:?}");
}

#[tokio::test]
async fn what_a_session_cannot_do_is_unsupported_with_a_reason() {
    let server = ZooKeeperServer::start();
    let zookeeper = open(&server.url()).await;
    let mut brief = claim(&report());
    brief.ttl = Duration::from_millis(400);
    let error = zookeeper.acquire_one(&brief).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("session_timeout"), "{error}");
    let held = claim(&report());
    granted(&zookeeper, &held).await;
    let release_request = ReleaseRequest::new(held.reference()).keeping(LONG_TTL);
    assert_eq!(zookeeper.release_one(&release_request).await.unwrap_err().kind(), ErrorKind::Unsupported);
    release(&zookeeper, &held).await;

    let leases = client(&server.url()).await;
    let request = leases.lease("report", "43").at_least(LONG_TTL).acquire().await;
    assert_eq!(request.unwrap_err().kind(), ErrorKind::Unsupported);
    let lease = leases.lease("report", "43").ttl(LONG_TTL).acquire().await.unwrap();
    assert!(
        lease.ttl() < Duration::from_secs(2),
        "the ttl is shortened to what the session allows: {:?}",
        lease.ttl()
    );
    assert_eq!(lease.extend(LONG_TTL).await.unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(lease.detach().unwrap_err().kind(), ErrorKind::Unsupported);

    let config = leasehold_zookeeper::Config::parse(&server.url().replace("tick=200ms", "tick=2s")).unwrap();
    let environment = std::sync::Arc::new(leasehold::System::current());
    let error = leasehold_zookeeper::ZooKeeper::connect(config, environment).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("tickTime"), "{error}");
}

#[tokio::test]
async fn a_missing_server_is_unavailable_and_a_token_below_the_floor_is_refused() {
    let config = leasehold_zookeeper::Config::parse("zookeeper://127.0.0.1:1").unwrap();
    let environment = std::sync::Arc::new(leasehold::System::current());
    let error = leasehold_zookeeper::ZooKeeper::connect(config, environment).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");

    let server = ZooKeeperServer::start();
    let zookeeper = open(&server.url()).await;
    let ahead = claim(&report()).above(FencingToken::new(1 << 50).unwrap());
    let error = zookeeper.acquire_one(&ahead).await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Invalid, Effect::None), "{error}");
    granted(&zookeeper, &claim(&report())).await;
}

#[tokio::test]
async fn a_writer_becomes_a_reader_without_a_gap_although_another_writer_waits() {
    let server = ZooKeeperServer::start();
    let (a, b) = (open(&server.url()).await, open(&server.url()).await);
    let share = |share: Share| {
        let mut claim = claim(&report());
        claim.share = share;
        claim
    };
    let writer = share(Share::WRITE);
    let first = granted(&a, &writer).await;
    let rival = share(Share::WRITE).queued();
    let Ok(Verdict::Blocked(blocked)) = b.acquire_one(&rival).await else { panic!("a writer holds it") };
    let reader = share(Share::READ).taking_over(Handover::from(writer.owner));
    let second = granted(&a, &reader).await;
    assert_ne!(first.token, second.token);
    assert_eq!(release(&a, &writer).await, Released::AlreadyGone, "the node belongs to the reader now");
    // The rival is still first in the queue, is woken by the change, and has to wait for the reader.
    in_time("the wake-up", b.wait(&rival.reference(), &blocked.cursor, TIME_LIMIT)).await.unwrap();
    assert!(matches!(b.acquire_one(&rival).await, Ok(Verdict::Blocked(blocked)) if blocked.ahead == 0));
    assert!(
        matches!(b.acquire_one(&share(Share::READ)).await, Ok(Verdict::Blocked(_))),
        "no later claim overtakes the rival"
    );
    assert_eq!(release(&a, &reader).await, Released::Now);
    assert!(granted(&b, &rival).await.token > first.token);
}

#[tokio::test]
async fn an_operator_evicts_holders_and_pauses_a_resource() {
    let server = ZooKeeperServer::start();
    let leases = client(&server.url()).await;
    let operator = open(&server.url()).await;
    let command = |action| OperatorCommand::new(report(), action, "ops", "maintenance");
    let lease = leases.lease("report", "42").acquire().await.unwrap();
    operator.order(&command(OperatorAction::Evict(Eviction::AtExpiry))).await.unwrap();
    // The holder learns of it at its next renewal, its lease runs out, and its node is deleted although the
    // session lives.
    assert_eq!(in_time("the eviction", lease.ended()).await, EndReason::Evicted);
    let next = leases.lease("report", "42").wait(TIME_LIMIT).acquire().await.unwrap();
    assert!(next.token() > lease.token());
    operator.order(&command(OperatorAction::Evict(Eviction::Now))).await.unwrap();
    assert_eq!(in_time("the second eviction", next.ended()).await, EndReason::Evicted);
    operator.order(&command(OperatorAction::Pause { lasting: Duration::from_secs(1) })).await.unwrap();
    let third = leases.lease("report", "42").wait(TIME_LIMIT).acquire().await.unwrap();
    assert!(third.token() > next.token(), "a pause ends by itself");
}

#[tokio::test]
async fn a_lease_is_handed_over_within_a_process_while_no_other_process_waits() {
    let server = ZooKeeperServer::start();
    let leases = client(&server.url()).await;
    let mut lease = leases.lease("report", "42").acquire().await.unwrap();
    for _ in 0..5 {
        let next = tokio::spawn(leases.lease("report", "42").wait(TIME_LIMIT).acquire());
        tokio::task::yield_now().await;
        let token = lease.token();
        lease.release().await.unwrap();
        lease = in_time("the handover", next).await.unwrap().unwrap();
        assert!(lease.token() > token);
    }
    lease.check().unwrap();
}

/// An early version without markers evicts like this, and so does an operator with `zkCli.sh`.
#[tokio::test]
async fn a_marker_whose_contender_was_deleted_by_hand_goes_when_its_owner_asks_or_releases() {
    let server = ZooKeeperServer::start();
    let (zookeeper, raw) = (open(&server.url()).await, raw(&server).await);
    let (ours, folder) = (claim(&report()), "/leasehold/v1/locks/report/42");
    let markers = async || raw.list_children("/leasehold/v1/heirs").await.unwrap();
    let delete = async || {
        let names = raw.list_children(folder).await.unwrap();
        let [name] = names.as_slice() else { panic!("{names:?}") };
        raw.delete(&format!("{folder}/{name}"), None).await.unwrap();
    };
    let first = granted(&zookeeper, &ours).await;
    let [marker] = &markers().await[..] else { panic!("there is not exactly one marker") };
    assert!(marker.starts_with(&ours.owner.reveal()), "{marker}");
    delete().await;
    let renewal = zookeeper.renew(&[RenewRequest::new(ours.reference(), LONG_TTL)]).await.remove(0).unwrap();
    assert!(matches!(renewal, Renewal::Gone { why: GoneReason::NotThere }), "{renewal:?}");
    // The same claim again: the stray marker does not block it.
    let second = granted(&zookeeper, &ours).await;
    assert!(second.token > first.token);
    assert_eq!(markers().await.len(), 1);
    delete().await;
    assert_eq!(release(&zookeeper, &ours).await, Released::AlreadyGone);
    assert_eq!(markers().await, Vec::<String>::new());
}

/// A server that is cut off still answers reads for a while. A lease must not rely on them (ADR 0026).
#[tokio::test]
async fn a_holder_whose_server_has_no_majority_stops_by_its_own_clock() {
    let ensemble = Ensemble::start();
    let server = ensemble.follower();
    let follower = server.port();
    let ours = client(&common::url_through(follower)).await;
    let lease = ours.lease("report", "42").wait(TIME_LIMIT).acquire().await.unwrap();
    let others: Vec<_> = ensemble.servers().iter().filter(|server| server.port() != follower).collect();
    others.iter().for_each(|server| server.freeze());
    in_time("the loss", lease.ended()).await;
    assert!(lease.check().is_err());
    assert!(
        server.ask("srvr").contains("Mode: follower"),
        "the server has not noticed yet that it is cut off"
    );
    others.iter().for_each(|server| server.thaw());
    let token = lease.token();
    drop(lease);
    let next = in_time("the next grant", async {
        loop {
            // Until the servers have elected a leader again.
            if let Ok(next) = ours.lease("report", "42").wait(TIME_LIMIT).acquire().await {
                return next;
            }
        }
    })
    .await;
    assert!(next.token() > token);
}

#[tokio::test]
async fn tombstones_past_their_end_are_deleted() {
    let server = ZooKeeperServer::start();
    let zookeeper = open(&server.url()).await;
    let tombstone = |keep| ReleaseRequest::new(claim(&report()).reference()).with_tombstone(keep);
    for _ in 0..5 {
        zookeeper.release_one(&tombstone(Duration::from_millis(1))).await.unwrap();
    }
    let raw = raw(&server).await;
    eventually("the tombstones are deleted", || async {
        zookeeper.release_one(&tombstone(Duration::from_millis(1))).await.unwrap();
        raw.list_children("/leasehold/v1/graves").await.unwrap().len() <= 2
    })
    .await;
    assert!(zookeeper.inspect(&Query::Leaks(leasehold::Listing::of(""))).await.is_ok());
}

#[tokio::test]
async fn a_node_of_another_program_ends_with_its_session_and_without_one_never() {
    let server = ZooKeeperServer::start();
    let zookeeper = open(&server.url()).await;
    let ours = claim(&report());
    granted(&zookeeper, &ours).await;
    release(&zookeeper, &ours).await;
    let raw = raw(&server).await;
    let node = "/leasehold/v1/locks/report/42/_c_2f3b6c1e-0d5a-4c7e-9a53-1b2c3d4e5f60-lock-0000000009";
    for (mode, ends) in [(CreateMode::Ephemeral, true), (CreateMode::Persistent, false)] {
        raw.create(node, b"another program", &mode.with_acls(Acls::anyone_all())).await.unwrap();
        let page = zookeeper.inspect(&Query::One(report())).await.unwrap();
        let lock = page.into_snapshots().remove(0).foreign.remove(0);
        assert_eq!(lock.remaining.is_some(), ends, "{lock:?}");
        raw.delete(node, None).await.unwrap();
    }
}
