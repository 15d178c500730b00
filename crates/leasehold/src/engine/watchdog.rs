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
//! 4. `step` returns when the next event is due, and the driver sleeps until then. A change that makes an *earlier* event
//!    reports that the driver must be woken; a later event never wakes it.
//!
//! Entries are in a slab, and their events in an ordered set: exact, and cheap enough. A heap with lazy deletion would
//! collect garbage, and a timer wheel pays off only from about a million leases.

use std::{collections::BTreeSet, time::Duration};

use leasehold_core::{Backoff, Timestamp, backoff::jitter};
use slab::Slab;

use super::times::LeaseTimes;

/// While anything is watched, the driver reads the clock at least this often: timers stop while a machine is suspended,
/// the clock does not.
pub(crate) const CLOCK_CHECK_EVERY: Duration = Duration::from_secs(1);

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
    /// What the driver sleeps until. An earlier event must wake it, a later one must not.
    sleeping_until: Timestamp,
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
        Watchdog { entries, events, generation: 0, sleeping_until: Timestamp::NEVER }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Adds an entry. Returns its key, and whether the driver must be woken.
    pub(crate) fn watch(&mut self, to_watch: ToWatch<H>, random: u64) -> (WatchKey, bool) {
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
        // After a suspend the driver sleeps up to a second longer than it knows. That is too long for a short lease.
        let short = ttl / 3 <= CLOCK_CHECK_EVERY;
        (WatchKey { slot, generation }, self.is_earlier(due) || short)
    }

    /// Removes an entry. The handle is returned so that the caller drops it outside of its lock.
    pub(crate) fn forget(&mut self, key: WatchKey) -> Option<H> {
        self.live(key)?;
        let entry = self.entries.remove(key.slot as usize);
        self.events.remove(&(entry.due, key.slot));
        Some(entry.handle)
    }

    /// Takes what is due, earliest first, at most `batch` actions. Returns when the next event is due.
    ///
    /// Once one renewal is due, renewals that are due shortly after go with it: fewer and larger calls.
    pub(crate) fn step(
        &mut self,
        now: Timestamp,
        batch: usize,
        out: &mut Vec<WatchdogAction<H>>,
    ) -> Timestamp {
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
        self.sleeping_until = self.events.first().map_or(Timestamp::NEVER, |&(due, _)| due);
        self.sleeping_until
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
        Some(RenewalRecord { times, margin, late, wake: self.reschedule(key, random) })
    }

    /// Records a failed renewal, and plans the next try. `None` if the entry is not watched any more.
    pub(crate) fn failed(&mut self, key: WatchKey, now: Timestamp, random: u64) -> Option<FailureRecord> {
        let entry = self.live(key)?;
        let pause = entry.retry_backoff().next(random);
        entry.failures = entry.failures.saturating_add(1);
        entry.in_flight = false;
        entry.times.renew_at = now.after(pause);
        let (failures, left) = (entry.failures.into(), now.until(entry.times.stop_at));
        Some(FailureRecord { failures, left, wake: self.reschedule(key, NO_JITTER) })
    }

    /// Stops renewing an entry: it runs out, and its holder is told to stop in time. Says whether the driver must be
    /// woken.
    pub(crate) fn let_run_out(&mut self, key: WatchKey) -> bool {
        let Some(entry) = self.live(key) else { return false };
        entry.renews = false;
        self.reschedule(key, NO_JITTER)
    }

    fn live(&mut self, key: WatchKey) -> Option<&mut WatchEntry<H>> {
        self.entries.get_mut(key.slot as usize).filter(|entry| entry.generation == key.generation)
    }

    fn reschedule(&mut self, key: WatchKey, random: u64) -> bool {
        let entry = &mut self.entries[key.slot as usize];
        let due = entry.next_event(random);
        let old = std::mem::replace(&mut entry.due, due);
        self.events.remove(&(old, key.slot));
        self.events.insert((due, key.slot));
        self.is_earlier(due)
    }

    /// Whether an event comes before the driver would wake by itself. If so, the driver counts as woken for it.
    fn is_earlier(&mut self, due: Timestamp) -> bool {
        let wake = due < self.sleeping_until;
        if wake {
            self.sleeping_until = due;
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
mod tests {
    use super::*;

    #[derive(Clone, Debug, PartialEq)]
    struct FakeLease(&'static str, Timestamp);
    impl Watched for FakeLease {
        fn hard_limit(&self) -> Timestamp {
            self.1
        }
    }
    fn lease(name: &'static str) -> FakeLease {
        FakeLease(name, Timestamp::NEVER)
    }

    const TTL: Duration = Duration::from_secs(30);
    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_nanos(seconds * 1_000_000_000)
    }
    fn step(dog: &mut Watchdog<FakeLease>, now: Timestamp) -> Vec<WatchdogAction<FakeLease>> {
        let mut out = Vec::new();
        dog.step(now, 100, &mut out);
        out
    }
    fn to_watch(handle: FakeLease, sent: Timestamp, ttl: Duration) -> ToWatch<FakeLease> {
        ToWatch { handle, times: LeaseTimes::of(sent, ttl, ttl), ttl, renews: true }
    }
    fn watch(dog: &mut Watchdog<FakeLease>, handle: FakeLease, sent: Timestamp) -> WatchKey {
        dog.watch(to_watch(handle, sent, TTL), NO_JITTER).0
    }
    fn reply(sent: Timestamp) -> RenewalReply {
        RenewalReply { sent, received: sent, remaining: TTL, new_ttl: None }
    }

    #[test]
    fn a_lease_is_renewed_at_a_third_and_again_a_third_after_the_send() {
        let mut dog = Watchdog::new();
        let key = watch(&mut dog, lease("a"), at(0));
        assert!(step(&mut dog, at(9)).is_empty());
        assert_eq!(step(&mut dog, at(10)), [WatchdogAction::Renew(key, lease("a"), TTL)]);
        assert!(step(&mut dog, at(12)).is_empty(), "one renewal at a time");
        let record = dog.renewed(key, reply(at(10)), NO_JITTER).expect("watched");
        assert_eq!(record.times.expect("in order").renew_at, at(20));
        assert_eq!(step(&mut dog, at(20)), [WatchdogAction::Renew(key, lease("a"), TTL)]);
    }

    #[test]
    fn a_failed_renewal_is_repeated_until_the_stop() {
        let mut dog = Watchdog::new();
        let key = watch(&mut dog, lease("a"), at(0));
        let stop_at = LeaseTimes::of(at(0), TTL, TTL).stop_at;
        let (mut now, mut tries) = (at(0), 0);
        loop {
            let mut out = Vec::new();
            let next = dog.step(now, 100, &mut out);
            match out.as_slice() {
                [] => {}
                [WatchdogAction::Renew(..)] => {
                    tries += 1;
                    let failure = dog.failed(key, now, 7).expect("watched");
                    assert_eq!((failure.failures, failure.left), (tries, now.until(stop_at)));
                }
                [WatchdogAction::Stop(_)] => break,
                other => panic!("{other:?}"),
            }
            now = next.min(dog.sleeping_until);
        }
        assert!(tries > 5, "only {tries} tries");
        assert_eq!(now, stop_at, "stopped exactly on time");
        assert_eq!(dog.len(), 0, "and not watched any more");
    }

    #[test]
    fn renewals_that_are_due_shortly_go_with_the_one_that_is_due() {
        let mut dog = Watchdog::new();
        for n in 0..10u64 {
            watch(&mut dog, lease("a"), at(0).after(Duration::from_millis(n * 100)));
        }
        assert_eq!(step(&mut dog, at(10)).len(), 6, "those of the next half second");
        assert!(step(&mut dog, at(10)).is_empty(), "the rest is not due");
    }

    #[test]
    fn a_renewal_without_a_reply_does_not_delay_the_stop() {
        let mut dog = Watchdog::new();
        watch(&mut dog, lease("a"), at(0));
        assert_eq!(step(&mut dog, at(10)).len(), 1);
        assert_eq!(step(&mut dog, at(25)), [WatchdogAction::Stop(lease("a"))]);
    }

    #[test]
    fn a_hard_limit_stops_a_lease_that_could_be_renewed() {
        let mut dog = Watchdog::new();
        let key = watch(&mut dog, FakeLease("a", at(15)), at(0));
        assert_eq!(step(&mut dog, at(10)).len(), 1);
        dog.renewed(key, reply(at(10)), NO_JITTER);
        assert_eq!(step(&mut dog, at(15)), [WatchdogAction::Stop(FakeLease("a", at(15)))]);
    }

    #[test]
    fn a_hard_limit_that_is_near_does_not_delay_the_step() {
        let mut dog = Watchdog::new();
        let key = watch(&mut dog, lease("a"), at(0));
        // Its limit is within the slack of a renewal at 10 s, its own renewal is not.
        let limit = at(10).after(Duration::from_millis(100));
        watch(&mut dog, FakeLease("b", limit), at(5));
        assert_eq!(step(&mut dog, at(10)), [WatchdogAction::Renew(key, lease("a"), TTL)]);
        assert_eq!(step(&mut dog, limit), [WatchdogAction::Stop(FakeLease("b", limit))]);
    }

    #[test]
    fn a_deadline_never_moves_back_when_replies_overtake_each_other() {
        let mut dog = Watchdog::new();
        let key = watch(&mut dog, lease("a"), at(0));
        let newer = dog.renewed(key, reply(at(12)), NO_JITTER).expect("watched").times.expect("newer");
        let older = dog.renewed(key, reply(at(10)), NO_JITTER).expect("watched");
        assert_eq!(older.times, None, "the older reply changes nothing");
        assert_eq!(dog.live(key).expect("watched").times.deadline, newer.deadline);
    }

    #[test]
    fn a_record_says_how_close_to_the_stop_a_renewal_came() {
        let mut dog = Watchdog::new();
        let key = watch(&mut dog, lease("a"), at(0));
        let stop_at = LeaseTimes::of(at(0), TTL, TTL).stop_at;
        let slow = RenewalReply { received: at(18), ..reply(at(16)) };
        let record = dog.renewed(key, slow, NO_JITTER).expect("watched");
        assert_eq!((record.margin, record.late), (at(18).until(stop_at), true));
        let record = dog.renewed(key, reply(at(26)), NO_JITTER).expect("watched");
        assert!(!record.late, "10 s after the renewal before");
    }

    #[test]
    fn the_key_of_a_forgotten_entry_does_not_find_the_next_entry_of_its_slot() {
        let mut dog = Watchdog::new();
        let old = watch(&mut dog, lease("a"), at(0));
        assert_eq!(dog.forget(old), Some(lease("a")));
        let new = watch(&mut dog, lease("b"), at(0));
        assert_eq!((dog.forget(old), dog.failed(old, at(1), 0)), (None, None));
        assert_eq!(dog.forget(new), Some(lease("b")));
    }

    #[test]
    fn the_driver_is_woken_only_for_an_earlier_event() {
        let mut dog = Watchdog::new();
        assert!(dog.watch(to_watch(lease("a"), at(0), TTL), NO_JITTER).1, "nothing was planned");
        dog.step(at(0), 100, &mut Vec::new());
        assert!(!dog.watch(to_watch(lease("b"), at(1), TTL), NO_JITTER).1, "later");
        let short = Duration::from_secs(3);
        assert!(dog.watch(to_watch(lease("c"), at(1), short), NO_JITTER).1, "earlier");
    }

    #[test]
    fn renewals_of_leases_taken_together_spread() {
        let mut dog = Watchdog::new();
        for n in 0..100u64 {
            dog.watch(to_watch(lease("a"), at(0), TTL), n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        }
        let dues: BTreeSet<_> = dog.events.iter().map(|(due, _)| due.as_nanos() / 100_000_000).collect();
        assert!(dues.len() > 4, "{dues:?}");
        assert!(dog.events.first().expect("some").0 >= at(9) && dog.events.last().expect("some").0 <= at(10));
    }
}
