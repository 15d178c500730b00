//! Calls of the store.
//!
//! - Claims that come at once are sent in one call, and releases likewise.
//! - A call that changes something is not cut half-way when its caller goes away: the rest runs in a task of its own
//!   ([`UncutCall`]).
//! - A list is split by failure domain. The parts run at the same time, so a dead shard delays only its own entries; what it owes
//!   when the time is over is `unavailable`, with the effect unknown, for those entries alone.

use std::{
    collections::BTreeMap,
    future::Future,
    pin::Pin,
    sync::{Arc, atomic::AtomicBool},
    task::{Context, Poll, ready},
    time::Duration,
};

use crate::{metrics::Metrics, spans};
use leasehold_core::{
    Backend, Claim, ClaimRef, CommandOutcome, Cursor, Effect, Environment, Error, ErrorKind, FailureDomain,
    OperatorCommand, Page, Query, ReleaseRequest, Released, RenewRequest, Renewal, Resource, Result, Verb,
    Verdict,
};
use leasehold_support::{
    gather::Gatherer,
    gathered_verbs::{Acquires, Releases},
};
use tokio::{
    runtime::Handle,
    sync::mpsc,
    time::{Instant, timeout, timeout_at},
};
use tracing::{Instrument as _, Span};

/// How long a call may go on after its caller has been answered. Bounds the tasks that wait for a store that hangs.
const CALL_MAX: Duration = Duration::from_secs(60);

/// The store, with the time that its calls may take.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    backend: Arc<dyn Backend>,
    acquires: Arc<Gatherer<Acquires>>,
    releases: Arc<Gatherer<Releases>>,
    timeout: Duration,
    metrics: Arc<Metrics>,
}

/// A call with many requests of one failure domain.
type ManyCall<Q, T> = fn(Arc<dyn Backend>, Vec<Q>) -> Pin<Box<dyn Future<Output = Vec<Result<T>>> + Send>>;

/// How a verb travels in lists.
struct ListVerb<Q, T> {
    verb: Verb,
    resource: fn(&Q) -> &Resource,
    /// The most requests of one call.
    size: usize,
    call: ManyCall<Q, T>,
}

