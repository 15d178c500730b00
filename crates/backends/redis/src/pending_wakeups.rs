//! Wake-ups that arrive for a claim after its `acquire` and before its `wait`.
//!
//! `acquire` registers the claim as a waiter before it asks the server. If the claim gets a place in the
//! queue, that waiter is kept here until `wait` takes it. So `wait` needs no question to the server whether
//! it missed a wake-up.

use std::{collections::HashMap, time::Duration};

use leasehold_core::{ClaimRef, Cursor, OwnerToken, Timestamp};

use crate::listener::Waiter;

/// How many entries are kept before the first search for expired ones.
const SWEEP_MIN: usize = 64;

/// The waiters that are registered and have not begun to wait.
#[derive(Debug, Default)]
pub(crate) struct PendingWakeups {
    by_owner: HashMap<OwnerToken, PendingWakeup>,
    /// The next search for expired entries is at this size: twice what the last one left.
    sweep_at: usize,
}

#[derive(Debug)]
struct PendingWakeup {
    waiter: Waiter,
    /// The state of the resource that `acquire` saw. `wait` must name the same one.
    since: Cursor,
    /// The place in the queue is surely gone by then.
    expires: Timestamp,
}

impl PendingWakeups {
    /// Keeps the waiter of a claim that has had a place in the queue since this cursor.
    pub(crate) fn keep(&mut self, waiter: Waiter, since: Cursor, now: Timestamp, place_ttl: Duration) {
        let (owner, expires) = (waiter.claim().owner, now.after(place_ttl));
        self.by_owner.insert(owner, PendingWakeup { waiter, since, expires });
        // Claims that never wait leave entries behind.
        if self.by_owner.len() > self.sweep_at.max(SWEEP_MIN) {
            self.by_owner.retain(|_, pending| pending.expires > now);
            self.sweep_at = self.by_owner.len() * 2;
        }
    }

    /// Takes the waiter of a claim, if it was registered before this cursor.
    pub(crate) fn take(&mut self, claim: &ClaimRef, since: Cursor) -> Option<Waiter> {
        // Removed even if it does not fit: the claim has asked again since, and the entry is outdated.
        let pending = self.by_owner.remove(&claim.owner)?;
        (pending.since == since && pending.waiter.claim() == claim).then_some(pending.waiter)
    }
}
