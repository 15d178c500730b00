//! `GET /v1/store`: the health of the store, also when it does not answer.

#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::{
    fs,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use http_body_util::Full;
use hyper::Request;
use leasehold::{Backend, Memory, System};
use leasehold_core::{
    BackendInfo, Claim, ClaimRef, CommandOutcome, Cursor, Error, ErrorKind, FailureDomain, Guarantee,
    NodeStatus, OperatorCommand, Page, Query, ReleaseRequest, Released, RenewRequest, Renewal, Resource,
    Result, Verdict, WallTime, async_trait,
};
use leasehold_server::{Access, NewToken, TokenFile};
use serde_json::{Value, json};
use support::{PATIENCE, TestServer, config};

/// A store with servers.
#[derive(Debug)]
struct Ensemble {
    memory: Memory,
    info: BackendInfo,
    nodes: Mutex<Result<Vec<NodeStatus>>>,
    asked: AtomicUsize,
    is_down: Mutex<bool>,
    /// How long it takes to list the resources.
    listing_takes: Mutex<Duration>,
}

impl Ensemble {
    fn new(nodes: Vec<NodeStatus>) -> Arc<Ensemble> {
        Arc::new(Ensemble {
            memory: Memory::new(),
            info: BackendInfo::new("ensemble", Guarantee::Quorum),
            nodes: Mutex::new(Ok(nodes)),
            asked: AtomicUsize::new(0),
            is_down: Mutex::new(false),
            listing_takes: Mutex::default(),
        })
    }
}

#[async_trait]
impl Backend for Ensemble {
    fn info(&self) -> &BackendInfo {
        &self.info
    }
    fn failure_domain(&self, resource: &Resource) -> FailureDomain {
        self.memory.failure_domain(resource)
    }
    async fn acquire(&self, claims: &[Claim]) -> Vec<Result<Verdict>> {
        self.memory.acquire(claims).await
    }
    async fn renew(&self, requests: &[RenewRequest]) -> Vec<Result<Renewal>> {
        self.memory.renew(requests).await
    }
    async fn release(&self, requests: &[ReleaseRequest]) -> Vec<Result<Released>> {
        self.memory.release(requests).await
    }
    async fn wait(&self, claim: &ClaimRef, since: &Cursor, at_most: Duration) -> Result<()> {
        self.memory.wait(claim, since, at_most).await
    }
    async fn inspect(&self, query: &Query) -> Result<Page> {
        if *self.is_down.lock().unwrap() {
            return Err(Error::new(ErrorKind::Unavailable, "10.0.0.1:1: connection refused"));
        }
        if let Query::Nodes = query {
            self.asked.fetch_add(1, Ordering::SeqCst);
            return self.nodes.lock().unwrap().clone().map(Page::Nodes);
        }
        let page = self.memory.inspect(query).await;
        if let Query::Resources(_) = query {
            let takes = *self.listing_takes.lock().unwrap();
            tokio::time::sleep(takes).await;
        }
        page
    }
    async fn order(&self, command: &OperatorCommand) -> Result<CommandOutcome> {
        self.memory.order(command).await
    }
}

fn node(number: u32, counts: bool) -> NodeStatus {
    let mut node = NodeStatus::named(format!("10.0.0.{number}:6379"));
    node.counts = counts;
    node.round_trip = counts.then_some(Duration::from_micros(400));
    node.clocks = counts.then_some((WallTime::from_micros(1_997_000), WallTime::from_micros(2_000_000)));
    node.why = (!counts).then(|| format!("10.0.0.{number}:6379 refused the connection"));
    node
}

