//! What was asked for, checked: how long, how much, and how much time the command has when the lease is lost.

use std::{str::FromStr, time::Duration};

use leasehold::BackendInfo;

use super::Run;
use crate::{config, exit::Failure};

/// The times of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Terms {
    pub(super) ttl: Duration,
    /// From TERM to KILL.
    pub(super) grace: Duration,
    /// How much before the deadline the command is told to stop.
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
        let wrong = || "write how many of how many, as in 1/3".to_owned();
        let (weight, capacity) = text.split_once('/').ok_or_else(wrong)?;
        let number = |text: &str| text.parse::<u32>().map_err(|_| wrong());
        let (weight, capacity) = (number(weight)?, number(capacity)?);
        if weight == 0 || weight > capacity {
            return Err(format!("{weight} of {capacity} cannot be had: take at least 1 and at most all"));
        }
        Ok(Permits { weight, capacity })
    }
}

/// A note that is too long stays so: waiting, as for what is busy, would not help.
pub(super) fn check_note(note: Option<&str>, info: &BackendInfo) -> Result<(), Failure> {
    let (most, length) = (info.limits.note, note.map_or(0, str::len));
    if length > most {
        let message = format!("a note has at most {most} bytes here, this one has {length}");
        return Err(Failure::usage(message).hint("shorten it"));
    }
    Ok(())
}

const TTL: Duration = Duration::from_secs(30);
pub(crate) const TTL_MIN: Duration = Duration::from_secs(1);
const TTL_MAX: Duration = Duration::from_secs(24 * 3600);
const GRACE_MAX: Duration = Duration::from_secs(10);
/// For the KILL to be sent and to do its work.
const RESERVE: Duration = Duration::from_millis(250);

impl Terms {
    pub(super) fn of(run: &Run, config: &config::Run) -> Result<Terms, Failure> {
        let ttl = run.ttl.or(config.ttl).unwrap_or(TTL);
        // A grace that the configuration wishes for all runs gives way to a short ttl; one that was typed does not.
        let usual = config.grace.unwrap_or(GRACE_MAX).min(Terms::grace_max(ttl));
        let usual = if config.grace.is_some() { usual } else { usual.min(ttl / 6) };
        if ttl < TTL_MIN || ttl > TTL_MAX {
            return Err(Failure::usage(format!("a ttl is 1s to 24h, this one is {ttl:?}")));
        }
        for (name, duration) in [("--max-hold", run.max_hold), ("--once-per", run.once_per)] {
            if duration.is_some_and(|duration| duration.is_zero()) {
                return Err(Failure::usage(format!("{name} is longer than nothing")));
            }
        }
        Terms::new(ttl, run.grace.unwrap_or(usual))
    }

    /// For a lease of this ttl.
    pub(super) fn new(ttl: Duration, grace: Duration) -> Result<Terms, Failure> {
        let most = Terms::grace_max(ttl);
        if grace > most {
            let message =
                format!("a grace of {grace:?} is too long for a ttl of {ttl:?}, which leaves {most:?}");
            return Err(Failure::usage(message).hint("choose a longer --ttl or a shorter --grace"));
        }
        Ok(Terms { ttl, grace, stop_before: (grace + RESERVE).max(ttl / 6) })
    }

    fn grace_max(ttl: Duration) -> Duration {
        (ttl / 2).saturating_sub(RESERVE)
    }

    /// The same wishes for a lease of another ttl, as far as that allows.
    pub(super) fn within(self, ttl: Duration) -> Terms {
        let grace = self.grace.min(ttl / 6);
        Terms { ttl, grace, stop_before: (grace + RESERVE).max(ttl / 6) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_command_is_told_early_enough_to_have_its_grace() {
        let usual = Terms::new(30 * SECOND, 5 * SECOND).unwrap();
        assert_eq!(usual.stop_before, Duration::from_millis(5250));
        let short = Terms::new(30 * SECOND, SECOND).unwrap();
        assert_eq!(short.stop_before, 5 * SECOND, "never later than the engine itself gives it up");
        assert!(Terms::new(30 * SECOND, 15 * SECOND).is_err());
        assert!(Terms::new(SECOND, SECOND / 6).is_ok());
        assert_eq!(Terms::new(SECOND, SECOND).unwrap_err().code, 64);
    }

    #[test]
    fn permits_are_some_of_several() {
        assert_eq!("2/5".parse(), Ok(Permits { weight: 2, capacity: 5 }));
        for text in ["", "2", "0/5", "6/5", "a/b", "1/", "-1/2"] {
            assert!(text.parse::<Permits>().is_err(), "{text}");
        }
    }
}
