//! The long poll of `acquire`: asks the store, and waits, on behalf of the caller.
//!
//! 1. Ask, with the caller's owner token. While there is time, the claim takes a place in the queue.
//! 2. Granted, or refused for good: answer.
//! 3. Blocked: wait for the store's wake-up, for the next expiry, for the loss of the place, or for a poll that catches a lost
//!    wake-up. Meanwhile the place is kept ([`Place`]). Then go to step 1.
//! 4. When the time is over, ask once more as the caller wants it: `leave` is granted or gone in one step, `queue` has its place.
//! 5. When the server drains, the claim keeps its place, and the caller asks again at another server: `queue` is answered with its
//!    place, `leave` with 503.
//!
//! The caller may go away at any moment, which drops this future. Then nothing is released: the same claim may have been sent again,
//! through another server, and be held. Its place ends by itself. With `"hangup":"leave"` the caller has said that the owner token is
//! in no other request: then the claim is cancelled.

use std::time::Duration;

use leasehold_api::{
    Problem, ProblemKind,
    acquire::{self, AcquireReply},
    list::Entry,
};
use leasehold_core::{
    Backoff, Blocked, Claim, Effect, ErrorKind, ReleaseRequest, Verdict, WhenBlocked, backoff::jitter,
};
use tokio::time::Instant;

use crate::{places::Place, server::Shared};

/// The longest time between two requests of a claim that hears wake-ups. Ten thousand waiters that ask every few seconds would
/// cost the store more than all the others.
const POLL_EVERY_MAX: Duration = Duration::from_secs(20);
/// The same for a claim far from the head of the queue: the claims ahead of it ask, and its own place is renewed.
const POLL_EVERY_MAX_BEHIND: Duration = Duration::from_secs(60);
/// How long after an expiry the first waiter asks, and how much later each waiter behind it.
const AFTER_EXPIRY: Duration = Duration::from_millis(2);
const AFTER_EXPIRY_STEP: Duration = Duration::from_millis(25);
/// So many waiters at the head of the queue ask when something expires.
const FOLLOWERS: u32 = 8;
/// All waiters ask after a change that comes so soon: a waiter was called, and does not answer.
const SOON: Duration = Duration::from_secs(2);
/// From this position on, waiters ask equally late after an expiry.
const AFTER_EXPIRY_STEPS_MAX: u32 = 40;

/// The shortest ttl of a place that this server keeps: one that ends sooner is asked for again and again.
const PLACE_TTL_MIN: Duration = Duration::from_secs(1);

/// A claim that is asked on behalf of a caller.
pub(crate) struct Waiting<'a> {
    shared: &'a Shared,
    claim: Claim,
    /// What the caller wants if the time runs out.
    when_blocked: WhenBlocked,
    read_at: Instant,
    ends_at: Instant,
    place: Option<Place>,
    /// The shortest ttl of the place, if the server chooses how long it lasts.
    place_ttl_least: Option<Duration>,
    pauses: Backoff,
    has_asked: bool,
}

impl<'a> Waiting<'a> {
    /// `read_at` is when the server read the request.
    pub(crate) fn new(shared: &'a Shared, mut claim: Claim, read_at: Instant, wait: Duration) -> Waiting<'a> {
        let when_blocked = claim.when_blocked;
        if !wait.is_zero() {
            claim.place_ttl = claim.place_ttl.max(PLACE_TTL_MIN);
        }
        let pauses = Backoff::new();
        let ends_at = read_at + wait;
        Waiting {
            shared,
            claim,
            when_blocked,
            read_at,
            ends_at,
            place: None,
            place_ttl_least: None,
            pauses,
            has_asked: false,
        }
    }

    /// The caller did not say how long its place lasts, so it may last longer if the server keeps many. Not where a dead waiter
    /// blocks the queue as long as its place lasts.
    pub(crate) fn with_chosen_place_ttl(mut self) -> Waiting<'a> {
        let capabilities = &self.shared.backend.info().capabilities;
        if capabilities.passes_over || capabilities.removes_silent {
            self.place_ttl_least = Some(self.claim.place_ttl);
        }
        self
    }

    pub(crate) async fn answer(mut self, leave_on_hangup: bool) -> Entry<AcquireReply> {
        let guard = leave_on_hangup.then(|| HangupGuard::new(self.shared, &self.claim));
        let entry = self.run().await;
        if let Some(guard) = guard {
            guard.disarm();
        }
        entry
    }

    async fn run(&mut self) -> Entry<AcquireReply> {
        loop {
            let is_last = self.time_left().is_zero() || self.shared.is_draining();
            self.claim.when_blocked = self.when_to_queue();
            if let Some(least) = self.place_ttl_least {
                self.claim.place_ttl = self.shared.places.ttl(least);
            }
            // Before the call is made: a client counts its lease from here, and too early is safe.
            let sent = Instant::now();
            // One that has asked before goes at once: its turn may have come.
            let may_wait = !self.has_asked && self.claim.takes_over_from.is_none();
            self.has_asked = true;
            let verdict = self.shared.store.acquire(self.claim.clone(), may_wait).await;
            if !matches!(verdict, Ok(Verdict::Mismatch { .. }) | Err(_)) {
                self.claim.takes_over_from = None; // it was part of the request that has been answered
            }
            match verdict {
                Ok(Verdict::Blocked(blocked)) if !is_last => self.wait(&blocked).await,
                // Nothing was changed, so asking again hides nothing. An unknown effect is the caller's to know.
                Err(error)
                    if !is_last
                        && error.kind() == ErrorKind::Unavailable
                        && error.effect() == Effect::None =>
                {
                    let pause = self.pauses.next(self.shared.environment.random());
                    tokio::time::sleep(pause.min(self.time_left())).await;
                }
                // A caller that wants to leave takes any success for a grant. It asks again, and finds its place.
                Ok(Verdict::Blocked(blocked))
                    if blocked.queued && self.when_blocked == WhenBlocked::Leave =>
                {
                    return self.draining().into();
                }
                verdict => {
                    let waited = sent.duration_since(self.read_at);
                    return acquire::reply(&self.claim, verdict, waited, &self.shared.config.store);
                }
            }
        }
    }

