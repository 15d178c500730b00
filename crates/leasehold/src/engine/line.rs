//! The local line: waiters of one client for the same exclusive resource queue here and share one place at the
//! backend, so ten thousand of them cost it what one costs.
//!
//! At most one of them, the *head*, asks the backend. When a local holder leaves, the seat is handed to the next in
//! line. When the head goes away part-way, the next one inherits whatever it had.
//!
//! Whenever somebody waits here, somebody is answerable for them: the holder (its end calls the next) or the head
//! (its grant makes it the holder, its going away calls the next).

use std::{
    collections::{BTreeMap, HashMap},
    num::NonZeroU64,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use leasehold_core::{
    Blocked, Busy, Claim, ClaimRef, Effect, Error, Handover, OwnerToken, ReleaseRequest, Resource, Timestamp,
};
use tokio::sync::Notify;

use super::{Engine, Terms, acquire::OUTAGE_MAX, tenure::Handle};

#[derive(Debug, Default)]
pub(crate) struct Lines(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    lines: HashMap<Resource, Line>,
    tickets: u64,
}

/// Everything that is held has a line: what it needs only when somebody waits is boxed.
#[derive(Debug, Default)]
struct Line {
    holder: Option<OwnerToken>,
    head: Option<Ticket>,
    crowd: Option<Box<Crowd>>,
}

#[derive(Debug, Default)]
struct Crowd {
    waiting: BTreeMap<Ticket, Arc<Waiter>>,
    /// Who was in the way when the head last asked.
    busy: Busy,
    /// The backend did not answer the head.
    outage: Option<Outage>,
}

/// The backend is unavailable. Every waiter of a line shares what the head finds out about it, but not the head's patience:
/// each is given [`OUTAGE_MAX`] of its own.
#[derive(Clone, Debug)]
struct Outage {
    since: Timestamp,
    error: Error,
}

impl Outage {
    /// How long a waiter that asked at `asked` has seen of it.
    fn seen_by(&self, asked: Timestamp, now: Timestamp) -> Duration {
        self.since.max(asked).until(now)
    }

    /// For a waiter that has sent nothing itself.
    fn for_waiter(&self) -> Error {
        self.error.clone().with_effect(Effect::None)
    }
}

impl State {
    fn ticket(&mut self) -> Ticket {
        self.tickets += 1;
        Ticket::new(self.tickets).expect("fewer than 2^64 requests")
    }

    fn forget_if_idle(&mut self, resource: &Resource) {
        let waits = |line: &Line| line.crowd.as_ref().is_some_and(|crowd| !crowd.waiting.is_empty());
        let idle = |line: &Line| line.holder.is_none() && line.head.is_none() && !waits(line);
        if self.lines.get(resource).is_some_and(idle) {
            self.lines.remove(resource);
        }
    }
}

impl Line {
    /// Makes the next one who waits the head.
    fn advance(&mut self) -> Option<Arc<Waiter>> {
        let (ticket, waiter) = self.crowd.as_mut()?.waiting.pop_first()?;
        self.head = Some(ticket);
        Some(waiter)
    }

    fn crowd(&mut self) -> &mut Crowd {
        self.crowd.get_or_insert_default()
    }
}

/// The order of arrival, among all requests of a client.
pub(crate) type Ticket = NonZeroU64;

/// One who waits for its turn.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) ticket: Ticket,
    pub(crate) claim: Claim,
    pub(crate) terms: Terms,
    /// When its caller asked.
    pub(crate) since: Timestamp,
    turn: Mutex<Turn>,
    bell: Notify,
}

/// What a waiter's turn brings.
#[derive(Debug)]
pub(crate) enum Turn {
    /// Not yet.
    NotYet,
    /// It is the head now: it asks the backend itself.
    Head(Headship),
    /// The seat was handed over.
    Granted(Handle),
    /// The backend failed, and for too long or for good.
    Failed(Error),
    /// The waiter has gone away.
    Gone,
}

/// With what a head begins.
#[derive(Debug, Default)]
pub(crate) struct Headship {
    /// What the head before left behind.
    pub(crate) inherits: Option<Handover>,
    /// The hand-over was refused, and left the claim in line.
    pub(crate) blocked: Option<Blocked>,
    /// The claim's owner token was used in a request that went unanswered: take another.
    pub(crate) tainted: bool,
    /// Pause one step before asking.
    pub(crate) back_off: bool,
}

pub(crate) enum Joined {
    Head(Ticket),
    Waiting(Arc<Waiter>),
}

