//! Many clients behind injected faults: the checker must accept every history of the memory backend.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{sync::Arc, time::Duration};

use leasehold::{Memory, testing::ManualTime};
use leasehold_core::{
    Backend, BackendExt as _, Claim, Clock as _, Environment, Handover, Holder, OwnerToken, ReleaseRequest,
    RenewRequest, Renewal, Resource, Share, Verdict,
};
use leasehold_testkit::{
    Faulty, Recorded,
    faulty::FaultPlan,
    history::{History, Journal, Rule},
};

const TTL: Duration = Duration::from_secs(3);

/// A client that acquires, queues, renews, hands over, releases and dies at random.
async fn client(
    backend: Arc<dyn Backend>,
    time: ManualTime,
    resource: Resource,
    shares: &'static [(u32, u32)],
) {
    let environment: Arc<dyn Environment> = Arc::new(time.clone());
    let until = time.now().after(Duration::from_secs(60));
    let mut predecessor: Option<OwnerToken> = None;
    while time.now() < until {
        let owner = OwnerToken::fresh(&*environment);
        let (weight, capacity) = shares[pick(&environment, shares.len())];
        let share = Share::new(weight, capacity).unwrap();
        let holder = Arc::new(Holder::new("faults", 1, ""));
        let mut claim = Claim::new(resource.clone(), owner, share, TTL, holder).queued();
        claim.place_ttl = Duration::from_secs(2);
        if let Some(from) = predecessor.take() {
            claim = claim.taking_over(Handover::from(from));
        }
        // Whether some call had an unknown effect. Then the release leaves a tombstone (ADR 0004).
        let mut doubtful = false;
        let mut holds = false;
        for _ in 0..12 {
            match backend.acquire_one(&claim).await {
                Ok(Verdict::Granted(_)) => holds = true,
                Ok(Verdict::Blocked(_)) => {}
                Ok(Verdict::Cancelled | Verdict::Mismatch { .. }) => break,
                Err(_) => doubtful = true,
            }
            if holds {
                break;
            }
            environment.sleep(Duration::from_millis(200)).await;
        }
        while holds && pick(&environment, 4) > 0 {
            environment.sleep(Duration::from_millis(700)).await;
            let answer = backend.renew(&[RenewRequest::new(claim.reference(), TTL)]).await.remove(0);
            doubtful |= answer.is_err();
            holds = !matches!(answer, Ok(Renewal::Gone { .. }));
        }
        match pick(&environment, 8) {
            0 => {} // the client dies without a release, so the grant expires
            1 if holds && !doubtful => predecessor = Some(owner),
            _ => {
                let request = ReleaseRequest::new(claim.reference());
                let request = if doubtful {
                    request.with_tombstone(ReleaseRequest::tombstone_ttl(TTL))
                } else {
                    request
                };
                drop(backend.release_one(&request).await);
            }
        }
    }
}

fn pick(environment: &Arc<dyn Environment>, of: usize) -> usize {
    usize::try_from(environment.random() % of as u64).unwrap()
}

async fn run(seed: u64, plan: FaultPlan, shares: &'static [(u32, u32)]) -> History {
    let time = ManualTime::new();
    let memory: Arc<dyn Backend> = Arc::new(Memory::in_environment(Arc::new(time.clone())));
    run_on([memory.clone(), memory], time, seed, plan, shares).await
}

/// Runs eight clients, half of them on each backend. Returns the history of all calls.
async fn run_on(
    backends: [Arc<dyn Backend>; 2],
    time: ManualTime,
    seed: u64,
    plan: FaultPlan,
    shares: &'static [(u32, u32)],
) -> History {
    let journal = Journal::new(Arc::new(time.clone()));
    let clients: Vec<_> = (0..8usize)
        .map(|number| {
            let memory = backends[number / 4].clone();
            let network =
                Faulty::new(memory, Arc::new(time.clone()), seed * 100 + number as u64).with_plan(plan);
            let recorded = Arc::new(Recorded::new(Arc::new(network), &journal));
            let resource = Resource::new("faults", &(number % 2).to_string()).unwrap();
            tokio::spawn(client(recorded, time.clone(), resource, shares))
        })
        .collect();
    for _ in 0..900 {
        time.advance(Duration::from_millis(100)).await;
    }
    for client in clients {
        assert!(client.is_finished(), "no client hangs");
        client.await.unwrap();
    }
    journal.history()
}

#[track_caller]
fn assert_possible(history: &History, seed: u64) {
    let grants = history.calls.iter().filter(|call| format!("{:?}", call.reply).contains("Granted")).count();
    assert!(grants > 20, "enough grants for a meaningful check: {grants}");
    if let Err(violations) = history.check(Duration::ZERO) {
        panic!("seed {seed}: {} violations, the first: {}", violations.len(), violations[0]);
    }
}

#[tokio::test]
async fn mutexes_without_faults() {
    assert_possible(&run(1, FaultPlan::NONE, &[(1, 1)]).await, 1);
}

#[tokio::test]
async fn mutexes_with_heavy_faults() {
    for seed in 1..4 {
        assert_possible(&run(seed, FaultPlan::HEAVY, &[(1, 1)]).await, seed);
    }
}

#[tokio::test]
async fn semaphores_with_heavy_faults() {
    for seed in 1..4 {
        assert_possible(&run(seed, FaultPlan::HEAVY, &[(1, 3), (2, 3), (3, 3)]).await, seed);
    }
}

#[tokio::test]
async fn read_write_locks_with_heavy_faults() {
    for seed in 1..4 {
        assert_possible(&run(seed, FaultPlan::HEAVY, &[(1, u32::MAX), (u32::MAX, u32::MAX)]).await, seed);
    }
}

#[tokio::test]
async fn a_split_brain_is_detected() {
    let time = ManualTime::new();
    let memory = || -> Arc<dyn Backend> { Arc::new(Memory::in_environment(Arc::new(time.clone()))) };
    let history = run_on([memory(), memory()], time.clone(), 1, FaultPlan::HEAVY, &[(1, 1)]).await;
    let violations = history.check(Duration::ZERO).expect_err("two separate states cannot keep the contract");
    for rule in [Rule::Weights, Rule::Tokens, Rule::QueueOrder] {
        assert!(violations.iter().any(|violation| violation.rule == rule), "{rule:?}");
    }
}
