//! The verb `order`: the operator's word, and its record in the audit trail, in one step.

use std::time::Duration;

use leasehold_core::{
    CommandOutcome, Error, ErrorKind, Eviction, FencingToken, GoneReason, OperatorAction, OperatorCommand,
    ReleaseRequest, WallTime,
};
use serde::{Deserialize, Serialize};

use crate::{
    acquire::token,
    backend::Etcd,
    entry::Wish,
    error::Fault,
    keys::Keys,
    line::Line,
    pool::whole_seconds,
    read::grave,
    txn::{Change, Changes, Guard},
};

const ATTEMPTS: u32 = 40;
/// How long a record stays.
const AUDIT: Duration = Duration::from_secs(90 * 86_400);
/// How many contenders a resize rewrites at the most: etcd takes 128 operations in one transaction.
const RESIZED_MAX: usize = 100;

/// A record of the audit trail.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Recorded {
    pub(crate) at_us: u64,
    pub(crate) resource: String,
    pub(crate) command: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) token: Option<u64>,
    pub(crate) by: String,
    pub(crate) why: String,
    pub(crate) done: bool,
}

impl Recorded {
    fn of(order: &OperatorCommand, at: WallTime, done: bool) -> Recorded {
        Recorded {
            at_us: at.as_micros(),
            resource: order.resource.key().to_owned(),
            command: order.action.as_str().to_owned(),
            token: order.token.map(FencingToken::get),
            by: order.by.clone(),
            why: order.why.clone(),
            done,
        }
    }
}

impl Etcd {
    pub(crate) async fn try_order(&self, order: &OperatorCommand) -> Result<CommandOutcome, Fault> {
        let keys = self.link.config.root.of(&order.resource);
        for attempt in 0..ATTEMPTS {
            let mut draft = Draft::default();
            let outcome = match self.prepare(order, &keys, &mut draft).await {
                Err(fault) => Err(fault),
                Ok(ordered) => {
                    match self.link.commit(std::mem::take(&mut draft.guards), &draft.changes).await {
                        Ok(written) => Ok(written.map(|_| ordered)),
                        // It may be written, and then its leases are in use.
                        Err(fault) if !fault.has_no_effect() => return Err(fault),
                        Err(fault) => Err(fault),
                    }
                }
            };
            if let Ok(Some(ordered)) = outcome {
                return Ok(ordered);
            }
            draft.leases.into_iter().for_each(|unused| self.pool.revoke_unused(unused));
            outcome?;
            self.step_aside(attempt).await;
        }
        let message = "the line changes faster than the order can be carried out";
        Err(Fault::Refused(Error::new(ErrorKind::Unavailable, message)))
    }

    /// All that is to be written: the order, and its record.
    async fn prepare(
        &self,
        order: &OperatorCommand,
        keys: &Keys,
        draft: &mut Draft,
    ) -> Result<CommandOutcome, Fault> {
        let line = self.link.read(keys, &[], 0).await?.line;
        let ordered = self.draft(order, keys, &line, draft).await?;
        let recorded = Recorded::of(order, self.environment.wall(), ordered == CommandOutcome::Done);
        let value = serde_json::to_string(&recorded).unwrap_or_default();
        let lease = self.grant_for(draft, AUDIT).await?;
        let key = format!("{}{lease:x}", self.link.config.root.audit());
        draft.changes.insert(key, Change::Put { value, lease });
        let pause = line.pause.map_or(0, |pause| pause.modified);
        draft.guards.push(Guard::Modified(keys.pause.clone(), pause));
        draft.guards.push(Guard::NothingSince { lock: keys.lock.clone(), revision: line.revision });
        Ok(ordered)
    }

    /// A lease that goes again if the draft comes to nothing.
    async fn grant_for(&self, draft: &mut Draft, lasting: Duration) -> Result<i64, Fault> {
        let lease = self.pool.grant(whole_seconds(lasting)).await?.id;
        draft.leases.push(lease);
        Ok(lease)
    }

