//! A store where claims live with the session of the server: the server ends them itself.

#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use leasehold::{Backend, Memory, OwnerToken, Resource, System};
use leasehold_core::{
    BackendInfo, Claim, ClaimRef, CommandOutcome, Cursor, Effect, Error, ErrorKind, FailureDomain, Holder,
    OperatorCommand, Page, Query, ReleaseRequest, Released, RenewRequest, Renewal, Result, Share, Verdict,
    async_trait,
};
use leasehold_server::Server;
use serde_json::{Value, json};
use support::{OTHER, OWNER, TestServer, config, waiting};
use tokio::sync::Notify;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Keeps what it grants for a day, as a session does that never ends.
#[derive(Debug)]
struct Session {
    memory: Memory,
    info: BackendInfo,
    /// Carries out the next claims and does not answer them.
    is_mute: AtomicBool,
    /// Carries out the next claim, and answers it after it has let another one pass.
    is_slow: AtomicBool,
    may_answer: Notify,
}

impl Session {
    fn new() -> Session {
        let memory = Memory::new();
        let mut info = memory.info().clone();
        info.capabilities.own_ttl = false;
        info.limits.ttl = Duration::from_secs(4);
        let [is_mute, is_slow] = [false, false].map(AtomicBool::new);
        Session { memory, info, is_mute, is_slow, may_answer: Notify::new() }
    }
}

#[async_trait]
impl Backend for Session {
    fn info(&self) -> &BackendInfo {
        &self.info
    }
    fn failure_domain(&self, resource: &Resource) -> FailureDomain {
        self.memory.failure_domain(resource)
    }
    async fn acquire(&self, claims: &[Claim]) -> Vec<Result<Verdict>> {
        let mut claims = claims.to_vec();
        for claim in &mut claims {
            assert!(claim.ttl >= self.info.limits.ttl, "the store refuses such a ttl");
            (claim.ttl, claim.place_ttl) = (DAY, DAY);
        }
        let verdicts = self.memory.acquire(&claims).await;
        if self.is_slow.swap(false, Ordering::Relaxed) {
            self.may_answer.notified().await;
        }
        if !self.is_mute.load(Ordering::Relaxed) {
            return verdicts;
        }
        let no_answer = || Error::new(ErrorKind::Unavailable, "no answer").with_effect(Effect::Unknown);
        verdicts.iter().map(|_| Err(no_answer())).collect()
    }
    async fn renew(&self, requests: &[RenewRequest]) -> Vec<Result<Renewal>> {
        let mut requests = requests.to_vec();
        requests.iter_mut().for_each(|request| request.ttl = DAY);
        self.memory.renew(&requests).await
    }
    async fn release(&self, requests: &[ReleaseRequest]) -> Vec<Result<Released>> {
        self.memory.release(requests).await
    }
    async fn wait(&self, claim: &ClaimRef, since: &Cursor, at_most: Duration) -> Result<()> {
        self.memory.wait(claim, since, at_most).await
    }
    async fn inspect(&self, query: &Query) -> Result<Page> {
        self.memory.inspect(query).await
    }
    async fn order(&self, command: &OperatorCommand) -> Result<CommandOutcome> {
        self.memory.order(command).await
    }
}

async fn start() -> (Arc<Session>, TestServer) {
    let session = Arc::new(Session::new());
    let mut config = config();
    config.leases_end_with_server = true;
    (Arc::clone(&session), TestServer::with(session, config).await)
}

fn claim(owner: &str, ttl_ms: u64) -> Value {
    json!({"resource": "report/1", "owner": owner, "ttl_ms": ttl_ms})
}

#[tokio::test]
async fn a_lease_ends_at_its_ttl_and_the_next_claim_is_granted() {
    let (_, server) = start().await;
    let first = server.post("/v1/acquire", claim(OWNER, 700)).await;
    assert_eq!((first.status, &first.body["ttl_ms"]), (200, &json!(700)));
    assert!(first.body["remaining_ms"].as_u64().unwrap() <= 700);
    let shown = server.get("/v1/resource?name=report/1").await;
    let holder = &shown.body["holders"][0];
    assert!(holder["remaining_ms"].as_u64().unwrap() <= 700 && holder["ttl_ms"] == json!(700), "{shown:?}");
    let second = server.post("/v1/acquire", waiting("report/1", OTHER, 30_000)).await;
    assert_eq!((second.status, &second.body["ttl_ms"]), (200, &json!(4000)), "not longer than the session");
    assert_eq!(server.post("/v1/renew", claim(OWNER, 700)).await.problem(), (410, "lost"));
    let late = server.post("/v1/release", json!({"resource": "report/1", "owner": OWNER})).await;
    assert_eq!(late.body["verdict"], json!("already_gone"));
    assert_eq!(server.post("/v1/renew", claim(OTHER, 700)).await.status, 200);
}

#[tokio::test]
async fn asking_again_does_not_extend_a_lease_and_after_its_end_it_is_a_new_one() {
    let (_, server) = start().await;
    let first = server.post("/v1/acquire", claim(OWNER, 1000)).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let again = server.post("/v1/acquire", claim(OWNER, 1000)).await;
    if again.body["token"] == first.body["token"] {
        assert!(again.body["remaining_ms"].as_u64().unwrap() <= 800, "{again:?}");
    }
    tokio::time::sleep(Duration::from_millis(900)).await;
    let fresh = server.post("/v1/acquire", claim(OWNER, 1000)).await;
    let token = |body: &Value| body["token"].as_str().unwrap().parse::<u64>().unwrap();
    assert_eq!(fresh.status, 200);
    assert!(token(&fresh.body) > token(&first.body));
}

