//! The server: what its connections share, and its life.

use std::{
    future::Future,
    sync::{Arc, atomic::AtomicUsize},
};

use hyper::header::HeaderValue;
use leasehold_core::{Backend, Environment, Error, ErrorKind, Result};
use tokio::{
    net::TcpListener,
    sync::{Semaphore, watch},
};

use crate::{
    access::Access, audit_trail::AuditTrail, body::BodyMemory, config::Config, jobs::Jobs, listener,
    metrics::Metrics, places::Places, sampler::Sampler, session_deadlines::SessionDeadlines, store::Store,
    store_health::StoreHealth,
};

/// What all connections share.
pub(crate) struct Shared {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) environment: Arc<dyn Environment>,
    pub(crate) config: Config,
    pub(crate) store: Store,
    pub(crate) places: Arc<Places>,
    pub(crate) sampler: Arc<Sampler>,
    pub(crate) health: Arc<StoreHealth>,
    pub(crate) jobs: Jobs,
    pub(crate) audit: AuditTrail,
    /// One permit for each claim that may wait, and for each open stream.
    pub(crate) waiters: Arc<Semaphore>,
    pub(crate) draining: watch::Sender<bool>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) body_memory: BodyMemory,
    /// Open connections.
    pub(crate) connections: AtomicUsize,
    pub(crate) store_header: HeaderValue,
    /// Leases end with this server, because they live with its session at the store.
    pub(crate) leases_end_with_server: bool,
}

impl Shared {
    /// How many claims may wait.
    pub(crate) fn waiters_max(&self) -> usize {
        self.config.limits.waiters.min(Semaphore::MAX_PERMITS)
    }

    /// Reads the files of tokens and certificates again when they change, until the future is dropped.
    async fn follow_files(&self) {
        let tokens = async {
            match &self.config.access {
                Access::Tokens(file) => file.follow().await,
                Access::Open(_) => {}
            }
        };
        #[cfg(feature = "tls")]
        let certificates = async {
            if let Some(tls) = &self.config.tls {
                tls.follow().await;
            }
        };
        #[cfg(not(feature = "tls"))]
        let certificates = async {};
        tokio::join!(tokens, certificates);
        std::future::pending::<()>().await;
    }

    /// The files that have changed and cannot be read, by what they are for.
    pub(crate) fn bad_files(&self) -> [(&'static str, bool); 2] {
        let tokens = matches!(&self.config.access, Access::Tokens(file) if file.is_bad());
        #[cfg(feature = "tls")]
        let certificate = self.config.tls.as_ref().is_some_and(crate::Tls::is_bad);
        #[cfg(not(feature = "tls"))]
        let certificate = false;
        [("tokens", tokens), ("certificate", certificate)]
    }

    /// Whether this server itself speaks HTTPS.
    pub(crate) fn has_tls(&self) -> bool {
        #[cfg(feature = "tls")]
        let has_tls = self.config.tls.is_some();
        #[cfg(not(feature = "tls"))]
        let has_tls = false;
        has_tls
    }

    pub(crate) fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }
}

/// An HTTP server over a store.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::sync::Arc;
/// use leasehold::{Memory, System};
/// use leasehold_api::fields::StoreId;
/// use leasehold_server::{Config, Server};
///
/// let config = Config::new(StoreId::of("memory:"));
/// let server = Server::new(Arc::new(Memory::new()), Arc::new(System::current()), config)?;
/// let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
/// println!("http://{}", listener.local_addr()?);
/// let until = async {}; // a signal, in a program
/// server.run(listener, until).await;
/// # Ok(()) }
/// ```
pub struct Server {
    shared: Arc<Shared>,
    metrics: Option<TcpListener>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("config", &self.shared.config).finish_non_exhaustive()
    }
}

