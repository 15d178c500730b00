//! The handle in the caller's hand, and the views of it that may be passed around.

use std::{
    fmt,
    future::{Future, poll_fn},
    marker::PhantomData,
    ops::Deref,
    pin::pin,
    sync::Arc,
    task::Poll,
    time::{Duration, SystemTime},
};

use leasehold_core::{
    EndReason, Error, ErrorKind, FencingToken, FinishRequest, GoneReason, OwnerToken, Pass, Released,
    RenewRequest, Renewal, Resource, Result, Share, ShareNumber,
};
use tokio_util::sync::CancellationToken;

use crate::{
    client::TokenKind,
    detached::Detached,
    engine::{
        Engine,
        tenure::{Handle, Tenure},
    },
};

/// The right to act. Not `Clone`; dropping it releases in the background.
///
/// Everything that only looks is on [`LeaseView`], to which this derefs.
#[must_use = "dropping a lease releases it"]
pub struct Lease<T = FencingToken> {
    handle: Handle,
    view: LeaseView<T>,
}

/// A shared lease: a read, or some permits of several.
pub type SharedLease = Lease<ShareNumber>;

/// A clonable view of a lease, for helpers and tasks: sees, checks, holds; never owns.
pub struct LeaseView<T = FencingToken> {
    tenure: Arc<Tenure>,
    kind: PhantomData<fn() -> T>,
}

/// How sure we are of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It holds.
    Held,
    /// It holds, but renewals are failing; unless one succeeds it is lost after this long.
    Doubtful {
        /// Until it is given up.
        left: Duration,
    },
    /// It is over. That never changes back.
    Ended(EndReason),
}

impl<T: TokenKind> Lease<T> {
    pub(crate) fn new(handle: Handle) -> Lease<T> {
        let view = LeaseView { tenure: Arc::clone(handle.tenure()), kind: PhantomData };
        Lease { handle, view }
    }

    pub(crate) fn tenure(&self) -> &Arc<Tenure> {
        self.handle.tenure()
    }

    /// A view that may be passed around.
    pub fn view(&self) -> LeaseView<T> {
        self.view.clone()
    }

    /// Gives the lease back; if another waiter of this client is next, the seat is handed over in the same step.
    ///
    /// One round trip. Views are told from the first poll on.
    ///
    /// # Cancel safety
    /// Dropped part-way, the reaper goes on until it is answered.
    ///
    /// # Errors
    /// Whatever the backend says; the reaper goes on trying. [`Released::AlreadyGone`] is not an error: the lease had
    /// expired before.
    pub async fn release(self) -> Result<Released> {
        let tenure = self.tenure();
        if tenure.handles() > 1 {
            return Ok(Released::StillHeld); // a reentrant handle: dropped, it counts itself out
        }
        tenure.engine.release(tenure, tenure.terms().at_least).await
    }

    /// Gives the lease back, but keeps the resource closed until this much time has passed since the grant: for work
    /// that is not to be done again too soon, *because* it succeeded. [`LeaseRequest::at_least`] decides that
    /// beforehand.
    ///
    /// One round trip.
    ///
    /// # Cancel safety
    /// As [`Lease::release`]; the resource may then be open.
    ///
    /// # Errors
    /// As [`Lease::release`]; `Unsupported` if the backend has no way to stay closed.
    ///
    /// [`LeaseRequest::at_least`]: crate::LeaseRequest::at_least
    pub async fn release_keeping(self, at_least: Duration) -> Result<Released> {
        let tenure = self.tenure();
        if !tenure.engine.backend.info().capabilities.keep_for {
            let message = format!("{} has no way to stay closed", tenure.engine.backend.info().name);
            return Err(Error::new(ErrorKind::Unsupported, message).on(&tenure.resource));
        }
        if tenure.handles() > 1 {
            return Ok(Released::StillHeld);
        }
        tenure.engine.release(tenure, Some(at_least)).await
    }

    pub(crate) fn into_handle(self) -> Handle {
        self.handle
    }
}

