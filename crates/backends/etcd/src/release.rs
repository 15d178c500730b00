//! The verb `release`: ends a claim that holds or waits. It may leave a tombstone, or keep the resource
//! closed for a while.
//!
//! 1. A claim that this process knows, without tombstone and `keep_for`: delete its contender in one
//!    transaction, if it was not written since. One round trip.
//! 2. Otherwise read the owner's keys, and write in one transaction, if they are still as they were read:
//!    delete the contender, or move it to a lease of `keep_for`; and write the tombstone.
//! 3. If they have changed, pause and go back to step 2.

use std::time::Duration;

use leasehold_core::{ClaimRef, GoneReason, ReleaseRequest, Released};

use crate::{
    backend::Etcd,
    contention::ATTEMPTS_MAX,
    error::StoreError,
    keys::{ResourceKeys, hash_owner},
    lease_pool::whole_seconds,
    local_claims::{LeaseDisposal, LocalClaim},
    read_resource::tombstone_value,
    resource_view::{ABSENT, Contender, OwnerState},
    transaction::{KeyChange, KeyChanges, Precondition},
};

/// One call of `release`.
struct ReleaseContext<'a> {
    keys: &'a ResourceKeys,
    owner_hash: &'a str,
    /// The lease for the tombstone, if there is to be one.
    tombstone_lease: Option<i64>,
    /// How long the resource stays closed, if it held.
    keep_for: Option<Duration>,
}

impl Etcd {
    pub(crate) async fn try_release(&self, request: &ReleaseRequest) -> Result<Released, StoreError> {
        let keys = self.connections.config.root.keys_of(&request.resource);
        let claim = ClaimRef { resource: request.resource.clone(), owner: request.owner };
        let owner_hash = hash_owner(request.owner);
        let keep_for = request.keep_for.filter(|keep_for| !keep_for.is_zero());
        let is_plain = request.tombstone.is_none() && keep_for.is_none();
        if is_plain
            && let Some(local) = self.local_claims.get(&claim).filter(LocalClaim::is_created)
            && self.delete_known(&keys, &owner_hash, &local).await?
        {
            self.forget(&claim, LeaseDisposal::ReuseIfAnswered);
            return Ok(Released::Now);
        }
        let tombstone_lease = self.grant_tombstone_lease(request.tombstone).await?.map(|lease| lease.id);
        // With a tombstone, a request of the claim may still come: then its leases must not be used again.
        let disposal =
            if tombstone_lease.is_some() { LeaseDisposal::Revoke } else { LeaseDisposal::ReuseIfAnswered };
        let context = ReleaseContext { keys: &keys, owner_hash: &owner_hash, tombstone_lease, keep_for };
        for attempt in 0..ATTEMPTS_MAX {
            let (owner, contender) = self.connections.read_owner(&keys, &owner_hash).await?;
            if let Some(released) = self.end_claim(&context, &owner, contender.as_ref()).await? {
                self.forget(&claim, disposal);
                return Ok(released);
            }
            self.back_off(attempt).await;
        }
        Err(StoreError::too_much_contention("the claim could not be released"))
    }

    /// Deletes the contender of a claim that this process knows. Returns false if it was written since.
    ///
    /// The last write is compared, not the creation. A successor that took over the contender, a release with
    /// `keep_for` and an operator all write to it, and a late release must not end what they have made of it
    /// (ADR 0031).
    async fn delete_known(
        &self,
        keys: &ResourceKeys,
        owner_hash: &str,
        local: &LocalClaim,
    ) -> Result<bool, StoreError> {
        let contender = keys.contender(&local.name);
        let unchanged = vec![Precondition::ModifiedAt(contender.clone(), local.modified)];
        let mut changes = KeyChanges::from([(contender, KeyChange::Delete)]);
        if local.name != owner_hash {
            // The contender was taken over, or has a second name, so an owner key points to it.
            changes.insert(keys.owner(owner_hash), KeyChange::Delete);
        }
        Ok(self.connections.commit(unchanged, &changes).await?.is_some())
    }

    /// Ends the claim as it was read; `None` if it has changed since.
    async fn end_claim(
        &self,
        context: &ReleaseContext<'_>,
        owner: &OwnerState,
        contender: Option<&Contender>,
    ) -> Result<Option<Released>, StoreError> {
        let ReleaseContext { keys, owner_hash, .. } = context;
        let named_contender = keys.contender(owner_hash);
        let mut preconditions = vec![
            Precondition::ModifiedAt(keys.owner(owner_hash), owner.owner_key_modified),
            Precondition::ModifiedAt(named_contender.clone(), owner.named_contender_modified),
        ];
        let mut changes = KeyChanges::new();
        let mut keep_lease = None;
        let live = contender.filter(|contender| contender.live_record().is_some());
        if let Some(contender) = live {
            let key = keys.contender(&contender.name);
            if key != named_contender {
                preconditions.push(Precondition::ModifiedAt(key.clone(), contender.modified));
            }
            // `keep_for` closes a resource that was held. A waiter just leaves the queue.
            let held = contender.record.as_ref().is_some_and(|record| record.held);
            match context.keep_for.filter(|_| held) {
                Some(keep_for) => {
                    let lease = self.lease_pool.grant(whole_seconds(keep_for)).await?.id;
                    keep_lease = Some(lease);
                    changes = changes_to_keep(context, contender, keep_for, lease);
                }
                None => {
                    changes.insert(key, KeyChange::Delete);
                    if owner.owner_key_modified != ABSENT {
                        changes.insert(keys.owner(owner_hash), KeyChange::Delete);
                    }
                }
            }
        }
        if let Some(lease) = context.tombstone_lease {
            let tombstone = KeyChange::Put { value: tombstone_value(GoneReason::Cancelled), lease };
            changes.insert(keys.owner(owner_hash), tombstone);
        }
        let written = changes.is_empty() || self.connections.commit(preconditions, &changes).await?.is_some();
        if !written {
            keep_lease.into_iter().for_each(|unused| self.lease_pool.revoke_unused(unused));
            return Ok(None);
        }
        Ok(Some(if live.is_some() { Released::Now } else { Released::AlreadyGone }))
    }
}

/// Marks a contender as released and moves it to a lease of `keep_for`, so that the resource stays closed
/// until then.
fn changes_to_keep(
    context: &ReleaseContext<'_>,
    contender: &Contender,
    keep_for: Duration,
    lease: i64,
) -> KeyChanges {
    let mut changes = KeyChanges::new();
    let Some(mut record) = contender.record.clone() else { return changes };
    record.kept = true;
    record.set_ttl(keep_for);
    if contender.name != context.owner_hash {
        // The owner key that points to the contender must last as long as the contender.
        let pointer = KeyChange::Put { value: contender.name.clone(), lease };
        changes.insert(context.keys.owner(context.owner_hash), pointer);
    }
    let key = context.keys.contender(&contender.name);
    changes.insert(key, KeyChange::Put { value: record.to_value(), lease });
    changes
}
