//! Finding out whether a holder renews its lease on time.
//!
//! A store shows how much of a lease is left, not when it was last renewed. But a holder at work renews after
//! a third of its ttl (after a minute, if that is sooner). So:
//!
//! 1. At any time, at least two thirds of the ttl are left, and the next renewal comes before a third of the
//!    ttl has passed: that is at most half of what is left.
//! 2. [`observe`] looks until half of the remaining time of the first look has passed, or a little over a
//!    minute.
//! 3. Until then either the end of the lease has moved (the holder renewed: it is alive), or the holder is
//!    late: it is dead, stopped, cut off, or never renews by design.

use std::{future::Future, time::Duration};

use leasehold::{Clock as _, FencingToken, HeldBy, Snapshot, SystemClock, Timestamp};

use crate::{exit::Failure, view};

/// What observing a holder has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Liveness {
    /// The holder renewed while it was observed: it is alive.
    Renewed { after: Duration },
    /// The holder did not renew, and should have.
    Silent { watched: Duration },
    /// The holder is being evicted. It cannot renew, so whether it is alive is unknown.
    Evicting,
    /// The holder has released the resource, and the resource stays closed for a while.
    Kept,
    /// The token does not hold the resource, or not any more.
    Gone,
}

/// When the lease will end, by one look at the store: between `earliest` and `latest` on our clock.
#[derive(Clone, Copy, Debug)]
struct ExpiryEstimate {
    earliest: Timestamp,
    latest: Timestamp,
    remaining: Duration,
}

impl ExpiryEstimate {
    /// The store computed `remaining` at some time between `sent` and `received`.
    fn new(sent: Timestamp, received: Timestamp, remaining: Duration) -> ExpiryEstimate {
        ExpiryEstimate { earliest: sent.after(remaining), latest: received.after(remaining), remaining }
    }

    /// Whether the lease was renewed since the first look: it will end later. A lease that has lost its expiry gets one again with
    /// its next renewal.
    fn was_renewed_since(&self, first: &ExpiryEstimate) -> bool {
        match (view::has_end(first.remaining), view::has_end(self.remaining)) {
            (true, true) => self.is_later_than(first),
            (had_end, has_end) => has_end && !had_end,
        }
    }

    /// Whether the lease will end later than the first look showed. Only a renewal moves the end.
    fn is_later_than(&self, first: &ExpiryEstimate) -> bool {
        // Some stores count in whole seconds. Every renewal adds far more than this noise.
        let noise = (first.remaining / 20).clamp(Duration::from_millis(10), Duration::from_secs(1));
        self.earliest > first.latest.after(noise)
    }
}

/// Holders renew at least once a minute, whatever their ttl; this is a minute and a tenth.
const WATCH_MAX: Duration = Duration::from_secs(66);

/// How long to observe a holder whose lease has this much left.
pub(crate) fn watch_limit(remaining: Duration) -> Duration {
    (remaining / 2).min(WATCH_MAX)
}

/// Holders renew after a third of their ttl, and at least this often.
const RENEW_EVERY_MAX: Duration = Duration::from_secs(60);

/// Whether a renewal of this holder was overdue when it was evicted, this long ago. Since then it cannot renew,
/// dead or alive. False if its ttl is not known.
pub(crate) fn was_overdue(held: &HeldBy, evicted_ago: Duration) -> bool {
    let Some(ttl) = held.ttl else { return false };
    let silent_before = ttl.saturating_sub(held.remaining).saturating_sub(evicted_ago);
    let renew_every = (ttl / 3).min(RENEW_EVERY_MAX);
    // A twentieth for clocks and slow replies. It is less than the tenth that `observe` waits in addition.
    silent_before > renew_every + renew_every / 20
}

