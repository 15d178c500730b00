//! The few connections that statements travel on: made as they are needed, made anew when they are dead, given up when
//! they are idle. Nothing is ever sent twice: a verb whose answer did not come is `Unknown`, and the engine, which knows
//! what it wants, asks again with the same owner token.
//!
//! How many statements a connection may have under way depends on where it leads (`direct`, ADR 0034):
//! 1. To the server itself: any number. The connection with the least to do is used.
//! 2. To a pool, or it is not known: one. Its request has the connection to itself, see `turn`.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use leasehold_core::{BackendInfo, Effect, Environment, Error, RequestIds, Result, Timestamp};
use leasehold_support::race::{Either, first};
use tokio::sync::Semaphore;
use tokio_postgres::Row;

use crate::{
    config::Config,
    error, schema,
    standing::{EXAMINE, Promise, Standing},
    turn::Turn,
    wire::{Parameter, Question, Wire},
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
/// How often a request looks for a connection, beyond once for each turn: what the hosts lead to may change meanwhile.
const LOOKS_MAX: usize = 8;
/// How long a turn for which there was no connection is left unused.
const TURN_PAUSE: Duration = Duration::from_secs(1);

/// The way to the server.
pub(crate) struct Link {
    pub(crate) config: Config,
    pub(crate) environment: Arc<dyn Environment>,
    pub(crate) ids: Arc<RequestIds>,
    wires: Mutex<Vec<Arc<Wire>>>,
    connecting: tokio::sync::Mutex<()>,
    last_failure: Mutex<Option<Error>>,
    attempts: AtomicU64,
    growing: AtomicBool,
    grow_at: AtomicU64,
    /// The last connection that was made is one that a pool may share.
    is_shared: AtomicBool,
    /// An answer belonged to another request: from now on no connection is believed to lead to the server itself.
    was_mixed: AtomicBool,
    /// One permit for each request that may have a connection to itself.
    pub(crate) turns: Arc<Semaphore>,
    /// How many connections nobody asks any more, and have an answer to come.
    pub(crate) leaving: Arc<AtomicUsize>,
    promise: Promise,
    /// When to look at the server again.
    look_at: AtomicU64,
}

impl Link {
    pub(crate) fn new(config: Config, environment: Arc<dyn Environment>) -> Link {
        Link {
            promise: Promise::new(config.line_max),
            ids: Arc::new(RequestIds::starting_at(environment.random())),
            turns: Arc::new(Semaphore::new(config.connections)),
            config,
            environment,
            wires: Mutex::default(),
            connecting: tokio::sync::Mutex::default(),
            last_failure: Mutex::default(),
            attempts: AtomicU64::new(0),
            growing: AtomicBool::new(false),
            grow_at: AtomicU64::new(0),
            is_shared: AtomicBool::new(false),
            was_mixed: AtomicBool::new(false),
            leaving: Arc::default(),
            look_at: AtomicU64::new(0),
        }
    }

    /// The first connection: makes the tables if they are not there.
    pub(crate) async fn begin(&self) -> Result<()> {
        let wire = self.open().await?;
        schema::establish(&wire, &self.config).await?;
        self.wires().push(Arc::new(wire));
        Ok(())
    }

    /// What the backend promises on the server as it was last seen.
    pub(crate) fn info(&self) -> &BackendInfo {
        self.promise.info()
    }

    pub(crate) fn wires(&self) -> MutexGuard<'_, Vec<Arc<Wire>>> {
        self.wires.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One statement. Its last parameter, and the last column of its rows, is the request id: see `wire`.
    pub(crate) async fn run(self: &Arc<Link>, sql: &str, parameters: &[Parameter<'_>]) -> Result<Vec<Row>> {
        self.ask(&Question::new(sql, parameters)).await
    }

    /// # Cancel safety
    /// Dropped part-way, the statement may be executed. A connection that a pool may share is not used again then.
    pub(crate) async fn ask(self: &Arc<Link>, question: &Question<'_>) -> Result<Vec<Row>> {
        let turn = self.turn().await?;
        let answer = turn.wire().ask(question, self.config.timeout).await;
        turn.end(answer)
    }

    /// A connection for one request.
    async fn turn(self: &Arc<Link>) -> Result<Turn> {
        let until = self.environment.now().after(self.config.timeout);
        for _ in 0..self.config.connections + LOOKS_MAX {
            if self.is_shared() {
                match self.own_turn().await? {
                    Some(turn) => return Ok(turn),
                    None if self.environment.now() < until => continue,
                    None => break,
                }
            }
            let wire = self.wire(Link::pick).await?;
            if wire.is_direct() {
                return Ok(Turn::among_others(Arc::clone(self), wire));
            }
            wire.give_back();
        }
        Err(error::no_turn(self.config.connections, self.config.timeout))
    }

    /// A connection that no other request uses until this one is answered. None if there is none for this turn, and
    /// another turn must do.
    async fn own_turn(self: &Arc<Link>) -> Result<Option<Turn>> {
        let permit = Arc::clone(&self.turns).acquire_owned();
        let Either::Left(Ok(permit)) = first(permit, self.environment.sleep(self.config.timeout)).await
        else {
            return Err(error::no_turn(self.config.connections, self.config.timeout));
        };
        match self.wire(Link::take).await {
            Ok(wire) if wire.is_direct() => Ok(Some(Turn::among_others(Arc::clone(self), wire))),
            Ok(wire) => Ok(Some(Turn::alone(Arc::clone(self), wire, permit))),
            // The pool takes no more of us: those connections that there are will do.
            Err(error) if !self.wires().is_empty() => {
                tracing::debug!(%error, "no further connection");
                let pause = self.environment.sleep(TURN_PAUSE);
                self.environment.spawn(Box::pin(async move {
                    pause.await;
                    drop(permit);
                }));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// A connection. If there is none it is made, by one for all.
    async fn wire(self: &Arc<Link>, pick: fn(&Arc<Link>) -> Option<Arc<Wire>>) -> Result<Arc<Wire>> {
        if let Some(wire) = pick(self) {
            return Ok(wire);
        }
        let before = self.attempts.load(Ordering::Relaxed);
        let _one_at_a_time = self.connecting.lock().await;
        if let Some(wire) = pick(self) {
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

    /// Makes a connection. One that a pool may share is taken by the caller before anyone else can.
    async fn connect(&self) -> Result<Arc<Wire>> {
        let wire = Arc::new(self.open().await?);
        if !wire.is_direct() {
            wire.take();
        }
        self.wires().push(Arc::clone(&wire));
        Ok(wire)
    }

    /// A connection to a server that was looked at: it need not be the one of before.
    async fn open(&self) -> Result<Wire> {
        let wire = Wire::open(&self.config, &self.environment, &self.ids, None).await?;
        let prepared = async {
            let standing = self.examine(&wire).await?;
            standing.check()?;
            if !standing.reads_committed() {
                let set =
                    "SELECT set_config('default_transaction_isolation', 'read committed', false), $1::bigint";
                let set = wire.ask(&Question::new(set, &[]), self.config.timeout).await;
                set.map_err(|failure| failure.error)?;
            }
            if !self.was_mixed.load(Ordering::Relaxed) {
                wire.compare_process(standing.process()).await;
            }
            Ok(())
        };
        // Nothing that matters was asked of it yet.
        prepared.await.map_err(|error: Error| error.with_effect(Effect::None))?;
        let is_shared = !wire.is_direct();
        if self.is_shared.swap(is_shared, Ordering::Relaxed) != is_shared && is_shared {
            tracing::info!(
                "the database is reached through a pool: each connection has one request at a time"
            );
        }
        Ok(wire)
    }

    /// How the server stands, which is from then on what is promised.
    async fn examine(&self, wire: &Wire) -> Result<Standing> {
        self.look_at.store(self.environment.now().after(LOOK_EVERY).as_nanos(), Ordering::Relaxed);
        let answer = wire.ask(&Question::new(EXAMINE, &[]), self.config.timeout).await;
        self.follow(&answer.map_err(|failure| failure.error)?)
    }

    fn follow(&self, rows: &[Row]) -> Result<Standing> {
        let standing = Standing::of(rows)?;
        self.promise.follow(&standing);
        Ok(standing)
    }

    /// Looks again, beside whoever is at work, if the last time was a while ago.
    fn look_again(self: &Arc<Link>, now: Timestamp) {
        let due = self.look_at.load(Ordering::Relaxed);
        let next = now.after(LOOK_EVERY).as_nanos();
        if now < Timestamp::from_nanos(due)
            || self.look_at.compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed).is_err()
        {
            return;
        }
        let link = Arc::clone(self);
        self.environment.spawn(Box::pin(async move {
            let rows = link.run(EXAMINE, &[]).await;
            if let Err(error) = rows.and_then(|rows| link.follow(&rows)) {
                tracing::debug!(%error, "the server was not looked at again");
            }
        }));
    }

    /// Of those connections that lead to the server itself, the one with the least to do.
    fn pick(self: &Arc<Link>) -> Option<Arc<Wire>> {
        let now = self.environment.now();
        let (wire, count) = {
            let mut wires = self.wires();
            self.clear(&mut wires, now);
            let direct = wires.iter().filter(|wire| wire.is_direct());
            (direct.min_by_key(|wire| wire.in_flight()).cloned()?, wires.len())
        };
        if wire.in_flight() >= BUSY && count < self.config.connections {
            self.grow(now);
        }
        self.look_again(now);
        Some(wire)
    }

    /// A connection that no request has, for one that wants it to itself; or one to the server itself.
    fn take(self: &Arc<Link>) -> Option<Arc<Wire>> {
        let now = self.environment.now();
        let wire = {
            let mut wires = self.wires();
            self.clear(&mut wires, now);
            wires.iter().find(|wire| wire.is_direct() || wire.take()).cloned()?
        };
        self.look_again(now);
        Some(wire)
    }

    /// Drops connections that are dead, silent, or idle for long.
    fn clear(&self, wires: &mut Vec<Arc<Wire>>, now: Timestamp) {
        wires.retain(|wire| {
            if wire.is_silent(now, self.silence_max()) {
                self.environment.spawn(Box::pin(wire.remains().give_up(self.config.clone())));
                return false;
            }
            !wire.is_closed()
        });
        if wires.len() > 1
            && let Some(idle) = wires.iter().position(|wire| wire.is_idle(now, IDLE))
        {
            wires.swap_remove(idle);
        }
    }

    pub(crate) fn silence_max(&self) -> Duration {
        self.config.timeout * SILENT_TIMES
    }

    /// Whether connections are such that a pool may share them.
    pub(crate) fn is_shared(&self) -> bool {
        self.is_shared.load(Ordering::Relaxed)
    }

    /// An answer belonged to another request: neither this connection nor any that was believed to be direct can be
    /// trusted.
    pub(crate) fn mixed(&self, wire: &Arc<Wire>) {
        tracing::warn!("an answer belonged to another request: a pool or proxy on the way mixes up answers");
        self.was_mixed.store(true, Ordering::Relaxed);
        self.is_shared.store(true, Ordering::Relaxed);
        self.wires().retain(|other| !Arc::ptr_eq(other, wire) && !other.is_direct());
        wire.close();
    }

    /// One connection more, beside whoever is at work.
    fn grow(self: &Arc<Link>, now: Timestamp) {
        if now < Timestamp::from_nanos(self.grow_at.load(Ordering::Relaxed))
            || self.growing.swap(true, Ordering::Relaxed)
        {
            return;
        }
        let link = Arc::downgrade(self);
        self.environment.spawn(Box::pin(async move {
            let Some(link) = link.upgrade() else { return };
            match link.connect().await {
                Ok(wire) => wire.give_back(),
                Err(error) => {
                    tracing::debug!(%error, "no further connection");
                    link.grow_at.store(link.environment.now().after(PAUSE).as_nanos(), Ordering::Relaxed);
                }
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
            .field("is_shared", &self.is_shared())
            .finish_non_exhaustive()
    }
}
