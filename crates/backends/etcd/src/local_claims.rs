//! What this process remembers of its own claims: which etcd leases each one uses, and until when it lasts.
//!
//! Correctness does not depend on it. A claim that is not here is read from etcd, which costs a round trip;
//! and etcd reports remaining times in whole seconds, while a known claim is exact to the millisecond.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use leasehold_core::{ClaimRef, Timestamp};

use crate::{backend::Etcd, lease_pool::EtcdLease};

/// The creation revision of a contender that no reply has named yet.
pub(crate) const NOT_CREATED: i64 = 0;

/// What is known of one claim.
#[derive(Clone, Debug)]
pub(crate) struct LocalClaim {
    /// The lease that was taken from the pool to hold the resource.
    pub(crate) hold_lease: EtcdLease,
    /// The name of the contender.
    pub(crate) name: String,
    /// The lease that the contender is attached to, as far as is known: `hold_lease`, or a shorter one of a
    /// waiter.
    pub(crate) attached_lease: Option<EtcdLease>,
    /// The contender's creation revision; [`NOT_CREATED`] until a reply has named it.
    pub(crate) created: i64,
    /// The revision of the last write to the contender, as far as is known.
    pub(crate) modified: i64,
    /// Until when the claim holds or waits, as the caller was informed.
    pub(crate) ends: Timestamp,
    /// A request of this claim had no reply: etcd may still execute it.
    pub(crate) has_unanswered_request: bool,
}

impl LocalClaim {
    pub(crate) fn new(hold_lease: EtcdLease, name: String) -> LocalClaim {
        LocalClaim {
            hold_lease,
            name,
            attached_lease: None,
            created: NOT_CREATED,
            modified: 0,
            ends: hold_lease.ends(),
            has_unanswered_request: false,
        }
    }

    /// Whether a reply has named the contender.
    pub(crate) fn is_created(&self) -> bool {
        self.created != NOT_CREATED
    }

    /// The leases of the claim, each once, as it was kept alive last. The lease to hold under comes first.
    pub(crate) fn leases(&self) -> impl Iterator<Item = EtcdLease> {
        let same = self.attached_lease.filter(|attached| attached.id == self.hold_lease.id);
        let other = self.attached_lease.filter(|attached| attached.id != self.hold_lease.id);
        std::iter::once(same.unwrap_or(self.hold_lease)).chain(other)
    }

    /// Notes a renewal: `renewed` is the claim as it was when the renewal began, with its lease kept alive.
    ///
    /// Does nothing if the contender has another lease by now. A waiter that was granted meanwhile has moved
    /// to `hold_lease`, and its old lease may belong to another claim.
    pub(crate) fn note_renewal(&mut self, renewed: &LocalClaim, ends: Timestamp, modified: i64) {
        let lease_id = |claim: &LocalClaim| claim.attached_lease.map(|lease| lease.id);
        if self.created == renewed.created && lease_id(self) == lease_id(renewed) {
            self.attached_lease = renewed.attached_lease;
            self.ends = self.ends.max(ends);
            self.modified = modified;
        }
    }

    /// After this nothing of the claim is left in etcd, unless it was renewed, and renewals are noted here.
    fn gone_after(&self) -> Timestamp {
        let hold_ends = self.hold_lease.ends();
        self.attached_lease.map_or(hold_ends, |attached| attached.ends().max(hold_ends))
    }
}

/// The claims of this process.
#[derive(Debug, Default)]
pub(crate) struct LocalClaims {
    table: Mutex<ClaimTable>,
}

#[derive(Debug, Default)]
struct ClaimTable {
    claims: HashMap<ClaimRef, LocalClaim>,
    /// Above this many claims, expired ones are removed.
    sweep_above: usize,
}

/// Expired claims are not removed before there are this many. A claim that is never released would otherwise
/// stay forever.
const SWEEP_ABOVE_MIN: usize = 256;

impl LocalClaims {
    fn table(&self) -> MutexGuard<'_, ClaimTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, claim: &ClaimRef) -> Option<LocalClaim> {
        self.table().claims.get(claim).cloned()
    }

    pub(crate) fn insert(&self, now: Timestamp, claim: ClaimRef, local: LocalClaim) {
        let mut table = self.table();
        table.claims.insert(claim, local);
        if table.claims.len() > table.sweep_above.max(SWEEP_ABOVE_MIN) {
            table.claims.retain(|_, local| local.gone_after() > now);
            // Doubled, so that a sweep costs a constant amount for each insert.
            table.sweep_above = table.claims.len() * 2;
        }
    }

    pub(crate) fn update(&self, claim: &ClaimRef, update: impl FnOnce(&mut LocalClaim)) {
        if let Some(local) = self.table().claims.get_mut(claim) {
            update(local);
        }
    }

    pub(crate) fn remove(&self, claim: &ClaimRef) -> Option<LocalClaim> {
        self.table().claims.remove(claim)
    }
}

/// What to do with the leases of a claim that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaseDisposal {
    /// Put them back into the pool, or revoke them if a request had no reply.
    ReuseIfAnswered,
    /// Revoke them.
    Revoke,
}

impl Etcd {
    /// Forgets a claim that has ended.
    pub(crate) fn forget(&self, claim: &ClaimRef, disposal: LeaseDisposal) {
        let Some(local) = self.local_claims.remove(claim) else { return };
        self.dispose_leases(&local, disposal);
    }

    /// Gives up the leases of a claim.
    pub(crate) fn dispose_leases(&self, local: &LocalClaim, disposal: LeaseDisposal) {
        for lease in local.leases() {
            if disposal == LeaseDisposal::Revoke || local.has_unanswered_request {
                // A request that etcd executes later finds no lease, and fails. ADR 0023.
                self.lease_pool.revoke(lease.id);
            } else {
                self.lease_pool.put_back(lease);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(id: i64, kept_alive_at: u64) -> EtcdLease {
        let kept_alive_at = Timestamp::from_nanos(kept_alive_at);
        EtcdLease { id, requested_seconds: 31, granted_seconds: 31, kept_alive_at }
    }

    #[test]
    fn a_late_renewal_of_a_waiter_that_was_granted_does_not_bring_its_old_lease_back() {
        let mut waiter = LocalClaim::new(lease(1, 5), String::new());
        (waiter.created, waiter.attached_lease, waiter.modified) = (9, Some(lease(2, 5)), 9);
        let mut renewed = waiter.clone();
        renewed.attached_lease = Some(lease(2, 7));
        let ends = renewed.ends.after(std::time::Duration::from_secs(1));
        let mut granted = waiter.clone();
        (granted.attached_lease, granted.modified) = (Some(lease(1, 8)), 12);
        granted.note_renewal(&renewed, ends, 9);
        assert_eq!((granted.attached_lease, granted.modified), (Some(lease(1, 8)), 12));
        waiter.note_renewal(&renewed, ends, 10);
        assert_eq!((waiter.attached_lease, waiter.ends, waiter.modified), (Some(lease(2, 7)), ends, 10));
    }

    #[test]
    fn a_lease_is_returned_as_it_was_kept_alive_last() {
        let mut local = LocalClaim::new(lease(1, 5), String::new());
        assert_eq!(local.leases().collect::<Vec<_>>(), [lease(1, 5)]);
        local.attached_lease = Some(lease(1, 9));
        assert_eq!(local.leases().collect::<Vec<_>>(), [lease(1, 9)]);
        local.attached_lease = Some(lease(2, 7));
        assert_eq!(local.leases().collect::<Vec<_>>(), [lease(1, 5), lease(2, 7)]);
    }
}
