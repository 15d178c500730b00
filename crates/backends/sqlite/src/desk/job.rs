//! Work in the queue.

use leasehold_core::Result;
use tokio::sync::oneshot;

use super::abandoned;
use crate::ledger::{Ledger, Step};

/// A verb, as the ledger does it.
pub(crate) trait Work: Send + 'static {
    /// Its answer.
    type Reply: Send;
    /// Whether it takes longer than an async runtime should be kept from its other tasks.
    fn is_long(&self) -> bool {
        false
    }
    /// Does it. May be called again if the transaction that it was in came to nothing.
    fn run(&self, ledger: &mut Ledger<'_>) -> Step<Self::Reply>;
}

/// Work in the queue, whatever its answer.
pub(super) trait Job: Send {
    fn run(&mut self, ledger: &mut Ledger<'_>) -> Step<()>;
    fn is_long(&self) -> bool;
    /// Whether nobody waits for the answer any more.
    fn is_forsaken(&self) -> bool;
    fn answer(self: Box<Self>, outcome: Result<()>);
}

pub(super) struct Queued<W: Work> {
    work: W,
    reply: Option<W::Reply>,
    sender: oneshot::Sender<Result<W::Reply>>,
}

impl<W: Work> Queued<W> {
    pub(super) fn new(work: W, sender: oneshot::Sender<Result<W::Reply>>) -> Queued<W> {
        Queued { work, reply: None, sender }
    }
}

impl<W: Work> Job for Queued<W> {
    fn run(&mut self, ledger: &mut Ledger<'_>) -> Step<()> {
        self.reply = Some(self.work.run(ledger)?);
        Ok(())
    }

    fn is_long(&self) -> bool {
        self.work.is_long()
    }

    fn is_forsaken(&self) -> bool {
        self.sender.is_closed()
    }

    fn answer(self: Box<Self>, outcome: Result<()>) {
        let Queued { reply, sender, .. } = *self;
        // Whoever asked may have gone meanwhile.
        let _ = sender.send(outcome.and_then(|()| reply.ok_or_else(abandoned)));
    }
}

/// A job that was done, or not.
pub(super) struct Done {
    job: Box<dyn Job>,
    outcome: Result<()>,
}

impl Done {
    pub(super) fn new(job: Box<dyn Job>, outcome: Result<()>) -> Done {
        Done { job, outcome }
    }

    pub(super) fn answer(self) {
        self.job.answer(self.outcome);
    }

    pub(super) fn all(jobs: Vec<Box<dyn Job>>, outcome: &Result<()>) {
        jobs.into_iter().for_each(|job| job.answer(outcome.clone()));
    }
}
