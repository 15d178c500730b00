//! The client: where requests come from.

use std::{fmt, sync::Arc, time::Duration};

use leasehold_core::{
    Backend, BackendInfo, CommandOutcome, Environment, Error, ErrorKind, Event, FencingToken, Holder,
    Listing, OperatorCommand, Page, Query, Resource, Result, ShareNumber, Snapshot, Verb,
};
use tokio::sync::broadcast;

use crate::{
    detached::Detached,
    engine::Engine,
    lease::Lease,
    primitives::{AllRequest, Election, RwLock, Semaphore},
    request::LeaseRequest,
    system::System,
};

/// Makes requests for leases of one backend, and keeps alive what they are granted. Clones share everything.
///
/// Dropping the last clone ends nothing that is held: leases keep their client alive.
#[derive(Clone)]
pub struct Client {
    pub(crate) engine: Arc<Engine>,
    namespace: Option<Arc<str>>,
    secret: Option<Arc<[u8]>>,
}

impl Client {
    /// A client of this backend, on the runtime that this is called in.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn new(backend: Arc<dyn Backend>) -> Client {
        Client::builder(backend).build()
    }

    /// A client with something other than the defaults.
    pub fn builder(backend: Arc<dyn Backend>) -> ClientBuilder {
        ClientBuilder { backend, environment: None, label: String::new(), namespace: None, secret: None }
    }

    /// The same client in a namespace (a tenant): its resources are apart from those of all others.
    #[must_use]
    pub fn namespace(&self, namespace: &str) -> Client {
        Client { namespace: Some(namespace.into()), ..self.clone() }
    }

    /// An exclusive lease of `kind/id`. A bad name is reported by `acquire`.
    pub fn lease(&self, kind: &str, id: &str) -> LeaseRequest {
        LeaseRequest::exclusive(self, self.resource(kind, id))
    }

    /// An exclusive lease of a resource that you have already.
    pub fn lease_of(&self, resource: &Resource) -> LeaseRequest {
        LeaseRequest::exclusive(self, Ok(resource.clone()))
    }

    /// At most `capacity` permits at a time. All who use it must agree on the capacity.
    pub fn semaphore(&self, kind: &str, id: &str, capacity: u32) -> Semaphore {
        Semaphore::new(self, self.resource(kind, id), capacity)
    }

    /// Many readers or one writer.
    pub fn rwlock(&self, kind: &str, id: &str) -> RwLock {
        RwLock::new(self, self.resource(kind, id))
    }

    /// One leader, whom all can see.
    pub fn election(&self, kind: &str, id: &str) -> Election {
        Election::new(self, self.resource(kind, id))
    }

    /// Several at once: all or none, without deadlock between callers.
    pub fn all<T: TokenKind>(&self, requests: impl IntoIterator<Item = LeaseRequest<T>>) -> AllRequest {
        AllRequest::new(self, requests)
    }

    /// Takes up a lease that was [detached](Lease::detach), here or in another process.
    ///
    /// One round trip, which renews it.
    ///
    /// # Cancel safety
    /// Dropped part-way, the lease is as it was, perhaps renewed; the `Detached` is gone with the call.
    ///
    /// # Errors
    /// `Lost` if it is not held any more.
    pub async fn adopt(&self, detached: Detached) -> Result<Lease> {
        detached.adopt(&self.engine).await
    }

    /// Where its time, chance and tasks come from.
    pub fn environment(&self) -> &Arc<dyn Environment> {
        &self.engine.environment
    }

    /// What the backend is and promises.
    pub fn info(&self) -> &BackendInfo {
        self.engine.backend.info()
    }

    /// Everything that happens to this client's claims from now on. A listener that falls 1024 events behind is
    /// told how many it missed.
    pub fn events(&self) -> Events {
        Events(self.engine.telemetry.subscribe())
    }

    /// One resource as it is now.
    ///
    /// # Errors
    /// `Invalid` for a bad name; whatever the backend says.
    pub async fn look(&self, kind: &str, id: &str) -> Result<Snapshot> {
        let resource = self.resource(kind, id)?;
        let page = self.inspect(&Query::One(resource.clone())).await?;
        Ok(page.into_snapshots().pop().unwrap_or_else(|| Snapshot::empty(resource)))
    }

    /// All resources whose [keys](Resource::key) begin so, page after page, in key order.
    ///
    /// # Errors
    /// Whatever the backend says.
    pub async fn list(&self, prefix: &str) -> Result<Vec<Snapshot>> {
        let mut all = Vec::new();
        let mut listing = Some(Listing::of(prefix));
        while let Some(part) = listing.take() {
            let Page::Resources { snapshots, next } = self.inspect(&Query::Resources(part)).await? else {
                return Err(Error::new(ErrorKind::Corrupt, "the backend answered another question"));
            };
            all.extend(snapshots);
            listing = next.map(|next| Listing::of(prefix).after(next));
        }
        Ok(all)
    }

    /// Resources or the audit trail, a page at a time.
    ///
    /// # Errors
    /// Whatever the backend says.
    pub async fn inspect(&self, query: &Query) -> Result<Page> {
        let request = self.engine.backend.inspect(query);
        self.engine.call(Verb::Inspect, None, LOOK_AT_MOST, request).await
    }

    /// An operator's order.
    ///
    /// # Errors
    /// `Invalid` if it says not who gives it or why; whatever the backend says.
    pub async fn order(&self, order: &OperatorCommand) -> Result<CommandOutcome> {
        for (what, text) in [("who gives it", &order.by), ("why", &order.why)] {
            if text.trim().is_empty() || text.len() > OperatorCommand::TEXT_MAX {
                let message = format!("an order says {what}, in 1 to {} bytes", OperatorCommand::TEXT_MAX);
                return Err(Error::new(ErrorKind::Invalid, message).on(&order.resource));
            }
        }
        let request = self.engine.backend.order(order);
        self.engine.call(Verb::Order, Some(&order.resource), LOOK_AT_MOST, request).await
    }

    /// Reports that a stale token was refused where the effect happens: as an event, in the log, and in
    /// `leasehold_fencing_rejected_total{downstream}`.
    pub fn report_stale_token(
        &self,
        resource: &Resource,
        presented: FencingToken,
        highest: FencingToken,
        downstream: &'static str,
    ) {
        self.engine.telemetry.stale_token(resource, presented, highest, downstream);
    }

    /// Refuses new claims, and resolves when everything that was dropped has been given back. Leases that are still
    /// in someone's hand stay, and are kept alive.
    ///
    /// # Cancel safety
    /// Dropped part-way, new claims are refused all the same.
    pub async fn shutdown(&self) {
        self.engine.shut_down().await;
    }

    /// How many leases and places in line are being kept alive.
    pub fn watched(&self) -> usize {
        self.engine.watched()
    }

    pub(crate) fn resource(&self, kind: &str, id: &str) -> Result<Resource> {
        let resource = Resource::new(kind, id)?;
        self.namespace.as_ref().map_or(Ok(resource.clone()), |namespace| resource.in_namespace(namespace))
    }

    pub(crate) fn hashed(&self, resource: &Resource) -> Result<Resource> {
        let no_secret = || Error::new(ErrorKind::Invalid, "a sensitive id needs the client to have a secret");
        self.secret.as_ref().map(|secret| resource.hashed(secret)).ok_or_else(no_secret)
    }
}

