//! One connection to the server.
//!
//! A connection is *direct* if it leads to the server itself, and *pooled* if a pool may share it with other clients. On a
//! direct connection many statements can be under way at the same time. On a pooled one there is one at a time
//! (`connections.rs`, ADR 0034).
//!
//! The last parameter of every statement is a request id, and the statement returns it as the last column of every row.
//! Every statement returns at least one row. A reply without the right id is not believed (ADR 0033).

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use leasehold_core::{Effect, Environment, Error, RequestIds, Result, Timestamp};
use leasehold_support::{
    postgres::{check_request_id, process_at_startup},
    race::{Either, first},
};
use tokio::sync::{Notify, mpsc};
use tokio_postgres::{
    CancelToken, Client, NoTls, Notification, Row,
    error::DbError,
    types::{ToSql, Type},
};

use crate::{
    batch::{RequestName, check_names},
    config::Config,
    driver, error, tls,
};

/// A parameter of a statement with its type. The type is given, so that the driver need not ask the server for it first.
pub(crate) type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// A statement and its parameters.
pub(crate) struct Statement<'a> {
    pub(crate) sql: &'a str,
    /// All parameters but the last one, the request id, which [`Connection::query`] adds.
    pub(crate) parameters: &'a [Parameter<'a>],
    /// The DETAIL of an error that our own SQL functions raise for this statement. Errors carry no request id, so this text
    /// is what proves that an error belongs to this statement.
    pub(crate) error_detail: Option<&'a str>,
    /// If this is a batch: the requests in it, which the rows of the reply must name.
    pub(crate) names: &'a [RequestName<'a>],
}

impl<'a> Statement<'a> {
    pub(crate) fn new(sql: &'a str, parameters: &'a [Parameter<'a>]) -> Statement<'a> {
        Statement { sql, parameters, error_detail: None, names: &[] }
    }
}

/// A connection to the server. The driver closes it after this is dropped and every statement on it is answered.
pub(crate) struct Connection {
    client: Client,
    activity: Arc<Activity>,
    environment: Arc<dyn Environment>,
    ids: Arc<RequestIds>,
    /// The hosts that it may lead to, for error texts.
    hosts: String,
    /// Whether it leads to the server itself. False until [`Connection::compare_process`] finds that out.
    is_direct: AtomicBool,
    /// Whether one request has a pooled connection to itself.
    is_reserved: AtomicBool,
}

/// What is known about a connection without sending anything.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    /// The number of statements under way.
    in_flight: AtomicU32,
    /// How many times the wait for a synchronous standby was cancelled.
    pub(crate) unconfirmed_commits: AtomicU64,
    /// Since when, in nanoseconds, a statement has been under way without any reply; 0 if none is.
    silent_since: AtomicU64,
    /// When, in nanoseconds, the last statement was sent.
    used_at: AtomicU64,
    /// Notified to close the connection at once.
    pub(crate) close: Notify,
    /// Notified when the connection has ended.
    pub(crate) ended: Notify,
}

/// Why a statement failed, and whether its connection can still be used.
pub(crate) struct StoreError {
    pub(crate) error: Error,
    pub(crate) connection: ConnectionState,
}

/// Whether a connection can be used for further statements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionState {
    Usable,
    Unusable,
    /// A reply on it belonged to another request, so no later reply can be believed either.
    Misdelivered,
}

/// Counts a statement as under way until it is dropped, with a reply or because its caller was cancelled.
struct InFlight<'a>(&'a Activity);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Connection {
    /// Connects. Notifications are sent to `notifications`, if given. The connection counts as pooled at first.
    pub(crate) async fn open(
        config: &Config,
        environment: &Arc<dyn Environment>,
        ids: &Arc<RequestIds>,
        notifications: Option<mpsc::UnboundedSender<Notification>>,
    ) -> Result<Connection> {
        let activity = Arc::new(Activity::default());
        activity.used_at.store(environment.now().as_nanos(), Ordering::Relaxed);
        // The driver tries the hosts one after the other, with the timeout for each.
        let hosts = u32::try_from(config.hosts.len()).unwrap_or(1);
        let deadline = environment.sleep(config.connect_timeout * hosts);
        let connecting = driver::connect(config, environment, &activity, notifications);
        let Either::Left(client) = first(connecting, deadline).await else {
            return Err(error::connect_timeout(&config.host_list(), config.connect_timeout));
        };
        Ok(Connection {
            client: client?,
            activity,
            environment: Arc::clone(environment),
            ids: Arc::clone(ids),
            hosts: config.host_list(),
            is_direct: AtomicBool::new(false),
            is_reserved: AtomicBool::new(false),
        })
    }

