//! The rules. Each finds what no backend that keeps its contract can have done.

use std::{fmt, time::Duration};

use leasehold_core::{OperatorAction, OwnerToken, Released, Resource, Verdict};

use super::{
    History, Stamp,
    facts::{Deed, Fact, Granted, claims_of, facts, grants, placed, resources},
    line::places,
};

/// A rule of the checker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Rule {
    /// The weights of those who certainly held at one moment fit the capacity.
    Weights,
    /// Those who certainly held at one moment agree on the capacity, unless an operator resized it.
    Capacity,
    /// A token is of one grant, and those of exclusive grants grow in real time.
    Tokens,
    /// An owner has one seat.
    OneSeat,
    /// Nobody is granted past an earlier place that was certainly there, unless both fit.
    Line,
    /// Nothing outlives its farewell, its successor or its eviction.
    Outlived,
    /// A buried owner is neither granted nor placed.
    Cancelled,
    /// What has ended is not alive again.
    Revived,
}

/// Something that cannot have happened.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Violation {
    /// The rule that is broken.
    pub rule: Rule,
    /// Where.
    pub resource: Resource,
    /// What, in words.
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} on {}: {}", self.rule, self.resource, self.text)
    }
}

impl History {
    /// Looks for what cannot have happened.
    ///
    /// `slack` is how far the clocks of journal and backend may drift apart over one ttl: zero if they are the same.
    ///
    /// # Errors
    /// Every violation found.
    pub fn check(&self, slack: Duration) -> Result<(), Vec<Violation>> {
        let all: Vec<_> =
            resources(self).iter().flat_map(|resource| self.check_one(resource, slack)).collect();
        if all.is_empty() { Ok(()) } else { Err(all) }
    }

    fn check_one(&self, resource: &Resource, slack: Duration) -> Vec<Violation> {
        let facts = facts(self, resource);
        let case = Case { grants: grants(&facts, slack), facts, slack };
        let found = [
            (Rule::Weights, case.weights()),
            (Rule::Capacity, case.capacity()),
            (Rule::Tokens, case.tokens()),
            (Rule::OneSeat, case.one_seat()),
            (Rule::Line, case.line()),
            (Rule::Outlived, case.outlived()),
            (Rule::Cancelled, case.buried()),
            (Rule::Revived, case.revived()),
        ];
        let violation = |rule, text| Violation { rule, resource: resource.clone(), text };
        found
            .into_iter()
            .flat_map(|(rule, texts)| texts.into_iter().map(move |text| violation(rule, text)))
            .collect()
    }
}

struct Case<'a> {
    facts: Vec<Fact<'a>>,
    grants: Vec<Granted>,
    slack: Duration,
}

