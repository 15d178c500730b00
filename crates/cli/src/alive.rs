//! Does a holder renew on time?
//!
//! A store shows how much of a lease is left, not when it was last renewed. But a holder at work renews after a third
//! of its ttl (after a minute, if that is sooner), so at any look at least two thirds of the ttl are left, and the next
//! renewal comes before a third of *that* has passed. Whoever watches until half is gone, or a little over a minute,
//! has either seen a renewal or a holder that is late: dead, stopped, cut off, or one that never renews.

use std::{future::Future, time::Duration};

use leasehold::{Clock as _, FencingToken, HeldBy, Snapshot, SystemClock, Timestamp};

use crate::{exit::Failure, view};

/// What was seen of a holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sign {
    /// It renewed while it was watched: it is alive.
    Renewed { after: Duration },
    /// It should have renewed by now.
    Silent { watched: Duration },
    /// It is being evicted, and so cannot renew: nothing can be seen.
    Hidden,
    /// Nobody is there; the resource stays closed for a while.
    Kept,
    /// It does not hold the resource, or no longer.
    Gone,
}

/// When it would end, as seen at one look: somewhere between these two.
#[derive(Clone, Copy, Debug)]
struct Seen {
    earliest: Timestamp,
    latest: Timestamp,
    remaining: Duration,
}

impl Seen {
    /// The store reckoned `remaining` somewhere between sending and receiving.
    fn new(sent: Timestamp, received: Timestamp, remaining: Duration) -> Seen {
        Seen { earliest: sent.after(remaining), latest: received.after(remaining), remaining }
    }

    /// Whether it will end later than it was going to: only a renewal does that.
    fn is_later_than(&self, first: &Seen) -> bool {
        // Some stores count in whole seconds; the least that a renewal adds is far more than this.
        let noise = (first.remaining / 20).clamp(Duration::from_millis(10), Duration::from_secs(1));
        self.earliest > first.latest.after(noise)
    }
}

/// How long to watch a holder that has this much left.
pub(crate) fn patience(remaining: Duration) -> Duration {
    (remaining / 2).min(Duration::from_secs(66))
}

/// Watches the holder with this token until it is known whether it renews on time.
pub(crate) async fn watch<L>(token: FencingToken, look: impl Fn() -> L) -> Result<Sign, Failure>
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
            None => return Ok(Sign::Gone),
            Some(HeldBy { kept: true, .. }) => return Ok(Sign::Kept),
            Some(HeldBy { evicting: true, .. }) => return Ok(Sign::Hidden),
            Some(held) => held.remaining,
        };
        let seen = Seen::new(sent, now, remaining);
        let first = first.get_or_insert(seen);
        let watched = began.until(now);
        if seen.is_later_than(first) {
            return Ok(Sign::Renewed { after: watched });
        }
        let left = patience(first.remaining).saturating_sub(watched);
        if left.is_zero() {
            return Ok(Sign::Silent { watched });
        }
        let step = (first.remaining / 20).clamp(Duration::from_millis(20), Duration::from_secs(1));
        tokio::time::sleep(step.min(left)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1000;

    fn seen(sent: u64, received: u64, remaining: u64) -> Seen {
        let at = |millis: u64| Timestamp::from_nanos(millis * 1_000_000);
        Seen::new(at(sent), at(received), Duration::from_millis(remaining))
    }

    #[test]
    fn only_a_renewal_makes_an_end_later() {
        let first = seen(0, 10, 20 * SECOND);
        assert!(!seen(5000, 5010, 15 * SECOND).is_later_than(&first));
        assert!(!seen(5000, 7000, 15 * SECOND).is_later_than(&first), "a slow answer");
        assert!(!seen(5000, 5010, 15 * SECOND + 900).is_later_than(&first), "a coarse clock");
        assert!(seen(5000, 5010, 30 * SECOND).is_later_than(&first));
        let hour = seen(0, 10, 3600 * SECOND);
        assert!(seen(30_000, 30_010, 3600 * SECOND).is_later_than(&hour), "an hour, renewed each minute");
    }

    /// For every ttl and every moment between two renewals: the next one comes while we watch.
    #[test]
    fn a_holder_on_time_is_always_seen_to_renew() {
        for ttl in [300, 1000, 30 * SECOND, 180 * SECOND, 600 * SECOND, 86_400 * SECOND] {
            let every = (ttl / 3).min(60 * SECOND);
            for since_renewal in (0..=every).step_by((every / 97).max(1) as usize) {
                let next_in = every - since_renewal;
                let watched = patience(Duration::from_millis(ttl - since_renewal));
                assert!(Duration::from_millis(next_in) < watched, "ttl {ttl}, {since_renewal} after");
            }
        }
    }
}
