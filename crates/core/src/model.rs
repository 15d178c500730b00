//! One resource as a pure state machine: its holders, queue, tokens, tombstones, pause and capacity.
//!
//! This is the executable specification. The memory backend is this state machine behind a mutex, and the tests compare
//! every other backend with it, verb by verb. It takes `now` as an argument and never reads a clock.
//!
//! What `acquire` does, in this order:
//!
//! 1. Remove what has expired: holders, queued claims, tombstones, the pause. Every verb begins with this.
//! 2. If the owner has a tombstone, answer `Cancelled`. If the claim was to take over from another one, release that one.
//! 3. If the owner holds the resource, answer with the same grant and what remains of it.
//! 4. If others use the resource with another capacity, answer `Mismatch`.
//! 5. If the claim takes over from a holder of at least its weight, make it the holder in that holder's place.
//!    If it takes over from a queued claim, give it that claim's place in the queue, and go on.
//! 6. If the resource is not paused and the [admission rule](crate::admission) allows it, make the claim a holder.
//! 7. Otherwise queue the claim or forget it, as it says, and answer `Blocked`.

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
    /// The capacity that the present claims use. It has no meaning while there are none.
    capacity: u32,
    holders: ExpiringMap<OwnerToken, HeldClaim>,
    /// The sum of the holders' weights.
    held: u64,
    /// Queued claims by arrival number.
    queue: ExpiringMap<u64, QueuedClaim>,
    /// The arrival number of each queued owner.
    arrivals: BTreeMap<OwnerToken, u64>,
    next_arrival: u64,
    /// Owners whose requests are refused, and why.
    tombstones: ExpiringMap<OwnerToken, GoneReason>,
    paused_until: Option<Timestamp>,
    last_token: Option<FencingToken>,
    /// Counts changes; a [`Cursor`] is a value of this.
    version: u64,
}

#[derive(Clone, Debug)]
struct HeldClaim {
    holder: Arc<Holder>,
    weight: u32,
    token: FencingToken,
    since: Timestamp,
    note: Option<Arc<[u8]>>,
    handovers: u32,
    /// An operator's request to finish, and until when.
    asked: Option<(Timestamp, FinishRequest)>,
    /// An operator evicted it at its expiry: it is not renewed any more.
    evicting: bool,
    /// It was released with `keep_for`: nobody holds the resource, and nobody is granted before this expires.
    kept: bool,
}

#[derive(Clone, Debug)]
struct QueuedClaim {
    owner: OwnerToken,
    holder: Arc<Holder>,
    weight: u32,
    since: Timestamp,
}

impl Model {
    /// A resource that no claim holds or waits for. Versions count on from `version`: a state that was dropped while it was
    /// idle and is made again must not repeat a cursor.
    pub fn new(version: u64) -> Model {
        Model {
            capacity: 0,
            holders: ExpiringMap::new(),
            held: 0,
            queue: ExpiringMap::new(),
            arrivals: BTreeMap::new(),
            next_arrival: 0,
            tombstones: ExpiringMap::new(),
            paused_until: None,
            last_token: None,
            version,
        }
    }

    /// The number of changes so far.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Whether nothing is left to remember but the last token.
    pub fn is_idle(&self) -> bool {
        self.holders.is_empty()
            && self.queue.is_empty()
            && self.tombstones.is_empty()
            && self.paused_until.is_none()
    }

    /// Removes what has expired.
    pub fn remove_expired(&mut self, now: Timestamp) {
        while let Some(held_claim) = self.holders.pop_ended(now) {
            self.held -= u64::from(held_claim.weight);
            self.version += 1;
        }
        while let Some(place) = self.queue.pop_ended(now) {
            self.arrivals.remove(&place.owner);
            self.version += 1;
        }
        while self.tombstones.pop_ended(now).is_some() {}
        if self.paused_until.is_some_and(|until| until <= now) {
            self.paused_until = None;
            self.version += 1;
        }
    }

