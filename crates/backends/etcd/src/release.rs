//! The verb `release`: ends a claim that holds or waits. It may leave a tombstone, or keep the resource
//! closed for a while.
//!
//! 1. A claim that this process knows, without tombstone and `keep_for`: delete its contender in one
//!    transaction, if it was not written since. One round trip.
//! 2. Otherwise read the owner's keys, and write in one transaction, if they are still as they were read:
//!    delete the contender, or move it to a lease of `keep_for`; and write the tombstone.
//! 3. If they have changed, pause and go back to step 2.

use std::time::Duration;

use futures_util::future::join_all;
use leasehold_core::{ClaimRef, GoneReason, ReleaseRequest, Released};

use crate::{
    acquire::{group, in_order},
    backend::Etcd,
    contention::ATTEMPTS_MAX,
    error::StoreError,
    keys::{ResourceKeys, hash_owner, slot},
    lease_pool::whole_seconds,
    local_claims::{LeaseDisposal, LocalClaim},
    read_resource::tombstone_value,
    resource_view::{ABSENT, Contender, OwnerState},
    transaction::{KeyChange, KeyChanges, Precondition, Transaction, verified_writes},
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

/// What became of the deletion of one claim in a transaction of many.
enum DeletedTogether {
    Deleted,
    /// The contender was written since this process knew it, or is gone.
    Changed,
    /// It was not sent, or etcd refused the transaction as a whole.
    NotSent,
    Failed(StoreError),
}

fn claim_of(request: &ReleaseRequest) -> ClaimRef {
    ClaimRef { resource: request.resource.clone(), owner: request.owner }
}

impl Etcd {
    pub(crate) async fn try_release(&self, request: &ReleaseRequest) -> Result<Released, StoreError> {
        if let Some(deletion) = self.deletion_of_known(request)
            && self.connections.transact(&deletion).await?.succeeded
        {
            self.forget(&claim_of(request), LeaseDisposal::ReuseIfAnswered);
            return Ok(Released::Now);
        }
        self.read_and_release(request).await
    }

    /// Releases many claims. Those of step 1 in one transaction, each nested in it, so that each has
    /// preconditions of its own (ADR 0041). The others, and those that could not be deleted, alone and at the
    /// same time. Several releases of one claim are carried out in their order.
    pub(crate) async fn release_together(
        &self,
        requests: &[ReleaseRequest],
    ) -> Vec<Result<Released, StoreError>> {
        let by_claim = group(requests, |request| (&request.resource, request.owner));
        let deletions = by_claim.iter().map(|indices| self.deletion_of_known(&requests[indices[0]]));
        let deleted = self.delete_together(deletions.collect()).await;
        let finishing = by_claim.iter().zip(deleted).map(|(indices, deleted)| async move {
            let first = &requests[indices[0]];
            let mut results = vec![match deleted {
                DeletedTogether::Deleted => {
                    self.forget(&claim_of(first), LeaseDisposal::ReuseIfAnswered);
                    Ok(Released::Now)
                }
                DeletedTogether::Changed => self.read_and_release(first).await,
                DeletedTogether::NotSent => self.try_release(first).await,
                DeletedTogether::Failed(error) => Err(error),
            }];
            for &index in &indices[1..] {
                results.push(self.try_release(&requests[index]).await);
            }
            indices.iter().copied().zip(results).collect::<Vec<_>>()
        });
        in_order(requests.len(), join_all(finishing).await)
    }

    /// Sends these deletions in one transaction.
    async fn delete_together(&self, deletions: Vec<Option<Transaction>>) -> Vec<DeletedTogether> {
        let mut outcomes: Vec<DeletedTogether> = deletions.iter().map(|_| DeletedTogether::NotSent).collect();
        let known: Vec<(usize, Transaction)> = deletions
            .into_iter()
            .enumerate()
            .filter_map(|(index, deletion)| Some((index, deletion?)))
            .collect();
        let parts = known.chunks(self.nested_max.get()).filter(|part| part.len() > 1);
        let sent = join_all(parts.map(|part| async move {
            let transaction =
                Transaction::all_of(part.iter().map(|(_, deletion)| deletion.clone()).collect());
            let reply = self.connections.transact(&transaction).await;
            (part, reply.and_then(|reply| reply.into_all_nested(part.len())))
        }));
        for (part, replies) in sent.await {
            match replies {
                Ok(replies) => {
                    for ((index, _), reply) in part.iter().zip(replies) {
                        outcomes[*index] =
                            if reply.succeeded { DeletedTogether::Deleted } else { DeletedTogether::Changed };
                    }
                }
                Err(error) if error.refuses_transaction() => self.nested_max.note_refusal(&error, part.len()),
                Err(error) => {
                    part.iter()
                        .for_each(|(index, _)| outcomes[*index] = DeletedTogether::Failed(error.clone()));
                }
            }
        }
        outcomes
    }

    /// Steps 2 and 3.
    async fn read_and_release(&self, request: &ReleaseRequest) -> Result<Released, StoreError> {
        let keys = self.connections.config.root.keys_of(&request.resource);
        let (claim, owner_hash) = (claim_of(request), hash_owner(request.owner));
        let keep_for = request.keep_for.filter(|keep_for| !keep_for.is_zero());
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

    /// The transaction of step 1: deletes the contender if it was not written since. `None` if this process
    /// does not know the claim, or there is more to do than to delete it.
    ///
    /// The last write is compared, not the creation. A successor that took over the contender, a release with
    /// `keep_for` and an operator all write to it, and a late release must not end what they have made of it
    /// (ADR 0031).
    fn deletion_of_known(&self, request: &ReleaseRequest) -> Option<Transaction> {
        let keeps = request.keep_for.is_some_and(|keep_for| !keep_for.is_zero());
        if request.tombstone.is_some() || keeps {
            return None;
        }
        let local = self.local_claims.get(&claim_of(request)).filter(LocalClaim::is_created)?;
        let keys = self.connections.config.root.keys_of(&request.resource);
        let owner_hash = hash_owner(request.owner);
        let contender = keys.contender(&local.name);
        let unchanged = vec![Precondition::ModifiedAt(contender.clone(), local.modified)];
        let mut changes = KeyChanges::from([(contender, KeyChange::Delete)]);
        if local.name != slot(&owner_hash) {
            // The contender was taken over, or has a second name, so an owner key points to it.
            changes.insert(keys.owner(&owner_hash), KeyChange::Delete);
        }
        let on_success = verified_writes(&unchanged, &changes);
        Some(Transaction { preconditions: unchanged, on_success, on_failure: Vec::new() })
    }

    /// Ends the claim as it was read; `None` if it has changed since.
    async fn end_claim(
        &self,
        context: &ReleaseContext<'_>,
        owner: &OwnerState,
        contender: Option<&Contender>,
    ) -> Result<Option<Released>, StoreError> {
        let ReleaseContext { keys, owner_hash, .. } = context;
        let in_slot = keys.contender(&slot(owner_hash));
        let mut preconditions = vec![
            Precondition::ModifiedAt(keys.owner(owner_hash), owner.owner_key_modified),
            Precondition::ModifiedAt(in_slot.clone(), owner.slot_modified),
        ];
        let mut changes = KeyChanges::new();
        let mut keep_lease = None;
        let live = contender.filter(|contender| contender.live_record().is_some());
        if let Some(contender) = live {
            let key = keys.contender(&contender.name);
            if key != in_slot {
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
    if contender.name != slot(context.owner_hash) {
        // The owner key that points to the contender must last as long as the contender.
        let pointer = KeyChange::Put { value: contender.name.clone(), lease };
        changes.insert(context.keys.owner(context.owner_hash), pointer);
    }
    let key = context.keys.contender(&contender.name);
    changes.insert(key, KeyChange::Put { value: record.to_value(), lease });
    changes
}
