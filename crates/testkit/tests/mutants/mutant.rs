//! The memory backend, wrong in one way.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use leasehold::Memory;
use leasehold_core::{
    Backend, BackendInfo, Capabilities, Claim, ClaimRef, CommandOutcome, Cursor, Eviction, FailureDomain,
    GoneReason, Handover, OperatorAction, OperatorCommand, OwnerToken, Page, Query, ReleaseRequest, Released,
    RenewRequest, Renewal, Resource, Result, Share, Verdict, WhenBlocked, async_trait,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    None,
    AnyoneReleases,
    RenewingRevives,
    RenewingShortens,
    AskingExtends,
    TokensStandStill,
    FloorsAreIgnored,
    AskingAgainIsANewClaim,
    EveryoneFits,
    LeaversOvertake,
    PlacesAreForgotten,
    PlacesNeverEnd,
    GrantsNeverEnd,
    TheWholeTtlRemains,
    NobodyIsBuried,
    BuriedHeirsDoNothing,
    HeirsAreOrdinary,
    HeirsWaitNoTurn,
    DowngradesExtend,
    NothingIsKept,
    MismatchesAreAdapted,
    PausesAreIgnored,
    EvictionsAreIgnored,
    OrdersMeanAnyone,
    NothingIsAudited,
    PagesEndEarly,
    NamesAreFolded,
    NotesAreLost,
    NotesAreCut,
    BatchesAreReversed,
    HoldersAreHidden,
    TheLineIsMiscounted,
    WaitsOversleep,
    WaitsNeverEnd,
    /// Not wrong: it says that it can do nothing beyond the least.
    CanDoNothing,
}

#[derive(Debug)]
pub(crate) struct Mutant {
    inner: Arc<Memory>,
    flaw: Flaw,
    info: BackendInfo,
    seen: Mutex<Seen>,
}

/// What the mutant remembers in order to err.
#[derive(Debug, Default)]
struct Seen {
    claims: HashMap<ClaimRef, Claim>,
    holders: HashMap<Resource, OwnerToken>,
    line: HashMap<Resource, Vec<OwnerToken>>,
    tokens: HashMap<Resource, leasehold_core::FencingToken>,
}

impl Mutant {
    pub(crate) fn new(inner: Arc<Memory>, flaw: Flaw) -> Mutant {
        let mut info = inner.info().clone();
        if flaw == Flaw::CanDoNothing {
            let Capabilities { queue: line, shares, handover: hand_over, keep_for, own_ttl, orders, .. } =
                &mut info.capabilities;
            [line, shares, hand_over, keep_for, own_ttl, orders].into_iter().for_each(|can| *can = false);
        }
        Mutant { inner, flaw, info, seen: Mutex::default() }
    }

    fn is(&self, flaw: Flaw) -> bool {
        self.flaw == flaw
    }

    /// What goes to the memory backend instead of the claim.
    fn bend(&self, claim: &Claim) -> Claim {
        let mut bent = claim.clone();
        let known = self.seen.lock().unwrap().claims.contains_key(&claim.reference());
        match self.flaw {
            Flaw::FloorsAreIgnored => bent.floor = None,
            Flaw::AskingAgainIsANewClaim if known => {
                let mut bytes = claim.owner.to_bytes();
                bytes[15] ^= 1;
                bent.owner = OwnerToken::from_bytes(bytes);
            }
            Flaw::EveryoneFits => bent.share = Share::READ,
            Flaw::PlacesAreForgotten => bent.when_blocked = WhenBlocked::Leave,
            Flaw::PlacesNeverEnd => bent.place_ttl *= 1000,
            Flaw::GrantsNeverEnd => bent.ttl *= 1000,
            Flaw::NobodyIsBuried => {
                bent.takes_over_from = claim.takes_over_from.map(|from| Handover::from(from.owner))
            }
            Flaw::HeirsAreOrdinary => bent.takes_over_from = None,
            Flaw::NamesAreFolded => bent.resource = folded(&claim.resource),
            Flaw::NotesAreLost => bent.note = None,
            Flaw::NotesAreCut => {
                let limit = self.info.limits.note;
                bent.note = claim.note.as_ref().map(|note| note[..note.len().min(limit)].into());
            }
            _ => {}
        }
        bent
    }

