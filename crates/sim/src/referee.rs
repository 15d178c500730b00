//! Judges every verb that the server executes: by the rule of seating, the tokens, the tombstones, and by whoever
//! believes to hold at that instant.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use leasehold::{
    Claim, CommandOutcome, FencingToken, Grant, OperatorCommand, ReleaseRequest, RenewRequest, Renewal,
    Resource, Result, Timestamp, Verdict, WhenBlocked,
};
use leasehold_core::admission;

use crate::{
    ledger::Ledger,
    shadow::{Seat, Shadow},
    world::World,
};

/// How long the first in line may need to take a seat that was given up, once the weather is calm.
const PROMPT: Duration = Duration::from_millis(700);

#[derive(Debug)]
pub(crate) struct Referee {
    world: Arc<World>,
    ledger: Arc<Ledger>,
    resources: BTreeMap<Resource, Shadow>,
    /// Exclusion of beliefs is promised in this run.
    inside: bool,
    /// Wake-ups have to be prompt now.
    pub(crate) strict: bool,
    pub(crate) grants: u64,
    pub(crate) hand_overs: u64,
}

impl Referee {
    pub(crate) fn new(world: &Arc<World>, ledger: &Arc<Ledger>, inside: bool) -> Referee {
        let (world, ledger) = (Arc::clone(world), Arc::clone(ledger));
        let resources = BTreeMap::new();
        Referee { world, ledger, resources, inside, strict: false, grants: 0, hand_overs: 0 }
    }

    fn shadow(&mut self, now: Timestamp, resource: &Resource) -> Shadow {
        let mut shadow = self.resources.remove(resource).unwrap_or_default();
        shadow.settle(now);
        shadow
    }

    fn keep(&mut self, resource: &Resource, mut shadow: Shadow) {
        self.check_prompt(resource, &mut shadow);
        self.resources.insert(resource.clone(), shadow);
    }

    pub(crate) fn acquired(&mut self, now: Timestamp, claim: &Claim, verdict: &Result<Verdict>) {
        let Ok(verdict) = verdict else { return };
        let mut shadow = self.shadow(now, &claim.resource);
        match verdict {
            Verdict::Granted(grant) => self.granted(now, claim, *grant, &mut shadow),
            Verdict::Blocked(_) => self.blocked(now, claim, &mut shadow),
            Verdict::Cancelled => {
                if !shadow.is_buried(claim.owner) && shadow.seat(claim.owner).is_none_or(|seat| !seat.kept) {
                    self.fail("tombstone", claim, "was told that it is buried, and nobody buried it");
                }
                claim.takes_over_from.iter().for_each(|from| shadow.depart(now, from));
            }
            Verdict::Mismatch { .. } => {
                if shadow.is_empty() || shadow.capacity == claim.share.capacity() {
                    self.fail("capacity", claim, "was told of a mismatch that is not there");
                }
                shadow.leave(claim.owner);
            }
        }
        self.keep(&claim.resource, shadow);
    }

    fn granted(&mut self, now: Timestamp, claim: &Claim, grant: Grant, shadow: &mut Shadow) {
        if let Some(seat) = shadow.live_seat(claim.owner) {
            if (seat.token, now.until(seat.ends)) != (grant.token, grant.remaining) {
                self.fail("idempotence", claim, "asked again and was told of another grant");
            }
            return;
        }
        self.check_token(claim, grant.token, shadow);
        if shadow.is_buried(claim.owner) {
            self.fail("tombstone", claim, "was granted though it is buried");
        }
        if shadow.is_empty() {
            shadow.capacity = claim.share.capacity();
        } else if shadow.capacity != claim.share.capacity() {
            self.fail("capacity", claim, "was granted with another capacity");
        }
        let (weight, mut ends, mut turns) = (claim.share.weight(), now.after(claim.ttl), 0);
        let (mut seated, mut evicting) = (false, false);
        if let Some(from) = &claim.takes_over_from {
            let live = shadow.live_seat(from.owner).filter(|seat| seat.weight >= weight).cloned();
            shadow.inherit(now, claim, from);
            if let Some(before) = live {
                let downgrade = before.weight > weight;
                let bounded = before.turns >= admission::HANDOVERS_MAX && !shadow.line.is_empty();
                if !downgrade && bounded {
                    self.fail("turns", claim, "was handed the seat past others once too often");
                }
                seated = downgrade || !(bounded || before.evicting || shadow.paused_until.is_some());
                if seated {
                    turns = if downgrade { before.turns } else { before.turns + 1 };
                    ends = if downgrade { before.ends } else { ends };
                    evicting = downgrade && before.evicting;
                    self.hand_overs += 1;
                }
            }
        }
        if !seated {
            self.check_seating(claim, shadow);
        }
        if grant.remaining != now.until(ends) {
            self.fail("expiry", claim, "was told of another end than its own");
        }
        shadow.leave(claim.owner);
        self.check_beliefs(claim, shadow);
        let (owner, token) = (claim.owner, grant.token);
        shadow.seats.push(Seat { owner, weight, token, ends, kept: false, evicting, turns });
        shadow.last = Some(token);
        self.grants += 1;
    }

    fn check_token(&self, claim: &Claim, token: FencingToken, shadow: &Shadow) {
        if shadow.last.is_some_and(|last| token <= last) {
            let last = shadow.last;
            self.fail("token", claim, &format!("was granted with {token} after {last:?}"));
        }
    }

