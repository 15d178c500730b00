//! One resource as a pure state machine: holders, line, tokens, tombstones, pause, capacity, orders.
//!
//! This is the executable specification. The memory backend is this behind a mutex; every other backend is
//! compared with it, verb by verb. It takes `now` and never reads a clock; every verb first drops what has ended.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    admission,
    claim::{
        Claim, Cursor, Eviction, Handover, Holder, OperatorAction, OperatorCommand, ReleaseRequest,
        RenewRequest, WhenBlocked,
    },
    clock::Timestamp,
    error::Result,
    expiring::ExpiringMap,
    resource::Resource,
    token::{FencingToken, OwnerToken},
    verdict::{
        Blocked, CommandOutcome, FinishRequest, GoneReason, Grant, HeldBy, QueueEntry, Released, Renewal,
        Renewed, Snapshot, Verdict,
    },
};

/// The state of one resource.
#[derive(Clone, Debug)]
pub struct Model {
    /// Of those who are there; without meaning while nobody is.
    capacity: u32,
    seats: ExpiringMap<OwnerToken, Seat>,
    held: u64,
    /// Places by arrival.
    line: ExpiringMap<u64, Place>,
    arrivals: BTreeMap<OwnerToken, u64>,
    next_arrival: u64,
    graves: ExpiringMap<OwnerToken, GoneReason>,
    paused_until: Option<Timestamp>,
    last: Option<FencingToken>,
    version: u64,
}

#[derive(Clone, Debug)]
struct Seat {
    holder: Arc<Holder>,
    weight: u32,
    token: FencingToken,
    since: Timestamp,
    note: Option<Arc<[u8]>>,
    handovers: u32,
    asked: Option<(Timestamp, FinishRequest)>,
    evicting: bool,
    /// Released, but to stay closed until it ends.
    kept: bool,
}

#[derive(Clone, Debug)]
struct Place {
    owner: OwnerToken,
    holder: Arc<Holder>,
    weight: u32,
    since: Timestamp,
}

impl Model {
    /// A resource where nobody is. Cursors count on from `version`: a state that was dropped while idle and made
    /// again must not repeat them.
    pub fn new(version: u64) -> Model {
        Model {
            capacity: 0,
            seats: ExpiringMap::new(),
            held: 0,
            line: ExpiringMap::new(),
            arrivals: BTreeMap::new(),
            next_arrival: 0,
            graves: ExpiringMap::new(),
            paused_until: None,
            last: None,
            version,
        }
    }

    /// Counts changes.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Whether there is nothing left to remember but the last token.
    pub fn is_idle(&self) -> bool {
        self.seats.is_empty() && self.line.is_empty() && self.graves.is_empty() && self.paused_until.is_none()
    }

    /// Drops what has ended.
    pub fn settle(&mut self, now: Timestamp) {
        while let Some(seat) = self.seats.pop_ended(now) {
            self.held -= u64::from(seat.weight);
            self.version += 1;
        }
        while let Some(place) = self.line.pop_ended(now) {
            self.arrivals.remove(&place.owner);
            self.version += 1;
        }
        while self.graves.pop_ended(now).is_some() {}
        if self.paused_until.is_some_and(|until| until <= now) {
            self.paused_until = None;
            self.version += 1;
        }
    }

    /// The owners at the head of the line who can be granted now: the ones to wake.
    pub fn movers(&self) -> impl Iterator<Item = OwnerToken> {
        let open = self.paused_until.is_none();
        let run = if open { admission::grantable(self.held, self.weights(), self.capacity) } else { 0 };
        self.line.iter().take(run).map(|(_, _, place)| place.owner)
    }

    /// Whether a waiting owner has reason to ask again: it can move, or it has no place.
    pub fn is_worth_asking(&self, owner: OwnerToken) -> bool {
        !self.arrivals.contains_key(&owner) || self.movers().any(|mover| mover == owner)
    }

    /// Whether the owner has a place in the line.
    pub fn is_placed(&self, owner: OwnerToken) -> bool {
        self.arrivals.contains_key(&owner)
    }

    /// Whether the owner holds, waits, or was buried.
    pub fn is_known(&self, owner: OwnerToken) -> bool {
        self.is_placed(owner) || self.seats.get(owner).is_some() || self.graves.get(owner).is_some()
    }

    /// How many wait, those included whose place has ended since the last verb.
    pub fn queue_length(&self) -> usize {
        self.line.len()
    }

    fn weights(&self) -> impl Iterator<Item = u32> {
        self.line.iter().map(|(_, _, place)| place.weight)
    }

