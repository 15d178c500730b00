//! The times of a run (ttl, grace, when to stop), computed from options and configuration, and checked.
//!
//! ```text
//! renewal                         TERM            KILL   deadline
//! |-------------- ttl - stop_before --|---- grace ----|- RESERVE -|
//! ```

use std::time::Duration;

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

const GRACE_MAX: Duration = Duration::from_secs(10);
/// The time between KILL and the deadline, for the KILL to do its work.
const RESERVE: Duration = Duration::from_millis(250);

impl RunTimes {
    pub(super) fn of(run: &Run, config: &config::RunDefaults) -> Result<RunTimes, Failure> {
        let ttl = run.claim.ttl(config)?;
        // A grace from the configuration is meant for all runs, so a short ttl shortens it. A grace that was
        // typed is never shortened: it is refused if it is too long.
        let usual = config.grace.unwrap_or(GRACE_MAX).min(RunTimes::grace_max(ttl));
        let usual = if config.grace.is_some() { usual } else { usual.min(ttl / 6) };
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
}
