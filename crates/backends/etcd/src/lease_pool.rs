//! The pool of etcd leases: granted in advance, used again, kept alive (ADR 0023).
//!
//! A key ends by itself only if it is attached to an etcd lease. Granting a lease is a write on all members.
//! With one lease for all claims of a client, one claim would keep another one alive. So every claim has a
//! lease of its own, and the pool makes that cheap:
//!
//! 1. For each length in use, a few leases are granted in advance, in the background. An acquire takes one of
//!    them.
//! 2. When a claim has ended and all its requests had a reply, its lease comes back and is used again.
//!    Otherwise it is revoked: a request that is executed late then finds no lease, and writes nothing.
//! 3. A background task keeps the ready leases alive. A length that was not used for a minute is given up.
//!
//! All durations count from before the request was sent that last kept the lease alive, by our own clock. So
//! a lease never ends earlier than this module says.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use etcd_client::{
    LeaseGrantOptions, LeaseGrantResponse, LeaseRevokeResponse, LeaseTimeToLiveOptions,
    LeaseTimeToLiveResponse,
};
use futures_util::future::join_all;
use leasehold_core::Timestamp;

use crate::{
    call_member::Repeatable,
    connection::{Connections, MemberClient},
    error::StoreError,
    verify_reply::HeaderInfo,
};

/// The longest lease that etcd grants, in seconds.
const SECONDS_MAX: u64 = 9_000_000_000;
/// How many leases of a length are ready after its first use.
const READY_AT_FIRST: usize = 2;
/// How many leases of a length are granted in advance at the most.
const READY_MAX: usize = 32;
/// How many unused leases of a length are kept when they come back: after a burst of claims the next burst
/// finds them.
const UNUSED_MAX: usize = 128;
/// A length that was not used for this long is given up.
const IDLE_AFTER: Duration = Duration::from_secs(60);
/// Ready leases are kept alive when this fraction of their length has passed.
const KEEP_ALIVE_FRACTION: u32 = 4;
/// The shortest and the longest pause between two rounds of the keep-alive task, in milliseconds.
const KEEP_ALIVE_PAUSE_MS: (u64, u64) = (400, 15_000);

/// An etcd lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EtcdLease {
    pub(crate) id: i64,
    /// The length that was requested.
    pub(crate) requested_seconds: u64,
    /// The length that etcd granted, which counts. It may be longer: etcd has a minimum.
    pub(crate) granted_seconds: u64,
    /// When the last request was sent that kept the lease alive and had a reply.
    pub(crate) kept_alive_at: Timestamp,
}

impl EtcdLease {
    /// The lease does not end before this.
    pub(crate) fn ends(&self) -> Timestamp {
        self.kept_alive_at.after(Duration::from_secs(self.granted_seconds))
    }

    /// Whether the lease lasts for this ttl without a keep-alive.
    pub(crate) fn lasts(&self, now: Timestamp, ttl: Duration) -> bool {
        now.until(self.ends()) >= ttl
    }

    /// Whether the lease certainly exists for long enough to be kept alive together with its first use.
    pub(crate) fn is_usable(&self, now: Timestamp) -> bool {
        now.until(self.ends()) * 2 > Duration::from_secs(self.granted_seconds)
    }
}

/// The length of the lease for this ttl: whole seconds, and one more. Because of that second a lease that was
/// kept alive within the last second needs no keep-alive before it is used.
pub(crate) fn seconds_for(ttl: Duration) -> u64 {
    whole_seconds(ttl) + 1
}

/// The duration in seconds, rounded up, within what etcd grants.
pub(crate) fn whole_seconds(duration: Duration) -> u64 {
    duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0)).clamp(1, SECONDS_MAX)
}

/// A lease id of our own. It is positive, because with zero etcd would choose the id.
fn new_lease_id(random: u64) -> i64 {
    i64::try_from(random >> 1).unwrap_or(i64::MAX).max(1)
}

/// All leases of one client that no claim uses.
#[derive(Debug)]
pub(crate) struct LeasePool {
    connections: Arc<Connections>,
    /// By the requested length in seconds.
    by_length: Mutex<HashMap<u64, ReadyLeases>>,
    has_keep_alive_task: AtomicBool,
    /// The client is dropped: leases are revoked instead of kept ready.
    closed: AtomicBool,
}

/// The unused leases of one length.
#[derive(Debug)]
struct ReadyLeases {
    leases: Vec<EtcdLease>,
    /// How many are to be ready. Doubled when an acquire found none.
    target: usize,
    /// How many are being granted in the background.
    being_granted: usize,
    last_used: Timestamp,
}

