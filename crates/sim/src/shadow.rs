//! One resource, kept a second time and as plainly as possible: vectors, no indexes, no cleverness.

use leasehold::{
    Claim, Eviction, FencingToken, Handover, OperatorAction, OperatorCommand, OwnerToken, ReleaseRequest,
    RenewRequest, Timestamp, WhenBlocked,
};

use crate::clock::Time;

#[derive(Clone, Debug)]
pub(crate) struct Seat {
    pub(crate) owner: OwnerToken,
    pub(crate) weight: u32,
    pub(crate) token: FencingToken,
    pub(crate) ends: Timestamp,
    pub(crate) kept: bool,
    pub(crate) evicting: bool,
    /// Hand-overs in a row.
    pub(crate) turns: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) owner: OwnerToken,
    pub(crate) weight: u32,
    pub(crate) ends: Timestamp,
}

/// What the verbs and their answers say about one resource.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shadow {
    pub(crate) capacity: u32,
    pub(crate) seats: Vec<Seat>,
    pub(crate) line: Vec<Place>,
    pub(crate) graves: Vec<(OwnerToken, Timestamp)>,
    pub(crate) paused_until: Option<Timestamp>,
    pub(crate) last: Option<FencingToken>,
    /// Who stands first and could be granted, and since when.
    pub(crate) movable: Option<(OwnerToken, Time)>,
}

impl Shadow {
    pub(crate) fn settle(&mut self, now: Timestamp) {
        self.seats.retain(|seat| seat.ends > now);
        self.line.retain(|place| place.ends > now);
        self.graves.retain(|(_, ends)| *ends > now);
        self.paused_until = self.paused_until.filter(|until| *until > now);
    }

    pub(crate) fn seat(&self, owner: OwnerToken) -> Option<&Seat> {
        self.seats.iter().find(|seat| seat.owner == owner)
    }

    pub(crate) fn live_seat(&self, owner: OwnerToken) -> Option<&Seat> {
        self.seat(owner).filter(|seat| !seat.kept)
    }

    pub(crate) fn place(&self, owner: OwnerToken) -> Option<usize> {
        self.line.iter().position(|place| place.owner == owner)
    }

    pub(crate) fn is_buried(&self, owner: OwnerToken) -> bool {
        self.graves.iter().any(|(buried, _)| *buried == owner)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.seats.is_empty() && self.line.is_empty()
    }

    pub(crate) fn held(&self) -> u64 {
        self.seats.iter().map(|seat| u64::from(seat.weight)).sum()
    }

    /// Weight of the places ahead of this owner.
    pub(crate) fn ahead(&self, owner: OwnerToken) -> u64 {
        self.line.iter().take_while(|place| place.owner != owner).map(|place| u64::from(place.weight)).sum()
    }

    pub(crate) fn leave(&mut self, owner: OwnerToken) {
        self.line.retain(|place| place.owner != owner);
    }

    pub(crate) fn depart(&mut self, now: Timestamp, from: &Handover) {
        self.seats.retain(|seat| seat.owner != from.owner || seat.kept);
        self.leave(from.owner);
        self.graves.extend(from.tombstone.map(|keep| (from.owner, now.after(keep))));
    }

    /// A successor takes the place of its predecessor, if that had one.
    pub(crate) fn inherit(&mut self, now: Timestamp, claim: &Claim, from: &Handover) {
        if let Some(at) = self.place(from.owner) {
            if claim.when_blocked == WhenBlocked::Queue && self.place(claim.owner).is_none() {
                let (weight, ends) = (claim.share.weight(), now.after(claim.place_ttl));
                self.line[at] = Place { owner: claim.owner, weight, ends };
            } else {
                self.line.remove(at);
            }
        }
        self.depart(now, from);
    }

    pub(crate) fn queue(&mut self, now: Timestamp, claim: &Claim) {
        let ends = now.after(claim.place_ttl);
        match self.place(claim.owner) {
            Some(at) => self.line[at].ends = self.line[at].ends.max(ends),
            None => self.line.push(Place { owner: claim.owner, weight: claim.share.weight(), ends }),
        }
    }

    /// Returns the new end.
    pub(crate) fn renew(&mut self, now: Timestamp, held: &RenewRequest) -> Option<Timestamp> {
        let seat = self.seats.iter_mut().find(|seat| seat.owner == held.owner && !seat.kept)?;
        if !seat.evicting {
            seat.ends = seat.ends.max(now.after(held.ttl));
        }
        Some(seat.ends)
    }

    pub(crate) fn release(&mut self, now: Timestamp, request: &ReleaseRequest) {
        let owner = request.owner;
        let keep_for = request.keep_for.filter(|keep_for| !keep_for.is_zero());
        match (keep_for, self.seats.iter_mut().find(|seat| seat.owner == owner && !seat.kept)) {
            (Some(keep_for), Some(seat)) => (seat.kept, seat.ends) = (true, now.after(keep_for)),
            _ => self.seats.retain(|seat| seat.owner != owner || seat.kept),
        }
        self.leave(owner);
        self.graves.extend(request.tombstone.map(|keep| (owner, now.after(keep))));
    }

    /// An order that was carried out.
    pub(crate) fn order(&mut self, now: Timestamp, order: &OperatorCommand) {
        let meant = |seat: &&mut Seat| order.token.is_none_or(|token| seat.token == token);
        let seat = self.seats.iter_mut().filter(meant).max_by_key(|seat| seat.token);
        match (order.action, seat) {
            (OperatorAction::Pause { lasting }, _) => self.paused_until = Some(now.after(lasting)),
            (OperatorAction::Resume, _) => self.paused_until = None,
            (OperatorAction::Resize { capacity }, _) => self.capacity = capacity.get(),
            (OperatorAction::Evict(Eviction::AtExpiry), Some(seat)) => seat.evicting = true,
            (OperatorAction::Evict(Eviction::Now), Some(seat)) => {
                let (owner, keep) = (seat.owner, ReleaseRequest::tombstone_ttl(now.until(seat.ends)));
                self.seats.retain(|seat| seat.owner != owner);
                self.graves.push((owner, now.after(keep)));
            }
            _ => {}
        }
    }

    /// Whoever stands first, if it could be granted now.
    pub(crate) fn next_mover(&self) -> Option<OwnerToken> {
        let head = self.line.first().filter(|_| self.paused_until.is_none())?;
        (self.held() + u64::from(head.weight) <= u64::from(self.capacity)).then_some(head.owner)
    }
}