    /// The owners at the head of the queue that can be granted now: the ones to wake.
    pub fn grantable(&self) -> impl Iterator<Item = OwnerToken> {
        let open = self.paused_until.is_none();
        let run = if open { admission::grantable(self.held, self.weights(), self.capacity) } else { 0 };
        self.queue.iter().take(run).map(|(_, _, place)| place.owner)
    }

    /// Whether a waiting owner should ask again: it can be granted, or it has no place in the queue.
    pub fn is_worth_asking(&self, owner: OwnerToken) -> bool {
        !self.arrivals.contains_key(&owner) || self.grantable().any(|mover| mover == owner)
    }

    /// Whether the owner has a place in the queue.
    pub fn is_queued(&self, owner: OwnerToken) -> bool {
        self.arrivals.contains_key(&owner)
    }

    /// Whether the owner is a holder, is queued, or has a tombstone.
    pub fn is_known(&self, owner: OwnerToken) -> bool {
        self.is_queued(owner) || self.holders.get(owner).is_some() || self.tombstones.get(owner).is_some()
    }

    /// The number of queued claims, with those that have expired since the last verb.
    pub fn queue_length(&self) -> usize {
        self.queue.len()
    }

    fn weights(&self) -> impl Iterator<Item = u32> {
        self.queue.iter().map(|(_, _, place)| place.weight)
    }

    /// The verb `acquire`. `clock` feeds [`FencingToken::mint`].
    ///
    /// # Errors
    /// `Limit` if no token is left; nothing is changed then.
    pub fn acquire(&mut self, now: Timestamp, claim: &Claim, clock: u64) -> Result<Verdict> {
        self.remove_expired(now);
        let token = FencingToken::mint(self.last_token, clock, claim.floor)?;
        if self.tombstones.get(claim.owner).is_some() {
            // This owner has a tombstone, so refuse it. Still release its predecessor: that was part of the same request.
            claim.takes_over_from.iter().for_each(|from| self.release_predecessor(now, from));
            return Ok(Verdict::Cancelled);
        }
        if let Some((ends, held_claim)) = self.holders.get(claim.owner) {
            let grant = Grant::new(held_claim.token, now.until(ends));
            // A kept resource has no holder: its owner has released it, so this request was delayed.
            return Ok(if held_claim.kept { Verdict::Cancelled } else { Verdict::Granted(grant) });
        }
        let in_use = !self.holders.is_empty() || !self.queue.is_empty();
        if in_use && self.capacity != claim.share.capacity() {
            self.leave_queue(claim.owner);
            return Ok(Verdict::Mismatch { capacity: self.capacity });
        }
        if let Some(from) = &claim.takes_over_from
            && let Some(grant) = self.take_over(now, claim, from, token)
        {
            return Ok(Verdict::Granted(grant));
        }
        self.capacity = claim.share.capacity();
        if self.paused_until.is_none() && self.fits(claim) {
            self.leave_queue(claim.owner);
            return Ok(Verdict::Granted(self.make_holder(now, claim, token, now.after(claim.ttl), 0)));
        }
        match claim.when_blocked {
            WhenBlocked::Leave => self.leave_queue(claim.owner),
            WhenBlocked::Queue => self.enqueue(now, claim),
        }
        Ok(Verdict::Blocked(self.blocked(now, claim.owner)))
    }

