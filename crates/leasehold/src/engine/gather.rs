//! Sends claims together, and releases together, when many come at once (ADR 0039).
//!
//! 1. A request that finds fewer than `calls_in_flight` calls of its failure domain under way goes at once, alone, in its
//!    caller's own future. So nothing is delayed when there is little to do.
//! 2. Any other request waits in the queue of its failure domain. When a call ends, the requests at the head of that queue,
//!    at most `gather` of them, become one call. It runs in a task of its own and owns copies of the requests, so that it
//!    depends on no caller.
//! 3. A request that has waited for twice the usual reply, and for at least [`PATIENCE_MIN`], does not wait for a call to
//!    end: it starts the next call beside those under way. So a call that hangs delays others by milliseconds.
//! 4. Each request has its own result. A caller that leaves while its request is queued has sent nothing, and its claim needs
//!    no tombstone. Once the request is in a call, it may be executed.
//! 5. `sent` is read once for each call, right before it.
//!
//! Claims and releases have queues of their own: a release never waits for an acquire. Some claims go alone and at once,
//! whatever is under way: one that takes over from another, because it releases that one; and one that has asked before,
//! because its turn may have come, or it may have been granted unnoticed.

use std::{
    collections::{BTreeMap, HashMap},
    future::poll_fn,
    pin::Pin,
    slice,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
    time::Duration,
};

use leasehold_core::{
    Backend, Claim, Effect, Environment, Error, ErrorKind, FailureDomain, ReleaseRequest, Released, Resource,
    Result, Timestamp, Verb, Verdict,
};
use leasehold_support::race::{Either, first};
use tokio::sync::oneshot;
use tracing::Instrument as _;

use super::times::SendTime;

/// A request waits at least this long before it starts a call beside those under way.
const PATIENCE_MIN: Duration = Duration::from_millis(1);
/// And at most this long, however slow the backend is.
const PATIENCE_MAX: Duration = Duration::from_millis(20);

type Results<'a, T> = Pin<Box<dyn Future<Output = Vec<Result<T>>> + Send + 'a>>;

/// A request that can be sent together with others of its kind.
pub(super) trait Gatherable: Clone + Send + Sync + 'static {
    type Reply: Send + 'static;

    const VERB: Verb;

    fn resource(&self) -> &Resource;

    /// It goes at once and alone.
    fn goes_alone(&self) -> bool;

    fn call<'a>(backend: &'a dyn Backend, requests: &'a [Self]) -> Results<'a, Self::Reply>;
}

impl Gatherable for Claim {
    type Reply = Verdict;

    const VERB: Verb = Verb::Acquire;

    fn resource(&self) -> &Resource {
        &self.resource
    }

    fn goes_alone(&self) -> bool {
        self.takes_over_from.is_some()
    }

    fn call<'a>(backend: &'a dyn Backend, claims: &'a [Claim]) -> Results<'a, Verdict> {
        backend.acquire(claims)
    }
}

impl Gatherable for ReleaseRequest {
    type Reply = Released;

    const VERB: Verb = Verb::Release;

    fn resource(&self) -> &Resource {
        &self.resource
    }

    fn goes_alone(&self) -> bool {
        false
    }

    fn call<'a>(backend: &'a dyn Backend, requests: &'a [ReleaseRequest]) -> Results<'a, Released> {
        backend.release(requests)
    }
}

/// The result of one request, and when its call was sent.
pub(super) struct Answer<T> {
    pub(super) sent: SendTime,
    pub(super) result: Result<T>,
}

/// Sends the requests of one verb.
pub(super) struct Gatherer<R: Gatherable> {
    backend: Arc<dyn Backend>,
    environment: Arc<dyn Environment>,
    queues: Mutex<HashMap<FailureDomain, GatherQueue<R>>>,
}

/// The requests of one failure domain that wait for the next call.
struct GatherQueue<R: Gatherable> {
    /// By order of arrival.
    waiting: BTreeMap<u64, WaitingRequest<R>>,
    arrivals: u64,
    calls_in_flight: usize,
    /// How long a reply usually takes: a moving average.
    usual_reply: Duration,
}

struct WaitingRequest<R: Gatherable> {
    request: R,
    /// The span of the caller.
    span: Option<tracing::Id>,
    reply: oneshot::Sender<Answer<R::Reply>>,
}

impl<R: Gatherable> Default for GatherQueue<R> {
    fn default() -> GatherQueue<R> {
        GatherQueue { waiting: BTreeMap::new(), arrivals: 0, calls_in_flight: 0, usual_reply: Duration::ZERO }
    }
}