impl Case<'_> {
    fn resized(&self) -> Option<u32> {
        let sizes = self.facts.iter().filter_map(|fact| match fact.deed {
            Deed::Order(order, _) => match order.action {
                OperatorAction::Resize { capacity } => Some(capacity.get()),
                _ => None,
            },
            _ => None,
        });
        sizes.max()
    }

    /// The most that may fit while these hold.
    fn room<'g>(&self, holders: impl Iterator<Item = &'g Granted>) -> u64 {
        let claims = holders.flat_map(|grant| claims_of(&self.facts, grant.owner));
        let capacities = claims.map(|(_, claim)| claim.share.capacity());
        u64::from(capacities.chain(self.resized()).max().unwrap_or(0))
    }

    fn certain(&self) -> impl Iterator<Item = &Granted> {
        self.grants.iter().filter(|grant| grant.by < grant.alive_until)
    }

    /// At the moment at which each grant was certain, everyone else who certainly held then.
    fn weights(&self) -> Vec<String> {
        let mut broken = Vec::new();
        for grant in self.certain() {
            let together: Vec<_> = self.certain().filter(|other| other.covers(grant.by, grant.by)).collect();
            let taken: u64 = together.iter().map(|other| u64::from(other.share.weight())).sum();
            let room = self.room(together.iter().copied());
            if taken > room {
                broken.push(format!(
                    "{taken} of {room} were held at {:?}: {}",
                    grant.by.at,
                    names(&together)
                ));
            }
        }
        broken
    }

    fn capacity(&self) -> Vec<String> {
        if self.resized().is_some() {
            return Vec::new();
        }
        let certain = || self.certain().filter(|grant| grant.certain_share);
        let mut broken = Vec::new();
        for grant in certain() {
            let differs = |other: &&Granted| other.share.capacity() != grant.share.capacity();
            for other in certain().filter(|other| other.covers(grant.by, grant.by)).filter(differs) {
                broken.push(format!("{} and {} held at {:?}", name(grant), name(other), grant.by.at));
            }
        }
        broken
    }

    fn tokens(&self) -> Vec<String> {
        let mut broken = Vec::new();
        for (index, grant) in self.grants.iter().enumerate() {
            for other in &self.grants[index + 1..] {
                if grant.token == other.token {
                    broken.push(format!("{} and {} have the same token", name(grant), name(other)));
                }
            }
        }
        let exclusive =
            || self.grants.iter().filter(|grant| grant.certain_share && grant.share.is_exclusive());
        for later in exclusive() {
            let earlier = exclusive().filter(|earlier| earlier.by < later.not_before);
            for earlier in earlier.filter(|earlier| earlier.token > later.token) {
                broken.push(format!("{} was granted before {} began", name(earlier), name(later)));
            }
        }
        broken
    }

    fn one_seat(&self) -> Vec<String> {
        let mut broken = Vec::new();
        for second in &self.grants {
            let same =
                self.grants.iter().filter(|first| first.owner == second.owner && first.token != second.token);
            for first in same.filter(|first| first.covers(second.not_before, second.by)) {
                broken.push(format!("{} still held when it got {:?}", name(first), second.token));
            }
        }
        broken
    }

    fn line(&self) -> Vec<String> {
        let places = places(&self.facts, self.slack);
        let mut broken = Vec::new();
        for grant in self.grants.iter().filter(|grant| grant.by_the_rule) {
            let Some(arrived) = claims_of(&self.facts, grant.owner).map(|(fact, _)| fact.began).min() else {
                continue;
            };
            let ahead: Vec<_> = places
                .iter()
                .filter(|place| place.owner != grant.owner && place.from < arrived && grant.by < place.until)
                .collect();
            if ahead.is_empty() {
                continue;
            }
            let holders = || self.certain().filter(|other| other.owner != grant.owner);
            let holders = || holders().filter(|other| other.covers(grant.not_before, grant.by));
            let held: u64 = holders().map(|other| u64::from(other.share.weight())).sum();
            let waiting: u64 = ahead.iter().map(|place| u64::from(place.weight)).sum();
            let (own, room) = (u64::from(grant.share.weight()), self.room(holders().chain([grant])));
            if held + waiting + own > room {
                let first = &ahead[0];
                broken.push(format!(
                    "{} came at {:?} and was granted by {:?}, past {:?}, who was in line from {:?} to {:?}",
                    name(grant),
                    arrived.at,
                    grant.by.at,
                    first.owner,
                    first.from.at,
                    first.until.at
                ));
            }
        }
        broken
    }

    fn outlived(&self) -> Vec<String> {
        let mut broken = Vec::new();
        for grant in &self.grants {
            let Some(gone) = self.facts.iter().filter_map(|fact| self.certain_end(fact, grant)).min() else {
                continue;
            };
            for voucher in grant.vouchers.iter().filter(|voucher| voucher.began > gone) {
                broken.push(format!(
                    "{} was over by {:?}, and alive at {:?}",
                    name(grant),
                    gone.at,
                    voucher.began.at
                ));
            }
        }
        broken
    }

    /// By when this fact has ended the grant, if it has for certain.
    fn certain_end(&self, fact: &Fact<'_>, grant: &Granted) -> Option<Stamp> {
        let ended = fact.ended.filter(|_| fact.may_end(grant.owner, grant.token))?;
        let after_the_grant = match fact.deed {
            Deed::Acquire(heir, _) => {
                // A repeat may have found its seat and looked no further: then an earlier one did it.
                let mut claims = claims_of(&self.facts, heir.owner);
                claims.all(|(fact, claim)| {
                    claim.takes_over_from == heir.takes_over_from && fact.began >= grant.by
                })
            }
            Deed::Order(order, _) => order.token == Some(grant.token),
            _ => fact.began >= grant.by,
        };
        after_the_grant.then_some(ended)
    }

    fn buried(&self) -> Vec<String> {
        let mut broken = Vec::new();
        for fact in &self.facts {
            let Deed::Release(request, Some(Released::Now | Released::AlreadyGone)) = fact.deed else {
                continue;
            };
            let (Some(_), Some(ended)) = (request.tombstone, fact.ended) else { continue };
            // A tombstone may be replaced by a shorter one.
            let later = self.facts.iter().filter(|other| other.may_follow(fact.began));
            let stands = later.filter_map(|other| tombstone(other, request.owner)).min();
            let stands = stands.map_or(ended, |stands| stands.before(self.slack));
            for (claim, _) in claims_of(&self.facts, request.owner) {
                let Deed::Acquire(_, answer) = claim.deed else { continue };
                let alive = matches!(answer, Some(Verdict::Granted(_))) || placed(answer).is_some();
                let under = claim.began > ended && claim.ended.is_some_and(|answered| answered < stands);
                if alive && under {
                    let owner = request.owner;
                    broken.push(format!(
                        "{owner:?} was buried by {:?}, and alive at {:?}",
                        ended.at, claim.began.at
                    ));
                }
            }
        }
        broken
    }

    fn revived(&self) -> Vec<String> {
        let mut broken = Vec::new();
        for grant in &self.grants {
            // A renewal or a claim that nobody answered may have kept it alive.
            let unanswered =
                self.facts.iter().filter(|fact| fact.owner() == Some(grant.owner) && fact.ended.is_none());
            let unanswered = unanswered.map(|fact| fact.began).min();
            for voucher in &grant.vouchers {
                let earlier = grant.vouchers.iter().filter(|earlier| earlier.began < voucher.began);
                let over = earlier.map(|earlier| earlier.ended.after(earlier.remaining + self.slack)).max();
                let known = unanswered.is_none_or(|began| began > voucher.began);
                if let Some(over) = over.filter(|over| known && *over <= voucher.began) {
                    broken.push(format!(
                        "{} had ended by {:?}, and lived at {:?}",
                        name(grant),
                        over.at,
                        voucher.began.at
                    ));
                }
            }
        }
        broken
    }
}

/// Until when a tombstone for this owner stands at the least, if the fact leaves one.
fn tombstone(fact: &Fact<'_>, owner: OwnerToken) -> Option<Stamp> {
    let tombstone = match fact.deed {
        Deed::Release(request, _) if request.owner == owner => request.tombstone,
        Deed::Acquire(claim, _) => {
            claim.takes_over_from.filter(|from| from.owner == owner).and_then(|from| from.tombstone)
        }
        _ => None,
    };
    tombstone.map(|keep| fact.began.after(keep))
}

fn name(grant: &Granted) -> String {
    format!("{:?} with {:?} ({:?})", grant.owner, grant.token, grant.share)
}

fn names(grants: &[&Granted]) -> String {
    grants.iter().map(|grant| name(grant)).collect::<Vec<_>>().join(", ")
}
