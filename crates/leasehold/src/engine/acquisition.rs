//! The acquire loop: ask the backend; if blocked, wait; ask again.
//!
//! 1. Send `acquire`. The owner token was chosen before, so a repeated request finds its own grant or place.
//! 2. Granted: make a [`HeldLease`](super::held_lease::HeldLease). If the reply came so late that its holder would have to
//!    stop at once, renew the grant first; if that fails, release it and ask as a new owner.
//! 3. Blocked: if the wait limit is used up, the outcome is `Busy`. Otherwise wait, and go to step 1. A wait ends with the
//!    backend's wake-up, shortly after the next expiry, with the loss of the place, or with a jittered poll; so a lost
//!    wake-up costs a few seconds at most.
//! 4. Cancelled (the owner has a tombstone): go to step 1 as a new owner.
//! 5. Failed: if the error may pass, pause and go to step 1, for at most [`OUTAGE_MAX`].
//!
//! The loop may be dropped at any await point. [`PendingClaim`] knows what the backend may have by then, and cleans up.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use leasehold_core::{
    Backoff, Blocked, Effect, Error, ErrorKind, Grant, OwnerToken, RenewRequest, Renewal, Result, Timestamp,
    Verb, Verdict, backoff::jitter,
};
use leasehold_support::race::first;

use super::{
    Engine,
    acquire::{AcquireOutcome, AcquireRequest, GrantReply, OUTAGE_MAX, WaitLimit},
    held_lease::LeaseHandle,
    local_queue::{QueueHead, Ticket, release_of},
    pending_claim::PendingClaim,
    queue_place::QueuePlaceKeeper,
    telemetry::{GrantDetails, KindMetrics, WaitingGauge},
    times::SendTime,
};

/// A request is given at least this long, even if the caller's limit is shorter. A request that is given up needs a
/// tombstone, which costs more than waiting a little.
const REPLY_TIMEOUT_MIN: Duration = Duration::from_secs(1);
/// The longest time between two requests of a blocked claim, whatever wake-ups come.
const POLL_EVERY_MAX: Duration = Duration::from_secs(5);
/// How long after an expiry the first waiter asks, and how much later each waiter behind it.
const AFTER_EXPIRY: Duration = Duration::from_millis(2);
const AFTER_EXPIRY_STEP: Duration = Duration::from_millis(25);
/// From this position on, waiters ask equally late after an expiry.
const AFTER_EXPIRY_STEPS_MAX: u32 = 40;

/// One claim on its way to a grant.
pub(super) struct Acquisition<'a> {
    engine: &'a Arc<Engine>,
    request: AcquireRequest,
    started: Timestamp,
    pending: PendingClaim<'a>,
    /// The last reply, if it was `Blocked` and was not acted on yet.
    blocked: Option<Blocked>,
    /// Pauses after a request that was not answered. See [`outage_backoff`].
    outage_pauses: Backoff,
    /// Pauses between requests without a place in the queue.
    poll_pauses: Backoff,
    /// Since when the backend has not answered.
    outage_since: Option<Timestamp>,
    /// How many requests were sent.
    asked: u32,
    /// How many claims were ahead when it was first blocked.
    behind: Option<u32>,
    pause_first: bool,
    metrics: Arc<KindMetrics>,
}

