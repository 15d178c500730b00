//! One sample of all resources: searched, sorted and paged in memory.

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
    time::Duration,
};

use leasehold_api::{
    fields,
    overview::{KINDS_MAX, KindBody, OldestBody, OverviewFilter, OverviewItem, OverviewSort, STUCK_AFTER_MS},
};
use leasehold_core::{HeldBy, Holder, Resource, Snapshot, WallTime};
use leasehold_support::processes::ProcessTable;
use tokio::time::Instant;

use super::{
    activity,
    deadlocks::{self, Deadlock},
    row::{Row, RowContext, ms_since},
};
use crate::access::Scope;

/// All resources at one time.
#[derive(Debug)]
pub(crate) struct Sample {
    /// When its reading began: durations in it are those of this time, or of a later one.
    pub(super) taken_at: Instant,
    /// When its reading ended.
    pub(super) read_until: Instant,
    /// The wall clock at `taken_at`.
    pub(super) wall: WallTime,
    /// The store has more.
    pub(super) truncated: bool,
    /// A resource is stuck when a claim has waited this long.
    stuck_after_ms: u64,
    /// The store takes operators' commands.
    takes_orders: bool,
    /// In key order.
    pub(super) rows: Vec<Row>,
    deadlocks: Vec<Deadlock>,
    /// The positions of the rows in each order of [`OverviewSort::ALL`], made when first asked for.
    orders: [OnceLock<Vec<u32>>; OverviewSort::ALL.len()],
    /// The numbers for a caller that may see everything.
    totals: OnceLock<Totals>,
}

/// What was read from the store, and what a sample is computed from besides.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) snapshots: Vec<Snapshot>,
    pub(super) truncated: bool,
    pub(super) taken_at: Instant,
    pub(super) read_until: Instant,
    pub(super) wall: WallTime,
    pub(super) stuck_after: Duration,
    pub(super) takes_orders: bool,
    /// How long holds usually are, by namespace and kind.
    pub(super) usual_holds: HashMap<String, u64>,
    /// The processes of this host.
    pub(super) processes: ProcessTable,
}

impl Reading {
    /// These resources, read at once, and nothing else.
    pub(super) fn of(snapshots: Vec<Snapshot>, taken_at: Instant, wall: WallTime) -> Reading {
        Reading {
            snapshots,
            truncated: false,
            taken_at,
            read_until: taken_at,
            wall,
            stuck_after: Duration::from_millis(STUCK_AFTER_MS),
            takes_orders: true,
            usual_holds: HashMap::new(),
            processes: ProcessTable::of_this_host(),
        }
    }
}

/// Which resources a caller searches for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Search<'a> {
    pub(crate) scope: Scope<'a>,
    /// In lower case.
    pub(crate) text: &'a str,
    pub(crate) key: Option<&'a str>,
    pub(crate) kind: Option<&'a str>,
    pub(crate) only: Option<OverviewFilter>,
}

impl Search<'_> {
    /// Whether the query asks for some resources only. Otherwise those that are only kept closed are left out (ADR 0074).
    fn is_narrow(&self) -> bool {
        !self.text.is_empty() || self.key.is_some() || self.kind.is_some() || self.only.is_some()
    }
}

/// The place of a row in an order.
type SortKey<'a> = (u64, &'a str);

