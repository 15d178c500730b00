//! Gives every claim a ttl of its own on a store that has none: there, a claim lives as long as the session of the process that made
//! it, which is this server (ZooKeeper).
//!
//! 1. Each claim that this server makes has a deadline in memory ([`Deadlines`]): that of its lease, or of its place in the queue.
//! 2. A renewal asks the store whether the claim is still there, and moves the deadline. After the deadline it is lost.
//! 3. At the deadline one task releases the claim at the store. Nobody else is granted before that.
//! 4. What remains of a lease is never more than the store says: if the session ends, so do all leases.
//!
//! Claims of other processes in the same store are left alone. With this server, everything here ends: see ADR 0082.

mod deadlines;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use futures_util::{StreamExt as _, stream};
use leasehold_core::{
    Backend, BackendExt as _, BackendInfo, Claim, ClaimRef, CommandOutcome, Cursor, Environment, Error,
    ErrorKind, FailureDomain, GoneReason, OperatorCommand, Page, Query, ReleaseRequest, Released,
    RenewRequest, Renewal, Resource, Result, Timestamp, Verb, Verdict, async_trait, one_by_one,
};
use tokio::{sync::Notify, time::timeout};

use deadlines::{Asked, ClaimState, Deadlines};

/// How long a claim waits for an earlier request with the same owner token, or for the end of its lease.
const ENDING_MAX: Duration = Duration::from_secs(10);
/// How long one release may take before it is sent again.
const RELEASE_MAX: Duration = Duration::from_secs(10);
/// How many claims are released at once.
const RELEASES_AT_ONCE: usize = 64;
/// How many times `acquire` asks if the lease that it finds is over.
const ROUNDS_MAX: usize = 3;

/// A backend whose claims end at deadlines of this process.
#[derive(Debug)]
pub(crate) struct SessionDeadlines {
    store: Arc<dyn Backend>,
    info: BackendInfo,
    environment: Arc<dyn Environment>,
    deadlines: Mutex<Deadlines>,
    /// The first deadline has changed.
    changed: Notify,
    /// A claim has ended, or a call for it has.
    ended: Notify,
}

impl SessionDeadlines {
    /// Starts the task that releases claims. It ends when the last reference is gone.
    pub(crate) fn start(store: Arc<dyn Backend>, environment: Arc<dyn Environment>) -> Arc<SessionDeadlines> {
        let mut info = store.info().clone();
        info.capabilities.own_ttl = true;
        let deadlines = Arc::new(SessionDeadlines {
            store,
            info,
            environment,
            deadlines: Mutex::default(),
            changed: Notify::new(),
            ended: Notify::new(),
        });
        tokio::spawn(end_at_deadlines(Arc::downgrade(&deadlines)));
        deadlines
    }

    fn deadlines(&self) -> MutexGuard<'_, Deadlines> {
        self.deadlines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Timestamp {
        self.environment.now()
    }

    async fn acquire_claim(&self, claim: &Claim) -> Result<Verdict> {
        for _ in 0..ROUNDS_MAX {
            if let Some(from) = claim.takes_over_from {
                self.end_if_over(&ClaimRef { resource: claim.resource.clone(), owner: from.owner }).await?;
            }
            self.end_if_over(&claim.reference()).await?;
            self.until_not_asked(&claim.reference()).await?;
            if let Asked::Answered(verdict) = self.ask(claim).await {
                return verdict.map(|verdict| self.correct_verdict(&claim.resource, verdict));
            }
        }
        Err(self.busy(&claim.resource))
    }

    /// Waits until no call for this claim is under way.
    async fn until_not_asked(&self, claim: &ClaimRef) -> Result<()> {
        let answered = async {
            loop {
                let ended = self.ended.notified();
                tokio::pin!(ended);
                ended.as_mut().enable();
                if !self.deadlines().is_asked(claim) {
                    return;
                }
                ended.await;
            }
        };
        timeout(ENDING_MAX, answered).await.map_err(|_| self.busy(&claim.resource))
    }

