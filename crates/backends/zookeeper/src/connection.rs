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

use leasehold_core::{Environment, Error, ErrorKind};
use leasehold_support::{
    ConnectOnce,
    race::{Either, first},
};
use zookeeper_client::Client;

use crate::{config::Config, error::StoreError, session::Session};

/// A session that guarantees a lease for a shorter time than this is refused: such a lease would be lost
/// before its holder can use it.
const LEASE_TTL_MIN: Duration = Duration::from_millis(300);

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
            Either::Right(()) => {
                let ensemble = self.config.ensemble();
                let message = format!(
                    "cannot connect to ZooKeeper at {ensemble}: no session within {limit:?}. Check that the \
                     servers run and have a majority, or raise connect_timeout"
                );
                Err(StoreError::from(Error::new(ErrorKind::Unavailable, message)))
            }
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
        let connected = connector.connect(&ensemble).await;
        let client = connected.map_err(|error| StoreError::cannot_connect(&ensemble, error))?;
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
