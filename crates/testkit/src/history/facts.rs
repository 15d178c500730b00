//! What a history proves about one resource: the grants, the time during which each was certainly alive, and
//! the calls that may have ended it.

use std::time::Duration;

use leasehold_core::{
    Blocked, Claim, CommandOutcome, Effect, Eviction, FencingToken, OperatorAction, OperatorCommand,
    OwnerToken, ReleaseRequest, Released, RenewRequest, Renewal, Resource, Result, Share, Verdict,
};

use super::{Call, History, Stamp};
use crate::verbs::{VerbReply, VerbRequest};

/// A call on one resource that may have had an effect.
#[derive(Clone, Debug)]
pub(super) struct Fact<'a> {
    pub(super) began: Stamp,
    /// None if the effect is unknown: then the call may be executed at any time after it began.
    pub(super) ended: Option<Stamp>,
    pub(super) kind: FactKind<'a>,
}

/// The request of a call, and the reply if there is one.
#[derive(Clone, Debug)]
pub(super) enum FactKind<'a> {
    Acquire(&'a Claim, Option<&'a Verdict>),
    Renew(&'a RenewRequest, Option<&'a Renewal>),
    Release(&'a ReleaseRequest, Option<Released>),
    Order(&'a OperatorCommand, Option<CommandOutcome>),
}

impl Fact<'_> {
    /// Whether the call may have been executed after this time.
    pub(super) fn may_follow(&self, moment: Stamp) -> bool {
        self.ended.is_none_or(|ended| ended > moment)
    }

    /// The owner of the call's claim. An order has none.
    pub(super) fn owner(&self) -> Option<OwnerToken> {
        match self.kind {
            FactKind::Acquire(claim, _) => Some(claim.owner),
            FactKind::Renew(request, _) => Some(request.owner),
            FactKind::Release(request, _) => Some(request.owner),
            FactKind::Order(..) => None,
        }
    }

    /// Whether the call may have ended this grant before its ttl.
    pub(super) fn may_end(&self, owner: OwnerToken, token: FencingToken) -> bool {
        match self.kind {
            FactKind::Release(request, _) => request.owner == owner,
            FactKind::Acquire(claim, verdict) => {
                // A claim with another capacity is refused before its predecessor is released.
                let refused = matches!(verdict, Some(Verdict::Mismatch { .. }));
                !refused && claim.takes_over_from.is_some_and(|from| from.owner == owner)
            }
            FactKind::Order(order, outcome) => {
                let meant = order.token.is_none_or(|meant| meant == token);
                // Without a known outcome, the order may have been executed.
                let done = outcome.is_none_or(|outcome| outcome == CommandOutcome::Done);
                meant && done && matches!(order.action, OperatorAction::Evict(Eviction::Now))
            }
            FactKind::Renew(..) => false,
        }
    }
}

/// All calls that may have had an effect on this resource, in the order in which they began.
pub(super) fn facts<'a>(history: &'a History, resource: &Resource) -> Vec<Fact<'a>> {
    history.calls.iter().flat_map(|call| of_call(call, resource)).collect()
}

/// Every resource of the history, once.
pub(super) fn resources(history: &History) -> Vec<Resource> {
    let of_request = |call: &Call| match &call.request {
        VerbRequest::Acquire(claims) => claims.iter().map(|claim| claim.resource.clone()).collect(),
        VerbRequest::Renew(held) => held.iter().map(|held| held.resource.clone()).collect(),
        VerbRequest::Release(batch) => batch.iter().map(|request| request.resource.clone()).collect(),
        VerbRequest::Order(order) => vec![order.resource.clone()],
        VerbRequest::Wait { .. } | VerbRequest::Inspect(_) => Vec::new(),
    };
    let mut all: Vec<_> = history.calls.iter().flat_map(of_request).collect();
    all.sort_unstable();
    all.dedup();
    all
}

