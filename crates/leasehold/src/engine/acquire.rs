//! The acquire loop: ask; if blocked, wait; ask again. In the caller's own future: one round trip when free, and no
//! hop through another task. If that future is dropped part-way, [`Unclaimed`] sees to what it may have left.

use std::{sync::Arc, time::Duration};

use leasehold_core::{
    Backoff, Blocked, Busy, Claim, ClaimRef, Effect, EndReason, Error, ErrorKind, Grant, Handover,
    OwnerToken, ReleaseRequest, RenewRequest, Renewal, Result, Share, Timestamp, Verb, Verdict, WhenBlocked,
    backoff::jitter,
};

use super::{
    Engine, Terms,
    driver::{PlaceKeeper, Watch},
    line::{Headship, Joined, Ticket, Turn, Waiter, farewell_to},
    observe::{How, KindMetrics},
    tenure::{Beginning, Handle, Sent, Tenure},
    watchdog::Times,
};
use leasehold_support::race::{Either, first};

/// How long a claim goes on trying.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Asks this often, without a place in line.
    Attempts(u32),
    /// Waits in line this long.
    AtMost(Duration),
    /// Waits in line.
    Forever,
}

/// A request, ready to be made.
#[derive(Debug)]
pub(crate) struct Ask {
    pub(crate) claim: Claim,
    pub(crate) terms: Terms,
    pub(crate) patience: Patience,
    /// A place of its own: strict arrival order across processes.
    pub(crate) fair: bool,
}

#[derive(Debug)]
pub(crate) enum Outcome {
    Granted(Handle),
    Busy(Busy),
}

/// A backend that cannot be reached is given this long by each caller, if the caller is that patient.
pub(super) const OUTAGE_MAX: Duration = Duration::from_secs(10);
/// However impatient the caller is, a question is given this long to be answered: giving up costs a burial.
const ANSWER_MIN: Duration = Duration::from_secs(1);
/// The longest time without asking, whatever the wake-ups say.
const SAFETY_POLL: Duration = Duration::from_secs(5);

impl Engine {
    /// Makes the request.
    pub(crate) async fn acquire(self: &Arc<Engine>, ask: Ask) -> Result<Outcome> {
        self.admit()?;
        let started = self.environment.now();
        let (resource, owner) = (ask.claim.resource.clone(), ask.claim.owner);
        let outcome = self.seek(ask, started).await;
        let waited = || started.until(self.environment.now());
        match &outcome {
            Ok(Outcome::Granted(_)) => {}
            Ok(Outcome::Busy(_)) => self.observer.contended(&resource, owner, waited()),
            Err(error) => self.observer.failed(&resource, owner, waited(), error),
        }
        outcome
    }

    async fn seek(self: &Arc<Engine>, mut ask: Ask, started: Timestamp) -> Result<Outcome> {
        let exclusive = ask.claim.share.capacity() == 1;
        let waits = !matches!(ask.patience, Patience::Attempts(_));
        if waits && self.backend.info().capabilities.queue {
            ask.claim.when_blocked = WhenBlocked::Queue;
        }
        let ticket = if !exclusive || ask.fair || !waits {
            None
        } else {
            match self.lines.join(&ask.claim, &ask.terms, started) {
                Joined::Head(ticket) => Some(ticket),
                // Boxed, like all that only those who wait need: what is free is had without it.
                Joined::Waiting(waiter) => {
                    let in_line = InLine { engine: self, waiter };
                    return Box::pin(self.stand_in_line(in_line, ask, started)).await;
                }
            }
        };
        Seeker::new(self, ask, started, ticket, Headship::default()).seek().await
    }

    /// Waits until it is granted by the one before, or is the one to ask.
    async fn stand_in_line(
        self: &Arc<Engine>,
        in_line: InLine<'_>,
        ask: Ask,
        started: Timestamp,
    ) -> Result<Outcome> {
        match self.turn(&in_line.waiter, ask.patience).await {
            Either::Left(Turn::Granted(handle)) => Ok(Outcome::Granted(handle)),
            Either::Left(Turn::Failed(error)) => Err(error),
            Either::Left(Turn::Head(headship)) => {
                let ticket = in_line.waiter.ticket;
                Seeker::new(self, ask, started, Some(ticket), headship).seek().await
            }
            Either::Left(Turn::NotYet | Turn::Gone) => unreachable!("a turn that came is one of the others"),
            Either::Right(()) => {
                let why = self.lines.why_not(&ask.claim.resource, in_line.waiter.ticket);
                why.map(Outcome::Busy)
            }
        }
    }

