//! Decides an acquire: from a resource as it was read to the writes, and to the verdict once they are
//! written.
//!
//! Pure: no I/O, and the time comes in. The decision follows `leasehold_core::model` step by step:
//!
//! 1. The owner has a tombstone: cancelled. Still release its predecessor, because that was part of the same
//!    request.
//! 2. The claim holds already: the same grant again.
//! 3. The contenders have another capacity: mismatch.
//! 4. The claim takes over from another claim: inherit that claim's lease or its place in the queue, if that
//!    is allowed.
//! 5. The admission rule grants it, and there is no pause: granted.
//! 6. Otherwise: queue, or leave.
//!
//! The plan is written in one transaction whose preconditions are what the decision rests on. If one of them
//! fails, the caller reads and decides again.
//!
//! One thing differs from the model: a held lease is not handed over while other claims wait (see
//! [`PlanBuilder::take_over`]).

use leasehold_core::{Claim, Error, ErrorKind, FencingToken, GoneReason, WallTime, WhenBlocked};

use crate::{
    claim_record::ClaimRecord,
    keys::{ResourceKeys, hash_owner, name_from_lease, slot},
    read_resource::{ResourceRead, tombstone_value},
    resource_view::{ABSENT, Contender, OwnerKeyValue, OwnerState, PauseKey, ResourceView},
    transaction::{KeyChange, KeyChanges, Precondition},
};

/// The position of the claim's owner in [`ResourceRead::owners`].
const CLAIMANT: usize = 0;
/// The position of the predecessor's owner, if the claim takes over from another claim.
const PREDECESSOR: usize = 1;

/// The creation and modification revision of a contender that the plan writes: above all that exist, and not
/// known yet.
pub(super) const NOT_WRITTEN_YET: i64 = i64::MAX;

/// The ids of the etcd leases that a plan may use.
#[derive(Clone, Copy, Debug)]
pub(super) struct AvailableLeases {
    /// For a holder.
    pub(super) hold: i64,
    /// For a waiter, if one was taken from the pool.
    pub(super) wait: Option<i64>,
    /// For the tombstone of the predecessor, if it is to have one.
    pub(super) tombstone: Option<i64>,
    /// For a downgrade that must not stay attached to the lease of its predecessor.
    pub(super) remainder: Option<i64>,
}

/// Everything that a decision depends on.
pub(super) struct DecisionInput<'a> {
    pub(super) keys: &'a ResourceKeys,
    pub(super) claim: &'a Claim,
    pub(super) read: &'a ResourceRead,
    pub(super) leases: AvailableLeases,
    pub(super) now: WallTime,
    /// How many waiters a resource may have.
    pub(super) queue_max: usize,
}

/// The verdict once the plan is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    Cancelled,
    /// The contenders have this capacity.
    Mismatch(u32),
    /// The claim holds already, as the contender at this index.
    AlreadyHolds(usize),
    Granted {
        /// The creation revision of its contender; `None` if the plan creates it.
        created: Option<i64>,
        /// The lease that a downgrade goes on with; `None` for a new grant, which uses
        /// [`AvailableLeases::hold`].
        continued_lease: Option<i64>,
    },
    /// The claim waits as the contender at this index, or (`None`) does not queue.
    Blocked(Option<usize>),
    /// The claim has to queue, and [`AvailableLeases::wait`] is missing: take one and decide again.
    NeedsWaitLease,
}

/// What to write, and what that means.
#[derive(Clone, Debug)]
pub(super) struct AcquirePlan {
    pub(super) preconditions: Vec<Precondition>,
    pub(super) changes: KeyChanges,
    pub(super) decision: Decision,
    /// The resource as it is once the plan is written.
    pub(super) view: ResourceView,
}

/// Whether a new contender created by another client in between would make the decision wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NewContenders {
    DoNotMatter,
    MakeItWrong,
}

