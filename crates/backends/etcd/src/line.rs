//! The contenders of one resource, in the order in which they came, and the rule of seating over them.

use std::sync::Arc;

use leasehold_core::{FencingToken, GoneReason, HeldBy, Holder, admission};

use crate::entry::Entry;

/// One key under the prefix of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Contender {
    pub(crate) name: String,
    /// The creation revision: its place in the order, and its token.
    pub(crate) created: i64,
    pub(crate) modified: i64,
    /// The etcd lease that it is under.
    pub(crate) lease: i64,
    /// None of a stranger: `etcdctl lock`, or a Go program.
    pub(crate) entry: Option<Entry>,
    /// What a stranger has written there, for people.
    pub(crate) text: String,
}

impl Contender {
    pub(crate) fn is_of(&self, mark: &str) -> bool {
        self.entry.as_ref().is_some_and(|entry| entry.owner == mark)
    }
}

/// What the store says of an owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Own {
    Nothing,
    /// It took over the contender of this name.
    Contender(String),
    Grave(GoneReason),
}

/// What there is of an owner beside the line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnKey {
    pub(crate) own: Own,
    /// When its key was last written; zero if it is not there.
    pub(crate) modified: i64,
    /// When the contender that bears its mark was last written, whosever it is now; zero if it is not there.
    pub(crate) home: i64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pause {
    pub(crate) modified: i64,
    pub(crate) lease: i64,
}

/// One resource at one revision.
#[derive(Clone, Debug, Default)]
pub(crate) struct Line {
    pub(crate) revision: i64,
    /// By creation: all of them, or those at the head.
    pub(crate) contenders: Vec<Contender>,
    /// How many there are.
    pub(crate) total: usize,
    pub(crate) pause: Option<Pause>,
}

impl Line {
    /// How many contenders of an exclusive line are read: the holder, those that the rule looks at, and one more.
    pub(crate) const HEAD: i64 = admission::WINDOW as i64 + 2;

    /// Of those who are there; a stranger's lock is a whole of one.
    pub(crate) fn capacity(&self) -> Option<u32> {
        let ours = self.contenders.iter().find_map(|contender| contender.entry.as_ref());
        ours.map(|entry| entry.capacity).or(if self.contenders.is_empty() { None } else { Some(1) })
    }

    pub(crate) fn has_strangers(&self) -> bool {
        self.contenders.iter().any(|contender| contender.entry.is_none())
    }

    pub(crate) fn find(&self, mark: &str) -> Option<usize> {
        self.contenders.iter().position(|contender| contender.is_of(mark))
    }

    /// Whether it holds. A stranger believes that it does when it is first, and is right.
    pub(crate) fn is_held(&self, index: usize) -> bool {
        self.contenders[index].entry.as_ref().map_or(index == 0, |entry| entry.held)
    }

    /// A stranger takes all there is.
    pub(crate) fn weight(&self, index: usize) -> u32 {
        let all = || self.capacity().unwrap_or(1);
        self.contenders[index].entry.as_ref().map_or_else(all, |entry| entry.weight)
    }

    pub(crate) fn holders(&self) -> impl Iterator<Item = usize> {
        (0..self.contenders.len()).filter(|index| self.is_held(*index))
    }

    pub(crate) fn places(&self) -> impl Iterator<Item = usize> {
        (0..self.contenders.len()).filter(|index| !self.is_held(*index))
    }

    pub(crate) fn held(&self) -> u64 {
        self.holders().map(|index| u64::from(self.weight(index))).sum()
    }

    /// Whether a claim of this weight is granted: at this place, or behind all.
    pub(crate) fn fits(&self, place: Option<usize>, weight: u32, capacity: u32) -> bool {
        let ahead = self.places().take_while(|index| place.is_none_or(|place| *index < place));
        admission::is_granted(self.held(), ahead.map(|index| self.weight(index)), weight, capacity)
    }

    /// How many wait ahead: exact as far as the line was read, an upper bound beyond.
    pub(crate) fn ahead(&self, place: Option<usize>) -> usize {
        let unread = self.total.saturating_sub(self.contenders.len());
        match place {
            Some(place) => {
                let near = self.places().take_while(|index| *index < place).count();
                if near <= admission::WINDOW { near } else { near + unread }
            }
            None => self.places().count() + unread,
        }
    }

