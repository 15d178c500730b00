//! One connection for many, made anew when it is lost.
//!
//! Nothing is ever sent twice: a statement whose answer did not come is an error of unknown effect, and the next one finds
//! a new connection.
//!
//! If the connection leads to the server itself, statements follow each other without waiting for answers. If a pool may
//! share it, one waits for the answer to the one before, and a connection with an answer to come is not used again: the
//! pool might give that answer to another client. ADR 0034.
#![expect(
    clippy::disallowed_methods,
    reason = "there is no engine here: time and tasks are the program's own tokio"
)]

use std::{
    fmt,
    ops::Deref,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use leasehold_core::{Effect, Error, ErrorKind, Result, async_trait};
use tokio::{
    task::AbortHandle,
    time::{Instant, timeout},
};
use tokio_postgres::{
    CancelToken, Client, Config, Row, Socket,
    tls::{MakeTlsConnect, TlsConnect},
    types::{ToSql, Type},
};

use super::{
    direct::is_direct,
    error::{ends_connection, no_connection},
    request,
};

/// How long a server may take to answer, and to be connected to, unless told.
const PATIENCE: Duration = Duration::from_secs(5);
const PATIENCE_BOUNDS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(60));
/// Silent for this many timeouts, a connection is dead. Not at the first: a commit may wait for a standby, and a
/// connection that is left behind in that wait stays at the server.
const SILENT_TIMES: u32 = 3;
/// After a vain attempt, whoever comes within this time is told what came of that one: a crowd makes few connections.
const PAUSE: Duration = Duration::from_millis(250);

/// The way to a PostgreSQL database: one connection, shared by all clones, made when it is first needed and made anew when
/// it is lost.
///
/// ```no_run
/// use leasehold_fence::{http::PostgresMarks, postgres::{self, Link}};
/// use tokio_postgres::NoTls;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let link = Link::new("postgres://app@db/shop".parse()?, NoTls); // or a TLS connector of yours
/// postgres::setup(&**link.wire().await?).await?;
/// let marks = PostgresMarks::new(link);
/// # drop(marks); Ok(()) }
/// ```
///
/// # Guarantees
/// While the database is away, every call ends with an error: at once if the server refuses connections, else within the
/// bounds below. One attempt at a time is made for all callers, at most four in a second. A statement is never sent twice.
///
/// A connection is given up when the server ends it, turns read-only, or has said nothing for three
/// [timeouts](Link::timeout); what it was doing is cancelled then. A connection takes the `connect_timeout` of the settings
/// at the most for each host, 5 s unless told. With several hosts, set `target_session_attrs=read-write`.
#[derive(Clone)]
pub struct Link {
    shared: Arc<Shared>,
    timeout: Duration,
    password_file: Option<Arc<Path>>,
}

struct Shared {
    server: Box<dyn Server>,
    patience: Duration,
    wire: Mutex<Option<Arc<Wire>>>,
    /// Held by the one who connects for all. The last attempt, if it was in vain.
    connecting: tokio::sync::Mutex<Option<(Instant, Error)>>,
}

/// A connection of a [`Link`]: a client of the driver's. Others use it too, so leave no transaction open on it, and send
/// nothing past [`Wire::ask`] and [`Wire::answer`] while others use it.
pub struct Wire {
    client: Client,
    driver: AbortHandle,
    /// It leads to the server itself.
    is_direct: bool,
    /// Of a connection that a pool may share: held by the one statement that is under way.
    turn: tokio::sync::Mutex<()>,
    /// Of no more use, although it is still open.
    retired: AtomicBool,
    pulse: Mutex<Pulse>,
    timeout: Duration,
}

/// What is known of a connection without asking.
#[derive(Default)]
struct Pulse {
    under_way: u32,
    /// Since when something has been asked and nothing was heard.
    silent_since: Option<Instant>,
}

impl Link {
    /// To the database that these settings name. Nothing is sent before someone needs it.
    pub fn new<T>(settings: Config, tls: T) -> Link
    where
        T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
        T::Stream: Send,
        T::TlsConnect: Send,
        <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
    {
        let hosts = settings.get_hosts().len().max(settings.get_hostaddrs().len()).max(1);
        let patience = *settings.get_connect_timeout().unwrap_or(&PATIENCE);
        let patience = patience.saturating_mul(u32::try_from(hosts).unwrap_or(u32::MAX));
        let server = Box::new(Named { settings, tls });
        let shared =
            Shared { server, patience, wire: Mutex::default(), connecting: tokio::sync::Mutex::default() };
        Link { shared: Arc::new(shared), timeout: PATIENCE, password_file: None }
    }

