//! Several leases at once: all of them, or none.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use leasehold_core::{Error, ErrorKind, FencingToken, Resource, Result};

use crate::{
    client::{Client, TokenKind},
    engine::{
        WaitLimit,
        held_lease::{HeldLease, LeaseHandle},
    },
    request::LeaseRequest,
};

/// A request for several leases. If one fails, the others are released.
///
/// They are acquired in the order of their keys, so that two callers that want some of the same leases cannot deadlock.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// let leases = leasehold::connect("memory:").await?;
/// let transfer = leases
///     .all([leases.lease("account", "b"), leases.lease("account", "a")])
///     .and(leases.semaphore("db", "main", 5).permits(1))
///     .acquire()
///     .await?;
/// assert!(transfer.token("account", "a").is_some());
/// transfer.hold(async { /* move the money */ }).await?;
/// transfer.release().await?;
/// # Ok(()) }
/// ```
#[must_use = "a request does nothing until `.acquire()`"]
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
    pub async fn acquire(self) -> Result<LeaseSet> {
        let mut requests = self.requests;
        for request in &requests {
            request.resource()?;
        }
        // The same order for all callers: two of them never wait for each other.
        requests.sort_by(|a, b| a.resource().ok().cmp(&b.resource().ok()));
        if let Some(pair) =
            requests.windows(2).find(|pair| pair[0].resource().ok() == pair[1].resource().ok())
        {
            let message = "the resource is named twice, so the request would wait for itself: name it once";
            return Err(Error::new(ErrorKind::Invalid, message).on(pair[0].resource()?));
        }
        let environment = &self.client.engine.environment;
        let started = environment.now();
        let mut handles = Vec::with_capacity(requests.len());
        for request in requests {
            let wait_limit = match self.wait_limit {
                WaitLimit::AtMost(at_most) => {
                    WaitLimit::AtMost(at_most.saturating_sub(started.until(environment.now())))
                }
                other => other,
            };
            // An early return drops the handles, which releases the leases so far.
            handles.push(request.with_wait_limit(wait_limit).acquire().await?.into_handle());
        }
        // An early lease may have been lost while this waited for a later one.
        let set = LeaseSet { handles };
        set.check()?;
        Ok(set)
    }
}

/// Several leases that are held together. Dropping the set releases all of them.
#[must_use = "dropping a lease set releases it"]
#[derive(Debug)]
pub struct LeaseSet {
    handles: Vec<LeaseHandle>,
}

impl LeaseSet {
    /// The number of leases.
    pub fn len(&self) -> usize {
        self.handles.len()
    }

    /// Whether the set has no leases.
    pub fn is_empty(&self) -> bool {
        self.handles.is_empty()
    }

    /// The resources, in key order.
    pub fn resources(&self) -> impl Iterator<Item = &Resource> {
        self.leases().map(|held| &held.resource)
    }

    fn leases(&self) -> impl Iterator<Item = &Arc<HeldLease>> {
        self.handles.iter().map(LeaseHandle::lease)
    }

    /// The fencing token of one lease; `None` if it is not in the set, or is shared.
    pub fn token(&self, kind: &str, id: &str) -> Option<FencingToken> {
        let named = |held: &&Arc<HeldLease>| held.resource.kind() == kind && held.resource.id() == id;
        self.leases().find(named).filter(|held| held.share.is_exclusive()).map(|held| held.token)
    }

    /// Checks that all leases hold, by the clocks at this moment.
    ///
    /// # Errors
    /// `Lost` once any of them is over.
    pub fn check(&self) -> Result<()> {
        self.leases().try_for_each(|held| held.check())
    }

    /// Runs the work while all leases hold. When one is lost, the work is dropped at its next await point.
    ///
    /// # Guarantees
    /// As [`LeaseView::hold`](crate::LeaseView::hold), for every lease of the set.
    ///
    /// # Cancel safety
    /// If it is dropped, the work is dropped with it. The leases stay.
    ///
    /// # Errors
    /// `Lost` if a lease was over before the work was done.
    pub async fn hold<W: Future>(&self, work: W) -> Result<W::Output> {
        let mut work = pin!(work);
        let mut ended: Vec<_> = self.leases().map(|held| Box::pin(Arc::clone(held).until_ended())).collect();
        poll_fn(move |cx| {
            for (held, ended) in self.leases().zip(&mut ended) {
                if let Poll::Ready(reason) = ended.as_mut().poll(cx) {
                    return Poll::Ready(Err(held.lost(reason)));
                }
            }
            self.check()?;
            work.as_mut().poll(cx).map(Ok)
        })
        .await
    }

    /// Releases all leases, in the opposite order.
    ///
    /// One round trip for each lease.
    ///
    /// # Cancel safety
    /// If it is dropped part-way, the rest is released in the background.
    ///
    /// # Errors
    /// The first error. The other leases are released all the same.
    pub async fn release(mut self) -> Result<()> {
        let mut outcome = Ok(());
        while let Some(handle) = self.handles.pop() {
            let held = handle.lease();
            if held.handles() == 1 {
                outcome = outcome.and(held.engine.release(held, held.options().at_least).await.map(drop));
            }
        }
        outcome
    }
}
