//! A lease on its way from one process to another.

use std::{fmt, str::FromStr, sync::Arc, time::Duration};

use leasehold_core::{
    ClaimRef, Effect, EndReason, Error, ErrorKind, FencingToken, OwnerToken, RenewRequest, Renewal, Resource,
    Result, Share,
};

use crate::{
    engine::{
        Engine, Terms,
        tenure::{Beginning, Handle, Tenure},
        watchdog::Times,
    },
    lease::Lease,
};

/// A lease that nobody renews, on its way to whoever [adopts](crate::Client::adopt) it. It ends with its ttl.
///
/// [`Detached::reveal`] spells it out for a pipe or an environment variable, and `parse` reads it back. That text is
/// a secret: whoever has it can renew and release the lease. `Debug` does not show it.
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
    pub(crate) fn of(tenure: &Tenure) -> Detached {
        Detached { claim: tenure.reference(), token: tenure.token, share: tenure.share, ttl: tenure.ttl() }
    }

    /// What is held.
    pub fn resource(&self) -> &Resource {
        &self.claim.resource
    }

    /// The token of the grant.
    pub fn token(&self) -> FencingToken {
        self.token
    }

    /// All of it, in one line without spaces: a secret.
    pub fn reveal(&self) -> String {
        let (owner, token) = (self.claim.owner.reveal(), self.token);
        let (weight, capacity, ttl) = (self.share.weight(), self.share.capacity(), self.ttl.as_millis());
        format!("1|{owner}|{token}|{weight}|{capacity}|{ttl}|{}", self.claim.resource.key())
    }

    pub(crate) async fn adopt(self, engine: &Arc<Engine>) -> Result<Lease> {
        engine.admit()?;
        let held = RenewRequest::new(self.claim.clone(), self.ttl);
        let sent = engine.sending();
        let answer = engine.renew_one(held, Engine::request_limit(self.ttl)).await?;
        let lost = |why: EndReason| {
            Error::new(ErrorKind::Lost, format!("there is nothing to adopt: {why}")).on(&self.claim.resource)
        };
        let Renewal::Renewed(kept) = answer else { return Err(lost(EndReason::NotOurs)) };
        if kept.token != self.token {
            return Err(lost(EndReason::NotOurs));
        }
        let times = Times::of(sent.at, kept.remaining, self.ttl);
        let now = engine.environment.now();
        if now >= times.stop_at {
            return Err(if kept.evicting {
                lost(EndReason::Evicted)
            } else {
                too_late().on(&self.claim.resource)
            });
        }
        let Detached { claim, token, share, ttl } = self;
        let terms = Terms::default();
        let tenure = Tenure::begin(
            engine,
            Beginning { claim, share, token, ttl, times, sent, uncertain: false, terms },
            now,
        );
        engine.watch_tenure(&tenure, times, ttl, true);
        engine.heed(&tenure, kept);
        engine.observer.acquired(&tenure, Duration::ZERO, 0, crate::engine::observe::How::default());
        Ok(Lease::new(Handle::of(tenure)))
    }
}

fn too_late() -> Error {
    let message = "the answer came so late that the lease would have to stop at once; try again";
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
    /// Reads what [`Detached::reveal`] wrote.
    fn from_str(text: &str) -> Result<Detached> {
        read(text).ok_or_else(|| Error::new(ErrorKind::Invalid, "this is not a detached lease"))
    }
}

fn read(text: &str) -> Option<Detached> {
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
