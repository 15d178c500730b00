//! The memory backend: core's [`Model`] behind a mutex, and wake-ups.
//!
//! For tests, and for programs of one process. Nothing outlives the process.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use leasehold_core::{
    AuditRecord, Backend, BackendInfo, Claim, ClaimRef, CommandOutcome, Cursor, Environment, Error,
    ErrorKind, FailureDomain, Guarantee, Listing, Model, OperatorCommand, OwnerToken, Page, Query,
    ReleaseRequest, Released, RenewRequest, Renewal, Resource, Result, Snapshot, Verdict, WhenBlocked,
    async_trait,
};
use tokio::sync::Notify;

use leasehold_support::race::first;

use crate::system::System;

/// A backend in this process's memory. It is the executable specification of all other backends.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// use {leasehold::{Client, Memory}, std::sync::Arc};
///
/// let memory = Arc::new(Memory::new());
/// let (a, b) = (Client::new(memory.clone()), Client::new(memory)); // two clients, as in two processes
/// let other = b.lease("report", "42");
/// let tried = a.lease("report", "42").run(async |_| other.clone().try_acquire().await).await?;
/// assert!(tried?.is_none(), "the first client holds it");
/// assert!(other.try_acquire().await?.is_some());
/// # Ok(()) }
/// ```
pub struct Memory {
    info: BackendInfo,
    environment: Arc<dyn Environment>,
    state: Mutex<MemoryState>,
}

#[derive(Default)]
struct MemoryState {
    resources: HashMap<Resource, ResourceEntry>,
    /// At this size, idle resources are removed. Doubled each time, so that the cost of a call stays constant on average.
    sweep_at: usize,
    /// The greatest token of all resources. A resource that is removed and made again starts above it.
    last_token: u64,
    versions: u64,
    audit: VecDeque<AuditRecord>,
    /// How many records were removed: the number of the oldest one that is left. So a cursor stays valid when records come
    /// and go.
    audit_removed: u64,
}

struct ResourceEntry {
    model: Model,
    /// The wake-up of each queued claim that waits, and its number of waits. Notified when the claim may be granted.
    queued: HashMap<OwnerToken, (Arc<Notify>, usize)>,
    /// The wake-up of claims that wait without a place in the queue. Notified by any change.
    others: Arc<Notify>,
    /// How many waits are registered.
    waits: usize,
}

const AUDIT_MAX: usize = 10_000;
const SWEEP_MIN: usize = 64;

