//! The expected state of one resource, kept a second time and as simply as possible: vectors, no indexes.

use leasehold::{
    Claim, ClientId, Eviction, FencingToken, Handover, OperatorAction, OperatorCommand, OwnerToken,
    ReleaseRequest, RenewRequest, Timestamp, WhenBlocked,
};

use leasehold_core::admission::{ANSWER_WITHIN, SAME_CLIENT_WINDOW, WINDOW};

use crate::clock::Time;

#[derive(Clone, Debug)]
pub(crate) struct ExpectedHolder {
    pub(crate) owner: OwnerToken,
    pub(crate) weight: u32,
    pub(crate) token: FencingToken,
    pub(crate) ends: Timestamp,
    pub(crate) kept: bool,
    pub(crate) evicting: bool,
    /// Handovers in a row.
    pub(crate) handovers: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct ExpectedWaiter {
    pub(crate) owner: OwnerToken,
    pub(crate) weight: u32,
    pub(crate) ends: Timestamp,
    pub(crate) client: Option<ClientId>,
    /// When its last request came.
    pub(crate) heard: Timestamp,
    /// Since when it is known that it could be granted, if it was not heard since.
    pub(crate) called: Option<Timestamp>,
    /// It did not answer in time, and is passed over.
    pub(crate) silent: bool,
}

impl ExpectedWaiter {
    fn new(now: Timestamp, claim: &Claim) -> ExpectedWaiter {
        let ends = now.after(claim.place_ttl);
        let (owner, weight, client) = (claim.owner, claim.share.weight(), claim.client);
        ExpectedWaiter { owner, weight, ends, client, heard: now, called: None, silent: false }
    }
}

/// What the executed verbs say about one resource.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExpectedState {
    pub(crate) capacity: u32,
    pub(crate) holders: Vec<ExpectedHolder>,
    pub(crate) queue: Vec<ExpectedWaiter>,
    pub(crate) tombstones: Vec<(OwnerToken, Timestamp)>,
    pub(crate) paused_until: Option<Timestamp>,
    pub(crate) last: Option<FencingToken>,
    /// The owner at the head of the queue that could be granted, and since when.
    pub(crate) grantable: Option<(OwnerToken, Time)>,
}

impl ExpectedState {
    pub(crate) fn remove_expired(&mut self, now: Timestamp) {
        self.holders.retain(|holder| holder.ends > now);
        self.queue.retain(|place| place.ends > now);
        self.tombstones.retain(|(_, ends)| *ends > now);
        self.paused_until = self.paused_until.filter(|until| *until > now);
    }

    pub(crate) fn holder(&self, owner: OwnerToken) -> Option<&ExpectedHolder> {
        self.holders.iter().find(|holder| holder.owner == owner)
    }

    pub(crate) fn live_holder(&self, owner: OwnerToken) -> Option<&ExpectedHolder> {
        self.holder(owner).filter(|holder| !holder.kept)
    }

    pub(crate) fn place(&self, owner: OwnerToken) -> Option<usize> {
        self.queue.iter().position(|place| place.owner == owner)
    }

    pub(crate) fn has_tombstone(&self, owner: OwnerToken) -> bool {
        self.tombstones.iter().any(|(cancelled, _)| *cancelled == owner)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.holders.is_empty() && self.queue.is_empty()
    }

    pub(crate) fn held(&self) -> u64 {
        self.holders.iter().map(|holder| u64::from(holder.weight)).sum()
    }

    /// The waiters that are not passed over.
    pub(crate) fn live(&self) -> impl Iterator<Item = &ExpectedWaiter> {
        self.queue.iter().filter(|place| !place.silent)
    }

    /// The weight of the waiters ahead of this owner.
    pub(crate) fn ahead(&self, owner: OwnerToken) -> u64 {
        let ahead = self.queue.iter().take_while(|place| place.owner != owner);
        ahead.filter(|place| !place.silent).map(|place| u64::from(place.weight)).sum()
    }

    /// A request of this owner has come. Those who were called a second ago and are not heard of are passed over.
    pub(crate) fn hear(&mut self, now: Timestamp, owner: Option<OwnerToken>) {
        for place in self.queue.iter_mut().filter(|place| Some(place.owner) == owner) {
            (place.heard, place.called, place.silent) = (now, None, false);
        }
        let is_over = |since: Timestamp| since.after(ANSWER_WITHIN) <= now;
        let late = |place: &&ExpectedWaiter| place.called.is_some_and(is_over);
        let late: Vec<ExpectedWaiter> = self.live().take(WINDOW).filter(late).cloned().collect();
        let near: Vec<OwnerToken> = self.live().take(SAME_CLIENT_WINDOW).map(|place| place.owner).collect();
        for place in &mut self.queue {
            let with_client = late.iter().any(|late| late.client.is_some() && late.client == place.client);
            let with_client = with_client && is_over(place.heard) && near.contains(&place.owner);
            place.silent |= with_client || late.iter().any(|late| late.owner == place.owner);
        }
    }

