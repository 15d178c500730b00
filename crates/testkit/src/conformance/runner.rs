//! Runs the suite: as a test program, or inside of a test of the suite itself.

use std::{
    any::Any,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use leasehold_core::Share;
use libtest_mimic::{Arguments, Failed, Trial};

use super::{ConformanceTest, GROUPS, Requirement, TargetFeatures, TestContext, share};
use crate::{
    differential::{self, DifferentialPlan},
    target::BackendUnderTest,
};

/// A test that takes longer than this hangs.
const TEST_TIMEOUT: Duration = Duration::from_secs(120);
/// How many tests run side by side unless the command line says otherwise. Most of a test is waiting for time
/// to pass.
const TEST_THREADS: usize = 8;
/// The random cases run in this many parts side by side: on a real clock they mostly wait for time to pass.
const DIFFERENTIAL_PARTS: u32 = 4;

/// Runs the whole suite as a test program and ends the process: call it from `main` with `harness = false`.
///
/// Takes the arguments of any Rust test program (a filter, `--list`, `--test-threads`, …). `target` is called
/// once for every test, inside of that test's runtime, and must panic if the backend cannot be opened.
pub fn main<F, S>(name: &'static str, target: F) -> !
where
    F: Fn() -> S + Send + Sync + 'static,
    S: Future<Output = BackendUnderTest> + 'static,
{
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(TEST_THREADS);
    libtest_mimic::run(&arguments, trials(name, target)).exit()
}

fn trials<F, S>(name: &'static str, target: F) -> Vec<Trial>
where
    F: Fn() -> S + Send + Sync + 'static,
    S: Future<Output = BackendUnderTest> + 'static,
{
    let features = match features(&target) {
        Ok(features) => features,
        Err(failure) => {
            let title = format!("{name}::the_backend_can_be_opened");
            return vec![Trial::test(title, move || Err(Failed::from(failure)))];
        }
    };
    let target = Arc::new(target);
    let trial = |(title, job): (String, SuiteJob)| {
        let (unmet, target) = (job.unmet_reason(&features), Arc::clone(&target));
        let trial = Trial::test(format!("{name}::{title}"), move || job.run(&*target).map_err(Failed::from));
        match unmet {
            None => trial,
            Some(reason) => trial.with_ignored_flag(true).with_kind(reason),
        }
    };
    jobs().map(trial).collect()
}

/// The outcome of a run of the suite.
#[derive(Clone, Debug, Default)]
pub struct SuiteReport {
    /// The names of the tests that passed.
    pub passed: Vec<String>,
    /// The names of the tests that failed, each with its failure.
    pub failed: Vec<(String, String)>,
    /// The names of the tests that do not apply, each with the reason.
    pub ignored: Vec<(String, &'static str)>,
}

impl SuiteReport {
    /// Whether a test failed whose name contains `part`.
    pub fn has_failed(&self, part: &str) -> bool {
        self.failed.iter().any(|(name, _)| name.contains(part))
    }
}

/// Runs every test whose name contains `filter`, one after the other.
///
/// # Panics
/// If the backend cannot be opened.
pub fn run<F, S>(filter: &str, target: F) -> SuiteReport
where
    F: Fn() -> S + Send + Sync,
    S: Future<Output = BackendUnderTest> + 'static,
{
    let features =
        features(&target).unwrap_or_else(|failure| panic!("the backend cannot be opened: {failure}"));
    let mut report = SuiteReport::default();
    for (name, job) in jobs().filter(|(name, _)| name.contains(filter)) {
        match job.unmet_reason(&features) {
            Some(reason) => report.ignored.push((name, reason)),
            None => match job.run(&target) {
                Ok(()) => report.passed.push(name),
                Err(failure) => report.failed.push((name, failure)),
            },
        }
    }
    report
}

/// One job of the suite.
enum SuiteJob {
    Test(&'static ConformanceTest, Share),
    /// The random cases of the part with this number.
    Differential(u32),
}

fn jobs() -> impl Iterator<Item = (String, SuiteJob)> {
    let tests = GROUPS.iter().flat_map(|group| {
        group.shares.iter().flat_map(move |&(weight, capacity)| {
            let share = share(weight, capacity);
            let share_name = match group.shares {
                [_] => String::new(),
                _ => format!("{share:?}::").replace(' ', "_"),
            };
            let title = move |test: &ConformanceTest| format!("{}::{share_name}{}", group.name, test.name);
            group.tests.iter().map(move |test| (title(test), SuiteJob::Test(test, share)))
        })
    });
    let part = |part| {
        let title = format!("differential::random_verbs_agree_with_the_model_{}", part + 1);
        (title, SuiteJob::Differential(part))
    };
    // The random cases start first, because they take longest.
    (0..DIFFERENTIAL_PARTS).map(part).chain(tests)
}

impl SuiteJob {
    /// Why this job does not apply to the backend, if it does not.
    fn unmet_reason(&self, features: &TargetFeatures) -> Option<&'static str> {
        let SuiteJob::Test(test, share) = self else { return None };
        let shares = (*share != Share::WHOLE).then_some(Requirement::Shares);
        test.requirements
            .iter()
            .copied()
            .chain(shares)
            .find_map(|requirement| requirement.unmet_reason(features))
    }

    fn run<F, S>(&self, target: &F) -> Result<(), String>
    where
        F: Fn() -> S + Send + Sync,
        S: Future<Output = BackendUnderTest> + 'static,
    {
        match self {
            SuiteJob::Test(test, share) => run_test(test, *share, target),
            SuiteJob::Differential(part) => {
                let plan = DifferentialPlan::from_variables().part(*part, DIFFERENTIAL_PARTS);
                let checked = catch_unwind(AssertUnwindSafe(|| differential::check(&plan, target)));
                checked.map_err(|panic| message(&*panic))?.map_err(|divergence| divergence.to_string())
            }
        }
    }
}

fn run_test<F, S>(test: &'static ConformanceTest, share: Share, target: &F) -> Result<(), String>
where
    F: Fn() -> S + Send + Sync,
    S: Future<Output = BackendUnderTest> + 'static,
{
    let trace = Arc::new(Mutex::new(Vec::new()));
    let written = Arc::clone(&trace);
    let ended = in_runtime(move |runtime| {
        runtime.block_on(async {
            let ctx = TestContext::new(target().await, share, written);
            tokio::time::timeout(TEST_TIMEOUT, (test.run)(&ctx)).await
        })
    });
    let failure = match ended {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(_)) => format!("still running after {TEST_TIMEOUT:?}"),
        Err(panic) => panic,
    };
    let trace = trace.lock().unwrap_or_else(PoisonError::into_inner);
    Err(format!("{failure}\n    the calls of the test:\n    {}", trace.join("\n    ")))
}

fn features<F, S>(target: &F) -> Result<TargetFeatures, String>
where
    F: Fn() -> S,
    S: Future<Output = BackendUnderTest>,
{
    let features = |target: &BackendUnderTest| {
        let info = target.backend().info();
        TargetFeatures {
            capabilities: info.capabilities,
            limits: info.limits,
            has_second_handle: target.is_opened_twice(),
            can_reopen: target.can_reopen(),
        }
    };
    in_runtime(|runtime| runtime.block_on(async { features(&target().await) }))
}

/// Runs `job` with a new runtime, and turns a panic into its message.
fn in_runtime<T>(job: impl FnOnce(&tokio::runtime::Runtime) -> T) -> Result<T, String> {
    let run = AssertUnwindSafe(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime can be made");
        let outcome = job(&runtime);
        // With a limit: a thread of a backend that hangs must not hang the suite.
        runtime.shutdown_timeout(Duration::from_secs(1));
        outcome
    });
    catch_unwind(run).map_err(|panic| message(&*panic))
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a message").to_owned()
}