    /// Waits for a turn in the local line, as long as the patience lasts.
    async fn turn(&self, waiter: &Waiter, patience: Patience) -> Either<Turn, ()> {
        let metrics = self.observer.metrics(&waiter.claim.resource);
        metrics.contention.increment(1);
        let _waiting = Waiting::count(&metrics.waiting);
        match patience {
            Patience::AtMost(at_most) => first(waiter.turn_comes(), self.environment.sleep(at_most)).await,
            _ => Either::Left(waiter.turn_comes().await),
        }
    }

    /// Makes a tenure of a grant, unless so much of it has passed by now that it would have to stop at once.
    pub(crate) fn grant(
        self: &Arc<Engine>,
        claim: &Claim,
        terms: &Terms,
        grant: Grant,
        (sent, now): (Sent, Timestamp),
        uncertain: bool,
    ) -> Option<Handle> {
        let times = Times::of(sent.at, grant.remaining, claim.ttl);
        if now >= times.stop_at {
            return None;
        }
        if claim.share.is_exclusive() {
            self.raise_floor(&claim.resource, grant.token);
        }
        let beginning = Beginning {
            claim: claim.reference(),
            share: claim.share,
            token: grant.token,
            ttl: claim.ttl,
            times,
            sent,
            uncertain,
            terms: terms.clone(),
        };
        let tenure = Tenure::begin(self, beginning, now);
        self.watch_tenure(&tenure, times, claim.ttl, !terms.fixed);
        Some(Handle::of(tenure))
    }

    pub(crate) fn watch_tenure(&self, tenure: &Arc<Tenure>, times: Times, ttl: Duration, renews: bool) {
        let random = self.environment.random();
        let handle = Watch::Tenure(Arc::clone(tenure));
        let (key, wake) = self.watchdog().watch(handle, times, ttl, renews, random);
        tenure.watched_as(key);
        if wake {
            self.nudge.notify_one();
        }
    }

    /// How long one request may take: past half of its ttl a grant is not worth having.
    pub(crate) fn request_limit(ttl: Duration) -> Duration {
        (ttl / 2).min(OUTAGE_MAX)
    }
}

impl Engine {
    /// Turns an exclusive tenure into a shared one, in one step. The exclusive one is over from the first poll on:
    /// no view of it may vouch for it while others are already let in.
    pub(crate) async fn downgrade(self: &Arc<Engine>, tenure: &Arc<Tenure>, share: Share) -> Result<Handle> {
        tenure.check()?;
        self.unwatch(tenure);
        if !tenure.part() || !tenure.end(EndReason::Released) {
            return Err(tenure.lost(EndReason::Released));
        }
        self.observer.ended(tenure);
        let owner = OwnerToken::fresh(&*self.environment);
        let ttl = tenure.ttl();
        let mut unclaimed = Unclaimed {
            engine: self,
            claim: ClaimRef { resource: tenure.resource.clone(), owner },
            ttl,
            head: None,
            inherited: Some(Handover::with_tombstone(tenure.owner, ReleaseRequest::tombstone_ttl(ttl))),
            there: false,
            in_flight: true,
            unanswered: false,
        };
        let mut from = Handover::from(tenure.owner);
        from.tombstone = tenure.uncertain.then(|| ReleaseRequest::tombstone_ttl(ttl));
        let resource = tenure.resource.clone();
        let claim = Claim::new(resource, owner, share, ttl, Arc::clone(&self.holder)).taking_over(from);
        let sent = self.sending();
        let request = self.backend.acquire(&claim);
        let limit = Engine::request_limit(ttl);
        let verdict = self.call(Verb::Acquire, Some(&claim.resource), limit, request).await?;
        (unclaimed.in_flight, unclaimed.inherited) = (false, None);
        let Verdict::Granted(grant) = verdict else { return Err(tenure.lost(EndReason::NotOurs)) };
        unclaimed.there = true;
        let handle = self.grant(&claim, &tenure.terms(), grant, (sent, self.environment.now()), false);
        let handle = handle.ok_or_else(|| tenure.lost(EndReason::Expired))?;
        unclaimed.there = false;
        self.observer.acquired(
            handle.tenure(),
            Duration::ZERO,
            0,
            How { handed_over: true, acks: grant.acks },
        );
        Ok(handle)
    }
}

/// A waiter of the local line, which leaves it when dropped.
struct InLine<'a> {
    engine: &'a Arc<Engine>,
    waiter: Arc<Waiter>,
}

