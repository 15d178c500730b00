//! A TCP proxy in the process of the test, between a client and a real server, which injects network faults.
//!
//! The proxy does not interpret the bytes that it forwards. A partition holds bytes back and delivers them
//! when it heals, as TCP does. Bytes can be lost only together with their connection. Random delays are drawn
//! from a seed.
//!
//! 1. `accept` takes a connection of the client and connects to the server (`forward.rs`).
//! 2. A `DirectionForwarder` for each direction reads chunks of bytes.
//! 3. For each chunk, `ProxyFaults::next_action` decides what happens to it (`faults.rs`).

mod faults;
mod forward;
#[cfg(test)]
mod tests;

use std::{
    fmt,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    net::TcpListener,
    sync::{oneshot, watch},
    task::JoinHandle,
};

use faults::ProxyFaults;

/// The direction of bytes through the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    Requests,
    /// From the server to the client.
    Replies,
}

/// How a reply reaches the wrong request. A connection pool or proxy with a bug can do this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misdelivery {
    /// Two connections get each other's reply.
    Swap,
    /// The reply is delivered again, just before the next reply of its connection.
    Repeat,
    /// The previous reply of the same connection is delivered instead.
    Stale,
}

/// A proxy on a port of its own. Dropping it ends the proxy and resets every connection through it.
pub struct Proxy {
    port: u16,
    state: Arc<ProxyState>,
    acceptor: JoinHandle<()>,
}

struct ProxyState {
    server: SocketAddr,
    faults: Mutex<ProxyFaults>,
    /// Whether requests and replies are held back, by [`Direction`].
    held: watch::Sender<[bool; 2]>,
    /// The number of resets. A connection that sees it change is reset.
    resets: watch::Sender<u64>,
    /// The reply that waits to be swapped.
    swap_partner: Mutex<Option<SwapPartner>>,
}

/// A reply that waits for a reply of another connection, to be swapped with it.
struct SwapPartner {
    connection: u64,
    reply: Vec<u8>,
    exchange: oneshot::Sender<Vec<u8>>,
}

impl Proxy {
    /// Starts a proxy in front of the server on this port of 127.0.0.1, without faults at first.
    ///
    /// # Panics
    /// If no port is free, or outside of a tokio runtime.
    pub async fn start(server: u16, seed: u64) -> Proxy {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port is free");
        let port = listener.local_addr().expect("it has an address").port();
        let state = Arc::new(ProxyState {
            server: SocketAddr::from(([127, 0, 0, 1], server)),
            faults: Mutex::new(ProxyFaults::new(seed)),
            held: watch::Sender::new([false; 2]),
            resets: watch::Sender::new(0),
            swap_partner: Mutex::new(None),
        });
        let acceptor = tokio::spawn(forward::accept(listener, Arc::clone(&state)));
        Proxy { port, state, acceptor }
    }

    /// The port on which it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The number of connections that were made through it so far.
    pub fn connections(&self) -> u64 {
        self.state.faults().connections
    }

    /// Delays every chunk of bytes, in each direction, by a random time of up to `at_most`.
    pub fn delay(&self, at_most: Duration) {
        self.state.faults().delay_max = at_most;
    }

    /// Holds all bytes back, in both directions, without a reset or an end of any connection.
    pub fn black_hole(&self) {
        self.state.held.send_replace([true; 2]);
    }

    /// Holds all bytes of this direction back. The other direction does not change.
    pub fn hold(&self, direction: Direction) {
        self.state.held.send_modify(|held| held[direction as usize] = true);
    }

    /// Delivers the bytes that were held back, accepts connections again, and ends all misdelivery.
    pub fn heal(&self) {
        {
            let mut faults = self.state.faults();
            (faults.refuse, faults.misdeliver) = (false, [0; 3]);
        }
        self.state.held.send_replace([false; 2]);
    }

    /// Lets this many more bytes pass in this direction, and then cuts the connection that carried the last
    /// of them.
    pub fn cut_after(&self, direction: Direction, bytes: usize) {
        self.state.faults().cut_after[direction as usize] = Some(bytes);
    }

    /// Loses the next `count` replies, each together with its connection. The server has executed those
    /// requests.
    pub fn lose_replies(&self, count: u32) {
        self.state.faults().lose_replies = count;
    }

    /// Sends each of the next `count` requests to the server twice, the first time over a connection of its
    /// own.
    pub fn send_twice(&self, count: u32) {
        self.state.faults().send_twice = count;
    }

    /// Delivers the next `count` replies to the wrong request.
    ///
    /// A reply is the bytes of one `read` from the server. For [`Misdelivery::Swap`], `count` counts pairs. A
    /// reply for which no partner comes within a second is delivered unchanged and does not count.
    pub fn misdeliver(&self, how: Misdelivery, count: u32) {
        self.state.faults().misdeliver[how as usize] = count;
    }

    /// The number of replies (for a swap, of pairs) that were delivered to the wrong request so far.
    pub fn misdelivered(&self) -> u64 {
        self.state.faults().misdelivered
    }

    /// Resets every connection.
    pub fn reset(&self) {
        self.state.resets.send_modify(|resets| *resets += 1);
    }

    /// Resets every connection now, and every new connection at once, until it is healed.
    pub fn refuse(&self) {
        self.state.faults().refuse = true;
        self.reset();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.acceptor.abort();
        self.reset();
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy")
            .field("port", &self.port)
            .field("faults", &*self.state.faults())
            .finish_non_exhaustive()
    }
}

impl ProxyState {
    fn faults(&self) -> MutexGuard<'_, ProxyFaults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
