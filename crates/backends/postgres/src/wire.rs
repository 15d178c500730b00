//! One connection: statements travel on it one behind the other, many at a time.

use std::{
    future::poll_fn,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use leasehold_core::{
    Environment, Error, ErrorKind, Moment, Result,
    race::{Either, first},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{Notify, mpsc},
};
use tokio_postgres::{
    AsyncMessage, Client, Connection, NoTls, Notification, Row,
    config::TargetSessionAttrs,
    error::DbError,
    types::{ToSql, Type},
};

use crate::{config::Config, error, tls};

/// A parameter of a statement, with its type: so that nothing needs to be asked about the statement first.
pub(crate) type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// A connection. It ends when this is dropped and everything on it is answered.
pub(crate) struct Wire {
    client: Client,
    pulse: Arc<Pulse>,
    environment: Arc<dyn Environment>,
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
}

/// Why a statement came to nothing.
pub(crate) struct Failure {
    pub(crate) error: Error,
    /// The connection is of no more use.
    pub(crate) ends_wire: bool,
}

/// A statement is under way until this is dropped, whether its answer came or nobody waits for it any more.
struct UnderWay<'a>(&'a Pulse);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Wire {
    /// Connects. Notifications go to `heard`, if anyone wants them.
    pub(crate) async fn open(
        config: &Config,
        environment: &Arc<dyn Environment>,
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
            Either::Left(client) => Ok(Wire { client: client?, pulse, environment: Arc::clone(environment) }),
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

    /// One statement: one transaction, one round trip. It is not named, so that a pool may execute it on any of its
    /// connections.
    pub(crate) async fn ask(
        &self,
        sql: &str,
        parameters: &[Parameter<'_>],
        within: Duration,
    ) -> Result<Vec<Row>, Failure> {
        let unconfirmed = self.pulse.unconfirmed.load(Ordering::Relaxed);
        let now = self.environment.now().as_nanos().max(1);
        self.pulse.in_flight.fetch_add(1, Ordering::Relaxed);
        self.pulse.used_at.store(now, Ordering::Relaxed);
        let _ = self.pulse.silent_since.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
        let _under_way = UnderWay(&self.pulse);
        let answer = self.client.query_typed(sql, parameters);
        let answer = match first(answer, self.environment.sleep(within)).await {
            Either::Left(answer) => answer,
            Either::Right(()) => return Err(Failure { error: error::silence(within), ends_wire: false }),
        };
        self.heard();
        let rows = answer.map_err(|error| Failure {
            ends_wire: error::ends_connection(&error),
            error: error::of_statement(&error),
        })?;
        // The warning comes before the end of the answer that it belongs to. Another one that was under way at the
        // time may be meant: then this one is called unknown without need.
        if self.pulse.unconfirmed.load(Ordering::Relaxed) != unconfirmed {
            return Err(Failure { error: error::unconfirmed(), ends_wire: false });
        }
        Ok(rows)
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
    pub(crate) fn is_silent(&self, now: Moment, for_long: Duration) -> bool {
        match self.pulse.silent_since.load(Ordering::Relaxed) {
            0 => false,
            since => Moment::from_nanos(since).after(for_long) <= now,
        }
    }

    pub(crate) fn is_idle(&self, now: Moment, for_long: Duration) -> bool {
        self.in_flight() == 0
            && Moment::from_nanos(self.pulse.used_at.load(Ordering::Relaxed)).after(for_long) <= now
    }

    /// Ends it at once. What is under way on the server is cancelled: one that waits for a standby would not notice
    /// that nobody waits for it, and keep its connection.
    pub(crate) fn give_up(&self, config: &Config) {
        self.pulse.given_up.notify_one();
        let (token, config) = (self.client.cancel_token(), config.clone());
        let enough = self.environment.sleep(config.connect_timeout);
        self.environment.spawn(Box::pin(async move {
            let cancel = async {
                match config.tls.then(|| tls::connector(&config)) {
                    Some(Ok(connector)) => token.cancel_query(connector).await.is_ok(),
                    Some(Err(_)) => false,
                    None => token.cancel_query(NoTls).await.is_ok(),
                }
            };
            first(cancel, enough).await;
        }));
    }
}

/// A connection as the backend makes its own: the same hosts, TLS and patience. For leasehold's program, which looks after
/// the fences of a database; no part of the contract.
#[doc(hidden)]
pub async fn connect(config: &Config, environment: &Arc<dyn Environment>) -> Result<Client> {
    Ok(Wire::open(config, environment, None).await?.client)
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

/// Moves bytes until the connection ends, and notes what nobody asked for.
async fn drive<S, T>(
    mut connection: Connection<S, T>,
    pulse: Arc<Pulse>,
    heard: Option<mpsc::UnboundedSender<Notification>>,
) where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
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
