//! Checks every verb that the server executes: by the admission rule, the tokens, the tombstones, and by which holders
//! believes to hold at that instant.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use leasehold::{
    Claim, CommandOutcome, FencingToken, Grant, OperatorCommand, ReleaseRequest, RenewRequest, Renewal,
    Resource, Result, Timestamp, Verdict, WhenBlocked,
};
use leasehold_core::admission;

use crate::{
    beliefs::BeliefChecker,
    expected_state::{ExpectedHolder, ExpectedState},
    world::World,
};

/// How long the head of the queue may need to be granted after a release, without faults.
const PROMPT: Duration = Duration::from_millis(700);

#[derive(Debug)]
pub(crate) struct Referee {
    world: Arc<World>,
    beliefs: Arc<BeliefChecker>,
    resources: BTreeMap<Resource, ExpectedState>,
    /// Exclusion of beliefs is promised in this run.
    inside: bool,
    /// Wake-ups have to be prompt now.
    pub(crate) strict: bool,
    pub(crate) grants: u64,
    pub(crate) handover_count: u64,
}

impl Referee {
    pub(crate) fn new(world: &Arc<World>, beliefs: &Arc<BeliefChecker>, inside: bool) -> Referee {
        let (world, beliefs) = (Arc::clone(world), Arc::clone(beliefs));
        let resources = BTreeMap::new();
        Referee { world, beliefs, resources, inside, strict: false, grants: 0, handover_count: 0 }
    }

    fn expected(&mut self, now: Timestamp, resource: &Resource) -> ExpectedState {
        let mut expected = self.resources.remove(resource).unwrap_or_default();
        expected.remove_expired(now);
        expected
    }

    fn keep(&mut self, now: Timestamp, resource: &Resource, mut expected: ExpectedState) {
        expected.call(now);
        self.check_prompt(resource, &mut expected);
        self.resources.insert(resource.clone(), expected);
    }

    pub(crate) fn acquired(&mut self, now: Timestamp, claim: &Claim, verdict: &Result<Verdict>) {
        let Ok(verdict) = verdict else { return };
        let mut expected = self.expected(now, &claim.resource);
        expected.hear(now, Some(claim.owner));
        match verdict {
            Verdict::Granted(grant) => self.granted(now, claim, *grant, &mut expected),
            Verdict::Blocked(_) => self.blocked(now, claim, &mut expected),
            Verdict::Cancelled => {
                if !expected.has_tombstone(claim.owner)
                    && expected.holder(claim.owner).is_none_or(|holder| !holder.kept)
                {
                    self.fail("tombstone", claim, "was told that it is cancelled, and has no tombstone");
                }
                claim.takes_over_from.iter().for_each(|from| expected.release_predecessor(now, from));
            }
            Verdict::Mismatch { .. } => {
                if expected.is_empty() || expected.capacity == claim.share.capacity() {
                    self.fail("capacity", claim, "was told of a mismatch that is not there");
                }
                expected.leave(claim.owner);
            }
        }
        self.keep(now, &claim.resource, expected);
    }

