//! A network that can fail: a TCP proxy in this process, between a client and a real server.
//!
//! It knows nothing of what it carries. A partition holds bytes back and delivers them when it heals, as TCP does; what
//! must be lost is lost with its connection. What is drawn by chance is drawn from a seed.

use std::{
    fmt, io,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{oneshot, watch},
    task::JoinHandle,
};

/// A direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    Requests,
    /// From the server to the client.
    Replies,
}

/// A proxy on a port of its own. Ends with this handle, and with it every connection through it.
pub struct Proxy {
    port: u16,
    state: Arc<Shared>,
    acceptor: JoinHandle<()>,
}

struct Shared {
    server: SocketAddr,
    faults: Mutex<Faults>,
    /// Whether requests and replies are held back.
    held: watch::Sender<[bool; 2]>,
    /// Counts resets: a connection that sees the number change is reset.
    resets: watch::Sender<u64>,
    parked: Mutex<Option<Parked>>,
}

#[derive(Debug)]
struct Faults {
    random: u64,
    delay_max: Duration,
    /// Bytes that still pass before the connection that carries them is cut.
    cut_after: [Option<usize>; 2],
    lose_replies: u32,
    send_twice: u32,
    /// How many replies are still to be delivered wrongly, by [`Misdelivery`].
    misdeliver: [u32; 3],
    misdelivered: u64,
    refuse: bool,
    connections: u64,
}

/// How a reply reaches the wrong request. A pool or proxy that has lost count does this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misdelivery {
    /// Two connections get each other's reply.
    Swap,
    /// The reply comes again, just before the next one of its connection.
    Repeat,
    /// The reply before it, of the same connection, comes in its place.
    Stale,
}

/// A reply that waits for one of another connection to be exchanged with.
struct Parked {
    connection: u64,
    reply: Vec<u8>,
    exchange: oneshot::Sender<Vec<u8>>,
}

/// What becomes of some bytes.
enum Fate {
    Pass,
    PassThenCut(usize),
    Lose,
    Twice,
    Misdeliver(Misdelivery),
}

