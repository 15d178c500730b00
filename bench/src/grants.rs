//! Changes of holder and the spread, from the grants of all processes.
//!
//! Grants alone say little: a lock that polls is often granted to the same holder again, which takes no
//! hand-over at all. So what counts is how often the holder changes.

use std::collections::HashMap;

/// A task that held the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Grant {
    /// When it held the lock, in nanoseconds of a clock that all processes share.
    pub at: u64,
    /// The number of the task.
    pub holder: u64,
}

/// Reads the field `grants` of a worker: `[time, holder, time, holder, …]`.
pub fn read_grants(numbers: &[u64]) -> Vec<Grant> {
    numbers.chunks_exact(2).map(|pair| Grant { at: pair[0], holder: pair[1] }).collect()
}

/// The grants of all processes in the order of time. The lock excludes holders, and each noted its time while
/// it held the lock, so this is the order in which they were granted.
pub fn merge(of_processes: impl IntoIterator<Item = Vec<Grant>>) -> Vec<Grant> {
    let mut all: Vec<Grant> = of_processes.into_iter().flatten().collect();
    all.sort();
    all
}

/// How many grants went to another holder than the grant before. The first grant counts as a change.
pub fn changes(grants: &[Grant]) -> usize {
    let repeated = grants.windows(2).filter(|pair| pair[0].holder == pair[1].holder).count();
    grants.len() - repeated
}

/// The most grants of a waiter, divided by the fewest. Infinite if one of the `waiters` got none.
pub fn spread(grants: &[Grant], waiters: usize) -> f64 {
    let mut counts: HashMap<u64, u64> = HashMap::new();
    for grant in grants {
        *counts.entry(grant.holder).or_default() += 1;
    }
    let most = counts.values().copied().max().unwrap_or(0);
    let fewest = if counts.len() < waiters { 0 } else { counts.values().copied().min().unwrap_or(0) };
    if fewest == 0 { f64::INFINITY } else { most as f64 / fewest as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_of_two_processes_are_merged_by_time() {
        let one = read_grants(&[10, 1, 30, 1, 40, 1]);
        let other = read_grants(&[20, 2, 50, 2]);
        let all = merge([one, other]);
        let holders: Vec<u64> = all.iter().map(|grant| grant.holder).collect();
        assert_eq!(holders, [1, 2, 1, 1, 2]);
        // 1, then 2, then 1, then 1 again (no change), then 2.
        assert_eq!(changes(&all), 4);
    }

    #[test]
    fn a_holder_that_grants_itself_again_is_no_change() {
        assert_eq!(changes(&read_grants(&[1, 7, 2, 7, 3, 7])), 1);
        assert_eq!(changes(&[]), 0);
    }

    #[test]
    fn the_spread_compares_the_luckiest_waiter_with_the_unluckiest() {
        let grants = read_grants(&[1, 1, 2, 2, 3, 1, 4, 1]);
        assert_eq!(spread(&grants, 2), 3.0);
        assert_eq!(spread(&grants, 3), f64::INFINITY, "the third waiter was never granted");
        assert_eq!(spread(&[], 2), f64::INFINITY);
    }
}
