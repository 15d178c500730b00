//! The registry of the waiters in one process, and how a wake-up finds them.
//!
//! A backend registers every `wait` here and has one listener that receives the messages of the store. A message names a
//! resource and its receivers; the listener wakes those waiters. A wake-up is a hint: a waiter that is woken asks again.
//!
//! There are two kinds of waiters:
//! - One with a place in the queue is woken when its place can be granted. The store names its owner.
//! - A *watcher* has no place, or it is not known yet whether it has one. It is woken by every change of the resource.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use leasehold_core::{ClaimRef, OwnerToken};
use tokio::sync::Notify;

/// All waiters of one client, by resource key.
///
/// `S` is what a backend keeps for each resource besides the waiters, such as the shard where it is subscribed. An entry
/// stays for as long as there are waiters or [`ResourceState::is_needed`].
#[derive(Debug)]
pub struct WaiterRegistry<S = ()>(Mutex<Registry<S>>);

/// What a backend keeps for a resource besides its waiters.
pub trait ResourceState: Default {
    /// Whether it has to be kept although nobody waits.
    fn is_needed(&self) -> bool;
}

impl ResourceState for () {
    fn is_needed(&self) -> bool {
        false
    }
}

#[derive(Debug)]
struct Registry<S> {
    by_resource: HashMap<String, ResourceWaiters<S>>,
    next_number: u64,
}

/// The waiters for one resource.
#[derive(Debug, Default)]
pub struct ResourceWaiters<S = ()> {
    waiters: Vec<Waiter>,
    /// What the backend keeps for this resource.
    pub state: S,
}

#[derive(Debug)]
struct Waiter {
    number: u64,
    owner: OwnerToken,
    is_watcher: bool,
    wakeup: Arc<Notify>,
}

/// A registered waiter. Dropping it removes it from the registry.
#[derive(Debug)]
pub struct WaiterHandle<S: ResourceState = ()> {
    registry: Arc<WaiterRegistry<S>>,
    claim: ClaimRef,
    number: u64,
    wakeup: Arc<Notify>,
}

impl<S> Default for WaiterRegistry<S> {
    fn default() -> WaiterRegistry<S> {
        WaiterRegistry(Mutex::new(Registry { by_resource: HashMap::new(), next_number: 0 }))
    }
}

impl<S: ResourceState> WaiterRegistry<S> {
    fn lock(&self) -> MutexGuard<'_, Registry<S>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a waiter, as a watcher. A wake-up that arrives after this is not missed.
    pub fn register(self: &Arc<Self>, claim: ClaimRef) -> WaiterHandle<S> {
        let wakeup = Arc::new(Notify::new());
        let mut registry = self.lock();
        registry.next_number += 1;
        let number = registry.next_number;
        let waiter = Waiter { number, owner: claim.owner, is_watcher: true, wakeup: Arc::clone(&wakeup) };
        // `entry` would allocate the key for every waiter; most of them find it there.
        match registry.by_resource.get_mut(claim.resource.key()) {
            Some(resource) => resource.waiters.push(waiter),
            None => {
                let resource = ResourceWaiters { waiters: vec![waiter], state: S::default() };
                registry.by_resource.insert(claim.resource.key().to_owned(), resource);
            }
        }
        drop(registry);
        WaiterHandle { registry: Arc::clone(self), claim, number, wakeup }
    }

    /// Wakes the waiters of this owner, given as a predicate, because a store may send only a prefix of it.
    pub fn wake_owner(&self, resource: &str, is_owner: impl Fn(OwnerToken) -> bool) {
        self.wake(resource, |waiter| is_owner(waiter.owner));
    }

    /// Wakes the watchers of a resource.
    pub fn wake_watchers(&self, resource: &str) {
        self.wake(resource, |waiter| waiter.is_watcher);
    }

    /// Wakes everyone that waits for a resource.
    pub fn wake_resource(&self, resource: &str) {
        self.wake(resource, |_| true);
    }

    /// Wakes everyone: after a lost connection, nobody knows which messages were missed.
    pub fn wake_all(&self) {
        self.lock().by_resource.values().for_each(ResourceWaiters::wake_all);
    }

    fn wake(&self, resource: &str, is_meant: impl Fn(&Waiter) -> bool) {
        let registry = self.lock();
        let waiters = registry.by_resource.get(resource).into_iter().flat_map(|resource| &resource.waiters);
        waiters.filter(|waiter| is_meant(waiter)).for_each(|waiter| waiter.wakeup.notify_one());
    }

    /// Whether anyone waits for anything, or a state is needed.
    pub fn is_empty(&self) -> bool {
        self.lock().by_resource.is_empty()
    }

    /// Reads what is kept for a resource, if anything is.
    pub fn read<T>(&self, resource: &str, read: impl FnOnce(&ResourceWaiters<S>) -> T) -> Option<T> {
        self.lock().by_resource.get(resource).map(read)
    }

