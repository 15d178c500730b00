//! Turns an exclusive lease into a shared one, in one request.
//!
//! 1. End the exclusive lease. No view of it may report that it holds while the backend already admits others.
//! 2. Send `acquire` for the shared claim, which takes over from the exclusive one.
//! 3. If the request fails or is dropped, [`PendingClaim`] releases both claims.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use leasehold_core::{
    BackendExt as _, Claim, EndReason, Handover, OwnerToken, ReleaseRequest, Result, Share, Verb, Verdict,
};

use super::{
    Engine,
    acquire::GrantReply,
    held_lease::{HeldLease, LeaseHandle},
    pending_claim::PendingClaim,
    telemetry::GrantDetails,
};

impl Engine {
    pub(crate) async fn downgrade(
        self: &Arc<Engine>,
        lease: &Arc<HeldLease>,
        share: Share,
    ) -> Result<LeaseHandle> {
        lease.check()?;
        self.unwatch(lease);
        if !lease.begin_release() || !lease.end(EndReason::Released) {
            return Err(lease.lost(EndReason::Released));
        }
        self.telemetry.ended(lease);
        let ttl = lease.ttl();
        let mut from = Handover::from(lease.owner);
        from.tombstone = lease.tombstone();
        let owner = OwnerToken::fresh(&*self.environment);
        let claim = Claim::new(lease.resource.clone(), owner, share, ttl, Arc::clone(&lease.holder));
        let claim = claim.taking_over(from);
        let mut pending = PendingClaim::new(self, claim.reference(), ttl);
        pending.inherited = Some(Handover::with_tombstone(lease.owner, ReleaseRequest::tombstone_ttl(ttl)));
        pending.in_flight.store(true, Ordering::Release);
        let sent = self.send_time();
        let call = self.backend.acquire_one(&claim);
        let limit = Engine::request_limit(ttl);
        let verdict = self.call(Verb::Acquire, Some(&claim.resource), limit, call).await?;
        pending.in_flight.store(false, Ordering::Release);
        pending.inherited = None;
        let Verdict::Granted(grant) = verdict else { return Err(lease.lost(EndReason::NotOurs)) };
        pending.known_to_backend = true;
        let received = self.environment.now();
        let reply = GrantReply { grant, sent, received, needs_tombstone: false };
        let handle = self.start_granted(&claim, &lease.options(), reply);
        let handle = handle.ok_or_else(|| lease.lost(EndReason::Expired))?;
        pending.known_to_backend = false;
        let details = GrantDetails { handed_over: true, acks: grant.acks };
        self.telemetry.acquired(handle.lease(), Duration::ZERO, 0, details);
        Ok(handle)
    }
}
