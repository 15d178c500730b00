//! The same rules, stated again without cleverness: plain lists, looked through from end to end.
//!
//! Written from the contract, not from the model, so that the two can be held against each other.

use std::time::Duration;

use leasehold_core::{
    Claim, Eviction, FencingToken, GoneReason, OperatorAction, OperatorCommand, OwnerToken, ReleaseRequest,
    RenewRequest, Timestamp, WhenBlocked, admission,
};

#[derive(Clone, Debug, Default)]
pub(crate) struct Naive {
    pub(crate) capacity: u32,
    pub(crate) seats: Vec<Seat>,
    pub(crate) line: Vec<Place>,
    pub(crate) graves: Vec<Grave>,
    pub(crate) paused_until: Option<Timestamp>,
    pub(crate) last: Option<FencingToken>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seat {
    pub(crate) owner: OwnerToken,
    pub(crate) weight: u32,
    pub(crate) token: FencingToken,
    pub(crate) since: Timestamp,
    pub(crate) ends: Timestamp,
    pub(crate) turns: u32,
    pub(crate) asked_by: Option<Timestamp>,
    pub(crate) evicting: bool,
    pub(crate) kept: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) owner: OwnerToken,
    pub(crate) weight: u32,
    pub(crate) since: Timestamp,
    pub(crate) ends: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Grave {
    owner: OwnerToken,
    ends: Timestamp,
    why: GoneReason,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Said {
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
        self.seats.retain(|seat| seat.ends > now);
        self.line.retain(|place| place.ends > now);
        self.graves.retain(|grave| grave.ends > now);
        self.paused_until = self.paused_until.filter(|until| *until > now);
    }

    fn seat_of(&self, owner: OwnerToken) -> Option<&Seat> {
        self.seats.iter().find(|seat| seat.owner == owner)
    }

    /// A seat whose owner has not said farewell.
    fn live_seat_of(&self, owner: OwnerToken) -> Option<&Seat> {
        self.seat_of(owner).filter(|seat| !seat.kept)
    }

    fn stands(&self, owner: OwnerToken) -> Option<usize> {
        self.line.iter().position(|place| place.owner == owner)
    }

    fn leave_line(&mut self, owner: OwnerToken) {
        self.line.retain(|place| place.owner != owner);
    }

    fn stand_up(&mut self, owner: OwnerToken) {
        self.seats.retain(|seat| seat.owner != owner || seat.kept);
    }

    fn tombstone(&mut self, now: Timestamp, owner: OwnerToken, keep: Option<Duration>, why: GoneReason) {
        if let Some(keep) = keep {
            self.graves.retain(|grave| grave.owner != owner);
            self.graves.push(Grave { owner, ends: now.after(keep), why });
        }
    }

    pub(crate) fn acquire(&mut self, now: Timestamp, claim: &Claim, token: FencingToken) -> Said {
        self.forget_what_ended(now);
        if self.graves.iter().any(|grave| grave.owner == claim.owner) {
            if let Some(from) = claim.takes_over_from {
                self.stand_up(from.owner);
                self.leave_line(from.owner);
                self.tombstone(now, from.owner, from.tombstone, GoneReason::Cancelled);
            }
            return Said::Cancelled;
        }
        if let Some(seat) = self.seat_of(claim.owner) {
            let (token, remaining) = (seat.token, now.until(seat.ends));
            return if seat.kept { Said::Cancelled } else { Said::Granted { token, remaining } };
        }
        let nobody = self.seats.is_empty() && self.line.is_empty();
        if !nobody && self.capacity != claim.share.capacity() {
            self.leave_line(claim.owner);
            return Said::Mismatch { capacity: self.capacity };
        }
        if let Some(said) = self.succeed(now, claim, token) {
            return said;
        }
        self.capacity = claim.share.capacity();
        let ahead = self.stands(claim.owner).unwrap_or(self.line.len());
        let before: u64 = self.line[..ahead].iter().map(|place| u64::from(place.weight)).sum();
        let held: u64 = self.seats.iter().map(|seat| u64::from(seat.weight)).sum();
        let fits = held + before + u64::from(claim.share.weight()) <= u64::from(self.capacity);
        if fits && ahead <= admission::WINDOW && self.paused_until.is_none() {
            return self.sit(now, claim, token, now.after(claim.ttl), 0);
        }
        match (claim.when_blocked, self.stands(claim.owner)) {
            (WhenBlocked::Leave, _) => self.leave_line(claim.owner),
            (WhenBlocked::Queue, Some(at)) => {
                self.line[at].ends = self.line[at].ends.max(now.after(claim.place_ttl));
            }
            (WhenBlocked::Queue, None) => {
                let place = self.place(now, claim, now);
                self.line.push(place);
            }
        }
        self.blocked(now, claim.owner)
    }

    /// What the claim gets from whom it succeeds; nothing if it is to be judged like any other.
    fn succeed(&mut self, now: Timestamp, claim: &Claim, token: FencingToken) -> Option<Said> {
        let from = claim.takes_over_from?;
        let seat = self.live_seat_of(from.owner).cloned();
        let place = self.stands(from.owner);
        let others_wait = !self.line.is_empty();
        self.stand_up(from.owner);
        self.tombstone(now, from.owner, from.tombstone, GoneReason::Cancelled);
        if let Some(seat) = seat {
            let weight = claim.share.weight();
            let tired = seat.turns >= admission::HANDOVERS_MAX && others_wait;
            return if weight < seat.weight {
                let said = self.sit(now, claim, token, seat.ends, seat.turns);
                let heir = self.seats.last_mut()?;
                (heir.evicting, heir.asked_by) = (seat.evicting, seat.asked_by);
                Some(said)
            } else if weight > seat.weight || tired || seat.evicting || self.paused_until.is_some() {
                None
            } else {
                Some(self.sit(now, claim, token, now.after(claim.ttl), seat.turns + 1))
            };
        }
        if let Some(at) = place {
            let heir_stands = self.stands(claim.owner).is_some();
            if claim.when_blocked == WhenBlocked::Queue && !heir_stands {
                self.line[at] = self.place(now, claim, self.line[at].since);
            } else {
                self.line.remove(at);
            }
        }
        None
    }

    fn place(&self, now: Timestamp, claim: &Claim, since: Timestamp) -> Place {
        Place { owner: claim.owner, weight: claim.share.weight(), since, ends: now.after(claim.place_ttl) }
    }

    fn sit(
        &mut self,
        now: Timestamp,
        claim: &Claim,
        token: FencingToken,
        ends: Timestamp,
        turns: u32,
    ) -> Said {
        self.leave_line(claim.owner);
        let (owner, weight) = (claim.owner, claim.share.weight());
        let (asked_by, evicting, kept) = (None, false, false);
        self.seats.push(Seat { owner, weight, token, since: now, ends, turns, asked_by, evicting, kept });
        self.last = Some(token);
        Said::Granted { token, remaining: now.until(ends) }
    }

    fn blocked(&self, now: Timestamp, owner: OwnerToken) -> Said {
        let placed = self.stands(owner);
        let seats = self.seats.iter().map(|seat| seat.ends);
        let places = self.line.iter().take(admission::WINDOW).map(|place| place.ends);
        let changes = seats.chain(places).chain(self.paused_until).min();
        Said::Blocked {
            placed: placed.is_some(),
            ahead: placed.unwrap_or(self.line.len()),
            changes_in: changes.map(|at| now.until(at)),
            paused: self.paused_until.is_some(),
        }
    }

    pub(crate) fn renew(&mut self, now: Timestamp, held: &RenewRequest) -> Said {
        self.forget_what_ended(now);
        if let Some(seat) = self.seats.iter_mut().find(|seat| seat.owner == held.owner && !seat.kept) {
            if !seat.evicting {
                seat.ends = seat.ends.max(now.after(held.ttl));
            }
            let asked = seat.asked_by.map(|by| now.until(by));
            let (token, remaining, evicting) = (seat.token, now.until(seat.ends), seat.evicting);
            return Said::Kept { token, remaining, asked, evicting };
        }
        if let Some(place) = self.line.iter_mut().find(|place| place.owner == held.owner) {
            place.ends = place.ends.max(now.after(held.ttl));
            return Said::Queued { remaining: now.until(place.ends) };
        }
        let grave = self.graves.iter().find(|grave| grave.owner == held.owner);
        Said::Gone(grave.map_or(GoneReason::NotThere, |grave| grave.why))
    }

    pub(crate) fn release(&mut self, now: Timestamp, request: &ReleaseRequest) -> Said {
        self.forget_what_ended(now);
        let owner = request.owner;
        let there = self.live_seat_of(owner).is_some() || self.stands(owner).is_some();
        if let Some(keep_for) = request.keep_for.filter(|keep_for| *keep_for > Duration::ZERO) {
            for seat in self.seats.iter_mut().filter(|seat| seat.owner == owner && !seat.kept) {
                (seat.kept, seat.ends) = (true, now.after(keep_for));
            }
        }
        self.stand_up(owner);
        self.leave_line(owner);
        self.tombstone(now, owner, request.tombstone, GoneReason::Cancelled);
        Said::Released { now: there }
    }

    pub(crate) fn order(&mut self, now: Timestamp, order: &OperatorCommand) -> Said {
        self.forget_what_ended(now);
        let newest = self.seats.iter().map(|seat| seat.token).max();
        let meant = order.token.or(newest);
        let meant = self.seats.iter().position(|seat| Some(seat.token) == meant);
        let not_that_one = Said::HolderChanged { token: newest };
        if order.token.is_some() && meant.is_none() {
            return not_that_one;
        }
        match (order.action, meant) {
            (OperatorAction::Pause { lasting }, _) => self.paused_until = Some(now.after(lasting)),
            (OperatorAction::Resume, _) => self.paused_until = None,
            (OperatorAction::Resize { .. }, _) if self.seats.is_empty() && self.line.is_empty() => {
                return not_that_one;
            }
            (OperatorAction::Resize { capacity }, _) => self.capacity = capacity.get(),
            (_, None) => return not_that_one,
            (OperatorAction::Ask { within }, Some(at)) => self.seats[at].asked_by = Some(now.after(within)),
            (OperatorAction::Evict(Eviction::AtExpiry), Some(at)) => self.seats[at].evicting = true,
            (OperatorAction::Evict(Eviction::Now), Some(at)) => {
                let seat = self.seats.remove(at);
                let keep = ReleaseRequest::tombstone_ttl(now.until(seat.ends));
                self.tombstone(now, seat.owner, Some(keep), GoneReason::Evicted);
            }
            (command, Some(_)) => panic!("{command:?} is new: state what it does"),
        }
        Said::Done
    }
}
