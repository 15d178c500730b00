//! A wrapper of the memory backend with one flaw.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use leasehold::Memory;
use leasehold_core::{
    Backend, BackendExt as _, BackendInfo, Capabilities, Claim, ClaimRef, CommandOutcome, Cursor, Eviction,
    FailureDomain, GoneReason, Handover, OperatorAction, OperatorCommand, OwnerToken, Page, Query,
    ReleaseRequest, Released, RenewRequest, Renewal, Resource, Result, Share, Verdict, WhenBlocked,
    async_trait, one_by_one,
};

/// What the mutant does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    None,
    AnyOwnerReleases,
    RenewalsRevive,
    RenewalsShorten,
    RepeatedAcquiresExtend,
    TokensDoNotGrow,
    FloorsAreIgnored,
    RepeatedAcquiresAreNewClaims,
    EveryClaimFits,
    ClaimsOutsideTheQueueOvertake,
    WaitersAreForgotten,
    PlacesNeverExpire,
    GrantsNeverExpire,
    RemainingTimeIsTheWholeTtl,
    TombstonesAreIgnored,
    CancelledSuccessorsDoNothing,
    HandoversAreIgnored,
    HandoversAreUnbounded,
    DowngradesExtend,
    KeepForIsIgnored,
    MismatchesAreIgnored,
    PausesAreIgnored,
    EvictionsAreIgnored,
    OrderTokensAreIgnored,
    NothingIsAudited,
    PagesEndEarly,
    NamesAreLowercased,
    NotesAreLost,
    NotesAreCut,
    BatchesAreReversed,
    HoldersAreHidden,
    TheQueueIsMiscounted,
    WakeupsAreLost,
    WaitsNeverEnd,
    /// No flaw: the backend only reports that it has none of the optional capabilities.
    HasNoCapabilities,
}

#[derive(Debug)]
pub(crate) struct Mutant {
    inner: Arc<Memory>,
    flaw: Flaw,
    info: BackendInfo,
    memory: Mutex<MutantMemory>,
}

/// What the mutant remembers for its flaws.
#[derive(Debug, Default)]
struct MutantMemory {
    claims: HashMap<ClaimRef, Claim>,
    holders: HashMap<Resource, OwnerToken>,
    queues: HashMap<Resource, Vec<OwnerToken>>,
    tokens: HashMap<Resource, leasehold_core::FencingToken>,
}

impl Mutant {
    pub(crate) fn new(inner: Arc<Memory>, flaw: Flaw) -> Mutant {
        let mut info = inner.info().clone();
        info.limits.gather = 8;
        if flaw == Flaw::HasNoCapabilities {
            let Capabilities { queue, shares, handover, keep_for, own_ttl, orders, .. } =
                &mut info.capabilities;
            [queue, shares, handover, keep_for, own_ttl, orders].into_iter().for_each(|has| *has = false);
        }
        Mutant { inner, flaw, info, memory: Mutex::default() }
    }

    fn is(&self, flaw: Flaw) -> bool {
        self.flaw == flaw
    }

    /// The claim that the memory backend gets instead of the original.
    fn alter_claim(&self, claim: &Claim) -> Claim {
        let mut altered = claim.clone();
        let known = self.memory.lock().unwrap().claims.contains_key(&claim.reference());
        match self.flaw {
            Flaw::FloorsAreIgnored => altered.floor = None,
            Flaw::RepeatedAcquiresAreNewClaims if known => {
                let mut bytes = claim.owner.to_bytes();
                bytes[15] ^= 1;
                altered.owner = OwnerToken::from_bytes(bytes);
            }
            Flaw::EveryClaimFits => altered.share = Share::READ,
            Flaw::WaitersAreForgotten => altered.when_blocked = WhenBlocked::Leave,
            Flaw::PlacesNeverExpire => altered.place_ttl *= 1000,
            Flaw::GrantsNeverExpire => altered.ttl *= 1000,
            Flaw::TombstonesAreIgnored => {
                altered.takes_over_from = claim.takes_over_from.map(|from| Handover::from(from.owner));
            }
            Flaw::HandoversAreIgnored => altered.takes_over_from = None,
            Flaw::NamesAreLowercased => altered.resource = lowercased(&claim.resource),
            Flaw::NotesAreLost => altered.note = None,
            Flaw::NotesAreCut => {
                let limit = self.info.limits.note;
                altered.note = claim.note.as_ref().map(|note| note[..note.len().min(limit)].into());
            }
            _ => {}
        }
        altered
    }

    /// Removes all waiters from the queue and acquires.
    async fn overtake(&self, claim: &Claim) -> Result<Verdict> {
        let queue = self.memory.lock().unwrap().queues.remove(&claim.resource).unwrap_or_default();
        for owner in queue {
            self.inner
                .release_one(&ReleaseRequest::new(ClaimRef { resource: claim.resource.clone(), owner }))
                .await?;
        }
        self.inner.acquire_one(claim).await
    }

