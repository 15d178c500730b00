//! A request for several leases at once: all of them, or none.

use std::{future::Future, time::Duration};

use leasehold_core::{Error, ErrorKind, FencingToken, Result};

use super::lease_set::{LeaseSet, LeaseSetView};
use crate::{
    client::{Client, TokenKind},
    engine::{WaitLimit, held_lease::LeaseHandle},
    request::{Attempt, LeaseRequest},
};

/// A request for several leases. If one fails, the others are released.
///
/// They are acquired in the order of their keys, so that two callers that want some of the same leases cannot deadlock.
///
/// ```
/// # async fn transfer(from: leasehold::Pass, to: leasehold::Pass) -> Result<(), std::io::Error> { Ok(()) }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let leases = leasehold::connect("memory:").await?;
/// leases
///     .all([leases.lease("account", "b"), leases.lease("account", "a")])
///     .and(leases.semaphore("db", "main", 5).permits(1))
///     .run(async |set| {
///         let pass = |id| set.pass("account", id).expect("it is in the set, and exclusive");
///         transfer(pass("a"), pass("b")).await // the fence checks both
///     })
///     .await??; // the first ? is for a lost lease, the second for the work
/// # Ok(()) }
/// ```
#[must_use = "a request does nothing until `.acquire()`, `.try_acquire()` or `.run(…)`"]
#[derive(Debug)]
pub struct AllRequest {
    client: Client,
    requests: Vec<LeaseRequest>,
    wait_limit: WaitLimit,
}

impl AllRequest {
    pub(crate) fn new<T: TokenKind>(
        client: &Client,
        requests: impl IntoIterator<Item = LeaseRequest<T>>,
    ) -> AllRequest {
        let requests = requests.into_iter().map(LeaseRequest::with_kind).collect();
        AllRequest {
            client: client.clone(),
            requests,
            wait_limit: WaitLimit::AtMost(LeaseRequest::<FencingToken>::WAIT),
        }
    }

    /// Adds a request, of any kind.
    pub fn and<T: TokenKind>(mut self, request: LeaseRequest<T>) -> AllRequest {
        self.requests.push(request.with_kind());
        self
    }

    /// How long to wait for all leases together. The wait limits of the single requests are ignored. Default 10 s.
    pub fn wait(mut self, at_most: Duration) -> AllRequest {
        self.wait_limit = WaitLimit::AtMost(at_most);
        self
    }

    /// Waits without a limit. Default: [`AllRequest::wait`] of 10 s.
    pub fn wait_forever(mut self) -> AllRequest {
        self.wait_limit = WaitLimit::Forever;
        self
    }

    /// Acquires all leases.
    ///
    /// One round trip for each lease.
    ///
    /// # Guarantees
    /// As [`LeaseRequest::acquire`], for each lease. All of them hold when this returns.
    ///
    /// # Fairness
    /// As [`LeaseRequest::acquire`], for each lease by itself.
    ///
    /// # Cancel safety
    /// If it is dropped at any point, nothing stays held.
    ///
    /// # Errors
    /// As [`LeaseRequest::acquire`], of the first lease that fails; `Invalid` if a resource is named twice; `Lost` if a
    /// lease was lost while this waited for another.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// let leases = leasehold::connect("memory:").await?;
    /// let set = leases.all([leases.lease("account", "b"), leases.lease("account", "a")]).acquire().await?;
    /// assert_eq!((set.len(), set.passes().count()), (2, 2));
    /// # Ok(()) }
    /// ```
    pub async fn acquire(self) -> Result<LeaseSet> {
        match self.acquire_or_busy().await? {
            AllAttempt::Granted(set) => Ok(set),
            AllAttempt::Busy(error) => Err(error),
        }
    }

