//! Sends requests together when many come at once (ADR 0039): the claims and the releases of a client, and the votes that a
//! client asks of a node.
//!
//! 1. A request that finds fewer than `calls_in_flight` calls of its failure domain under way goes at once, alone, in its
//!    caller's own future. So nothing is delayed when there is little to do.
//! 2. Any other request waits in the queue of its failure domain. When a call ends, the requests at the head of that queue,
//!    at most `gather` of them, become one call. It runs in a task of its own and owns copies of the requests, so that it
//!    depends on no caller.
//! 3. A request that has waited for twice the usual reply, and for at least a millisecond, does not wait for a call to
//!    end: it starts the next call beside those under way. So a call that hangs delays others by milliseconds.
//! 4. Each request has its own result. A caller that leaves while its request is queued has sent nothing, and its claim needs
//!    no tombstone. Once the request is in a call, it may be executed.
//! 5. `sent` is read once for each call, right before it.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    future::{Future, poll_fn},
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
    Clock, Effect, Environment, Error, ErrorKind, FailureDomain, Result, Timestamp, WallTime,
};
use tokio::sync::oneshot;
use tracing::Instrument as _;

use crate::race::{Either, first};

/// A request waits at least this long before it starts a call beside those under way.
const PATIENCE_MIN: Duration = Duration::from_millis(1);
/// And at most this long, however slow the backend is.
const PATIENCE_MAX: Duration = Duration::from_millis(20);

/// The results of a call, one for each request.
pub type Results<'a, T> = Pin<Box<dyn Future<Output = Vec<Result<T>>> + Send + 'a>>;

/// A kind of call that can carry many requests.
pub trait GatheredCall: 'static {
    /// What carries the requests out.
    type Target: Send + Sync + ?Sized + 'static;
    /// One request.
    type Request: Clone + Send + Sync + 'static;
    /// The reply to one request.
    type Reply: Send + 'static;

    /// A name for traces.
    const NAME: &'static str;

    /// With which requests this one may be sent, and how many.
    fn limits(target: &Self::Target, request: &Self::Request) -> GatherLimits;

    /// Sends them in one call.
    fn send<'a>(target: &'a Self::Target, requests: &'a [Self::Request]) -> Results<'a, Self::Reply>;
}

/// How requests are gathered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatherLimits {
    /// Only requests of one failure domain are sent together.
    pub domain: FailureDomain,
    /// Requests in one call. With 1 the request goes at once and alone.
    pub gather: usize,
    /// Calls under way before requests are gathered.
    pub calls_in_flight: usize,
}

/// Both clocks, read before a request is sent.
///
/// A virtual machine may be frozen while the reply is on its way. The monotonic clock does not show that, the calendar
/// clock does. So the calendar clock has to be read before the request as well.
#[derive(Clone, Copy, Debug)]
pub struct SendTime {
    /// On the monotonic clock.
    pub at: Timestamp,
    /// On the calendar clock.
    pub wall: WallTime,
}

impl SendTime {
    /// Reads both clocks. Call this right before a request is sent: all times of a lease count from here.
    pub fn now<C: Clock + ?Sized>(clock: &C) -> SendTime {
        SendTime { at: clock.now(), wall: clock.wall() }
    }
}

/// The result of one request, and when its call was sent.
#[derive(Debug)]
pub struct Answer<T> {
    /// When the call was sent.
    pub sent: SendTime,
    /// The result.
    pub result: Result<T>,
}

/// Sends the requests of one kind of call.
pub struct Gatherer<C: GatheredCall> {
    target: Arc<C::Target>,
    environment: Arc<dyn Environment>,
    queues: Mutex<HashMap<FailureDomain, GatherQueue<C>>>,
}

/// The requests of one failure domain that wait for the next call.
struct GatherQueue<C: GatheredCall> {
    /// By order of arrival.
    waiting: BTreeMap<u64, WaitingRequest<C>>,
    arrivals: u64,
    calls_in_flight: usize,
    /// How long a reply usually takes: a moving average.
    usual_reply: Duration,
}

struct WaitingRequest<C: GatheredCall> {
    request: C::Request,
    /// The span of the caller.
    span: Option<tracing::Id>,
    reply: oneshot::Sender<Answer<C::Reply>>,
}

impl<C: GatheredCall> Default for GatherQueue<C> {
    fn default() -> GatherQueue<C> {
        GatherQueue { waiting: BTreeMap::new(), arrivals: 0, calls_in_flight: 0, usual_reply: Duration::ZERO }
    }
}

impl<C: GatheredCall> GatherQueue<C> {
    /// Takes the requests of the next call from the head of the queue.
    fn take_call(&mut self, gather: usize) -> Option<Vec<WaitingRequest<C>>> {
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

impl<C: GatheredCall> fmt::Debug for Gatherer<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gatherer").field("requests", &C::NAME).finish_non_exhaustive()
    }
}

impl<C: GatheredCall> Gatherer<C> {
    /// Sends requests to this target.
    pub fn new(target: Arc<C::Target>, environment: Arc<dyn Environment>) -> Arc<Gatherer<C>> {
        Arc::new(Gatherer { target, environment, queues: Mutex::default() })
    }

