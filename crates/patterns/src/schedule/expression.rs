//! When a job is due.

use std::fmt;

use croner::{
    Cron as Expression,
    parser::{CronParser, Seconds, Year},
};
use jiff::{Timestamp, tz::TimeZone};
use leasehold::{Error, ErrorKind, Result};

use super::{instant::Instant, stretch::Stretch};

/// When a job is due: a cron expression in a time zone.
///
/// Clocks that are put forward skip no job: one that was due in the missing hour is due when it is over. Clocks that are
/// put back repeat none. Jobs that are due in every hour have no need of that: they go on as if clocks were left alone.
#[derive(Clone)]
pub struct Schedule {
    expression: Expression,
    zone: TimeZone,
    written: String,
    /// It is due in every hour of its days.
    goes_on: bool,
}

/// Longer than any sensible one.
const LENGTH_MAX: usize = 256;

impl Schedule {
    /// Reads five fields (minute, hour, day of the month, month, day of the week), or a nickname such as `@hourly`. The
    /// zone is UTC unless told.
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
        let read = parser.parse(expression).map_err(|error| invalid(error.to_string()))?;
        let written = expression.split_whitespace().collect::<Vec<_>>().join(" ");
        let goes_on = (0..24).all(|hour| read.pattern.hour_match(hour).unwrap_or(false));
        let schedule = Schedule { expression: read, zone: TimeZone::UTC, written, goes_on };
        if schedule.next_after(Instant::of_timestamp(Timestamp::UNIX_EPOCH)).is_none() {
            return Err(invalid("that day never comes".to_owned()));
        }
        Ok(schedule)
    }

    /// In this time zone, by its name in the IANA database: `Europe/Berlin`.
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

    /// In words, in English: "At 02:30".
    pub fn described(&self) -> String {
        self.expression.describe().trim_end_matches('.').to_owned()
    }

    /// The first tick after an instant; `None` if there is none any more.
    pub fn next_after(&self, instant: Instant) -> Option<Instant> {
        let mut stretch = Stretch::of(&self.zone, instant);
        let mut after = stretch.shown(instant);
        loop {
            let repeated = stretch.seam().filter(|_| !self.goes_on).map_or(after, |(before, _)| before - 1);
            let tick = stretch.when(self.shown_after(after.max(repeated))?);
            let Some(ends) = stretch.ends().filter(|ends| tick >= *ends) else { return Some(tick) };
            stretch = Stretch::of(&self.zone, ends);
            if self.is_due_in_gap(&stretch) {
                return Some(ends);
            }
            after = stretch.shown(ends) - 1;
        }
    }

    /// The last tick at or before an instant.
    pub fn last_until(&self, instant: Instant) -> Option<Instant> {
        let mut stretch = Stretch::of(&self.zone, instant);
        let mut until = stretch.shown(instant);
        loop {
            let shown = self.shown_until(until)?;
            let first = stretch.seam().map_or(
                shown,
                |(before, first)| {
                    if self.goes_on { first } else { first.max(before) }
                },
            );
            let began = match stretch.began().filter(|_| shown < first) {
                Some(began) if self.is_due_in_gap(&stretch) => return Some(began),
                Some(began) => began,
                None => return Some(stretch.when(shown)),
            };
            stretch = Stretch::of(&self.zone, began.second_before());
            until = stretch.shown(began.second_before());
        }
    }

    /// Something was due in what the clocks left out when this stretch began. Then it is due as it begins.
    fn is_due_in_gap(&self, stretch: &Stretch) -> bool {
        let gap = stretch.seam().filter(|(before, first)| before < first && !self.goes_on);
        gap.is_some_and(|(before, first)| self.shown_after(before - 1).is_some_and(|shown| shown < first))
    }

    /// The next time on the clock after this one, whatever happens to clocks.
    fn shown_after(&self, shown: i64) -> Option<i64> {
        let from = Timestamp::from_second(shown).ok()?.to_zoned(TimeZone::UTC);
        let next = self.expression.find_next_occurrence(&from, false).ok()?;
        Some(next.timestamp().as_second()).filter(|next| *next > shown)
    }

    /// The last time on the clock up to this one.
    fn shown_until(&self, shown: i64) -> Option<i64> {
        let from = Timestamp::from_second(shown).ok()?.to_zoned(TimeZone::UTC);
        let last = self.expression.find_previous_occurrence(&from, true).ok()?;
        Some(last.timestamp().as_second()).filter(|last| *last <= shown)
    }

    /// The ticks after the first instant, up to and with the second.
    pub fn between(&self, after: Instant, until: Instant) -> impl Iterator<Item = Instant> + '_ {
        let next = move |last: &Instant| self.next_after(*last);
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

    fn at(text: &str) -> Instant {
        text.parse().unwrap()
    }

    fn ticks(expression: &str, zone: &str, after: &str, until: &str) -> Vec<String> {
        let schedule = Schedule::parse(expression).unwrap().in_zone(zone).unwrap();
        schedule.between(at(after), at(until)).map(|tick| tick.to_string()).collect()
    }

    #[test]
    fn ticks_are_those_of_the_zone() {
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
    fn clocks_put_forward_skip_no_job_and_clocks_put_back_repeat_none() {
        let spring = |expression: &str| {
            ticks(expression, "Europe/Berlin", "2026-03-28T12:00:00Z", "2026-03-29T12:00:00Z")
        };
        assert_eq!(spring("30 2 * * *"), ["2026-03-29T01:00:00Z"]);
        assert_eq!(spring("*/20 2 * * *"), ["2026-03-29T01:00:00Z"], "the missing hour was all it had");
        assert_eq!(spring("0 2,3 * * *"), ["2026-03-29T01:00:00Z"]);
        assert_eq!(
            spring("15 */2 * * *")[5..8],
            ["2026-03-28T23:15:00Z", "2026-03-29T01:00:00Z", "2026-03-29T02:15:00Z"]
        );
        for (time, tick) in [("59 1", "2026-03-29T00:59:00Z"), ("0 3", "2026-03-29T01:00:00Z")] {
            assert_eq!(spring(&format!("{time} * * *")), [tick], "once, beside the missing hour");
        }
        let autumn = |expression: &str| {
            ticks(expression, "Europe/Berlin", "2026-10-24T12:00:00Z", "2026-10-25T12:00:00Z")
        };
        assert_eq!(autumn("30 2 * * *"), ["2026-10-25T00:30:00Z"]);
        assert_eq!(autumn("0,30 2 * * *"), ["2026-10-25T00:00:00Z", "2026-10-25T00:30:00Z"]);
        assert_eq!(autumn("0 3 * * *"), ["2026-10-25T02:00:00Z"]);
        for (expression, in_a_day) in [("*/30 * * * *", 48), ("15 * * * *", 24), ("@hourly", 24)] {
            assert_eq!(spring(expression).len(), in_a_day, "they go on, whatever the clocks show");
            assert_eq!(autumn(expression).len(), in_a_day, "they go on, whatever the clocks show");
        }
    }

    /// A machine finds out what is due by looking back, and for how long to sleep by looking ahead.
    #[test]
    fn looking_back_finds_the_same_ticks_as_looking_ahead() {
        let expressions =
            ["30 0 * * *", "30 1 * * *", "0,30 2 * * *", "59 1-3 * * *", "0 3 * * *", "7 * * * *"];
        // Half an hour, two hours, at midnight, and a whole day that was left out.
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
            let before = |tick: &Instant| schedule.last_until(tick.second_before());
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
    fn what_makes_no_sense_is_refused_with_the_reason() {
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
