//! The connections to the server: opened as they are needed, replaced when they break, closed when they are idle.
//!
//! Nothing is ever sent twice. A verb whose reply did not come fails with an unknown effect; the engine knows what it wants
//! and asks again with the same owner token.
//!
//! How many statements a connection may have under way depends on what it leads to (ADR 0034):
//!
//! 1. Direct, so to the server itself: any number. The connection with the fewest statements under way is used.
//! 2. Pooled, or not known: one. The request has the connection to itself, see `exclusive_use.rs`.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use leasehold_core::{BackendInfo, Effect, Environment, Error, RequestIds, Result, Timestamp};
use leasehold_support::{
    ConnectOnce,
    race::{Either, first},
};
use tokio::sync::Semaphore;
use tokio_postgres::Row;

use crate::{
    config::Config,
    connection::{Connection, Parameter, Statement},
    error,
    exclusive_use::ConnectionUse,
    schema::{self, Functions},
    server_state::{GuaranteeTracker, SERVER_STATE, ServerState},
};

/// Another direct connection is opened when every one has this many statements under way. Statements on one connection are
/// executed one after the other, and each waits for its own commit. Those on several connections share a write to the disk.
const BUSY_IN_FLIGHT: u32 = 1;
/// A connection that was not used for this long is closed, if there is another one.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// How long not to open additional connections after one could not be opened.
const GROW_PAUSE: Duration = Duration::from_secs(10);
/// How often the state of a server in use is read again.
const CHECK_SERVER_EVERY: Duration = Duration::from_secs(10);
/// How many times a request looks for a connection, in addition to once for each permit. While it waits, what the hosts
/// lead to may change from a pool to the server itself, or back.
const EXTRA_ATTEMPTS: usize = 8;
/// How long a permit stays unused for which no connection could be opened.
const PERMIT_PAUSE: Duration = Duration::from_secs(1);
/// Sets the isolation level that the functions need. See [`ServerState::reads_committed`].
const READ_COMMITTED: &str =
    "SELECT set_config('default_transaction_isolation', 'read committed', false), $1::bigint";

/// The connections of one backend.
pub(crate) struct Connections {
    pub(crate) config: Config,
    pub(crate) environment: Arc<dyn Environment>,
    pub(crate) ids: Arc<RequestIds>,
    open: Mutex<Vec<Arc<Connection>>>,
    connecting: ConnectOnce<Error>,
    /// Whether an additional connection is being opened.
    is_growing: AtomicBool,
    /// No additional connection is opened before this time, in nanoseconds.
    grow_at: AtomicU64,
    /// Whether the connection that was opened last is pooled.
    is_pooled: AtomicBool,
    /// Whether a reply ever belonged to another request. From then on no connection counts as direct.
    had_misdelivery: AtomicBool,
    /// One permit for each request that may have a pooled connection to itself.
    exclusive_permits: Arc<Semaphore>,
    /// The number of connections that get no further requests and wait for their last reply.
    pub(crate) draining: Arc<AtomicUsize>,
    guarantee: GuaranteeTracker,
    /// When, in nanoseconds, the state of the server is read again.
    check_server_at: AtomicU64,
}

impl Connections {
    pub(crate) fn new(config: Config, environment: Arc<dyn Environment>) -> Connections {
        Connections {
            guarantee: GuaranteeTracker::new(config.queue_max),
            ids: Arc::new(RequestIds::starting_at(environment.random())),
            exclusive_permits: Arc::new(Semaphore::new(config.connections)),
            config,
            environment,
            open: Mutex::default(),
            connecting: ConnectOnce::default(),
            is_growing: AtomicBool::new(false),
            grow_at: AtomicU64::new(0),
            is_pooled: AtomicBool::new(false),
            had_misdelivery: AtomicBool::new(false),
            draining: Arc::default(),
            check_server_at: AtomicU64::new(0),
        }
    }

    /// Opens the first connection and creates the tables if they do not exist. Returns which functions are in the database.
    pub(crate) async fn start(&self) -> Result<Functions> {
        // Not through `connect`: no request may find this connection before the tables exist.
        let connection = self.open_connection().await?;
        let functions = schema::ensure(&connection, &self.config).await?;
        self.guarantee.set_functions(functions);
        self.lock().push(Arc::new(connection));
        Ok(functions)
    }

