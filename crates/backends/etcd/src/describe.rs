//! Describes the holders and waiters of a resource to other clients: for [`Blocked`] verdicts and for
//! `inspect`.

use std::time::Duration;

use futures_util::future::{join, join_all, join3};
use leasehold_core::{Blocked, Cursor, ForeignLock, HeldBy, QueueEntry, Snapshot};

use crate::{
    backend::Etcd,
    keys::ResourceKeys,
    resource_view::{Contender, FOREIGN_FORM, PauseKey, ResourceView, unknown_waiter},
};

/// For how many holders a blocked claim asks etcd when they end. Each is a request of its own.
const HOLDERS_ASKED_MAX: usize = 16;
/// The same for waiters.
const WAITERS_ASKED_MAX: usize = 8;

/// The lease id of a key without a lease. leasehold writes none: somebody has written the key again by hand.
const NO_LEASE: i64 = 0;
/// The remaining time that is reported of a holder without a lease, which never ends: a year, as on Redis.
const NO_END: Duration = Duration::from_secs(365 * 86_400);

/// The index of a contender and what remains of it.
type Remaining = (usize, Option<Duration>);

impl Etcd {
    /// What remains of a contender, for other clients: the rest of its lease, but not more than its ttl.
    ///
    /// `None` if it is not known, or if the contender has no lease. A contender without a lease does not end
    /// by itself, so zero would be wrong: waiters would ask again at once, all the time.
    pub(crate) async fn remaining_of(&self, contender: &Contender) -> Option<Duration> {
        let (left, _) = self.lease_pool.remaining(contender.lease).await.ok().flatten()?;
        // etcd rounds down to whole seconds. For other clients the next second is closer to the truth.
        let left = left + Duration::from_secs(1);
        Some(contender.record.as_ref().map_or(left, |record| left.min(record.ttl())))
    }

    async fn remaining_of_each(
        &self,
        view: &ResourceView,
        indices: impl Iterator<Item = usize>,
    ) -> Vec<Remaining> {
        let ask = |index| async move { (index, self.remaining_of(&view.contenders[index]).await) };
        join_all(indices.map(ask)).await
    }

    async fn remaining_of_pause(&self, pause: Option<&PauseKey>) -> Option<Duration> {
        let remaining = self.lease_pool.remaining(pause?.lease).await;
        remaining.ok().flatten().map(|(left, _)| left)
    }

    fn describe_holder(&self, view: &ResourceView, (index, remaining): Remaining) -> Option<HeldBy> {
        let mut held_by = view.describe_holder(index, &*self.environment)?;
        let is_endless = view.contenders[index].lease == NO_LEASE;
        held_by.remaining = if is_endless { NO_END } else { remaining.unwrap_or_default() };
        Some(held_by)
    }

    /// The foreign lock that holds the resource, if there is one among these holders. Its value is not shown.
    fn describe_foreign(
        keys: &ResourceKeys,
        view: &ResourceView,
        holders: &[Remaining],
    ) -> Option<ForeignLock> {
        holders.iter().find_map(|(index, remaining)| {
            let contender = &view.contenders[*index];
            let lock = ForeignLock::new(keys.contender(&contender.name), FOREIGN_FORM, contender.foreign?);
            Some(lock.expiring(*remaining))
        })
    }

    /// Why a claim is blocked: for the waiter at this index, or for a claim that does not queue. `since` is
    /// the revision from which a `wait` has to watch.
    pub(crate) async fn describe_blocked(
        &self,
        keys: &ResourceKeys,
        view: &ResourceView,
        waiter: Option<usize>,
        since: i64,
    ) -> Blocked {
        let holders = self.remaining_of_each(view, view.holders().take(HOLDERS_ASKED_MAX));
        let waiters = self.remaining_of_each(view, view.waiters().take(WAITERS_ASKED_MAX));
        let pause = self.remaining_of_pause(view.pause.as_ref());
        let (mut holders, waiters, pause_ends_in) = join3(holders, waiters, pause).await;
        // The holders that end first are the ones worth listing.
        holders.sort_by_key(|(_, remaining)| remaining.unwrap_or(Duration::MAX));
        let mut blocked = Blocked::default();
        blocked.queued = waiter.is_some();
        blocked.ahead = u32::try_from(view.waiters_ahead(waiter)).unwrap_or(u32::MAX);
        (blocked.paused, blocked.pause_ends_in) = (view.pause.is_some(), pause_ends_in);
        blocked.cursor = Cursor(u64::try_from(since).unwrap_or_default());
        let ends = holders.iter().chain(&waiters).filter_map(|(_, remaining)| *remaining);
        blocked.changes_in = ends.chain(pause_ends_in).min();
        blocked.foreign = Etcd::describe_foreign(keys, view, &holders);
        let holders = holders.into_iter().filter_map(|holder| self.describe_holder(view, holder));
        blocked.holders = holders.take(Blocked::HOLDERS_MAX).collect();
        blocked
    }

    /// Adds the holders and the queue to a snapshot for `inspect`.
    pub(crate) async fn describe_contenders(
        &self,
        keys: &ResourceKeys,
        view: &ResourceView,
        snapshot: &mut Snapshot,
    ) {
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        snapshot.holder_count = count(view.holding_claims().count());
        snapshot.queue_length = count(view.waiters().count());
        let holders = self.remaining_of_each(view, view.holders().take(Snapshot::LISTED_MAX));
        let waiters = self.remaining_of_each(view, view.waiters().take(Snapshot::LISTED_MAX));
        let (mut holders, waiters) = join(holders, waiters).await;
        holders.sort_by_key(|(index, _)| view.contenders[*index].created);
        snapshot.foreign = Etcd::describe_foreign(keys, view, &holders).into_iter().collect();
        let holders = holders.into_iter().filter_map(|holder| self.describe_holder(view, holder));
        snapshot.holders = holders.collect();
        snapshot.queue = waiters.into_iter().map(|waiter| self.describe_waiter(view, waiter)).collect();
    }

    fn describe_waiter(&self, view: &ResourceView, (index, remaining): Remaining) -> QueueEntry {
        let remaining = remaining.unwrap_or_default();
        let Some(record) = &view.contenders[index].record else {
            // A foreign lock does not store since when it waits.
            let mut entry = QueueEntry::new(unknown_waiter(), view.weight(index), Duration::ZERO, remaining);
            entry.foreign = true;
            return entry;
        };
        QueueEntry::new(record.holder(), record.weight, record.since(&*self.environment), remaining)
    }
}
