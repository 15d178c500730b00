//! The use of a connection by one request.
//!
//! A pool gives a server connection to the next client as soon as a reply has come. If this client had sent a second request
//! meanwhile and is then killed, the reply to the second request goes to that next client. So on a pooled connection
//! (ADR 0034):
//!
//! 1. A request reserves the connection ([`ConnectionUse::exclusive`]). There are as many permits for this as the URL allows
//!    connections; requests get them in the order of their arrival.
//! 2. When the reply was read and carries the right request id, the next request may use the connection.
//! 3. Otherwise (the request was cancelled, timed out or failed) the connection is not used again. It *drains*: it ends when
//!    the reply has come, or after three timeouts. At most as many connections drain as there are permits; beyond that, a
//!    draining connection keeps its permit.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use leasehold_core::Result;
use tokio::sync::OwnedSemaphorePermit;
use tokio_postgres::Row;

use crate::{
    connection::{Connection, ConnectionState, StoreError},
    connections::Connections,
};

/// The use of a connection by one request, from before it is sent until its reply was read.
pub(crate) struct ConnectionUse {
    connections: Arc<Connections>,
    connection: Arc<Connection>,
    /// Held while no other request may use the connection; `None` on a direct connection.
    permit: Option<OwnedSemaphorePermit>,
    /// Whether the reply was read, and the connection can be used again.
    is_answered: bool,
}

impl ConnectionUse {
    /// The use of a direct connection, where other requests may be under way at the same time.
    pub(crate) fn shared(connections: Arc<Connections>, connection: Arc<Connection>) -> ConnectionUse {
        ConnectionUse { connections, connection, permit: None, is_answered: false }
    }

    /// The use of a pooled connection that was [reserved](Connection::try_reserve).
    pub(crate) fn exclusive(
        connections: Arc<Connections>,
        connection: Arc<Connection>,
        permit: OwnedSemaphorePermit,
    ) -> ConnectionUse {
        ConnectionUse { connections, connection, permit: Some(permit), is_answered: false }
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Ends the use with the result of the statement, and removes a connection that cannot be used any more.
    pub(crate) fn finish(mut self, result: Result<Vec<Row>, StoreError>) -> Result<Vec<Row>> {
        let state = result.as_ref().map_or_else(|failed| failed.connection, |_| ConnectionState::Usable);
        self.is_answered = state == ConnectionState::Usable;
        match state {
            ConnectionState::Usable => {}
            ConnectionState::Unusable => self.connections.remove(&self.connection),
            ConnectionState::Misdelivered => self.connections.misdelivered(&self.connection),
        }
        result.map_err(|failed| failed.error)
    }
}

impl Drop for ConnectionUse {
    fn drop(&mut self) {
        let Some(permit) = self.permit.take() else { return };
        if self.is_answered {
            // Before the permit is returned: the request that gets it looks for a connection at once.
            self.connection.unreserve();
            return drop(permit);
        }
        // The reply may still come, and a pool could give it to another client: let the connection drain.
        self.connections.remove(&self.connection);
        let draining = DrainingConnection::begin(&self.connections.draining);
        // Cancelling requests quickly must not open connections without a limit: from a certain number on, each draining
        // connection keeps its permit.
        let permit = (draining.count > self.connections.config.connections).then_some(permit);
        let config = self.connections.config.clone();
        let ended = self.connection.closing().end_within(config.silence_max(), config);
        self.connections.environment.spawn(Box::pin(async move {
            ended.await;
            drop((draining, permit));
        }));
    }
}

/// Counts a connection that gets no further requests and waits for its last reply.
struct DrainingConnection {
    all: Arc<AtomicUsize>,
    /// The number of draining connections when this one began, with this one.
    count: usize,
}

impl DrainingConnection {
    fn begin(all: &Arc<AtomicUsize>) -> DrainingConnection {
        let count = all.fetch_add(1, Ordering::Relaxed) + 1;
        DrainingConnection { all: Arc::clone(all), count }
    }
}

impl Drop for DrainingConnection {
    fn drop(&mut self) {
        self.all.fetch_sub(1, Ordering::Relaxed);
    }
}
