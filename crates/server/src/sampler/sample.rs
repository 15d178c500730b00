//! One look at all resources: searched, sorted and paged in memory.

use std::{collections::HashMap, sync::OnceLock, time::Duration};

use leasehold_api::{
    fields,
    inspect::HolderBody,
    overview::{OldestBody, OverviewHolder, OverviewItem, OverviewSort, STUCK_AFTER_MS},
};
use leasehold_core::{Snapshot, WallTime};
use tokio::time::Instant;

use crate::access::Scope;

/// Times of the same thing in two samples that differ by less are taken as the same, so that the order of items is steady.
const STEADY_WITHIN_US: u64 = 1_000_000;
/// How many holders an item has at most.
const HOLDERS_MAX: usize = 5;

/// All resources at one time.
#[derive(Debug)]
pub(crate) struct Sample {
    pub(super) taken_at: Instant,
    pub(super) wall: WallTime,
    /// The store has more.
    pub(super) truncated: bool,
    /// A resource is stuck when a claim has waited this long.
    stuck_after_ms: u64,
    /// In key order.
    pub(super) rows: Vec<Row>,
    /// The positions of the rows in each order of [`OverviewSort::ALL`], made when first asked for.
    orders: [OnceLock<Vec<u32>>; OverviewSort::ALL.len()],
}

/// One resource.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) snapshot: Snapshot,
    name: String,
    /// For the search.
    lower_case_name: String,
    /// When this server first saw it in use.
    first_seen_us: u64,
    /// Since when the oldest claim has waited.
    waiting_since_us: Option<u64>,
    /// Since when the oldest holder has held.
    held_since_us: Option<u64>,
}

/// What a caller looks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Search<'a> {
    pub(crate) scope: Scope<'a>,
    /// In lower case.
    pub(crate) text: &'a str,
    pub(crate) kind: Option<&'a str>,
}

/// The place of a row in an order.
type SortKey<'a> = (u64, &'a str);

/// Numbers about the resources of a scope.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    pub(crate) held: u64,
    pub(crate) waiting: u64,
    pub(crate) stuck: u64,
    pub(crate) paused: u64,
    pub(crate) unreadable: u64,
    pub(crate) oldest_wait: Option<OldestBody>,
    pub(crate) oldest_hold: Option<OldestBody>,
}

/// A page of items.
#[derive(Debug)]
pub(crate) struct ItemsPage {
    pub(crate) matched: u64,
    pub(crate) items: Vec<OverviewItem>,
    pub(crate) next: Option<String>,
}

impl Sample {
    /// A sample of these resources. Times that it shares with the sample before stay the same.
    pub(super) fn new(
        snapshots: Vec<Snapshot>,
        truncated: bool,
        (taken_at, wall): (Instant, WallTime),
        before: Option<&Sample>,
    ) -> Sample {
        let earlier: HashMap<&str, &Row> =
            before.iter().flat_map(|sample| &sample.rows).map(|row| (row.key(), row)).collect();
        let mut rows: Vec<Row> = snapshots
            .into_iter()
            .map(|snapshot| {
                let earlier = earlier.get(snapshot.resource.key()).copied();
                Row::new(snapshot, wall.as_micros(), earlier)
            })
            .collect();
        rows.sort_by(|a, b| a.key().cmp(b.key()));
        rows.dedup_by(|a, b| a.key() == b.key());
        Sample { taken_at, wall, truncated, stuck_after_ms: STUCK_AFTER_MS, rows, orders: Default::default() }
    }

    /// Calls a resource stuck when a claim has waited this long.
    #[must_use]
    pub(super) fn stuck_after(self, waited: Duration) -> Sample {
        Sample { stuck_after_ms: fields::ms_up(waited), ..self }
    }

    pub(crate) fn age(&self) -> Duration {
        self.taken_at.elapsed()
    }

    pub(crate) fn is_truncated(&self) -> bool {
        self.truncated
    }

    fn order(&self, sort: OverviewSort) -> &[u32] {
        let position = OverviewSort::ALL.iter().position(|one| *one == sort).unwrap_or(0);
        self.orders[position].get_or_init(|| {
            let count = u32::try_from(self.rows.len()).unwrap_or(u32::MAX);
            let mut order: Vec<u32> = (0..count).collect();
            // Stable, and the rows are in key order: so equal ones are in that order, too.
            order.sort_by_key(|row| self.rows[*row as usize].sort_value(sort));
            order
        })
    }

    /// The page after `after`, which is the `next` of a page. `None` if it is not one.
    pub(crate) fn page(
        &self,
        search: Search<'_>,
        sort: OverviewSort,
        after: Option<&str>,
        limit: usize,
    ) -> Option<ItemsPage> {
        let after = match after {
            Some(text) => {
                let (value, key) = text.split_once('.')?;
                Some((value.parse().ok()?, key))
            }
            None => None,
        };
        let mut page = ItemsPage { matched: 0, items: Vec::with_capacity(limit), next: None };
        let mut last: Option<SortKey<'_>> = None;
        for row in self.order(sort).iter().map(|row| &self.rows[*row as usize]) {
            if !search.finds(row) {
                continue;
            }
            page.matched += 1;
            let key = (row.sort_value(sort), row.key());
            if after.is_some_and(|after| key <= after) {
                continue;
            }
            if page.items.len() < limit {
                page.items.push(row.item(self.wall.as_micros(), self.stuck_after_ms));
                last = Some(key);
            } else if page.next.is_none() {
                page.next = last.map(|(value, key)| format!("{value}.{key}"));
            }
        }
        Some(page)
    }