    /// Sends the request: with `may_wait` alone or with others, otherwise at once and alone. `in_flight` becomes true once the request may be executed, and stays true:
    /// it is for the caller to say that it is answered.
    ///
    /// # Cancel safety
    /// If this is dropped while the request is queued, nothing was sent, and `in_flight` is still false.
    pub async fn send(
        self: &Arc<Self>,
        request: &C::Request,
        in_flight: &AtomicBool,
        may_wait: bool,
    ) -> Answer<C::Reply> {
        let limits = C::limits(&self.target, request);
        if limits.gather <= 1 || !may_wait {
            return self.send_alone(request, in_flight).await;
        }
        match self.enter(limits, request) {
            Entered::Goes => {
                let mut call = CallInFlight::new(self, limits);
                let answer = self.send_alone(request, in_flight).await;
                call.answered(answer.sent.at);
                answer
            }
            // Boxed, so that a request that goes at once stays small.
            Entered::Waits { number, reply, patience } => {
                let queued = QueuedRequest { gatherer: self, limits, number, in_flight, is_done: false };
                Box::pin(queued.wait(reply, patience)).await
            }
        }
    }

    async fn send_alone(&self, request: &C::Request, in_flight: &AtomicBool) -> Answer<C::Reply> {
        in_flight.store(true, Ordering::Release);
        let sent = SendTime::now(&*self.environment);
        let mut results = C::send(&self.target, slice::from_ref(request)).await;
        let result = match results.pop() {
            Some(result) if results.is_empty() => result,
            other => Err(wrong_count(results.len() + usize::from(other.is_some()), 1)),
        };
        Answer { sent, result }
    }

    fn queues(&self) -> MutexGuard<'_, HashMap<FailureDomain, GatherQueue<C>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, limits: GatherLimits, request: &C::Request) -> Entered<C::Reply> {
        let mut queues = self.queues();
        let queue = queues.entry(limits.domain).or_default();
        // A request that came earlier is not overtaken.
        if queue.calls_in_flight < limits.calls_in_flight.max(1) && queue.waiting.is_empty() {
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
    fn end_call(self: &Arc<Self>, limits: GatherLimits, took: Option<Duration>) {
        let next = {
            let mut queues = self.queues();
            let Some(queue) = queues.get_mut(&limits.domain) else { return };
            queue.calls_in_flight -= 1;
            if let Some(took) = took {
                queue.record_reply(took);
            }
            let free = queue.calls_in_flight < limits.calls_in_flight.max(1);
            if free { queue.take_call(limits.gather) } else { None }
        };
        if let Some(call) = next {
            self.start_call(limits, call);
        }
    }

    /// Starts calls until this request is in one, beside those under way.
    fn start_calls_up_to(self: &Arc<Self>, limits: GatherLimits, number: u64) {
        loop {
            let call = {
                let mut queues = self.queues();
                let queue =
                    queues.get_mut(&limits.domain).filter(|queue| queue.waiting.contains_key(&number));
                queue.and_then(|queue| queue.take_call(limits.gather))
            };
            let Some(call) = call else { return };
            self.start_call(limits, call);
        }
    }

    fn start_call(self: &Arc<Self>, limits: GatherLimits, call: Vec<WaitingRequest<C>>) {
        let in_flight = CallInFlight::new(self, limits);
        self.environment.spawn(Box::pin(run_call(in_flight, call)));
    }

    /// Removes a request that is still queued. False if it is in a call.
    fn leave(&self, domain: FailureDomain, number: u64) -> bool {
        let mut queues = self.queues();
        queues.get_mut(&domain).is_some_and(|queue| queue.waiting.remove(&number).is_some())
    }
}

/// One call for several requests. It ends when all are answered, or when every caller has gone.
async fn run_call<C: GatheredCall>(mut in_flight: CallInFlight<C>, call: Vec<WaitingRequest<C>>) {
    let gatherer = Arc::clone(&in_flight.gatherer);
    let span =
        tracing::debug_span!(target: "leasehold", "gathered call", what = C::NAME, requests = call.len());
    let (mut requests, mut replies) = (Vec::with_capacity(call.len()), Vec::with_capacity(call.len()));
    for waiting in call {
        span.follows_from(waiting.span);
        requests.push(waiting.request);
        replies.push(waiting.reply);
    }
    let sent = SendTime::now(&*gatherer.environment);
    let results = C::send(&gatherer.target, &requests).instrument(span);
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
struct CallInFlight<C: GatheredCall> {
    gatherer: Arc<Gatherer<C>>,
    limits: GatherLimits,
    took: Option<Duration>,
}

impl<C: GatheredCall> CallInFlight<C> {
    fn new(gatherer: &Arc<Gatherer<C>>, limits: GatherLimits) -> CallInFlight<C> {
        CallInFlight { gatherer: Arc::clone(gatherer), limits, took: None }
    }

    fn answered(&mut self, sent: Timestamp) {
        self.took = Some(sent.until(self.gatherer.environment.now()));
    }
}

impl<C: GatheredCall> Drop for CallInFlight<C> {
    fn drop(&mut self) {
        self.gatherer.end_call(self.limits, self.took);
    }
}

/// A request that waits for its call, or for the reply to it.
struct QueuedRequest<'a, C: GatheredCall> {
    gatherer: &'a Arc<Gatherer<C>>,
    limits: GatherLimits,
    number: u64,
    in_flight: &'a AtomicBool,
    is_done: bool,
}

impl<C: GatheredCall> QueuedRequest<'_, C> {
    async fn wait(
        mut self,
        mut reply: oneshot::Receiver<Answer<C::Reply>>,
        patience: Duration,
    ) -> Answer<C::Reply> {
        let timer = self.gatherer.environment.sleep(patience);
        let answer = match first(&mut reply, timer).await {
            Either::Left(answer) => answer,
            Either::Right(()) => {
                self.gatherer.start_calls_up_to(self.limits, self.number);
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

impl<C: GatheredCall> Drop for QueuedRequest<'_, C> {
    fn drop(&mut self) {
        if !self.is_done && !self.gatherer.leave(self.limits.domain, self.number) {
            self.in_flight.store(true, Ordering::Release);
        }
    }
}
