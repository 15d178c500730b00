//! One resource of a sample, with what is computed when it is taken.

use std::{cmp::Reverse, time::Duration};

use leasehold_api::{
    fields,
    inspect::HolderBody,
    overview::{
        GONE_MAX, OverviewFilter, OverviewHolder, OverviewItem, OverviewSort, ShareMode, UnusualHoldBody,
    },
};
use leasehold_core::{HeldBy, HolderState, Snapshot};

use crate::{
    jobs::RECORD_KINDS,
    next_steps::{self, Facts},
};

/// Times of the same thing in two samples that differ by less are taken as the same, so that items keep their order.
const STEADY_WITHIN_US: u64 = 1_000_000;
/// How many holders an item has at most.
const HOLDERS_MAX: usize = 5;
/// A hold is unusual if it is so many times as long as is usual.
const UNUSUAL_TIMES: u64 = 3;
/// A shorter hold is never unusual.
const UNUSUAL_FROM_MS: u64 = 10_000;
/// The beginning of a note that is kept.
const NOTE_CHARS: usize = 200;

/// One resource.
#[derive(Debug)]
pub(crate) struct Row {
    /// Without notes.
    pub(crate) snapshot: Snapshot,
    pub(super) name: String,
    /// For the search.
    pub(super) lower_case_name: String,
    /// When this server first saw it in use.
    first_seen_us: u64,
    /// Since when the oldest claim has waited.
    pub(super) waiting_since_us: Option<u64>,
    /// Since when the oldest holder has held.
    pub(super) held_since_us: Option<u64>,
    /// The positions of holders whose processes have ended, the one with the most time left first.
    gone: Vec<usize>,
    pub(super) unusual: Option<UnusualHoldBody>,
    /// The position of its deadlock in the sample.
    pub(super) deadlock: Option<usize>,
    /// What its one holder has published, as the leader of an election does.
    pub(crate) note: Option<Note>,
}

/// What a leader has published.
#[derive(Debug)]
pub(crate) struct Note {
    /// Its beginning. `None` if it is not text.
    pub(crate) text: Option<String>,
}

/// What a row is computed from besides its snapshot.
pub(super) struct RowContext<'a> {
    pub(super) now_us: u64,
    /// The same resource in the sample before.
    pub(super) earlier: Option<&'a Row>,
    /// How long holds of its namespace and kind usually are.
    pub(super) usual_ms: Option<u64>,
}

pub(super) fn ms_since(now_us: u64, since_us: u64) -> u64 {
    now_us.saturating_sub(since_us) / 1000
}

/// When something began that has lasted for so long now; as before if that is about the same.
fn began(now_us: u64, lasted: Duration, before: Option<u64>) -> u64 {
    let computed = now_us.saturating_sub(u64::try_from(lasted.as_micros()).unwrap_or(u64::MAX));
    before.filter(|before| before.abs_diff(computed) < STEADY_WITHIN_US).unwrap_or(computed)
}

/// The note of the one holder of a resource. Locks of Terraform have one, too, which is no publication.
fn leader_note(snapshot: &Snapshot) -> Option<Note> {
    let [by] = &*snapshot.holders else { return None };
    let note = by.note.as_deref().filter(|_| snapshot.capacity == 1 && !by.kept)?;
    let text = std::str::from_utf8(note).ok();
    let is_lock_info = text.is_some_and(|text| text.starts_with("{\"ID\":"));
    if is_lock_info || RECORD_KINDS.contains(&snapshot.resource.kind()) {
        return None;
    }
    Some(Note { text: text.map(|text| text.chars().take(NOTE_CHARS).collect()) })
}

