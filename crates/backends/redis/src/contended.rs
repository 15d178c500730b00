//! Remembers which resources were contended a moment ago.
//!
//! `acquire` and `release` first try a short script for the plain case (ADR 0038). If others wait, that costs a
//! second round trip. So for [`REMEMBERED`] after the short script has failed on a resource, or a claim was
//! blocked there, calls on it begin with the whole script. This is a guess: a wrong one costs some time and
//! nothing else.

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use leasehold_core::{Resource, Timestamp};

/// How long a resource is remembered: longer than a waiter sleeps before it asks again.
const REMEMBERED: Duration = Duration::from_secs(10);
/// How many resources are remembered at the most. Two with the same slot replace each other.
const SLOTS: u64 = 1024;

/// The resources that were contended a moment ago.
#[derive(Debug)]
pub(crate) struct ContendedResources {
    /// The upper half is a part of the hash of the resource; the lower half is when it was noted, in
    /// milliseconds, which wrap around after 49 days. 0: never used.
    slots: Box<[AtomicU64]>,
}

impl Default for ContendedResources {
    fn default() -> ContendedResources {
        ContendedResources { slots: (0..SLOTS).map(|_| AtomicU64::new(0)).collect() }
    }
}

impl ContendedResources {
    pub(crate) fn note(&self, resource: &Resource, now: Timestamp) {
        let (slot, tag) = self.slot(resource);
        slot.store(tag | u64::from(millis(now)), Ordering::Relaxed);
    }

    pub(crate) fn contains(&self, resource: &Resource, now: Timestamp) -> bool {
        let (slot, tag) = self.slot(resource);
        let entry = slot.load(Ordering::Relaxed);
        let age = Duration::from_millis(u64::from(millis(now).wrapping_sub(lower_half(entry))));
        entry != 0 && entry & TAG == tag && age < REMEMBERED
    }

    fn slot(&self, resource: &Resource) -> (&AtomicU64, u64) {
        let mut hasher = DefaultHasher::new();
        resource.key().hash(&mut hasher);
        let hash = hasher.finish();
        #[allow(clippy::cast_possible_truncation, reason = "the remainder is below 1024")]
        let index = (hash % SLOTS) as usize;
        (&self.slots[index], hash & TAG)
    }
}

/// The bits of an entry that come from the hash.
const TAG: u64 = 0xffff_ffff_0000_0000;

fn millis(at: Timestamp) -> u32 {
    lower_half(at.as_nanos() / 1_000_000)
}

#[allow(clippy::cast_possible_truncation, reason = "the lower half is what is wanted")]
fn lower_half(number: u64) -> u32 {
    number as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_contended_resource_is_remembered_for_a_while() {
        let contended = ContendedResources::default();
        let (ours, other): (Resource, Resource) = ("report/1".parse().unwrap(), "report/2".parse().unwrap());
        let start = Timestamp::from_nanos(7_000_000);
        assert!(!contended.contains(&ours, start));
        contended.note(&ours, start);
        assert!(contended.contains(&ours, start));
        assert!(!contended.contains(&other, start));
        assert!(contended.contains(&ours, start.after(REMEMBERED - Duration::from_millis(1))));
        assert!(!contended.contains(&ours, start.after(REMEMBERED)));
    }

    #[test]
    fn a_clock_that_wraps_around_does_no_harm() {
        let contended = ContendedResources::default();
        let resource: Resource = "report/1".parse().unwrap();
        let before = Timestamp::from_nanos(0).after(Duration::from_millis(u64::from(u32::MAX)));
        contended.note(&resource, before);
        assert!(contended.contains(&resource, before.after(Duration::from_secs(1))));
        assert!(!contended.contains(&resource, before.after(REMEMBERED)));
    }
}
