//! The memory backend: the model behind a mutex and a notify.
//!
//! For tests and for programs of one process. Nothing survives it.

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

/// A backend in this process's memory: the executable specification of every other one.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// use {leasehold::{Client, Memory}, std::sync::Arc};
///
/// let memory = Arc::new(Memory::new());
/// let (a, b) = (Client::new(memory.clone()), Client::new(memory)); // two clients, as in two processes
/// let lease = a.lease("report", "42").acquire().await?;
/// assert!(b.lease("report", "42").try_acquire().await?.is_none());
/// lease.release().await?;
/// assert!(b.lease("report", "42").try_acquire().await?.is_some());
/// # Ok(()) }
/// ```
pub struct Memory {
    info: BackendInfo,
    environment: Arc<dyn Environment>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    resources: HashMap<Resource, Entry>,
    /// Sweep the idle ones when there are this many: costs nothing per call, on average.
    sweep_at: usize,
    last_token: u64,
    versions: u64,
    audit: VecDeque<AuditRecord>,
    /// How many records were forgotten: a page goes on where the one before ended, whatever comes and goes.
    audit_gone: u64,
}

struct Entry {
    model: Model,
    /// Who waits with a place, and how often: woken when it can move.
    placed: HashMap<OwnerToken, (Arc<Notify>, usize)>,
    /// Who waits without: woken by any change.
    others: Arc<Notify>,
    watching: usize,
}

const AUDIT_MAX: usize = 10_000;
const SWEEP_MIN: usize = 64;