impl Lease {
    /// Takes the lease out of this process without releasing it: it is not renewed here any more, and whoever
    /// [adopts](crate::Client::adopt) it within its ttl goes on holding it, with the same token.
    ///
    /// # Errors
    /// `Lost` if it is over; `Invalid` if a scope has entered it more than once; `Unsupported` where a lease lives
    /// only as long as the session of the process that took it.
    pub fn detach(self) -> Result<Detached> {
        let tenure = self.tenure();
        let info = tenure.engine.backend.info();
        if !info.capabilities.own_ttl {
            let message =
                format!("{} ends a lease with the session that took it: it cannot be handed on", info.name);
            return Err(Error::new(ErrorKind::Unsupported, message).on(&tenure.resource));
        }
        tenure.check()?;
        if tenure.handles() > 1 {
            let message = "a scope has entered it more than once: leave the inner ones first";
            return Err(Error::new(ErrorKind::Invalid, message).on(&tenure.resource));
        }
        tenure.engine.unwatch(tenure);
        if !tenure.part() || !tenure.end(EndReason::Detached) {
            return Err(tenure.lost(EndReason::Released));
        }
        tenure.engine.observer.ended(tenure);
        tenure.engine.holder_left(&tenure.resource, tenure.owner);
        Ok(Detached::of(tenure))
    }

    /// Turns a write lease into a read lease without a gap: no other writer gets in between. Other readers may
    /// come in from then on.
    ///
    /// One round trip. The other way is not offered: two readers that both wait to become the writer wait for each
    /// other. Release the read lease and ask for the write lease.
    ///
    /// # Cancel safety
    /// Dropped part-way, both are given back.
    ///
    /// # Errors
    /// `Invalid` if it is not a write lease; `Lost` if it is over. In every case the write lease is given back.
    pub async fn downgrade(self) -> Result<SharedLease> {
        let tenure = self.tenure();
        if tenure.share != Share::WRITE {
            return Err(
                Error::new(ErrorKind::Invalid, "only a write lease can be downgraded").on(&tenure.resource)
            );
        }
        tenure.engine.downgrade(tenure, Share::READ).await.map(Lease::new)
    }
}

impl<T> Deref for Lease<T> {
    type Target = LeaseView<T>;
    fn deref(&self) -> &LeaseView<T> {
        &self.view
    }
}

impl<T> fmt::Debug for Lease<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lease").field(&self.view.tenure).finish()
    }
}

impl<T> Clone for LeaseView<T> {
    fn clone(&self) -> LeaseView<T> {
        LeaseView { tenure: Arc::clone(&self.tenure), kind: PhantomData }
    }
}

impl<T> fmt::Debug for LeaseView<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LeaseView").field(&self.tenure).finish()
    }
}

impl LeaseView {
    /// What to show at a fence: the resource, the token, and a hash that stands for the owner. No secret.
    ///
    /// Only an exclusive lease has one: shared holders are there together, and no fence can order them.
    pub fn pass(&self) -> Pass {
        Pass::new(self.tenure.resource.clone(), self.token()).owned_by(self.tenure.owner)
    }
}

impl<T: TokenKind> LeaseView<T> {
    /// What to show where the effect happens: a [`FencingToken`] of an exclusive lease, a [`ShareNumber`] of a
    /// shared one.
    pub fn token(&self) -> T {
        T::from_grant(self.tenure.token)
    }

    /// What is held.
    pub fn resource(&self) -> &Resource {
        &self.tenure.resource
    }

    /// The capability to renew and release it: a secret.
    pub fn owner_token(&self) -> OwnerToken {
        self.tenure.owner
    }

    /// When it was granted, by this host's calendar.
    pub fn acquired_at(&self) -> SystemTime {
        self.tenure.acquired_wall.to_system_time()
    }

    /// How long it lasts from one renewal to the next.
    pub fn ttl(&self) -> Duration {
        self.tenure.ttl()
    }

    /// How sure we are of it, by the clock at this moment.
    pub fn state(&self) -> State {
        match self.tenure.ending() {
            Some(ending) => State::Ended(ending),
            None if self.tenure.failures() > 0 => {
                State::Doubtful { left: self.tenure.now().until(self.tenure.stop_at()) }
            }
            None => State::Held,
        }
    }

    /// How long nobody else can be granted it, for certain, unless it is renewed. Zero once it is over.
    pub fn remaining(&self) -> Duration {
        match self.tenure.ending() {
            Some(_) => Duration::ZERO,
            None => self.tenure.now().until(self.tenure.deadline()),
        }
    }

    /// Whether to go on, by the clocks at this moment: a few atomic loads and two clock reads, no lock.
    ///
    /// # Errors
    /// `Lost` once the lease is over, which is when a sixth of its ttl is left and no renewal has succeeded.
    pub fn check(&self) -> Result<()> {
        self.tenure.check()
    }

