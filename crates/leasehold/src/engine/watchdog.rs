//! Which lease to renew when, and when to give one up. Pure: takes `now`, returns what to do.
//!
//! One queue entry for each lease or place: its next event, whichever that is. A slab with an ordered set is exact
//! and cheap (a heap with lazy deletion piles up garbage; a wheel pays only from a million leases on).

use std::{collections::BTreeSet, time::Duration};

use leasehold_core::{Backoff, Timestamp, backoff::jitter};
use slab::Slab;

/// The times of one lease, all derived from the instant before the request left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Times {
    /// When to renew.
    pub(crate) renew_at: Timestamp,
    /// When to tell the holder to stop, unless renewed: a sixth of the ttl before the deadline.
    pub(crate) stop_at: Timestamp,
    /// From when on someone else may be granted, for all we know.
    pub(crate) deadline: Timestamp,
}

impl Times {
    /// The longest time between two renewals.
    const RENEW_MOST: Duration = Duration::from_secs(60);

    /// `remaining` was left when the backend executed a request that was *sent* at this moment. The reply may have
    /// waited in a buffer while this process was stopped, so nothing is ever counted from its arrival.
    pub(crate) fn of(sent: Timestamp, remaining: Duration, ttl: Duration) -> Times {
        // Of whichever is longer: a lease that was shortened still runs, and drifts, for all that remains.
        let margin = ttl.max(remaining) / 100 + Duration::from_millis(2);
        let deadline = sent.after(remaining.saturating_sub(margin));
        let renew_at = sent.after((ttl / 3).min(Times::RENEW_MOST)).before(ttl.saturating_sub(remaining));
        Times { renew_at: renew_at.max(sent), stop_at: deadline.before(ttl / 6), deadline }
    }
}

/// The driver looks at the clock at least this often while anything is watched: timers stop during suspend.
pub(crate) const LOOK_UP: Duration = Duration::from_secs(1);

/// Names an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    slot: u32,
    generation: u32,
}

/// What is watched: the driver's handle to a lease or to a place.
pub(crate) trait Watched: Clone {
    /// When it is to be stopped though it could be renewed: held too long, or no progress.
    fn limit(&self) -> Timestamp;
}

#[derive(Debug)]
struct Entry<H> {
    handle: H,
    times: Times,
    ttl: Duration,
    due: Timestamp,
    generation: u32,
    failures: u16,
    in_flight: bool,
    renews: bool,
}

/// All leases and places of a client.
#[derive(Debug)]
pub(crate) struct Watchdog<H> {
    entries: Slab<Entry<H>>,
    queue: BTreeSet<(Timestamp, u32)>,
    generation: u32,
    /// What the driver sleeps until: an earlier event must wake it, a later one must not.
    sleeping_until: Timestamp,
}

/// What the driver is to do.
#[derive(Debug, PartialEq)]
pub(crate) enum Action<H> {
    /// Renew it for this long.
    Renew(Key, H, Duration),
    /// Tell it to stop; it is not watched any more.
    Stop(H),
}

