//! One resource as a pure state machine: its holders, queue, tokens, tombstones, pause and capacity.
//!
//! This is the executable specification. The memory backend is this state machine behind a mutex, and the tests compare
//! every other backend with it, verb by verb. It takes `now` as an argument and never reads a clock.
//!
//! What `acquire` does, in this order:
//!
//! 1. Remove what has expired: holders, queued claims, tombstones, the pause. Every verb begins with this. Then note that
//!    the owner was heard, and pass over the other queued claims that were called and did not answer
//!    ([`queue`](crate::queue)).
//! 2. If the owner has a tombstone, answer `Cancelled`. If the claim was to take over from another one, release that one.
//! 3. If the owner holds the resource, answer with the same grant and what remains of it.
//! 4. If others use the resource with another capacity, answer `Mismatch`.
//! 5. If the claim takes over from a holder of at least its weight, make it the holder in that holder's place.
//!    If it takes over from a queued claim, give it that claim's place in the queue, and go on.
//! 6. If the resource is not paused and the [admission rule](crate::admission) allows it, make the claim a holder.
//! 7. Otherwise queue the claim or forget it, as it says, and answer `Blocked`.
//! 8. Call the queued claims that can be granted now. Every verb ends with this, except the renewal of a holder, which does
//!    not look at the queue.

use std::{sync::Arc, time::Duration};

