//! The queue of one resource: claims that wait, in the order of their arrival, and which of them answer.
//!
//! A waiter may be dead, and its place lasts for seconds. So that it does not stop the waiters behind it:
//!
//! 1. A verb that finds room *calls* the claims that can be granted now. They are woken.
//! 2. A called claim *answers* with any request of its own: it asks again, or its place is renewed.
//! 3. A claim that has not answered for [`ANSWER_WITHIN`] is *silent*, and so is every claim
//!    of the same client that has not been heard for as long. The admission rule passes over silent claims.
//! 4. A silent claim keeps its place and its arrival number. When it is heard again, it stands where it stood before.
//!    Claims that were granted meanwhile stay granted.
//! 5. While a claim is silent, the other claims in the window are called too, at most once in `ANSWER_WITHIN`, because they
//!    may be dead for the same reason: a host that is gone.
//!
//! ADR 0045.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{
    admission::{self, ANSWER_WITHIN, WINDOW},
    claim::{ClientId, Holder},
    clock::Timestamp,
    expiring::ExpiringMap,
    token::OwnerToken,
};

/// A claim in the queue.
#[derive(Clone, Debug)]
pub(crate) struct QueuedClaim {
    pub(crate) owner: OwnerToken,
    pub(crate) holder: Arc<Holder>,
    pub(crate) client: Option<ClientId>,
    pub(crate) weight: u32,
    pub(crate) since: Timestamp,
    /// When its last request came.
    pub(crate) heard: Timestamp,
    /// When it was called, if it has not answered yet.
    pub(crate) called: Option<Timestamp>,
    /// It was called and did not answer in time.
    pub(crate) silent: bool,
}

/// Claims by arrival number. A place expires unless it is renewed.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    places: ExpiringMap<u64, QueuedClaim>,
    /// The arrival number of each owner.
    arrivals: BTreeMap<OwnerToken, u64>,
    next_arrival: u64,
    /// How many claims are silent.
    silent: usize,
}

impl Queue {
    pub(crate) const fn new() -> Queue {
        Queue { places: ExpiringMap::new(), arrivals: BTreeMap::new(), next_arrival: 0, silent: 0 }
    }

    /// The number of claims, with the silent ones.
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    pub(crate) fn arrival_of(&self, owner: OwnerToken) -> Option<u64> {
        self.arrivals.get(&owner).copied()
    }

    pub(crate) fn is_silent(&self, owner: OwnerToken) -> bool {
        let arrival = self.arrival_of(owner);
        arrival.and_then(|arrival| self.places.get(arrival)).is_some_and(|(_, place)| place.silent)
    }

