//! Helpers for the tests on real servers.

use std::{
    future::Future,
    io::{Read as _, Write as _},
    net::TcpStream,
    sync::Arc,
    time::{Duration, Instant},
};

use leasehold::{
    Backend, Claim, ClaimRef, Client, Effect, Error, ErrorKind, Grant, Holder, OwnerToken, ReleaseRequest,
    Released, RenewRequest, Renewal, Resource, Share, System, Verdict,
};
use leasehold_etcd::{Config, Etcd};
use leasehold_testkit::{Proxy, servers::EtcdCluster};

/// A ttl that does not expire during a test.
pub(crate) const LONG: Duration = Duration::from_secs(60);
/// How long anything may take on a loaded machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(40);
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

pub(crate) fn report() -> Resource {
    "report/42".parse().expect("the name is valid")
}

pub(crate) fn claim(resource: &Resource, ttl: Duration) -> Claim {
    let holder = Arc::new(Holder::new("host", 1, "test"));
    Claim::new(resource.clone(), OwnerToken::fresh(&System::current()), Share::WHOLE, ttl, holder)
}

pub(crate) async fn granted(backend: &dyn Backend, claim: &Claim) -> Grant {
    match backend.acquire(claim).await {
        Ok(Verdict::Granted(grant)) => grant,
        other => panic!("expected a grant, found {other:?}"),
    }
}

pub(crate) async fn blocked(backend: &dyn Backend, claim: &Claim) -> leasehold_core::Blocked {
    match backend.acquire(claim).await {
        Ok(Verdict::Blocked(blocked)) => blocked,
        other => panic!("expected to be blocked, found {other:?}"),
    }
}

pub(crate) async fn release(backend: &dyn Backend, claim: &Claim) -> Released {
    backend.release(&ReleaseRequest::new(claim.reference())).await.expect("release succeeds")
}

pub(crate) async fn renew(backend: &dyn Backend, claim: ClaimRef, ttl: Duration) -> Renewal {
    backend.renew(&[RenewRequest::new(claim, ttl)]).await.remove(0).expect("renew succeeds")
}

pub(crate) fn kind_and_effect(error: &Error) -> (ErrorKind, Effect) {
    (error.kind(), error.effect())
}

/// Repeats until `attempt` returns true.
pub(crate) async fn eventually<F: Future<Output = bool>>(what: &str, mut attempt: impl FnMut() -> F) {
    let until = Instant::now() + TIMEOUT;
    while !attempt().await {
        assert!(Instant::now() < until, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Fails if the future takes too long, so that no test hangs.
pub(crate) async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(TIMEOUT, future).await.unwrap_or_else(|_| panic!("{what} takes too long"))
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