    /// Numbers about all resources of the scope.
    pub(crate) fn totals(&self, scope: Scope<'_>) -> Totals {
        let now = self.wall.as_micros();
        let mut totals = Totals::default();
        let (mut wait, mut hold): (Option<&Row>, Option<&Row>) = (None, None);
        for row in self.rows.iter().filter(|row| scope.has(&row.snapshot.resource)) {
            totals.held += u64::from(row.held_since_us.is_some());
            totals.waiting += u64::from(row.snapshot.queue_length);
            totals.stuck += u64::from(row.is_stuck(now, self.stuck_after_ms));
            totals.paused += u64::from(row.snapshot.paused_for.is_some());
            totals.unreadable += u64::from(row.snapshot.unreadable.is_some());
            older(&mut wait, row, |row| row.waiting_since_us);
            older(&mut hold, row, |row| row.held_since_us);
        }
        let body = |row: &Row, since: Option<u64>| OldestBody {
            resource: row.name.clone(),
            key: row.key().to_owned(),
            ms: ms_since(now, since.unwrap_or(now)),
        };
        totals.oldest_wait = wait.map(|row| body(row, row.waiting_since_us));
        totals.oldest_hold = hold.map(|row| body(row, row.held_since_us));
        totals
    }
}

/// Replaces `oldest` by the row if it is older.
fn older<'a>(oldest: &mut Option<&'a Row>, row: &'a Row, since: fn(&Row) -> Option<u64>) {
    let Some(candidate) = since(row) else { return };
    if oldest.and_then(since).is_none_or(|known| candidate < known) {
        *oldest = Some(row);
    }
}

fn ms_since(now_us: u64, since_us: u64) -> u64 {
    now_us.saturating_sub(since_us) / 1000
}

/// When something began that has lasted for so long now; as before if that is about the same.
fn began(now_us: u64, lasted: Duration, before: Option<u64>) -> u64 {
    let computed = now_us.saturating_sub(u64::try_from(lasted.as_micros()).unwrap_or(u64::MAX));
    before.filter(|before| before.abs_diff(computed) < STEADY_WITHIN_US).unwrap_or(computed)
}

impl Search<'_> {
    fn finds(&self, row: &Row) -> bool {
        self.kind.is_none_or(|kind| row.snapshot.resource.kind() == kind)
            && (self.text.is_empty() || row.lower_case_name.contains(self.text))
            && self.scope.has(&row.snapshot.resource)
    }
}

impl Row {
    fn new(mut snapshot: Snapshot, now_us: u64, earlier: Option<&Row>) -> Row {
        // Notes may be long, and are not shown.
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
        let lower_case_name = name.to_lowercase();
        Row { snapshot, name, lower_case_name, first_seen_us, waiting_since_us, held_since_us }
    }

    pub(super) fn key(&self) -> &str {
        self.snapshot.resource.key()
    }

    fn sort_value(&self, sort: OverviewSort) -> u64 {
        match sort {
            OverviewSort::Wait => self.waiting_since_us.unwrap_or(u64::MAX),
            OverviewSort::Hold => self.held_since_us.unwrap_or(u64::MAX),
            OverviewSort::Name => 0,
            OverviewSort::Waiters => u64::from(u32::MAX - self.snapshot.queue_length),
        }
    }

    fn is_stuck(&self, now_us: u64, after_ms: u64) -> bool {
        self.waiting_since_us.is_some_and(|since| ms_since(now_us, since) >= after_ms)
    }

    fn item(&self, now_us: u64, stuck_after_ms: u64) -> OverviewItem {
        let snapshot = &self.snapshot;
        let first_waiter = snapshot.queue.iter().max_by_key(|entry| entry.waited);
        OverviewItem {
            resource: self.name.clone(),
            key: self.key().to_owned(),
            kind: snapshot.resource.kind().to_owned(),
            capacity: snapshot.capacity,
            mode: leasehold_api::overview::ShareMode::of(snapshot.capacity),
            unusual_hold: None,
            deadlock: None,
            next_step: None,
            steps: Vec::new(),
            holders: snapshot.holders.iter().take(HOLDERS_MAX).map(OverviewHolder::of).collect(),
            holder_count: snapshot.holder_count,
            foreign_count: u32::try_from(snapshot.foreign.len()).unwrap_or(u32::MAX),
            queue_length: snapshot.queue_length,
            first_waiter: first_waiter.map(|entry| HolderBody::from(&*entry.holder)),
            oldest_wait_ms: self.waiting_since_us.map(|since| ms_since(now_us, since)),
            oldest_hold_ms: self.held_since_us.map(|since| ms_since(now_us, since)),
            stuck: self.is_stuck(now_us, stuck_after_ms),
            paused_for_ms: snapshot.paused_for.map(fields::ms_up),
            unreadable: snapshot.unreadable.clone(),
        }
    }
}