    /// The wait ends early. The claim keeps its place for `place_ms`, so the request had an effect.
    fn draining(&self) -> Problem {
        let detail = "this server is shutting down; the claim has a place in the queue: ask again with the same owner token";
        Problem::new(ProblemKind::Draining, detail)
            .with_effect(Effect::Unknown)
            .about(&self.claim.resource, self.claim.owner)
    }

    fn time_left(&self) -> Duration {
        self.ends_at.saturating_duration_since(Instant::now())
    }

    /// With time left, the claim queues, if the store has queues.
    fn when_to_queue(&self) -> WhenBlocked {
        let has_queue = self.shared.backend.info().capabilities.queue;
        if !self.time_left().is_zero() && has_queue { WhenBlocked::Queue } else { self.when_blocked }
    }

    /// Waits until there is a reason to ask again.
    async fn wait(&mut self, blocked: &Blocked) {
        self.keep_place(blocked);
        let at_most = self.wait_at_most(blocked);
        let started = Instant::now();
        let mut draining = self.shared.draining.subscribe();
        let claim = self.claim.reference();
        let wakeup = async {
            if self.shared.store.wait(&claim, blocked.cursor, at_most).await.is_err() {
                // A store whose `wait` fails at once must not be asked in a tight loop.
                let pause = jitter(Backoff::FIRST, self.shared.environment.random());
                tokio::time::sleep(pause.min(at_most.saturating_sub(started.elapsed()))).await;
            }
        };
        let should_ask = async {
            match &self.place {
                Some(place) => place.should_ask().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = wakeup => {}
            () = should_ask => {}
            _ = draining.wait_for(|is_draining| *is_draining) => {}
        }
    }

    /// The reply shows whether the claim has a place; asking has renewed it.
    fn keep_place(&mut self, blocked: &Blocked) {
        // Where a session keeps places alive, they need no renewals.
        if !blocked.queued || !self.shared.backend.info().capabilities.own_ttl {
            self.place = None;
            return;
        }
        match &self.place {
            Some(place) => place.was_renewed(self.claim.place_ttl),
            None => self.place = Some(self.shared.places.keep(self.claim.reference(), self.claim.place_ttl)),
        }
    }

    /// Whether the claim asks when the state changes by itself. Those near the head do. For the others it is enough that one of them
    /// does, or that a place is renewed, where that passes over waiters that do not answer: a release wakes the next waiter.
    fn follows(&self, blocked: &Blocked, changes_in: Duration) -> bool {
        let passes_over = self.shared.backend.info().capabilities.passes_over;
        blocked.ahead < FOLLOWERS || changes_in <= SOON || !passes_over
    }

    fn wait_at_most(&mut self, blocked: &Blocked) -> Duration {
        let random = self.shared.environment.random();
        let passes_over = self.shared.backend.info().capabilities.passes_over;
        let is_behind = blocked.queued && blocked.ahead >= FOLLOWERS && passes_over;
        let mut at_most = jitter(if is_behind { POLL_EVERY_MAX_BEHIND } else { POLL_EVERY_MAX }, random);
        if let Some(changes_in) = blocked.changes_in.filter(|changes_in| self.follows(blocked, *changes_in)) {
            // An expiry wakes nobody. The nearer to the head of the queue, the sooner after it a waiter asks.
            let steps = blocked.ahead.min(AFTER_EXPIRY_STEPS_MAX);
            at_most = at_most.min(changes_in + AFTER_EXPIRY + AFTER_EXPIRY_STEP * steps);
        }
        if !blocked.queued {
            at_most = at_most.min(self.pauses.next(random));
        }
        at_most.min(self.time_left())
    }
}

/// Cancels the claim if the caller goes away before its answer.
struct HangupGuard<'a> {
    shared: &'a Shared,
    release: Option<ReleaseRequest>,
}

impl<'a> HangupGuard<'a> {
    fn new(shared: &'a Shared, claim: &Claim) -> HangupGuard<'a> {
        // A request may be under way at this moment: the tombstone refuses it if it arrives later.
        let keep = ReleaseRequest::tombstone_ttl(claim.ttl);
        HangupGuard { shared, release: Some(ReleaseRequest::new(claim.reference()).with_tombstone(keep)) }
    }

    fn disarm(mut self) {
        self.release = None;
    }
}

impl Drop for HangupGuard<'_> {
    fn drop(&mut self) {
        let Some(release) = self.release.take() else { return };
        let store = self.shared.store.clone();
        tokio::spawn(async move {
            if let Err(error) = store.release(release).await {
                tracing::warn!(%error, "a claim whose caller hung up could not be cancelled: it ends with its place");
            }
        });
    }
}