impl LeasePool {
    pub(crate) fn new(connections: Arc<Connections>) -> Arc<LeasePool> {
        Arc::new(LeasePool {
            connections,
            by_length: Mutex::default(),
            has_keep_alive_task: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        })
    }

    fn by_length(&self) -> MutexGuard<'_, HashMap<u64, ReadyLeases>> {
        self.by_length.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Timestamp {
        self.connections.environment.now()
    }

    /// A lease for this ttl. If none is ready, etcd grants one now.
    pub(crate) async fn take(self: &Arc<LeasePool>, ttl: Duration) -> Result<EtcdLease, StoreError> {
        match self.take_ready(ttl) {
            Some(lease) => Ok(lease),
            None => self.grant(seconds_for(ttl)).await,
        }
    }

    /// A ready lease for this ttl. Missing ones are granted in the background.
    pub(crate) fn take_ready(self: &Arc<LeasePool>, ttl: Duration) -> Option<EtcdLease> {
        let (now, seconds) = (self.now(), seconds_for(ttl));
        let mut by_length = self.by_length();
        let ready = by_length.entry(seconds).or_insert_with(|| ReadyLeases {
            leases: Vec::new(),
            target: READY_AT_FIRST / 2, // doubled below, because none is ready
            being_granted: 0,
            last_used: now,
        });
        ready.last_used = now;
        // Older ones end by themselves. The last one in the list was kept alive most recently.
        ready.leases.retain(|lease| lease.is_usable(now));
        let lease = ready.leases.pop();
        if lease.is_none() {
            ready.target = (ready.target * 2).min(READY_MAX);
        }
        let missing = ready.target.saturating_sub(ready.leases.len() + ready.being_granted);
        // A grant is a write, so grants are made in groups: only when less than half of the leases are left.
        let count = if ready.leases.len() * 2 < ready.target { missing } else { 0 };
        ready.being_granted += count;
        drop(by_length);
        if count > 0 {
            let refilling = Arc::clone(self).refill(seconds, count);
            self.connections.environment.spawn(Box::pin(refilling));
        }
        lease
    }

    async fn refill(self: Arc<LeasePool>, seconds: u64, count: usize) {
        let granted = join_all((0..count).map(|_| self.grant(seconds))).await;
        let mut by_length = self.by_length();
        if let Some(ready) = by_length.get_mut(&seconds) {
            ready.being_granted = ready.being_granted.saturating_sub(count);
            ready.leases.extend(granted.into_iter().flatten());
        }
        drop(by_length);
        // The client was dropped while the leases were being granted: revoke these, too.
        if self.closed.load(Ordering::Relaxed) {
            self.close();
        }
        self.ensure_keep_alive_task();
    }

    /// Revokes all ready leases when the client is dropped. Without this they would exist for a whole ttl,
    /// which may be days.
    pub(crate) fn close(self: &Arc<LeasePool>) {
        self.closed.store(true, Ordering::Relaxed);
        let unused: Vec<EtcdLease> =
            self.by_length().values_mut().flat_map(|ready| std::mem::take(&mut ready.leases)).collect();
        unused.into_iter().for_each(|lease| self.revoke(lease.id));
    }

    /// Grants a lease of this length. The id is ours, so that the reply can be compared with the request (ADR
    /// 0033), and so that the lease can be revoked if there is no reply: it could be one that lasts for
    /// months.
    pub(crate) async fn grant(self: &Arc<LeasePool>, seconds: u64) -> Result<EtcdLease, StoreError> {
        let ttl = i64::try_from(seconds.min(SECONDS_MAX)).unwrap_or(i64::MAX);
        let id = new_lease_id(self.connections.environment.random());
        // Before the request is sent, so that the lease never ends earlier than we believe.
        let kept_alive_at = self.now();
        let send = |member: &MemberClient| {
            let mut client = member.client.clone();
            async move { client.lease_grant(ttl, Some(LeaseGrantOptions::new().with_id(id))).await }
        };
        let check = |reply: &LeaseGrantResponse, known: HeaderInfo| {
            known.check_lease(id, reply.id(), HeaderInfo::of(reply.header()))
        };
        let granted = self.connections.call(Repeatable::No, send, check).await.inspect_err(|error| {
            if !error.has_no_effect() {
                self.revoke(id);
            }
        })?;
        let granted_seconds = u64::try_from(granted.ttl()).unwrap_or_default();
        Ok(EtcdLease { id, requested_seconds: seconds, granted_seconds, kept_alive_at })
    }

