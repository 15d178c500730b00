//! Helpers that the tests on real servers share.
#![allow(dead_code, reason = "every test program uses a part of this")]
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]

use std::{future::Future, sync::Arc, time::Duration};

use leasehold::{
    Backend, Blocked, Claim, ClaimRef, Client, Effect, Error, ErrorKind, FencingToken, Grant, Holder,
    OwnerToken, ReleaseRequest, Released, RenewRequest, Renewal, Resource, Share, System, Verdict,
};
use leasehold_postgres::{Config, Postgres};

/// A ttl that does not expire during a test.
pub(crate) const LONG: Duration = Duration::from_secs(90);
/// The time limit of a test step on a loaded machine.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(30);

pub(crate) async fn connect(url: &str) -> leasehold::Result<Postgres> {
    Postgres::connect(Config::parse(url)?, Arc::new(System::current())).await
}

pub(crate) async fn open(url: &str) -> Postgres {
    connect(url).await.expect("the server accepts connections")
}

pub(crate) async fn client(url: &str) -> Client {
    Client::new(Arc::new(open(url).await))
}

pub(crate) fn report() -> Resource {
    "report/42".parse().expect("it is a resource")
}

pub(crate) fn owner() -> OwnerToken {
    OwnerToken::fresh(&System::current())
}

pub(crate) fn claim(resource: &Resource, ttl: Duration) -> Claim {
    let holder = Arc::new(Holder::new("host", 1, "test"));
    Claim::new(resource.clone(), owner(), Share::WHOLE, ttl, holder)
}

/// A claim that queues, with a place that does not expire during a test.
pub(crate) fn queued_claim(resource: &Resource) -> Claim {
    let mut claim = claim(resource, LONG).queued();
    claim.place_ttl = LONG;
    claim
}

pub(crate) async fn granted(backend: &dyn Backend, claim: &Claim) -> Grant {
    match backend.acquire(claim).await {
        Ok(Verdict::Granted(grant)) => grant,
        other => panic!("expected a grant, found {other:?}"),
    }
}

pub(crate) async fn blocked(backend: &dyn Backend, claim: &Claim) -> Blocked {
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

pub(crate) async fn token_of(backend: &dyn Backend, resource: &Resource) -> FencingToken {
    let claim = claim(resource, LONG);
    let grant = granted(backend, &claim).await;
    release(backend, &claim).await;
    grant.token
}

pub(crate) fn kind_and_effect(error: &Error) -> (ErrorKind, Effect) {
    (error.kind(), error.effect())
}

/// Repeats `attempt` until it returns true.
pub(crate) async fn eventually<F: Future<Output = bool>>(what: &str, mut attempt: impl FnMut() -> F) {
    let until = std::time::Instant::now() + TIME_LIMIT;
    while !attempt().await {
        assert!(std::time::Instant::now() < until, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Fails the test if the future takes too long.
pub(crate) async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(TIME_LIMIT, future).await.unwrap_or_else(|_| panic!("{what} takes too long"))
}
