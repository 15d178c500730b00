//! The clocks of one host: a boot clock that may run fast or slow, and a wall clock that may be set.

use std::time::Duration;

use leasehold::{Timestamp, WallTime};

use crate::random::nanos;

/// True time: nanoseconds since the run began, known to the checkers and not to the simulated hosts.
pub(crate) type Time = u64;

/// Parts per billion: a rate of one.
pub(crate) const PAR: u64 = 1_000_000_000;

const BOOT: u64 = 1_000_000_000_000;
const WALL_MICROS: u64 = 1_800_000_000_000_000;

/// What a host's clocks show, as a function of true time.
#[derive(Clone, Debug)]
pub(crate) struct HostClock {
    since: Time,
    boot: u64,
    wall: u64,
    rate: u64,
}

impl HostClock {
    /// At this rate, ahead of the others by this much.
    pub(crate) fn new(rate: u64, ahead: Duration) -> HostClock {
        HostClock { since: 0, boot: BOOT + nanos(ahead), wall: nanos(ahead), rate }
    }

    fn elapsed(&self, now: Time) -> u64 {
        let elapsed = u128::from(now.saturating_sub(self.since)) * u128::from(self.rate) / u128::from(PAR);
        u64::try_from(elapsed).unwrap_or(u64::MAX / 2)
    }

    /// The boot clock: it counts suspend.
    pub(crate) fn boot(&self, now: Time) -> Timestamp {
        Timestamp::from_nanos(self.boot + self.elapsed(now))
    }

    /// The wall clock.
    pub(crate) fn wall(&self, now: Time) -> WallTime {
        WallTime::from_micros(WALL_MICROS + (self.wall + self.elapsed(now)) / 1000)
    }

    /// How long this much of the host's time takes; never less.
    pub(crate) fn true_duration(&self, local: Duration) -> u64 {
        let long = u128::from(nanos(local)) * u128::from(PAR) / u128::from(self.rate) + 1;
        u64::try_from(long).unwrap_or(u64::MAX / 4).min(u64::MAX / 4)
    }

    fn anchor(&mut self, now: Time) {
        let elapsed = self.elapsed(now);
        self.boot += elapsed;
        self.wall += elapsed;
        self.since = now;
    }

    /// Runs at another rate from now on.
    pub(crate) fn set_rate(&mut self, now: Time, rate: u64) {
        self.anchor(now);
        self.rate = rate;
    }

    /// Sets the wall clock.
    pub(crate) fn step_wall(&mut self, now: Time, forward: bool, by: Duration) {
        self.anchor(now);
        self.wall = if forward { self.wall + nanos(by) } else { self.wall.saturating_sub(nanos(by)) };
    }

    /// The boot clock missed what happened since `from`: the whole machine was frozen. The wall clock did not.
    pub(crate) fn forget_since(&mut self, from: Time, now: Time) {
        let before = self.boot(from).as_nanos();
        self.anchor(now);
        self.boot = before;
    }
}
