//! Random verbs, played on the backend and on the [model](leasehold_core::Model) side by side.
//!
//! Any difference is a bug of one of the two. What is compared: every verdict, who has a place and how many are
//! ahead, renewals, farewells, orders, snapshots, listings and the audit trail, and all durations. Token values
//! may differ (some backends take theirs from a clock), but the same grant must have the same token, a new one a
//! new token, and those of exclusive grants must grow.
//!
//! With a [manual clock](crate::BackendUnderTest::manual) time moves in exact steps, onto every boundary. With a real one the
//! suite stays clear of the moments at which something ends, and gives up a case in which a slow call came too
//! close to one.

mod compare;
mod play;
mod steps;
mod world;

use std::{fmt, future::Future};

use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

use crate::target::BackendUnderTest;

/// How much to try, and which.
#[derive(Clone, Debug)]
pub struct DifferentialPlan {
    /// How many cases; unless set, 400 with a manual clock and 48 with a real one.
    pub cases: Option<u32>,
    /// Steps in a case at the most; unless set, 40 with a manual clock and 24 with a real one.
    pub steps: Option<usize>,
    /// Where chance starts. The same by default, so that what passes does so tomorrow: `cargo xtask soak` looks further.
    pub seed: u64,
    /// Plays one of so many parts of the cases; zero and one: all of them.
    pub parts: u32,
}

impl Default for DifferentialPlan {
    fn default() -> DifferentialPlan {
        DifferentialPlan { cases: None, steps: None, seed: 1, parts: 1 }
    }
}

impl DifferentialPlan {
    /// From `LEASEHOLD_CASES` and `LEASEHOLD_SEED`, where they are set.
    ///
    /// # Panics
    /// If one of them is not a number.
    pub fn from_variables() -> DifferentialPlan {
        let number = |name: &str| {
            let text = std::env::var(name).ok()?;
            Some(text.parse::<u64>().unwrap_or_else(|_| panic!("{name} is not a number: {text:?}")))
        };
        let cases = number("LEASEHOLD_CASES").map(|cases| u32::try_from(cases).unwrap_or(u32::MAX));
        let plan = DifferentialPlan::default();
        DifferentialPlan { cases, seed: number("LEASEHOLD_SEED").unwrap_or(plan.seed), ..plan }
    }

    /// One part of this plan, to be played beside the others. The first one starts where the whole would.
    #[must_use]
    pub fn part(mut self, part: u32, parts: u32) -> DifferentialPlan {
        self.seed = self.seed.wrapping_add(part.into());
        self.parts = parts;
        self
    }
}

/// The backend and the model differ.
#[derive(Clone, Debug)]
pub struct Divergence {
    /// From where chance started.
    pub seed: u64,
    /// The shortest story found that ends in a difference.
    pub story: String,
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "backend and model differ (LEASEHOLD_SEED={}):\n{}", self.seed, self.story)
    }
}

impl std::error::Error for Divergence {}

/// Plays random cases on one stage, and shrinks the first that diverges.
///
/// # Errors
/// The divergence, with its story.
///
/// # Panics
/// If the stage cannot be set up, or inside of another runtime.
pub fn check<F, S>(plan: &DifferentialPlan, target: F) -> Result<(), Divergence>
where
    F: FnOnce() -> S,
    S: Future<Output = BackendUnderTest>,
{
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime can be made");
    let target = runtime.block_on(async { target().await });
    let (cases, steps) = if target.is_exact() { (400, 40) } else { (48, 24) };
    let (cases, steps) = (plan.cases.unwrap_or(cases), plan.steps.unwrap_or(steps));
    let cases = cases.div_ceil(plan.parts.max(1));
    let seed = plan.seed;

    let max_shrink_iters = if target.is_exact() { 4_000 } else { 100 };
    let config = Config { cases, max_shrink_iters, failure_persistence: None, ..Config::default() };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let random = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(config, random);
    let played = runner.run(&steps::case(steps), |case| {
        runtime.block_on(play::play(&target, &case)).map_err(TestCaseError::fail)
    });
    let ended = match played {
        Ok(()) => Ok(()),
        Err(TestError::Fail(story, _)) => Err(Divergence { seed, story: story.to_string() }),
        Err(TestError::Abort(why)) => Err(Divergence { seed, story: format!("given up: {why}") }),
    };
    drop(target);
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    ended
}
