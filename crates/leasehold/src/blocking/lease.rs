//! The blocking [`Lease`] and [`LeaseView`].

use std::{
    ops::Deref,
    time::{Duration, SystemTime},
};

use leasehold_core::{
    EndReason, FencingToken, FinishRequest, OwnerToken, Pass, Released, Resource, Result, ShareNumber,
};

use super::runtime::Runtime;
use crate::{client::TokenKind, detached::Detached, lease::State};

/// How long a dropped lease waits for the reply to its release. After that, the release goes on in the background.
const DROP_MAX: Duration = Duration::from_secs(1);

/// The right to act. It is not `Clone`. Dropping it releases the lease, and waits for the reply for up to a second.
///
/// It derefs to [`LeaseView`], which has all functions that do not need to own the lease.
#[must_use = "dropping a lease releases it"]
#[derive(Debug)]
pub struct Lease<T: TokenKind = FencingToken> {
    /// `None` once it was taken out, to be released or detached.
    lease: Option<crate::Lease<T>>,
    view: LeaseView<T>,
}

/// A shared lease: a read lease, or permits of a semaphore.
pub type SharedLease = Lease<ShareNumber>;

/// A view of a lease that can be cloned and given to other threads. It never keeps the lease from being released.
#[derive(Debug)]
pub struct LeaseView<T: TokenKind = FencingToken> {
    view: crate::LeaseView<T>,
    runtime: Runtime,
}

impl<T: TokenKind> Lease<T> {
    pub(super) fn new(lease: crate::Lease<T>, runtime: &Runtime) -> Lease<T> {
        let view = LeaseView { view: lease.view(), runtime: runtime.clone() };
        Lease { lease: Some(lease), view }
    }

    fn take(mut self) -> (crate::Lease<T>, Runtime) {
        let lease = self.lease.take().expect("only a function that consumes the lease takes it out");
        (lease, self.view.runtime.clone())
    }

    /// A view that can be cloned and given to other threads.
    pub fn view(&self) -> LeaseView<T> {
        self.view.clone()
    }

    /// Releases the lease. One round trip.
    ///
    /// # Errors
    /// The backend's error; the release is then repeated in the background. [`Released::AlreadyGone`] is not an error: the
    /// lease had expired before.
    pub fn release(self) -> Result<Released> {
        let (lease, runtime) = self.take();
        runtime.call(lease.release())
    }

    /// Releases the lease, but keeps the resource closed until this much time has passed since the grant.
    ///
    /// # Errors
    /// As [`Lease::release`]; `Unsupported` if the backend cannot keep a resource closed.
    pub fn release_keeping(self, at_least: Duration) -> Result<Released> {
        let (lease, runtime) = self.take();
        runtime.call(lease.release_keeping(at_least))
    }
}

impl Lease {
    /// Takes the lease out of this process without releasing it: see the async [`detach`](crate::Lease::detach).
    ///
    /// # Errors
    /// As the async [`detach`](crate::Lease::detach).
    pub fn detach(self) -> Result<Detached> {
        let (lease, runtime) = self.take();
        runtime.call(async { lease.detach() })
    }

    /// Turns a write lease into a read lease. No other writer is granted in between.
    ///
    /// # Errors
    /// `Invalid` if it is not a write lease; `Lost` if it is over. After an error the write lease is released.
    pub fn downgrade(self) -> Result<SharedLease> {
        let (lease, runtime) = self.take();
        let lease = runtime.call(lease.downgrade())?;
        Ok(Lease::new(lease, &runtime))
    }
}

impl<T: TokenKind> Drop for Lease<T> {
    fn drop(&mut self) {
        if let Some(lease) = self.lease.take() {
            let runtime = &self.view.runtime;
            if runtime.check_process().is_err() {
                // A forked process: the lease stays with the process that acquired it.
                std::mem::forget(lease);
                return;
            }
            drop(runtime.wait_at_most(DROP_MAX, lease.release()));
        }
    }
}

impl<T: TokenKind> Deref for Lease<T> {
    type Target = LeaseView<T>;
    fn deref(&self) -> &LeaseView<T> {
        &self.view
    }
}

impl<T: TokenKind> Clone for LeaseView<T> {
    fn clone(&self) -> LeaseView<T> {
        LeaseView { view: self.view.clone(), runtime: self.runtime.clone() }
    }
}

impl LeaseView {
    /// What a fence checks: the resource, the token, and a hash of the owner. It holds no secret.
    pub fn pass(&self) -> Pass {
        self.view.pass()
    }
}

impl<T: TokenKind> LeaseView<T> {
    /// The number of the grant: a [`FencingToken`] of an exclusive lease, a [`ShareNumber`] of a shared one.
    pub fn token(&self) -> T {
        self.view.token()
    }

    /// The resource.
    pub fn resource(&self) -> &Resource {
        self.view.resource()
    }

    /// The owner token. It is a secret: with it, anybody can renew and release the lease.
    pub fn owner_token(&self) -> OwnerToken {
        self.view.owner_token()
    }

    /// When it was granted, by this host's calendar clock.
    pub fn acquired_at(&self) -> SystemTime {
        self.view.acquired_at()
    }

    /// How long it lasts without a renewal.
    pub fn ttl(&self) -> Duration {
        self.view.ttl()
    }

    /// Whether it holds, by the clocks at this moment.
    pub fn state(&self) -> State {
        self.view.state()
    }

    /// For how long it is certain that no other claim is granted, without a renewal. Zero once it is over.
    pub fn remaining(&self) -> Duration {
        self.view.remaining()
    }

    /// Checks that the lease holds, by the clocks at this moment. Takes no lock and makes no request.
    ///
    /// # Errors
    /// `Lost` once the lease is over. Without a successful renewal, it is over when a sixth of its ttl is left.
    pub fn check(&self) -> Result<()> {
        self.view.check()
    }

    /// Reports progress of the work, for [`progress_within`](super::LeaseRequest::progress_within).
    pub fn progress(&self) {
        self.view.progress();
    }

    /// Waits until the lease is over, by loss or release.
    pub fn ended(&self) -> EndReason {
        self.runtime.wait(self.view.ended())
    }

    /// Waits until the lease is over, but no longer than this. `None` if it still holds then.
    pub fn ended_within(&self, at_most: Duration) -> Option<EndReason> {
        self.runtime.wait_at_most(at_most, self.view.ended())
    }

    /// Calls the function once, when the lease is over, on a thread of its own.
    pub fn on_ended(&self, call: impl FnOnce(EndReason) + Send + 'static) {
        let (ended, handle) = (self.view.ended(), self.runtime.handle().clone());
        self.runtime.handle().spawn(async move {
            let reason = ended.await;
            // Not on the thread of the runtime: a function that blocks would stop all renewals.
            handle.spawn_blocking(move || call(reason));
        });
    }

    /// Waits until an operator asks the holder to finish; `None` if the lease ends before that.
    pub fn asked(&self) -> Option<FinishRequest> {
        self.runtime.wait(self.view.asked())
    }

    /// Renews the lease now, and from now on with this ttl. One round trip.
    ///
    /// # Errors
    /// As the async [`extend`](crate::LeaseView::extend).
    pub fn extend(&self, ttl: Duration) -> Result<()> {
        self.runtime.call(self.view.extend(ttl))
    }

    /// Changes the note, and renews the lease. One round trip.
    ///
    /// # Errors
    /// As the async [`set_note`](crate::LeaseView::set_note).
    pub fn set_note(&self, note: impl AsRef<[u8]>) -> Result<()> {
        self.runtime.call(self.view.set_note(note))
    }
}