    /// Asks once. If this future is dropped, the claim is released later.
    async fn ask(&self, claim: &Claim) -> Asked {
        let Some(mut asking) = Asking::new(self, claim) else { return Asked::Over };
        let mut sent_claim = claim.clone();
        // The store refuses a ttl below that of its session, because it could not keep it. Here the deadline does.
        sent_claim.ttl = claim.ttl.max(self.info.limits.ttl);
        let result = self.store.acquire_one(&sent_claim).await;
        let took_over = match (&result, claim.takes_over_from) {
            (Ok(Verdict::Mismatch { .. }) | Err(_), _) => None,
            (Ok(_), from) => from,
        };
        if let Some(from) = took_over {
            let predecessor = ClaimRef { resource: claim.resource.clone(), owner: from.owner };
            self.deadlines().released(&predecessor);
        }
        asking.end(Some(result))
    }

    /// Ends a claim whose deadline has passed, before it is asked for again: that is a new lease.
    async fn end_if_over(&self, claim: &ClaimRef) -> Result<()> {
        let ended = async {
            loop {
                let ended = self.ended.notified();
                tokio::pin!(ended);
                ended.as_mut().enable();
                let request = {
                    let mut deadlines = self.deadlines();
                    match deadlines.state(claim, self.now()) {
                        ClaimState::Unknown | ClaimState::Live(_) => return Ok::<(), Error>(()),
                        ClaimState::Over => deadlines.take(claim),
                        ClaimState::Ending => None,
                    }
                };
                match request {
                    Some(request) => self.end(request).await?,
                    None => ended.await,
                }
            }
        };
        let late = |_| self.busy(&claim.resource);
        timeout(ENDING_MAX, ended).await.map_err(late).flatten()
    }

    fn busy(&self, resource: &Resource) -> Error {
        let message = "an earlier request of this owner token is not finished at the store, or its lease has run out and is not released \
                       yet: ask again";
        Error::new(ErrorKind::Unavailable, message).at(Verb::Acquire, self.info.name).on(resource)
    }

    /// Releases a claim that is over. If this future is dropped, it is released later.
    async fn end(&self, request: ReleaseRequest) -> Result<()> {
        let mut ending = Ending { deadlines: self, claim: reference(&request), worked: false };
        let released = timeout(RELEASE_MAX, self.store.release_one(&request)).await;
        let released =
            released.map_err(|_| Error::new(ErrorKind::Unavailable, "the store did not answer")).flatten();
        ending.worked = released.is_ok();
        drop(ending);
        if let Err(error) = &released {
            tracing::warn!(%error, "a lease has run out and could not be released at the store: it is tried again");
        }
        released.map(drop)
    }

    fn correct_verdict(&self, resource: &Resource, mut verdict: Verdict) -> Verdict {
        if let Verdict::Blocked(blocked) = &mut verdict {
            self.deadlines().correct(resource, &mut blocked.holders, self.now());
            blocked.holders.sort_by_key(|by| by.remaining);
            let next = blocked.holders.first().map(|by| by.remaining);
            blocked.changes_in = blocked.changes_in.into_iter().chain(next).min();
        }
        verdict
    }

    async fn release_claim(&self, request: &ReleaseRequest) -> Result<Released> {
        let claim = reference(request);
        let was_over =
            matches!(self.deadlines().state(&claim, self.now()), ClaimState::Over | ClaimState::Ending);
        let released = self.store.release_one(request).await?;
        self.deadlines().released(&claim);
        Ok(if was_over { Released::AlreadyGone } else { released })
    }
}

fn reference(request: &ReleaseRequest) -> ClaimRef {
    ClaimRef { resource: request.resource.clone(), owner: request.owner }
}

/// A call of `acquire` that is under way.
struct Asking<'a> {
    deadlines: &'a SessionDeadlines,
    claim: &'a Claim,
    sent: Timestamp,
    /// The call has ended.
    is_over: bool,
}

impl<'a> Asking<'a> {
    /// `None` if an earlier claim with this owner token must be ended first.
    fn new(deadlines: &'a SessionDeadlines, claim: &'a Claim) -> Option<Asking<'a>> {
        let sent = deadlines.now();
        let begun = deadlines.deadlines().ask(&claim.reference(), claim.ttl, sent);
        begun.then(|| Asking { deadlines, claim, sent, is_over: false })
    }

    fn end(&mut self, result: Option<Result<Verdict>>) -> Asked {
        self.is_over = true;
        let times = (self.sent, self.deadlines.now());
        let ttls = (self.claim.ttl, self.claim.place_ttl);
        let asked = self.deadlines.deadlines().asked(&self.claim.reference(), ttls, times, result);
        self.deadlines.changed.notify_one();
        self.deadlines.ended.notify_waiters();
        asked
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.end(None);
        }
    }
}

