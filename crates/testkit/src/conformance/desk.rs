//! What a test works with: a resource of its own, owners by name, and the verbs with a trace of what was said.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use leasehold_core::{
    Backend, Blocked, Claim, ClaimRef, CommandOutcome, Cursor, Environment, Error, GoneReason, Grant, Holder,
    Listing, OperatorAction, OperatorCommand, OwnerToken, Page, Query, ReleaseRequest, Released,
    RenewRequest, Renewal, Renewed, Resource, Result, Share, Snapshot, Timestamp, Verdict,
};
use tokio::task::JoinHandle;

use crate::target::BackendUnderTest;

/// Long enough never to run out during a test.
pub(crate) const LONG: Duration = Duration::from_secs(90);

/// One test's view of the stage.
pub(crate) struct Desk {
    pub(crate) target: BackendUnderTest,
    pub(crate) resource: Resource,
    /// What an ordinary claim of this test asks for: exclusive, in one spelling or another.
    pub(crate) share: Share,
    salt: String,
    trace: Arc<Mutex<Vec<String>>>,
}

impl Desk {
    pub(crate) fn new(target: BackendUnderTest, share: Share, trace: Arc<Mutex<Vec<String>>>) -> Desk {
        let mut salt = [0; 8];
        leasehold::System::current().fill(&mut salt);
        let salt = format!("{:016x}", u64::from_ne_bytes(salt));
        let resource = Resource::new("conformance", &salt).expect("the name follows the grammar");
        Desk { target, resource, share, salt, trace }
    }

    /// Another resource of this test.
    pub(crate) fn resource(&self, name: &str) -> Resource {
        Resource::new("conformance", &format!("{}-{name}", self.salt)).expect("the name follows the grammar")
    }

    /// What the keys of all resources of this test begin with.
    pub(crate) fn prefix(&self) -> &str {
        self.resource.key()
    }

    pub(crate) fn backend(&self) -> &dyn Backend {
        &**self.target.backend()
    }

    pub(crate) fn short(&self) -> Duration {
        self.target.shortest()
    }

