//! [`Lease`], which owns the right to act, and [`LeaseView`], which only looks at it.

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
        held_lease::{HeldLease, LeaseHandle},
    },
};

/// The right to act. It is not `Clone`. Dropping it releases the lease in the background.
///
/// It derefs to [`LeaseView`], which has all methods that do not need to own the lease.
#[must_use = "dropping a lease releases it"]
pub struct Lease<T = FencingToken> {
    handle: LeaseHandle,
    view: LeaseView<T>,
}

/// A shared lease: a read lease, or permits of a semaphore.
pub type SharedLease = Lease<ShareNumber>;

/// A view of a lease that can be cloned and given to other tasks. It never keeps the lease from being released.
pub struct LeaseView<T = FencingToken> {
    held: Arc<HeldLease>,
    kind: PhantomData<fn() -> T>,
}

/// Whether a lease holds, by the clocks at this moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// It holds.
    Held,
    /// It holds, but renewals are failing.
    Doubtful {
        /// The lease is lost after this time, unless a renewal succeeds.
        left: Duration,
    },
    /// It is over. This never changes again.
    Ended(EndReason),
}

impl<T: TokenKind> Lease<T> {
    pub(crate) fn new(handle: LeaseHandle) -> Lease<T> {
        let view = LeaseView::of(handle.lease());
        Lease { handle, view }
    }

    pub(crate) fn held(&self) -> &Arc<HeldLease> {
        self.handle.lease()
    }

    /// A view that can be cloned and given to other tasks.
    pub fn view(&self) -> LeaseView<T> {
        self.view.clone()
    }

    /// Runs the work while the lease holds, and releases the lease. As [`LeaseRequest::run`](crate::LeaseRequest::run), for
    /// a lease that is held already.
    ///
    /// When the lease is lost, the work is dropped at its next await point. If the release fails, the output of the work
    /// is returned all the same, and the release is repeated in the background.
    ///
    /// # Guarantees
    /// As [`LeaseView::hold`].
    ///
    /// # Cancel safety
    /// If it is dropped, the work is dropped and the lease is released in the background.
    ///
    /// # Errors
    /// `Lost` if the lease was lost before the work was done.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// let leases = leasehold::connect("memory:").await?;
    /// match leases.lease("report", "42").try_acquire().await? {
    ///     Some(lease) => lease.run(async |lease| println!("exporting with {:?}", lease.token())).await?,
    ///     None => println!("another process exports it"),
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn run<F, W>(self, work: F) -> Result<W::Output>
    where
        F: FnOnce(LeaseView<T>) -> W,
        W: Future,
    {
        let output = self.hold(work(self.view())).await?;
        drop(self.release().await); // a failure is reported as an event, and the release is repeated
        Ok(output)
    }

    /// Releases the lease. If another waiter of this client is next, the lease is handed over to it in the same request.
    ///
    /// One round trip.
    ///
    /// # Guarantees
    /// From the first poll on, every view reports that the lease is over: no other claim is granted before that.
    ///
    /// # Cancel safety
    /// If it is dropped part-way, the release is repeated in the background until the backend has answered.
    ///
    /// # Errors
    /// The backend's error. **It says nothing about the work**: what the work has done is done, so do not return this error
    /// as the result of the work. The release is repeated in the background, and if the backend stays away, the lease runs
    /// out after its ttl. [`Lease::run`] and [`LeaseRequest::run`](crate::LeaseRequest::run) therefore ignore it.
    /// [`Released::AlreadyGone`] is not an error: the lease had expired before.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// let leases = leasehold::connect("memory:").await?;
    /// let lease = leases.lease("report", "42").acquire().await?;
    /// assert_eq!(lease.release().await?, leasehold::Released::Now);
    /// # Ok(()) }
    /// ```
    pub async fn release(self) -> Result<Released> {
        let held = self.held();
        if held.handles() > 1 {
            return Ok(Released::StillHeld); // another handle of the scope holds it; dropping this one only counts down
        }
        held.engine.release(held, held.options().at_least).await
    }

    /// Releases the lease, but keeps the resource closed until this much time has passed since the grant.
    ///
    /// For work that must not be done again too soon *because* it succeeded. [`LeaseRequest::at_least`] decides that
    /// before the work instead. One round trip.
    ///
    /// # Cancel safety
    /// As [`Lease::release`]. The resource may then be open.
    ///
    /// # Errors
    /// As [`Lease::release`]; `Unsupported` if the backend cannot keep a resource closed.
    ///
    /// [`LeaseRequest::at_least`]: crate::LeaseRequest::at_least
    pub async fn release_keeping(self, at_least: Duration) -> Result<Released> {
        let held = self.held();
        if !held.engine.backend.info().capabilities.keep_for {
            let message = format!(
                "on {} a resource cannot stay closed after a release",
                held.engine.backend.info().name
            );
            return Err(Error::new(ErrorKind::Unsupported, message).on(&held.resource));
        }
        if held.handles() > 1 {
            return Ok(Released::StillHeld);
        }
        held.engine.release(held, Some(at_least)).await
    }

