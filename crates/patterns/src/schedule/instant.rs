//! The instant of a tick.

use std::{fmt, str::FromStr, time::Duration};

use jiff::Timestamp;
use leasehold::WallTime;

/// An instant to the second, shown in UTC as RFC 3339 has it: `2026-11-15T02:30:00Z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(i64);

impl Instant {
    /// The second that this falls into.
    pub fn of(time: WallTime) -> Instant {
        Instant(i64::try_from(time.as_micros() / 1_000_000).unwrap_or(i64::MAX).min(LAST))
    }

    /// As the calendar has it.
    pub fn wall(self) -> WallTime {
        WallTime::from_micros(u64::try_from(self.0).unwrap_or(0).saturating_mul(1_000_000))
    }

    /// How long from one to a later one; zero if it is not later.
    pub fn until(self, later: Instant) -> Duration {
        Duration::from_secs(u64::try_from(later.0.saturating_sub(self.0)).unwrap_or(0))
    }

    /// A second earlier.
    #[must_use]
    pub fn second_before(self) -> Instant {
        Instant(self.0.saturating_sub(1))
    }

    pub(super) fn after(self, duration: Duration) -> Instant {
        Instant(self.0.saturating_add_unsigned(duration.as_secs()).min(LAST))
    }

    /// The number of the hour, or of the day, that it falls into.
    pub(super) fn which(self, span: Duration) -> i64 {
        self.0.div_euclid(i64::try_from(span.as_secs()).unwrap_or(i64::MAX))
    }

    /// Since 1970.
    pub(super) fn seconds(self) -> i64 {
        self.0
    }

    pub(super) fn of_seconds(seconds: i64) -> Instant {
        Instant(seconds.min(LAST))
    }

    pub(crate) fn timestamp(self) -> Timestamp {
        Timestamp::from_second(self.0).unwrap_or(Timestamp::MAX)
    }

    pub(crate) fn of_timestamp(timestamp: Timestamp) -> Instant {
        Instant(timestamp.as_second())
    }
}

/// The calendar of RFC 3339 ends with the year 9999.
const LAST: i64 = 253_402_207_200;

impl fmt::Display for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.timestamp(), f)
    }
}

impl FromStr for Instant {
    type Err = ();

    fn from_str(text: &str) -> Result<Instant, ()> {
        let timestamp: Timestamp = text.parse().map_err(|_| ())?;
        let instant = Instant::of_timestamp(timestamp);
        // One spelling: it is part of a name.
        if instant.to_string() == text { Ok(instant) } else { Err(()) }
    }
}
