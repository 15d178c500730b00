//! One resource as it was read at one revision: its contenders in the order of creation, and who of them can
//! be granted.
//!
//! The order of creation is the queue, as in etcd's `concurrency` package. Which waiter is granted is decided
//! by the admission rule of [`leasehold_core::admission`], over the contenders as they are listed here.

use std::sync::Arc;

use leasehold_core::{
    Clock, Error, ErrorKind, FencingToken, GoneReason, HeldBy, Holder, ValueHash, admission,
};

use crate::{claim_record::ClaimRecord, error::StoreError};

/// One key under the lock prefix of a resource: a claim that holds or waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Contender {
    /// The part of the key after the lock prefix.
    pub(crate) name: String,
    /// The creation revision: the position in the queue, and the fencing token.
    pub(crate) created: i64,
    /// The revision of the last write.
    pub(crate) modified: i64,
    /// The id of its etcd lease.
    pub(crate) lease: i64,
    /// The claim; `None` for a foreign lock (`etcdctl lock` or a Go program).
    pub(crate) record: Option<ClaimRecord>,
    /// Names a foreign lock to an operator; `None` for a claim.
    pub(crate) foreign: Option<ValueHash>,
}

impl Contender {
    /// Whether this is the contender of this owner.
    pub(crate) fn is_owned_by(&self, owner_hash: &str) -> bool {
        self.record.as_ref().is_some_and(|record| record.owner == owner_hash)
    }

    /// The record, if the claim is live: not foreign, and not released with `keep_for`.
    pub(crate) fn live_record(&self) -> Option<&ClaimRecord> {
        self.record.as_ref().filter(|record| !record.kept)
    }
}

/// The value of an owner key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OwnerKeyValue {
    /// There is no owner key.
    Absent,
    /// The name of the owner's contender, which is not in the owner's slot.
    Contender(String),
    /// A tombstone: the owner's requests are refused.
    Tombstone(GoneReason),
}

/// The two keys where an owner can be found, beside the list of contenders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnerState {
    /// The value of the owner key.
    pub(crate) owner_key: OwnerKeyValue,
    /// The revision of the last write to the owner key; [`ABSENT`] if there is none.
    pub(crate) owner_key_modified: i64,
    /// The revision of the last write to the contender in the owner's slot; [`ABSENT`] if there is none. The
    /// contender may belong to another owner.
    pub(crate) slot_modified: i64,
}

/// The modification revision with which etcd compares a key that does not exist.
pub(crate) const ABSENT: i64 = 0;

/// The key of an operator's pause.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PauseKey {
    pub(crate) modified: i64,
    pub(crate) lease: i64,
}

/// One resource at one revision.
#[derive(Clone, Debug, Default)]
pub(crate) struct ResourceView {
    pub(crate) revision: i64,
    /// The contenders by creation: all of them, or those at the head of the queue.
    pub(crate) contenders: Vec<Contender>,
    /// How many contenders there are.
    pub(crate) total: usize,
    pub(crate) pause: Option<PauseKey>,
}

impl ResourceView {
    /// How many contenders are read of an exclusive resource: the holder, the waiters that the admission rule
    /// looks at, and one more.
    pub(crate) const HEAD: i64 = admission::WINDOW as i64 + 2;

    /// The capacity that the contenders agree on. A foreign lock by itself is a mutex.
    pub(crate) fn capacity(&self) -> Option<u32> {
        // Transactions keep all claims of a resource at one capacity, so the first one is enough.
        let ours = self.contenders.iter().find_map(|contender| contender.record.as_ref());
        ours.map(|record| record.capacity).or(if self.contenders.is_empty() { None } else { Some(1) })
    }

    pub(crate) fn has_foreign_locks(&self) -> bool {
        self.contenders.iter().any(|contender| contender.record.is_none())
    }

    /// The index of this owner's contender.
    pub(crate) fn find(&self, owner_hash: &str) -> Option<usize> {
        self.contenders.iter().position(|contender| contender.is_owned_by(owner_hash))
    }