    /// The verb `acquire`. `clock` feeds [`FencingToken::mint`].
    ///
    /// # Errors
    /// `Limit` if no token is left; nothing is changed then.
    pub fn acquire(&mut self, now: Timestamp, claim: &Claim, clock: u64) -> Result<Verdict> {
        self.settle(now);
        let token = FencingToken::mint(self.last, clock, claim.floor)?;
        if self.graves.get(claim.owner).is_some() {
            // The claim is dead, but whom it was to succeed wanted to go all the same.
            claim.takes_over_from.iter().for_each(|from| self.depart(now, from));
            return Ok(Verdict::Cancelled);
        }
        if let Some((ends, seat)) = self.seats.get(claim.owner) {
            let grant = Grant::new(seat.token, now.until(ends));
            // A kept seat is nobody's: its owner has said farewell, so this is a request that comes late.
            return Ok(if seat.kept { Verdict::Cancelled } else { Verdict::Granted(grant) });
        }
        let there = !self.seats.is_empty() || !self.line.is_empty();
        if there && self.capacity != claim.share.capacity() {
            self.leave_line(claim.owner);
            return Ok(Verdict::Mismatch { capacity: self.capacity });
        }
        if let Some(from) = &claim.takes_over_from
            && let Some(grant) = self.succeed(now, claim, from, token)
        {
            return Ok(Verdict::Granted(grant));
        }
        self.capacity = claim.share.capacity();
        if self.paused_until.is_none() && self.fits(claim) {
            self.leave_line(claim.owner);
            return Ok(Verdict::Granted(self.sit(now, claim, token, now.after(claim.ttl), 0)));
        }
        match claim.when_blocked {
            WhenBlocked::Leave => self.leave_line(claim.owner),
            WhenBlocked::Queue => self.queue(now, claim),
        }
        Ok(Verdict::Blocked(self.blocked(now, claim.owner)))
    }

    /// Takes over a seat, and says so; or takes over a place, or finds nothing, and leaves the rest to the rule.
    fn succeed(
        &mut self,
        now: Timestamp,
        claim: &Claim,
        from: &Handover,
        token: FencingToken,
    ) -> Option<Grant> {
        let weight = claim.share.weight();
        let seat = self.seats.get(from.owner).filter(|(_, seat)| !seat.kept && seat.weight >= weight);
        if let Some((ends, seat)) = seat {
            let downgrade = weight < seat.weight;
            let bounded = seat.handovers >= admission::HANDOVERS_MAX && !self.line.is_empty();
            let refused = !downgrade && (self.paused_until.is_some() || seat.evicting || bounded);
            let handovers = if downgrade { seat.handovers } else { seat.handovers + 1 };
            let ends = if downgrade { ends } else { now.after(claim.ttl) };
            let said = (seat.asked.clone(), seat.evicting);
            self.depart(now, from);
            if refused {
                return None;
            }
            self.leave_line(claim.owner);
            let grant = self.sit(now, claim, token, ends, handovers);
            if downgrade {
                // The same work goes on with less: what an operator said to it stands, or evicting would be in vain.
                let seat = self.seats.get_mut(claim.owner).expect("it just sat down");
                (seat.asked, seat.evicting) = said;
            }
            return Some(grant);
        }
        if let Some(arrival) = self.arrivals.remove(&from.owner) {
            let place = self.line.remove(arrival).expect("arrivals and line agree");
            if claim.when_blocked == WhenBlocked::Queue && !self.arrivals.contains_key(&claim.owner) {
                self.place(now, claim, arrival, place.since);
            }
            self.version += 1;
        }
        self.depart(now, from);
        None
    }

    /// The predecessor goes, and is buried if some request of it may still come.
    fn depart(&mut self, now: Timestamp, from: &Handover) {
        if self.seats.get(from.owner).is_some_and(|(_, seat)| !seat.kept) {
            self.stand_up(from.owner);
        }
        self.leave_line(from.owner);
        if let Some(keep) = from.tombstone {
            self.graves.insert(from.owner, now.after(keep), GoneReason::Cancelled);
        }
    }

    fn fits(&self, claim: &Claim) -> bool {
        let own = self.arrivals.get(&claim.owner).copied().unwrap_or(u64::MAX);
        let ahead =
            self.line.iter().take_while(|(arrival, ..)| *arrival < own).map(|(_, _, place)| place.weight);
        admission::is_granted(self.held, ahead, claim.share.weight(), claim.share.capacity())
    }

