//! Waiters that do not answer are removed from the queue, so that a dead one does not hold up the others until
//! its place expires (ADR 0064).
//!
//! 1. A claim that waits looks at the queue about once a second (`wait.rs`). Nothing is written for this.
//! 2. A waiter is *called* if it could be granted: its watch has told it. It is also called if its record has
//!    the mark `called`. A live waiter *answers* with a write to its contender: it is granted, or it removes the
//!    mark.
//! 3. [`CalledWaiters`] notes since when this client sees a called waiter with the same last write. After
//!    [`ANSWER_WITHIN`], on the clock of this client alone, the waiter is *silent*.
//! 4. The contender of a silent waiter is deleted, if it was not written since. If its process lives after all,
//!    the claim asks again and stands at the end of the queue. It cannot keep its place: the order of the queue
//!    is the order of creation, and so of tokens.
//! 5. The waiters behind a silent one may be dead for the same reason. So in the same step all waiters between
//!    it and the claim that looks get the mark `called`. That wakes those that live, and the others are silent
//!    a second later, all together.
//! 6. A pause can begin and end between two looks, and neither look sees it. Therefore the transaction that begins
//!    a pause also writes to the contenders of the waiters that could be granted ([`rewrite_called`]). A sighting
//!    from before the pause has another last write, so it does not count, and the waiter has its whole second
//!    after the pause.
//!
//! A foreign lock is neither called nor removed.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::future::join_all;
use leasehold_core::{Timestamp, admission::ANSWER_WITHIN};

use crate::{
    backend::Etcd,
    error::StoreError,
    keys::{ResourceKeys, slot},
    resource_view::{Contender, ResourceView},
    transaction::{KeyChange, KeyChanges, Precondition, Transaction, verified_writes},
};

/// How many waiters, from the head of the queue, are called at once.
pub(crate) const CALLED_MAX: usize = 128;

/// A sighting counts only if the queue was looked at again within this time. After a longer gap a waiter may
/// have been called a second time, just now.
const SIGHTING_LASTS: Duration = Duration::from_secs(8);

/// How many resources are remembered before all are forgotten.
const RESOURCES_MAX: usize = 1_024;

/// The called waiters that this client has seen, by resource and by the name of the contender.
#[derive(Debug, Default)]
pub(crate) struct CalledWaiters {
    by_lock_prefix: Mutex<HashMap<String, Sightings>>,
}

type Sightings = HashMap<String, Sighting>;

#[derive(Clone, Copy, Debug)]
struct Sighting {
    /// The last write to the contender.
    modified: i64,
    first_seen: Timestamp,
    last_seen: Timestamp,
}

/// When a view was requested and received.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadTimes {
    pub(crate) sent: Timestamp,
    pub(crate) received: Timestamp,
}

/// What a look at the queue has found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Look {
    /// The indices of the waiters that are silent.
    silent: Vec<usize>,
    /// When the next called waiter becomes silent, if it does not answer.
    next_silence: Option<Timestamp>,
}

impl CalledWaiters {
    fn by_lock_prefix(&self) -> MutexGuard<'_, HashMap<String, Sightings>> {
        self.by_lock_prefix.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a called waiter of this resource was seen at the last look.
    fn has_any(&self, lock_prefix: &str) -> bool {
        self.by_lock_prefix().contains_key(lock_prefix)
    }

    /// Notes who is called, and returns who has not answered in time. `own` is the waiter that looks.
    fn look(&self, lock_prefix: &str, view: &ResourceView, own: Option<usize>, times: ReadTimes) -> Look {
        let mut all = self.by_lock_prefix();
        let before = all.remove(lock_prefix).unwrap_or_default();
        let (mut now, mut look) = (Sightings::new(), Look::default());
        for index in called(view).filter(|index| Some(*index) != own) {
            let Contender { name, modified, .. } = &view.contenders[index];
            let is_same = |seen: &&Sighting| {
                seen.modified == *modified && times.sent <= seen.last_seen.after(SIGHTING_LASTS)
            };
            let first_seen = before.get(name).filter(is_same).map_or(times.received, |seen| seen.first_seen);
            let silent_at = first_seen.after(ANSWER_WITHIN);
            if silent_at <= times.sent {
                look.silent.push(index);
            } else {
                look.next_silence = Some(look.next_silence.map_or(silent_at, |other| other.min(silent_at)));
            }
            let sighting = Sighting { modified: *modified, first_seen, last_seen: times.received };
            now.insert(name.clone(), sighting);
        }
        if !now.is_empty() {
            if all.len() >= RESOURCES_MAX {
                all.clear();
            }
            all.insert(lock_prefix.to_owned(), now);
        }
        look
    }
}

