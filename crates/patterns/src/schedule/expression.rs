//! Which ticks a schedule has.
//!
//! A cron expression is matched against the local time of the zone, period by period between two changes of
//! the clocks (ADR 0029). The expression library is only asked what an expression means in a calendar without
//! zones.
//!
//! - Clocks put forward: ticks in the missing hour are due once, when the hour is over.
//! - Clocks put back: ticks in the repeated hour are due once, the first time.
//! - A schedule that is due in every hour of the day ignores both, and goes on at its usual distance.
//!
//! `next_after` and `last_until` must find the same ticks: one tells how long to sleep, the other what is
//! due.

use std::fmt;

use croner::{
    Cron as Expression,
    parser::{CronParser, Seconds, Year},
};
use jiff::{Timestamp, tz::TimeZone};
use leasehold::{Error, ErrorKind, Result};

use super::{
    offset_period::{ClockChange, OffsetPeriod},
    tick_time::TickTime,
};

/// When a job is due: a cron expression in a time zone.
///
/// If clocks are put forward, a job that was due in the missing hour is due when the hour is over. If clocks
/// are put back, no job is due twice. A job that is due in every hour is not affected by either.
#[derive(Clone)]
pub struct Schedule {
    expression: Expression,
    zone: TimeZone,
    written: String,
    /// The expression matches every hour of the day, so changes of the clocks do not matter.
    is_due_every_hour: bool,
}

/// The most bytes of an expression.
const LENGTH_MAX: usize = 256;

impl Schedule {
    /// Reads five fields (minute, hour, day of the month, month, day of the week), or a nickname such as
    /// `@hourly`. The time zone is UTC, unless [`in_zone`](Schedule::in_zone) sets another.
    ///
    /// # Errors
    /// `Invalid`, with the reason.
    pub fn parse(expression: &str) -> Result<Schedule> {
        let invalid =
            |why: String| Error::new(ErrorKind::Invalid, format!("{expression:.100?} is no schedule: {why}"));
        if expression.len() > LENGTH_MAX {
            return Err(invalid(format!("it has more than {LENGTH_MAX} bytes")));
        }
        let fields = expression.split_whitespace().count();
        if fields != 5 && !expression.trim_start().starts_with('@') {
            let five = "minute, hour, day of the month, month, day of the week";
            return Err(invalid(format!("it has {fields} fields, and should have five: {five}")));
        }
        let parser = CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed).build();
        let parsed = parser.parse(expression).map_err(|error| invalid(error.to_string()))?;
        let written = expression.split_whitespace().collect::<Vec<_>>().join(" ");
        let is_due_every_hour = (0..24).all(|hour| parsed.pattern.hour_match(hour).unwrap_or(false));
        let schedule = Schedule { expression: parsed, zone: TimeZone::UTC, written, is_due_every_hour };
        if schedule.next_after(TickTime::of_timestamp(Timestamp::UNIX_EPOCH)).is_none() {
            return Err(invalid("no date matches it".to_owned()));
        }
        Ok(schedule)
    }

    /// Sets the time zone, by its name in the IANA database: `Europe/Berlin`.
    ///
    /// # Errors
    /// `Invalid` if there is no such zone.
    pub fn in_zone(self, name: &str) -> Result<Schedule> {
        let zone = TimeZone::get(name).map_err(|_| {
            let message =
                format!("there is no time zone {name:.60?}: write a name such as Europe/Berlin, or UTC");
            Error::new(ErrorKind::Invalid, message)
        })?;
        Ok(Schedule { zone, ..self })
    }

    /// The expression, as it was written.
    pub fn expression(&self) -> &str {
        &self.written
    }

    /// The name of the time zone.
    pub fn zone(&self) -> &str {
        self.zone.iana_name().unwrap_or("UTC")
    }

    /// A description in English: "At 02:30".
    pub fn described(&self) -> String {
        self.expression.describe().trim_end_matches('.').to_owned()
    }

    /// The first tick after this time; `None` if there is none.
    pub fn next_after(&self, time: TickTime) -> Option<TickTime> {
        let mut period = OffsetPeriod::of(&self.zone, time);
        let mut after = period.local(time);
        loop {
            // If the clocks were put back, the local times before `old_local` occur a second time in this
            // period.
            let repeated_until = match period.clock_change() {
                Some(change) if !self.is_due_every_hour => change.old_local - 1,
                _ => after,
            };
            let tick = period.time_of(self.local_after(after.max(repeated_until))?);
            let Some(ends) = period.ends().filter(|ends| tick >= *ends) else { return Some(tick) };
            period = OffsetPeriod::of(&self.zone, ends);
            if self.is_due_in_gap(&period) {
                return Some(ends);
            }
            after = period.local(ends) - 1;
        }
    }

    /// The last tick at or before this time; `None` if there is none.
    pub fn last_until(&self, time: TickTime) -> Option<TickTime> {
        let mut period = OffsetPeriod::of(&self.zone, time);
        let mut until = period.local(time);
        loop {
            let local = self.local_until(until)?;
            // The first local time of this period that counts: not one that occurs here for the second time.
            let first = match period.clock_change() {
                None => local,
                Some(change) if self.is_due_every_hour => change.new_local,
                Some(change) => change.new_local.max(change.old_local),
            };
            let began = match period.began().filter(|_| local < first) {
                Some(began) if self.is_due_in_gap(&period) => return Some(began),
                Some(began) => began,
                None => return Some(period.time_of(local)),
            };
            period = OffsetPeriod::of(&self.zone, began.second_before());
            until = period.local(began.second_before());
        }
    }

    /// Whether a tick was due in the local times that the clocks skipped when this period began. It is due at
    /// the beginning of the period instead.
    fn is_due_in_gap(&self, period: &OffsetPeriod) -> bool {
        let Some(ClockChange { old_local, new_local }) = period.clock_change() else { return false };
        let is_forward = old_local < new_local;
        is_forward
            && !self.is_due_every_hour
            && self.local_after(old_local - 1).is_some_and(|local| local < new_local)
    }

    /// The first match of the expression after this local time, in a calendar without zones.
    fn local_after(&self, local: i64) -> Option<i64> {
        let from = Timestamp::from_second(local).ok()?.to_zoned(TimeZone::UTC);
        let next = self.expression.find_next_occurrence(&from, false).ok()?;
        Some(next.timestamp().as_second()).filter(|next| *next > local)
    }

    /// The last match of the expression at or before this local time, in a calendar without zones.
    fn local_until(&self, local: i64) -> Option<i64> {
        let from = Timestamp::from_second(local).ok()?.to_zoned(TimeZone::UTC);
        let last = self.expression.find_previous_occurrence(&from, true).ok()?;
        Some(last.timestamp().as_second()).filter(|last| *last <= local)
    }

    /// The ticks after `after`, up to and including `until`.
    pub fn between(&self, after: TickTime, until: TickTime) -> impl Iterator<Item = TickTime> + '_ {
        let next = move |last: &TickTime| self.next_after(*last);
        std::iter::successors(self.next_after(after), next).take_while(move |tick| *tick <= until)
    }
}