    fn remember(&self, claim: &Claim, verdict: &Verdict) {
        let mut memory = self.memory.lock().unwrap();
        memory.claims.insert(claim.reference(), claim.clone());
        match verdict {
            Verdict::Granted(grant) => {
                memory.holders.insert(claim.resource.clone(), claim.owner);
                memory.tokens.entry(claim.resource.clone()).or_insert(grant.token);
            }
            Verdict::Blocked(blocked) if blocked.queued => {
                memory.queues.entry(claim.resource.clone()).or_default().push(claim.owner);
            }
            _ => {}
        }
    }

    /// The verdict that the caller gets instead of the original.
    async fn alter_verdict(&self, claim: &Claim, verdict: Verdict) -> Result<Verdict> {
        let altered = self.alter_claim(claim);
        Ok(match (self.flaw, verdict) {
            (Flaw::RepeatedAcquiresExtend | Flaw::DowngradesExtend, Verdict::Granted(mut grant)) => {
                if self.is(Flaw::RepeatedAcquiresExtend) || claim.takes_over_from.is_some() {
                    self.inner.renew(&[RenewRequest::new(claim.reference(), claim.ttl)]).await;
                    grant.remaining = grant.remaining.max(claim.ttl);
                }
                Verdict::Granted(grant)
            }
            (Flaw::TokensDoNotGrow, Verdict::Granted(mut grant)) => {
                grant.token =
                    *self.memory.lock().unwrap().tokens.entry(claim.resource.clone()).or_insert(grant.token);
                Verdict::Granted(grant)
            }
            (Flaw::RemainingTimeIsTheWholeTtl, Verdict::Granted(mut grant)) => {
                grant.remaining = claim.ttl;
                Verdict::Granted(grant)
            }
            (Flaw::ClaimsOutsideTheQueueOvertake, Verdict::Blocked(blocked))
                if blocked.holders.is_empty() && claim.when_blocked == WhenBlocked::Leave =>
            {
                self.overtake(claim).await?
            }
            (Flaw::HandoversAreUnbounded, Verdict::Blocked(_)) if claim.takes_over_from.is_some() => {
                self.overtake(claim).await?
            }
            (Flaw::WaitersAreForgotten, Verdict::Blocked(mut blocked)) => {
                blocked.queued = claim.when_blocked == WhenBlocked::Queue;
                Verdict::Blocked(blocked)
            }
            (Flaw::MismatchesAreIgnored, Verdict::Mismatch { capacity }) => {
                let mut adapted = altered;
                adapted.share = Share::new(claim.share.weight().min(capacity), capacity)?;
                self.inner.acquire_one(&adapted).await?
            }
            (Flaw::HoldersAreHidden, Verdict::Blocked(mut blocked)) => {
                blocked.holders.clear();
                Verdict::Blocked(blocked)
            }
            (Flaw::TheQueueIsMiscounted, Verdict::Blocked(mut blocked)) => {
                blocked.ahead += u32::from(blocked.ahead > 0);
                Verdict::Blocked(blocked)
            }
            (_, verdict) => verdict,
        })
    }
}

fn lowercased(resource: &Resource) -> Resource {
    Resource::new(resource.kind(), &resource.id().to_lowercase()).unwrap()
}

impl Mutant {
    async fn acquire_claim(&self, claim: &Claim) -> Result<Verdict> {
        let altered = self.alter_claim(claim);
        if self.is(Flaw::CancelledSuccessorsDoNothing) {
            let answer =
                self.inner.renew(&[RenewRequest::new(altered.reference(), Duration::ZERO)]).await.remove(0);
            if matches!(answer, Ok(Renewal::Gone { why: GoneReason::Cancelled | GoneReason::Evicted })) {
                return Ok(Verdict::Cancelled);
            }
        }
        let verdict = self.inner.acquire_one(&altered).await?;
        let verdict = self.alter_verdict(claim, verdict).await?;
        self.remember(claim, &verdict);
        Ok(verdict)
    }

    async fn release_claim(&self, request: &ReleaseRequest) -> Result<Released> {
        let mut altered = request.clone();
        match self.flaw {
            Flaw::AnyOwnerReleases => {
                let holders = &self.memory.lock().unwrap().holders;
                altered.owner = holders.get(&request.resource).copied().unwrap_or(request.owner);
            }
            Flaw::TombstonesAreIgnored => altered.tombstone = None,
            Flaw::KeepForIsIgnored => altered.keep_for = None,
            Flaw::NamesAreLowercased => altered.resource = lowercased(&request.resource),
            _ => {}
        }
        self.inner.release_one(&altered).await
    }
}