/// The waiters that are called: those that could be granted, and those with the mark.
fn called(view: &ResourceView) -> impl Iterator<Item = usize> {
    let grantable = view.grantable();
    view.waiters().enumerate().filter_map(move |(position, index)| {
        let record = view.contenders[index].record.as_ref()?;
        (position < grantable || record.called).then_some(index)
    })
}

/// Writes the same records again to the contenders of the waiters that could be granted, with their indices. Any
/// write makes the sightings of these waiters count no more.
pub(crate) fn rewrite_called(view: &ResourceView) -> Vec<(usize, KeyChange)> {
    let rewrite = |index: usize| {
        let Contender { record, lease, .. } = &view.contenders[index];
        let value = record.as_ref()?.to_value();
        Some((index, KeyChange::PutKeepingLease { value, lease: *lease }))
    };
    view.waiters().take(view.grantable()).filter_map(rewrite).collect()
}

impl Etcd {
    /// Looks for waiters that do not answer and removes them. Returns when to look again at the latest, if a
    /// called waiter has not answered yet.
    pub(crate) async fn remove_silent(
        &self,
        keys: &ResourceKeys,
        view: &ResourceView,
        own: Option<usize>,
        times: ReadTimes,
    ) -> Option<Timestamp> {
        let look = self.called_waiters.look(&keys.lock_prefix, view, own, times);
        if look.silent.is_empty() {
            return look.next_silence;
        }
        tracing::debug!(resource = keys.lock_prefix, count = look.silent.len(), "removing silent waiters");
        let removals = look.silent.iter().map(|index| removal(keys, &view.contenders[*index]));
        let ahead = own.unwrap_or(view.contenders.len());
        let in_between = view.waiters().take(CALLED_MAX).take_while(|index| *index < ahead);
        let to_call = in_between.filter(|index| !look.silent.contains(index));
        let calls = to_call.filter_map(|index| call(keys, &view.contenders[index]));
        let all: Vec<Transaction> = removals.chain(calls).collect();
        if let Err(error) = self.send_each(&all).await {
            // The next look finds what is left to do.
            tracing::debug!(?error, "could not remove silent waiters");
        }
        Some(times.received)
    }

    /// Whether a look has to read more than the head of the queue: a called waiter has not answered yet.
    pub(crate) fn awaits_answers(&self, keys: &ResourceKeys) -> bool {
        self.called_waiters.has_any(&keys.lock_prefix)
    }

    /// Sends these transactions, many in one. Each has preconditions of its own.
    async fn send_each(&self, transactions: &[Transaction]) -> Result<(), StoreError> {
        let parts = transactions.chunks(self.nested_max.get()).map(|part| async move {
            let sent = self.connections.transact(&Transaction::all_of(part.to_vec())).await;
            sent.inspect_err(|error| self.nested_max.note_refusal(error, part.len()))
        });
        join_all(parts).await.into_iter().try_for_each(|reply| reply.map(drop))
    }
}

/// Deletes the contender of a silent waiter, and the owner key that points to it, if the contender was not
/// written since: a waiter that was granted or has answered meanwhile stays.
fn removal(keys: &ResourceKeys, contender: &Contender) -> Transaction {
    let mut changes = KeyChanges::from([(keys.contender(&contender.name), KeyChange::Delete)]);
    let owner = contender.record.as_ref().map(|record| &record.owner);
    if let Some(owner) = owner.filter(|owner| contender.name != slot(owner)) {
        changes.insert(keys.owner(owner), KeyChange::Delete);
    }
    if_unchanged(keys, contender, &changes)
}

/// Writes the mark `called` to the contender of a waiter. `None` for a foreign lock, and if it has the mark.
fn call(keys: &ResourceKeys, contender: &Contender) -> Option<Transaction> {
    let mut record = contender.record.clone().filter(|record| !record.called)?;
    record.called = true;
    let change = KeyChange::PutKeepingLease { value: record.to_value(), lease: contender.lease };
    Some(if_unchanged(keys, contender, &KeyChanges::from([(keys.contender(&contender.name), change)])))
}

