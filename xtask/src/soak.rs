//! `cargo xtask soak`: random tests with new seeds. `cargo xtask test` runs the same random cases every time, so that a
//! failure comes from the change and not from chance; this command looks for new failures. ADR 0032.

use std::{
    hash::{BuildHasher as _, RandomState},
    time::{Duration, Instant},
};

use crate::{cargo, packages, steps::Steps};

/// The backends whose suite compares random verbs with the model.
const BACKENDS: [&str; 5] = ["sqlite", "redis", "postgres", "etcd", "zookeeper"];
/// The default duration.
const MINUTES: u64 = 30;
/// How many cases run from one seed: about ten minutes with all backends.
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
        // Short enough for people to repeat.
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