    fn check_seating(&self, claim: &Claim, shadow: &Shadow) {
        let (own, capacity) = (u64::from(claim.share.weight()), u64::from(shadow.capacity));
        let (held, ahead) = (shadow.held(), shadow.ahead(claim.owner));
        if shadow.paused_until.is_some() {
            self.fail("seating", claim, "was granted while an operator's pause lasts");
        } else if held + own > capacity {
            self.fail("seating", claim, &format!("was granted {own} while {held} of {capacity} are held"));
        } else if held + ahead + own > capacity {
            self.fail("order", claim, "was granted past the line");
        }
    }

    /// Nobody may be granted before everyone whom it displaces has been told.
    fn check_beliefs(&self, claim: &Claim, shadow: &Shadow) {
        let (believed, names) = self.ledger.believed(&claim.resource);
        if !self.inside {
            return;
        }
        let (own, capacity) = (u64::from(claim.share.weight()), u64::from(shadow.capacity));
        if believed > 0 && believed + own > capacity {
            self.fail("exclusion", claim, &format!("was granted while {} still vouch", names.join(" and ")));
        }
        if let Some(until) =
            self.ledger.closed_until(&claim.resource).filter(|until| *until > self.world.now())
        {
            let left = Duration::from_nanos(until - self.world.now());
            self.fail("at least", claim, &format!("was granted {left:?} before it may open again"));
        }
    }

    fn blocked(&self, now: Timestamp, claim: &Claim, shadow: &mut Shadow) {
        if shadow.live_seat(claim.owner).is_some() {
            self.fail("idempotence", claim, "holds, asked again, and was told that it is blocked");
        }
        if let Some(from) = &claim.takes_over_from {
            shadow.inherit(now, claim, from);
        }
        let capacity = if shadow.is_empty() { claim.share.capacity() } else { shadow.capacity };
        let taken = shadow.held() + shadow.ahead(claim.owner) + u64::from(claim.share.weight());
        if shadow.paused_until.is_none()
            && taken <= u64::from(capacity)
            && shadow.line.len() <= admission::WINDOW
        {
            self.fail("seating", claim, "was blocked though it fits");
        }
        if shadow.is_empty() {
            shadow.capacity = claim.share.capacity();
        }
        match claim.when_blocked {
            WhenBlocked::Leave => shadow.leave(claim.owner),
            WhenBlocked::Queue => shadow.queue(now, claim),
        }
    }

    pub(crate) fn renewed(&mut self, now: Timestamp, held: &RenewRequest, renewal: &Result<Renewal>) {
        let Ok(renewal) = renewal else { return };
        let mut shadow = self.shadow(now, &held.resource);
        let whose = format!("{:?} of {}", held.owner, held.resource);
        let fail = |checker, text: &str| self.world.fail(checker, format!("{whose} {text}"));
        match renewal {
            Renewal::Renewed(kept) => match shadow.renew(now, held) {
                None => fail("revival", "was renewed, and was not there any more"),
                Some(ends) if now.until(ends) != kept.remaining => {
                    fail("expiry", "was renewed to another end than its own");
                }
                Some(_) => {}
            },
            Renewal::Queued { .. } => match shadow.place(held.owner) {
                None => fail("revival", "was kept in line, and was not there any more"),
                Some(at) => shadow.line[at].ends = shadow.line[at].ends.max(now.after(held.ttl)),
            },
            Renewal::Gone { .. } => {
                if shadow.live_seat(held.owner).is_some() || shadow.place(held.owner).is_some() {
                    fail("disowned", "was told that it is gone, and is still there");
                }
            }
        }
        // Keeping a place wakes nobody: what it may have made visible is judged at the next verb.
        self.resources.insert(held.resource.clone(), shadow);
    }

    pub(crate) fn released(&mut self, now: Timestamp, request: &ReleaseRequest) {
        let mut shadow = self.shadow(now, &request.resource);
        shadow.release(now, request);
        self.keep(&request.resource, shadow);
    }

    pub(crate) fn ordered(
        &mut self,
        now: Timestamp,
        order: &OperatorCommand,
        answer: &Result<CommandOutcome>,
    ) {
        if !matches!(answer, Ok(CommandOutcome::Done)) {
            return;
        }
        let mut shadow = self.shadow(now, &order.resource);
        shadow.order(now, order);
        self.ledger.open(&order.resource);
        self.keep(&order.resource, shadow);
    }

    /// A release wakes whoever can move: it takes its seat within moments.
    fn check_prompt(&self, resource: &Resource, shadow: &mut Shadow) {
        if !self.strict {
            shadow.movable = None;
            return;
        }
        let now = self.world.now();
        let mover = shadow.next_mover();
        if let (Some((owner, since)), Some(mover)) = (shadow.movable, mover)
            && owner == mover
        {
            let slept = Duration::from_nanos(now - since);
            if slept > PROMPT {
                let message =
                    format!("{owner:?} is first in line for {resource}, free, and sleeps for {slept:?}");
                self.world.fail("wake-up", message);
            }
            return;
        }
        shadow.movable = mover.map(|mover| (mover, now));
    }

    /// Looks at all resources while nothing happens.
    pub(crate) fn tick(&mut self, now: Timestamp) {
        for (resource, shadow) in std::mem::take(&mut self.resources) {
            let mut settled = shadow;
            let movable = settled.movable;
            settled.settle(now);
            // What an expiry has let move is found by asking, not by a wake-up.
            if movable.is_some() {
                self.check_prompt(&resource, &mut settled);
            }
            self.resources.insert(resource, settled);
        }
    }

    fn fail(&self, checker: &'static str, claim: &Claim, text: &str) {
        let Claim { resource, owner, share, holder, .. } = claim;
        self.world.fail(checker, format!("{} ({owner:?}, {share:?} of {resource}) {text}", holder.label));
    }
}
