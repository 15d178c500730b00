//! A cluster whose slots move: holders, waiters and new claims.
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]

#[path = "common/acl.rs"]
mod acl;
mod common;

use std::time::{Duration, Instant};

use common::{
    LONG, TIMEOUT, claim, client, eventually, granted, in_time, is_blocked, open, report, token_of,
};
use leasehold::{
    Backend, BackendExt as _, Client, Effect, ErrorKind, ReleaseRequest, Released, Renewal, Share, Verdict,
};
use leasehold_testkit::servers::RedisCluster;

fn blocking<T>(work: impl FnOnce() -> T) -> T {
    tokio::task::block_in_place(work)
}

async fn is_cancelled(backend: &dyn Backend, claim: &leasehold::Claim) -> bool {
    matches!(backend.acquire_one(claim).await, Ok(Verdict::Cancelled))
}

async fn hold_many(client: &Client, kind: &str, count: usize, ttl: Duration) -> Vec<leasehold::Lease> {
    let asked: Vec<_> = (0..count)
        .map(|number| tokio::spawn(client.lease(kind, &number.to_string()).ttl(ttl).wait(TIMEOUT).acquire()))
        .collect();
    let mut held = Vec::new();
    for lease in asked {
        held.push(lease.await.expect("it does not panic").expect("the cluster grants"));
    }
    held
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holders_and_new_clients_follow_a_moved_slot() {
    let cluster = blocking(RedisCluster::start);
    let redis = open(&cluster.url()).await;
    let ours = claim(&report(), LONG);
    let token = granted(&redis, &ours).await.token;
    let slot = cluster.slot("report/42");
    let to = cluster.other_than(slot);
    let failure_domain = redis.failure_domain(&report());
    blocking(|| cluster.move_slots(slot..=slot, to));
    assert!(is_blocked(&redis, &claim(&report(), LONG)).await);
    assert_eq!(granted(&redis, &ours).await.token, token, "the lease moved with its slot");
    assert_ne!(redis.failure_domain(&report()), failure_domain, "the failure domain is the new node");
    let answer = common::renew(&redis, ours.reference(), LONG).await;
    assert!(matches!(answer, Renewal::Renewed(_)), "{answer:?}");
    // A client that starts after the move, and one that learned of it from a redirect.
    assert_eq!(common::release(&open(&cluster.url()).await, &ours).await, Released::Now);
    assert!(token_of(&redis, &report()).await > token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_a_slot_moves_a_plain_lease_is_granted_on_the_owner_key_alone() {
    let cluster = blocking(RedisCluster::start);
    let redis = open(&cluster.url()).await;
    let before = token_of(&redis, &report()).await;
    let slot = cluster.slot("report/42");
    let (from, to) = (cluster.owner(slot), cluster.other_than(slot));
    blocking(|| cluster.begin_move(slot..=slot, from, to));
    let ours = claim(&report(), LONG);
    let grant = granted(&redis, &ours).await;
    assert!(grant.token > before && grant.remaining == LONG, "{grant:?}");
    assert_eq!(granted(&redis, &ours).await.token, grant.token, "asking again is the same grant");
    let theirs = claim(&report(), LONG).queued();
    match redis.acquire_one(&theirs).await.unwrap() {
        Verdict::Blocked(blocked) => {
            assert!(!blocked.queued && blocked.changes_in.is_some());
            assert_eq!(blocked.holders[0].token, grant.token);
        }
        other => panic!("it is held: {other:?}"),
    }
    let answer = common::renew(&redis, ours.reference(), LONG).await;
    assert!(matches!(answer, Renewal::Renewed(_)), "{answer:?}");
    blocking(|| cluster.move_keys(slot..=slot, from, to));
    let answer = common::renew(&redis, ours.reference(), LONG).await;
    assert!(matches!(answer, Renewal::Renewed(_)), "its key is on the other node: {answer:?}");
    assert_eq!(common::release(&redis, &ours).await, Released::Now);
    let next = granted(&redis, &theirs).await;
    assert!(next.token > grant.token);
    blocking(|| cluster.end_move(slot..=slot, from, to));
    assert_eq!(granted(&redis, &theirs).await.token, next.token, "the scripts find the grant");
    assert_eq!(common::release(&redis, &theirs).await, Released::Now);
    assert!(token_of(&redis, &report()).await > next.token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_a_slot_moves_a_leader_keeps_its_lease() {
    let cluster = blocking(RedisCluster::start);
    let redis = open(&cluster.url()).await;
    let leader = claim(&report(), LONG).with_note(*b"host-a");
    let token = granted(&redis, &leader).await.token;
    let slot = cluster.slot("report/42");
    let (from, to) = (cluster.owner(slot), cluster.other_than(slot));
    blocking(|| cluster.begin_move(slot..=slot, from, to));
    for moved in [false, true] {
        if moved {
            blocking(|| cluster.move_keys(slot..=slot, from, to));
        }
        match common::renew(&redis, leader.reference(), LONG * 2).await {
            Renewal::Renewed(kept) => assert_eq!((kept.token, kept.remaining), (token, LONG * 2)),
            other => panic!("the leader lost its lease: {other:?}"),
        }
        let rival = claim(&report(), LONG).with_note(*b"host-b");
        let error = redis.acquire_one(&rival).await.unwrap_err();
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::None));
    }
    blocking(|| cluster.end_move(slot..=slot, from, to));
    let Ok(leasehold::Page::Resources { snapshots, .. }) =
        redis.inspect(&leasehold::Query::One(report())).await
    else {
        panic!("expected a page of resources")
    };
    assert_eq!(snapshots[0].holders[0].note.as_deref(), Some(&b"host-a"[..]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_a_slot_moves_no_claim_is_granted_beside_readers() {
    let cluster = blocking(RedisCluster::start);
    let redis = open(&cluster.url()).await;
    let shared = |share| {
        let mut claim = claim(&report(), LONG);
        claim.share = share;
        claim
    };
    let reader = shared(Share::READ);
    granted(&redis, &reader).await;
    let slot = cluster.slot("report/42");
    let (from, to) = (cluster.owner(slot), cluster.other_than(slot));
    blocking(|| cluster.begin_move(slot..=slot, from, to));
    for moved in [false, true] {
        if moved {
            blocking(|| cluster.move_keys(slot..=slot, from, to));
        }
        for share in [Share::WRITE, Share::READ, Share::WHOLE, Share::new(1, 3).unwrap()] {
            let error = redis.acquire_one(&shared(share)).await.unwrap_err();
            assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::None), "{share:?}");
        }
        let listing = leasehold::Query::Resources(leasehold::Listing::default());
        redis.inspect(&listing).await.expect("a listing leaves the resource out");
        for node in &cluster.nodes {
            assert_eq!(node.command(&["KEYS", "*:owner"]), "", "the refused claims leave nothing");
        }
    }
    blocking(|| cluster.end_move(slot..=slot, from, to));
    assert!(is_blocked(&redis, &shared(Share::WRITE)).await);
    let answer = common::renew(&redis, reader.reference(), LONG).await;
    assert!(matches!(answer, Renewal::Renewed(_)), "the reader keeps its lease: {answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_a_slot_moves_tombstones_and_pauses_stay_in_force() {
    let cluster = blocking(RedisCluster::start);
    let redis = open(&cluster.url()).await;
    let (cancelled, late) = (claim(&report(), LONG), claim(&report(), LONG));
    redis.release_one(&ReleaseRequest::new(cancelled.reference()).with_tombstone(LONG)).await.unwrap();
    let slot = cluster.slot("report/42");
    let (from, to) = (cluster.owner(slot), cluster.other_than(slot));
    blocking(|| cluster.begin_move(slot..=slot, from, to));
    assert!(is_cancelled(&redis, &cancelled).await);
    granted(&redis, &late).await;
    let request = ReleaseRequest::new(late.reference()).with_tombstone(LONG);
    assert_eq!(redis.release_one(&request).await.unwrap(), Released::Now);
    assert!(is_cancelled(&redis, &late).await, "the release during the move left a tombstone");
    blocking(|| cluster.move_keys(slot..=slot, from, to));
    blocking(|| cluster.end_move(slot..=slot, from, to));
    assert!(is_cancelled(&redis, &late).await);

    let command = leasehold::OperatorAction::Pause { lasting: LONG };
    redis.order(&leasehold::OperatorCommand::new(report(), command, "ops", "test")).await.unwrap();
    blocking(|| cluster.begin_move(slot..=slot, to, from));
    let error = redis.acquire_one(&claim(&report(), LONG)).await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::None));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_is_granted_though_its_slot_moves_while_it_waits() {
    let cluster = blocking(RedisCluster::start);
    let (client, other) = (client(&cluster.url()).await, client(&cluster.url()).await);
    let held = client.lease("report", "42").acquire().await.unwrap();
    let waiting = tokio::spawn(other.lease("report", "42").wait(TIMEOUT).acquire());
    let slot = cluster.slot("report/42");
    let from = cluster.owner(slot);
    let subscriptions = |node: usize| {
        let counts = cluster.nodes[node].command(&["PUBSUB", "SHARDCHANNELS", "lock:v1:{report/42}:wake:*"]);
        counts.split(' ').filter(|channel| !channel.is_empty()).count()
    };
    eventually("the subscription", || async { subscriptions(from) == 1 }).await;
    let to = cluster.other_than(slot);
    blocking(|| cluster.move_slots(slot..=slot, to));
    eventually("the subscription at the other node", || async { subscriptions(to) == 1 }).await;
    let released = Instant::now();
    held.release().await.unwrap();
    let lease = in_time("the wake-up", waiting).await.unwrap().unwrap();
    println!("granted {:?} after the release", released.elapsed());
    lease.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_asks_again_when_its_slot_moved_or_its_connection_was_lost() {
    let cluster = blocking(RedisCluster::start);
    let redis = std::sync::Arc::new(open(&cluster.url()).await);
    granted(&*redis, &claim(&report(), LONG)).await;
    let mut waiting = claim(&report(), LONG).queued();
    waiting.place_ttl = LONG;
    let Ok(Verdict::Blocked(blocked)) = redis.acquire_one(&waiting).await else { panic!("it is held") };
    let cursor = blocked.cursor;
    let wait = || {
        let (redis, claim) = (std::sync::Arc::clone(&redis), waiting.reference());
        tokio::spawn(async move { redis.wait(&claim, &cursor, LONG).await })
    };
    let slot = cluster.slot("report/42");
    let (from, to) = (cluster.owner(slot), cluster.other_than(slot));
    let is_subscribed =
        |node: usize| cluster.nodes[node].command(&["PUBSUB", "SHARDCHANNELS"]).contains("report/42");
    let soon = Duration::from_secs(8);

    let first = wait();
    eventually("the subscription", || async { is_subscribed(from) }).await;
    assert!(!first.is_finished());
    let moved = Instant::now();
    blocking(|| cluster.move_slots(slot..=slot, to));
    in_time("the wake-up", first).await.unwrap().unwrap();
    println!("woken {:?} after the move began", moved.elapsed());
    assert!(moved.elapsed() < soon, "woken by the node, not by the next check of the slot map");

    let second = wait();
    eventually("the subscription at the other node", || async { is_subscribed(to) }).await;
    let lost = Instant::now();
    cluster.nodes[to].command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    in_time("the wake-up", second).await.unwrap().unwrap();
    assert!(lost.elapsed() < soon, "{:?}", lost.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_with_the_documented_permissions_can_do_everything() {
    let (cluster, url) = blocking(|| acl::start_cluster(&["+wait", "%R~*"]));
    let (first, second) = (client(&url).await, client(&url).await);
    let held = first.lease("report", "42").acquire().await.unwrap();
    let waiting = tokio::spawn(second.lease("report", "42").wait(TIMEOUT).acquire());
    let slot = cluster.slot("report/42");
    let from = cluster.owner(slot);
    let is_subscribed =
        |node: usize| cluster.nodes[node].command(&["PUBSUB", "SHARDCHANNELS"]).contains("report/42");
    eventually("the subscription", || async { is_subscribed(from) }).await;
    held.release().await.unwrap();
    let next = in_time("the wake-up", waiting).await.unwrap().unwrap();
    let to = cluster.other_than(slot);
    blocking(|| cluster.begin_move(slot..=slot, from, to));
    blocking(|| cluster.move_keys(slot..=slot, from, to));
    next.extend(LONG).await.unwrap();
    next.release().await.unwrap();
    first.lease("report", "42").acquire().await.unwrap().release().await.unwrap();
    blocking(|| cluster.end_move(slot..=slot, from, to));
    let index = first.rwlock("report", "42").write().acquire().await.unwrap();
    index.release().await.unwrap();
    let redis = open(&format!("{url}?replicas=1&replica_timeout=5s")).await;
    granted(&redis, &claim(&report(), LONG)).await;
    let order = leasehold::OperatorCommand::new(report(), leasehold::OperatorAction::Resume, "ops", "test");
    redis.order(&order).await.unwrap();
    redis.inspect(&leasehold::Query::Resources(leasehold::Listing::default())).await.unwrap();
    redis.inspect(&leasehold::Query::Leaks(leasehold::Listing::default())).await.unwrap();
    redis.inspect(&leasehold::Query::Audit(leasehold::Listing::default())).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_password_is_denied_and_a_rotated_password_file_is_read_again_on_every_shard() {
    let (cluster, url) = blocking(|| acl::start_cluster(&[]));
    let connect = async |url: &str| {
        let config = leasehold_redis::Config::parse(url).unwrap();
        leasehold_redis::Redis::connect(config, std::sync::Arc::new(leasehold::System::current())).await
    };
    let error = connect(&url.replace("PASSWORD", "hunter2")).await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Denied, Effect::None), "{error}");
    assert!(!format!("{error:?}").contains("hunter2"));

    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "PASSWORD").unwrap();
    let url = format!("{}?password_file={}", url.replace(":PASSWORD", ""), file.path().display());
    let redis = connect(&url).await.unwrap();
    let held: Vec<_> = (0..20).map(|id| claim(&format!("report/{id}").parse().unwrap(), LONG)).collect();
    for ours in &held {
        granted(&redis, ours).await;
    }
    for node in &cluster.nodes {
        node.command(&["ACL", "SETUSER", "app", "resetpass", ">another"]);
        node.command(&["CLIENT", "KILL", "USER", "app"]);
    }
    eventually("the old password is refused", || async {
        redis.acquire_one(&held[0]).await.is_err_and(|error| error.kind() == ErrorKind::Denied)
    })
    .await;
    std::fs::write(file.path(), "another").unwrap();
    for ours in &held {
        eventually("the new password is used", || async { redis.acquire_one(ours).await.is_ok() }).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_resharding_loses_none_of_a_thousand_leases() {
    const TTL: Duration = Duration::from_secs(9);
    let cluster = blocking(RedisCluster::start);
    let client = client(&cluster.url()).await;
    let began = Instant::now();
    let held = hold_many(&client, "bulk", 1000, TTL).await;
    let readers: Vec<_> = {
        let asked =
            (0..50).map(|number| client.rwlock("index", &number.to_string()).read().ttl(TTL).acquire());
        let mut readers = Vec::new();
        for reader in asked {
            readers.push(reader.await.unwrap());
        }
        readers
    };
    let work = tokio::spawn({
        let client = client.clone();
        async move {
            let mut done = 0;
            while began.elapsed() < TTL * 3 / 2 {
                let lease = client.lease("busy", &(done % 50).to_string()).wait(TIMEOUT).acquire().await?;
                lease.release().await?;
                done += 1;
            }
            Ok::<_, leasehold::Error>(done)
        }
    });
    // Every slot goes to the next primary, a few at a time.
    let moving = Instant::now();
    for primary in 0..3 {
        let slots = RedisCluster::slots_at_the_start(primary);
        for first in slots.clone().step_by(256) {
            blocking(|| cluster.move_slots(first..=(first + 255).min(*slots.end()), (primary + 1) % 3));
        }
    }
    println!("16384 slots moved in {:?}", moving.elapsed());
    // Long enough that each lease was renewed at its new node.
    tokio::time::sleep((TTL * 3 / 2).saturating_sub(began.elapsed())).await;
    let lost = held.iter().filter(|lease| lease.check().is_err()).count();
    let lost_readers = readers.iter().filter(|reader| reader.check().is_err()).count();
    assert_eq!((lost, lost_readers), (0, 0));
    let pairs = in_time("the other clients", work).await.unwrap().unwrap();
    println!("{pairs} acquire/release pairs meanwhile");
    for lease in held {
        lease.release().await.unwrap();
    }
}
