//! Several at once: all or none.

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
        Patience,
        tenure::{Handle, Tenure},
    },
    request::LeaseRequest,
};

/// A request for several leases. They are taken in the order of their keys, so that callers who want some of the
/// same never wait for each other in a circle; if one fails, the others are given back.
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
    patience: Patience,
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
            patience: Patience::AtMost(LeaseRequest::<FencingToken>::WAIT),
        }
    }

    /// One more, of whatever kind.
    pub fn and<T: TokenKind>(mut self, request: LeaseRequest<T>) -> AllRequest {
        self.requests.push(request.with_kind());
        self
    }

    /// How long to wait for all of them together; what each request says of waiting does not count. Default 10 s.
    pub fn wait(mut self, at_most: Duration) -> AllRequest {
        self.patience = Patience::AtMost(at_most);
        self
    }

    /// Waits as long as it takes.
    pub fn wait_forever(mut self) -> AllRequest {
        self.patience = Patience::Forever;
        self
    }

    /// Acquires them all.
    ///
    /// One round trip each.
    ///
    /// # Cancel safety
    /// Dropped at any point, nothing stays held.
    ///
    /// # Errors
    /// As [`LeaseRequest::acquire`], for the first that fails; `Invalid` if one resource is named twice; `Lost` if
    /// one was lost while waiting for another.
    pub async fn acquire(self) -> Result<LeaseSet> {
        let mut requests = self.requests;
        for request in &requests {
            request.resource()?;
        }
        requests.sort_by(|a, b| a.resource().ok().cmp(&b.resource().ok()));
        if let Some(pair) =
            requests.windows(2).find(|pair| pair[0].resource().ok() == pair[1].resource().ok())
        {
            let message = "it is named twice: a caller would wait for itself";
            return Err(Error::new(ErrorKind::Invalid, message).on(pair[0].resource()?));
        }
        let environment = &self.client.engine.environment;
        let started = environment.now();
        let mut handles = Vec::with_capacity(requests.len());
        for request in requests {
            let patience = match self.patience {
                Patience::AtMost(at_most) => {
                    Patience::AtMost(at_most.saturating_sub(started.until(environment.now())))
                }
                other => other,
            };
            // An early return drops, so gives back, the ones before.
            handles.push(request.with_patience(patience).acquire().await?.into_handle());
        }
        let set = LeaseSet { handles };
        set.check()?;
        Ok(set)
    }
}

/// Several leases that stand and fall together. Dropping it releases them all.
#[must_use = "dropping a lease set releases it"]
#[derive(Debug)]
pub struct LeaseSet {
    handles: Vec<Handle>,
}

impl LeaseSet {
    /// How many.
    pub fn len(&self) -> usize {
        self.handles.len()
    }

    /// Whether nothing was asked for.
    pub fn is_empty(&self) -> bool {
        self.handles.is_empty()
    }

    /// What is held, in key order.
    pub fn resources(&self) -> impl Iterator<Item = &Resource> {
        self.tenures().map(|tenure| &tenure.resource)
    }

    fn tenures(&self) -> impl Iterator<Item = &Arc<Tenure>> {
        self.handles.iter().map(Handle::tenure)
    }

    /// The token of one of them; None if it is not in the set, or is shared.
    pub fn token(&self, kind: &str, id: &str) -> Option<FencingToken> {
        let named = |tenure: &&Arc<Tenure>| tenure.resource.kind() == kind && tenure.resource.id() == id;
        self.tenures().find(named).filter(|tenure| tenure.share.is_exclusive()).map(|tenure| tenure.token)
    }

    /// Whether to go on, by the clocks at this moment.
    ///
    /// # Errors
    /// `Lost` once any of them is over.
    pub fn check(&self) -> Result<()> {
        self.tenures().try_for_each(|tenure| tenure.check())
    }

    /// Works while all of them hold; drops the work at its next await point when one is lost.
    ///
    /// # Cancel safety
    /// The work is dropped; the leases stay.
    ///
    /// # Errors
    /// `Lost` if one was over before the work was done.
    pub async fn hold<W: Future>(&self, work: W) -> Result<W::Output> {
        let mut work = pin!(work);
        let mut ended: Vec<_> =
            self.tenures().map(|tenure| Box::pin(Arc::clone(tenure).until_ended())).collect();
        poll_fn(move |cx| {
            for (tenure, ended) in self.tenures().zip(&mut ended) {
                if let Poll::Ready(ending) = ended.as_mut().poll(cx) {
                    return Poll::Ready(Err(tenure.lost(ending)));
                }
            }
            self.check()?;
            work.as_mut().poll(cx).map(Ok)
        })
        .await
    }

    /// Gives them all back, in the opposite order.
    ///
    /// # Cancel safety
    /// Dropped part-way, the reaper gives back the rest.
    ///
    /// # Errors
    /// The first error of any; the others are released all the same.
    pub async fn release(mut self) -> Result<()> {
        let mut outcome = Ok(());
        while let Some(handle) = self.handles.pop() {
            let tenure = handle.tenure();
            if tenure.handles() == 1 {
                outcome = outcome.and(tenure.engine.release(tenure, tenure.terms().at_least).await.map(drop));
            }
        }
        outcome
    }
}
