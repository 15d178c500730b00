//! Every request of every verb whose answer is lost, or late, or that the server executes after its caller gave up.
//!
//! For each verb and each k: the k-th request or reply of the verb has the fault; the verb is repeated, as the engine does
//! it, or not; then every owner ends with a tombstone. At most one node of an owner may be there before, none afterwards, and
//! somebody else is granted at once.
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
    frames::{Fault, Frames},
    granted, in_time, open, through,
};
use leasehold::{
    Backend, Claim, Eviction, Handover, OperatorAction, OperatorCommand, OwnerToken, ReleaseRequest,
    RenewRequest, Resource, Share, Verdict,
};
use leasehold_testkit::servers::ZooKeeperServer;
use leasehold_zookeeper::ZooKeeper;
use zookeeper_client::{Client, Error as Driver};

static SERVER: LazyLock<ZooKeeperServer> = LazyLock::new(ZooKeeperServer::start);
static NUMBER: AtomicU32 = AtomicU32::new(0);

/// How long a caller of the verb waits for the answer: shorter than [`LATE`].
const CALLER_WAITS: Duration = Duration::from_millis(250);
/// Later than the caller waits, and early enough for the driver to keep the connection.
const LATE: Duration = Duration::from_millis(500);
/// More requests than any verb makes.
const REQUESTS_MAX: u32 = 40;

/// What happens after a call that was not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// Its owner ends.
    End,
    /// The call is repeated until it is answered.
    Repeat,
    /// The call is repeated and loses its first answer too; then another claim takes over from its owner.
    HandOver,
}

/// One resource, the backend under test behind the proxy, and another one that nothing happens to.
struct Scene {
    resource: Resource,
    frames: Frames,
    ours: ZooKeeper,
    direct: ZooKeeper,
    raw: Client,
    /// Those of `ours` that must end.
    owners: Vec<OwnerToken>,
    rival: Claim,
}

impl Scene {
    async fn new() -> Scene {
        let frames = Frames::start(SERVER.port()).await;
        let ours = open(&through(frames.port())).await;
        let raw =
            Client::connect(&format!("127.0.0.1:{}", SERVER.port())).await.expect("the server is there");
        let direct = open(&SERVER.url()).await;
        let resource = Self::fresh();
        Scene { rival: claim(&resource), resource, frames, ours, direct, raw, owners: Vec::new() }
    }

    fn fresh() -> Resource {
        format!("lost/{}", NUMBER.fetch_add(1, Ordering::Relaxed)).parse().expect("a name")
    }

    /// Another resource, on which nobody was yet.
    fn begin(&mut self) {
        self.resource = Self::fresh();
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
        self.raw.sync(&path).await.or_else(missing).expect("sync answers");
        match self.raw.list_children(&path).await {
            Ok(names) => names.into_iter().filter(|name| name.starts_with("_c_")).collect(),
            Err(Driver::NoNode) => Vec::new(),
            Err(error) => panic!("{error}"),
        }
    }

    /// What is kept for an owner beside its contender.
    async fn markers(&self) -> Vec<String> {
        let names = self.raw.list_children("/leasehold/v1/heirs").await.expect("the folder is there");
        let ours = |name: &String| self.owners.iter().any(|owner| name.starts_with(&owner.reveal()));
        names.into_iter().filter(ours).collect()
    }

    async fn is_single(&self, what: &str) {
        let mut count = HashMap::new();
        for name in self.contenders().await {
            *count.entry(name[..39].to_owned()).or_insert(0) += 1;
        }
        assert!(count.values().all(|&count| count == 1), "{what}: {count:?}");
    }

    async fn end(&self, backend: &ZooKeeper, what: &str) {
        for &owner in &self.owners {
            let reference = leasehold::ClaimRef { resource: self.resource.clone(), owner };
            let release_request = ReleaseRequest::new(reference).with_tombstone(Duration::from_secs(180));
            eventually(what, || async { backend.release(&release_request).await.is_ok() }).await;
        }
    }

    /// Nobody of ours is left, and somebody else is granted at once.
    async fn is_free(&self, what: &str) {
        let _ = self.direct.release(&ReleaseRequest::new(self.rival.reference())).await.expect("it answers");
        assert_eq!(self.contenders().await, Vec::<String>::new(), "{what}");
        assert_eq!(self.markers().await, Vec::<String>::new(), "{what}");
        // A pause whose end nobody ordered would keep it closed.
        let resume = OperatorCommand::new(self.resource.clone(), OperatorAction::Resume, "ops", "test");
        self.direct.order(&resume).await.expect("it answers");
        let next = claim(&self.resource);
        granted(&self.direct, &next).await;
        common::release(&self.direct, &next).await;
    }
}

fn missing(error: Driver) -> Result<(), Driver> {
    if error == Driver::NoNode { Ok(()) } else { Err(error) }
}

