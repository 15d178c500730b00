//! One connection. If it leads to the server itself, statements travel on it one behind the other, many at a time. If a
//! pool may share it, there is one at a time (`link`, ADR 0034).
//!
//! The last parameter of every statement is its request id, and so is the last column of every row of its answer. Each
//! statement answers with one row at the least. An answer without that id is not believed (ADR 0033).

use std::{
    future::poll_fn,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use leasehold_core::{Effect, Environment, Error, ErrorKind, RequestId, RequestIds, Result, Timestamp};
use leasehold_support::race::{Either, first};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{Notify, mpsc},
};
use tokio_postgres::{
    AsyncMessage, CancelToken, Client, Connection, NoTls, Notification, Row,
    config::TargetSessionAttrs,
    error::DbError,
    types::{ToSql, Type},
};

use crate::{config::Config, direct, error, tls};

/// A parameter of a statement, with its type: so that nothing needs to be asked about the statement first.
pub(crate) type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// What a statement asks for.
pub(crate) struct Question<'a> {
    pub(crate) sql: &'a str,
    /// All but the last one, which is the request id.
    pub(crate) parameters: &'a [Parameter<'a>],
    /// What an error that our own functions raise in answer to this says in its detail. Errors carry no request id.
    pub(crate) named: Option<&'a str>,
}

impl<'a> Question<'a> {
    pub(crate) fn new(sql: &'a str, parameters: &'a [Parameter<'a>]) -> Question<'a> {
        Question { sql, parameters, named: None }
    }
}

/// A connection. It ends when this is dropped and everything on it is answered.
pub(crate) struct Wire {
    client: Client,
    pulse: Arc<Pulse>,
    environment: Arc<dyn Environment>,
    ids: Arc<RequestIds>,
    /// It leads to the server itself: known once [`Wire::compare_process`] has said so.
    is_direct: AtomicBool,
    /// One request has it to itself. Of a connection that a pool may share.
    is_taken: AtomicBool,
}

/// What is known of a connection without asking.
#[derive(Debug, Default)]
struct Pulse {
    in_flight: AtomicU32,
    /// How often the wait for a synchronous standby was cancelled.
    unconfirmed: AtomicU64,
    /// Since when, in nanoseconds, something has been asked and nothing was heard; 0 if that is not so.
    silent_since: AtomicU64,
    /// When something was last asked.
    used_at: AtomicU64,
    /// Rung to end it at once.
    given_up: Notify,
    /// Rung when it has ended.
    ended: Notify,
}

/// Why a statement came to nothing.
pub(crate) struct Failure {
    pub(crate) error: Error,
    pub(crate) wire: Fate,
}

/// What is to become of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Keep,
    /// Of no use for further statements.
    Leave,
    /// An answer on it belonged to another request, so no later one can be believed either.
    Mixed,
}

/// How errors name the other side.
const SERVER: &str = "PostgreSQL";

/// A statement is under way until this is dropped, whether its answer came or nobody waits for it any more.
struct UnderWay<'a>(&'a Pulse);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Wire {
    /// Connects. Notifications go to `heard`, if anyone wants them. The connection is taken for one that a pool shares.
    pub(crate) async fn open(
        config: &Config,
        environment: &Arc<dyn Environment>,
        ids: &Arc<RequestIds>,
        heard: Option<mpsc::UnboundedSender<Notification>>,
    ) -> Result<Wire> {
        let driver = settings(config)?;
        let hosts = u32::try_from(config.hosts.len()).unwrap_or(1);
        let enough = environment.sleep(config.connect_timeout * hosts);
        let pulse = Arc::new(Pulse::default());
        pulse.used_at.store(environment.now().as_nanos(), Ordering::Relaxed);
        let connecting = async {
            if config.tls {
                let (client, connection) =
                    driver.connect(tls::connector(config)?).await.map_err(of_connect)?;
                environment.spawn(Box::pin(drive(connection, Arc::clone(&pulse), heard)));
                Ok(client)
            } else {
                let (client, connection) = driver.connect(NoTls).await.map_err(of_connect)?;
                environment.spawn(Box::pin(drive(connection, Arc::clone(&pulse), heard)));
                Ok(client)
            }
        };
        match first(connecting, enough).await {
            Either::Left(client) => Ok(Wire {
                client: client?,
                pulse,
                environment: Arc::clone(environment),
                ids: Arc::clone(ids),
                is_direct: AtomicBool::new(false),
                is_taken: AtomicBool::new(false),
            }),
            Either::Right(()) => {
                let message = format!("cannot connect within {:?}", config.connect_timeout);
                Err(Error::new(ErrorKind::Unavailable, message))
            }
        }
    }

    /// The driver's own handle, for what is done before anyone else has the connection.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Compares the process that serves this connection with the one that executed a statement on it. If they are the
    /// same, the connection leads to the server itself.
    pub(crate) async fn compare_process(&self, executed_by: i32) {
        let is_direct = direct::process_at_startup(&self.client).await == Some(executed_by);
        self.is_direct.store(is_direct, Ordering::Relaxed);
    }