    fn sit(
        &mut self,
        now: Timestamp,
        claim: &Claim,
        token: FencingToken,
        ends: Timestamp,
        handovers: u32,
    ) -> Grant {
        let seat = Seat {
            holder: Arc::clone(&claim.holder),
            weight: claim.share.weight(),
            token,
            since: now,
            note: claim.note.clone(),
            handovers,
            asked: None,
            evicting: false,
            kept: false,
        };
        debug_assert!(self.last.is_none_or(|last| last < token), "it grew");
        self.held += u64::from(seat.weight);
        self.seats.insert(claim.owner, ends, seat);
        self.last = Some(token);
        self.version += 1;
        Grant::new(token, now.until(ends))
    }

    fn stand_up(&mut self, owner: OwnerToken) -> bool {
        let Some(seat) = self.seats.remove(owner) else { return false };
        self.held -= u64::from(seat.weight);
        self.version += 1;
        true
    }

    fn queue(&mut self, now: Timestamp, claim: &Claim) {
        let place_ends = now.after(claim.place_ttl);
        match self.arrivals.get(&claim.owner) {
            Some(&arrival) => self.prolong_place(arrival, place_ends),
            None => {
                self.place(now, claim, self.next_arrival, now);
                self.next_arrival += 1;
                self.version += 1;
            }
        }
    }

    fn place(&mut self, now: Timestamp, claim: &Claim, arrival: u64, since: Timestamp) {
        let (owner, weight) = (claim.owner, claim.share.weight());
        let place = Place { owner, holder: Arc::clone(&claim.holder), weight, since };
        self.line.insert(arrival, now.after(claim.place_ttl), place);
        self.arrivals.insert(owner, arrival);
    }

    fn prolong_place(&mut self, arrival: u64, ends: Timestamp) {
        let (old, _) = self.line.get(arrival).expect("arrivals and line agree");
        self.line.reschedule(arrival, ends.max(old));
    }

    fn leave_line(&mut self, owner: OwnerToken) {
        if let Some(arrival) = self.arrivals.remove(&owner) {
            self.line.remove(arrival);
            self.version += 1;
        }
    }

    fn blocked(&self, now: Timestamp, owner: OwnerToken) -> Blocked {
        let own = self.arrivals.get(&owner).copied();
        let ahead = own.map_or(self.line.len(), |own| {
            let near = self
                .line
                .iter()
                .take(admission::WINDOW + 1)
                .take_while(|(arrival, ..)| *arrival < own)
                .count();
            if near <= admission::WINDOW { near } else { self.line.len() - 1 }
        });
        let places = self.line.iter().take(admission::WINDOW).map(|(_, ends, _)| ends).min();
        let next = [self.seats.next_end(), places, self.paused_until].into_iter().flatten().min();
        let holders = self.seats.by_end().take(Blocked::HOLDERS_MAX);
        Blocked {
            queued: own.is_some(),
            ahead: u32::try_from(ahead).unwrap_or(u32::MAX),
            holders: holders.map(|(ends, seat)| seat.seen(now, ends)).collect(),
            changes_in: next.map(|at| now.until(at)),
            paused: self.paused_until.is_some(),
            cursor: Cursor(self.version),
        }
    }

    /// The verb `renew`, for one of the batch.
    pub fn renew(&mut self, now: Timestamp, held: &RenewRequest) -> Renewal {
        self.settle(now);
        if let Some((ends, seat)) = self.seats.get(held.owner)
            && !seat.kept
        {
            let evicting = seat.evicting;
            let asked = seat.asked.as_ref().map(|(by, asked)| asked.left(now, *by));
            let token = seat.token;
            let ends = if evicting { ends } else { ends.max(now.after(held.ttl)) };
            self.seats.reschedule(held.owner, ends);
            if let (Some(note), Some(seat)) = (&held.note, self.seats.get_mut(held.owner)) {
                seat.note = Some(Arc::clone(note));
                self.version += 1;
            }
            return Renewal::Renewed(Renewed { token, remaining: now.until(ends), asked, evicting });
        }
        if let Some(&arrival) = self.arrivals.get(&held.owner) {
            self.prolong_place(arrival, now.after(held.ttl));
            let (ends, _) = self.line.get(arrival).expect("arrivals and line agree");
            return Renewal::Queued { remaining: now.until(ends) };
        }
        Renewal::Gone { why: self.graves.get(held.owner).map_or(GoneReason::NotThere, |(_, why)| *why) }
    }

