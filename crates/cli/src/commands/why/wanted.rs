//! The claim that `why` answers for, and how long it waits at the latest.

use std::{str::FromStr, time::Duration};

use leasehold::Snapshot;

use crate::{text, view};

/// The share that the claim asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// As `leasehold run` without an option.
    Exclusive,
    /// As `leasehold run --shared`.
    Read,
    /// As `leasehold run --permits K/N`.
    Permits(Permits),
}

/// K permits of a semaphore of N. Without N, of the capacity that is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Permits {
    weight: u32,
    capacity: Option<u32>,
}

impl FromStr for Permits {
    type Err = String;
    fn from_str(text: &str) -> Result<Permits, String> {
        let wrong = || "expected K/N, such as 1/3, or only K".to_owned();
        let number = |text: &str| text.parse::<u32>().map_err(|_| wrong());
        let (weight, capacity) = match text.split_once('/') {
            Some((weight, capacity)) => (number(weight)?, Some(number(capacity)?)),
            None => (number(text)?, None),
        };
        if weight == 0 || capacity.is_some_and(|capacity| weight > capacity) {
            return Err(format!("{text} permits are impossible: K must be at least 1 and at most N"));
        }
        Ok(Permits { weight, capacity })
    }
}

impl Wanted {
    /// A stable name, for programs.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Wanted::Exclusive => "exclusive",
            Wanted::Read => "read",
            Wanted::Permits(_) => "permits",
        }
    }

    /// `A claim`, `An exclusive claim`, as the subject of a sentence. The usual claim needs no word if nobody
    /// uses the resource in another way.
    pub(super) fn subject(self, capacity: u32) -> String {
        match self {
            Wanted::Exclusive if capacity <= 1 => "A claim".to_owned(),
            Wanted::Exclusive => "An exclusive claim".to_owned(),
            Wanted::Read => "A shared claim".to_owned(),
            Wanted::Permits(Permits { weight, .. }) => {
                format!("A claim for {}", text::count(weight, "permit", "permits"))
            }
        }
    }

    /// The weight of the claim where others use the resource with this capacity, adapted as `leasehold run`
    /// does it. An error says why such a claim is refused. The capacity 0 means that nobody uses it.
    pub(super) fn weight(self, capacity: u32) -> Result<u32, String> {
        let use_ = |options: &str| {
            Err(format!("is refused: others use it as {}; {options}", view::primitive(capacity)))
        };
        match (self, capacity) {
            (Wanted::Exclusive, view::UNLIMITED) => Ok(view::UNLIMITED),
            (Wanted::Exclusive | Wanted::Read, 0 | 1) | (Wanted::Read, view::UNLIMITED) => Ok(1),
            (Wanted::Exclusive | Wanted::Read, _) => use_(&format!("ask for --permits K/{capacity}")),
            (Wanted::Permits(Permits { weight, capacity: None }), _)
                if capacity == 0 || weight <= capacity =>
            {
                Ok(weight)
            }
            (Wanted::Permits(Permits { weight, capacity: Some(own) }), _)
                if capacity == 0 || own == capacity =>
            {
                Ok(weight)
            }
            (Wanted::Permits(_), 1 | view::UNLIMITED) => use_("leave out --permits"),
            (Wanted::Permits(_), _) => use_(&format!("ask for at most {capacity} of {capacity}")),
        }
    }
}

/// When a claim made now is granted, if no holder renews and no waiter ahead takes its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outlook {
    /// At once.
    Free,
    /// After this long at the latest.
    Within(Duration),
    /// There are more holders or waiters than the snapshot lists.
    TooMany,
    /// A lock without an expiry is in the way.
    NoExpiry,
    /// A claim for this share is refused.
    Refused,
}

