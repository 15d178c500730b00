//! The way to the ensemble: one session at a time, made anew when it is over.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use leasehold_core::{Environment, Error, ErrorKind};
use leasehold_support::race::{Either, first};
use zookeeper_client::Client;

use crate::{config::Config, error::Fault, session::Session};

pub(crate) struct Link {
    config: Config,
    pub(crate) environment: Arc<dyn Environment>,
    session: Mutex<Option<Arc<Session>>>,
    connecting: tokio::sync::Mutex<()>,
}

impl Link {
    pub(crate) fn new(config: Config, environment: Arc<dyn Environment>) -> Link {
        Link { config, environment, session: Mutex::new(None), connecting: tokio::sync::Mutex::new(()) }
    }

    fn slot(&self) -> MutexGuard<'_, Option<Arc<Session>>> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn current(&self) -> Option<Arc<Session>> {
        self.slot().as_ref().filter(|session| !session.is_over()).map(Arc::clone)
    }

    /// The session, made anew if the last one is over. One that is only cut off is waited for: the driver reconnects.
    pub(crate) async fn session(&self) -> Result<Arc<Session>, Fault> {
        if let Some(session) = self.current() {
            return Ok(session);
        }
        let _one_at_a_time = self.connecting.lock().await;
        if let Some(session) = self.current() {
            return Ok(session);
        }
        let session = Arc::new(self.connect().await?);
        let old = self.slot().replace(Arc::clone(&session));
        drop(old);
        Ok(session)
    }

    async fn connect(&self) -> Result<Session, Fault> {
        let limit = self.config.connect_timeout;
        match first(self.establish(), self.environment.sleep(limit)).await {
            Either::Left(session) => session,
            Either::Right(()) => {
                let message = format!("cannot connect: no session within {limit:?}");
                Err(Fault::from(Error::new(ErrorKind::Unavailable, message)))
            }
        }
    }

    async fn establish(&self) -> Result<Session, Fault> {
        let mut connector =
            Client::connector().with_session_timeout(self.config.session_timeout).with_fail_eagerly();
        if let Some(digest) = self.config.digest()? {
            connector = connector.with_auth("digest", digest.as_bytes());
        }
        let sent = self.environment.now();
        let client = connector.connect(&self.config.ensemble()).await.map_err(Fault::connecting)?;
        let session = Session::begin(client, &self.config, sent, self.environment.random()).await?;
        if session.lease < LEASE_MIN {
            let (timeout, tick) = (session.client.session_timeout(), self.config.tick);
            let message = format!(
                "the servers grant a session timeout of {timeout:?}: too short to hold anything with a tick of \
                 {tick:?}. Ask for more with session_timeout, or say what the servers' tickTime is with tick"
            );
            return Err(Fault::from(Error::new(ErrorKind::Unsupported, message)));
        }
        Ok(session)
    }
}

/// A lease shorter than this is lost before it can be used.
const LEASE_MIN: Duration = Duration::from_millis(300);

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("config", &self.config).finish_non_exhaustive()
    }
}