/// The late answer "queued" of a first request shortened the lease that a second one of the same claim had got: two held.
#[tokio::test]
async fn a_late_answer_does_not_shorten_the_lease_that_a_repeated_request_got() {
    let (session, server) = start().await;
    server.post("/v1/acquire", claim(OWNER, 4000)).await;
    let mut queued = claim(OTHER, 4000);
    (queued["when_blocked"], queued["place_ttl_ms"]) = (json!("queue"), json!(500));
    session.is_slow.store(true, Ordering::Relaxed);
    let mut first = server.connect().await;
    let mut second = server.connect().await;
    let first = first.post("/v1/acquire", &queued);
    let others = async {
        server.until_queued("report/1", 1).await;
        server.post("/v1/release", json!({"resource": "report/1", "owner": OWNER})).await;
        let again = second.post("/v1/acquire", &queued);
        let answer = async {
            // Long enough for a second call, if it were made at the same time.
            tokio::time::sleep(Duration::from_millis(300)).await;
            session.may_answer.notify_one();
        };
        tokio::join!(again, answer).0
    };
    let (_, granted) = tokio::join!(first, others);
    assert_eq!(granted.status, 200, "{granted:?}");
    tokio::time::sleep(Duration::from_millis(1500)).await; // longer than the place would have lasted
    let renewed = server.post("/v1/renew", claim(OTHER, 4000)).await;
    assert_eq!((renewed.status, &renewed.body["grant"]), (200, &granted.body["token"]), "{renewed:?}");
}

#[tokio::test]
async fn a_place_that_nobody_keeps_ends_too() {
    let (_, server) = start().await;
    server.post("/v1/acquire", claim(OWNER, 4000)).await;
    let mut queued = claim(OTHER, 4000);
    (queued["when_blocked"], queued["place_ttl_ms"]) = (json!("queue"), json!(500));
    assert_eq!(server.post("/v1/acquire", queued).await.status, 202);
    server.until_queued("report/1", 0).await;
}

#[tokio::test]
async fn an_open_request_keeps_its_place_for_longer_than_the_place_lasts() {
    let (_, server) = start().await;
    server.post("/v1/acquire", claim(OWNER, 4000)).await;
    let mut body = waiting("report/1", OTHER, 30_000);
    body["place_ttl_ms"] = json!(900);
    let poll = server.post("/v1/acquire", body);
    let release = async {
        server.until_queued("report/1", 1).await;
        for _ in 0..8 {
            tokio::time::sleep(Duration::from_millis(300)).await;
            assert_eq!(server.post("/v1/renew", claim(OWNER, 4000)).await.status, 200);
            assert_eq!(server.queue_length("report/1").await, 1);
        }
        server.post("/v1/release", json!({"resource": "report/1", "owner": OWNER})).await
    };
    let (granted, released) = tokio::join!(poll, release);
    assert_eq!((granted.status, released.status), (200, 200), "{granted:?}");
}

#[tokio::test]
async fn a_claim_that_was_not_answered_is_ended_too() {
    let (session, server) = start().await;
    session.is_mute.store(true, Ordering::Relaxed);
    let unanswered = server.post("/v1/acquire", claim(OWNER, 500)).await;
    assert_eq!((unanswered.status, &unanswered.body["effect"]), (503, &json!("unknown")));
    session.is_mute.store(false, Ordering::Relaxed);
    let next = server.post("/v1/acquire", waiting("report/1", OTHER, 30_000)).await;
    assert_eq!(next.status, 200, "{next:?}");
}

#[tokio::test]
async fn what_others_hold_is_left_alone() {
    let (session, server) = start().await;
    let (resource, owner) = ("report/1".parse::<Resource>().unwrap(), OwnerToken::from_bytes([7; 16]));
    let holder = Arc::new(Holder::new("elsewhere", 1, ""));
    let direct = Claim::new(resource, owner, Share::WHOLE, DAY, holder);
    session.memory.acquire(&[direct]).await.remove(0).unwrap();
    let busy = server.post("/v1/acquire", waiting("report/1", OWNER, 1000)).await;
    assert_eq!(busy.problem(), (423, "contended"));
    // A caller who knows its owner token is told that this server cannot vouch for it.
    let renewed = server.post("/v1/renew", claim(&owner.reveal(), 500)).await;
    assert_eq!(renewed.problem(), (410, "lost"));
    assert_eq!(server.get("/v1/resource?name=report/1").await.body["holder_count"], json!(1));
}

#[tokio::test]
async fn clients_are_told_and_another_store_is_refused() {
    let (_, server) = start().await;
    let info = server.get("/v1/info").await.body;
    assert_eq!((&info["capabilities"]["own_ttl"], &info["survives_server"]), (&json!(true), &json!(false)));
    let mut config = config();
    config.leases_end_with_server = true;
    let refused = Server::new(Arc::new(Memory::new()), Arc::new(System::current()), config).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
}
