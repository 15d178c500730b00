//! How long the claim of a tick stays (ADR 0029).

use std::time::Duration;

use super::{expression::Schedule, tick_time::TickTime};

/// The most missed ticks that are ever run late. This bound is why it is known how long a claim matters.
pub(super) const MISSED_MAX: usize = 100;

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);
/// The clocks of two machines may differ by less than this.
const CLOCK_DIFFERENCE_MAX: Duration = Duration::from_secs(6 * 3600);
/// No claim stays for longer.
const RETENTION_MAX: Duration = Duration::from_secs(3650 * 86_400);

/// How long the claim of a tick stays: the longest of
///
/// 1. until [`MISSED_MAX`] ticks have followed, because no machine runs it late after that, plus the
///    difference that clocks may have;
/// 2. three days for the first tick of an hour, and sixty days for the first tick of a day. So `reports` can
///    show a job that has stopped, and missed ticks can be found.
pub(super) fn claim_retention(schedule: &Schedule, at: TickTime) -> Duration {
    let horizon = at.after(RETENTION_MAX);
    let too_late = schedule.between(at, horizon).nth(MISSED_MAX - 1).unwrap_or(horizon);
    let before = schedule.last_until(at.second_before());
    let is_first_of = |span: Duration| before.is_none_or(|before| before.index_of(span) < at.index_of(span));
    let for_reports = if is_first_of(DAY) {
        DAY * 60
    } else if is_first_of(HOUR) {
        DAY * 3
    } else {
        Duration::ZERO
    };
    for_reports.max(at.until(too_late) + CLOCK_DIFFERENCE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn days(expression: &str, at: &str) -> u64 {
        let schedule = Schedule::parse(expression).unwrap();
        claim_retention(&schedule, at.parse().unwrap()).as_secs() / 86_400
    }

    #[test]
    fn a_claim_stays_for_a_hundred_ticks_and_some_claims_for_longer() {
        assert_eq!(days("* * * * *", "2026-11-16T10:07:00Z"), 0);
        assert_eq!(days("* * * * *", "2026-11-16T10:00:00Z"), 3);
        assert_eq!(days("* * * * *", "2026-11-16T00:00:00Z"), 60);
        assert_eq!(days("0 * * * *", "2026-11-16T10:00:00Z"), 4);
        assert_eq!(days("0 9 * * *", "2026-11-16T09:00:00Z"), 100);
        assert_eq!(days("0 9 1 * *", "2026-11-01T09:00:00Z"), 3042);
        for rare in ["@yearly", "0 0 29 2 *"] {
            assert_eq!(days(rare, "2028-02-29T00:00:00Z"), 3650, "{rare}");
        }
    }

    /// A claim stays for as long as its tick may still run late, and six hours more, also if ticks come in
    /// bursts.
    #[test]
    fn what_may_be_run_late_is_claim_retention() {
        for expression in ["*/5 9 * * *", "0,1 0 1 * *", "* * * * MON", "0 9-17 * * MON-FRI"] {
            let schedule = Schedule::parse(expression).unwrap();
            let [from, until] =
                ["2026-11-01T00:00:00Z", "2026-12-31T00:00:00Z"].map(|at| at.parse().unwrap());
            let ticks: Vec<_> = schedule.between(from, until).take(2 * MISSED_MAX).collect();
            for ticks in ticks.windows(MISSED_MAX + 1) {
                let last = ticks[MISSED_MAX].second_before();
                assert!(
                    ticks[0].until(last) + CLOCK_DIFFERENCE_MAX <= claim_retention(&schedule, ticks[0]),
                    "{expression}"
                );
            }
        }
    }
}
