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
//! 5. Meanwhile the claim looks at the queue about once a second, and removes waiters that do not answer
//!    (`silence.rs`). It cannot leave that to others: those between it and the head of the queue may be dead.
//!
//! A wake-up is a hint. The waiter then acquires again, and that decides.

use std::{collections::HashMap, time::Duration};

use leasehold_core::{ClaimRef, Cursor, Timestamp, admission, backoff::jitter};
use leasehold_support::race::first;

use crate::{
    backend::Etcd,
    error::StoreError,
    keys::{ResourceKeys, hash_owner, range_end},
    resource_view::ResourceView,
    silence::{CALLED_MAX, ReadTimes},
    wakeup_listener::{WakeFilter, WatchRequest, WatchedKeys, WatchedShare},
};

/// Up to this many keys are watched one by one. With more, one watch over all contenders is cheaper for etcd.
const SINGLE_WATCHES_MAX: usize = 8;

/// The longest pause between two looks of a waiter near the head of the queue.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How much later than the first waiter each waiter behind it looks for silent ones. So one of them removes
/// them, and the others find that it is done.
const LOOK_LATER_STEP: Duration = Duration::from_millis(4);

/// A claim that waits.
struct WaitingClaim<'a> {
    keys: &'a ResourceKeys,
    owner_hash: &'a str,
    /// How many waiters were ahead when the wait began.
    ahead: usize,
    /// The resource is a mutex: its first contender says whether it is free.
    is_mutex: bool,
}

impl Etcd {
    pub(crate) async fn wait_for_change(&self, claim: &ClaimRef, since: Cursor) -> Result<(), StoreError> {
        let keys = self.connections.config.root.keys_of(&claim.resource);
        let owner_hash = hash_owner(claim.owner);
        let sent = self.environment.now();
        let view = self.read_for_wait(&keys, &owner_hash, ResourceView::HEAD).await?;
        let waiter = view.find(&owner_hash);
        let request = match waiter {
            Some(waiter) => watch_blockers(&keys, &view, waiter),
            None => watch_everything(&keys, &view, since),
        };
        if let Some(request) = request {
            let (ahead, is_mutex) = (view.waiters_ahead(waiter), view.capacity() == Some(1));
            let waiting = WaitingClaim { keys: &keys, owner_hash: &owner_hash, ahead, is_mutex };
            let looking = self.look_for_silent(&waiting, view, sent);
            first(self.wakeup_listener.wait(request), looking).await;
        }
        Ok(())
    }

    /// Looks at the queue again and again, and removes silent waiters. Returns if a look fails: then the claim
    /// asks again.
    async fn look_for_silent(&self, waiting: &WaitingClaim<'_>, mut view: ResourceView, mut sent: Timestamp) {
        loop {
            let times = ReadTimes { sent, received: self.environment.now() };
            let own = view.find(waiting.owner_hash);
            let next_silence = self.remove_silent(waiting.keys, &view, own, times).await;
            self.environment.sleep(self.pause_before_look(waiting, next_silence)).await;
            sent = self.environment.now();
            match self.read_for_look(waiting).await {
                Ok(read) => view = read,
                Err(error) => {
                    tracing::debug!(?error, "cannot look for silent waiters");
                    return;
                }
            }
        }
    }

    /// The further back in a long queue, the longer the pause: with every look etcd reads and sorts the queue.
    fn pause_before_look(&self, waiting: &WaitingClaim<'_>, next_silence: Option<Timestamp>) -> Duration {
        let steps = u32::try_from(waiting.ahead.min(admission::WINDOW)).unwrap_or_default();
        if let Some(next_silence) = next_silence {
            return self.environment.now().until(next_silence) + LOOK_LATER_STEP * steps;
        }
        let windows = u32::try_from(waiting.ahead / admission::WINDOW).unwrap_or(u32::MAX).max(1);
        jitter(LOOK_EVERY.saturating_mul(windows), self.environment.random())
    }

    /// Reads what a look needs. While a mutex is held, and nobody was called, its first contender is enough.
    async fn read_for_look(&self, waiting: &WaitingClaim<'_>) -> Result<ResourceView, StoreError> {
        let WaitingClaim { keys, owner_hash, is_mutex, .. } = *waiting;
        if is_mutex && !self.awaits_answers(keys) {
            let view = self.connections.read(keys, &[], 1).await?.view;
            if view.pause.is_some() || view.contenders.is_empty() || view.is_holder(0) {
                return Ok(view);
            }
        }
        self.read_for_wait(keys, owner_hash, i64::try_from(CALLED_MAX).unwrap_or(i64::MAX)).await
    }

    /// Reads the head of the queue, or the whole queue if claims share the resource: then all must be
    /// counted.
    async fn read_for_wait(
        &self,
        keys: &ResourceKeys,
        owner_hash: &str,
        limit: i64,
    ) -> Result<ResourceView, StoreError> {
        let head = self.connections.read(keys, &[owner_hash], limit).await?.view;
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

/// For the waiter at this index: a change that may let it in. `None` if it has to ask at once: it can be granted,
/// or is called and has to answer.
fn watch_blockers(keys: &ResourceKeys, view: &ResourceView, waiter: usize) -> Option<WatchRequest> {
    let record = view.contenders[waiter].record.as_ref()?;
    let (capacity, weight) = (record.capacity, record.weight);
    let is_paused = view.pause.is_some();
    if record.called
        || view.is_holder(waiter)
        || (!is_paused && view.can_grant(Some(waiter), weight, capacity))
    {
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
    let own = keys.contender(&view.contenders[waiter].name);
    let filter = WakeFilter::BlockerGone { shares, own, pause: keys.pause.clone() };
    Some(WatchRequest { watched, from_revision: view.revision + 1, filter })
}

fn all_contenders(keys: &ResourceKeys) -> WatchedKeys {
    WatchedKeys { key: keys.lock_prefix.clone(), end: Some(range_end(&keys.lock_prefix)) }
}