    /// Calls the waiters that can be granted, and if others are silent the rest of the window.
    pub(crate) fn call(&mut self, now: Timestamp) {
        let any_silent = self.queue.iter().any(|place| place.silent);
        let (mut taken, capacity) = (self.held(), u64::from(self.capacity));
        if self.paused_until.is_some() {
            return;
        }
        let mut has_room = true;
        for (index, place) in self.queue.iter_mut().filter(|place| !place.silent).take(WINDOW).enumerate() {
            taken += u64::from(place.weight);
            has_room &= taken <= capacity;
            if index == 0 && !has_room {
                return;
            }
            let quiet = any_silent && place.heard.after(ANSWER_WITHIN) <= now;
            if place.called.is_none() && (has_room || quiet) {
                place.called = Some(now);
            }
        }
    }

    pub(crate) fn leave(&mut self, owner: OwnerToken) {
        self.queue.retain(|place| place.owner != owner);
    }

    pub(crate) fn release_predecessor(&mut self, now: Timestamp, from: &Handover) {
        self.holders.retain(|holder| holder.owner != from.owner || holder.kept);
        self.leave(from.owner);
        self.tombstones.extend(from.tombstone.map(|keep| (from.owner, now.after(keep))));
    }

    /// A successor takes the place of its predecessor, if that had one.
    pub(crate) fn inherit(&mut self, now: Timestamp, claim: &Claim, from: &Handover) {
        if let Some(at) = self.place(from.owner) {
            if claim.when_blocked == WhenBlocked::Queue && self.place(claim.owner).is_none() {
                self.queue[at] = ExpectedWaiter::new(now, claim);
            } else {
                self.queue.remove(at);
            }
        }
        self.release_predecessor(now, from);
    }

    pub(crate) fn queue(&mut self, now: Timestamp, claim: &Claim) {
        match self.place(claim.owner) {
            Some(at) => self.queue[at].ends = self.queue[at].ends.max(now.after(claim.place_ttl)),
            None => self.queue.push(ExpectedWaiter::new(now, claim)),
        }
    }

    /// Returns the new end.
    pub(crate) fn renew(&mut self, now: Timestamp, held: &RenewRequest) -> Option<Timestamp> {
        let holder = self.holders.iter_mut().find(|holder| holder.owner == held.owner && !holder.kept)?;
        if !holder.evicting {
            holder.ends = holder.ends.max(now.after(held.ttl));
        }
        Some(holder.ends)
    }

    pub(crate) fn release(&mut self, now: Timestamp, request: &ReleaseRequest) {
        let owner = request.owner;
        let keep_for = request.keep_for.filter(|keep_for| !keep_for.is_zero());
        match (keep_for, self.holders.iter_mut().find(|holder| holder.owner == owner && !holder.kept)) {
            (Some(keep_for), Some(holder)) => (holder.kept, holder.ends) = (true, now.after(keep_for)),
            _ => self.holders.retain(|holder| holder.owner != owner || holder.kept),
        }
        self.leave(owner);
        self.tombstones.extend(request.tombstone.map(|keep| (owner, now.after(keep))));
    }

    /// A command that was carried out.
    pub(crate) fn order(&mut self, now: Timestamp, order: &OperatorCommand) {
        let meant = |holder: &&mut ExpectedHolder| order.token.is_none_or(|token| holder.token == token);
        let holder = self.holders.iter_mut().filter(meant).max_by_key(|holder| holder.token);
        match (order.action, holder) {
            (OperatorAction::Pause { lasting }, _) => self.paused_until = Some(now.after(lasting)),
            (OperatorAction::Resume, _) => self.paused_until = None,
            (OperatorAction::Resize { capacity }, _) => self.capacity = capacity.get(),
            (OperatorAction::Evict(Eviction::AtExpiry), Some(holder)) => holder.evicting = true,
            (OperatorAction::Evict(Eviction::Now), Some(holder)) => {
                let (owner, keep) = (holder.owner, ReleaseRequest::tombstone_ttl(now.until(holder.ends)));
                self.holders.retain(|holder| holder.owner != owner);
                self.tombstones.push((owner, now.after(keep)));
            }
            _ => {}
        }
    }

    /// The head of the queue, if it could be granted now.
    pub(crate) fn grantable_head(&self) -> Option<OwnerToken> {
        let head = self.live().next().filter(|_| self.paused_until.is_none())?;
        (self.held() + u64::from(head.weight) <= u64::from(self.capacity)).then_some(head.owner)
    }
}
