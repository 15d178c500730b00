//! The connection to the primary that all calls of a client share.
//!
//! 1. [`Connections::get`] returns the shared connection, or makes it if there is none or the old one is
//!    dead.
//! 2. A connection is dead if the driver says so, if its server is no longer the primary, or if something was
//!    sent and nothing came back for longer than a reply may take.
//! 3. A call is sent once. If its reply does not come, the effect is unknown, and the engine asks again with
//!    the same owner token. The retries of the driver are not used: they repeat calls that may have been
//!    executed.
//!
//! What is sent over a connection is in `request.rs`.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use leasehold_core::{Clock, Environment, ErrorKind, RequestId, RequestIds, Timestamp};
use leasehold_support::ConnectOnce;
use redis::{Cmd, Pipeline, Value, aio::MultiplexedConnection};

use crate::{
    config::Config,
    connect::{self, Peer, ServerAddress},
    error::StoreError,
    request_id, server_info,
};

/// How much one epoch adds to a token, in microseconds: more than the clocks of two primaries differ.
const EPOCH_MICROS: u64 = 60_000_000;
/// How often the Sentinels are asked while there is no primary.
const FIND_PRIMARY_EVERY: Duration = Duration::from_millis(50);

/// The connections to one primary: the shared one, and those that other callers open for themselves.
pub(crate) struct Connections {
    pub(crate) config: Config,
    environment: Arc<dyn Environment>,
    pub(crate) request_ids: RequestIds,
    shared: Mutex<Option<Arc<Connection>>>,
    /// Where the last connection led.
    last_primary: Mutex<Option<ServerAddress>>,
    connect_once: ConnectOnce<StoreError>,
    /// The greatest number of replicas seen so far. `replicas=majority` means a majority of these.
    replicas_seen: AtomicU32,
    /// How many shared connections were made, for `Debug`.
    made: AtomicU64,
    /// How often all connections were discarded.
    generation: AtomicU64,
    /// The server is a node of a quorum.
    is_quorum_node: bool,
}

/// One connection to one server that was a primary when the connection was made.
pub(crate) struct Connection {
    driver: MultiplexedConnection,
    pub(crate) address: ServerAddress,
    environment: Arc<dyn Environment>,
    /// The time, in nanoseconds, of the first request since the last reply; 0 if every request has its reply.
    silent_since: AtomicU64,
    /// How many callers wait for a reply.
    pending_replies: AtomicU32,
    /// How long a reply may take.
    timeout: Duration,
    /// The newest epoch in which this server was known to be the primary.
    epoch: AtomicU64,
    /// The generation of [`Connections`] in which this connection was made.
    generation: u64,
    /// A reply belonged to another request, so no later reply of this connection is believed. ADR 0033.
    misdelivered: AtomicBool,
}

impl Connections {
    pub(crate) fn new(config: Config, environment: Arc<dyn Environment>) -> Connections {
        Connections {
            config,
            request_ids: request_id::new_request_ids(&*environment),
            environment,
            shared: Mutex::new(None),
            last_primary: Mutex::new(None),
            connect_once: ConnectOnce::default(),
            replicas_seen: AtomicU32::new(0),
            made: AtomicU64::new(0),
            generation: AtomicU64::new(0),
            is_quorum_node: false,
        }
    }

    /// The connections to a node of a quorum.
    pub(crate) fn to_quorum_node(config: Config, environment: Arc<dyn Environment>) -> Connections {
        Connections { is_quorum_node: true, ..Connections::new(config, environment) }
    }

    fn shared(&self) -> MutexGuard<'_, Option<Arc<Connection>>> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The shared connection. If there is none, one caller makes it and the others wait for the result.
    pub(crate) async fn get(&self) -> Result<Arc<Connection>, StoreError> {
        match self.live() {
            Some(connection) => Ok(connection),
            // Boxed, because the future of connecting is large and most calls find a connection.
            None => Box::pin(self.connect_once.get_fresh(|| self.live(), || self.make_shared())).await,
        }
    }

