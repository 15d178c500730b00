//! Reentrant leases, by a [`Scope`] that callers pass on.
//!
//! Not by thread or task: a future moves between threads, and a task may run unrelated work.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use leasehold_core::{Error, ErrorKind, Resource, Result, Share};
use tokio::sync::OwnedMutexGuard;

use crate::engine::held_lease::{HeldLease, LeaseHandle};

/// Makes leases reentrant: requests [within](crate::LeaseRequest::within) one scope share the leases that it holds.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// use leasehold::{Released, Scope};
///
/// let leases = leasehold::connect("memory:").await?;
/// let me = Scope::new();
/// let outer = leases.lease("order", "7").within(&me).acquire().await?;
/// let inner = leases.lease("order", "7").within(&me).acquire().await?; // no round trip
/// assert_eq!(outer.token(), inner.token());
/// assert_eq!(inner.release().await?, Released::StillHeld);
/// assert_eq!(outer.release().await?, Released::Now);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Scope(Arc<Mutex<HashMap<Resource, ScopeSlot>>>);

/// The lease that a scope holds of one resource. Locked while a request of the scope acquires it, so that another request
/// waits for the outcome instead of queueing behind its own scope.
type ScopeSlot = Arc<tokio::sync::Mutex<Weak<HeldLease>>>;

/// How a request enters a scope.
pub(crate) enum ScopeEntry {
    /// The scope holds the lease: one more handle of it.
    Again(LeaseHandle),
    /// The scope does not hold the lease: acquire it, and put it into the slot.
    First(LockedSlot),
}

/// A locked slot: the right to acquire for the scope.
pub(crate) struct LockedSlot(OwnedMutexGuard<Weak<HeldLease>>);

impl LockedSlot {
    pub(crate) fn set_lease(&mut self, lease: &Arc<HeldLease>) {
        *self.0 = Arc::downgrade(lease);
    }
}

impl Scope {
    /// From this many slots on, unused slots are removed before a new one is made.
    const SLOTS_KEPT: usize = 64;

    /// A scope that holds nothing.
    pub fn new() -> Scope {
        Scope::default()
    }

    pub(crate) async fn enter(&self, resource: &Resource, share: Share) -> Result<ScopeEntry> {
        let slot = Arc::clone(&self.slot(resource)).lock_owned().await;
        let Some(lease) = slot.upgrade() else { return Ok(ScopeEntry::First(LockedSlot(slot))) };
        if lease.check().is_err() {
            return Ok(ScopeEntry::First(LockedSlot(slot)));
        }
        // A writer may read what it writes. A reader may not write: two readers that wait to write wait for each other.
        if lease.share.capacity() == share.capacity() && lease.share.weight() < share.weight() {
            let message = format!(
                "this scope holds {:?} and asks for {share:?}; two scopes that do so would wait for each other: \
                 release the lease first",
                lease.share
            );
            return Err(Error::new(ErrorKind::Invalid, message).on(resource));
        }
        if lease.share.capacity() != share.capacity() {
            return Err(Error::mismatch(lease.share.capacity(), share.capacity()).on(resource));
        }
        Ok(lease.another_handle().map_or(ScopeEntry::First(LockedSlot(slot)), ScopeEntry::Again))
    }

    fn slot(&self, resource: &Resource) -> ScopeSlot {
        let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_used = |slot: &mut ScopeSlot| {
            Arc::strong_count(slot) > 1 || slot.try_lock().map_or(true, |lease| lease.strong_count() > 0)
        };
        // So that a scope that lives long does not grow.
        if slots.len() >= Scope::SLOTS_KEPT && !slots.contains_key(resource) {
            slots.retain(|_, slot| is_used(slot));
        }
        Arc::clone(slots.entry(resource.clone()).or_default())
    }
}
