//! Bugs on purpose: a checker that finds none of them proves nothing.

use std::ops::RangeInclusive;

pub use leasehold::planted::Bug;
use leasehold::planted::plant;

use crate::{quorum::run_quorum_seed, report::Violation, run::run_seed};

/// A planted bug that was found.
#[derive(Clone, Debug)]
pub struct Found {
    /// The first seed that shows it.
    pub seed: u64,
    /// What was noticed.
    pub violation: Violation,
}

/// Plants the bug and looks for it with these seeds.
pub fn find(bug: Bug, mut seeds: RangeInclusive<u64>) -> Option<Found> {
    plant(Some(bug));
    let found = seeds.find_map(|seed| {
        let report = if bug.is_of_quorum() { run_quorum_seed(seed, false) } else { run_seed(seed, false) };
        let violation = report.violation?;
        Some(Found { seed, violation })
    });
    plant(None);
    found
}
