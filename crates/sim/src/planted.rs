//! Bugs on purpose: a checker that finds none of them proves nothing.

pub use leasehold::planted::Bug;
use leasehold::planted::plant;

use crate::{report::Violation, run::run_seed};

/// A planted bug that was found.
#[derive(Clone, Debug)]
pub struct Found {
    /// The first seed that shows it, counting from one.
    pub seed: u64,
    /// What was noticed.
    pub violation: Violation,
}

/// Plants the bug and looks for it, with at most this many seeds.
pub fn find(bug: Bug, most: u64) -> Option<Found> {
    plant(Some(bug));
    let found = (1..=most).find_map(|seed| {
        let violation = run_seed(seed, false).violation?;
        Some(Found { seed, violation })
    });
    plant(None);
    found
}
