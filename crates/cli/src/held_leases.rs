//! The leases of a run that holds several resources at once (`leasehold run -r a/1 -r b/2`), or one. They are used like one lease:
//! the command may work as long as all of them hold.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    task::Poll,
    time::Duration,
};

use leasehold::{Clock as _, EndReason, Error, FinishRequest, Released, Resource, SystemClock, Timestamp};

use crate::run_lease::{BoxFuture, RunLease};

/// A resource and its lease.
pub(crate) struct ResourceLease {
    pub(crate) resource: Resource,
    pub(crate) lease: Box<dyn RunLease>,
}

/// All leases of a run, in the order of their keys. There is at least one when the command runs.
#[derive(Default)]
pub(crate) struct HeldLeases(Vec<ResourceLease>);

impl HeldLeases {
    pub(crate) fn add(&mut self, resource: Resource, lease: Box<dyn RunLease>) {
        self.0.push(ResourceLease { resource, lease });
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &ResourceLease> {
        self.0.iter()
    }

    /// The shortest ttl.
    pub(crate) fn ttl(&self) -> Duration {
        self.iter().map(|held| held.lease.ttl()).min().unwrap_or_default()
    }

    /// The first deadline. `None` once a lease has ended.
    pub(crate) fn deadline(&self) -> Option<Timestamp> {
        let deadlines: Option<Vec<_>> = self.iter().map(|held| held.lease.deadline()).collect();
        deadlines?.into_iter().min()
    }

    /// Resolves when the first lease has ended: which one, and why.
    pub(crate) fn ended(&self) -> BoxFuture<(Resource, EndReason)> {
        let ended = self.iter().map(|held| {
            let (resource, ended) = (held.resource.clone(), held.lease.ended());
            Box::pin(async move { (resource, ended.await) }) as BoxFuture<(Resource, EndReason)>
        });
        first(ended.collect())
    }

    /// Resolves when an operator asks a holder to finish.
    pub(crate) fn finish_requested(&self) -> BoxFuture<Option<FinishRequest>> {
        first(self.iter().map(|held| held.lease.finish_requested()).collect())
    }

    /// Resolves when the deadline may have changed.
    ///
    /// # Cancel safety
    /// As `RunLease::deadline_changed`.
    pub(crate) async fn deadline_changed(&mut self) {
        first(self.0.iter_mut().map(|held| held.lease.deadline_changed()).collect()).await;
    }

    /// The resource that an operator has evicted the holder from, if there is one.
    pub(crate) fn evicted(&self) -> Option<&Resource> {
        self.iter().find(|held| held.lease.is_evicted()).map(|held| &held.resource)
    }

    /// Counts and logs the loss of the leases that end within this time. The others are released.
    pub(crate) fn report_losses(&self, within: Duration) {
        let soon = SystemClock.now().after(within);
        for ResourceLease { lease, .. } in self.iter() {
            let is_evicted = lease.is_evicted();
            if is_evicted || lease.deadline().is_none_or(|deadline| deadline <= soon) {
                lease.report_loss(if is_evicted { EndReason::Evicted } else { EndReason::Expired });
            }
        }
    }

    /// Leaves the leases as they are: they run out with their ttl, as this process ends now and renews them no more.
    pub(crate) fn leave(self) {
        Box::leak(Box::new(self)); // dropped, they would be released
    }

    /// Releases all leases at the same time. An error, or that a lease was gone, takes precedence in the result.
    pub(crate) async fn release(self, keep: Option<Duration>) -> Result<Released, Error> {
        let releases: Vec<_> = self.0.into_iter().map(|held| held.lease.release(keep)).collect();
        let mut outcome = Ok(Released::StillHeld);
        for released in all(releases).await {
            outcome = match (outcome, released) {
                (Ok(Released::AlreadyGone), Ok(_)) => Ok(Released::AlreadyGone),
                (Err(error), Ok(_)) => Err(error),
                (_, released) => released,
            };
        }
        outcome
    }
}

type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Resolves with the first of these.
fn first<'a, T: 'a>(mut futures: Vec<Boxed<'a, T>>) -> Boxed<'a, T> {
    if futures.len() == 1
        && let Some(only) = futures.pop()
    {
        return only;
    }
    Box::pin(poll_fn(move |cx| {
        for future in &mut futures {
            if let Poll::Ready(value) = future.as_mut().poll(cx) {
                return Poll::Ready(value);
            }
        }
        Poll::Pending
    }))
}

/// Resolves with all of these.
async fn all<T>(futures: Vec<Boxed<'_, T>>) -> Vec<T> {
    let mut pending: Vec<_> = futures.into_iter().map(Some).collect();
    let mut done = Vec::new();
    poll_fn(|cx| {
        for slot in &mut pending {
            if let Some(future) = slot
                && let Poll::Ready(value) = future.as_mut().poll(cx)
            {
                done.push(value);
                *slot = None;
            }
        }
        if pending.iter().all(Option::is_none) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    done
}