impl Lines {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Joins the line; the first one is its head.
    pub(crate) fn join(&self, claim: &Claim, terms: &Terms, since: Timestamp) -> Joined {
        let mut state = self.lock();
        let ticket = state.ticket();
        let line = state.lines.entry(claim.resource.clone()).or_default();
        if line.holder.is_none() && line.head.is_none() {
            line.head = Some(ticket);
            return Joined::Head(ticket);
        }
        let (claim, terms) = (claim.clone(), terms.clone());
        let (turn, bell) = (Mutex::new(Turn::NotYet), Notify::new());
        let waiter = Waiter { ticket, claim, terms, since, turn, bell };
        let waiter = Arc::new(waiter);
        line.crowd().waiting.insert(ticket, Arc::clone(&waiter));
        Joined::Waiting(waiter)
    }

    /// Someone of this client holds it now; if it was the head, the line has none any more.
    pub(crate) fn granted(&self, resource: &Resource, head: Option<Ticket>, owner: OwnerToken) {
        let mut state = self.lock();
        let line = match head {
            Some(_) => state.lines.get_mut(resource).expect("a line with a head is not forgotten"),
            None => state.lines.entry(resource.clone()).or_default(),
        };
        if head.is_some() && line.head == head {
            line.head = None;
        }
        line.holder = Some(owner);
        if let Some(crowd) = &mut line.crowd {
            crowd.outage = None;
        }
    }

    /// The holder is leaving. Returns whom to hand the seat to; that one is the head while it is being done.
    pub(crate) fn leaving(&self, resource: &Resource, owner: OwnerToken) -> Option<Arc<Waiter>> {
        let mut state = self.lock();
        let line = state.lines.get_mut(resource).filter(|line| line.holder == Some(owner))?;
        line.holder = None;
        let next = if line.head.is_none() { line.advance() } else { None };
        if next.is_none() {
            state.forget_if_idle(resource);
        }
        next
    }

    /// The head goes away. Returns who is the head now.
    fn next_head(&self, resource: &Resource, head: Ticket) -> Option<Arc<Waiter>> {
        let mut state = self.lock();
        let line = state.lines.get_mut(resource).filter(|line| line.head == Some(head))?;
        line.head = None;
        let next = line.advance();
        if let (None, Some(crowd)) = (&next, &mut line.crowd) {
            crowd.outage = None; // Nobody asks any more, so nobody would find out that it is over.
        }
        state.forget_if_idle(resource);
        next
    }

    /// The head was refused for a reason that will not pass, and so would be everyone in line.
    pub(crate) fn fail_all(&self, resource: &Resource, error: &Error) {
        let waiting = {
            let mut state = self.lock();
            let Some(line) = state.lines.get_mut(resource) else { return };
            std::mem::take(&mut line.crowd().waiting)
        };
        for waiter in waiting.into_values() {
            drop(waiter.call(Turn::Failed(error.clone())));
        }
    }

    /// The backend did not answer the head. Fails those in line who have seen [`OUTAGE_MAX`] of it; the head judges itself.
    pub(crate) fn outage(&self, resource: &Resource, since: Timestamp, now: Timestamp, error: &Error) {
        let failed: Vec<(Arc<Waiter>, Error)> = {
            let mut state = self.lock();
            let Some(line) = state.lines.get_mut(resource) else { return };
            let crowd = line.crowd();
            let outage = crowd.outage.get_or_insert_with(|| Outage { since, error: error.clone() });
            outage.error = error.clone();
            let is_over = |waiter: &Waiter| outage.seen_by(waiter.since, now) >= OUTAGE_MAX;
            // In order of arrival: the first who has not seen enough of it ends the search.
            let count = crowd.waiting.values().take_while(|waiter| is_over(waiter)).count();
            let pop = |_| crowd.waiting.pop_first().map(|(_, waiter)| (waiter, outage.for_waiter()));
            (0..count).filter_map(pop).collect()
        };
        for (waiter, error) in failed {
            drop(waiter.call(Turn::Failed(error)));
        }
    }

    /// Remembers who was in the way, for those who give up waiting here. The backend has answered: an outage is over.
    pub(crate) fn saw(&self, resource: &Resource, busy: Busy) {
        if let Some(line) = self.lock().lines.get_mut(resource) {
            let crowd = line.crowd();
            (crowd.busy, crowd.outage) = (busy, None);
        }
    }

