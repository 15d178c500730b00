//! The one background task of a client: it does what [`super::watchdog`] decides.
//!
//! 1. Ask the watchdog what is due.
//! 2. End the leases whose stop has come.
//! 3. Send the renewals that are due, in batches, each in a task of its own ([`renewal`](super::renewal)).
//! 4. Sleep as long as the watchdog says. An event that comes before, or a [cleanup task](super::cleanup), wakes the
//!    driver.
//!
//! The driver never awaits the backend itself, so a backend that hangs cannot delay a renewal, a stop or a release
//! (ADR 0006).

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
    time::Duration,
};

use leasehold_core::{ClaimRef, Environment, FailureDomain, Timestamp};
use leasehold_support::race::{Either, first};
use tokio::sync::{Notify, mpsc};

use super::{
    Engine,
    cleanup::CleanupTask,
    held_lease::HeldLease,
    queue_place::QueuePlace,
    watchdog::{ToWatch, WatchKey, WatchdogAction, Watched},
};

/// What the driver keeps alive: a lease, or a place in the backend's queue.
#[derive(Clone, Debug)]
pub(crate) enum WatchedClaim {
    Lease(Arc<HeldLease>),
    Place(Arc<QueuePlace>),
}

impl WatchedClaim {
    pub(super) fn claim(&self) -> ClaimRef {
        match self {
            WatchedClaim::Lease(lease) => lease.reference(),
            WatchedClaim::Place(place) => place.claim.clone(),
        }
    }
}

impl Watched for WatchedClaim {
    fn hard_limit(&self) -> Timestamp {
        match self {
            WatchedClaim::Lease(lease) => lease.hard_limit(),
            WatchedClaim::Place(_) => Timestamp::NEVER,
        }
    }
}

/// How many actions are taken from the watchdog at once. Bounds how long its lock is held.
const ACTIONS_MAX: usize = 10_000;

/// Runs until the client and its last lease are gone.
pub(super) async fn drive(
    engine: Weak<Engine>,
    environment: Arc<dyn Environment>,
    wakeup: Arc<Notify>,
    mut cleanups: mpsc::UnboundedReceiver<CleanupTask>,
) {
    loop {
        // While it sleeps, the driver holds only a weak reference, so that it does not keep the client alive.
        let sleep_for = {
            let Some(engine) = engine.upgrade() else { return };
            engine.run_due(environment.now())
        };
        match first(cleanups.recv(), first(wakeup.notified(), environment.sleep(sleep_for))).await {
            Either::Left(None) => return,
            Either::Left(Some(task)) => task.start(),
            Either::Right(_) => {}
        }
    }
}

/// A renewal that is due.
pub(super) struct DueRenewal {
    pub(super) key: WatchKey,
    pub(super) watched: WatchedClaim,
    pub(super) ttl: Duration,
}

/// Renewals that go out in one call: those of one failure domain, which fail together, and of similar ttl (the same
/// power of two, in milliseconds), which may have the same timeout.
type Batches = BTreeMap<(FailureDomain, u32), Vec<DueRenewal>>;

impl Engine {
    /// Keeps a claim alive, and wakes the driver if it would sleep past its first event.
    pub(super) fn watch(&self, to_watch: ToWatch<WatchedClaim>, now: Timestamp) -> WatchKey {
        let random = self.environment.random();
        let (key, wake) = self.watchdog().watch(to_watch, now, random);
        self.wake_driver_if(wake);
        key
    }

    /// Stops watching. The handle is returned so that it is dropped outside of the watchdog's lock.
    pub(crate) fn forget(&self, key: WatchKey) -> Option<WatchedClaim> {
        self.watchdog().forget(key)
    }

    pub(crate) fn unwatch(&self, lease: &HeldLease) {
        if let Some(key) = lease.watch_key() {
            drop(self.forget(key));
        }
    }

    pub(super) fn wake_driver_if(&self, wake: bool) {
        if wake {
            self.driver_wakeup.notify_one();
        }
    }

    /// Does what is due, and returns how long to sleep: not at all if more is due.
    fn run_due(self: &Arc<Engine>, now: Timestamp) -> Duration {
        let mut actions = Vec::new();
        let sleep_for = self.watchdog().step(now, ACTIONS_MAX, &mut actions);
        let mut batches = Batches::new();
        for action in actions {
            match action {
                WatchdogAction::Stop(WatchedClaim::Place(place)) => place.mark_lost(),
                WatchdogAction::Stop(WatchedClaim::Lease(lease)) => {
                    lease.end(lease.stop_reason(now));
                    self.release_at_deadline(&lease);
                }
                WatchdogAction::Renew(key, watched, ttl) => {
                    let failure_domain = self.backend.failure_domain(&watched.claim().resource);
                    let magnitude = ttl.as_millis().max(1).ilog2();
                    let due = DueRenewal { key, watched, ttl };
                    batches.entry((failure_domain, magnitude)).or_default().push(due);
                }
            }
        }
        self.send_renewals(batches);
        sleep_for
    }

    fn send_renewals(self: &Arc<Engine>, batches: Batches) {
        let batch_max = self.backend.info().limits.batch.max(1);
        for mut batch in batches.into_values() {
            while !batch.is_empty() {
                let rest = batch.split_off(batch.len().min(batch_max));
                let part = std::mem::replace(&mut batch, rest);
                self.environment.spawn(Box::pin(Arc::clone(self).renew_batch(part)));
            }
        }
    }

    /// Releases a lost lease at its deadline, on backends where a session would keep it alive. Elsewhere it ends with its
    /// own ttl.
    ///
    /// Not earlier: the holder has until the deadline to finish what it is doing.
    pub(crate) fn release_at_deadline(self: &Arc<Engine>, lease: &Arc<HeldLease>) {
        if self.backend.info().capabilities.own_ttl {
            return;
        }
        let (engine, lease) = (Arc::clone(self), Arc::clone(lease));
        self.environment.spawn(Box::pin(async move {
            // The timer is made inside of the task: the caller that found the loss may be outside of the runtime.
            let left = engine.environment.now().until(lease.deadline());
            engine.environment.sleep(left).await;
            engine.release_dropped(&lease);
        }));
    }
}