    async fn make_shared(&self) -> Result<Arc<Connection>, StoreError> {
        let connection = Arc::new(self.open_when_primary_is_found().await?);
        self.made.fetch_add(1, Ordering::Relaxed);
        *self.shared() = Some(Arc::clone(&connection));
        Ok(connection)
    }

    /// The shared connection, if there is one and it is not silent.
    ///
    /// A network that drops packets reports no error, and the driver would wait for ever. So a connection is
    /// discarded when a request was sent and nothing was received for longer than a reply may take.
    pub(crate) fn live(&self) -> Option<Arc<Connection>> {
        let mut shared = self.shared();
        if shared.as_ref()?.is_silent(self.config.timeout) {
            *shared = None;
        }
        shared.clone()
    }

    /// Connects. Behind Sentinel, while a failover leaves no primary, tries again for as long as a reply may
    /// take.
    async fn open_when_primary_is_found(&self) -> Result<Connection, StoreError> {
        let until = self.environment.now().after(self.config.timeout);
        loop {
            match self.open(Duration::ZERO).await {
                Err(error) if self.config.service.is_some() && self.environment.now() < until => {
                    if error.clone().into_error().kind() != ErrorKind::Unavailable {
                        return Err(error);
                    }
                    self.environment.sleep(FIND_PRIMARY_EVERY).await;
                }
                outcome => return outcome,
            }
        }
    }

    /// Opens a connection for one caller alone, as [`open`](Connections::open).
    ///
    /// Behind Sentinel, while there is no primary, it waits for one like [`get`](Connections::get), and one
    /// caller searches for all. Otherwise every call would fail at once, and the pauses of the engine between
    /// its attempts would add up to seconds.
    pub(crate) async fn open_exclusive(&self, extra_timeout: Duration) -> Result<Connection, StoreError> {
        let generation = self.generation.load(Ordering::Relaxed);
        match self.open(extra_timeout).await {
            Err(error) if self.config.service.is_some() && error.is_connect() => {
                self.discard_generation(generation);
                // Connect to the address that was found, and do not ask the Sentinels again: a Sentinel that
                // does not know of the failover still names the old primary.
                let found = self.get().await?;
                self.open_at(found.address.clone(), found.generation, extra_timeout).await
            }
            outcome => outcome,
        }
    }

    /// Opens another connection to the primary. Replies on it may take `extra_timeout` longer than on the
    /// shared one.
    pub(crate) async fn open(&self, extra_timeout: Duration) -> Result<Connection, StoreError> {
        // Read before the search: if all connections are discarded meanwhile, this one must count as
        // discarded too.
        let generation = self.generation.load(Ordering::Relaxed);
        let found = connect::find_primary(&self.config).await;
        let address = found.map_err(|error| self.judge_certificate(error))?;
        self.open_at(address, generation, extra_timeout).await
    }

    async fn open_at(
        &self,
        address: ServerAddress,
        generation: u64,
        extra_timeout: Duration,
    ) -> Result<Connection, StoreError> {
        let peer = Peer::server(&address.host, address.port);
        let opened = connect::open(&self.config, peer, None).await;
        let mut driver = opened.map_err(|error| self.judge_certificate(error))?;
        *self.last_primary.lock().unwrap_or_else(PoisonError::into_inner) = Some(address.clone());
        let examined = server_info::examine(&self.config, &mut driver, &address, &self.request_ids).await;
        let facts = examined.map_err(|error| peer.name(error, &self.config))?;
        // A replica that is down now still counts for the majority.
        self.replicas_seen.fetch_max(facts.replicas.max(address.replicas), Ordering::Relaxed);
        let epoch = AtomicU64::new(facts.epoch.max(address.epoch));
        let timeout = self.config.timeout + extra_timeout;
        // On an exclusive connection `WAIT` blocks before the server replies, so replies may take longer.
        driver.set_response_timeout(timeout);
        Ok(Connection {
            driver,
            address,
            environment: Arc::clone(&self.environment),
            silent_since: AtomicU64::new(0),
            pending_replies: AtomicU32::new(0),
            timeout,
            epoch,
            generation,
            misdelivered: AtomicBool::new(false),
        })
    }

