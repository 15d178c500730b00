//! What has changed between two samples.
//!
//! A grant is known by its token, so grants that came and went are told apart. A waiting claim has no name that others may see: of the
//! queue only its length is compared.

use std::{cmp::Ordering, collections::HashSet, time::Duration};

use leasehold_api::{
    events::{ChangeBody, ChangeKind},
    fields::{self, TokenText},
    inspect::HolderBody,
};
use leasehold_core::{AuditRecord, HeldBy, HolderState, QueueEntry, Resource, Snapshot, WallTime};

use super::sample::Sample;

/// A change of a resource.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) resource: Resource,
    pub(super) body: ChangeBody,
    /// The time between the samples. It happened in this time before `body.at`.
    pub(super) within: Duration,
}

/// Compares two samples. `audit` are the newest operators' commands: without them, an eviction that ends a lease at once is taken for a
/// release.
pub(super) fn between(before: &Sample, after: &Sample, audit: &[AuditRecord]) -> Vec<Change> {
    let mut changes = Vec::new();
    // A resource may have been read at any time while a sample was taken.
    let elapsed = after.read_until.saturating_duration_since(before.taken_at);
    let at = humantime::format_rfc3339_millis(after.wall.to_system_time()).to_string();
    let context = Context { elapsed, at: &at, since: before.wall, audit };
    let mut compare = |before: &Snapshot, after: &Snapshot| context.compare(before, after, &mut changes);
    let (mut old, mut new) = (before.rows.iter().peekable(), after.rows.iter().peekable());
    loop {
        let order = match (old.peek(), new.peek()) {
            (None, None) => break,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(old), Some(new)) => old.key().cmp(new.key()),
        };
        // A resource that is not in a sample is not in use.
        let old = if order.is_le() { old.next() } else { None };
        let new = if order.is_ge() { new.next() } else { None };
        match (old, new) {
            (Some(old), Some(new)) => compare(&old.snapshot, &new.snapshot),
            (Some(old), None) => compare(&old.snapshot, &Snapshot::empty(old.snapshot.resource.clone())),
            (None, Some(new)) => compare(&Snapshot::empty(new.snapshot.resource.clone()), &new.snapshot),
            (None, None) => {}
        }
    }
    changes
}

/// Whether a lease has ended: then the audit trail may know why.
pub(super) fn has_end(before: &Sample, after: &Sample) -> bool {
    fn held(sample: &Sample) -> HashSet<(&str, u64)> {
        let rows = sample.rows.iter();
        rows.flat_map(|row| live(&row.snapshot).map(|by| (row.key(), by.token.get()))).collect()
    }
    !held(before).is_subset(&held(after))
}

/// Holders that hold: not what is only kept closed after a release.
fn live(snapshot: &Snapshot) -> impl Iterator<Item = &HeldBy> {
    snapshot.holders.iter().filter(|by| !by.kept)
}

/// Whether the resource stays closed after a release of this grant.
fn is_kept_closed(after: &Snapshot, by: &HeldBy) -> bool {
    after.holders.iter().any(|kept| kept.kept && kept.token == by.token)
}

/// Whether all holders are listed. Otherwise one that is not in the list may still be there.
fn is_complete(snapshot: &Snapshot) -> bool {
    snapshot.holder_count as usize <= snapshot.holders.len()
}

/// Finds the new holder among those that waited, and takes it out. Of several claims of one process, the first one.
fn take_waiter<'a>(waiters: &mut [Option<&'a QueueEntry>], by: &HeldBy) -> Option<&'a QueueEntry> {
    waiters.iter_mut().find(|entry| entry.is_some_and(|entry| entry.holder == by.holder))?.take()
}

struct Context<'a> {
    /// The longest time between the two readings of a resource.
    elapsed: Duration,
    /// The time of the second sample, as text.
    at: &'a str,
    /// The time of the first sample.
    since: WallTime,
    audit: &'a [AuditRecord],
}