    /// Step 5 of `acquire`. Returns a grant if the claim took over from a holder. If it took over from a queued claim, or
    /// found no predecessor, it returns `None` and the admission rule decides.
    fn take_over(
        &mut self,
        now: Timestamp,
        claim: &Claim,
        from: &Handover,
        token: FencingToken,
    ) -> Option<Grant> {
        let weight = claim.share.weight();
        let held_claim = self
            .holders
            .get(from.owner)
            .filter(|(_, held_claim)| !held_claim.kept && held_claim.weight >= weight);
        if let Some((ends, held_claim)) = held_claim {
            let downgrade = weight < held_claim.weight;
            // Without this bound, the waiters of one client could hand the resource over among themselves for ever.
            let too_often = held_claim.handovers >= admission::HANDOVERS_MAX && !self.queue.is_empty();
            let refused = !downgrade && (self.paused_until.is_some() || held_claim.evicting || too_often);
            let handovers = if downgrade { held_claim.handovers } else { held_claim.handovers + 1 };
            let ends = if downgrade { ends } else { now.after(claim.ttl) };
            let operator_requests = (held_claim.asked.clone(), held_claim.evicting);
            self.release_predecessor(now, from);
            if refused {
                return None;
            }
            self.leave_queue(claim.owner);
            let grant = self.make_holder(now, claim, token, ends, handovers);
            if downgrade {
                // The same work goes on with a smaller share, so an operator's request to it still counts. Otherwise a holder
                // could escape an eviction by a downgrade.
                let successor = self.holders.get_mut(claim.owner).expect("it was just made a holder");
                (successor.asked, successor.evicting) = operator_requests;
            }
            return Some(grant);
        }
        if let Some(arrival) = self.arrivals.remove(&from.owner) {
            let place = self.queue.remove(arrival).expect("arrivals and queue agree");
            if claim.when_blocked == WhenBlocked::Queue && !self.arrivals.contains_key(&claim.owner) {
                self.insert_place(now, claim, arrival, place.since);
            }
            self.version += 1;
        }
        self.release_predecessor(now, from);
        None
    }

    /// Releases the claim that another one takes over from. Leaves a tombstone if a request of it may still arrive.
    fn release_predecessor(&mut self, now: Timestamp, from: &Handover) {
        if self.holders.get(from.owner).is_some_and(|(_, held_claim)| !held_claim.kept) {
            self.remove_holder(from.owner);
        }
        self.leave_queue(from.owner);
        if let Some(keep) = from.tombstone {
            self.tombstones.insert(from.owner, now.after(keep), GoneReason::Cancelled);
        }
    }

    fn fits(&self, claim: &Claim) -> bool {
        let own = self.arrivals.get(&claim.owner).copied().unwrap_or(u64::MAX);
        let ahead =
            self.queue.iter().take_while(|(arrival, ..)| *arrival < own).map(|(_, _, place)| place.weight);
        admission::is_granted(self.held, ahead, claim.share.weight(), claim.share.capacity())
    }

