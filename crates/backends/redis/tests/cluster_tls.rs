//! TLS on a cluster: also to the nodes that the URL does not name, under the names that they announce.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests on real servers run in real time")]

#[path = "common/authority.rs"]
mod authority;
mod common;

use std::sync::Arc;

use authority::Authority;
use common::{LONG, TIMEOUT, claim, client, eventually, granted, in_time, open, release, report, token_of};
use leasehold::{BackendExt as _, Error, ErrorKind, Released, Renewal, Resource, System};
use leasehold_redis::{Config, Redis};
use leasehold_testkit::servers::{RedisCluster, RedisServer};

const BY_NAME: [&str; 4] =
    ["--cluster-announce-hostname", "localhost", "--cluster-preferred-endpoint-type", "hostname"];

const PLAIN_PEERS: [&str; 4] = ["--tls-cluster", "no", "--tls-replication", "no"];

fn blocking<T>(work: impl FnOnce() -> T) -> T {
    tokio::task::block_in_place(work)
}

/// A URL with one node; the client finds the others.
fn url(cluster: &RedisCluster, host: &str, trusts: &Authority) -> String {
    format!("redis+cluster://{host}:{}?tls=true&{}", cluster.nodes[0].tls_port(), trusts.url_option())
}

async fn refused(url: &str) -> Error {
    let config = Config::parse(url).unwrap();
    Redis::connect(config, Arc::new(System::current())).await.expect_err(url)
}

/// How many clients are connected to a node without TLS, except the one that asks.
fn plain_clients(node: &RedisServer) -> usize {
    let port = format!("laddr=127.0.0.1:{} ", node.port());
    node.command(&["CLIENT", "LIST"]).lines().filter(|line| line.contains(&port)).count() - 1
}

/// One resource on each shard.
fn resources(cluster: &RedisCluster) -> Vec<Resource> {
    let at = |primary| {
        let slots = RedisCluster::slots_at_the_start(primary);
        let mut names = (0..).map(|id| format!("shard/{id}"));
        names.find(|name| slots.contains(&cluster.slot(name))).unwrap().parse().unwrap()
    };
    (0..3).map(at).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_uses_tls_also_during_and_after_a_slot_migration() {
    let authority = Authority::new();
    let cluster = blocking(|| RedisCluster::with_tls(&authority.good(), &[]));
    let url = url(&cluster, "localhost", &authority);
    let redis = open(&url).await;
    for resource in resources(&cluster) {
        let ours = claim(&resource, LONG);
        granted(&redis, &ours).await;
        let answer = common::renew(&redis, ours.reference(), LONG).await;
        assert!(matches!(answer, Renewal::Renewed(_)), "{answer:?}");
        assert_eq!(release(&redis, &ours).await, Released::Now);
    }

    let (first, second) = (client(&url).await, client(&url).await);
    let held = first.lease("report", "42").ttl(LONG).acquire().await.unwrap();
    let next = tokio::spawn(second.lease("report", "42").ttl(LONG).wait(TIMEOUT).acquire());
    let slot = cluster.slot("report/42");
    let (from, to) = (cluster.owner(slot), cluster.other_than(slot));
    let is_subscribed = |node: &RedisServer| node.command(&["PUBSUB", "SHARDCHANNELS"]).contains("report/42");
    eventually("the subscription", || async { is_subscribed(&cluster.nodes[from]) }).await;
    held.release().await.unwrap();
    let held = in_time("the wake-up", next).await.unwrap().unwrap();

    blocking(|| cluster.begin_move(slot..=slot, from, to));
    blocking(|| cluster.move_keys(slot..=slot, from, to));
    held.extend(LONG).await.expect("the old node redirects to the importing node");
    blocking(|| cluster.end_move(slot..=slot, from, to));
    held.extend(LONG).await.expect("the old node redirects to the new node");
    let next = tokio::spawn(first.lease("report", "42").ttl(LONG).wait(TIMEOUT).acquire());
    eventually("the subscription at the other node", || async { is_subscribed(&cluster.nodes[to]) }).await;
    held.release().await.unwrap();
    in_time("the wake-up", next).await.unwrap().unwrap().release().await.unwrap();

    for node in &cluster.nodes {
        assert_eq!(plain_clients(node), 0, "no connection was made without TLS");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_is_promoted_is_reached_by_tls() {
    let authority = Authority::new();
    let cluster = blocking(|| RedisCluster::with_tls(&authority.good(), &[]));
    let redis = open(&url(&cluster, "127.0.0.1", &authority)).await;
    let resource = resources(&cluster).remove(1);
    let before = token_of(&redis, &resource).await;
    cluster.nodes[1].kill();
    let theirs = claim(&resource, LONG);
    eventually("a grant of the new primary", || async { redis.acquire_one(&theirs).await.is_ok() }).await;
    assert!(granted(&redis, &theirs).await.token > before);
    assert_eq!(plain_clients(&cluster.nodes[4]), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_must_be_for_the_name_that_a_node_announces() {
    let authority = Authority::new();
    let named = authority.sign("named", "DNS:localhost", 2);
    let cluster = blocking(|| RedisCluster::with_tls(&named, &BY_NAME));
    let announce = |kind: &str| {
        for node in &cluster.nodes {
            let changed = node.command(&["CONFIG", "SET", "cluster-preferred-endpoint-type", kind]);
            assert_eq!(changed, "OK");
        }
    };
    let url = url(&cluster, "localhost", &authority);
    let redis = open(&url).await;
    for resource in resources(&cluster) {
        token_of(&redis, &resource).await;
    }
    let slot = cluster.slot("report/42");
    blocking(|| cluster.move_slots(slot..=slot, cluster.other_than(slot)));
    token_of(&redis, &report()).await;

    // A node that announces no name has the name under which it was asked.
    announce("unknown-endpoint");
    let redis = open(&url).await;
    for resource in resources(&cluster) {
        token_of(&redis, &resource).await;
    }

    announce("ip");
    let error = refused(&url).await;
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    let text = error.to_string();
    assert!(
        text.contains("127.0.0.1") && text.contains("localhost"),
        "it names the host and the names in the certificate: {text}"
    );
}

/// Redis 7.0 names its plain ports unless `tls-cluster yes` is set; later versions name both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_announce_ports_without_tls_are_refused_with_the_reason() {
    let authority = Authority::new();
    let cluster = blocking(|| RedisCluster::with_tls(&authority.good(), &PLAIN_PEERS));
    let url = format!("{}&connect_timeout=300ms", url(&cluster, "localhost", &authority));
    let config = Config::parse(&url).unwrap();
    match Redis::connect(config, Arc::new(System::current())).await {
        Ok(redis) => drop(token_of(&redis, &report()).await),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            assert!(error.to_string().contains("without TLS"), "{error}");
        }
    }
}