    /// Those of whom one must go before the claim at this place can move: the run that the rule of seating names.
    ///
    /// Of those who are in its way, the first ones whose weights together are not enough may all go without letting
    /// it in. So nobody needs to watch them, and in a line of mutexes everyone watches the one ahead.
    pub(crate) fn in_the_way(&self, place: usize, capacity: u32) -> Vec<usize> {
        let ahead = self.places().take_while(|index| *index < place);
        let mut all: Vec<usize> = self.holders().chain(ahead).collect();
        all.sort_unstable();
        let taken: u64 = all.iter().map(|index| u64::from(self.weight(*index))).sum();
        let needed = (taken + u64::from(self.weight(place))).saturating_sub(u64::from(capacity));
        let mut gone = 0;
        let idle = all.iter().take_while(|index| {
            gone += u64::from(self.weight(**index));
            gone < needed
        });
        let idle = idle.count();
        all.split_off(idle)
    }

    /// A holder as others see it, but for what remains.
    pub(crate) fn seen(&self, index: usize, clock: &dyn leasehold_core::Clock) -> Option<HeldBy> {
        let contender = &self.contenders[index];
        let token = FencingToken::try_from(contender.created).ok()?;
        Some(match &contender.entry {
            Some(entry) => entry.seen(HeldBy::new(entry.holder(), token, entry.weight), clock),
            None => HeldBy::new(stranger(&contender.text), token, self.weight(index)),
        })
    }
}

pub(crate) fn stranger(text: &str) -> Arc<Holder> {
    let label = if text.is_empty() { "a lock of another program" } else { text };
    Arc::new(label.parse().unwrap_or_else(|never| match never {}))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use leasehold_core::{Claim, OwnerToken, Share, WallTime};
    use proptest::prelude::*;

    pub(crate) fn claim(owner: u8, share: Share) -> Claim {
        let holder = Arc::new(Holder::new("host", 1, "test"));
        let ttl = std::time::Duration::from_secs(30);
        Claim::new("a/b".parse().unwrap(), OwnerToken::from_bytes([owner; 16]), share, ttl, holder)
    }

    pub(crate) fn contender(number: u8, share: Share, held: bool) -> Contender {
        let claim = claim(number, share);
        let now = WallTime::from_micros(1);
        let entry = if held { Entry::holding(&claim, now) } else { Entry::waiting(&claim, now) };
        let created = i64::from(number);
        let (name, text) = (format!("{number:x}"), String::new());
        Contender { name, created, modified: created, lease: created, entry: Some(entry), text }
    }

    pub(crate) fn line(contenders: Vec<Contender>) -> Line {
        Line { revision: 100, total: contenders.len(), contenders, pause: None }
    }

    #[test]
    fn in_a_line_of_mutexes_everyone_watches_the_one_ahead() {
        let of = |number: u8| contender(number, Share::WHOLE, number == 1);
        let line = line((1..=5).map(of).collect());
        for place in 1..5 {
            assert_eq!(line.in_the_way(place, 1), [place - 1]);
        }
    }

    #[test]
    fn a_stranger_who_is_first_holds_and_takes_all_there_is() {
        let mut first = contender(1, Share::WHOLE, true);
        first.entry = None;
        let line = line(vec![first, contender(2, Share::new(1, 3).unwrap(), false)]);
        assert!(line.is_held(0) && !line.is_held(1));
        assert_eq!((line.capacity(), line.weight(0), line.held()), (Some(3), 3, 3));
        assert!(!line.fits(Some(1), 1, 3));
    }

    proptest! {
        #[test]
        fn nobody_can_move_before_someone_that_it_watches_has_gone(
            holders in prop::collection::vec(1u32..4, 0..5),
            places in prop::collection::vec(1u32..7, 1..6),
            gone in prop::collection::vec(any::<bool>(), 11),
        ) {
            let capacity = 6;
            let share = |weight: u32| Share::new(weight.min(capacity), capacity).unwrap();
            let weights = holders.iter().map(|w| (*w, true)).chain(places.iter().map(|w| (*w, false)));
            let contenders = (1u8..).zip(weights).map(|(n, (w, held))| contender(n, share(w), held)).collect();
            let whole = line(contenders);
            let me = whole.contenders.len() - 1;
            let weight = whole.weight(me);
            prop_assume!(!whole.fits(Some(me), weight, capacity));
            let watched = whole.in_the_way(me, capacity);
            prop_assert!(!watched.is_empty());
            // Any of those whom it does not watch go: it still cannot move.
            let stays = |index: &usize| watched.contains(index) || *index == me || !gone[*index];
            let left = (0..=me).filter(stays).map(|index| whole.contenders[index].clone()).collect();
            let left = line(left);
            prop_assert!(!left.fits(Some(left.contenders.len() - 1), weight, capacity));
        }
    }
}
