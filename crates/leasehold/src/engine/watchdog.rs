//! The watchdog decides which lease to renew when, and when to stop one. It is pure: it takes `now` and returns what to
//! do. The [driver](super::driver) does it.
//!
//! 1. Every lease and every queue place that is kept alive has one entry: its [times](LeaseTimes), and its next event
//!    (`due`), which is a renewal or the stop.
//! 2. [`Watchdog::step`] takes the entries that are due, earliest first. An entry whose stop has come is removed and
//!    returned as [`WatchdogAction::Stop`]: a lease that was stopped is never renewed again. Any other entry is returned
//!    as [`WatchdogAction::Renew`] and marked `in_flight`; until the reply comes, its next event is the stop.
//! 3. When the reply comes, [`Watchdog::renewed`] computes new times, or [`Watchdog::failed`] plans the next try after a
//!    backoff that fits the ttl. Failed renewals are repeated until the stop (ADR 0005).
//! 4. `step` returns how long the driver sleeps: until the next event, but no longer than its rhythm
//!    ([`rhythm`], ADR 0043). The rhythm goes on for a while after the last entry has left, so leases that come and go
//!    wake nobody. Only an event that comes before the driver's next look at the clock reports that it must be woken.
//!
//! Entries are in a slab, and their events in an ordered set: exact, and cheap enough. A heap with lazy deletion would
//! collect garbage, and a timer wheel pays off only from about a million leases.

mod rhythm;

use std::{collections::BTreeSet, time::Duration};

use leasehold_core::{Backoff, Timestamp, backoff::jitter};
use slab::Slab;

use self::rhythm::{CLOCK_CHECK_EVERY, Rhythm};
use super::times::LeaseTimes;

/// Given instead of a random number: renew at the planned time, without jitter.
const NO_JITTER: u64 = u64::MAX;

/// Identifies an entry. A slot that is used again has another generation, so an old key finds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct WatchKey {
    slot: u32,
    generation: u32,
}

/// The driver's handle to a lease or to a queue place.
pub(crate) trait Watched: Clone {
    /// When it must stop although it could be renewed: `max_hold` has passed, or there was no progress.
    fn hard_limit(&self) -> Timestamp;
}

/// What [`Watchdog::watch`] is to keep alive.
#[derive(Debug)]
pub(crate) struct ToWatch<H> {
    pub(crate) handle: H,
    pub(crate) times: LeaseTimes,
    pub(crate) ttl: Duration,
    /// False: it is only stopped in time.
    pub(crate) renews: bool,
}

#[derive(Debug)]
struct WatchEntry<H> {
    handle: H,
    times: LeaseTimes,
    ttl: Duration,
    /// When its next event is due: its position in `Watchdog::events`.
    due: Timestamp,
    generation: u32,
    failures: u16,
    /// A renewal was sent and is not answered yet.
    in_flight: bool,
    renews: bool,
}

/// The leases and queue places that a client keeps alive.
#[derive(Debug)]
pub(crate) struct Watchdog<H> {
    entries: Slab<WatchEntry<H>>,
    /// The next event of each entry: when, and the slot.
    events: BTreeSet<(Timestamp, u32)>,
    generation: u32,
    rhythm: Rhythm,
    /// The driver reads the clock within this time, counted from any moment until the next `step`: it is asleep for so
    /// long at most. Time of a suspend does not count: timers stop while a machine is suspended. Zero: it was woken.
    reads_clock_within: Duration,
}

/// What the driver has to do.
#[derive(Debug, PartialEq)]
pub(crate) enum WatchdogAction<H> {
    /// Renew it for this ttl.
    Renew(WatchKey, H, Duration),
    /// End it. It is not watched any more.
    Stop(H),
}

/// A successful reply to a renewal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RenewalReply {
    /// When the request was sent.
    pub(crate) sent: Timestamp,
    /// When the reply came.
    pub(crate) received: Timestamp,
    /// What was left of the lease when the backend executed the request.
    pub(crate) remaining: Duration,
    /// The ttl from now on, if the caller changed it.
    pub(crate) new_ttl: Option<Duration>,
}