    pub(crate) fn into_handle(self) -> LeaseHandle {
        self.handle
    }
}

impl Lease {
    /// Takes the lease out of this process without releasing it. It is not renewed here any more. A process that
    /// [adopts](crate::Client::adopt) it within its ttl goes on holding it, with the same token.
    ///
    /// # Errors
    /// `Lost` if it is over; `Invalid` if a scope has entered it more than once; `Unsupported` if the backend ends a
    /// lease with the session of the process that acquired it.
    pub fn detach(self) -> Result<Detached> {
        let held = self.held();
        let info = held.engine.backend.info();
        if !info.capabilities.own_ttl {
            let message = format!(
                "{} ends a lease with the session that acquired it, so it cannot be detached",
                info.name
            );
            return Err(Error::new(ErrorKind::Unsupported, message).on(&held.resource));
        }
        held.check()?;
        if held.handles() > 1 {
            let message = "a scope has entered this lease more than once: release the inner leases first";
            return Err(Error::new(ErrorKind::Invalid, message).on(&held.resource));
        }
        held.engine.unwatch(held);
        if !held.begin_release() || !held.end(EndReason::Detached) {
            return Err(held.lost(EndReason::Released));
        }
        held.engine.telemetry.ended(held);
        held.engine.promote_after(held);
        Ok(Detached::of(held))
    }

    /// Turns a write lease into a read lease. Other readers can be granted from then on.
    ///
    /// One round trip. A read lease cannot be upgraded: two readers that both wait to become the writer would wait for each
    /// other. [`RwLock::upgradable`](crate::RwLock::upgradable) has readers that can, one at a time.
    ///
    /// # Guarantees
    /// No other writer is granted in between.
    ///
    /// # Cancel safety
    /// If it is dropped part-way, both leases are released in the background.
    ///
    /// # Errors
    /// `Invalid` if it is not a write lease; `Lost` if it is over. After an error the write lease is released.
    pub async fn downgrade(self) -> Result<SharedLease> {
        let held = self.held();
        if held.share != Share::WRITE {
            return Err(
                Error::new(ErrorKind::Invalid, "only a write lease can be downgraded").on(&held.resource)
            );
        }
        held.engine.downgrade(held, Share::READ).await.map(Lease::new)
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
        f.debug_tuple("Lease").field(&self.view.held).finish()
    }
}

impl<T> Clone for LeaseView<T> {
    fn clone(&self) -> LeaseView<T> {
        LeaseView { held: Arc::clone(&self.held), kind: PhantomData }
    }
}

impl<T> fmt::Debug for LeaseView<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LeaseView").field(&self.held).finish()
    }
}

impl LeaseView {
    /// What a fence checks: the resource, the token, and a hash of the owner. It holds no secret.
    ///
    /// Only an exclusive lease has one. Shared leases are held at the same time, so a fence cannot order them.
    pub fn pass(&self) -> Pass {
        Pass::new(self.held.resource.clone(), self.token()).owned_by(self.held.owner)
    }
}

impl<T: TokenKind> LeaseView<T> {
    pub(crate) fn of(held: &Arc<HeldLease>) -> LeaseView<T> {
        LeaseView { held: Arc::clone(held), kind: PhantomData }
    }

    /// The number of the grant: a [`FencingToken`] of an exclusive lease, which the place of the effect can check; a
    /// [`ShareNumber`] of a shared lease.
    pub fn token(&self) -> T {
        T::from_grant(self.held.token)
    }

    /// The resource.
    pub fn resource(&self) -> &Resource {
        &self.held.resource
    }

    /// The owner token. It is a secret: with it, anybody can renew and release the lease.
    pub fn owner_token(&self) -> OwnerToken {
        self.held.owner
    }

    /// When it was granted, by this host's calendar clock.
    pub fn acquired_at(&self) -> SystemTime {
        self.held.acquired_wall.to_system_time()
    }

    /// How long it lasts without a renewal.
    pub fn ttl(&self) -> Duration {
        self.held.ttl()
    }

    /// Whether it holds, by the clocks at this moment.
    pub fn state(&self) -> State {
        match self.held.end_reason() {
            Some(reason) => State::Ended(reason),
            None if self.held.failures() > 0 => {
                State::Doubtful { left: self.held.now().until(self.held.stop_at()) }
            }
            None => State::Held,
        }
    }

    /// For how long it is certain that no other claim is granted, without a renewal. Zero once it is over.
    pub fn remaining(&self) -> Duration {
        match self.held.end_reason() {
            Some(_) => Duration::ZERO,
            None => self.held.now().until(self.held.deadline()),
        }
    }

