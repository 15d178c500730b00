//! Which claims were certainly in the queue, and until when.

use std::time::Duration;

use leasehold_core::{OwnerToken, Renewal, WhenBlocked, admission::ANSWER_WITHIN};

use super::{
    Stamp,
    facts::{Fact, FactKind, queued_reply, share_of},
};

/// A claim that was certainly in the queue from `from` until `until`.
#[derive(Clone, Debug)]
pub(super) struct CertainPlace {
    pub(super) owner: OwnerToken,
    pub(super) weight: u32,
    pub(super) from: Stamp,
    pub(super) until: Stamp,
}

/// Every place in the queue that some reply proves.
///
/// 1. A reply "you are queued" to a call that ran from `began` to `ended` proves the place from `ended` until
///    `began` plus the ttl of the place, and at most for the time after which a silent claim is passed over.
/// 2. If a call that may have removed the claim from the queue began earlier than that, the proof ends with
///    the beginning of that call.
/// 3. A later such reply extends the same place, if its call ended before the proof did. Otherwise the claim
///    may have lost its place and joined the queue again, further back.
pub(super) fn places(facts: &[Fact<'_>], slack: Duration) -> Vec<CertainPlace> {
    let mut all: Vec<CertainPlace> = Vec::new();
    for fact in facts {
        let Some((owner, weight, lasting)) = proven_place(facts, fact) else { continue };
        let Some(ended) = fact.ended else { continue };
        let removals = facts.iter().filter(|other| may_remove(other, owner) && other.may_follow(fact.began));
        let removal = removals.map(|other| other.began).min();
        let until = fact.began.after(lasting.min(ANSWER_WITHIN)).before(slack);
        let until = removal.map_or(until, |removal| until.min(removal));
        if until <= ended {
            continue;
        }
        match all.iter_mut().rev().find(|place| place.owner == owner) {
            Some(place) if ended < place.until && place.from <= fact.began => {
                place.until = place.until.max(until);
            }
            _ => all.push(CertainPlace { owner, weight, from: ended, until }),
        }
    }
    all
}

fn proven_place(facts: &[Fact<'_>], fact: &Fact<'_>) -> Option<(OwnerToken, u32, Duration)> {
    match fact.kind {
        FactKind::Acquire(claim, verdict) => {
            let share = queued_reply(verdict).and_then(|_| share_of(facts, claim.owner))?;
            Some((claim.owner, share.weight(), claim.place_ttl))
        }
        FactKind::Renew(request, Some(Renewal::Queued { remaining })) => {
            Some((request.owner, share_of(facts, request.owner)?.weight(), *remaining))
        }
        _ => None,
    }
}

/// Whether the call may have removed the owner from the queue: a release, a successor, a grant, or an acquire
/// that does not queue.
fn may_remove(fact: &Fact<'_>, owner: OwnerToken) -> bool {
    match fact.kind {
        FactKind::Release(request, _) => request.owner == owner,
        FactKind::Acquire(claim, verdict) if claim.owner == owner => {
            claim.when_blocked == WhenBlocked::Leave || queued_reply(verdict).is_none()
        }
        FactKind::Acquire(claim, _) => claim.takes_over_from.is_some_and(|from| from.owner == owner),
        FactKind::Renew(..) | FactKind::Order(..) => false,
    }
}
