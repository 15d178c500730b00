//! Where the clocks of a zone are changed.

use std::time::Duration;

use jiff::{Timestamp, tz::TimeZone};

use super::instant::Instant;

/// A stretch of time in which the clocks of a zone are left alone. All numbers are seconds; *shown* is what its clocks
/// show, counted as if they were those of UTC.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stretch {
    /// What its clocks are ahead of UTC.
    offset: i64,
    /// When it begins, and what clocks were ahead until then. None: it was always so.
    began: Option<(Instant, i64)>,
    /// When it is over. None: it will always be so.
    ends: Option<Instant>,
}

impl Stretch {
    /// The one that this instant is in.
    pub(super) fn of(zone: &TimeZone, instant: Instant) -> Stretch {
        let ahead = |at: Instant| i64::from(zone.to_offset(at.timestamp()).seconds());
        let whole = |at: Timestamp| Instant::of_timestamp(at);
        let soon = instant.after(Duration::from_secs(1));
        let began = zone.preceding(soon.timestamp()).next().map(|at| whole(at.timestamp()));
        let ends = zone.following(instant.timestamp()).next().map(|at| whole(at.timestamp()));
        Stretch { offset: ahead(instant), began: began.map(|at| (at, ahead(at.second_before()))), ends }
    }

    pub(super) fn began(&self) -> Option<Instant> {
        self.began.map(|(began, _)| began)
    }

    pub(super) fn ends(&self) -> Option<Instant> {
        self.ends
    }

    /// What the clocks show at an instant.
    pub(super) fn shown(&self, at: Instant) -> i64 {
        at.seconds() + self.offset
    }

    /// When the clocks show this.
    pub(super) fn when(&self, shown: i64) -> Instant {
        Instant::of_seconds(shown - self.offset)
    }

    /// What the clocks would show as it begins had they been left alone, and what they do show. If the first is less, what
    /// lies between is never shown; if it is more, it is shown twice.
    pub(super) fn seam(&self) -> Option<(i64, i64)> {
        self.began.map(|(began, before)| (began.seconds() + before, began.seconds() + self.offset))
    }
}
