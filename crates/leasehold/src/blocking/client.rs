//! The blocking [`Client`].

use std::{future::Future, sync::Arc};

use leasehold_core::{Backend, BackendInfo, Event, NodeStatus, Resource, Result, Snapshot};

use super::{Election, Lease, LeaseRequest, RwLock, Semaphore, runtime::Runtime};
use crate::{client::ClientBuilder, detached::Detached};

/// Connects to the backend that the URL names, and makes a client of it. The URLs are those of [`connect`](crate::connect()).
///
/// # Errors
/// As [`connect`](crate::connect()); `Unavailable` if the thread that renews leases cannot be started.
pub fn connect(url: &str) -> Result<Client> {
    let runtime = Runtime::get()?;
    let client = runtime.call(crate::connect(url))?;
    Ok(Client { client, runtime })
}

/// Connects to the backend that the URL names, for [`Client::build`].
///
/// # Errors
/// As [`open`](crate::open()); `Unavailable` if the thread that renews leases cannot be started.
pub fn open(url: &str) -> Result<Arc<dyn Backend>> {
    Runtime::get()?.call(crate::open(url))
}

/// Makes requests for leases, and keeps granted leases alive, as the async [`Client`](crate::Client). Clones share
/// everything.
#[derive(Clone, Debug)]
pub struct Client {
    client: crate::Client,
    runtime: Runtime,
}

impl Client {
    /// A client with other settings than the defaults: a label, a namespace, a secret, a backend of your own.
    ///
    /// ```
    /// # fn main() -> Result<(), leasehold::Error> {
    /// use leasehold::blocking;
    ///
    /// let builder = leasehold::Client::builder(blocking::open("memory:")?).label("nightly");
    /// let leases = blocking::Client::build(builder)?;
    /// # leases.lease("report", "42").acquire()?.release()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// `Unavailable` if the thread that renews leases cannot be started.
    pub fn build(builder: ClientBuilder) -> Result<Client> {
        let runtime = Runtime::get()?;
        let client = runtime.wait(async { builder.build() });
        Ok(Client { client, runtime })
    }

    /// The async client behind this one. Its futures may be polled by any executor, also outside of tokio.
    pub fn as_async(&self) -> &crate::Client {
        &self.client
    }

    /// Waits on this thread for a future of the async API.
    ///
    /// # Panics
    /// In a process that was forked after this client was made: nothing would ever wake the future there.
    ///
    /// ```
    /// # fn main() -> Result<(), leasehold::Error> {
    /// let leases = leasehold::blocking::connect("memory:")?;
    /// let accounts = ["a", "b"].map(|id| leases.as_async().lease("account", id));
    /// let both = leases.wait_for(leases.as_async().all(accounts).acquire())?;
    /// leases.wait_for(both.release())?;
    /// # Ok(()) }
    /// ```
    pub fn wait_for<F: Future>(&self, future: F) -> F::Output {
        self.runtime.wait(future)
    }

    /// The same client in a namespace (a tenant).
    #[must_use]
    pub fn namespace(&self, namespace: &str) -> Client {
        Client { client: self.client.namespace(namespace), runtime: self.runtime.clone() }
    }

    /// A request for an exclusive lease of `kind/id`. An invalid name is reported by `acquire`.
    pub fn lease(&self, kind: &str, id: &str) -> LeaseRequest {
        LeaseRequest::new(self.client.lease(kind, id), &self.runtime)
    }

    /// A request for an exclusive lease of a [`Resource`].
    pub fn lease_of(&self, resource: &Resource) -> LeaseRequest {
        LeaseRequest::new(self.client.lease_of(resource), &self.runtime)
    }

    /// A semaphore: at most `capacity` permits at a time. All clients must use the same capacity.
    pub fn semaphore(&self, kind: &str, id: &str, capacity: u32) -> Semaphore {
        Semaphore::new(self.client.semaphore(kind, id, capacity), &self.runtime)
    }

    /// A semaphore of a [`Resource`].
    pub fn semaphore_of(&self, resource: &Resource, capacity: u32) -> Semaphore {
        Semaphore::new(self.client.semaphore_of(resource, capacity), &self.runtime)
    }

    /// A read-write lock of a [`Resource`].
    pub fn rwlock_of(&self, resource: &Resource) -> RwLock {
        RwLock::new(self.client.rwlock_of(resource), &self.runtime)
    }

    /// A read-write lock: many readers or one writer.
    pub fn rwlock(&self, kind: &str, id: &str) -> RwLock {
        RwLock::new(self.client.rwlock(kind, id), &self.runtime)
    }

    /// An election: one leader at a time, which all clients can see.
    pub fn election(&self, kind: &str, id: &str) -> Election {
        Election::new(self.client.election(kind, id), &self.runtime)
    }

    /// An election of a [`Resource`].
    pub fn election_of(&self, resource: &Resource) -> Election {
        Election::new(self.client.election_of(resource), &self.runtime)
    }

    /// Takes over a lease that was [detached](Lease::detach), in this process or another one.
    ///
    /// # Errors
    /// As the async [`adopt`](crate::Client::adopt).
    pub fn adopt(&self, detached: Detached) -> Result<Lease> {
        let lease = self.runtime.call(self.client.adopt(detached))?;
        Ok(Lease::new(lease, &self.runtime))
    }

    /// What the backend is, and what it guarantees.
    pub fn info(&self) -> &BackendInfo {
        self.client.info()
    }

    /// A listener to everything that happens to this client's claims from now on.
    pub fn events(&self) -> Events {
        Events { events: self.client.events(), runtime: self.runtime.clone() }
    }

    /// Reads the state of one resource.
    ///
    /// # Errors
    /// `Invalid` for an invalid name; the backend's error.
    pub fn look(&self, kind: &str, id: &str) -> Result<Snapshot> {
        self.runtime.call(self.client.look(kind, id))
    }

    /// Reads the state of a [`Resource`].
    ///
    /// # Errors
    /// The backend's error.
    pub fn look_at(&self, resource: &Resource) -> Result<Snapshot> {
        self.runtime.call(self.client.look_at(resource))
    }

    /// Reads all resources whose [keys](Resource::key) begin with `prefix`, in key order.
    ///
    /// # Errors
    /// The backend's error.
    pub fn list(&self, prefix: &str) -> Result<Vec<Snapshot>> {
        self.runtime.call(self.client.list(prefix))
    }

    /// Asks the servers of the store how they are.
    ///
    /// # Errors
    /// As the async [`nodes`](crate::Client::nodes).
    pub fn nodes(&self) -> Result<Vec<NodeStatus>> {
        self.runtime.call(self.client.nodes())
    }

    /// Refuses new claims, and waits until all leases that were dropped are released. Leases that are still held stay, and
    /// are kept alive.
    pub fn shutdown(&self) {
        self.runtime.wait(self.client.shutdown());
    }
}

/// The events of a client, as an iterator that waits for the next one. `Err(n)` if it was too slow and missed `n` events.
/// It ends when the client and its last lease are gone.
#[derive(Debug)]
pub struct Events {
    events: crate::Events,
    runtime: Runtime,
}

impl Iterator for Events {
    type Item = Result<Event, u64>;

    fn next(&mut self) -> Option<Result<Event, u64>> {
        self.runtime.wait(self.events.next())
    }
}
