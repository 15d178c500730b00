//! The checks that are made, and what comes of one.

use std::time::{Duration, Instant};

use stateright::{Checker, HasDiscoveries, Model};

use crate::{
    model::{EXCLUSION, Step, TOKENS_DIFFER, TOKENS_GROW},
    setup::{Clocks, LeftOut, Loss, Setup},
};

/// What came of a check.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Moments that differ.
    pub states: usize,
    /// The longest way to one of them.
    pub depth: usize,
    /// How long it took.
    pub took: Duration,
    /// A promise that is broken, and how it comes to that.
    pub broken: Option<(&'static str, Vec<Step>)>,
    /// Something that should have happened now and then, and never did.
    pub never: Option<&'static str>,
}

const PROMISES: [&str; 3] = [EXCLUSION, TOKENS_DIFFER, TOKENS_GROW];

/// Walks over every moment, or until a promise is broken. One thread finds the shortest way to break one.
pub fn check(setup: &Setup, threads: usize) -> Outcome {
    #[expect(clippy::disallowed_methods, reason = "what is measured is this program")]
    let started = Instant::now();
    let checker = setup.clone().checker().threads(threads).finish_when(HasDiscoveries::AnyFailures);
    let checker = checker.spawn_bfs().join();
    let found = checker.discoveries();
    let broken = PROMISES.into_iter().find(|promise| found.contains_key(promise));
    let expected = setup.properties();
    let never = expected
        .iter()
        .map(|property| property.name)
        .find(|name| !PROMISES.contains(name) && !found.contains_key(name));
    Outcome {
        states: checker.unique_state_count(),
        depth: checker.max_depth(),
        took: started.elapsed(),
        never: never.filter(|_| broken.is_none()),
        broken: broken
            .and_then(|promise| found.get(promise).cloned().map(|path| (promise, path.into_actions()))),
    }
}

const ALL_LOSSES: &[Loss] = &[Loss::Restart, Loss::RestartWithMark, Loss::Flush];

const fn setup(name: &'static str, nodes: usize, claims: usize, clocks: Clocks) -> Setup {
    Setup {
        name,
        nodes,
        claims,
        rounds: 1,
        renewals: 0,
        losses: (&[], 0),
        forgetful: (nodes - 1) / 2,
        caretakers: 1,
        ticks: 0,
        clocks,
        left_out: None,
    }
}

/// Nothing is left out: every promise must hold in every moment.
pub fn sound() -> Vec<Setup> {
    use Clocks::{Sound, Wild};
    vec![
        Setup { rounds: 2, ..setup("tokens: two claims, two rounds each, clocks that jump", 3, 2, Wild) },
        setup("tokens: three claims, clocks that jump", 3, 3, Wild),
        setup("tokens: two claims on five nodes, clocks that jump", 5, 2, Wild),
        Setup {
            losses: (&[Loss::Restart], 1),
            ticks: 3,
            ..setup("tokens: two claims, clocks that jump, a node restarts empty", 3, 2, Wild)
        },
        Setup { ticks: 2, ..setup("exclusion: two claims", 3, 2, Sound) },
    ]
}

/// The same, larger: minutes instead of seconds.
pub fn deep() -> Vec<Setup> {
    use Clocks::{Sound, Wild};
    vec![
        Setup { rounds: 3, ..setup("tokens: two claims, three rounds each, clocks that jump", 3, 2, Wild) },
        setup("tokens: three claims on five nodes, clocks that jump", 5, 3, Wild),
        Setup {
            losses: (ALL_LOSSES, 1),
            ticks: 3,
            caretakers: 2,
            ..setup("tokens: two claims, a node forgets in any way, two caretakers", 3, 2, Wild)
        },
        Setup {
            losses: (&[Loss::Restart], 2),
            ticks: 4,
            ..setup("tokens: two claims, two restarts", 3, 2, Wild)
        },
        Setup {
            losses: (&[Loss::Restart], 1),
            ticks: 3,
            ..setup("exclusion: two claims, a node restarts empty", 3, 2, Sound)
        },
        Setup { renewals: 1, ticks: 3, ..setup("exclusion: two claims that renew", 3, 2, Sound) },
    ]
}

/// One rule left out each: a promise must be broken.
pub fn broken() -> Vec<Setup> {
    use Clocks::{Sound, Wild};
    let restarts = |name, clocks, ticks, left_out| Setup {
        losses: (&[Loss::Restart], 1),
        ticks,
        left_out: Some(left_out),
        ..setup(name, 3, 2, clocks)
    };
    vec![
        Setup { left_out: Some(LeftOut::OwnerCheck), ..setup("without the owner check", 3, 2, Wild) },
        restarts("without quarantine: the token", Wild, 0, LeftOut::Quarantine),
        restarts("without quarantine: the lock", Sound, 0, LeftOut::Quarantine),
        restarts("reading the others at once, without waiting", Wild, 0, LeftOut::Waiting),
        restarts("waiting, without reading the others", Wild, 2, LeftOut::Reading),
        Setup { left_out: Some(LeftOut::Majority), ..setup("one short of a majority", 3, 2, Wild) },
        Setup { left_out: Some(LeftOut::Lock), ..setup("a lock that holds nobody off", 3, 2, Sound) },
        Setup {
            ticks: 2,
            left_out: Some(LeftOut::Validity),
            ..setup("counting from the answer", 3, 2, Sound)
        },
    ]
}
