//! Claims that come at once are sent in one call, and releases likewise (ADR 0039). How is in
//! [`leasehold_support::gather`]; here is what may be sent together.
//!
//! Claims and releases have queues of their own: a release never waits for an acquire. Some claims go alone and at once,
//! whatever is under way: one that takes over from another, because it releases that one; and one that has asked before,
//! because its turn may have come, or it may have been granted unnoticed.

use std::{sync::atomic::AtomicBool, time::Duration};

use leasehold_core::{Backend, Claim, ReleaseRequest, Released, Resource, Result, Verb, Verdict};
use leasehold_support::gather::{GatherLimits, GatheredCall, Results};

use super::Engine;

/// Calls of `acquire`.
pub(super) enum Acquires {}

/// Calls of `release`.
pub(super) enum Releases {}

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

impl Engine {
    /// Sends one release, alone or with others.
    pub(super) async fn call_release(&self, request: &ReleaseRequest, at_most: Duration) -> Result<Released> {
        // Whether it was sent does not matter: every release that is dropped or fails is repeated in the background.
        let in_flight = AtomicBool::new(false);
        let call = async { self.releases.send(request, &in_flight, true).await.result };
        self.call(Verb::Release, Some(&request.resource), at_most, call).await
    }
}
