//! The verb `order`: an operator's command and its audit entry, in one transaction.
//!
//! 1. Read the resource.
//! 2. Choose the holder that the command means: the one with the given token, or else the newest. If it is
//!    not there, the outcome is `HolderChanged`, and only the audit entry is written. A foreign lock has no token
//!    and is never chosen: only `EvictForeign` removes one, which it names by a hash (ADR 0065).
//! 3. Draft the writes of the command ([`CommandDraft::apply`]) and of the audit entry. Granting leases for
//!    them is the only I/O before the transaction.
//! 4. Write all of it, on the condition that no contender and not the pause has changed since step 1. If
//!    something has, revoke the granted leases, pause, and go back to step 1.

use std::time::Duration;

use leasehold_core::{
    CommandOutcome, Error, ErrorKind, Eviction, FencingToken, GoneReason, OperatorAction, OperatorCommand,
    ReleaseRequest, WallTime,
};
use serde::{Deserialize, Serialize};

use crate::{
    backend::Etcd,
    claim_record::StoredFinishRequest,
    contention::ATTEMPTS_MAX,
    error::StoreError,
    keys::{ResourceKeys, slot},
    lease_pool::whole_seconds,
    read_resource::tombstone_value,
    resource_view::{ABSENT, ResourceView, token_of},
    silence::rewrite_called,
    transaction::{KeyChange, KeyChanges, Precondition},
};

/// How long an audit entry is kept.
const AUDIT_KEPT_FOR: Duration = Duration::from_secs(90 * 86_400);
/// How many contenders a resize can rewrite: etcd allows 128 operations in one transaction.
const RESIZE_CONTENDERS_MAX: usize = 100;

/// An entry of the audit trail, as it is stored. The field names are part of the stored format.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct StoredAuditEntry {
    pub(crate) at_us: u64,
    pub(crate) resource: String,
    pub(crate) command: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) token: Option<u64>,
    pub(crate) by: String,
    pub(crate) why: String,
    pub(crate) done: bool,
}

impl StoredAuditEntry {
    fn new(command: &OperatorCommand, at: WallTime, done: bool) -> StoredAuditEntry {
        StoredAuditEntry {
            at_us: at.as_micros(),
            resource: command.resource.key().to_owned(),
            command: command.action.as_str().to_owned(),
            token: command.token.map(FencingToken::get),
            by: command.by.clone(),
            why: command.why.clone(),
            done,
        }
    }
}

impl Etcd {
    pub(crate) async fn try_order(&self, command: &OperatorCommand) -> Result<CommandOutcome, StoreError> {
        let keys = self.connections.config.root.keys_of(&command.resource);
        for attempt in 0..ATTEMPTS_MAX {
            let view = self.connections.read(&keys, &[], 0).await?.view;
            let mut draft = CommandDraft::new(self, command, &keys, view);
            let outcome = match draft.prepare().await {
                Err(error) => Err(error),
                Ok(outcome) => match draft.commit().await {
                    Ok(written) => Ok(written.map(|_| outcome)),
                    // The transaction may be written, and then its leases are in use.
                    Err(error) if !error.has_no_effect() => return Err(error),
                    Err(error) => Err(error),
                },
            };
            if let Ok(Some(outcome)) = outcome {
                return Ok(outcome);
            }
            draft.leases.into_iter().for_each(|unused| self.lease_pool.revoke_unused(unused));
            outcome?;
            self.back_off(attempt).await;
        }
        Err(StoreError::too_much_contention("the command could not be carried out"))
    }
}

/// The writes of one command, before they are sent.
struct CommandDraft<'a> {
    etcd: &'a Etcd,
    command: &'a OperatorCommand,
    keys: &'a ResourceKeys,
    /// The resource as it was read.
    view: ResourceView,
    preconditions: Vec<Precondition>,
    changes: KeyChanges,
    /// The leases that were granted for the writes. They are revoked if nothing is written.
    leases: Vec<i64>,
}

