//! Places that were certainly in the line, and whom nobody may have overtaken.

use std::time::Duration;

use leasehold_core::{OwnerToken, Renewal, WhenBlocked};

use super::{
    Stamp,
    facts::{Deed, Fact, placed, share_of},
};

/// A place that was certainly there from `from` until `until`.
#[derive(Clone, Debug)]
pub(super) struct Stood {
    pub(super) owner: OwnerToken,
    pub(super) weight: u32,
    pub(super) from: Stamp,
    pub(super) until: Stamp,
}

/// Every place that some answer vouches for.
///
/// An answer "you have a place" to a call that ran from `began` to `ended` proves the place from `ended` until
/// `began + its ttl`, unless something that may have taken it began earlier. A later such answer is of the same place
/// if its call ended before that; else the place may have been lost and taken anew, further back.
pub(super) fn places(facts: &[Fact<'_>], slack: Duration) -> Vec<Stood> {
    let mut all: Vec<Stood> = Vec::new();
    for fact in facts {
        let Some((owner, weight, lasting)) = vouched(facts, fact) else { continue };
        let Some(ended) = fact.ended else { continue };
        let disturbed =
            facts.iter().filter(|other| may_unplace(other, owner) && other.may_follow(fact.began));
        let disturbed = disturbed.map(|other| other.began).min();
        let until = fact.began.after(lasting).before(slack);
        let until = disturbed.map_or(until, |disturbed| until.min(disturbed));
        if until <= ended {
            continue;
        }
        match all.iter_mut().rev().find(|place| place.owner == owner) {
            Some(place) if ended < place.until && place.from <= fact.began => {
                place.until = place.until.max(until);
            }
            _ => all.push(Stood { owner, weight, from: ended, until }),
        }
    }
    all
}

fn vouched(facts: &[Fact<'_>], fact: &Fact<'_>) -> Option<(OwnerToken, u32, Duration)> {
    match fact.deed {
        Deed::Acquire(claim, verdict) => {
            let share = placed(verdict).and_then(|_| share_of(facts, claim.owner))?;
            Some((claim.owner, share.weight(), claim.place_ttl))
        }
        Deed::Renew(held, Some(Renewal::Queued { remaining })) => {
            Some((held.owner, share_of(facts, held.owner)?.weight(), *remaining))
        }
        _ => None,
    }
}

/// Whether it may have taken the owner's place from the line: a farewell, an heir, a grant, a change of mind.
fn may_unplace(fact: &Fact<'_>, owner: OwnerToken) -> bool {
    match fact.deed {
        Deed::Release(request, _) => request.owner == owner,
        Deed::Acquire(claim, verdict) if claim.owner == owner => {
            claim.when_blocked == WhenBlocked::Leave || placed(verdict).is_none()
        }
        Deed::Acquire(claim, _) => claim.takes_over_from.is_some_and(|from| from.owner == owner),
        Deed::Renew(..) | Deed::Order(..) => false,
    }
}