impl Context<'_> {
    fn compare(&self, before: &Snapshot, after: &Snapshot, changes: &mut Vec<Change>) {
        let mut add = |kind: ChangeKind, fill: &dyn Fn(&mut ChangeBody)| {
            let mut change = self.change(kind, after);
            fill(&mut change.body);
            changes.push(change);
        };
        match (&before.unreadable, &after.unreadable) {
            (None, Some(why)) => return add(ChangeKind::Unreadable, &|body| body.why = Some(why.clone())),
            (Some(_), None) => return add(ChangeKind::Readable, &|_| {}),
            (Some(_), Some(_)) => return,
            (None, None) => {}
        }
        match (before.paused_for, after.paused_for) {
            (None, Some(lasts)) => add(ChangeKind::Paused, &|body| body.for_ms = Some(fields::ms_up(lasts))),
            (Some(_), None) => add(ChangeKind::Resumed, &|_| {}),
            _ => {}
        }
        let granted = if is_complete(before) && is_complete(after) {
            self.compare_holders(before, after, changes)
        } else {
            0
        };
        let kind = match before.queue_length.cmp(&after.queue_length) {
            Ordering::Less => ChangeKind::Queued,
            Ordering::Greater if before.queue_length - after.queue_length > granted => ChangeKind::Left,
            _ => return,
        };
        changes.push(self.change(kind, after));
    }

    /// The number of new grants.
    fn compare_holders(&self, before: &Snapshot, after: &Snapshot, changes: &mut Vec<Change>) -> u32 {
        let has = |snapshot: &Snapshot, token| live(snapshot).any(|by| by.token == token);
        let begun: Vec<&HeldBy> = live(after).filter(|by| !has(before, by.token)).collect();
        let ended: Vec<&HeldBy> = live(before).filter(|by| !has(after, by.token)).collect();
        for by in live(after) {
            if let Some(earlier) = live(before).find(|earlier| earlier.token == by.token) {
                self.compare_holder(earlier, by, after, changes);
            }
        }
        let mut taken_from = None;
        // A grant that was handed over has ended and begun in one step.
        if let ([by], [from]) = (&*begun, &*ended)
            && by.handovers > from.handovers
        {
            changes.push(self.grant(ChangeKind::HandedOver, by, after, Some(*from)));
            return 0;
        }
        // The earliest grant that the ended one may have made room for.
        let next_held_for = begun.iter().map(|by| by.held_for).max();
        for by in ended {
            let change = self.end(by, after, next_held_for);
            if change.body.kind == ChangeKind::Expired {
                taken_from = Some(by);
            }
            changes.push(change);
        }
        let mut waiters: Vec<Option<&QueueEntry>> = before.queue.iter().map(Some).collect();
        for by in &begun {
            let is_exclusive = by.weight == after.capacity;
            let mut change = match taken_from.filter(|_| is_exclusive) {
                Some(from) => self.grant(ChangeKind::TakenOver, by, after, Some(from)),
                None => self.grant(ChangeKind::Granted, by, after, None),
            };
            change.body.waited_ms = take_waiter(&mut waiters, by).map(|entry| fields::ms_down(entry.waited));
            changes.push(change);
        }
        u32::try_from(begun.len()).unwrap_or(u32::MAX)
    }

    /// Compares one grant in both samples.
    fn compare_holder(
        &self,
        before: &HeldBy,
        after: &HeldBy,
        snapshot: &Snapshot,
        changes: &mut Vec<Change>,
    ) {
        if let Some(asked) = after.asked.as_ref().filter(|_| before.asked.is_none()) {
            let mut change = self.grant(ChangeKind::Asked, after, snapshot, None);
            (change.body.by, change.body.why) = (Some(asked.by.to_string()), Some(asked.why.to_string()));
            changes.push(change);
        }
        if after.evicting && !before.evicting {
            changes.push(self.grant(ChangeKind::Evicting, after, snapshot, None));
        }
        let was_late = matches!(before.state(), Some(HolderState::Late | HolderState::Silent));
        if was_late && after.remaining > before.remaining {
            changes.push(self.grant(ChangeKind::RenewedLate, after, snapshot, None));
        }
    }

    /// The change for a grant that has ended. `next_held_for`: how long the grant after it has lasted, if there is one.
    ///
    /// 1. An operator's command in the audit trail explains it.
    /// 2. It was released if it had more time left than has passed, if the resource stays closed after its release, or if the next holder
    ///    of the whole resource was granted before the lease could run out.
    /// 3. It expired if its holder had not renewed on time.
    /// 4. Otherwise nothing is known: it may have been renewed and then released, or not renewed.
    fn end(&self, by: &HeldBy, after: &Snapshot, next_held_for: Option<Duration>) -> Change {
        let order = self.audit.iter().find(|record| {
            record.done
                && record.command.starts_with("evict")
                && record.resource == after.resource
                && record.token.is_none_or(|token| token == by.token)
                && record.at >= self.since
        });
        let kind = match order {
            Some(_) => ChangeKind::Evicted,
            None if by.evicting => ChangeKind::Evicted,
            None if by.remaining > self.elapsed => ChangeKind::Released,
            None if is_kept_closed(after, by) => ChangeKind::Released,
            None if self.was_succeeded_before_expiry(by, after, next_held_for) => ChangeKind::Released,
            None if matches!(by.state(), Some(HolderState::Late | HolderState::Silent)) => {
                ChangeKind::Expired
            }
            None => ChangeKind::Ended,
        };
        let mut change = self.grant(kind, by, after, None);
        if let Some(order) = order {
            (change.body.by, change.body.why) = (Some(order.by.clone()), Some(order.why.clone()));
        }
        change
    }

    /// Whether another holder of the whole resource was granted while this lease could not have run out yet.
    fn was_succeeded_before_expiry(
        &self,
        by: &HeldBy,
        after: &Snapshot,
        next_held_for: Option<Duration>,
    ) -> bool {
        let is_exclusive = by.weight == after.capacity;
        next_held_for
            .is_some_and(|held_for| is_exclusive && self.elapsed.saturating_sub(held_for) < by.remaining)
    }

    fn grant(&self, kind: ChangeKind, by: &HeldBy, after: &Snapshot, from: Option<&HeldBy>) -> Change {
        let mut change = self.change(kind, after);
        let body = &mut change.body;
        body.token = Some(TokenText(by.token));
        body.from_token = from.map(|from| TokenText(from.token));
        body.holder = Some(HolderBody::from(&*by.holder));
        body.for_ms = Some(fields::ms_down(by.held_for));
        change
    }

    fn change(&self, kind: ChangeKind, after: &Snapshot) -> Change {
        let body = ChangeBody {
            at: self.at.to_owned(),
            kind,
            resource: after.resource.to_string(),
            key: after.resource.key().to_owned(),
            token: None,
            from_token: None,
            holder: None,
            for_ms: None,
            waited_ms: None,
            queue_length: after.queue_length,
            by: None,
            why: None,
        };
        Change { resource: after.resource.clone(), body, within: self.elapsed }
    }
}

