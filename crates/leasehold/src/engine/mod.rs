//! The engine: everything between the public API and a backend. It is the only caller of a backend.
//!
//! | part | what it does |
//! |---|---|
//! | [`acquire`] | joins the local queue, or goes straight to the backend |
//! | [`acquisition`] | the acquire loop: asks, waits and asks again, in the caller's own future |
//! | [`busy`] | who holds the resource, for a caller whose wait has run out |
//! | [`gather`] | sends claims together, and releases together, when many come at once |
//! | [`pending_claim`] | cleans up when an acquire is dropped part-way |
//! | [`local_queue`] | requests of one client share one place at the backend |
//! | [`queue_place`] | keeps a place in the backend's queue alive |
//! | [`held_lease`] | a granted lease: how it ends, and who is told |
//! | [`times`] | computes the times of a lease: renew, stop, deadline |
//! | [`watchdog`] | pure: which lease to renew when, and when to stop one |
//! | [`driver`] | the one background task: does what the watchdog decides |
//! | [`renewal`] | sends renewals and applies their replies |
//! | [`release`] | releases a lease, or hands it to the next waiter |
//! | [`downgrade`] | turns an exclusive lease into a shared one |
//! | [`cleanup`] | releases what was dropped, and repeats releases until they are answered |
//! | [`telemetry`] | events, metrics and traces |
//! | [`metrics`] | the metrics of each kind of resource, and their descriptions |

mod acquire;
mod acquisition;
mod busy;
mod cleanup;
mod downgrade;
mod driver;
mod gather;
pub(crate) mod held_lease;
mod local_queue;
pub(crate) mod metrics;
mod pending_claim;
mod queue_place;
mod release;
mod renewal;
pub(crate) mod telemetry;
pub(crate) mod times;
mod watchdog;

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

pub(crate) use acquire::{AcquireOutcome, AcquireRequest, WaitLimit};
use leasehold_core::{
    Backend, ClientId, Effect, Environment, Error, ErrorKind, FencingToken, Holder, Resource, Result, Verb,
};
use leasehold_support::{
    gather::Gatherer,
    gathered_verbs::{Acquires, Releases},
};
use tokio::sync::{Notify, mpsc};

use self::{
    cleanup::CleanupTask, driver::WatchedClaim, local_queue::LocalQueues, telemetry::Telemetry,
    watchdog::Watchdog,
};

/// How a lease is kept once it is granted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LeaseOptions {
    /// It is not renewed.
    pub(crate) fixed: bool,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) progress_within: Option<Duration>,
    pub(crate) at_least: Option<Duration>,
}

impl LeaseOptions {
    fn is_default(&self) -> bool {
        *self == LeaseOptions::default()
    }
}

/// The state that a client, its clones and its leases share.
pub(crate) struct Engine {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) environment: Arc<dyn Environment>,
    pub(crate) telemetry: Telemetry,
    pub(crate) holder: Arc<Holder>,
    /// Stands in every claim of this client.
    pub(crate) client: ClientId,
    pub(crate) local_queues: LocalQueues,
    watchdog: Mutex<Watchdog<WatchedClaim>>,
    driver_wakeup: Arc<Notify>,
    acquires: Arc<Gatherer<Acquires>>,
    releases: Arc<Gatherer<Releases>>,
    /// To the driver.
    cleanups: mpsc::UnboundedSender<CleanupTask>,
    cleanups_pending: AtomicUsize,
    cleanups_done: Notify,
    closing: AtomicBool,
    /// The highest token that this client was granted of each resource.
    floors: Mutex<HashMap<Resource, FencingToken>>,
}

impl Engine {
    /// How many floors are remembered. A floor is a hint for the backend: forgetting one is harmless.
    const FLOORS_MAX: usize = 4096;

