//! Whether two answers are the same, but for what may differ.

use std::{fmt, time::Duration};

use leasehold_core::{
    AuditRecord, Blocked, CommandOutcome, FinishRequest, HeldBy, QueueEntry, Renewal, Renewed, Snapshot,
    Verdict, admission::WINDOW,
};

use super::world::Tokens;

/// How far durations may be apart, and what they are worth.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tolerance {
    pub(super) apart: Duration,
    /// A session keeps what it holds: what remains means nothing.
    pub(super) own_ttl: bool,
    /// The store seats by itself: whoever waits in its line need not have read who holds.
    pub(super) eager: bool,
    /// By leaving, a claim has let others move, and there they hold already.
    pub(super) unsettled: bool,
}

type Same = Result<(), String>;

fn equal<T: PartialEq + fmt::Debug>(what: &str, model: &T, backend: &T) -> Same {
    if model == backend {
        Ok(())
    } else {
        Err(format!("{what}: the model says {model:?}, the backend {backend:?}"))
    }
}

impl Tolerance {
    pub(super) fn near(&self, what: &str, model: Duration, backend: Duration) -> Same {
        if !self.own_ttl || model.abs_diff(backend) <= self.apart {
            return Ok(());
        }
        Err(format!(
            "{what}: the model says {model:?}, the backend {backend:?}, at most {:?} apart",
            self.apart
        ))
    }