/// Plays the verb with each fault at each of its requests. `prepare` gives the claim that the verb is about; the verb says
/// whether it was answered.
async fn at_each_request(
    prepare: impl AsyncFn(&mut Scene) -> Claim,
    verb: impl AsyncFn(&Scene, &Claim) -> bool,
) {
    let play = &Play { prepare, verb };
    let with = async |fault| {
        tokio::join!(
            play.all(fault, Then::End),
            play.all(fault, Then::Repeat),
            play.all(fault, Then::HandOver)
        )
    };
    tokio::join!(with(Fault::LoseReply), with(Fault::LateReply(LATE)), with(Fault::HoldRequest));
}

struct Play<P, V> {
    prepare: P,
    verb: V,
}

impl<P: AsyncFn(&mut Scene) -> Claim, V: AsyncFn(&Scene, &Claim) -> bool> Play<P, V> {
    async fn all(&self, fault: Fault, then: Then) {
        let mut scene = Scene::new().await;
        for number in 1..=REQUESTS_MAX {
            let what = format!("{fault:?} at request {number}, {then:?}");
            if !self.once(&mut scene, (fault, number), then, &what).await {
                assert!(number > 1, "{what}: the verb makes requests");
                return;
            }
        }
        panic!("{fault:?}: too many requests");
    }

    /// Whether the verb has made that many requests.
    async fn once(&self, scene: &mut Scene, (fault, number): (Fault, u32), then: Then, what: &str) -> bool {
        scene.begin();
        let claim = in_time(what, (self.prepare)(scene)).await;
        scene.frames.set(fault, number);
        // A caller that waits sees the lost connection; one that gives up drops its call.
        let answered = match fault {
            Fault::LoseReply => in_time(what, (self.verb)(scene, &claim)).await,
            _ => tokio::time::timeout(CALLER_WAITS, (self.verb)(scene, &claim)).await.unwrap_or(false),
        };
        let happened = scene.frames.happened();
        if fault == Fault::HoldRequest && happened {
            // The tombstone comes first, over another connection; then the server gets the request.
            scene.end(&scene.direct, what).await;
            scene.frames.deliver();
        } else {
            scene.is_single(what).await;
            if !answered {
                self.after(scene, &claim, then, what).await;
            }
        }
        scene.end(&scene.ours, what).await;
        scene.is_free(what).await;
        happened
    }

    async fn after(&self, scene: &mut Scene, claim: &Claim, then: Then, what: &str) {
        if then == Then::End {
            return;
        }
        if then == Then::HandOver {
            scene.frames.set(Fault::LoseReply, 1);
            in_time(what, (self.verb)(scene, claim)).await;
            scene.frames.happened();
            scene.is_single(what).await;
        }
        in_time(what, async { while !(self.verb)(scene, claim).await {} }).await;
        scene.is_single(what).await;
        if then == Then::HandOver {
            let next = sharing(scene.claim(), claim.share).queued();
            let next = next.taking_over(Handover::with_tombstone(claim.owner, Duration::from_secs(180)));
            in_time(what, async { while scene.ours.acquire(&next).await.is_err() {} }).await;
            scene.is_single(what).await;
            // That was all that is said for the owner of the claim.
            scene.owners.retain(|owner| *owner != claim.owner);
        }
    }
}

async fn acquire(scene: &Scene, claim: &Claim) -> bool {
    scene.ours.acquire(claim).await.is_ok()
}

async fn is_placed(backend: &ZooKeeper, claim: &Claim) {
    match backend.acquire(claim).await {
        Ok(Verdict::Blocked(blocked)) if blocked.queued => {}
        other => panic!("a place was due, not {other:?}"),
    }
}

fn sharing(mut claim: Claim, share: Share) -> Claim {
    claim.share = share;
    claim
}

#[tokio::test]
async fn acquire_what_is_free() {
    at_each_request(async |scene: &mut Scene| scene.claim(), acquire).await;
}

/// A claim on what a rival holds.
async fn rivalled(scene: &mut Scene) -> Claim {
    granted(&scene.direct, &scene.rival).await;
    scene.claim()
}

#[tokio::test]
async fn acquire_what_is_held_and_wait() {
    at_each_request(async |scene: &mut Scene| rivalled(scene).await.queued(), acquire).await;
}

#[tokio::test]
async fn acquire_what_is_held_and_leave() {
    at_each_request(rivalled, acquire).await;
}

#[tokio::test]
async fn acquire_after_waiting() {
    let prepare = async |scene: &mut Scene| {
        let ours = rivalled(scene).await.queued();
        is_placed(&scene.ours, &ours).await;
        common::release(&scene.direct, &scene.rival).await;
        ours
    };
    at_each_request(prepare, acquire).await;
}

