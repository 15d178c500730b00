//! What a history proves about one resource: grants with the time they were certainly alive, and who may have ended
//! what.

use std::time::Duration;

use leasehold_core::{
    Blocked, Claim, CommandOutcome, Effect, Eviction, FencingToken, OperatorAction, OperatorCommand,
    OwnerToken, ReleaseRequest, Released, RenewRequest, Renewal, Resource, Result, Share, Verdict,
};

use super::{Call, History, Stamp};
use crate::verbs::{Answer, Ask};

/// A call on one resource, with what it did as far as that is known.
#[derive(Clone, Debug)]
pub(super) struct Fact<'a> {
    pub(super) began: Stamp,
    /// None if the effect is unknown: it may be executed at any time after it began.
    pub(super) ended: Option<Stamp>,
    pub(super) deed: Deed<'a>,
}

/// What was asked, with the answer where there is one.
#[derive(Clone, Debug)]
pub(super) enum Deed<'a> {
    Acquire(&'a Claim, Option<&'a Verdict>),
    Renew(&'a RenewRequest, Option<&'a Renewal>),
    Release(&'a ReleaseRequest, Option<Released>),
    Order(&'a OperatorCommand, Option<CommandOutcome>),
}

impl Fact<'_> {
    /// Whether it may have been executed after this moment.
    pub(super) fn may_follow(&self, moment: Stamp) -> bool {
        self.ended.is_none_or(|ended| ended > moment)
    }

    /// Who asked, if it was an owner.
    pub(super) fn owner(&self) -> Option<OwnerToken> {
        match self.deed {
            Deed::Acquire(claim, _) => Some(claim.owner),
            Deed::Renew(held, _) => Some(held.owner),
            Deed::Release(request, _) => Some(request.owner),
            Deed::Order(..) => None,
        }
    }

    /// Whether it may take this grant away before its time.
    pub(super) fn may_end(&self, owner: OwnerToken, token: FencingToken) -> bool {
        match self.deed {
            Deed::Release(request, _) => request.owner == owner,
            Deed::Acquire(claim, verdict) => {
                let refused = matches!(verdict, Some(Verdict::Mismatch { .. }));
                !refused && claim.takes_over_from.is_some_and(|from| from.owner == owner)
            }
            Deed::Order(order, answer) => {
                let meant = order.token.is_none_or(|meant| meant == token);
                let done = answer.is_none_or(|answer| answer == CommandOutcome::Done);
                meant && done && matches!(order.action, OperatorAction::Evict(Eviction::Now))
            }
            Deed::Renew(..) => false,
        }
    }
}

/// Everything that may have had an effect on this resource, in the order in which it began.
pub(super) fn facts<'a>(history: &'a History, resource: &Resource) -> Vec<Fact<'a>> {
    history.calls.iter().flat_map(|call| of_call(call, resource)).collect()
}

/// Every resource that the history speaks of, once.
pub(super) fn resources(history: &History) -> Vec<Resource> {
    let of_ask = |call: &Call| match &call.ask {
        Ask::Acquire(claim) => vec![claim.resource.clone()],
        Ask::Renew(held) => held.iter().map(|held| held.resource.clone()).collect(),
        Ask::Release(request) => vec![request.resource.clone()],
        Ask::Order(order) => vec![order.resource.clone()],
        Ask::Wait { .. } | Ask::Inspect(_) => Vec::new(),
    };
    let mut all: Vec<_> = history.calls.iter().flat_map(of_ask).collect();
    all.sort_unstable();
    all.dedup();
    all
}

fn of_call<'a>(call: &'a Call, resource: &Resource) -> Vec<Fact<'a>> {
    let (ended, answer) = call.answer.as_ref().map_or((None, None), |(at, answer)| (Some(*at), Some(answer)));
    let fact = |answered: Answered<Deed<'a>>| match answered {
        Answered::No => None,
        Answered::Unknown(deed) => Some(Fact { began: call.began, ended: None, deed }),
        Answered::Yes(deed) => Some(Fact { began: call.began, ended, deed }),
    };
    match &call.ask {
        Ask::Acquire(claim) if claim.resource == *resource => {
            let answer = if let Some(Answer::Acquire(answer)) = answer { Some(answer) } else { None };
            fact(known(answer, |verdict| Deed::Acquire(claim, verdict))).into_iter().collect()
        }
        Ask::Release(request) if request.resource == *resource => {
            let answer = if let Some(Answer::Release(answer)) = answer { Some(answer) } else { None };
            fact(known(answer, |released| Deed::Release(request, released.copied()))).into_iter().collect()
        }
        Ask::Order(order) if order.resource == *resource => {
            let answer = if let Some(Answer::Order(answer)) = answer { Some(answer) } else { None };
            fact(known(answer, |ordered| Deed::Order(order, ordered.copied()))).into_iter().collect()
        }
        Ask::Renew(batch) => {
            let answers = if let Some(Answer::Renew(answers)) = answer { Some(answers) } else { None };
            let ours = batch.iter().enumerate().filter(|(_, held)| held.resource == *resource);
            ours.filter_map(|(index, held)| {
                let answer = answers.and_then(|answers| answers.get(index));
                fact(known(answer, |renewal| Deed::Renew(held, renewal)))
            })
            .collect()
        }
        _ => Vec::new(),
    }
}

enum Answered<T> {
    /// It had no effect, for certain.
    No,
    Unknown(T),
    Yes(T),
}