/// The result of a successful renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RenewalRecord {
    /// The new times; `None` if the reply to a later request came first, so that nothing changes.
    pub(crate) times: Option<LeaseTimes>,
    /// How long before the stop the reply came.
    pub(crate) margin: Duration,
    /// Half of the ttl had passed when the renewal was sent.
    pub(crate) late: bool,
    /// The driver must be woken.
    pub(crate) wake: bool,
}

/// The result of a failed renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FailureRecord {
    /// How many renewals failed in a row.
    pub(crate) failures: u32,
    /// How long until the lease must stop.
    pub(crate) left: Duration,
    /// The driver must be woken.
    pub(crate) wake: bool,
}

impl<H: Watched> Watchdog<H> {
    pub(crate) fn new() -> Watchdog<H> {
        let (entries, events) = (Slab::new(), BTreeSet::new());
        // The driver makes its first step when its task starts.
        Watchdog { entries, events, generation: 0, rhythm: Rhythm::new(), reads_clock_within: Duration::ZERO }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Adds an entry. Returns its key, and whether the driver must be woken.
    pub(crate) fn watch(&mut self, to_watch: ToWatch<H>, now: Timestamp, random: u64) -> (WatchKey, bool) {
        let ToWatch { handle, times, ttl, renews } = to_watch;
        self.generation = self.generation.wrapping_add(1);
        let generation = self.generation;
        let due = times.stop_at;
        let mut entry =
            WatchEntry { handle, times, ttl, due, generation, failures: 0, in_flight: false, renews };
        entry.due = entry.next_event(random);
        let due = entry.due;
        let slot = u32::try_from(self.entries.insert(entry)).expect("fewer than 2^32 leases");
        self.events.insert((due, slot));
        self.rhythm.watched(now.until(due));
        (WatchKey { slot, generation }, self.must_wake(due, now))
    }

    /// Removes an entry. The handle is returned so that the caller drops it outside of its lock.
    pub(crate) fn forget(&mut self, key: WatchKey) -> Option<H> {
        self.live(key)?;
        let entry = self.entries.remove(key.slot as usize);
        self.events.remove(&(entry.due, key.slot));
        Some(entry.handle)
    }

    /// Takes what is due, earliest first, at most `batch` actions. Returns how long the driver may sleep.
    ///
    /// Once one renewal is due, renewals that are due shortly after go with it: fewer and larger calls.
    pub(crate) fn step(
        &mut self,
        now: Timestamp,
        batch: usize,
        out: &mut Vec<WatchdogAction<H>>,
    ) -> Duration {
        let mut renewing = false;
        while let Some(&(due, slot)) = self.events.first()
            && out.len() < batch
        {
            let entry = &mut self.entries[slot as usize];
            let soon = now.after(entry.slack());
            let renewable = entry.is_renewed_next() && entry.times.renew_at <= soon;
            if due > now && !(renewing && renewable) {
                break;
            }
            self.events.pop_first();
            if now >= entry.stop() {
                // Removed here, so that a lease that was stopped is never renewed again.
                let entry = self.entries.remove(slot as usize);
                out.push(WatchdogAction::Stop(entry.handle));
                continue;
            }
            if renewable {
                (entry.in_flight, renewing) = (true, true);
                let key = WatchKey { slot, generation: entry.generation };
                out.push(WatchdogAction::Renew(key, entry.handle.clone(), entry.ttl));
            }
            entry.due = entry.next_event(NO_JITTER);
            self.events.insert((entry.due, slot));
        }
        let next = self.events.first().map_or(Timestamp::NEVER, |&(due, _)| due);
        self.reads_clock_within =
            now.until(next).min(self.rhythm.sleep_at_most(now, self.entries.is_empty()));
        self.reads_clock_within
    }

    /// Records a successful renewal. `None` if the entry is not watched any more.
    ///
    /// The request may have asked for another ttl than the lease has by now. What counts is `remaining`.
    pub(crate) fn renewed(
        &mut self,
        key: WatchKey,
        reply: RenewalReply,
        random: u64,
    ) -> Option<RenewalRecord> {
        let entry = self.live(key)?;
        entry.ttl = reply.new_ttl.unwrap_or(entry.ttl);
        let margin = reply.received.until(entry.times.stop_at);
        let late = entry.times.is_late(reply.sent, entry.ttl);
        (entry.in_flight, entry.failures) = (false, 0);
        let times = LeaseTimes::of(reply.sent, reply.remaining, entry.ttl);
        // Replies may overtake each other. A deadline never moves back.
        let advances = times.deadline >= entry.times.deadline;
        if advances {
            entry.times = times;
        } else {
            entry.times.renew_at = times.renew_at;
        }
        let times = advances.then_some(times);
        Some(RenewalRecord { times, margin, late, wake: self.reschedule(key, reply.received, random) })
    }

    /// Records a failed renewal, and plans the next try. `None` if the entry is not watched any more.
    pub(crate) fn failed(&mut self, key: WatchKey, now: Timestamp, random: u64) -> Option<FailureRecord> {
        let entry = self.live(key)?;
        let pause = entry.retry_backoff().next(random);
        entry.failures = entry.failures.saturating_add(1);
        entry.in_flight = false;
        entry.times.renew_at = now.after(pause);
        let (failures, left) = (entry.failures.into(), now.until(entry.times.stop_at));
        Some(FailureRecord { failures, left, wake: self.reschedule(key, now, NO_JITTER) })
    }

    /// Stops renewing an entry: it runs out, and its holder is told to stop in time. Its next event is later than the
    /// renewal that was planned, so the driver need not be woken.
    pub(crate) fn let_run_out(&mut self, key: WatchKey) {
        if let Some(entry) = self.live(key) {
            entry.renews = false;
            self.move_event(key, NO_JITTER);
        }
    }

    fn live(&mut self, key: WatchKey) -> Option<&mut WatchEntry<H>> {
        self.entries.get_mut(key.slot as usize).filter(|entry| entry.generation == key.generation)
    }

    /// Plans the next event of an entry. Says whether the driver must be woken.
    fn reschedule(&mut self, key: WatchKey, now: Timestamp, random: u64) -> bool {
        let due = self.move_event(key, random);
        self.must_wake(due, now)
    }

    fn move_event(&mut self, key: WatchKey, random: u64) -> Timestamp {
        let entry = &mut self.entries[key.slot as usize];
        let due = entry.next_event(random);
        let old = std::mem::replace(&mut entry.due, due);
        self.events.remove(&(old, key.slot));
        self.events.insert((due, key.slot));
        due
    }

    /// Whether the driver must be woken for this event. If so, it counts as woken.
    ///
    /// It must read the clock before the event, and within [`CLOCK_CHECK_EVERY`]. Its next look is compared as a time
    /// from now and not as a time of the clock: if the machine was suspended meanwhile, the driver sleeps longer than
    /// it knows.
    fn must_wake(&mut self, due: Timestamp, now: Timestamp) -> bool {
        let wake = now.until(due).min(CLOCK_CHECK_EVERY) < self.reads_clock_within;
        if wake {
            self.reads_clock_within = Duration::ZERO;
        }
        wake
    }
}

impl<H: Watched> WatchEntry<H> {
    /// The longest time by which a renewal is moved forward to go with others.
    const SLACK_MAX: Duration = Duration::from_millis(500);

    fn is_renewed_next(&self) -> bool {
        self.renews && !self.in_flight
    }

    fn stop(&self) -> Timestamp {
        self.times.stop_at.min(self.handle.hard_limit())
    }

    /// How much earlier than planned it may be renewed, to go with others.
    fn slack(&self) -> Duration {
        (self.ttl / 60).min(Self::SLACK_MAX)
    }

    /// The pause before the next try. At most a twelfth of the ttl: half of it passes between the first renewal and the
    /// stop, and several tries must fit into that.
    fn retry_backoff(&self) -> Backoff {
        Backoff::at_most(self.ttl / 12).after(self.failures.into())
    }

    /// When the next event is due. Moves a renewal forward by up to a tenth of its interval, so that leases that were
    /// taken together do not all renew together.
    fn next_event(&mut self, random: u64) -> Timestamp {
        let stop = self.stop();
        if !self.is_renewed_next() {
            return stop;
        }
        if random != NO_JITTER {
            let early = LeaseTimes::renew_every(self.ttl) / 10;
            self.times.renew_at = self.times.renew_at.before(jitter(early, random));
        }
        stop.min(self.times.renew_at)
    }
}

#[cfg(test)]
mod tests;