impl<'a> CommandDraft<'a> {
    fn new(
        etcd: &'a Etcd,
        command: &'a OperatorCommand,
        keys: &'a ResourceKeys,
        view: ResourceView,
    ) -> CommandDraft<'a> {
        let (preconditions, changes, leases) = (Vec::new(), KeyChanges::new(), Vec::new());
        CommandDraft { etcd, command, keys, view, preconditions, changes, leases }
    }

    /// Drafts the command and its audit entry.
    async fn prepare(&mut self) -> Result<CommandOutcome, StoreError> {
        let outcome = self.apply().await?;
        let is_done = outcome == CommandOutcome::Done;
        let entry = StoredAuditEntry::new(self.command, self.etcd.environment.wall(), is_done);
        // Also written if the holder has changed: the audit trail shows what was attempted.
        let value = serde_json::to_string(&entry).unwrap_or_default();
        let lease = self.grant_lease(AUDIT_KEPT_FOR).await?;
        // The lease is new, so its id makes the key unique, and proves that the reply belongs to this command
        // (ADR 0033).
        let key = format!("{}{lease:x}", self.etcd.connections.config.root.audit());
        self.changes.insert(key, KeyChange::Put { value, lease });
        let pause = self.view.pause.as_ref().map_or(ABSENT, |pause| pause.modified);
        self.preconditions.push(Precondition::ModifiedAt(self.keys.pause.clone(), pause));
        let (lock_prefix, revision) = (self.keys.lock_prefix.clone(), self.view.revision);
        self.preconditions.push(Precondition::NoneModifiedAfter { lock_prefix, revision });
        Ok(outcome)
    }

    async fn commit(&mut self) -> Result<Option<i64>, StoreError> {
        let preconditions = std::mem::take(&mut self.preconditions);
        self.etcd.connections.commit(preconditions, &self.changes).await
    }

    /// Grants a lease that is revoked if nothing is written.
    async fn grant_lease(&mut self, lasting: Duration) -> Result<i64, StoreError> {
        let lease = self.etcd.lease_pool.grant(whole_seconds(lasting)).await?.id;
        self.leases.push(lease);
        Ok(lease)
    }

    /// Drafts the command itself.
    async fn apply(&mut self) -> Result<CommandOutcome, StoreError> {
        let newest = self.view.holding_claims().max_by_key(|index| self.view.contenders[*index].created);
        let target = match self.command.token {
            None => newest,
            Some(token) => {
                let has_token = |index: &usize| self.view.contenders[*index].created == token.as_i64();
                match self.view.holding_claims().find(has_token) {
                    Some(index) => Some(index),
                    None => return self.holder_changed(newest),
                }
            }
        };
        match (self.command.action, target) {
            (OperatorAction::Pause { lasting }, _) if !lasting.is_zero() => self.pause(lasting).await?,
            (OperatorAction::Pause { .. } | OperatorAction::Resume, _) => {
                self.changes.insert(self.keys.pause.clone(), KeyChange::Delete);
            }
            (OperatorAction::EvictForeign { value }, _) => {
                let is_named = |index: &usize| self.view.contenders[*index].foreign == Some(value);
                let Some(index) = self.view.foreign_holder().filter(is_named) else {
                    return self.holder_changed(newest);
                };
                // Its lease is not revoked: other keys of the same program may be attached to it.
                self.change_contender(index, KeyChange::Delete);
            }
            (OperatorAction::Resize { capacity }, _) if !self.view.contenders.is_empty() => {
                self.resize(capacity.get())?;
            }
            // Without contenders there is no stored capacity to change.
            (_, None) | (OperatorAction::Resize { .. }, _) => return self.holder_changed(newest),
            (OperatorAction::Ask { within }, Some(index)) => self.ask_to_finish(index, within),
            (OperatorAction::Evict(Eviction::AtExpiry), Some(index)) => self.evict_at_expiry(index).await?,
            (OperatorAction::Evict(Eviction::Now), Some(index)) => self.evict_now(index).await?,
            (_, Some(_)) => {
                return Err(unsupported(format!(
                    "the etcd backend does not support the command {}: upgrade this program",
                    self.command.action.as_str()
                )));
            }
        }
        Ok(CommandOutcome::Done)
    }

    fn holder_changed(&self, newest: Option<usize>) -> Result<CommandOutcome, StoreError> {
        let token = newest.map(|index| token_of(self.view.contenders[index].created)).transpose()?;
        Ok(CommandOutcome::HolderChanged { token })
    }

    async fn pause(&mut self, lasting: Duration) -> Result<(), StoreError> {
        let lease = self.grant_lease(lasting).await?;
        let value = format!("paused by {}: {}", self.command.by, self.command.why);
        self.changes.insert(self.keys.pause.clone(), KeyChange::Put { value, lease });
        // So that these waiters are not removed for a silence from before the pause.
        for (index, rewrite) in rewrite_called(&self.view) {
            self.change_contender(index, rewrite);
        }
        Ok(())
    }

    /// Writes the new capacity to all contenders, because each of them stores it.
    fn resize(&mut self, capacity: u32) -> Result<(), StoreError> {
        if self.view.has_foreign_locks() {
            return Err(unsupported(
                "cannot resize: a lock of another program is in the queue, and its capacity is always 1"
                    .to_owned(),
            ));
        }
        let count = self.view.contenders.len();
        if count > RESIZE_CONTENDERS_MAX {
            return Err(unsupported(format!(
                "cannot resize: {count} claims hold or wait, and one etcd transaction can rewrite at most \
                 {RESIZE_CONTENDERS_MAX}"
            )));
        }
        for index in 0..count {
            let contender = &self.view.contenders[index];
            let Some(mut record) = contender.record.clone() else { continue };
            record.capacity = capacity;
            let lease = contender.lease;
            self.change_contender(index, KeyChange::PutKeepingLease { value: record.to_value(), lease });
        }
        Ok(())
    }

    /// Stores a finish request in the holder's record. The holder reads it with its next renewal.
    fn ask_to_finish(&mut self, index: usize, within: Duration) {
        let Some(mut record) = self.view.contenders[index].record.clone() else { return };
        let until_us = self.etcd.environment.wall().after(within).as_micros();
        let (by, why) = (self.command.by.clone(), self.command.why.clone());
        record.finish_request = Some(StoredFinishRequest { until_us, by, why });
        let lease = self.view.contenders[index].lease;
        self.change_contender(index, KeyChange::PutKeepingLease { value: record.to_value(), lease });
    }

    /// Moves a holder to a lease that no client keeps alive, so that it ends whatever its client does.
    async fn evict_at_expiry(&mut self, index: usize) -> Result<(), StoreError> {
        let contender = self.view.contenders[index].clone();
        if contender.record.as_ref().is_some_and(|record| record.evicting) {
            // A second command must not put off the end, so it only writes its audit entry.
            self.require_unchanged(index);
            return Ok(());
        }
        let remaining = self.etcd.lease_pool.remaining(contender.lease).await?;
        let left = remaining.map_or(Duration::ZERO, |(left, _)| left);
        // etcd rounds down to whole seconds. With one more, the holder is not ended before its time.
        let lease = self.grant_lease(left + Duration::from_secs(1)).await?;
        let Some(mut record) = contender.record else { return Ok(()) };
        record.evicting = true;
        self.change_contender(index, KeyChange::Put { value: record.to_value(), lease });
        if contender.name != slot(&record.owner) && !record.kept {
            // The owner key that points to the contender must end with it.
            let pointer = KeyChange::Put { value: contender.name, lease };
            self.changes.insert(self.keys.owner(&record.owner), pointer);
        }
        Ok(())
    }

    /// Deletes a holder, and leaves a tombstone for as long as the holder may believe that it holds.
    async fn evict_now(&mut self, index: usize) -> Result<(), StoreError> {
        let contender = self.view.contenders[index].clone();
        self.change_contender(index, KeyChange::Delete);
        if let Some(record) = &contender.record {
            let left = self.etcd.remaining_of(&contender).await.unwrap_or_default();
            let lease = self.grant_lease(ReleaseRequest::tombstone_ttl(left)).await?;
            let tombstone = KeyChange::Put { value: tombstone_value(GoneReason::Evicted), lease };
            self.changes.insert(self.keys.owner(&record.owner), tombstone);
        }
        Ok(())
    }

    fn require_unchanged(&mut self, index: usize) {
        let contender = &self.view.contenders[index];
        let key = self.keys.contender(&contender.name);
        self.preconditions.push(Precondition::ModifiedAt(key, contender.modified));
    }

    /// Changes a contender, if it is still as it was read.
    fn change_contender(&mut self, index: usize, change: KeyChange) {
        self.require_unchanged(index);
        self.changes.insert(self.keys.contender(&self.view.contenders[index].name), change);
    }
}

fn unsupported(message: String) -> StoreError {
    StoreError::Refused(Error::new(ErrorKind::Unsupported, message))
}