impl Drop for InLine<'_> {
    fn drop(&mut self) {
        self.engine.leave_line(&self.waiter);
    }
}

/// One claim on its way to a grant.
struct Seeker<'a> {
    engine: &'a Arc<Engine>,
    ask: Ask,
    started: Timestamp,
    unclaimed: Unclaimed<'a>,
    blocked: Option<Blocked>,
    /// Pauses after a request that was not answered. See [`outage_backoff`].
    backoff: Backoff,
    /// Pauses between polls without a place in line.
    polls: Backoff,
    /// Since when the backend has not answered.
    outage_since: Option<Timestamp>,
    asked: u32,
    behind: Option<u32>,
    back_off: bool,
    metrics: Arc<KindMetrics>,
}

impl<'a> Seeker<'a> {
    fn new(
        engine: &'a Arc<Engine>,
        mut ask: Ask,
        started: Timestamp,
        head: Option<Ticket>,
        from: Headship,
    ) -> Seeker<'a> {
        if from.tainted {
            ask.claim.owner = OwnerToken::fresh(&*engine.environment);
        }
        ask.claim.takes_over_from = from.inherits;
        ask.claim.floor = engine.floor(&ask.claim.resource);
        let unclaimed = Unclaimed {
            engine,
            claim: ask.claim.reference(),
            ttl: ask.claim.ttl,
            head,
            inherited: from.inherits,
            there: from.blocked.as_ref().is_some_and(|blocked| blocked.queued),
            in_flight: false,
            unanswered: false,
        };
        let (backoff, blocked) = (outage_backoff(ask.claim.ttl), from.blocked);
        let behind = blocked.as_ref().map(|blocked| blocked.ahead);
        Seeker {
            engine,
            started,
            unclaimed,
            blocked,
            backoff,
            polls: Backoff::new(),
            outage_since: None,
            asked: 0,
            behind,
            back_off: from.back_off,
            metrics: engine.observer.metrics(&ask.claim.resource),
            ask,
        }
    }

    async fn seek(&mut self) -> Result<Outcome> {
        if self.back_off {
            let pause = self.backoff.next(self.engine.environment.random());
            let left = self.left(self.engine.environment.now());
            self.engine.environment.sleep(pause.min(left)).await;
        }
        loop {
            if let Some(blocked) = self.blocked.take() {
                if self.out_of_patience() {
                    return Ok(Outcome::Busy(blocked.into_busy()));
                }
                Box::pin(self.wait(&blocked)).await;
            }
            let sent = self.engine.sending();
            let verdict = self.request(sent.at).await;
            let answered = self.engine.environment.now();
            self.metrics.acquire.record(sent.at.until(answered));
            match verdict {
                Ok(Verdict::Granted(grant)) => {
                    if let Some(handle) = self.granted(grant, sent, answered) {
                        return Ok(Outcome::Granted(handle));
                    }
                    if let Some(handle) = Box::pin(self.renew_stale_grant(grant)).await {
                        return Ok(Outcome::Granted(handle));
                    }
                    self.give_up_stale_grant();
                }
                Ok(Verdict::Blocked(blocked)) => self.was_blocked(blocked),
                Ok(Verdict::Cancelled) => self.start_afresh(),
                Ok(Verdict::Mismatch { capacity }) => {
                    self.unclaimed.there = false;
                    let ours = self.ask.claim.share.capacity();
                    return Err(Error::mismatch(capacity, ours).on(&self.ask.claim.resource));
                }
                Err(error) => Box::pin(self.was_refused(error)).await?,
            }
        }
    }

    async fn request(&mut self, sent: Timestamp) -> Result<Verdict> {
        let (engine, claim) = (self.engine, &self.ask.claim);
        if self.asked > 0 {
            self.metrics.retries.increment(1);
        }
        self.asked = self.asked.saturating_add(1);
        self.unclaimed.in_flight = true;
        let request = engine.backend.acquire(claim);
        let at_most = Engine::request_limit(claim.ttl).min(self.left(sent).max(ANSWER_MIN));
        let verdict = engine.call(Verb::Acquire, Some(&claim.resource), at_most, request).await;
        self.unclaimed.in_flight = false;
        match &verdict {
            Ok(_) => {
                (self.outage_since, self.unclaimed.inherited, self.ask.claim.takes_over_from) =
                    (None, None, None);
                self.backoff = outage_backoff(self.ask.claim.ttl);
            }
            Err(error) if error.effect() == Effect::Unknown => self.unclaimed.unanswered = true,
            Err(_) => {}
        }
        verdict
    }

    fn granted(&mut self, grant: Grant, sent: Sent, answered: Timestamp) -> Option<Handle> {
        let engine = self.engine;
        let (claim, uncertain) = (&self.ask.claim, self.unclaimed.unanswered);
        self.unclaimed.there = true;
        let handle = engine.grant(claim, &self.ask.terms, grant, (sent, answered), uncertain)?;
        // From here on the tenure answers for the claim, and buries it when it goes.
        (self.unclaimed.there, self.unclaimed.unanswered) = (false, false);
        let head = self.unclaimed.head.take();
        if claim.share.capacity() == 1 && !self.ask.fair {
            engine.lines.granted(&claim.resource, head, claim.owner);
        }
        let waited = self.started.until(answered);
        let how = How { handed_over: false, acks: grant.acks };
        engine.observer.acquired(handle.tenure(), waited, self.behind.unwrap_or(0), how);
        Some(handle)
    }

    fn was_blocked(&mut self, blocked: Blocked) {
        let engine = self.engine;
        if self.behind.is_none() {
            self.metrics.contention.increment(1);
            self.behind = Some(blocked.ahead);
        }
        self.unclaimed.there = blocked.queued;
        if self.unclaimed.head.is_some() {
            engine.lines.saw(&self.ask.claim.resource, blocked.clone().into_busy());
        }
        self.blocked = Some(blocked);
    }

    /// The grant came so late that work would have to stop at once: an earlier request had brought it, without an answer,
    /// or the answer was slow. The backend has it still, perhaps, and a renewal gives it its full time again; it never
    /// revives one that has ended. Giving it back would cost a claim that waited in line its turn and its place.
    ///
    /// Its times are counted from when the renewal is sent, as those of any renewal. Dropped part-way, the claim is given
    /// back as before: `Unclaimed` knows that the backend has it.
    async fn renew_stale_grant(&mut self, grant: Grant) -> Option<Handle> {
        let (engine, claim) = (self.engine, &self.ask.claim);
        let held = RenewRequest::new(claim.reference(), claim.ttl);
        let sent = engine.sending();
        let Ok(Renewal::Renewed(kept)) = engine.renew_one(held, Engine::request_limit(claim.ttl)).await
        else {
            return None;
        };
        let mut renewed = Grant::new(kept.token, kept.remaining);
        renewed.acks = grant.acks;
        let handle = self.granted(renewed, sent, engine.environment.now())?;
        engine.heed(handle.tenure(), kept);
        Some(handle)
    }

    /// The grant cannot be used: give it back, and ask as someone else.
    fn give_up_stale_grant(&mut self) {
        if let Some(leaves) = self.unclaimed.leaves() {
            self.engine.reap_claim(farewell_to(&self.ask.claim.resource, leaves));
        }
        self.start_afresh();
    }

    fn start_afresh(&mut self) {
        let owner = OwnerToken::fresh(&*self.engine.environment);
        self.ask.claim.owner = owner;
        self.unclaimed.claim.owner = owner;
        (self.unclaimed.there, self.unclaimed.unanswered) = (false, false);
        if self.out_of_patience() {
            self.blocked = Some(Blocked::default());
        }
    }

    /// Goes on after an outage that may pass, as long as the caller is patient. A waiter behind this one has patience of its
    /// own: only an error that will not pass fails it, too.
    async fn was_refused(&mut self, error: Error) -> Result<()> {
        let now = self.engine.environment.now();
        let since = *self.outage_since.get_or_insert(now);
        let patient = self.left(now).min(OUTAGE_MAX.saturating_sub(since.until(now)));
        let (lines, resource) = (&self.engine.lines, &self.ask.claim.resource);
        if self.unclaimed.head.is_some() {
            match error.kind() {
                ErrorKind::Unavailable => lines.outage(resource, since, now, &error),
                ErrorKind::Denied | ErrorKind::Corrupt => lines.fail_all(resource, &error),
                _ => {}
            }
        }
        let may_pass = error.kind() == ErrorKind::Unavailable;
        let last = matches!(self.ask.patience, Patience::Attempts(n) if self.asked >= n);
        if !may_pass || last || patient.is_zero() {
            return Err(error);
        }
        let pause = self.backoff.next(self.engine.environment.random());
        self.engine.environment.sleep(pause.min(patient)).await;
        Ok(())
    }

    fn left(&self, now: Timestamp) -> Duration {
        match self.ask.patience {
            Patience::AtMost(at_most) => at_most.saturating_sub(self.started.until(now)),
            Patience::Attempts(_) | Patience::Forever => Duration::MAX,
        }
    }

    fn out_of_patience(&self) -> bool {
        match self.ask.patience {
            Patience::Attempts(most) => self.asked >= most,
            Patience::AtMost(_) => self.left(self.engine.environment.now()).is_zero(),
            Patience::Forever => false,
        }
    }

    /// Until something changed, a place was lost, an expiry passed, or it is time to look anyway.
    async fn wait(&mut self, blocked: &Blocked) {
        let engine = self.engine;
        let metrics = Arc::clone(&self.metrics);
        let _waiting = Waiting::count(&metrics.waiting);
        let environment = &engine.environment;
        let (now, random) = (environment.now(), environment.random());
        let mut at_most = jitter(SAFETY_POLL.min((self.ask.claim.ttl / 3).max(Backoff::MOST)), random);
        if let Some(changes_in) = blocked.changes_in {
            // The nearer the head of the line, the sooner after the expiry.
            let turn = Duration::from_millis(2 + 25 * u64::from(blocked.ahead.min(40)));
            at_most = at_most.min(changes_in + turn);
        }
        if !blocked.queued {
            at_most = at_most.min(self.polls.next(random));
        }
        at_most = at_most.min(self.left(now));
        // A session keeps its places by itself: waiting there costs nothing but this look.
        let keep = blocked.queued && engine.backend.info().capabilities.own_ttl;
        let place = keep.then(|| PlaceKeeper::keep(engine, &self.ask.claim, now));
        let hint = self.hint(blocked, at_most);
        match place {
            Some(place) => {
                first(hint, place.lost()).await;
            }
            None => hint.await,
        }
    }

    async fn hint(&self, blocked: &Blocked, at_most: Duration) {
        let engine = self.engine;
        let claim = &self.unclaimed.claim;
        let started = engine.environment.now();
        let request = engine.backend.wait(claim, &blocked.cursor, at_most);
        // The backend ends the wait itself; the limit is for one that does not answer at all.
        let limit = at_most + ANSWER_MIN;
        if engine.call(Verb::Wait, Some(&claim.resource), limit, request).await.is_err() {
            let spent = started.until(engine.environment.now());
            let pause = jitter(Backoff::FIRST, engine.environment.random());
            engine.environment.sleep(at_most.saturating_sub(spent).min(pause)).await;
        }
    }
}

