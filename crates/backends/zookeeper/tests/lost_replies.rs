//! Each request of each verb is tried with a lost reply, with a late reply, and with an execution after its
//! caller gave up.
//!
//! For each verb and each k:
//!
//! 1. Inject the fault into the k-th request or reply of the verb.
//! 2. At most one contender of each owner may exist now.
//! 3. Repeat the verb, as the engine does, or not ([`AfterFault`]).
//! 4. End every owner with a tombstone. No contender and no marker may be left, and another client must be
//!    granted at once.
//!
//! k grows until the verb sends no such request any more.
#![allow(clippy::disallowed_methods, reason = "tests on real servers run in real time")]

mod common;

use std::{
    collections::HashMap,
    sync::{
        LazyLock,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use common::{
    claim, eventually,
    frame_proxy::{FrameFault, FrameProxy},
    granted, in_time, open, url_through,
};
use leasehold::{
    Backend, BackendExt as _, Claim, Eviction, Handover, OperatorAction, OperatorCommand, OwnerToken,
    ReleaseRequest, RenewRequest, Resource, Share, Verdict,
};
use leasehold_testkit::servers::ZooKeeperServer;
use leasehold_zookeeper::ZooKeeper;
use zookeeper_client::{Client, Error as Driver};

static SERVER: LazyLock<ZooKeeperServer> = LazyLock::new(ZooKeeperServer::start);
static RESOURCES: AtomicU32 = AtomicU32::new(0);

/// How long a caller of the verb waits for the reply: shorter than [`LATE`].
const CALLER_TIMEOUT: Duration = Duration::from_millis(250);
/// The delay of a late reply: longer than the caller waits, and short enough that the driver keeps the
/// connection.
const LATE: Duration = Duration::from_millis(500);
/// How long tombstones last: longer than the tests.
const TOMBSTONE_TTL: Duration = Duration::from_secs(180);
/// More requests than any verb sends.
const REQUESTS_MAX: u32 = 40;
/// How many characters of a contender's name tell its owner: `_c_` and a UUID.
const OWNER_PART: usize = 39;

/// What happens after a call that was not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AfterFault {
    /// The owner gives up.
    End,
    /// The call is repeated until it is answered.
    Repeat,
    /// The call is repeated and loses its first reply too; then another claim takes over from its owner.
    HandOver,
}

/// One resource and the clients that use it.
struct Fixture {
    resource: Resource,
    proxy: FrameProxy,
    /// The backend under test, behind the proxy.
    ours: ZooKeeper,
    /// Another backend, without a proxy.
    direct: ZooKeeper,
    raw: Client,
    /// The owners of the claims of `ours`. All of them must end.
    owners: Vec<OwnerToken>,
    /// The claim of another client.
    rival: Claim,
}

impl Fixture {
    async fn new() -> Fixture {
        let proxy = FrameProxy::start(SERVER.port()).await;
        let ours = open(&url_through(proxy.port())).await;
        let raw = Client::connect(&format!("127.0.0.1:{}", SERVER.port())).await.expect("the server answers");
        let direct = open(&SERVER.url()).await;
        let resource = Self::fresh_resource();
        Fixture { rival: claim(&resource), resource, proxy, ours, direct, raw, owners: Vec::new() }
    }

    fn fresh_resource() -> Resource {
        format!("lost/{}", RESOURCES.fetch_add(1, Ordering::Relaxed)).parse().expect("a valid name")
    }

    /// Changes to a resource that no client has used yet.
    fn use_fresh_resource(&mut self) {
        self.resource = Self::fresh_resource();
        self.rival = claim(&self.resource);
        self.owners.clear();
    }

    /// A claim of the backend under test.
    fn claim(&mut self) -> Claim {
        let ours = claim(&self.resource);
        self.owners.push(ours.owner);
        ours
    }

    async fn contenders(&self) -> Vec<String> {
        let path = format!("/leasehold/v1/locks/{}", self.resource.key());
        self.raw.sync(&path).await.or_else(accept_missing).expect("sync is answered");
        match self.raw.list_children(&path).await {
            Ok(names) => names.into_iter().filter(|name| name.starts_with("_c_")).collect(),
            Err(Driver::NoNode) => Vec::new(),
            Err(error) => panic!("{error}"),
        }
    }

    /// The markers of our owners.
    async fn markers(&self) -> Vec<String> {
        let names = self.raw.list_children("/leasehold/v1/heirs").await.expect("the folder exists");
        let ours = |name: &String| self.owners.iter().any(|owner| name.starts_with(&owner.reveal()));
        names.into_iter().filter(ours).collect()
    }

    /// Checks that no owner has two contenders.
    async fn check_one_contender_each(&self, what: &str) {
        let mut count = HashMap::new();
        for name in self.contenders().await {
            *count.entry(name[..OWNER_PART].to_owned()).or_insert(0) += 1;
        }
        assert!(count.values().all(|&count| count == 1), "{what}: {count:?}");
    }

    /// Ends all our owners with tombstones.
    async fn end_owners(&self, backend: &ZooKeeper, what: &str) {
        for &owner in &self.owners {
            let reference = leasehold::ClaimRef { resource: self.resource.clone(), owner };
            let release_request = ReleaseRequest::new(reference).with_tombstone(TOMBSTONE_TTL);
            eventually(what, || async { backend.release_one(&release_request).await.is_ok() }).await;
        }
    }

    /// Checks that no node of our owners is left, and that another client is granted at once.
    async fn check_free(&self, what: &str) {
        let _ = self
            .direct
            .release_one(&ReleaseRequest::new(self.rival.reference()))
            .await
            .expect("the server answers");
        assert_eq!(self.contenders().await, Vec::<String>::new(), "{what}");
        assert_eq!(self.markers().await, Vec::<String>::new(), "{what}");
        // A pause that the verb did not end would block the next claim.
        let resume = OperatorCommand::new(self.resource.clone(), OperatorAction::Resume, "ops", "test");
        self.direct.order(&resume).await.expect("the server answers");
        let next = claim(&self.resource);
        granted(&self.direct, &next).await;
        common::release(&self.direct, &next).await;
    }
}

fn accept_missing(error: Driver) -> Result<(), Driver> {
    if error == Driver::NoNode { Ok(()) } else { Err(error) }
}

/// Runs the verb with each fault at each of its requests. `prepare` returns the claim for the verb; the verb
/// returns whether it was answered.
async fn at_each_request(
    prepare: impl AsyncFn(&mut Fixture) -> Claim,
    verb: impl AsyncFn(&Fixture, &Claim) -> bool,
) {
    let cases = &FaultCases { prepare, verb };
    let with = async |fault| {
        tokio::join!(
            cases.at_every_request(fault, AfterFault::End),
            cases.at_every_request(fault, AfterFault::Repeat),
            cases.at_every_request(fault, AfterFault::HandOver)
        )
    };
    tokio::join!(
        with(FrameFault::LoseReply),
        with(FrameFault::LateReply(LATE)),
        with(FrameFault::HoldRequest)
    );
}

/// A verb, and how to prepare a claim for it.
struct FaultCases<P, V> {
    prepare: P,
    verb: V,
}

impl<P: AsyncFn(&mut Fixture) -> Claim, V: AsyncFn(&Fixture, &Claim) -> bool> FaultCases<P, V> {
    async fn at_every_request(&self, fault: FrameFault, after: AfterFault) {
        let mut fixture = Fixture::new().await;
        for number in 1..=REQUESTS_MAX {
            let what = format!("{fault:?} at request {number}, {after:?}");
            if !self.once(&mut fixture, (fault, number), after, &what).await {
                assert!(number > 1, "{what}: the verb sends requests");
                return;
            }
        }
        panic!("{fault:?}: too many requests");
    }

    /// Runs one case. Returns whether the verb has sent that many requests.
    async fn once(
        &self,
        fixture: &mut Fixture,
        (fault, number): (FrameFault, u32),
        after: AfterFault,
        what: &str,
    ) -> bool {
        fixture.use_fresh_resource();
        let claim = in_time(what, (self.prepare)(fixture)).await;
        fixture.proxy.inject(fault, number);
        // With a lost reply the caller sees the broken connection. In the other cases it gives up and drops
        // its call.
        let answered = match fault {
            FrameFault::LoseReply => in_time(what, (self.verb)(fixture, &claim)).await,
            _ => tokio::time::timeout(CALLER_TIMEOUT, (self.verb)(fixture, &claim)).await.unwrap_or(false),
        };
        let happened = fixture.proxy.happened();
        if fault == FrameFault::HoldRequest && happened {
            // The owner ends over another connection first; then the server receives the request.
            fixture.end_owners(&fixture.direct, what).await;
            fixture.proxy.deliver();
        } else {
            fixture.check_one_contender_each(what).await;
            if !answered {
                self.continue_after_fault(fixture, &claim, after, what).await;
            }
        }
        fixture.end_owners(&fixture.ours, what).await;
        fixture.check_free(what).await;
        happened
    }

    async fn continue_after_fault(
        &self,
        fixture: &mut Fixture,
        claim: &Claim,
        after: AfterFault,
        what: &str,
    ) {
        if after == AfterFault::End {
            return;
        }
        if after == AfterFault::HandOver {
            fixture.proxy.inject(FrameFault::LoseReply, 1);
            in_time(what, (self.verb)(fixture, claim)).await;
            fixture.proxy.happened();
            fixture.check_one_contender_each(what).await;
        }
        in_time(what, async { while !(self.verb)(fixture, claim).await {} }).await;
        fixture.check_one_contender_each(what).await;
        if after == AfterFault::HandOver {
            let next = sharing(fixture.claim(), claim.share).queued();
            let next = next.taking_over(Handover::with_tombstone(claim.owner, TOMBSTONE_TTL));
            in_time(what, async { while fixture.ours.acquire_one(&next).await.is_err() {} }).await;
            fixture.check_one_contender_each(what).await;
            // The handover has ended the first owner; it must need no release of its own.
            fixture.owners.retain(|owner| *owner != claim.owner);
        }
    }
}

async fn acquire(fixture: &Fixture, claim: &Claim) -> bool {
    fixture.ours.acquire_one(claim).await.is_ok()
}

async fn check_queued(backend: &ZooKeeper, claim: &Claim) {
    match backend.acquire_one(claim).await {
        Ok(Verdict::Blocked(blocked)) if blocked.queued => {}
        other => panic!("expected a place in the queue, not {other:?}"),
    }
}

fn sharing(mut claim: Claim, share: Share) -> Claim {
    claim.share = share;
    claim
}

#[tokio::test]
async fn faults_while_acquiring_a_free_resource_leave_nothing_behind() {
    at_each_request(async |fixture: &mut Fixture| fixture.claim(), acquire).await;
}

/// A claim for a resource that another client holds.
async fn claim_held_by_rival(fixture: &mut Fixture) -> Claim {
    granted(&fixture.direct, &fixture.rival).await;
    fixture.claim()
}

#[tokio::test]
async fn faults_while_queueing_for_a_held_resource_leave_nothing_behind() {
    at_each_request(async |fixture: &mut Fixture| claim_held_by_rival(fixture).await.queued(), acquire).await;
}

#[tokio::test]
async fn faults_while_being_refused_a_held_resource_leave_nothing_behind() {
    at_each_request(claim_held_by_rival, acquire).await;
}

#[tokio::test]
async fn faults_while_acquiring_after_a_wait_leave_nothing_behind() {
    let prepare = async |fixture: &mut Fixture| {
        let ours = claim_held_by_rival(fixture).await.queued();
        check_queued(&fixture.ours, &ours).await;
        common::release(&fixture.direct, &fixture.rival).await;
        ours
    };
    at_each_request(prepare, acquire).await;
}

#[tokio::test]
async fn faults_while_acquiring_fewer_permits_than_at_first_leave_nothing_behind() {
    let prepare = async |fixture: &mut Fixture| {
        let share = |weight| Share::new(weight, 5).expect("a valid share");
        fixture.rival = sharing(fixture.rival.clone(), share(3));
        let heavy = sharing(claim_held_by_rival(fixture).await.queued(), share(4));
        check_queued(&fixture.ours, &heavy).await;
        sharing(heavy, share(2))
    };
    at_each_request(prepare, acquire).await;
}

/// A claim that takes over from a holder. A request of the holder may be unanswered, so it gets a tombstone.
async fn take_over_from_holder(fixture: &mut Fixture, rival_waits: bool) -> Claim {
    let before = held(fixture).await;
    if rival_waits {
        check_queued(&fixture.direct, &fixture.rival.clone().queued()).await;
    }
    let from = Handover::with_tombstone(before.owner, TOMBSTONE_TTL);
    fixture.claim().queued().taking_over(from)
}

#[tokio::test]
async fn faults_while_handing_over_a_lease_leave_nothing_behind() {
    at_each_request(async |fixture: &mut Fixture| take_over_from_holder(fixture, false).await, acquire).await;
}

#[tokio::test]
async fn faults_while_handing_over_a_lease_that_another_client_waits_for_leave_nothing_behind() {
    at_each_request(async |fixture: &mut Fixture| take_over_from_holder(fixture, true).await, acquire).await;
}

#[tokio::test]
async fn faults_while_handing_over_a_place_in_the_queue_leave_nothing_behind() {
    let prepare = async |fixture: &mut Fixture| {
        let before = claim_held_by_rival(fixture).await.queued();
        check_queued(&fixture.ours, &before).await;
        fixture.claim().queued().taking_over(Handover::from(before.owner))
    };
    at_each_request(prepare, acquire).await;
}

async fn writer(fixture: &mut Fixture) -> Claim {
    let writer = sharing(fixture.claim(), Share::WRITE);
    granted(&fixture.ours, &writer).await;
    writer
}

#[tokio::test]
async fn faults_during_a_downgrade_leave_nothing_behind() {
    let prepare = async |fixture: &mut Fixture| {
        let writer = writer(fixture).await;
        sharing(fixture.claim(), Share::READ).taking_over(Handover::from(writer.owner))
    };
    at_each_request(prepare, acquire).await;
}

#[tokio::test]
async fn faults_during_a_downgrade_to_a_claim_that_waits_already_leave_nothing_behind() {
    let prepare = async |fixture: &mut Fixture| {
        let writer = writer(fixture).await;
        let reader = sharing(fixture.claim().queued(), Share::READ);
        check_queued(&fixture.ours, &reader).await;
        reader.taking_over(Handover::from(writer.owner))
    };
    at_each_request(prepare, acquire).await;
}

async fn held(fixture: &mut Fixture) -> Claim {
    let ours = fixture.claim();
    granted(&fixture.ours, &ours).await;
    ours
}

#[tokio::test]
async fn faults_during_a_renewal_leave_nothing_behind() {
    let verb = async |fixture: &Fixture, claim: &Claim| {
        let held = RenewRequest::new(claim.reference(), claim.ttl).with_note(&b"note"[..]);
        fixture.ours.renew(&[held]).await.remove(0).is_ok()
    };
    at_each_request(held, verb).await;
}

async fn release_once(fixture: &Fixture, claim: &Claim) -> bool {
    fixture.ours.release_one(&ReleaseRequest::new(claim.reference())).await.is_ok()
}

#[tokio::test]
async fn faults_during_a_release_leave_nothing_behind() {
    at_each_request(held, release_once).await;
}

#[tokio::test]
async fn faults_during_a_release_with_a_tombstone_leave_nothing_behind() {
    let verb = async |fixture: &Fixture, claim: &Claim| {
        let release_request = ReleaseRequest::new(claim.reference()).with_tombstone(TOMBSTONE_TTL);
        fixture.ours.release_one(&release_request).await.is_ok()
    };
    at_each_request(held, verb).await;
}

#[tokio::test]
async fn faults_while_releasing_a_claim_of_another_session_leave_nothing_behind() {
    let prepare = async |fixture: &mut Fixture| {
        let ours = fixture.claim();
        granted(&fixture.direct, &ours).await;
        ours
    };
    at_each_request(prepare, release_once).await;
}

async fn order(fixture: &Fixture, action: OperatorAction) -> bool {
    let command = OperatorCommand::new(fixture.resource.clone(), action, "ops", "test");
    fixture.ours.order(&command).await.is_ok()
}

#[tokio::test]
async fn faults_during_an_eviction_leave_nothing_behind() {
    let verb =
        async |fixture: &Fixture, _: &Claim| order(fixture, OperatorAction::Evict(Eviction::Now)).await;
    at_each_request(held, verb).await;
}

#[tokio::test]
async fn faults_during_an_eviction_at_expiry_leave_nothing_behind() {
    let verb =
        async |fixture: &Fixture, _: &Claim| order(fixture, OperatorAction::Evict(Eviction::AtExpiry)).await;
    at_each_request(held, verb).await;
}

#[tokio::test]
async fn faults_while_ending_a_pause_leave_nothing_behind() {
    let prepare = async |fixture: &mut Fixture| {
        let ours = held(fixture).await;
        assert!(order(fixture, OperatorAction::Pause { lasting: Duration::from_secs(60) }).await);
        ours
    };
    let verb = async |fixture: &Fixture, _: &Claim| order(fixture, OperatorAction::Resume).await;
    at_each_request(prepare, verb).await;
}