    /// Why a waiter whose time ran out was not granted: who was in the way when the head last asked, and how many wait here
    /// before this one.
    ///
    /// # Errors
    /// What the backend failed with, if it does not answer.
    pub(crate) fn why_not(&self, resource: &Resource, ticket: Ticket) -> Result<Busy, Error> {
        let state = self.lock();
        let crowd = state.lines.get(resource).and_then(|line| line.crowd.as_ref());
        let Some(crowd) = crowd else { return Ok(Busy::default()) };
        if let Some(outage) = &crowd.outage {
            return Err(outage.for_waiter());
        }
        let mut busy = crowd.busy.clone();
        let here = crowd.waiting.range(..ticket).take(1000).count();
        busy.ahead = busy.ahead.saturating_add(u32::try_from(here).unwrap_or(u32::MAX));
        Ok(busy)
    }

    /// A waiter gives up. Returns what its turn had brought.
    fn leave(&self, waiter: &Waiter) -> Turn {
        if let Some(line) = self.lock().lines.get_mut(&waiter.claim.resource) {
            line.crowd().waiting.remove(&waiter.ticket);
        }
        std::mem::replace(&mut *waiter.turn(), Turn::Gone)
    }
}

impl Engine {
    /// The holder has left, or was lost: the next in line asks for itself.
    pub(crate) fn holder_left(self: &Arc<Engine>, resource: &Resource, owner: OwnerToken) {
        if let Some(waiter) = self.lines.leaving(resource, owner) {
            self.make_head(&waiter, Headship::default());
        }
    }

    /// A waiter gives up. Whatever its turn had brought goes to the next.
    pub(crate) fn leave_line(self: &Arc<Engine>, waiter: &Waiter) {
        match self.lines.leave(waiter) {
            Turn::Head(headship) => self.abandon(waiter, headship),
            Turn::Granted(handle) => drop(handle), // as if it had been released at once
            Turn::NotYet | Turn::Failed(_) | Turn::Gone => {}
        }
    }

    /// Makes a waiter that is marked as the head begin; if it has gone away, the one after it.
    pub(crate) fn make_head(self: &Arc<Engine>, waiter: &Waiter, headship: Headship) {
        if let Err(Turn::Head(headship)) = waiter.call(Turn::Head(headship)) {
            self.abandon(waiter, headship);
        }
    }

    /// A head that never began leaves what it was to begin with.
    fn abandon(self: &Arc<Engine>, waiter: &Waiter, headship: Headship) {
        let placed = headship.blocked.is_some_and(|blocked| blocked.queued);
        let leaves = headship.inherits.or(placed.then(|| Handover::from(waiter.claim.owner)));
        self.abandon_head(&waiter.claim.resource, waiter.ticket, leaves);
    }

    /// The head goes away: the next in line inherits what it leaves; if there is none, the reaper does.
    pub(crate) fn abandon_head(
        self: &Arc<Engine>,
        resource: &Resource,
        head: Ticket,
        leaves: Option<Handover>,
    ) {
        let mut head = head;
        while let Some(waiter) = self.lines.next_head(resource, head) {
            let headship = Headship { inherits: leaves, ..Headship::default() };
            if waiter.call(Turn::Head(headship)).is_ok() {
                return;
            }
            head = waiter.ticket;
        }
        if let Some(leaves) = leaves {
            self.reap_claim(farewell_to(resource, leaves));
        }
    }
}

/// What is said to someone whom nobody succeeds after all.
pub(crate) fn farewell_to(resource: &Resource, predecessor: Handover) -> ReleaseRequest {
    let mut request = ReleaseRequest::new(ClaimRef { resource: resource.clone(), owner: predecessor.owner });
    request.tombstone = predecessor.tombstone;
    request
}

impl Waiter {
    fn turn(&self) -> MutexGuard<'_, Turn> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls the waiter to its turn; gives the turn back if it has gone away.
    pub(crate) fn call(&self, turn: Turn) -> Result<(), Turn> {
        let mut slot = self.turn();
        if matches!(*slot, Turn::Gone) {
            return Err(turn);
        }
        *slot = turn;
        drop(slot);
        self.bell.notify_one();
        Ok(())
    }

    /// Resolves when its turn has come. Cancel safe: the turn is taken only when it is returned.
    pub(crate) async fn turn_comes(&self) -> Turn {
        loop {
            {
                let mut slot = self.turn();
                if !matches!(*slot, Turn::NotYet) {
                    return std::mem::replace(&mut *slot, Turn::Gone);
                }
            }
            self.bell.notified().await;
        }
    }
}
