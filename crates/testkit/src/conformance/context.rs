//! What a test works with: a resource of its own, owners by name, and the verbs, with a trace of all calls.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use leasehold_core::{
    Backend, BackendExt as _, Blocked, Claim, ClaimRef, CommandOutcome, Cursor, Environment, Error,
    GoneReason, Grant, Holder, Listing, OperatorAction, OperatorCommand, OwnerToken, Page, Query,
    ReleaseRequest, Released, RenewRequest, Renewal, Renewed, Resource, Result, Share, Snapshot, Timestamp,
    Verdict,
};
use tokio::task::JoinHandle;

use crate::target::BackendUnderTest;

/// A ttl that never expires during a test.
pub(crate) const LONG: Duration = Duration::from_secs(90);

/// The context of one test.
///
/// Each method for a verb writes the call and its reply to the trace, which a failing test prints.
pub(crate) struct TestContext {
    pub(crate) target: BackendUnderTest,
    pub(crate) resource: Resource,
    /// The share of an ordinary claim of this test: an exclusive one.
    pub(crate) share: Share,
    /// Random, so that tests on the same server use different names and owners.
    salt: String,
    trace: Arc<Mutex<Vec<String>>>,
}

impl TestContext {
    pub(crate) fn new(target: BackendUnderTest, share: Share, trace: Arc<Mutex<Vec<String>>>) -> TestContext {
        let mut salt = [0; 8];
        leasehold::System::current().fill(&mut salt);
        let salt = format!("{:016x}", u64::from_ne_bytes(salt));
        let resource = Resource::new("conformance", &salt).expect("the name follows the grammar");
        TestContext { target, resource, share, salt, trace }
    }

    /// Another resource of this test.
    pub(crate) fn resource(&self, name: &str) -> Resource {
        Resource::new("conformance", &format!("{}-{name}", self.salt)).expect("the name follows the grammar")
    }

    /// The prefix of the keys of all resources of this test.
    pub(crate) fn prefix(&self) -> &str {
        self.resource.key()
    }

    pub(crate) fn backend(&self) -> &dyn Backend {
        &**self.target.backend()
    }

    pub(crate) fn short_ttl(&self) -> Duration {
        self.target.shortest_ttl()
    }

