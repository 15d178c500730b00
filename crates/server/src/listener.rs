//! Accepts connections, counts them, and drains.
//!
//! A loop of its own, because a slow peer must cost a bounded time in every phase: the first byte, the headers, the body, the answer
//! (ADR 0075).

use std::{
    collections::HashMap,
    future::Future,
    io,
    net::IpAddr,
    pin::pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};

use crate::{config::ConnectionLimits, connection, router::ListenerKind, server::Shared};

/// The pause after a failed accept: the process is out of file descriptors, for example.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How many connections there may be for metrics.
const METRICS_CONNECTIONS: usize = 64;

/// Serves until `until` resolves, then drains.
pub(crate) async fn serve(shared: Arc<Shared>, listener: TcpListener, until: impl Future<Output = ()>) {
    let mut connections = Connections::new(ListenerKind::Api, shared.config.limits);
    let mut until = pin!(until);
    loop {
        tokio::select! {
            accepted = listener.accept() => connections.start(&shared, accepted).await,
            Some(_) = connections.tasks.join_next() => {}
            () = &mut until => break,
        }
    }
    shared.draining.send_replace(true);
    let drain = shared.config.timeouts.drain;
    if tokio::time::timeout(drain, connections.drain(&shared, &listener)).await.is_err() {
        tracing::warn!(
            open = connections.tasks.len(),
            "connections were still open at the end of draining: they are cut"
        );
    }
}

/// Serves metrics until the future is dropped.
pub(crate) async fn serve_metrics(shared: Arc<Shared>, listener: TcpListener) {
    let limits = ConnectionLimits { connections: METRICS_CONNECTIONS, ..shared.config.limits };
    let mut connections = Connections::new(ListenerKind::Metrics, limits);
    loop {
        tokio::select! {
            accepted = listener.accept() => connections.start(&shared, accepted).await,
            Some(_) = connections.tasks.join_next() => {}
        }
    }
}

struct Connections {
    kind: ListenerKind,
    tasks: JoinSet<()>,
    limits: ConnectionLimits,
    per_peer: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

impl Connections {
    fn new(kind: ListenerKind, limits: ConnectionLimits) -> Connections {
        Connections { kind, tasks: JoinSet::new(), limits, per_peer: Arc::default() }
    }

    async fn start(&mut self, shared: &Arc<Shared>, accepted: io::Result<(TcpStream, std::net::SocketAddr)>) {
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                return tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        };
        let counted = PeerCount::new(&self.per_peer, peer.ip(), self.limits.connections_per_peer);
        let Some(counted) = counted.filter(|_| self.tasks.len() < self.limits.connections) else {
            tracing::debug!(%peer, "a connection was refused: there are too many");
            shared.metrics.connection_refused();
            return; // dropped, which closes it
        };
        let (shared, kind) = (Arc::clone(shared), self.kind);
        self.tasks.spawn(async move {
            let _open = OpenConnection::new(&shared);
            connection::serve(Arc::clone(&shared), stream, peer, kind).await;
            drop(counted);
        });
    }

    /// Serves what still comes, mostly renewals and releases, until no connection is open.
    async fn drain(&mut self, shared: &Arc<Shared>, listener: &TcpListener) {
        while !self.tasks.is_empty() {
            tokio::select! {
                accepted = listener.accept() => self.start(shared, accepted).await,
                _ = self.tasks.join_next() => {}
            }
        }
    }
}

/// Counts a connection in the metrics while it lives.
struct OpenConnection<'a>(&'a AtomicUsize);

impl<'a> OpenConnection<'a> {
    fn new(shared: &'a Shared) -> OpenConnection<'a> {
        shared.connections.fetch_add(1, Ordering::Relaxed);
        OpenConnection(&shared.connections)
    }
}

impl Drop for OpenConnection<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Counts the connections of one address while it lives.
struct PeerCount {
    counts: Arc<Mutex<HashMap<IpAddr, usize>>>,
    peer: IpAddr,
}

impl PeerCount {
    /// `None` if the address has too many.
    fn new(counts: &Arc<Mutex<HashMap<IpAddr, usize>>>, peer: IpAddr, most: usize) -> Option<PeerCount> {
        let mut locked = counts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = locked.entry(peer).or_default();
        // Behind a proxy on this machine all peers have its address.
        if *count >= most && !peer.is_loopback() {
            return None;
        }
        *count += 1;
        Some(PeerCount { counts: Arc::clone(counts), peer })
    }
}

impl Drop for PeerCount {
    fn drop(&mut self) {
        let mut locked = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = locked.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                locked.remove(&self.peer);
            }
        }
    }
}

/// Resolves when the server begins to drain.
pub(crate) async fn drained(mut draining: watch::Receiver<bool>) {
    let _ = draining.wait_for(|is_draining| *is_draining).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_of_connections_of_one_peer_leave_room_for_others() {
        let (counts, most) = (Arc::default(), 1000);
        let peer = |last: u8| IpAddr::from([192, 0, 2, last]);
        let mut open: Vec<_> = (0..5000).filter_map(|_| PeerCount::new(&counts, peer(1), most)).collect();
        assert_eq!(open.len(), most);
        assert!(PeerCount::new(&counts, peer(2), most).is_some(), "another address");
        open.pop();
        assert!(PeerCount::new(&counts, peer(1), most).is_some(), "one of them has ended");
        let local = IpAddr::from([127, 0, 0, 1]);
        let proxied: Vec<_> = (0..5000).filter_map(|_| PeerCount::new(&counts, local, most)).collect();
        assert_eq!(proxied.len(), 5000, "behind a proxy on this machine, all have its address");
        drop((open, proxied));
        assert!(counts.lock().unwrap().is_empty(), "nothing is remembered of those that have gone");
    }
}
