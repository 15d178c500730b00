//! A server on a port of its own, and a small HTTP client.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "each test uses a part of it")]

use std::{net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{HeaderMap, Method, Request, Response, body::Incoming, client::conn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use leasehold::{Backend, Memory, System};
use leasehold_api::fields::StoreId;
use leasehold_server::{Access, Config, Roles, Server};
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::oneshot,
    task::JoinHandle,
};

pub const OWNER: &str = "0123456789abcdef0123456789abcdef";
pub const OTHER: &str = "fedcba9876543210fedcba9876543210";
/// Longer than anything takes on a loaded machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub struct TestServer {
    pub address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    pub task: JoinHandle<()>,
}

pub fn config() -> Config {
    let mut config = Config::new(StoreId::of("memory: of a test"));
    config.access = Access::Open(Roles::ALL);
    config
}

impl TestServer {
    pub async fn start() -> TestServer {
        TestServer::with(Arc::new(Memory::new()), config()).await
    }

    pub async fn with(backend: Arc<dyn Backend>, config: Config) -> TestServer {
        TestServer::run(Server::new(backend, Arc::new(System::current()), config).unwrap()).await
    }

    pub async fn run(server: Server) -> TestServer {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(server.run(listener, async {
            let _ = stopped.await;
        }));
        TestServer { address, stop: Some(stop), task }
    }

    /// Begins to drain.
    pub fn stop(&mut self) {
        drop(self.stop.take());
    }

    pub async fn connect(&self) -> Connection {
        Connection::http1(self.address).await
    }

    pub async fn post(&self, path: &str, body: Value) -> Answer {
        self.connect().await.post(path, &body).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.connect().await.get(path).await
    }

    pub async fn acquire(&self, resource: &str, owner: &str) -> Answer {
        self.post("/v1/acquire", json!({"resource": resource, "owner": owner, "ttl_ms": 30000})).await
    }

    /// How many claims are queued for the resource.
    pub async fn queue_length(&self, resource: &str) -> u64 {
        self.get(&format!("/v1/resource?name={resource}")).await.body["queue_length"].as_u64().unwrap()
    }

    /// Returns when this many claims are queued.
    pub async fn until_queued(&self, resource: &str, count: u64) {
        let all = async {
            while self.queue_length(resource).await != count {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, all).await.expect("the queue has another length");
    }
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Value,
    pub text: String,
}

impl Answer {
    pub async fn of(response: Response<Incoming>) -> Answer {
        let (head, body) = response.into_parts();
        let text = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
        let body = serde_json::from_str(&text).unwrap_or(Value::Null);
        Answer { status: head.status.as_u16(), headers: head.headers, body, text }
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// The status and the kind of a problem document.
    pub fn problem(&self) -> (u16, &str) {
        assert_eq!(self.header("content-type"), "application/problem+json", "{self:?}");
        assert_eq!(self.body["status"], json!(self.status));
        (self.status, self.body["kind"].as_str().unwrap())
    }
}

enum Sender {
    Http1(conn::http1::SendRequest<Full<Bytes>>),
    Http2(conn::http2::SendRequest<Full<Bytes>>),
}

pub struct Connection {
    sender: Sender,
    /// Aborting this closes the connection.
    pub task: JoinHandle<()>,
}

impl Connection {
    pub async fn http1(address: SocketAddr) -> Connection {
        let stream = TcpStream::connect(address).await.unwrap();
        let (sender, connection) = conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        let task = tokio::spawn(async move { drop(connection.await) });
        Connection { sender: Sender::Http1(sender), task }
    }

    pub async fn http2(address: SocketAddr) -> Connection {
        let stream = TcpStream::connect(address).await.unwrap();
        let (sender, connection) =
            conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        let task = tokio::spawn(async move { drop(connection.await) });
        Connection { sender: Sender::Http2(sender), task }
    }