    pub(crate) fn owner(&self, name: &str) -> OwnerToken {
        // FNV-1a, twice: different names of one test give different owners, and the salt separates the tests.
        let hash = |text: &str| {
            text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            })
        };
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&hash(&format!("{name}/{}", self.salt)).to_be_bytes());
        bytes[8..].copy_from_slice(&hash(&format!("{}/{name}", self.salt)).to_be_bytes());
        OwnerToken::from_bytes(bytes)
    }

    pub(crate) fn reference(&self, name: &str) -> ClaimRef {
        ClaimRef { resource: self.resource.clone(), owner: self.owner(name) }
    }

    /// A claim of the test's share with a long ttl.
    pub(crate) fn claim(&self, name: &str) -> Claim {
        self.claim_of(name, self.share)
    }

    pub(crate) fn claim_of(&self, name: &str, share: Share) -> Claim {
        let holder = Arc::new(Holder::new("conformance", 1, name));
        let mut claim = Claim::new(self.resource.clone(), self.owner(name), share, LONG, holder);
        claim.place_ttl = LONG;
        claim
    }

    /// A claim with the shortest ttl.
    pub(crate) fn short_claim(&self, name: &str) -> Claim {
        let mut claim = self.claim(name);
        claim.ttl = self.short_ttl();
        claim
    }

    fn trace_call(&self, request: &dyn fmt::Debug, reply: &dyn fmt::Debug) {
        let line = format!("{:?} {request:?}\n      -> {reply:?}", self.target.now());
        self.trace.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    }

    /// Acquires. The test handles an error itself.
    pub(crate) async fn try_acquire(&self, claim: &Claim) -> Result<Verdict> {
        let reply = self.backend().acquire_one(claim).await;
        self.trace_call(claim, &reply);
        reply
    }

    /// Acquires. An error fails the test.
    pub(crate) async fn acquire(&self, claim: &Claim) -> Verdict {
        expect_reply("acquire", self.try_acquire(claim).await)
    }

    /// Acquires through the second handle.
    pub(crate) async fn acquire_second(&self, claim: &Claim) -> Verdict {
        let reply = self.target.second().acquire_one(claim).await;
        self.trace_call(claim, &reply);
        expect_reply("acquire", reply)
    }

    pub(crate) async fn renew(&self, name: &str, ttl: Duration) -> Renewal {
        self.renew_one(RenewRequest::new(self.reference(name), ttl)).await
    }

    pub(crate) async fn renew_one(&self, request: RenewRequest) -> Renewal {
        let mut replies = self.backend().renew(std::slice::from_ref(&request)).await;
        self.trace_call(&request, &replies);
        assert_eq!(replies.len(), 1, "renew returns one reply for each request");
        expect_reply("renew", replies.remove(0))
    }

    /// Releases without a tombstone.
    pub(crate) async fn release(&self, name: &str) -> Released {
        self.send_release(&ReleaseRequest::new(self.reference(name))).await
    }

    /// Releases and leaves a tombstone.
    pub(crate) async fn release_with_tombstone(&self, name: &str) -> Released {
        self.send_release(
            &ReleaseRequest::new(self.reference(name)).with_tombstone(ReleaseRequest::tombstone_ttl(LONG)),
        )
        .await
    }

    pub(crate) async fn send_release(&self, request: &ReleaseRequest) -> Released {
        let reply = self.backend().release_one(request).await;
        self.trace_call(request, &reply);
        expect_reply("release", reply)
    }

    /// Releases through the second handle.
    pub(crate) async fn send_release_second(&self, request: &ReleaseRequest) -> Released {
        let reply = self.target.second().release_one(request).await;
        self.trace_call(request, &reply);
        expect_reply("release", reply)
    }

    pub(crate) async fn order(&self, command: OperatorAction) -> CommandOutcome {
        self.send_order(&OperatorCommand::new(self.resource.clone(), command, "suite", "to see what happens"))
            .await
    }

    pub(crate) async fn send_order(&self, order: &OperatorCommand) -> CommandOutcome {
        expect_reply("order", self.try_order(order).await)
    }

    /// Sends an operator's command. The test handles an error itself.
    pub(crate) async fn try_order(&self, order: &OperatorCommand) -> Result<CommandOutcome> {
        let reply = self.backend().order(order).await;
        self.trace_call(order, &reply);
        reply
    }

    /// A snapshot of the test's resource.
    pub(crate) async fn snapshot(&self) -> Snapshot {
        let mut snapshots = self.inspect(&Query::One(self.resource.clone())).await.into_snapshots();
        assert_eq!(snapshots.len(), 1, "the query is for one resource");
        snapshots.remove(0)
    }

    pub(crate) async fn inspect(&self, query: &Query) -> Page {
        let reply = self.backend().inspect(query).await;
        self.trace_call(query, &reply);
        expect_reply("inspect", reply)
    }

    /// All pages of a listing of this test's resources.
    pub(crate) async fn list(&self, prefix: &str, limit: u32) -> Vec<Snapshot> {
        let (mut all, mut listing) = (Vec::new(), Listing::of(prefix).limit(limit));
        loop {
            let Page::Resources { snapshots, next } = self.inspect(&Query::Resources(listing)).await else {
                panic!("the query is for a listing of resources");
            };
            assert!(limit == 0 || snapshots.len() <= limit as usize, "a page is no longer than its limit");
            all.extend(snapshots);
            match next {
                None => return all,
                Some(next) => listing = Listing::of(prefix).limit(limit).after(next),
            }
            assert!(all.len() < 10_000, "a listing ends");
        }
    }

    /// Starts a task that waits.
    pub(crate) async fn wait(&self, claim: &Claim, since: Cursor, at_most: Duration) -> PendingWait {
        self.wait_with(self.target.backend(), claim, since, at_most).await
    }

    /// Starts a task that waits through the second handle.
    pub(crate) async fn wait_second(&self, claim: &Claim, since: Cursor, at_most: Duration) -> PendingWait {
        self.wait_with(self.target.second(), claim, since, at_most).await
    }

    async fn wait_with(
        &self,
        backend: &Arc<dyn Backend>,
        claim: &Claim,
        since: Cursor,
        at_most: Duration,
    ) -> PendingWait {
        let (backend, reference) = (Arc::clone(backend), claim.reference());
        let task = tokio::spawn(async move { backend.wait(&reference, &since, at_most).await });
        self.target.let_tasks_run().await;
        PendingWait { task, began: self.target.now() }
    }

    /// Whether the wait returns within this time from now.
    pub(crate) async fn returns_within(&self, wait: &PendingWait, within: Duration) -> bool {
        let until = self.target.now().after(within);
        while !wait.task.is_finished() {
            if self.target.now() > until {
                return false;
            }
            self.target.let_tasks_run().await;
        }
        true
    }

    /// Asserts that most of [`LONG`] remains. If a session keeps grants alive, any remaining time is fine.
    #[track_caller]
    pub(crate) fn assert_most_remains(&self, remaining: Duration) {
        let own = self.backend().info().capabilities.own_ttl;
        let least = if own { LONG / 2 } else { Duration::ZERO };
        assert!(remaining > least && remaining <= LONG, "{remaining:?} remain");
    }

    /// The expected number of claims ahead, of which `grantable` could be granted. If the store grants by
    /// itself, those hold already and are not ahead any more.
    pub(crate) fn expected_ahead(&self, ahead: u32, grantable: u32) -> u32 {
        if self.backend().info().capabilities.self_granting { ahead - grantable } else { ahead }
    }

    /// Asserts that `remaining`, read during `seen`, fits a ttl that was granted during `given`.
    #[track_caller]
    pub(crate) fn assert_remaining(
        &self,
        remaining: Duration,
        ttl: Duration,
        given: (Timestamp, Timestamp),
        seen: (Timestamp, Timestamp),
    ) {
        let info = self.backend().info();
        if !info.capabilities.own_ttl {
            // A session keeps the grant alive: what remains is the guaranteed time of the session, whatever
            // the ttl.
            let most = info.limits.ttl;
            assert!(!remaining.is_zero() && remaining <= most, "{remaining:?} remain, of at most {most:?}");
            return;
        }
        let rounding = Duration::from_millis(1);
        let most = ttl.saturating_sub(given.1.until(seen.0))
            + rounding
            + self.target.expiry_grace()
            + self.target.slack();
        let least = ttl.saturating_sub(given.0.until(seen.1) + rounding + self.target.slack());
        assert!(
            least <= remaining && remaining <= most,
            "{remaining:?} remain, of {least:?} to {most:?} that may"
        );
    }
}