/// How long to pause after a request that was not answered: at most a sixth of the ttl. That request may have brought a
/// grant, which runs out while the claim sleeps.
fn outage_backoff(ttl: Duration) -> Backoff {
    Backoff::at_most(ttl / 6)
}

/// Counts a waiter while it lives.
struct Waiting<'a>(&'a metrics::Gauge);

impl<'a> Waiting<'a> {
    fn count(gauge: &'a metrics::Gauge) -> Waiting<'a> {
        gauge.increment(1);
        Waiting(gauge)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.decrement(1);
    }
}

/// What the backend may hold or keep in line for a claim that nobody owns yet. Dropped with the caller's future,
/// it passes that on to the next in the local line, or has the reaper bury it.
struct Unclaimed<'a> {
    engine: &'a Arc<Engine>,
    claim: ClaimRef,
    ttl: Duration,
    head: Option<Ticket>,
    /// What the head before left, until an answer shows that this claim has taken it over.
    inherited: Option<Handover>,
    /// The backend knows this claim.
    there: bool,
    in_flight: bool,
    unanswered: bool,
}

impl Unclaimed<'_> {
    /// What whoever comes next has to take over or bury, if anything.
    fn leaves(&self) -> Option<Handover> {
        let owner = self.claim.owner;
        if self.in_flight || self.unanswered {
            return Some(Handover::with_tombstone(owner, ReleaseRequest::tombstone_ttl(self.ttl)));
        }
        self.there.then(|| Handover::from(owner))
    }
}

impl Drop for Unclaimed<'_> {
    fn drop(&mut self) {
        let resource = &self.claim.resource;
        let own = self.leaves();
        if own.is_some()
            && let Some(inherited) = self.inherited
        {
            // Taking over went unanswered: say farewell to both.
            self.engine.reap_claim(farewell_to(resource, inherited));
        }
        let leaves = own.or(self.inherited);
        match (self.head, leaves) {
            (Some(head), _) => self.engine.abandon_head(resource, head, leaves),
            (None, Some(leaves)) => self.engine.reap_claim(farewell_to(resource, leaves)),
            (None, None) => {}
        }
    }
}
