//! The engine: acquire loop, local line, watchdog, reaper. The only caller of a backend.
//!
//! | part | what it does |
//! |---|---|
//! | [`acquire`] | asks, waits and asks again, in the caller's own future |
//! | [`line`] | waiters of one client share one place at the backend |
//! | [`tenure`] | what stands behind a lease: times, end, state |
//! | [`watchdog`] | pure: which lease to renew when, when to give one up |
//! | [`driver`] | the one task: does what the watchdog says |
//! | [`reaper`] | gives back what was dropped, and buries what went unanswered, until answered |
//! | [`observe`] | events, metrics and traces |

mod acquire;
mod driver;
pub(crate) mod line;
pub(crate) mod observe;
mod reaper;
pub(crate) mod tenure;
pub(crate) mod watchdog;

use std::{
    collections::HashMap,
    fmt,
    future::{Future, poll_fn},
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::Poll,
    time::Duration,
};

pub(crate) use acquire::{Ask, Outcome, Patience};
use leasehold_core::{
    Backend, Effect, Environment, Error, ErrorKind, FencingToken, Holder, Resource, Result, Verb,
};
use tokio::sync::{Notify, mpsc};

use self::{driver::Watch, line::Lines, observe::Observer, reaper::Errand, watchdog::Watchdog};

/// How a lease is to be kept once it is granted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Terms {
    pub(crate) fixed: bool,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) progress_within: Option<Duration>,
    pub(crate) at_least: Option<Duration>,
}

impl Terms {
    fn is_plain(&self) -> bool {
        *self == Terms::default()
    }
}

/// Shared by a client, its clones, and its leases.
pub(crate) struct Engine {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) environment: Arc<dyn Environment>,
    pub(crate) observer: Observer,
    pub(crate) lines: Lines,
    pub(crate) holder: Arc<Holder>,
    watchdog: Mutex<Watchdog<Watch>>,
    nudge: Arc<Notify>,
    reap: mpsc::UnboundedSender<Errand>,
    errands: AtomicUsize,
    errands_done: Notify,
    closing: AtomicBool,
    floors: Mutex<HashMap<Resource, FencingToken>>,
}

impl Engine {
    /// How many resources' highest tokens are remembered. A hint for the backend: forgetting one is harmless.
    const FLOORS_MAX: usize = 4096;

    /// Starts the driver in the environment.
    pub(crate) fn start(
        backend: Arc<dyn Backend>,
        environment: Arc<dyn Environment>,
        holder: Holder,
    ) -> Arc<Engine> {
        let (reap, errands) = mpsc::unbounded_channel();
        let nudge = Arc::new(Notify::new());
        let engine = Arc::new(Engine {
            observer: Observer::new(backend.info().name, Arc::clone(&environment)),
            backend,
            environment,
            lines: Lines::default(),
            holder: Arc::new(holder),
            watchdog: Mutex::new(Watchdog::new()),
            nudge: Arc::clone(&nudge),
            reap,
            errands: AtomicUsize::new(0),
            errands_done: Notify::new(),
            closing: AtomicBool::new(false),
            floors: Mutex::default(),
        });
        let driver = driver::drive(Arc::downgrade(&engine), Arc::clone(&engine.environment), nudge, errands);
        engine.environment.spawn(Box::pin(driver));
        engine
    }

    fn watchdog(&self) -> MutexGuard<'_, Watchdog<Watch>> {
        self.watchdog.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many leases and places are kept alive.
    pub(crate) fn watched(&self) -> usize {
        self.watchdog().len()
    }

    /// Errs when nothing would renew or release: the client was shut down, or its runtime is gone.
    pub(crate) fn admit(&self) -> Result<()> {
        if self.closing.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::ShutDown, "this client was shut down"));
        }
        if self.reap.is_closed() {
            let message = "the runtime this client was made on is gone: nothing would renew the lease";
            return Err(Error::new(ErrorKind::ShutDown, message));
        }
        Ok(())
    }

    /// Refuses new claims, then waits until everything that was dropped has been given back.
    pub(crate) async fn shut_down(&self) {
        self.closing.store(true, Ordering::Release);
        loop {
            let mut done = pin!(self.errands_done.notified());
            done.as_mut().enable();
            if self.errands.load(Ordering::Acquire) == 0 || self.reap.is_closed() {
                return;
            }
            done.await;
        }
    }

    fn floor(&self, resource: &Resource) -> Option<FencingToken> {
        self.floors.lock().unwrap_or_else(PoisonError::into_inner).get(resource).copied()
    }

    fn raise_floor(&self, resource: &Resource, token: FencingToken) {
        let mut floors = self.floors.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(floor) = floors.get_mut(resource) {
            *floor = token.max(*floor);
            return;
        }
        if floors.len() >= Engine::FLOORS_MAX {
            floors.clear();
        }
        floors.insert(resource.clone(), token);
    }

    /// The one way to a backend: a deadline, a span, and an error that says where it happened.
    ///
    /// The timer is made only if the backend does not answer at once.
    pub(crate) async fn call<T>(
        &self,
        verb: Verb,
        resource: Option<&Resource>,
        at_most: Duration,
        request: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let span = self.observer.span(verb, resource);
        let mut request = pin!(request);
        let mut timer = None;
        let answer = poll_fn(|cx| {
            let _entered = span.enter();
            if let Poll::Ready(answer) = request.as_mut().poll(cx) {
                return Poll::Ready(answer);
            }
            let timer = timer.get_or_insert_with(|| self.environment.sleep(at_most));
            timer.as_mut().poll(cx).map(|()| Err(no_answer(at_most)))
        })
        .await;
        answer.map_err(|error| {
            let error = error.at(verb, self.backend.info().name);
            resource.map_or(error.clone(), |resource| error.on(resource))
        })
    }
}

fn no_answer(within: Duration) -> Error {
    Error::new(ErrorKind::Unavailable, format!("no answer within {within:?}")).with_effect(Effect::Unknown)
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("backend", &self.backend.info().name)
            .field("watched", &self.watched())
            .finish_non_exhaustive()
    }
}