    /// Makes an engine, and starts its driver in the environment.
    pub(crate) fn start(
        backend: Arc<dyn Backend>,
        environment: Arc<dyn Environment>,
        holder: Holder,
    ) -> Arc<Engine> {
        let (cleanups, cleanup_tasks) = mpsc::unbounded_channel();
        let driver_wakeup = Arc::new(Notify::new());
        let engine = Arc::new(Engine {
            telemetry: Telemetry::new(backend.info().name, Arc::clone(&environment)),
            client: ClientId::fresh(&*environment),
            acquires: Gatherer::new(Arc::clone(&backend), Arc::clone(&environment)),
            releases: Gatherer::new(Arc::clone(&backend), Arc::clone(&environment)),
            backend,
            environment,
            local_queues: LocalQueues::default(),
            holder: Arc::new(holder),
            watchdog: Mutex::new(Watchdog::new()),
            driver_wakeup: Arc::clone(&driver_wakeup),
            cleanups,
            cleanups_pending: AtomicUsize::new(0),
            cleanups_done: Notify::new(),
            closing: AtomicBool::new(false),
            floors: Mutex::default(),
        });
        let environment = Arc::clone(&engine.environment);
        // Weak: the driver ends when the client and its last lease are gone.
        let driver = driver::drive(Arc::downgrade(&engine), environment, driver_wakeup, cleanup_tasks);
        engine.environment.spawn(Box::pin(driver));
        engine
    }

    fn watchdog(&self) -> MutexGuard<'_, Watchdog<WatchedClaim>> {
        self.watchdog.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many leases and queue places are kept alive.
    pub(crate) fn watched(&self) -> usize {
        self.watchdog().len()
    }

    /// Fails when nothing would renew or release a lease: the client was shut down, or its runtime is gone.
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.closing.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::ShutDown, "this client was shut down"));
        }
        self.check_runtime()
    }

    /// The driver lives as long as the engine, so it is gone only if its runtime has stopped.
    fn check_runtime(&self) -> Result<()> {
        if !self.cleanups.is_closed() {
            return Ok(());
        }
        let message = "the runtime on which this client was made has stopped, so nothing would renew the lease: \
                       make a client on a runtime that lasts";
        Err(Error::new(ErrorKind::ShutDown, message))
    }

    /// Refuses new claims, then waits until everything that was dropped is released.
    pub(crate) async fn shut_down(&self) {
        self.closing.store(true, Ordering::Release);
        loop {
            let mut done = pin!(self.cleanups_done.notified());
            done.as_mut().enable();
            if self.cleanups_pending.load(Ordering::Acquire) == 0 || self.cleanups.is_closed() {
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

    /// Calls the backend: every call goes through here. Adds a time limit and a span, and an error says where it happened.
    pub(crate) async fn call<T>(
        &self,
        verb: Verb,
        resource: Option<&Resource>,
        at_most: Duration,
        request: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let span = self.telemetry.span(verb, resource);
        let mut request = pin!(request);
        let mut timer = None;
        let reply = poll_fn(|cx| {
            let _entered = span.enter();
            let mut reply = Poll::Pending;
            self.environment.within(&mut || reply = request.as_mut().poll(cx));
            if reply.is_ready() {
                return reply;
            }
            // On a runtime that has stopped, tokio's timers panic.
            if let Err(stopped) = self.check_runtime() {
                return Poll::Ready(Err(stopped.with_effect(Effect::Unknown)));
            }
            // A timer costs an allocation, so it is made only if the backend does not answer at once.
            let timer = timer.get_or_insert_with(|| self.environment.sleep(at_most));
            timer.as_mut().poll(cx).map(|()| Err(no_reply(at_most)))
        })
        .await;
        reply.map_err(|error| {
            let error = error.at(verb, self.backend.info().name);
            resource.map_or(error.clone(), |resource| error.on(resource))
        })
    }
}

fn no_reply(within: Duration) -> Error {
    let message = format!("no answer from the backend within {within:?}");
    Error::new(ErrorKind::Unavailable, message).with_effect(Effect::Unknown)
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("backend", &self.backend.info().name)
            .field("watched", &self.watched())
            .finish_non_exhaustive()
    }
}