impl<H: Watched> Watchdog<H> {
    pub(crate) fn new() -> Watchdog<H> {
        let (entries, queue) = (Slab::new(), BTreeSet::new());
        Watchdog { entries, queue, generation: 0, sleeping_until: Timestamp::NEVER }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Watches one more. Returns its name, and whether the driver must be woken.
    pub(crate) fn watch(
        &mut self,
        handle: H,
        times: Times,
        ttl: Duration,
        renews: bool,
        random: u64,
    ) -> (Key, bool) {
        self.generation = self.generation.wrapping_add(1);
        let generation = self.generation;
        let entry = Entry {
            handle,
            times,
            ttl,
            due: times.stop_at,
            generation,
            failures: 0,
            in_flight: false,
            renews,
        };
        let slot = u32::try_from(self.entries.insert(entry)).expect("fewer than 2^32 leases");
        let due = self.entries[slot as usize].next_due(random);
        self.entries[slot as usize].due = due;
        self.queue.insert((due, slot));
        // After a suspend the driver sleeps for up to a second longer than it knows: too long for a short lease.
        let short = ttl / 3 <= LOOK_UP;
        (Key { slot, generation }, self.wake_for(due) || short)
    }

    /// Stops watching. The handle is returned so that it is dropped outside of the caller's lock.
    pub(crate) fn forget(&mut self, key: Key) -> Option<H> {
        self.live(key)?;
        let entry = self.entries.remove(key.slot as usize);
        self.queue.remove(&(entry.due, key.slot));
        Some(entry.handle)
    }

    /// Takes what is due, earliest first, at most `batch` of them. Returns when to come back.
    ///
    /// Once one renewal is due, those that would be due shortly after go with it: fewer and larger calls.
    pub(crate) fn step(&mut self, now: Timestamp, batch: usize, out: &mut Vec<Action<H>>) -> Timestamp {
        let mut renewing = false;
        while let Some(&(due, slot)) = self.queue.first()
            && out.len() < batch
        {
            let entry = &mut self.entries[slot as usize];
            let stop = entry.times.stop_at.min(entry.handle.limit());
            let soon = now.after(entry.slack());
            let early = renewing && entry.is_renewed_next() && entry.times.renew_at <= soon;
            if due > now && !early {
                break;
            }
            self.queue.pop_first();
            if now >= stop {
                let entry = self.entries.remove(slot as usize); // loss latches: never renewed again
                out.push(Action::Stop(entry.handle));
                continue;
            }
            if entry.is_renewed_next() && entry.times.renew_at <= soon {
                (entry.in_flight, renewing) = (true, true);
                let key = Key { slot, generation: entry.generation };
                out.push(Action::Renew(key, entry.handle.clone(), entry.ttl));
            }
            entry.due = entry.next_due(u64::MAX);
            self.queue.insert((entry.due, slot));
        }
        self.sleeping_until = self.queue.first().map_or(Timestamp::NEVER, |&(due, _)| due);
        self.sleeping_until
    }

    /// From now on it is renewed for this long.
    pub(crate) fn set_ttl(&mut self, key: Key, ttl: Duration) {
        if let Some(entry) = self.live(key) {
            entry.ttl = ttl;
        }
    }

    /// It was renewed by a request sent at this moment. Returns its new times, unless it is not watched any more.
    ///
    /// The request may have asked for another ttl than the lease has by now: what counts is what remains.
    pub(crate) fn renewed(
        &mut self,
        key: Key,
        sent: Timestamp,
        remaining: Duration,
        random: u64,
    ) -> Option<(Times, bool)> {
        let entry = self.live(key)?;
        (entry.in_flight, entry.failures) = (false, 0);
        let times = Times::of(sent, remaining, entry.ttl);
        // Answers may overtake each other: a deadline never moves back.
        if times.deadline >= entry.times.deadline {
            entry.times = times;
        } else {
            entry.times.renew_at = times.renew_at;
        }
        let times = entry.times;
        Some((times, self.requeue(key, random)))
    }

    /// A renewal failed. Returns how often in a row, and whether the driver must be woken.
    pub(crate) fn failed(&mut self, key: Key, now: Timestamp, random: u64) -> Option<(u32, bool)> {
        let entry = self.live(key)?;
        let pause = Backoff::at_most(entry.ttl / 12).after(entry.failures.into()).next(random);
        entry.failures = entry.failures.saturating_add(1);
        entry.in_flight = false;
        entry.times.renew_at = now.after(pause);
        let failures = entry.failures.into();
        Some((failures, self.requeue(key, u64::MAX)))
    }

    /// It is not to be renewed any more: it runs out, and is told in time.
    pub(crate) fn let_run_out(&mut self, key: Key) -> bool {
        let Some(entry) = self.live(key) else { return false };
        entry.renews = false;
        self.requeue(key, u64::MAX)
    }

    fn live(&mut self, key: Key) -> Option<&mut Entry<H>> {
        self.entries.get_mut(key.slot as usize).filter(|entry| entry.generation == key.generation)
    }

    fn requeue(&mut self, key: Key, random: u64) -> bool {
        let entry = &mut self.entries[key.slot as usize];
        let due = entry.next_due(random);
        let old = std::mem::replace(&mut entry.due, due);
        self.queue.remove(&(old, key.slot));
        self.queue.insert((due, key.slot));
        self.wake_for(due)
    }

    fn wake_for(&mut self, due: Timestamp) -> bool {
        let wake = due < self.sleeping_until;
        if wake {
            self.sleeping_until = due;
        }
        wake
    }
}

impl<H: Watched> Entry<H> {
    fn is_renewed_next(&self) -> bool {
        self.renews && !self.in_flight
    }