    async fn draft(
        &self,
        order: &OperatorCommand,
        keys: &Keys,
        line: &Line,
        draft: &mut Draft,
    ) -> Result<CommandOutcome, Fault> {
        let newest = line.holders().max_by_key(|index| line.contenders[*index].created);
        let meant = match order.token {
            None => newest,
            Some(token) => {
                let is = |index: &usize| line.contenders[*index].created == token.as_i64();
                match line.holders().find(is) {
                    Some(index) => Some(index),
                    None => return not_that_one(line, newest),
                }
            }
        };
        match (order.action, meant) {
            (OperatorAction::Pause { lasting }, _) if !lasting.is_zero() => {
                let lease = self.grant_for(draft, lasting).await?;
                let value = format!("paused by {}: {}", order.by, order.why);
                draft.changes.insert(keys.pause.clone(), Change::Put { value, lease });
            }
            (OperatorAction::Pause { .. } | OperatorAction::Resume, _) => {
                draft.changes.insert(keys.pause.clone(), Change::Delete);
            }
            (OperatorAction::Resize { capacity }, _) if !line.contenders.is_empty() => {
                draft.resize(keys, line, capacity.get())?;
            }
            (_, None) | (OperatorAction::Resize { .. }, _) => return not_that_one(line, newest),
            (OperatorAction::Ask { within }, Some(index)) => {
                self.draft_ask(order, keys, line, (index, within), draft)?;
            }
            (OperatorAction::Evict(Eviction::AtExpiry), Some(index)) => {
                self.draft_eviction(keys, line, index, draft).await?;
            }
            (OperatorAction::Evict(Eviction::Now), Some(index)) => {
                let contender = &line.contenders[index];
                draft.guard(keys, line, index);
                draft.changes.insert(keys.contender(&contender.name), Change::Delete);
                // Its lease is not ours to revoke: a stranger's may hold more than this.
                if let Some(entry) = &contender.entry {
                    let left = self.left_of(contender).await.unwrap_or_default();
                    let lease = self.grant_for(draft, ReleaseRequest::tombstone_ttl(left)).await?;
                    let change = Change::Put { value: grave(GoneReason::Evicted), lease };
                    draft.changes.insert(keys.own(&entry.owner), change);
                }
            }
            (_, Some(_)) => {
                let message = format!("etcd does not know the order {}", order.action.as_str());
                return Err(Fault::Refused(Error::new(ErrorKind::Unsupported, message)));
            }
        }
        Ok(CommandOutcome::Done)
    }

    fn draft_ask(
        &self,
        order: &OperatorCommand,
        keys: &Keys,
        line: &Line,
        (index, within): (usize, Duration),
        draft: &mut Draft,
    ) -> Result<(), Fault> {
        let Some(mut entry) = line.contenders[index].entry.clone() else {
            let message = "a lock of another program holds it, which nobody can ask: evict it, or wait";
            return Err(Fault::Refused(Error::new(ErrorKind::Unsupported, message)));
        };
        let until_us = self.environment.wall().after(within).as_micros();
        entry.asked = Some(Wish { until_us, by: order.by.clone(), why: order.why.clone() });
        draft.guard(keys, line, index);
        let key = keys.contender(&line.contenders[index].name);
        draft.changes.insert(key, Change::Rewrite { value: entry.write() });
        Ok(())
    }

    /// Moves a holder to a lease that nobody keeps alive: whatever its client does, it runs out.
    async fn draft_eviction(
        &self,
        keys: &Keys,
        line: &Line,
        index: usize,
        draft: &mut Draft,
    ) -> Result<(), Fault> {
        let contender = &line.contenders[index];
        if contender.entry.as_ref().is_some_and(|entry| entry.evicting) {
            draft.guard(keys, line, index);
            return Ok(());
        }
        let left = self.pool.left(contender.lease).await?.map_or(Duration::ZERO, |(left, _)| left);
        // What is left is told in whole seconds, rounded down: one more, so that it is not ended early.
        let lease = self.grant_for(draft, left + Duration::from_secs(1)).await?;
        draft.guard(keys, line, index);
        let key = keys.contender(&contender.name);
        match contender.entry.clone() {
            Some(mut entry) => {
                entry.evicting = true;
                draft.changes.insert(key, Change::Put { value: entry.write(), lease });
                if contender.name != entry.owner && !entry.kept {
                    let own = Change::Put { value: contender.name.clone(), lease };
                    draft.changes.insert(keys.own(&entry.owner), own);
                }
            }
            None => drop(draft.changes.insert(key, Change::Put { value: contender.text.clone(), lease })),
        }
        Ok(())
    }
}

#[derive(Default)]
struct Draft {
    guards: Vec<Guard>,
    changes: Changes,
    /// What was granted for it.
    leases: Vec<i64>,
}

impl Draft {
    fn guard(&mut self, keys: &Keys, line: &Line, index: usize) {
        let contender = &line.contenders[index];
        self.guards.push(Guard::Modified(keys.contender(&contender.name), contender.modified));
    }

    /// Every contender says the capacity: all are rewritten.
    fn resize(&mut self, keys: &Keys, line: &Line, capacity: u32) -> Result<(), Fault> {
        let refuse = |message: String| Err(Fault::Refused(Error::new(ErrorKind::Unsupported, message)));
        if line.has_strangers() {
            return refuse("a lock of another program is there, which is always a whole of one".to_owned());
        }
        if line.contenders.len() > RESIZED_MAX {
            return refuse(format!(
                "more than {RESIZED_MAX} hold it or wait: etcd cannot resize them in one step"
            ));
        }
        for (index, contender) in line.contenders.iter().enumerate() {
            let Some(mut entry) = contender.entry.clone() else { continue };
            entry.capacity = capacity;
            self.guard(keys, line, index);
            self.changes.insert(keys.contender(&contender.name), Change::Rewrite { value: entry.write() });
        }
        Ok(())
    }
}

fn not_that_one(line: &Line, newest: Option<usize>) -> Result<CommandOutcome, Fault> {
    let token = newest.map(|index| token(line.contenders[index].created)).transpose()?;
    Ok(CommandOutcome::HolderChanged { token })
}
