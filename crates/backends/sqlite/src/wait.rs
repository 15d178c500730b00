//! Waiting: who waits in this process, and for what.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use leasehold_core::{ClaimRef, OwnerToken, Resource};
use tokio::sync::Notify;

use crate::ledger::News;

/// Who waits in this process.
#[derive(Debug, Default)]
pub(crate) struct Waiters(Mutex<Registry>);

#[derive(Debug, Default)]
struct Registry {
    rooms: HashMap<Resource, Room>,
    next_number: u64,
}

/// Who waits for one resource.
#[derive(Debug, Default)]
pub(crate) struct Room {
    owners: HashMap<OwnerToken, Vec<(u64, Arc<Notify>)>>,
    /// Those without a place, and those of whom it is not known yet.
    watchers: HashMap<u64, Watcher>,
}

/// Someone who waits for any change.
#[derive(Debug)]
struct Watcher {
    /// The version that it knows; none until the file has been asked whether it has a place.
    knows: Option<u64>,
    /// The version that was heard of before that.
    heard: Option<u64>,
    bell: Arc<Notify>,
}

/// Someone who waits, until this is dropped.
pub(crate) struct Waiting<'a> {
    waiters: &'a Waiters,
    claim: &'a ClaimRef,
    number: u64,
    bell: Arc<Notify>,
}

impl Waiters {
    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits from now on: what happens after this is not missed.
    pub(crate) fn begin<'a>(&'a self, claim: &'a ClaimRef) -> Waiting<'a> {
        let bell = Arc::new(Notify::new());
        let mut registry = self.registry();
        registry.next_number += 1;
        let number = registry.next_number;
        let room = registry.rooms.entry(claim.resource.clone()).or_default();
        room.owners.entry(claim.owner).or_default().push((number, Arc::clone(&bell)));
        room.watchers.insert(number, Watcher { knows: None, heard: None, bell: Arc::clone(&bell) });
        Waiting { waiters: self, claim, number, bell }
    }

    pub(crate) fn is_waiting(&self, resource: &Resource, owner: OwnerToken) -> bool {
        self.registry().rooms.get(resource).is_some_and(|room| room.owners.contains_key(&owner))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.registry().rooms.is_empty()
    }

    /// Wakes those whom a transaction of this process concerns.
    pub(crate) fn tell(&self, news: &News) {
        if news.owners.is_empty() && news.watchers.is_empty() {
            return;
        }
        for (resource, owner) in &news.owners {
            self.on_room(resource, |room| room.wake(*owner));
        }
        for (resource, version) in &news.watchers {
            self.on_room(resource, |room| room.wake_watchers(*version));
        }
    }

    pub(crate) fn resources(&self) -> Vec<Resource> {
        self.registry().rooms.keys().cloned().collect()
    }

    /// Those who wait for it and have a place.
    pub(crate) fn placed(&self, resource: &Resource) -> Vec<OwnerToken> {
        let registry = self.registry();
        let Some(room) = registry.rooms.get(resource) else { return Vec::new() };
        let has_place =
            |same: &[(u64, Arc<Notify>)]| same.iter().any(|(number, _)| !room.watchers.contains_key(number));
        room.owners.iter().filter(|(_, same)| has_place(same)).map(|(owner, _)| *owner).collect()
    }

    pub(crate) fn is_awaited(&self, resource: &Resource) -> bool {
        self.registry().rooms.contains_key(resource)
    }

    pub(crate) fn on_room(&self, resource: &Resource, wake: impl FnOnce(&mut Room)) {
        if let Some(room) = self.registry().rooms.get_mut(resource) {
            wake(room);
        }
    }
}

impl Room {
    pub(crate) fn wake(&self, owner: OwnerToken) {
        self.owners.get(&owner).into_iter().flatten().for_each(|(_, bell)| bell.notify_one());
    }

    /// Those without a place who know another version than this one.
    pub(crate) fn wake_watchers(&mut self, version: u64) {
        for watcher in self.watchers.values_mut() {
            match watcher.knows {
                Some(known) if known != version => watcher.bell.notify_one(),
                Some(_) => {}
                None => watcher.heard = Some(version),
            }
        }
    }

    pub(crate) fn wake_all(&self) {
        self.owners.values().flatten().for_each(|(_, bell)| bell.notify_one());
    }
}

impl Waiting<'_> {
    /// It has a place in the line: changes that do not let it move are none of its business.
    pub(crate) fn has_place(&self) {
        let mut registry = self.waiters.registry();
        if let Some(room) = registry.rooms.get_mut(&self.claim.resource) {
            room.watchers.remove(&self.number);
        }
    }

    /// It has no place: it waits for another version than this one.
    pub(crate) fn knows(&self, version: u64) {
        let mut registry = self.waiters.registry();
        if let Some(room) = registry.rooms.get_mut(&self.claim.resource)
            && let Some(watcher) = room.watchers.get_mut(&self.number)
        {
            watcher.knows = Some(version);
            if watcher.heard.is_some_and(|heard| heard > version) {
                watcher.bell.notify_one();
            }
        }
    }

    /// Resolves when it is worth asking again.
    pub(crate) async fn woken(&self) {
        self.bell.notified().await;
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut registry = self.waiters.registry();
        let Some(room) = registry.rooms.get_mut(&self.claim.resource) else { return };
        room.watchers.remove(&self.number);
        if let Some(same) = room.owners.get_mut(&self.claim.owner) {
            same.retain(|(number, _)| *number != self.number);
            if same.is_empty() {
                room.owners.remove(&self.claim.owner);
            }
        }
        if room.owners.is_empty() {
            registry.rooms.remove(&self.claim.resource);
        }
    }
}