struct PlanBuilder<'a> {
    keys: &'a ResourceKeys,
    claim: &'a Claim,
    leases: AvailableLeases,
    now: WallTime,
    queue_max: usize,
    owner_hash: String,
    /// At [`CLAIMANT`] and [`PREDECESSOR`].
    owners: &'a [OwnerState],
    preconditions: Vec<Precondition>,
    changes: KeyChanges,
    /// Starts as what was read, and follows every change of the plan.
    view: ResourceView,
    /// The names of all contenders that were read.
    read_names: Vec<String>,
    new_contenders: NewContenders,
}

/// Decides an acquire.
///
/// # Errors
/// `Limit` if the queue is full; `Invalid` if the floor cannot be met.
pub(super) fn decide(input: &DecisionInput<'_>) -> Result<AcquirePlan, Error> {
    let mut builder = PlanBuilder {
        keys: input.keys,
        claim: input.claim,
        leases: input.leases,
        now: input.now,
        queue_max: input.queue_max,
        owner_hash: hash_owner(input.claim.owner),
        owners: &input.read.owners,
        preconditions: Vec::new(),
        changes: KeyChanges::new(),
        view: input.read.view.clone(),
        read_names: input.read.view.contenders.iter().map(|contender| contender.name.clone()).collect(),
        new_contenders: NewContenders::DoNotMatter,
    };
    let decision = builder.decide()?;
    Ok(builder.finish(input.read.view.revision, input.read.view.pause.as_ref(), decision))
}

