//! One request at a time for each resource.
//!
//! The pass is checked before the handler, and the effect happens in the handler. If two requests ran at the same time, the
//! one with the lower token, admitted first, could take effect last. So a request waits until the handler of the request
//! before it has answered. ADR 0028.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use leasehold_core::Resource;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

type LocksByResource = HashMap<Resource, Arc<AsyncMutex<()>>>;

/// The locks of all resources that have a request at the moment.
#[derive(Debug, Default)]
pub(super) struct ResourceLocks(Mutex<LocksByResource>);

/// The lock of a resource, held or waited for.
pub(super) struct ResourceLock {
    locks: Arc<ResourceLocks>,
    resource: Resource,
    mutex: Option<Arc<AsyncMutex<()>>>,
    guard: Option<OwnedMutexGuard<()>>,
}

impl ResourceLocks {
    /// Waits for the lock of a resource. It is released when the result is dropped.
    ///
    /// # Cancel safety
    /// The caller loses its place among the waiting requests.
    pub(super) async fn lock(self: &Arc<Self>, resource: &Resource) -> ResourceLock {
        let mutex = Arc::clone(self.by_resource().entry(resource.clone()).or_default());
        let (locks, resource) = (Arc::clone(self), resource.clone());
        // Made before it waits, so that its `drop` also cleans up after a cancelled wait.
        let mut lock = ResourceLock { locks, resource, mutex: Some(Arc::clone(&mutex)), guard: None };
        lock.guard = Some(mutex.lock_owned().await);
        lock
    }

    fn by_resource(&self) -> MutexGuard<'_, LocksByResource> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.by_resource().len()
    }
}

impl Drop for ResourceLock {
    fn drop(&mut self) {
        let mut by_resource = self.locks.by_resource();
        self.guard = None;
        self.mutex = None;
        // A new reference to the mutex can only be taken from the map, which is locked here: the count cannot grow.
        if by_resource.get(&self.resource).is_some_and(|mutex| Arc::strong_count(mutex) == 1) {
            by_resource.remove(&self.resource);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        pin::{Pin, pin},
        task::{Context, Poll, Waker},
    };

    #[test]
    fn a_resource_is_locked_by_one_request_at_a_time_and_no_lock_is_left_behind() {
        let locks = Arc::new(ResourceLocks::default());
        let [one, two] = ["order/1", "order/2"].map(|name| name.parse::<Resource>().unwrap());
        let mut context = Context::from_waker(Waker::noop());
        let mut poll = |future: Pin<&mut dyn Future<Output = ResourceLock>>| match future.poll(&mut context) {
            Poll::Ready(lock) => Some(lock),
            Poll::Pending => None,
        };
        let first = poll(pin!(locks.lock(&one))).expect("no request has it");
        let other = poll(pin!(locks.lock(&two))).expect("it is another resource");
        let mut second = Box::pin(locks.lock(&one));
        let mut third = Box::pin(locks.lock(&one));
        assert!(poll(second.as_mut()).is_none() && poll(third.as_mut()).is_none());
        drop(second); // its request was cancelled while it waited
        drop(first);
        let third = poll(third.as_mut()).expect("it is the next request");
        assert_eq!(locks.len(), 2);
        drop((third, other));
        assert_eq!(locks.len(), 0);
    }
}
