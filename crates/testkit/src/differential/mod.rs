//! Random calls, made on the backend and on the [model](leasehold_core::Model), whose replies must agree.
//!
//! A difference is a bug in one of the two. Compared are verdicts, places in the queue, renewals, releases,
//! orders, snapshots, listings, the audit trail, and all durations. Token values may differ, because some
//! backends take their tokens from a clock; but the same grant must have the same token, a new grant a new
//! token, and the tokens of exclusive grants must grow.
//!
//! With a [manual clock](crate::BackendUnderTest::manual) time moves in exact steps, onto every boundary.
//! With a real one the suite makes no calls near the time at which something expires, and gives up a case in
//! which a slow call came too close to such a time.
//!
//! 1. `steps.rs` draws a random case.
//! 2. `case_run` makes each call on the backend and on the model (`model_state.rs`).
//! 3. `compare.rs` compares the two replies.
//! 4. proptest shrinks the first case with a difference.

mod case_run;
mod compare;
mod model_state;
mod steps;

use std::{fmt, future::Future};

use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

use crate::target::BackendUnderTest;

/// Cases and steps with a manual clock.
const EXACT_SIZE: (u32, usize) = (400, 40);
/// Cases and steps with a real clock: fewer, because each step that lets time pass really sleeps.
const REAL_TIME_SIZE: (u32, usize) = (48, 24);

/// How many cases to try, and from which seed.
#[derive(Clone, Debug)]
pub struct DifferentialPlan {
    /// The number of cases. By default, 400 with a manual clock and 48 with a real one.
    pub cases: Option<u32>,
    /// The most steps of a case. By default, 40 with a manual clock and 24 with a real one.
    pub steps: Option<usize>,
    /// The seed of the random numbers. The default is fixed, so that a test run is repeatable (ADR 0032);
    /// `cargo xtask soak` uses other seeds.
    pub seed: u64,
    /// Into how many parts the cases are divided, of which this plan is one. Zero and one mean all cases.
    pub parts: u32,
}

impl Default for DifferentialPlan {
    fn default() -> DifferentialPlan {
        DifferentialPlan { cases: None, steps: None, seed: 1, parts: 1 }
    }
}

impl DifferentialPlan {
    /// Reads the environment variables `LEASEHOLD_CASES` and `LEASEHOLD_SEED`, if they are set.
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

    /// Part `part` of `parts` of this plan. The first part has the seed of the whole plan.
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
    /// The seed.
    pub seed: u64,
    /// The calls of the shortest case found that ends in a difference.
    pub trace: String,
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "backend and model differ (LEASEHOLD_SEED={}):\n{}", self.seed, self.trace)
    }
}

impl std::error::Error for Divergence {}

/// Runs random cases on one backend, and shrinks the first one that diverges.
///
/// # Errors
/// The divergence, with the calls that lead to it.
///
/// # Panics
/// If the backend cannot be opened, or inside of another runtime.
pub fn check<F, S>(plan: &DifferentialPlan, target: F) -> Result<(), Divergence>
where
    F: FnOnce() -> S,
    S: Future<Output = BackendUnderTest>,
{
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime can be made");
    let target = runtime.block_on(async { target().await });
    let (cases, steps) = if target.is_exact() { EXACT_SIZE } else { REAL_TIME_SIZE };
    let (cases, steps) = (plan.cases.unwrap_or(cases), plan.steps.unwrap_or(steps));
    let cases = cases.div_ceil(plan.parts.max(1));
    let seed = plan.seed;

    // With a real clock every shrinking step costs seconds.
    let max_shrink_iters = if target.is_exact() { 4_000 } else { 100 };
    let config = Config { cases, max_shrink_iters, failure_persistence: None, ..Config::default() };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let random = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(config, random);
    let outcome = runner.run(&steps::case(steps), |case| {
        runtime.block_on(case_run::run(&target, &case)).map_err(TestCaseError::fail)
    });
    let ended = match outcome {
        Ok(()) => Ok(()),
        Err(TestError::Fail(trace, _)) => Err(Divergence { seed, trace: trace.to_string() }),
        Err(TestError::Abort(why)) => Err(Divergence { seed, trace: format!("given up: {why}") }),
    };
    drop(target);
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    ended
}
