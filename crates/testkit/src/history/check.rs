//! The rules of the checker. Each rule finds what a backend that keeps its contract cannot have done.

use std::{fmt, time::Duration};

use leasehold_core::{OperatorAction, OwnerToken, Released, Resource, Verdict};

use super::{
    History, Stamp,
    facts::{Fact, FactKind, ObservedGrant, claims_of, facts, grants, queued_reply, resources},
    queue::places,
};

/// A rule of the checker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Rule {
    /// The weights of all claims that certainly held at the same time fit the capacity.
    Weights,
    /// All claims that certainly held at the same time have the same capacity, unless an operator resized it.
    Capacity,
    /// Every grant has its own token, and the tokens of exclusive grants grow in real time.
    Tokens,
    /// An owner has one grant at a time.
    OneGrant,
    /// No claim is granted before an earlier claim that was certainly in the queue, unless both fit.
    QueueOrder,
    /// No grant outlives its release, its successor or its eviction.
    Outlived,
    /// An owner with a tombstone is neither granted nor queued.
    Cancelled,
    /// A grant that has expired is not alive again.
    Revived,
}

/// A broken rule: something that cannot have happened.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Violation {
    /// The rule that is broken.
    pub rule: Rule,
    /// The resource.
    pub resource: Resource,
    /// What happened.
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
    /// `slack` is how far the clocks of the journal and of the backend may drift apart during one ttl: zero
    /// if they are the same clock.
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
        let history = ResourceHistory { grants: grants(&facts, slack), facts, slack };
        let found = [
            (Rule::Weights, history.weights()),
            (Rule::Capacity, history.capacity()),
            (Rule::Tokens, history.tokens()),
            (Rule::OneGrant, history.one_grant()),
            (Rule::QueueOrder, history.queue_order()),
            (Rule::Outlived, history.outlived()),
            (Rule::Cancelled, history.cancelled()),
            (Rule::Revived, history.revived()),
        ];
        let violation = |rule, text| Violation { rule, resource: resource.clone(), text };
        found
            .into_iter()
            .flat_map(|(rule, texts)| texts.into_iter().map(move |text| violation(rule, text)))
            .collect()
    }
}

/// All that is certain about one resource. Each rule is a method that returns a text for every violation.
struct ResourceHistory<'a> {
    facts: Vec<Fact<'a>>,
    grants: Vec<ObservedGrant>,
    slack: Duration,
}