impl Memory {
    /// On the host's clocks.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn new() -> Memory {
        Memory::in_environment(Arc::new(System::current()))
    }

    /// On clocks of your own: see [`ManualTime`](crate::testing::ManualTime).
    pub fn in_environment(environment: Arc<dyn Environment>) -> Memory {
        let mut info = BackendInfo::new("memory", Guarantee::Database);
        info.because = "one process, one copy, one lock".into();
        info.tokens_break_when = "the process ends: nothing is remembered".into();
        Memory { info, environment, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many resources are remembered: for tests that look for leaks.
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

impl State {
    fn entry(&mut self, now: leasehold_core::Timestamp, resource: &Resource) -> &mut Entry {
        if !self.resources.contains_key(resource) {
            if self.resources.len() >= self.sweep_at.max(SWEEP_MIN) {
                self.sweep(now);
            }
            self.versions += 1 << 32; // cursors of a state made anew never repeat
            let entry = Entry {
                model: Model::new(self.versions),
                placed: HashMap::new(),
                others: Arc::new(Notify::new()),
                watching: 0,
            };
            self.resources.insert(resource.clone(), entry);
        }
        self.resources.get_mut(resource).expect("just inserted")
    }

    fn sweep(&mut self, now: leasehold_core::Timestamp) {
        self.resources.retain(|_, entry| {
            entry.model.remove_expired(now);
            entry.watching > 0 || !entry.model.is_idle()
        });
        self.sweep_at = self.resources.len() * 2;
    }

    /// Runs a verb on one resource, then wakes whom it let move and which of these owners it took the place of, and
    /// forgets the resource if it fell idle.
    fn on<T>(
        &mut self,
        now: leasehold_core::Timestamp,
        resource: &Resource,
        owners: &[OwnerToken],
        verb: impl FnOnce(&mut Model) -> T,
    ) -> T {
        let entry = self.entry(now, resource);
        let before = entry.model.version();
        let answer = verb(&mut entry.model);
        if entry.model.version() != before {
            entry.wake(owners);
        }
        if entry.model.is_idle() && entry.watching == 0 {
            self.resources.remove(resource);
        }
        answer
    }
}

impl Entry {
    fn wake(&self, owners: &[OwnerToken]) {
        if self.watching == 0 {
            return;
        }
        let displaced = owners.iter().copied().filter(|owner| !self.model.is_queued(*owner));
        for owner in self.model.grantable().chain(displaced) {
            if let Some((bell, _)) = self.placed.get(&owner) {
                bell.notify_waiters();
            }
        }
        self.others.notify_waiters();
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

    async fn acquire(&self, claim: &Claim) -> Result<Verdict> {
        self.check(claim)?;
        let now = self.environment.now();
        let limit = self.info.limits.queue as usize;
        let mut state = self.state();
        let clock = state.last_token + 1;
        let predecessor = claim.takes_over_from.map_or(claim.owner, |from| from.owner);
        let verdict = state.on(now, &claim.resource, &[claim.owner, predecessor], |model| {
            model.remove_expired(now);
            // Behind so many nobody is granted, so a newcomer would have to take one more place.
            let stranger = !model.is_known(claim.owner) && claim.takes_over_from.is_none();
            let newcomer = claim.when_blocked == WhenBlocked::Queue && stranger;
            if newcomer && model.queue_length() >= limit {
                return Err(self.limit(format!("{limit} wait in line already")));
            }
            model.acquire(now, claim, clock)
        });
        if let Ok(Verdict::Granted(grant)) = &verdict {
            state.last_token = state.last_token.max(grant.token.get());
        }
        verdict
    }

    async fn renew(&self, held: &[RenewRequest]) -> Vec<Result<Renewal>> {
        let now = self.environment.now();
        let mut state = self.state();
        held.iter()
            .map(|held| {
                if held.note.as_ref().is_some_and(|note| note.len() > self.info.limits.note) {
                    return Err(self.limit(format!("a note has at most {} bytes", self.info.limits.note)));
                }
                Ok(state.on(now, &held.resource, &[held.owner], |model| model.renew(now, held)))
            })
            .collect()
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<Released> {
        let now = self.environment.now();
        Ok(self.state().on(now, &request.resource, &[request.owner], |model| model.release(now, request)))
    }

    async fn wait(&self, claim: &ClaimRef, since: &Cursor, at_most: Duration) -> Result<()> {
        let Some((watch, woken)) = Watch::begin(self, claim, since) else { return Ok(()) };
        first(woken, self.environment.sleep(at_most)).await;
        drop(watch);
        Ok(())
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        let now = self.environment.now();
        let state = self.state();
        let snapshot = |resource: &Resource, entry: &Entry| entry.model.snapshot(now, resource);
        match query {
            Query::One(resource) => {
                let seen = state.resources.get(resource).map(|entry| snapshot(resource, entry));
                let nobody = || {
                    let mut empty = Snapshot::empty(resource.clone());
                    empty.cursor = Cursor(state.versions);
                    empty
                };
                Ok(Page::Resources { snapshots: vec![seen.unwrap_or_else(nobody)], next: None })
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
                    (state.audit_gone..).zip(&state.audit).collect::<Vec<_>>().into_iter().rev();
                let ours = newest_first.filter(|(number, record)| {
                    *number < from && record.resource.key().starts_with(&listing.prefix)
                });
                let (records, next) = page(ours, self.page_size(listing), |(number, _)| number.to_string());
                let records = records.into_iter().map(|(_, record)| record.clone()).collect();
                Ok(Page::Audit { records, next })
            }
            // Everything here has an end: there is no way to write what has none.
            Query::Leaks(_) => Ok(Page::Leaks { found: Vec::new(), next: None }),
            Query::Foreign { .. } => {
                Err(Error::new(ErrorKind::Unsupported, "only leasehold keeps anything in memory"))
            }
            other => Err(Error::new(ErrorKind::Unsupported, format!("memory does not answer {other:?}"))),
        }
    }

    async fn order(&self, order: &OperatorCommand) -> Result<CommandOutcome> {
        if order.by.len() > OperatorCommand::TEXT_MAX || order.why.len() > OperatorCommand::TEXT_MAX {
            return Err(self.limit(format!("who and why have at most {} bytes", OperatorCommand::TEXT_MAX)));
        }
        let (now, wall) = (self.environment.now(), self.environment.wall());
        let mut state = self.state();
        let answer = state.on(now, &order.resource, &[], |model| model.order(now, order));
        if state.audit.len() == AUDIT_MAX {
            state.audit.pop_front();
            state.audit_gone += 1;
        }
        state.audit.push_back(AuditRecord::of(order, wall, answer == CommandOutcome::Done));
        Ok(answer)
    }
}

impl Memory {
    fn page_size(&self, listing: &Listing) -> usize {
        let most = self.info.limits.page;
        if listing.limit == 0 { most as usize } else { listing.limit.min(most) as usize }
    }
}

/// The first `size` of them, and where to go on if there are more.
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

/// Someone is waiting: registered while this lives, so a dropped `wait` leaves nothing behind.
struct Watch<'a> {
    memory: &'a Memory,
    claim: &'a ClaimRef,
    placed: bool,
}

impl<'a> Watch<'a> {
    /// None if there is reason to ask at once.
    fn begin(
        memory: &'a Memory,
        claim: &'a ClaimRef,
        since: &Cursor,
    ) -> Option<(Watch<'a>, impl Future<Output = ()> + use<>)> {
        let now = memory.environment.now();
        let mut state = memory.state();
        let entry = state.entry(now, &claim.resource);
        let before = entry.model.version();
        entry.model.remove_expired(now);
        if entry.model.version() != before {
            entry.wake(&[]); // what has ended may let others move: no later verb would see the change
        }
        let placed = entry.model.is_queued(claim.owner);
        let news =
            if placed { entry.model.is_worth_asking(claim.owner) } else { entry.model.version() != since.0 };
        if news {
            return None;
        }
        entry.watching += 1;
        let bell = if placed {
            let (bell, waits) = entry.placed.entry(claim.owner).or_default();
            *waits += 1;
            Arc::clone(bell)
        } else {
            Arc::clone(&entry.others)
        };
        let woken = bell.notified_owned(); // made under the lock: a change after this is not missed
        Some((Watch { memory, claim, placed }, woken))
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        let mut state = self.memory.state();
        let Some(entry) = state.resources.get_mut(&self.claim.resource) else { return };
        if self.placed
            && let Some((_, waits)) = entry.placed.get_mut(&self.claim.owner)
        {
            *waits -= 1;
            if *waits == 0 {
                entry.placed.remove(&self.claim.owner);
            }
        }
        entry.watching -= 1;
        if entry.watching == 0 && entry.model.is_idle() {
            state.resources.remove(&self.claim.resource);
        }
    }
}
