//! What the backend may have of a claim that has no lease yet.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use leasehold_core::{ClaimRef, Handover, ReleaseRequest};

use super::{
    Engine,
    local_queue::{Ticket, release_of},
};

/// A claim that is not yet a lease. It lives beside the caller's future (ADR 0006).
///
/// When it is dropped, because the caller's future was dropped or has failed, it passes on what the backend may have:
///
/// 1. If the claim is the head of a local queue, the next waiter becomes the head and takes over the grant or place.
/// 2. Otherwise a background task releases it.
/// 3. If a request went unanswered, it may still be executed. Then the release leaves a tombstone, so that the late request
///    is refused (ADR 0004).
///
/// Once a lease exists, the fields say that nothing is left, and dropping it does nothing.
pub(super) struct PendingClaim<'a> {
    engine: &'a Arc<Engine>,
    pub(super) claim: ClaimRef,
    ttl: Duration,
    /// Set while the claim is the head of a local queue.
    pub(super) ticket: Option<Ticket>,
    /// The claim that this one takes over from, until a reply shows that the backend has done so.
    pub(super) inherited: Option<Handover>,
    /// The backend has granted this claim or has queued it.
    pub(super) known_to_backend: bool,
    /// A request is under way: it may be executed. False while it is only [queued](super::gather) in this process.
    pub(super) in_flight: AtomicBool,
    /// An earlier request went unanswered.
    pub(super) unanswered: bool,
}

impl<'a> PendingClaim<'a> {
    /// A claim of which nothing was sent yet.
    pub(super) fn new(engine: &'a Arc<Engine>, claim: ClaimRef, ttl: Duration) -> PendingClaim<'a> {
        PendingClaim {
            engine,
            claim,
            ttl,
            ticket: None,
            inherited: None,
            known_to_backend: false,
            in_flight: AtomicBool::new(false),
            unanswered: false,
        }
    }

    /// What the backend may have of this claim, for the next head to take over or for a release.
    pub(super) fn left_at_backend(&self) -> Option<Handover> {
        let owner = self.claim.owner;
        if self.in_flight.load(Ordering::Acquire) || self.unanswered {
            return Some(Handover::with_tombstone(owner, ReleaseRequest::tombstone_ttl(self.ttl)));
        }
        self.known_to_backend.then(|| Handover::from(owner))
    }
}

impl Drop for PendingClaim<'_> {
    fn drop(&mut self) {
        let resource = &self.claim.resource;
        let own = self.left_at_backend();
        if own.is_some()
            && let Some(inherited) = self.inherited
        {
            // The takeover went unanswered, so the backend may have either of the two claims. The next head can take
            // over from one only: release the other here.
            self.engine.release_in_background(release_of(resource, inherited));
        }
        let left = own.or(self.inherited);
        match (self.ticket, left) {
            (Some(ticket), _) => self.engine.replace_head(resource, ticket, left),
            (None, Some(left)) => self.engine.release_in_background(release_of(resource, left)),
            (None, None) => {}
        }
    }
}
