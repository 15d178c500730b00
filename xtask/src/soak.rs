//! `cargo xtask soak`: chance from new seeds. `cargo xtask test` plays the same cases every time, so that what passed
//! fails only for what was changed; this is where bugs that nobody has thought of are found.

use std::{
    hash::{BuildHasher as _, RandomState},
    time::{Duration, Instant},
};

use crate::{cargo, packages, steps::Steps};

/// The backends with the suite of verbs that are compared with the model.
const BACKENDS: [&str; 5] = ["sqlite", "redis", "postgres", "etcd", "zookeeper"];
/// How long unless it is said.
const MINUTES: u64 = 30;
/// What is played from one seed: about ten minutes with all backends.
const CASES: &str = "400";
const SEEDS: &str = "2000";

pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let verbose = args.iter().any(|arg| arg == "-v" || arg == "--verbose");
    let words: Vec<&str> = args.iter().map(String::as_str).filter(|arg| !arg.starts_with('-')).collect();
    let (minutes, chosen) = match words.split_first() {
        Some((first, rest)) => match first.parse::<u64>() {
            Ok(minutes) => (minutes, rest.to_vec()),
            Err(_) => (MINUTES, words),
        },
        None => (MINUTES, words),
    };
    if let Some(unknown) = chosen.iter().find(|name| !BACKENDS.contains(name)) {
        return Err(format!("there is no backend called {unknown:?}: there are {}", BACKENDS.join(", ")));
    }
    let backends = if chosen.is_empty() { BACKENDS.to_vec() } else { chosen };
    let mut steps = Steps::new(verbose);
    if !steps.check("packages", packages::install) {
        return steps.summary();
    }
    let (began, lasting) = (Instant::now(), Duration::from_secs(minutes.saturating_mul(60)));
    loop {
        // Short enough to be read out.
        let seed = (RandomState::new().hash_one(began.elapsed()) % 1_000_000_000).to_string();
        for backend in &backends {
            let package = format!("leasehold-{backend}");
            let suites = ["test", "--no-fail-fast", "--test", "*conformance*", "-p", &package];
            let mut command = cargo(suites);
            command.args(["--", "differential"]).env("LEASEHOLD_SEED", &seed).env("LEASEHOLD_CASES", CASES);
            steps.command(&format!("{backend} from {seed}"), &mut command);
        }
        let runs = ["run", "--release", "--quiet", "-p", "leasehold-sim", "--", "--from", &seed, "--seeds"];
        steps.command(&format!("simulator from {seed}"), cargo(runs).arg(SEEDS));
        let mut quorum = cargo(runs);
        steps.command(&format!("quorum from {seed}"), quorum.args([SEEDS, "--quorum"]));
        if began.elapsed() >= lasting {
            return steps.summary();
        }
    }
}
