//! [`Client`], which makes requests for leases, and its builder.

use std::{fmt, sync::Arc, time::Duration};

use futures_core::Stream;
use leasehold_core::{
    Backend, BackendInfo, CommandOutcome, Environment, Error, ErrorKind, Event, FencingToken, Holder,
    Listing, NodeStatus, OperatorCommand, Page, Query, Resource, Result, ShareNumber, Snapshot, Verb,
};
use tokio::sync::broadcast;

use crate::{
    detached::Detached,
    engine::Engine,
    lease::Lease,
    primitives::{AllRequest, Barrier, CountDownLatch, Election, RwLock, Semaphore},
    request::LeaseRequest,
    stream::unfold,
    system::System,
};

/// Makes requests for leases of one backend, and keeps granted leases alive. Clones share everything.
///
/// Dropping the last clone does not end its leases: a lease keeps its client alive.
#[derive(Clone)]
pub struct Client {
    pub(crate) engine: Arc<Engine>,
    namespace: Option<Arc<str>>,
    secret: Option<Arc<[u8]>>,
}

impl Client {
    /// A client of this backend, on the current tokio runtime.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn new(backend: Arc<dyn Backend>) -> Client {
        Client::builder(backend).build()
    }

    /// A builder, for a client with other settings than the defaults.
    pub fn builder(backend: Arc<dyn Backend>) -> ClientBuilder {
        ClientBuilder {
            backend,
            environment: None,
            label: String::new(),
            process_id: std::process::id(),
            namespace: None,
            secret: None,
        }
    }

    /// The same client in a namespace (a tenant). The same name in two namespaces is two resources.
    #[must_use]
    pub fn namespace(&self, namespace: &str) -> Client {
        Client { namespace: Some(namespace.into()), ..self.clone() }
    }

    /// A request for an exclusive lease of `kind/id`. An invalid name is reported by `acquire`.
    pub fn lease(&self, kind: &str, id: &str) -> LeaseRequest {
        LeaseRequest::exclusive(self, self.resource(kind, id))
    }

    /// A request for an exclusive lease of a [`Resource`].
    pub fn lease_of(&self, resource: &Resource) -> LeaseRequest {
        LeaseRequest::exclusive(self, Ok(resource.clone()))
    }

    /// A semaphore: at most `capacity` permits at a time. All clients must use the same capacity.
    pub fn semaphore(&self, kind: &str, id: &str, capacity: u32) -> Semaphore {
        Semaphore::new(self, self.resource(kind, id), capacity)
    }

    /// A semaphore of a [`Resource`].
    pub fn semaphore_of(&self, resource: &Resource, capacity: u32) -> Semaphore {
        Semaphore::new(self, Ok(resource.clone()), capacity)
    }

    /// A read-write lock of a [`Resource`].
    pub fn rwlock_of(&self, resource: &Resource) -> RwLock {
        RwLock::new(self, Ok(resource.clone()))
    }

    /// A read-write lock: many readers or one writer.
    pub fn rwlock(&self, kind: &str, id: &str) -> RwLock {
        RwLock::new(self, self.resource(kind, id))
    }

    /// A latch that opens when each of its parts was counted down. All clients must use the same number of parts.
    pub fn count_down_latch(&self, kind: &str, id: &str, parts: u32) -> CountDownLatch {
        CountDownLatch::new(self, self.resource(kind, id), parts)
    }

    /// A barrier: each of its parties waits until all of them have arrived.
    pub fn barrier(&self, kind: &str, id: &str, parties: u32) -> Barrier {
        Barrier::new(self, kind, id, parties)
    }

    /// An election: one leader at a time, which all clients can see.
    pub fn election(&self, kind: &str, id: &str) -> Election {
        Election::new(self, self.resource(kind, id))
    }

    /// An election of a [`Resource`].
    pub fn election_of(&self, resource: &Resource) -> Election {
        Election::new(self, Ok(resource.clone()))
    }

    /// A request for several leases: all of them or none, without deadlock between callers.
    pub fn all<T: TokenKind>(&self, requests: impl IntoIterator<Item = LeaseRequest<T>>) -> AllRequest {
        AllRequest::new(self, requests)
    }

    /// Takes over a lease that was [detached](Lease::detach), in this process or another one.
    ///
    /// One round trip, which renews the lease.
    ///
    /// # Guarantees
    /// The lease has the same token. It was held without a gap.
    ///
    /// # Cancel safety
    /// If it is dropped part-way, the lease stays detached, and may have been renewed. Keep a clone of the `Detached` to
    /// try again.
    ///
    /// # Errors
    /// `Lost` if it is not held any more; `Unavailable` if the reply came too late; `ShutDown`; the backend's error.
    pub async fn adopt(&self, detached: Detached) -> Result<Lease> {
        detached.adopt(&self.engine).await
    }

    /// Where its time, random numbers and tasks come from.
    pub fn environment(&self) -> &Arc<dyn Environment> {
        &self.engine.environment
    }

    /// What the backend is, and what it guarantees.
    pub fn info(&self) -> &BackendInfo {
        self.engine.backend.info()
    }

    /// A listener to everything that happens to this client's claims from now on. If it falls 1024 events behind, it is told
    /// how many events it missed.
    pub fn events(&self) -> Events {
        Events(self.engine.telemetry.subscribe())
    }

    /// Reads the state of one resource.
    ///
    /// # Cancel safety
    /// It changes nothing.
    ///
    /// # Errors
    /// `Invalid` for an invalid name; the backend's error.
    pub async fn look(&self, kind: &str, id: &str) -> Result<Snapshot> {
        self.look_at(&self.resource(kind, id)?).await
    }

    /// Reads the state of a [`Resource`].
    ///
    /// # Cancel safety
    /// It changes nothing.
    ///
    /// # Errors
    /// The backend's error.
    pub async fn look_at(&self, resource: &Resource) -> Result<Snapshot> {
        let page = self.inspect(&Query::One(resource.clone())).await?;
        Ok(page.into_snapshots().pop().unwrap_or_else(|| Snapshot::empty(resource.clone())))
    }

    /// Reads all resources whose [keys](Resource::key) begin with `prefix`, in key order.
    ///
    /// # Cancel safety
    /// It changes nothing.
    ///
    /// # Errors
    /// The backend's error.
    pub async fn list(&self, prefix: &str) -> Result<Vec<Snapshot>> {
        let mut all = Vec::new();
        let mut listing = Some(Listing::of(prefix));
        while let Some(part) = listing.take() {
            let Page::Resources { snapshots, next } = self.inspect(&Query::Resources(part)).await? else {
                return Err(Error::new(
                    ErrorKind::Corrupt,
                    "the backend returned another kind of page than a list of resources",
                ));
            };
            all.extend(snapshots);
            listing = next.map(|next| Listing::of(prefix).after(next));
        }
        Ok(all)
    }

    /// Asks the servers of the store how they are: which of them count, why the others do not, how long they take to answer,
    /// and what their clocks say. Of a quorum (Redlock), these are all nodes of the URL.
    ///
    /// All servers are asked at once. One that does not answer within a second is reported with the reason; that is no error.
    ///
    /// # Cancel safety
    /// It changes nothing.
    ///
    /// # Errors
    /// `Unsupported` if the store has no servers: SQLite, memory; the backend's error.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// use leasehold::{Client, MemoryNode, Quorum, QuorumNode, System};
    /// use std::sync::Arc;
    ///
    /// let environment = Arc::new(System::current());
    /// let node = |number| Arc::new(MemoryNode::durable(&format!("node-{number}"), environment.clone()));
    /// let nodes: Vec<Arc<MemoryNode>> = (1..=3).map(node).collect();
    /// let of: Vec<Arc<dyn QuorumNode>> = nodes.iter().map(|node| node.clone() as _).collect();
    /// let leases = Client::new(Arc::new(Quorum::connect(of, Quorum::GATE, environment).await?));
    ///
    /// nodes[2].stop();
    /// for node in leases.nodes().await? {
    ///     match node.why {
    ///         None => println!("{} counts", node.name),
    ///         Some(why) => println!("{} does not count: {why}", node.name),
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn nodes(&self) -> Result<Vec<NodeStatus>> {
        match self.inspect(&Query::Nodes).await? {
            Page::Nodes(nodes) => Ok(nodes),
            _ => Err(Error::new(
                ErrorKind::Corrupt,
                "the backend returned another kind of page than the servers of its store",
            )),
        }
    }

    /// Reads one page of resources, of the audit trail, or of another query.
    ///
    /// # Cancel safety
    /// It changes nothing.
    ///
    /// # Errors
    /// `Unsupported` if the backend cannot answer this query; the backend's error.
    pub async fn inspect(&self, query: &Query) -> Result<Page> {
        let request = self.engine.backend.inspect(query);
        self.engine.call(Verb::Inspect, None, OPERATOR_TIMEOUT, request).await
    }

    /// Executes an operator's command, and records it in the audit trail.
    ///
    /// # Cancel safety
    /// If it is dropped part-way, the command may or may not be executed.
    ///
    /// # Errors
    /// `Invalid` if `by` or `why` is empty or too long; `Unsupported` if the backend has no operator commands; the backend's
    /// error.
    pub async fn order(&self, command: &OperatorCommand) -> Result<CommandOutcome> {
        for (field, text) in [("by", &command.by), ("why", &command.why)] {
            if text.trim().is_empty() || text.len() > OperatorCommand::TEXT_MAX {
                let message = format!(
                    "`{field}` of an operator command must have 1 to {} bytes",
                    OperatorCommand::TEXT_MAX
                );
                return Err(Error::new(ErrorKind::Invalid, message).on(&command.resource));
            }
        }
        let request = self.engine.backend.order(command);
        self.engine.call(Verb::Order, Some(&command.resource), OPERATOR_TIMEOUT, request).await
    }

    /// Reports that the place of the effect refused a stale token: as an event, in the log, and in the metric
    /// `leasehold_fencing_rejected_total{downstream}`.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # use leasehold::{Error, FencingToken, Resource};
    /// use leasehold::StaleTokenReport;
    ///
    /// # fn write() -> Result<(), Error> {
    /// #     Err(Error::stale(FencingToken::new(33)?, FencingToken::new(34)?).on(&Resource::new("order", "7")?))
    /// # }
    /// let leases = leasehold::connect("memory:").await?;
    /// if let Err(error) = write() {
    ///     // `None` if it failed for another reason than a stale token.
    ///     if let Some(report) = StaleTokenReport::of(&error, "orders") {
    ///         leases.report_stale_token(report);
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    pub fn report_stale_token(&self, report: StaleTokenReport<'_>) {
        let StaleTokenReport { resource, presented, highest, downstream } = report;
        self.engine.telemetry.stale_token(resource, presented, highest, downstream);
    }

    /// Refuses new claims, and waits until all leases that were dropped are released. Leases that are still held stay, and
    /// are kept alive.
    ///
    /// # Cancel safety
    /// If it is dropped part-way, new claims are refused all the same.
    pub async fn shutdown(&self) {
        self.engine.shut_down().await;
    }

    /// The number of leases and places in queues that are kept alive.
    pub fn watched(&self) -> usize {
        self.engine.watched()
    }

    pub(crate) fn resource(&self, kind: &str, id: &str) -> Result<Resource> {
        let resource = Resource::new(kind, id)?;
        self.namespace.as_ref().map_or(Ok(resource.clone()), |namespace| resource.in_namespace(namespace))
    }

    pub(crate) fn hashed(&self, resource: &Resource) -> Result<Resource> {
        let no_secret = || {
            Error::new(
                ErrorKind::Invalid,
                "a sensitive id needs a client with a secret: see ClientBuilder::secret",
            )
        };
        self.secret.as_ref().map(|secret| resource.hashed(secret)).ok_or_else(no_secret)
    }
}