impl Row {
    pub(super) fn new(
        mut snapshot: Snapshot,
        context: &RowContext<'_>,
        is_gone: impl FnMut(&HeldBy) -> bool,
    ) -> Row {
        let RowContext { now_us, earlier, usual_ms } = *context;
        let note = leader_note(&snapshot);
        // Notes may be long.
        snapshot.holders.iter_mut().for_each(|by| by.note = None);
        let name = snapshot.resource.to_string();
        let first_seen_us = earlier.map_or(now_us, |row| row.first_seen_us);
        let waited = snapshot.queue.iter().map(|entry| entry.waited).max();
        let waiting_since_us =
            waited.map(|waited| began(now_us, waited, earlier.and_then(|row| row.waiting_since_us)));
        let held_for = snapshot.holders.iter().filter(|by| !by.kept).map(|by| by.held_for).max();
        let held_since_us = match held_for {
            Some(held_for) => Some(began(now_us, held_for, earlier.and_then(|row| row.held_since_us))),
            // Of a lock of another program nothing is known but when it was first seen.
            None => (!snapshot.foreign.is_empty()).then_some(first_seen_us),
        };
        let unusual = held_for.map(fields::ms_down).zip(usual_ms).and_then(|(held_ms, usual_ms)| {
            let is_unusual = held_ms > UNUSUAL_FROM_MS && held_ms > usual_ms.saturating_mul(UNUSUAL_TIMES);
            is_unusual.then_some(UnusualHoldBody { usual_ms, held_ms })
        });
        let gone = gone(&snapshot, is_gone);
        let (lower_case_name, deadlock) = (name.to_lowercase(), None);
        Row {
            snapshot,
            name,
            lower_case_name,
            first_seen_us,
            waiting_since_us,
            held_since_us,
            gone,
            unusual,
            deadlock,
            note,
        }
    }

    pub(super) fn key(&self) -> &str {
        self.snapshot.resource.key()
    }

    pub(super) fn sort_value(&self, sort: OverviewSort) -> u64 {
        match sort {
            OverviewSort::Wait => self.waiting_since_us.unwrap_or(u64::MAX),
            OverviewSort::Hold => self.held_since_us.unwrap_or(u64::MAX),
            OverviewSort::Name => 0,
            OverviewSort::Waiters => u64::from(u32::MAX - self.snapshot.queue_length),
        }
    }

    pub(super) fn is_stuck(&self, now_us: u64, after_ms: u64) -> bool {
        self.counted_wait_since_us().is_some_and(|since| ms_since(now_us, since) >= after_ms)
    }

    /// Since when the oldest claim has waited. `None` if its one holder has a note and renews, as the leader of an election does: its
    /// candidates are meant to wait, so their waits do not count (ADR 0092).
    pub(super) fn counted_wait_since_us(&self) -> Option<u64> {
        self.waiting_since_us.filter(|_| !self.is_led())
    }

    /// Whether a claim has waited this long for a holder that counts as the leader of an election.
    pub(super) fn has_long_candidates(&self, now_us: u64, after_ms: u64) -> bool {
        self.is_led() && self.waiting_since_us.is_some_and(|since| ms_since(now_us, since) >= after_ms)
    }

    /// Whether its one holder has a note, renews and is not told to go: it counts as an election with a leader. A store does not tell an
    /// election from another holder with a note (ADR 0092).
    fn is_led(&self) -> bool {
        let is_well = |by: &HeldBy| by.state() == Some(HolderState::Renewing) && !by.evicting;
        self.note.is_some()
            && self.gone.is_empty()
            && self.snapshot.paused_for.is_none()
            && self.snapshot.holders.iter().all(is_well)
    }

    /// Whether nobody holds it, waits for it or pauses it, and it only stays closed after a release, as the records of ticks do.
    pub(super) fn is_only_kept(&self) -> bool {
        let snapshot = &self.snapshot;
        let is_in_use = self.is_held() || snapshot.queue_length > 0 || snapshot.paused_for.is_some();
        !is_in_use && snapshot.unreadable.is_none()
    }

    pub(super) fn is_held(&self) -> bool {
        self.held_since_us.is_some()
    }

    pub(super) fn has_gone_holder(&self) -> bool {
        !self.gone.is_empty()
    }