impl Memory {
    /// An empty store on the host's clocks.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn new() -> Memory {
        Memory::in_environment(Arc::new(System::current()))
    }

    /// An empty store on clocks of your own: see [`ManualTime`](crate::testing::ManualTime).
    pub fn in_environment(environment: Arc<dyn Environment>) -> Memory {
        let mut info = BackendInfo::new("memory", Guarantee::Database);
        info.because = "one process, one copy, one lock".into();
        info.tokens_break_when = "the process ends: nothing is remembered".into();
        Memory { info, environment, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, MemoryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of resources that are stored. For tests that look for leaks.
    pub fn resources(&self) -> usize {
        let now = self.environment.now();
        let mut state = self.state();
        state.sweep(now);
        state.resources.len()
    }

    fn check(&self, claim: &Claim) -> Result<()> {
        let note = claim.note.as_ref().map_or(0, |note| note.len());
        if note > self.info.limits.note {
            return Err(self.limit(format!("a note has at most {} bytes", self.info.limits.note)));
        }
        Ok(())
    }

    fn limit(&self, message: String) -> Error {
        Error::new(ErrorKind::Limit, message)
    }
}

impl Default for Memory {
    fn default() -> Memory {
        Memory::new()
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("resources", &self.state().resources.len()).finish_non_exhaustive()
    }
}

impl MemoryState {
    fn entry(&mut self, now: leasehold_core::Timestamp, resource: &Resource) -> &mut ResourceEntry {
        if !self.resources.contains_key(resource) {
            if self.resources.len() >= self.sweep_at.max(SWEEP_MIN) {
                self.sweep(now);
            }
            self.versions += 1 << 32; // so that the cursors of a resource that is made again never repeat
            let entry = ResourceEntry {
                model: Model::new(self.versions),
                queued: HashMap::new(),
                others: Arc::new(Notify::new()),
                waits: 0,
            };
            self.resources.insert(resource.clone(), entry);
        }
        self.resources.get_mut(resource).expect("just inserted")
    }

    fn sweep(&mut self, now: leasehold_core::Timestamp) {
        self.resources.retain(|_, entry| {
            entry.model.remove_expired(now);
            entry.waits > 0 || !entry.model.is_idle()
        });
        self.sweep_at = self.resources.len() * 2;
    }

    /// Executes a verb on one resource. Then wakes the claims that were called, and those of `owners` that lost their
    /// place; and removes the resource if it is idle.
    fn execute<T>(
        &mut self,
        now: leasehold_core::Timestamp,
        resource: &Resource,
        owners: &[OwnerToken],
        verb: impl FnOnce(&mut Model) -> T,
    ) -> T {
        let entry = self.entry(now, resource);
        let before = entry.model.version();
        let reply = verb(&mut entry.model);
        if entry.model.version() != before {
            entry.wake(owners);
        }
        if entry.model.is_idle() && entry.waits == 0 {
            self.resources.remove(resource);
        }
        reply
    }
}

impl ResourceEntry {
    fn wake(&self, owners: &[OwnerToken]) {
        if self.waits == 0 {
            return;
        }
        let without_place = owners.iter().copied().filter(|owner| !self.model.is_queued(*owner));
        for owner in self.model.called().chain(without_place) {
            if let Some((wakeup, _)) = self.queued.get(&owner) {
                wakeup.notify_waiters();
            }
        }
        self.others.notify_waiters();
    }
}

impl Memory {
    fn acquire_claim(&self, claim: &Claim) -> Result<Verdict> {
        self.check(claim)?;
        let now = self.environment.now();
        let limit = self.info.limits.queue as usize;
        let mut state = self.state();
        let clock = state.last_token + 1;
        let predecessor = claim.takes_over_from.map_or(claim.owner, |from| from.owner);
        let verdict = state.execute(now, &claim.resource, &[claim.owner, predecessor], |model| {
            model.remove_expired(now);
            // Behind a full queue nothing is granted at once, so a new claim would need one more place.
            let is_new = !model.is_known(claim.owner) && claim.takes_over_from.is_none();
            let needs_place = claim.when_blocked == WhenBlocked::Queue && is_new;
            if needs_place && model.queue_length() >= limit {
                return Err(self.limit(format!("the queue is full: {limit} claims wait already")));
            }
            model.acquire(now, claim, clock)
        });
        if let Ok(Verdict::Granted(grant)) = &verdict {
            state.last_token = state.last_token.max(grant.token.get());
        }
        verdict
    }

    fn release_claim(&self, request: &ReleaseRequest) -> Released {
        let now = self.environment.now();
        self.state().execute(now, &request.resource, &[request.owner], |model| model.release(now, request))
    }
}

#[async_trait]
impl Backend for Memory {
    fn info(&self) -> &BackendInfo {
        &self.info
    }

    fn failure_domain(&self, _: &Resource) -> FailureDomain {
        FailureDomain::default()
    }

    async fn acquire(&self, claims: &[Claim]) -> Vec<Result<Verdict>> {
        claims.iter().map(|claim| self.acquire_claim(claim)).collect()
    }

    async fn renew(&self, requests: &[RenewRequest]) -> Vec<Result<Renewal>> {
        let now = self.environment.now();
        let mut state = self.state();
        requests
            .iter()
            .map(|request| {
                if request.note.as_ref().is_some_and(|note| note.len() > self.info.limits.note) {
                    return Err(self.limit(format!("a note has at most {} bytes", self.info.limits.note)));
                }
                Ok(state.execute(now, &request.resource, &[request.owner], |model| model.renew(now, request)))
            })
            .collect()
    }

    async fn release(&self, requests: &[ReleaseRequest]) -> Vec<Result<Released>> {
        requests.iter().map(|request| Ok(self.release_claim(request))).collect()
    }

    async fn wait(&self, claim: &ClaimRef, since: &Cursor, at_most: Duration) -> Result<()> {
        let Some((registration, wakeup)) = WaitRegistration::new(self, claim, since) else { return Ok(()) };
        first(wakeup, self.environment.sleep(at_most)).await;
        drop(registration);
        Ok(())
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        let now = self.environment.now();
        let state = self.state();
        let snapshot = |resource: &Resource, entry: &ResourceEntry| entry.model.snapshot(now, resource);
        match query {
            Query::One(resource) => {
                let seen = state.resources.get(resource).map(|entry| snapshot(resource, entry));
                let nothing = || {
                    let mut empty = Snapshot::empty(resource.clone());
                    empty.cursor = Cursor(state.versions);
                    empty
                };
                Ok(Page::Resources { snapshots: vec![seen.unwrap_or_else(nothing)], next: None })
            }
            Query::Resources(listing) => {
                let is_live = |seen: &Snapshot| {
                    seen.holder_count > 0 || seen.queue_length > 0 || seen.paused_for.is_some()
                };
                let mut all: Vec<_> =
                    state.resources.keys().filter(|r| r.key().starts_with(&listing.prefix)).collect();
                all.sort_unstable();
                let after = |r: &&&Resource| listing.after.as_deref().is_none_or(|after| r.key() > after);
                let live =
                    all.iter().filter(after).map(|r| snapshot(r, &state.resources[*r])).filter(is_live);
                let (snapshots, next) = page(live, self.page_size(listing), |s| s.resource.key().to_owned());
                Ok(Page::Resources { snapshots, next })
            }
            Query::Audit(listing) => {
                let from = listing.after.as_deref().and_then(|after| after.parse().ok()).unwrap_or(u64::MAX);
                let newest_first =
                    (state.audit_removed..).zip(&state.audit).collect::<Vec<_>>().into_iter().rev();
                let ours = newest_first.filter(|(number, record)| {
                    *number < from && record.resource.key().starts_with(&listing.prefix)
                });
                let (records, next) = page(ours, self.page_size(listing), |(number, _)| number.to_string());
                let records = records.into_iter().map(|(_, record)| record.clone()).collect();
                Ok(Page::Audit { records, next })
            }
            // Every record here has an end, so nothing can leak.
            Query::Leaks(_) => Ok(Page::Leaks { found: Vec::new(), next: None }),
            Query::Foreign { .. } => {
                Err(Error::new(ErrorKind::Unsupported, "the memory backend has no records of other programs"))
            }
            Query::Nodes => {
                let message =
                    "the memory backend has no servers: its leases are in the memory of this process";
                Err(Error::new(ErrorKind::Unsupported, message))
            }
            other => Err(Error::new(
                ErrorKind::Unsupported,
                format!("the memory backend does not answer the query {other:?}"),
            )),
        }
    }

    async fn order(&self, order: &OperatorCommand) -> Result<CommandOutcome> {
        if order.by.len() > OperatorCommand::TEXT_MAX || order.why.len() > OperatorCommand::TEXT_MAX {
            let message = format!("`by` and `why` have at most {} bytes each", OperatorCommand::TEXT_MAX);
            return Err(self.limit(message));
        }
        let (now, wall) = (self.environment.now(), self.environment.wall());
        let mut state = self.state();
        let outcome = state.execute(now, &order.resource, &[], |model| model.order(now, order));
        if state.audit.len() == AUDIT_MAX {
            state.audit.pop_front();
            state.audit_removed += 1;
        }
        state.audit.push_back(AuditRecord::of(order, wall, outcome == CommandOutcome::Done));
        Ok(outcome)
    }
}

impl Memory {
    fn page_size(&self, listing: &Listing) -> usize {
        let most = self.info.limits.page;
        if listing.limit == 0 { most as usize } else { listing.limit.min(most) as usize }
    }
}

/// The first `size` items, and the cursor of the next page if there are more.
fn page<T>(
    all: impl Iterator<Item = T>,
    size: usize,
    name: impl Fn(&T) -> String,
) -> (Vec<T>, Option<String>) {
    let mut items: Vec<T> = all.take(size + 1).collect();
    let more = items.len() > size;
    items.truncate(size);
    let next = items.last().filter(|_| more).map(name);
    (items, next)
}

/// A wait, registered until it is dropped. So a `wait` that is cancelled leaves nothing behind.
struct WaitRegistration<'a> {
    memory: &'a Memory,
    claim: &'a ClaimRef,
    /// The claim has a place in the queue.
    queued: bool,
}