#[async_trait]
impl Backend for Mutant {
    fn info(&self) -> &BackendInfo {
        &self.info
    }

    fn failure_domain(&self, resource: &Resource) -> FailureDomain {
        self.inner.failure_domain(resource)
    }

    async fn acquire(&self, claims: &[Claim]) -> Vec<Result<Verdict>> {
        let mut verdicts = one_by_one(claims, |claim| self.acquire_claim(claim)).await;
        if self.is(Flaw::BatchesAreReversed) {
            verdicts.reverse();
        }
        verdicts
    }

    async fn renew(&self, held: &[RenewRequest]) -> Vec<Result<Renewal>> {
        let alter = |held: &RenewRequest| {
            let mut altered = held.clone();
            let limit = self.info.limits.note;
            match self.flaw {
                Flaw::NamesAreLowercased => altered.resource = lowercased(&held.resource),
                Flaw::NotesAreLost => altered.note = None,
                Flaw::NotesAreCut => {
                    altered.note = held.note.as_ref().map(|note| note[..note.len().min(limit)].into());
                }
                _ => {}
            }
            altered
        };
        let altered: Vec<_> = held.iter().map(alter).collect();
        let mut answers = self.inner.renew(&altered).await;
        for (held, answer) in altered.iter().zip(&mut answers) {
            let reference = ClaimRef { resource: held.resource.clone(), owner: held.owner };
            let known = self.memory.lock().unwrap().claims.get(&reference).cloned();
            match (self.flaw, &mut *answer) {
                (Flaw::RenewalsRevive, Ok(Renewal::Gone { why: GoneReason::NotThere })) => {
                    let Some(claim) = known else { continue };
                    if let Ok(Verdict::Granted(_)) = self.inner.acquire_one(&claim).await {
                        *answer = self.inner.renew(std::slice::from_ref(held)).await.remove(0);
                    }
                }
                (Flaw::RenewalsShorten, Ok(Renewal::Renewed(kept))) => kept.remaining = held.ttl,
                (Flaw::TokensDoNotGrow, Ok(Renewal::Renewed(kept))) => {
                    kept.token = self.memory.lock().unwrap().tokens[&held.resource];
                }
                _ => {}
            }
        }
        if self.is(Flaw::BatchesAreReversed) {
            answers.reverse();
        }
        answers
    }

    async fn release(&self, requests: &[ReleaseRequest]) -> Vec<Result<Released>> {
        let mut replies = one_by_one(requests, |request| self.release_claim(request)).await;
        if self.is(Flaw::BatchesAreReversed) {
            replies.reverse();
        }
        replies
    }

    async fn wait(&self, claim: &ClaimRef, since: &Cursor, at_most: Duration) -> Result<()> {
        match self.flaw {
            Flaw::WaitsNeverEnd => std::future::pending().await,
            Flaw::WakeupsAreLost => {
                // Waits on another resource, which never changes.
                let unused = Resource::new("unused", claim.resource.id().as_ref())?;
                let mut other = claim.clone();
                other.resource = unused;
                self.inner.wait(&other, &Cursor(0), Duration::ZERO).await?;
                let page = self.inner.inspect(&Query::One(other.resource.clone())).await?;
                let cursor = page.into_snapshots().remove(0).cursor;
                self.inner.wait(&other, &cursor, at_most).await
            }
            _ => self.inner.wait(claim, since, at_most).await,
        }
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        let query = match query {
            Query::One(resource) if self.is(Flaw::NamesAreLowercased) => Query::One(lowercased(resource)),
            query => query.clone(),
        };
        let page = self.inner.inspect(&query).await?;
        Ok(match (self.flaw, page) {
            (Flaw::NothingIsAudited, Page::Audit { .. }) => Page::Audit { records: Vec::new(), next: None },
            (Flaw::PagesEndEarly, Page::Audit { records, .. }) => Page::Audit { records, next: None },
            (Flaw::PagesEndEarly, Page::Resources { snapshots, .. }) => {
                Page::Resources { snapshots, next: None }
            }
            (_, page) => page,
        })
    }

    async fn order(&self, order: &OperatorCommand) -> Result<CommandOutcome> {
        let mut altered = order.clone();
        match (self.flaw, order.action) {
            (Flaw::PausesAreIgnored, OperatorAction::Pause { .. }) => altered.action = OperatorAction::Resume,
            (Flaw::EvictionsAreIgnored, OperatorAction::Evict(Eviction::AtExpiry | Eviction::Now)) => {
                altered.action = OperatorAction::Ask { within: Duration::ZERO };
            }
            (Flaw::OrderTokensAreIgnored, _) => altered.token = None,
            _ => {}
        }
        self.inner.order(&altered).await
    }
}