/// A claim that is being released.
struct Ending<'a> {
    deadlines: &'a SessionDeadlines,
    claim: ClaimRef,
    worked: bool,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.deadlines.deadlines().ended(&self.claim, self.worked, self.deadlines.now());
        self.deadlines.changed.notify_one();
        self.deadlines.ended.notify_waiters();
    }
}

/// Releases claims at their deadlines.
async fn end_at_deadlines(deadlines: Weak<SessionDeadlines>) {
    /// The clock counts suspend, timers may not: so they are short.
    const SLEEP_MAX: Duration = Duration::from_secs(1);
    loop {
        let Some(deadlines) = deadlines.upgrade() else { return };
        let now = deadlines.now();
        let (due, next) = deadlines.deadlines().take_due(now);
        if !due.is_empty() {
            let deadlines = Arc::clone(&deadlines);
            tokio::spawn(async move {
                let deadlines = &deadlines;
                let end = |request| async move { drop(deadlines.end(request).await) };
                stream::iter(due).for_each_concurrent(RELEASES_AT_ONCE, end).await;
            });
        }
        let sleep = next.map_or(SLEEP_MAX, |next| now.until(next).min(SLEEP_MAX));
        tokio::select! {
            () = tokio::time::sleep(sleep) => {}
            () = deadlines.changed.notified() => {}
        }
    }
}

#[async_trait]
impl Backend for SessionDeadlines {
    fn info(&self) -> &BackendInfo {
        &self.info
    }

    fn failure_domain(&self, resource: &Resource) -> FailureDomain {
        self.store.failure_domain(resource)
    }

    async fn acquire(&self, claims: &[Claim]) -> Vec<Result<Verdict>> {
        one_by_one(claims, |claim| self.acquire_claim(claim)).await
    }

    async fn renew(&self, requests: &[RenewRequest]) -> Vec<Result<Renewal>> {
        let sent = self.now();
        let claim =
            |request: &RenewRequest| ClaimRef { resource: request.resource.clone(), owner: request.owner };
        let states: Vec<ClaimState> = {
            let deadlines = self.deadlines();
            requests.iter().map(|request| deadlines.state(&claim(request), sent)).collect()
        };
        let is_over = |state: &ClaimState| matches!(state, ClaimState::Over | ClaimState::Ending);
        let live = requests.iter().zip(&states).filter(|(_, state)| !is_over(state));
        let live: Vec<RenewRequest> = live
            .map(|(request, _)| {
                let mut request = request.clone();
                request.ttl = request.ttl.max(self.info.limits.ttl);
                request
            })
            .collect();
        let mut replies = self.store.renew(&live).await.into_iter();
        let times = (sent, self.now());
        let mut deadlines = self.deadlines();
        let renewed = requests.iter().zip(states).map(|(request, state)| {
            if is_over(&state) {
                return Ok(Renewal::Gone { why: GoneReason::NotThere });
            }
            let reply = replies.next().unwrap_or_else(|| Err(no_reply()))?;
            Ok(deadlines.renewed(&claim(request), state, request.ttl, times, reply))
        });
        let renewed = renewed.collect();
        drop(deadlines);
        self.changed.notify_one();
        renewed
    }

    async fn release(&self, requests: &[ReleaseRequest]) -> Vec<Result<Released>> {
        one_by_one(requests, |request| self.release_claim(request)).await
    }

    async fn wait(&self, claim: &ClaimRef, since: &Cursor, at_most: Duration) -> Result<()> {
        self.store.wait(claim, since, at_most).await
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        let mut page = self.store.inspect(query).await?;
        if let Page::Resources { snapshots, .. } = &mut page {
            let (deadlines, now) = (self.deadlines(), self.now());
            for snapshot in snapshots {
                deadlines.correct(&snapshot.resource, &mut snapshot.holders, now);
            }
        }
        Ok(page)
    }

    async fn order(&self, command: &OperatorCommand) -> Result<CommandOutcome> {
        self.store.order(command).await
    }
}

fn no_reply() -> Error {
    Error::new(ErrorKind::Unavailable, "the backend did not give one result for each request")
        .with_effect(leasehold_core::Effect::Unknown)
}
