//! The deadlines of the claims that a server has made: until when each of them holds its lease or its place.
//!
//! Nothing here waits or reads a clock. A claim is in one of these states:
//!
//! - *asked*: a call of `acquire` is under way. What it will have done is not known, so the claim is not ended now. There is one such
//!   call for a claim at a time: a late answer of an earlier one would say that a claim is queued which holds by now.
//! - *live*: it has a lease or a place until its deadline.
//! - *over*: the deadline has passed. Renewals are refused. The claim is still to be released at the store.
//! - *ending*: it is being released. A new request of the same claim waits for that, or the release would end the new lease.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use leasehold_core::{
    ClaimRef, Effect, FencingToken, GoneReason, HeldBy, OwnerToken, ReleaseRequest, Renewal, Resource,
    Result, Timestamp, Verdict,
};

/// How long after a failed release it is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// All claims that this server has made at the store.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    claims: HashMap<Resource, HashMap<OwnerToken, Entry>>,
    /// When claims are to be released: those that are neither asked nor ending.
    due: BTreeSet<(Timestamp, Resource, OwnerToken)>,
    last_id: u64,
}

#[derive(Debug)]
struct Entry {
    /// Tells a claim from an earlier one with the same owner token.
    id: u64,
    /// The deadline. `None` until the first answer.
    until: Option<Timestamp>,
    /// When it is released: at the deadline, or later after a failure.
    due: Option<Timestamp>,
    /// What the claim asked for last.
    ttl: Duration,
    /// The token of its grant. `None` while it is queued.
    token: Option<FencingToken>,
    /// A call of `acquire` is under way.
    is_asked: bool,
    is_ending: bool,
    /// A request went unanswered: the store may still carry it out, so the release leaves a tombstone.
    is_unanswered: bool,
}

/// What a claim is to its server now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClaimState {
    /// This server did not make it.
    Unknown,
    /// The claim with this id is live, or is being asked for.
    Live(u64),
    /// Its deadline has passed, and it is to be released.
    Over,
    /// It is over, and somebody else sees to it.
    Ending,
}

/// What came of a call of `acquire`.
#[derive(Debug)]
pub(super) enum Asked {
    Answered(Result<Verdict>),
    /// It found a lease whose deadline passed meanwhile: end it, and ask again.
    Over,
}

impl Deadlines {
    fn entry(&self, claim: &ClaimRef) -> Option<&Entry> {
        self.claims.get(&claim.resource)?.get(&claim.owner)
    }

    fn entry_mut(&mut self, claim: &ClaimRef) -> Option<&mut Entry> {
        self.claims.get_mut(&claim.resource)?.get_mut(&claim.owner)
    }

    pub(super) fn state(&self, claim: &ClaimRef, now: Timestamp) -> ClaimState {
        match self.entry(claim) {
            None => ClaimState::Unknown,
            // While it is asked for, it cannot be released: the call would make it again.
            Some(entry) if entry.is_ending || (entry.is_over(now) && entry.is_asked) => ClaimState::Ending,
            Some(entry) if entry.is_over(now) => ClaimState::Over,
            Some(entry) => ClaimState::Live(entry.id),
        }
    }

    /// Sets when the claim is released, or that it is not.
    fn schedule(&mut self, claim: &ClaimRef, due: Option<Timestamp>) {
        let Some(entry) = self.entry_mut(claim) else { return };
        let earlier = std::mem::replace(&mut entry.due, due);
        let key = |at: Timestamp| (at, claim.resource.clone(), claim.owner);
        if let Some(earlier) = earlier {
            self.due.remove(&key(earlier));
        }
        if let Some(due) = due {
            self.due.insert(key(due));
        }
    }

    fn remove(&mut self, claim: &ClaimRef) {
        self.schedule(claim, None);
        if let Some(owners) = self.claims.get_mut(&claim.resource) {
            owners.remove(&claim.owner);
            if owners.is_empty() {
                self.claims.remove(&claim.resource);
            }
        }
    }

