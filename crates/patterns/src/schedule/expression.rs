//! When a job is due.

use std::fmt;

use croner::{
    Cron as Expression,
    parser::{CronParser, Seconds, Year},
};
use jiff::{Timestamp, tz::TimeZone};
use leasehold::{Error, ErrorKind, Result};

use super::instant::Instant;

/// When a job is due: a cron expression in a time zone.
///
/// Clocks that are put forward skip no job: one that was due in the missing hour is due when it is over. Clocks that are
/// put back repeat no job with a fixed time; those that are due every few minutes go on every few minutes.
#[derive(Clone, Debug)]
pub struct Schedule {
    expression: Expression,
    zone: TimeZone,
    written: String,
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
        let parser = CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed).build();
        let read = parser.parse(expression).map_err(|error| invalid(error.to_string()))?;
        let written = expression.split_whitespace().collect::<Vec<_>>().join(" ");
        let schedule = Schedule { expression: read, zone: TimeZone::UTC, written };
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
        self.expression.describe()
    }

    /// The first tick after an instant; `None` if there is none any more.
    pub fn next_after(&self, instant: Instant) -> Option<Instant> {
        let from = instant.timestamp().to_zoned(self.zone.clone());
        let next = self.expression.find_next_occurrence(&from, false).ok()?;
        Some(Instant::of_timestamp(next.timestamp())).filter(|next| *next > instant)
    }

    /// The last tick at or before an instant.
    pub fn last_until(&self, instant: Instant) -> Option<Instant> {
        let from = instant.timestamp().to_zoned(self.zone.clone());
        let last = self.expression.find_previous_occurrence(&from, true).ok()?;
        Some(Instant::of_timestamp(last.timestamp())).filter(|last| *last <= instant)
    }

    /// The ticks after the first instant, up to and with the second.
    pub fn between(&self, after: Instant, until: Instant) -> impl Iterator<Item = Instant> + '_ {
        let next = move |last: &Instant| self.next_after(*last);
        std::iter::successors(self.next_after(after), next).take_while(move |tick| *tick <= until)
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
        let spring = ticks("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", "2026-03-30T12:00:00Z");
        assert_eq!(spring, ["2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"]);
        let autumn = ticks("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", "2026-10-26T12:00:00Z");
        assert_eq!(autumn, ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]);
        let often = ticks("*/30 * * * *", "Europe/Berlin", "2026-10-25T00:00:00Z", "2026-10-25T02:00:00Z");
        assert_eq!(often.len(), 4, "every half an hour, whatever the clocks show: {often:?}");
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
        let schedule = Schedule::parse("@daily").unwrap();
        assert!(schedule.in_zone("Mars/Olympus").unwrap_err().to_string().contains("no time zone"));
    }
}
