//! etcd leases, granted in advance: no acquire pays for a grant, and no claim keeps another one alive.
//!
//! An etcd lease counts whole seconds and costs a write to all members. So a few of each length lie ready, are kept
//! alive while they are in use now and then, and go back when their claim has ended and every request of it was
//! answered. What a claim is told counts from the moment the lease was last kept, by our own clock.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use etcd_client::{
    Client, LeaseGrantOptions, LeaseGrantResponse, LeaseRevokeResponse, LeaseTimeToLiveOptions,
    LeaseTimeToLiveResponse,
};
use futures_util::future::join_all;
use leasehold_core::Timestamp;

use crate::{error::Fault, link::Link, proof::Seen};

/// An etcd lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lease {
    pub(crate) id: i64,
    /// The seconds that were asked for.
    pub(crate) asked: u64,
    /// What etcd granted, which counts: it may be more than was asked for.
    pub(crate) seconds: u64,
    /// When the request was sent that was answered last.
    pub(crate) kept: Timestamp,
}

impl Lease {
    /// Before this it does not end.
    pub(crate) fn ends(&self) -> Timestamp {
        self.kept.after(Duration::from_secs(self.seconds))
    }

    /// Whether it lasts this long without being kept.
    pub(crate) fn lasts(&self, now: Timestamp, ttl: Duration) -> bool {
        now.until(self.ends()) >= ttl
    }

    /// Whether it is surely there long enough to be kept beside the first use.
    pub(crate) fn is_usable(&self, now: Timestamp) -> bool {
        now.until(self.ends()) * 2 > Duration::from_secs(self.seconds)
    }
}

/// How long an etcd lease for this ttl is: whole seconds, and one more, so that a lease that was kept within the last
/// second need not be kept again before it is used.
pub(crate) fn seconds_for(ttl: Duration) -> u64 {
    whole_seconds(ttl) + 1
}

/// As many seconds as this needs.
pub(crate) fn whole_seconds(duration: Duration) -> u64 {
    duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0)).clamp(1, SECONDS_MAX)
}

/// A lease's id is positive; zero would leave the choice to etcd.
fn fresh_id(random: u64) -> i64 {
    i64::try_from(random >> 1).unwrap_or(i64::MAX).max(1)
}

/// What etcd grants at the most.
const SECONDS_MAX: u64 = 9_000_000_000;
/// How many lie ready at first, and at the most.
const READY: (usize, usize) = (2, 32);
/// How many that came back are kept: after a burst of many at once the next one finds them.
const SHELF_MAX: usize = 128;
/// A length that nobody asked for in this time is given up.
const IDLE: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct Pool {
    link: Arc<Link>,
    /// By the seconds that were asked for.
    shelves: Mutex<HashMap<u64, Shelf>>,
    has_keeper: AtomicBool,
    /// The client is gone: nothing is to lie ready any more.
    closed: AtomicBool,
}

#[derive(Debug)]
struct Shelf {
    leases: Vec<Lease>,
    /// How many are to lie ready.
    ready: usize,
    granting: usize,
    used: Timestamp,
}

