//! Claims and releases that come at once travel in one call (ADR 0039).
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test is a program of its own")]

mod common;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use common::{millis, seconds};
use leasehold::{
    Backend, BackendInfo, Claim, ClaimRef, Client, CommandOutcome, Cursor, ErrorKind, FailureDomain, Lease,
    Memory, OperatorCommand, Page, Query, ReleaseRequest, Released, RenewRequest, Renewal, Resource, Result,
    Verdict, async_trait, testing::ManualTime,
};
use tokio::{sync::Semaphore, task::JoinHandle};

const GATHER: usize = 4;

/// The memory backend. Calls of `acquire` and `release` wait until the test lets them through, and are recorded.
#[derive(Debug)]
struct Gate {
    memory: Memory,
    info: BackendInfo,
    /// How many calls may go through.
    acquire_gate: Semaphore,
    release_gate: Semaphore,
    /// The names in each call.
    acquires: Mutex<Vec<Vec<String>>>,
    releases: Mutex<Vec<Vec<ReleaseRequest>>>,
    /// Gives one result too few.
    loses_a_result: bool,
}

const OPEN: usize = 1000;

impl Gate {
    fn acquires(&self) -> Vec<Vec<String>> {
        self.acquires.lock().unwrap().clone()
    }

    fn releases(&self) -> Vec<Vec<ReleaseRequest>> {
        self.releases.lock().unwrap().clone()
    }
}

async fn pass(gate: &Semaphore) {
    gate.acquire().await.unwrap().forget();
}