impl<R: Gatherable> GatherQueue<R> {
    /// Takes the requests of the next call from the head of the queue.
    fn take_call(&mut self, gather: usize) -> Option<Vec<WaitingRequest<R>>> {
        let count = self.waiting.len().min(gather);
        if count == 0 {
            return None;
        }
        self.calls_in_flight += 1;
        Some((0..count).filter_map(|_| self.waiting.pop_first()).map(|(_, request)| request).collect())
    }

    fn patience(&self) -> Duration {
        (self.usual_reply * 2).clamp(PATIENCE_MIN, PATIENCE_MAX)
    }

    fn record_reply(&mut self, took: Duration) {
        self.usual_reply = (self.usual_reply * 7 + took) / 8;
    }
}

/// How a request begins.
enum Entered<T> {
    /// It goes at once.
    Goes,
    /// It waits for the next call, but no longer than this.
    Waits { number: u64, reply: oneshot::Receiver<Answer<T>>, patience: Duration },
}

impl<R: Gatherable> Gatherer<R> {
    pub(super) fn new(backend: Arc<dyn Backend>, environment: Arc<dyn Environment>) -> Arc<Gatherer<R>> {
        Arc::new(Gatherer { backend, environment, queues: Mutex::default() })
    }

    /// Sends the request: with `may_wait` alone or with others, otherwise at once and alone. `in_flight` becomes true once the request may be executed, and stays true:
    /// it is for the caller to say that it is answered.
    ///
    /// # Cancel safety
    /// If this is dropped while the request is queued, nothing was sent, and `in_flight` is still false.
    pub(super) async fn send(
        self: &Arc<Self>,
        request: &R,
        in_flight: &AtomicBool,
        may_wait: bool,
    ) -> Answer<R::Reply> {
        let limits = &self.backend.info().limits;
        if limits.gather <= 1 || !may_wait || request.goes_alone() {
            return self.send_alone(request, in_flight).await;
        }
        let domain = self.backend.failure_domain(request.resource());
        match self.enter(domain, request, limits.calls_in_flight.max(1)) {
            Entered::Goes => {
                let mut call = CallInFlight::new(self, domain);
                let answer = self.send_alone(request, in_flight).await;
                call.answered(answer.sent.at);
                answer
            }
            // Boxed, so that a request that goes at once stays small.
            Entered::Waits { number, reply, patience } => {
                let queued = QueuedRequest { gatherer: self, domain, number, in_flight, is_done: false };
                Box::pin(queued.wait(reply, patience)).await
            }
        }
    }

    async fn send_alone(&self, request: &R, in_flight: &AtomicBool) -> Answer<R::Reply> {
        in_flight.store(true, Ordering::Release);
        let sent = SendTime::now(&*self.environment);
        let mut results = R::call(&*self.backend, slice::from_ref(request)).await;
        let result = match results.pop() {
            Some(result) if results.is_empty() => result,
            other => Err(wrong_count(results.len() + usize::from(other.is_some()), 1)),
        };
        Answer { sent, result }
    }

    fn queues(&self) -> MutexGuard<'_, HashMap<FailureDomain, GatherQueue<R>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, domain: FailureDomain, request: &R, calls_max: usize) -> Entered<R::Reply> {
        let mut queues = self.queues();
        let queue = queues.entry(domain).or_default();
        // A request that came earlier is not overtaken.
        if queue.calls_in_flight < calls_max && queue.waiting.is_empty() {
            queue.calls_in_flight += 1;
            return Entered::Goes;
        }
        let (sender, reply) = oneshot::channel();
        let number = queue.arrivals;
        queue.arrivals += 1;
        let span = tracing::Span::current().id();
        queue.waiting.insert(number, WaitingRequest { request: request.clone(), span, reply: sender });
        Entered::Waits { number, reply, patience: queue.patience() }
    }

    /// A call has ended: the next one starts.
    fn end_call(self: &Arc<Self>, domain: FailureDomain, took: Option<Duration>) {
        let limits = &self.backend.info().limits;
        let next = {
            let mut queues = self.queues();
            let Some(queue) = queues.get_mut(&domain) else { return };
            queue.calls_in_flight -= 1;
            if let Some(took) = took {
                queue.record_reply(took);
            }
            let free = queue.calls_in_flight < limits.calls_in_flight.max(1);
            if free { queue.take_call(limits.gather) } else { None }
        };
        if let Some(call) = next {
            self.start_call(domain, call);
        }
    }

    /// Starts calls until this request is in one, beside those under way.
    fn start_calls_up_to(self: &Arc<Self>, domain: FailureDomain, number: u64) {
        let gather = self.backend.info().limits.gather;
        loop {
            let call = {
                let mut queues = self.queues();
                let queue = queues.get_mut(&domain).filter(|queue| queue.waiting.contains_key(&number));
                queue.and_then(|queue| queue.take_call(gather))
            };
            let Some(call) = call else { return };
            self.start_call(domain, call);
        }
    }

    fn start_call(self: &Arc<Self>, domain: FailureDomain, call: Vec<WaitingRequest<R>>) {
        let in_flight = CallInFlight::new(self, domain);
        self.environment.spawn(Box::pin(run_call(in_flight, call)));
    }

    /// Removes a request that is still queued. False if it is in a call.
    fn leave(&self, domain: FailureDomain, number: u64) -> bool {
        let mut queues = self.queues();
        queues.get_mut(&domain).is_some_and(|queue| queue.waiting.remove(&number).is_some())
    }
}

