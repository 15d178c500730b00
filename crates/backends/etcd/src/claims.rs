//! What this process knows of its own claims: which etcd lease each has, and until when.
//!
//! Nothing depends on it but speed and what remains to the millisecond: a claim that is not known here is looked up.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use leasehold_core::{ClaimRef, Timestamp};

use crate::pool::Lease;

/// A claim of ours.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    /// Taken for this claim.
    pub(crate) taken: Lease,
    /// The contender's name.
    pub(crate) name: String,
    /// What the contender is under, as far as we know: a place's lease, or that of its ttl.
    pub(crate) under: Option<Lease>,
    /// The contender's creation revision; zero until an answer has told it.
    pub(crate) created: i64,
    /// When the contender was last written, as far as we know.
    pub(crate) written: i64,
    /// Until when it was told that it holds or waits.
    pub(crate) ends: Timestamp,
    /// A request went out that was not answered: it may be executed yet.
    pub(crate) unanswered: bool,
}

impl Record {
    pub(crate) fn new(taken: Lease, name: String) -> Record {
        let (under, ends) = (None, taken.ends());
        Record { taken, name, under, created: 0, written: 0, ends, unanswered: false }
    }

    /// The leases that it has, each as it was kept last.
    pub(crate) fn leases(&self) -> impl Iterator<Item = Lease> {
        let same = self.under.filter(|under| under.id == self.taken.id);
        let other = self.under.filter(|under| under.id != self.taken.id);
        std::iter::once(same.unwrap_or(self.taken)).chain(other)
    }

    /// The lease that it was under when `seen` was read has been kept until `ends`, and the contender was last written at
    /// this revision. Not if it has moved to another lease since: a place that became a seat meanwhile has left its lease
    /// to the next claim.
    pub(crate) fn was_renewed(&mut self, seen: &Record, ends: Timestamp, written: i64) {
        let id = |record: &Record| record.under.map(|under| under.id);
        if self.created == seen.created && id(self) == id(seen) {
            (self.under, self.ends, self.written) = (seen.under, self.ends.max(ends), written);
        }
    }

    /// After this, nothing of it is left in etcd but by renewals that are recorded here.
    fn over(&self) -> Timestamp {
        self.under.map_or(self.taken.ends(), |under| under.ends().max(self.taken.ends()))
    }
}

#[derive(Debug, Default)]
pub(crate) struct Claims {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    records: HashMap<ClaimRef, Record>,
    sweep_at: usize,
}

/// How many are kept before the first look for those that nobody asks for any more.
const SWEEP_MIN: usize = 256;

impl Claims {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, claim: &ClaimRef) -> Option<Record> {
        self.inner().records.get(claim).cloned()
    }

    pub(crate) fn insert(&self, now: Timestamp, claim: ClaimRef, record: Record) {
        let mut inner = self.inner();
        inner.records.insert(claim, record);
        if inner.records.len() > inner.sweep_at.max(SWEEP_MIN) {
            inner.records.retain(|_, record| record.over() > now);
            inner.sweep_at = inner.records.len() * 2;
        }
    }

    pub(crate) fn change(&self, claim: &ClaimRef, change: impl FnOnce(&mut Record)) {
        if let Some(record) = self.inner().records.get_mut(claim) {
            change(record);
        }
    }

    pub(crate) fn remove(&self, claim: &ClaimRef) -> Option<Record> {
        self.inner().records.remove(claim)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renewal_of_a_place_that_became_a_seat_meanwhile_does_not_take_its_old_lease_back() {
        let lease = |id, kept| Lease { id, asked: 31, seconds: 31, kept: Timestamp::from_nanos(kept) };
        let mut record = Record::new(lease(1, 5), String::new());
        (record.created, record.under, record.written) = (9, Some(lease(2, 5)), 9);
        let mut seen = record.clone();
        seen.under = Some(lease(2, 7));
        let ends = seen.ends.after(std::time::Duration::from_secs(1));
        let mut seated = record.clone();
        (seated.under, seated.written) = (Some(lease(1, 8)), 12);
        seated.was_renewed(&seen, ends, 9);
        assert_eq!((seated.under, seated.written), (Some(lease(1, 8)), 12));
        record.was_renewed(&seen, ends, 10);
        assert_eq!((record.under, record.ends, record.written), (Some(lease(2, 7)), ends, 10));
    }

    #[test]
    fn a_lease_that_was_kept_goes_back_as_it_was_kept_last() {
        let lease = |id, kept| Lease { id, asked: 31, seconds: 31, kept: Timestamp::from_nanos(kept) };
        let mut record = Record::new(lease(1, 5), String::new());
        assert_eq!(record.leases().collect::<Vec<_>>(), [lease(1, 5)]);
        record.under = Some(lease(1, 9));
        assert_eq!(record.leases().collect::<Vec<_>>(), [lease(1, 9)]);
        record.under = Some(lease(2, 7));
        assert_eq!(record.leases().collect::<Vec<_>>(), [lease(1, 5), lease(2, 7)]);
    }
}