    /// What the backend promises on the server as it was last seen.
    pub(crate) fn info(&self) -> &BackendInfo {
        self.guarantee.info()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Connection>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Executes one statement. The request id is added as its last parameter: see `connection.rs`.
    pub(crate) async fn query(self: &Arc<Self>, sql: &str, parameters: &[Parameter<'_>]) -> Result<Vec<Row>> {
        self.execute(&Statement::new(sql, parameters)).await
    }

    /// Executes one statement.
    ///
    /// # Cancel safety
    /// The statement may be executed. A pooled connection is not used again then.
    pub(crate) async fn execute(self: &Arc<Self>, statement: &Statement<'_>) -> Result<Vec<Row>> {
        let connection_use = self.connection_for_request().await?;
        let result = connection_use.connection().query(statement, self.config.timeout).await;
        connection_use.finish(result)
    }

    /// A connection for one request.
    async fn connection_for_request(self: &Arc<Self>) -> Result<ConnectionUse> {
        let deadline = self.environment.now().after(self.config.timeout);
        // Each round can find that the hosts lead to something else than the round before assumed. The number of rounds is
        // limited, so that a host that keeps changing costs an error and not an endless loop.
        for _ in 0..self.config.connections + EXTRA_ATTEMPTS {
            if self.is_pooled() {
                match self.reserve_connection().await? {
                    Some(reserved) => return Ok(reserved),
                    None if self.environment.now() < deadline => continue,
                    None => break,
                }
            }
            let connection = self.find_or_connect(Connections::find_direct).await?;
            if connection.is_direct() {
                return Ok(ConnectionUse::shared(Arc::clone(self), connection));
            }
            // The new connection turned out to be pooled: the next round reserves it with a permit.
            connection.unreserve();
        }
        Err(error::pool_busy(&self.config.host_list(), self.config.connections, self.config.timeout))
    }

    /// A connection that no other request uses until this one is answered. `None` if this permit has no connection, and the
    /// caller must try again with another permit.
    async fn reserve_connection(self: &Arc<Self>) -> Result<Option<ConnectionUse>> {
        let permit = Arc::clone(&self.exclusive_permits).acquire_owned();
        let Either::Left(Ok(permit)) = first(permit, self.environment.sleep(self.config.timeout)).await
        else {
            return Err(error::pool_busy(
                &self.config.host_list(),
                self.config.connections,
                self.config.timeout,
            ));
        };
        match self.find_or_connect(Connections::find_unreserved).await {
            Ok(connection) if connection.is_direct() => {
                Ok(Some(ConnectionUse::shared(Arc::clone(self), connection)))
            }
            Ok(connection) => Ok(Some(ConnectionUse::exclusive(Arc::clone(self), connection, permit))),
            // The pool accepts no more connections of this client: use those that are open.
            Err(error) if !self.lock().is_empty() => {
                tracing::debug!(%error, "cannot open an additional connection");
                // Keep the permit for a while: otherwise the next request would try to connect at once, and so on.
                let pause = self.environment.sleep(PERMIT_PAUSE);
                self.environment.spawn(Box::pin(async move {
                    pause.await;
                    drop(permit);
                }));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// What `find` finds, or else a new connection. One caller connects; the others wait for the result.
    async fn find_or_connect(
        self: &Arc<Self>,
        find: fn(&Arc<Self>) -> Option<Arc<Connection>>,
    ) -> Result<Arc<Connection>> {
        self.connecting.get(|| find(self), || self.connect()).await
    }

    /// Opens a connection. A pooled one is reserved for the caller before any other request can find it.
    async fn connect(&self) -> Result<Arc<Connection>> {
        let connection = Arc::new(self.open_connection().await?);
        if !connection.is_direct() {
            connection.try_reserve();
        }
        self.lock().push(Arc::clone(&connection));
        Ok(connection)
    }

    /// Opens a connection and reads the state of its server, which need not be the server of the last connection.
    async fn open_connection(&self) -> Result<Connection> {
        let connection = Connection::open(&self.config, &self.environment, &self.ids, None).await?;
        // Nothing that was sent so far changes a lease.
        self.prepare(&connection).await.map_err(|error| error.with_effect(Effect::None))?;
        let is_pooled = !connection.is_direct();
        if self.is_pooled.swap(is_pooled, Ordering::Relaxed) != is_pooled && is_pooled {
            tracing::info!(
                "the database is reached through a pool: each connection has one request at a time"
            );
        }
        Ok(connection)
    }

    /// Checks the server, sets the isolation level, and finds out whether the connection is direct.
    async fn prepare(&self, connection: &Connection) -> Result<()> {
        let state = self.read_server_state(connection).await?;
        state.check(&self.config.host_list())?;
        if !state.reads_committed() {
            let set = connection.query(&Statement::new(READ_COMMITTED, &[]), self.config.timeout).await;
            set.map_err(|failed| failed.error)?;
        }
        // After a misdelivered reply the process ids prove nothing (ADR 0034): the connection stays pooled.
        if !self.had_misdelivery.load(Ordering::Relaxed) {
            connection.compare_process(state.process()).await;
        }
        Ok(())
    }

    /// Reads the state of the server. From then on the backend promises what that state allows.
    async fn read_server_state(&self, connection: &Connection) -> Result<ServerState> {
        self.check_server_at
            .store(self.environment.now().after(CHECK_SERVER_EVERY).as_nanos(), Ordering::Relaxed);
        let reply = connection.query(&Statement::new(SERVER_STATE, &[]), self.config.timeout).await;
        self.update_guarantee(&reply.map_err(|failed| failed.error)?)
    }

    fn update_guarantee(&self, rows: &[Row]) -> Result<ServerState> {
        let state = ServerState::from_rows(rows)?;
        self.guarantee.update(&state);
        Ok(state)
    }

    /// Reads the state of the server again, in a task of its own, if the last time was long enough ago.
    fn check_server_if_due(self: &Arc<Self>, now: Timestamp) {
        // The exchange succeeds for one caller only: the others find the next time already stored.
        let due = self.check_server_at.load(Ordering::Relaxed);
        let next = now.after(CHECK_SERVER_EVERY).as_nanos();
        if now < Timestamp::from_nanos(due)
            || self.check_server_at.compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed).is_err()
        {
            return;
        }
        let connections = Arc::clone(self);
        self.environment.spawn(Box::pin(async move {
            let rows = connections.query(SERVER_STATE, &[]).await;
            if let Err(error) = rows.and_then(|rows| connections.update_guarantee(&rows)) {
                tracing::debug!(%error, "cannot read the state of the server again");
            }
        }));
    }

    /// The direct connection with the fewest statements under way.
    fn find_direct(self: &Arc<Self>) -> Option<Arc<Connection>> {
        let now = self.environment.now();
        let (connection, count) = {
            let mut open = self.lock();
            self.remove_unused(&mut open, now);
            let direct = open.iter().filter(|connection| connection.is_direct());
            (direct.min_by_key(|connection| connection.in_flight()).cloned()?, open.len())
        };
        // The request does not wait for the additional connection: opening one takes longer than a statement.
        if connection.in_flight() >= BUSY_IN_FLIGHT && count < self.config.connections {
            self.grow(now);
        }
        self.check_server_if_due(now);
        Some(connection)
    }

    /// A pooled connection that no request has reserved, reserved for the caller; or a direct connection.
    fn find_unreserved(self: &Arc<Self>) -> Option<Arc<Connection>> {
        let now = self.environment.now();
        let connection = {
            let mut open = self.lock();
            self.remove_unused(&mut open, now);
            open.iter().find(|connection| connection.is_direct() || connection.try_reserve()).cloned()?
        };
        self.check_server_if_due(now);
        Some(connection)
    }

    /// Removes connections that are closed, silent for too long, or idle for too long.
    fn remove_unused(&self, open: &mut Vec<Arc<Connection>>, now: Timestamp) {
        open.retain(|connection| {
            if connection.is_silent(now, self.config.silence_max()) {
                self.environment.spawn(Box::pin(connection.closing().close_and_cancel(self.config.clone())));
                return false;
            }
            !connection.is_closed()
        });
        // One at a time: after a burst of requests, the connections close over several calls and not all at once.
        if open.len() > 1
            && let Some(idle) = open.iter().position(|connection| connection.is_idle(now, IDLE_MAX))
        {
            open.swap_remove(idle);
        }
    }

    /// Whether the connections lead to a pool, so that each has one request at a time.
    pub(crate) fn is_pooled(&self) -> bool {
        self.is_pooled.load(Ordering::Relaxed)
    }

    /// Takes a connection out of use. It closes when its last reply has come.
    pub(crate) fn remove(&self, connection: &Arc<Connection>) {
        self.lock().retain(|other| !Arc::ptr_eq(other, connection));
    }

    /// A reply on this connection belonged to another request. Closes it and stops using all direct connections: something
    /// on the way mixes up replies, although the process ids showed nothing in between. ADR 0034.
    pub(crate) fn misdelivered(&self, connection: &Arc<Connection>) {
        tracing::warn!(
            hosts = self.config.host_list(),
            "a reply belonged to another request: a pool or proxy in front of the database mixes up replies"
        );
        self.had_misdelivery.store(true, Ordering::Relaxed);
        self.is_pooled.store(true, Ordering::Relaxed);
        self.lock().retain(|other| !Arc::ptr_eq(other, connection) && !other.is_direct());
        connection.close();
    }

    /// Opens one more connection, in a task of its own.
    fn grow(self: &Arc<Self>, now: Timestamp) {
        if now < Timestamp::from_nanos(self.grow_at.load(Ordering::Relaxed))
            || self.is_growing.swap(true, Ordering::Relaxed)
        {
            return;
        }
        // A weak reference: a backend that is dropped before the task runs needs no further connection.
        let connections = Arc::downgrade(self);
        self.environment.spawn(Box::pin(async move {
            let Some(connections) = connections.upgrade() else { return };
            match connections.connect().await {
                // `connect` reserves a pooled connection for its caller, and this task has no request for it.
                Ok(connection) => connection.unreserve(),
                Err(error) => {
                    tracing::debug!(%error, "cannot open an additional connection");
                    let grow_at = connections.environment.now().after(GROW_PAUSE);
                    connections.grow_at.store(grow_at.as_nanos(), Ordering::Relaxed);
                }
            }
            connections.is_growing.store(false, Ordering::Relaxed);
        }));
    }
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connections")
            .field("config", &self.config)
            .field("open", &self.lock().len())
            .field("is_pooled", &self.is_pooled())
            .finish_non_exhaustive()
    }
}
