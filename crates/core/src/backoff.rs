//! How long to wait before asking again, where the backend sends no wake-up.

use std::time::Duration;

/// Pauses between attempts: 50 ms, doubling up to 2 s. Each pause is drawn from [d/2, d], so that the attempts of several
/// clients spread out.
///
/// Pure: the caller supplies the random number.
///
/// ```
/// use {leasehold_core::Backoff, std::time::Duration};
///
/// let mut backoff = Backoff::new();
/// let pause = backoff.next(0x5eed);
/// assert!(Duration::from_millis(25) <= pause && pause <= Duration::from_millis(50));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    pauses: u32,
    most: Duration,
}

impl Backoff {
    /// The first step.
    pub const FIRST: Duration = Duration::from_millis(50);
    /// The greatest step.
    pub const MOST: Duration = Duration::from_secs(2);

    /// Starts at the first step.
    pub const fn new() -> Backoff {
        Backoff { pauses: 0, most: Backoff::MOST }
    }

    /// Starts at the first step and stays below `most`: for retries that must fit into a short ttl.
    pub fn at_most(most: Duration) -> Backoff {
        Backoff { pauses: 0, most: most.clamp(Duration::from_millis(1), Backoff::MOST) }
    }

    /// Continues as if there had been this many pauses.
    #[must_use]
    pub const fn after(self, pauses: u32) -> Backoff {
        Backoff { pauses, ..self }
    }

    /// The next pause.
    pub fn next(&mut self, random: u64) -> Duration {
        let step = Backoff::FIRST.saturating_mul(1 << self.pauses.min(16)).min(self.most);
        self.pauses = self.pauses.saturating_add(1);
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
