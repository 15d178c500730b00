//! Gives back what was dropped, hands seats on, and buries what went unanswered: again and again until answered.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::{Arc, atomic::Ordering},
    task::Poll,
    time::Duration,
};

use leasehold_core::{
    Backoff, Effect, EndReason, Error, ErrorKind, Handover, ReleaseRequest, Released, Result, Verb, Verdict,
};

use super::{
    Engine,
    line::{Headship, Turn, Waiter},
    observe::How,
    tenure::{Handle, Tenure},
};

/// What a dropped handle or a dropped future leaves to do. Sent, never done in place: a destructor must not block.
///
/// It keeps its engine alive: a client may be dropped right after its last lease.
#[derive(Debug)]
pub(crate) struct Errand {
    engine: Arc<Engine>,
    task: Task,
}

#[derive(Debug)]
enum Task {
    /// Give this tenure back, or hand it over.
    Part(Arc<Tenure>),
    /// Say this farewell.
    Bury(ReleaseRequest),
}

impl Engine {
    /// The last handle of a tenure was dropped.
    pub(crate) fn dropped(self: &Arc<Engine>, tenure: &Arc<Tenure>) {
        if !tenure.part() {
            return; // released by name
        }
        self.unwatch(tenure);
        if tenure.end(EndReason::Released) {
            self.observer.ended(tenure);
        }
        self.send(Task::Part(Arc::clone(tenure)));
    }

    /// Someone went away part-way through a claim.
    pub(crate) fn reap_claim(self: &Arc<Engine>, release_request: ReleaseRequest) {
        self.send(Task::Bury(release_request));
    }

    fn send(self: &Arc<Engine>, task: Task) {
        self.errands.fetch_add(1, Ordering::AcqRel);
        if let Err(unsent) = self.reap.send(Errand { engine: Arc::clone(self), task }) {
            // The runtime is gone: nobody can say farewell, the ttl has to.
            self.errand_done();
            match unsent.0.task {
                Task::Part(tenure) => {
                    self.observer.leaked(&tenure.resource, tenure.owner, ErrorKind::ShutDown);
                }
                Task::Bury(release_request) => {
                    self.observer.leaked(
                        &release_request.resource,
                        release_request.owner,
                        ErrorKind::ShutDown,
                    );
                }
            }
        }
    }