    /// The error of a new connection. A certificate that is refused is a wrong configuration, unless another connection was
    /// made before, or this is a node of a quorum: such a node counts as silent, and the others may be a majority. ADR 0062.
    fn judge_certificate(&self, error: StoreError) -> StoreError {
        let is_known = self.last_primary.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        if is_known || self.is_quorum_node { error.of_known_server() } else { error }
    }

    /// A Sentinel says where the primary is. If that is another server with a later epoch, all connections
    /// are discarded: the old primary may be alive and not know that it was replaced.
    pub(crate) fn primary_is(&self, address: &ServerAddress) {
        let Some(ours) = self.last_primary() else { return };
        // A later epoch is required, because a Sentinel that was cut off may still name an older primary.
        if address.supersedes(&ours) {
            self.discard_all();
        } else if address.is_same_server(&ours) {
            self.raise_epoch(address.epoch);
        }
    }

    /// The server of the shared connection is the primary in this epoch too.
    pub(crate) fn raise_epoch(&self, epoch: u64) {
        if let Some(connection) = &*self.shared() {
            connection.epoch.fetch_max(epoch, Ordering::Relaxed);
        }
    }

    /// Where the last connection led.
    pub(crate) fn last_primary(&self) -> Option<ServerAddress> {
        self.last_primary.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn clock(&self) -> &dyn Clock {
        &*self.environment
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.environment.now()
    }

    pub(crate) async fn sleep(&self, duration: Duration) {
        self.environment.sleep(duration).await;
    }

    /// The greatest number of replicas seen so far.
    pub(crate) fn replicas_seen(&self) -> u32 {
        self.replicas_seen.load(Ordering::Relaxed)
    }

    /// Discards the shared connection if it is this one. The next call makes a new one.
    pub(crate) fn discard(&self, dead: &Arc<Connection>) {
        let mut shared = self.shared();
        if shared.as_ref().is_some_and(|connection| Arc::ptr_eq(connection, dead)) {
            *shared = None;
        }
    }

    /// Discards the shared connection, and marks the exclusive ones as outdated.
    pub(crate) fn discard_all(&self) {
        self.generation.fetch_add(1, Ordering::Relaxed);
        *self.shared() = None;
    }

    /// As [`discard_all`](Connections::discard_all), unless another caller did that since this generation:
    /// the shared connection may be a good one by now.
    fn discard_generation(&self, generation: u64) {
        let next = generation + 1;
        let raised = self.generation.compare_exchange(generation, next, Ordering::Relaxed, Ordering::Relaxed);
        if raised.is_ok() {
            *self.shared() = None;
        }
    }

    /// Whether a connection was made after the last time that all were discarded.
    pub(crate) fn is_current(&self, connection: &Connection) -> bool {
        connection.generation == self.generation.load(Ordering::Relaxed)
    }

    pub(crate) fn discard_if_broken(&self, connection: &Arc<Connection>, error: &StoreError) {
        if error.breaks_connection() {
            self.discard(connection);
        }
    }
}

impl Connection {
    /// The driver's handle of this connection.
    pub(crate) fn driver(&self) -> MultiplexedConnection {
        self.driver.clone()
    }

    /// How far tokens of this primary are ahead of its clock, in microseconds.
    ///
    /// Each epoch adds a minute, so that tokens grow over a failover even if the clock of the new primary is
    /// behind.
    pub(crate) fn token_lead_micros(&self) -> u64 {
        self.epoch.load(Ordering::Relaxed).saturating_mul(EPOCH_MICROS)
    }

