//! The connection that verbs travel on: made anew when it is dead, never resent on by itself.
//!
//! The driver's own retries stay out of it. A verb whose answer did not come is `Unknown`, and the engine, which knows
//! what it wants, asks again with the same owner token.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use leasehold_core::{Environment, ErrorKind, RequestId, RequestIds, Timestamp};
use redis::{Cmd, Pipeline, Value, aio::MultiplexedConnection};

use crate::{
    config::Config,
    error::Fault,
    proof,
    site::{self, Address, Role},
};

/// What one epoch is worth in a token, in microseconds: more than the clocks of two primaries differ.
const EPOCH_MICROS: u64 = 60_000_000;
/// How often Sentinels are asked while there is no primary.
const RESOLVE_EVERY: Duration = Duration::from_millis(50);

/// The way to the primary.
pub(crate) struct Link {
    pub(crate) config: Config,
    environment: Arc<dyn Environment>,
    pub(crate) ids: RequestIds,
    wire: Mutex<Option<Arc<Wire>>>,
    /// Where the last connection led.
    primary: Mutex<Option<Address>>,
    /// Held while someone connects: how that went last, if it failed, and which attempt it was.
    connecting: tokio::sync::Mutex<Option<(u64, Fault)>>,
    /// How often someone began to connect.
    attempts: AtomicU64,
    /// The greatest number of replicas seen: a majority is of those.
    replicas_seen: AtomicU32,
    connections: AtomicU64,
    /// Counts how often all connections were given up.
    generation: AtomicU64,
}

/// One connection to one server that was a primary when it was made.
pub(crate) struct Wire {
    connection: MultiplexedConnection,
    pub(crate) address: Address,
    environment: Arc<dyn Environment>,
    /// Since when, in nanoseconds, something has been asked and nothing was heard; 0 if that is not so.
    silent_since: AtomicU64,
    /// How many wait for an answer.
    waiting: AtomicU32,
    /// How long an answer may take.
    timeout: Duration,
    /// The newest epoch in which this server was known to be the primary.
    epoch: AtomicU64,
    generation: u64,
    /// An answer belonged to another request, so none of the next ones is believed.
    mixed_up: AtomicBool,
}

impl Link {
    pub(crate) fn new(config: Config, environment: Arc<dyn Environment>) -> Link {
        Link {
            config,
            ids: proof::ids(&*environment),
            environment,
            wire: Mutex::new(None),
            primary: Mutex::new(None),
            connecting: tokio::sync::Mutex::new(None),
            attempts: AtomicU64::new(0),
            replicas_seen: AtomicU32::new(0),
            connections: AtomicU64::new(0),
            generation: AtomicU64::new(0),
        }
    }

    fn slot(&self) -> MutexGuard<'_, Option<Arc<Wire>>> {
        self.wire.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection; made if there is none. One at a time: who comes meanwhile waits for it, or for the next attempt,
    /// and shares its failure. However many wait, none waits for more than two.
    pub(crate) async fn wire(&self) -> Result<Arc<Wire>, Fault> {
        match self.live_wire() {
            Some(wire) => Ok(wire),
            // Boxed: the usual call need not carry it along.
            None => Box::pin(self.make_wire()).await,
        }
    }

    async fn make_wire(&self) -> Result<Arc<Wire>, Fault> {
        let begun = self.attempts.load(Ordering::Relaxed);
        let mut failed = self.connecting.lock().await;
        if let Some(wire) = self.live_wire() {
            return Ok(wire);
        }
        match &*failed {
            Some((attempt, fault)) if *attempt > begun => return Err(fault.clone()),
            _ => {}
        }
        let attempt = self.attempts.fetch_add(1, Ordering::Relaxed) + 1;
        let connected = self.connect_patiently().await;
        *failed = connected.as_ref().err().map(|fault| (attempt, fault.clone()));
        let wire = Arc::new(connected?);
        self.connections.fetch_add(1, Ordering::Relaxed);
        *self.slot() = Some(Arc::clone(&wire));
        Ok(wire)
    }

    /// A black hole says nothing, and the driver would wait for ever: a connection that was asked something and has
    /// been silent for longer than an answer may take is dead.
    pub(crate) fn live_wire(&self) -> Option<Arc<Wire>> {
        let mut slot = self.slot();
        if slot.as_ref()?.is_silent(self.config.timeout) {
            *slot = None;
        }
        slot.clone()
    }

