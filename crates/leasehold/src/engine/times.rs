//! The times of a lease: when to renew it, when its holder must stop, and when another claim may be granted.
//!
//! This is the only place that computes them. [`LeaseTimes::of`] is called when a lease or a queue place starts to be
//! watched, and by the watchdog for each successful renewal. A [`HeldLease`](super::held_lease::HeldLease) keeps a copy,
//! [`PublishedTimes`], so that `check` can read the times without a lock.
//!
//! With a ttl of 30 s and a request sent at 0 s:
//!
//! ```text
//!  sent          renew                         stop          deadline   end at the backend
//!   0 s           10 s                        24.7 s          29.7 s        30 s
//!   ├─── ttl/3 ────┤                            ├─── ttl/6 ─────┤── margin ──┤
//! ```

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use leasehold_core::{Timestamp, WallTime};
pub(crate) use leasehold_support::gather::SendTime;

/// The times of one lease or queue place. All of them count from the moment *before* the request was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeaseTimes {
    /// When to renew.
    pub(crate) renew_at: Timestamp,
    /// When the holder must stop unless a renewal succeeds: a sixth of the ttl before the deadline (ADR 0005).
    pub(crate) stop_at: Timestamp,
    /// Until when no other claim can be granted. After this, the backend may grant another one.
    pub(crate) deadline: Timestamp,
}

impl LeaseTimes {
    /// The longest time between two renewals. A long lease is renewed this often too, so that the holder learns of an
    /// eviction or a finish request soon.
    const RENEW_EVERY_MAX: Duration = Duration::from_secs(60);
    /// The fixed part of the safety margin, for a ttl so short that 1 % of it is almost nothing.
    const MARGIN_MIN: Duration = Duration::from_millis(2);

    /// `remaining` is what was left of the lease when the backend executed a request that was *sent* at `sent`.
    ///
    /// Nothing counts from the arrival of the reply: it may have waited in a buffer while this process was stopped.
    pub(crate) fn of(sent: Timestamp, remaining: Duration, ttl: Duration) -> LeaseTimes {
        // The margin covers clocks that run at different speeds. A lease that was shortened still lasts for all of
        // `remaining`, so the clocks drift apart for that long: hence the longer of the two.
        let margin = ttl.max(remaining) / 100 + LeaseTimes::MARGIN_MIN;
        let deadline = sent.after(remaining.saturating_sub(margin));
        // A reply to a repeated acquire may report a grant that is some time old. Its renewal is due that much sooner.
        let age = ttl.saturating_sub(remaining);
        let renew_at = sent.after(LeaseTimes::renew_every(ttl)).before(age).max(sent);
        LeaseTimes { renew_at, stop_at: deadline.before(LeaseTimes::stop_before_deadline(ttl)), deadline }
    }

    /// How often a lease is renewed: every third of its ttl, at least once a minute.
    pub(crate) fn renew_every(ttl: Duration) -> Duration {
        (ttl / 3).min(LeaseTimes::RENEW_EVERY_MAX)
    }

    /// How long before its deadline a holder must stop: a sixth of the ttl (ADR 0005).
    pub(crate) fn stop_before_deadline(ttl: Duration) -> Duration {
        ttl / 6
    }

    /// How long a renewal may take. Less than a third of the ttl, so that a failed one can be repeated in time.
    pub(crate) fn renewal_timeout(ttl: Duration) -> Duration {
        ttl * 3 / 10
    }

    /// Whether a renewal that was sent at this moment was late: half of the ttl had passed by then.
    ///
    /// The stop comes at about five sixths of the ttl, so half of it is a third of the ttl before the stop.
    pub(crate) fn is_late(&self, sent: Timestamp, ttl: Duration) -> bool {
        self.stop_at.before(ttl / 3) < sent
    }
}

/// The copy of a lease's times that `check` and `state` read without a lock. `deadline` and `stop_at` never move back.
#[derive(Debug, Default)]
pub(crate) struct PublishedTimes {
    deadline: AtomicU64,
    stop_at: AtomicU64,
    /// `stop_at` by the calendar clock, in microseconds. Both are of the same reply: a later calendar time of an earlier
    /// reply may come from a clock that has been set back since, and would hide a freeze of the machine.
    wall_stop_at: AtomicU64,
    publishing: Mutex<()>,
}