/// A wait in a task of its own, which is aborted when this is dropped.
pub(crate) struct PendingWait {
    pub(crate) task: JoinHandle<Result<()>>,
    pub(crate) began: Timestamp,
}

impl Drop for PendingWait {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[track_caller]
fn expect_reply<T>(verb: &str, reply: Result<T, Error>) -> T {
    reply.unwrap_or_else(|error| panic!("{verb} failed: {error:?}"))
}

/// The grant of a verdict.
#[track_caller]
#[expect(clippy::needless_pass_by_value, reason = "reads like its siblings: granted(ctx.acquire(…).await)")]
pub(crate) fn granted(verdict: Verdict) -> Grant {
    if let Verdict::Granted(grant) = verdict { grant } else { panic!("expected a grant, got {verdict:?}") }
}

/// The details of a verdict that must be `Blocked`.
#[track_caller]
pub(crate) fn blocked(verdict: Verdict) -> Blocked {
    if let Verdict::Blocked(blocked) = verdict {
        blocked
    } else {
        panic!("expected Blocked, got {verdict:?}")
    }
}

/// Asserts that the claim is in the queue, with this many claims ahead.
#[track_caller]
pub(crate) fn queued_behind(verdict: Verdict, ahead: u32) -> Blocked {
    let blocked = blocked(verdict);
    assert!(blocked.queued, "expected a place in the queue: {blocked:?}");
    assert_eq!(blocked.ahead, ahead, "claims ahead in the queue");
    blocked
}

/// Asserts that the claim was refused because of a tombstone.
#[track_caller]
pub(crate) fn cancelled(verdict: &Verdict) {
    assert!(
        matches!(verdict, Verdict::Cancelled),
        "expected Cancelled, because of a tombstone, got {verdict:?}"
    );
}

/// The details of a renewal that must have succeeded.
#[track_caller]
pub(crate) fn renewed(renewal: Renewal) -> Renewed {
    if let Renewal::Renewed(renewed) = renewal {
        renewed
    } else {
        panic!("expected Renewed, got {renewal:?}")
    }
}

/// The remaining time of a place in the queue.
#[track_caller]
pub(crate) fn still_queued(renewal: &Renewal) -> Duration {
    if let Renewal::Queued { remaining } = renewal {
        *remaining
    } else {
        panic!("expected Queued, got {renewal:?}")
    }
}

/// Asserts that the claim is gone for this reason.
#[track_caller]
pub(crate) fn gone(renewal: &Renewal, because: GoneReason) {
    let Renewal::Gone { why } = renewal else { panic!("expected Gone, got {renewal:?}") };
    assert_eq!(*why, because, "the reason why it is gone");
}
