//! The first transaction of an acquire: grants a free resource in one round trip.
//!
//! ```text
//! if    no owner key, no contenders, no pause
//! then  put the contender as a holder; read it back to verify the reply
//! else  (long form only)
//!         with a lease for a waiter at hand:
//!           if    no owner key, no contender in the slot of this owner, all contenders have the same capacity
//!           then  put the contender as a waiter; read the resource
//!           else  read the resource
//!         without one: read the resource
//! ```
//!
//! The short form has no `else`. It is sent where the resource was free last time (`contention.rs`).

use futures_util::future::join;
use leasehold_core::{Timestamp, Verdict, WallTime};

use super::{AcquireState, WrittenSoFar, finish::WrittenContender};
use crate::{
    claim_record::ClaimRecord,
    error::StoreError,
    keys::slot,
    lease_pool::EtcdLease,
    read_resource::ResourceRead,
    resource_view::{ABSENT, ResourceView},
    transaction::{
        KeyChange, KeyChanges, Operation, Precondition, ReadFields, Transaction, TransactionReply,
        read_resource, verified_writes,
    },
};

/// How many writes come before the reads in the branch that queues the claim.
const WRITES_BEFORE_READS: usize = 1;

pub(super) enum FirstOutcome {
    Granted(Verdict),
    /// Not granted. With what was read, if the transaction had its long form; it may have queued the claim.
    Undecided(Option<ResourceRead>),
}

impl AcquireState<'_> {
    pub(super) async fn send_first_transaction(&mut self) -> Result<FirstOutcome, StoreError> {
        let (sent, wall) = (self.now(), self.etcd.environment.wall());
        let transaction = self.first_transaction(wall);
        let sending = self.etcd.connections.transact(&transaction);
        match join(sending, self.refreshed_hold_lease()).await {
            (Err(error), _) if error.is_lease_gone() => {
                self.replace_leases().await?;
                Ok(FirstOutcome::Undecided(None))
            }
            (reply, hold) => self.finish_first_transaction(reply?, hold, sent).await,
        }
    }

    /// What follows from the reply. `hold` is the lease to hold under as it is now, and `sent` a moment before
    /// the request was sent.
    pub(super) async fn finish_first_transaction(
        &mut self,
        reply: TransactionReply,
        hold: EtcdLease,
        sent: Timestamp,
    ) -> Result<FirstOutcome, StoreError> {
        if reply.succeeded {
            self.etcd.contention_hints.was_free(&self.keys.lock_prefix);
            let (name, revision) = (slot(&self.owner_hash), reply.revision);
            let contender = WrittenContender { name, created: revision, modified: revision };
            return self.granted(contender, hold, sent).map(FirstOutcome::Granted);
        }
        let read = self.parse_failure(reply)?;
        self.etcd.contention_hints.was_contended(&self.keys.lock_prefix);
        let Some(read) = read else { return Ok(FirstOutcome::Undecided(None)) };
        self.note_place(&read.view);
        let read = self.etcd.connections.add_taken_over(&self.keys, read).await?;
        Ok(FirstOutcome::Undecided(Some(read)))
    }

    pub(super) fn first_transaction(&self, wall: WallTime) -> Transaction {
        let preconditions = vec![
            Precondition::ModifiedAt(self.keys.owner(&self.owner_hash), ABSENT),
            Precondition::NoContenders { lock_prefix: self.keys.lock_prefix.clone() },
            Precondition::ModifiedAt(self.keys.pause.clone(), ABSENT),
        ];
        let value = ClaimRecord::holding(self.claim, wall).to_value();
        let put = KeyChange::Put { value, lease: self.leases.hold.id };
        let changes = KeyChanges::from([(self.keys.contender(&slot(&self.owner_hash)), put)]);
        let on_failure = if self.was_contended { self.queue_or_read(wall) } else { Vec::new() };
        let on_success = verified_writes(&preconditions, &changes);
        Transaction { preconditions, on_success, on_failure }
    }

    /// The `else` of the long form.
    fn queue_or_read(&self, wall: WallTime) -> Vec<Operation> {
        let reads = read_resource(&self.keys, &[&self.owner_hash], self.head_limit());
        let Some(lease) = self.leases.wait.map(|lease| lease.id) else { return reads };
        let (owner_key, contender) =
            (self.keys.owner(&self.owner_hash), self.keys.contender(&slot(&self.owner_hash)));
        let preconditions = vec![
            Precondition::ModifiedAt(owner_key, ABSENT),
            Precondition::ModifiedAt(contender.clone(), ABSENT),
            Precondition::AllOfCapacity {
                lock_prefix: self.keys.lock_prefix.clone(),
                capacity: self.claim.share.capacity(),
            },
        ];
        let value = ClaimRecord::waiting(self.claim, wall).to_value();
        let put = Operation::Put { key: contender.clone(), value, lease: Some(lease) };
        let mut on_success = vec![put];
        // All reads but the last, which is the contender of this owner. Here it was just written, so the read
        // of it also verifies the reply.
        let before_contender = &reads[..reads.len() - 1];
        on_success.extend(before_contender.iter().cloned());
        let fields = ReadFields::All;
        on_success.push(Operation::ReadWritten { key: contender, lease, fields });
        vec![Operation::Nested(Transaction { preconditions, on_success, on_failure: reads })]
    }

    /// Parses the reply if the resource was not free; `None` for the short form, which reads nothing.
    fn parse_failure(&self, reply: TransactionReply) -> Result<Option<ResourceRead>, StoreError> {
        if !self.was_contended {
            return Ok(None);
        }
        if self.leases.wait.is_none() {
            return ResourceRead::parse(&self.keys, &[&self.owner_hash], &reply, 0).map(Some);
        }
        let nested = reply.into_nested()?;
        let skipped = if nested.succeeded { WRITES_BEFORE_READS } else { 0 };
        ResourceRead::parse(&self.keys, &[&self.owner_hash], &nested, skipped).map(Some)
    }

    /// Notes that the first transaction has queued the claim, if its contender has the lease that was taken
    /// for that.
    fn note_place(&mut self, view: &ResourceView) {
        let Some(index) = view.find(&self.owner_hash) else { return };
        let contender = &view.contenders[index];
        let Some(lease) = self.leases.wait.take_if(|lease| lease.id == contender.lease) else { return };
        let now = self.now();
        self.written = WrittenSoFar::QueuedByFirstTransaction;
        self.local.name.clone_from(&contender.name);
        (self.local.created, self.local.modified) = (contender.created, contender.modified);
        self.local.attached_lease = Some(lease);
        // Counts from the last keep-alive, which was before the request was sent.
        let place_ttl = self.claim.place_ttl;
        self.local.ends = lease.kept_alive_at.after(place_ttl).min(now.after(place_ttl));
        self.etcd.local_claims.insert(now, self.reference.clone(), self.local.clone());
    }
}
