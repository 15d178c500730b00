//! A lease that moves from one process to another.

use std::{fmt, str::FromStr, sync::Arc, time::Duration};

use leasehold_core::{
    ClaimRef, Effect, EndReason, Error, ErrorKind, FencingToken, OwnerToken, RenewRequest, Renewal, Resource,
    Result, Share,
};

use crate::{
    engine::{
        Engine, LeaseOptions,
        held_lease::{HeldLease, LeaseStart},
        telemetry::GrantDetails,
    },
    lease::Lease,
};

/// A lease that is not renewed, until a process [adopts](crate::Client::adopt) it. It ends with its ttl.
///
/// [`Detached::reveal`] writes it as text for a pipe or an environment variable, and `parse` reads it back. The text is
/// a secret: with it, anybody can renew and release the lease. `Debug` does not show it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// let leases = leasehold::connect("memory:").await?;
/// let lease = leases.lease("upload", "7").acquire().await?;
/// let (token, text) = (lease.token(), lease.detach()?.reveal());
/// let adopted = leases.adopt(text.parse()?).await?; // in another process, on the same backend
/// assert_eq!(adopted.token(), token);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Detached {
    claim: ClaimRef,
    token: FencingToken,
    share: Share,
    ttl: Duration,
}

impl Detached {
    pub(crate) fn of(held: &HeldLease) -> Detached {
        Detached { claim: held.reference(), token: held.token, share: held.share, ttl: held.ttl() }
    }

    /// The resource.
    pub fn resource(&self) -> &Resource {
        &self.claim.resource
    }

    /// The fencing token of the grant.
    pub fn token(&self) -> FencingToken {
        self.token
    }

    /// The lease as text, in one line without spaces. The text is a secret.
    pub fn reveal(&self) -> String {
        let (owner, token) = (self.claim.owner.reveal(), self.token);
        let (weight, capacity, ttl) = (self.share.weight(), self.share.capacity(), self.ttl.as_millis());
        format!("1|{owner}|{token}|{weight}|{capacity}|{ttl}|{}", self.claim.resource.key())
    }

    /// Renews the lease once, and keeps it alive from then on.
    pub(crate) async fn adopt(self, engine: &Arc<Engine>) -> Result<Lease> {
        engine.check_open()?;
        let Detached { claim, token, share, ttl } = self;
        let resource = claim.resource.clone();
        let request = RenewRequest::new(claim.clone(), ttl);
        let sent = engine.send_time();
        let reply = engine.renew_one(request, Engine::request_limit(ttl)).await?;
        let lost = |reason: EndReason| {
            let message = format!("the detached lease cannot be adopted: {reason}");
            Error::new(ErrorKind::Lost, message).with_ending(reason).on(&resource)
        };
        let Renewal::Renewed(renewed) = reply else { return Err(lost(EndReason::NotOurs)) };
        // Another token is another grant: the detached one has ended.
        if renewed.token != token {
            return Err(lost(EndReason::NotOurs));
        }
        let start = LeaseStart {
            claim,
            holder: Arc::clone(&engine.holder),
            share,
            token,
            ttl,
            remaining: renewed.remaining,
            sent,
            needs_tombstone: false,
            options: LeaseOptions::default(),
        };
        let Some(handle) = engine.start_lease(start, engine.environment.now()) else {
            // A lease that is being evicted is not extended by a renewal, so little of it may be left.
            return Err(if renewed.evicting { lost(EndReason::Evicted) } else { too_late().on(&resource) });
        };
        engine.apply_operator_requests(handle.lease(), renewed);
        engine.telemetry.acquired(handle.lease(), Duration::ZERO, 0, GrantDetails::default());
        Ok(Lease::new(handle))
    }
}

fn too_late() -> Error {
    let message = "the reply came so late that the lease would have to stop at once: try again";
    Error::new(ErrorKind::Unavailable, message).with_effect(Effect::Unknown)
}

impl fmt::Debug for Detached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (resource, owner, token) = (&self.claim.resource, self.claim.owner, self.token);
        f.debug_struct("Detached")
            .field("resource", resource)
            .field("owner", &owner)
            .field("token", &token)
            .finish()
    }
}

impl FromStr for Detached {
    type Err = Error;
    /// Reads the text of [`Detached::reveal`].
    fn from_str(text: &str) -> Result<Detached> {
        parse(text).ok_or_else(|| Error::new(ErrorKind::Invalid, "this text is not a detached lease"))
    }
}

fn parse(text: &str) -> Option<Detached> {
    // The key is last, because it may contain the separator.
    let mut parts = text.trim().splitn(7, '|');
    (parts.next()? == "1").then_some(())?;
    let owner: OwnerToken = parts.next()?.parse().ok()?;
    let token: FencingToken = parts.next()?.parse().ok()?;
    let share = Share::new(parts.next()?.parse().ok()?, parts.next()?.parse().ok()?).ok()?;
    let ttl = Duration::from_millis(parts.next()?.parse().ok()?);
    let resource = Resource::from_key(parts.next()?).ok()?;
    let bounds = crate::LeaseRequest::<FencingToken>::TTL_MIN..=crate::LeaseRequest::<FencingToken>::TTL_MAX;
    bounds.contains(&ttl).then_some(Detached { claim: ClaimRef { resource, owner }, token, share, ttl })
}