    /// How long to wait for an answer. Five seconds unless told; from 10 ms to a minute.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Link {
        self.timeout = timeout.clamp(PATIENCE_BOUNDS.0, PATIENCE_BOUNDS.1);
        self
    }

    /// Where the password is, read anew for every connection: it may change. That of the settings unless told.
    #[must_use]
    pub fn password_file(mut self, path: impl AsRef<Path>) -> Link {
        self.password_file = Some(path.as_ref().into());
        self
    }

    /// The connection; if there is none, or it is lost, a new one.
    ///
    /// # Cancel safety
    /// Nothing is lost: a connection that is being made is made, for whoever comes next.
    ///
    /// # Errors
    /// `Unavailable` while the database is away, `Denied` if it refuses the role, `Invalid` if it has no such database;
    /// nothing was sent then.
    pub async fn wire(&self) -> Result<Arc<Wire>> {
        if let Some(wire) = self.current() {
            return Ok(wire);
        }
        // A task of its own: callers may be less patient than the network is slow.
        let link = self.clone();
        tokio::spawn(async move { link.connect().await }).await.unwrap_or_else(|error| {
            Err(Error::new(ErrorKind::ShutDown, "the runtime ended before there was a connection")
                .because(error))
        })
    }

    fn slot(&self) -> MutexGuard<'_, Option<Arc<Wire>>> {
        self.shared.wire.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn current(&self) -> Option<Arc<Wire>> {
        let mut slot = self.slot();
        let wire = slot.as_ref()?;
        if wire.is_silent() {
            self.give_up(wire);
            *slot = None;
        } else if wire.client.is_closed() || wire.retired.load(Ordering::Relaxed) {
            *slot = None;
        }
        slot.clone()
    }

    async fn connect(&self) -> Result<Arc<Wire>> {
        let mut vain = self.shared.connecting.lock().await;
        if let Some(wire) = self.current() {
            return Ok(wire);
        }
        if let Some((at, error)) = &*vain
            && at.elapsed() < PAUSE
        {
            return Err(error.clone());
        }
        let outcome = self.attempt().await;
        *vain = outcome.as_ref().err().map(|error| (Instant::now(), error.clone()));
        let Made { client, driver, is_direct } = outcome?;
        let (retired, pulse, timeout) = (AtomicBool::new(false), Mutex::default(), self.timeout);
        let turn = tokio::sync::Mutex::default();
        let wire = Arc::new(Wire { client, driver, is_direct, turn, retired, pulse, timeout });
        *self.slot() = Some(Arc::clone(&wire));
        Ok(wire)
    }

    async fn attempt(&self) -> Result<Made> {
        let patience = self.shared.patience;
        match timeout(patience, self.shared.server.connect(self.password()?)).await {
            Ok(outcome) => outcome.map_err(no_connection),
            Err(_) => {
                let message = format!("cannot connect to the database within {patience:?}");
                Err(Error::new(ErrorKind::Unavailable, message))
            }
        }
    }

    fn password(&self) -> Result<Option<String>> {
        let Some(path) = &self.password_file else { return Ok(None) };
        let text = std::fs::read_to_string(path).map_err(|error| {
            let message = format!("cannot read the password file {}", path.display());
            Error::new(ErrorKind::Denied, message).because(error)
        })?;
        Ok(Some(text.trim_end_matches(['\r', '\n']).to_owned()))
    }

    /// Ends it at once, at the server too: one that waits for a lock or a standby would not notice that nobody waits for it.
    fn give_up(&self, wire: &Wire) {
        wire.driver.abort();
        let (token, shared) = (wire.client.cancel_token(), Arc::clone(&self.shared));
        tokio::spawn(async move { timeout(shared.patience, shared.server.cancel(token)).await });
    }
}