    fn granted(&mut self, now: Timestamp, claim: &Claim, grant: Grant, expected: &mut ExpectedState) {
        if let Some(holder) = expected.live_holder(claim.owner) {
            if (holder.token, now.until(holder.ends)) != (grant.token, grant.remaining) {
                self.fail("idempotence", claim, "asked again and was told of another grant");
            }
            return;
        }
        self.check_token(claim, grant.token, expected);
        self.check_claim(claim, expected);
        let (weight, mut ends, mut handovers) = (claim.share.weight(), now.after(claim.ttl), 0);
        let (mut took_over, mut evicting) = (false, false);
        if let Some(from) = &claim.takes_over_from {
            let live = expected.live_holder(from.owner).filter(|holder| holder.weight >= weight).cloned();
            expected.inherit(now, claim, from);
            if let Some(before) = live {
                let downgrade = before.weight > weight;
                let too_often =
                    before.handovers >= admission::HANDOVERS_MAX && expected.live().next().is_some();
                if !downgrade && too_often {
                    self.fail("handovers", claim, "was handed the grant once too often while others wait");
                }
                took_over = downgrade || !(too_often || before.evicting || expected.paused_until.is_some());
                if took_over {
                    handovers = if downgrade { before.handovers } else { before.handovers + 1 };
                    ends = if downgrade { before.ends } else { ends };
                    evicting = downgrade && before.evicting;
                    self.handover_count += 1;
                }
            }
        }
        if !took_over {
            self.check_admission(claim, expected);
        }
        if grant.remaining != now.until(ends) {
            self.fail("expiry", claim, "was told of another end than its own");
        }
        expected.leave(claim.owner);
        self.check_beliefs(claim, expected);
        let (owner, token) = (claim.owner, grant.token);
        expected.holders.push(ExpectedHolder {
            owner,
            weight,
            token,
            ends,
            kept: false,
            evicting,
            handovers,
        });
        expected.last = Some(token);
        self.grants += 1;
    }

    /// A granted owner has no tombstone, and uses the capacity of all others.
    fn check_claim(&self, claim: &Claim, expected: &mut ExpectedState) {
        if expected.has_tombstone(claim.owner) {
            self.fail("tombstone", claim, "was granted although its owner has a tombstone");
        }
        if expected.is_empty() {
            expected.capacity = claim.share.capacity();
        } else if expected.capacity != claim.share.capacity() {
            self.fail("capacity", claim, "was granted with another capacity");
        }
    }

    fn check_token(&self, claim: &Claim, token: FencingToken, expected: &ExpectedState) {
        if expected.last.is_some_and(|last| token <= last) {
            let last = expected.last;
            self.fail("token", claim, &format!("was granted with {token} after {last:?}"));
        }
    }

    fn check_admission(&self, claim: &Claim, expected: &ExpectedState) {
        let (own, capacity) = (u64::from(claim.share.weight()), u64::from(expected.capacity));
        let (held, ahead) = (expected.held(), expected.ahead(claim.owner));
        if expected.paused_until.is_some() {
            self.fail("admission", claim, "was granted while an operator's pause lasts");
        } else if held + own > capacity {
            self.fail("admission", claim, &format!("was granted {own} while {held} of {capacity} are held"));
        } else if held + ahead + own > capacity {
            self.fail("order", claim, "was granted past the queue");
        }
    }

    /// A claim must not be granted before every holder that it displaces knows that its lease has ended.
    fn check_beliefs(&self, claim: &Claim, expected: &ExpectedState) {
        let (believed, names) = self.beliefs.believed(&claim.resource);
        if !self.inside {
            return;
        }
        let (own, capacity) = (u64::from(claim.share.weight()), u64::from(expected.capacity));
        if believed > 0 && believed + own > capacity {
            self.fail(
                "exclusion",
                claim,
                &format!("was granted while {} still take their lease for valid", names.join(" and ")),
            );
        }
        if let Some(until) =
            self.beliefs.closed_until(&claim.resource).filter(|until| *until > self.world.now())
        {
            let left = Duration::from_nanos(until - self.world.now());
            self.fail("at least", claim, &format!("was granted {left:?} before it may open again"));
        }
    }

    fn blocked(&self, now: Timestamp, claim: &Claim, expected: &mut ExpectedState) {
        if expected.live_holder(claim.owner).is_some() {
            self.fail("idempotence", claim, "holds, asked again, and was told that it is blocked");
        }
        if let Some(from) = &claim.takes_over_from {
            expected.inherit(now, claim, from);
        }
        let capacity = if expected.is_empty() { claim.share.capacity() } else { expected.capacity };
        let taken = expected.held() + expected.ahead(claim.owner) + u64::from(claim.share.weight());
        if expected.paused_until.is_none()
            && taken <= u64::from(capacity)
            && expected.queue.len() <= admission::WINDOW
        {
            self.fail("admission", claim, "was blocked though it fits");
        }
        if expected.is_empty() {
            expected.capacity = claim.share.capacity();
        }
        match claim.when_blocked {
            WhenBlocked::Leave => expected.leave(claim.owner),
            WhenBlocked::Queue => expected.queue(now, claim),
        }
    }