    /// While Sentinels choose another primary there is none: whoever asks waits for it as long as for an answer, and
    /// is served the moment that there is one.
    async fn connect_patiently(&self) -> Result<Wire, Fault> {
        let until = self.environment.now().after(self.config.timeout);
        loop {
            match self.connect(Duration::ZERO).await {
                Err(fault) if self.config.service.is_some() && self.environment.now() < until => {
                    if fault.clone().into_error().kind() != ErrorKind::Unavailable {
                        return Err(fault);
                    }
                    self.environment.sleep(RESOLVE_EVERY).await;
                }
                outcome => return outcome,
            }
        }
    }

    /// The same as [`connect`](Link::connect). Behind Sentinel, while there is no primary, it waits for one like
    /// [`wire`](Link::wire): one call searches for all of them. Without that, each call would fail at once, and the
    /// engine's pauses between attempts would add up to seconds.
    pub(crate) async fn connect_patiently_alone(&self, longer: Duration) -> Result<Wire, Fault> {
        let generation = self.generation.load(Ordering::Relaxed);
        match self.connect(longer).await {
            Err(fault) if self.config.service.is_some() && fault.is_connect() => {
                self.drop_wires_of(generation);
                // There and nowhere else: Sentinels that have not heard of it yet still name the old primary.
                let found = self.wire().await?;
                self.connect_to(found.address.clone(), found.generation, longer).await
            }
            connected => connected,
        }
    }

    /// A connection of its own to the primary, for whoever must have one to itself. Answers on it may take this much
    /// longer than others.
    pub(crate) async fn connect(&self, longer: Duration) -> Result<Wire, Fault> {
        // From before the search: if all connections are given up meanwhile, this one is to be as well.
        let generation = self.generation.load(Ordering::Relaxed);
        let address = site::find_primary(&self.config).await?;
        self.connect_to(address, generation, longer).await
    }

    async fn connect_to(&self, address: Address, generation: u64, longer: Duration) -> Result<Wire, Fault> {
        let opened = site::open(&self.config, &address.host, address.port, Role::Server, None).await;
        let mut connection = opened.map_err(|fault| self.of_primary(fault, &address))?;
        *self.primary.lock().unwrap_or_else(PoisonError::into_inner) = Some(address.clone());
        let examined = site::examine(&self.config, &mut connection, &address, &self.ids).await?;
        self.replicas_seen.fetch_max(examined.replicas.max(address.replicas), Ordering::Relaxed);
        let epoch = AtomicU64::new(examined.epoch.max(address.epoch));
        let timeout = self.config.timeout + longer;
        connection.set_response_timeout(timeout);
        let environment = Arc::clone(&self.environment);
        let (silent_since, waiting) = (AtomicU64::new(0), AtomicU32::new(0));
        Ok(Wire {
            connection,
            address,
            environment,
            silent_since,
            waiting,
            timeout,
            epoch,
            generation,
            mixed_up: AtomicBool::new(false),
        })
    }

    /// Behind Sentinel the URL does not say which server failed.
    fn of_primary(&self, fault: Fault, address: &Address) -> Fault {
        match self.config.service {
            None => fault,
            Some(_) => fault.of_peer(&format!("the primary at {}:{}", address.host, address.port)),
        }
    }

    /// A Sentinel says where the primary is. If that is another server than ours, and in a later epoch, ours is left:
    /// it may be alive, and not know.
    pub(crate) fn primary_is(&self, address: &Address) {
        let Some(ours) = self.primary.lock().unwrap_or_else(PoisonError::into_inner).clone() else { return };
        if address.supersedes(&ours) {
            self.drop_any_wire();
        } else if address.is_same_server(&ours) {
            self.raise_epoch(address.epoch);
        }
    }

    /// This server is the primary in this epoch too.
    pub(crate) fn raise_epoch(&self, epoch: u64) {
        if let Some(wire) = &*self.slot() {
            wire.epoch.fetch_max(epoch, Ordering::Relaxed);
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.environment.now()
    }

    pub(crate) async fn sleep(&self, duration: Duration) {
        self.environment.sleep(duration).await;
    }

    /// Replicas, the greatest number ever seen.
    pub(crate) fn replicas_seen(&self) -> u32 {
        self.replicas_seen.load(Ordering::Relaxed)
    }

    /// Gives up the connection, so that the next call makes a new one.
    pub(crate) fn drop_wire(&self, dead: &Arc<Wire>) {
        let mut slot = self.slot();
        if slot.as_ref().is_some_and(|wire| Arc::ptr_eq(wire, dead)) {
            *slot = None;
        }
    }

    /// Gives up whatever connections there are.
    pub(crate) fn drop_any_wire(&self) {
        self.generation.fetch_add(1, Ordering::Relaxed);
        *self.slot() = None;
    }

    /// The same, unless someone else has done that since: the connection there is now may be a good one.
    fn drop_wires_of(&self, generation: u64) {
        let next = generation + 1;
        let raised = self.generation.compare_exchange(generation, next, Ordering::Relaxed, Ordering::Relaxed);
        if raised.is_ok() {
            *self.slot() = None;
        }
    }

    /// Whether a connection was made since all were given up.
    pub(crate) fn is_current(&self, wire: &Wire) -> bool {
        wire.generation == self.generation.load(Ordering::Relaxed)
    }

    pub(crate) fn noticed(&self, wire: &Arc<Wire>, fault: &Fault) {
        if fault.breaks_connection() {
            self.drop_wire(wire);
        }
    }
}

impl Wire {
    /// The driver's own handle.
    pub(crate) fn connection(&self) -> MultiplexedConnection {
        self.connection.clone()
    }