impl ResourceHistory<'_> {
    /// The greatest capacity that an operator set, if one did.
    fn resized(&self) -> Option<u32> {
        let sizes = self.facts.iter().filter_map(|fact| match fact.kind {
            FactKind::Order(order, _) => match order.action {
                OperatorAction::Resize { capacity } => Some(capacity.get()),
                _ => None,
            },
            _ => None,
        });
        sizes.max()
    }

    /// The greatest capacity that may apply while these claims hold.
    fn capacity_max<'g>(&self, holders: impl Iterator<Item = &'g ObservedGrant>) -> u64 {
        let claims = holders.flat_map(|grant| claims_of(&self.facts, grant.owner));
        let capacities = claims.map(|(_, claim)| claim.share.capacity());
        u64::from(capacities.chain(self.resized()).max().unwrap_or(0))
    }

    /// The grants that were certainly alive at some time.
    fn certain(&self) -> impl Iterator<Item = &ObservedGrant> {
        self.grants.iter().filter(|grant| grant.by < grant.alive_until)
    }

    /// Adds up, for the time of each grant, the weights of all claims that certainly held then.
    fn weights(&self) -> Vec<String> {
        let mut broken = Vec::new();
        for grant in self.certain() {
            let together: Vec<_> = self.certain().filter(|other| other.covers(grant.by, grant.by)).collect();
            let taken: u64 = together.iter().map(|other| u64::from(other.share.weight())).sum();
            let capacity = self.capacity_max(together.iter().copied());
            if taken > capacity {
                broken.push(format!(
                    "{taken} of {capacity} were held at {:?}: {}",
                    grant.by.at,
                    names(&together)
                ));
            }
        }
        broken
    }

    fn capacity(&self) -> Vec<String> {
        // After a resize, claims of the old and of the new capacity may hold at the same time.
        if self.resized().is_some() {
            return Vec::new();
        }
        // If an owner asked for different shares, it is unknown which of them was granted.
        let certain = || self.certain().filter(|grant| grant.certain_share);
        let mut broken = Vec::new();
        for grant in certain() {
            let differs = |other: &&ObservedGrant| other.share.capacity() != grant.share.capacity();
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
        // A backend may mint the token of a shared claim when it queues, so only exclusive tokens grow in
        // real time.
        let exclusive =
            || self.grants.iter().filter(|grant| grant.certain_share && grant.share.is_exclusive());
        for later in exclusive() {
            // Real time: the earlier grant had certainly happened before the later one can have happened.
            let earlier = exclusive().filter(|earlier| earlier.by < later.not_before);
            for earlier in earlier.filter(|earlier| earlier.token > later.token) {
                broken.push(format!("{} was granted before {} began", name(earlier), name(later)));
            }
        }
        broken
    }

    fn one_grant(&self) -> Vec<String> {
        let mut broken = Vec::new();
        for second in &self.grants {
            let same =
                self.grants.iter().filter(|first| first.owner == second.owner && first.token != second.token);
            // The first grant must cover all of the time at which the second may have happened.
            for first in same.filter(|first| first.covers(second.not_before, second.by)) {
                broken.push(format!("{} still held when it got {:?}", name(first), second.token));
            }
        }
        broken
    }

    fn queue_order(&self) -> Vec<String> {
        let places = places(&self.facts, self.slack);
        let mut broken = Vec::new();
        // A handover may pass the queue.
        for grant in self.grants.iter().filter(|grant| grant.by_admission_rule) {
            // From its first acquire on, the claim may have had a place in the queue itself.
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
            // The grant delays no earlier waiter if the holders, all earlier waiters and this claim fit
            // together.
            let holders = || self.certain().filter(|other| other.owner != grant.owner);
            let holders = || holders().filter(|other| other.covers(grant.not_before, grant.by));
            let held: u64 = holders().map(|other| u64::from(other.share.weight())).sum();
            let waiting: u64 = ahead.iter().map(|place| u64::from(place.weight)).sum();
            let (own, capacity) =
                (u64::from(grant.share.weight()), self.capacity_max(holders().chain([grant])));
            if held + waiting + own > capacity {
                let first = &ahead[0];
                broken.push(format!(
                    "{} came at {:?} and was granted by {:?}, before {:?}, which was in the queue from {:?} to {:?}",
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
            let Some(over) = self.facts.iter().filter_map(|fact| self.certain_end(fact, grant)).min() else {
                continue;
            };
            for proof in grant.proofs.iter().filter(|proof| proof.began > over) {
                broken.push(format!(
                    "{} was over by {:?}, and alive at {:?}",
                    name(grant),
                    over.at,
                    proof.began.at
                ));
            }
        }
        broken
    }

    /// The time by which this call has certainly ended the grant, if it has.
    fn certain_end(&self, fact: &Fact<'_>, grant: &ObservedGrant) -> Option<Stamp> {
        let ended = fact.ended.filter(|_| fact.may_end(grant.owner, grant.token))?;
        let after_the_grant = match fact.kind {
            FactKind::Acquire(successor, _) => {
                // A repeated acquire may just return the grant, because an earlier one has ended the
                // predecessor.
                let mut claims = claims_of(&self.facts, successor.owner);
                claims.all(|(fact, claim)| {
                    claim.takes_over_from == successor.takes_over_from && fact.began >= grant.by
                })
            }
            // Without a token, the order may have evicted an earlier grant.
            FactKind::Order(order, _) => order.token == Some(grant.token),
            _ => fact.began >= grant.by,
        };
        after_the_grant.then_some(ended)
    }

    fn cancelled(&self) -> Vec<String> {
        let mut broken = Vec::new();
        for fact in &self.facts {
            let FactKind::Release(request, Some(Released::Now | Released::AlreadyGone)) = fact.kind else {
                continue;
            };
            let (Some(_), Some(ended)) = (request.tombstone, fact.ended) else { continue };
            // A later tombstone replaces this one, and may be shorter.
            let later = self.facts.iter().filter(|other| other.may_follow(fact.began));
            let lasts_until = later.filter_map(|other| tombstone_end(other, request.owner)).min();
            let lasts_until = lasts_until.map_or(ended, |until| until.before(self.slack));
            for (claim, _) in claims_of(&self.facts, request.owner) {
                let FactKind::Acquire(_, verdict) = claim.kind else { continue };
                let alive = matches!(verdict, Some(Verdict::Granted(_))) || queued_reply(verdict).is_some();
                let under = claim.began > ended && claim.ended.is_some_and(|ended| ended < lasts_until);
                if alive && under {
                    let owner = request.owner;
                    broken.push(format!(
                        "{owner:?} had a tombstone by {:?}, and was alive at {:?}",
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
            // An unanswered renewal or acquire may have extended the grant.
            let unanswered =
                self.facts.iter().filter(|fact| fact.owner() == Some(grant.owner) && fact.ended.is_none());
            let unanswered = unanswered.map(|fact| fact.began).min();
            for proof in &grant.proofs {
                let earlier = grant.proofs.iter().filter(|earlier| earlier.began < proof.began);
                let over = earlier.map(|earlier| earlier.ended.after(earlier.remaining + self.slack)).max();
                let known = unanswered.is_none_or(|began| began > proof.began);
                if let Some(over) = over.filter(|over| known && *over <= proof.began) {
                    broken.push(format!(
                        "{} had expired by {:?}, and was alive at {:?}",
                        name(grant),
                        over.at,
                        proof.began.at
                    ));
                }
            }
        }
        broken
    }
}

/// The earliest end of the tombstone that this call left for the owner, if it left one.
fn tombstone_end(fact: &Fact<'_>, owner: OwnerToken) -> Option<Stamp> {
    let tombstone = match fact.kind {
        FactKind::Release(request, _) if request.owner == owner => request.tombstone,
        FactKind::Acquire(claim, _) => {
            claim.takes_over_from.filter(|from| from.owner == owner).and_then(|from| from.tombstone)
        }
        _ => None,
    };
    tombstone.map(|keep| fact.began.after(keep))
}

fn name(grant: &ObservedGrant) -> String {
    format!("{:?} with {:?} ({:?})", grant.owner, grant.token, grant.share)
}

fn names(grants: &[&ObservedGrant]) -> String {
    grants.iter().map(|grant| name(grant)).collect::<Vec<_>>().join(", ")
}
