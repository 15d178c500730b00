//! The waiters of this process, and how a wake-up finds them.
//!
//! This is not `leasehold_support::WaiterRegistry`, because SQLite needs more and other things from it:
//! - Watchers know a version and are woken only by another one. A change that a waiter has already seen in
//!   its own check of the file must not wake it; the shared registry wakes watchers at every change, also
//!   before that check.
//! - A transaction asks for every claim that it could grant whether it waits in this process. So owners are
//!   found by a hash table, not by a walk over all waiters of the resource.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use leasehold_core::{ClaimRef, OwnerToken, Resource};
use tokio::sync::Notify;

use crate::tables::WakeupsToSend;

/// The waiters of this process, by resource.
#[derive(Debug, Default)]
pub(crate) struct WaiterRegistry(Mutex<Registry>);

#[derive(Debug, Default)]
struct Registry {
    by_resource: HashMap<Resource, ResourceWaiters>,
    next_number: u64,
}

/// The waiters for one resource.
#[derive(Debug, Default)]
pub(crate) struct ResourceWaiters {
    /// All waiters, by owner. An owner may wait several times.
    owners: HashMap<OwnerToken, Vec<NumberedWaiter>>,
    /// The waiters without a place in the queue, and those for which the file has not been asked yet, by
    /// number.
    watchers: HashMap<u64, Watcher>,
}

#[derive(Debug)]
struct NumberedWaiter {
    number: u64,
    wakeup: Arc<Notify>,
}

/// A waiter that is woken by every change of the resource.
#[derive(Debug)]
struct Watcher {
    /// The version that the waiter has seen; `None` until the file has been asked whether it has a place.
    known_version: Option<u64>,
    /// The version of a change that was reported before that.
    reported_version: Option<u64>,
    wakeup: Arc<Notify>,
}

/// A registered waiter. Dropping it removes it from the registry.
pub(crate) struct WaiterHandle<'a> {
    registry: &'a WaiterRegistry,
    claim: &'a ClaimRef,
    number: u64,
    wakeup: Arc<Notify>,
}

impl WaiterRegistry {
    fn lock(&self) -> MutexGuard<'_, Registry> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a waiter. A wake-up that arrives after this is not missed.
    pub(crate) fn register<'a>(&'a self, claim: &'a ClaimRef) -> WaiterHandle<'a> {
        let wakeup = Arc::new(Notify::new());
        let mut registry = self.lock();
        registry.next_number += 1;
        let number = registry.next_number;
        let waiters = registry.by_resource.entry(claim.resource.clone()).or_default();
        let waiter = NumberedWaiter { number, wakeup: Arc::clone(&wakeup) };
        waiters.owners.entry(claim.owner).or_default().push(waiter);
        let watcher = Watcher { known_version: None, reported_version: None, wakeup: Arc::clone(&wakeup) };
        waiters.watchers.insert(number, watcher);
        WaiterHandle { registry: self, claim, number, wakeup }
    }

    pub(crate) fn is_waiting(&self, resource: &Resource, owner: OwnerToken) -> bool {
        self.lock().by_resource.get(resource).is_some_and(|waiters| waiters.owners.contains_key(&owner))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().by_resource.is_empty()
    }

    /// Wakes the waiters that a transaction of this process concerns.
    pub(crate) fn wake_after_commit(&self, wakeups: &WakeupsToSend) {
        for (resource, owner) in &wakeups.owners {
            self.update(resource, |waiters| waiters.wake_owner(*owner));
        }
        for (resource, version) in &wakeups.watchers {
            self.update(resource, |waiters| waiters.wake_watchers(*version));
        }
    }

    /// The resources that have waiters.
    pub(crate) fn resources(&self) -> Vec<Resource> {
        self.lock().by_resource.keys().cloned().collect()
    }