impl<'a> WaitRegistration<'a> {
    /// Registers a wait. `None` if there is a reason to ask again at once.
    fn new(
        memory: &'a Memory,
        claim: &'a ClaimRef,
        since: &Cursor,
    ) -> Option<(WaitRegistration<'a>, impl Future<Output = ()> + use<>)> {
        let now = memory.environment.now();
        let mut state = memory.state();
        let entry = state.entry(now, &claim.resource);
        let before = entry.model.version();
        entry.model.remove_expired(now);
        if entry.model.version() != before {
            entry.wake(&[]); // something has ended, so others may be granted; no later verb would notice that change
        }
        let queued = entry.model.is_queued(claim.owner);
        let ask_at_once =
            if queued { entry.model.is_worth_asking(claim.owner) } else { entry.model.version() != since.0 };
        if ask_at_once {
            return None;
        }
        entry.waits += 1;
        let wakeup = if queued {
            let (wakeup, waits) = entry.queued.entry(claim.owner).or_default();
            *waits += 1;
            Arc::clone(wakeup)
        } else {
            Arc::clone(&entry.others)
        };
        let wakeup = wakeup.notified_owned(); // made under the lock, so that no change after this is missed
        Some((WaitRegistration { memory, claim, queued }, wakeup))
    }
}

impl Drop for WaitRegistration<'_> {
    fn drop(&mut self) {
        let mut state = self.memory.state();
        let Some(entry) = state.resources.get_mut(&self.claim.resource) else { return };
        if self.queued
            && let Some((_, waits)) = entry.queued.get_mut(&self.claim.owner)
        {
            *waits -= 1;
            if *waits == 0 {
                entry.queued.remove(&self.claim.owner);
            }
        }
        entry.waits -= 1;
        if entry.waits == 0 && entry.model.is_idle() {
            state.resources.remove(&self.claim.resource);
        }
    }
}
