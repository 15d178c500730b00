//! A load balancer in the process of the test: every HTTP request goes to the next server in turn.
//!
//! - A server that refuses the connection is passed over, as balancers do: nothing was sent to it.
//! - A server that dies after it got the request makes a 502 of the balancer's own, which says nothing about the effect.
//! - A client that goes away takes its request with it: the connection to the server ends, too.

use std::{
    convert::Infallible,
    fmt,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{Request, Response, StatusCode, body::Incoming, client, server, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{
    net::{TcpListener, TcpStream},
    task::{JoinHandle, JoinSet},
};

/// A balancer on a port of its own. Dropping it ends it, and every connection through it.
pub struct Balancer {
    address: SocketAddr,
    turns: Arc<Mutex<Turns>>,
    acceptor: JoinHandle<()>,
}

/// The servers, and whose turn it is.
#[derive(Debug)]
struct Turns {
    servers: Vec<SocketAddr>,
    next: usize,
    /// How many requests each server has answered.
    answered: Vec<(SocketAddr, u64)>,
}

impl Balancer {
    /// Starts a balancer in front of these servers.
    ///
    /// # Panics
    /// If no port is free, or outside of a tokio runtime.
    pub async fn start(servers: &[SocketAddr]) -> Balancer {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port is free");
        let address = listener.local_addr().expect("it has an address");
        let turns = Turns { servers: servers.to_vec(), next: 0, answered: Vec::new() };
        let turns = Arc::new(Mutex::new(turns));
        let acceptor = tokio::spawn(accept(listener, Arc::clone(&turns)));
        Balancer { address, turns, acceptor }
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Requests go to these servers from now on. Those that are under way stay where they are.
    pub fn set_servers(&self, servers: &[SocketAddr]) {
        lock(&self.turns).servers = servers.to_vec();
    }

    /// How many requests this server has answered.
    pub fn answered_by(&self, server: SocketAddr) -> u64 {
        lock(&self.turns)
            .answered
            .iter()
            .find(|(address, _)| *address == server)
            .map_or(0, |(_, count)| *count)
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        self.acceptor.abort();
    }
}

impl fmt::Debug for Balancer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Balancer")
            .field("address", &self.address)
            .field("turns", &*lock(&self.turns))
            .finish()
    }
}

impl Turns {
    /// All servers, beginning with the one whose turn it is.
    fn take(&mut self) -> Vec<SocketAddr> {
        self.next += 1;
        let mut servers = self.servers.clone();
        let first = self.next % servers.len().max(1);
        servers.rotate_left(first);
        servers
    }

    fn count(&mut self, server: SocketAddr) {
        match self.answered.iter_mut().find(|(address, _)| *address == server) {
            Some((_, count)) => *count += 1,
            None => self.answered.push((server, 1)),
        }
    }
}

fn lock(turns: &Mutex<Turns>) -> MutexGuard<'_, Turns> {
    turns.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn accept(listener: TcpListener, turns: Arc<Mutex<Turns>>) {
    // Dropping the set ends the connections with the balancer.
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let turns = Arc::clone(&turns);
        let service = service_fn(move |request| {
            let turns = Arc::clone(&turns);
            async move { Ok::<_, Infallible>(relay(&turns, request).await) }
        });
        connections
            .spawn(server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        while connections.try_join_next().is_some() {}
    }
}

async fn relay(turns: &Mutex<Turns>, request: Request<Incoming>) -> Response<Full<Bytes>> {
    let (head, body) = request.into_parts();
    let Ok(body) = body.collect().await else { return bad_gateway("the request was cut") };
    let request = Request::from_parts(head, Full::new(body.to_bytes()));
    let servers = lock(turns).take();
    for server in servers {
        let Ok(stream) = TcpStream::connect(server).await else { continue };
        return match forward(stream, request).await {
            Ok(answer) => {
                lock(turns).count(server);
                answer
            }
            Err(_) => bad_gateway("the server ended before its answer"),
        };
    }
    bad_gateway("no server accepts connections")
}

async fn forward(stream: TcpStream, request: Request<Full<Bytes>>) -> hyper::Result<Response<Full<Bytes>>> {
    let (mut sender, connection) = client::conn::http1::handshake(TokioIo::new(stream)).await?;
    // Dropping the set ends the connection with this future.
    let mut task = JoinSet::new();
    task.spawn(connection);
    let (head, body) = sender.send_request(request).await?.into_parts();
    Ok(Response::from_parts(head, Full::new(body.collect().await?.to_bytes())))
}

fn bad_gateway(why: &'static str) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::new(Bytes::from_static(why.as_bytes())));
    *answer.status_mut() = StatusCode::BAD_GATEWAY;
    answer
}
