//! What of a backend's verbs may be sent together, by [`gather`](crate::gather).
//!
//! Claims and releases have queues of their own: a release never waits for an acquire.

use leasehold_core::{Backend, Claim, ReleaseRequest, Released, Resource, Verdict};

use crate::gather::{GatherLimits, GatheredCall, Results};

/// Calls of `acquire`.
#[derive(Debug)]
pub enum Acquires {}

/// Calls of `release`.
#[derive(Debug)]
pub enum Releases {}

fn limits_of(backend: &dyn Backend, resource: &Resource) -> GatherLimits {
    let limits = &backend.info().limits;
    // Where nothing is gathered, the failure domain does not matter.
    let domain = if limits.gather > 1 { backend.failure_domain(resource) } else { Default::default() };
    GatherLimits { domain, gather: limits.gather, calls_in_flight: limits.calls_in_flight }
}

impl GatheredCall for Acquires {
    type Target = dyn Backend;
    type Request = Claim;
    type Reply = Verdict;

    const NAME: &'static str = "acquire";

    fn limits(backend: &dyn Backend, claim: &Claim) -> GatherLimits {
        limits_of(backend, &claim.resource)
    }

    fn send<'a>(backend: &'a dyn Backend, claims: &'a [Claim]) -> Results<'a, Verdict> {
        backend.acquire(claims)
    }
}

impl GatheredCall for Releases {
    type Target = dyn Backend;
    type Request = ReleaseRequest;
    type Reply = Released;

    const NAME: &'static str = "release";

    fn limits(backend: &dyn Backend, request: &ReleaseRequest) -> GatherLimits {
        limits_of(backend, &request.resource)
    }

    fn send<'a>(backend: &'a dyn Backend, requests: &'a [ReleaseRequest]) -> Results<'a, Released> {
        backend.release(requests)
    }
}
