//! `cargo xtask test`: everything that must pass before a change is merged.

use std::time::Duration;

use crate::{
    api, beside, build, cargo, clients, dashboard, disk, examples, links, packages, publishing, schemathesis,
    steps::Steps, test_programs,
};

/// How many seeds the simulator runs. A failure names its seed, which repeats it.
const SEEDS: &str = "300";
/// How many of those over a quorum, where each run has five servers.
const QUORUM_SEEDS: &str = "150";

/// The longest that the step `tests` may take, with the build of all tests.
const TESTS_LIMIT: Duration = Duration::from_secs(60 * 60);

/// What the program has only on demand, and its tests need.
pub(crate) const FEATURES: &str = "leasehold-cli/full";

/// A step: its name on the command line, and what it runs. Returns whether it passed.
type Step = (&'static str, fn(&mut Steps) -> bool);

const STEPS: &[Step] = &[
    ("format", |steps| steps.command("format", &mut cargo(["fmt", "--all", "--check"]))),
    ("links", |steps| steps.check("links", links::check)),
    ("api", |steps| steps.check("api", api::check)),
    ("publishing", |steps| steps.check("publishing", publishing::check)),
    ("default", default_build),
    ("beside", beside::run),
    ("lints", lints),
    ("docs", docs),
    ("tests", tests),
    ("schemathesis", schemathesis::run),
    ("dashboard", dashboard::run),
    ("clients", clients::run),
    ("examples", examples::run_all),
    ("simulator", simulator),
    ("planted", planted_bugs),
    ("model", |steps| steps.command("model", &mut release_run("leasehold-check"))),
];

pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let verbose = args.iter().any(|arg| arg == "-v" || arg == "--verbose");
    let chosen: Vec<&str> = args.iter().map(String::as_str).filter(|arg| !arg.starts_with('-')).collect();
    if let Some(unknown) = chosen.iter().find(|name| !STEPS.iter().any(|(step, _)| step == *name)) {
        let names: Vec<&str> = STEPS.iter().map(|(name, _)| *name).collect();
        return Err(format!("there is no step called {unknown:?}: there are {}", names.join(", ")));
    }
    let mut steps = Steps::new(verbose);
    if !steps.check("packages", packages::install) || !steps.check("disk", disk::check) {
        return steps.summary();
    }
    for (name, step) in STEPS {
        if chosen.is_empty() || chosen.contains(name) {
            step(&mut steps);
        }
    }
    steps.summary()
}

/// The default build needs no `protoc`, and the library builds without any backend.
fn default_build(steps: &mut Steps) -> bool {
    let bare = ["check", "--quiet", "--package", "leasehold", "--no-default-features"];
    steps.check("default", build::check_default)
        && steps.command("default: the library alone", &mut cargo(bare))
        && steps.command("default: as it is", &mut cargo(["check", "--quiet"]))
}

fn lints(steps: &mut Steps) -> bool {
    let mut clippy = cargo(["clippy", "--workspace", "--all-targets", "--quiet", "--features", FEATURES]);
    steps.command("lints", clippy.args(["--", "-D", "warnings"]))
}

fn docs(steps: &mut Steps) -> bool {
    let mut doc = cargo(["doc", "--workspace", "--no-deps", "--quiet"]);
    steps.command("docs", doc.env("RUSTDOCFLAGS", "-D warnings"))
}

fn tests(steps: &mut Steps) -> bool {
    match test_programs::command(FEATURES) {
        Ok(mut tests) => steps.command_within(TESTS_LIMIT, "tests", &mut tests),
        Err(error) => steps.check("tests", || Err(format!("cannot find this program: {error}"))),
    }
}

fn simulator(steps: &mut Steps) -> bool {
    let server = steps.command("simulator", release_run("leasehold-sim").args(["--seeds", SEEDS]));
    let mut quorum = release_run("leasehold-sim");
    server & steps.command("simulator: quorum", quorum.args(["--seeds", QUORUM_SEEDS, "--quorum"]))
}

/// Builds the simulator once more, with known bugs in it, and expects it to find each of them.
fn planted_bugs(steps: &mut Steps) -> bool {
    steps.command("planted bugs", release_run("leasehold-sim").arg("--planted"))
}

fn release_run(package: &str) -> std::process::Command {
    cargo(["run", "--release", "--quiet", "--package", package, "--"])
}
