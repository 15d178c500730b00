//! A cluster whose nodes die or freeze.
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]

mod common;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use common::{LONG, TIMEOUT, claim, client, eventually, granted, in_time, open, token_of};
use leasehold::{Backend, BackendExt as _, ErrorKind, Listing, Page, Query, Renewal, Resource};
use leasehold_testkit::servers::{RedisCluster, RedisServer};

fn blocking<T>(work: impl FnOnce() -> T) -> T {
    tokio::task::block_in_place(work)
}

/// A resource in a slot of the primary with this number at the start.
fn resource_at(cluster: &RedisCluster, primary: usize) -> Resource {
    resources_at(cluster, primary, 1).remove(0)
}

fn resources_at(cluster: &RedisCluster, primary: usize, count: usize) -> Vec<Resource> {
    let slots = RedisCluster::slots_at_the_start(primary);
    let names = (0..).map(|id| format!("shard/{id}")).filter(|name| slots.contains(&cluster.slot(name)));
    names.take(count).map(|name| name.parse().expect("a valid name")).collect()
}

fn id(resource: &Resource) -> &str {
    resource.key().split_once('/').expect("a kind and an id").1
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_to_a_replica_that_has_the_lease_keeps_it() {
    let cluster = blocking(RedisCluster::start);
    let (client, other) = (client(&cluster.url()).await, client(&cluster.url()).await);
    let resource = resource_at(&cluster, 0);
    let lease = client.lease("shard", id(&resource)).ttl(Duration::from_secs(20)).acquire().await.unwrap();
    let replica = &cluster.nodes[3];
    eventually("replication", || async { !replica.command(&["KEYS", "*:owner"]).is_empty() }).await;
    let waiting = tokio::spawn(other.lease("shard", id(&resource)).wait(TIMEOUT).acquire());
    cluster.nodes[0].kill();
    let now = blocking(|| cluster.await_failover(cluster.slot(resource.key()), 0));
    assert_eq!(now, 3);
    eventually("a renewal at the new primary", || async {
        lease.extend(Duration::from_secs(20)).await.is_ok()
    })
    .await;
    lease.check().unwrap();
    let token = lease.token();
    lease.release().await.unwrap();
    let next = in_time("the waiter", waiting).await.unwrap().unwrap();
    assert!(next.token() > token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_to_a_replica_without_the_lease_grants_again_with_a_higher_token() {
    let cluster = blocking(RedisCluster::start);
    let redis = open(&cluster.url()).await;
    let resource = resource_at(&cluster, 1);
    let replica = blocking(|| cluster.cut_off_replica(1));
    let ours = claim(&resource, LONG);
    let before = granted(&redis, &ours).await.token;
    cluster.nodes[1].kill();
    replica.thaw();
    let killed = Instant::now();
    let theirs = claim(&resource, LONG);
    eventually("a grant of the new primary", || async { redis.acquire_one(&theirs).await.is_ok() }).await;
    println!("granted again {:?} after the kill", killed.elapsed());
    let after = granted(&redis, &theirs).await.token;
    assert!(after.get() > before.get() + 50_000_000, "a minute ahead for each epoch: {before} {after}");
    let answer = common::renew(&redis, ours.reference(), LONG).await;
    assert!(matches!(answer, Renewal::Gone { .. }), "the next renewal of the first holder fails: {answer:?}");
}

/// A documented limit of Redis itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_of_the_source_of_a_slot_migration_grants_moved_keys_again_with_higher_tokens() {
    let cluster = blocking(RedisCluster::start);
    let redis = open(&cluster.url()).await;
    let resource = resource_at(&cluster, 0);
    let slot = cluster.slot(resource.key());
    let before = granted(&redis, &claim(&resource, LONG)).await.token;
    blocking(|| cluster.begin_move(slot..=slot, 0, 1));
    blocking(|| cluster.move_keys(slot..=slot, 0, 1));
    cluster.nodes[0].kill();
    let replica = &cluster.nodes[3];
    eventually("the promotion", || async { replica.command(&["ROLE"]).starts_with("master") }).await;
    let theirs = claim(&resource, LONG);
    eventually("the new primary", || async { redis.acquire_one(&theirs).await.is_ok() }).await;
    assert!(granted(&redis, &theirs).await.token > before, "granted twice, and the tokens differ");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_primary_is_left_behind() {
    let cluster = blocking(RedisCluster::start);
    let redis = open(&format!("{}?timeout=500ms", cluster.url())).await;
    let resource = resource_at(&cluster, 2);
    token_of(&redis, &resource).await;
    cluster.nodes[2].freeze();
    let slot = cluster.slot(resource.key());
    blocking(|| cluster.await_failover(slot, 2));
    eventually("the new primary", || async { redis.acquire_one(&claim(&resource, LONG)).await.is_ok() })
        .await;
    let seen = cluster.nodes[5].command(&["KEYS", "*:owner"]);
    assert_eq!(seen, format!("lock:v1:{{{}}}:owner", resource.key()), "written to the new primary");
    cluster.nodes[2].thaw();
    blocking(|| cluster.await_agreement());
    assert_eq!(cluster.owner(slot), 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_shard_does_not_delay_the_renewals_of_other_shards() {
    const TTL: Duration = Duration::from_secs(6);
    let cluster = blocking(RedisCluster::start);
    cluster.nodes[3].command(&["CONFIG", "SET", "cluster-replica-no-failover", "yes"]);
    let client = client(&cluster.url()).await;
    let mut shards = Vec::new();
    for primary in 0..3 {
        let mut held = Vec::new();
        for resource in resources_at(&cluster, primary, 40) {
            held.push(client.lease("shard", id(&resource)).ttl(TTL).acquire().await.unwrap());
        }
        shards.push(held);
    }
    cluster.nodes[0].freeze();
    let (frozen, mut least) = (Instant::now(), TTL);
    while frozen.elapsed() < TTL * 3 / 2 {
        let others = shards[1..].iter().flatten().map(|lease| lease.remaining()).min();
        least = least.min(others.expect("there are some"));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    println!("of a ttl of {TTL:?} at least {least:?} were left");
    assert!(least > TTL / 3, "renewed in time: {least:?}");
    assert!(shards[1..].iter().flatten().all(|lease| lease.check().is_ok()));
    assert!(
        shards[0].iter().all(|lease| lease.check().is_err()),
        "the leases of the frozen shard are lost, and their holders know"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_that_move_back_and_forth_never_grant_twice() {
    const RESOURCES: usize = 8;
    let cluster = Arc::new(blocking(RedisCluster::start));
    let busy: Arc<Vec<AtomicBool>> = Arc::new((0..RESOURCES).map(|_| AtomicBool::default()).collect());
    let newest: Arc<Vec<AtomicU64>> = Arc::new((0..RESOURCES).map(|_| AtomicU64::default()).collect());
    let stop = Arc::new(AtomicBool::new(false));
    let mut workers = Vec::new();
    for worker in 0..8 {
        let client = client(&cluster.url()).await;
        let (busy, newest, stop) = (Arc::clone(&busy), Arc::clone(&newest), Arc::clone(&stop));
        workers.push(tokio::spawn(async move {
            let mut done = 0_usize;
            while !stop.load(Ordering::SeqCst) {
                let number = (done + worker) % RESOURCES;
                let lease = client.lease("busy", &number.to_string()).wait(TIMEOUT).acquire().await?;
                assert!(!busy[number].swap(true, Ordering::SeqCst), "two hold {number}");
                let before = newest[number].swap(lease.token().get(), Ordering::SeqCst);
                assert!(before < lease.token().get(), "a token went back");
                tokio::task::yield_now().await;
                busy[number].store(false, Ordering::SeqCst);
                lease.release().await?;
                done += 1;
            }
            Ok::<_, leasehold::Error>(done)
        }));
    }
    let slots: Vec<u16> = (0..RESOURCES).map(|number| cluster.slot(&format!("busy/{number}"))).collect();
    for round in 0..3 {
        for &slot in &slots {
            let (from, to) = (cluster.owner(slot), cluster.other_than(slot));
            blocking(|| cluster.begin_move(slot..=slot, from, to));
            // In later rounds, long enough for claims to fall back on the owner key alone.
            tokio::time::sleep(Duration::from_millis(if round == 0 { 5 } else { 250 })).await;
            blocking(|| cluster.move_keys(slot..=slot, from, to));
            tokio::time::sleep(Duration::from_millis(if round == 0 { 5 } else { 250 })).await;
            blocking(|| cluster.end_move(slot..=slot, from, to));
        }
        blocking(|| cluster.await_agreement());
    }
    stop.store(true, Ordering::SeqCst);
    let mut done = 0;
    for worker in workers {
        done += in_time("a worker", worker).await.unwrap().unwrap();
    }
    println!("{done} acquire/release pairs");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_shard_without_a_replica_makes_only_its_resources_unavailable() {
    let cluster = blocking(RedisCluster::start);
    let redis = open(&format!("{}?timeout=500ms", cluster.url())).await;
    cluster.nodes[3].kill();
    cluster.nodes[0].kill();
    let error = redis.acquire_one(&claim(&resource_at(&cluster, 0), LONG)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    token_of(&redis, &resource_at(&cluster, 1)).await;
    let late = open(&cluster.url()).await;
    token_of(&late, &resource_at(&cluster, 2)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_acknowledge_on_every_shard_also_after_a_slot_migration() {
    let cluster = blocking(RedisCluster::start);
    let redis = open(&format!("{}?replicas=1&replica_timeout=5s", cluster.url())).await;
    let held: Vec<_> = (0..3).map(|primary| claim(&resource_at(&cluster, primary), LONG)).collect();
    for ours in &held {
        assert_eq!(granted(&redis, ours).await.acks, Some(1));
    }
    let slot = cluster.slot(held[0].resource.key());
    blocking(|| cluster.move_slots(slot..=slot, 1));
    assert_eq!(granted(&redis, &held[0]).await.acks, Some(1), "at its new node");
    let batch: Vec<_> =
        held.iter().map(|ours| leasehold::RenewRequest::new(ours.reference(), LONG)).collect();
    for answer in redis.renew(&batch).await {
        assert!(matches!(answer, Ok(Renewal::Renewed(_))), "{answer:?}");
    }
    let slot = cluster.slot(held[2].resource.key());
    blocking(|| cluster.move_slots(slot..=slot, 1));
    for answer in redis.renew(&batch).await {
        assert!(matches!(answer, Ok(Renewal::Renewed(_))), "the client did not know of the move: {answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_without_expiry_are_found_on_every_shard_page_by_page() {
    let cluster = blocking(RedisCluster::start);
    let redis = open(&cluster.url()).await;
    let mut stuck = Vec::new();
    for primary in 0..3 {
        for resource in resources_at(&cluster, primary, 3) {
            granted(&redis, &claim(&resource, LONG)).await;
            let key = format!("lock:v1:{{{}}}:owner", resource.key());
            cluster.nodes[primary].command(&["PERSIST", &key]);
            stuck.push(key);
        }
    }
    let (mut seen, mut after, mut pages) = (Vec::new(), None, 0);
    loop {
        let mut listing = Listing::default();
        (listing.limit, listing.after) = (2, after);
        let Page::Leaks { found, next } = redis.inspect(&Query::Leaks(listing)).await.unwrap() else {
            panic!("expected a page of leaks")
        };
        seen.extend(found.into_iter().map(|leak| leak.key));
        (after, pages) = (next, pages + 1);
        if after.is_none() {
            break;
        }
    }
    stuck.sort();
    seen.sort();
    assert_eq!(seen, stuck);
    assert!(pages >= 3, "{pages} pages");
}

#[tokio::test]
async fn a_cluster_url_for_a_single_server_is_refused() {
    let server = RedisServer::start();
    let url = format!("redis+cluster://127.0.0.1:{}", server.port());
    let environment = Arc::new(leasehold::System::current());
    let config = leasehold_redis::Config::parse(&url).unwrap();
    let error = leasehold_redis::Redis::connect(config, environment).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("redis://host"), "{error}");
}
