//! The expected state of one resource, kept a second time and as simply as possible: vectors, no indexes.

use leasehold::{
    Claim, Eviction, FencingToken, Handover, OperatorAction, OperatorCommand, OwnerToken, ReleaseRequest,
    RenewRequest, Timestamp, WhenBlocked,
};

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

    /// The weight of the waiters ahead of this owner.
    pub(crate) fn ahead(&self, owner: OwnerToken) -> u64 {
        self.queue.iter().take_while(|place| place.owner != owner).map(|place| u64::from(place.weight)).sum()
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
                let (weight, ends) = (claim.share.weight(), now.after(claim.place_ttl));
                self.queue[at] = ExpectedWaiter { owner: claim.owner, weight, ends };
            } else {
                self.queue.remove(at);
            }
        }
        self.release_predecessor(now, from);
    }

    pub(crate) fn queue(&mut self, now: Timestamp, claim: &Claim) {
        let ends = now.after(claim.place_ttl);
        match self.place(claim.owner) {
            Some(at) => self.queue[at].ends = self.queue[at].ends.max(ends),
            None => {
                self.queue.push(ExpectedWaiter { owner: claim.owner, weight: claim.share.weight(), ends });
            }
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
        let head = self.queue.first().filter(|_| self.paused_until.is_none())?;
        (self.held() + u64::from(head.weight) <= u64::from(self.capacity)).then_some(head.owner)
    }
}