    pub(crate) fn is_direct(&self) -> bool {
        self.is_direct.load(Ordering::Relaxed)
    }

    /// Takes it for one request. False if another request has it.
    pub(crate) fn take(&self) -> bool {
        !self.is_taken.swap(true, Ordering::Acquire)
    }

    /// Gives it back: its request was answered.
    pub(crate) fn give_back(&self) {
        self.is_taken.store(false, Ordering::Release);
    }

    /// One statement: one transaction, one round trip. It is not named, so that a pool may execute it on any of its
    /// connections.
    pub(crate) async fn ask(&self, question: &Question<'_>, within: Duration) -> Result<Vec<Row>, Failure> {
        let unconfirmed = self.pulse.unconfirmed.load(Ordering::Relaxed);
        let now = self.environment.now().as_nanos().max(1);
        self.pulse.in_flight.fetch_add(1, Ordering::Relaxed);
        self.pulse.used_at.store(now, Ordering::Relaxed);
        let _ = self.pulse.silent_since.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
        let _under_way = UnderWay(&self.pulse);
        let request = self.ids.next();
        let number = request.get().cast_signed();
        let id: Parameter<'_> = (&number, Type::INT8);
        let parameters: Vec<Parameter<'_>> = question.parameters.iter().cloned().chain([id]).collect();
        let answer = self.client.query_typed(question.sql, &parameters);
        let answer = match first(answer, self.environment.sleep(within)).await {
            Either::Left(answer) => answer,
            Either::Right(()) => {
                // Behind a pool nothing else may be sent until the answer has come. ADR 0022 says why it is kept else.
                let wire = if self.is_direct() { Fate::Keep } else { Fate::Leave };
                return Err(Failure { error: error::silence(within), wire });
            }
        };
        self.heard();
        let rows = answer.map_err(|error| self.refused(&error, question))?;
        check(&rows, request).map_err(|error| Failure { error, wire: Fate::Mixed })?;
        // The warning comes before the end of the answer that it belongs to. Another one that was under way at the
        // time may be meant: then this one is called unknown without need.
        if self.pulse.unconfirmed.load(Ordering::Relaxed) != unconfirmed {
            return Err(Failure { error: error::unconfirmed(), wire: Fate::Keep });
        }
        Ok(rows)
    }

    /// What to believe of an error, which carries no request id.
    ///
    /// From the server itself: everything. Its answers come in the order of the requests, and no other client has them.
    ///
    /// From a pool: that a request was refused, but perhaps that of another client, which was killed before its error
    /// came. So nothing is known of ours, unless the error names our claim in its detail. The connection is not used
    /// again: if the error was not ours, our answer is still to come.
    fn refused(&self, error: &tokio_postgres::Error, question: &Question<'_>) -> Failure {
        let detail = error.as_db_error().and_then(DbError::detail);
        let is_ours = self.is_direct() || (detail.is_some() && detail == question.named);
        let keep = self.is_direct() && !error::ends_connection(error);
        let wire = if keep { Fate::Keep } else { Fate::Leave };
        let error = error::of_statement(error);
        Failure { error: if is_ours { error } else { error.with_effect(Effect::Unknown) }, wire }
    }

    /// A statement that gives no rows, such as `LISTEN`. That it was answered proves nothing.
    pub(crate) async fn tell(&self, sql: &str, within: Duration) -> Result<()> {
        match first(self.client.query_typed(sql, &[]), self.environment.sleep(within)).await {
            Either::Left(answer) => answer.map(drop).map_err(|error| error::of_statement(&error)),
            Either::Right(()) => Err(error::silence(within)),
        }
    }

    fn heard(&self) {
        let others = self.in_flight() > 1;
        let since = if others { self.environment.now().as_nanos().max(1) } else { 0 };
        self.pulse.silent_since.store(since, Ordering::Relaxed);
    }

    pub(crate) fn in_flight(&self) -> u32 {
        self.pulse.in_flight.load(Ordering::Relaxed)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Something was asked this long ago, and nothing has been heard since.
    pub(crate) fn is_silent(&self, now: Timestamp, for_long: Duration) -> bool {
        match self.pulse.silent_since.load(Ordering::Relaxed) {
            0 => false,
            since => Timestamp::from_nanos(since).after(for_long) <= now,
        }
    }

    pub(crate) fn is_idle(&self, now: Timestamp, for_long: Duration) -> bool {
        self.in_flight() == 0
            && !self.is_taken.load(Ordering::Relaxed)
            && Timestamp::from_nanos(self.pulse.used_at.load(Ordering::Relaxed)).after(for_long) <= now
    }

    /// Ends it at once, and answers to what is under way on it come to nobody.
    pub(crate) fn close(&self) {
        self.pulse.given_up.notify_one();
    }

    /// What is left to end once this is dropped.
    pub(crate) fn remains(&self) -> Remains {
        let (pulse, token) = (Arc::clone(&self.pulse), self.client.cancel_token());
        Remains { pulse, token, environment: Arc::clone(&self.environment) }
    }
}

/// A connection that nobody asks any more, and that may have an answer to come.
pub(crate) struct Remains {
    pulse: Arc<Pulse>,
    token: CancelToken,
    environment: Arc<dyn Environment>,
}

impl Remains {
    /// Waits for the end of the connection; gives it up if that takes longer.
    pub(crate) async fn end_within(self, at_most: Duration, config: Config) {
        let enough = self.environment.sleep(at_most);
        if let Either::Right(()) = first(self.pulse.ended.notified(), enough).await {
            self.give_up(config).await;
        }
    }

