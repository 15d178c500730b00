//! A TCP proxy between a client and a ZooKeeper server that knows where each request and reply (a *frame*)
//! begins and ends, so that a test can lose, delay, repeat or replace the k-th one.
//!
//! Requests and replies are counted from the moment in which a fault is set. Heartbeats, watch events, the
//! handshake, and the requests with which a client sets its watches again after a reconnect are not counted.

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

/// Where the number of the request (xid) is in a frame: behind the length.
const XID: std::ops::Range<usize> = 4..8;

/// A fault that the proxy injects into one request or reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameFault {
    /// The server executes the request. Its reply is lost, and the connection with it.
    LoseReply,
    /// The reply arrives this much later. Later replies on this connection do not overtake it.
    LateReply(Duration),
    /// The reply arrives twice.
    RepeatReply,
    /// The request, and all later requests on this connection, reach the server when [`FrameProxy::deliver`]
    /// is called.
    HoldRequest,
}

/// The proxy. Dropping it ends the proxy and every connection through it.
pub(crate) struct FrameProxy {
    port: u16,
    state: Arc<ProxyState>,
    acceptor: JoinHandle<()>,
}

struct ProxyState {
    server: SocketAddr,
    faults: Mutex<PlannedFaults>,
    /// The number of calls of `deliver`.
    delivered: watch::Sender<u64>,
}

#[derive(Default)]
struct PlannedFaults {
    /// The fault, and how many requests or replies pass before it.
    next: Option<(FrameFault, u32)>,
    happened: bool,
    /// The delay of every reply.
    reply_delay: Duration,
    /// The replies since the recording began. `None` if nothing is recorded.
    recorded: Option<Vec<Vec<u8>>>,
    /// The bytes to deliver instead of a reply, and how many replies pass before that.
    replacement: Option<(Vec<u8>, u32)>,
}

impl FrameProxy {
    pub(crate) async fn start(server: u16) -> FrameProxy {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port is free");
        let port = listener.local_addr().expect("it has an address").port();
        let server = SocketAddr::from(([127, 0, 0, 1], server));
        let state =
            Arc::new(ProxyState { server, faults: Mutex::default(), delivered: watch::Sender::new(0) });
        let acceptor = tokio::spawn(accept(listener, Arc::clone(&state)));
        FrameProxy { port, state, acceptor }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Injects a fault into the k-th request or reply from now on; the first one is number 1.
    pub(crate) fn inject(&self, fault: FrameFault, number: u32) {
        let mut faults = self.state.faults();
        (faults.next, faults.happened) = (Some((fault, number - 1)), false);
    }

    /// Whether the fault has happened. If it has not, it is taken back.
    pub(crate) fn happened(&self) -> bool {
        let mut faults = self.state.faults();
        faults.next = None;
        faults.happened
    }

    /// Starts to record replies.
    pub(crate) fn record(&self) {
        self.state.faults().recorded = Some(Vec::new());
    }

    /// Ends the recording, and returns the replies since [`FrameProxy::record`].
    pub(crate) fn recorded(&self) -> Vec<Vec<u8>> {
        self.state.faults().recorded.take().unwrap_or_default()
    }

    /// Delivers `reply` instead of the k-th reply from now on, with the xid of the right one. This is what a
    /// proxy does that mixes up two sessions which happen to have sent the same number of requests.
    pub(crate) fn replace(&self, reply: Vec<u8>, number: u32) {
        self.state.faults().replacement = Some((reply, number - 1));
    }

    /// Whether a reply was replaced. If not, the replacement is taken back.
    pub(crate) fn replaced(&self) -> bool {
        self.state.faults().replacement.take().is_none()
    }

    /// Delays every reply that the server sends from now on.
    pub(crate) fn delay_replies(&self, delay: Duration) {
        self.state.faults().reply_delay = delay;
    }

    /// Delivers the requests that [`FrameFault::HoldRequest`] has held back to the server.
    pub(crate) fn deliver(&self) {
        self.state.delivered.send_modify(|count| *count += 1);
    }
}

impl Drop for FrameProxy {
    fn drop(&mut self) {
        self.acceptor.abort();
    }
}

impl ProxyState {
    fn faults(&self) -> MutexGuard<'_, PlannedFaults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a reply, and replaces it if a replacement is due.
    fn record_or_replace(&self, reply: &mut Vec<u8>) {
        let mut faults = self.faults();
        if let Some(recorded) = &mut faults.recorded {
            recorded.push(reply.clone());
        }
        match &mut faults.replacement {
            Some((_, left)) if *left > 0 => *left -= 1,
            Some((other, _)) => {
                other[XID].copy_from_slice(&reply[XID]);
                *reply = std::mem::take(other);
                faults.replacement = None;
            }
            None => {}
        }
    }