/// Numbers about the resources of a scope.
#[derive(Clone, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) held: u64,
    pub(crate) waiting: u64,
    pub(crate) stuck: u64,
    pub(crate) led: u64,
    pub(crate) paused: u64,
    pub(crate) unreadable: u64,
    pub(crate) kept: u64,
    pub(crate) unusual: u64,
    pub(crate) gone: u64,
    pub(crate) foreign: u64,
    pub(crate) deadlocks: u64,
    /// Those with the most resources, largest first.
    pub(crate) kinds: Vec<KindBody>,
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
    pub(super) fn new(reading: Reading, before: Option<&Sample>) -> Sample {
        let Reading { truncated, taken_at, read_until, wall, takes_orders, .. } = reading;
        let deadlocks = deadlocks::find(reading.snapshots.iter());
        let earlier: HashMap<&str, &Row> =
            before.iter().flat_map(|sample| &sample.rows).map(|row| (row.key(), row)).collect();
        // The system is asked once for each process: it may have many leases.
        let mut known: HashMap<Arc<Holder>, bool> = HashMap::new();
        let mut is_gone = |by: &HeldBy| match known.get(&by.holder) {
            Some(is_gone) => *is_gone,
            None => {
                let is_gone = reading.processes.is_gone(&by.holder);
                known.insert(Arc::clone(&by.holder), is_gone);
                is_gone
            }
        };
        let row = |snapshot: Snapshot| {
            let earlier = earlier.get(snapshot.resource.key()).copied();
            let usual_ms = reading.usual_holds.get(activity::group_of(&snapshot.resource)).copied();
            Row::new(snapshot, &RowContext { now_us: wall.as_micros(), earlier, usual_ms }, &mut is_gone)
        };
        let mut rows: Vec<Row> = reading.snapshots.into_iter().map(row).collect();
        rows.sort_by(|a, b| a.key().cmp(b.key()));
        rows.dedup_by(|a, b| a.key() == b.key());
        let mut sample = Sample {
            taken_at,
            read_until,
            wall,
            truncated,
            stuck_after_ms: fields::ms_up(reading.stuck_after),
            takes_orders,
            rows,
            deadlocks,
            orders: Default::default(),
            totals: OnceLock::new(),
        };
        sample.mark_deadlocks();
        sample
    }

    fn mark_deadlocks(&mut self) {
        for (position, deadlock) in self.deadlocks.iter().enumerate() {
            for resource in &deadlock.resources {
                if let Ok(row) = self.rows.binary_search_by(|row| row.key().cmp(resource.key())) {
                    self.rows[row].deadlock = Some(position);
                }
            }
        }
    }

    pub(crate) fn age(&self) -> Duration {
        self.taken_at.elapsed()
    }

    pub(crate) fn is_truncated(&self) -> bool {
        self.truncated
    }

    /// All resources, in key order.
    pub(crate) fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// The row of this resource, if it is in use.
    pub(crate) fn row(&self, resource: &Resource) -> Option<&Row> {
        self.row_of(resource.key())
    }

    fn row_of(&self, key: &str) -> Option<&Row> {
        let found = self.rows.binary_search_by(|row| row.key().cmp(key));
        found.ok().map(|position| &self.rows[position])
    }

    /// The possible deadlocks, for those who may see them.
    pub(crate) fn deadlocks(&self) -> &[Deadlock] {
        &self.deadlocks
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
        // One resource is found without going through all of them.
        let one: Option<Option<&Row>> = search.key.map(|key| self.row_of(key));
        let order: &[u32] = if one.is_some() { &[] } else { self.order(sort) };
        let rows = order.iter().map(|row| &self.rows[*row as usize]).chain(one.flatten());
        for row in rows {
            if !self.finds(search, row) {
                continue;
            }
            page.matched += 1;
            let key = (row.sort_value(sort), row.key());
            if after.is_some_and(|after| key <= after) {
                continue;
            }
            if page.items.len() < limit {
                page.items.push(self.item(row, search.scope));
                last = Some(key);
            } else if page.next.is_none() {
                page.next = last.map(|(value, key)| format!("{value}.{key}"));
            }
        }
        Some(page)
    }

    fn finds(&self, search: Search<'_>, row: &Row) -> bool {
        let is_like = |only| match only {
            OverviewFilter::Stuck => row.is_stuck(self.wall.as_micros(), self.stuck_after_ms),
            OverviewFilter::Deadlocked => self.deadlock_of(row, search.scope).is_some(),
            other => row.is_like(other),
        };
        (search.is_narrow() || !row.is_only_kept())
            && search.kind.is_none_or(|kind| row.snapshot.resource.kind() == kind)
            && search.only.is_none_or(is_like)
            && (search.text.is_empty() || row.lower_case_name.contains(search.text))
            && search.scope.has(&row.snapshot.resource)
    }

    /// The resources of the deadlock that the row is part of, if the caller may see all of them.
    fn deadlock_of(&self, row: &Row, scope: Scope<'_>) -> Option<Vec<String>> {
        let body = self.deadlocks.get(row.deadlock?)?.body(scope)?;
        Some(body.resources.iter().map(|one| one.resource.clone()).collect())
    }

    fn item(&self, row: &Row, scope: Scope<'_>) -> OverviewItem {
        let deadlock = self.deadlock_of(row, scope);
        let mut item =
            row.item((self.wall.as_micros(), self.stuck_after_ms), (deadlock.is_some(), self.takes_orders));
        item.deadlock = deadlock;
        item
    }

    /// Numbers about all resources of the scope.
    pub(crate) fn totals(&self, scope: Scope<'_>) -> Totals {
        match scope.is_everything() {
            true => self.totals.get_or_init(|| self.count(scope)).clone(),
            false => self.count(scope),
        }
    }

    fn count(&self, scope: Scope<'_>) -> Totals {
        let now = self.wall.as_micros();
        let mut totals = Totals::default();
        let mut kinds: HashMap<&str, KindBody> = HashMap::new();
        let (mut wait, mut hold): (Option<&Row>, Option<&Row>) = (None, None);
        for row in self.rows.iter().filter(|row| scope.has(&row.snapshot.resource)) {
            let is_stuck = row.is_stuck(now, self.stuck_after_ms);
            let queue_length = u64::from(row.snapshot.queue_length);
            totals.held += u64::from(row.is_held());
            totals.waiting += queue_length;
            totals.stuck += u64::from(is_stuck);
            totals.led += u64::from(row.has_long_candidates(now, self.stuck_after_ms));
            totals.paused += u64::from(row.snapshot.paused_for.is_some());
            totals.unreadable += u64::from(row.snapshot.unreadable.is_some());
            totals.unusual += u64::from(row.unusual.is_some());
            totals.gone += u64::from(row.has_gone_holder());
            totals.foreign += u64::from(!row.snapshot.foreign.is_empty());
            totals.kept += u64::from(row.is_only_kept());
            if !row.is_only_kept() {
                let kind = kinds.entry(row.snapshot.resource.kind()).or_default();
                kind.resources += 1;
                kind.held += u64::from(row.is_held());
                kind.waiting += queue_length;
                kind.stuck += u64::from(is_stuck);
            }
            older(&mut wait, row, Row::counted_wait_since_us);
            older(&mut hold, row, |row| row.held_since_us);
        }
        let body = |row: &Row, since: Option<u64>| OldestBody {
            resource: row.name.clone(),
            key: row.key().to_owned(),
            ms: ms_since(now, since.unwrap_or(now)),
        };
        totals.oldest_wait = wait.map(|row| body(row, row.counted_wait_since_us()));
        totals.oldest_hold = hold.map(|row| body(row, row.held_since_us));
        totals.deadlocks = self.deadlocks.iter().filter(|one| one.body(scope).is_some()).count() as u64;
        totals.kinds =
            kinds.into_iter().map(|(kind, body)| KindBody { kind: kind.to_owned(), ..body }).collect();
        totals.kinds.sort_by(|a, b| b.resources.cmp(&a.resources).then_with(|| a.kind.cmp(&b.kind)));
        totals.kinds.truncate(KINDS_MAX);
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use leasehold_api::overview::{GONE_MAX, StepName};
    use leasehold_core::{FencingToken, QueueEntry};

    use super::*;

    fn resource(name: &str, held_s: u64, pid: u32) -> Snapshot {
        let mut snapshot = Snapshot::empty(name.parse().unwrap());
        let mut by = HeldBy::new(Arc::new(Holder::new("here", pid, "")), FencingToken::new(7).unwrap(), 1);
        (by.held_for, by.remaining) = (Duration::from_secs(held_s), Duration::from_secs(60));
        (snapshot.capacity, snapshot.holder_count, snapshot.holders) = (1, 1, vec![by]);
        snapshot
    }

    fn sample(snapshots: Vec<Snapshot>) -> Sample {
        let mut reading = Reading::of(snapshots, Instant::now(), WallTime::from_micros(1 << 50));
        reading.usual_holds =
            HashMap::from([("report".to_owned(), 4000), ("acme:report".to_owned(), 60_000)]);
        reading.processes = ProcessTable::of("here", |pid| pid != 666);
        Sample::new(reading, None)
    }

    fn only(sample: &Sample, filter: OverviewFilter) -> Vec<OverviewItem> {
        let search =
            Search { scope: Scope::everything(), text: "", key: None, kind: None, only: Some(filter) };
        sample.page(search, OverviewSort::Name, None, 100).unwrap().items
    }

    #[test]
    fn a_hold_is_unusual_for_its_namespace_and_kind() {
        let sample = sample(vec![
            resource("report/long", 13, 1),
            resource("report/short", 12, 1),
            resource("acme:report/long", 170, 1),
            resource("order/long", 1000, 1),
        ]);
        let unusual = only(&sample, OverviewFilter::Unusual);
        assert_eq!(unusual.len(), 1);
        let hold = unusual[0].unusual_hold.unwrap();
        assert_eq!((unusual[0].key.as_str(), hold.usual_ms, hold.held_ms), ("report/long", 4000, 13_000));
        assert_eq!(unusual[0].next_step.as_ref().unwrap().step, StepName::Ask);
        assert_eq!(sample.totals(Scope::everything()).unusual, 1);
    }

    #[test]
    fn a_holder_whose_process_has_ended_is_gone() {
        let sample = sample(vec![resource("report/1", 1, 666), resource("report/2", 1, 1)]);
        let gone = only(&sample, OverviewFilter::Gone);
        assert_eq!((gone.len(), gone[0].key.as_str()), (1, "report/1"));
        assert_eq!(gone[0].holders[0].state.as_deref(), Some("gone"));
        assert_eq!(gone[0].next_step.as_ref().unwrap().step, StepName::EvictNow);
        assert_eq!(sample.totals(Scope::everything()).gone, 1);
    }

    /// A command that hangs while it renews was called neither stuck nor unusual if it had a note.
    #[test]
    fn a_long_hold_with_a_note_is_unusual_too() {
        let mut noted = resource("report/long", 13, 1);
        let by = &mut noted.holders[0];
        (by.ttl, by.note) = (Some(by.remaining), Some(b"http://worker-1".as_slice().into()));
        let sample = sample(vec![noted]);
        let unusual = only(&sample, OverviewFilter::Unusual);
        assert_eq!((unusual.len(), unusual[0].led), (1, true));
    }

    #[test]
    fn long_waits_for_a_holder_with_a_note_are_counted_apart() {
        let waited_for = |note: Option<&[u8]>| {
            let mut one = resource("report/1", 500, 1);
            (one.holders[0].ttl, one.holders[0].note) = (Some(Duration::from_secs(60)), note.map(Into::into));
            let waiter = Arc::new(Holder::new("here", 2, ""));
            let waited = Duration::from_secs(400);
            (one.queue_length, one.queue) = (1, vec![QueueEntry::new(waiter, 1, waited, waited)]);
            let totals = sample(vec![one]).totals(Scope::everything());
            (totals.stuck, totals.led)
        };
        assert_eq!((waited_for(None), waited_for(Some(b"x"))), ((1, 0), (0, 1)));
    }

    /// An item lists five holders, and the gone ones may be behind them.
    #[test]
    fn all_gone_holders_are_listed() {
        let mut pool = resource("pool/1", 1, 1);
        let holder = |number: u32| {
            let pid = if number < 10 { 1 } else { 666 };
            let token = FencingToken::new(u64::from(number) + 10).unwrap();
            let mut by = HeldBy::new(Arc::new(Holder::new("here", pid, "")), token, 1);
            by.remaining = Duration::from_secs(60 + u64::from(number));
            by
        };
        (pool.capacity, pool.holder_count, pool.holders) = (100, 80, (0..80).map(holder).collect());
        let gone = &only(&sample(vec![pool]), OverviewFilter::Gone)[0];
        assert_eq!((gone.holders.len(), gone.gone.len(), gone.gone_more), (5, GONE_MAX, 6));
        assert!(gone.gone.iter().all(|by| by.state.as_deref() == Some("gone")));
        let evict: Vec<_> = gone.steps.iter().filter(|step| step.step == StepName::EvictNow).collect();
        let tokens: Vec<_> = gone.gone.iter().map(|by| Some(by.token())).collect();
        assert_eq!(evict[..GONE_MAX].iter().map(|step| step.token).collect::<Vec<_>>(), tokens);
        assert_eq!(gone.next_step.as_ref().unwrap().token, Some(gone.gone[0].token()));
    }

    #[test]
    fn a_resource_is_found_by_its_key_under_the_same_conditions() {
        let sample = sample(vec![resource("report/1", 1, 1), resource("report/12", 1, 1)]);
        let find = |key: &str, kind: Option<&str>, after: Option<&str>, scope: Scope<'_>| {
            let search = Search { scope, text: "", key: Some(key), kind, only: None };
            let page = sample.page(search, OverviewSort::Wait, after, 10).unwrap();
            (page.matched, page.items.len(), page.next)
        };
        let all = Scope::everything();
        assert_eq!(find("report/1", None, None, all), (1, 1, None));
        assert_eq!(find("report/1", Some("order"), None, all).0, 0);
        assert_eq!(find("report/2", None, None, all).0, 0);
        assert_eq!(find("report/1", None, Some(&format!("{}.report/1", u64::MAX)), all), (1, 0, None));
        let namespaces = ["acme".to_owned()];
        assert_eq!(find("report/1", None, None, Scope::of_namespaces(&namespaces)).0, 0);
    }

    #[test]
    fn kinds_are_counted_for_each_scope() {
        let sample = sample(vec![
            resource("acme:report/1", 1, 1),
            resource("order/1", 1, 1),
            resource("order/2", 1, 1),
        ]);
        let kinds = |scope: Scope<'_>| {
            let kinds = sample.totals(scope).kinds;
            kinds.into_iter().map(|kind| (kind.kind, kind.resources, kind.held)).collect::<Vec<_>>()
        };
        assert_eq!(kinds(Scope::everything()), [("order".to_owned(), 2, 2), ("report".to_owned(), 1, 1)]);
        let namespaces = ["acme".to_owned()];
        assert_eq!(kinds(Scope::of_namespaces(&namespaces)), [("report".to_owned(), 1, 1)]);
    }
}