    /// Whether the contender holds. A foreign lock holds when it is the first by creation: that is the rule
    /// of etcd's own mutex, and no client writes to the key when it becomes the holder.
    pub(crate) fn is_holder(&self, index: usize) -> bool {
        self.contenders[index].record.as_ref().map_or(index == 0, |record| record.held)
    }

    /// The weight of a contender. A foreign lock takes the whole capacity.
    pub(crate) fn weight(&self, index: usize) -> u32 {
        let whole = || self.capacity().unwrap_or(1);
        self.contenders[index].record.as_ref().map_or_else(whole, |record| record.weight)
    }

    /// The indices of the holders.
    pub(crate) fn holders(&self) -> impl Iterator<Item = usize> {
        (0..self.contenders.len()).filter(|index| self.is_holder(*index))
    }

    /// The indices of the waiters.
    pub(crate) fn waiters(&self) -> impl Iterator<Item = usize> {
        (0..self.contenders.len()).filter(|index| !self.is_holder(*index))
    }

    /// The weight of all holders together.
    pub(crate) fn held_weight(&self) -> u64 {
        self.holders().map(|index| u64::from(self.weight(index))).sum()
    }

    /// Whether a claim of this weight is granted: the waiter at this index, or (`None`) one behind all
    /// waiters.
    pub(crate) fn can_grant(&self, waiter: Option<usize>, weight: u32, capacity: u32) -> bool {
        let ahead = self.waiters().take_while(|index| waiter.is_none_or(|waiter| *index < waiter));
        admission::is_granted(self.held_weight(), ahead.map(|index| self.weight(index)), weight, capacity)
    }

    /// How many waiters, from the head of the queue, can be granted now.
    pub(crate) fn grantable(&self) -> usize {
        let Some(capacity) = self.capacity().filter(|_| self.pause.is_none()) else { return 0 };
        let weights = self.waiters().map(|index| self.weight(index));
        admission::grantable(self.held_weight(), weights, capacity)
    }

    /// How many waiters are ahead of the one at this index, or (`None`) of one at the end. Exact within
    /// [`admission::WINDOW`], an upper bound beyond, because only the head of a long queue is read.
    pub(crate) fn waiters_ahead(&self, waiter: Option<usize>) -> usize {
        let unread = self.total.saturating_sub(self.contenders.len());
        match waiter {
            Some(waiter) => {
                let ahead = self.waiters().take_while(|index| *index < waiter).count();
                if ahead <= admission::WINDOW { ahead } else { ahead + unread }
            }
            None => self.waiters().count() + unread,
        }
    }

    /// The contenders that the waiter at this index has to watch: it cannot be granted before one of them is
    /// gone.
    ///
    /// 1. Holders and earlier waiters are in its way, in the order of creation.
    /// 2. `needed` is how much of their weight must go before the waiter fits.
    /// 3. The first of them whose weights together are less than `needed` can all go without letting it in:
    ///    no watch.
    ///
    /// With mutexes this leaves one contender, the one directly ahead. So a release wakes one waiter and not
    /// all.
    pub(crate) fn blockers_of(&self, waiter: usize, capacity: u32) -> Vec<usize> {
        let ahead = self.waiters().take_while(|index| *index < waiter);
        let mut in_the_way: Vec<usize> = self.holders().chain(ahead).collect();
        in_the_way.sort_unstable();
        let taken: u64 = in_the_way.iter().map(|index| u64::from(self.weight(*index))).sum();
        let needed = (taken + u64::from(self.weight(waiter))).saturating_sub(u64::from(capacity));
        let mut gone = 0;
        let not_enough = in_the_way.iter().take_while(|index| {
            gone += u64::from(self.weight(**index));
            gone < needed
        });
        let not_enough = not_enough.count();
        in_the_way.split_off(not_enough)
    }

    /// The foreign lock that holds the resource.
    pub(crate) fn foreign_holder(&self) -> Option<usize> {
        self.holders().find(|index| self.contenders[*index].record.is_none())
    }