    /// The owners that wait for this resource with a place in the queue.
    pub(crate) fn queued_owners(&self, resource: &Resource) -> Vec<OwnerToken> {
        let registry = self.lock();
        let Some(waiters) = registry.by_resource.get(resource) else { return Vec::new() };
        let has_place = |of_owner: &[NumberedWaiter]| {
            of_owner.iter().any(|waiter| !waiters.watchers.contains_key(&waiter.number))
        };
        waiters.owners.iter().filter(|(_, of_owner)| has_place(of_owner)).map(|(owner, _)| *owner).collect()
    }

    pub(crate) fn has_waiters(&self, resource: &Resource) -> bool {
        self.lock().by_resource.contains_key(resource)
    }

    /// Runs `update` on the waiters of a resource, if there are any.
    pub(crate) fn update(&self, resource: &Resource, update: impl FnOnce(&mut ResourceWaiters)) {
        if let Some(waiters) = self.lock().by_resource.get_mut(resource) {
            update(waiters);
        }
    }
}

impl ResourceWaiters {
    pub(crate) fn wake_owner(&self, owner: OwnerToken) {
        self.owners.get(&owner).into_iter().flatten().for_each(|waiter| waiter.wakeup.notify_one());
    }

    /// Wakes the waiters without a place that know an older version.
    ///
    /// The listener may have read the file before a waiter did, and report what it read after that. Such a report has an
    /// older version, or 0 if there was no row yet, and says nothing new.
    pub(crate) fn wake_watchers(&mut self, version: u64) {
        for watcher in self.watchers.values_mut() {
            match watcher.known_version {
                Some(known) if known < version => watcher.wakeup.notify_one(),
                Some(_) => {}
                None => watcher.reported_version = Some(version),
            }
        }
    }

    pub(crate) fn wake_all(&self) {
        self.owners.values().flatten().for_each(|waiter| waiter.wakeup.notify_one());
    }
}

impl WaiterHandle<'_> {
    /// The claim has a place in the queue: changes that do not concern its owner no longer wake it.
    pub(crate) fn has_place(&self) {
        self.registry.update(&self.claim.resource, |waiters| {
            waiters.watchers.remove(&self.number);
        });
    }

    /// The claim has no place: it waits for another version than this one.
    pub(crate) fn knows_version(&self, version: u64) {
        self.registry.update(&self.claim.resource, |waiters| {
            let Some(watcher) = waiters.watchers.get_mut(&self.number) else { return };
            watcher.known_version = Some(version);
            if watcher.reported_version.is_some_and(|reported| reported > version) {
                watcher.wakeup.notify_one();
            }
        });
    }

    /// Resolves when the waiter was woken. A wake-up before this call is not lost.
    pub(crate) async fn woken(&self) {
        self.wakeup.notified().await;
    }
}

impl Drop for WaiterHandle<'_> {
    fn drop(&mut self) {
        let mut registry = self.registry.lock();
        let Some(waiters) = registry.by_resource.get_mut(&self.claim.resource) else { return };
        waiters.watchers.remove(&self.number);
        if let Some(of_owner) = waiters.owners.get_mut(&self.claim.owner) {
            of_owner.retain(|waiter| waiter.number != self.number);
            if of_owner.is_empty() {
                waiters.owners.remove(&self.claim.owner);
            }
        }
        if waiters.owners.is_empty() {
            registry.by_resource.remove(&self.claim.resource);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        task::{Context, Waker},
    };

    use super::*;

    #[test]
    fn a_watcher_is_woken_by_a_newer_version_and_not_by_what_was_read_before() {
        let registry = WaiterRegistry::default();
        let resource: Resource = "report/42".parse().unwrap();
        let claim = ClaimRef { resource: resource.clone(), owner: OwnerToken::from_bytes([7; 16]) };
        let waiter = registry.register(&claim);
        let is_woken = |waiter: &WaiterHandle<'_>| {
            pin!(waiter.woken()).poll(&mut Context::from_waker(Waker::noop())).is_ready()
        };
        waiter.knows_version(5);
        for read_before in [0, 4, 5] {
            registry.update(&resource, |waiters| waiters.wake_watchers(read_before));
            assert!(!is_woken(&waiter), "version {read_before}");
        }
        registry.update(&resource, |waiters| waiters.wake_watchers(6));
        assert!(is_woken(&waiter));
    }
}