#[async_trait]
impl Backend for Gate {
    fn info(&self) -> &BackendInfo {
        &self.info
    }
    fn failure_domain(&self, resource: &Resource) -> FailureDomain {
        FailureDomain(u32::from(resource.kind() == "elsewhere"))
    }
    async fn acquire(&self, claims: &[Claim]) -> Vec<Result<Verdict>> {
        let names = claims.iter().map(|claim| claim.resource.id().into_owned()).collect();
        self.acquires.lock().unwrap().push(names);
        pass(&self.acquire_gate).await;
        let mut results = self.memory.acquire(claims).await;
        if self.loses_a_result {
            results.pop();
        }
        results
    }
    async fn renew(&self, requests: &[RenewRequest]) -> Vec<Result<Renewal>> {
        self.memory.renew(requests).await
    }
    async fn release(&self, requests: &[ReleaseRequest]) -> Vec<Result<Released>> {
        self.releases.lock().unwrap().push(requests.to_vec());
        pass(&self.release_gate).await;
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

struct TestBed {
    time: ManualTime,
    gate: Arc<Gate>,
    client: Client,
}

impl TestBed {
    /// At most [`GATHER`] requests in a call, and one call at a time. Both gates are closed.
    fn new() -> TestBed {
        TestBed::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut Gate)) -> TestBed {
        let time = ManualTime::new();
        let memory = Memory::in_environment(Arc::new(time.clone()));
        let mut info = memory.info().clone();
        (info.limits.gather, info.limits.calls_in_flight) = (GATHER, 1);
        let mut gate = Gate {
            memory,
            info,
            acquire_gate: Semaphore::new(0),
            release_gate: Semaphore::new(0),
            acquires: Mutex::default(),
            releases: Mutex::default(),
            loses_a_result: false,
        };
        change(&mut gate);
        let gate = Arc::new(gate);
        let client = Client::builder(gate.clone()).environment(Arc::new(time.clone())).build();
        TestBed { time, gate, client }
    }

    /// A task that acquires `job/ID`, and keeps the lease.
    fn acquire(&self, id: &str) -> JoinHandle<Result<Lease>> {
        self.acquire_of("job", id)
    }

    fn acquire_of(&self, kind: &str, id: &str) -> JoinHandle<Result<Lease>> {
        let request = self.client.lease(kind, id).ttl(seconds(30)).attempts(1);
        tokio::spawn(async move { request.acquire().await })
    }

    /// Lets all tasks run until they wait, without a passing of time.
    async fn settle(&self) {
        self.time.advance(Duration::ZERO).await;
    }
}

#[tokio::test]
async fn a_lone_request_goes_at_once_and_alone() {
    let bed = TestBed::new();
    bed.gate.acquire_gate.add_permits(OPEN);
    bed.gate.release_gate.add_permits(OPEN);
    for _ in 0..3 {
        bed.acquire("a").await.unwrap().unwrap().release().await.unwrap();
    }
    assert_eq!(bed.gate.acquires(), [["a"], ["a"], ["a"]]);
    assert!(bed.gate.releases().iter().all(|call| call.len() == 1));
}

#[tokio::test]
async fn requests_that_come_meanwhile_travel_together_in_their_order() {
    let bed = TestBed::new();
    let mut tasks = Vec::new();
    for id in ["a", "b", "c", "d", "e", "f"] {
        tasks.push(bed.acquire(id));
        bed.settle().await;
    }
    assert_eq!(bed.gate.acquires(), [vec!["a"]], "one call is under way");
    bed.gate.acquire_gate.add_permits(1);
    bed.settle().await;
    assert_eq!(bed.gate.acquires()[1..], [vec!["b", "c", "d", "e"]], "at most {GATHER} in a call");
    bed.gate.acquire_gate.add_permits(OPEN);
    let mut leases = Vec::new();
    for (task, id) in tasks.into_iter().zip(["a", "b", "c", "d", "e", "f"]) {
        let lease = task.await.unwrap().unwrap();
        assert_eq!(lease.resource().id(), id, "each caller gets its own lease");
        lease.check().unwrap();
        leases.push(lease);
    }
    assert_eq!(bed.gate.acquires()[2..], [vec!["f"]]);
}

#[tokio::test]
async fn releases_travel_together_and_never_wait_for_an_acquire() {
    let bed = TestBed::new();
    bed.gate.acquire_gate.add_permits(3);
    let mut leases = Vec::new();
    for id in ["a", "b", "c"] {
        leases.push(bed.acquire(id).await.unwrap().unwrap());
    }
    let blocked = [bed.acquire("x"), bed.acquire("y")];
    bed.settle().await;
    let releases: Vec<_> = leases.into_iter().map(|lease| tokio::spawn(lease.release())).collect();
    bed.settle().await;
    assert_eq!(bed.gate.releases().len(), 1, "the first release is under way");
    bed.gate.release_gate.add_permits(OPEN);
    for release in releases {
        assert_eq!(release.await.unwrap().unwrap(), Released::Now);
    }
    assert_eq!(bed.gate.releases().iter().map(Vec::len).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(bed.gate.acquires().len(), 4, "the acquires still wait");
    bed.gate.acquire_gate.add_permits(OPEN);
    for task in blocked {
        drop(task.await.unwrap().unwrap());
    }
}

#[tokio::test]
async fn a_caller_that_leaves_while_queued_has_sent_nothing() {
    let bed = TestBed::new();
    bed.gate.release_gate.add_permits(OPEN);
    let first = bed.acquire("a");
    bed.settle().await;
    let (leaves, stays) = (bed.acquire("b"), bed.acquire("c"));
    bed.settle().await;
    leaves.abort();
    assert!(leaves.await.unwrap_err().is_cancelled());
    bed.gate.acquire_gate.add_permits(OPEN);
    let (_first, _stays) = (first.await.unwrap().unwrap(), stays.await.unwrap().unwrap());
    bed.settle().await;
    assert_eq!(bed.gate.acquires(), [["a"], ["c"]], "what was given up is not sent");
    assert!(bed.gate.releases().is_empty(), "nothing was sent, so nothing needs a release or a tombstone");
}

#[tokio::test]
async fn a_caller_that_leaves_a_call_leaves_a_tombstone_and_the_others_stay() {
    let bed = TestBed::new();
    bed.gate.release_gate.add_permits(OPEN);
    let first = bed.acquire("a");
    bed.settle().await;
    let (leaves, stays) = (bed.acquire("b"), bed.acquire("c"));
    bed.settle().await;
    bed.gate.acquire_gate.add_permits(1);
    let _first = first.await.unwrap().unwrap();
    bed.settle().await;
    assert_eq!(bed.gate.acquires(), [vec!["a"], vec!["b", "c"]]);
    leaves.abort();
    assert!(leaves.await.unwrap_err().is_cancelled());
    bed.settle().await;
    let releases = bed.gate.releases().concat();
    assert_eq!(releases.len(), 1);
    assert!(releases[0].tombstone.is_some(), "the claim may be executed later");
    bed.gate.acquire_gate.add_permits(OPEN);
    let stays = stays.await.unwrap().unwrap();
    stays.check().unwrap();
    let left: Resource = "job/b".parse().unwrap();
    let page = bed.gate.memory.inspect(&Query::One(left)).await.unwrap();
    assert_eq!(page.into_snapshots()[0].holder_count, 0, "nothing is left of the claim that was given up");
}

#[tokio::test]
async fn a_call_that_hangs_delays_others_by_milliseconds() {
    let bed = TestBed::new();
    let hangs = bed.acquire("a");
    bed.settle().await;
    let (second, third) = (bed.acquire("b"), bed.acquire("c"));
    bed.settle().await;
    bed.time.advance(millis(1)).await;
    assert_eq!(bed.gate.acquires(), [vec!["a"], vec!["b", "c"]], "both go beside the call that hangs");
    bed.gate.acquire_gate.add_permits(OPEN);
    for task in [hangs, second, third] {
        drop(task.await.unwrap().unwrap());
    }
}

#[tokio::test]
async fn another_failure_domain_does_not_wait() {
    let bed = TestBed::new();
    let tasks = [bed.acquire("a"), bed.acquire_of("elsewhere", "b")];
    bed.settle().await;
    assert_eq!(bed.gate.acquires(), [["a"], ["b"]]);
    bed.gate.acquire_gate.add_permits(OPEN);
    for task in tasks {
        drop(task.await.unwrap().unwrap());
    }
}

#[tokio::test]
async fn the_deadline_counts_from_the_call_not_from_the_queue() {
    let bed = TestBed::new();
    let first = bed.acquire("a");
    bed.settle().await;
    let queued = bed.acquire("b");
    bed.settle().await;
    bed.time.advance(millis(1)).await; // it goes beside now
    bed.time.advance(seconds(5)).await; // and the reply takes five seconds
    bed.gate.acquire_gate.add_permits(OPEN);
    let (first, queued) = (first.await.unwrap().unwrap(), queued.await.unwrap().unwrap());
    // A grant of 30 s, less a margin of 302 ms, counted from the send.
    assert_eq!(first.remaining(), millis(30_000 - 302 - 5_001));
    assert_eq!(queued.remaining(), millis(30_000 - 302 - 5_000));
}

#[tokio::test]
async fn a_missing_result_makes_every_claim_of_the_call_uncertain() {
    let bed = TestBed::with(|gate| gate.loses_a_result = true);
    bed.gate.release_gate.add_permits(OPEN);
    let first = bed.acquire("a");
    bed.settle().await;
    let others = [bed.acquire("b"), bed.acquire("c")];
    bed.settle().await;
    bed.gate.acquire_gate.add_permits(OPEN);
    for task in [first].into_iter().chain(others) {
        let error = task.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
    bed.settle().await;
    let releases = bed.gate.releases().concat();
    assert_eq!(releases.len(), 3, "each may have been granted");
    assert!(releases.iter().all(|release| release.tombstone.is_some()));
}

#[tokio::test]
async fn a_thousand_requests_are_answered_in_few_calls() {
    const COUNT: usize = 1000;
    let bed = TestBed::with(|gate| gate.info.limits.gather = 50);
    let tasks: Vec<_> = (0..COUNT).map(|number| bed.acquire(&number.to_string())).collect();
    bed.settle().await;
    bed.gate.acquire_gate.add_permits(OPEN);
    for task in tasks {
        drop(task.await.unwrap().unwrap());
    }
    let calls = bed.gate.acquires();
    assert_eq!(calls.iter().map(Vec::len).sum::<usize>(), COUNT);
    assert!(calls.len() <= 1 + COUNT / 50 + 1, "{} calls", calls.len());
}
