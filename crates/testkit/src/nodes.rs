//! What tests of [`Client::nodes`] ask and check, the same for every store with servers.

use std::time::Duration;

use leasehold::{Client, NodeStatus};
use tokio::{net::TcpListener, time::Instant};

use crate::calls::eventually;

/// A server may take a second. The rest is for a loaded machine.
const BOUNDED: Duration = Duration::from_secs(5);
/// The password that the tests give their servers.
const PASSWORD: &str = "hunter2";

/// The servers of the store, within a bounded time, and without the password.
///
/// # Panics
/// When one of these is not so.
pub async fn nodes(client: &Client) -> Vec<NodeStatus> {
    let started = Instant::now();
    let nodes = client.nodes().await.expect("a dead server is no error");
    assert!(started.elapsed() < BOUNDED, "{:?}: {nodes:?}", started.elapsed());
    assert!(!format!("{nodes:?}").contains(PASSWORD), "no secrets: {nodes:?}");
    nodes
}

/// Why a server does not count, or that it does.
///
/// # Panics
/// If it counts and says why not, or does not count and says nothing.
pub fn why(node: &NodeStatus) -> &str {
    assert_eq!(node.counts, node.why.is_none(), "{node:?}");
    node.why.as_deref().unwrap_or("it counts")
}

/// Waits until the server refuses connections. One that was killed may still accept a connection, and reset it, until its last thread has
/// ended.
///
/// # Panics
/// When that takes too long.
pub async fn until_refused(client: &Client, index: usize) {
    eventually("the connection is refused", || async {
        nodes(client).await[index]
            .why
            .as_ref()
            .is_some_and(|why| why.to_lowercase().contains("connection refused"))
    })
    .await;
}

/// Starts a server that answers everything with the beginning of another protocol. Returns its port.
///
/// # Panics
/// If no port is free.
pub async fn server_of_another_protocol() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port is free");
    let port = listener.local_addr().expect("it listens").port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let _ = stream.readable().await;
            let _ = stream.try_write(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    port
}