    /// The verb `release`.
    pub fn release(&mut self, now: Timestamp, request: &ReleaseRequest) -> Released {
        self.settle(now);
        let owner = request.owner;
        let holds = self.seats.get(owner).is_some_and(|(_, seat)| !seat.kept);
        let waits = self.arrivals.contains_key(&owner);
        match request.keep_for.filter(|keep_for| !keep_for.is_zero()) {
            Some(keep_for) if holds => {
                self.seats.get_mut(owner).expect("it holds").kept = true;
                self.seats.reschedule(owner, now.after(keep_for));
                self.version += 1;
            }
            _ if holds => drop(self.stand_up(owner)),
            _ => self.leave_line(owner),
        }
        if let Some(keep) = request.tombstone {
            self.graves.insert(owner, now.after(keep), GoneReason::Cancelled);
        }
        if holds || waits { Released::Now } else { Released::AlreadyGone }
    }

    /// The verb `order`; the caller keeps the audit record.
    pub fn order(&mut self, now: Timestamp, order: &OperatorCommand) -> CommandOutcome {
        self.settle(now);
        let meant = match order.token {
            None => self.seats.iter().map(|(owner, _, seat)| (seat.token, owner)).max(),
            Some(token) => {
                let that = self.seats.iter().find(|(_, _, seat)| seat.token == token);
                let Some((owner, ..)) = that else { return self.not_that_one() };
                Some((token, owner))
            }
        };
        match (order.action, meant) {
            (OperatorAction::Pause { lasting }, _) => self.paused_until = Some(now.after(lasting)),
            (OperatorAction::Resume, _) => self.paused_until = None,
            (OperatorAction::Resize { capacity }, _) if self.held > 0 || !self.line.is_empty() => {
                self.capacity = capacity.get();
            }
            (_, None) | (OperatorAction::Resize { .. }, _) => return self.not_that_one(),
            (OperatorAction::Ask { within }, Some((_, owner))) => {
                let asked = FinishRequest::new(within, order.by.as_str(), order.why.as_str());
                self.seats.get_mut(owner).expect("it holds").asked = Some((now.after(within), asked));
            }
            (OperatorAction::Evict(Eviction::AtExpiry), Some((_, owner))) => {
                self.seats.get_mut(owner).expect("it holds").evicting = true;
            }
            (OperatorAction::Evict(Eviction::Now), Some((_, owner))) => {
                let (ends, _) = self.seats.get(owner).expect("it holds");
                let keep = ReleaseRequest::tombstone_ttl(now.until(ends));
                self.stand_up(owner);
                self.graves.insert(owner, now.after(keep), GoneReason::Evicted);
            }
        }
        self.version += 1;
        CommandOutcome::Done
    }

    fn not_that_one(&self) -> CommandOutcome {
        CommandOutcome::HolderChanged { token: self.seats.iter().map(|(_, _, seat)| seat.token).max() }
    }

    /// What is there now. Looks only: what has ended is left out, not dropped.
    pub fn snapshot(&self, now: Timestamp, resource: &Resource) -> Snapshot {
        let mut seats: Vec<_> = self.seats.by_end().filter(|(ends, _)| *ends > now).collect();
        seats.sort_by_key(|(_, seat)| seat.token);
        let places: Vec<_> = self.line.iter().filter(|(_, ends, _)| *ends > now).collect();
        let mut snapshot = Snapshot::empty(resource.clone());
        snapshot.capacity = self.capacity;
        snapshot.holder_count = u32::try_from(seats.len()).unwrap_or(u32::MAX);
        snapshot.queue_length = u32::try_from(places.len()).unwrap_or(u32::MAX);
        let listed = Snapshot::LISTED_MAX;
        snapshot.holders = seats.into_iter().take(listed).map(|(ends, seat)| seat.seen(now, ends)).collect();
        let placed = |(_, ends, place): (u64, Timestamp, &Place)| {
            QueueEntry::new(Arc::clone(&place.holder), place.weight, place.since.until(now), now.until(ends))
        };
        snapshot.queue = places.into_iter().take(listed).map(placed).collect();
        snapshot.last_token = self.last;
        snapshot.paused_for = self.paused_until.filter(|until| *until > now).map(|until| now.until(until));
        snapshot.cursor = Cursor(self.version);
        snapshot
    }
}

impl Seat {
    fn seen(&self, now: Timestamp, ends: Timestamp) -> HeldBy {
        HeldBy {
            holder: Arc::clone(&self.holder),
            token: self.token,
            weight: self.weight,
            held_for: self.since.until(now),
            remaining: now.until(ends),
            note: self.note.clone(),
            handovers: self.handovers,
            asked: self.asked.as_ref().map(|(by, asked)| asked.left(now, *by)),
            evicting: self.evicting,
            kept: self.kept,
        }
    }
}

impl FinishRequest {
    fn left(&self, now: Timestamp, by: Timestamp) -> FinishRequest {
        FinishRequest { within: now.until(by), ..self.clone() }
    }
}
