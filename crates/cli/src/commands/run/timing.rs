//! The times of a run (ttl, grace, when to stop), computed from options and configuration, and checked.
//!
//! ```text
//! renewal                         TERM            KILL   deadline
//! |-------------- ttl - stop_before --|---- grace ----|- RESERVE -|
//! ```

use std::{str::FromStr, time::Duration};

use leasehold::BackendInfo;

use super::Run;
use crate::{config, exit::Failure};

/// The times of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RunTimes {
    pub(super) ttl: Duration,
    /// The time from TERM to KILL.
    pub(super) grace: Duration,
    /// How long before the deadline the command gets TERM.
    pub(super) stop_before: Duration,
}

/// K of N permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Permits {
    pub(super) weight: u32,
    pub(super) capacity: u32,
}

impl FromStr for Permits {
    type Err = String;
    fn from_str(text: &str) -> Result<Permits, String> {
        let wrong = || "expected K/N, such as 1/3".to_owned();
        let (weight, capacity) = text.split_once('/').ok_or_else(wrong)?;
        let number = |text: &str| text.parse::<u32>().map_err(|_| wrong());
        let (weight, capacity) = (number(weight)?, number(capacity)?);
        if weight == 0 || weight > capacity {
            return Err(format!(
                "{weight} of {capacity} permits is impossible: K must be at least 1 and at most N"
            ));
        }
        Ok(Permits { weight, capacity })
    }
}

/// Fails if the note is too long. The store would report that as a limit (exit code 75, try again later), but
/// waiting does not make a note shorter.
pub(super) fn check_note(note: Option<&str>, info: &BackendInfo) -> Result<(), Failure> {
    let (most, length) = (info.limits.note, note.map_or(0, str::len));
    if length > most {
        let message = format!("--note has {length} bytes, and this store allows at most {most}");
        return Err(Failure::usage(message).hint("shorten the note"));
    }
    Ok(())
}

const TTL_DEFAULT: Duration = Duration::from_secs(30);
pub(crate) const TTL_MIN: Duration = Duration::from_secs(1);
const TTL_MAX: Duration = Duration::from_secs(24 * 3600);
const GRACE_MAX: Duration = Duration::from_secs(10);
/// The time between KILL and the deadline, for the KILL to do its work.
const RESERVE: Duration = Duration::from_millis(250);

impl RunTimes {
    pub(super) fn of(run: &Run, config: &config::RunDefaults) -> Result<RunTimes, Failure> {
        let ttl = run.ttl.or(config.ttl).unwrap_or(TTL_DEFAULT);
        // A grace from the configuration is meant for all runs, so a short ttl shortens it. A grace that was
        // typed is never shortened: it is refused if it is too long.
        let usual = config.grace.unwrap_or(GRACE_MAX).min(RunTimes::grace_max(ttl));
        let usual = if config.grace.is_some() { usual } else { usual.min(ttl / 6) };
        if ttl < TTL_MIN || ttl > TTL_MAX {
            return Err(Failure::usage(format!("--ttl must be 1s to 24h, and it is {ttl:?}")));
        }
        for (name, duration) in [("--max-hold", run.max_hold), ("--once-per", run.once_per)] {
            if duration.is_some_and(|duration| duration.is_zero()) {
                return Err(Failure::usage(format!("{name} must be greater than 0")));
            }
        }
        RunTimes::new(ttl, run.grace.unwrap_or(usual))
    }

    /// The times for a lease with this ttl.
    pub(super) fn new(ttl: Duration, grace: Duration) -> Result<RunTimes, Failure> {
        let most = RunTimes::grace_max(ttl);
        if grace > most {
            let message =
                format!("--grace {grace:?} is too long for a ttl of {ttl:?}, which allows at most {most:?}");
            return Err(Failure::usage(message).hint("choose a longer --ttl or a shorter --grace"));
        }
        // ADR 0005: a holder stops when a sixth of the ttl is left, so TERM never comes later than that.
        Ok(RunTimes { ttl, grace, stop_before: (grace + RESERVE).max(ttl / 6) })
    }

    /// Half of the ttl is for the work, so that a lease which is renewed on time is not stopped.
    fn grace_max(ttl: Duration) -> Duration {
        (ttl / 2).saturating_sub(RESERVE)
    }

    /// The same times for a lease with another ttl, such as that of an outer run. The grace is shortened if
    /// necessary.
    pub(super) fn within(self, ttl: Duration) -> RunTimes {
        let grace = self.grace.min(ttl / 6);
        RunTimes { ttl, grace, stop_before: (grace + RESERVE).max(ttl / 6) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_command_gets_term_early_enough_for_its_grace() {
        let usual = RunTimes::new(30 * SECOND, 5 * SECOND).unwrap();
        assert_eq!(usual.stop_before, Duration::from_millis(5250));
        let short = RunTimes::new(30 * SECOND, SECOND).unwrap();
        assert_eq!(short.stop_before, 5 * SECOND, "never later than the engine gives the lease up");
        assert!(RunTimes::new(30 * SECOND, 15 * SECOND).is_err());
        assert!(RunTimes::new(SECOND, SECOND / 6).is_ok());
        assert_eq!(RunTimes::new(SECOND, SECOND).unwrap_err().code, 64);
    }

    #[test]
    fn permits_are_parsed_and_checked() {
        assert_eq!("2/5".parse(), Ok(Permits { weight: 2, capacity: 5 }));
        for text in ["", "2", "0/5", "6/5", "a/b", "1/", "-1/2"] {
            assert!(text.parse::<Permits>().is_err(), "{text}");
        }
    }
}
