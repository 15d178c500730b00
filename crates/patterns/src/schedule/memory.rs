//! How long the claim of a tick stays.

use std::time::Duration;

use super::{expression::Schedule, instant::Instant};

/// Of missed ticks, no more than this are ever run: so it is known for how long a claim matters.
pub(super) const MISSED_MAX: usize = 100;

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);
/// By less than this, clocks may be apart.
const APART: Duration = Duration::from_secs(6 * 3600);
const LONGEST: Duration = Duration::from_secs(3650 * 86_400);

/// How long the claim of a tick stays.
///
/// Until nobody can want to run it any more: so many ticks have followed that it is not run late, and clocks may be apart.
/// Some stay longer, so that a job which has stopped is seen, and ticks that were missed are known to be: the first of each
/// hour for three days, the first of each day for sixty.
pub(super) fn remembered(schedule: &Schedule, at: Instant) -> Duration {
    let horizon = at.after(LONGEST);
    let late = schedule.between(at, horizon).nth(MISSED_MAX - 1).unwrap_or(horizon);
    let before = schedule.last_until(at.second_before());
    let is_first_of = |span: Duration| before.is_none_or(|before| before.which(span) < at.which(span));
    let shown = if is_first_of(DAY) {
        DAY * 60
    } else if is_first_of(HOUR) {
        DAY * 3
    } else {
        Duration::ZERO
    };
    shown.max(at.until(late) + APART)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn days(expression: &str, at: &str) -> u64 {
        let schedule = Schedule::parse(expression).unwrap();
        remembered(&schedule, at.parse().unwrap()).as_secs() / 86_400
    }

    #[test]
    fn a_claim_stays_for_a_hundred_ticks_and_some_for_longer() {
        assert_eq!(days("* * * * *", "2026-11-16T10:07:00Z"), 0);
        assert_eq!(days("* * * * *", "2026-11-16T10:00:00Z"), 3);
        assert_eq!(days("* * * * *", "2026-11-16T00:00:00Z"), 60);
        assert_eq!(days("0 * * * *", "2026-11-16T10:00:00Z"), 4);
        assert_eq!(days("0 9 * * *", "2026-11-16T09:00:00Z"), 100);
        assert_eq!(days("0 9 1 * *", "2026-11-01T09:00:00Z"), 3042);
        for seldom in ["@yearly", "0 0 29 2 *"] {
            assert_eq!(days(seldom, "2028-02-29T00:00:00Z"), 3650, "{seldom}");
        }
    }

    /// Whatever may still be run late is remembered, and six hours more, even if ticks come in bursts.
    #[test]
    fn what_may_be_run_late_is_remembered() {
        for expression in ["*/5 9 * * *", "0,1 0 1 * *", "* * * * MON", "0 9-17 * * MON-FRI"] {
            let schedule = Schedule::parse(expression).unwrap();
            let [from, until] =
                ["2026-11-01T00:00:00Z", "2026-12-31T00:00:00Z"].map(|at| at.parse().unwrap());
            let ticks: Vec<_> = schedule.between(from, until).take(2 * MISSED_MAX).collect();
            for ticks in ticks.windows(MISSED_MAX + 1) {
                let last = ticks[MISSED_MAX].second_before();
                assert!(ticks[0].until(last) + APART <= remembered(&schedule, ticks[0]), "{expression}");
            }
        }
    }
}
