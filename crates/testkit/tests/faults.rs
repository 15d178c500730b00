//! The injected faults of `Faulty`, scripted and drawn from a plan.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{sync::Arc, time::Duration};

use leasehold::{Memory, System, testing::ManualTime};
use leasehold_core::{
    Backend, BackendExt as _, Claim, ClaimRef, Cursor, Effect, Environment, Error, ErrorKind, Holder,
    OwnerToken, Query, ReleaseRequest, Released, RenewRequest, Renewal, Resource, Share, Verb, Verdict,
};
use leasehold_testkit::{
    Faulty,
    faulty::{Fault, FaultPlan},
};

const TTL: Duration = Duration::from_secs(30);

/// A memory backend behind injected faults.
struct FaultySetup {
    time: ManualTime,
    memory: Arc<Memory>,
    faulty: Faulty,
}

fn setup() -> FaultySetup {
    let time = ManualTime::new();
    let memory = Arc::new(Memory::in_environment(Arc::new(time.clone())));
    let faulty = Faulty::new(memory.clone(), Arc::new(time.clone()), 7);
    FaultySetup { time, memory, faulty }
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

impl FaultySetup {
    async fn holders(&self) -> u32 {
        let page = self.memory.inspect(&Query::One(claim(1).resource)).await.unwrap();
        page.into_snapshots()[0].holder_count
    }
}

#[track_caller]
fn unavailable<T: std::fmt::Debug>(answer: Result<T, Error>, effect: Effect) {
    let error = answer.expect_err("a fault was injected");
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, effect));
}

#[tokio::test]
async fn without_faults_every_verb_is_forwarded() {
    let FaultySetup { faulty, .. } = setup();
    let claim = claim(1);
    assert!(matches!(faulty.acquire_one(&claim).await, Ok(Verdict::Granted(_))));
    let renewed = faulty.renew(&[RenewRequest::new(claim.reference(), TTL)]).await;
    assert!(matches!(renewed.as_slice(), [Ok(Renewal::Renewed(_))]));
    assert_eq!(faulty.inspect(&Query::One(claim.resource.clone())).await.unwrap().into_snapshots().len(), 1);
    faulty.wait(&claim.reference(), &Cursor(0), Duration::ZERO).await.unwrap();
    assert_eq!(faulty.release_one(&ReleaseRequest::new(claim.reference())).await.unwrap(), Released::Now);
    assert_eq!((faulty.info().name, faulty.injected()), ("memory", vec![]));
}

#[tokio::test]
async fn a_lost_request_has_no_effect() {
    let setup = setup();
    setup.faulty.next(Verb::Acquire, Fault::LoseRequest);
    unavailable(setup.faulty.acquire_one(&claim(1)).await, Effect::Unknown);
    assert_eq!(setup.holders().await, 0);
    setup.faulty.next(Verb::Acquire, Fault::Refuse);
    unavailable(setup.faulty.acquire_one(&claim(1)).await, Effect::None);
    assert_eq!(setup.holders().await, 0);
    assert!(
        matches!(setup.faulty.acquire_one(&claim(1)).await, Ok(Verdict::Granted(_))),
        "a scripted fault is injected once"
    );
}

#[tokio::test]
async fn a_request_whose_reply_is_lost_has_its_effect() {
    let setup = setup();
    setup.faulty.next(Verb::Acquire, Fault::LoseReply);
    unavailable(setup.faulty.acquire_one(&claim(1)).await, Effect::Unknown);
    assert_eq!(setup.holders().await, 1);
    setup.faulty.next(Verb::Release, Fault::LoseReply);
    let request = ReleaseRequest::new(claim(1).reference());
    unavailable(setup.faulty.release_one(&request).await, Effect::Unknown);
    assert_eq!(setup.faulty.release_one(&request).await.unwrap(), Released::AlreadyGone);
    assert_eq!(
        setup.faulty.injected(),
        [(Verb::Acquire, Fault::LoseReply), (Verb::Release, Fault::LoseReply)]
    );
}

#[tokio::test]
async fn a_failed_batch_fails_for_each_request() {
    let setup = setup();
    setup.faulty.next(Verb::Renew, Fault::LoseReply);
    let held = RenewRequest::new(claim(1).reference(), TTL);
    let answers = setup.faulty.renew(&[held.clone(), held.clone(), held]).await;
    assert_eq!(answers.len(), 3);
    answers.into_iter().for_each(|answer| unavailable(answer, Effect::Unknown));
}

#[tokio::test]
async fn a_verb_that_changes_nothing_has_no_unknown_effect() {
    let setup = setup();
    setup.faulty.next(Verb::Inspect, Fault::LoseRequest);
    unavailable(setup.faulty.inspect(&Query::One(claim(1).resource)).await, Effect::None);
    setup.faulty.next(Verb::Wait, Fault::LoseRequest);
    let reference: ClaimRef = claim(1).reference();
    unavailable(setup.faulty.wait(&reference, &Cursor(0), TTL).await, Effect::None);
}

#[tokio::test]
async fn a_duplicate_is_executed_twice() {
    let setup = setup();
    setup.faulty.acquire_one(&claim(1)).await.unwrap();
    setup.faulty.next(Verb::Release, Fault::Duplicate);
    let answer = setup.faulty.release_one(&ReleaseRequest::new(claim(1).reference())).await;
    assert_eq!(answer.unwrap(), Released::AlreadyGone, "the caller gets the second reply");
}