    /// Resolves when the lease is over, by loss or release. Owns what it needs, so `release` stays callable, and has
    /// its own timer.
    ///
    /// # Cancel safety
    /// Nothing is missed: asked again, it answers at once.
    pub fn ended(&self) -> impl Future<Output = EndReason> + Send + use<T> {
        Arc::clone(&self.tenure).until_ended()
    }

    /// Resolves when an operator asks the holder to finish; `None` if the lease ends without that.
    ///
    /// # Cancel safety
    /// Nothing is missed: asked again, it answers at once.
    pub fn asked(&self) -> impl Future<Output = Option<FinishRequest>> + Send + use<T> {
        Arc::clone(&self.tenure).until_asked()
    }

    /// Cancelled when the lease is over, for whatever reason. A child: cancelling it does not touch the lease.
    pub fn cancellation(&self) -> CancellationToken {
        self.tenure.cancellation()
    }

    /// Reports that the work goes on, for [`progress_within`](crate::LeaseRequest::progress_within).
    pub fn progress(&self) {
        self.tenure.progress();
    }

    /// Works while the lease holds; drops the work at its next await point when it is lost.
    ///
    /// The clock is read before each poll of the work, so a machine that was suspended stops here first.
    ///
    /// # Cancel safety
    /// The work is dropped; the lease stays.
    ///
    /// # Errors
    /// `Lost` if the lease was over before the work was done.
    pub async fn hold<W: Future>(&self, work: W) -> Result<W::Output> {
        let mut work = pin!(work);
        let mut ended = pin!(self.ended());
        poll_fn(move |cx| {
            if let Poll::Ready(ending) = ended.as_mut().poll(cx) {
                return Poll::Ready(Err(self.tenure.lost(ending)));
            }
            self.check()?;
            work.as_mut().poll(cx).map(Ok)
        })
        .await
    }

    /// Renews now, and from now on for this long.
    ///
    /// One round trip. It never shortens what is already granted.
    ///
    /// # Cancel safety
    /// It may or may not have been renewed; the lease is as good as before.
    ///
    /// # Errors
    /// `Invalid` for a ttl out of bounds; `Unsupported` where a session keeps it; `Lost` if it is over; whatever the backend says, which is no loss yet.
    pub async fn extend(&self, ttl: Duration) -> Result<()> {
        if ttl < crate::LeaseRequest::<T>::TTL_MIN || ttl > crate::LeaseRequest::<T>::TTL_MAX {
            let message = format!("a ttl is 300 ms to 24 h, this one is {ttl:?}");
            return Err(Error::new(ErrorKind::Invalid, message).on(self.resource()));
        }
        let info = self.tenure.engine.backend.info();
        if !info.capabilities.own_ttl {
            let message =
                format!("{} keeps a lease as long as its session: no lease has a ttl of its own", info.name);
            return Err(Error::new(ErrorKind::Unsupported, message).on(&self.tenure.resource));
        }
        self.renew_now(RenewRequest::new(self.tenure.reference(), ttl)).await
    }

    /// Changes the note, and renews: a leader's value, while it leads.
    ///
    /// # Cancel safety
    /// It may or may not have been changed.
    ///
    /// # Errors
    /// As [`LeaseView::extend`]; `Limit` if it is too long.
    pub async fn set_note(&self, note: impl AsRef<[u8]>) -> Result<()> {
        self.renew_now(RenewRequest::new(self.tenure.reference(), self.ttl()).with_note(note.as_ref())).await
    }

    async fn renew_now(&self, held: RenewRequest) -> Result<()> {
        let (tenure, engine) = (&self.tenure, &self.tenure.engine);
        self.check()?;
        let ttl = held.ttl;
        let sent = engine.sending();
        match engine.renew_one(held, Engine::request_limit(self.ttl())).await? {
            Renewal::Renewed(kept) => {
                if let Some(key) = tenure.key() {
                    engine.extended(key, tenure, ttl);
                    engine.kept(key, tenure, sent, kept);
                }
                self.check()
            }
            Renewal::Gone { why } => {
                engine.unwatch(tenure);
                tenure.end(if why == GoneReason::Evicted { EndReason::Evicted } else { EndReason::NotOurs });
                self.check()
            }
            Renewal::Queued { .. } => {
                engine.unwatch(tenure);
                tenure.end(EndReason::NotOurs);
                self.check()
            }
        }
    }
}