#[tokio::test]
async fn acquire_fewer_permits_than_were_asked_for_at_first() {
    let prepare = async |scene: &mut Scene| {
        let share = |weight| Share::new(weight, 5).expect("a share");
        scene.rival = sharing(scene.rival.clone(), share(3));
        let heavy = sharing(rivalled(scene).await.queued(), share(4));
        is_placed(&scene.ours, &heavy).await;
        sharing(heavy, share(2))
    };
    at_each_request(prepare, acquire).await;
}

/// The predecessor may have a request under way: it gets a tombstone.
async fn hand_over(scene: &mut Scene, waits: bool) -> Claim {
    let before = held(scene).await;
    if waits {
        is_placed(&scene.direct, &scene.rival.clone().queued()).await;
    }
    let from = Handover::with_tombstone(before.owner, Duration::from_secs(180));
    scene.claim().queued().taking_over(from)
}

#[tokio::test]
async fn hand_over_a_seat() {
    at_each_request(async |scene: &mut Scene| hand_over(scene, false).await, acquire).await;
}

#[tokio::test]
async fn hand_over_a_seat_while_another_client_waits() {
    at_each_request(async |scene: &mut Scene| hand_over(scene, true).await, acquire).await;
}

#[tokio::test]
async fn hand_over_a_place() {
    let prepare = async |scene: &mut Scene| {
        let before = rivalled(scene).await.queued();
        is_placed(&scene.ours, &before).await;
        scene.claim().queued().taking_over(Handover::from(before.owner))
    };
    at_each_request(prepare, acquire).await;
}

async fn writer(scene: &mut Scene) -> Claim {
    let writer = sharing(scene.claim(), Share::WRITE);
    granted(&scene.ours, &writer).await;
    writer
}

#[tokio::test]
async fn downgrade() {
    let prepare = async |scene: &mut Scene| {
        let writer = writer(scene).await;
        sharing(scene.claim(), Share::READ).taking_over(Handover::from(writer.owner))
    };
    at_each_request(prepare, acquire).await;
}

#[tokio::test]
async fn downgrade_to_a_claim_that_waits_already() {
    let prepare = async |scene: &mut Scene| {
        let writer = writer(scene).await;
        let reader = sharing(scene.claim().queued(), Share::READ);
        is_placed(&scene.ours, &reader).await;
        reader.taking_over(Handover::from(writer.owner))
    };
    at_each_request(prepare, acquire).await;
}

async fn held(scene: &mut Scene) -> Claim {
    let ours = scene.claim();
    granted(&scene.ours, &ours).await;
    ours
}

#[tokio::test]
async fn renew() {
    let verb = async |scene: &Scene, claim: &Claim| {
        let held = RenewRequest::new(claim.reference(), claim.ttl).with_note(&b"note"[..]);
        scene.ours.renew(&[held]).await.remove(0).is_ok()
    };
    at_each_request(held, verb).await;
}

async fn leave(scene: &Scene, claim: &Claim) -> bool {
    scene.ours.release(&ReleaseRequest::new(claim.reference())).await.is_ok()
}

#[tokio::test]
async fn release() {
    at_each_request(held, leave).await;
}

#[tokio::test]
async fn release_with_a_tombstone() {
    let verb = async |scene: &Scene, claim: &Claim| {
        let release_request = ReleaseRequest::new(claim.reference()).with_tombstone(Duration::from_secs(180));
        scene.ours.release(&release_request).await.is_ok()
    };
    at_each_request(held, verb).await;
}

#[tokio::test]
async fn release_what_another_session_made() {
    let prepare = async |scene: &mut Scene| {
        let ours = scene.claim();
        granted(&scene.direct, &ours).await;
        ours
    };
    at_each_request(prepare, leave).await;
}

async fn order(scene: &Scene, command: OperatorAction) -> bool {
    let order = OperatorCommand::new(scene.resource.clone(), command, "ops", "test");
    scene.ours.order(&order).await.is_ok()
}

#[tokio::test]
async fn order_an_eviction() {
    let verb = async |scene: &Scene, _: &Claim| order(scene, OperatorAction::Evict(Eviction::Now)).await;
    at_each_request(held, verb).await;
}

#[tokio::test]
async fn order_a_holder_to_leave() {
    let verb = async |scene: &Scene, _: &Claim| order(scene, OperatorAction::Evict(Eviction::AtExpiry)).await;
    at_each_request(held, verb).await;
}

#[tokio::test]
async fn order_the_end_of_a_pause() {
    let prepare = async |scene: &mut Scene| {
        let ours = held(scene).await;
        assert!(order(scene, OperatorAction::Pause { lasting: Duration::from_secs(60) }).await);
        ours
    };
    let verb = async |scene: &Scene, _: &Claim| order(scene, OperatorAction::Resume).await;
    at_each_request(prepare, verb).await;
}
