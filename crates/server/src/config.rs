//! What a server is told at its start.

use std::time::Duration;

use leasehold_api::{fields::StoreId, overview::STUCK_AFTER_MS};

use crate::access::Access;

/// The settings of a server.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Tells the store from others: the header `Leasehold-Store`.
    pub store: StoreId,
    /// Who may do what.
    pub access: Access,
    /// Host names under which the server is reached, besides the loopback ones. A request for another host is refused: a page
    /// on the web could have its name point here (DNS rebinding).
    pub hosts: Vec<String>,
    /// HTTPS. Without it the server speaks HTTP.
    #[cfg(feature = "tls")]
    pub tls: Option<crate::Tls>,
    /// The version of the program, for `info`.
    pub version: String,
    /// Serve a store where a lease lives with the session of the process that took it (ZooKeeper). The server runs alone, ends each
    /// lease itself when its ttl is over, and all leases end with the server.
    pub leases_end_with_server: bool,
    /// Leave a tombstone with every release, so that a proxy that repeats a `POST` cannot bring a released claim back.
    pub bury_always: bool,
    /// How many connections, streams and waiters.
    pub limits: ConnectionLimits,
    /// How long others may take.
    pub timeouts: Timeouts,
    /// How often the server takes a sample of all resources, for the overview and for events.
    pub sampling: Sampling,
}

impl Config {
    /// A server that asks for no token, with default limits.
    pub fn new(store: StoreId) -> Config {
        Config {
            store,
            access: Access::default(),
            hosts: Vec::new(),
            #[cfg(feature = "tls")]
            tls: None,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            leases_end_with_server: false,
            bury_always: false,
            limits: ConnectionLimits::default(),
            timeouts: Timeouts::default(),
            sampling: Sampling::default(),
        }
    }
}

/// How much one server takes on.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ConnectionLimits {
    /// Connections in all.
    pub connections: usize,
    /// Connections of one address. Not for loopback addresses: a proxy is there.
    pub connections_per_peer: usize,
    /// Requests at once on one HTTP/2 connection.
    pub streams: u32,
    /// Claims that wait, in all: one that waits in a list counts as one.
    pub waiters: usize,
}

impl Default for ConnectionLimits {
    fn default() -> ConnectionLimits {
        // More connections than waiters: over HTTP/1.1 each waiter has one of its own, and renewals need others.
        ConnectionLimits { connections: 24_000, connections_per_peer: 1000, streams: 256, waiters: 20_000 }
    }
}

/// How long others may take. After that the connection is closed, or the request is refused.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Timeouts {
    /// The first byte of a connection, and its TLS handshake.
    pub first_byte: Duration,
    /// The headers of a request, and the time between two requests of an HTTP/1.1 connection.
    pub headers: Duration,
    /// The body of a request.
    pub body: Duration,
    /// A peer that does not read its answer.
    pub write: Duration,
    /// A call of the store, unless the request says less or more.
    pub store: Duration,
    /// Draining.
    pub drain: Duration,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts {
            first_byte: Duration::from_secs(10),
            headers: Duration::from_secs(60),
            body: Duration::from_secs(10),
            write: Duration::from_secs(30),
            store: Duration::from_secs(10),
            drain: Duration::from_secs(10),
        }
    }
}

/// How a server takes samples of all resources of its store.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Sampling {
    /// The time between two samples while somebody asks for them: until a minute after the last request. Longer if a sample takes more than
    /// a tenth of this.
    pub every: Duration,
    /// The time between two samples while nobody asks, so that there is a history when somebody does. Longer if a sample takes more than a
    /// hundredth of this. `None`: none are taken, and the history is forgotten.
    pub idle_every: Option<Duration>,
    /// How many changes are remembered, for readers that come back.
    pub changes: usize,
    /// A resource is stuck when a claim has waited this long. `/v1/overview` says it as `stuck_after_ms`.
    pub stuck_after: Duration,
}

impl Default for Sampling {
    fn default() -> Sampling {
        Sampling {
            every: Duration::from_secs(2),
            idle_every: Some(Duration::from_secs(30)),
            changes: 4096,
            stuck_after: Duration::from_millis(STUCK_AFTER_MS),
        }
    }
}