impl Wire {
    /// One statement, without a name, so that a pool may execute it on any of its connections. The last parameter is added
    /// here: a request id, which must be the last column of every row. The statement must give one row at the least.
    ///
    /// # Cancel safety
    /// What was sent may be executed.
    ///
    /// # Errors
    /// As [`Wire::answer`]; `Unavailable` with an unknown effect also if the answer carries another id. Then it belongs to
    /// another request, and the connection is closed. ADR 0033.
    pub async fn ask(
        &self,
        sql: &str,
        parameters: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Result<Vec<Row>, tokio_postgres::Error>> {
        let request = request::next();
        let number = request.get().cast_signed();
        let id: (&(dyn ToSql + Sync), Type) = (&number, Type::INT8);
        let parameters: Vec<_> = parameters.iter().cloned().chain([id]).collect();
        let answer = self.answer(self.client.query_typed(sql, &parameters)).await?;
        if let Ok(rows) = &answer
            && let Err(mismatch) = request::check(rows, request)
        {
            self.retired.store(true, Ordering::Relaxed);
            self.driver.abort();
            return Err(mismatch);
        }
        Ok(answer)
    }

    /// Waits for a statement on this connection, and notes how the connection is. The outer error is that no answer came;
    /// the inner one is the server's, or the driver's. Use [`Wire::ask`] where a wrong answer would do harm.
    ///
    /// # Cancel safety
    /// That of the statement: what was sent may be executed.
    ///
    /// # Errors
    /// `Unavailable` with an unknown effect if the link's timeout is over. `Unavailable` without effect if a pool may share
    /// the connection and it could not be had for this statement.
    pub async fn answer<T>(
        &self,
        statement: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<Result<T, tokio_postgres::Error>> {
        let mut turn = if self.is_direct { None } else { Some(self.own_turn().await?) };
        self.pulse().ask();
        let _under_way = UnderWay(self);
        let Ok(answer) = timeout(self.timeout, statement).await else {
            let message = format!("the database did not answer within {:?}", self.timeout);
            return Err(Error::new(ErrorKind::Unavailable, message).with_effect(Effect::Unknown));
        };
        self.pulse().hear();
        if let Some(turn) = &mut turn {
            // An error carries no id. If it was another client's, our answer is still to come.
            turn.answered = answer.is_ok();
        }
        if answer.as_ref().is_err_and(ends_connection) {
            self.retired.store(true, Ordering::Relaxed);
        }
        Ok(answer)
    }

    /// Whether it leads to the server itself. If not, a pool may share it, and an error may be the answer to another
    /// client: its effect is not known.
    pub fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// The connection, for one statement alone.
    async fn own_turn(&self) -> Result<OwnTurn<'_>> {
        let busy =
            |why: &str| Err(Error::new(ErrorKind::Unavailable, format!("the connection to the pool {why}")));
        let Ok(guard) = timeout(self.timeout, self.turn.lock()).await else {
            return busy("was busy all the time: others wait for an answer");
        };
        if self.retired.load(Ordering::Relaxed) {
            return busy("was given up just now: try again");
        }
        Ok(OwnTurn { wire: self, _guard: guard, answered: false })
    }

    /// Nothing more is sent on it. It ends when the last answer has come, or when that takes too long.
    fn retire(&self) {
        self.retired.store(true, Ordering::Relaxed);
        let (driver, enough) = (self.driver.clone(), self.timeout * SILENT_TIMES);
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                tokio::time::sleep(enough).await;
                driver.abort();
            });
        } else {
            driver.abort();
        }
    }

    fn pulse(&self) -> MutexGuard<'_, Pulse> {
        self.pulse.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_silent(&self) -> bool {
        self.pulse().silent_since.is_some_and(|since| since.elapsed() >= self.timeout * SILENT_TIMES)
    }
}

/// The use of a connection by one statement. If this is dropped before the answer has come, the connection is not used
/// again.
struct OwnTurn<'a> {
    wire: &'a Wire,
    _guard: tokio::sync::MutexGuard<'a, ()>,
    answered: bool,
}

impl Drop for OwnTurn<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.wire.retire();
        }
    }
}

impl Pulse {
    fn ask(&mut self) {
        self.under_way += 1;
        self.silent_since.get_or_insert_with(Instant::now);
    }

    fn hear(&mut self) {
        self.silent_since = (self.under_way > 1).then(Instant::now);
    }
}

/// A statement is under way until this is dropped, whether its answer came or nobody waits for it any more.
struct UnderWay<'a>(&'a Wire);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.pulse().under_way -= 1;
    }
}

impl Deref for Wire {
    type Target = Client;
    fn deref(&self) -> &Client {
        &self.client
    }
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wire").field("closed", &self.client.is_closed()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

/// A connection that was made.
struct Made {
    client: Client,
    driver: AbortHandle,
    is_direct: bool,
}

/// Where connections lead, whatever kind of TLS they speak.
#[async_trait]
trait Server: Send + Sync {
    /// With this password, or that of the settings.
    async fn connect(&self, password: Option<String>) -> Result<Made, tokio_postgres::Error>;
    async fn cancel(&self, token: CancelToken);
}

struct Named<T> {
    settings: Config,
    tls: T,
}

#[async_trait]
impl<T> Server for Named<T>
where
    T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
    T::Stream: Send,
    T::TlsConnect: Send,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
{
    async fn connect(&self, password: Option<String>) -> Result<Made, tokio_postgres::Error> {
        let mut settings = self.settings.clone();
        if let Some(password) = password {
            settings.password(password);
        }
        let (client, connection) = settings.connect(self.tls.clone()).await?;
        let driver = tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(target: "leasehold", %error, "a connection to the database ended");
            }
        });
        let is_direct = is_direct(&client).await?;
        Ok(Made { client, driver: driver.abort_handle(), is_direct })
    }

    async fn cancel(&self, token: CancelToken) {
        if let Err(error) = token.cancel_query(self.tls.clone()).await {
            tracing::debug!(target: "leasehold", %error, "a silent connection was not cancelled");
        }
    }
}
