//! Forwards the bytes of connections, with the faults that are planned.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, PoisonError},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::oneshot,
};

use super::{Direction, Misdelivery, ProxyState, SwapPartner, faults::ChunkAction};

const CHUNK_SIZE: usize = 64 * 1024;
/// How long a reply waits for a reply of another connection, to be swapped with it.
const SWAP_TIMEOUT: Duration = Duration::from_secs(1);

/// Accepts connections until the proxy is dropped.
pub(super) async fn accept(listener: TcpListener, state: Arc<ProxyState>) {
    while let Ok((client, _)) = listener.accept().await {
        let (refused, connection) = {
            let mut faults = state.faults();
            faults.connections += 1;
            (faults.refuse, faults.connections)
        };
        if refused {
            // With zero linger, closing the socket sends a reset.
            let _ = client.set_zero_linger();
            continue;
        }
        tokio::spawn(forward(client, Arc::clone(&state), connection));
    }
}

/// Forwards one connection until either side closes it, a fault cuts it, or all connections are reset.
async fn forward(client: TcpStream, state: Arc<ProxyState>, connection: u64) {
    let mut resets = state.resets.subscribe();
    resets.mark_unchanged();
    let Ok(server) = TcpStream::connect(state.server).await else {
        let _ = client.set_zero_linger();
        return;
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let requests = DirectionForwarder::new(&state, Direction::Requests, connection);
    let replies = DirectionForwarder::new(&state, Direction::Replies, connection);
    let ended = tokio::select! {
        ended = requests.run(&mut from_client, &mut to_server) => ended,
        ended = replies.run(&mut from_server, &mut to_client) => ended,
        _ = resets.changed() => Err(io::ErrorKind::ConnectionReset.into()),
    };
    if ended.is_err() {
        let _ = to_client.as_ref().set_zero_linger();
        let _ = to_server.as_ref().set_zero_linger();
    }
}

/// Forwards one direction of one connection.
struct DirectionForwarder<'a> {
    state: &'a ProxyState,
    direction: Direction,
    connection: u64,
    /// The previous reply.
    previous: Vec<u8>,
    /// A reply that is delivered once more, before the next one.
    repeat: Option<Vec<u8>>,
}

impl<'a> DirectionForwarder<'a> {
    fn new(state: &'a ProxyState, direction: Direction, connection: u64) -> DirectionForwarder<'a> {
        DirectionForwarder { state, direction, connection, previous: Vec::new(), repeat: None }
    }

    /// Forwards until the sender closes its side (`Ok`) or a fault cuts the connection.
    async fn run(mut self, from: &mut OwnedReadHalf, to: &mut OwnedWriteHalf) -> io::Result<()> {
        let mut held = self.state.held.subscribe();
        let mut bytes = vec![0; CHUNK_SIZE];
        loop {
            let length = from.read(&mut bytes).await?;
            if length == 0 {
                return Ok(());
            }
            let delay = self.state.faults().random_delay();
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            // A partition holds the chunk back and does not lose it.
            let _ = held.wait_for(|held| !held[self.direction as usize]).await;
            self.pass(&bytes[..length], to).await?;
        }
    }

    async fn pass(&mut self, chunk: &[u8], to: &mut OwnedWriteHalf) -> io::Result<()> {
        if let Some(repeat) = self.repeat.take() {
            to.write_all(&repeat).await?;
        }
        let action = self.state.faults().next_action(self.direction, chunk.len());
        let cut = || Err(io::ErrorKind::ConnectionReset.into());
        match action {
            ChunkAction::Pass => to.write_all(chunk).await?,
            ChunkAction::PassThenCut(passing) => {
                to.write_all(&chunk[..passing]).await?;
                // A reset would discard bytes that the receiver has not read yet.
                tokio::time::sleep(Duration::from_millis(20)).await;
                return cut();
            }
            ChunkAction::Lose => return cut(),
            ChunkAction::SendTwice => {
                execute_once_more(self.state.server, chunk).await?;
                to.write_all(chunk).await?;
            }
            ChunkAction::Misdeliver(how) => {
                let reply = self.misdeliver(how, chunk).await;
                to.write_all(&reply).await?;
            }
        }
        if self.direction == Direction::Replies {
            self.previous = chunk.to_vec();
        }
        Ok(())
    }

    /// The reply that is delivered instead of `reply`.
    async fn misdeliver(&mut self, how: Misdelivery, reply: &[u8]) -> Vec<u8> {
        match how {
            Misdelivery::Swap => self.swap(reply).await,
            Misdelivery::Repeat => {
                self.repeat = Some(reply.to_vec());
                self.state.faults().count_misdelivered(how);
                reply.to_vec()
            }
            Misdelivery::Stale if self.previous.is_empty() => reply.to_vec(),
            Misdelivery::Stale => {
                self.state.faults().count_misdelivered(how);
                self.previous.clone()
            }
        }
    }

    /// Swaps the reply with a reply of another connection. Waits for one if there is none yet.
    async fn swap(&self, reply: &[u8]) -> Vec<u8> {
        let exchanged = {
            let mut partner = self.state.swap_partner.lock().unwrap_or_else(PoisonError::into_inner);
            match partner.take().filter(|partner| !partner.exchange.is_closed()) {
                Some(other) if other.connection != self.connection => {
                    let theirs = other.reply;
                    if other.exchange.send(reply.to_vec()).is_ok() {
                        self.state.faults().count_misdelivered(Misdelivery::Swap);
                        return theirs;
                    }
                    return reply.to_vec();
                }
                _ => {
                    let (exchange, exchanged) = oneshot::channel();
                    let connection = self.connection;
                    *partner = Some(SwapPartner { connection, reply: reply.to_vec(), exchange });
                    exchanged
                }
            }
        };
        match tokio::time::timeout(SWAP_TIMEOUT, exchanged).await {
            Ok(Ok(theirs)) => theirs,
            _ => reply.to_vec(),
        }
    }
}

/// Sends the request to the server over a new connection, and waits until the server replies.
async fn execute_once_more(server: SocketAddr, request: &[u8]) -> io::Result<()> {
    let mut stream = TcpStream::connect(server).await?;
    stream.write_all(request).await?;
    let mut reply = [0; 1024];
    let _first_bytes_suffice = stream.read(&mut reply).await?;
    Ok(())
}