    /// Pushes aside whoever stands first in line.
    async fn overtake(&self, claim: &Claim) -> Result<Verdict> {
        let line = self.seen.lock().unwrap().line.remove(&claim.resource).unwrap_or_default();
        for owner in line {
            self.inner
                .release(&ReleaseRequest::new(ClaimRef { resource: claim.resource.clone(), owner }))
                .await?;
        }
        self.inner.acquire(claim).await
    }

    fn remember(&self, claim: &Claim, verdict: &Verdict) {
        let mut seen = self.seen.lock().unwrap();
        seen.claims.insert(claim.reference(), claim.clone());
        match verdict {
            Verdict::Granted(grant) => {
                seen.holders.insert(claim.resource.clone(), claim.owner);
                seen.tokens.entry(claim.resource.clone()).or_insert(grant.token);
            }
            Verdict::Blocked(blocked) if blocked.queued => {
                seen.line.entry(claim.resource.clone()).or_default().push(claim.owner);
            }
            _ => {}
        }
    }

    /// Errs about a verdict, with the help of the memory backend.
    async fn twist(&self, claim: &Claim, verdict: Verdict) -> Result<Verdict> {
        let bent = self.bend(claim);
        Ok(match (self.flaw, verdict) {
            (Flaw::AskingExtends | Flaw::DowngradesExtend, Verdict::Granted(mut grant)) => {
                if self.is(Flaw::AskingExtends) || claim.takes_over_from.is_some() {
                    self.inner.renew(&[RenewRequest::new(claim.reference(), claim.ttl)]).await;
                    grant.remaining = grant.remaining.max(claim.ttl);
                }
                Verdict::Granted(grant)
            }
            (Flaw::TokensStandStill, Verdict::Granted(mut grant)) => {
                grant.token =
                    *self.seen.lock().unwrap().tokens.entry(claim.resource.clone()).or_insert(grant.token);
                Verdict::Granted(grant)
            }
            (Flaw::TheWholeTtlRemains, Verdict::Granted(mut grant)) => {
                grant.remaining = claim.ttl;
                Verdict::Granted(grant)
            }
            (Flaw::LeaversOvertake, Verdict::Blocked(blocked))
                if blocked.holders.is_empty() && claim.when_blocked == WhenBlocked::Leave =>
            {
                self.overtake(claim).await?
            }
            (Flaw::HeirsWaitNoTurn, Verdict::Blocked(_)) if claim.takes_over_from.is_some() => {
                self.overtake(claim).await?
            }
            (Flaw::PlacesAreForgotten, Verdict::Blocked(mut blocked)) => {
                blocked.queued = claim.when_blocked == WhenBlocked::Queue;
                Verdict::Blocked(blocked)
            }
            (Flaw::MismatchesAreAdapted, Verdict::Mismatch { capacity }) => {
                let mut adapted = bent;
                adapted.share = Share::new(claim.share.weight().min(capacity), capacity)?;
                self.inner.acquire(&adapted).await?
            }
            (Flaw::HoldersAreHidden, Verdict::Blocked(mut blocked)) => {
                blocked.holders.clear();
                Verdict::Blocked(blocked)
            }
            (Flaw::TheLineIsMiscounted, Verdict::Blocked(mut blocked)) => {
                blocked.ahead += u32::from(blocked.ahead > 0);
                Verdict::Blocked(blocked)
            }
            (_, verdict) => verdict,
        })
    }
}

fn folded(resource: &Resource) -> Resource {
    Resource::new(resource.kind(), &resource.id().to_lowercase()).unwrap()
}

#[async_trait]
impl Backend for Mutant {
    fn info(&self) -> &BackendInfo {
        &self.info
    }

    fn failure_domain(&self, resource: &Resource) -> FailureDomain {
        self.inner.failure_domain(resource)
    }