impl Proxy {
    /// In front of the server on this port of the loopback. Nothing fails until told.
    ///
    /// # Panics
    /// If no port is free, or outside of a tokio runtime.
    pub async fn start(server: u16, seed: u64) -> Proxy {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port is free");
        let port = listener.local_addr().expect("it has an address").port();
        let faults = Faults {
            random: seed,
            delay_max: Duration::ZERO,
            cut_after: [None; 2],
            lose_replies: 0,
            send_twice: 0,
            misdeliver: [0; 3],
            misdelivered: 0,
            refuse: false,
            connections: 0,
        };
        let state = Arc::new(Shared {
            server: SocketAddr::from(([127, 0, 0, 1], server)),
            faults: Mutex::new(faults),
            held: watch::Sender::new([false; 2]),
            resets: watch::Sender::new(0),
            parked: Mutex::new(None),
        });
        let acceptor = tokio::spawn(accept(listener, Arc::clone(&state)));
        Proxy { port, state, acceptor }
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// How many connections were made through it.
    pub fn connections(&self) -> u64 {
        self.state.faults().connections
    }

    /// Everything takes up to this much longer, each way.
    pub fn delay(&self, at_most: Duration) {
        self.state.faults().delay_max = at_most;
    }

    /// Nothing comes through any more, and nobody is told: neither a reset nor an end.
    pub fn black_hole(&self) {
        self.state.held.send_replace([true; 2]);
    }

    /// Nothing comes through in this direction; the other one is as it was.
    pub fn hold(&self, way: Direction) {
        self.state.held.send_modify(|held| held[way as usize] = true);
    }

    /// What was held back comes through now, and connections are accepted.
    pub fn heal(&self) {
        {
            let mut faults = self.state.faults();
            (faults.refuse, faults.misdeliver) = (false, [0; 3]);
        }
        self.state.held.send_replace([false; 2]);
    }

    /// The connection that carries the n-th byte from now in this direction is cut after it.
    pub fn cut_after(&self, way: Direction, bytes: usize) {
        self.state.faults().cut_after[way as usize] = Some(bytes);
    }

    /// The next replies are lost, each with its connection: the server has executed what was asked.
    pub fn lose_replies(&self, count: u32) {
        self.state.faults().lose_replies = count;
    }

    /// The next requests reach the server twice, first over a connection of their own.
    pub fn send_twice(&self, count: u32) {
        self.state.faults().send_twice = count;
    }

    /// The next replies reach the wrong request.
    ///
    /// A reply is what one `read` from the server returns. For [`Misdelivery::Swap`] this counts pairs; a reply for which no
    /// partner comes within a second is delivered as it is, and does not count.
    pub fn misdeliver(&self, how: Misdelivery, count: u32) {
        self.state.faults().misdeliver[how as usize] = count;
    }

    /// How many replies (pairs of them, if swapped) reached the wrong request.
    pub fn misdelivered(&self) -> u64 {
        self.state.faults().misdelivered
    }

    /// Resets every connection.
    pub fn reset(&self) {
        self.state.resets.send_modify(|resets| *resets += 1);
    }

    /// Resets every connection, and each new one at once.
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

impl Shared {
    fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Faults {
    fn fate(&mut self, way: Direction, length: usize) -> Fate {
        if let Some(left) = &mut self.cut_after[way as usize] {
            if *left <= length {
                let passing = *left;
                self.cut_after[way as usize] = None;
                return Fate::PassThenCut(passing);
            }
            *left -= length;
        }
        match way {
            Direction::Replies if self.lose_replies > 0 => {
                self.lose_replies -= 1;
                Fate::Lose
            }
            Direction::Requests if self.send_twice > 0 => {
                self.send_twice -= 1;
                Fate::Twice
            }
            Direction::Replies => {
                let all = [Misdelivery::Swap, Misdelivery::Repeat, Misdelivery::Stale];
                let how = all.into_iter().find(|how| self.misdeliver[*how as usize] > 0);
                how.map_or(Fate::Pass, Fate::Misdeliver)
            }
            Direction::Requests => Fate::Pass,
        }
    }

    fn count_misdelivered(&mut self, how: Misdelivery) {
        let left = &mut self.misdeliver[how as usize];
        *left = left.saturating_sub(1);
        self.misdelivered += 1;
    }

    fn delay(&mut self) -> Duration {
        // splitmix64, as in `faulty`.
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let most = u64::try_from(self.delay_max.as_nanos()).unwrap_or(u64::MAX - 1);
        Duration::from_nanos((mixed ^ (mixed >> 31)) % (most + 1))
    }
}

async fn accept(listener: TcpListener, state: Arc<Shared>) {
    while let Ok((client, _)) = listener.accept().await {
        let (refused, connection) = {
            let mut faults = state.faults();
            faults.connections += 1;
            (faults.refuse, faults.connections)
        };
        if refused {
            let _ = client.set_zero_linger();
            continue;
        }
        tokio::spawn(carry(client, Arc::clone(&state), connection));
    }
}

/// Carries one connection until an end closes it, a fault cuts it, or all are reset.
async fn carry(client: TcpStream, state: Arc<Shared>, connection: u64) {
    let mut resets = state.resets.subscribe();
    resets.mark_unchanged();
    let Ok(server) = TcpStream::connect(state.server).await else {
        let _ = client.set_zero_linger();
        return;
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let requests =
        Pump { state: &state, way: Direction::Requests, connection, before: Vec::new(), again: None };
    let replies =
        Pump { state: &state, way: Direction::Replies, connection, before: Vec::new(), again: None };
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

/// Carries one direction of one connection.
struct Pump<'a> {
    state: &'a Shared,
    way: Direction,
    connection: u64,
    /// What came before, of replies.
    before: Vec<u8>,
    /// A reply to deliver once more, before the next one.
    again: Option<Vec<u8>>,
}

/// How long a reply waits for another one to be swapped with.
const PARTNER_WITHIN: Duration = Duration::from_secs(1);

impl Pump<'_> {
    /// `Ok` if it ended by itself.
    async fn run(mut self, from: &mut OwnedReadHalf, to: &mut OwnedWriteHalf) -> io::Result<()> {
        let mut held = self.state.held.subscribe();
        let mut bytes = vec![0; 64 * 1024];
        loop {
            let length = from.read(&mut bytes).await?;
            if length == 0 {
                return Ok(());
            }
            let delay = self.state.faults().delay();
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            // Held back, not lost.
            let _ = held.wait_for(|held| !held[self.way as usize]).await;
            self.pass(&bytes[..length], to).await?;
        }
    }

    async fn pass(&mut self, bytes: &[u8], to: &mut OwnedWriteHalf) -> io::Result<()> {
        if let Some(again) = self.again.take() {
            to.write_all(&again).await?;
        }
        let fate = self.state.faults().fate(self.way, bytes.len());
        let cut = || Err(io::ErrorKind::ConnectionReset.into());
        match fate {
            Fate::Pass => to.write_all(bytes).await?,
            Fate::PassThenCut(passing) => {
                to.write_all(&bytes[..passing]).await?;
                // So that what passed is read before the reset arrives.
                tokio::time::sleep(Duration::from_millis(20)).await;
                return cut();
            }
            Fate::Lose => return cut(),
            Fate::Twice => {
                replay(self.state.server, bytes).await?;
                to.write_all(bytes).await?;
            }
            Fate::Misdeliver(how) => {
                let reply = self.misdeliver(how, bytes).await;
                to.write_all(&reply).await?;
            }
        }
        if self.way == Direction::Replies {
            self.before = bytes.to_vec();
        }
        Ok(())
    }

    /// What is delivered instead.
    async fn misdeliver(&mut self, how: Misdelivery, reply: &[u8]) -> Vec<u8> {
        match how {
            Misdelivery::Swap => self.swap(reply).await,
            Misdelivery::Repeat => {
                self.again = Some(reply.to_vec());
                self.state.faults().count_misdelivered(how);
                reply.to_vec()
            }
            Misdelivery::Stale if self.before.is_empty() => reply.to_vec(),
            Misdelivery::Stale => {
                self.state.faults().count_misdelivered(how);
                self.before.clone()
            }
        }
    }

    /// Exchanges the reply with that of another connection; waits for one if need be.
    async fn swap(&self, reply: &[u8]) -> Vec<u8> {
        let arriving = {
            let mut parked = self.state.parked.lock().unwrap_or_else(PoisonError::into_inner);
            match parked.take().filter(|other| !other.exchange.is_closed()) {
                Some(other) if other.connection != self.connection => {
                    let theirs = other.reply;
                    if other.exchange.send(reply.to_vec()).is_ok() {
                        self.state.faults().count_misdelivered(Misdelivery::Swap);
                        return theirs;
                    }
                    return reply.to_vec();
                }
                _ => {
                    let (exchange, arriving) = oneshot::channel();
                    *parked = Some(Parked { connection: self.connection, reply: reply.to_vec(), exchange });
                    arriving
                }
            }
        };
        match tokio::time::timeout(PARTNER_WITHIN, arriving).await {
            Ok(Ok(theirs)) => theirs,
            _ => reply.to_vec(),
        }
    }
}

/// Has the server execute this once more, and waits for its answer.
async fn replay(server: SocketAddr, request: &[u8]) -> io::Result<()> {
    let mut stream = TcpStream::connect(server).await?;
    stream.write_all(request).await?;
    let mut answer = [0; 1024];
    let _any_of_it_will_do = stream.read(&mut answer).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn echo() -> u16 {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut read, mut write) = stream.split();
                    tokio::io::copy(&mut read, &mut write).await
                });
            }
        });
        port
    }

    async fn dial(proxy: &Proxy) -> TcpStream {
        TcpStream::connect(("127.0.0.1", proxy.port())).await.unwrap()
    }

    async fn says(stream: &mut TcpStream, text: &[u8]) -> io::Result<Vec<u8>> {
        stream.write_all(text).await?;
        let mut answer = vec![0; text.len()];
        stream.read_exact(&mut answer).await?;
        Ok(answer)
    }

    #[tokio::test]
    async fn it_carries_and_heals() {
        let proxy = Proxy::start(echo().await, 7).await;
        let mut stream = dial(&proxy).await;
        proxy.delay(Duration::from_millis(3));
        assert_eq!(says(&mut stream, b"hello").await.unwrap(), b"hello");
        proxy.black_hole();
        let silence = tokio::time::timeout(Duration::from_millis(100), says(&mut stream, b"again")).await;
        assert!(silence.is_err(), "nothing comes through");
        proxy.heal();
        let mut late = [0; 5];
        stream.read_exact(&mut late).await.unwrap();
        assert_eq!(&late, b"again", "held back, not lost");
    }

    #[tokio::test]
    async fn it_cuts_loses_and_resets() {
        let proxy = Proxy::start(echo().await, 7).await;
        proxy.cut_after(Direction::Replies, 3);
        let mut stream = dial(&proxy).await;
        stream.write_all(b"hello").await.unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        assert_eq!(answer, b"hel");

        proxy.lose_replies(1);
        assert!(says(&mut dial(&proxy).await, b"hello").await.is_err());
        let mut stream = dial(&proxy).await;
        assert_eq!(says(&mut stream, b"hello").await.unwrap(), b"hello");
        proxy.reset();
        assert!(says(&mut stream, b"hello").await.is_err());
        proxy.refuse();
        assert!(says(&mut dial(&proxy).await, b"hello").await.is_err());
        proxy.heal();
        assert_eq!(says(&mut dial(&proxy).await, b"hello").await.unwrap(), b"hello");
        assert_eq!(proxy.connections(), 5);
    }

    #[tokio::test]
    async fn it_delivers_replies_to_the_wrong_request() {
        let proxy = Proxy::start(echo().await, 7).await;
        let (mut one, mut other) = (dial(&proxy).await, dial(&proxy).await);
        proxy.misdeliver(Misdelivery::Swap, 1);
        let (for_one, for_other) = tokio::join!(says(&mut one, b"one"), says(&mut other, b"two"));
        assert_eq!((for_one.unwrap(), for_other.unwrap()), (b"two".to_vec(), b"one".to_vec()));
        assert_eq!(says(&mut one, b"uno").await.unwrap(), b"uno");

        proxy.misdeliver(Misdelivery::Stale, 1);
        assert_eq!(says(&mut one, b"due").await.unwrap(), b"uno", "the one before");
        assert_eq!(says(&mut one, b"tre").await.unwrap(), b"tre");

        proxy.misdeliver(Misdelivery::Repeat, 1);
        assert_eq!(says(&mut other, b"abc").await.unwrap(), b"abc");
        assert_eq!(says(&mut other, b"def").await.unwrap(), b"abc", "again");
        assert_eq!(says(&mut other, b"ghi").await.unwrap(), b"def", "and so on");
        assert_eq!(proxy.misdelivered(), 3);
    }
}