    /// The hosts that it may lead to, for error texts.
    pub(crate) fn hosts(&self) -> &str {
        &self.hosts
    }

    /// The driver's own handle, for work that is done before any other caller can use the connection.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Compares the process that serves this connection with the process that executed a statement on it. If they are the
    /// same, the connection is direct. ADR 0034.
    pub(crate) async fn compare_process(&self, executed_by: i32) {
        let is_direct = process_at_startup(&self.client).await == Some(executed_by);
        self.is_direct.store(is_direct, Ordering::Relaxed);
    }

    pub(crate) fn is_direct(&self) -> bool {
        self.is_direct.load(Ordering::Relaxed)
    }

    /// Reserves the connection for one request; false if another request has it.
    pub(crate) fn try_reserve(&self) -> bool {
        !self.is_reserved.swap(true, Ordering::Acquire)
    }

    /// Ends the reservation: the request was answered.
    pub(crate) fn unreserve(&self) {
        self.is_reserved.store(false, Ordering::Release);
    }

    /// Executes one statement: one transaction, one round trip. The statement has no name, so a pool can execute it on any
    /// of its server connections (ADR 0021).
    pub(crate) async fn query(
        &self,
        statement: &Statement<'_>,
        timeout: Duration,
    ) -> Result<Vec<Row>, StoreError> {
        let unconfirmed_before = self.activity.unconfirmed_commits.load(Ordering::Relaxed);
        let _in_flight = self.note_sent();
        // PostgreSQL has no unsigned integers: the id travels as the signed number with the same bits.
        let request = self.ids.next();
        let number = request.get().cast_signed();
        let id: Parameter<'_> = (&number, Type::INT8);
        let parameters: Vec<Parameter<'_>> = statement.parameters.iter().cloned().chain([id]).collect();
        let reply = self.client.query_typed(statement.sql, &parameters);
        let Either::Left(reply) = first(reply, self.environment.sleep(timeout)).await else {
            // Pooled: nothing else may be sent before the reply has come. Direct: ADR 0022 says why it is kept.
            let connection =
                if self.is_direct() { ConnectionState::Usable } else { ConnectionState::Unusable };
            return Err(StoreError { error: error::no_reply(&self.hosts, timeout), connection });
        };
        self.note_reply();
        let rows = reply.map_err(|error| self.statement_failed(&error, statement))?;
        check_request_id(&rows, request)
            .and_then(
                |()| if statement.names.is_empty() { Ok(()) } else { check_names(&rows, statement.names) },
            )
            .map_err(|error| StoreError { error, connection: ConnectionState::Misdelivered })?;
        // The warning arrives before the end of the reply that it belongs to. It may belong to another statement that was
        // under way at the time: then this one is called unknown although it is confirmed. ADR 0022.
        if self.activity.unconfirmed_commits.load(Ordering::Relaxed) != unconfirmed_before {
            return Err(StoreError { error: error::unconfirmed(), connection: ConnectionState::Usable });
        }
        Ok(rows)
    }