    /// Whether a list of these resources has it. Whether it is stuck or deadlocked, the sample knows.
    pub(super) fn is_like(&self, filter: OverviewFilter) -> bool {
        match filter {
            OverviewFilter::Stuck | OverviewFilter::Waiting => self.snapshot.queue_length > 0,
            OverviewFilter::Unusual => self.unusual.is_some(),
            OverviewFilter::Paused => self.snapshot.paused_for.is_some(),
            OverviewFilter::Unreadable => self.snapshot.unreadable.is_some(),
            OverviewFilter::Gone => self.has_gone_holder(),
            OverviewFilter::Foreign => !self.snapshot.foreign.is_empty(),
            OverviewFilter::Deadlocked => self.deadlock.is_some(),
            OverviewFilter::Held => self.is_held(),
            OverviewFilter::Leading => self.note.is_some(),
            OverviewFilter::Kept => self.is_only_kept(),
        }
    }

    /// `renewing`, `late`, `silent` or `gone`.
    pub(crate) fn state_of(&self, position: usize) -> Option<String> {
        if self.gone.contains(&position) {
            return Some(next_steps::GONE.to_owned());
        }
        self.snapshot.holders.get(position)?.state().map(|state| state.as_str().to_owned())
    }

    pub(super) fn item(
        &self,
        (now_us, stuck_after_ms): (u64, u64),
        (is_deadlocked, takes_orders): (bool, bool),
    ) -> OverviewItem {
        let snapshot = &self.snapshot;
        let first_waiter = snapshot.queue.iter().max_by_key(|entry| entry.waited);
        let holders = snapshot.holders.iter().take(HOLDERS_MAX).enumerate();
        let holder = |(position, by): (usize, &HeldBy)| OverviewHolder {
            state: self.state_of(position),
            ..OverviewHolder::of(by)
        };
        let gone = self.gone.iter().take(GONE_MAX).filter_map(|position| {
            let by = snapshot.holders.get(*position)?;
            Some(holder((*position, by)))
        });
        let oldest_wait_ms = self.waiting_since_us.map(|since| ms_since(now_us, since));
        let is_stuck = self.is_stuck(now_us, stuck_after_ms);
        let steps = next_steps::steps(&Facts {
            snapshot,
            gone: &self.gone,
            oldest_wait_ms: oldest_wait_ms.filter(|_| !self.is_led()),
            is_stuck,
            is_unusual: self.unusual.is_some(),
            is_deadlocked,
            takes_orders,
        });
        OverviewItem {
            resource: self.name.clone(),
            key: self.key().to_owned(),
            kind: snapshot.resource.kind().to_owned(),
            capacity: snapshot.capacity,
            mode: ShareMode::of(snapshot.capacity),
            holders: holders.map(holder).collect(),
            holder_count: snapshot.holder_count,
            gone: gone.collect(),
            gone_more: u32::try_from(self.gone.len().saturating_sub(GONE_MAX)).unwrap_or(u32::MAX),
            foreign_count: u32::try_from(snapshot.foreign.len()).unwrap_or(u32::MAX),
            queue_length: snapshot.queue_length,
            first_waiter: first_waiter.map(|entry| HolderBody::from(&*entry.holder)),
            oldest_wait_ms,
            oldest_hold_ms: self.held_since_us.map(|since| ms_since(now_us, since)),
            stuck: is_stuck,
            led: self.is_led(),
            paused_for_ms: snapshot.paused_for.map(fields::ms_up),
            unreadable: snapshot.unreadable.clone(),
            unusual_hold: self.unusual,
            deadlock: None,
            next_step: steps.next,
            steps: steps.all,
        }
    }
}

/// The positions of holders whose processes have ended, the one with the most time left first.
fn gone(snapshot: &Snapshot, mut is_gone: impl FnMut(&HeldBy) -> bool) -> Vec<usize> {
    let holders = snapshot.holders.iter().enumerate().filter(|(_, by)| !by.kept);
    let mut gone: Vec<usize> = holders.filter(|(_, by)| is_gone(by)).map(|(position, _)| position).collect();
    gone.sort_by_key(|position| Reverse(snapshot.holders[*position].remaining));
    gone
}
