//! Compares the replies of the model and of the backend.

use std::{fmt, time::Duration};

use leasehold_core::{
    AuditRecord, Blocked, CommandOutcome, FinishRequest, HeldBy, QueueEntry, Renewal, Renewed, Snapshot,
    Verdict, admission::WINDOW,
};

use super::model_state::TokenMap;

/// How to compare two replies, and which differences are allowed.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReplyComparison {
    /// How far two durations may be apart.
    pub(super) tolerance: Duration,
    /// False if a session keeps grants alive: then durations are not compared.
    pub(super) own_ttl: bool,
    /// The store grants by itself: a queued claim need not know all holders.
    pub(super) self_granting: bool,
    /// The store has granted other claims in the same step, but the model has not yet.
    pub(super) unsettled: bool,
}

type ComparisonResult = Result<(), String>;

fn equal<T: PartialEq + fmt::Debug>(what: &str, model: &T, backend: &T) -> ComparisonResult {
    if model == backend {
        Ok(())
    } else {
        Err(format!("{what}: the model says {model:?}, the backend {backend:?}"))
    }
}

impl ReplyComparison {
    pub(super) fn near(&self, what: &str, model: Duration, backend: Duration) -> ComparisonResult {
        if !self.own_ttl || model.abs_diff(backend) <= self.tolerance {
            return Ok(());
        }
        Err(format!(
            "{what}: the model says {model:?}, the backend {backend:?}, at most {:?} apart",
            self.tolerance
        ))
    }

    /// Compares verdicts. The token of a grant is compared by [`TokenMap::granted`] instead.
    pub(super) fn verdict(
        &self,
        tokens: &TokenMap,
        all: &Snapshot,
        model: &Verdict,
        backend: &Verdict,
    ) -> ComparisonResult {
        match (model, backend) {
            (Verdict::Granted(model), Verdict::Granted(backend)) => {
                self.near("remaining", model.remaining, backend.remaining)
            }
            (Verdict::Blocked(model), Verdict::Blocked(backend)) => self.blocked(tokens, all, model, backend),
            (Verdict::Cancelled, Verdict::Cancelled) => Ok(()),
            (Verdict::Mismatch { capacity: model }, Verdict::Mismatch { capacity: backend }) => {
                equal("capacity", model, backend)
            }
            _ => Err(format!("the model says {model:?},\n   the backend {backend:?}")),
        }
    }

    fn blocked(
        &self,
        tokens: &TokenMap,
        all: &Snapshot,
        model: &Blocked,
        backend: &Blocked,
    ) -> ComparisonResult {
        equal("queued", &model.queued, &backend.queued)?;
        equal("paused", &model.paused, &backend.paused)?;
        if self.unsettled {
            return Ok(());
        }
        if model.ahead as usize <= WINDOW {
            equal("ahead", &model.ahead, &backend.ahead)?;
        }
        if !(self.self_granting && model.queued && backend.holders.len() < model.holders.len()) {
            equal("holders listed", &model.holders.len(), &backend.holders.len())?;
        }
        // If several holders expire at the same time, the backend may list any of them, but with correct
        // details.
        for (model, backend) in model.holders.iter().zip(&backend.holders) {
            self.near("remaining of the holders, soonest first", model.remaining, backend.remaining)?;
        }
        for seen in &backend.holders {
            let known = all.holders.iter().find(|known| known.holder == seen.holder);
            let known =
                known.ok_or_else(|| format!("the backend lists {}, which does not hold", seen.holder))?;
            self.held_by(tokens, known, seen)?;
        }
        // Too early costs one call without need. Too late is an error: the waiter would sleep too long.
        match (model.changes_in, backend.changes_in) {
            (Some(model), Some(backend)) if backend <= model + self.tolerance => Ok(()),
            (None, _) => Ok(()),
            _ if !self.own_ttl => Ok(()),
            (model, backend) => Err(format!("changes_in: the model says {model:?}, the backend {backend:?}")),
        }
    }

    fn held_by(&self, tokens: &TokenMap, model: &HeldBy, backend: &HeldBy) -> ComparisonResult {
        equal("holder", &model.holder, &backend.holder)?;
        equal("token", &tokens.backend_token(model.token), &Some(backend.token))?;
        equal("weight", &model.weight, &backend.weight)?;
        equal("note", &model.note, &backend.note)?;
        equal("handovers", &model.handovers, &backend.handovers)?;
        equal("evicting", &model.evicting, &backend.evicting)?;
        equal("kept", &model.kept, &backend.kept)?;
        self.asked(model.asked.as_ref(), backend.asked.as_ref())?;
        self.near("held for", model.held_for, backend.held_for)?;
        self.near("remaining of a holder", model.remaining, backend.remaining)
    }

