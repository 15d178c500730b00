//! Helpers for the tests on real servers.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    sync::Arc,
    time::Duration,
};

use leasehold::{Client, System};
use leasehold_etcd::{Config, Etcd};
pub(crate) use leasehold_testkit::calls::{
    blocked, claim, eventually, granted, in_time, kind_and_effect, release, renew, report,
};
use leasehold_testkit::{
    Proxy,
    calls::{LONG_TTL, TEST_TIMEOUT},
    servers::EtcdCluster,
};

/// A ttl that does not expire during a test.
pub(crate) const LONG: Duration = LONG_TTL;
/// How long anything may take on a loaded machine.
pub(crate) const TIMEOUT: Duration = TEST_TIMEOUT;
/// The prefix of the contenders of `report/42`, without the slash at its end.
pub(crate) const LOCK: &str = "leasehold/v1/lock/report/42";

pub(crate) async fn open(url: &str) -> Etcd {
    let config = Config::parse(url).expect("the URL is valid");
    Etcd::connect(config, Arc::new(System::current())).await.expect("the server is up")
}

pub(crate) async fn client(url: &str) -> Client {
    Client::new(Arc::new(open(url).await))
}

/// A proxy in front of the first member, and the URL through it.
pub(crate) async fn proxied(cluster: &EtcdCluster, seed: u64) -> (Proxy, String) {
    let proxy = Proxy::start(cluster.ports()[0], seed).await;
    let url = format!("etcd://127.0.0.1:{}?timeout=700ms&connect_timeout=700ms", proxy.port());
    (proxy, url)
}

/// A field of a key, as `etcdctl` prints it.
pub(crate) fn field(cluster: &EtcdCluster, key: &str, name: &str) -> String {
    let printed = cluster.etcdctl(&["get", key, "-w", "fields"]);
    let line = printed
        .lines()
        .find(|line| line.starts_with(&format!("\"{name}\"")))
        .expect("etcdctl prints the field");
    line.split(" : ").nth(1).expect("the field has a value").trim().to_owned()
}

/// The id of the etcd lease of a key, as `etcdctl` prints it.
pub(crate) fn lease_of(cluster: &EtcdCluster, key: &str) -> String {
    format!("{:x}", field(cluster, key, "Lease").parse::<i64>().expect("a lease id is a number"))
}

/// Grants an etcd lease of one minute; returns its id.
pub(crate) fn grant_minute_lease(cluster: &EtcdCluster) -> String {
    let printed = cluster.etcdctl(&["lease", "grant", "60"]);
    printed.split(' ').nth(1).expect("etcdctl prints: lease <id> granted with TTL").to_owned()
}

/// How many requests of this gRPC method the first member has finished, by its metrics.
pub(crate) fn request_count(cluster: &EtcdCluster, method: &str) -> u64 {
    let mut stream = TcpStream::connect(("127.0.0.1", cluster.ports()[0])).expect("the member listens");
    write!(stream, "GET /metrics HTTP/1.0\r\n\r\n").expect("the member reads the request");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("the member replies");
    let is_of_method = |line: &&str| {
        line.starts_with("grpc_server_handled_total") && line.contains(&format!("grpc_method=\"{method}\""))
    };
    let count = |line: &str| line.rsplit(' ').next()?.parse::<f64>().ok();
    text.lines().filter(is_of_method).filter_map(count).sum::<f64>() as u64
}
