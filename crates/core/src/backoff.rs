//! How long to wait before asking again, where nothing wakes us.

use std::time::Duration;

/// 50 ms, doubling to 2 s; each pause is drawn from [d/2, d] so that rivals do not march in step.
///
/// Pure: the caller brings the random number.
///
/// ```
/// use {leasehold_core::Backoff, std::time::Duration};
///
/// let mut backoff = Backoff::new();
/// let pause = backoff.next(0x5eed);
/// assert!(Duration::from_millis(25) <= pause && pause <= Duration::from_millis(50));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backoff {
    step: Duration,
    most: Duration,
}

impl Backoff {
    /// The first step.
    pub const FIRST: Duration = Duration::from_millis(50);
    /// The greatest step.
    pub const MOST: Duration = Duration::from_secs(2);

    /// Starts at the first step.
    pub const fn new() -> Backoff {
        Backoff { step: Backoff::FIRST, most: Backoff::MOST }
    }

    /// Starts at the first step and stays below `most`: for retries that must fit into a short ttl.
    pub fn at_most(most: Duration) -> Backoff {
        let most = most.clamp(Duration::from_millis(1), Backoff::MOST);
        Backoff { step: Backoff::FIRST.min(most), most }
    }

    /// The next pause.
    pub fn next(&mut self, random: u64) -> Duration {
        let step = self.step;
        self.step = (step * 2).min(self.most);
        jitter(step, random)
    }
}

impl Default for Backoff {
    fn default() -> Backoff {
        Backoff::new()
    }
}

/// A duration drawn from [d/2, d].
pub fn jitter(most: Duration, random: u64) -> Duration {
    let half = most / 2;
    let spread = u64::try_from(half.as_nanos()).unwrap_or(u64::MAX).saturating_add(1);
    (half + Duration::from_nanos(random % spread)).min(most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pauses_double_and_stay_within_their_step(draws in prop::collection::vec(any::<u64>(), 1..20)) {
            let mut backoff = Backoff::new();
            let mut step = Backoff::FIRST;
            for draw in draws {
                let pause = backoff.next(draw);
                prop_assert!(step / 2 <= pause && pause <= step);
                step = (step * 2).min(Backoff::MOST);
            }
        }

        #[test]
        fn jitter_never_leaves_its_range(nanos in 0u64..=u64::MAX / 2, draw: u64) {
            let most = Duration::from_nanos(nanos);
            let drawn = jitter(most, draw);
            prop_assert!(most / 2 <= drawn && drawn <= most);
        }
    }

    #[test]
    fn a_capped_backoff_never_passes_its_cap() {
        let mut backoff = Backoff::at_most(Duration::from_millis(20));
        assert!((0..10).all(|draw| backoff.next(draw * 0x9e37_79b9) <= Duration::from_millis(20)));
    }
}
