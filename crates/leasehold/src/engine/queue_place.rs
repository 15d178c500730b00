//! A claim's place in the backend's queue, and what keeps it alive.
//!
//! A place has a ttl of its own, so that a waiter that died does not block the queue. The watchdog renews it like a lease.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use leasehold_core::{Claim, ClaimRef, Timestamp};
use tokio::sync::Notify;

use super::{
    Engine,
    driver::WatchedClaim,
    times::LeaseTimes,
    watchdog::{ToWatch, WatchKey},
};

/// A place in the backend's queue.
#[derive(Debug)]
pub(crate) struct QueuePlace {
    pub(super) claim: ClaimRef,
    lost: AtomicBool,
    wakeup: Notify,
}

impl QueuePlace {
    /// Wakes the waiter, which then asks the backend again.
    pub(super) fn mark_lost(&self) {
        self.lost.store(true, Ordering::Release);
        self.wakeup.notify_one();
    }
}

/// Keeps a place alive until it is dropped.
pub(crate) struct QueuePlaceKeeper<'a> {
    engine: &'a Engine,
    place: Arc<QueuePlace>,
    key: WatchKey,
}

impl<'a> QueuePlaceKeeper<'a> {
    /// `asked` is a moment before the place was made or renewed.
    pub(crate) fn new(engine: &'a Engine, claim: &Claim, asked: Timestamp) -> QueuePlaceKeeper<'a> {
        let place =
            QueuePlace { claim: claim.reference(), lost: AtomicBool::new(false), wakeup: Notify::new() };
        let place = Arc::new(place);
        let ttl = claim.place_ttl;
        let handle = WatchedClaim::Place(Arc::clone(&place));
        let times = LeaseTimes::of(asked, ttl, ttl);
        let key = engine.watch(ToWatch { handle, times, ttl, renews: true }, engine.environment.now());
        QueuePlaceKeeper { engine, place, key }
    }

    /// Resolves when the place is gone, or may be.
    pub(crate) async fn lost(&self) {
        while !self.place.lost.load(Ordering::Acquire) {
            self.place.wakeup.notified().await;
        }
    }
}

impl Drop for QueuePlaceKeeper<'_> {
    fn drop(&mut self) {
        let handle = self.engine.forget(self.key);
        drop(handle); // outside of the watchdog's lock
    }
}
