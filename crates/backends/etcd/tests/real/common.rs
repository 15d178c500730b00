//! What the tests on real servers share.

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

/// Long enough never to run out during a test.
pub(crate) const LONG: Duration = Duration::from_secs(60);
/// How long anything may take on a loaded machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(40);
/// What the contenders of `report/42` begin with.
pub(crate) const LOCK: &str = "leasehold/v1/lock/report/42";

pub(crate) async fn open(url: &str) -> Etcd {
    let config = Config::parse(url).expect("the URL is one");
    Etcd::connect(config, Arc::new(System::current())).await.expect("the server is there")
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
    "report/42".parse().expect("a name")
}

pub(crate) fn claim(resource: &Resource, ttl: Duration) -> Claim {
    let holder = Arc::new(Holder::new("host", 1, "test"));
    Claim::new(resource.clone(), OwnerToken::fresh(&System::current()), Share::WHOLE, ttl, holder)
}

pub(crate) async fn granted(backend: &dyn Backend, claim: &Claim) -> Grant {
    match backend.acquire(claim).await {
        Ok(Verdict::Granted(grant)) => grant,
        other => panic!("a grant was due, not {other:?}"),
    }
}

pub(crate) async fn blocked(backend: &dyn Backend, claim: &Claim) -> leasehold_core::Blocked {
    match backend.acquire(claim).await {
        Ok(Verdict::Blocked(blocked)) => blocked,
        other => panic!("it is not free, yet: {other:?}"),
    }
}

pub(crate) async fn release(backend: &dyn Backend, claim: &Claim) -> Released {
    backend.release(&ReleaseRequest::new(claim.reference())).await.expect("release answers")
}

pub(crate) async fn renew(backend: &dyn Backend, claim: ClaimRef, ttl: Duration) -> Renewal {
    backend.renew(&[RenewRequest::new(claim, ttl)]).await.remove(0).expect("renew answers")
}

pub(crate) fn says(error: &Error) -> (ErrorKind, Effect) {
    (error.kind(), error.effect())
}

/// Tries until it is so.
pub(crate) async fn eventually<F: Future<Output = bool>>(what: &str, mut attempt: impl FnMut() -> F) {
    let until = Instant::now() + PATIENCE;
    while !attempt().await {
        assert!(Instant::now() < until, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// With a bound, so that nothing hangs.
pub(crate) async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("{what} takes too long"))
}

/// A field of a key, as etcd has it.
pub(crate) fn field(cluster: &EtcdCluster, key: &str, name: &str) -> String {
    let printed = cluster.etcdctl(&["get", key, "-w", "fields"]);
    let line = printed.lines().find(|line| line.starts_with(&format!("\"{name}\""))).expect("it is there");
    line.split(" : ").nth(1).expect("a value").trim().to_owned()
}

/// The etcd lease that a key is under, as `etcdctl` writes it.
pub(crate) fn lease_of(cluster: &EtcdCluster, key: &str) -> String {
    format!("{:x}", field(cluster, key, "Lease").parse::<i64>().expect("a number"))
}

/// A new etcd lease of a minute.
pub(crate) fn lease_of_a_minute(cluster: &EtcdCluster) -> String {
    let printed = cluster.etcdctl(&["lease", "grant", "60"]);
    printed.split(' ').nth(1).expect("lease ID granted with TTL").to_owned()
}

/// How many calls of this method the first member has finished.
pub(crate) fn calls(cluster: &EtcdCluster, method: &str) -> u64 {
    let mut stream = TcpStream::connect(("127.0.0.1", cluster.ports()[0])).expect("it listens");
    write!(stream, "GET /metrics HTTP/1.0\r\n\r\n").expect("it reads");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("it answers");
    let of = |line: &&str| {
        line.starts_with("grpc_server_handled_total") && line.contains(&format!("grpc_method=\"{method}\""))
    };
    let count = |line: &str| line.rsplit(' ').next()?.parse::<f64>().ok();
    text.lines().filter(of).filter_map(count).sum::<f64>() as u64
}
