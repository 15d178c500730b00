//! Periods in which the clocks of a time zone are not changed.

use std::time::Duration;

use jiff::{Timestamp, tz::TimeZone};

use super::tick_time::TickTime;

/// A period in which the UTC offset of a time zone is constant.
///
/// All numbers are seconds. *Local time* is what the clocks of the zone show, counted in seconds as if they
/// showed UTC.
#[derive(Clone, Copy, Debug)]
pub(super) struct OffsetPeriod {
    /// How far local time is ahead of UTC.
    offset: i64,
    /// When the period begins, and the offset before it. None: it has no beginning.
    began: Option<(TickTime, i64)>,
    /// When the period ends. None: it has no end.
    ends: Option<TickTime>,
}

/// The change of the clocks at the beginning of a period.
///
/// If `old_local < new_local`, the clocks were put forward, and the local times between the two do not exist.
/// If `old_local > new_local`, the clocks were put back, and the local times between the two occur twice.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClockChange {
    /// What the clocks would show if they had not been changed.
    pub(super) old_local: i64,
    /// What they show.
    pub(super) new_local: i64,
}

impl OffsetPeriod {
    /// The period that contains this time.
    pub(super) fn of(zone: &TimeZone, time: TickTime) -> OffsetPeriod {
        let offset_at = |at: TickTime| i64::from(zone.to_offset(at.timestamp()).seconds());
        let tick_time = |at: Timestamp| TickTime::of_timestamp(at);
        // `preceding` is exclusive, and the period may begin at this very time.
        let soon = time.after(Duration::from_secs(1));
        let began = zone.preceding(soon.timestamp()).next().map(|at| tick_time(at.timestamp()));
        let ends = zone.following(time.timestamp()).next().map(|at| tick_time(at.timestamp()));
        let began = began.map(|at| (at, offset_at(at.second_before())));
        OffsetPeriod { offset: offset_at(time), began, ends }
    }

    pub(super) fn began(&self) -> Option<TickTime> {
        self.began.map(|(began, _)| began)
    }

    pub(super) fn ends(&self) -> Option<TickTime> {
        self.ends
    }

    /// The local time at this time.
    pub(super) fn local(&self, at: TickTime) -> i64 {
        at.seconds() + self.offset
    }

    /// The time at which the clocks show this local time.
    pub(super) fn time_of(&self, local: i64) -> TickTime {
        TickTime::of_seconds(local - self.offset)
    }

    /// The change of the clocks at the beginning of the period.
    pub(super) fn clock_change(&self) -> Option<ClockChange> {
        self.began.map(|(began, old_offset)| ClockChange {
            old_local: began.seconds() + old_offset,
            new_local: began.seconds() + self.offset,
        })
    }
}