    fn asked(&self, model: Option<&FinishRequest>, backend: Option<&FinishRequest>) -> ComparisonResult {
        match (model, backend) {
            (Some(model), Some(backend)) => {
                equal("asked by", &model.by, &backend.by)?;
                equal("asked why", &model.why, &backend.why)?;
                self.near("asked within", model.within, backend.within)
            }
            _ => equal("asked", &model, &backend),
        }
    }

    pub(super) fn renewal(&self, tokens: &TokenMap, model: &Renewal, backend: &Renewal) -> ComparisonResult {
        match (model, backend) {
            (Renewal::Renewed(model), Renewal::Renewed(backend)) => self.renewed(tokens, model, backend),
            (Renewal::Queued { remaining: model }, Renewal::Queued { remaining: backend }) => {
                self.near("remaining of a place", *model, *backend)
            }
            (Renewal::Gone { why: model }, Renewal::Gone { why: backend }) => {
                equal("the reason why it is gone", model, backend)
            }
            _ => Err(format!("the model says {model:?},\n   the backend {backend:?}")),
        }
    }

    fn renewed(&self, tokens: &TokenMap, model: &Renewed, backend: &Renewed) -> ComparisonResult {
        equal("token", &tokens.backend_token(model.token), &Some(backend.token))?;
        equal("evicting", &model.evicting, &backend.evicting)?;
        self.asked(model.asked.as_ref(), backend.asked.as_ref())?;
        self.near("remaining", model.remaining, backend.remaining)
    }

    pub(super) fn snapshot(
        &self,
        tokens: &TokenMap,
        model: &Snapshot,
        backend: &Snapshot,
    ) -> ComparisonResult {
        equal("resource", &model.resource, &backend.resource)?;
        equal("holder_count", &model.holder_count, &backend.holder_count)?;
        equal("queue_length", &model.queue_length, &backend.queue_length)?;
        if model.holder_count > 0 || model.queue_length > 0 {
            equal("capacity", &model.capacity, &backend.capacity)?;
        }
        equal("holders listed", &model.holders.len(), &backend.holders.len())?;
        // The order by token differs between the two: a backend may mint the token of a shared claim when it
        // queues.
        let mut holders: Vec<_> = model.holders.iter().collect();
        holders.sort_by_key(|held| tokens.backend_token(held.token));
        for (model, backend) in holders.into_iter().zip(&backend.holders) {
            self.held_by(tokens, model, backend)?;
        }
        equal("waiters listed", &model.queue.len(), &backend.queue.len())?;
        for (model, backend) in model.queue.iter().zip(&backend.queue) {
            self.waiter(model, backend)?;
        }
        if backend.last_token.is_some() {
            equal("last token", &tokens.newest, &backend.last_token)?;
        }
        match (model.paused_for, backend.paused_for) {
            (Some(model), Some(backend)) => self.near("paused for", model, backend),
            (model, backend) => equal("paused", &model, &backend),
        }
    }

    fn waiter(&self, model: &QueueEntry, backend: &QueueEntry) -> ComparisonResult {
        equal("waiter", &model.holder, &backend.holder)?;
        equal("weight of a waiter", &model.weight, &backend.weight)?;
        equal("silent", &model.silent, &backend.silent)?;
        self.near("waited", model.waited, backend.waited)?;
        self.near("remaining of a place", model.remaining, backend.remaining)
    }
}

pub(super) fn command_outcome(
    tokens: &TokenMap,
    model: CommandOutcome,
    backend: CommandOutcome,
) -> ComparisonResult {
    let model = match model {
        CommandOutcome::HolderChanged { token } => {
            CommandOutcome::HolderChanged { token: token.and_then(|token| tokens.backend_token(token)) }
        }
        CommandOutcome::Done => CommandOutcome::Done,
    };
    equal("outcome of the order", &model, &backend)
}

pub(super) fn record(model: &AuditRecord, backend: &AuditRecord) -> ComparisonResult {
    equal("audited resource", &model.resource, &backend.resource)?;
    equal("audited command", &model.command, &backend.command)?;
    equal("audited token", &model.token, &backend.token)?;
    equal("audited by", &model.by, &backend.by)?;
    equal("audited why", &model.why, &backend.why)?;
    equal("audited as done", &model.done, &backend.done)
}
