//! The faulty network does what it says, call by call and by chance.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{sync::Arc, time::Duration};

use leasehold::{Memory, System, testing::ManualTime};
use leasehold_core::{
    Backend, Claim, ClaimRef, Cursor, Effect, Environment, Error, ErrorKind, Holder, OwnerToken, Query,
    ReleaseRequest, Released, RenewRequest, Renewal, Resource, Share, Verb, Verdict,
};
use leasehold_testkit::{
    Faulty,
    faulty::{Fault, Plan},
};

const TTL: Duration = Duration::from_secs(30);

struct Wire {
    time: ManualTime,
    memory: Arc<Memory>,
    faulty: Faulty,
}

fn wire() -> Wire {
    let time = ManualTime::new();
    let memory = Arc::new(Memory::in_environment(Arc::new(time.clone())));
    let faulty = Faulty::new(memory.clone(), Arc::new(time.clone()), 7);
    Wire { time, memory, faulty }
}

fn claim(number: u8) -> Claim {
    let resource = Resource::new("faults", "1").unwrap();
    Claim::new(
        resource,
        OwnerToken::from_bytes([number; 16]),
        Share::WHOLE,
        TTL,
        Arc::new(Holder::new("h", 1, "")),
    )
}

impl Wire {
    async fn holders(&self) -> u32 {
        let page = self.memory.inspect(&Query::One(claim(1).resource)).await.unwrap();
        page.into_snapshots()[0].holder_count
    }
}

#[track_caller]
fn unavailable<T: std::fmt::Debug>(answer: Result<T, Error>, effect: Effect) {
    let error = answer.expect_err("the network failed");
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, effect));
}

#[tokio::test]
async fn a_quiet_network_forwards_every_verb() {
    let Wire { faulty, .. } = wire();
    let claim = claim(1);
    assert!(matches!(faulty.acquire(&claim).await, Ok(Verdict::Granted(_))));
    let renewed = faulty.renew(&[RenewRequest::new(claim.reference(), TTL)]).await;
    assert!(matches!(renewed.as_slice(), [Ok(Renewal::Renewed(_))]));
    assert_eq!(faulty.inspect(&Query::One(claim.resource.clone())).await.unwrap().into_snapshots().len(), 1);
    faulty.wait(&claim.reference(), &Cursor(0), Duration::ZERO).await.unwrap();
    assert_eq!(faulty.release(&ReleaseRequest::new(claim.reference())).await.unwrap(), Released::Now);
    assert_eq!((faulty.info().name, faulty.struck()), ("memory", vec![]));
}

#[tokio::test]
async fn a_lost_request_comes_to_nothing() {
    let wire = wire();
    wire.faulty.next(Verb::Acquire, Fault::LoseRequest);
    unavailable(wire.faulty.acquire(&claim(1)).await, Effect::Unknown);
    assert_eq!(wire.holders().await, 0);
    wire.faulty.next(Verb::Acquire, Fault::Refuse);
    unavailable(wire.faulty.acquire(&claim(1)).await, Effect::None);
    assert_eq!(wire.holders().await, 0);
    assert!(matches!(wire.faulty.acquire(&claim(1)).await, Ok(Verdict::Granted(_))), "a script is used up");
}

#[tokio::test]
async fn a_lost_reply_had_its_effect() {
    let wire = wire();
    wire.faulty.next(Verb::Acquire, Fault::LoseReply);
    unavailable(wire.faulty.acquire(&claim(1)).await, Effect::Unknown);
    assert_eq!(wire.holders().await, 1);
    wire.faulty.next(Verb::Release, Fault::LoseReply);
    let request = ReleaseRequest::new(claim(1).reference());
    unavailable(wire.faulty.release(&request).await, Effect::Unknown);
    assert_eq!(wire.faulty.release(&request).await.unwrap(), Released::AlreadyGone);
    assert_eq!(wire.faulty.struck(), [(Verb::Acquire, Fault::LoseReply), (Verb::Release, Fault::LoseReply)]);
}

#[tokio::test]
async fn a_failed_batch_fails_for_each() {
    let wire = wire();
    wire.faulty.next(Verb::Renew, Fault::LoseReply);
    let held = RenewRequest::new(claim(1).reference(), TTL);
    let answers = wire.faulty.renew(&[held.clone(), held.clone(), held]).await;
    assert_eq!(answers.len(), 3);
    answers.into_iter().for_each(|answer| unavailable(answer, Effect::Unknown));
}

#[tokio::test]
async fn what_changes_nothing_has_no_unknown_effect() {
    let wire = wire();
    wire.faulty.next(Verb::Inspect, Fault::LoseRequest);
    unavailable(wire.faulty.inspect(&Query::One(claim(1).resource)).await, Effect::None);
    wire.faulty.next(Verb::Wait, Fault::LoseRequest);
    let reference: ClaimRef = claim(1).reference();
    unavailable(wire.faulty.wait(&reference, &Cursor(0), TTL).await, Effect::None);
}

