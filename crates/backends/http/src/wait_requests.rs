//! How waiters share requests (ADR 0079).
//!
//! 1. A claim that begins to wait is *pending*. A few milliseconds later all pending claims go into one `POST /v1/wait`.
//! 2. A claim that comes later opens another request: one that is under way cannot be added to.
//! 3. With [`OPEN_MAX`] requests under way, the next one takes the claims of the smallest one with it, which is dropped. So the
//!    number of requests does not grow with the number of waiters, until they no longer fit into that many.
//! 4. When an answer names claims, those are woken. The others of that request are pending again. They are sent with the cursors
//!    that they had, so a change in between is not missed.
//! 5. After an answer that names nobody there is a pause: the server may be one that returns at once.
//! 6. If a request fails, its waiters return with the error: they ask again, and learn what is wrong.
//!
//! A waiter that goes away is removed. A request without waiters is dropped.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use leasehold_api::{
    fields, routes,
    wait::{WaitBody, WaitReply, WaitingClaim},
};
use leasehold_core::{ClaimRef, Cursor, Environment, Error, Result, Timestamp};
use leasehold_support::race::{Either, first};
use tokio::sync::{Notify, oneshot};

use crate::{
    connection::{Call, Connections},
    error, list,
};

/// How long the first pending claim waits for others.
const GATHER: Duration = Duration::from_millis(2);
/// The same with [`OPEN_MAX`] requests under way, where every new one costs another.
const GATHER_WHEN_FULL: Duration = Duration::from_millis(25);
/// The pause after an answer that names nobody.
const AFTER_EMPTY: Duration = Duration::from_millis(50);
/// How many requests are under way before they are merged.
const OPEN_MAX: usize = 4;
/// The most claims of a request. An answer ends the wait of all of them, and the others are sent, and watched for, again.
const CLAIMS_MAX: usize = 256;
/// The longest request. Some proxies cut one that is silent for half a minute.
const WAIT_MAX: Duration = Duration::from_secs(25);

/// The waiters of one client, and their requests.
pub(crate) struct WaitRequests {
    connections: Arc<Connections>,
    environment: Arc<dyn Environment>,
    /// Claims in one request.
    entries_max: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// For waiters and requests.
    next_number: u64,
    waiters: HashMap<u64, Waiter>,
    /// Waiters that are in no request, and numbers of waiters that are gone.
    pending: Vec<u64>,
    open: HashMap<u64, OpenRequest>,
    /// A task is about to take the pending waiters.
    is_gathering: bool,
}

struct Waiter {
    claim: ClaimRef,
    since: Cursor,
    ends_at: Timestamp,
    request: Option<u64>,
    reply: oneshot::Sender<Result<()>>,
}

/// A request under way.
struct OpenRequest {
    waiters: HashSet<u64>,
    /// Drops it.
    cancel: Arc<Notify>,
}

/// What a request is about to send.
struct Batch {
    number: u64,
    /// In the order of the entries.
    waiters: Vec<u64>,
    body: WaitBody,
    cancel: Arc<Notify>,
}

/// A waiter that is registered. Dropping it removes it.
struct Registered<'a> {
    requests: &'a WaitRequests,
    number: u64,
}

impl State {
    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    /// Removes a waiter. Drops its request if that has no other.
    fn remove(&mut self, number: u64) -> Option<Waiter> {
        let waiter = self.waiters.remove(&number)?;
        if let Some(request) = waiter.request {
            let open = self.open.get_mut(&request);
            let is_empty = open.is_some_and(|open| {
                open.waiters.remove(&number);
                open.waiters.is_empty()
            });
            if is_empty && let Some(open) = self.open.remove(&request) {
                open.cancel.notify_one();
            }
        }
        Some(waiter)
    }

    /// Takes pending waiters for the next request, and those of small requests under way if there are too many.
    fn take_waiters(&mut self, entries_max: usize) -> Vec<u64> {
        let waiters = &self.waiters;
        self.pending.retain(|number| waiters.contains_key(number));
        let count = self.pending.len().min(entries_max);
        let mut taken: Vec<u64> = self.pending.drain(..count).collect();
        while !taken.is_empty() && self.open.len() >= OPEN_MAX {
            let smallest = self.open.iter().min_by_key(|(_, open)| open.waiters.len());
            let fits = smallest.filter(|(_, open)| open.waiters.len() + taken.len() <= entries_max);
            let Some(number) = fits.map(|(number, _)| *number) else { break };
            if let Some(merged) = self.open.remove(&number) {
                merged.cancel.notify_one();
                taken.extend(merged.waiters);
            }
        }
        taken
    }
}

impl WaitRequests {
    pub(crate) fn new(
        connections: Arc<Connections>,
        environment: Arc<dyn Environment>,
        entries_max: usize,
    ) -> Arc<WaitRequests> {
        let entries_max = entries_max.clamp(1, CLAIMS_MAX);
        Arc::new(WaitRequests { connections, environment, entries_max, state: Mutex::default() })
    }

