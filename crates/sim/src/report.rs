//! What a run found, and the sum of many.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Mutex, PoisonError},
    time::Duration,
};

/// Something that must never happen, and did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Who noticed.
    pub checker: &'static str,
    /// What.
    pub message: String,
    /// After how much virtual time.
    pub at: Duration,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {:.3} s: {}", self.checker, self.at.as_secs_f64(), self.message)
    }
}

/// What one run did.
#[derive(Clone, Debug)]
pub struct Report {
    /// Its seed.
    pub seed: u64,
    /// Of everything that happened: two runs of a seed have the same.
    pub hash: u64,
    /// Virtual time.
    pub simulated: Duration,
    /// Polls of tasks.
    pub polls: u64,
    /// What was counted: grants, losses, faults by type.
    pub counts: BTreeMap<&'static str, u64>,
    /// The first thing that went wrong.
    pub violation: Option<Violation>,
}

/// Counts by name.
#[derive(Debug, Default)]
pub(crate) struct Tally(Mutex<BTreeMap<&'static str, u64>>);

impl Tally {
    pub(crate) fn count(&self, what: &'static str) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(what).or_default() += 1;
    }

    pub(crate) fn take(&self) -> BTreeMap<&'static str, u64> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The sum of many runs.
#[derive(Debug, Default)]
pub struct Summary {
    /// How many.
    pub seeds: u64,
    /// Virtual time, of all.
    pub simulated: Duration,
    /// Polls of tasks.
    pub polls: u64,
    /// Everything that was counted.
    pub counts: BTreeMap<&'static str, u64>,
    /// Seeds that found something, and what.
    pub violations: Vec<(u64, Violation)>,
}

impl Summary {
    /// One more run.
    pub fn add(&mut self, report: Report) {
        self.seeds += 1;
        self.simulated += report.simulated;
        self.polls += report.polls;
        for (what, count) in report.counts {
            *self.counts.entry(what).or_default() += count;
        }
        self.violations.extend(report.violation.map(|violation| (report.seed, violation)));
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hours = self.simulated.as_secs_f64() / 3600.0;
        writeln!(f, "seeds            {:>12}", self.seeds)?;
        writeln!(f, "simulated hours  {hours:>12.1}")?;
        writeln!(f, "polls            {:>12}", self.polls)?;
        for (what, count) in &self.counts {
            writeln!(f, "{what:<28} {count:>12}")?;
        }
        write!(f, "violations       {:>12}", self.violations.len())
    }
}
