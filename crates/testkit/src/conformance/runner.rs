//! Runs the suite: as a test program, or from a test that judges the suite itself.

use std::{
    any::Any,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use leasehold_core::Share;
use libtest_mimic::{Arguments, Failed, Trial};

use super::{Desk, GROUPS, Need, Offer, Test, share};
use crate::{
    differential::{self, Plan},
    target::BackendUnderTest,
};

/// No test takes this long; one that does hangs.
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs the whole suite as a test program and ends the process: call it from `main` with `harness = false`.
///
/// Takes the arguments of any Rust test program (a filter, `--list`, `--test-threads`, …). `target` is called once
/// for every test, inside of that test's runtime, and must panic if the backend cannot be had.
pub fn main<F, S>(name: &'static str, target: F) -> !
where
    F: Fn() -> S + Send + Sync + 'static,
    S: Future<Output = BackendUnderTest> + 'static,
{
    let mut arguments = Arguments::from_args();
    // Most of a test is waiting for time to pass.
    arguments.test_threads.get_or_insert(8);
    libtest_mimic::run(&arguments, trials(name, target)).exit()
}

fn trials<F, S>(name: &'static str, target: F) -> Vec<Trial>
where
    F: Fn() -> S + Send + Sync + 'static,
    S: Future<Output = BackendUnderTest> + 'static,
{
    let offer = match offer(&target) {
        Ok(offer) => offer,
        Err(failure) => {
            let title = format!("{name}::the_stage_can_be_set_up");
            return vec![Trial::test(title, move || Err(Failed::from(failure)))];
        }
    };
    let target = Arc::new(target);
    let trial = |(title, job): (String, Job)| {
        let (lacks, target) = (job.lacks(&offer), Arc::clone(&target));
        let trial = Trial::test(format!("{name}::{title}"), move || job.run(&*target).map_err(Failed::from));
        match lacks {
            None => trial,
            Some(reason) => trial.with_ignored_flag(true).with_kind(reason),
        }
    };
    jobs().map(trial).collect()
}

/// What came of a run of the suite.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The names of the tests that passed.
    pub passed: Vec<String>,
    /// The names of the tests that failed, and why.
    pub failed: Vec<(String, String)>,
    /// The names of the tests that do not apply, and why.
    pub ignored: Vec<(String, &'static str)>,
}

impl Report {
    /// Whether a test whose name contains this failed.
    pub fn refuses(&self, part: &str) -> bool {
        self.failed.iter().any(|(name, _)| name.contains(part))
    }
}

/// Runs every test whose name contains `filter`, one after the other, and says what came of it.
///
/// # Panics
/// If the stage cannot be set up.
pub fn run<F, S>(filter: &str, target: F) -> Report
where
    F: Fn() -> S + Send + Sync,
    S: Future<Output = BackendUnderTest> + 'static,
{
    let offer = offer(&target).unwrap_or_else(|failure| panic!("the target cannot be set up: {failure}"));
    let mut report = Report::default();
    for (name, job) in jobs().filter(|(name, _)| name.contains(filter)) {
        match job.lacks(&offer) {
            Some(reason) => report.ignored.push((name, reason)),
            None => match job.run(&target) {
                Ok(()) => report.passed.push(name),
                Err(failure) => report.failed.push((name, failure)),
            },
        }
    }
    report
}

/// A test to run.
enum Job {
    Test(&'static Test, Share),
    /// One part of the random cases.
    Differential(u32),
}

/// The random cases are played in parts side by side: on a real clock they mostly wait for time to pass.
const PARTS: u32 = 4;

fn jobs() -> impl Iterator<Item = (String, Job)> {
    let tests = GROUPS.iter().flat_map(|group| {
        group.shares.iter().flat_map(move |&(weight, capacity)| {
            let share = share(weight, capacity);
            let spelling = match group.shares {
                [_] => String::new(),
                _ => format!("{share:?}::").replace(' ', "_"),
            };
            let title = move |test: &Test| format!("{}::{spelling}{}", group.name, test.name);
            group.tests.iter().map(move |test| (title(test), Job::Test(test, share)))
        })
    });
    let part = |part| {
        (format!("differential::random_verbs_agree_with_the_model_{}", part + 1), Job::Differential(part))
    };
    // First, because they take longest.
    (0..PARTS).map(part).chain(tests)
}

impl Job {
    /// Why it does not apply.
    fn lacks(&self, offer: &Offer) -> Option<&'static str> {
        let Job::Test(test, share) = self else { return None };
        let spelling = (*share != Share::WHOLE).then_some(Need::Shares);
        test.needs.iter().copied().chain(spelling).find_map(|need| need.lacking(offer))
    }

    fn run<F, S>(&self, target: &F) -> Result<(), String>
    where
        F: Fn() -> S + Send + Sync,
        S: Future<Output = BackendUnderTest> + 'static,
    {
        match self {
            Job::Test(test, share) => run_test(test, *share, target),
            Job::Differential(part) => {
                let plan = Plan::from_variables().part(*part, PARTS);
                let checked = catch_unwind(AssertUnwindSafe(|| differential::check(&plan, target)));
                checked.map_err(|panic| message(&*panic))?.map_err(|divergence| divergence.to_string())
            }
        }
    }
}

fn run_test<F, S>(test: &'static Test, share: Share, target: &F) -> Result<(), String>
where
    F: Fn() -> S + Send + Sync,
    S: Future<Output = BackendUnderTest> + 'static,
{
    let trace = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&trace);
    let ended = in_runtime(move |runtime| {
        runtime.block_on(async {
            let desk = Desk::new(target().await, share, told);
            tokio::time::timeout(PATIENCE, (test.run)(&desk)).await
        })
    });
    let failure = match ended {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(_)) => format!("still running after {PATIENCE:?}"),
        Err(panic) => panic,
    };
    let trace = trace.lock().unwrap_or_else(PoisonError::into_inner);
    Err(format!("{failure}\n    what was said:\n    {}", trace.join("\n    ")))
}

fn offer<F, S>(target: &F) -> Result<Offer, String>
where
    F: Fn() -> S,
    S: Future<Output = BackendUnderTest>,
{
    let offer = |target: &BackendUnderTest| {
        let info = target.backend().info();
        let (has, limits) = (info.capabilities, info.limits);
        Offer { has, limits, twice: target.is_opened_twice(), reopening: target.can_reopen() }
    };
    in_runtime(|runtime| runtime.block_on(async { offer(&target().await) }))
}

/// Runs it beside a runtime of its own, and turns a panic into its message.
fn in_runtime<T>(job: impl FnOnce(&tokio::runtime::Runtime) -> T) -> Result<T, String> {
    let run = AssertUnwindSafe(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime can be made");
        let answer = job(&runtime);
        runtime.shutdown_timeout(Duration::from_secs(1)); // a hanging thread of a backend must not hang the suite
        answer
    });
    catch_unwind(run).map_err(|panic| message(&*panic))
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without words").to_owned()
}
