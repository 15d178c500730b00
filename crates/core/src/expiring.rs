//! A map whose entries expire: found by key, or by which one expires next.

use std::collections::{BTreeMap, BTreeSet};

use crate::clock::Timestamp;

/// A map whose entries expire. Removing expired ones is up to the caller: it has no clock.
#[derive(Clone, Debug)]
pub(crate) struct ExpiringMap<K, T> {
    entries: BTreeMap<K, (Timestamp, T)>,
    ends: BTreeSet<(Timestamp, K)>,
}

impl<K: Copy + Ord, T> ExpiringMap<K, T> {
    pub(crate) const fn new() -> ExpiringMap<K, T> {
        ExpiringMap { entries: BTreeMap::new(), ends: BTreeSet::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Inserts an entry, or replaces the one with this key.
    pub(crate) fn insert(&mut self, key: K, ends: Timestamp, entry: T) {
        self.remove(key);
        self.entries.insert(key, (ends, entry));
        self.ends.insert((ends, key));
    }

    pub(crate) fn get(&self, key: K) -> Option<(Timestamp, &T)> {
        self.entries.get(&key).map(|(ends, entry)| (*ends, entry))
    }

    pub(crate) fn get_mut(&mut self, key: K) -> Option<&mut T> {
        self.entries.get_mut(&key).map(|(_, entry)| entry)
    }

    pub(crate) fn remove(&mut self, key: K) -> Option<T> {
        let (ends, entry) = self.entries.remove(&key)?;
        self.ends.remove(&(ends, key));
        Some(entry)
    }

    /// Changes when an entry expires. Returns false if there is none.
    pub(crate) fn reschedule(&mut self, key: K, ends: Timestamp) -> bool {
        let Some((old, _)) = self.entries.get_mut(&key) else { return false };
        let old = std::mem::replace(old, ends);
        self.ends.remove(&(old, key));
        self.ends.insert((ends, key));
        true
    }

    /// Removes one entry that has expired.
    pub(crate) fn pop_ended(&mut self, now: Timestamp) -> Option<T> {
        let &(ends, key) = self.ends.first()?;
        (ends <= now).then(|| self.remove(key)).flatten()
    }

    /// When the next entry expires.
    pub(crate) fn next_end(&self) -> Option<Timestamp> {
        self.ends.first().map(|&(ends, _)| ends)
    }

    /// All entries, in the order of their keys.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (K, Timestamp, &T)> {
        self.entries.iter().map(|(key, (ends, entry))| (*key, *ends, entry))
    }

    /// All entries, the one that expires soonest first.
    pub(crate) fn by_end(&self) -> impl Iterator<Item = (Timestamp, &T)> {
        self.ends.iter().map(|(ends, key)| (*ends, &self.entries[key].1))
    }
}