    /// How much earlier than planned it may be renewed, to go with others.
    fn slack(&self) -> Duration {
        (self.ttl / 60).min(Duration::from_millis(500))
    }

    /// The next event. Renewals are drawn up to a tenth of their interval early, so that leases taken together
    /// spread; a random number of all ones means "as planned".
    fn next_due(&mut self, random: u64) -> Timestamp {
        let stop = self.times.stop_at.min(self.handle.limit());
        if !self.renews || self.in_flight {
            return stop;
        }
        if random != u64::MAX {
            let early = (self.ttl / 3).min(Times::RENEW_MOST) / 10;
            self.times.renew_at = self.times.renew_at.before(jitter(early, random));
        }
        stop.min(self.times.renew_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Debug, PartialEq)]
    struct Lease(&'static str, Timestamp);
    impl Watched for Lease {
        fn limit(&self) -> Timestamp {
            self.1
        }
    }
    fn lease(name: &'static str) -> Lease {
        Lease(name, Timestamp::NEVER)
    }

    const TTL: Duration = Duration::from_secs(30);
    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_nanos(seconds * 1_000_000_000)
    }
    fn step(dog: &mut Watchdog<Lease>, now: Timestamp) -> Vec<Action<Lease>> {
        let mut out = Vec::new();
        dog.step(now, 100, &mut out);
        out
    }
    fn watch(dog: &mut Watchdog<Lease>, handle: Lease, sent: Timestamp) -> Key {
        dog.watch(handle, Times::of(sent, TTL, TTL), TTL, true, u64::MAX).0
    }

    #[test]
    fn times_count_from_the_send_and_from_what_remains() {
        let times = Times::of(at(100), TTL, TTL);
        assert_eq!(times.renew_at, at(110));
        assert_eq!(times.deadline, at(100).after(Duration::from_millis(29_698)));
        assert_eq!(times.stop_at, times.deadline.before(Duration::from_secs(5)));
        // Asked again 12 s after the grant: the rest of the lease is shorter, and a renewal is overdue.
        let rest = Times::of(at(112), Duration::from_secs(18), TTL);
        assert_eq!((rest.deadline, rest.renew_at), (times.deadline, at(112)));
        // Shortened to 1 s with 29 s left: the margin is for those.
        let short = Duration::from_secs(1);
        let shortened = Times::of(at(0), Duration::from_secs(29), short);
        assert_eq!(shortened.deadline, at(29).before(Duration::from_millis(292)));
        // A long lease is renewed every minute all the same.
        let day = Duration::from_secs(86_400);
        assert_eq!(Times::of(at(0), day, day).renew_at, at(60));
    }

    #[test]
    fn a_lease_is_renewed_at_a_third_and_again_a_third_after_the_send() {
        let mut dog = Watchdog::new();
        let key = watch(&mut dog, lease("a"), at(0));
        assert!(step(&mut dog, at(9)).is_empty());
        assert_eq!(step(&mut dog, at(10)), [Action::Renew(key, lease("a"), TTL)]);
        assert!(step(&mut dog, at(12)).is_empty(), "one renewal at a time");
        let (times, _) = dog.renewed(key, at(10), TTL, u64::MAX).expect("watched");
        assert_eq!(times.renew_at, at(20));
        assert_eq!(step(&mut dog, at(20)), [Action::Renew(key, lease("a"), TTL)]);
    }