fn known<'a, T, D>(answer: Option<&'a Result<T>>, deed: impl FnOnce(Option<&'a T>) -> D) -> Answered<D> {
    match answer {
        Some(Ok(answer)) => Answered::Yes(deed(Some(answer))),
        Some(Err(error)) if error.effect() == Effect::None => Answered::No,
        Some(Err(_)) | None => Answered::Unknown(deed(None)),
    }
}

/// One grant, pieced together from every answer that vouches for it.
#[derive(Clone, Debug)]
pub(super) struct Granted {
    pub(super) owner: OwnerToken,
    pub(super) token: FencingToken,
    pub(super) share: Share,
    /// Its owner always asked for the same share, so this is the granted one.
    pub(super) certain_share: bool,
    /// It was not executed before this.
    pub(super) not_before: Stamp,
    /// It was executed by then.
    pub(super) by: Stamp,
    /// It was certainly alive from `by` until then; nothing if that is not later.
    pub(super) alive_until: Stamp,
    /// Each answer that vouches for it: when its call began and ended, and how much remained.
    pub(super) vouchers: Vec<Voucher>,
    /// It came by the rule of seating, not by succession.
    pub(super) by_the_rule: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Voucher {
    pub(super) began: Stamp,
    pub(super) ended: Stamp,
    pub(super) remaining: Duration,
}

/// Every grant that some answer vouches for.
///
/// The rule of certain life: an answer "yes, this much remains" to a call that ran from `began` to `ended` was
/// executed somewhere between, so the grant was alive from `ended` at the latest until `began + remaining` at the
/// earliest, unless something may have ended it: then until that began. Between two such answers it was alive all
/// along, because nothing revives a grant.
pub(super) fn grants(facts: &[Fact<'_>], slack: Duration) -> Vec<Granted> {
    let mut grants: Vec<Granted> = Vec::new();
    for fact in facts {
        let (Some(ended), Some((owner, token, remaining))) = (fact.ended, vouched(fact)) else { continue };
        let voucher = Voucher { began: fact.began, ended, remaining };
        match grants.iter_mut().find(|grant| (grant.owner, grant.token) == (owner, token)) {
            Some(grant) => grant.vouchers.push(voucher),
            None => grants.extend(first_seen(facts, owner, token, voucher)),
        }
    }
    grants.iter_mut().for_each(|grant| grant.conclude(facts, slack));
    grants
}

fn vouched(fact: &Fact<'_>) -> Option<(OwnerToken, FencingToken, Duration)> {
    match fact.deed {
        Deed::Acquire(claim, Some(Verdict::Granted(grant))) => {
            Some((claim.owner, grant.token, grant.remaining))
        }
        Deed::Renew(held, Some(Renewal::Renewed(kept))) => Some((held.owner, kept.token, kept.remaining)),
        _ => None,
    }
}

fn first_seen(
    facts: &[Fact<'_>],
    owner: OwnerToken,
    token: FencingToken,
    voucher: Voucher,
) -> Option<Granted> {
    let share = share_of(facts, owner)?;
    let certain_share = claims_of(facts, owner).all(|(_, claim)| claim.share == share);
    let by_the_rule = claims_of(facts, owner).all(|(_, claim)| claim.takes_over_from.is_none());
    let (by, began) = (voucher.ended, voucher.began);
    let vouchers = vec![voucher];
    Some(Granted {
        owner,
        token,
        share,
        certain_share,
        not_before: began,
        by,
        alive_until: by,
        vouchers,
        by_the_rule,
    })
}

/// What an owner asks for: the least of it, if it changes its mind, because any of its claims may be the granted one.
pub(super) fn share_of(facts: &[Fact<'_>], owner: OwnerToken) -> Option<Share> {
    claims_of(facts, owner).map(|(_, claim)| claim.share).min_by_key(|share| share.weight())
}

/// Every claim that an owner made, with the fact of it.
pub(super) fn claims_of<'f, 'a>(
    facts: &'f [Fact<'a>],
    owner: OwnerToken,
) -> impl Iterator<Item = (&'f Fact<'a>, &'a Claim)> {
    facts.iter().filter_map(move |fact| match fact.deed {
        Deed::Acquire(claim, _) if claim.owner == owner => Some((fact, claim)),
        _ => None,
    })
}

impl Granted {
    fn conclude(&mut self, facts: &[Fact<'_>], slack: Duration) {
        self.by = self.vouchers.iter().map(|voucher| voucher.ended).min().unwrap_or(self.by);
        // Any unanswered claim of this owner may be the one that was granted.
        let unanswered = claims_of(facts, self.owner).filter(|(fact, _)| fact.ended.is_none());
        let first_voucher = self.vouchers.iter().map(|voucher| voucher.began).min();
        self.not_before =
            unanswered.map(|(fact, _)| fact.began).chain(first_voucher).min().unwrap_or(self.by);
        let vouched = |voucher: &Voucher| voucher.began.after(voucher.remaining).before(slack);
        let vouched = self.vouchers.iter().map(vouched).max().unwrap_or(self.by);
        let enders = facts.iter().filter(|fact| fact.may_end(self.owner, self.token));
        let ended = enders.filter(|fact| fact.may_follow(self.not_before)).map(|fact| fact.began).min();
        self.alive_until = ended.map_or(vouched, |ended| ended.min(vouched));
    }

    /// Whether it was certainly alive throughout this time.
    pub(super) fn covers(&self, from: Stamp, to: Stamp) -> bool {
        self.by <= from && to < self.alive_until
    }
}

/// An answer that says the claim has a place.
pub(super) fn placed(verdict: Option<&Verdict>) -> Option<&Blocked> {
    if let Some(Verdict::Blocked(blocked)) = verdict {
        Some(blocked).filter(|blocked| blocked.queued)
    } else {
        None
    }
}