/// A stale token that the place of the effect refused, for [`Client::report_stale_token`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StaleTokenReport<'a> {
    /// The resource of the token.
    pub resource: &'a Resource,
    /// The token that was presented.
    pub presented: FencingToken,
    /// The highest token that the place of the effect has seen.
    pub highest: FencingToken,
    /// The system that refused it. It is a label of a metric, so use few different names.
    pub downstream: &'static str,
}

impl<'a> StaleTokenReport<'a> {
    /// What an error of a fence says; `None` if it is not of kind `StaleToken`, or names no resource.
    pub fn of(error: &'a Error, downstream: &'static str) -> Option<StaleTokenReport<'a>> {
        let (presented, highest) = error.stale_token()?;
        Some(StaleTokenReport { resource: error.resource()?, presented, highest, downstream })
    }
}

/// How long an inspection or an operator command may take.
const OPERATOR_TIMEOUT: Duration = Duration::from_secs(10);

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("engine", &self.engine)
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

/// Builds a [`Client`].
#[must_use = "a builder does nothing until `.build()`"]
pub struct ClientBuilder {
    backend: Arc<dyn Backend>,
    environment: Option<Arc<dyn Environment>>,
    label: String,
    process_id: u32,
    namespace: Option<Arc<str>>,
    secret: Option<Arc<[u8]>>,
}

