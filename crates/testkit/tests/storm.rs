//! Many clients behind bad networks: whatever they see of the memory backend can have happened.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{sync::Arc, time::Duration};

use leasehold::{Memory, testing::ManualTime};
use leasehold_core::{
    Backend, Claim, Clock as _, Environment, Handover, Holder, OwnerToken, ReleaseRequest, RenewRequest,
    Renewal, Resource, Share, Verdict,
};
use leasehold_testkit::{
    Faulty, Recorded,
    faulty::Plan,
    history::{History, Journal, Rule},
};

const TTL: Duration = Duration::from_secs(3);

/// A client that claims, waits in line, renews, hands over, leaves and dies as chance has it.
async fn client(
    backend: Arc<dyn Backend>,
    time: ManualTime,
    resource: Resource,
    shares: &'static [(u32, u32)],
) {
    let environment: Arc<dyn Environment> = Arc::new(time.clone());
    let until = time.now().after(Duration::from_secs(60));
    let mut heir_of: Option<OwnerToken> = None;
    while time.now() < until {
        let owner = OwnerToken::fresh(&*environment);
        let (weight, capacity) = shares[pick(&environment, shares.len())];
        let share = Share::new(weight, capacity).unwrap();
        let holder = Arc::new(Holder::new("storm", 1, ""));
        let mut claim = Claim::new(resource.clone(), owner, share, TTL, holder).queued();
        claim.place_ttl = Duration::from_secs(2);
        if let Some(from) = heir_of.take() {
            claim = claim.taking_over(Handover::from(from));
        }
        let mut doubtful = false;
        let mut holds = false;
        for _ in 0..12 {
            match backend.acquire(&claim).await {
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
            0 => {} // it dies, and the ttl has to do
            1 if holds && !doubtful => heir_of = Some(owner),
            _ => {
                let request = ReleaseRequest::new(claim.reference());
                let request = if doubtful {
                    request.with_tombstone(ReleaseRequest::tombstone_ttl(TTL))
                } else {
                    request
                };
                drop(backend.release(&request).await);
            }
        }
    }
}

fn pick(environment: &Arc<dyn Environment>, of: usize) -> usize {
    usize::try_from(environment.random() % of as u64).unwrap()
}

async fn storm(seed: u64, plan: Plan, shares: &'static [(u32, u32)]) -> History {
    let time = ManualTime::new();
    let memory: Arc<dyn Backend> = Arc::new(Memory::in_environment(Arc::new(time.clone())));
    storm_on([memory.clone(), memory], time, seed, plan, shares).await
}

/// Half of the clients talk to the one, half to the other.
async fn storm_on(
    backends: [Arc<dyn Backend>; 2],
    time: ManualTime,
    seed: u64,
    plan: Plan,
    shares: &'static [(u32, u32)],
) -> History {
    let journal = Journal::new(Arc::new(time.clone()));
    let clients: Vec<_> = (0..8usize)
        .map(|number| {
            let memory = backends[number / 4].clone();
            let network =
                Faulty::new(memory, Arc::new(time.clone()), seed * 100 + number as u64).with_plan(plan);
            let recorded = Arc::new(Recorded::new(Arc::new(network), &journal));
            let resource = Resource::new("storm", &(number % 2).to_string()).unwrap();
            tokio::spawn(client(recorded, time.clone(), resource, shares))
        })
        .collect();
    for _ in 0..900 {
        time.advance(Duration::from_millis(100)).await;
    }
    for client in clients {
        assert!(client.is_finished(), "nobody hangs");
        client.await.unwrap();
    }
    journal.history()
}

#[track_caller]
fn assert_possible(history: &History, seed: u64) {
    let grants = history.calls.iter().filter(|call| format!("{:?}", call.answer).contains("Granted")).count();
    assert!(grants > 20, "something happened: {grants} grants");
    if let Err(violations) = history.check(Duration::ZERO) {
        panic!("seed {seed}: {} violations, the first: {}", violations.len(), violations[0]);
    }
}

#[tokio::test]
async fn a_quiet_day() {
    assert_possible(&storm(1, Plan::QUIET, &[(1, 1)]).await, 1);
}

#[tokio::test]
async fn mutexes_in_a_storm() {
    for seed in 1..4 {
        assert_possible(&storm(seed, Plan::STORMY, &[(1, 1)]).await, seed);
    }
}

#[tokio::test]
async fn semaphores_in_a_storm() {
    for seed in 1..4 {
        assert_possible(&storm(seed, Plan::STORMY, &[(1, 3), (2, 3), (3, 3)]).await, seed);
    }
}

#[tokio::test]
async fn readers_and_writers_in_a_storm() {
    for seed in 1..4 {
        assert_possible(&storm(seed, Plan::STORMY, &[(1, u32::MAX), (u32::MAX, u32::MAX)]).await, seed);
    }
}

#[tokio::test]
async fn a_split_brain_is_found_out() {
    let time = ManualTime::new();
    let memory = || -> Arc<dyn Backend> { Arc::new(Memory::in_environment(Arc::new(time.clone()))) };
    let history = storm_on([memory(), memory()], time.clone(), 1, Plan::STORMY, &[(1, 1)]).await;
    let violations = history.check(Duration::ZERO).expect_err("two states cannot keep one contract");
    for rule in [Rule::Weights, Rule::Tokens, Rule::Line] {
        assert!(violations.iter().any(|violation| violation.rule == rule), "{rule:?}");
    }
}