    /// Ends it at once. What is under way on the server is cancelled: one that waits for a standby would not notice
    /// that nobody waits for it, and keep its connection.
    pub(crate) async fn give_up(self, config: Config) {
        self.pulse.given_up.notify_one();
        let enough = self.environment.sleep(config.connect_timeout);
        let cancel = async {
            match config.tls.then(|| tls::connector(&config)) {
                Some(Ok(connector)) => self.token.cancel_query(connector).await.is_ok(),
                Some(Err(_)) => false,
                None => self.token.cancel_query(NoTls).await.is_ok(),
            }
        };
        first(cancel, enough).await;
    }
}

/// Whether every row carries the id of the request. No row at all proves nothing.
fn check(rows: &[Row], request: RequestId) -> Result<()> {
    let id_of = |row: &Row| row.len().checked_sub(1).and_then(|last| row.try_get::<_, i64>(last).ok());
    if rows.is_empty() {
        return Err(Error::misdelivered(&SERVER));
    }
    rows.iter().try_for_each(|row| match id_of(row) {
        Some(id) => request.check(RequestId::from(id.cast_unsigned()), &SERVER),
        None => Err(Error::misdelivered(&SERVER)),
    })
}

/// A connection as the backend makes its own: the same hosts, TLS and patience. For leasehold's program, which looks after
/// the fences of a database; no part of the contract.
#[doc(hidden)]
pub async fn connect(config: &Config, environment: &Arc<dyn Environment>) -> Result<Client> {
    let ids = Arc::new(RequestIds::starting_at(environment.random()));
    Ok(Wire::open(config, environment, &ids, None).await?.client)
}

#[expect(clippy::needless_pass_by_value, reason = "it is the end of a chain")]
fn of_connect(error: tokio_postgres::Error) -> Error {
    error::of_connect(&error)
}

fn settings(config: &Config) -> Result<tokio_postgres::Config> {
    let mut driver = tokio_postgres::Config::new();
    for (host, port) in &config.hosts {
        driver.host(host).port(*port);
    }
    driver.user(&config.user).dbname(&config.database).application_name("leasehold");
    if let Some(password) = config.current_password()? {
        driver.password(password);
    }
    if config.tls {
        driver.ssl_mode(tokio_postgres::config::SslMode::Require);
    } else {
        driver.ssl_mode(tokio_postgres::config::SslMode::Disable);
    }
    driver
        .target_session_attrs(TargetSessionAttrs::ReadWrite)
        .connect_timeout(config.connect_timeout)
        // A host that is gone says nothing: the kernel finds out.
        .tcp_user_timeout(config.timeout * 3)
        .keepalives_idle(Duration::from_secs(10))
        .keepalives_interval(Duration::from_secs(5))
        .keepalives_retries(3);
    Ok(driver)
}

/// Tells the end of a connection, whatever ends it.
struct End(Arc<Pulse>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.ended.notify_one();
    }
}

/// Moves bytes until the connection ends, and notes what nobody asked for.
async fn drive<S, T>(
    mut connection: Connection<S, T>,
    pulse: Arc<Pulse>,
    heard: Option<mpsc::UnboundedSender<Notification>>,
) where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    let _end = End(Arc::clone(&pulse));
    loop {
        let message = match first(poll_fn(|cx| connection.poll_message(cx)), pulse.given_up.notified()).await
        {
            Either::Left(Some(Ok(message))) => message,
            Either::Left(Some(Err(error))) => {
                tracing::debug!(error = %error::of_statement(&error), "a connection ended");
                return;
            }
            Either::Left(None) | Either::Right(()) => return,
        };
        match message {
            AsyncMessage::Notice(notice) if is_unconfirmed(&notice) => {
                pulse.unconfirmed.fetch_add(1, Ordering::Relaxed);
            }
            AsyncMessage::Notification(notification) => {
                // If nobody listens any more, the connection is about to end.
                let _ = heard.as_ref().map(|heard| heard.send(notification));
            }
            _ => {}
        }
    }
}

/// Whether the wait for a synchronous standby was cancelled. The message is in the server's language; the name of the
/// function that says it is not.
fn is_unconfirmed(notice: &DbError) -> bool {
    notice.routine() == Some("SyncRepWaitForLSN")
}