impl ClientBuilder {
    /// Where time, random numbers and tasks come from. Default: the host, and the current tokio runtime.
    pub fn environment(mut self, environment: Arc<dyn Environment>) -> Self {
        self.environment = Some(environment);
        self
    }

    /// A text for people who look up a holder: the name of this program. Default: empty.
    pub fn label(mut self, label: &str) -> Self {
        label.clone_into(&mut self.label);
        self
    }

    /// The process that others see as the holder, if it is not this one: a process that works under leases which this one acquires
    /// on its behalf. `0` if no process of this host can be named. Default: this process.
    pub fn process_id(mut self, process_id: u32) -> Self {
        self.process_id = process_id;
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

    /// Makes the client.
    ///
    /// # Panics
    /// Outside of a tokio runtime, unless an environment was set.
    pub fn build(self) -> Client {
        let environment = self.environment.unwrap_or_else(|| Arc::new(System::current()));
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let holder = Holder::new(&host, self.process_id, &self.label);
        let engine = Engine::start(self.backend, environment, holder);
        Client { engine, namespace: self.namespace, secret: self.secret }
    }
}

impl fmt::Debug for ClientBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientBuilder").field("backend", &self.backend).finish_non_exhaustive()
    }
}

/// A listener to the events of a client.
#[derive(Debug)]
pub struct Events(broadcast::Receiver<Event>);

