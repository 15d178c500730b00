//! A network between a client and a ZooKeeper server that knows where a request and a reply begin and end, so that a test
//! can lose or delay the k-th one.
//!
//! Requests and replies are counted from the moment a fault is set. Heartbeats, watch events and the handshake are not
//! counted, and neither is what a client sends to set its watches again after a reconnect.

use std::{
    io,
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
    sync::{mpsc, watch},
    task::JoinHandle,
    time::Instant,
};

/// What happens to one request or reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The server has executed the request. Its reply is lost, and the connection with it.
    LoseReply,
    /// The reply arrives this much later, and those that follow it on this connection not before it.
    LateReply(Duration),
    /// The reply arrives twice.
    RepeatReply,
    /// The request and all that follow it on this connection reach the server when [`Frames::deliver`] is called.
    HoldRequest,
}

/// The proxy. Ends with this handle, and with it every connection through it.
pub(crate) struct Frames {
    port: u16,
    state: Arc<State>,
    acceptor: JoinHandle<()>,
}

struct State {
    server: SocketAddr,
    faults: Mutex<Faults>,
    /// Counts calls of `deliver`.
    delivered: watch::Sender<u64>,
}

#[derive(Default)]
struct Faults {
    /// The fault, and how many requests or replies pass before it.
    next: Option<(Fault, u32)>,
    happened: bool,
    /// How much later every reply arrives.
    lag: Duration,
    /// The replies since the recording began.
    recorded: Option<Vec<Vec<u8>>>,
    /// What is delivered instead of a reply, and how many replies pass before it.
    replacement: Option<(Vec<u8>, u32)>,
}

impl Frames {
    pub(crate) async fn start(server: u16) -> Frames {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port is free");
        let port = listener.local_addr().expect("it has an address").port();
        let server = SocketAddr::from(([127, 0, 0, 1], server));
        let state = Arc::new(State { server, faults: Mutex::default(), delivered: watch::Sender::new(0) });
        let acceptor = tokio::spawn(accept(listener, Arc::clone(&state)));
        Frames { port, state, acceptor }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Sets the fault of the k-th request or reply from now on; the first one is number 1.
    pub(crate) fn set(&self, fault: Fault, number: u32) {
        let mut faults = self.state.faults();
        (faults.next, faults.happened) = (Some((fault, number - 1)), false);
    }

    /// Takes a fault back that has not happened. Whether it has.
    pub(crate) fn happened(&self) -> bool {
        let mut faults = self.state.faults();
        faults.next = None;
        faults.happened
    }

    /// From now on replies are recorded.
    pub(crate) fn record(&self) {
        self.state.faults().recorded = Some(Vec::new());
    }

    /// The replies since [`Frames::record`].
    pub(crate) fn recorded(&self) -> Vec<Vec<u8>> {
        self.state.faults().recorded.take().unwrap_or_default()
    }

    /// Delivers this instead of the k-th reply from now on, as a proxy does that mixes up two sessions which happen to have
    /// made the same number of requests: only the number of the request is right.
    pub(crate) fn replace(&self, reply: Vec<u8>, number: u32) {
        self.state.faults().replacement = Some((reply, number - 1));
    }

    /// Whether a reply was replaced.
    pub(crate) fn replaced(&self) -> bool {
        self.state.faults().replacement.take().is_none()
    }

    /// Every reply that the server sends from now on arrives this much later.
    pub(crate) fn lag(&self, lag: Duration) {
        self.state.faults().lag = lag;
    }

    /// Requests that were held reach the server.
    pub(crate) fn deliver(&self) {
        self.state.delivered.send_modify(|count| *count += 1);
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        self.acceptor.abort();
    }
}

impl State {
    fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a reply, or replaces it by another one.
    fn mix_up(&self, reply: &mut Vec<u8>) {
        let mut faults = self.faults();
        if let Some(recorded) = &mut faults.recorded {
            recorded.push(reply.clone());
        }
        match &mut faults.replacement {
            Some((_, left)) if *left > 0 => *left -= 1,
            Some((other, _)) => {
                other[4..8].copy_from_slice(&reply[4..8]);
                *reply = std::mem::take(other);
                faults.replacement = None;
            }
            None => {}
        }
    }

    /// The fault of a request or a reply that is about to pass.
    fn fault(&self, is_request: bool) -> Option<Fault> {
        let mut faults = self.faults();
        let (fault, left) = faults.next.as_mut()?;
        if is_request != (*fault == Fault::HoldRequest) {
            return None;
        }
        if *left > 0 {
            *left -= 1;
            return None;
        }
        let fault = *fault;
        (faults.next, faults.happened) = (None, true);
        Some(fault)
    }
}

async fn accept(listener: TcpListener, state: Arc<State>) {
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        connections.spawn(carry(client, Arc::clone(&state)));
    }
}

async fn carry(client: TcpStream, state: Arc<State>) {
    let Ok(server) = TcpStream::connect(state.server).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, mut to_client) = client.into_split();
    let (from_server, mut to_server) = server.into_split();
    let (replies, due) = mpsc::unbounded_channel();
    tokio::select! {
        _ = requests(&state, from_client, &mut to_server) => {}
        _ = receive(&state, from_server, replies) => {}
        _ = send(due, &mut to_client) => {}
    }
}

/// Reads one request or reply with the four bytes that say its length.
async fn frame(from: &mut OwnedReadHalf) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    from.read_exact(&mut length).await?;
    let mut bytes = length.to_vec();
    bytes.resize(4 + usize::try_from(u32::from_be_bytes(length)).expect("64 bits"), 0);
    from.read_exact(&mut bytes[4..]).await?;
    Ok(bytes)
}

/// Whether it is a request of the program or the reply to one.
fn counts(frame: &[u8]) -> bool {
    frame.get(4..8).is_some_and(|xid| i32::from_be_bytes([xid[0], xid[1], xid[2], xid[3]]) > 0)
}

async fn requests(state: &State, mut from: OwnedReadHalf, to: &mut OwnedWriteHalf) -> io::Result<()> {
    to.write_all(&frame(&mut from).await?).await?;
    loop {
        let request = frame(&mut from).await?;
        if counts(&request) && state.fault(true).is_some() {
            let mut delivered = state.delivered.subscribe();
            delivered.mark_unchanged();
            let _ = delivered.changed().await;
        }
        to.write_all(&request).await?;
    }
}

type Reply = (Instant, Vec<u8>);

async fn receive(state: &State, mut from: OwnedReadHalf, to: mpsc::UnboundedSender<Reply>) -> io::Result<()> {
    let (mut is_first, mut not_before) = (true, Instant::now());
    loop {
        let mut reply = frame(&mut from).await?;
        if !is_first && counts(&reply) {
            state.mix_up(&mut reply);
            match state.fault(false) {
                Some(Fault::LoseReply) => return Ok(()),
                Some(Fault::LateReply(by)) => not_before = Instant::now() + by,
                Some(Fault::RepeatReply) if to.send((not_before, reply.clone())).is_err() => return Ok(()),
                _ => {}
            }
        }
        is_first = false;
        let due = not_before.max(Instant::now() + state.faults().lag);
        if to.send((due, reply)).is_err() {
            return Ok(());
        }
    }
}

async fn send(mut due: mpsc::UnboundedReceiver<Reply>, to: &mut OwnedWriteHalf) -> io::Result<()> {
    while let Some((at, reply)) = due.recv().await {
        tokio::time::sleep_until(at).await;
        to.write_all(&reply).await?;
    }
    Ok(())
}