impl PublishedTimes {
    /// Publishes the times that follow from a reply to a request that was sent at `sent`.
    pub(crate) fn publish(&self, times: LeaseTimes, sent: SendTime) {
        let _publishing = self.publishing.lock().unwrap_or_else(PoisonError::into_inner);
        self.deadline.fetch_max(times.deadline.as_nanos(), Ordering::AcqRel);
        if times.stop_at < self.stop_at() {
            return;
        }
        // Before `stop_at`: who reads the new `stop_at` must not compare with the old calendar time.
        let wall_stop_at = sent.wall.after(sent.at.until(times.stop_at));
        self.wall_stop_at.store(wall_stop_at.as_micros(), Ordering::Release);
        self.stop_at.store(times.stop_at.as_nanos(), Ordering::Release);
    }

    pub(crate) fn deadline(&self) -> Timestamp {
        Timestamp::from_nanos(self.deadline.load(Ordering::Acquire))
    }

    pub(crate) fn stop_at(&self) -> Timestamp {
        Timestamp::from_nanos(self.stop_at.load(Ordering::Acquire))
    }

    /// Whether the stop has passed by the calendar clock.
    pub(crate) fn is_stopped_by_wall(&self, wall: WallTime) -> bool {
        wall.as_micros() >= self.wall_stop_at.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(30);
    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn times_count_from_the_send_and_from_what_remains() {
        let times = LeaseTimes::of(at(100), TTL, TTL);
        assert_eq!(times.renew_at, at(110));
        assert_eq!(times.deadline, at(100).after(Duration::from_millis(29_698)));
        assert_eq!(times.stop_at, times.deadline.before(Duration::from_secs(5)));
        // Asked again 12 s after the grant: the rest of the lease is shorter, and a renewal is overdue.
        let rest = LeaseTimes::of(at(112), Duration::from_secs(18), TTL);
        assert_eq!((rest.deadline, rest.renew_at), (times.deadline, at(112)));
        // Shortened to 1 s with 29 s left: the margin is computed from the 29 s.
        let short = Duration::from_secs(1);
        let shortened = LeaseTimes::of(at(0), Duration::from_secs(29), short);
        assert_eq!(shortened.deadline, at(29).before(Duration::from_millis(292)));
        // A long lease is renewed every minute too.
        let day = Duration::from_secs(86_400);
        assert_eq!(LeaseTimes::of(at(0), day, day).renew_at, at(60));
    }

    #[test]
    fn the_calendar_time_is_of_the_reply_that_lasts_longest() {
        let published = PublishedTimes::default();
        let publish = |sent: u64, wall: u64, stop: u64| {
            let times = LeaseTimes { renew_at: at(sent), stop_at: at(stop), deadline: at(stop + 5) };
            published
                .publish(times, SendTime { at: at(sent), wall: WallTime::from_micros(wall * 1_000_000) });
        };
        let stops = |wall: u64| {
            let stopped = |wall| published.is_stopped_by_wall(WallTime::from_micros(wall * 1_000_000));
            assert_eq!((stopped(wall - 1), stopped(wall)), (false, true));
        };
        publish(100, 4100, 125);
        stops(4125);
        // The clock was set back by an hour.
        publish(110, 510, 135);
        stops(535);
        // A reply that gives less, as after a freeze of 20 s, which only the calendar clock shows: nothing gets later.
        publish(111, 531, 120);
        stops(535);
        assert_eq!((published.stop_at(), published.deadline()), (at(135), at(140)));
        // A reply that is late, and lasts longer than the newer one.
        publish(109, 509, 140);
        stops(540);
    }

    #[test]
    fn a_renewal_is_late_once_half_of_the_ttl_has_passed() {
        let times = LeaseTimes::of(at(0), TTL, TTL);
        assert!(!times.is_late(at(14), TTL));
        assert!(times.is_late(at(15), TTL));
    }
}