    /// The fault for a request or a reply that is about to pass.
    fn fault(&self, is_request: bool) -> Option<FrameFault> {
        let mut faults = self.faults();
        let (fault, left) = faults.next.as_mut()?;
        if is_request != (*fault == FrameFault::HoldRequest) {
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

async fn accept(listener: TcpListener, state: Arc<ProxyState>) {
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        connections.spawn(forward(client, Arc::clone(&state)));
    }
}

async fn forward(client: TcpStream, state: Arc<ProxyState>) {
    let Ok(server) = TcpStream::connect(state.server).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, mut to_client) = client.into_split();
    let (from_server, mut to_server) = server.into_split();
    let (replies, due) = mpsc::unbounded_channel();
    tokio::select! {
        _ = forward_requests(&state, from_client, &mut to_server) => {}
        _ = receive_replies(&state, from_server, replies) => {}
        _ = send_replies(due, &mut to_client) => {}
    }
}

/// Reads one request or reply, with the four bytes at its start that state its length.
async fn read_frame(from: &mut OwnedReadHalf) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    from.read_exact(&mut length).await?;
    let mut bytes = length.to_vec();
    bytes.resize(4 + usize::try_from(u32::from_be_bytes(length)).expect("64 bits"), 0);
    from.read_exact(&mut bytes[4..]).await?;
    Ok(bytes)
}

/// Whether this is a request of the program or the reply to one. Heartbeats, watch events and the like have
/// an xid below 1.
fn is_counted(frame: &[u8]) -> bool {
    frame.get(XID).is_some_and(|xid| i32::from_be_bytes([xid[0], xid[1], xid[2], xid[3]]) > 0)
}

async fn forward_requests(
    state: &ProxyState,
    mut from: OwnedReadHalf,
    to: &mut OwnedWriteHalf,
) -> io::Result<()> {
    to.write_all(&read_frame(&mut from).await?).await?;
    loop {
        let request = read_frame(&mut from).await?;
        if is_counted(&request) && state.fault(true).is_some() {
            let mut delivered = state.delivered.subscribe();
            delivered.mark_unchanged();
            let _ = delivered.changed().await;
        }
        to.write_all(&request).await?;
    }
}

/// When to deliver a reply, and its bytes.
type DueReply = (Instant, Vec<u8>);

async fn receive_replies(
    state: &ProxyState,
    mut from: OwnedReadHalf,
    to: mpsc::UnboundedSender<DueReply>,
) -> io::Result<()> {
    let (mut is_first, mut not_before) = (true, Instant::now());
    loop {
        let mut reply = read_frame(&mut from).await?;
        if !is_first && is_counted(&reply) {
            state.record_or_replace(&mut reply);
            match state.fault(false) {
                Some(FrameFault::LoseReply) => return Ok(()),
                Some(FrameFault::LateReply(by)) => not_before = Instant::now() + by,
                Some(FrameFault::RepeatReply) if to.send((not_before, reply.clone())).is_err() => {
                    return Ok(());
                }
                _ => {}
            }
        }
        is_first = false;
        let due = not_before.max(Instant::now() + state.faults().reply_delay);
        if to.send((due, reply)).is_err() {
            return Ok(());
        }
    }
}

async fn send_replies(mut due: mpsc::UnboundedReceiver<DueReply>, to: &mut OwnedWriteHalf) -> io::Result<()> {
    while let Some((at, reply)) = due.recv().await {
        tokio::time::sleep_until(at).await;
        to.write_all(&reply).await?;
    }
    Ok(())
}