    #[test]
    fn a_failed_renewal_is_tried_again_until_the_stop_work_threshold() {
        let mut dog = Watchdog::new();
        let key = watch(&mut dog, lease("a"), at(0));
        let stop_at = Times::of(at(0), TTL, TTL).stop_at;
        let (mut now, mut tries) = (at(0), 0);
        loop {
            let mut out = Vec::new();
            let next = dog.step(now, 100, &mut out);
            match out.as_slice() {
                [] => {}
                [Action::Renew(..)] => {
                    tries += 1;
                    assert_eq!(dog.failed(key, now, 7).map(|f| f.0), Some(tries));
                }
                [Action::Stop(_)] => break,
                other => panic!("{other:?}"),
            }
            now = next.min(dog.sleeping_until);
        }
        assert!(tries > 5, "only {tries} tries");
        assert_eq!(now, stop_at, "told exactly at the threshold");
        assert_eq!(dog.len(), 0, "and not watched any more");
    }

    #[test]
    fn renewals_that_are_due_shortly_go_with_the_one_that_is_due() {
        let mut dog = Watchdog::new();
        for n in 0..10u64 {
            watch(&mut dog, lease("a"), at(0).after(Duration::from_millis(n * 100)));
        }
        assert_eq!(step(&mut dog, at(10)).len(), 6, "half a second's worth");
        assert!(step(&mut dog, at(10)).is_empty(), "the rest is not due");
    }

    #[test]
    fn an_answer_that_hangs_does_not_hold_up_the_stop() {
        let mut dog = Watchdog::new();
        watch(&mut dog, lease("a"), at(0));
        assert_eq!(step(&mut dog, at(10)).len(), 1);
        assert_eq!(step(&mut dog, at(25)), [Action::Stop(lease("a"))]);
    }

    #[test]
    fn a_limit_stops_a_lease_that_could_be_renewed() {
        let mut dog = Watchdog::new();
        let key = watch(&mut dog, Lease("a", at(15)), at(0));
        assert_eq!(step(&mut dog, at(10)).len(), 1);
        dog.renewed(key, at(10), TTL, u64::MAX);
        assert_eq!(step(&mut dog, at(15)), [Action::Stop(Lease("a", at(15)))]);
    }

    #[test]
    fn a_limit_that_is_near_does_not_hold_up_the_step() {
        let mut dog = Watchdog::new();
        let key = watch(&mut dog, lease("a"), at(0));
        // Its limit is within the slack of a renewal at 10 s, its own renewal is not.
        let limit = at(10).after(Duration::from_millis(100));
        watch(&mut dog, Lease("b", limit), at(5));
        assert_eq!(step(&mut dog, at(10)), [Action::Renew(key, lease("a"), TTL)]);
        assert_eq!(step(&mut dog, limit), [Action::Stop(Lease("b", limit))]);
    }

    #[test]
    fn a_deadline_never_moves_back_when_answers_overtake_each_other() {
        let mut dog = Watchdog::new();
        let key = watch(&mut dog, lease("a"), at(0));
        let (newer, _) = dog.renewed(key, at(12), TTL, u64::MAX).expect("watched");
        let (older, _) = dog.renewed(key, at(10), TTL, u64::MAX).expect("watched");
        assert_eq!(older.deadline, newer.deadline);
    }

    #[test]
    fn a_slot_that_was_used_again_does_not_answer_to_its_old_name() {
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
        assert!(
            dog.watch(lease("a"), Times::of(at(0), TTL, TTL), TTL, true, u64::MAX).1,
            "nothing was planned"
        );
        dog.step(at(0), 100, &mut Vec::new());
        assert!(!dog.watch(lease("b"), Times::of(at(1), TTL, TTL), TTL, true, u64::MAX).1, "later");
        let short = Duration::from_secs(3);
        assert!(dog.watch(lease("c"), Times::of(at(1), short, short), short, true, u64::MAX).1, "earlier");
    }

    #[test]
    fn renewals_of_leases_taken_together_spread() {
        let mut dog = Watchdog::new();
        for n in 0..100u64 {
            dog.watch(
                lease("a"),
                Times::of(at(0), TTL, TTL),
                TTL,
                true,
                n.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            );
        }
        let dues: BTreeSet<_> = dog.queue.iter().map(|(due, _)| due.as_nanos() / 100_000_000).collect();
        assert!(dues.len() > 4, "{dues:?}");
        assert!(dog.queue.first().expect("some").0 >= at(9) && dog.queue.last().expect("some").0 <= at(10));
    }
}