    /// Whether a call of `acquire` is under way.
    pub(super) fn is_asked(&self, claim: &ClaimRef) -> bool {
        self.entry(claim).is_some_and(|entry| entry.is_asked)
    }

    /// A call of `acquire` begins. False if the claim must be ended first, or if an earlier call has not ended.
    pub(super) fn ask(&mut self, claim: &ClaimRef, ttl: Duration, now: Timestamp) -> bool {
        let must_end = matches!(self.state(claim, now), ClaimState::Over | ClaimState::Ending);
        if must_end || self.is_asked(claim) {
            return false;
        }
        self.last_id += 1;
        let id = self.last_id;
        let fresh = || Entry {
            id,
            until: None,
            due: None,
            ttl,
            token: None,
            is_asked: false,
            is_ending: false,
            is_unanswered: false,
        };
        let owners = self.claims.entry(claim.resource.clone()).or_default();
        owners.entry(claim.owner).or_insert_with(fresh).is_asked = true;
        self.schedule(claim, None);
        true
    }

    /// The call of `acquire` that was sent at `sent` has ended with this result; `None` if it was cut. `ttl` and `place_ttl` are those
    /// of the claim. Shortens what remains of a grant to the deadline.
    pub(super) fn asked(
        &mut self,
        claim: &ClaimRef,
        (ttl, place_ttl): (Duration, Duration),
        (sent, now): (Timestamp, Timestamp),
        result: Option<Result<Verdict>>,
    ) -> Asked {
        let no_answer = || Asked::Answered(Ok(Verdict::Cancelled));
        let Some(entry) = self.entry_mut(claim) else { return no_answer() };
        entry.is_asked = false;
        let mut asked = None;
        match result {
            Some(Ok(Verdict::Granted(mut grant))) => {
                // Asking again finds the same grant, which is not extended by that.
                if entry.token != Some(grant.token) {
                    (entry.token, entry.until) = (Some(grant.token), Some(sent.after(ttl)));
                    entry.ttl = ttl;
                }
                entry.is_unanswered = false;
                let left = sent.until(entry.until.unwrap_or(sent));
                grant.remaining = grant.remaining.min(left);
                let is_over = entry.is_over(now);
                asked =
                    Some(if is_over { Asked::Over } else { Asked::Answered(Ok(Verdict::Granted(grant))) });
            }
            Some(Ok(Verdict::Blocked(blocked))) => {
                entry.is_unanswered = false;
                entry.token = None;
                entry.until = blocked.queued.then(|| sent.after(place_ttl));
                asked = Some(Asked::Answered(Ok(Verdict::Blocked(blocked))));
            }
            Some(Ok(Verdict::Cancelled)) => {
                entry.until = None;
                asked = Some(Asked::Answered(Ok(Verdict::Cancelled)));
            }
            Some(Err(error)) if error.effect() == Effect::Unknown => {
                entry.unanswered(now.after(ttl.max(place_ttl)));
                asked = Some(Asked::Answered(Err(error)));
            }
            // Nothing was changed.
            Some(result) => asked = Some(Asked::Answered(result)),
            None => entry.unanswered(now.after(ttl.max(place_ttl))),
        }
        self.settle(claim);
        asked.unwrap_or_else(no_answer)
    }

    /// After a call of `acquire`: forgets a claim that has nothing at the store, or plans its release.
    fn settle(&mut self, claim: &ClaimRef) {
        let Some(entry) = self.entry(claim) else { return };
        if entry.is_asked || entry.is_ending {
            return;
        }
        match entry.until {
            Some(until) => self.schedule(claim, Some(until)),
            None => self.remove(claim),
        }
    }