    pub async fn send(&mut self, request: Request<Full<Bytes>>) -> hyper::Result<Answer> {
        Ok(Answer::of(self.start(request).await?).await)
    }

    /// Sends a request, and leaves the body of its answer unread: it may be endless.
    pub async fn start(&mut self, mut request: Request<Full<Bytes>>) -> hyper::Result<Response<Incoming>> {
        match &mut self.sender {
            Sender::Http1(sender) => {
                if !request.headers().contains_key("host") {
                    request.headers_mut().insert("host", "localhost".parse().unwrap());
                }
                sender.send_request(request).await
            }
            Sender::Http2(sender) => {
                *request.uri_mut() = format!("http://localhost{}", request.uri()).parse().unwrap();
                sender.send_request(request).await
            }
        }
    }

    /// Opens a stream of events, with these headers.
    pub async fn events(&mut self, headers: &[(&str, &str)]) -> Response<Incoming> {
        let mut request = Request::builder().uri("/v1/events").header("host", "localhost");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::default()).unwrap();
        match &mut self.sender {
            Sender::Http1(sender) => sender.send_request(request).await.unwrap(),
            Sender::Http2(_) => unimplemented!("HTTP/1.1 is enough here"),
        }
    }

    pub async fn post(&mut self, path: &str, body: &Value) -> Answer {
        self.send(post(path, body)).await.unwrap()
    }

    pub async fn get(&mut self, path: &str) -> Answer {
        let request = Request::builder().uri(path).body(Full::default()).unwrap();
        self.send(request).await.unwrap()
    }
}

/// A stream of server-sent events.
pub struct Events {
    body: Incoming,
    text: String,
    _connection: Connection,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Event {
    pub name: String,
    pub id: String,
    pub data: Value,
}

impl Events {
    pub async fn open(address: SocketAddr, headers: &[(&str, &str)]) -> Events {
        let mut connection = Connection::http1(address).await;
        let response = connection.events(headers).await;
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Events { body: response.into_body(), text: String::new(), _connection: connection }
    }

    /// The next event. `None` at the end of the stream. Looks at the store that found nothing are left out.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            let event = self.next_or_sampled().await;
            if event.as_ref().is_none_or(|event| event.name != "sampled") {
                return event;
            }
        }
    }

    /// The next event.
    pub async fn next_or_sampled(&mut self) -> Option<Event> {
        tokio::time::timeout(PATIENCE, self.read()).await.expect("no event comes")
    }

    async fn read(&mut self) -> Option<Event> {
        loop {
            while let Some((block, rest)) = self.text.split_once("\n\n") {
                let field = |name: &str| {
                    let mut lines = block.lines();
                    lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).map(str::to_owned)
                };
                let event = field("event").map(|name| Event {
                    name,
                    id: field("id").unwrap_or_default(),
                    data: serde_json::from_str(&field("data").unwrap()).unwrap(),
                });
                self.text = rest.to_owned();
                if event.is_some() {
                    return event;
                }
            }
            let frame = self.body.frame().await?.ok()?;
            self.text.push_str(std::str::from_utf8(frame.data_ref().unwrap()).unwrap());
        }
    }

    /// The next change, as its kind and its resource.
    pub async fn change(&mut self) -> (String, String) {
        let event = self.next().await.expect("the stream goes on");
        assert_eq!(event.name, "change", "{event:?}");
        let text = |name: &str| event.data[name].as_str().unwrap().to_owned();
        (text("kind"), text("resource"))
    }
}

pub fn post(path: &str, body: &Value) -> Request<Full<Bytes>> {
    let request =
        Request::builder().method(Method::POST).uri(path).header("content-type", "application/json");
    request.body(Full::from(body.to_string())).unwrap()
}

/// A claim that waits.
pub fn waiting(resource: &str, owner: &str, wait_ms: u64) -> Value {
    json!({"resource": resource, "owner": owner, "ttl_ms": 30000, "wait_ms": wait_ms})
}
