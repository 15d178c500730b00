//! Helpers of the tests on real servers.
#![allow(dead_code, reason = "each test program uses only some of these helpers")]
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]

pub(crate) mod frame_proxy;

use std::{future::Future, sync::Arc, time::Duration};

use leasehold::{
    Backend, Claim, Client, Grant, Holder, OwnerToken, ReleaseRequest, Released, Resource, Share, System,
    Verdict,
};
use leasehold_zookeeper::{Config, ZooKeeper};

/// The ttl that claims ask for. They are granted the shorter time that their session allows.
pub(crate) const LONG_TTL: Duration = Duration::from_secs(60);
/// How long any step may take on a loaded machine.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(40);

pub(crate) async fn open(url: &str) -> ZooKeeper {
    let config = Config::parse(url).expect("the URL is valid");
    ZooKeeper::connect(config, Arc::new(System::current())).await.expect("the server answers")
}

pub(crate) async fn client(url: &str) -> Client {
    Client::new(Arc::new(open(url).await))
}

/// The URL of a server behind a proxy on this port.
pub(crate) fn url_through(port: u16) -> String {
    format!("zookeeper://127.0.0.1:{port}/?session_timeout=2s&tick=200ms")
}

pub(crate) fn report() -> Resource {
    "report/42".parse().expect("a valid name")
}

pub(crate) fn claim(resource: &Resource) -> Claim {
    let holder = Arc::new(Holder::new("host", 1, "test"));
    Claim::new(resource.clone(), OwnerToken::fresh(&System::current()), Share::WHOLE, LONG_TTL, holder)
}

pub(crate) async fn granted(backend: &dyn Backend, claim: &Claim) -> Grant {
    match backend.acquire(claim).await {
        Ok(Verdict::Granted(grant)) => grant,
        other => panic!("expected a grant, not {other:?}"),
    }
}

pub(crate) async fn is_blocked(backend: &dyn Backend, claim: &Claim) -> bool {
    match backend.acquire(claim).await {
        Ok(Verdict::Blocked(_)) => true,
        Ok(Verdict::Granted(_)) => false,
        other => panic!("expected a verdict, not {other:?}"),
    }
}

pub(crate) async fn release(backend: &dyn Backend, claim: &Claim) -> Released {
    backend.release(&ReleaseRequest::new(claim.reference())).await.expect("the release is answered")
}

/// Repeats the attempt until it succeeds. Panics after [`TIME_LIMIT`].
pub(crate) async fn eventually<F: Future<Output = bool>>(what: &str, mut attempt: impl FnMut() -> F) {
    let until = std::time::Instant::now() + TIME_LIMIT;
    while !attempt().await {
        assert!(std::time::Instant::now() < until, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Waits for the future. Panics after [`TIME_LIMIT`].
pub(crate) async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(TIME_LIMIT, future).await.unwrap_or_else(|_| panic!("{what} takes too long"))
}