#[tokio::test]
async fn a_duplicate_is_executed_twice() {
    let wire = wire();
    wire.faulty.acquire(&claim(1)).await.unwrap();
    wire.faulty.next(Verb::Release, Fault::Duplicate);
    let answer = wire.faulty.release(&ReleaseRequest::new(claim(1).reference())).await;
    assert_eq!(answer.unwrap(), Released::AlreadyGone, "the second answer is the one that arrives");
}

#[tokio::test]
async fn a_late_request_arrives_after_its_caller_has_left() {
    let wire = wire();
    wire.faulty.next(Verb::Acquire, Fault::Late(Duration::from_secs(3)));
    unavailable(wire.faulty.acquire(&claim(1)).await, Effect::Unknown);
    wire.time.advance(Duration::from_millis(2_999)).await;
    assert_eq!(wire.holders().await, 0);
    wire.time.advance(Duration::from_millis(1)).await;
    assert_eq!(wire.holders().await, 1, "now it arrives");
}

#[tokio::test]
async fn a_tombstone_stops_a_late_request() {
    let wire = wire();
    wire.faulty.next(Verb::Acquire, Fault::Late(Duration::from_secs(3)));
    unavailable(wire.faulty.acquire(&claim(1)).await, Effect::Unknown);
    wire.faulty
        .release(
            &ReleaseRequest::new(claim(1).reference()).with_tombstone(ReleaseRequest::tombstone_ttl(TTL)),
        )
        .await
        .unwrap();
    wire.time.advance(Duration::from_secs(4)).await;
    assert_eq!(wire.holders().await, 0);
}

#[tokio::test]
async fn delays_reorder_what_runs_side_by_side() {
    let wire = wire();
    let faulty = Arc::new(wire.faulty);
    faulty.next(Verb::Acquire, Fault::DelayRequest(Duration::from_secs(2)));
    faulty.next(Verb::Acquire, Fault::DelayReply(Duration::from_secs(1)));
    let calls = [1, 2].map(|number| {
        let faulty = Arc::clone(&faulty);
        tokio::spawn(async move { faulty.acquire(&claim(number)).await.unwrap() })
    });
    wire.time.advance(Duration::from_secs(2)).await;
    let [first, second] = calls;
    assert!(matches!(first.await.unwrap(), Verdict::Blocked(_)), "it set out first and arrived last");
    assert!(matches!(second.await.unwrap(), Verdict::Granted(_)));
}

#[tokio::test]
async fn a_hanging_call_had_its_effect() {
    let wire = wire();
    wire.faulty.next(Verb::Acquire, Fault::Hang);
    let claim = claim(1);
    let patience = tokio::time::timeout(Duration::from_millis(20), wire.faulty.acquire(&claim));
    assert!(patience.await.is_err());
    assert_eq!(wire.holders().await, 1);
}

#[tokio::test]
async fn a_spared_call_goes_through_any_storm() {
    let time = ManualTime::new();
    let memory = Arc::new(Memory::in_environment(Arc::new(time.clone())));
    let mut plan = Plan::QUIET;
    plan.lose_request = 1000;
    let faulty = Faulty::new(memory, Arc::new(time), 1).with_plan(plan);
    unavailable(faulty.acquire(&claim(1)).await, Effect::Unknown);
    faulty.spare(Verb::Acquire);
    assert!(matches!(faulty.acquire(&claim(1)).await, Ok(Verdict::Granted(_))));
    unavailable(faulty.acquire(&claim(1)).await, Effect::Unknown);
    faulty.plan(Plan::QUIET);
    assert!(matches!(faulty.acquire(&claim(1)).await, Ok(Verdict::Granted(_))));
}

async fn struck(seed: u64) -> Vec<(Verb, Fault)> {
    let time = ManualTime::new();
    let memory = Arc::new(Memory::in_environment(Arc::new(time.clone())));
    let faulty = Arc::new(Faulty::new(memory, Arc::new(time.clone()), seed).with_plan(Plan::STORMY));
    for number in 0..200u32 {
        let (faulty, time) = (Arc::clone(&faulty), time.clone());
        let call =
            tokio::spawn(
                async move { drop(faulty.acquire(&claim(u8::try_from(number % 7).unwrap())).await) },
            );
        time.advance(Duration::from_millis(500)).await;
        call.await.unwrap();
    }
    faulty.struck()
}

#[tokio::test]
async fn the_seed_decides_what_goes_wrong() {
    let (first, again, other) = (struck(1).await, struck(1).await, struck(2).await);
    assert_eq!(first, again);
    assert_ne!(first, other);
    assert!((30..120).contains(&first.len()), "about a third of 200: {}", first.len());
    let kinds: std::collections::HashSet<_> =
        first.iter().map(|(_, fault)| std::mem::discriminant(fault)).collect();
    assert_eq!(kinds.len(), 7, "each kind of fault strikes");
}

#[tokio::test]
async fn real_time_will_do_as_well() {
    let memory = Arc::new(Memory::new());
    let environment: Arc<dyn Environment> = Arc::new(System::current());
    let faulty = Faulty::new(memory, environment, 3);
    faulty.next(Verb::Acquire, Fault::DelayReply(Duration::from_millis(5)));
    assert!(matches!(faulty.acquire(&claim(1)).await, Ok(Verdict::Granted(_))));
}
