//! Chance from a seed.

use std::time::Duration;

/// splitmix64: small, fast, and the same on every machine.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// The stream of this seed; another `salt` is another stream.
    pub(crate) fn new(seed: u64, salt: u64) -> Random {
        let mut random = Random(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ salt.rotate_left(32));
        random.next();
        random
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Below `bound`; zero if that is zero.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next().checked_rem(bound).unwrap_or(0)
    }

    /// From `low` to `high`, both included.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// True this often in a thousand.
    pub(crate) fn chance(&mut self, per_mille: u32) -> bool {
        self.below(1000) < u64::from(per_mille)
    }

    pub(crate) fn pick<'a, T>(&mut self, among: &'a [T]) -> &'a T {
        let at = self.below(among.len() as u64);
        &among[usize::try_from(at).expect("below a length")]
    }

    /// Evenly from `low` to `high`.
    pub(crate) fn duration(&mut self, low: Duration, high: Duration) -> Duration {
        Duration::from_nanos(self.between(nanos(low), nanos(high)))
    }

    /// From `low` to `high` so that every order of magnitude is as likely: mostly short, now and then long.
    pub(crate) fn spread(&mut self, low: Duration, high: Duration) -> Duration {
        let (low, high) = (nanos(low).max(1), nanos(high).max(1));
        let doublings = high.ilog2().saturating_sub(low.ilog2());
        let most = low << self.between(0, u64::from(doublings));
        Duration::from_nanos(self.between(low, most.max(low)).min(high))
    }
}

/// Every bit of the input moves every bit of the output.
pub(crate) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX / 4)
}