    /// By how much tokens of this primary are ahead of its clock, in microseconds.
    pub(crate) fn lead(&self) -> u64 {
        self.epoch.load(Ordering::Relaxed).saturating_mul(EPOCH_MICROS)
    }

    /// Calls a script with an id as its last argument.
    pub(crate) async fn run(&self, call: &Cmd, id: RequestId) -> Result<Value, Fault> {
        let mut connection = self.connection.clone();
        let asking = self.asks();
        let answer = connection.send_packed_command(call).await;
        asking.heard(answer.as_ref().err());
        self.reply_to(id, answer.map_err(Fault::Command)?)
    }

    /// Sends commands in one go: as many answers, which nobody has looked at yet.
    pub(crate) async fn send_all(&self, pipeline: &Pipeline, count: usize) -> Result<Vec<Value>, Fault> {
        let mut connection = self.connection.clone();
        let asking = self.asks();
        let answers = connection.send_packed_commands(pipeline, 0, count).await;
        asking.heard(answers.as_ref().err());
        let answers = answers.map_err(Fault::Command)?;
        if answers.len() != count {
            return Err(Fault::Strange(format!("{count} commands have {} answers", answers.len())));
        }
        Ok(answers)
    }

    /// What a script replied, if the answer names this request.
    pub(crate) fn reply_to(&self, id: RequestId, answer: Value) -> Result<Value, Fault> {
        if self.mixed_up.load(Ordering::Relaxed) {
            return Err(proof::mixed_up(id, &self.address));
        }
        self.believed(proof::reply_to(id, answer, &self.address))
    }

    /// After one answer of another request, no other answer of this connection is believed.
    pub(crate) fn believed<T>(&self, outcome: Result<T, Fault>) -> Result<T, Fault> {
        if matches!(outcome, Err(Fault::MixedUp(_))) {
            self.mixed_up.store(true, Ordering::Relaxed);
        }
        outcome
    }

    fn asks(&self) -> Asking<'_> {
        let at = self.environment.now();
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let _ =
            self.silent_since.compare_exchange(0, at.as_nanos().max(1), Ordering::Relaxed, Ordering::Relaxed);
        Asking { wire: self, at, done: false }
    }

    fn is_silent(&self, timeout: Duration) -> bool {
        match self.silent_since.load(Ordering::Relaxed) {
            0 => false,
            since => Timestamp::from_nanos(since).after(timeout) <= self.environment.now(),
        }
    }
}

/// Someone who waits for an answer, until this is dropped.
struct Asking<'a> {
    wire: &'a Wire,
    at: Timestamp,
    done: bool,
}

impl Asking<'_> {
    /// How it ended.
    fn heard(mut self, error: Option<&redis::RedisError>) {
        self.done = true;
        if !error.is_some_and(redis::RedisError::is_timeout) {
            self.wire.silent_since.store(0, Ordering::Relaxed);
        }
    }
}

impl Drop for Asking<'_> {
    /// Nobody hears the answer to someone who left, so its silence says nothing; unless it had waited for long.
    fn drop(&mut self) {
        let last = self.wire.waiting.fetch_sub(1, Ordering::Relaxed) == 1;
        let left_soon = || self.at.until(self.wire.environment.now()) < self.wire.timeout / 4;
        if last && !self.done && left_soon() {
            self.wire.silent_since.store(0, Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let connected = self.slot().as_ref().map(|wire| wire.address.clone());
        f.debug_struct("Link")
            .field("config", &self.config)
            .field("connected", &connected)
            .field("connections", &self.connections.load(Ordering::Relaxed))
            .finish_non_exhaustive()
    }
}
