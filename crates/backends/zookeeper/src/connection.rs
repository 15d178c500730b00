//! The session of one client with the ensemble.
//!
//! The driver reconnects by itself while a session lives, so there is nothing to do when only a TCP
//! connection breaks. When the session is over, the next caller begins a new one:
//!
//! 1. A caller that finds a session that is not over uses it, also while the driver reconnects.
//! 2. Otherwise one caller connects and the others wait for its result ([`ConnectOnce`]).
//! 3. A new session starts with nothing: the ephemeral nodes of the old session, and so its leases, end with
//!    that session.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::future::join_all;
use leasehold_core::{Environment, Error, ErrorKind};
use leasehold_support::{
    ConnectOnce,
    race::{Either, first},
};
use tokio::net::TcpStream;
use zookeeper_client::{Client, Error as Driver};

use crate::{
    config::{Config, address},
    error::{StoreError, explain_io},
    session::Session,
};

/// A session that guarantees a lease for a shorter time than this is refused: such a lease would be lost
/// before its holder can use it.
const LEASE_TTL_MIN: Duration = Duration::from_millis(300);

/// How long a server may take to accept a connection, when no session could be established.
const PROBE_LIMIT: Duration = Duration::from_secs(1);

/// Hands out the current session, and begins a new one when the last one is over.
pub(crate) struct CurrentSession {
    config: Config,
    environment: Arc<dyn Environment>,
    session: Mutex<Option<Arc<Session>>>,
    connect_once: ConnectOnce<StoreError>,
}

impl CurrentSession {
    pub(crate) fn new(config: Config, environment: Arc<dyn Environment>) -> CurrentSession {
        CurrentSession {
            config,
            environment,
            session: Mutex::new(None),
            connect_once: ConnectOnce::default(),
        }
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// The current session, or a new one if the last one is over.
    pub(crate) async fn get(&self) -> Result<Arc<Session>, StoreError> {
        self.connect_once.get(|| self.unless_over(), || self.replace()).await
    }

    fn slot(&self) -> MutexGuard<'_, Option<Arc<Session>>> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unless_over(&self) -> Option<Arc<Session>> {
        self.slot().as_ref().filter(|session| !session.is_over()).map(Arc::clone)
    }

    async fn replace(&self) -> Result<Arc<Session>, StoreError> {
        let session = Arc::new(self.connect().await?);
        let old = self.slot().replace(Arc::clone(&session));
        // Outside of the lock: the old session wakes its waiters when it is dropped.
        drop(old);
        Ok(session)
    }

    async fn connect(&self) -> Result<Session, StoreError> {
        let limit = self.config.connect_timeout;
        match first(self.begin_session(), self.environment.sleep(limit)).await {
            Either::Left(session) => session,
            Either::Right(()) => Err(self.explain_no_session().await),
        }
    }

    /// Why no session could be established. The driver does not say what is wrong with which server, so each
    /// server is asked for a connection.
    async fn explain_no_session(&self) -> StoreError {
        let causes = join_all(
            self.config
                .servers()
                .iter()
                .map(|server| async move { format!("{}: {}", address(server), self.probe(server).await) }),
        );
        StoreError::no_session(&causes.await.join("; "))
    }

    /// What happens if a connection to this server is opened, in words.
    async fn probe(&self, (host, port): &(String, u16)) -> String {
        let opening = TcpStream::connect((host.as_str(), *port));
        match first(opening, self.environment.sleep(PROBE_LIMIT)).await {
            Either::Left(Ok(_)) => {
                let limit = self.config.connect_timeout;
                format!(
                    "it accepts a connection, but gave no session within {limit:?}. Check that it is a ZooKeeper \
                     server whose ensemble has a majority, or raise connect_timeout"
                )
            }
            Either::Left(Err(error)) => explain_io(&error),
            Either::Right(()) => format!("no answer within {PROBE_LIMIT:?}: check the host and the firewall"),
        }
    }

    async fn begin_session(&self) -> Result<Session, StoreError> {
        let mut connector =
            Client::connector().with_session_timeout(self.config.session_timeout).with_fail_eagerly();
        if let Some(digest) = self.config.digest()? {
            connector = connector.with_auth("digest", digest.as_bytes());
        }
        // Taken before connecting: the servers count the session from some later moment.
        let sent = self.environment.now();
        let ensemble = self.config.ensemble();
        let client = match connector.connect(&ensemble).await {
            Ok(client) => client,
            Err(Driver::NoHosts | Driver::ConnectionLoss | Driver::Timeout) => {
                return Err(self.explain_no_session().await);
            }
            Err(error) => return Err(StoreError::cannot_connect(&ensemble, error)),
        };
        let session = Session::begin(client, &self.config, Arc::clone(&self.environment), sent).await?;
        if session.lease_ttl < LEASE_TTL_MIN {
            let (timeout, tick) = (session.client.session_timeout(), self.config.tick);
            let message = format!(
                "the servers granted a session timeout of {timeout:?}, which is too short with a tick of \
                 {tick:?}. Ask for more with session_timeout, or set tick to the tickTime of the servers"
            );
            return Err(StoreError::from(Error::new(ErrorKind::Unsupported, message)));
        }
        Ok(session)
    }
}

impl fmt::Debug for CurrentSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CurrentSession").field("config", &self.config).finish_non_exhaustive()
    }
}