    fn note_sent(&self) -> InFlight<'_> {
        // Not 0, which means that nothing is under way.
        let now = self.environment.now().as_nanos().max(1);
        self.activity.in_flight.fetch_add(1, Ordering::Relaxed);
        self.activity.used_at.store(now, Ordering::Relaxed);
        // Only the first statement under way sets it: the connection is silent since then.
        let _ = self.activity.silent_since.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
        InFlight(&self.activity)
    }

    fn note_reply(&self) {
        let others_wait = self.in_flight() > 1;
        // A reply proves that the connection works: for statements still under way, the silence begins anew.
        let since = if others_wait { self.environment.now().as_nanos().max(1) } else { 0 };
        self.activity.silent_since.store(since, Ordering::Relaxed);
    }

    /// Decides what an error proves. It carries no request id.
    ///
    /// - Direct connection: the error belongs to this statement, because the server answers in the order of the requests and
    ///   serves no other client on this connection.
    /// - Pooled connection: the error may belong to another client, which was killed before its reply came. The effect of
    ///   this statement is unknown, unless the DETAIL of the error is the expected one. The connection is not used again:
    ///   if the error belongs to another client, our own reply is still to come.
    fn statement_failed(&self, error: &tokio_postgres::Error, statement: &Statement<'_>) -> StoreError {
        let detail = error.as_db_error().and_then(DbError::detail);
        let is_ours = self.is_direct() || (detail.is_some() && detail == statement.error_detail);
        let is_usable = self.is_direct() && !error::ends_connection(error);
        let connection = if is_usable { ConnectionState::Usable } else { ConnectionState::Unusable };
        let error = error::of_statement(error, &self.hosts);
        StoreError { error: if is_ours { error } else { error.with_effect(Effect::Unknown) }, connection }
    }

    /// Executes a statement that returns no rows, such as `LISTEN`. Its reply carries no request id and proves nothing.
    pub(crate) async fn execute_unchecked(&self, sql: &str, timeout: Duration) -> Result<()> {
        match first(self.client.query_typed(sql, &[]), self.environment.sleep(timeout)).await {
            Either::Left(reply) => reply.map(drop).map_err(|error| error::of_statement(&error, &self.hosts)),
            Either::Right(()) => Err(error::no_reply(&self.hosts, timeout)),
        }
    }

    pub(crate) fn in_flight(&self) -> u32 {
        self.activity.in_flight.load(Ordering::Relaxed)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Whether a statement has been under way for at least `duration` without any reply on this connection.
    pub(crate) fn is_silent(&self, now: Timestamp, duration: Duration) -> bool {
        match self.activity.silent_since.load(Ordering::Relaxed) {
            0 => false,
            since => Timestamp::from_nanos(since).after(duration) <= now,
        }
    }

    /// Whether nothing is under way and the last statement was sent at least `duration` ago.
    pub(crate) fn is_idle(&self, now: Timestamp, duration: Duration) -> bool {
        self.in_flight() == 0
            && !self.is_reserved.load(Ordering::Relaxed)
            && Timestamp::from_nanos(self.activity.used_at.load(Ordering::Relaxed)).after(duration) <= now
    }

    /// Closes the connection at once. Statements under way on it end with an error.
    pub(crate) fn close(&self) {
        self.activity.close.notify_one();
    }

    /// A handle that closes the connection after this value is dropped.
    pub(crate) fn closing(&self) -> ClosingConnection {
        let (activity, cancel) = (Arc::clone(&self.activity), self.client.cancel_token());
        ClosingConnection { activity, cancel, environment: Arc::clone(&self.environment) }
    }
}

/// A connection that gets no further statements and may still wait for a reply.
pub(crate) struct ClosingConnection {
    activity: Arc<Activity>,
    cancel: CancelToken,
    environment: Arc<dyn Environment>,
}

impl ClosingConnection {
    /// Waits until the connection ends by itself; closes it if that takes longer than `limit`.
    pub(crate) async fn end_within(self, limit: Duration, config: Config) {
        let deadline = self.environment.sleep(limit);
        if let Either::Right(()) = first(self.activity.ended.notified(), deadline).await {
            self.close_and_cancel(config).await;
        }
    }

    /// Closes the connection at once and cancels what it does on the server. A server process that waits for a standby does
    /// not notice that its client is gone, and would keep its place in `max_connections` (ADR 0022).
    pub(crate) async fn close_and_cancel(self, config: Config) {
        self.activity.close.notify_one();
        let deadline = self.environment.sleep(config.connect_timeout);
        let cancel = async {
            match config.tls.then(|| tls::connector(&config)) {
                Some(Ok(connector)) => self.cancel.cancel_query(connector).await.is_ok(),
                // The certificates cannot be read any more. Nothing else can be done: the connection is closed anyway.
                Some(Err(_)) => false,
                None => self.cancel.cancel_query(NoTls).await.is_ok(),
            }
        };
        first(cancel, deadline).await;
    }
}

/// Connects as the backend does: the same hosts, TLS and timeouts. For leasehold's own program, which manages the fences of
/// a database; no part of the contract.
#[doc(hidden)]
pub async fn connect(config: &Config, environment: &Arc<dyn Environment>) -> Result<Client> {
    let ids = Arc::new(RequestIds::starting_at(environment.random()));
    Ok(Connection::open(config, environment, &ids, None).await?.client)
}
