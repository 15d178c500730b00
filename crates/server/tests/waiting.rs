//! The long poll of acquire.

#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::{sync::Arc, time::Duration};

use leasehold::{Backend, Memory, System};
use leasehold_core::{
    BackendInfo, Claim, ClaimRef, CommandOutcome, Cursor, Effect, Error, ErrorKind, FailureDomain,
    OperatorCommand, Page, Query, ReleaseRequest, Released, RenewRequest, Renewal, Resource, Result, Verdict,
    async_trait,
};
use leasehold_server::Server;
use serde_json::json;
use support::{Connection, OTHER, OWNER, TestServer, config, waiting};
use tokio::time::Instant;

async fn held() -> TestServer {
    let server = TestServer::start().await;
    assert_eq!(server.acquire("report/1", OWNER).await.status, 200);
    server
}

#[tokio::test]
async fn a_waiting_claim_is_granted_when_the_holder_releases() {
    let server = held().await;
    let mut connection = server.connect().await;
    let sent = Instant::now();
    let claim = waiting("report/1", OTHER, 60_000);
    let release = async {
        server.until_queued("report/1", 1).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        let release = json!({"resource": "report/1", "owner": OWNER});
        assert_eq!(server.post("/v1/release", release).await.status, 200);
    };
    let (granted, ()) = tokio::join!(connection.post("/v1/acquire", &claim), release);
    let took = sent.elapsed();
    assert_eq!((granted.status, &granted.body["verdict"]), (200, &json!("granted")));
    // It runs from the reading of the request to the sending of the call that granted: never longer than it took.
    let waited = Duration::from_millis(granted.body["waited_ms"].as_u64().unwrap());
    assert!(Duration::from_millis(300) <= waited && waited <= took, "{waited:?} of {took:?}");
    assert!(granted.body["remaining_ms"].as_u64().unwrap() > 20_000, "{granted:?}");
}

#[tokio::test]
async fn a_waiting_claim_is_granted_when_the_holder_expires() {
    let server = TestServer::start().await;
    let short = json!({"resource": "report/1", "owner": OWNER, "ttl_ms": 500});
    assert_eq!(server.post("/v1/acquire", short).await.status, 200);
    let granted = server.post("/v1/acquire", waiting("report/1", OTHER, 60_000)).await;
    assert_eq!(granted.status, 200);
}

#[tokio::test]
async fn at_the_end_of_its_wait_a_claim_leaves_or_keeps_its_place() {
    let server = held().await;
    let busy = server.post("/v1/acquire", waiting("report/1", OTHER, 300)).await;
    assert_eq!(busy.problem(), (423, "contended"));
    assert!(busy.body["waited_ms"].as_u64().unwrap() >= 300);
    assert_eq!(server.queue_length("report/1").await, 0, "it left nothing behind");
    let mut claim = waiting("report/1", OTHER, 300);
    claim["when_blocked"] = json!("queue");
    let queued = server.post("/v1/acquire", claim).await;
    assert_eq!((queued.status, &queued.body["verdict"]), (202, &json!("queued")));
    assert_eq!(server.queue_length("report/1").await, 1);
}

