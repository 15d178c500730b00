//! The blocking [`LeaseRequest`].

use std::time::Duration;

use leasehold_core::{Busy, FencingToken, Resource, Result};

use super::{Lease, runtime::Runtime};
use crate::{advice::Purpose, client::TokenKind, primitives::Scope};

/// A request for a lease. It borrows nothing: it can be stored, moved into a thread, or put into an array with others.
///
/// An invalid name or setting is reported by `acquire`, like every other error.
#[must_use = "a request does nothing until `.acquire()`, `.try_acquire()` or `.run(…)`"]
#[derive(Clone, Debug)]
pub struct LeaseRequest<T: TokenKind = FencingToken> {
    request: crate::LeaseRequest<T>,
    runtime: Runtime,
}

/// The outcome of a single [attempt](LeaseRequest::attempt).
#[derive(Debug)]
pub enum Attempt<T: TokenKind = FencingToken> {
    /// The lease was free.
    Granted(Lease<T>),
    /// It was not free: who holds it, and when to try again.
    Busy(Busy),
}

impl<T: TokenKind> LeaseRequest<T> {
    pub(super) fn new(request: crate::LeaseRequest<T>, runtime: &Runtime) -> LeaseRequest<T> {
        LeaseRequest { request, runtime: runtime.clone() }
    }

    fn with(self, set: impl FnOnce(crate::LeaseRequest<T>) -> crate::LeaseRequest<T>) -> Self {
        LeaseRequest { request: set(self.request), runtime: self.runtime }
    }

    /// How long the lease lasts without a renewal. Default 30 s; from 300 ms to 24 h.
    pub fn ttl(self, ttl: Duration) -> Self {
        self.with(|request| request.ttl(ttl))
    }

    /// How long `acquire` waits if the lease is not free. Default 10 s.
    pub fn wait(self, at_most: Duration) -> Self {
        self.with(|request| request.wait(at_most))
    }

    /// Waits without a limit. Default: [`LeaseRequest::wait`] of 10 s.
    pub fn wait_forever(self) -> Self {
        self.with(crate::LeaseRequest::wait_forever)
    }

    /// Asks this many times, at least once, without a place in the queue. The pauses grow from 50 ms to 2 s.
    pub fn attempts(self, most: u32) -> Self {
        self.with(|request| request.attempts(most))
    }

    /// Grants in strict arrival order across processes. Default: waiters of one client hand the lease over among
    /// themselves, which is faster.
    pub fn fair(self) -> Self {
        self.with(crate::LeaseRequest::fair)
    }

    /// Whether it is renewed automatically. Default true.
    pub fn renew(self, renew: bool) -> Self {
        self.with(|request| request.renew(renew))
    }

    /// The longest time to hold it, even if renewals succeed. Default: no limit; must be greater than 0.
    pub fn max_hold(self, at_most: Duration) -> Self {
        self.with(|request| request.max_hold(at_most))
    }

    /// Renews only while the work calls [`LeaseView::progress`](super::LeaseView::progress) at least this often. Default: no
    /// limit; must be greater than 0.
    pub fn progress_within(self, at_most: Duration) -> Self {
        self.with(|request| request.progress_within(at_most))
    }

    /// After a release, the resource stays closed until this much time has passed since the grant. Default: it is free at
    /// once.
    pub fn at_least(self, duration: Duration) -> Self {
        self.with(|request| request.at_least(duration))
    }

    /// A few bytes that other clients can read while the lease is held. Default: none.
    pub fn note(self, note: impl AsRef<[u8]>) -> Self {
        self.with(|request| request.note(note))
    }

    /// A text for people who look up the holder: what the lease is for. Default: the client's label.
    pub fn label(self, label: &str) -> Self {
        self.with(|request| request.label(label))
    }

    /// Whether the lease saves work or protects correctness. Default: [`Purpose::Efficiency`].
    pub fn purpose(self, purpose: Purpose) -> Self {
        self.with(|request| request.purpose(purpose))
    }

    /// States that the place of the effect checks the fencing token. Default: not fenced.
    pub fn fenced(self) -> Self {
        self.with(crate::LeaseRequest::fenced)
    }

    /// Hashes the id with the client's secret before it is used in a key, a log or a label. Default: the id is used as it
    /// is.
    pub fn sensitive(self) -> Self {
        self.with(crate::LeaseRequest::sensitive)
    }

    /// Enters the lease again if this scope holds it: counted in the process, no round trip, the same token. Default: no
    /// scope.
    pub fn within(self, scope: &Scope) -> Self {
        self.with(|request| request.within(scope))
    }

    /// The resource.
    ///
    /// # Errors
    /// `Invalid` if its name is invalid.
    pub fn resource(&self) -> Result<&Resource> {
        self.request.resource()
    }

    /// Acquires the lease, and waits if it is not free: see the async [`acquire`](crate::LeaseRequest::acquire).
    ///
    /// # Errors
    /// As the async [`acquire`](crate::LeaseRequest::acquire).
    pub fn acquire(self) -> Result<Lease<T>> {
        let lease = self.runtime.call(self.request.acquire())?;
        Ok(Lease::new(lease, &self.runtime))
    }

    /// Acquires the lease if it is free now; `None` if another claim holds it or waits for it. One round trip.
    ///
    /// # Errors
    /// As [`LeaseRequest::acquire`], but never `Contended`.
    pub fn try_acquire(self) -> Result<Option<Lease<T>>> {
        let lease = self.runtime.call(self.request.try_acquire())?;
        Ok(lease.map(|lease| Lease::new(lease, &self.runtime)))
    }

    /// Acquires the lease if it is free now; otherwise says who holds it. One round trip.
    ///
    /// # Errors
    /// As [`LeaseRequest::try_acquire`].
    pub fn attempt(self) -> Result<Attempt<T>> {
        Ok(match self.runtime.call(self.request.attempt())? {
            crate::Attempt::Granted(lease) => Attempt::Granted(Lease::new(lease, &self.runtime)),
            crate::Attempt::Busy(busy) => Attempt::Busy(busy),
        })
    }

    /// Acquires the lease, runs the work, and releases the lease.
    ///
    /// The work is not interrupted when the lease is lost: it asks with [`check`](super::LeaseView::check), before each step
    /// that only the holder may do. If the work panics, the lease is released.
    ///
    /// # Errors
    /// As [`LeaseRequest::acquire`]; `Lost` if the lease was lost before the work was done.
    pub fn run<R>(self, work: impl FnOnce(&Lease<T>) -> R) -> Result<R> {
        let lease = self.acquire()?;
        let output = work(&lease);
        lease.check()?;
        drop(lease.release()); // a failure is reported as an event, and the release is repeated
        Ok(output)
    }
}

#[cfg(test)]
mod tests {
    /// The names of the functions that take and return the request itself.
    fn setters(source: &str) -> Vec<&str> {
        let lines =
            source.lines().filter(|line| line.starts_with("    pub fn ") && line.ends_with("-> Self {"));
        let mut names: Vec<_> =
            lines.filter_map(|line| line.trim().strip_prefix("pub fn ")?.split('(').next()).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn it_has_the_same_setters_as_the_async_request() {
        let (blocking, with_async) =
            (setters(include_str!("request.rs")), setters(include_str!("../request.rs")));
        assert!(with_async.len() > 10, "{with_async:?}");
        assert_eq!(blocking, with_async);
    }
}