fn of_call<'a>(call: &'a Call, resource: &Resource) -> Vec<Fact<'a>> {
    let (ended, reply) = call.reply.as_ref().map_or((None, None), |(at, reply)| (Some(*at), Some(reply)));
    let fact = |effect: KnownEffect<FactKind<'a>>| match effect {
        KnownEffect::None => None,
        KnownEffect::Unknown(kind) => Some(Fact { began: call.began, ended: None, kind }),
        KnownEffect::Executed(kind) => Some(Fact { began: call.began, ended, kind }),
    };
    match &call.request {
        VerbRequest::Acquire(claims) => {
            let replies = if let Some(VerbReply::Acquire(replies)) = reply { Some(replies) } else { None };
            let ours = claims.iter().enumerate().filter(|(_, claim)| claim.resource == *resource);
            ours.filter_map(|(index, claim)| {
                let reply = replies.and_then(|replies| replies.get(index));
                fact(known_effect(reply, |verdict| FactKind::Acquire(claim, verdict)))
            })
            .collect()
        }
        VerbRequest::Release(batch) => {
            let replies = if let Some(VerbReply::Release(replies)) = reply { Some(replies) } else { None };
            let ours = batch.iter().enumerate().filter(|(_, request)| request.resource == *resource);
            ours.filter_map(|(index, request)| {
                let reply = replies.and_then(|replies| replies.get(index));
                fact(known_effect(reply, |released| FactKind::Release(request, released.copied())))
            })
            .collect()
        }
        VerbRequest::Order(order) if order.resource == *resource => {
            let reply = if let Some(VerbReply::Order(reply)) = reply { Some(reply) } else { None };
            fact(known_effect(reply, |ordered| FactKind::Order(order, ordered.copied())))
                .into_iter()
                .collect()
        }
        VerbRequest::Renew(batch) => {
            let replies = if let Some(VerbReply::Renew(replies)) = reply { Some(replies) } else { None };
            let ours = batch.iter().enumerate().filter(|(_, held)| held.resource == *resource);
            ours.filter_map(|(index, held)| {
                let reply = replies.and_then(|replies| replies.get(index));
                fact(known_effect(reply, |renewal| FactKind::Renew(held, renewal)))
            })
            .collect()
        }
        _ => Vec::new(),
    }
}

/// What is known about the effect of a call.
enum KnownEffect<T> {
    /// The call certainly had no effect.
    None,
    /// The call may have been executed, or may be executed later.
    Unknown(T),
    /// The call was executed before its reply came.
    Executed(T),
}

fn known_effect<'a, T, K>(
    reply: Option<&'a Result<T>>,
    kind: impl FnOnce(Option<&'a T>) -> K,
) -> KnownEffect<K> {
    match reply {
        Some(Ok(reply)) => KnownEffect::Executed(kind(Some(reply))),
        Some(Err(error)) if error.effect() == Effect::None => KnownEffect::None,
        Some(Err(_)) | None => KnownEffect::Unknown(kind(None)),
    }
}

/// One grant, put together from all replies that prove it.
#[derive(Clone, Debug)]
pub(super) struct ObservedGrant {
    pub(super) owner: OwnerToken,
    pub(super) token: FencingToken,
    pub(super) share: Share,
    /// Whether the owner always asked for the same share, so that this must be the granted share.
    pub(super) certain_share: bool,
    /// The grant did not happen before this.
    pub(super) not_before: Stamp,
    /// The grant had happened by then.
    pub(super) by: Stamp,
    /// The grant was certainly alive from `by` until then. If this is not later than `by`, nothing is
    /// certain.
    pub(super) alive_until: Stamp,
    /// All replies that prove the grant.
    pub(super) proofs: Vec<AliveProof>,
    /// Whether it was granted by the admission rule, not by a handover.
    pub(super) by_admission_rule: bool,
}

/// A reply that proves a grant: when its call began and ended, and the remaining time that it reported.
#[derive(Clone, Copy, Debug)]
pub(super) struct AliveProof {
    pub(super) began: Stamp,
    pub(super) ended: Stamp,
    pub(super) remaining: Duration,
}

