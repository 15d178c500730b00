//! Writes in the queue of the writer.

use leasehold_core::Result;
use tokio::sync::oneshot;

use super::writer_stopped;
use crate::tables::{StoreResult, Tables};

/// A verb that writes: what it does in a transaction.
pub(crate) trait WriteVerb: Send + 'static {
    /// The reply to the caller.
    type Reply: Send;

    /// Whether it would keep an async runtime from its other tasks for too long.
    fn is_long(&self) -> bool {
        false
    }

    /// Does the work. It is called again if the transaction was rolled back.
    fn run(&self, tables: &mut Tables<'_>) -> StoreResult<Self::Reply>;
}

/// A [`WriteVerb`] in the queue, whatever its reply is.
pub(super) trait QueuedWrite: Send {
    fn run(&mut self, tables: &mut Tables<'_>) -> StoreResult<()>;
    fn is_long(&self) -> bool;
    /// Whether the caller was dropped, so that nobody needs the reply.
    fn is_abandoned(&self) -> bool;
    /// Sends the reply to the caller.
    fn reply(self: Box<Self>, outcome: Result<()>);
}

/// A verb, and the channel to its caller.
pub(super) struct PendingWrite<V: WriteVerb> {
    verb: V,
    reply: Option<V::Reply>,
    sender: oneshot::Sender<Result<V::Reply>>,
}

impl<V: WriteVerb> PendingWrite<V> {
    pub(super) fn new(verb: V, sender: oneshot::Sender<Result<V::Reply>>) -> PendingWrite<V> {
        PendingWrite { verb, reply: None, sender }
    }
}

impl<V: WriteVerb> QueuedWrite for PendingWrite<V> {
    fn run(&mut self, tables: &mut Tables<'_>) -> StoreResult<()> {
        self.reply = Some(self.verb.run(tables)?);
        Ok(())
    }

    fn is_long(&self) -> bool {
        self.verb.is_long()
    }

    fn is_abandoned(&self) -> bool {
        self.sender.is_closed()
    }

    fn reply(self: Box<Self>, outcome: Result<()>) {
        let PendingWrite { reply, sender, .. } = *self;
        // Sending fails if the caller was dropped meanwhile.
        let _ = sender.send(outcome.and_then(|()| reply.ok_or_else(writer_stopped)));
    }
}

/// A write whose transaction has ended, one way or the other.
pub(super) struct FinishedWrite {
    write: Box<dyn QueuedWrite>,
    outcome: Result<()>,
}

impl FinishedWrite {
    pub(super) fn new(write: Box<dyn QueuedWrite>, outcome: Result<()>) -> FinishedWrite {
        FinishedWrite { write, outcome }
    }

    pub(super) fn reply(self) {
        self.write.reply(self.outcome);
    }
}

/// Sends the same outcome to all callers of a transaction.
pub(super) fn reply_all(writes: Vec<Box<dyn QueuedWrite>>, outcome: &Result<()>) {
    writes.into_iter().for_each(|write| write.reply(outcome.clone()));
}