    /// Changes what is kept for a resource, and makes an entry if there is none.
    pub fn update_or_insert<T>(
        &self,
        resource: &str,
        update: impl FnOnce(&mut ResourceWaiters<S>) -> T,
    ) -> T {
        let mut registry = self.lock();
        let entry = registry.by_resource.entry(resource.to_owned()).or_default();
        let result = update(entry);
        registry.remove_if_idle(resource);
        result
    }

    /// Changes what is kept for a resource, if there is an entry.
    pub fn update<T>(&self, resource: &str, update: impl FnOnce(&mut ResourceWaiters<S>) -> T) -> Option<T> {
        let mut registry = self.lock();
        let result = registry.by_resource.get_mut(resource).map(update);
        registry.remove_if_idle(resource);
        result
    }

    /// Changes what is kept for every resource.
    pub fn update_all(&self, mut update: impl FnMut(&str, &mut ResourceWaiters<S>)) {
        self.lock().by_resource.retain(|resource, entry| {
            update(resource, entry);
            !entry.is_idle()
        });
    }
}

impl<S: ResourceState> Registry<S> {
    fn remove_if_idle(&mut self, resource: &str) {
        if self.by_resource.get(resource).is_some_and(ResourceWaiters::is_idle) {
            self.by_resource.remove(resource);
        }
    }
}

impl<S: ResourceState> ResourceWaiters<S> {
    fn is_idle(&self) -> bool {
        self.waiters.is_empty() && !self.state.is_needed()
    }
}

impl<S> ResourceWaiters<S> {
    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// Wakes everyone that waits for this resource.
    pub fn wake_all(&self) {
        self.waiters.iter().for_each(|waiter| waiter.wakeup.notify_one());
    }
}

impl<S: ResourceState> WaiterHandle<S> {
    /// The claim that waits.
    pub fn claim(&self) -> &ClaimRef {
        &self.claim
    }

    /// The claim has a place in the queue, so changes that do not concern its owner no longer wake it.
    pub fn has_place(&self) {
        self.registry.update(self.claim.resource.key(), |resource| {
            let waiter = resource.waiters.iter_mut().find(|waiter| waiter.number == self.number);
            if let Some(waiter) = waiter {
                waiter.is_watcher = false;
            }
        });
    }

    /// Resolves when the waiter was woken. A wake-up before this call is not lost.
    pub async fn woken(&self) {
        self.wakeup.notified().await;
    }
}

impl<S: ResourceState> Drop for WaiterHandle<S> {
    fn drop(&mut self) {
        self.registry.update(self.claim.resource.key(), |resource| {
            resource.waiters.retain(|waiter| waiter.number != self.number);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(owner: u8) -> ClaimRef {
        ClaimRef {
            resource: "report/42".parse().expect("it is a resource"),
            owner: OwnerToken::from_bytes([owner; 16]),
        }
    }

    fn is_woken<S: ResourceState>(waiter: &WaiterHandle<S>) -> bool {
        let mut wakeup = std::pin::pin!(waiter.wakeup.notified());
        wakeup.as_mut().enable()
    }

    #[test]
    fn a_wakeup_reaches_its_owner_and_a_change_reaches_the_watchers() {
        let registry = Arc::<WaiterRegistry>::default();
        let (queued, watcher) = (registry.register(claim(0xaa)), registry.register(claim(0xbb)));
        queued.has_place();
        registry.wake_watchers("report/42");
        assert_eq!((is_woken(&queued), is_woken(&watcher)), (false, true));
        registry.wake_owner("report/42", |owner| owner == claim(0xaa).owner);
        assert_eq!((is_woken(&queued), is_woken(&watcher)), (true, false));
        registry.wake_resource("report/42");
        assert_eq!((is_woken(&queued), is_woken(&watcher)), (true, true));
        registry.wake_all();
        assert_eq!((is_woken(&queued), is_woken(&watcher)), (true, true));
        registry.wake_resource("report/43");
        assert_eq!((is_woken(&queued), is_woken(&watcher)), (false, false));
        drop((queued, watcher));
        assert!(registry.is_empty(), "a dropped handle leaves nothing behind");
    }

    #[derive(Debug, Default)]
    struct Subscribed(bool);

    impl ResourceState for Subscribed {
        fn is_needed(&self) -> bool {
            self.0
        }
    }

    #[test]
    fn a_needed_state_outlives_the_waiters() {
        let registry = Arc::<WaiterRegistry<Subscribed>>::default();
        let waiter = registry.register(claim(1));
        registry.update("report/42", |resource| resource.state.0 = true);
        drop(waiter);
        assert_eq!(registry.read("report/42", |resource| resource.is_empty()), Some(true));
        registry.update_all(|_, resource| resource.state.0 = false);
        assert!(registry.is_empty());
        registry.update_or_insert("report/42", |resource| resource.state.0 = true);
        assert!(!registry.is_empty());
    }
}