    pub(crate) fn owner(&self, name: &str) -> OwnerToken {
        // FNV-1a, twice: names of one test differ, and the salt keeps tests apart.
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

    /// A claim of the test's share, for long.
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
    pub(crate) fn brief(&self, name: &str) -> Claim {
        let mut claim = self.claim(name);
        claim.ttl = self.short();
        claim
    }

    fn note(&self, asked: &dyn fmt::Debug, answered: &dyn fmt::Debug) {
        let line = format!("{:?} {asked:?}\n      -> {answered:?}", self.target.now());
        self.trace.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    }

    /// Asks, and takes whatever comes.
    pub(crate) async fn try_ask(&self, claim: &Claim) -> Result<Verdict> {
        let answer = self.backend().acquire(claim).await;
        self.note(claim, &answer);
        answer
    }

    /// Asks; an error ends the test.
    pub(crate) async fn ask(&self, claim: &Claim) -> Verdict {
        answered("acquire", self.try_ask(claim).await)
    }

    /// Asks through the second handle.
    pub(crate) async fn ask_second(&self, claim: &Claim) -> Verdict {
        let answer = self.target.second().acquire(claim).await;
        self.note(claim, &answer);
        answered("acquire", answer)
    }

    pub(crate) async fn renew(&self, name: &str, ttl: Duration) -> Renewal {
        self.renew_one(RenewRequest::new(self.reference(name), ttl)).await
    }

    pub(crate) async fn renew_one(&self, held: RenewRequest) -> Renewal {
        let mut answers = self.backend().renew(std::slice::from_ref(&held)).await;
        self.note(&held, &answers);
        assert_eq!(answers.len(), 1, "renew gives one answer for each that was asked");
        answered("renew", answers.remove(0))
    }

    /// Says a plain farewell.
    pub(crate) async fn leave(&self, name: &str) -> Released {
        self.bid(&ReleaseRequest::new(self.reference(name))).await
    }

    /// Says farewell and leaves a tombstone.
    pub(crate) async fn tombstone(&self, name: &str) -> Released {
        self.bid(
            &ReleaseRequest::new(self.reference(name)).with_tombstone(ReleaseRequest::tombstone_ttl(LONG)),
        )
        .await
    }

    pub(crate) async fn bid(&self, request: &ReleaseRequest) -> Released {
        let answer = self.backend().release(request).await;
        self.note(request, &answer);
        answered("release", answer)
    }

    /// Says farewell through the second handle.
    pub(crate) async fn bid_second(&self, request: &ReleaseRequest) -> Released {
        let answer = self.target.second().release(request).await;
        self.note(request, &answer);
        answered("release", answer)
    }

    pub(crate) async fn order(&self, command: OperatorAction) -> CommandOutcome {
        self.say(&OperatorCommand::new(self.resource.clone(), command, "suite", "to see what happens")).await
    }

    pub(crate) async fn say(&self, order: &OperatorCommand) -> CommandOutcome {
        let answer = self.backend().order(order).await;
        self.note(order, &answer);
        answered("order", answer)
    }

    /// The test's resource, as it is now.
    pub(crate) async fn look(&self) -> Snapshot {
        let mut seen = self.page(&Query::One(self.resource.clone())).await.into_snapshots();
        assert_eq!(seen.len(), 1, "one resource was asked for");
        seen.remove(0)
    }

    pub(crate) async fn page(&self, query: &Query) -> Page {
        let answer = self.backend().inspect(query).await;
        self.note(query, &answer);
        answered("inspect", answer)
    }

    /// Every page of a listing of this test's resources.
    pub(crate) async fn list(&self, prefix: &str, limit: u32) -> Vec<Snapshot> {
        let (mut all, mut listing) = (Vec::new(), Listing::of(prefix).limit(limit));
        loop {
            let Page::Resources { snapshots, next } = self.page(&Query::Resources(listing)).await else {
                panic!("a listing of resources was asked for");
            };
            assert!(limit == 0 || snapshots.len() <= limit as usize, "a page is no longer than asked for");
            all.extend(snapshots);
            match next {
                None => return all,
                Some(next) => listing = Listing::of(prefix).limit(limit).after(next),
            }
            assert!(all.len() < 10_000, "a listing ends");
        }
    }

    /// Begins to wait beside the test.
    pub(crate) async fn wait(&self, claim: &Claim, since: Cursor, at_most: Duration) -> Waiting {
        self.wait_with(self.target.backend(), claim, since, at_most).await
    }

    /// Begins to wait through the second handle.
    pub(crate) async fn wait_second(&self, claim: &Claim, since: Cursor, at_most: Duration) -> Waiting {
        self.wait_with(self.target.second(), claim, since, at_most).await
    }

    async fn wait_with(
        &self,
        backend: &Arc<dyn Backend>,
        claim: &Claim,
        since: Cursor,
        at_most: Duration,
    ) -> Waiting {
        let (backend, reference) = (Arc::clone(backend), claim.reference());
        let task = tokio::spawn(async move { backend.wait(&reference, &since, at_most).await });
        self.target.breathe().await;
        Waiting { task, began: self.target.now() }
    }

    /// Whether the wait ends within this time from now.
    pub(crate) async fn ends(&self, waiting: &Waiting, within: Duration) -> bool {
        let until = self.target.now().after(within);
        while !waiting.task.is_finished() {
            if self.target.now() > until {
                return false;
            }
            self.target.breathe().await;
        }
        true
    }

    /// Asserts that this is most of [`LONG`]; where a session keeps it, that something remains.
    #[track_caller]
    pub(crate) fn lasts(&self, remaining: Duration) {
        let own = self.backend().info().capabilities.own_ttl;
        let least = if own { LONG / 2 } else { Duration::ZERO };
        assert!(remaining > least && remaining <= LONG, "{remaining:?} remain");
    }

    /// So many stand ahead, of whom some could move. Where the store seats by itself, those hold already.
    pub(crate) fn ahead(&self, ahead: u32, movers: u32) -> u32 {
        if self.backend().info().capabilities.self_granting { ahead - movers } else { ahead }
    }

    /// Asserts that what remains fits a ttl that was given between these moments.
    #[track_caller]
    pub(crate) fn remains(
        &self,
        remaining: Duration,
        ttl: Duration,
        given: (Timestamp, Timestamp),
        seen: (Timestamp, Timestamp),
    ) {
        let info = self.backend().info();
        if !info.capabilities.own_ttl {
            // A session keeps it: what remains is what the session may be vouched for, whatever the ttl.
            let most = info.limits.ttl;
            assert!(!remaining.is_zero() && remaining <= most, "{remaining:?} remain, of at most {most:?}");
            return;
        }
        let rounding = Duration::from_millis(1);
        let most = ttl.saturating_sub(given.1.until(seen.0))
            + rounding
            + self.target.lateness()
            + self.target.slack();
        let least = ttl.saturating_sub(given.0.until(seen.1) + rounding + self.target.slack());
        assert!(
            least <= remaining && remaining <= most,
            "{remaining:?} remain, of {least:?} to {most:?} that may"
        );
    }
}

/// A wait under way.
pub(crate) struct Waiting {
    pub(crate) task: JoinHandle<Result<()>>,
    pub(crate) began: Timestamp,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[track_caller]
fn answered<T>(verb: &str, answer: Result<T, Error>) -> T {
    answer.unwrap_or_else(|error| panic!("{verb} failed: {error:?}"))
}

#[track_caller]
#[expect(clippy::needless_pass_by_value, reason = "reads like its siblings: granted(desk.ask(…).await)")]
pub(crate) fn granted(verdict: Verdict) -> Grant {
    if let Verdict::Granted(grant) = verdict { grant } else { panic!("a grant was due, not {verdict:?}") }
}

#[track_caller]
pub(crate) fn blocked(verdict: Verdict) -> Blocked {
    if let Verdict::Blocked(blocked) = verdict { blocked } else { panic!("it is not free, yet: {verdict:?}") }
}

#[track_caller]
pub(crate) fn placed(verdict: Verdict, ahead: u32) -> Blocked {
    let blocked = blocked(verdict);
    assert!(blocked.queued, "a place was due: {blocked:?}");
    assert_eq!(blocked.ahead, ahead, "places ahead in line");
    blocked
}

#[track_caller]
pub(crate) fn buried(verdict: &Verdict) {
    assert!(matches!(verdict, Verdict::Cancelled), "its request buried it, yet: {verdict:?}");
}

#[track_caller]
pub(crate) fn kept(renewal: Renewal) -> Renewed {
    if let Renewal::Renewed(kept) = renewal { kept } else { panic!("it holds, yet: {renewal:?}") }
}

#[track_caller]
pub(crate) fn queued(renewal: &Renewal) -> Duration {
    if let Renewal::Queued { remaining } = renewal {
        *remaining
    } else {
        panic!("it waits, yet: {renewal:?}")
    }
}

#[track_caller]
pub(crate) fn gone(renewal: &Renewal, because: GoneReason) {
    let Renewal::Gone { why } = renewal else { panic!("it is gone, yet: {renewal:?}") };
    assert_eq!(*why, because, "why it is gone");
}
