//! Short calls of a backend, for tests on real servers. Each panics if the reply is not the expected one.

use std::{
    future::Future,
    sync::Arc,
    time::{Duration, Instant},
};

use leasehold::System;
use leasehold_core::{
    Backend, BackendExt as _, Blocked, Claim, ClaimRef, Effect, Error, ErrorKind, FencingToken, Grant,
    Holder, OwnerToken, Query, ReleaseRequest, Released, RenewRequest, Renewal, Resource, Share, Snapshot,
    Verdict,
};

/// A ttl that never expires during a test.
pub const LONG_TTL: Duration = Duration::from_secs(60);
/// How long anything may take on a loaded machine.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(40);
/// How often [`eventually`] tries.
const RETRY_EVERY: Duration = Duration::from_millis(10);

/// The resource `report/42`.
pub fn report() -> Resource {
    Resource::new("report", "42").expect("the name follows the grammar")
}

/// An exclusive claim of a new owner.
///
/// # Panics
/// Outside of a tokio runtime.
pub fn claim(resource: &Resource, ttl: Duration) -> Claim {
    let holder = Arc::new(Holder::new("host", 1, "test"));
    Claim::new(resource.clone(), OwnerToken::fresh(&System::current()), Share::WHOLE, ttl, holder)
}

/// Acquires.
///
/// # Panics
/// If the claim is not granted.
pub async fn granted(backend: &dyn Backend, claim: &Claim) -> Grant {
    match backend.acquire_one(claim).await {
        Ok(Verdict::Granted(grant)) => grant,
        other => panic!("expected a grant, got {other:?}"),
    }
}

/// Acquires a resource that is not free.
///
/// # Panics
/// If the claim is not blocked.
pub async fn blocked(backend: &dyn Backend, claim: &Claim) -> Blocked {
    match backend.acquire_one(claim).await {
        Ok(Verdict::Blocked(blocked)) => blocked,
        other => panic!("expected Blocked, got {other:?}"),
    }
}

/// Acquires, and returns whether the claim is blocked.
///
/// # Panics
/// If it is neither blocked nor granted.
pub async fn is_blocked(backend: &dyn Backend, claim: &Claim) -> bool {
    match backend.acquire_one(claim).await {
        Ok(Verdict::Blocked(_)) => true,
        Ok(Verdict::Granted(_)) => false,
        other => panic!("expected Blocked or a grant, got {other:?}"),
    }
}

/// Releases without a tombstone.
///
/// # Panics
/// If the release fails.
pub async fn release(backend: &dyn Backend, claim: &Claim) -> Released {
    backend.release_one(&ReleaseRequest::new(claim.reference())).await.expect("release succeeds")
}

/// Renews one claim.
///
/// # Panics
/// If the renewal fails.
pub async fn renew(backend: &dyn Backend, claim: ClaimRef, ttl: Duration) -> Renewal {
    backend.renew(&[RenewRequest::new(claim, ttl)]).await.remove(0).expect("renew succeeds")
}

/// Acquires and releases. Returns the token of the grant.
///
/// # Panics
/// If the claim is not granted.
pub async fn token_of(backend: &dyn Backend, resource: &Resource) -> FencingToken {
    let claim = claim(resource, LONG_TTL);
    let grant = granted(backend, &claim).await;
    release(backend, &claim).await;
    grant.token
}

/// A snapshot of one resource.
///
/// # Panics
/// If inspect fails.
pub async fn snapshot(backend: &dyn Backend, resource: &Resource) -> Snapshot {
    let page = backend.inspect(&Query::One(resource.clone())).await.expect("inspect succeeds");
    page.into_snapshots().remove(0)
}

/// How many claims hold the resource, and how many wait for it.
///
/// # Panics
/// If inspect fails.
pub async fn holders_and_waiters(backend: &dyn Backend, resource: &Resource) -> (u32, u32) {
    let snapshot = snapshot(backend, resource).await;
    (snapshot.holder_count, snapshot.queue_length)
}

/// The kind and the effect of an error.
pub fn kind_and_effect(error: &Error) -> (ErrorKind, Effect) {
    (error.kind(), error.effect())
}

/// Tries until the condition is true.
///
/// # Panics
/// With `what` as the message, when that takes too long.
pub async fn eventually<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) {
    let until = Instant::now() + TEST_TIMEOUT;
    while !condition().await {
        assert!(Instant::now() < until, "{what}: not within {TEST_TIMEOUT:?}");
        tokio::time::sleep(RETRY_EVERY).await;
    }
}

/// Waits for the future, with a limit, so that a test does not hang.
///
/// # Panics
/// When it takes too long.
pub async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    let limited = tokio::time::timeout(TEST_TIMEOUT, future).await;
    limited.unwrap_or_else(|_| panic!("{what}: not within {TEST_TIMEOUT:?}"))
}