impl Outlook {
    /// Holders and waiters end in the order of their remaining times. The claim fits as soon as enough of them
    /// have ended. A lock of another program takes all of the resource.
    pub(super) fn of(snapshot: &Snapshot, wanted: Wanted) -> Outlook {
        let Ok(wanted) = wanted.weight(snapshot.capacity) else { return Outlook::Refused };
        if snapshot.foreign.iter().any(|lock| lock.remaining.is_none()) {
            return Outlook::NoExpiry;
        }
        let is_listed = snapshot.holders.len() == snapshot.holder_count as usize
            && snapshot.queue.len() == snapshot.queue_length as usize;
        if !is_listed {
            return Outlook::TooMany;
        }
        let foreign = snapshot.foreign.iter().filter_map(|lock| lock.remaining).max().unwrap_or_default();
        let pause = snapshot.paused_for.unwrap_or_default();
        match ours(snapshot, wanted) {
            Outlook::Free if snapshot.foreign.is_empty() && snapshot.paused_for.is_none() => Outlook::Free,
            Outlook::Free => Outlook::Within(foreign.max(pause)),
            Outlook::Within(latest) => Outlook::Within(latest.max(foreign).max(pause)),
            outlook => outlook,
        }
    }

    /// How long the claim waits at the latest, if that is known.
    pub(super) fn latest(self) -> Option<Duration> {
        match self {
            Outlook::Free => Some(Duration::ZERO),
            Outlook::Within(latest) => Some(latest),
            Outlook::TooMany | Outlook::NoExpiry | Outlook::Refused => None,
        }
    }
}