/// One call for several requests. It ends when all are answered, or when every caller has gone.
async fn run_call<R: Gatherable>(mut in_flight: CallInFlight<R>, call: Vec<WaitingRequest<R>>) {
    let gatherer = Arc::clone(&in_flight.gatherer);
    let span = tracing::debug_span!(target: "leasehold", "gathered call", verb = R::VERB.as_str(), requests = call.len());
    let (mut requests, mut replies) = (Vec::with_capacity(call.len()), Vec::with_capacity(call.len()));
    for waiting in call {
        span.follows_from(waiting.span);
        requests.push(waiting.request);
        replies.push(waiting.reply);
    }
    let sent = SendTime::now(&*gatherer.environment);
    let results = R::call(&*gatherer.backend, &requests).instrument(span);
    let Either::Left(results) = first(results, all_gone(&mut replies)).await else { return };
    in_flight.answered(sent.at);
    // Before the callers are woken, so that the next call is on its way when they begin to work.
    drop(in_flight);
    if results.len() == requests.len() {
        for (reply, result) in replies.into_iter().zip(results) {
            drop(reply.send(Answer { sent, result })); // the caller may have gone
        }
    } else {
        for reply in replies {
            drop(reply.send(Answer { sent, result: Err(wrong_count(results.len(), requests.len())) }));
        }
    }
}

/// Resolves when nobody waits for any of the replies.
async fn all_gone<T>(replies: &mut [oneshot::Sender<T>]) {
    let mut first_waiting = 0;
    poll_fn(|cx| {
        while let Some(reply) = replies.get_mut(first_waiting) {
            if reply.poll_closed(cx).is_pending() {
                return Poll::Pending;
            }
            first_waiting += 1;
        }
        Poll::Ready(())
    })
    .await;
}

fn wrong_count(results: usize, requests: usize) -> Error {
    let message = format!("the backend gave {results} results for {requests} requests");
    Error::new(ErrorKind::Unavailable, message).with_effect(Effect::Unknown)
}

fn never_answered() -> Error {
    let message = "the runtime has stopped before the backend answered";
    Error::new(ErrorKind::Unavailable, message).with_effect(Effect::Unknown)
}

/// A call under way. When it is dropped, the next one starts.
struct CallInFlight<R: Gatherable> {
    gatherer: Arc<Gatherer<R>>,
    domain: FailureDomain,
    took: Option<Duration>,
}

impl<R: Gatherable> CallInFlight<R> {
    fn new(gatherer: &Arc<Gatherer<R>>, domain: FailureDomain) -> CallInFlight<R> {
        CallInFlight { gatherer: Arc::clone(gatherer), domain, took: None }
    }

    fn answered(&mut self, sent: Timestamp) {
        self.took = Some(sent.until(self.gatherer.environment.now()));
    }
}

impl<R: Gatherable> Drop for CallInFlight<R> {
    fn drop(&mut self) {
        self.gatherer.end_call(self.domain, self.took);
    }
}

/// A request that waits for its call, or for the reply to it.
struct QueuedRequest<'a, R: Gatherable> {
    gatherer: &'a Arc<Gatherer<R>>,
    domain: FailureDomain,
    number: u64,
    in_flight: &'a AtomicBool,
    is_done: bool,
}

impl<R: Gatherable> QueuedRequest<'_, R> {
    async fn wait(
        mut self,
        mut reply: oneshot::Receiver<Answer<R::Reply>>,
        patience: Duration,
    ) -> Answer<R::Reply> {
        let timer = self.gatherer.environment.sleep(patience);
        let answer = match first(&mut reply, timer).await {
            Either::Left(answer) => answer,
            Either::Right(()) => {
                self.gatherer.start_calls_up_to(self.domain, self.number);
                reply.await
            }
        };
        self.is_done = true;
        answer.unwrap_or_else(|_| {
            self.in_flight.store(true, Ordering::Release);
            Answer { sent: SendTime::now(&*self.gatherer.environment), result: Err(never_answered()) }
        })
    }
}

impl<R: Gatherable> Drop for QueuedRequest<'_, R> {
    fn drop(&mut self) {
        if !self.is_done && !self.gatherer.leave(self.domain, self.number) {
            self.in_flight.store(true, Ordering::Release);
        }
    }
}