#[tokio::test]
async fn a_late_request_is_executed_after_its_call_has_failed() {
    let setup = setup();
    setup.faulty.next(Verb::Acquire, Fault::Late(Duration::from_secs(3)));
    unavailable(setup.faulty.acquire_one(&claim(1)).await, Effect::Unknown);
    setup.time.advance(Duration::from_millis(2_999)).await;
    assert_eq!(setup.holders().await, 0);
    setup.time.advance(Duration::from_millis(1)).await;
    assert_eq!(setup.holders().await, 1, "executed after three seconds");
}

#[tokio::test]
async fn a_tombstone_stops_a_late_request() {
    let setup = setup();
    setup.faulty.next(Verb::Acquire, Fault::Late(Duration::from_secs(3)));
    unavailable(setup.faulty.acquire_one(&claim(1)).await, Effect::Unknown);
    setup
        .faulty
        .release_one(
            &ReleaseRequest::new(claim(1).reference()).with_tombstone(ReleaseRequest::tombstone_ttl(TTL)),
        )
        .await
        .unwrap();
    setup.time.advance(Duration::from_secs(4)).await;
    assert_eq!(setup.holders().await, 0);
}

#[tokio::test]
async fn delays_reorder_concurrent_calls() {
    let setup = setup();
    let faulty = Arc::new(setup.faulty);
    faulty.next(Verb::Acquire, Fault::DelayRequest(Duration::from_secs(2)));
    faulty.next(Verb::Acquire, Fault::DelayReply(Duration::from_secs(1)));
    let calls = [1, 2].map(|number| {
        let faulty = Arc::clone(&faulty);
        tokio::spawn(async move { faulty.acquire_one(&claim(number)).await.unwrap() })
    });
    setup.time.advance(Duration::from_secs(2)).await;
    let [first, second] = calls;
    assert!(matches!(first.await.unwrap(), Verdict::Blocked(_)), "it began first and was executed last");
    assert!(matches!(second.await.unwrap(), Verdict::Granted(_)));
}

#[tokio::test]
async fn a_hanging_call_has_its_effect() {
    let setup = setup();
    setup.faulty.next(Verb::Acquire, Fault::Hang);
    let claim = claim(1);
    let limited = tokio::time::timeout(Duration::from_millis(20), setup.faulty.acquire_one(&claim));
    assert!(limited.await.is_err());
    assert_eq!(setup.holders().await, 1);
}

#[tokio::test]
async fn a_call_that_is_let_through_has_no_fault_whatever_the_plan() {
    let time = ManualTime::new();
    let memory = Arc::new(Memory::in_environment(Arc::new(time.clone())));
    let mut plan = FaultPlan::NONE;
    plan.lose_request = 1000;
    let faulty = Faulty::new(memory, Arc::new(time), 1).with_plan(plan);
    unavailable(faulty.acquire_one(&claim(1)).await, Effect::Unknown);
    faulty.let_through(Verb::Acquire);
    assert!(matches!(faulty.acquire_one(&claim(1)).await, Ok(Verdict::Granted(_))));
    unavailable(faulty.acquire_one(&claim(1)).await, Effect::Unknown);
    faulty.plan(FaultPlan::NONE);
    assert!(matches!(faulty.acquire_one(&claim(1)).await, Ok(Verdict::Granted(_))));
}

async fn injected_with(seed: u64) -> Vec<(Verb, Fault)> {
    let time = ManualTime::new();
    let memory = Arc::new(Memory::in_environment(Arc::new(time.clone())));
    let faulty = Arc::new(Faulty::new(memory, Arc::new(time.clone()), seed).with_plan(FaultPlan::HEAVY));
    for number in 0..200u32 {
        let (faulty, time) = (Arc::clone(&faulty), time.clone());
        let call =
            tokio::spawn(
                async move { drop(faulty.acquire_one(&claim(u8::try_from(number % 7).unwrap())).await) },
            );
        time.advance(Duration::from_millis(500)).await;
        call.await.unwrap();
    }
    faulty.injected()
}

#[tokio::test]
async fn the_seed_decides_the_faults() {
    let (first, again, other) = (injected_with(1).await, injected_with(1).await, injected_with(2).await);
    assert_eq!(first, again);
    assert_ne!(first, other);
    assert!((30..120).contains(&first.len()), "about a third of 200: {}", first.len());
    let kinds: std::collections::HashSet<_> =
        first.iter().map(|(_, fault)| std::mem::discriminant(fault)).collect();
    assert_eq!(kinds.len(), 7, "every kind of fault is injected");
}

#[tokio::test]
async fn a_delay_works_in_real_time() {
    let memory = Arc::new(Memory::new());
    let environment: Arc<dyn Environment> = Arc::new(System::current());
    let faulty = Faulty::new(memory, environment, 3);
    faulty.next(Verb::Acquire, Fault::DelayReply(Duration::from_millis(5)));
    assert!(matches!(faulty.acquire_one(&claim(1)).await, Ok(Verdict::Granted(_))));
}