impl Server {
    /// A server over this store. Must be called on a tokio runtime.
    ///
    /// # Errors
    /// `Unsupported` for a store where a lease lives with the session of the process that took it, unless the configuration says that
    /// [leases end with this server](Config::leases_end_with_server). `Invalid` if it says so for another store.
    pub fn new(
        backend: Arc<dyn Backend>,
        environment: Arc<dyn Environment>,
        config: Config,
    ) -> Result<Server> {
        let backend = with_deadlines(backend, &environment, config.leases_end_with_server)?;
        let metrics = Arc::new(Metrics::default());
        let store =
            Store::new(Arc::clone(&backend), &environment, config.timeouts.store, Arc::clone(&metrics));
        let health = Arc::new(StoreHealth::new(store.clone()));
        let no_header = |_| Error::new(ErrorKind::Invalid, "the id of the store cannot stand in a header");
        let shared = Shared {
            store_header: HeaderValue::from_str(config.store.as_str()).map_err(no_header)?,
            places: Places::start(store.clone()),
            sampler: Sampler::start(
                store.clone(),
                Arc::clone(&health),
                Arc::clone(&environment),
                config.sampling,
            ),
            health,
            jobs: Jobs::new(Arc::clone(&backend), Arc::clone(&environment), config.timeouts.store),
            audit: AuditTrail::new(store.clone()),
            waiters: Arc::new(Semaphore::new(config.limits.waiters.min(Semaphore::MAX_PERMITS))),
            draining: watch::Sender::new(false),
            metrics,
            body_memory: BodyMemory::new(),
            connections: AtomicUsize::new(0),
            leases_end_with_server: config.leases_end_with_server,
            backend,
            environment,
            config,
            store,
        };
        Ok(Server { shared: Arc::new(shared), metrics: None })
    }

    /// Serves `/metrics`, `/healthz` and `/readyz`, and nothing else, on this listener, too: over plain HTTP, and without a token.
    #[must_use]
    pub fn with_metrics(mut self, listener: TcpListener) -> Server {
        self.metrics = Some(listener);
        self
    }

    /// Every route that a server answers: for documents and tests that must have all of them.
    pub fn routes() -> Vec<crate::RouteInfo> {
        crate::router::all_routes()
    }

    /// Serves until `until` resolves, then drains: new claims are refused without an effect, waiting ones are answered early, and
    /// renewals and releases are served until the connections have ended, for at most
    /// [`Timeouts::drain`](crate::Timeouts::drain).
    ///
    /// # Cancel safety
    /// Dropping it cuts all connections.
    pub async fn run(self, listener: TcpListener, until: impl Future<Output = ()>) {
        let files = Arc::clone(&self.shared);
        let shared = Arc::clone(&self.shared);
        let metrics = async {
            match self.metrics {
                Some(listener) => listener::serve_metrics(shared, listener).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = listener::serve(self.shared, listener, until) => {}
            () = metrics => {}
            () = files.follow_files() => {}
        }
    }
}

/// The store as routes see it: one where every claim has a ttl of its own.
fn with_deadlines(
    store: Arc<dyn Backend>,
    environment: &Arc<dyn Environment>,
    leases_end_with_server: bool,
) -> Result<Arc<dyn Backend>> {
    let (name, own_ttl) = (store.info().name, store.info().capabilities.own_ttl);
    match (own_ttl, leases_end_with_server) {
        (true, false) => Ok(store),
        (false, true) => Ok(SessionDeadlines::start(store, Arc::clone(environment))),
        (false, false) => {
            let message = format!(
                "on {name}, a lease lives with the session of the process that took it, which would be this server: all leases end \
                 when it ends, and no other server can renew them. If one server that runs alone is enough, start it with \
                 --leases-end-with-this-server; else serve another store"
            );
            Err(Error::new(ErrorKind::Unsupported, message))
        }
        (true, true) => {
            let message = format!(
                "on {name}, leases stay when this server ends: start it without --leases-end-with-this-server"
            );
            Err(Error::new(ErrorKind::Invalid, message))
        }
    }
}
