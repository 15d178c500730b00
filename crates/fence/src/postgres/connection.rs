//! One connection to the database, shared by many callers.
//!
//! A direct connection leads to the server itself: statements are sent without waiting for the replies to earlier ones. A
//! pooled connection may be shared by a pool with other clients (ADR 0034):
//!
//! 1. A statement is sent only after the reply to the statement before it.
//! 2. If a statement is cancelled, times out or fails, the connection gets no further statements, because the pool might
//!    give a late reply to another client. It closes after three timeouts.
#![expect(
    clippy::disallowed_methods,
    reason = "there is no engine here: time and tasks come from the program's own tokio"
)]

use std::{
    fmt,
    ops::Deref,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use leasehold_core::{Effect, Error, ErrorKind, Result};
use leasehold_support::postgres::check_request_id;
use tokio::{
    task::AbortHandle,
    time::{Instant, timeout},
};
use tokio_postgres::{
    Client, Row,
    types::{ToSql, Type},
};

use super::{connector::OpenedConnection, error::ends_connection, request_id};

/// A connection that has not answered for this many timeouts counts as dead. Not after the first one: a commit may wait for
/// a standby, and the server process of a closed connection would stay behind in that wait (ADR 0022).
const SILENT_TIMEOUTS: u32 = 3;

/// A connection of a [`ConnectionManager`](super::ConnectionManager). It derefs to the driver's client.
///
/// Other callers use it at the same time. Leave no transaction open on it, and send statements only through
/// [`Connection::query_checked`] and [`Connection::await_reply`] while others use it.
pub struct Connection {
    client: Client,
    driver: AbortHandle,
    is_direct: bool,
    /// Held by the statement that is under way on a pooled connection.
    exclusive: tokio::sync::Mutex<()>,
    /// Whether it gets no further statements, although it is still open.
    is_retired: AtomicBool,
    activity: Mutex<Activity>,
    timeout: Duration,
}

/// What is known about a connection without sending anything.
#[derive(Default)]
struct Activity {
    /// The number of statements under way.
    in_flight: u32,
    /// Since when a statement has been under way without any reply.
    silent_since: Option<Instant>,
}

impl Connection {
    pub(super) fn new(opened: OpenedConnection, timeout: Duration) -> Connection {
        let OpenedConnection { client, driver, is_direct } = opened;
        Connection {
            client,
            driver,
            is_direct,
            exclusive: tokio::sync::Mutex::default(),
            is_retired: AtomicBool::new(false),
            activity: Mutex::default(),
            timeout,
        }
    }

    /// Executes one statement, without a name, so that a pool can execute it on any of its server connections.
    ///
    /// The last parameter is added here: a request id. The statement must return it as the last column of every row, and must
    /// return at least one row. ADR 0033.
    ///
    /// # Cancel safety
    /// The statement may be executed.
    ///
    /// # Errors
    /// As [`Connection::await_reply`]; also `Unavailable` with an unknown effect if the reply carries another request id. Then
    /// it belongs to another request, and the connection is closed.
    pub async fn query_checked(
        &self,
        sql: &str,
        parameters: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Result<Vec<Row>, tokio_postgres::Error>> {
        let request = request_id::next();
        let number = request.get().cast_signed();
        let id: (&(dyn ToSql + Sync), Type) = (&number, Type::INT8);
        let parameters: Vec<_> = parameters.iter().cloned().chain([id]).collect();
        let reply = self.await_reply(self.client.query_typed(sql, &parameters)).await?;
        if let Ok(rows) = &reply
            && let Err(misdelivered) = check_request_id(rows, request)
        {
            // Every later reply on this connection may be wrong, too.
            self.is_retired.store(true, Ordering::Relaxed);
            self.driver.abort();
            return Err(misdelivered);
        }
        Ok(reply)
    }

    /// Waits for the reply to a statement on this connection, and keeps track of whether the connection works.
    ///
    /// The outer error means that there is no reply; the inner one comes from the server or the driver. Use
    /// [`Connection::query_checked`] where the reply to another request would do harm.
    ///
    /// # Cancel safety
    /// The statement may be executed.
    ///
    /// # Errors
    /// `Unavailable` with an unknown effect if the timeout of the manager has passed. `Unavailable` without effect if the
    /// connection is pooled and was not free in time.
    pub async fn await_reply<T>(
        &self,
        statement: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<Result<T, tokio_postgres::Error>> {
        // ADR 0034: on a pooled connection one statement at a time.
        let mut exclusive = if self.is_direct { None } else { Some(self.exclusive_use().await?) };
        self.activity().statement_sent();
        let _in_flight = InFlight(self);
        let Ok(reply) = timeout(self.timeout, statement).await else {
            let message = format!("the database did not answer within {:?}", self.timeout);
            return Err(Error::new(ErrorKind::Unavailable, message).with_effect(Effect::Unknown));
        };
        self.activity().reply_received();
        if let Some(exclusive) = &mut exclusive {
            // An error carries no request id. If it belongs to another client, our own reply is still to come.
            exclusive.is_answered = reply.is_ok();
        }
        if reply.as_ref().is_err_and(ends_connection) {
            self.is_retired.store(true, Ordering::Relaxed);
        }
        Ok(reply)
    }

    /// Whether the connection leads to the server itself. If not, a pool may share it, and an error may belong to another
    /// client: then the effect of the statement is unknown.
    pub fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// Waits until no other statement is under way.
    async fn exclusive_use(&self) -> Result<ExclusiveUse<'_>> {
        let unavailable = |why: String| Err(Error::new(ErrorKind::Unavailable, why));
        let Ok(guard) = timeout(self.timeout, self.exclusive.lock()).await else {
            let timeout = self.timeout;
            return unavailable(format!(
                "the connection to the pool was not free within {timeout:?}: other statements wait for their replies"
            ));
        };
        if self.is_retired.load(Ordering::Relaxed) {
            return unavailable("the connection to the pool was closed just now: try again".to_owned());
        }
        Ok(ExclusiveUse { connection: self, _guard: guard, is_answered: false })
    }

    /// Sends no further statements on it. Closes it after three timeouts, in which the last reply may come.
    fn retire(&self) {
        self.is_retired.store(true, Ordering::Relaxed);
        let (driver, delay) = (self.driver.clone(), self.timeout * SILENT_TIMEOUTS);
        // This runs in `drop`, which may happen outside a runtime, where nothing can be spawned.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                tokio::time::sleep(delay).await;
                driver.abort();
            });
        } else {
            driver.abort();
        }
    }

    /// Closes the connection at once.
    pub(super) fn close(&self) {
        self.driver.abort();
    }

    pub(super) fn is_usable(&self) -> bool {
        !self.client.is_closed() && !self.is_retired.load(Ordering::Relaxed)
    }

    /// Whether a statement has waited for too long without any reply on this connection.
    pub(super) fn is_silent(&self) -> bool {
        let limit = self.timeout * SILENT_TIMEOUTS;
        self.activity().silent_since.is_some_and(|since| since.elapsed() >= limit)
    }

    fn activity(&self) -> MutexGuard<'_, Activity> {
        self.activity.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The use of a pooled connection by one statement. If it is dropped before the reply has come, the connection gets no
/// further statements.
struct ExclusiveUse<'a> {
    connection: &'a Connection,
    _guard: tokio::sync::MutexGuard<'a, ()>,
    is_answered: bool,
}

impl Drop for ExclusiveUse<'_> {
    fn drop(&mut self) {
        if !self.is_answered {
            self.connection.retire();
        }
    }
}

impl Activity {
    fn statement_sent(&mut self) {
        self.in_flight += 1;
        self.silent_since.get_or_insert_with(Instant::now);
    }

    fn reply_received(&mut self) {
        // A reply proves that the connection works: for statements still under way, the silence begins anew.
        self.silent_since = (self.in_flight > 1).then(Instant::now);
    }
}

/// Counts a statement as under way until it is dropped, with a reply or because its caller was cancelled.
struct InFlight<'a>(&'a Connection);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.activity().in_flight -= 1;
    }
}

impl Deref for Connection {
    type Target = Client;
    fn deref(&self) -> &Client {
        &self.client
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("closed", &self.client.is_closed()).finish_non_exhaustive()
    }
}