    pub(crate) fn renewed(&mut self, now: Timestamp, held: &RenewRequest, renewal: &Result<Renewal>) {
        let Ok(renewal) = renewal else { return };
        let mut expected = self.expected(now, &held.resource);
        let whose = format!("{:?} of {}", held.owner, held.resource);
        let fail = |checker, text: &str| self.world.fail(checker, format!("{whose} {text}"));
        match renewal {
            Renewal::Renewed(kept) => match expected.renew(now, held) {
                None => fail("revival", "was renewed, and was not there any more"),
                Some(ends) if now.until(ends) != kept.remaining => {
                    fail("expiry", "was renewed to another end than its own");
                }
                Some(_) => {}
            },
            Renewal::Queued { .. } => match expected.place(held.owner) {
                None => fail("revival", "was kept in the queue, and was not there any more"),
                Some(at) => {
                    expected.queue[at].ends = expected.queue[at].ends.max(now.after(held.ttl));
                    expected.hear(now, Some(held.owner));
                    expected.call(now);
                }
            },
            Renewal::Gone { .. } => {
                if expected.live_holder(held.owner).is_some() || expected.place(held.owner).is_some() {
                    fail("disowned", "was told that it is gone, and is still there");
                }
            }
        }
        // Renewing a place wakes no waiter. A change that it has made visible is checked at the next verb.
        self.resources.insert(held.resource.clone(), expected);
    }

    pub(crate) fn released(&mut self, now: Timestamp, request: &ReleaseRequest) {
        let mut expected = self.expected(now, &request.resource);
        expected.hear(now, None);
        expected.release(now, request);
        self.keep(now, &request.resource, expected);
    }

    pub(crate) fn ordered(
        &mut self,
        now: Timestamp,
        order: &OperatorCommand,
        answer: &Result<CommandOutcome>,
    ) {
        let Ok(outcome) = answer else { return };
        let mut expected = self.expected(now, &order.resource);
        expected.hear(now, None);
        if *outcome == CommandOutcome::Done {
            expected.order(now, order);
            self.beliefs.open(&order.resource);
        }
        self.keep(now, &order.resource, expected);
    }

    /// A release wakes the waiters that can be granted: they ask within moments.
    fn check_prompt(&self, resource: &Resource, expected: &mut ExpectedState) {
        if !self.strict {
            expected.grantable = None;
            return;
        }
        let now = self.world.now();
        let head = expected.grantable_head();
        if let (Some((owner, since)), Some(head)) = (expected.grantable, head)
            && owner == head
        {
            let slept = Duration::from_nanos(now - since);
            if slept > PROMPT {
                let message = format!(
                    "{owner:?} is first in the queue for {resource}, which is free, and sleeps for {slept:?}"
                );
                self.world.fail("wake-up", message);
            }
            return;
        }
        expected.grantable = head.map(|head| (head, now));
    }

    /// Looks at all resources while nothing happens.
    pub(crate) fn tick(&mut self, now: Timestamp) {
        for (resource, expected) in std::mem::take(&mut self.resources) {
            let mut current = expected;
            let grantable = current.grantable;
            current.remove_expired(now);
            // What an expiry has let move is found by asking, not by a wake-up.
            if grantable.is_some() {
                self.check_prompt(&resource, &mut current);
            }
            self.resources.insert(resource, current);
        }
    }

    fn fail(&self, checker: &'static str, claim: &Claim, text: &str) {
        let Claim { resource, owner, share, holder, .. } = claim;
        self.world.fail(checker, format!("{} ({owner:?}, {share:?} of {resource}) {text}", holder.label));
    }
}