/// When enough of the holders and waiters have ended. A holder with no time left is still in the way: the store decides when it
/// ends.
fn ours(snapshot: &Snapshot, wanted: u32) -> Outlook {
    let never = Duration::MAX;
    let holders = snapshot.holders.iter().map(|held| (view::left(held).unwrap_or(never), held.weight));
    // A silent waiter is passed over: it keeps no claim waiting.
    let waiters = snapshot.queue.iter().filter(|waiter| !waiter.silent);
    let waiters = waiters.map(|waiter| (waiter.remaining, waiter.weight));
    let mut claims: Vec<_> = holders.chain(waiters).collect();
    claims.sort_unstable_by_key(|(remaining, _)| *remaining);
    let mut taken: u64 = claims.iter().map(|(_, weight)| u64::from(*weight)).sum();
    let fits = |taken: u64| claims.is_empty() || taken + u64::from(wanted) <= u64::from(snapshot.capacity);
    if fits(taken) {
        return Outlook::Free;
    }
    let mut after = Duration::ZERO;
    for &(remaining, weight) in &claims {
        if fits(taken) {
            break;
        }
        (after, taken) = (remaining, taken - u64::from(weight));
    }
    if after < never { Outlook::Within(after) } else { Outlook::NoExpiry }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold::{FencingToken, ForeignLock, HeldBy, Holder, QueueEntry, ValueHash};
    use std::sync::Arc;

    fn snapshot(capacity: u32, held: &[(u32, u64)], queue: &[(u32, u64)]) -> Snapshot {
        let mut snapshot = Snapshot::empty("report/42".parse().unwrap());
        let holder = Arc::new(Holder::new("h", 1, ""));
        snapshot.capacity = capacity;
        for &(weight, seconds) in held {
            let mut by = HeldBy::new(Arc::clone(&holder), FencingToken::new(1).unwrap(), weight);
            by.remaining = Duration::from_secs(seconds);
            snapshot.holders.push(by);
        }
        let waiter = |&(weight, seconds): &(u32, u64)| {
            QueueEntry::new(Arc::clone(&holder), weight, Duration::ZERO, Duration::from_secs(seconds))
        };
        snapshot.queue = queue.iter().map(waiter).collect();
        (snapshot.holder_count, snapshot.queue_length) = (held.len() as u32, queue.len() as u32);
        snapshot
    }

    fn permits(text: &str) -> Wanted {
        Wanted::Permits(text.parse().unwrap())
    }

    fn within(seconds: u64) -> Outlook {
        Outlook::Within(Duration::from_secs(seconds))
    }

    #[test]
    fn the_latest_time_is_when_enough_claims_have_ended() {
        use Outlook::Free;
        let of = Outlook::of;
        assert_eq!(of(&snapshot(0, &[], &[]), Wanted::Exclusive), Free);
        assert_eq!(of(&snapshot(1, &[(1, 20)], &[]), Wanted::Exclusive), within(20));
        let behind_a_dead_waiter = snapshot(1, &[(1, 2)], &[(1, 6)]);
        assert_eq!(of(&behind_a_dead_waiter, Wanted::Exclusive), within(6), "its place expires");
        let semaphore = snapshot(3, &[(1, 9), (1, 5)], &[]);
        assert_eq!(of(&semaphore, permits("1/3")), Free, "there is room");
        assert_eq!(of(&semaphore, permits("2")), within(5));
        assert_eq!(of(&semaphore, permits("3/3")), within(9));
        let mut paused = snapshot(1, &[(1, 20)], &[]);
        paused.paused_for = Some(Duration::from_secs(60));
        assert_eq!(of(&paused, Wanted::Exclusive), within(60));
        let mut many = snapshot(200, &[(1, 1)], &[]);
        many.holder_count = 150;
        assert_eq!(of(&many, permits("200")), Outlook::TooMany);
        assert_eq!(of(&snapshot(1, &[(1, 0)], &[]), Wanted::Exclusive), within(0), "it still holds");
        let mut silent = snapshot(1, &[], &[(1, 6)]);
        silent.queue[0].silent = true;
        assert_eq!(of(&silent, Wanted::Exclusive), Free, "a silent waiter is passed over");
    }

    #[test]
    fn a_lease_that_lost_its_expiry_never_ends() {
        let years = 10 * 365 * 86_400;
        assert_eq!(Outlook::of(&snapshot(1, &[(1, years)], &[]), Wanted::Exclusive), Outlook::NoExpiry);
        let semaphore = snapshot(2, &[(1, years), (1, 5)], &[]);
        assert_eq!(Outlook::of(&semaphore, permits("1/2")), within(5));
    }

    #[test]
    fn an_exclusive_claim_waits_for_readers_and_a_reader_does_not() {
        let read = snapshot(u32::MAX, &[(1, 7), (1, 9)], &[]);
        assert_eq!(Outlook::of(&read, Wanted::Exclusive), within(9));
        assert_eq!(Outlook::of(&read, Wanted::Read), Outlook::Free);
        let written = snapshot(u32::MAX, &[(u32::MAX, 7)], &[]);
        assert_eq!(Outlook::of(&written, Wanted::Read), within(7));
        assert_eq!(Outlook::of(&snapshot(1, &[(1, 8)], &[]), Wanted::Read), within(8));
    }

    #[test]
    fn a_claim_with_another_capacity_is_refused() {
        let semaphore = snapshot(3, &[(1, 9)], &[]);
        for wanted in [Wanted::Exclusive, Wanted::Read, permits("1/4"), permits("4")] {
            assert_eq!(Outlook::of(&semaphore, wanted), Outlook::Refused, "{wanted:?}");
        }
        assert!(Wanted::Exclusive.weight(3).unwrap_err().contains("--permits K/3"));
        assert_eq!(Outlook::of(&snapshot(1, &[(1, 9)], &[]), permits("1/3")), Outlook::Refused);
        for wrong in ["0", "0/3", "4/3", "x", "1/", "/3", "-1"] {
            assert!(wrong.parse::<Permits>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_lock_of_another_program_takes_all_of_it() {
        let lock = ForeignLock::new("key", "string", ValueHash::of(b"secret"));
        let mut held = snapshot(0, &[], &[]);
        held.foreign = vec![lock.clone().expiring(Some(Duration::from_secs(4)))];
        assert_eq!(Outlook::of(&held, Wanted::Read), within(4));
        held.foreign.push(lock);
        assert_eq!(Outlook::of(&held, Wanted::Exclusive), Outlook::NoExpiry);
        assert_eq!(Outlook::NoExpiry.latest(), None);
    }
}