    /// Acquires all leases if all of them are free now; `None` if another claim holds one of them or waits for it. Then
    /// nothing stays held.
    ///
    /// One round trip for each lease, up to the first that is not free.
    ///
    /// # Guarantees
    /// As [`AllRequest::acquire`].
    ///
    /// # Fairness
    /// It does not overtake claims that wait, and has no place in a queue itself.
    ///
    /// # Cancel safety
    /// As [`AllRequest::acquire`].
    ///
    /// # Errors
    /// As [`AllRequest::acquire`], but never `Contended`.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// let leases = leasehold::connect("memory:").await?;
    /// let accounts = || leases.all([leases.lease("account", "a"), leases.lease("account", "b")]);
    /// let both = accounts().try_acquire().await?.expect("both are free");
    /// assert!(accounts().try_acquire().await?.is_none());
    /// # drop(both);
    /// # Ok(()) }
    /// ```
    pub async fn try_acquire(mut self) -> Result<Option<LeaseSet>> {
        self.wait_limit = WaitLimit::Attempts(1);
        match self.acquire_or_busy().await? {
            AllAttempt::Granted(set) => Ok(Some(set)),
            AllAttempt::Busy(_) => Ok(None),
        }
    }

    /// Acquires all leases, runs the work, and releases the leases: the form that most programs need.
    ///
    /// When a lease is lost, the work is dropped at its next await point. If a release fails, the output of the work is
    /// returned all the same, and the release is repeated in the background.
    ///
    /// # Guarantees
    /// As [`AllRequest::acquire`] and [`LeaseSetView::hold`].
    ///
    /// # Fairness
    /// As [`AllRequest::acquire`].
    ///
    /// # Cancel safety
    /// If it is dropped, the work is dropped and the leases are released in the background.
    ///
    /// # Errors
    /// As [`AllRequest::acquire`]; `Lost` if a lease was lost before the work was done.
    ///
    /// # Examples
    /// The example of [`AllRequest`] uses it.
    pub async fn run<F, W>(self, work: F) -> Result<W::Output>
    where
        F: FnOnce(LeaseSetView) -> W,
        W: Future,
    {
        self.acquire().await?.run(work).await
    }

    async fn acquire_or_busy(self) -> Result<AllAttempt> {
        let requests = self.in_key_order()?;
        let environment = &self.client.engine.environment;
        let started = environment.now();
        let mut handles: Vec<LeaseHandle> = Vec::with_capacity(requests.len());
        for request in requests {
            let wait_limit = match self.wait_limit {
                WaitLimit::AtMost(at_most) => {
                    WaitLimit::AtMost(at_most.saturating_sub(started.until(environment.now())))
                }
                other => other,
            };
            let resource = request.resource()?.clone();
            // An early return drops the handles, which releases the leases so far.
            match request.with_wait_limit(wait_limit).acquire_or_busy().await? {
                Attempt::Granted(lease) => handles.push(lease.into_handle()),
                Attempt::Busy(busy) => return Ok(AllAttempt::Busy(Error::contended(busy).on(&resource))),
            }
        }
        // An early lease may have been lost while this waited for a later one.
        let set = LeaseSet::new(handles);
        set.check()?;
        Ok(AllAttempt::Granted(set))
    }

    /// The requests in the same order for all callers: two of them never wait for each other.
    fn in_key_order(&self) -> Result<Vec<LeaseRequest>> {
        let mut requests = self.requests.clone();
        for request in &requests {
            request.resource()?;
        }
        requests.sort_by(|a, b| a.resource().ok().cmp(&b.resource().ok()));
        let same = requests.windows(2).find(|pair| pair[0].resource().ok() == pair[1].resource().ok());
        if let Some(pair) = same {
            let message = "the resource is named twice, so the request would wait for itself: name it once";
            return Err(Error::new(ErrorKind::Invalid, message).on(pair[0].resource()?));
        }
        Ok(requests)
    }
}

/// The outcome of acquiring all leases.
enum AllAttempt {
    Granted(LeaseSet),
    /// One of them was not free: the error for a caller that had to have it.
    Busy(Error),
}