    /// The holders that are claims of leasehold.
    pub(crate) fn holding_claims(&self) -> impl Iterator<Item = usize> {
        self.holders().filter(|index| self.contenders[*index].record.is_some())
    }

    /// Describes a holder to other clients, all but the remaining time. `None` for a foreign lock, and if the
    /// revision is not a valid token.
    pub(crate) fn describe_holder(&self, index: usize, clock: &dyn Clock) -> Option<HeldBy> {
        let contender = &self.contenders[index];
        let token = FencingToken::try_from(contender.created).ok()?;
        let record = contender.record.as_ref()?;
        Some(record.describe(HeldBy::new(record.holder(), token, record.weight), clock))
    }
}

/// The fencing token of a contender: its creation revision.
pub(crate) fn token_of(created: i64) -> Result<FencingToken, StoreError> {
    FencingToken::try_from(created).map_err(|_| {
        let message =
            format!("revision {created} of etcd is above 2^53, the highest token: move to a new cluster");
        StoreError::Refused(Error::new(ErrorKind::Corrupt, message))
    })
}

/// What a foreign lock is called.
pub(crate) const FOREIGN_FORM: &str = "etcd lock";

/// Stands for the unknown process behind a foreign lock that waits.
pub(crate) fn unknown_waiter() -> Arc<Holder> {
    Arc::new(Holder::new("", 0, &format!("foreign ({FOREIGN_FORM})")))
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
        let record = if held { ClaimRecord::holding(&claim, now) } else { ClaimRecord::waiting(&claim, now) };
        let created = i64::from(number);
        let (name, foreign) = (format!("{number:x}"), None);
        Contender { name, created, modified: created, lease: created, record: Some(record), foreign }
    }

    pub(crate) fn view(contenders: Vec<Contender>) -> ResourceView {
        ResourceView { revision: 100, total: contenders.len(), contenders, pause: None }
    }

    #[test]
    fn in_a_queue_of_mutexes_every_waiter_watches_the_contender_ahead() {
        let mutex = |number: u8| contender(number, Share::WHOLE, number == 1);
        let view = view((1..=5).map(mutex).collect());
        for waiter in 1..5 {
            assert_eq!(view.blockers_of(waiter, 1), [waiter - 1]);
        }
    }

    #[test]
    fn a_foreign_lock_that_is_first_holds_the_whole_capacity() {
        let mut first = contender(1, Share::WHOLE, true);
        first.record = None;
        let view = view(vec![first, contender(2, Share::new(1, 3).unwrap(), false)]);
        assert!(view.is_holder(0) && !view.is_holder(1));
        assert_eq!((view.capacity(), view.weight(0), view.held_weight()), (Some(3), 3, 3));
        assert!(!view.can_grant(Some(1), 1, 3));
    }

    proptest! {
        #[test]
        fn a_waiter_cannot_be_granted_before_a_contender_that_it_watches_is_gone(
            holders in prop::collection::vec(1u32..4, 0..5),
            waiters in prop::collection::vec(1u32..7, 1..6),
            gone in prop::collection::vec(any::<bool>(), 11),
        ) {
            let capacity = 6;
            let share = |weight: u32| Share::new(weight.min(capacity), capacity).unwrap();
            let weights = holders.iter().map(|w| (*w, true)).chain(waiters.iter().map(|w| (*w, false)));
            let contenders = (1u8..).zip(weights).map(|(n, (w, held))| contender(n, share(w), held)).collect();
            let before = view(contenders);
            let last = before.contenders.len() - 1;
            let weight = before.weight(last);
            prop_assume!(!before.can_grant(Some(last), weight, capacity));
            let watched = before.blockers_of(last, capacity);
            prop_assert!(!watched.is_empty());
            // Any of the contenders that it does not watch go: it still cannot be granted.
            let stays = |index: &usize| watched.contains(index) || *index == last || !gone[*index];
            let left = (0..=last).filter(stays).map(|index| before.contenders[index].clone()).collect();
            let after = view(left);
            prop_assert!(!after.can_grant(Some(after.contenders.len() - 1), weight, capacity));
        }
    }
}