/// Every grant that some reply proves.
///
/// When a grant was certainly alive:
/// 1. A reply "held, this much remains" belongs to a call that ran from `began` to `ended`. The call was
///    executed between the two, so the grant was alive from `ended` at the latest until `began + remaining`
///    at the earliest.
/// 2. If a call that may have ended the grant began before that, the grant is certain only until that call
///    began.
/// 3. Between two such replies the grant was alive all the time, because nothing revives a grant.
pub(super) fn grants(facts: &[Fact<'_>], slack: Duration) -> Vec<ObservedGrant> {
    let mut grants: Vec<ObservedGrant> = Vec::new();
    for fact in facts {
        let (Some(ended), Some((owner, token, remaining))) = (fact.ended, proven_grant(fact)) else {
            continue;
        };
        let proof = AliveProof { began: fact.began, ended, remaining };
        match grants.iter_mut().find(|grant| (grant.owner, grant.token) == (owner, token)) {
            Some(grant) => grant.proofs.push(proof),
            None => grants.extend(new_grant(facts, owner, token, proof)),
        }
    }
    grants.iter_mut().for_each(|grant| grant.find_certain_life(facts, slack));
    grants
}

fn proven_grant(fact: &Fact<'_>) -> Option<(OwnerToken, FencingToken, Duration)> {
    match fact.kind {
        FactKind::Acquire(claim, Some(Verdict::Granted(grant))) => {
            Some((claim.owner, grant.token, grant.remaining))
        }
        FactKind::Renew(request, Some(Renewal::Renewed(renewed))) => {
            Some((request.owner, renewed.token, renewed.remaining))
        }
        _ => None,
    }
}

fn new_grant(
    facts: &[Fact<'_>],
    owner: OwnerToken,
    token: FencingToken,
    proof: AliveProof,
) -> Option<ObservedGrant> {
    let share = share_of(facts, owner)?;
    let certain_share = claims_of(facts, owner).all(|(_, claim)| claim.share == share);
    let by_admission_rule = claims_of(facts, owner).all(|(_, claim)| claim.takes_over_from.is_none());
    let (by, began) = (proof.ended, proof.began);
    let proofs = vec![proof];
    Some(ObservedGrant {
        owner,
        token,
        share,
        certain_share,
        not_before: began,
        by,
        alive_until: by,
        proofs,
        by_admission_rule,
    })
}

/// The share of an owner's claims. If they differ, the smallest, because any of the claims may be the granted
/// one.
pub(super) fn share_of(facts: &[Fact<'_>], owner: OwnerToken) -> Option<Share> {
    claims_of(facts, owner).map(|(_, claim)| claim.share).min_by_key(|share| share.weight())
}

/// Every claim of an owner, with its call.
pub(super) fn claims_of<'f, 'a>(
    facts: &'f [Fact<'a>],
    owner: OwnerToken,
) -> impl Iterator<Item = (&'f Fact<'a>, &'a Claim)> {
    facts.iter().filter_map(move |fact| match fact.kind {
        FactKind::Acquire(claim, _) if claim.owner == owner => Some((fact, claim)),
        _ => None,
    })
}

impl ObservedGrant {
    /// Sets `by`, `not_before` and `alive_until` from all proofs.
    fn find_certain_life(&mut self, facts: &[Fact<'_>], slack: Duration) {
        self.by = self.proofs.iter().map(|proof| proof.ended).min().unwrap_or(self.by);
        // Any unanswered acquire of this owner may be the call that was granted.
        let unanswered = claims_of(facts, self.owner).filter(|(fact, _)| fact.ended.is_none());
        let first_proof = self.proofs.iter().map(|proof| proof.began).min();
        self.not_before = unanswered.map(|(fact, _)| fact.began).chain(first_proof).min().unwrap_or(self.by);
        let proven_until = |proof: &AliveProof| proof.began.after(proof.remaining).before(slack);
        let proven_until = self.proofs.iter().map(proven_until).max().unwrap_or(self.by);
        let may_end = facts.iter().filter(|fact| fact.may_end(self.owner, self.token));
        let ended = may_end.filter(|fact| fact.may_follow(self.not_before)).map(|fact| fact.began).min();
        self.alive_until = ended.map_or(proven_until, |ended| ended.min(proven_until));
    }

    /// Whether the grant was certainly alive during all of this time.
    pub(super) fn covers(&self, from: Stamp, to: Stamp) -> bool {
        self.by <= from && to < self.alive_until
    }
}

/// The reply that the claim is in the queue, if it is one.
pub(super) fn queued_reply(verdict: Option<&Verdict>) -> Option<&Blocked> {
    if let Some(Verdict::Blocked(blocked)) = verdict {
        Some(blocked).filter(|blocked| blocked.queued)
    } else {
        None
    }
}
