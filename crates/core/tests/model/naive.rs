//! The same rules, stated again without cleverness: plain lists, looked through from end to end.
//!
//! Written from the contract, not from the model, so that the two can be held against each other.

use std::time::Duration;

use leasehold_core::{
    Claim, ClientId, Eviction, FencingToken, GoneReason, OperatorAction, OperatorCommand, OwnerToken,
    ReleaseRequest, RenewRequest, Timestamp, WhenBlocked, admission,
};

#[derive(Clone, Debug, Default)]
pub(crate) struct Naive {
    pub(crate) capacity: u32,
    pub(crate) holders: Vec<HeldClaim>,
    pub(crate) queue: Vec<QueuedClaim>,
    pub(crate) tombstones: Vec<Tombstone>,
    pub(crate) paused_until: Option<Timestamp>,
    pub(crate) last: Option<FencingToken>,
    /// A dead waiter keeps its turn until its place ends.
    pub(crate) keeps_turns: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HeldClaim {
    pub(crate) owner: OwnerToken,
    pub(crate) weight: u32,
    pub(crate) token: FencingToken,
    pub(crate) since: Timestamp,
    pub(crate) ends: Timestamp,
    pub(crate) handovers: u32,
    pub(crate) asked_by: Option<Timestamp>,
    pub(crate) evicting: bool,
    pub(crate) kept: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QueuedClaim {
    pub(crate) owner: OwnerToken,
    pub(crate) weight: u32,
    pub(crate) since: Timestamp,
    pub(crate) ends: Timestamp,
    pub(crate) client: Option<ClientId>,
    pub(crate) heard: Timestamp,
    pub(crate) called: Option<Timestamp>,
    pub(crate) silent: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tombstone {
    owner: OwnerToken,
    ends: Timestamp,
    why: GoneReason,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Granted { token: FencingToken, remaining: Duration },
    Blocked { placed: bool, ahead: usize, changes_in: Option<Duration>, paused: bool },
    Cancelled,
    Mismatch { capacity: u32 },
    Kept { token: FencingToken, remaining: Duration, asked: Option<Duration>, evicting: bool },
    Queued { remaining: Duration },
    Gone(GoneReason),
    Released { now: bool },
    Done,
    HolderChanged { token: Option<FencingToken> },
}

impl Naive {
    fn forget_what_ended(&mut self, now: Timestamp) {
        self.holders.retain(|holder| holder.ends > now);
        self.queue.retain(|place| place.ends > now);
        self.tombstones.retain(|tombstone| tombstone.ends > now);
        self.paused_until = self.paused_until.filter(|until| *until > now);
    }

    fn holder_of(&self, owner: OwnerToken) -> Option<&HeldClaim> {
        self.holders.iter().find(|holder| holder.owner == owner)
    }

    /// A holder that has not been released.
    fn live_holder(&self, owner: OwnerToken) -> Option<&HeldClaim> {
        self.holder_of(owner).filter(|holder| !holder.kept)
    }

    fn stands(&self, owner: OwnerToken) -> Option<usize> {
        self.queue.iter().position(|place| place.owner == owner)
    }

    /// A request of this owner has come.
    fn hear(&mut self, now: Timestamp, owner: OwnerToken) {
        for place in self.queue.iter_mut().filter(|place| place.owner == owner) {
            (place.heard, place.called, place.silent) = (now, None, false);
        }
    }

    /// A claim that was called a second ago is silent, and with it its client, as far as that was not heard for a second.
    fn pass_over(&mut self, now: Timestamp) {
        if self.keeps_turns {
            return;
        }
        let second = admission::ANSWER_WITHIN;
        let live: Vec<QueuedClaim> = self.queue.iter().filter(|place| !place.silent).cloned().collect();
        let in_window = live.iter().take(admission::WINDOW);
        let late: Vec<QueuedClaim> = in_window
            .filter(|place| place.called.is_some_and(|at| at.after(second) <= now))
            .cloned()
            .collect();
        let mut gone: Vec<OwnerToken> = late.iter().map(|place| place.owner).collect();
        for place in live.iter().take(admission::SAME_CLIENT_WINDOW).filter(|place| place.client.is_some()) {
            let quiet = place.heard.after(second) <= now;
            if quiet && late.iter().any(|late| late.client == place.client) {
                gone.push(place.owner);
            }
        }
        for place in self.queue.iter_mut().filter(|place| gone.contains(&place.owner)) {
            place.silent = true;
        }
    }

    fn call(&mut self, now: Timestamp) {
        if self.paused_until.is_some() {
            return;
        }
        let any_silent = self.queue.iter().any(|place| place.silent);
        let mut sum: u64 = self.holders.iter().map(|holder| u64::from(holder.weight)).sum();
        let mut room = true;
        let live = self.queue.iter_mut().filter(|place| !place.silent).take(admission::WINDOW);
        for (at, place) in live.enumerate() {
            sum += u64::from(place.weight);
            room &= sum <= u64::from(self.capacity);
            if at == 0 && !room {
                return; // there is no room at all
            }
            let quiet = any_silent && place.heard.after(admission::ANSWER_WITHIN) <= now;
            if (room || quiet) && place.called.is_none() {
                place.called = Some(now);
            }
        }
    }

    fn leave_queue(&mut self, owner: OwnerToken) {
        self.queue.retain(|place| place.owner != owner);
    }

    fn stand_up(&mut self, owner: OwnerToken) {
        self.holders.retain(|holder| holder.owner != owner || holder.kept);
    }

    fn tombstone(&mut self, now: Timestamp, owner: OwnerToken, keep: Option<Duration>, why: GoneReason) {
        if let Some(keep) = keep {
            self.tombstones.retain(|tombstone| tombstone.owner != owner);
            self.tombstones.push(Tombstone { owner, ends: now.after(keep), why });
        }
    }

    pub(crate) fn acquire(&mut self, now: Timestamp, claim: &Claim, token: FencingToken) -> Reply {
        self.forget_what_ended(now);
        self.hear(now, claim.owner);
        self.pass_over(now);
        let said = self.judge(now, claim, token);
        self.call(now);
        said.unwrap_or_else(|| self.blocked(now, claim.owner))
    }

    /// `None`: blocked.
    fn judge(&mut self, now: Timestamp, claim: &Claim, token: FencingToken) -> Option<Reply> {
        if self.tombstones.iter().any(|tombstone| tombstone.owner == claim.owner) {
            if let Some(from) = claim.takes_over_from {
                self.stand_up(from.owner);
                self.leave_queue(from.owner);
                self.tombstone(now, from.owner, from.tombstone, GoneReason::Cancelled);
            }
            return Some(Reply::Cancelled);
        }
        if let Some(holder) = self.holder_of(claim.owner) {
            let (token, remaining) = (holder.token, now.until(holder.ends));
            return Some(if holder.kept { Reply::Cancelled } else { Reply::Granted { token, remaining } });
        }
        let nobody = self.holders.is_empty() && self.queue.is_empty();
        if !nobody && self.capacity != claim.share.capacity() {
            self.leave_queue(claim.owner);
            return Some(Reply::Mismatch { capacity: self.capacity });
        }
        if let Some(said) = self.take_over(now, claim, token) {
            return Some(said);
        }
        self.capacity = claim.share.capacity();
        let ahead = self.ahead_of(claim.owner);
        let before: u64 = ahead.iter().map(|place| u64::from(place.weight)).sum();
        let ahead = ahead.len();
        let held: u64 = self.holders.iter().map(|holder| u64::from(holder.weight)).sum();
        let fits = held + before + u64::from(claim.share.weight()) <= u64::from(self.capacity);
        if fits && ahead <= admission::WINDOW && self.paused_until.is_none() {
            return Some(self.make_holder(now, claim, token, now.after(claim.ttl), 0));
        }
        match (claim.when_blocked, self.stands(claim.owner)) {
            (WhenBlocked::Leave, _) => self.leave_queue(claim.owner),
            (WhenBlocked::Queue, Some(at)) => {
                self.queue[at].ends = self.queue[at].ends.max(now.after(claim.place_ttl));
            }
            (WhenBlocked::Queue, None) => {
                let place = self.place(now, claim, now);
                self.queue.push(place);
            }
        }
        None
    }

    /// The claims before this one that are not silent.
    fn ahead_of(&self, owner: OwnerToken) -> Vec<&QueuedClaim> {
        let end = self.stands(owner).unwrap_or(self.queue.len());
        self.queue[..end].iter().filter(|place| !place.silent).collect()
    }

    /// What the claim takes over from its predecessor; `None` if the admission rule decides.
    fn take_over(&mut self, now: Timestamp, claim: &Claim, token: FencingToken) -> Option<Reply> {
        let from = claim.takes_over_from?;
        let holder = self.live_holder(from.owner).cloned();
        let place = self.stands(from.owner);
        let others_wait = self.queue.iter().any(|place| !place.silent);
        self.stand_up(from.owner);
        self.tombstone(now, from.owner, from.tombstone, GoneReason::Cancelled);
        if let Some(holder) = holder {
            let weight = claim.share.weight();
            let too_often = holder.handovers >= admission::HANDOVERS_MAX && others_wait;
            return if weight < holder.weight {
                let said = self.make_holder(now, claim, token, holder.ends, holder.handovers);
                let successor = self.holders.last_mut()?;
                (successor.evicting, successor.asked_by) = (holder.evicting, holder.asked_by);
                Some(said)
            } else if weight > holder.weight || too_often || holder.evicting || self.paused_until.is_some() {
                None
            } else {
                Some(self.make_holder(now, claim, token, now.after(claim.ttl), holder.handovers + 1))
            };
        }
        if let Some(at) = place {
            let heir_stands = self.stands(claim.owner).is_some();
            if claim.when_blocked == WhenBlocked::Queue && !heir_stands {
                self.queue[at] = self.place(now, claim, self.queue[at].since);
            } else {
                self.queue.remove(at);
            }
        }
        None
    }

    fn place(&self, now: Timestamp, claim: &Claim, since: Timestamp) -> QueuedClaim {
        QueuedClaim {
            owner: claim.owner,
            weight: claim.share.weight(),
            since,
            ends: now.after(claim.place_ttl),
            client: claim.client,
            heard: now,
            called: None,
            silent: false,
        }
    }

    fn make_holder(
        &mut self,
        now: Timestamp,
        claim: &Claim,
        token: FencingToken,
        ends: Timestamp,
        handovers: u32,
    ) -> Reply {
        self.leave_queue(claim.owner);
        let (owner, weight) = (claim.owner, claim.share.weight());
        let (asked_by, evicting, kept) = (None, false, false);
        self.holders.push(HeldClaim {
            owner,
            weight,
            token,
            since: now,
            ends,
            handovers,
            asked_by,
            evicting,
            kept,
        });
        self.last = Some(token);
        Reply::Granted { token, remaining: now.until(ends) }
    }

    fn blocked(&self, now: Timestamp, owner: OwnerToken) -> Reply {
        let placed = self.stands(owner);
        let holders = self.holders.iter().map(|holder| holder.ends);
        let live = || self.queue.iter().filter(|place| !place.silent).take(admission::WINDOW);
        let places = live().map(|place| place.ends);
        let silences = live().filter(|_| !self.keeps_turns).filter_map(|place| place.called);
        let silences = silences.map(|called| called.after(admission::ANSWER_WITHIN));
        let changes = holders.chain(places).chain(silences).chain(self.paused_until).min();
        Reply::Blocked {
            placed: placed.is_some(),
            ahead: self.ahead_of(owner).len(),
            changes_in: changes.map(|at| now.until(at)),
            paused: self.paused_until.is_some(),
        }
    }

    pub(crate) fn renew(&mut self, now: Timestamp, held: &RenewRequest) -> Reply {
        self.forget_what_ended(now);
        if let Some(holder) =
            self.holders.iter_mut().find(|holder| holder.owner == held.owner && !holder.kept)
        {
            if !holder.evicting {
                holder.ends = holder.ends.max(now.after(held.ttl));
            }
            let asked = holder.asked_by.map(|by| now.until(by));
            let (token, remaining, evicting) = (holder.token, now.until(holder.ends), holder.evicting);
            return Reply::Kept { token, remaining, asked, evicting };
        }
        if let Some(place) = self.queue.iter_mut().find(|place| place.owner == held.owner) {
            place.ends = place.ends.max(now.after(held.ttl));
            let remaining = now.until(place.ends);
            self.hear(now, held.owner);
            self.pass_over(now);
            self.call(now);
            return Reply::Queued { remaining };
        }
        let tombstone = self.tombstones.iter().find(|tombstone| tombstone.owner == held.owner);
        Reply::Gone(tombstone.map_or(GoneReason::NotThere, |tombstone| tombstone.why))
    }

    pub(crate) fn release(&mut self, now: Timestamp, request: &ReleaseRequest) -> Reply {
        self.forget_what_ended(now);
        self.pass_over(now);
        let owner = request.owner;
        let there = self.live_holder(owner).is_some() || self.stands(owner).is_some();
        if let Some(keep_for) = request.keep_for.filter(|keep_for| *keep_for > Duration::ZERO) {
            for holder in self.holders.iter_mut().filter(|holder| holder.owner == owner && !holder.kept) {
                (holder.kept, holder.ends) = (true, now.after(keep_for));
            }
        }
        self.stand_up(owner);
        self.leave_queue(owner);
        self.tombstone(now, owner, request.tombstone, GoneReason::Cancelled);
        self.call(now);
        Reply::Released { now: there }
    }

    pub(crate) fn order(&mut self, now: Timestamp, order: &OperatorCommand) -> Reply {
        self.forget_what_ended(now);
        self.pass_over(now);
        let said = self.carry_out(now, order);
        self.call(now);
        said
    }

    fn carry_out(&mut self, now: Timestamp, order: &OperatorCommand) -> Reply {
        let newest = self.holders.iter().map(|holder| holder.token).max();
        let meant = order.token.or(newest);
        let meant = self.holders.iter().position(|holder| Some(holder.token) == meant);
        let not_that_one = Reply::HolderChanged { token: newest };
        if order.token.is_some() && meant.is_none() {
            return not_that_one;
        }
        match (order.action, meant) {
            (OperatorAction::Pause { lasting }, _) => self.paused_until = Some(now.after(lasting)),
            (OperatorAction::Resume, _) => self.paused_until = None,
            (OperatorAction::Resize { .. }, _) if self.holders.is_empty() && self.queue.is_empty() => {
                return not_that_one;
            }
            (OperatorAction::Resize { capacity }, _) => self.capacity = capacity.get(),
            (_, None) => return not_that_one,
            (OperatorAction::Ask { within }, Some(at)) => self.holders[at].asked_by = Some(now.after(within)),
            (OperatorAction::Evict(Eviction::AtExpiry), Some(at)) => self.holders[at].evicting = true,
            (OperatorAction::Evict(Eviction::Now), Some(at)) => {
                let holder = self.holders.remove(at);
                let keep = ReleaseRequest::tombstone_ttl(now.until(holder.ends));
                self.tombstone(now, holder.owner, Some(keep), GoneReason::Evicted);
            }
            (command, Some(_)) => panic!("{command:?} is new: state what it does"),
        }
        Reply::Done
    }
}