    /// Takes a lease back. Only if its claim has ended and all requests of the claim had a reply.
    pub(crate) fn put_back(self: &Arc<LeasePool>, lease: EtcdLease) {
        let now = self.now();
        let mut by_length = self.by_length();
        let is_here = |ready: &ReadyLeases| ready.leases.iter().any(|other| other.id == lease.id);
        if by_length.get(&lease.requested_seconds).is_some_and(is_here) {
            debug_assert!(false, "a lease belongs to one claim at a time, so it is put back once");
            return;
        }
        match by_length.get_mut(&lease.requested_seconds) {
            Some(ready) if lease.is_usable(now) && ready.leases.len() < UNUSED_MAX => {
                ready.leases.push(lease);
                drop(by_length);
                self.ensure_keep_alive_task();
            }
            _ => {
                drop(by_length);
                self.revoke(lease.id);
            }
        }
    }

    /// Revokes a lease, in the background. If that fails, the lease ends by itself.
    pub(crate) fn revoke(self: &Arc<LeasePool>, id: i64) {
        let pool = Arc::clone(self);
        self.connections.environment.spawn(Box::pin(async move { pool.revoke_now(id).await }));
    }

    /// Revokes, in the background, a lease of a transaction whose preconditions failed. A reply of that kind
    /// names nothing, so it could belong to another request (ADR 0033): if a key is attached to the lease, it
    /// is left alone.
    pub(crate) fn revoke_unused(self: &Arc<LeasePool>, id: i64) {
        let pool = Arc::clone(self);
        self.connections.environment.spawn(Box::pin(async move {
            if let Ok(Some(0)) = pool.count_keys(id).await {
                pool.revoke_now(id).await;
            }
        }));
    }

    async fn revoke_now(&self, id: i64) {
        let send = |member: &MemberClient| {
            let mut client = member.client.clone();
            async move { client.lease_revoke(id).await }
        };
        let check = |reply: &LeaseRevokeResponse, known: HeaderInfo| {
            known.check_cluster(HeaderInfo::of(reply.header()))
        };
        if let Err(error) = self.connections.call(Repeatable::Yes, send, check).await {
            tracing::debug!(?error, lease = id, "could not revoke an etcd lease, it will end by itself");
        }
    }

    /// Keeps a lease alive for its whole length from now. Each request has a stream of its own, which ends
    /// with the reply.
    pub(crate) async fn keep_alive(&self, lease: &mut EtcdLease) -> Result<(), StoreError> {
        let (id, sent) = (lease.id, self.now());
        let send = |member: &MemberClient| {
            let mut client = member.client.clone();
            // The driver waits for the first reply on the stream.
            async move { client.lease_keep_alive(id).await.map(|(keeper, _)| keeper.id()) }
        };
        // The driver does not pass on the header, so only the id can be compared.
        let check = |kept: &i64, known: HeaderInfo| {
            if *kept == id { Ok(known) } else { Err(StoreError::misdelivered()) }
        };
        self.connections.call(Repeatable::Yes, send, check).await?;
        lease.kept_alive_at = sent;
        Ok(())
    }

    async fn time_to_live(&self, id: i64, with_keys: bool) -> Result<LeaseTimeToLiveResponse, StoreError> {
        let options = with_keys.then(|| LeaseTimeToLiveOptions::new().with_keys());
        let send = |member: &MemberClient| {
            let (mut client, options) = (member.client.clone(), options.clone());
            async move { client.lease_time_to_live(id, options).await }
        };
        let check = |reply: &LeaseTimeToLiveResponse, known: HeaderInfo| {
            known.check_lease(id, reply.id(), HeaderInfo::of(reply.header()))
        };
        self.connections.call(Repeatable::Yes, send, check).await
    }

    /// What is left of any lease, in whole seconds rounded down, and its granted length in seconds. `None` if
    /// the lease does not exist.
    pub(crate) async fn remaining(&self, id: i64) -> Result<Option<(Duration, u64)>, StoreError> {
        let reply = self.time_to_live(id, false).await?;
        let granted = u64::try_from(reply.granted_ttl()).unwrap_or_default();
        // etcd reports a ttl of -1 for a lease that does not exist.
        Ok(u64::try_from(reply.ttl()).ok().map(|left| (Duration::from_secs(left), granted)))
    }

    /// How many keys are attached to a lease; `None` if the lease does not exist.
    async fn count_keys(&self, id: i64) -> Result<Option<usize>, StoreError> {
        let reply = self.time_to_live(id, true).await?;
        Ok((reply.ttl() >= 0).then(|| reply.keys().len()))
    }