    /// Checks that the lease holds, by the clocks at this moment. Costs a few atomic loads and two clock reads; takes no
    /// lock.
    ///
    /// # Errors
    /// `Lost` once the lease is over. Without a successful renewal, it is over when a sixth of its ttl is left.
    pub fn check(&self) -> Result<()> {
        self.held.check()
    }

    /// Resolves when the lease is over, by loss or release.
    ///
    /// The future borrows nothing, so the lease can be released while it is polled. It has its own timer.
    ///
    /// # Cancel safety
    /// Nothing is missed: a later call resolves at once.
    pub fn ended(&self) -> impl Future<Output = EndReason> + Send + use<T> {
        Arc::clone(&self.held).until_ended()
    }

    /// Resolves when an operator asks the holder to finish; with `None` if the lease ends before that.
    ///
    /// # Cancel safety
    /// Nothing is missed: a later call resolves at once.
    pub fn asked(&self) -> impl Future<Output = Option<FinishRequest>> + Send + use<T> {
        Arc::clone(&self.held).until_finish_requested()
    }

    /// A token that is cancelled when the lease is over, for any reason. Cancelling it does not change the lease.
    pub fn cancellation(&self) -> CancellationToken {
        self.held.cancellation()
    }

    /// Reports progress of the work, for [`progress_within`](crate::LeaseRequest::progress_within).
    pub fn progress(&self) {
        self.held.progress();
    }

    /// Runs the work while the lease holds. When the lease is lost, the work is dropped at its next await point.
    ///
    /// # Guarantees
    /// The clocks are read before each poll of the work, so work does not continue on a machine that was suspended for
    /// too long. Code between two await points is not interrupted.
    ///
    /// # Cancel safety
    /// If it is dropped, the work is dropped with it. The lease stays.
    ///
    /// # Errors
    /// `Lost` if the lease was over before the work was done.
    pub async fn hold<W: Future>(&self, work: W) -> Result<W::Output> {
        let mut work = pin!(work);
        let mut ended = pin!(self.ended());
        poll_fn(move |cx| {
            if let Poll::Ready(reason) = ended.as_mut().poll(cx) {
                return Poll::Ready(Err(self.held.lost(reason)));
            }
            self.check()?;
            work.as_mut().poll(cx).map(Ok)
        })
        .await
    }

    /// Renews the lease now, and from now on with this ttl.
    ///
    /// One round trip.
    ///
    /// # Guarantees
    /// It never shortens the time that is already granted.
    ///
    /// # Cancel safety
    /// The lease may or may not have been renewed. It holds at least as long as before.
    ///
    /// # Errors
    /// `Invalid` for a ttl out of bounds; `Unsupported` if the backend keeps a lease as long as its session; `Lost` if the
    /// lease is over; the backend's error, which does not end the lease.
    pub async fn extend(&self, ttl: Duration) -> Result<()> {
        if ttl < crate::LeaseRequest::<T>::TTL_MIN || ttl > crate::LeaseRequest::<T>::TTL_MAX {
            let message = format!("ttl must be between 300 ms and 24 h, not {ttl:?}");
            return Err(Error::new(ErrorKind::Invalid, message).on(self.resource()));
        }
        let info = self.held.engine.backend.info();
        if !info.capabilities.own_ttl {
            let message =
                format!("{} keeps a lease as long as its session, so its ttl cannot be changed", info.name);
            return Err(Error::new(ErrorKind::Unsupported, message).on(&self.held.resource));
        }
        self.renew_now(RenewRequest::new(self.held.reference(), ttl)).await
    }

    /// Changes the note, and renews the lease. A leader changes its value with it.
    ///
    /// One round trip.
    ///
    /// # Cancel safety
    /// The note may or may not have been changed.
    ///
    /// # Errors
    /// `Limit` if the note is too long; `Lost` if the lease is over; the backend's error, which does not end the lease.
    pub async fn set_note(&self, note: impl AsRef<[u8]>) -> Result<()> {
        self.renew_now(RenewRequest::new(self.held.reference(), self.ttl()).with_note(note.as_ref())).await
    }

    async fn renew_now(&self, request: RenewRequest) -> Result<()> {
        let (held, engine) = (&self.held, &self.held.engine);
        self.check()?;
        let ttl = request.ttl;
        let sent = engine.send_time();
        match engine.renew_one(request, Engine::request_limit(self.ttl())).await? {
            Renewal::Renewed(renewed) => engine.apply_renewal(held, sent, renewed, Some(ttl)),
            Renewal::Gone { why } => engine.end_gone(held, why),
            Renewal::Queued { .. } => engine.end_gone(held, GoneReason::NotThere),
        }
        self.check()
    }
}