    /// The reply to a renewal that was sent at `sent`, when the claim had this state.
    pub(super) fn renewed(
        &mut self,
        claim: &ClaimRef,
        was: ClaimState,
        ttl: Duration,
        (sent, now): (Timestamp, Timestamp),
        renewal: Renewal,
    ) -> Renewal {
        let lost = Renewal::Gone { why: GoneReason::NotThere };
        // A claim that this server did not make lives with another session: nobody here can vouch for it.
        if was == ClaimState::Unknown || self.state(claim, now) != was {
            return if matches!(renewal, Renewal::Gone { .. }) { renewal } else { lost };
        }
        let Some(entry) = self.entry_mut(claim) else { return lost };
        let renewed = match renewal {
            Renewal::Renewed(mut renewed) => {
                entry.token = Some(renewed.token);
                if !renewed.evicting {
                    entry.extend(sent, ttl);
                }
                renewed.remaining = renewed.remaining.min(sent.until(entry.until.unwrap_or(sent)));
                Renewal::Renewed(renewed)
            }
            Renewal::Queued { remaining } => {
                entry.extend(sent, ttl);
                Renewal::Queued { remaining: remaining.min(sent.until(entry.until.unwrap_or(sent))) }
            }
            gone @ Renewal::Gone { .. } => {
                entry.until = None;
                gone
            }
        };
        self.settle(claim);
        renewed
    }

    /// The claim was released, or taken over by another one.
    pub(super) fn released(&mut self, claim: &ClaimRef) {
        let Some(entry) = self.entry_mut(claim) else { return };
        // A call of `acquire` that is under way may make it again.
        (entry.until, entry.token) = (None, None);
        self.settle(claim);
    }

    /// Takes the claims that are due, to be released now, and says when the next one is.
    pub(super) fn take_due(&mut self, now: Timestamp) -> (Vec<ReleaseRequest>, Option<Timestamp>) {
        let mut requests = Vec::new();
        while self.due.first().is_some_and(|(at, ..)| *at <= now) {
            let Some((_, resource, owner)) = self.due.pop_first() else { break };
            requests.extend(self.take(&ClaimRef { resource, owner }));
        }
        (requests, self.due.first().map(|(at, ..)| *at))
    }

    /// Takes this claim, which is over, to be released now.
    pub(super) fn take(&mut self, claim: &ClaimRef) -> Option<ReleaseRequest> {
        self.schedule(claim, None);
        let entry = self.entry_mut(claim)?;
        entry.is_ending = true;
        let request = ReleaseRequest::new(claim.clone());
        let tombstone = entry.is_unanswered.then(|| ReleaseRequest::tombstone_ttl(entry.ttl));
        Some(match tombstone {
            Some(keep) => request.with_tombstone(keep),
            None => request,
        })
    }

    /// The release of a claim that was taken has ended.
    pub(super) fn ended(&mut self, claim: &ClaimRef, worked: bool, now: Timestamp) {
        let Some(entry) = self.entry_mut(claim) else { return };
        entry.is_ending = false;
        // Without a deadline, its owner has released it meanwhile.
        if worked || entry.until.is_none() {
            self.remove(claim);
        } else {
            self.schedule(claim, Some(now.after(RETRY_AFTER)));
        }
    }

    /// Shows holders that this server has made with their own deadlines.
    pub(super) fn correct(&self, resource: &Resource, holders: &mut [HeldBy], now: Timestamp) {
        let Some(owners) = self.claims.get(resource) else { return };
        for by in holders {
            let ours = owners.values().find(|entry| entry.token == Some(by.token));
            if let Some((entry, until)) = ours.and_then(|entry| Some((entry, entry.until?))) {
                by.remaining = by.remaining.min(now.until(until));
                by.ttl = Some(entry.ttl);
            }
        }
    }
}

impl Entry {
    fn is_over(&self, now: Timestamp) -> bool {
        self.until.is_some_and(|until| until <= now)
    }

    /// A renewal never shortens.
    fn extend(&mut self, sent: Timestamp, ttl: Duration) {
        let until = sent.after(ttl);
        self.until = Some(self.until.map_or(until, |earlier| earlier.max(until)));
        self.ttl = ttl;
    }

    /// Whether the claim has something at the store is not known. It is released later, unless it is heard of again.
    fn unanswered(&mut self, until: Timestamp) {
        self.is_unanswered = true;
        self.until.get_or_insert(until);
    }
}