impl Pool {
    pub(crate) fn new(link: Arc<Link>) -> Arc<Pool> {
        let (has_keeper, closed) = (AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(Pool { link, shelves: Mutex::default(), has_keeper, closed })
    }

    fn shelves(&self) -> MutexGuard<'_, HashMap<u64, Shelf>> {
        self.shelves.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Timestamp {
        self.link.environment.now()
    }

    /// One for this ttl; asks etcd if none lies ready.
    pub(crate) async fn take(self: &Arc<Pool>, ttl: Duration) -> Result<Lease, Fault> {
        match self.take_ready(ttl) {
            Some(lease) => Ok(lease),
            None => self.grant(seconds_for(ttl)).await,
        }
    }

    /// One that lies ready. What is missing afterwards is granted beside us.
    pub(crate) fn take_ready(self: &Arc<Pool>, ttl: Duration) -> Option<Lease> {
        let (now, asked) = (self.now(), seconds_for(ttl));
        let mut shelves = self.shelves();
        let shelf = shelves.entry(asked).or_insert_with(|| Shelf {
            leases: Vec::new(),
            ready: READY.0 / 2,
            granting: 0,
            used: now,
        });
        shelf.used = now;
        // The one that was kept last, if any is still good; what is older ends by itself.
        shelf.leases.retain(|lease| lease.is_usable(now));
        let lease = shelf.leases.pop();
        if lease.is_none() {
            shelf.ready = (shelf.ready * 2).min(READY.1);
        }
        let missing = shelf.ready.saturating_sub(shelf.leases.len() + shelf.granting);
        // Few at a time, unless none is left: a grant is a write.
        let wanted = if shelf.leases.len() * 2 < shelf.ready { missing } else { 0 };
        shelf.granting += wanted;
        drop(shelves);
        if wanted > 0 {
            self.link.environment.spawn(Box::pin(Arc::clone(self).stock(asked, wanted)));
        }
        lease
    }

    async fn stock(self: Arc<Pool>, asked: u64, count: usize) {
        let granted = join_all((0..count).map(|_| self.grant(asked))).await;
        let mut shelves = self.shelves();
        if let Some(shelf) = shelves.get_mut(&asked) {
            shelf.granting = shelf.granting.saturating_sub(count);
            shelf.leases.extend(granted.into_iter().flatten());
        }
        drop(shelves);
        if self.closed.load(Ordering::Relaxed) {
            self.close();
        }
        self.attend();
    }

    /// The client ends. Without this, what lies ready would stay for a whole ttl, which may be days.
    pub(crate) fn close(self: &Arc<Pool>) {
        self.closed.store(true, Ordering::Relaxed);
        let ready: Vec<Lease> =
            self.shelves().values_mut().flat_map(|shelf| std::mem::take(&mut shelf.leases)).collect();
        ready.into_iter().for_each(|lease| self.revoke(lease.id));
    }

    /// A new one of this many seconds, under an id of our own: the answer must name it. If none comes it is revoked, so
    /// that one that is to last for months does not.
    pub(crate) async fn grant(self: &Arc<Pool>, seconds: u64) -> Result<Lease, Fault> {
        let ttl = i64::try_from(seconds.min(SECONDS_MAX)).unwrap_or(i64::MAX);
        let id = fresh_id(self.link.environment.random());
        let kept = self.now();
        let ask = |mut client: Client| async move {
            client.lease_grant(ttl, Some(LeaseGrantOptions::new().with_id(id))).await
        };
        let check = |granted: &LeaseGrantResponse, seen: Seen| {
            seen.lease(id, (granted.id(), Seen::of(granted.header())))
        };
        let granted = self.link.call(ask, check).await.inspect_err(|fault| {
            if !fault.has_no_effect() {
                self.revoke(id);
            }
        })?;
        let granted_seconds = u64::try_from(granted.ttl()).unwrap_or_default();
        Ok(Lease { id, asked: seconds, seconds: granted_seconds, kept })
    }

    /// Its claim has ended, and every request of it was answered.
    pub(crate) fn put_back(self: &Arc<Pool>, lease: Lease) {
        let now = self.now();
        let mut shelves = self.shelves();
        let twice = |shelf: &Shelf| shelf.leases.iter().any(|other| other.id == lease.id);
        if shelves.get(&lease.asked).is_some_and(twice) {
            debug_assert!(false, "a lease has one claim at a time");
            return;
        }
        match shelves.get_mut(&lease.asked) {
            Some(shelf) if lease.is_usable(now) && shelf.leases.len() < SHELF_MAX => {
                shelf.leases.push(lease);
                drop(shelves);
                self.attend();
            }
            _ => {
                drop(shelves);
                self.revoke(lease.id);
            }
        }
    }

    /// Ends one, beside us. If that fails it ends by itself.
    pub(crate) fn revoke(self: &Arc<Pool>, id: i64) {
        let pool = Arc::clone(self);
        self.link.environment.spawn(Box::pin(async move { pool.end(id).await }));
    }

    /// The same for one that a transaction was to use which was not carried out. That answer may name nothing, so the
    /// lease is left alone if a key stands under it.
    pub(crate) fn revoke_unused(self: &Arc<Pool>, id: i64) {
        let pool = Arc::clone(self);
        self.link.environment.spawn(Box::pin(async move {
            if let Ok(Some(0)) = pool.keys_under(id).await {
                pool.end(id).await;
            }
        }));
    }

    async fn end(&self, id: i64) {
        let ask = |mut client: Client| async move { client.lease_revoke(id).await };
        let check = |revoked: &LeaseRevokeResponse, seen: Seen| seen.same_cluster(Seen::of(revoked.header()));
        if let Err(fault) = self.link.call_again(ask, check).await {
            tracing::debug!(?fault, "an etcd lease was not revoked: it will run out");
        }
    }

    /// Keeps one alive for its whole length again. Each request has a stream of its own, which ends with the first answer.
    pub(crate) async fn keep(&self, lease: &mut Lease) -> Result<(), Fault> {
        let (id, sent) = (lease.id, self.now());
        // The answer to the first request is awaited by the driver, the deadline is the call's.
        let ask =
            |mut client: Client| async move { client.lease_keep_alive(id).await.map(|(kept, _)| kept.id()) };
        // The driver does not pass the header on.
        let check = |kept: &i64, seen: Seen| if *kept == id { Ok(seen) } else { Err(Fault::misdelivered()) };
        self.link.call_again(ask, check).await?;
        lease.kept = sent;
        Ok(())
    }

    async fn time_to_live(&self, id: i64, keys: bool) -> Result<LeaseTimeToLiveResponse, Fault> {
        let options = keys.then(|| LeaseTimeToLiveOptions::new().with_keys());
        let ask = |mut client: Client| {
            let options = options.clone();
            async move { client.lease_time_to_live(id, options).await }
        };
        let check = |answer: &LeaseTimeToLiveResponse, seen: Seen| {
            seen.lease(id, (answer.id(), Seen::of(answer.header())))
        };
        self.link.call_again(ask, check).await
    }

    /// What is left of any lease, in whole seconds and never too much, and what was granted; `None` if it is gone.
    pub(crate) async fn left(&self, id: i64) -> Result<Option<(Duration, u64)>, Fault> {
        let answer = self.time_to_live(id, false).await?;
        let granted = u64::try_from(answer.granted_ttl()).unwrap_or_default();
        Ok(u64::try_from(answer.ttl()).ok().map(|left| (Duration::from_secs(left), granted)))
    }

    /// How many keys stand under a lease; `None` if it is gone.
    async fn keys_under(&self, id: i64) -> Result<Option<usize>, Fault> {
        let answer = self.time_to_live(id, true).await?;
        Ok((answer.ttl() >= 0).then(|| answer.keys().len()))
    }

    /// Sees that someone keeps what lies ready.
    fn attend(self: &Arc<Pool>) {
        if !self.has_keeper.swap(true, Ordering::Relaxed) {
            let (pool, environment) = (Arc::downgrade(self), Arc::clone(&self.link.environment));
            self.link.environment.spawn(Box::pin(async move {
                while let Some(pause) = pool.upgrade().and_then(|pool| pool.pause()) {
                    environment.sleep(pause).await;
                    let Some(pool) = pool.upgrade() else { return };
                    pool.tend().await;
                }
            }));
        }
    }

    /// Until the next round; `None` if nothing lies ready.
    fn pause(&self) -> Option<Duration> {
        let shelves = self.shelves();
        let lengths =
            shelves.values().filter(|shelf| !shelf.leases.is_empty()).map(|shelf| shelf.leases[0].seconds);
        let shortest = lengths.min();
        if shortest.is_none() {
            self.has_keeper.store(false, Ordering::Relaxed);
        }
        Some(Duration::from_millis((shortest? * 1000 / 4).clamp(400, 15_000)))
    }

    async fn tend(self: &Arc<Pool>) {
        let now = self.now();
        let (mut idle, mut due) = (Vec::new(), Vec::new());
        for shelf in self.shelves().values_mut() {
            if shelf.used.until(now) > IDLE {
                idle.append(&mut shelf.leases);
                shelf.ready = READY.0 / 2;
            }
            let old = |lease: &&Lease| lease.kept.until(now) * 4 >= Duration::from_secs(lease.seconds);
            due.extend(shelf.leases.iter().filter(old).copied());
        }
        idle.into_iter().for_each(|lease| self.revoke(lease.id));
        let kept = join_all(due.into_iter().map(|mut lease| async move {
            let outcome = self.keep(&mut lease).await;
            (lease, outcome)
        }))
        .await;
        for shelf in self.shelves().values_mut() {
            for (lease, outcome) in &kept {
                match outcome {
                    Ok(()) => {
                        let known = shelf.leases.iter_mut().find(|known| known.id == lease.id);
                        known.into_iter().for_each(|known| known.kept = known.kept.max(lease.kept));
                    }
                    Err(fault) if fault.is_lease_gone() => shelf.leases.retain(|known| known.id != lease.id),
                    Err(_) => {}
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_longer_than_what_was_asked_for() {
        let table = [(0, 2), (300, 2), (1_000, 2), (1_001, 3), (30_000, 31), (30_500, 32)];
        for (millis, seconds) in table {
            assert_eq!(seconds_for(Duration::from_millis(millis)), seconds, "{millis} ms");
        }
        assert_eq!(whole_seconds(Duration::MAX), SECONDS_MAX);
    }

    #[test]
    fn the_id_of_a_lease_is_positive() {
        for (random, id) in [(0, 1), (1, 1), (7, 3), (u64::MAX, i64::MAX)] {
            assert_eq!(fresh_id(random), id);
        }
    }

    #[test]
    fn what_a_lease_is_good_for_counts_from_when_it_was_kept() {
        let lease = Lease { id: 0x694d, asked: 31, seconds: 31, kept: Timestamp::default() };
        let at = |seconds| Timestamp::default().after(Duration::from_secs(seconds));
        assert!(lease.lasts(at(1), Duration::from_secs(30)) && !lease.lasts(at(2), Duration::from_secs(30)));
        assert!(lease.is_usable(at(15)) && !lease.is_usable(at(16)));
    }
}