    fn make_holder(
        &mut self,
        now: Timestamp,
        claim: &Claim,
        token: FencingToken,
        ends: Timestamp,
        handovers: u32,
    ) -> Grant {
        let held_claim = HeldClaim {
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
        debug_assert!(self.last_token.is_none_or(|last| last < token), "tokens grow");
        self.held += u64::from(held_claim.weight);
        self.holders.insert(claim.owner, ends, held_claim);
        self.last_token = Some(token);
        self.version += 1;
        Grant::new(token, now.until(ends))
    }

    fn remove_holder(&mut self, owner: OwnerToken) -> bool {
        let Some(held_claim) = self.holders.remove(owner) else { return false };
        self.held -= u64::from(held_claim.weight);
        self.version += 1;
        true
    }

    fn enqueue(&mut self, now: Timestamp, claim: &Claim) {
        let place_ends = now.after(claim.place_ttl);
        match self.arrivals.get(&claim.owner) {
            Some(&arrival) => self.extend_place(arrival, place_ends),
            None => {
                self.insert_place(now, claim, self.next_arrival, now);
                self.next_arrival += 1;
                self.version += 1;
            }
        }
    }

    fn insert_place(&mut self, now: Timestamp, claim: &Claim, arrival: u64, since: Timestamp) {
        let (owner, weight) = (claim.owner, claim.share.weight());
        let place = QueuedClaim { owner, holder: Arc::clone(&claim.holder), weight, since };
        self.queue.insert(arrival, now.after(claim.place_ttl), place);
        self.arrivals.insert(owner, arrival);
    }

    fn extend_place(&mut self, arrival: u64, ends: Timestamp) {
        let (old, _) = self.queue.get(arrival).expect("arrivals and queue agree");
        self.queue.reschedule(arrival, ends.max(old));
    }

    fn leave_queue(&mut self, owner: OwnerToken) {
        if let Some(arrival) = self.arrivals.remove(&owner) {
            self.queue.remove(arrival);
            self.version += 1;
        }
    }

    fn blocked(&self, now: Timestamp, owner: OwnerToken) -> Blocked {
        let own = self.arrivals.get(&owner).copied();
        let ahead = own.map_or(self.queue.len(), |own| {
            let near = self
                .queue
                .iter()
                .take(admission::WINDOW + 1)
                .take_while(|(arrival, ..)| *arrival < own)
                .count();
            if near <= admission::WINDOW { near } else { self.queue.len() - 1 }
        });
        let places = self.queue.iter().take(admission::WINDOW).map(|(_, ends, _)| ends).min();
        let next = [self.holders.next_end(), places, self.paused_until].into_iter().flatten().min();
        let holders = self.holders.by_end().take(Blocked::HOLDERS_MAX);
        Blocked {
            queued: own.is_some(),
            ahead: u32::try_from(ahead).unwrap_or(u32::MAX),
            holders: holders.map(|(ends, held_claim)| held_claim.view(now, ends)).collect(),
            changes_in: next.map(|at| now.until(at)),
            paused: self.paused_until.is_some(),
            cursor: Cursor(self.version),
        }
    }

    /// The verb `renew`, for one request of the batch.
    pub fn renew(&mut self, now: Timestamp, request: &RenewRequest) -> Renewal {
        self.remove_expired(now);
        if let Some((ends, held_claim)) = self.holders.get(request.owner)
            && !held_claim.kept
        {
            let evicting = held_claim.evicting;
            let asked = held_claim.asked.as_ref().map(|(by, asked)| asked.left(now, *by));
            let token = held_claim.token;
            // B10: a renewal never shortens. An evicted holder is not renewed, and is told so.
            let ends = if evicting { ends } else { ends.max(now.after(request.ttl)) };
            self.holders.reschedule(request.owner, ends);
            if let (Some(note), Some(held_claim)) = (&request.note, self.holders.get_mut(request.owner)) {
                held_claim.note = Some(Arc::clone(note));
                self.version += 1;
            }
            return Renewal::Renewed(Renewed { token, remaining: now.until(ends), asked, evicting });
        }
        if let Some(&arrival) = self.arrivals.get(&request.owner) {
            self.extend_place(arrival, now.after(request.ttl));
            let (ends, _) = self.queue.get(arrival).expect("arrivals and queue agree");
            return Renewal::Queued { remaining: now.until(ends) };
        }
        Renewal::Gone {
            why: self.tombstones.get(request.owner).map_or(GoneReason::NotThere, |(_, why)| *why),
        }
    }

    /// The verb `release`.
    pub fn release(&mut self, now: Timestamp, request: &ReleaseRequest) -> Released {
        self.remove_expired(now);
        let owner = request.owner;
        let holds = self.holders.get(owner).is_some_and(|(_, held_claim)| !held_claim.kept);
        let waits = self.arrivals.contains_key(&owner);
        match request.keep_for.filter(|keep_for| !keep_for.is_zero()) {
            Some(keep_for) if holds => {
                self.holders.get_mut(owner).expect("this owner is a holder").kept = true;
                self.holders.reschedule(owner, now.after(keep_for));
                self.version += 1;
            }
            _ if holds => drop(self.remove_holder(owner)),
            _ => self.leave_queue(owner),
        }
        if let Some(keep) = request.tombstone {
            self.tombstones.insert(owner, now.after(keep), GoneReason::Cancelled);
        }
        if holds || waits { Released::Now } else { Released::AlreadyGone }
    }

    /// The verb `order`. The caller writes the audit record.
    pub fn order(&mut self, now: Timestamp, command: &OperatorCommand) -> CommandOutcome {
        self.remove_expired(now);
        // Without a token the command means the newest grant.
        let meant = match command.token {
            None => self.holders.iter().map(|(owner, _, held_claim)| (held_claim.token, owner)).max(),
            Some(token) => {
                let that = self.holders.iter().find(|(_, _, held_claim)| held_claim.token == token);
                let Some((owner, ..)) = that else { return self.holder_changed() };
                Some((token, owner))
            }
        };
        match (command.action, meant) {
            (OperatorAction::Pause { lasting }, _) => self.paused_until = Some(now.after(lasting)),
            (OperatorAction::Resume, _) => self.paused_until = None,
            (OperatorAction::Resize { capacity }, _) if self.held > 0 || !self.queue.is_empty() => {
                self.capacity = capacity.get();
            }
            (_, None) | (OperatorAction::Resize { .. }, _) => return self.holder_changed(),
            (OperatorAction::Ask { within }, Some((_, owner))) => {
                let asked = FinishRequest::new(within, command.by.as_str(), command.why.as_str());
                self.holders.get_mut(owner).expect("this owner is a holder").asked =
                    Some((now.after(within), asked));
            }
            (OperatorAction::Evict(Eviction::AtExpiry), Some((_, owner))) => {
                self.holders.get_mut(owner).expect("this owner is a holder").evicting = true;
            }
            (OperatorAction::Evict(Eviction::Now), Some((_, owner))) => {
                let (ends, _) = self.holders.get(owner).expect("this owner is a holder");
                let keep = ReleaseRequest::tombstone_ttl(now.until(ends));
                self.remove_holder(owner);
                self.tombstones.insert(owner, now.after(keep), GoneReason::Evicted);
            }
        }
        self.version += 1;
        CommandOutcome::Done
    }

    fn holder_changed(&self) -> CommandOutcome {
        CommandOutcome::HolderChanged {
            token: self.holders.iter().map(|(_, _, held_claim)| held_claim.token).max(),
        }
    }

    /// The resource as it is now. What has expired is left out, and not removed: looking changes nothing.
    pub fn snapshot(&self, now: Timestamp, resource: &Resource) -> Snapshot {
        let mut holders: Vec<_> = self.holders.by_end().filter(|(ends, _)| *ends > now).collect();
        holders.sort_by_key(|(_, held_claim)| held_claim.token);
        let places: Vec<_> = self.queue.iter().filter(|(_, ends, _)| *ends > now).collect();
        let mut snapshot = Snapshot::empty(resource.clone());
        snapshot.capacity = self.capacity;
        snapshot.holder_count = u32::try_from(holders.len()).unwrap_or(u32::MAX);
        snapshot.queue_length = u32::try_from(places.len()).unwrap_or(u32::MAX);
        let listed = Snapshot::LISTED_MAX;
        snapshot.holders =
            holders.into_iter().take(listed).map(|(ends, held_claim)| held_claim.view(now, ends)).collect();
        let placed = |(_, ends, place): (u64, Timestamp, &QueuedClaim)| {
            QueueEntry::new(Arc::clone(&place.holder), place.weight, place.since.until(now), now.until(ends))
        };
        snapshot.queue = places.into_iter().take(listed).map(placed).collect();
        snapshot.last_token = self.last_token;
        snapshot.paused_for = self.paused_until.filter(|until| *until > now).map(|until| now.until(until));
        snapshot.cursor = Cursor(self.version);
        snapshot
    }
}

impl HeldClaim {
    fn view(&self, now: Timestamp, ends: Timestamp) -> HeldBy {
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