    /// Verdicts but for grants, whose tokens are compared where they are recorded.
    pub(super) fn verdict(
        &self,
        tokens: &Tokens,
        all: &Snapshot,
        model: &Verdict,
        backend: &Verdict,
    ) -> Same {
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

    fn blocked(&self, tokens: &Tokens, all: &Snapshot, model: &Blocked, backend: &Blocked) -> Same {
        equal("placed", &model.queued, &backend.queued)?;
        equal("paused", &model.paused, &backend.paused)?;
        if self.unsettled {
            return Ok(());
        }
        if model.ahead as usize <= WINDOW {
            equal("ahead", &model.ahead, &backend.ahead)?;
        }
        if !(self.eager && model.queued && backend.holders.len() < model.holders.len()) {
            equal("holders listed", &model.holders.len(), &backend.holders.len())?;
        }
        // Which of several that end together are listed is open; what is said of each is not.
        for (model, backend) in model.holders.iter().zip(&backend.holders) {
            self.near("remaining of the holders, soonest first", model.remaining, backend.remaining)?;
        }
        for seen in &backend.holders {
            let known = all.holders.iter().find(|known| known.holder == seen.holder);
            let known =
                known.ok_or_else(|| format!("the backend lists {}, who does not hold", seen.holder))?;
            self.held_by(tokens, known, seen)?;
        }
        // Earlier is an idle question, later is a waiter who sleeps too long.
        match (model.changes_in, backend.changes_in) {
            (Some(model), Some(backend)) if backend <= model + self.apart => Ok(()),
            (None, _) => Ok(()),
            _ if !self.own_ttl => Ok(()),
            (model, backend) => Err(format!("changes_in: the model says {model:?}, the backend {backend:?}")),
        }
    }

    fn held_by(&self, tokens: &Tokens, model: &HeldBy, backend: &HeldBy) -> Same {
        equal("holder", &model.holder, &backend.holder)?;
        equal("token", &tokens.translate(model.token), &Some(backend.token))?;
        equal("weight", &model.weight, &backend.weight)?;
        equal("note", &model.note, &backend.note)?;
        equal("turns", &model.handovers, &backend.handovers)?;
        equal("evicting", &model.evicting, &backend.evicting)?;
        equal("kept", &model.kept, &backend.kept)?;
        self.asked(model.asked.as_ref(), backend.asked.as_ref())?;
        self.near("held for", model.held_for, backend.held_for)?;
        self.near("remaining of a holder", model.remaining, backend.remaining)
    }

    fn asked(&self, model: Option<&FinishRequest>, backend: Option<&FinishRequest>) -> Same {
        match (model, backend) {
            (Some(model), Some(backend)) => {
                equal("asked by", &model.by, &backend.by)?;
                equal("asked why", &model.why, &backend.why)?;
                self.near("asked within", model.within, backend.within)
            }
            _ => equal("asked", &model, &backend),
        }
    }

    pub(super) fn renewal(&self, tokens: &Tokens, model: &Renewal, backend: &Renewal) -> Same {
        match (model, backend) {
            (Renewal::Renewed(model), Renewal::Renewed(backend)) => self.kept(tokens, model, backend),
            (Renewal::Queued { remaining: model }, Renewal::Queued { remaining: backend }) => {
                self.near("remaining of a place", *model, *backend)
            }
            (Renewal::Gone { why: model }, Renewal::Gone { why: backend }) => {
                equal("why it is gone", model, backend)
            }
            _ => Err(format!("the model says {model:?},\n   the backend {backend:?}")),
        }
    }

    fn kept(&self, tokens: &Tokens, model: &Renewed, backend: &Renewed) -> Same {
        equal("token", &tokens.translate(model.token), &Some(backend.token))?;
        equal("evicting", &model.evicting, &backend.evicting)?;
        self.asked(model.asked.as_ref(), backend.asked.as_ref())?;
        self.near("remaining", model.remaining, backend.remaining)
    }

    pub(super) fn snapshot(&self, tokens: &Tokens, model: &Snapshot, backend: &Snapshot) -> Same {
        equal("resource", &model.resource, &backend.resource)?;
        equal("holder_count", &model.holder_count, &backend.holder_count)?;
        equal("queue_length", &model.queue_length, &backend.queue_length)?;
        if model.holder_count > 0 || model.queue_length > 0 {
            equal("capacity", &model.capacity, &backend.capacity)?;
        }
        equal("holders listed", &model.holders.len(), &backend.holders.len())?;
        // By token, which is not the same order in both: whoever shares may have got its token when it came to wait.
        let mut holders: Vec<_> = model.holders.iter().collect();
        holders.sort_by_key(|held| tokens.translate(held.token));
        for (model, backend) in holders.into_iter().zip(&backend.holders) {
            self.held_by(tokens, model, backend)?;
        }
        equal("places listed", &model.queue.len(), &backend.queue.len())?;
        for (model, backend) in model.queue.iter().zip(&backend.queue) {
            self.place(model, backend)?;
        }
        if backend.last_token.is_some() {
            equal("last token", &tokens.newest, &backend.last_token)?;
        }
        match (model.paused_for, backend.paused_for) {
            (Some(model), Some(backend)) => self.near("paused for", model, backend),
            (model, backend) => equal("paused", &model, &backend),
        }
    }

    fn place(&self, model: &QueueEntry, backend: &QueueEntry) -> Same {
        equal("who waits", &model.holder, &backend.holder)?;
        equal("weight of a place", &model.weight, &backend.weight)?;
        self.near("waited", model.waited, backend.waited)?;
        self.near("remaining of a place", model.remaining, backend.remaining)
    }
}

pub(super) fn ordered(tokens: &Tokens, model: CommandOutcome, backend: CommandOutcome) -> Same {
    let model = match model {
        CommandOutcome::HolderChanged { token } => {
            CommandOutcome::HolderChanged { token: token.and_then(|token| tokens.translate(token)) }
        }
        CommandOutcome::Done => CommandOutcome::Done,
    };
    equal("ordered", &model, &backend)
}

pub(super) fn record(model: &AuditRecord, backend: &AuditRecord) -> Same {
    equal("audited resource", &model.resource, &backend.resource)?;
    equal("audited command", &model.command, &backend.command)?;
    equal("audited token", &model.token, &backend.token)?;
    equal("audited by", &model.by, &backend.by)?;
    equal("audited why", &model.why, &backend.why)?;
    equal("audited as done", &model.done, &backend.done)
}
