//! What was asked and answered, when; and whether any backend that keeps its contract could have done so.
//!
//! [`Recorded`] notes every call that goes through it in a [`Journal`], which several wrappers may share: one for
//! each client of a test. [`History::check`] is pure: it looks for what *cannot* have happened, and knows that a
//! call without an answer, or with one whose effect is unknown, may have been executed at any time after it began,
//! or never.

mod check;
mod facts;
mod line;
#[cfg(test)]
mod tests;

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use leasehold_core::{Backend, Clock, Timestamp};

pub use check::{Rule, Violation};

use crate::verbs::{Answer, Ask, relay};

/// When something was noted: the moment, and the order in which it was, because a manual clock stands still.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp {
    /// The moment.
    pub at: Timestamp,
    /// Counts what was noted.
    pub order: u64,
}

impl Stamp {
    /// This much later, before whatever is noted at that moment.
    fn after(self, by: Duration) -> Stamp {
        Stamp { at: self.at.after(by), order: 0 }
    }

    fn before(self, by: Duration) -> Stamp {
        Stamp { at: self.at.before(by), order: 0 }
    }
}

/// One call.
#[derive(Clone, Debug)]
pub struct Call {
    /// When it was made.
    pub began: Stamp,
    /// What was asked.
    pub ask: Ask,
    /// What was answered, and when. None if the caller left first, or still waits.
    pub answer: Option<(Stamp, Answer)>,
}

/// Calls in the order in which they began.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The calls.
    pub calls: Vec<Call>,
}

/// Where calls are noted. Clones share it.
#[derive(Clone)]
pub struct Journal {
    clock: Arc<dyn Clock>,
    noted: Arc<Mutex<Noted>>,
}

#[derive(Default)]
struct Noted {
    calls: Vec<Call>,
    count: u64,
}

impl Noted {
    fn stamp(&mut self, clock: &dyn Clock) -> Stamp {
        self.count += 1;
        Stamp { at: clock.now(), order: self.count }
    }
}

impl Journal {
    /// An empty one, by this clock.
    pub fn new(clock: Arc<dyn Clock>) -> Journal {
        Journal { clock, noted: Arc::default() }
    }

    /// What was noted so far.
    pub fn history(&self) -> History {
        History { calls: self.noted().calls.clone() }
    }

    fn noted(&self) -> MutexGuard<'_, Noted> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, ask: &Ask) -> usize {
        let mut noted = self.noted();
        let began = noted.stamp(&*self.clock);
        noted.calls.push(Call { began, ask: ask.clone(), answer: None });
        noted.calls.len() - 1
    }

    fn end(&self, number: usize, answer: &Answer) {
        let mut noted = self.noted();
        let ended = noted.stamp(&*self.clock);
        noted.calls[number].answer = Some((ended, answer.clone()));
    }
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Journal({} calls)", self.noted().calls.len())
    }
}

/// A backend whose calls are noted.
#[derive(Debug)]
pub struct Recorded {
    inner: Arc<dyn Backend>,
    journal: Journal,
}

impl Recorded {
    /// Notes what goes to `inner`.
    pub fn new(inner: Arc<dyn Backend>, journal: &Journal) -> Recorded {
        Recorded { inner, journal: journal.clone() }
    }

    async fn relay(&self, ask: Ask) -> Answer {
        let number = self.journal.begin(&ask);
        let answer = ask.of(&*self.inner).await;
        self.journal.end(number, &answer);
        answer
    }
}

relay!(Recorded);
