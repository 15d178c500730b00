//! A record of all calls of a test, and a check whether a backend that keeps its contract can have produced
//! it.
//!
//! [`Recorded`] wraps a backend and writes every call to a [`Journal`]. Several wrappers, one for each client
//! of a test, may share a journal. [`History::check`] is a pure function:
//!
//! 1. It sorts the calls by resource and reads from them what is certain (`facts.rs`): which grant was
//!    certainly alive during which time, and which calls may have ended it. A call without a reply, or with
//!    an unknown effect, may have been executed at any time after it began, or never.
//! 2. It reads which claims were certainly in the queue during which time (`queue.rs`).
//! 3. It applies the rules (`check.rs`). Each rule looks for what *cannot* have happened.

mod check;
mod facts;
mod queue;
#[cfg(test)]
mod tests;

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use leasehold_core::{Backend, Clock, Timestamp};

pub use check::{Rule, Violation};

use crate::verbs::{VerbReply, VerbRequest, relay};

/// When an event was recorded. The order number separates events at the same time, because a manual clock
/// stands still.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp {
    /// The time.
    pub at: Timestamp,
    /// The number of the event.
    pub order: u64,
}

impl Stamp {
    /// This much later, and before every event that is recorded at that time.
    fn after(self, by: Duration) -> Stamp {
        Stamp { at: self.at.after(by), order: 0 }
    }

    fn before(self, by: Duration) -> Stamp {
        Stamp { at: self.at.before(by), order: 0 }
    }
}

/// One recorded call.
#[derive(Clone, Debug)]
pub struct Call {
    /// When the call began.
    pub began: Stamp,
    /// The request.
    pub request: VerbRequest,
    /// The reply and its time. None if the caller dropped the call, or still waits.
    pub reply: Option<(Stamp, VerbReply)>,
}

/// All calls, in the order in which they began.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The calls.
    pub calls: Vec<Call>,
}

/// Records calls. Clones write to the same journal.
#[derive(Clone)]
pub struct Journal {
    clock: Arc<dyn Clock>,
    entries: Arc<Mutex<JournalEntries>>,
}

#[derive(Default)]
struct JournalEntries {
    calls: Vec<Call>,
    count: u64,
}

impl JournalEntries {
    fn stamp(&mut self, clock: &dyn Clock) -> Stamp {
        self.count += 1;
        Stamp { at: clock.now(), order: self.count }
    }
}

impl Journal {
    /// An empty journal that uses this clock.
    pub fn new(clock: Arc<dyn Clock>) -> Journal {
        Journal { clock, entries: Arc::default() }
    }

    /// The calls so far.
    pub fn history(&self) -> History {
        History { calls: self.entries().calls.clone() }
    }

    fn entries(&self) -> MutexGuard<'_, JournalEntries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, request: &VerbRequest) -> usize {
        let mut entries = self.entries();
        let began = entries.stamp(&*self.clock);
        entries.calls.push(Call { began, request: request.clone(), reply: None });
        entries.calls.len() - 1
    }

    fn end(&self, number: usize, reply: &VerbReply) {
        let mut entries = self.entries();
        let ended = entries.stamp(&*self.clock);
        entries.calls[number].reply = Some((ended, reply.clone()));
    }
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Journal({} calls)", self.entries().calls.len())
    }
}

/// A backend wrapper that records every call.
#[derive(Debug)]
pub struct Recorded {
    inner: Arc<dyn Backend>,
    journal: Journal,
}

impl Recorded {
    /// Wraps `inner` and records its calls in `journal`.
    pub fn new(inner: Arc<dyn Backend>, journal: &Journal) -> Recorded {
        Recorded { inner, journal: journal.clone() }
    }

    async fn relay(&self, request: VerbRequest) -> VerbReply {
        let number = self.journal.begin(&request);
        let reply = request.send_to(&*self.inner).await;
        self.journal.end(number, &reply);
        reply
    }
}

relay!(Recorded);
