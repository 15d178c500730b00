//! Random verbs on the model and its naive twin.

use std::time::Duration;

use leasehold_core::{
    ClientId, Eviction, Handover, OperatorAction, OperatorCommand, ReleaseRequest, RenewRequest, Share,
};
use proptest::prelude::*;

use crate::both::{Both, claim, owner, reference, resize, resource};

#[derive(Clone, Debug)]
enum Step {
    Acquire {
        owner: u8,
        weight: u8,
        stray: bool,
        queue: bool,
        ttl: u64,
        takes_over_from: Option<(u8, Option<u64>)>,
        client: u64,
    },
    Renew {
        owner: u8,
        ttl: u64,
    },
    Release {
        owner: u8,
        tombstone: Option<u64>,
        keep_for: Option<u64>,
    },
    Order {
        command: OperatorAction,
        newest: bool,
    },
    Pass(u64),
}

const TICK: Duration = Duration::from_millis(10);

fn ticks(count: u64) -> Duration {
    TICK * u32::try_from(count).unwrap()
}

fn span() -> impl Strategy<Value = u64> {
    prop_oneof![3 => 1u64..4, 2 => 4u64..12, 1 => Just(1_000u64)]
}

fn command() -> impl Strategy<Value = OperatorAction> {
    prop_oneof![
        span().prop_map(|within| OperatorAction::Ask { within: ticks(within) }),
        Just(OperatorAction::Evict(Eviction::AtExpiry)),
        Just(OperatorAction::Evict(Eviction::Now)),
        span().prop_map(|lasting| OperatorAction::Pause { lasting: ticks(lasting) }),
        Just(OperatorAction::Resume),
        (1u32..5).prop_map(resize),
    ]
}

fn step(owners: u8) -> impl Strategy<Value = Step> {
    let takes_over_from = prop::option::weighted(0.3, (0..owners, prop::option::weighted(0.4, span())));
    let acquire =
        (0..owners, 0u8..4, prop::bool::weighted(0.03), prop::bool::weighted(0.7), span(), takes_over_from);
    let acquire = (acquire, 0u64..3).prop_map(|(acquire, client)| {
        let (owner, weight, stray, queue, ttl, takes_over_from) = acquire;
        let takes_over_from = takes_over_from.filter(|(from, _)| *from != owner);
        Step::Acquire { owner, weight, stray, queue, ttl, takes_over_from, client }
    });
    let release = (0..owners, prop::option::weighted(0.25, span()), prop::option::weighted(0.15, 0u64..8));
    prop_oneof![
        10 => acquire,
        3 => (0..owners, span()).prop_map(|(owner, ttl)| Step::Renew { owner, ttl }),
        4 => release.prop_map(|(owner, tombstone, keep_for)| Step::Release { owner, tombstone, keep_for }),
        1 => (command(), any::<bool>()).prop_map(|(command, newest)| Step::Order { command, newest }),
        3 => (1u64..4).prop_map(Step::Pass),
        1 => prop_oneof![Just(97), Just(100)].prop_map(Step::Pass),
    ]
}

/// The weights that one family of claims asks for.
fn share(family: usize, weight: u8, stray: bool) -> Share {
    let shares: &[(u32, u32)] = match family {
        _ if stray => &[(1, 7)],
        0 => &[(1, 1)],
        1 => &[(1, 4), (2, 4), (3, 4), (4, 4)],
        _ => &[(1, u32::MAX), (1, u32::MAX), (u32::MAX, u32::MAX)],
    };
    let (weight, capacity) = shares[usize::from(weight) % shares.len()];
    Share::new(weight, capacity).unwrap()
}

fn play(both: &mut Both, family: usize, step: &Step) {
    match step {
        Step::Acquire { owner: who, weight, stray, queue, ttl, takes_over_from, client } => {
            let mut claim = claim(*who, share(family, *weight, *stray), ticks(*ttl));
            claim.client = ClientId::from_number(*client);
            if *queue {
                claim = claim.queued();
            }
            if let Some((from, tombstone)) = takes_over_from {
                let mut from = Handover::from(owner(*from));
                from.tombstone = tombstone.map(ticks);
                claim = claim.taking_over(from);
            }
            both.acquire(&claim);
        }
        Step::Renew { owner, ttl } => drop(both.renew(&RenewRequest::new(reference(*owner), ticks(*ttl)))),
        Step::Release { owner, tombstone, keep_for } => {
            let mut request = ReleaseRequest::new(reference(*owner));
            (request.tombstone, request.keep_for) = (tombstone.map(ticks), keep_for.map(ticks));
            both.release(&request);
        }
        Step::Order { command, newest } => {
            let mut order = OperatorCommand::new(resource(), *command, "someone", "somehow");
            order.token = both.look().last_token.filter(|_| *newest);
            both.order(&order);
        }
        Step::Pass(count) => both.pass(ticks(*count)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_model_agrees_with_its_naive_twin(
        family in 0usize..3,
        steps in prop::collection::vec(step(5), 1..60),
    ) {
        let mut both = Both::new();
        steps.iter().for_each(|step| play(&mut both, family, step));
    }

}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn long_queues_agree_as_well(steps in prop::collection::vec(step(90), 1..40), family in 0usize..3) {
        let mut both = Both::new();
        // Everyone queues first, so that the line is longer than what is looked at.
        for number in 0..80 {
            both.acquire(&claim(number, share(family, 0, false), ticks(10_000)).queued());
        }
        steps.iter().for_each(|step| play(&mut both, family, step));
    }
}