    /// Starts the task that keeps the ready leases alive, if it does not run. It ends when no lease is ready,
    /// or when the client is dropped: it holds the pool weakly while it sleeps.
    fn ensure_keep_alive_task(self: &Arc<LeasePool>) {
        if self.has_keep_alive_task.swap(true, Ordering::Relaxed) {
            return;
        }
        let (pool, environment) = (Arc::downgrade(self), Arc::clone(&self.connections.environment));
        self.connections.environment.spawn(Box::pin(async move {
            while let Some(pause) = pool.upgrade().and_then(|pool| pool.pause_before_keep_alive()) {
                environment.sleep(pause).await;
                let Some(pool) = pool.upgrade() else { return };
                pool.keep_ready_leases_alive().await;
            }
        }));
    }

    /// The pause before the next round of keep-alives; `None` if no lease is ready, and then the task counts
    /// as ended.
    fn pause_before_keep_alive(&self) -> Option<Duration> {
        let by_length = self.by_length();
        let in_use = by_length.values().filter(|ready| !ready.leases.is_empty());
        let shortest = in_use.map(|ready| ready.leases[0].granted_seconds).min();
        if shortest.is_none() {
            self.has_keep_alive_task.store(false, Ordering::Relaxed);
        }
        let (least, most) = KEEP_ALIVE_PAUSE_MS;
        let pause = shortest? * 1000 / u64::from(KEEP_ALIVE_FRACTION);
        Some(Duration::from_millis(pause.clamp(least, most)))
    }

    async fn keep_ready_leases_alive(self: &Arc<LeasePool>) {
        let due = self.collect_due();
        let outcomes = join_all(due.into_iter().map(|mut lease| async move {
            let outcome = self.keep_alive(&mut lease).await;
            (lease, outcome)
        }))
        .await;
        for ready in self.by_length().values_mut() {
            for (lease, outcome) in &outcomes {
                match outcome {
                    Ok(()) => {
                        let known = ready.leases.iter_mut().find(|known| known.id == lease.id);
                        // An acquire may have used it and put it back meanwhile, with a later keep-alive.
                        known.into_iter().for_each(|known| {
                            known.kept_alive_at = known.kept_alive_at.max(lease.kept_alive_at);
                        });
                    }
                    Err(error) if error.is_lease_gone() => {
                        ready.leases.retain(|known| known.id != lease.id);
                    }
                    // Any other error says nothing about the lease. `take_ready` drops it when it is too old
                    // to be safe.
                    Err(_) => {}
                }
            }
        }
    }

    /// The leases that need a keep-alive. Gives up the lengths that are not in use any more.
    fn collect_due(self: &Arc<LeasePool>) -> Vec<EtcdLease> {
        let now = self.now();
        let (mut idle, mut due) = (Vec::new(), Vec::new());
        for ready in self.by_length().values_mut() {
            if ready.last_used.until(now) > IDLE_AFTER {
                idle.append(&mut ready.leases);
                ready.target = READY_AT_FIRST / 2;
            }
            let is_due = |lease: &&EtcdLease| {
                let age = lease.kept_alive_at.until(now);
                age * KEEP_ALIVE_FRACTION >= Duration::from_secs(lease.granted_seconds)
            };
            due.extend(ready.leases.iter().filter(is_due).copied());
        }
        idle.into_iter().for_each(|lease| self.revoke(lease.id));
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_longer_than_the_ttl() {
        let table = [(0, 2), (300, 2), (1_000, 2), (1_001, 3), (30_000, 31), (30_500, 32)];
        for (millis, seconds) in table {
            assert_eq!(seconds_for(Duration::from_millis(millis)), seconds, "{millis} ms");
        }
        assert_eq!(whole_seconds(Duration::MAX), SECONDS_MAX);
    }

    #[test]
    fn a_lease_id_is_positive() {
        for (random, id) in [(0, 1), (1, 1), (7, 3), (u64::MAX, i64::MAX)] {
            assert_eq!(new_lease_id(random), id);
        }
    }

    #[test]
    fn the_length_of_a_lease_counts_from_its_last_keep_alive() {
        let lease = EtcdLease {
            id: 0x694d,
            requested_seconds: 31,
            granted_seconds: 31,
            kept_alive_at: Timestamp::default(),
        };
        let at = |seconds| Timestamp::default().after(Duration::from_secs(seconds));
        assert!(lease.lasts(at(1), Duration::from_secs(30)) && !lease.lasts(at(2), Duration::from_secs(30)));
        assert!(lease.is_usable(at(15)) && !lease.is_usable(at(16)));
    }
}