use crate::{
    admission,
    claim::{
        Claim, Cursor, Eviction, Handover, Holder, OperatorAction, OperatorCommand, ReleaseRequest,
        RenewRequest, WhenBlocked,
    },
    clock::Timestamp,
    error::Result,
    expiring::ExpiringMap,
    queue::{Queue, QueuedClaim},
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
    queue: Queue,
    /// Whether silent claims are passed over.
    passes_over: bool,
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
    ttl: Duration,
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

impl Model {
    /// A resource that no claim holds or waits for. Versions count on from `version`: a state that was dropped while it was
    /// idle and is made again must not repeat a cursor.
    pub fn new(version: u64) -> Model {
        Model {
            capacity: 0,
            holders: ExpiringMap::new(),
            held: 0,
            queue: Queue::new(),
            passes_over: true,
            tombstones: ExpiringMap::new(),
            paused_until: None,
            last_token: None,
            version,
        }
    }

    /// Silent claims are not passed over: the model of a backend without
    /// [`passes_over`](crate::Capabilities::passes_over).
    #[must_use]
    pub fn without_passing_over(mut self) -> Model {
        self.passes_over = false;
        self
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
        while self.queue.remove_expired(now) {
            self.version += 1;
        }
        while self.tombstones.pop_ended(now).is_some() {}
        if self.paused_until.is_some_and(|until| until <= now) {
            self.paused_until = None;
            self.version += 1;
        }
    }

    /// Passes over the queued claims that were called and did not answer.
    fn pass_over_silent(&mut self, now: Timestamp) {
        if self.passes_over && self.queue.pass_over_silent(now) {
            self.version += 1;
        }
    }

    /// Calls the queued claims that can be granted now.
    fn call(&mut self, now: Timestamp) {
        let run = self.grantable_run();
        if self.queue.call(now, run) {
            self.version += 1;
        }
    }

    /// How many claims at the head of the queue, the silent ones not counted, can be granted now.
    fn grantable_run(&self) -> usize {
        let weights = self.queue.weights_ahead(u64::MAX);
        if self.paused_until.is_some() { 0 } else { admission::grantable(self.held, weights, self.capacity) }
    }

    /// The owners at the head of the queue that can be granted now. Silent ones are left out.
    pub fn grantable(&self) -> impl Iterator<Item = OwnerToken> {
        self.queue.live().take(self.grantable_run()).map(|(_, _, place)| place.owner)
    }

    /// The owners that were called and have not answered: the ones to wake.
    pub fn called(&self) -> impl Iterator<Item = OwnerToken> {
        self.queue.called()
    }

    /// When the next claim that was called becomes silent, if it does not answer.
    pub fn next_silence(&self) -> Option<Timestamp> {
        self.queue.next_silence().filter(|_| self.passes_over)
    }

    /// Whether a waiting owner should ask again: it was called, it is silent, or it has no place in the queue.
    pub fn is_worth_asking(&self, owner: OwnerToken) -> bool {
        !self.is_queued(owner)
            || self.queue.is_silent(owner)
            || self.called().chain(self.grantable()).any(|mover| mover == owner)
    }

    /// Whether the owner has a place in the queue.
    pub fn is_queued(&self, owner: OwnerToken) -> bool {
        self.queue.arrival_of(owner).is_some()
    }

    /// Whether the owner is queued and silent.
    pub fn is_silent(&self, owner: OwnerToken) -> bool {
        self.queue.is_silent(owner)
    }

    /// Whether the owner is a holder, is queued, or has a tombstone.
    pub fn is_known(&self, owner: OwnerToken) -> bool {
        self.is_queued(owner) || self.holders.get(owner).is_some() || self.tombstones.get(owner).is_some()
    }

    /// The number of queued claims, with those that have expired since the last verb.
    pub fn queue_length(&self) -> usize {
        self.queue.len()
    }

    /// The verb `acquire`. `clock` feeds [`FencingToken::mint`].
    ///
    /// # Errors
    /// `Corrupt` if no token is left; nothing is changed then.
    pub fn acquire(&mut self, now: Timestamp, claim: &Claim, clock: u64) -> Result<Verdict> {
        self.remove_expired(now);
        let token = FencingToken::mint(self.last_token, clock, claim.floor)?;
        self.note_heard(now, claim.owner);
        self.pass_over_silent(now);
        let verdict = self.decide(now, claim, token);
        self.call(now);
        Ok(verdict.unwrap_or_else(|| Verdict::Blocked(self.blocked(now, claim.owner))))
    }

    /// Steps 2 to 7 of `acquire`. `None` if the claim is blocked.
    fn decide(&mut self, now: Timestamp, claim: &Claim, token: FencingToken) -> Option<Verdict> {
        if self.tombstones.get(claim.owner).is_some() {
            // This owner has a tombstone, so refuse it. Still release its predecessor: that was part of the same request.
            claim.takes_over_from.iter().for_each(|from| self.release_predecessor(now, from));
            return Some(Verdict::Cancelled);
        }
        if let Some((ends, held_claim)) = self.holders.get(claim.owner) {
            let grant = Grant::new(held_claim.token, now.until(ends));
            // A kept resource has no holder: its owner has released it, so this request was delayed.
            return Some(if held_claim.kept { Verdict::Cancelled } else { Verdict::Granted(grant) });
        }
        let in_use = !self.holders.is_empty() || !self.queue.is_empty();
        if in_use && self.capacity != claim.share.capacity() {
            self.leave_queue(claim.owner);
            return Some(Verdict::Mismatch { capacity: self.capacity });
        }
        if let Some(from) = &claim.takes_over_from
            && let Some(grant) = self.take_over(now, claim, from, token)
        {
            return Some(Verdict::Granted(grant));
        }
        self.capacity = claim.share.capacity();
        if self.paused_until.is_none() && self.fits(claim) {
            self.leave_queue(claim.owner);
            return Some(Verdict::Granted(self.make_holder(now, claim, token, now.after(claim.ttl), 0)));
        }
        match claim.when_blocked {
            WhenBlocked::Leave => self.leave_queue(claim.owner),
            WhenBlocked::Queue => self.enqueue(now, claim),
        }
        None
    }

    fn note_heard(&mut self, now: Timestamp, owner: OwnerToken) {
        if self.queue.note_heard(now, owner) {
            self.version += 1;
        }
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
            let too_often = held_claim.handovers >= admission::HANDOVERS_MAX && self.queue.live_len() > 0;
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
        if let Some((arrival, place)) = self.queue.remove(from.owner) {
            if claim.when_blocked == WhenBlocked::Queue && !self.is_queued(claim.owner) {
                self.queue.insert(arrival, now.after(claim.place_ttl), queued_claim(now, claim, place.since));
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
        let ahead = self.queue.weights_ahead(self.queue.arrival_of(claim.owner).unwrap_or(u64::MAX));
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
            ttl: claim.ttl,
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
        if let Some(arrival) = self.queue.arrival_of(claim.owner) {
            self.queue.extend(arrival, place_ends);
        } else {
            self.queue.push(place_ends, queued_claim(now, claim, now));
            self.version += 1;
        }
    }

    fn leave_queue(&mut self, owner: OwnerToken) {
        if self.queue.remove(owner).is_some() {
            self.version += 1;
        }
    }

    fn blocked(&self, now: Timestamp, owner: OwnerToken) -> Blocked {
        let own = self.queue.arrival_of(owner);
        let ahead = own.map_or(self.queue.live_len(), |own| {
            let near = self.queue.weights_ahead(own).take(admission::WINDOW + 1).count();
            if near <= admission::WINDOW { near } else { self.queue.live_len() - 1 }
        });
        let places = self.queue.next_change(self.passes_over);
        let next = [self.holders.next_end(), places, self.paused_until].into_iter().flatten().min();
        let holders = self.holders.by_end().take(Blocked::HOLDERS_MAX);
        Blocked {
            queued: own.is_some(),
            ahead: u32::try_from(ahead).unwrap_or(u32::MAX),
            holders: holders.map(|(ends, held_claim)| held_claim.view(now, ends)).collect(),
            foreign: None,
            changes_in: next.map(|at| now.until(at)),
            paused: self.paused_until.is_some(),
            pause_ends_in: self.paused_until.map(|until| now.until(until)),
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
        if let Some(arrival) = self.queue.arrival_of(request.owner) {
            self.note_heard(now, request.owner);
            self.pass_over_silent(now);
            let ends = self.queue.extend(arrival, now.after(request.ttl));
            self.call(now);
            return Renewal::Queued { remaining: now.until(ends) };
        }
        Renewal::Gone {
            why: self.tombstones.get(request.owner).map_or(GoneReason::NotThere, |(_, why)| *why),
        }
    }

    /// The verb `release`.
    pub fn release(&mut self, now: Timestamp, request: &ReleaseRequest) -> Released {
        self.remove_expired(now);
        self.pass_over_silent(now);
        let owner = request.owner;
        let holds = self.holders.get(owner).is_some_and(|(_, held_claim)| !held_claim.kept);
        let waits = self.is_queued(owner);
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
        self.call(now);
        if holds || waits { Released::Now } else { Released::AlreadyGone }
    }

    /// The verb `order`. The caller writes the audit record.
    pub fn order(&mut self, now: Timestamp, command: &OperatorCommand) -> CommandOutcome {
        self.remove_expired(now);
        self.pass_over_silent(now);
        let outcome = self.execute(now, command);
        self.call(now);
        outcome
    }

    fn execute(&mut self, now: Timestamp, command: &OperatorCommand) -> CommandOutcome {
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
            // The model has no other programs.
            (_, None) | (OperatorAction::Resize { .. } | OperatorAction::EvictForeign { .. }, _) => {
                return self.holder_changed();
            }
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
                .with_silent(place.silent)
        };
        snapshot.queue = places.into_iter().take(listed).map(placed).collect();
        snapshot.last_token = self.last_token;
        snapshot.paused_for = self.paused_until.filter(|until| *until > now).map(|until| now.until(until));
        snapshot.cursor = Cursor(self.version);
        snapshot
    }
}

/// A place for this claim, which has just been heard.
fn queued_claim(now: Timestamp, claim: &Claim, since: Timestamp) -> QueuedClaim {
    QueuedClaim {
        owner: claim.owner,
        holder: Arc::clone(&claim.holder),
        client: claim.client,
        weight: claim.share.weight(),
        since,
        heard: now,
        called: None,
        silent: false,
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
            ttl: Some(self.ttl),
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