impl Store {
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        environment: &Arc<dyn Environment>,
        timeout: Duration,
        metrics: Arc<Metrics>,
    ) -> Store {
        let acquires = Gatherer::new(Arc::clone(&backend), Arc::clone(environment));
        let releases = Gatherer::new(Arc::clone(&backend), Arc::clone(environment));
        Store { backend, acquires, releases, timeout, metrics }
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Whether it takes operators' commands.
    pub(crate) fn takes_orders(&self) -> bool {
        self.backend.info().capabilities.orders
    }

    fn span(&self, verb: Verb) -> Span {
        spans::store_call(verb, self.backend.info().name)
    }

    fn no_answer(&self, verb: Verb, limit: Duration) -> Error {
        let message = format!("the store did not answer within {} ms", limit.as_millis());
        Error::new(ErrorKind::Unavailable, message)
            .with_effect(Effect::Unknown)
            .at(verb, self.backend.info().name)
    }

    /// Carries out a call that changes something, to its end.
    async fn change<T: Send + 'static>(
        &self,
        verb: Verb,
        call: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let started = Instant::now();
        let call = UncutCall::new(call);
        let result = timeout(self.timeout, call).instrument(self.span(verb)).await;
        let result = result.unwrap_or_else(|_| Err(self.no_answer(verb, self.timeout)));
        self.metrics.called(verb, started.elapsed(), result.is_err());
        result
    }

    /// `may_wait`: it may wait, for some milliseconds, to be sent with others.
    pub(crate) async fn acquire(&self, claim: Claim, may_wait: bool) -> Result<Verdict> {
        let acquires = Arc::clone(&self.acquires);
        let call = async move { acquires.send(&claim, &AtomicBool::new(false), may_wait).await.result };
        self.change(Verb::Acquire, call).await
    }

    pub(crate) async fn release(&self, request: ReleaseRequest) -> Result<Released> {
        let releases = Arc::clone(&self.releases);
        let call = async move { releases.send(&request, &AtomicBool::new(false), true).await.result };
        self.change(Verb::Release, call).await
    }

    pub(crate) async fn renew(&self, request: RenewRequest) -> Result<Renewal> {
        let (store, limit) = (self.clone(), self.timeout);
        let call = async move {
            let mut renewals = store.backend.renew(&[request]).await;
            renewals.pop().unwrap_or_else(|| Err(store.no_answer(Verb::Renew, limit)))
        };
        self.change(Verb::Renew, call).await
    }

    pub(crate) async fn order(&self, command: OperatorCommand) -> Result<CommandOutcome> {
        let backend = Arc::clone(&self.backend);
        self.change(Verb::Order, async move { backend.order(&command).await }).await
    }

    pub(crate) async fn acquire_many(&self, claims: Vec<Claim>, limit: Duration) -> Vec<Result<Verdict>> {
        let list = ListVerb {
            verb: Verb::Acquire,
            resource: |claim: &Claim| &claim.resource,
            size: self.backend.info().limits.gather,
            call: |backend, claims| Box::pin(async move { backend.acquire(&claims).await }),
        };
        self.many(&list, claims, limit).await
    }

    pub(crate) async fn renew_many(
        &self,
        requests: Vec<RenewRequest>,
        limit: Duration,
    ) -> Vec<Result<Renewal>> {
        let list = ListVerb {
            verb: Verb::Renew,
            resource: |request: &RenewRequest| &request.resource,
            size: self.backend.info().limits.batch,
            call: |backend, requests| Box::pin(async move { backend.renew(&requests).await }),
        };
        self.many(&list, requests, limit).await
    }

    pub(crate) async fn release_many(
        &self,
        requests: Vec<ReleaseRequest>,
        limit: Duration,
    ) -> Vec<Result<Released>> {
        let list = ListVerb {
            verb: Verb::Release,
            resource: |request: &ReleaseRequest| &request.resource,
            size: self.backend.info().limits.gather,
            call: |backend, requests| Box::pin(async move { backend.release(&requests).await }),
        };
        self.many(&list, requests, limit).await
    }

    async fn many<Q: Send + 'static, T: Send + 'static>(
        &self,
        list: &ListVerb<Q, T>,
        requests: Vec<Q>,
        limit: Duration,
    ) -> Vec<Result<T>> {
        let started = Instant::now();
        let (count, ends_at) = (requests.len(), started + limit);
        let mut domains: BTreeMap<FailureDomain, Vec<(usize, Q)>> = BTreeMap::new();
        for (position, request) in requests.into_iter().enumerate() {
            let domain = self.backend.failure_domain((list.resource)(&request));
            domains.entry(domain).or_default().push((position, request));
        }
        let (results, mut received) = mpsc::unbounded_channel();
        for requests in domains.into_values() {
            let part = DomainPart { backend: Arc::clone(&self.backend), size: list.size.max(1), ends_at };
            tokio::spawn(part.carry_out(requests, list.call, results.clone()));
        }
        drop(results);
        let mut answers: Vec<Option<Result<T>>> = (0..count).map(|_| None).collect();
        let collect = async {
            while let Ok(Some((position, result))) = timeout_at(ends_at, received.recv()).await {
                answers[position] = Some(result);
            }
        };
        collect.instrument(self.span(list.verb)).await;
        let failed = answers.iter().any(|answer| !matches!(answer, Some(Ok(_))));
        self.metrics.called(list.verb, started.elapsed(), failed && count > 0);
        let owed = || Err(self.no_answer(list.verb, limit));
        answers.into_iter().map(|answer| answer.unwrap_or_else(owed)).collect()
    }

    /// Reads. Dropping it does no harm, so it needs no task.
    pub(crate) async fn inspect(&self, query: &Query) -> Result<Page> {
        let read = timeout(self.timeout, self.backend.inspect(query)).instrument(self.span(Verb::Inspect));
        let no_answer = |_| self.no_answer(Verb::Inspect, self.timeout).with_effect(Effect::None);
        let started = Instant::now();
        let result = read.await.map_err(no_answer).flatten();
        // A store that does not know a query has not failed: SQLite, for example, has no servers to list.
        let failed = result.as_ref().is_err_and(|error| error.kind() != ErrorKind::Unsupported);
        self.metrics.called(Verb::Inspect, started.elapsed(), failed);
        result
    }

    /// Waits for a wake-up. A hint, so dropping it does no harm.
    pub(crate) async fn wait(&self, claim: &ClaimRef, since: Cursor, at_most: Duration) -> Result<()> {
        // The store ends the wait itself. The limit is for one that does not answer at all.
        let limit = at_most + Duration::from_secs(1);
        let no_answer = |_| self.no_answer(Verb::Wait, limit).with_effect(Effect::None);
        let started = Instant::now();
        let waited =
            timeout(limit, self.backend.wait(claim, &since, at_most)).instrument(self.span(Verb::Wait));
        let result = waited.await.map_err(no_answer).flatten();
        self.metrics.called(Verb::Wait, started.elapsed(), result.is_err());
        result
    }
}

