//! The verb `wait`: resolves when the claim has a reason to ask again.
//!
//! 1. Read the resource.
//! 2. A claim with a place in the queue: if it can be granted now, return. Otherwise watch its own key and
//!    the contenders that block it ([`ResourceView::blockers_of`]); with mutexes that is the one directly
//!    ahead. During a pause watch its own key and the pause.
//! 3. A claim without a place: watch all contenders and the pause, from the revision of its last acquire.
//! 4. The [`WakeupListener`](crate::wakeup_listener::WakeupListener) filters the events and wakes the waiter.
//!    A watch begins at the revision after the one that was read, so no event is missed in between.
//!
//! A wake-up is a hint. The waiter then acquires again, and that decides.

use std::collections::HashMap;

use leasehold_core::{ClaimRef, Cursor};

use crate::{
    backend::Etcd,
    error::StoreError,
    keys::{ResourceKeys, hash_owner, range_end},
    resource_view::ResourceView,
    wakeup_listener::{WakeFilter, WatchRequest, WatchedKeys, WatchedShare},
};

/// Up to this many keys are watched one by one. With more, one watch over all contenders is cheaper for etcd.
const SINGLE_WATCHES_MAX: usize = 8;

impl Etcd {
    pub(crate) async fn wait_for_change(&self, claim: &ClaimRef, since: Cursor) -> Result<(), StoreError> {
        let keys = self.connections.config.root.keys_of(&claim.resource);
        let owner_hash = hash_owner(claim.owner);
        let view = self.read_for_wait(&keys, &owner_hash).await?;
        let request = match view.find(&owner_hash) {
            Some(waiter) => watch_blockers(&keys, &view, waiter),
            None => watch_everything(&keys, &view, since),
        };
        if let Some(request) = request {
            self.wakeup_listener.wait(request).await;
        }
        Ok(())
    }

    /// Reads the head of the queue, or the whole queue if claims share the resource: then all must be
    /// counted.
    async fn read_for_wait(&self, keys: &ResourceKeys, owner_hash: &str) -> Result<ResourceView, StoreError> {
        let head = self.connections.read(keys, &[owner_hash], ResourceView::HEAD).await?.view;
        let is_shared = head.capacity().is_some_and(|capacity| capacity > 1);
        if is_shared && head.total > head.contenders.len() {
            return Ok(self.connections.read(keys, &[owner_hash], 0).await?.view);
        }
        Ok(head)
    }
}

/// For a claim without a place in the queue: any change. `None` if the cursor is not from this resource as it
/// is now, and the claim has to ask again at once.
fn watch_everything(keys: &ResourceKeys, view: &ResourceView, since: Cursor) -> Option<WatchRequest> {
    let since = i64::try_from(since.0).unwrap_or(i64::MAX);
    if since <= 0 || since > view.revision {
        return None;
    }
    let (lock_prefix, pause) = (keys.lock_prefix.clone(), keys.pause.clone());
    let watched = vec![all_contenders(keys), WatchedKeys { key: pause.clone(), end: None }];
    let filter = WakeFilter::AnyChange { lock_prefix, pause };
    Some(WatchRequest { watched, from_revision: since + 1, filter })
}

/// For the waiter at this index: a change that may let it in. `None` if it can be granted now.
fn watch_blockers(keys: &ResourceKeys, view: &ResourceView, waiter: usize) -> Option<WatchRequest> {
    let record = view.contenders[waiter].record.as_ref()?;
    let (capacity, weight) = (record.capacity, record.weight);
    let is_paused = view.pause.is_some();
    if view.is_holder(waiter) || (!is_paused && view.can_grant(Some(waiter), weight, capacity)) {
        return None;
    }
    // During a pause no blocker matters, only the end of the pause.
    let mut indices = if is_paused { Vec::new() } else { view.blockers_of(waiter, capacity) };
    // Its own key as well: if the place expires, the claim has to queue again.
    indices.push(waiter);
    let share = |index: usize| WatchedShare { capacity, weight: view.weight(index) };
    let shares: HashMap<String, WatchedShare> = indices
        .into_iter()
        .map(|index| (keys.contender(&view.contenders[index].name), share(index)))
        .collect();
    let mut watched = Vec::new();
    if is_paused {
        watched.push(WatchedKeys { key: keys.pause.clone(), end: None });
    }
    if shares.len() <= SINGLE_WATCHES_MAX {
        watched.extend(shares.keys().map(|key| WatchedKeys { key: key.clone(), end: None }));
    } else {
        watched.push(all_contenders(keys));
    }
    let filter = WakeFilter::BlockerGone { shares, pause: keys.pause.clone() };
    Some(WatchRequest { watched, from_revision: view.revision + 1, filter })
}

fn all_contenders(keys: &ResourceKeys) -> WatchedKeys {
    WatchedKeys { key: keys.lock_prefix.clone(), end: Some(range_end(&keys.lock_prefix)) }
}