    /// Returns when the claim should ask again, and after `at_most`.
    ///
    /// # Cancel safety
    /// Dropping it leaves nothing behind.
    pub(crate) async fn wait(
        self: &Arc<Self>,
        claim: &ClaimRef,
        since: Cursor,
        at_most: Duration,
    ) -> Result<()> {
        let (reply, answered) = oneshot::channel();
        let ends_at = self.environment.now().after(at_most);
        let waiter = Waiter { claim: claim.clone(), since, ends_at, request: None, reply };
        let _registered = self.register(waiter);
        match first(answered, self.environment.sleep(at_most)).await {
            Either::Left(Ok(result)) => result,
            _ => Ok(()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn register(self: &Arc<Self>, waiter: Waiter) -> Registered<'_> {
        let mut state = self.lock();
        let number = state.number();
        state.waiters.insert(number, waiter);
        state.pending.push(number);
        let pause = if state.open.len() < OPEN_MAX { GATHER } else { GATHER_WHEN_FULL };
        self.gather(&mut state, pause);
        Registered { requests: self, number }
    }

    /// Starts a request for the pending waiters, unless one is about to start.
    fn gather(self: &Arc<Self>, state: &mut State, pause: Duration) {
        if state.is_gathering || state.pending.is_empty() {
            return;
        }
        state.is_gathering = true;
        let requests = Arc::clone(self);
        self.environment.spawn(Box::pin(async move {
            requests.environment.sleep(pause).await;
            requests.carry_out().await;
        }));
    }

    async fn carry_out(self: Arc<Self>) {
        let Some(batch) = self.take_batch() else { return };
        // Cancelled: its waiters have gone, or are in another request now.
        if let Either::Left(result) = first(self.send(&batch.body), batch.cancel.notified()).await {
            self.finish(&batch, result);
        }
    }

    fn take_batch(self: &Arc<Self>) -> Option<Batch> {
        let mut state = self.lock();
        let state = &mut *state;
        state.is_gathering = false;
        let store = self.connections.store()?;
        let mut waiters = state.take_waiters(self.entries_max);
        self.gather(state, GATHER); // for those that did not fit
        if waiters.is_empty() {
            return None;
        }
        let (number, now) = (state.number(), self.environment.now());
        let (mut claims, mut longest) = (Vec::with_capacity(waiters.len()), Duration::ZERO);
        waiters.retain(|waiter| {
            let Some(waiter) = state.waiters.get_mut(waiter) else { return false };
            waiter.request = Some(number);
            longest = longest.max(now.until(waiter.ends_at));
            claims.push(WaitingClaim::new(&waiter.claim, waiter.since, store));
            true
        });
        let cancel = Arc::new(Notify::new());
        let open = OpenRequest { waiters: waiters.iter().copied().collect(), cancel: Arc::clone(&cancel) };
        state.open.insert(number, open);
        let wait_ms = fields::ttl_ms(longest.min(WAIT_MAX));
        Some(Batch { number, waiters, body: WaitBody { claims, wait_ms }, cancel })
    }

    async fn send(&self, body: &WaitBody) -> Result<WaitReply> {
        let at_most = Duration::from_millis(body.wait_ms) + self.connections.config.timeout;
        let call = Call::post(routes::WAIT, list::body(body)?, at_most).waiting();
        let mut answer = self.connections.call(&call).await?;
        let reply: WaitReply = answer.read(&self.connections.server)?;
        if reply.ask.iter().any(|position| *position >= body.claims.len()) {
            answer.distrust();
            return Err(error::unreadable(&self.connections.server, &"it names a claim that did not wait"));
        }
        Ok(reply)
    }

    fn finish(self: &Arc<Self>, batch: &Batch, result: Result<WaitReply>) {
        let mut state = self.lock();
        state.open.remove(&batch.number);
        let reply = match result {
            Ok(reply) => reply,
            Err(error) => return fail(&mut state, batch, &error),
        };
        let pause = if reply.ask.is_empty() { AFTER_EMPTY } else { GATHER };
        for number in reply.ask.iter().filter_map(|position| batch.waiters.get(*position)) {
            if let Some(waiter) = state.remove(*number) {
                let _ = waiter.reply.send(Ok(())); // the waiter may be about to go
            }
        }
        let State { waiters, pending, .. } = &mut *state;
        for number in &batch.waiters {
            // One that another request took meanwhile stays there.
            if let Some(waiter) =
                waiters.get_mut(number).filter(|waiter| waiter.request == Some(batch.number))
            {
                waiter.request = None;
                pending.push(*number);
            }
        }
        self.gather(&mut state, pause);
    }
}

fn fail(state: &mut State, batch: &Batch, error: &Error) {
    for number in &batch.waiters {
        let is_here = state.waiters.get(number).is_some_and(|waiter| waiter.request == Some(batch.number));
        if is_here && let Some(waiter) = state.waiters.remove(number) {
            let _ = waiter.reply.send(Err(error.clone()));
        }
    }
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        self.requests.lock().remove(self.number);
    }
}
