//! One connection for many callers, replaced when it breaks. ADR 0030.
//!
//! Nothing is ever sent twice: a statement without a reply is an error of unknown effect, and the next statement gets a new
//! connection.
#![expect(
    clippy::disallowed_methods,
    reason = "there is no engine here: time and tasks come from the program's own tokio"
)]

use std::{
    fmt,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use leasehold_core::{Error, ErrorKind, Result};
use leasehold_support::{ConnectOnce, Password};
use tokio::time::{Instant, timeout};
use tokio_postgres::{
    Config, Socket,
    tls::{MakeTlsConnect, TlsConnect},
};

use super::{
    connection::Connection,
    connector::{Connector, TlsConnector},
    error::no_connection,
};

/// The default time for a reply, and for connecting to one host.
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(5);
const TIMEOUT_MIN: Duration = Duration::from_millis(10);
const TIMEOUT_MAX: Duration = Duration::from_secs(60);
/// For this long after a failed attempt, callers get its error and no further attempt is made. So many callers make few
/// connections.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(250);

/// Keeps one connection to a PostgreSQL database. All clones share it. It is opened when it is first needed and replaced
/// when it breaks.
///
/// ```no_run
/// use leasehold_fence::{http::PostgresMarks, postgres::{self, ConnectionManager}};
/// use tokio_postgres::NoTls;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let manager = ConnectionManager::new("postgres://app@db/shop".parse()?, NoTls); // or a TLS connector of yours
/// postgres::setup(&**manager.connection().await?).await?;
/// let marks = PostgresMarks::new(manager);
/// # drop(marks); Ok(()) }
/// ```
///
/// # Guarantees
/// While the database cannot be reached, every call ends with an error: at once if the server refuses connections, otherwise
/// within the time limits below. One attempt at a time is made for all callers, at most four in a second. A statement is
/// never sent twice.
///
/// A connection is closed when the server ends it, becomes read-only, or has not answered for three
/// [timeouts](ConnectionManager::timeout); in the last case its statement is cancelled. Connecting takes at most the
/// `connect_timeout` of the settings for each host, 5 s by default. With several hosts, set
/// `target_session_attrs=read-write`.
#[derive(Clone)]
pub struct ConnectionManager {
    shared: Arc<SharedConnection>,
    timeout: Duration,
    password: Password,
}

struct SharedConnection {
    connector: Box<dyn Connector>,
    /// "the database at" and the hosts of the settings, for error texts.
    database: String,
    connect_timeout: Duration,
    current: Mutex<Option<Arc<Connection>>>,
    connecting: ConnectOnce<Error>,
    last_failure: Mutex<Option<(Instant, Error)>>,
}

impl ConnectionManager {
    /// Connections to the database in these settings. Nothing is sent before the first call that needs a connection.
    pub fn new<T>(settings: Config, tls: T) -> ConnectionManager
    where
        T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
        T::Stream: Send,
        T::TlsConnect: Send,
        <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
    {
        let hosts = settings.get_hosts().len().max(settings.get_hostaddrs().len()).max(1);
        // The driver tries the hosts one after the other, with the timeout for each.
        let connect_timeout = *settings.get_connect_timeout().unwrap_or(&TIMEOUT_DEFAULT);
        let connect_timeout = connect_timeout.saturating_mul(u32::try_from(hosts).unwrap_or(u32::MAX));
        let shared = SharedConnection {
            database: database_name(&settings),
            connector: Box::new(TlsConnector { settings, tls }),
            connect_timeout,
            current: Mutex::default(),
            connecting: ConnectOnce::default(),
            last_failure: Mutex::default(),
        };
        ConnectionManager {
            shared: Arc::new(shared),
            timeout: TIMEOUT_DEFAULT,
            password: Password::default(),
        }
    }

    /// How long to wait for a reply. Five seconds by default; from 10 ms to a minute.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> ConnectionManager {
        self.timeout = timeout.clamp(TIMEOUT_MIN, TIMEOUT_MAX);
        self
    }

    /// A file with the password, read for every connection, so that the password can be rotated. By default the password of
    /// the settings is used.
    #[must_use]
    pub fn password_file(mut self, path: impl AsRef<Path>) -> ConnectionManager {
        self.password.set_file(path.as_ref());
        self
    }

    /// The current connection, or a new one if there is none or it is broken.
    ///
    /// # Cancel safety
    /// Safe. An attempt to connect goes on in its own task, and the next caller gets its connection.
    ///
    /// # Errors
    /// `Unavailable` while the database cannot be reached, `Denied` if it refuses the role, `Invalid` if the database does
    /// not exist. Nothing was sent then.
    pub async fn connection(&self) -> Result<Arc<Connection>> {
        if let Some(connection) = self.current() {
            return Ok(connection);
        }
        // A task of its own: callers whose own timeouts are shorter than connecting takes would each begin, and none of them
        // would finish. ADR 0030.
        let manager = self.clone();
        tokio::spawn(async move { manager.connect_once().await }).await.unwrap_or_else(|error| {
            let message = "the tokio runtime shut down while connecting to the database";
            Err(Error::new(ErrorKind::ShutDown, message).because(error))
        })
    }

    fn slot(&self) -> MutexGuard<'_, Option<Arc<Connection>>> {
        self.shared.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn last_failure(&self) -> MutexGuard<'_, Option<(Instant, Error)>> {
        self.shared.last_failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The current connection, if it can be used.
    fn current(&self) -> Option<Arc<Connection>> {
        let mut slot = self.slot();
        let connection = slot.as_ref()?;
        // Checked when the next caller comes: without callers, a silent connection does no harm.
        if connection.is_silent() {
            self.close_and_cancel(connection);
            *slot = None;
        } else if !connection.is_usable() {
            *slot = None;
        }
        slot.clone()
    }

    async fn connect_once(&self) -> Result<Arc<Connection>> {
        self.shared.connecting.get(|| self.current(), || self.connect_after_pause()).await
    }

    /// Connects, or returns the last error if that attempt failed a moment ago.
    async fn connect_after_pause(&self) -> Result<Arc<Connection>> {
        if let Some((at, error)) = &*self.last_failure()
            && at.elapsed() < PAUSE_AFTER_FAILURE
        {
            return Err(error.clone());
        }
        let result = self.connect().await;
        *self.last_failure() = result.as_ref().err().map(|error| (Instant::now(), error.clone()));
        let connection = Arc::new(result?);
        *self.slot() = Some(Arc::clone(&connection));
        Ok(connection)
    }

    async fn connect(&self) -> Result<Connection> {
        let SharedConnection { connector, database, connect_timeout, .. } = &*self.shared;
        match timeout(*connect_timeout, connector.connect(self.password.current()?)).await {
            Ok(Ok(opened)) => Ok(Connection::new(opened, self.timeout)),
            Ok(Err(error)) => Err(no_connection(error, database)),
            Err(_) => {
                let message = format!(
                    "cannot connect to {database} within {connect_timeout:?}: check the address and the network, or raise \
                     connect_timeout"
                );
                Err(Error::new(ErrorKind::Unavailable, message))
            }
        }
    }

    /// Closes a connection at once and cancels its statement. A server process that waits for a lock or a standby does not
    /// notice that its client is gone (ADR 0022).
    fn close_and_cancel(&self, connection: &Connection) {
        connection.close();
        let (cancel, shared) = (connection.cancel_token(), Arc::clone(&self.shared));
        tokio::spawn(async move { timeout(shared.connect_timeout, shared.connector.cancel(cancel)).await });
    }
}

/// The database as error texts name it: by its hosts, without user and password.
fn database_name(settings: &Config) -> String {
    use tokio_postgres::config::Host;
    let names = settings.get_hosts().iter().map(|host| match host {
        Host::Tcp(name) => name.clone(),
        #[cfg(unix)]
        Host::Unix(path) => path.display().to_string(),
    });
    let names: Vec<String> = if settings.get_hosts().is_empty() {
        settings.get_hostaddrs().iter().map(ToString::to_string).collect()
    } else {
        names.collect()
    };
    if names.is_empty() { "the database".to_owned() } else { format!("the database at {}", names.join(", ")) }
}

impl fmt::Debug for ConnectionManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionManager").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}