/// Observes the holder with this token until it is known whether it renews on time. `look` reads the
/// resource; `progress` gets the longest time that this still takes.
pub(crate) async fn observe<L>(
    token: FencingToken,
    look: impl Fn() -> L,
    mut progress: impl FnMut(Duration),
) -> Result<Liveness, Failure>
where
    L: Future<Output = Result<Snapshot, Failure>>,
{
    let began = SystemClock.now();
    let mut first = None;
    loop {
        let sent = SystemClock.now();
        let snapshot = look().await?;
        let now = SystemClock.now();
        let remaining = match view::find(&snapshot, token) {
            None => return Ok(Liveness::Gone),
            Some(HeldBy { kept: true, .. }) => return Ok(Liveness::Kept),
            Some(HeldBy { evicting: true, .. }) => return Ok(Liveness::Evicting),
            Some(held) => held.remaining,
        };
        let estimate = ExpiryEstimate::new(sent, now, remaining);
        let first = first.get_or_insert(estimate);
        let watched = began.until(now);
        if estimate.was_renewed_since(first) {
            return Ok(Liveness::Renewed { after: watched });
        }
        let left = watch_limit(first.remaining).saturating_sub(watched);
        if left.is_zero() {
            return Ok(Liveness::Silent { watched });
        }
        progress(left);
        let step = (first.remaining / 20).clamp(Duration::from_millis(20), Duration::from_secs(1));
        tokio::time::sleep(step.min(left)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1000;

    fn estimate(sent: u64, received: u64, remaining: u64) -> ExpiryEstimate {
        let at = |millis: u64| Timestamp::from_nanos(millis * 1_000_000);
        ExpiryEstimate::new(at(sent), at(received), Duration::from_millis(remaining))
    }

    #[test]
    fn only_a_renewal_moves_the_end_of_a_lease() {
        let first = estimate(0, 10, 20 * SECOND);
        assert!(!estimate(5000, 5010, 15 * SECOND).is_later_than(&first));
        assert!(!estimate(5000, 7000, 15 * SECOND).is_later_than(&first), "a slow reply");
        assert!(!estimate(5000, 5010, 15 * SECOND + 900).is_later_than(&first), "a coarse clock");
        assert!(estimate(5000, 5010, 30 * SECOND).is_later_than(&first));
        let hour = estimate(0, 10, 3600 * SECOND);
        assert!(estimate(30_000, 30_010, 3600 * SECOND).is_later_than(&hour), "an hour, renewed each minute");
    }

    #[test]
    fn a_lease_without_an_end_was_not_renewed_until_it_has_one() {
        let (endless, ends) = (estimate(0, 10, 365 * 86_400 * SECOND), estimate(0, 10, 20 * SECOND));
        assert!(!estimate(5000, 5010, 365 * 86_400 * SECOND).was_renewed_since(&endless));
        assert!(estimate(5000, 5010, 30 * SECOND).was_renewed_since(&endless));
        assert!(!estimate(5000, 5010, 365 * 86_400 * SECOND).was_renewed_since(&ends), "it lost its expiry");
        assert!(estimate(5000, 5010, 30 * SECOND).was_renewed_since(&ends));
    }

    #[test]
    fn an_evicted_holder_is_dead_if_it_was_overdue_before() {
        let holder = std::sync::Arc::new(leasehold::Holder::new("h", 1, ""));
        let mut held = HeldBy::new(holder, FencingToken::new(1).unwrap(), 1);
        let seconds = Duration::from_secs;
        held.remaining = seconds(7000);
        assert!(!was_overdue(&held, Duration::ZERO), "its ttl is not known");
        held.ttl = Some(seconds(7200));
        assert!(was_overdue(&held, seconds(100)), "it had not renewed for 100 s when it was evicted");
        assert!(!was_overdue(&held, seconds(150)), "it could have renewed ten seconds later");
        // It was watched as `evict` does it, and evicted at the end.
        for silent in [0, 5, 59] {
            held.remaining = seconds(7200 - silent) - watch_limit(seconds(7200 - silent));
            assert!(was_overdue(&held, Duration::ZERO), "{silent}");
        }
    }

    /// For every ttl and every time between two renewals: the next renewal comes within the watch limit.
    #[test]
    fn a_holder_on_time_is_always_seen_to_renew() {
        for ttl in [300, 1000, 30 * SECOND, 180 * SECOND, 600 * SECOND, 86_400 * SECOND] {
            let every = (ttl / 3).min(60 * SECOND);
            for since_renewal in (0..=every).step_by((every / 97).max(1) as usize) {
                let next_in = every - since_renewal;
                let watched = watch_limit(Duration::from_millis(ttl - since_renewal));
                assert!(Duration::from_millis(next_in) < watched, "ttl {ttl}, {since_renewal} after");
            }
        }
    }
}