impl<'a> Acquisition<'a> {
    pub(super) fn new(
        engine: &'a Arc<Engine>,
        mut request: AcquireRequest,
        started: Timestamp,
        ticket: Option<Ticket>,
        head: QueueHead,
    ) -> Acquisition<'a> {
        // A late request with the old owner token must not be taken for one of this claim.
        if head.needs_new_owner {
            request.claim.owner = OwnerToken::fresh(&*engine.environment);
        }
        request.claim.takes_over_from = head.inherits;
        request.claim.floor = engine.floor(&request.claim.resource);
        let mut pending = PendingClaim::new(engine, request.claim.reference(), request.claim.ttl);
        pending.ticket = ticket;
        pending.inherited = head.inherits;
        pending.known_to_backend = head.blocked.as_ref().is_some_and(|blocked| blocked.queued);
        Acquisition {
            engine,
            started,
            pending,
            behind: head.blocked.as_ref().map(|blocked| blocked.ahead),
            blocked: head.blocked.map(|blocked| *blocked),
            outage_pauses: outage_backoff(request.claim.ttl),
            poll_pauses: Backoff::new(),
            outage_since: None,
            asked: 0,
            pause_first: head.pause_first,
            metrics: engine.telemetry.metrics(&request.claim.resource),
            request,
        }
    }

    pub(super) async fn run(&mut self) -> Result<AcquireOutcome> {
        if self.pause_first {
            let pause = self.outage_pauses.next(self.engine.environment.random());
            let left = self.time_left(self.engine.environment.now());
            self.engine.environment.sleep(pause.min(left)).await;
        }
        loop {
            if let Some(blocked) = self.blocked.take() {
                if self.is_limit_used_up() {
                    return Ok(AcquireOutcome::Busy(blocked.into_busy()));
                }
                Box::pin(self.wait(&blocked)).await; // boxed: an uncontended acquire stays small
            }
            let asked_at = self.engine.environment.now();
            let verdict = self.ask(asked_at).await;
            let received = self.engine.environment.now();
            self.metrics.acquire.record(asked_at.until(received));
            match verdict {
                Ok((Verdict::Granted(grant), sent)) => {
                    if let Some(handle) = self.start_lease(grant, sent, received) {
                        return Ok(AcquireOutcome::Granted(handle));
                    }
                    if let Some(handle) = Box::pin(self.renew_late_grant(grant)).await {
                        return Ok(AcquireOutcome::Granted(handle));
                    }
                    self.release_late_grant();
                }
                Ok((Verdict::Blocked(blocked), _)) => self.record_blocked(blocked),
                Ok((Verdict::Cancelled, _)) => self.use_new_owner(),
                Ok((Verdict::Mismatch { capacity }, _)) => {
                    // The backend removes the place of a claim with another capacity, so there is nothing to release.
                    self.pending.known_to_backend = false;
                    let ours = self.request.claim.share.capacity();
                    return Err(Error::mismatch(capacity, ours).on(&self.request.claim.resource));
                }
                Err(error) => Box::pin(self.pause_after_failure(error)).await?,
            }
        }
    }

    /// Sends one `acquire`. Also returns when it was sent.
    async fn ask(&mut self, now: Timestamp) -> Result<(Verdict, SendTime)> {
        let (engine, claim) = (self.engine, &self.request.claim);
        if self.asked > 0 {
            self.metrics.retries.increment(1);
        }
        self.asked = self.asked.saturating_add(1);
        let at_most = Engine::request_limit(claim.ttl).min(self.time_left(now).max(REPLY_TIMEOUT_MIN));
        // Only a first request is gathered. A waiter whose turn has come, a claim that may have been granted unnoticed, and
        // a claim that releases another one by taking over from it ask at once.
        let is_first = self.asked == 1 && !self.pending.known_to_backend && claim.takes_over_from.is_none();
        let call = async {
            let answer = engine.acquires.send(claim, &self.pending.in_flight, is_first).await;
            answer.result.map(|verdict| (verdict, answer.sent))
        };
        let verdict = engine.call(Verb::Acquire, Some(&claim.resource), at_most, call).await;
        self.pending.in_flight.store(false, Ordering::Release);
        match &verdict {
            Ok((reply, _)) => {
                // A reply shows that the takeover was executed: it is part of the same request. Except for a mismatch,
                // which the backend refuses before it looks at the takeover.
                if !matches!(reply, Verdict::Mismatch { .. }) {
                    (self.pending.inherited, self.request.claim.takes_over_from) = (None, None);
                }
                self.outage_since = None;
                self.outage_pauses = outage_backoff(self.request.claim.ttl);
            }
            Err(error) if error.effect() == Effect::Unknown => self.pending.unanswered = true,
            Err(_) => {}
        }
        verdict
    }

    /// Makes a lease of the grant. `None` if the grant came too late.
    fn start_lease(&mut self, grant: Grant, sent: SendTime, received: Timestamp) -> Option<LeaseHandle> {
        let engine = self.engine;
        let (claim, needs_tombstone) = (&self.request.claim, self.pending.unanswered);
        self.pending.known_to_backend = true;
        let reply = GrantReply { grant, sent, received, needs_tombstone };
        let handle = engine.start_granted(claim, &self.request.options, reply)?;
        // From here on the lease is responsible for the claim, and for its tombstone.
        (self.pending.known_to_backend, self.pending.unanswered) = (false, false);
        let ticket = self.pending.ticket.take();
        if claim.share.capacity() == 1 && !self.request.fair {
            engine.local_queues.set_holder(ticket, handle.lease());
        }
        let waited = self.started.until(received);
        let details = GrantDetails { handed_over: false, acks: grant.acks };
        engine.telemetry.acquired(handle.lease(), waited, self.behind.unwrap_or(0), details);
        Some(handle)
    }

    /// Renews a grant that came too late to be used: the reply was slow, or an earlier request had brought the grant and
    /// its reply was lost.
    ///
    /// The backend may still have the grant, and a renewal gives it its full time again. A renewal never revives a grant
    /// that has ended. Releasing it instead would cost a claim that has waited in the queue its turn and its place.
    ///
    /// If this is dropped part-way, `PendingClaim` releases the grant: `known_to_backend` is set.
    async fn renew_late_grant(&mut self, grant: Grant) -> Option<LeaseHandle> {
        let (engine, claim) = (self.engine, &self.request.claim);
        let request = RenewRequest::new(claim.reference(), claim.ttl);
        let sent = engine.send_time();
        let limit = Engine::request_limit(claim.ttl);
        let Ok(Renewal::Renewed(renewed)) = engine.renew_one(request, limit).await else {
            return None;
        };
        let mut renewed_grant = Grant::new(renewed.token, renewed.remaining);
        renewed_grant.acks = grant.acks;
        let handle = self.start_lease(renewed_grant, sent, engine.environment.now())?;
        engine.apply_operator_requests(handle.lease(), renewed);
        Some(handle)
    }

    /// Releases a grant that cannot be used, and goes on as a new owner.
    fn release_late_grant(&mut self) {
        if let Some(handover) = self.pending.left_at_backend() {
            self.engine.release_in_background(release_of(&self.request.claim.resource, handover));
        }
        self.use_new_owner();
    }

    fn use_new_owner(&mut self) {
        let owner = OwnerToken::fresh(&*self.engine.environment);
        self.request.claim.owner = owner;
        self.pending.claim.owner = owner;
        (self.pending.known_to_backend, self.pending.unanswered) = (false, false);
        // The loop checks the limit only when the claim is blocked. Without this, a single attempt would ask twice.
        if self.is_limit_used_up() {
            self.blocked = Some(Blocked::default());
        }
    }

    fn record_blocked(&mut self, blocked: Blocked) {
        if self.behind.is_none() {
            self.metrics.contention.increment(1);
            self.behind = Some(blocked.ahead);
        }
        self.pending.known_to_backend = blocked.queued;
        // Local waiters whose time runs out report this reply as their own.
        if self.pending.ticket.is_some() {
            let (busy, now) = (blocked.clone().into_busy(), self.engine.environment.now());
            self.engine.local_queues.record_busy(&self.request.claim.resource, busy, now);
        }
        self.blocked = Some(blocked);
    }

    /// Pauses after an error that may pass, as long as the limits allow; returns every other error.
    ///
    /// Waiters behind this claim have limits of their own. Only an error that will not pass fails them too.
    async fn pause_after_failure(&mut self, error: Error) -> Result<()> {
        let now = self.engine.environment.now();
        let since = *self.outage_since.get_or_insert(now);
        let left = self.time_left(now).min(OUTAGE_MAX.saturating_sub(since.until(now)));
        let (queues, resource) = (&self.engine.local_queues, &self.request.claim.resource);
        if self.pending.ticket.is_some() {
            match error.kind() {
                ErrorKind::Unavailable => queues.record_outage(resource, since, now, &error),
                ErrorKind::Denied | ErrorKind::Corrupt => queues.fail_all(resource, &error),
                _ => {}
            }
        }
        let may_pass = error.kind() == ErrorKind::Unavailable;
        let was_last = matches!(self.request.wait, WaitLimit::Attempts(n) if self.asked >= n);
        if !may_pass || was_last || left.is_zero() {
            return Err(error);
        }
        let pause = self.outage_pauses.next(self.engine.environment.random());
        self.engine.environment.sleep(pause.min(left)).await;
        Ok(())
    }

    fn time_left(&self, now: Timestamp) -> Duration {
        match self.request.wait {
            WaitLimit::AtMost(at_most) => at_most.saturating_sub(self.started.until(now)),
            WaitLimit::Attempts(_) | WaitLimit::Forever => Duration::MAX,
        }
    }

    fn is_limit_used_up(&self) -> bool {
        match self.request.wait {
            WaitLimit::Attempts(most) => self.asked >= most,
            WaitLimit::AtMost(_) => self.time_left(self.engine.environment.now()).is_zero(),
            WaitLimit::Forever => false,
        }
    }

    /// Waits until there is a reason to ask again.
    async fn wait(&mut self, blocked: &Blocked) {
        let engine = self.engine;
        let metrics = Arc::clone(&self.metrics);
        let _waiting = WaitingGauge::count(&metrics.waiting);
        let (now, random) = (engine.environment.now(), engine.environment.random());
        let at_most = self.wait_at_most(blocked, now, random);
        // Where a session keeps places alive, they need no renewals.
        let renewed = blocked.queued && engine.backend.info().capabilities.own_ttl;
        let place = renewed.then(|| QueuePlaceKeeper::new(engine, &self.request.claim, now));
        let wakeup = self.until_wakeup(blocked, at_most);
        match place {
            Some(place) => {
                first(wakeup, place.lost()).await;
            }
            None => wakeup.await,
        }
    }

    /// How long to wait at most before asking again.
    fn wait_at_most(&mut self, blocked: &Blocked, now: Timestamp, random: u64) -> Duration {
        let poll = POLL_EVERY_MAX.min((self.request.claim.ttl / 3).max(Backoff::MOST));
        let mut at_most = jitter(poll, random);
        if let Some(changes_in) = blocked.changes_in {
            // An expiry wakes nobody. The nearer to the head of the queue, the sooner after it a waiter asks, so that
            // they do not all ask at once.
            let steps = blocked.ahead.min(AFTER_EXPIRY_STEPS_MAX);
            at_most = at_most.min(changes_in + AFTER_EXPIRY + AFTER_EXPIRY_STEP * steps);
        }
        if !blocked.queued {
            at_most = at_most.min(self.poll_pauses.next(random));
        }
        at_most.min(self.time_left(now))
    }

    /// Waits for the backend's wake-up.
    async fn until_wakeup(&self, blocked: &Blocked, at_most: Duration) {
        let engine = self.engine;
        let claim = &self.pending.claim;
        let started = engine.environment.now();
        let call = engine.backend.wait(claim, &blocked.cursor, at_most);
        // The backend ends the wait itself. The limit is for a backend that does not answer at all.
        let limit = at_most + REPLY_TIMEOUT_MIN;
        if engine.call(Verb::Wait, Some(&claim.resource), limit, call).await.is_err() {
            // Pause, so that a backend whose `wait` fails at once is not asked in a tight loop.
            let spent = started.until(engine.environment.now());
            let pause = jitter(Backoff::FIRST, engine.environment.random());
            engine.environment.sleep(at_most.saturating_sub(spent).min(pause)).await;
        }
    }
}

/// The pauses after a request that was not answered: at most a sixth of the ttl each. That request may have brought a
/// grant, which runs out while the claim sleeps.
fn outage_backoff(ttl: Duration) -> Backoff {
    Backoff::at_most(ttl / 6)
}