impl fmt::Debug for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Schedule({self})")
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.written, self.zone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> TickTime {
        text.parse().unwrap()
    }

    fn ticks(expression: &str, zone: &str, after: &str, until: &str) -> Vec<String> {
        let schedule = Schedule::parse(expression).unwrap().in_zone(zone).unwrap();
        schedule.between(at(after), at(until)).map(|tick| tick.to_string()).collect()
    }

    #[test]
    fn ticks_follow_the_time_zone() {
        assert_eq!(
            ticks("*/20 9 * * MON-FRI", "UTC", "2026-11-13T09:00:00Z", "2026-11-16T09:20:00Z"),
            ["2026-11-13T09:20:00Z", "2026-11-13T09:40:00Z", "2026-11-16T09:00:00Z", "2026-11-16T09:20:00Z"]
        );
        assert_eq!(
            ticks("0 9 * * *", "America/New_York", "2026-07-01T00:00:00Z", "2026-07-02T00:00:00Z"),
            ["2026-07-01T13:00:00Z"]
        );
        assert_eq!(
            ticks("@hourly", "UTC", "2026-01-01T00:00:00Z", "2026-01-01T01:30:00Z"),
            ["2026-01-01T01:00:00Z"]
        );
    }

    /// Berlin: on 29 March 2026 02:00 is followed by 03:00; on 25 October 03:00 by 02:00.
    #[test]
    fn clocks_put_forward_skip_no_tick_and_clocks_put_back_repeat_none() {
        let spring = |expression: &str| {
            ticks(expression, "Europe/Berlin", "2026-03-28T12:00:00Z", "2026-03-29T12:00:00Z")
        };
        assert_eq!(spring("30 2 * * *"), ["2026-03-29T01:00:00Z"]);
        assert_eq!(
            spring("*/20 2 * * *"),
            ["2026-03-29T01:00:00Z"],
            "all its ticks were in the missing hour"
        );
        assert_eq!(spring("0 2,3 * * *"), ["2026-03-29T01:00:00Z"]);
        assert_eq!(
            spring("15 */2 * * *")[5..8],
            ["2026-03-28T23:15:00Z", "2026-03-29T01:00:00Z", "2026-03-29T02:15:00Z"]
        );
        for (time, tick) in [("59 1", "2026-03-29T00:59:00Z"), ("0 3", "2026-03-29T01:00:00Z")] {
            assert_eq!(spring(&format!("{time} * * *")), [tick], "once, next to the missing hour");
        }
        let autumn = |expression: &str| {
            ticks(expression, "Europe/Berlin", "2026-10-24T12:00:00Z", "2026-10-25T12:00:00Z")
        };
        assert_eq!(autumn("30 2 * * *"), ["2026-10-25T00:30:00Z"]);
        assert_eq!(autumn("0,30 2 * * *"), ["2026-10-25T00:00:00Z", "2026-10-25T00:30:00Z"]);
        assert_eq!(autumn("0 3 * * *"), ["2026-10-25T02:00:00Z"]);
        for (expression, in_a_day) in [("*/30 * * * *", 48), ("15 * * * *", 24), ("@hourly", 24)] {
            assert_eq!(spring(expression).len(), in_a_day, "at the usual distance");
            assert_eq!(autumn(expression).len(), in_a_day, "at the usual distance");
        }
    }

    /// A machine looks back to find what is due, and ahead to find how long to sleep.
    #[test]
    fn looking_back_finds_the_same_ticks_as_looking_ahead() {
        let expressions =
            ["30 0 * * *", "30 1 * * *", "0,30 2 * * *", "59 1-3 * * *", "0 3 * * *", "7 * * * *"];
        // Changes by an hour, half an hour and two hours, one at midnight, and a whole day that was left out.
        let changes = [
            ("Europe/Berlin", "2026-03-28T12:00:00Z", "2026-03-30T12:00:00Z"),
            ("Europe/Berlin", "2026-10-24T12:00:00Z", "2026-10-26T12:00:00Z"),
            ("America/Havana", "2026-03-07T12:00:00Z", "2026-03-09T12:00:00Z"),
            ("Australia/Lord_Howe", "2026-04-03T12:00:00Z", "2026-04-05T12:00:00Z"),
            ("Australia/Lord_Howe", "2026-10-02T12:00:00Z", "2026-10-04T12:00:00Z"),
            ("Antarctica/Troll", "2026-03-28T12:00:00Z", "2026-03-30T12:00:00Z"),
            ("Pacific/Apia", "2011-12-28T12:00:00Z", "2012-01-01T12:00:00Z"),
        ];
        for (expression, (zone, after, until)) in
            expressions.iter().flat_map(|expression| changes.map(|change| (*expression, change)))
        {
            let schedule = Schedule::parse(expression).unwrap().in_zone(zone).unwrap();
            let ahead: Vec<_> = schedule.between(at(after), at(until)).collect();
            let before = |tick: &TickTime| schedule.last_until(tick.second_before());
            let back = std::iter::successors(schedule.last_until(at(until)), before);
            let mut back: Vec<_> = back.take_while(|tick| *tick > at(after)).collect();
            back.reverse();
            assert_eq!(ahead, back, "{expression} {zone}");
            assert!(ahead.len() >= 2, "{expression} {zone}: {ahead:?}");
        }
    }

    #[test]
    fn the_last_tick_may_be_now() {
        let schedule = Schedule::parse("0 * * * *").unwrap();
        assert_eq!(schedule.last_until(at("2026-01-01T05:00:00Z")), Some(at("2026-01-01T05:00:00Z")));
        assert_eq!(schedule.last_until(at("2026-01-01T05:59:59Z")), Some(at("2026-01-01T05:00:00Z")));
        assert_eq!(schedule.next_after(at("2026-01-01T05:00:00Z")), Some(at("2026-01-01T06:00:00Z")));
    }

    #[test]
    fn an_invalid_expression_is_refused_with_the_reason() {
        let long = "1,".repeat(200);
        for wrong in
            ["", "* * * *", "60 * * * *", "0 0 31 2 *", "* * * * * *", "@noon", "every day", "\0", &long]
        {
            let error = Schedule::parse(wrong).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{wrong:?}");
            assert!(error.to_string().contains("no schedule"), "{error}");
        }
        let error = Schedule::parse("*/10 * * * * *").unwrap_err().to_string();
        assert!(error.contains("6 fields, and should have five: minute"), "{error}");
        let schedule = Schedule::parse("@daily").unwrap();
        assert_eq!(schedule.described(), "At 00:00");
        assert!(schedule.in_zone("Mars/Olympus").unwrap_err().to_string().contains("no time zone"));
    }
}
