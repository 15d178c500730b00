//! What the tests on real servers share.
#![allow(dead_code, reason = "every test program uses some of it")]
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]

pub(crate) mod frames;

use std::{future::Future, sync::Arc, time::Duration};

use leasehold::{
    Backend, Claim, Client, Grant, Holder, OwnerToken, ReleaseRequest, Released, Resource, Share, System,
    Verdict,
};
use leasehold_zookeeper::{Config, ZooKeeper};

/// What is asked for; what is given is what the session vouches for.
pub(crate) const LONG: Duration = Duration::from_secs(60);
/// How long anything may take on a loaded machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(40);

pub(crate) async fn open(url: &str) -> ZooKeeper {
    let config = Config::parse(url).expect("the URL is one");
    ZooKeeper::connect(config, Arc::new(System::current())).await.expect("the server is there")
}

pub(crate) async fn client(url: &str) -> Client {
    Client::new(Arc::new(open(url).await))
}

/// A server's URL as it is through something in front of it.
pub(crate) fn through(port: u16) -> String {
    format!("zookeeper://127.0.0.1:{port}/?session_timeout=2s&tick=200ms")
}

pub(crate) fn report() -> Resource {
    "report/42".parse().expect("a name")
}

pub(crate) fn claim(resource: &Resource) -> Claim {
    let holder = Arc::new(Holder::new("host", 1, "test"));
    Claim::new(resource.clone(), OwnerToken::fresh(&System::current()), Share::WHOLE, LONG, holder)
}

pub(crate) async fn granted(backend: &dyn Backend, claim: &Claim) -> Grant {
    match backend.acquire(claim).await {
        Ok(Verdict::Granted(grant)) => grant,
        other => panic!("a grant was due, not {other:?}"),
    }
}

pub(crate) async fn is_blocked(backend: &dyn Backend, claim: &Claim) -> bool {
    match backend.acquire(claim).await {
        Ok(Verdict::Blocked(_)) => true,
        Ok(Verdict::Granted(_)) => false,
        other => panic!("a verdict was due, not {other:?}"),
    }
}

pub(crate) async fn release(backend: &dyn Backend, claim: &Claim) -> Released {
    backend.release(&ReleaseRequest::new(claim.reference())).await.expect("release answers")
}

/// Tries until it is so.
pub(crate) async fn eventually<F: Future<Output = bool>>(what: &str, mut attempt: impl FnMut() -> F) {
    let until = std::time::Instant::now() + PATIENCE;
    while !attempt().await {
        assert!(std::time::Instant::now() < until, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// With a bound, so that nothing hangs.
pub(crate) async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("{what} takes too long"))
}
