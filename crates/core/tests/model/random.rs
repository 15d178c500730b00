//! Random verbs on the model and its naive twin.

use std::time::Duration;

use leasehold_core::{Command, Eviction, Farewell, Held, Order, Share, Succession};
use proptest::prelude::*;

use crate::both::{Both, claim, owner, reference, resize, resource};

#[derive(Clone, Debug)]
enum Step {
    Acquire { owner: u8, weight: u8, stray: bool, queue: bool, ttl: u64, succeeds: Option<(u8, Option<u64>)> },
    Renew { owner: u8, ttl: u64 },
    Release { owner: u8, bury: Option<u64>, keep_for: Option<u64> },
    Order { command: Command, newest: bool },
    Pass(u64),
}

const TICK: Duration = Duration::from_millis(10);

fn ticks(count: u64) -> Duration {
    TICK * u32::try_from(count).unwrap()
}

fn span() -> impl Strategy<Value = u64> {
    prop_oneof![3 => 1u64..4, 2 => 4u64..12, 1 => Just(1_000u64)]
}

fn command() -> impl Strategy<Value = Command> {
    prop_oneof![
        span().prop_map(|within| Command::Ask { within: ticks(within) }),
        Just(Command::Evict(Eviction::AtExpiry)),
        Just(Command::Evict(Eviction::Now)),
        span().prop_map(|lasting| Command::Pause { lasting: ticks(lasting) }),
        Just(Command::Resume),
        (1u32..5).prop_map(resize),
    ]
}

fn step(owners: u8) -> impl Strategy<Value = Step> {
    let succeeds = prop::option::weighted(0.3, (0..owners, prop::option::weighted(0.4, span())));
    let acquire =
        (0..owners, 0u8..4, prop::bool::weighted(0.03), prop::bool::weighted(0.7), span(), succeeds);
    let acquire = acquire.prop_map(|(owner, weight, stray, queue, ttl, succeeds)| {
        let succeeds = succeeds.filter(|(from, _)| *from != owner);
        Step::Acquire { owner, weight, stray, queue, ttl, succeeds }
    });
    let release = (0..owners, prop::option::weighted(0.25, span()), prop::option::weighted(0.15, 0u64..8));
    prop_oneof![
        10 => acquire,
        3 => (0..owners, span()).prop_map(|(owner, ttl)| Step::Renew { owner, ttl }),
        4 => release.prop_map(|(owner, bury, keep_for)| Step::Release { owner, bury, keep_for }),
        1 => (command(), any::<bool>()).prop_map(|(command, newest)| Step::Order { command, newest }),
        3 => (1u64..4).prop_map(Step::Pass),
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
        Step::Acquire { owner: who, weight, stray, queue, ttl, succeeds } => {
            let mut claim = claim(*who, share(family, *weight, *stray), ticks(*ttl));
            if *queue {
                claim = claim.queued();
            }
            if let Some((from, bury)) = succeeds {
                let mut from = Succession::from(owner(*from));
                from.bury = bury.map(ticks);
                claim = claim.succeeding(from);
            }
            both.acquire(&claim);
        }
        Step::Renew { owner, ttl } => drop(both.renew(&Held::new(reference(*owner), ticks(*ttl)))),
        Step::Release { owner, bury, keep_for } => {
            let mut farewell = Farewell::new(reference(*owner));
            (farewell.bury, farewell.keep_for) = (bury.map(ticks), keep_for.map(ticks));
            both.release(&farewell);
        }
        Step::Order { command, newest } => {
            let mut order = Order::new(resource(), *command, "someone", "somehow");
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
    fn long_lines_agree_as_well(steps in prop::collection::vec(step(90), 1..40), family in 0usize..3) {
        let mut both = Both::new();
        // Everyone queues first, so that the line is longer than what is looked at.
        for number in 0..80 {
            both.acquire(&claim(number, share(family, 0, false), ticks(10_000)).queued());
        }
        steps.iter().for_each(|step| play(&mut both, family, step));
    }
}