impl Events {
    /// Waits for the next event. `Err(n)` if this listener was too slow and missed `n` events; `None` when the client and
    /// its last lease are gone.
    ///
    /// # Cancel safety
    /// No event is lost.
    pub async fn next(&mut self) -> Option<Result<Event, u64>> {
        match self.0.recv().await {
            Ok(event) => Some(Ok(event)),
            Err(broadcast::error::RecvError::Lagged(missed)) => Some(Err(missed)),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }

    /// The events as a [`Stream`], for the combinators of other crates. It ends when the client and its last lease are gone.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// use futures_util::StreamExt as _;
    ///
    /// let leases = leasehold::connect("memory:").await?;
    /// let mut losses = leases.events().into_stream().filter_map(async |event| match event {
    ///     Ok(event) => matches!(event.kind, leasehold::EventKind::Lost { .. }).then_some(event.resource),
    ///     Err(missed) => panic!("{missed} events were missed"),
    /// });
    /// # drop(leases);
    /// # let mut losses = std::pin::pin!(losses);
    /// # assert!(losses.next().await.is_none());
    /// # Ok(()) }
    /// ```
    pub fn into_stream(self) -> impl Stream<Item = Result<Event, u64>> + Send + Unpin + use<> {
        unfold(self, async |mut events: Events| {
            let next = events.next().await;
            (events, next)
        })
    }

    /// The next event, if there is one now. Does not report missed events.
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

/// The kind of number that a lease has: a [`FencingToken`] if it is exclusive, a [`ShareNumber`] if it is shared (ADR 0003).
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