/// A change of this resource, for tests.
#[cfg(test)]
pub(super) fn change(name: &str, kind: ChangeKind, for_ms: Option<u64>) -> Change {
    let resource: Resource = name.parse().unwrap();
    let context = Context { elapsed: Duration::ZERO, at: "", since: WallTime::default(), audit: &[] };
    let mut change = context.change(kind, &Snapshot::empty(resource));
    change.body.for_ms = for_ms;
    change
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use leasehold_core::{FencingToken, FinishRequest, Holder};
    use tokio::time::Instant;

    use super::*;
    use crate::sampler::sample::Reading;

    const ELAPSED: Duration = Duration::from_secs(2);

    fn held(token: u64, remaining_s: u64) -> HeldBy {
        let holder = Arc::new(Holder::new("host", 7, ""));
        let mut by = HeldBy::new(holder, FencingToken::new(token).unwrap(), 1);
        (by.remaining, by.ttl) = (Duration::from_secs(remaining_s), Some(Duration::from_secs(30)));
        by
    }

    fn report(holders: Vec<HeldBy>, waiting: u32) -> Snapshot {
        let mut snapshot = Snapshot::empty("report/1".parse().unwrap());
        snapshot.capacity = 1;
        snapshot.holder_count = u32::try_from(holders.len()).unwrap();
        snapshot.queue_length = waiting;
        let entry = QueueEntry::new(Arc::new(Holder::new("host", 8, "")), 1, ELAPSED, ELAPSED);
        snapshot.queue = (0..waiting).map(|_| entry.clone()).collect();
        snapshot.holders = holders;
        snapshot
    }

    fn kinds(before: Snapshot, after: Snapshot, audit: &[AuditRecord]) -> Vec<ChangeKind> {
        bodies(before, after, audit).into_iter().map(|body| body.kind).collect()
    }

    fn kinds_after(elapsed: Duration, before: Snapshot, after: Snapshot) -> Vec<ChangeKind> {
        changes(elapsed, before, after, &[]).into_iter().map(|body| body.kind).collect()
    }

    fn bodies(before: Snapshot, after: Snapshot, audit: &[AuditRecord]) -> Vec<ChangeBody> {
        changes(ELAPSED, before, after, audit)
    }

    fn changes(
        elapsed: Duration,
        before: Snapshot,
        after: Snapshot,
        audit: &[AuditRecord],
    ) -> Vec<ChangeBody> {
        let start = Instant::now();
        let sample = |snapshot: Snapshot, passed: Duration| {
            let snapshots = if snapshot.is_in_use() { vec![snapshot] } else { vec![] };
            let wall = WallTime::from_micros(1_000_000).after(passed);
            Sample::new(Reading::of(snapshots, start + passed, wall), None)
        };
        let (before, after) = (sample(before, Duration::ZERO), sample(after, elapsed));
        between(&before, &after, audit).into_iter().map(|change| change.body).collect()
    }

    #[test]
    fn grants_that_come_and_go_are_told_apart() {
        use ChangeKind::*;
        let free = || report(vec![], 0);
        let (mut evicted, mut handed_over) = (held(1, 20), held(2, 30));
        (evicted.evicting, handed_over.handovers) = (true, 1);
        let evicting = || evicted.clone();
        let cases = [
            (free(), report(vec![held(1, 30)], 0), vec![Granted]),
            (report(vec![held(1, 30)], 0), report(vec![held(1, 28)], 0), vec![]),
            (report(vec![held(1, 30)], 0), free(), vec![Released]),
            (report(vec![held(1, 1)], 0), free(), vec![Expired]),
            (report(vec![held(1, 1)], 1), report(vec![held(2, 30)], 0), vec![Expired, TakenOver]),
            (report(vec![held(1, 20)], 1), report(vec![held(2, 30)], 0), vec![Released, Granted]),
            (report(vec![held(1, 20)], 0), report(vec![handed_over], 0), vec![HandedOver]),
            (report(vec![evicting()], 0), free(), vec![Evicted]),
            (report(vec![held(1, 20)], 0), report(vec![evicting()], 0), vec![Evicting]),
            (report(vec![held(1, 6)], 0), report(vec![held(1, 29)], 0), vec![RenewedLate]),
            (report(vec![held(1, 25)], 0), report(vec![held(1, 29)], 0), vec![]),
        ];
        for (before, after, expected) in cases {
            let shown = format!("{before:?} to {after:?}");
            assert_eq!(kinds(before, after, &[]), expected, "{shown}");
        }
    }

    /// A sample may come so late that every lease could have run out since the one before.
    #[test]
    fn what_the_samples_cannot_tell_is_no_loss() {
        use ChangeKind::*;
        let ends = |before: HeldBy, after: Snapshot| {
            kinds_after(Duration::from_secs(30), report(vec![before], 1), after)
        };
        let next = |held_for_s: u64| {
            let mut by = held(2, 25);
            by.held_for = Duration::from_secs(held_for_s);
            report(vec![by], 0)
        };
        assert_eq!(ends(held(1, 25), report(vec![], 1)), [Ended]);
        assert_eq!(ends(held(1, 25), next(4)), [Ended, Granted], "granted after 26 s: it may have run out");
        assert_eq!(
            ends(held(1, 25), next(6)),
            [Released, Granted],
            "granted after 24 s: it had a second left"
        );
        assert_eq!(ends(held(1, 12), next(4)), [Expired, TakenOver], "a renewal was overdue");
        assert_eq!(ends(held(1, 3), next(29)), [Released, Granted], "granted after a second");
        let mut unknown = held(1, 25);
        unknown.ttl = None;
        assert_eq!(ends(unknown, report(vec![], 1)), [Ended], "a store that does not tell the ttl");
        let mut kept = held(1, 3600);
        kept.kept = true;
        assert_eq!(ends(held(1, 12), report(vec![kept], 1)), [Released]);
    }

    #[test]
    fn the_time_that_a_reading_takes_counts_too() {
        let start = Instant::now();
        let sample = |snapshots, from_s: u64, until_s: u64| {
            let wall = WallTime::from_micros(1 << 40);
            let mut reading = Reading::of(snapshots, start + Duration::from_secs(from_s), wall);
            reading.read_until = start + Duration::from_secs(until_s);
            Sample::new(reading, None)
        };
        let before = sample(vec![report(vec![held(1, 25)], 0)], 0, 3);
        let kind = |after: Sample| between(&before, &after, &[])[0].body.kind;
        assert_eq!(kind(sample(vec![], 20, 24)), ChangeKind::Released);
        assert_eq!(kind(sample(vec![], 20, 26)), ChangeKind::Ended, "it may have been read after 26 s");
    }

    #[test]
    fn a_grant_says_how_long_its_process_waited() {
        let mut from_queue = held(2, 30);
        from_queue.holder = Arc::new(Holder::new("host", 8, ""));
        let granted = bodies(report(vec![held(1, 20)], 2), report(vec![from_queue], 1), &[]);
        assert_eq!((granted[1].kind, granted[1].waited_ms), (ChangeKind::Granted, Some(2000)));
        let granted = bodies(report(vec![held(1, 20)], 2), report(vec![held(2, 30)], 2), &[]);
        assert_eq!(
            (granted[1].kind, granted[1].waited_ms),
            (ChangeKind::Granted, None),
            "it was not seen in the queue"
        );
    }

    #[test]
    fn the_queue_pauses_and_orders() {
        use ChangeKind::*;
        let with = |change: fn(&mut Snapshot)| {
            let mut snapshot = report(vec![held(1, 20)], 0);
            change(&mut snapshot);
            snapshot
        };
        let plain = || report(vec![held(1, 20)], 0);
        assert_eq!(kinds(plain(), report(vec![held(1, 20)], 2), &[]), [Queued]);
        assert_eq!(kinds(report(vec![held(1, 20)], 2), plain(), &[]), [Left]);
        let paused = || with(|snapshot| snapshot.paused_for = Some(ELAPSED));
        assert_eq!(kinds(plain(), paused(), &[]), [Paused]);
        assert_eq!(kinds(paused(), plain(), &[]), [Resumed]);
        let asked =
            with(|snapshot| snapshot.holders[0].asked = Some(FinishRequest::new(ELAPSED, "ann", "why")));
        assert_eq!(kinds(plain(), asked, &[]), [Asked]);
        let corrupt = || Snapshot::unreadable("report/1".parse().unwrap(), "key");
        assert_eq!(kinds(plain(), corrupt(), &[]), [Unreadable]);
        assert_eq!(kinds(corrupt(), plain(), &[]), [Readable]);
    }

    #[test]
    fn the_audit_trail_tells_an_eviction_from_a_release() {
        let record = |at, command: &str| {
            AuditRecord::new(WallTime::from_micros(at), "report/1".parse().unwrap(), command, true)
        };
        let ended = |record| kinds(report(vec![held(1, 20)], 0), report(vec![], 0), &[record]);
        assert_eq!(ended(record(2_000_000, "evict-now")), [ChangeKind::Evicted]);
        assert_eq!(ended(record(2_000_000, "pause")), [ChangeKind::Released]);
        assert_eq!(ended(record(900_000, "evict-now")), [ChangeKind::Released], "of an earlier grant");
    }
}
