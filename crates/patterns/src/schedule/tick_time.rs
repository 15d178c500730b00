//! The time of a tick.

use std::{fmt, str::FromStr, time::Duration};

use jiff::Timestamp;
use leasehold::WallTime;

/// A time to the second, written in UTC as in RFC 3339: `2026-11-15T02:30:00Z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TickTime(i64);

impl TickTime {
    /// The second that a wall clock time falls into.
    pub fn of(time: WallTime) -> TickTime {
        TickTime(i64::try_from(time.as_micros() / 1_000_000).unwrap_or(i64::MAX).min(LAST))
    }

    /// The same time as a wall clock time.
    pub fn wall(self) -> WallTime {
        WallTime::from_micros(u64::try_from(self.0).unwrap_or(0).saturating_mul(1_000_000))
    }

    /// The duration from this time to a later one; zero if `later` is not later.
    pub fn until(self, later: TickTime) -> Duration {
        Duration::from_secs(u64::try_from(later.0.saturating_sub(self.0)).unwrap_or(0))
    }

    /// The time a second earlier.
    #[must_use]
    pub fn second_before(self) -> TickTime {
        TickTime(self.0.saturating_sub(1))
    }

    pub(super) fn after(self, duration: Duration) -> TickTime {
        TickTime(self.0.saturating_add_unsigned(duration.as_secs()).min(LAST))
    }

    /// The number of the hour, day or other span since 1970 that it falls into.
    pub(super) fn index_of(self, span: Duration) -> i64 {
        self.0.div_euclid(i64::try_from(span.as_secs()).unwrap_or(i64::MAX))
    }

    /// Seconds since 1970.
    pub(super) fn seconds(self) -> i64 {
        self.0
    }

    pub(super) fn of_seconds(seconds: i64) -> TickTime {
        TickTime(seconds.min(LAST))
    }

    pub(crate) fn timestamp(self) -> Timestamp {
        Timestamp::from_second(self.0).unwrap_or(Timestamp::MAX)
    }

    pub(crate) fn of_timestamp(timestamp: Timestamp) -> TickTime {
        TickTime(timestamp.as_second())
    }
}

/// The last second that RFC 3339 can write, at the end of the year 9999.
const LAST: i64 = 253_402_207_200;

impl fmt::Display for TickTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.timestamp(), f)
    }
}

impl FromStr for TickTime {
    type Err = ();

    fn from_str(text: &str) -> Result<TickTime, ()> {
        let timestamp: Timestamp = text.parse().map_err(|_| ())?;
        let time = TickTime::of_timestamp(timestamp);
        // Only one spelling is accepted, because the time is part of the name of a resource.
        if time.to_string() == text { Ok(time) } else { Err(()) }
    }
}