fn if_unchanged(keys: &ResourceKeys, contender: &Contender, changes: &KeyChanges) -> Transaction {
    let preconditions = vec![Precondition::ModifiedAt(keys.contender(&contender.name), contender.modified)];
    let on_success = verified_writes(&preconditions, changes);
    Transaction { preconditions, on_success, on_failure: Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource_view::tests::{contender, view};
    use leasehold_core::Share;

    fn at(millis: u64) -> Timestamp {
        Timestamp::default().after(Duration::from_millis(millis))
    }

    fn read_at(millis: u64) -> ReadTimes {
        ReadTimes { sent: at(millis), received: at(millis + 5) }
    }

    fn waiters(numbers: std::ops::RangeInclusive<u8>) -> Vec<Contender> {
        numbers.map(|number| contender(number, Share::WHOLE, false)).collect()
    }

    #[test]
    fn a_waiter_that_could_be_granted_is_silent_after_a_second() {
        let (seen, free) = (CalledWaiters::default(), view(waiters(1..=3)));
        let look = |millis| seen.look("a/", &free, Some(2), read_at(millis));
        assert_eq!(look(0), Look { silent: vec![], next_silence: Some(at(1005)) });
        assert_eq!(look(1004).silent, [] as [usize; 0]);
        assert_eq!(look(1005), Look { silent: vec![0], next_silence: None });
    }

    #[test]
    fn a_waiter_that_wrote_to_its_contender_has_answered() {
        let (seen, mut free) = (CalledWaiters::default(), view(waiters(1..=2)));
        seen.look("a/", &free, Some(1), read_at(0));
        free.contenders[0].modified += 50;
        assert_eq!(seen.look("a/", &free, Some(1), read_at(1100)).next_silence, Some(at(2105)));
    }

    #[test]
    fn a_sighting_before_a_long_gap_does_not_count() {
        let (seen, free) = (CalledWaiters::default(), view(waiters(1..=2)));
        seen.look("a/", &free, Some(1), read_at(0));
        assert_eq!(seen.look("a/", &free, Some(1), read_at(60_000)).silent, [] as [usize; 0]);
    }

    #[test]
    fn a_sighting_before_a_pause_that_no_look_has_seen_does_not_count() {
        let (seen, mut free) = (CalledWaiters::default(), view(waiters(1..=3)));
        seen.look("a/", &free, Some(2), read_at(0));
        let rewrites = rewrite_called(&free);
        assert_eq!(rewrites.len(), 1, "one waiter could be granted");
        for (index, change) in rewrites {
            let (value, lease) = match change {
                KeyChange::PutKeepingLease { value, lease } => (value, lease),
                other => panic!("{other:?}"),
            };
            let contender = &mut free.contenders[index];
            assert_eq!((value, lease), (contender.record.as_ref().unwrap().to_value(), contender.lease));
            contender.modified = free.revision + 1;
        }
        let after = seen.look("a/", &free, Some(2), read_at(1100));
        assert_eq!(after, Look { silent: vec![], next_silence: Some(at(2105)) });
        assert_eq!(seen.look("a/", &free, Some(2), read_at(2105)).silent, [0]);
    }

    #[test]
    fn a_pause_rewrites_nothing_if_nobody_could_be_granted() {
        let mut held = view(waiters(1..=3));
        held.contenders.insert(0, contender(9, Share::WHOLE, true));
        assert!(rewrite_called(&held).is_empty());
        let mut paused = view(waiters(1..=3));
        paused.pause = Some(crate::resource_view::PauseKey::default());
        assert!(rewrite_called(&paused).is_empty(), "a second pause");
    }

    #[test]
    fn only_called_waiters_can_be_silent() {
        let seen = CalledWaiters::default();
        let silent = |view: &ResourceView| {
            seen.look("a/", view, None, read_at(0));
            let silent = seen.look("a/", view, None, read_at(2000)).silent;
            seen.look("a/", &ResourceView::default(), None, read_at(2100));
            silent
        };
        let mut held = view(waiters(1..=3));
        held.contenders.insert(0, contender(9, Share::WHOLE, true));
        assert_eq!(silent(&held), [] as [usize; 0], "nobody can be granted");
        held.contenders[2].record.as_mut().unwrap().called = true;
        assert_eq!(silent(&held), [2], "it has the mark");
        let mut paused = view(waiters(1..=2));
        paused.pause = Some(crate::resource_view::PauseKey::default());
        assert_eq!(silent(&paused), [] as [usize; 0], "a pause calls nobody");
        let mut foreign = view(waiters(1..=3));
        foreign.contenders[1].record = None;
        assert_eq!(silent(&foreign), [0], "a foreign lock is never silent");
        foreign.contenders[0].record = None;
        assert_eq!(silent(&foreign), [] as [usize; 0], "the foreign lock holds");
    }

    #[test]
    fn memory_is_bounded() {
        let (seen, free) = (CalledWaiters::default(), view(waiters(1..=1)));
        (0..3 * RESOURCES_MAX)
            .for_each(|number| drop(seen.look(&number.to_string(), &free, None, read_at(0))));
        assert!(seen.by_lock_prefix().len() <= RESOURCES_MAX);
    }
}