    /// Calls a script whose last argument is this id.
    pub(crate) async fn run(&self, call: &Cmd, id: RequestId) -> Result<Value, StoreError> {
        let mut driver = self.driver.clone();
        let pending = self.expect_reply();
        let reply = driver.send_packed_command(call).await;
        pending.ended(reply.as_ref().err());
        let reply = reply.map_err(|error| StoreError::of_command(error, &self.address))?;
        self.check_reply(id, reply)
    }

    /// Sends commands in one pipeline and returns as many replies. Their ids are not checked yet.
    pub(crate) async fn send_all(&self, pipeline: &Pipeline, count: usize) -> Result<Vec<Value>, StoreError> {
        let mut driver = self.driver.clone();
        let pending = self.expect_reply();
        let replies = driver.send_packed_commands(pipeline, 0, count).await;
        pending.ended(replies.as_ref().err());
        let replies = replies.map_err(|error| StoreError::of_command(error, &self.address))?;
        if replies.len() != count {
            let found = replies.len();
            return Err(StoreError::unexpected_reply(format!("{count} commands got {found} replies")));
        }
        Ok(replies)
    }

    /// The reply of a script, if it carries the id of this request.
    pub(crate) fn check_reply(&self, id: RequestId, reply: Value) -> Result<Value, StoreError> {
        if self.misdelivered.load(Ordering::Relaxed) {
            return Err(request_id::misdelivered(id, &self.address));
        }
        self.note_misdelivery(request_id::check_reply(id, reply, &self.address))
    }

    /// Remembers it if a reply belonged to another request: from then on no reply of this connection is
    /// believed.
    pub(crate) fn note_misdelivery<T>(&self, outcome: Result<T, StoreError>) -> Result<T, StoreError> {
        if matches!(outcome, Err(StoreError::Misdelivered(_))) {
            self.misdelivered.store(true, Ordering::Relaxed);
        }
        outcome
    }

    fn expect_reply(&self) -> PendingReply<'_> {
        let sent_at = self.environment.now();
        self.pending_replies.fetch_add(1, Ordering::Relaxed);
        // 0 means "not silent", so a clock that starts at 0 counts from 1.
        let since = sent_at.as_nanos().max(1);
        let _ = self.silent_since.compare_exchange(0, since, Ordering::Relaxed, Ordering::Relaxed);
        PendingReply { connection: self, sent_at, has_ended: false }
    }

    fn is_silent(&self, timeout: Duration) -> bool {
        match self.silent_since.load(Ordering::Relaxed) {
            0 => false,
            since => Timestamp::from_nanos(since).after(timeout) <= self.environment.now(),
        }
    }
}

/// A caller that waits for a reply, until this is dropped.
struct PendingReply<'a> {
    connection: &'a Connection,
    sent_at: Timestamp,
    has_ended: bool,
}

impl PendingReply<'_> {
    /// The call ended with a reply or with this error. Anything but a timeout means that the connection
    /// is alive.
    fn ended(mut self, error: Option<&redis::RedisError>) {
        self.has_ended = true;
        if !error.is_some_and(redis::RedisError::is_timeout) {
            self.connection.silent_since.store(0, Ordering::Relaxed);
        }
    }
}

impl Drop for PendingReply<'_> {
    /// If the call was cancelled, a missing reply does not prove that the connection is dead: the driver
    /// drops the reply when it comes. But a call that had waited for long counts.
    fn drop(&mut self) {
        let connection = self.connection;
        let was_last = connection.pending_replies.fetch_sub(1, Ordering::Relaxed) == 1;
        let cancelled_early = || self.sent_at.until(connection.environment.now()) < connection.timeout / 4;
        if was_last && !self.has_ended && cancelled_early() {
            connection.silent_since.store(0, Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let connected = self.shared().as_ref().map(|connection| connection.address.clone());
        f.debug_struct("Connections")
            .field("config", &self.config)
            .field("connected", &connected)
            .field("made", &self.made.load(Ordering::Relaxed))
            .finish_non_exhaustive()
    }
}