    fn errand_done(&self) {
        if self.errands.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.errands_done.notify_waiters();
        }
    }

    /// Each errand is a task of its own: one that hangs delays no other.
    pub(super) fn run_errand(errand: Errand) {
        let Errand { engine, task } = errand;
        let environment = Arc::clone(&engine.environment);
        environment.spawn(Box::pin(async move {
            match task {
                Task::Part(tenure) => {
                    let at_least = tenure.terms().at_least;
                    drop(engine.say_goodbye(&tenure, at_least, true).await); // what fails is repeated in there
                }
                Task::Bury(release_request) => engine.tombstone(&release_request).await,
            }
            engine.errand_done();
        }));
    }

    pub(crate) fn unwatch(&self, tenure: &Tenure) {
        if let Some(key) = tenure.key() {
            drop(self.forget(key));
        }
    }

    /// Releases a tenure by name. From the first poll on it counts as ended: whoever looks at a view of it is told
    /// to stop before anyone else can be granted.
    pub(crate) async fn release(
        self: &Arc<Engine>,
        tenure: &Arc<Tenure>,
        at_least: Option<Duration>,
    ) -> Result<Released> {
        self.unwatch(tenure);
        if tenure.end(EndReason::Released) {
            self.observer.ended(tenure);
        }
        if !tenure.part() {
            return Ok(Released::AlreadyGone);
        }
        self.errands.fetch_add(1, Ordering::AcqRel);
        let (released, passed_on) = self.say_goodbye(tenure, at_least, false).await;
        self.errand_done();
        if passed_on && released.is_ok() {
            // Everyone behind waits for the one who has it now, nobody for the caller of this: that one goes first.
            stand_aside().await;
        }
        released
    }

    /// Hands the seat to the next in the local line, or gives it back. Also says whether it was handed on to someone
    /// who has a request to send now, over a way that takes its time.
    async fn say_goodbye(
        self: &Arc<Engine>,
        tenure: &Arc<Tenure>,
        at_least: Option<Duration>,
        dropped: bool,
    ) -> (Result<Released>, bool) {
        let goodbye = Goodbye { engine: self, tenure, at_least, said: false };
        let keep_for = tenure.keep_for(at_least);
        let next = self.lines.leaving(&tenure.resource, tenure.owner);
        let mut passing = next.as_deref().map(|waiter| Passing::begin(self, waiter));
        let (released, passed_on) = match &mut passing {
            Some(passing) if keep_for.is_none() && self.backend.info().capabilities.queue => {
                took_time(self.hand_over(tenure, passing)).await
            }
            _ => (self.give_back(tenure, keep_for).await, false),
        };
        drop(passing);
        goodbye.say();
        match &released {
            Ok(answer) => self.observer.released(tenure, *answer, dropped),
            Err(_) => {
                self.observer.release_failed(&tenure.resource);
                let release_request = tenure.repeated_farewell(at_least);
                if dropped {
                    self.tombstone(&release_request).await;
                } else {
                    self.reap_claim(release_request);
                }
            }
        }
        (released, passed_on)
    }

    async fn give_back(&self, tenure: &Tenure, keep_for: Option<Duration>) -> Result<Released> {
        let mut release_request = ReleaseRequest::new(tenure.reference());
        release_request.tombstone = tenure.uncertain.then(|| ReleaseRequest::tombstone_ttl(tenure.ttl()));
        release_request.keep_for = keep_for;
        let at_most = Engine::request_limit(tenure.ttl().max(Duration::from_secs(2)));
        self.call(Verb::Release, Some(&tenure.resource), at_most, self.backend.release(&release_request))
            .await
    }

    /// One call replaces the owner and mints the new token: no gap, no wake-up.
    async fn hand_over(
        self: &Arc<Engine>,
        tenure: &Arc<Tenure>,
        passing: &mut Passing<'_>,
    ) -> Result<Released> {
        let waiter = passing.waiter;
        let mut succession = Handover::from(tenure.owner);
        succession.tombstone = tenure.uncertain.then(|| ReleaseRequest::tombstone_ttl(tenure.ttl()));
        let mut claim = waiter.claim.clone().queued().taking_over(succession);
        claim.floor = self.floor(&claim.resource);
        passing.unanswered = true;
        let sent = self.sending();
        let at_most = Engine::request_limit(claim.ttl);
        let request = self.backend.acquire(&claim);
        let verdict = self.call(Verb::Acquire, Some(&claim.resource), at_most, request).await;
        passing.unanswered = verdict.as_ref().is_err_and(|error| error.effect() == Effect::Unknown);
        match verdict {
            Ok(Verdict::Granted(grant)) => {
                let now = self.environment.now();
                match self.grant(&claim, &waiter.terms, grant, (sent, now), false) {
                    Some(handle) => passing.granted(handle, grant.acks),
                    None => self.reap_claim(ReleaseRequest::new(claim.reference())),
                }
                Ok(Released::Now)
            }
            Ok(Verdict::Blocked(blocked)) => {
                passing.headship = Some(Headship { blocked: Some(blocked), ..Headship::default() });
                Ok(Released::Now)
            }
            Ok(Verdict::Cancelled) => Ok(Released::Now),
            Ok(Verdict::Mismatch { .. }) => self.give_back(tenure, None).await,
            Err(error) if error.effect() == Effect::None => self.give_back(tenure, None).await,
            Err(error) => Err(error),
        }
    }

    /// Says farewell until it is answered: a request of this owner may be executed late, and must come to nothing.
    async fn tombstone(&self, release_request: &ReleaseRequest) {
        let started = self.environment.now();
        let most = release_request.tombstone.unwrap_or(ReleaseRequest::tombstone_ttl(Duration::ZERO));
        let mut backoff = Backoff::new();
        loop {
            let request = self.backend.release(release_request);
            let limit = Duration::from_secs(5);
            match self.call(Verb::Release, Some(&release_request.resource), limit, request).await {
                Ok(_) if release_request.tombstone.is_some() => {
                    return self.observer.buried(&release_request.resource, release_request.owner);
                }
                Ok(_) => return, // it has left the line
                Err(error) if self.is_hopeless(&error) || started.until(self.environment.now()) >= most => {
                    return self.observer.leaked(
                        &release_request.resource,
                        release_request.owner,
                        error.kind(),
                    );
                }
                Err(_) => self.environment.sleep(backoff.next(self.environment.random())).await,
            }
        }
    }

    fn is_hopeless(&self, error: &Error) -> bool {
        matches!(error.kind(), ErrorKind::Invalid | ErrorKind::Unsupported)
    }
}