impl PlanBuilder<'_> {
    fn decide(&mut self) -> Result<Decision, Error> {
        let capacity = self.claim.share.capacity();
        let predecessor = self.claim.takes_over_from.map(|from| hash_owner(from.owner));
        let predecessor = predecessor.filter(|hash| *hash != self.owner_hash);
        let owner = self.owners.get(CLAIMANT);
        if owner.is_some_and(|owner| matches!(owner.owner_key, OwnerKeyValue::Tombstone(_))) {
            // Refused; but the release of its predecessor was part of the same request.
            predecessor.iter().for_each(|predecessor| self.release_predecessor(predecessor));
            return Ok(Decision::Cancelled);
        }
        if let Some(index) = self.view.find(&self.owner_hash).filter(|index| self.view.is_holder(*index)) {
            // Released with `keep_for`: the claim has ended, and its contender only keeps the resource
            // closed.
            let kept = self.record(index).is_some_and(|record| record.kept);
            return Ok(if kept { Decision::Cancelled } else { Decision::AlreadyHolds(index) });
        }
        if let Some(theirs) = self.view.capacity().filter(|theirs| *theirs != capacity) {
            // If the claim waits already, an operator has resized the resource since.
            self.leave_queue();
            return Ok(Decision::Mismatch(theirs));
        }
        if let Some(predecessor) = predecessor
            && let Some(decision) = self.take_over(&predecessor)
        {
            return Ok(decision);
        }
        let waiter = self.view.find(&self.owner_hash);
        let is_open = self.view.pause.is_none();
        if is_open && self.view.can_grant(waiter, self.claim.share.weight(), capacity) {
            return self.grant(waiter);
        }
        self.queue_or_leave(waiter)
    }

    fn record(&self, index: usize) -> Option<&ClaimRecord> {
        self.view.contenders[index].record.as_ref()
    }

    /// Takes over the lease or the place of the predecessor. `None` if there is nothing to take over, or if
    /// the admission rule has to decide about the rest.
    fn take_over(&mut self, predecessor: &str) -> Option<Decision> {
        let weight = self.claim.share.weight();
        let found = self.view.find(predecessor);
        let held = found.filter(|index| self.view.is_holder(*index));
        let held = held.and_then(|index| Some((index, self.record(index)?.clone())));
        let Some((index, held)) = held.filter(|(_, held)| !held.kept && held.weight >= weight) else {
            return self.take_over_place(predecessor, found);
        };
        if weight < held.weight {
            return Some(self.downgrade(predecessor, index, &held));
        }
        // Tokens are creation revisions, and a waiter has its revision already. If the lease were handed over
        // past the waiter, the waiter would later get a token below that of an earlier holder. So the lease
        // is not handed over.
        let own_place = self.view.find(&self.owner_hash);
        let others_wait = self.view.waiters().any(|waiter| Some(waiter) != own_place);
        self.release_predecessor(predecessor);
        if self.view.pause.is_some() || held.evicting || others_wait {
            return None;
        }
        let mut record = ClaimRecord::holding(self.claim, self.now);
        record.handovers = held.handovers.saturating_add(1);
        self.leave_queue();
        self.add_contender(record, self.leases.hold);
        Some(Decision::Granted { created: None, continued_lease: None })
    }

    /// Takes over the predecessor's place in the queue, if the claim queues and has no place of its own.
    fn take_over_place(&mut self, predecessor: &str, found: Option<usize>) -> Option<Decision> {
        let wants_place =
            self.claim.when_blocked == WhenBlocked::Queue && self.view.find(&self.owner_hash).is_none();
        let place = found.filter(|index| !self.view.is_holder(*index));
        let Some(index) = place.filter(|_| wants_place) else {
            self.release_predecessor(predecessor);
            return None;
        };
        let Some(lease) = self.leases.wait else { return Some(Decision::NeedsWaitLease) };
        let mut record = ClaimRecord::waiting(self.claim, self.now);
        record.since_us = self.record(index).map_or(record.since_us, |old| old.since_us);
        self.remove_owner_of_predecessor(predecessor);
        self.rewrite_contender(index, record, lease);
        None
    }

    /// Goes on with a smaller share: the same work, until the same end, and what an operator asked of it
    /// stays.
    fn downgrade(&mut self, predecessor: &str, index: usize, held: &ClaimRecord) -> Decision {
        let mut record = ClaimRecord::holding(self.claim, self.now);
        record.handovers = held.handovers;
        record.finish_request.clone_from(&held.finish_request);
        (record.evicting, record.ttl_ms) = (held.evicting, held.ttl_ms);
        let lease = self.leases.remainder.unwrap_or(self.view.contenders[index].lease);
        if self.view.has_foreign_locks() {
            // A foreign lock goes by the order of creation alone. So the key stays, and with it its creation
            // revision.
            let created = self.view.contenders[index].created;
            self.remove_owner_of_predecessor(predecessor);
            self.leave_queue();
            let index = self.view.find(predecessor).unwrap_or(index);
            self.rewrite_contender(index, record, lease);
            return Decision::Granted { created: Some(created), continued_lease: Some(lease) };
        }
        self.release_predecessor(predecessor);
        self.leave_queue();
        self.add_contender(record, lease);
        Decision::Granted { created: None, continued_lease: Some(lease) }
    }

    /// Grants the claim: as the waiter at this index, or as a new contender.
    fn grant(&mut self, waiter: Option<usize>) -> Result<Decision, Error> {
        let record = ClaimRecord::holding(self.claim, self.now);
        let created_now = Decision::Granted { created: None, continued_lease: None };
        let Some(index) = waiter else {
            self.add_contender(record, self.leases.hold);
            return Ok(created_now);
        };
        let created = self.view.contenders[index].created;
        let floor = self.claim.floor.map_or(0, FencingToken::as_i64);
        if floor < created {
            self.rewrite_contender(index, record, self.leases.hold);
            return Ok(Decision::Granted { created: Some(created), continued_lease: None });
        }
        if self.claim.share.is_exclusive() {
            return Err(floor_not_reached(floor, self.view.revision));
        }
        // Claims that share need no order among each other. So a new key may be created, for a token above
        // the floor.
        self.leave_queue();
        self.add_contender(record, self.leases.hold);
        Ok(created_now)
    }

    fn queue_or_leave(&mut self, waiter: Option<usize>) -> Result<Decision, Error> {
        match (self.claim.when_blocked, waiter, self.leases.wait) {
            (WhenBlocked::Leave, ..) => {
                self.leave_queue();
                Ok(Decision::Blocked(None))
            }
            (WhenBlocked::Queue, Some(index), _) => {
                self.answer_call(index);
                Ok(Decision::Blocked(Some(index)))
            }
            (WhenBlocked::Queue, None, None) => Ok(Decision::NeedsWaitLease),
            (WhenBlocked::Queue, None, Some(_)) if self.view.waiters_ahead(None) >= self.queue_max => {
                Err(queue_full(self.queue_max))
            }
            (WhenBlocked::Queue, None, Some(lease)) => {
                let before = self.new_contenders;
                self.add_contender(ClaimRecord::waiting(self.claim, self.now), lease);
                let has_others = self.view.contenders.len() > 1;
                if before == NewContenders::DoNotMatter && !self.view.has_foreign_locks() && has_others {
                    // A claim that comes in between is ahead in the queue, and that is right, if it has the
                    // same capacity.
                    let (lock_prefix, capacity) =
                        (self.keys.lock_prefix.clone(), self.claim.share.capacity());
                    self.new_contenders = NewContenders::DoNotMatter;
                    self.preconditions.push(Precondition::AllOfCapacity { lock_prefix, capacity });
                }
                Ok(Decision::Blocked(Some(self.view.contenders.len() - 1)))
            }
        }
    }

    /// If another client has called this waiter, shows that it lives: removes the mark from its record.
    fn answer_call(&mut self, index: usize) {
        let contender = &self.view.contenders[index];
        let lease = contender.lease;
        if let Some(mut record) = contender.record.clone().filter(|record| record.called) {
            record.called = false;
            self.rewrite_contender(index, record, lease);
        }
    }

    /// Adds a new contender of the claim, behind all others.
    fn add_contender(&mut self, record: ClaimRecord, lease: i64) {
        let name = self.new_name();
        self.require_unchanged(&name, ABSENT);
        self.put_contender(&name, &record, lease);
        self.view.contenders.push(Contender {
            name,
            created: NOT_WRITTEN_YET,
            modified: NOT_WRITTEN_YET,
            lease,
            record: Some(record),
            foreign: None,
        });
        self.view.total += 1;
        self.new_contenders = NewContenders::MakeItWrong;
    }

    /// The name of a new contender of the claim: the owner's slot; if that is taken, the lease that this claim
    /// holds under. The claim may have left the key of either name in this plan, and a key cannot be deleted
    /// and created in one transaction: then the revision makes a third name.
    fn new_name(&self) -> String {
        let slot_modified = self.owners.get(CLAIMANT).map_or(ABSENT, |owner| owner.slot_modified);
        if slot_modified == ABSENT {
            return slot(&self.owner_hash);
        }
        let name = name_from_lease(self.leases.hold);
        let is_taken = self.read_names.contains(&name);
        if is_taken { format!("{name}.{:x}", self.view.revision) } else { name }
    }

    /// Writes a new record of the claim to a contender. Its creation revision stays.
    fn rewrite_contender(&mut self, index: usize, record: ClaimRecord, lease: i64) {
        let Contender { name, modified, .. } = self.view.contenders[index].clone();
        self.require_unchanged(&name, modified);
        self.put_contender(&name, &record, lease);
        let contender = &mut self.view.contenders[index];
        (contender.record, contender.lease, contender.modified) = (Some(record), lease, NOT_WRITTEN_YET);
    }

    /// Writes a contender of the claim, and an owner key if the contender is not in the owner's slot.
    fn put_contender(&mut self, name: &str, record: &ClaimRecord, lease: i64) {
        let change = KeyChange::Put { value: record.to_value(), lease };
        self.changes.insert(self.keys.contender(name), change);
        if name == slot(&self.owner_hash) {
            self.remove_owner_key(CLAIMANT, &self.owner_hash.clone());
        } else {
            let change = KeyChange::Put { value: name.to_owned(), lease };
            self.changes.insert(self.keys.owner(&self.owner_hash), change);
        }
    }

    fn remove_contender(&mut self, index: usize) {
        let contender = self.view.contenders.remove(index);
        self.view.total -= 1;
        self.require_unchanged(&contender.name, contender.modified);
        self.changes.insert(self.keys.contender(&contender.name), KeyChange::Delete);
    }

    /// The contender must be as it was read.
    fn require_unchanged(&mut self, name: &str, modified: i64) {
        let unchanged = Precondition::ModifiedAt(self.keys.contender(name), modified);
        if modified != NOT_WRITTEN_YET && !self.preconditions.contains(&unchanged) {
            self.preconditions.push(unchanged);
        }
    }

    /// Removes the claim's own contender, if it waits.
    fn leave_queue(&mut self) {
        if let Some(index) = self.view.find(&self.owner_hash) {
            self.remove_contender(index);
            self.remove_owner_key(CLAIMANT, &self.owner_hash.clone());
        }
    }

    /// Deletes an owner key if it exists, and drops a write to it from the plan.
    fn remove_owner_key(&mut self, position: usize, owner_hash: &str) {
        let key = self.keys.owner(owner_hash);
        let owner = self.owners.get(position);
        self.changes.remove(&key);
        if owner.is_some_and(|owner| owner.owner_key_modified != ABSENT) {
            self.changes.insert(key, KeyChange::Delete);
        }
    }

    /// Releases the predecessor, and leaves a tombstone if a request of it may still come. A claim that was
    /// released with `keep_for` stays.
    fn release_predecessor(&mut self, predecessor: &str) {
        let found = self.view.find(predecessor);
        let is_kept = |index: &usize| self.record(*index).is_some_and(|record| record.kept);
        if let Some(index) = found.filter(|index| !is_kept(index)) {
            self.remove_contender(index);
            self.remove_owner_of_predecessor(predecessor);
        } else if self.leases.tombstone.is_some() {
            self.remove_owner_of_predecessor(predecessor);
        }
    }

    /// Deletes the predecessor's owner key, or makes it a tombstone.
    fn remove_owner_of_predecessor(&mut self, predecessor: &str) {
        self.remove_owner_key(PREDECESSOR, predecessor);
        if let Some(lease) = self.leases.tombstone {
            let change = KeyChange::Put { value: tombstone_value(GoneReason::Cancelled), lease };
            self.changes.insert(self.keys.owner(predecessor), change);
        }
    }

    /// Adds the preconditions that every plan with changes has: both keys of each owner and the pause are as
    /// they were read.
    fn finish(mut self, revision: i64, pause: Option<&PauseKey>, decision: Decision) -> AcquirePlan {
        if !self.changes.is_empty() {
            let predecessor = self.claim.takes_over_from.map(|from| hash_owner(from.owner));
            let hashes = [Some(self.owner_hash.clone()), predecessor];
            for (owner_hash, owner) in hashes.into_iter().flatten().zip(self.owners) {
                let key = self.keys.owner(&owner_hash);
                self.preconditions.push(Precondition::ModifiedAt(key, owner.owner_key_modified));
                // Also if the contender does not exist: another request of the owner must not have created it
                // since.
                self.require_unchanged(&slot(&owner_hash), owner.slot_modified);
            }
            let modified = pause.map_or(ABSENT, |pause| pause.modified);
            self.preconditions.push(Precondition::ModifiedAt(self.keys.pause.clone(), modified));
            if self.new_contenders == NewContenders::MakeItWrong {
                let lock_prefix = self.keys.lock_prefix.clone();
                self.preconditions.push(Precondition::NoneModifiedAfter { lock_prefix, revision });
            }
        }
        let PlanBuilder { preconditions, changes, view, .. } = self;
        AcquirePlan { preconditions, changes, decision, view }
    }
}

/// The floor of the claim is above every token that etcd can give now.
pub(super) fn floor_not_reached(floor: i64, revision: i64) -> Error {
    let message = format!(
        "token {floor} was seen before, but etcd is at revision {revision}: etcd was restored from an older snapshot, and \
         its tokens would go back; raise the fences before you use it again"
    );
    Error::new(ErrorKind::Invalid, message)
}

/// The queue has as many waiters as it may have.
pub(super) fn queue_full(queue_max: usize) -> Error {
    Error::new(ErrorKind::Limit, format!("the queue is full: {queue_max} claims wait already"))
}

#[cfg(test)]
mod tests;