const LOOK_AT_MOST: Duration = Duration::from_secs(10);

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("engine", &self.engine)
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

/// A client in the making.
#[must_use = "a builder does nothing until `.build()`"]
pub struct ClientBuilder {
    backend: Arc<dyn Backend>,
    environment: Option<Arc<dyn Environment>>,
    label: String,
    namespace: Option<Arc<str>>,
    secret: Option<Arc<[u8]>>,
}

impl ClientBuilder {
    /// Where time, chance and tasks come from. Default: the host, and the runtime that `build` is called in.
    pub fn environment(mut self, environment: Arc<dyn Environment>) -> Self {
        self.environment = Some(environment);
        self
    }

    /// What this program is, for people who look at who holds what. Default: empty.
    pub fn label(mut self, label: &str) -> Self {
        label.clone_into(&mut self.label);
        self
    }

    /// A namespace (a tenant) for all requests. Default: none.
    pub fn namespace(mut self, namespace: &str) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// The secret that [sensitive](LeaseRequest::sensitive) ids are hashed with. Default: none.
    pub fn secret(mut self, secret: &[u8]) -> Self {
        self.secret = Some(secret.into());
        self
    }

    /// The client.
    ///
    /// # Panics
    /// Outside of a tokio runtime, unless an environment was given.
    pub fn build(self) -> Client {
        let environment = self.environment.unwrap_or_else(|| Arc::new(System::current()));
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let holder = Holder::new(&host, std::process::id(), &self.label);
        let engine = Engine::start(self.backend, environment, holder);
        Client { engine, namespace: self.namespace, secret: self.secret }
    }
}

impl fmt::Debug for ClientBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientBuilder").field("backend", &self.backend).finish_non_exhaustive()
    }
}

/// What happens to a client's claims.
#[derive(Debug)]
pub struct Events(broadcast::Receiver<Event>);

impl Events {
    /// The next event; `Err(n)` if this listener was too slow and missed `n` of them. None when the client and its
    /// last lease are gone.
    ///
    /// # Cancel safety
    /// Nothing is missed.
    pub async fn next(&mut self) -> Option<Result<Event, u64>> {
        match self.0.recv().await {
            Ok(event) => Some(Ok(event)),
            Err(broadcast::error::RecvError::Lagged(missed)) => Some(Err(missed)),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }

    /// The next event, if there is one already.
    pub fn try_next(&mut self) -> Option<Event> {
        loop {
            match self.0.try_recv() {
                Ok(event) => return Some(event),
                Err(broadcast::error::TryRecvError::Lagged(_)) => {}
                Err(_) => return None,
            }
        }
    }
}

/// What a lease can show: a [`FencingToken`] if it is exclusive, a [`ShareNumber`] if it is shared.
pub trait TokenKind: Copy + fmt::Debug + fmt::Display + Send + Sync + private::Sealed + 'static {
    #[doc(hidden)]
    fn from_grant(token: FencingToken) -> Self;
}
impl TokenKind for FencingToken {
    fn from_grant(token: FencingToken) -> FencingToken {
        token
    }
}
impl TokenKind for ShareNumber {
    fn from_grant(token: FencingToken) -> ShareNumber {
        token.into()
    }
}
mod private {
    pub trait Sealed {}
    impl Sealed for leasehold_core::FencingToken {}
    impl Sealed for leasehold_core::ShareNumber {}
}
