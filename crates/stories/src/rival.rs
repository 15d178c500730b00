//! The runner's own claims, straight to the server: others that want the same resources.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{Request, client::conn::http1};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinHandle,
};

use crate::driver::PATIENCE;

/// The longest wait that the server takes.
const WAIT_MS_MAX: u64 = 60_000;

/// Somebody else, who wants the same resources and is never disturbed.
#[derive(Clone, Debug)]
pub(crate) struct Rival {
    port: u16,
    token: Option<String>,
    owner: String,
}

/// An answer of the server, and when it arrived.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) at: Instant,
    pub(crate) status: u16,
    pub(crate) body: Value,
}

impl Reply {
    /// That the rival holds the resource now.
    #[track_caller]
    pub(crate) fn granted(self) -> Reply {
        assert_eq!(self.status, 200, "the rival should hold it: {}", self.body);
        self
    }

    /// That somebody else holds it.
    #[track_caller]
    pub(crate) fn contended(self) -> Reply {
        assert_eq!(self.status, 423, "somebody else should hold it: {}", self.body);
        self
    }

    pub(crate) fn token(&self) -> &str {
        self.body["token"].as_str().unwrap_or_default()
    }
}

impl Rival {
    pub(crate) fn new(port: u16, token: Option<String>) -> Rival {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).expect("the system has random numbers");
        let owner = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Rival { port, token, owner }
    }

    fn claim(&self, resource: &str) -> Value {
        json!({"resource": resource, "owner": self.owner, "ttl_ms": 30_000, "host": "rival", "pid": 1, "label": "the rival"})
    }

    /// Asks once.
    pub(crate) async fn try_acquire(&self, resource: &str) -> Reply {
        self.post("/v1/acquire", self.claim(resource)).await
    }

    /// Waits in the queue until it is granted, in the background.
    pub(crate) fn acquire(&self, resource: &str) -> JoinHandle<Reply> {
        let (rival, mut claim) = (self.clone(), self.claim(resource));
        claim["wait_ms"] = json!(WAIT_MS_MAX);
        tokio::spawn(async move { rival.post("/v1/acquire", claim).await })
    }

    /// Whether it still holds the resource.
    pub(crate) async fn still_holds(&self, resource: &str) -> bool {
        let renewal = json!({"resource": resource, "owner": self.owner, "ttl_ms": 30_000});
        self.post("/v1/renew", renewal).await.body["verdict"] == "kept"
    }

    pub(crate) async fn release(&self, resource: &str) {
        let reply = self.post("/v1/release", json!({"resource": resource, "owner": self.owner})).await;
        assert_eq!(reply.status, 200, "{}", reply.body);
    }

    /// The resource as the server sees it.
    pub(crate) async fn look(&self, resource: &str) -> Value {
        self.get(&format!("/v1/resource?name={resource}")).await
    }

    /// The holders' tokens.
    pub(crate) async fn holders(&self, resource: &str) -> Vec<String> {
        let seen = self.look(resource).await;
        let holders = seen["holders"].as_array().cloned().unwrap_or_default();
        holders.iter().filter_map(|holder| Some(holder["token"].as_str()?.to_owned())).collect()
    }

    /// Waits until so many claims wait for the resource.
    pub(crate) async fn await_queue(&self, resource: &str, length: u64) {
        let ends_at = Instant::now() + PATIENCE;
        loop {
            let seen = self.look(resource).await;
            if seen["queue_length"] == length {
                return;
            }
            assert!(Instant::now() < ends_at, "{length} claims should wait for {resource}: {seen}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until so many claims hold the resource.
    pub(crate) async fn await_holders(&self, resource: &str, count: usize) {
        let ends_at = Instant::now() + PATIENCE;
        loop {
            let holders = self.holders(resource).await;
            if holders.len() == count {
                return;
            }
            assert!(Instant::now() < ends_at, "{count} claims should hold {resource}: {holders:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// How many requests the server counts on this route.
    pub(crate) async fn requests(&self, route: &str) -> u64 {
        self.metric(&format!("leasehold_http_requests_total{{route=\"{route}\"")).await
    }

    /// The sum of the metrics that begin with this.
    async fn metric(&self, start: &str) -> u64 {
        let metrics = self.get("/metrics").await;
        let lines =
            metrics.as_str().expect("metrics are text").lines().filter(|line| line.starts_with(start));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
    }

    /// Waits until the sum of the metrics that begin with this is as wanted.
    pub(crate) async fn await_metric(&self, start: &str, is_wanted: impl Fn(u64) -> bool) {
        let ends_at = Instant::now() + PATIENCE;
        loop {
            let value = self.metric(start).await;
            if is_wanted(value) {
                return;
            }
            assert!(Instant::now() < ends_at, "{start} stays {value}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits for the one long poll of the server, and checks that its claim has the place in the queue that it took before `joined`.
    /// With another owner token it would have a place of its own, or a later time.
    pub(crate) async fn assert_waits_since(&self, resource: &str, joined: Instant) {
        self.await_metric("leasehold_http_waiting", |waiting| waiting == 1).await;
        let has_waited = joined.elapsed();
        let seen = self.look(resource).await;
        assert_eq!(seen["queue_length"], 1, "{seen}");
        let waited = seen["queue"][0]["waited_ms"].as_u64().map(Duration::from_millis);
        assert!(
            waited.is_some_and(|waited| waited >= has_waited),
            "{waited:?} is less than {has_waited:?}: {seen}"
        );
    }

    /// Sends the head of a request. The server waits for the body until this is dropped.
    pub(crate) async fn begin_request(&self) -> TcpStream {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).await.expect("the server is there");
        let head = "POST /v1/renew HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\
                    expect: 100-continue\r\n\r\n";
        stream.write_all(head.as_bytes()).await.expect("the server reads");
        // Without this the server may begin to drain before it has read the head.
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.expect("the server asks for the body");
        assert_eq!(String::from_utf8_lossy(&answer), "HTTP/1.1 100");
        stream
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        self.send(Request::get(path), Bytes::new()).await.body
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Reply {
        let request = Request::post(path).header("content-type", "application/json");
        self.send(request, Bytes::from(body.to_string())).await
    }

    /// One request on a connection of its own.
    async fn send(&self, request: hyper::http::request::Builder, body: Bytes) -> Reply {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).await.expect("the server is there");
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.expect("the server speaks HTTP");
        let connection = tokio::spawn(connection);
        let mut request = request.header("host", format!("127.0.0.1:{}", self.port));
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let request = request.body(Full::new(body)).expect("the request is well formed");
        let response = sender.send_request(request).await.expect("the server answers");
        let status = response.status().as_u16();
        let bytes = response.into_body().collect().await.expect("the answer is whole").to_bytes();
        let at = Instant::now();
        connection.abort();
        let text = String::from_utf8_lossy(&bytes);
        let body = serde_json::from_slice(&bytes).unwrap_or_else(|_| Value::String(text.into_owned()));
        Reply { at, status, body }
    }
}
