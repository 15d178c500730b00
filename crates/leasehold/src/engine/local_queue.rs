//! The local queue: requests of one client for the same exclusive resource wait here and share one place at the backend.
//! Ten thousand waiting tasks cost the backend as much as one (ADR 0007).
//!
//! 1. A request joins the queue of its resource. If this client neither holds the resource nor asks for it, the request
//!    becomes the *head* at once. Otherwise it waits.
//! 2. Only the head asks the backend ([`acquisition`](super::acquisition)). When it is granted, it becomes the holder.
//! 3. When the holder releases, its lease is handed to the next waiter in one call ([`release`](super::release)). While
//!    that call is under way, the waiter is the head. If the handover is refused, it asks for itself.
//! 4. When the head goes away, the next waiter becomes the head and takes over the grant or place that it had.
//! 5. When the holder is lost, the next waiter becomes the head.
//!
//! Invariant: while anyone waits here, there is a holder or a head, and each way in which it can end calls the next waiter.

use std::{
    collections::{BTreeMap, HashMap},
    num::NonZeroU64,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use leasehold_core::{
    Blocked, Busy, Claim, ClaimRef, Effect, Error, Handover, ReleaseRequest, Resource, Timestamp,
};
use tokio::sync::Notify;

use super::{
    Engine, LeaseOptions,
    acquire::OUTAGE_MAX,
    busy::{aged, busy_with},
    held_lease::{HeldLease, LeaseHandle},
};

/// How many waiters ahead are counted for `Busy::ahead`. Counting walks over them, so it is bounded.
const AHEAD_COUNTED_MAX: usize = 1000;

/// The local queues of a client, by resource.
#[derive(Debug, Default)]
pub(crate) struct LocalQueues(Mutex<LocalQueueMap>);

#[derive(Debug, Default)]
struct LocalQueueMap {
    queues: HashMap<Resource, LocalQueue>,
    last_ticket: u64,
}

/// The queue of one resource. Every held lease has one, so what is needed only when somebody waits is boxed.
#[derive(Debug, Default)]
struct LocalQueue {
    /// The lease that this client holds. Weak: the queue must not keep a lease alive that its caller has dropped.
    holder: Option<Weak<HeldLease>>,
    /// The request that asks the backend.
    head: Option<Ticket>,
    waiters: Option<Box<LocalWaiters>>,
}

#[derive(Debug, Default)]
struct LocalWaiters {
    by_ticket: BTreeMap<Ticket, Arc<LocalWaiter>>,
    /// The backend's reply when the head last asked, and when it came.
    busy: Option<(Busy, Timestamp)>,
    /// Set while the backend does not answer the head.
    outage: Option<Outage>,
}

/// The backend is unavailable.
///
/// All waiters of a queue learn of it from the head, but the head's time limit is its own: each waiter is given
/// [`OUTAGE_MAX`] from the moment when it began to wait.
#[derive(Clone, Debug)]
struct Outage {
    since: Timestamp,
    error: Error,
}

impl Outage {
    /// How much of the outage a waiter has seen that began to wait at `asked`.
    fn seen_since(&self, asked: Timestamp, now: Timestamp) -> Duration {
        self.since.max(asked).until(now)
    }

    /// The error for a waiter. It has sent nothing itself, so nothing can have been executed.
    fn error_for_waiter(&self) -> Error {
        self.error.clone().with_effect(Effect::None)
    }
}

impl LocalQueueMap {
    fn next_ticket(&mut self) -> Ticket {
        self.last_ticket += 1;
        Ticket::new(self.last_ticket).expect("fewer than 2^64 requests")
    }

    fn remove_if_unused(&mut self, resource: &Resource) {
        if self.queues.get(resource).is_some_and(LocalQueue::is_unused) {
            self.queues.remove(resource);
        }
    }
}

impl LocalQueue {
    fn is_unused(&self) -> bool {
        let has_waiters = self.waiters.as_ref().is_some_and(|waiters| !waiters.by_ticket.is_empty());
        self.holder.is_none() && self.head.is_none() && !has_waiters
    }

    fn is_held_by(&self, lease: &HeldLease) -> bool {
        self.holder.as_ref().is_some_and(|holder| std::ptr::eq(holder.as_ptr(), lease))
    }

    /// Makes the next waiter the head.
    fn promote_next(&mut self) -> Option<Arc<LocalWaiter>> {
        let (ticket, waiter) = self.waiters.as_mut()?.by_ticket.pop_first()?;
        self.head = Some(ticket);
        Some(waiter)
    }

    fn waiters(&mut self) -> &mut LocalWaiters {
        self.waiters.get_or_insert_default()
    }
}

/// The order of arrival among all requests of a client.
pub(crate) type Ticket = NonZeroU64;

/// A request that waits in a local queue.
#[derive(Debug)]
pub(crate) struct LocalWaiter {
    pub(crate) ticket: Ticket,
    pub(crate) claim: Claim,
    pub(crate) options: LeaseOptions,
    /// When its caller asked.
    pub(crate) since: Timestamp,
    state: Mutex<WaiterState>,
    wakeup: Notify,
}

/// What has become of a waiter.
#[derive(Debug)]
pub(crate) enum WaiterState {
    /// It waits.
    Waiting,
    /// It is the head now, and asks the backend itself.
    Head(QueueHead),
    /// The lease was handed over to it.
    Granted(LeaseHandle),
    /// The backend failed, for too long or for good.
    Failed(Error),
    /// Its caller has gone away, or has taken what the signal brought.
    Left,
}

/// What a new head starts with.
#[derive(Debug, Default)]
pub(crate) struct QueueHead {
    /// The claim of the head before it, to take over from.
    pub(crate) inherits: Option<Handover>,
    /// The handover was refused, and the backend put the claim into its queue.
    pub(crate) blocked: Option<Box<Blocked>>,
    /// Its owner token was used in a handover that went unanswered. It must ask under a new one.
    pub(crate) needs_new_owner: bool,
    /// It pauses before it asks.
    pub(crate) pause_first: bool,
}

/// How a request joined the queue.
pub(crate) enum Joined {
    Head(Ticket),
    Waiting(Arc<LocalWaiter>),
}

impl LocalQueues {
    fn lock(&self) -> MutexGuard<'_, LocalQueueMap> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Joins the queue of the claim's resource.
    pub(crate) fn join(&self, claim: &Claim, options: &LeaseOptions, since: Timestamp) -> Joined {
        let mut map = self.lock();
        let ticket = map.next_ticket();
        let queue = map.queues.entry(claim.resource.clone()).or_default();
        if queue.holder.is_none() && queue.head.is_none() {
            queue.head = Some(ticket);
            return Joined::Head(ticket);
        }
        let waiter = Arc::new(LocalWaiter {
            ticket,
            claim: claim.clone(),
            options: options.clone(),
            since,
            state: Mutex::new(WaiterState::Waiting),
            wakeup: Notify::new(),
        });
        queue.waiters().by_ticket.insert(ticket, Arc::clone(&waiter));
        Joined::Waiting(waiter)
    }

    /// A claim of this client was granted. If it was the head, the queue has no head any more.
    pub(crate) fn set_holder(&self, head: Option<Ticket>, lease: &Arc<HeldLease>) {
        let mut map = self.lock();
        let queue = match head {
            Some(_) => map.queues.get_mut(&lease.resource).expect("a queue with a head is not removed"),
            None => map.queues.entry(lease.resource.clone()).or_default(),
        };
        if head.is_some() && queue.head == head {
            queue.head = None;
        }
        queue.holder = Some(Arc::downgrade(lease));
        if let Some(waiters) = &mut queue.waiters {
            (waiters.busy, waiters.outage) = (None, None);
        }
    }

    /// The holder leaves. Returns the waiter that comes next; it is the head from now on.
    pub(crate) fn remove_holder(&self, lease: &HeldLease) -> Option<Arc<LocalWaiter>> {
        let resource = &lease.resource;
        let mut map = self.lock();
        let queue = map.queues.get_mut(resource).filter(|queue| queue.is_held_by(lease))?;
        queue.holder = None;
        let next = if queue.head.is_none() { queue.promote_next() } else { None };
        if next.is_none() {
            map.remove_if_unused(resource);
        }
        next
    }

    /// The head leaves. Returns the waiter that is the head from now on.
    fn remove_head(&self, resource: &Resource, head: Ticket) -> Option<Arc<LocalWaiter>> {
        let mut map = self.lock();
        let queue = map.queues.get_mut(resource).filter(|queue| queue.head == Some(head))?;
        queue.head = None;
        let next = queue.promote_next();
        if let (None, Some(waiters)) = (&next, &mut queue.waiters) {
            waiters.outage = None; // without a head, nobody would find out that the outage is over
        }
        map.remove_if_unused(resource);
        next
    }

    /// The head was refused for a reason that will not pass. Every waiter would be, so all of them fail.
    pub(crate) fn fail_all(&self, resource: &Resource, error: &Error) {
        let failed = {
            let mut map = self.lock();
            let Some(queue) = map.queues.get_mut(resource) else { return };
            std::mem::take(&mut queue.waiters().by_ticket)
        };
        for waiter in failed.into_values() {
            drop(waiter.signal(WaiterState::Failed(error.clone())));
        }
    }

    /// The backend did not answer the head. Fails the waiters that have seen [`OUTAGE_MAX`] of the outage. The head
    /// decides for itself.
    pub(crate) fn record_outage(&self, resource: &Resource, since: Timestamp, now: Timestamp, error: &Error) {
        let failed: Vec<(Arc<LocalWaiter>, Error)> = {
            let mut map = self.lock();
            let Some(queue) = map.queues.get_mut(resource) else { return };
            let waiters = queue.waiters();
            let outage = waiters.outage.get_or_insert_with(|| Outage { since, error: error.clone() });
            outage.error = error.clone();
            let has_seen_enough = |waiter: &LocalWaiter| outage.seen_since(waiter.since, now) >= OUTAGE_MAX;
            // Waiters are in order of arrival, so the first that has not seen enough ends the search.
            let count = waiters.by_ticket.values().take_while(|waiter| has_seen_enough(waiter)).count();
            let pop =
                |_| waiters.by_ticket.pop_first().map(|(_, waiter)| (waiter, outage.error_for_waiter()));
            (0..count).filter_map(pop).collect()
        };
        for (waiter, error) in failed {
            drop(waiter.signal(WaiterState::Failed(error)));
        }
    }

    /// Remembers the backend's reply to the head, for waiters whose time runs out. A reply also ends an outage.
    pub(crate) fn record_busy(&self, resource: &Resource, busy: Busy, now: Timestamp) {
        if let Some(queue) = self.lock().queues.get_mut(resource) {
            let waiters = queue.waiters();
            (waiters.busy, waiters.outage) = (Some((busy, now)), None);
        }
    }

    /// What blocks a waiter whose time ran out: the lease of this client, or the backend's last reply to the head; and the
    /// waiters ahead of it here.
    ///
    /// # Errors
    /// The backend's error, during an outage.
    pub(crate) fn busy_for(&self, waiter: &LocalWaiter, now: Timestamp) -> Result<Busy, Error> {
        self.busy_before(&waiter.claim.resource, waiter.ticket, now)
    }

    /// The same for a caller that did not join the queue, because another task of its scope did.
    ///
    /// # Errors
    /// The backend's error, during an outage.
    pub(crate) fn busy_on(&self, resource: &Resource, now: Timestamp) -> Result<Busy, Error> {
        self.busy_before(resource, Ticket::MAX, now)
    }

    fn busy_before(&self, resource: &Resource, ticket: Ticket, now: Timestamp) -> Result<Busy, Error> {
        let mut map = self.lock();
        let Some(queue) = map.queues.get_mut(resource) else { return Ok(Busy::default()) };
        let has_head = queue.head.is_some();
        let held = queue.holder.as_ref().and_then(Weak::upgrade);
        let waiters = queue.waiters();
        if let Some(outage) = &waiters.outage {
            return Err(outage.error_for_waiter());
        }
        let last_reply = waiters.busy.as_ref().map(|(busy, at)| aged(busy, at.until(now)));
        let ahead = waiters.by_ticket.range(..ticket).take(AHEAD_COUNTED_MAX).count();
        let mut busy = held.map(|held| busy_with(&held, now)).or(last_reply).unwrap_or_default();
        let ahead = u32::try_from(ahead).unwrap_or(u32::MAX).saturating_add(u32::from(has_head));
        busy.ahead = busy.ahead.saturating_add(ahead);
        Ok(busy)
    }

    /// Removes a waiter. Returns the signal that it was sent and has not taken.
    fn leave(&self, waiter: &LocalWaiter) -> WaiterState {
        if let Some(queue) = self.lock().queues.get_mut(&waiter.claim.resource) {
            queue.waiters().by_ticket.remove(&waiter.ticket);
        }
        std::mem::replace(&mut *waiter.state(), WaiterState::Left)
    }
}

impl Engine {
    /// The holder has left or was lost: the next waiter becomes the head.
    pub(crate) fn promote_after(self: &Arc<Engine>, lease: &HeldLease) {
        if let Some(waiter) = self.local_queues.remove_holder(lease) {
            self.start_head(&waiter, QueueHead::default());
        }
    }

    /// A waiter leaves the queue. If it was signalled meanwhile, the next waiter gets what the signal brought.
    pub(crate) fn leave_local_queue(self: &Arc<Engine>, waiter: &LocalWaiter) {
        match self.local_queues.leave(waiter) {
            WaiterState::Head(head) => self.replace_unstarted_head(waiter, head),
            WaiterState::Granted(handle) => drop(handle), // as if it had been released at once
            WaiterState::Waiting | WaiterState::Failed(_) | WaiterState::Left => {}
        }
    }

    /// Signals a waiter that the queue has made its head. If it has left, the next waiter becomes the head.
    pub(crate) fn start_head(self: &Arc<Engine>, waiter: &LocalWaiter, head: QueueHead) {
        if let Err(WaiterState::Head(head)) = waiter.signal(WaiterState::Head(head)) {
            self.replace_unstarted_head(waiter, head);
        }
    }

    /// A head left before it began to ask. What it was to start with is left at the backend.
    fn replace_unstarted_head(self: &Arc<Engine>, waiter: &LocalWaiter, head: QueueHead) {
        let queued = head.blocked.is_some_and(|blocked| blocked.queued);
        let left = head.inherits.or(queued.then(|| Handover::from(waiter.claim.owner)));
        self.replace_head(&waiter.claim.resource, waiter.ticket, left);
    }

    /// The head goes away: the next waiter takes over what it leaves at the backend. If nobody waits, that is released.
    pub(crate) fn replace_head(
        self: &Arc<Engine>,
        resource: &Resource,
        head: Ticket,
        left: Option<Handover>,
    ) {
        let mut head = head;
        while let Some(waiter) = self.local_queues.remove_head(resource, head) {
            let new_head = QueueHead { inherits: left, ..QueueHead::default() };
            if waiter.signal(WaiterState::Head(new_head)).is_ok() {
                return;
            }
            head = waiter.ticket; // it has left just now: try the waiter behind it
        }
        if let Some(left) = left {
            self.release_in_background(release_of(resource, left));
        }
    }
}

/// The release of a claim that nobody takes over from after all.
pub(crate) fn release_of(resource: &Resource, left: Handover) -> ReleaseRequest {
    let mut request = ReleaseRequest::new(ClaimRef { resource: resource.clone(), owner: left.owner });
    request.tombstone = left.tombstone;
    request
}

impl LocalWaiter {
    fn state(&self) -> MutexGuard<'_, WaiterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the waiter with its new state. If it has left, the state is returned.
    pub(crate) fn signal(&self, new: WaiterState) -> Result<(), WaiterState> {
        let mut state = self.state();
        if matches!(*state, WaiterState::Left) {
            return Err(new);
        }
        *state = new;
        drop(state);
        self.wakeup.notify_one();
        Ok(())
    }

    /// Resolves when the waiter is signalled. Cancel safe: the state is taken only when it is returned.
    pub(crate) async fn until_signalled(&self) -> WaiterState {
        loop {
            {
                let mut state = self.state();
                if !matches!(*state, WaiterState::Waiting) {
                    return std::mem::replace(&mut *state, WaiterState::Left);
                }
            }
            self.wakeup.notified().await;
        }
    }
}