    async fn acquire(&self, claim: &Claim) -> Result<Verdict> {
        let bent = self.bend(claim);
        if self.is(Flaw::BuriedHeirsDoNothing) {
            let answer =
                self.inner.renew(&[RenewRequest::new(bent.reference(), Duration::ZERO)]).await.remove(0);
            if matches!(answer, Ok(Renewal::Gone { why: GoneReason::Cancelled | GoneReason::Evicted })) {
                return Ok(Verdict::Cancelled);
            }
        }
        let verdict = self.inner.acquire(&bent).await?;
        let verdict = self.twist(claim, verdict).await?;
        self.remember(claim, &verdict);
        Ok(verdict)
    }

    async fn renew(&self, held: &[RenewRequest]) -> Vec<Result<Renewal>> {
        let bend = |held: &RenewRequest| {
            let mut bent = held.clone();
            let limit = self.info.limits.note;
            match self.flaw {
                Flaw::NamesAreFolded => bent.resource = folded(&held.resource),
                Flaw::NotesAreLost => bent.note = None,
                Flaw::NotesAreCut => {
                    bent.note = held.note.as_ref().map(|note| note[..note.len().min(limit)].into());
                }
                _ => {}
            }
            bent
        };
        let bent: Vec<_> = held.iter().map(bend).collect();
        let mut answers = self.inner.renew(&bent).await;
        for (held, answer) in bent.iter().zip(&mut answers) {
            let reference = ClaimRef { resource: held.resource.clone(), owner: held.owner };
            let known = self.seen.lock().unwrap().claims.get(&reference).cloned();
            match (self.flaw, &mut *answer) {
                (Flaw::RenewingRevives, Ok(Renewal::Gone { why: GoneReason::NotThere })) => {
                    let Some(claim) = known else { continue };
                    if let Ok(Verdict::Granted(_)) = self.inner.acquire(&claim).await {
                        *answer = self.inner.renew(std::slice::from_ref(held)).await.remove(0);
                    }
                }
                (Flaw::RenewingShortens, Ok(Renewal::Renewed(kept))) => kept.remaining = held.ttl,
                (Flaw::TokensStandStill, Ok(Renewal::Renewed(kept))) => {
                    kept.token = self.seen.lock().unwrap().tokens[&held.resource];
                }
                _ => {}
            }
        }
        if self.is(Flaw::BatchesAreReversed) {
            answers.reverse();
        }
        answers
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<Released> {
        let mut bent = request.clone();
        match self.flaw {
            Flaw::AnyoneReleases => {
                let holders = &self.seen.lock().unwrap().holders;
                bent.owner = holders.get(&request.resource).copied().unwrap_or(request.owner);
            }
            Flaw::NobodyIsBuried => bent.tombstone = None,
            Flaw::NothingIsKept => bent.keep_for = None,
            Flaw::NamesAreFolded => bent.resource = folded(&request.resource),
            _ => {}
        }
        self.inner.release(&bent).await
    }

    async fn wait(&self, claim: &ClaimRef, since: &Cursor, at_most: Duration) -> Result<()> {
        match self.flaw {
            Flaw::WaitsNeverEnd => std::future::pending().await,
            Flaw::WaitsOversleep => {
                // On a resource where nothing ever happens.
                let nowhere = Resource::new("nowhere", claim.resource.id().as_ref())?;
                let mut quiet = claim.clone();
                quiet.resource = nowhere;
                self.inner.wait(&quiet, &Cursor(0), Duration::ZERO).await?;
                let page = self.inner.inspect(&Query::One(quiet.resource.clone())).await?;
                let cursor = page.into_snapshots().remove(0).cursor;
                self.inner.wait(&quiet, &cursor, at_most).await
            }
            _ => self.inner.wait(claim, since, at_most).await,
        }
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        let query = match query {
            Query::One(resource) if self.is(Flaw::NamesAreFolded) => Query::One(folded(resource)),
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
        let mut bent = order.clone();
        match (self.flaw, order.action) {
            (Flaw::PausesAreIgnored, OperatorAction::Pause { .. }) => bent.action = OperatorAction::Resume,
            (Flaw::EvictionsAreIgnored, OperatorAction::Evict(Eviction::AtExpiry | Eviction::Now)) => {
                bent.action = OperatorAction::Ask { within: Duration::ZERO };
            }
            (Flaw::OrdersMeanAnyone, _) => bent.token = None,
            _ => {}
        }
        self.inner.order(&bent).await
    }
}