/// A call that runs in the task of its caller. If that drops it after it has begun, the rest runs in a task of its own, for
/// [`CALL_MAX`] at the most. A task for every call would cost a wake-up of another thread each time.
struct UncutCall<F: Future<Output: Send> + Send + 'static> {
    call: Option<Pin<Box<F>>>,
    has_begun: bool,
}

impl<F: Future<Output: Send> + Send + 'static> UncutCall<F> {
    fn new(call: F) -> UncutCall<F> {
        UncutCall { call: Some(Box::pin(call)), has_begun: false }
    }
}

impl<F: Future<Output: Send> + Send + 'static> Future for UncutCall<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.has_begun = true;
        let Some(call) = self.call.as_mut() else { return Poll::Pending }; // it is never polled after its end
        let output = ready!(call.as_mut().poll(cx));
        self.call = None;
        Poll::Ready(output)
    }
}

impl<F: Future<Output: Send> + Send + 'static> Drop for UncutCall<F> {
    fn drop(&mut self) {
        let Some(call) = self.call.take().filter(|_| self.has_begun) else { return };
        // Without a runtime the process ends.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(timeout(CALL_MAX, call));
        }
    }
}

/// The part of a list that belongs to one failure domain.
struct DomainPart {
    backend: Arc<dyn Backend>,
    size: usize,
    ends_at: Instant,
}

impl DomainPart {
    /// Sends the requests, as many in one call as the store takes, in their order. Stops when the list has been answered: what was
    /// not sent by then never is.
    async fn carry_out<Q, T>(
        self,
        requests: Vec<(usize, Q)>,
        call: ManyCall<Q, T>,
        results: mpsc::UnboundedSender<(usize, Result<T>)>,
    ) {
        let mut requests = requests.into_iter();
        while Instant::now() < self.ends_at {
            let (positions, part): (Vec<usize>, Vec<Q>) = requests.by_ref().take(self.size).unzip();
            if part.is_empty() {
                return;
            }
            let Ok(answers) = timeout(CALL_MAX, call(Arc::clone(&self.backend), part)).await else { return };
            for answer in positions.into_iter().zip(answers) {
                let _ = results.send(answer); // the caller may have been answered
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn a_call_that_has_begun_goes_on_when_its_caller_goes_away() {
        let (proceed, may_proceed) = oneshot::channel::<()>();
        let (done, is_done) = oneshot::channel();
        let mut call = UncutCall::new(async move {
            let _ = may_proceed.await;
            let _ = done.send(());
        });
        assert!(timeout(Duration::ZERO, &mut call).await.is_err(), "it waits");
        drop(call);
        proceed.send(()).expect("the call lives on");
        is_done.await.expect("the call comes to its end");
    }

    #[tokio::test]
    async fn a_call_that_has_not_begun_is_dropped() {
        let (done, is_done) = oneshot::channel::<()>();
        drop(UncutCall::new(async move { done.send(()) }));
        assert!(is_done.await.is_err(), "it never began");
    }
}
