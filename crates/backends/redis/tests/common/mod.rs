//! Helpers for the tests on real servers.
#![allow(dead_code, reason = "every test program uses some of them")]
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]

use std::{future::Future, sync::Arc, time::Duration};

use leasehold::{
    Backend, Claim, ClaimRef, Client, FencingToken, Grant, Holder, OwnerToken, ReleaseRequest, Released,
    RenewRequest, Renewal, Resource, Share, System, Verdict,
};
use leasehold_redis::{Config, Redis};

/// A ttl that does not expire during a test.
pub(crate) const LONG: Duration = Duration::from_secs(60);
/// A ttl that a test can wait for, and that is long enough for a loaded machine.
pub(crate) const SHORT: Duration = Duration::from_millis(800);
/// The longest time that an operation may take on a loaded machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) async fn open(url: &str) -> Redis {
    let config = Config::parse(url).expect("the URL is valid");
    Redis::connect(config, Arc::new(System::current())).await.expect("the server is there")
}

pub(crate) async fn client(url: &str) -> Client {
    Client::new(Arc::new(open(url).await))
}

pub(crate) fn report() -> Resource {
    "report/42".parse().expect("a valid name")
}

pub(crate) fn owner() -> OwnerToken {
    OwnerToken::fresh(&System::current())
}

pub(crate) fn claim(resource: &Resource, ttl: Duration) -> Claim {
    let holder = Arc::new(Holder::new("host", 1, "test"));
    Claim::new(resource.clone(), owner(), Share::WHOLE, ttl, holder)
}

pub(crate) async fn granted(backend: &dyn Backend, claim: &Claim) -> Grant {
    match backend.acquire(claim).await {
        Ok(Verdict::Granted(grant)) => grant,
        other => panic!("expected a grant, got {other:?}"),
    }
}

pub(crate) async fn is_blocked(backend: &dyn Backend, claim: &Claim) -> bool {
    match backend.acquire(claim).await {
        Ok(Verdict::Blocked(_)) => true,
        Ok(Verdict::Granted(_)) => false,
        other => panic!("expected Granted or Blocked, got {other:?}"),
    }
}

pub(crate) async fn release(backend: &dyn Backend, claim: &Claim) -> Released {
    backend.release(&ReleaseRequest::new(claim.reference())).await.expect("release succeeds")
}

pub(crate) async fn renew(backend: &dyn Backend, claim: ClaimRef, ttl: Duration) -> Renewal {
    backend.renew(&[RenewRequest::new(claim, ttl)]).await.remove(0).expect("renew succeeds")
}

pub(crate) async fn token_of(backend: &dyn Backend, resource: &Resource) -> FencingToken {
    let claim = claim(resource, LONG);
    let grant = granted(backend, &claim).await;
    release(backend, &claim).await;
    grant.token
}

/// Repeats `attempt` until it returns true; fails after [`TIMEOUT`].
pub(crate) async fn eventually<F: Future<Output = bool>>(what: &str, mut attempt: impl FnMut() -> F) {
    let until = std::time::Instant::now() + TIMEOUT;
    while !attempt().await {
        assert!(std::time::Instant::now() < until, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Awaits a future; fails after [`TIMEOUT`].
pub(crate) async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(TIMEOUT, future).await.unwrap_or_else(|_| panic!("{what} takes too long"))
}