fn titles(body: &Value) -> Vec<&str> {
    body["findings"].as_array().unwrap().iter().map(|finding| finding["title"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_dead_server_of_a_quorum_is_seen_on_the_first_page() {
    let nodes = vec![node(1, true), node(2, false), node(3, true)];
    let store = Ensemble::new(nodes);
    let server = TestServer::with(Arc::clone(&store) as Arc<dyn Backend>, config()).await;
    assert_eq!(server.acquire("report/1", support::OWNER).await.status, 200);
    let body = server.get("/v1/store").await.body;
    assert_eq!(
        (&body["backend"], &body["level"], &body["state"]),
        (&json!("ensemble"), &json!("quorum"), &json!("degraded"))
    );
    assert_eq!(body["sentence"], json!("ensemble, degraded: 2 of 3 servers are up"));
    assert_eq!(body["quorum"], json!({"nodes": 3, "up": 2, "needed": 2, "margin": 0}));
    let first = json!({"name": "10.0.0.1:6379", "counts": true, "stands_by": false, "why": null, "round_trip_ms": 0.4, "clock_ahead_ms": -3.0});
    assert_eq!(body["nodes"][0], first);
    assert_eq!(body["nodes"][1]["why"], json!("10.0.0.2:6379 refused the connection"));
    assert_eq!(
        titles(&body),
        ["10.0.0.2:6379 is down or has no vote", "If one more server fails, nothing is granted"]
    );
    let acquire =
        body["calls"].as_array().unwrap().iter().find(|calls| calls["verb"] == json!("acquire")).unwrap();
    assert_eq!((&acquire["count"], &acquire["errors"]), (&json!(1), &json!(0)));
    assert!(acquire["p99_ms"].is_f64());
    let summary = json!({"state": "degraded", "sentence": body["sentence"], "quorum": body["quorum"]});
    let overview = server.get("/v1/overview").await.body;
    assert_eq!(overview["store"], summary);
    // Any number of pages costs one question.
    for _ in 0..20 {
        server.get("/v1/store").await;
    }
    assert!(store.asked.load(Ordering::SeqCst) <= 2);
}

#[tokio::test]
async fn addresses_of_the_store_are_for_operators_of_everything() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tokens.toml");
    let fresh = || NewToken::fresh(&System::current());
    let [operator, limited, viewer] = [fresh(), fresh(), fresh()];
    let entry = |token: &NewToken, lines: &str| {
        let NewToken { id, sha256, .. } = token;
        format!("[[token]]\nid = \"{id}\"\nsha256 = \"{sha256}\"\nsubject = \"x\"\n{lines}\n")
    };
    let text = entry(&operator, "roles = [\"operator\"]")
        + &entry(&limited, "roles = [\"operator\"]\nnamespaces = [\"acme\"]")
        + &entry(&viewer, "roles = [\"viewer\"]");
    fs::write(&path, text).unwrap();
    let mut config = config();
    config.access = Access::Tokens(TokenFile::open(&path, Arc::new(System::current())).unwrap());
    let server = TestServer::with(Ensemble::new(vec![node(1, true), node(2, false)]), config).await;
    for (token, sees) in [(&operator, true), (&limited, false), (&viewer, false)] {
        let request =
            Request::builder().uri("/v1/store").header("authorization", format!("Bearer {}", token.token));
        let answer = server.connect().await.send(request.body(Full::default()).unwrap()).await.unwrap();
        assert_eq!((answer.status, answer.text.contains("10.0.0.")), (200, sees), "{}", answer.text);
        assert_eq!(answer.text.contains("node 2 is down or has no vote"), !sees, "{}", answer.text);
    }
}

#[tokio::test]
async fn a_store_that_is_down_is_told_and_not_an_error() {
    let store = Ensemble::new(vec![node(1, true)]);
    *store.is_down.lock().unwrap() = true;
    let mut config = config();
    config.sampling.every = Duration::from_millis(50);
    let server = TestServer::with(Arc::clone(&store) as Arc<dyn Backend>, config).await;
    let down = server.get("/v1/store").await;
    assert_eq!((down.status, &down.body["state"], &down.body["nodes"]), (200, &json!("down"), &Value::Null));
    assert_eq!(titles(&down.body)[0], "The store could not be read");
    assert!(!down.text.contains("10.0.0.1"), "the text of an error may name addresses: {}", down.text);
    *store.is_down.lock().unwrap() = false;
    let back = async {
        while server.get("/v1/store").await.body["state"] != json!("healthy") {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(PATIENCE, back).await.expect("it is found healthy again");
}

/// A lease that was read at the beginning of a slow listing has less time left than it says.
#[tokio::test]
async fn a_sample_is_as_old_as_the_beginning_of_its_listing() {
    const TAKES: Duration = Duration::from_millis(700);
    let store = Ensemble::new(vec![node(1, true)]);
    *store.listing_takes.lock().unwrap() = TAKES;
    let server = TestServer::with(Arc::clone(&store) as Arc<dyn Backend>, config()).await;
    let granted = server.acquire("report/1", support::OWNER).await;
    assert_eq!(granted.status, 200);
    let body = server.get("/v1/overview").await.body;
    assert!(body["sampled_ms_ago"].as_u64().unwrap() >= 700, "{body}");
    assert_eq!(
        body["every_ms"].as_u64().map(|every| every >= 7000),
        Some(true),
        "a tenth of the time: {body}"
    );
}

#[tokio::test]
async fn a_store_without_servers_has_no_list_of_them() {
    let server = TestServer::start().await;
    let body = server.get("/v1/store").await.body;
    assert_eq!(
        (&body["nodes"], &body["quorum"], &body["state"]),
        (&Value::Null, &Value::Null, &json!("healthy"))
    );
}