    /// All claims, with when their places expire.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, Timestamp, &QueuedClaim)> {
        self.places.iter()
    }

    /// The claims that are not silent.
    pub(crate) fn live(&self) -> impl Iterator<Item = (u64, Timestamp, &QueuedClaim)> {
        self.places.iter().filter(|(_, _, place)| !place.silent)
    }

    /// The number of claims that are not silent.
    pub(crate) fn live_len(&self) -> usize {
        self.places.len() - self.silent
    }

    /// The weights of the claims that are not silent and arrived before this number.
    pub(crate) fn weights_ahead(&self, arrival: u64) -> impl Iterator<Item = u32> {
        self.live().take_while(move |(other, ..)| *other < arrival).map(|(_, _, place)| place.weight)
    }

    /// The owners that were called and have not answered: the ones to wake.
    pub(crate) fn called(&self) -> impl Iterator<Item = OwnerToken> {
        self.live()
            .take(WINDOW)
            .filter(|(_, _, place)| place.called.is_some())
            .map(|(_, _, place)| place.owner)
    }

    /// When the next of the called claims in the window becomes silent, if it does not answer.
    pub(crate) fn next_silence(&self) -> Option<Timestamp> {
        let called = self.live().take(WINDOW).filter_map(|(_, _, place)| place.called);
        called.map(|called| called.after(ANSWER_WITHIN)).min()
    }

    /// When the window changes by itself: a place in it expires, or with `silence` a claim in it becomes silent.
    pub(crate) fn next_change(&self, silence: bool) -> Option<Timestamp> {
        let expiry = self.live().take(WINDOW).map(|(_, ends, _)| ends).min();
        [expiry, self.next_silence().filter(|_| silence)].into_iter().flatten().min()
    }

    /// Removes one claim whose place has expired.
    pub(crate) fn remove_expired(&mut self, now: Timestamp) -> bool {
        let Some(place) = self.places.pop_ended(now) else { return false };
        self.arrivals.remove(&place.owner);
        self.silent -= usize::from(place.silent);
        true
    }

    pub(crate) fn remove(&mut self, owner: OwnerToken) -> Option<(u64, QueuedClaim)> {
        let arrival = self.arrivals.remove(&owner)?;
        let place = self.places.remove(arrival).expect("arrivals and places agree");
        self.silent -= usize::from(place.silent);
        Some((arrival, place))
    }

    /// Puts a claim at the end.
    pub(crate) fn push(&mut self, ends: Timestamp, place: QueuedClaim) {
        self.insert(self.next_arrival, ends, place);
        self.next_arrival += 1;
    }

    /// Puts a claim where another one stood.
    pub(crate) fn insert(&mut self, arrival: u64, ends: Timestamp, place: QueuedClaim) {
        self.arrivals.insert(place.owner, arrival);
        self.places.insert(arrival, ends, place);
    }

    /// Lets the place of this claim last until `ends`, if it does not last longer. Returns when it expires.
    pub(crate) fn extend(&mut self, arrival: u64, ends: Timestamp) -> Timestamp {
        let (old, _) = self.places.get(arrival).expect("arrivals and places agree");
        self.places.reschedule(arrival, ends.max(old));
        ends.max(old)
    }

    /// Notes that a request of this owner came. Returns whether it was silent.
    pub(crate) fn note_heard(&mut self, now: Timestamp, owner: OwnerToken) -> bool {
        let Some(&arrival) = self.arrivals.get(&owner) else { return false };
        let place = self.places.get_mut(arrival).expect("arrivals and places agree");
        (place.heard, place.called) = (now, None);
        let was_silent = std::mem::take(&mut place.silent);
        self.silent -= usize::from(was_silent);
        was_silent
    }

    /// Makes those claims silent that were called and did not answer in time. Returns whether there were any.
    pub(crate) fn pass_over_silent(&mut self, now: Timestamp) -> bool {
        let near: Vec<_> = self.live().take(admission::SAME_CLIENT_WINDOW).collect();
        let is_over = |since: Timestamp| since.after(ANSWER_WITHIN) <= now;
        let is_late = |place: &QueuedClaim| place.called.is_some_and(is_over);
        let late: Vec<_> = near.iter().take(WINDOW).filter(|(_, _, place)| is_late(place)).collect();
        if late.is_empty() {
            return false;
        }
        let clients: Vec<ClientId> = late.iter().filter_map(|(_, _, place)| place.client).collect();
        let of_late_client = |place: &QueuedClaim| {
            is_over(place.heard) && place.client.is_some_and(|client| clients.contains(&client))
        };
        let with_them = near.iter().filter(|(_, _, place)| of_late_client(place));
        let silent: BTreeSet<u64> = late.into_iter().chain(with_them).map(|(arrival, ..)| *arrival).collect();
        self.silent += silent.len();
        for arrival in silent {
            self.places.get_mut(arrival).expect("the arrival was just read").silent = true;
        }
        true
    }

    /// Calls the claims that can be granted: the first `grantable` ones. If a claim is silent, and there is room, also
    /// calls the others in the window that have not been heard for a while. Returns whether any claim was called.
    pub(crate) fn call(&mut self, now: Timestamp, grantable: usize) -> bool {
        let run = if self.silent > 0 && grantable > 0 { WINDOW } else { grantable };
        let to_call = |index: usize, place: &QueuedClaim| {
            place.called.is_none() && (index < grantable || place.heard.after(ANSWER_WITHIN) <= now)
        };
        let called: Vec<u64> = self
            .live()
            .take(run)
            .enumerate()
            .filter(|(index, (_, _, place))| to_call(*index, place))
            .map(|(_, (arrival, ..))| arrival)
            .collect();
        for arrival in &called {
            self.places.get_mut(*arrival).expect("the arrival was just read").called = Some(now);
        }
        !called.is_empty()
    }
}