/// The answer, and whether it took time to come.
async fn took_time<T>(answer: impl Future<Output = T>) -> (T, bool) {
    let (mut answer, mut took_time) = (pin!(answer), false);
    poll_fn(|cx| match answer.as_mut().poll(cx) {
        Poll::Ready(answer) => Poll::Ready((answer, took_time)),
        Poll::Pending => {
            took_time = true;
            Poll::Pending
        }
    })
    .await
}

/// Lets whoever was woken before have its turn, and then those whom that one wakes: what writes to the network is often
/// a task of its own.
async fn stand_aside() {
    let mut turns = 0;
    poll_fn(|cx| {
        turns += 1;
        if turns > 2 {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// A farewell under way. Dropped part-way, the reaper says it again.
struct Goodbye<'a> {
    engine: &'a Arc<Engine>,
    tenure: &'a Arc<Tenure>,
    at_least: Option<Duration>,
    said: bool,
}

impl Goodbye<'_> {
    fn say(mut self) {
        self.said = true;
    }
}

impl Drop for Goodbye<'_> {
    fn drop(&mut self) {
        if !self.said {
            self.engine.reap_claim(self.tenure.repeated_farewell(self.at_least));
            self.engine.errand_done();
        }
    }
}

/// A waiter whose turn it is: however its predecessor's farewell ends, it is called.
struct Passing<'a> {
    engine: &'a Arc<Engine>,
    waiter: &'a Waiter,
    /// With what it begins to ask for itself, unless it was granted the seat.
    headship: Option<Headship>,
    /// The hand-over may have been done under a name that nobody will use.
    unanswered: bool,
}

impl<'a> Passing<'a> {
    fn begin(engine: &'a Arc<Engine>, waiter: &'a Waiter) -> Passing<'a> {
        // The owner token may be used up by then: it asks under a fresh one, unless told otherwise.
        // Where nobody stands in line nobody is seen waiting: others get the chance to ask before it does.
        let back_off = !engine.backend.info().capabilities.queue;
        let headship = Some(Headship { tainted: true, back_off, ..Headship::default() });
        Passing { engine, waiter, headship, unanswered: false }
    }

    fn granted(&mut self, handle: Handle, acks: Option<u32>) {
        self.headship = None;
        let tenure = handle.tenure();
        self.engine.lines.granted(&tenure.resource, Some(self.waiter.ticket), tenure.owner);
        let waited = self.waiter.since.until(self.engine.environment.now());
        self.engine.observer.acquired(tenure, waited, 0, How { handed_over: true, acks });
        drop(self.waiter.call(Turn::Granted(handle))); // if it has gone away, the handle is dropped here
    }
}

impl Drop for Passing<'_> {
    fn drop(&mut self) {
        if self.unanswered {
            let claim = &self.waiter.claim;
            let release_request = ReleaseRequest::new(claim.reference())
                .with_tombstone(ReleaseRequest::tombstone_ttl(claim.ttl));
            self.engine.reap_claim(release_request);
        }
        if let Some(headship) = self.headship.take() {
            self.engine.make_head(self.waiter, headship);
        }
    }
}
