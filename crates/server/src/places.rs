//! Keeps the places of waiting claims: renews them in batches, from one task.
//!
//! 1. A claim that waits has a [`Place`] guard. While it lives, the place is renewed every third of its ttl. The more places there
//!    are, the longer they last: ADR 0086.
//! 2. Places that are due within the next moment travel in one call, split by failure domain.
//! 3. If the store says that the claim holds the resource, or has no place any more, the waiter is woken and asks.
//! 4. When the guard is dropped, because the wait is over or the caller has gone, the place is renewed no more. It ends by itself:
//!    the same claim may have been asked again through another server, so it is not released.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use leasehold_core::{ClaimRef, RenewRequest, Renewal};
use tokio::{sync::Notify, time::Instant};

use crate::store::Store;

/// Places that are due this much later are renewed in the same call.
const TOGETHER: Duration = Duration::from_millis(200);
/// The shortest time between two renewals of a place.
const EVERY_MIN: Duration = Duration::from_millis(20);
/// By so much a place lasts longer for each place that this server keeps: renewed every third of that, all places together take
/// 750 renewals a second.
const TTL_FOR_EACH: Duration = Duration::from_millis(4);
/// The longest ttl that a place gets because there are many.
const TTL_MAX: Duration = Duration::from_secs(40);

/// All places that this server keeps.
#[derive(Debug)]
pub(crate) struct Places {
    state: Mutex<State>,
    /// The first due time has changed.
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    kept: HashMap<u64, Kept>,
    /// Those that are not being renewed right now, by the time of their next renewal.
    due: BTreeSet<(Instant, u64)>,
    last_id: u64,
}

#[derive(Debug)]
struct Kept {
    claim: ClaimRef,
    ttl: Duration,
    /// `None` while it is being renewed.
    due: Option<Instant>,
    ask: Arc<Notify>,
}

/// Keeps one place while it lives.
#[derive(Debug)]
pub(crate) struct Place {
    places: Arc<Places>,
    id: u64,
    ask: Arc<Notify>,
}

impl Places {
    /// Starts the task that renews. It ends when the last reference is gone.
    pub(crate) fn start(store: Store) -> Arc<Places> {
        let places = Arc::new(Places { state: Mutex::default(), changed: Notify::new() });
        tokio::spawn(keep(Arc::downgrade(&places), store));
        places
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long a place should last at this moment: `least`, or longer if there are many.
    pub(crate) fn ttl(&self, least: Duration) -> Duration {
        let kept = u32::try_from(self.state().kept.len()).unwrap_or(u32::MAX);
        least.max(TTL_FOR_EACH.saturating_mul(kept).min(TTL_MAX))
    }

    /// Keeps the place of this claim, which was made or renewed just now.
    pub(crate) fn keep(self: &Arc<Places>, claim: ClaimRef, ttl: Duration) -> Place {
        let ask = Arc::new(Notify::new());
        let mut state = self.state();
        state.last_id += 1;
        let (id, due) = (state.last_id, Instant::now() + every(ttl));
        state.kept.insert(id, Kept { claim, ttl, due: Some(due), ask: Arc::clone(&ask) });
        state.due.insert((due, id));
        if state.due.first() == Some(&(due, id)) {
            self.changed.notify_one();
        }
        Place { places: Arc::clone(self), id, ask }
    }

    /// Takes the places that are due, and says when the next one is.
    fn take_due(&self, now: Instant) -> (Vec<(u64, RenewRequest)>, Option<Instant>) {
        let mut state = self.state();
        let mut requests = Vec::new();
        if state.due.first().is_some_and(|(due, _)| *due <= now) {
            let later = state.due.split_off(&(now + TOGETHER, 0));
            for (_, id) in std::mem::replace(&mut state.due, later) {
                if let Some(kept) = state.kept.get_mut(&id) {
                    kept.due = None;
                    requests.push((id, RenewRequest::new(kept.claim.clone(), kept.ttl)));
                }
            }
        }
        (requests, state.due.first().map(|(due, _)| *due))
    }

    /// Takes note of the reply to a renewal. After a failure the place is renewed again soon.
    fn renewed(&self, id: u64, reply: &leasehold_core::Result<Renewal>) {
        let mut state = self.state();
        let Some(kept) = state.kept.get_mut(&id) else { return };
        let next = match reply {
            Ok(Renewal::Queued { .. }) => every(kept.ttl),
            Err(_) => every(kept.ttl) / 2,
            // It holds the resource, or its place is gone: either way it should ask.
            Ok(_) => {
                kept.ask.notify_one();
                every(kept.ttl)
            }
        };
        let due = Instant::now() + next;
        if let Some(earlier) = kept.due.replace(due) {
            state.due.remove(&(earlier, id));
        }
        state.due.insert((due, id));
        self.changed.notify_one();
    }
}

fn every(ttl: Duration) -> Duration {
    (ttl / 3).max(EVERY_MIN)
}

impl Place {
    /// Resolves when the claim should ask again: it may hold the resource, or has lost its place.
    pub(crate) async fn should_ask(&self) {
        self.ask.notified().await;
    }

    /// The claim has just asked, which renewed its place, with this ttl.
    pub(crate) fn was_renewed(&self, ttl: Duration) {
        let mut state = self.places.state();
        let Some(kept) = state.kept.get_mut(&self.id) else { return };
        kept.ttl = ttl;
        let due = Instant::now() + every(kept.ttl);
        // One that is being renewed gets its due time with the reply.
        if let Some(earlier) = kept.due {
            kept.due = Some(due);
            state.due.remove(&(earlier, self.id));
            state.due.insert((due, self.id));
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.places.state();
        if let Some(due) = state.kept.remove(&self.id).and_then(|kept| kept.due) {
            state.due.remove(&(due, self.id));
        }
    }
}

/// Renews places when they are due.
async fn keep(places: std::sync::Weak<Places>, store: Store) {
    const IDLE: Duration = Duration::from_secs(1);
    loop {
        let Some(places) = places.upgrade() else { return };
        let now = Instant::now();
        let (due, next) = places.take_due(now);
        if !due.is_empty() {
            tokio::spawn(renew(Arc::clone(&places), store.clone(), due));
        }
        let sleep_until = next.unwrap_or(now + IDLE).min(now + IDLE);
        tokio::select! {
            () = tokio::time::sleep_until(sleep_until) => {}
            () = places.changed.notified() => {}
        }
    }
}

async fn renew(places: Arc<Places>, store: Store, due: Vec<(u64, RenewRequest)>) {
    // A renewal that takes longer than a third of the ttl is repeated.
    let ttl = due.iter().map(|(_, request)| request.ttl).min().unwrap_or_default();
    let limit = every(ttl).max(Duration::from_secs(1)).min(store.timeout());
    let (ids, requests): (Vec<u64>, Vec<RenewRequest>) = due.into_iter().unzip();
    let replies = store.renew_many(requests, limit).await;
    for (id, reply) in ids.into_iter().zip(&replies) {
        places.renewed(id, reply);
    }
}