/// A place of a millisecond ended before it could be renewed, and the server asked for it again three hundred times a second.
#[tokio::test]
async fn a_place_that_hardly_lasts_costs_the_store_no_more_than_others() {
    let server = held().await;
    let mut claim = waiting("report/1", OTHER, 1500);
    (claim["when_blocked"], claim["place_ttl_ms"]) = (json!("queue"), json!(1));
    let queued = server.post("/v1/acquire", claim).await;
    assert_eq!(queued.status, 202);
    assert!(queued.body["place_ms"].as_u64().unwrap() > 500, "{queued:?}");
    let metrics = server.get("/metrics").await.text;
    let count = metrics.lines().find_map(|line| {
        line.strip_prefix(r#"leasehold_store_call_seconds_count{verb="acquire"} "#)?.parse::<f64>().ok()
    });
    assert!(count.unwrap() < 20.0, "{count:?} calls");
}

#[tokio::test]
async fn waiters_are_granted_in_their_order() {
    let server = Arc::new(held().await);
    let mut waiters = Vec::new();
    for number in 0..3_u64 {
        let mut connection = server.connect().await;
        let claim = waiting("report/1", &format!("{:032x}", number + 1), 60_000);
        waiters.push(tokio::spawn(async move { connection.post("/v1/acquire", &claim).await }));
        server.until_queued("report/1", number + 1).await;
    }
    let mut owner = OWNER.to_owned();
    let mut last_token = 0;
    for (number, waiter) in waiters.into_iter().enumerate() {
        let release = json!({"resource": "report/1", "owner": owner});
        assert_eq!(server.post("/v1/release", release).await.status, 200);
        let granted = waiter.await.unwrap();
        assert_eq!(granted.status, 200);
        let token: u64 = granted.body["token"].as_str().unwrap().parse().unwrap();
        assert!(token > last_token);
        (last_token, owner) = (token, format!("{:032x}", number + 1));
    }
}

#[tokio::test]
async fn too_many_waiters_are_throttled_and_renewals_are_not() {
    let mut config = config();
    config.limits.waiters = 1;
    let server = TestServer::with(Arc::new(Memory::new()), config).await;
    server.acquire("report/1", OWNER).await;
    let mut connection = server.connect().await;
    let first =
        tokio::spawn(
            async move { connection.post("/v1/acquire", &waiting("report/1", OTHER, 60_000)).await },
        );
    server.until_queued("report/1", 1).await;
    let refused =
        server.post("/v1/acquire", waiting("report/1", "00112233445566778899aabbccddeeff", 1000)).await;
    assert_eq!(refused.problem(), (429, "throttled"));
    assert_eq!((refused.header("retry-after"), &refused.body["effect"]), ("1", &json!("none")));
    let wait = json!({"claims": [{"resource": "report/1", "owner": OTHER, "cursor": refused.header("leasehold-store").to_owned() + ".1"}], "wait_ms": 1000});
    assert_eq!(server.post("/v1/wait", wait).await.problem(), (429, "throttled"));
    let renew = json!({"resource": "report/1", "owner": OWNER, "ttl_ms": 30000});
    assert_eq!(server.post("/v1/renew", renew).await.status, 200);
    first.abort();
}

#[tokio::test]
async fn a_draining_server_refuses_claims_ends_waits_and_serves_renewals() {
    let memory = Arc::new(Memory::new());
    let mut server = TestServer::with(memory.clone(), config()).await;
    server.acquire("report/1", OWNER).await;
    assert_eq!(server.get("/readyz").await.status, 200);
    let (mut claiming, mut queueing, mut waiting_for) =
        (server.connect().await, server.connect().await, server.connect().await);
    let claim =
        tokio::spawn(async move { claiming.post("/v1/acquire", &waiting("report/1", OTHER, 60_000)).await });
    let mut queue = waiting("report/1", "00112233445566778899aabbccddeeff", 60_000);
    queue["when_blocked"] = json!("queue");
    let queued = tokio::spawn(async move { queueing.post("/v1/acquire", &queue).await });
    server.until_queued("report/1", 2).await;
    let free = server.get("/v1/resource?name=report/1").await;
    let wait = json!({"claims": [{"resource": "report/1", "owner": OTHER, "cursor": free.body["cursor"]}], "wait_ms": 60000});
    let wait = tokio::spawn(async move { waiting_for.post("/v1/wait", &wait).await });
    // A connection that stays open for the whole test: otherwise the server has ended before.
    let mut open = Connection::http1(server.address).await;
    let keeps_open = async {
        let request = json!({"claims": [], "wait_ms": 0});
        assert_eq!(open.post("/v1/wait", &request).await.status, 200);
    };
    keeps_open.await;
    let late = tokio::net::TcpStream::connect(server.address).await.unwrap();
    server.stop();
    let claim = claim.await.unwrap();
    assert_eq!(
        (claim.problem(), &claim.body["effect"]),
        ((503, "draining"), &json!("unknown")),
        "only a grant is a success"
    );
    assert_eq!((claim.header("leasehold-draining"), claim.header("connection")), ("true", "close"));
    let queued = queued.await.unwrap();
    assert_eq!(
        (queued.status, &queued.body["verdict"]),
        (202, &json!("queued")),
        "it asks again, elsewhere, with its place"
    );
    let wait = wait.await.unwrap();
    assert_eq!((wait.status, &wait.body["ask"]), (200, &json!([0])));

    // A connection that began before and has said nothing yet keeps the server from ending.
    let renew = json!({"resource": "report/1", "owner": OWNER, "ttl_ms": 30000});
    assert_eq!(server.post("/v1/renew", renew).await.status, 200);
    let refused = server.acquire("report/2", OTHER).await;
    assert_eq!((refused.problem(), &refused.body["effect"]), ((503, "draining"), &json!("none")));
    assert_eq!(server.get("/readyz").await.status, 503);
    assert_eq!(server.get("/healthz").await.status, 200);
    let release = json!({"resource": "report/1", "owner": OWNER});
    assert_eq!(server.post("/v1/release", release).await.status, 200);
    drop(late);
    tokio::time::timeout(support::PATIENCE, server.task)
        .await
        .expect("draining ends when all have gone")
        .unwrap();
}

#[tokio::test]
async fn draining_is_bounded() {
    let mut config = config();
    config.timeouts.drain = Duration::from_millis(200);
    let mut server = TestServer::with(Arc::new(Memory::new()), config).await;
    let _silent = tokio::net::TcpStream::connect(server.address).await.unwrap();
    server.stop();
    tokio::time::timeout(support::PATIENCE, server.task)
        .await
        .expect("a silent connection does not keep it")
        .unwrap();
}

/// A store whose calls hang for some resources: `dead/…`, all in one failure domain. Others are in memory.
#[derive(Debug)]
struct HalfDead(Memory, BackendInfo);

impl HalfDead {
    fn new() -> HalfDead {
        let memory = Memory::new();
        let info = memory.info().clone();
        HalfDead(memory, info)
    }
}

fn is_dead(resource: &Resource) -> bool {
    resource.kind() == "dead"
}

#[async_trait]
impl Backend for HalfDead {
    fn info(&self) -> &BackendInfo {
        &self.1
    }
    fn failure_domain(&self, resource: &Resource) -> FailureDomain {
        FailureDomain(u32::from(is_dead(resource)))
    }
    async fn acquire(&self, claims: &[Claim]) -> Vec<Result<Verdict>> {
        if claims.iter().any(|claim| is_dead(&claim.resource)) {
            std::future::pending::<()>().await;
        }
        if claims.iter().any(|claim| claim.resource.kind() == "down") {
            let down =
                || Err(Error::new(ErrorKind::Unavailable, "connection refused").with_effect(Effect::None));
            return claims.iter().map(|_| down()).collect();
        }
        self.0.acquire(claims).await
    }
    async fn renew(&self, requests: &[RenewRequest]) -> Vec<Result<Renewal>> {
        if requests.iter().any(|request| is_dead(&request.resource)) {
            std::future::pending::<()>().await;
        }
        self.0.renew(requests).await
    }
    async fn release(&self, requests: &[ReleaseRequest]) -> Vec<Result<Released>> {
        self.0.release(requests).await
    }
    async fn wait(&self, claim: &ClaimRef, since: &Cursor, at_most: Duration) -> Result<()> {
        self.0.wait(claim, since, at_most).await
    }
    async fn inspect(&self, query: &Query) -> Result<Page> {
        self.0.inspect(query).await
    }
    async fn order(&self, command: &OperatorCommand) -> Result<CommandOutcome> {
        self.0.order(command).await
    }
}

#[tokio::test]
async fn what_a_dead_domain_owes_is_unavailable_for_those_entries_alone() {
    let server = TestServer::with(Arc::new(HalfDead::new()), config()).await;
    let entry = |resource: &str| json!({"resource": resource, "owner": OWNER, "ttl_ms": 30000});
    let claims = json!({"claims": [entry("dead/1"), entry("report/1"), entry("dead/2"), entry("report/2")], "timeout_ms": 1000});
    let answer = server.post("/v1/acquire", claims).await;
    let claims = answer.body["claims"].as_array().unwrap();
    let statuses: Vec<_> = claims.iter().map(|entry| entry["status"].as_u64().unwrap()).collect();
    assert_eq!(statuses, [503, 200, 503, 200]);
    assert_eq!((&claims[0]["kind"], &claims[0]["effect"]), (&json!("unavailable"), &json!("unknown")));
    let leases = json!({"leases": [entry("dead/1"), entry("report/1")], "timeout_ms": 1000});
    let answer = server.post("/v1/renew", leases).await;
    assert_eq!(
        (&answer.body["leases"][0]["status"], &answer.body["leases"][1]["status"]),
        (&json!(503), &json!(200))
    );
}

#[tokio::test]
async fn a_store_that_hangs_is_503_with_the_effect_unknown_and_one_that_is_down_with_none() {
    let mut config = config();
    config.timeouts.store = Duration::from_millis(300);
    let server = TestServer::with(Arc::new(HalfDead::new()), config).await;
    let hangs = server.post("/v1/acquire", waiting("dead/1", OWNER, 60_000)).await;
    assert_eq!((hangs.problem(), &hangs.body["effect"]), ((503, "unavailable"), &json!("unknown")));
    // Nothing was changed, so the server asks again until the wait is over.
    let sent = Instant::now();
    let down = server.post("/v1/acquire", waiting("down/1", OWNER, 500)).await;
    assert_eq!((down.problem(), &down.body["effect"]), ((503, "unavailable"), &json!("none")));
    assert!(sent.elapsed() >= Duration::from_millis(500));
    // Places are kept although a call may take less than a renewal of theirs (this was a panic of the task that keeps them).
    assert_eq!(server.acquire("live/1", OWNER).await.status, 200);
    let mut claim = waiting("live/1", OTHER, 4000);
    (claim["when_blocked"], claim["place_ttl_ms"]) = (json!("queue"), json!(1500));
    assert_eq!(server.post("/v1/acquire", claim).await.status, 202);
    let queue = server.get("/v1/resource?name=live/1").await;
    let waited = queue.body["queue"][0]["waited_ms"].as_u64().unwrap();
    assert!(waited >= 3500, "the place was kept from the first request on: {queue:?}");
    let info = server.get("/v1/info").await;
    assert_eq!(
        (info.status, server.get("/readyz").await.status),
        (200, 200),
        "the store's outage is not the server's"
    );
}

#[tokio::test]
async fn a_store_whose_leases_live_with_the_session_of_the_server_is_refused() {
    let mut store = HalfDead::new();
    store.1.capabilities.own_ttl = false;
    let refused = Server::new(Arc::new(store), Arc::new(System::current()), config()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    assert!(refused.to_string().contains("--leases-end-with-this-server"), "{refused}");
}
