//! The few connections that statements travel on: made as they are needed, made anew when they are dead, given up when
//! they are idle. Nothing is ever sent twice: a verb whose answer did not come is `Unknown`, and the engine, which knows
//! what it wants, asks again with the same owner token.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use leasehold_core::{BackendInfo, Effect, Environment, Error, Moment, Result};
use tokio_postgres::Row;

use crate::{
    config::Config,
    schema,
    standing::{EXAMINE, Promise, Standing},
    wire::{Parameter, Wire},
};

/// Another connection is made when every one has this many statements under way.
const BUSY: u32 = 3;
/// A connection that nobody has used for this long is given up, if there is another.
const IDLE: Duration = Duration::from_secs(60);
/// How long not to try for another connection after one could not be had.
const PAUSE: Duration = Duration::from_secs(10);
/// Silent for this many times the timeout, a connection is dead, whatever the network says.
const SILENT_TIMES: u32 = 3;
/// How often a server that is used is asked how it stands.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// The way to the server.
pub(crate) struct Link {
    pub(crate) config: Config,
    environment: Arc<dyn Environment>,
    wires: Mutex<Vec<Arc<Wire>>>,
    connecting: tokio::sync::Mutex<()>,
    last_failure: Mutex<Option<Error>>,
    attempts: AtomicU64,
    growing: AtomicBool,
    grow_at: AtomicU64,
    promise: Promise,
    /// When to look at the server again.
    look_at: AtomicU64,
}

impl Link {
    pub(crate) fn new(config: Config, environment: Arc<dyn Environment>) -> Link {
        Link {
            promise: Promise::new(config.line_max),
            config,
            environment,
            wires: Mutex::default(),
            connecting: tokio::sync::Mutex::default(),
            last_failure: Mutex::default(),
            attempts: AtomicU64::new(0),
            growing: AtomicBool::new(false),
            grow_at: AtomicU64::new(0),
            look_at: AtomicU64::new(0),
        }
    }

    /// The first connection: makes the tables if they are not there.
    pub(crate) async fn begin(&self) -> Result<()> {
        let wire = self.open().await?;
        schema::establish(wire.client(), &self.config.schema).await?;
        self.wires().push(Arc::new(wire));
        Ok(())
    }

    /// What the backend promises on the server as it was last seen.
    pub(crate) fn info(&self) -> &BackendInfo {
        self.promise.info()
    }

    fn wires(&self) -> MutexGuard<'_, Vec<Arc<Wire>>> {
        self.wires.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One statement.
    pub(crate) async fn run(self: &Arc<Link>, sql: &str, parameters: &[Parameter<'_>]) -> Result<Vec<Row>> {
        let wire = self.wire().await?;
        let answer = wire.ask(sql, parameters, self.config.timeout).await;
        answer.map_err(|failure| {
            if failure.ends_wire {
                self.wires().retain(|other| !Arc::ptr_eq(other, &wire));
            }
            failure.error
        })
    }

    /// The connection with the least to do. If there is none it is made, by one for all.
    async fn wire(self: &Arc<Link>) -> Result<Arc<Wire>> {
        if let Some(wire) = self.pick() {
            return Ok(wire);
        }
        let before = self.attempts.load(Ordering::Relaxed);
        let _one_at_a_time = self.connecting.lock().await;
        if let Some(wire) = self.pick() {
            return Ok(wire);
        }
        // Who waited while another tried in vain has its answer: else a crowd would wait one after the other.
        if self.attempts.load(Ordering::Relaxed) != before
            && let Some(error) = self.failure().clone()
        {
            return Err(error);
        }
        let outcome = self.connect().await;
        *self.failure() = outcome.as_ref().err().cloned();
        self.attempts.fetch_add(1, Ordering::Relaxed);
        outcome
    }

    fn failure(&self) -> MutexGuard<'_, Option<Error>> {
        self.last_failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn connect(&self) -> Result<Arc<Wire>> {
        let wire = Arc::new(self.open().await?);
        self.wires().push(Arc::clone(&wire));
        Ok(wire)
    }

    /// A connection to a server that was looked at: it need not be the one of before.
    async fn open(&self) -> Result<Wire> {
        let wire = Wire::open(&self.config, &self.environment, None).await?;
        let prepared = async {
            let standing = self.look(&wire).await?;
            standing.check()?;
            if !standing.reads_committed() {
                let set = "SET default_transaction_isolation = 'read committed'";
                wire.ask(set, &[], self.config.timeout).await.map_err(|failure| failure.error)?;
            }
            Ok(())
        };
        // Nothing that matters was asked of it yet.
        prepared.await.map_err(|error: Error| error.with_effect(Effect::None))?;
        Ok(wire)
    }

    /// How the server stands, which is from then on what is promised.
    async fn look(&self, wire: &Wire) -> Result<Standing> {
        self.look_at.store(self.environment.now().after(LOOK_EVERY).as_nanos(), Ordering::Relaxed);
        let rows = wire.ask(EXAMINE, &[], self.config.timeout).await.map_err(|failure| failure.error)?;
        let standing = Standing::of(&rows)?;
        self.promise.follow(&standing);
        Ok(standing)
    }

    /// Looks again, beside whoever is at work, if the last time was a while ago.
    fn look_again(self: &Arc<Link>, wire: &Arc<Wire>, now: Moment) {
        let due = self.look_at.load(Ordering::Relaxed);
        let next = now.after(LOOK_EVERY).as_nanos();
        if now < Moment::from_nanos(due)
            || self.look_at.compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed).is_err()
        {
            return;
        }
        let (link, wire) = (Arc::clone(self), Arc::clone(wire));
        self.environment.spawn(Box::pin(async move {
            if let Err(error) = link.look(&wire).await {
                tracing::debug!(%error, "the server was not looked at again");
            }
        }));
    }

    fn pick(self: &Arc<Link>) -> Option<Arc<Wire>> {
        let now = self.environment.now();
        let (wire, count) = {
            let mut wires = self.wires();
            wires.retain(|wire| {
                if wire.is_silent(now, self.config.timeout * SILENT_TIMES) {
                    wire.give_up(&self.config);
                    return false;
                }
                !wire.is_closed()
            });
            if wires.len() > 1
                && let Some(idle) = wires.iter().position(|wire| wire.is_idle(now, IDLE))
            {
                wires.swap_remove(idle);
            }
            (wires.iter().min_by_key(|wire| wire.in_flight()).cloned()?, wires.len())
        };
        if wire.in_flight() >= BUSY && count < self.config.connections {
            self.grow(now);
        }
        self.look_again(&wire, now);
        Some(wire)
    }

    /// One connection more, beside whoever is at work.
    fn grow(self: &Arc<Link>, now: Moment) {
        if now < Moment::from_nanos(self.grow_at.load(Ordering::Relaxed))
            || self.growing.swap(true, Ordering::Relaxed)
        {
            return;
        }
        let link = Arc::downgrade(self);
        self.environment.spawn(Box::pin(async move {
            let Some(link) = link.upgrade() else { return };
            if let Err(error) = link.connect().await {
                tracing::debug!(%error, "no further connection");
                link.grow_at.store(link.environment.now().after(PAUSE).as_nanos(), Ordering::Relaxed);
            }
            link.growing.store(false, Ordering::Relaxed);
        }));
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("config", &self.config)
            .field("connections", &self.wires().len())
            .finish_non_exhaustive()
    }
}
