//! `cargo xtask test`: everything that must pass before a change is merged.

use crate::{build, cargo, examples, links, packages, steps::Steps};

/// How many runs the simulator makes. Each is a seed: a failure names the one that repeats it.
const SEEDS: &str = "300";
/// Those over a quorum, which have five servers to run.
const QUORUM_SEEDS: &str = "150";

/// What the program has only on demand, and the tests of it need.
pub(crate) const FEATURES: &str = "leasehold-cli/full";

const NAMES: &[&str] =
    &["format", "links", "default", "lints", "docs", "tests", "examples", "simulator", "model"];

pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let verbose = args.iter().any(|arg| arg == "-v" || arg == "--verbose");
    let chosen: Vec<&str> = args.iter().map(String::as_str).filter(|arg| !arg.starts_with('-')).collect();
    if let Some(unknown) = chosen.iter().find(|name| !NAMES.contains(name)) {
        return Err(format!("there is no step called {unknown:?}: there are {}", NAMES.join(", ")));
    }
    let wanted = |name: &str| chosen.is_empty() || chosen.contains(&name);
    let mut steps = Steps::new(verbose);
    if !steps.check("packages", packages::install) {
        return steps.summary();
    }
    for name in NAMES.iter().copied().filter(|name| wanted(name)) {
        match name {
            "format" => steps.command(name, &mut cargo(["fmt", "--all", "--check"])),
            "links" => steps.check(name, links::check),
            "default" => {
                let bare = ["check", "--quiet", "--package", "leasehold", "--no-default-features"];
                steps.check(name, build::check_default)
                    && steps.command("default: the library alone", &mut cargo(bare))
                    && steps.command("default: as it is", &mut cargo(["check", "--quiet"]))
            }
            "lints" => steps.command(
                name,
                &mut cargo([
                    "clippy",
                    "--workspace",
                    "--features",
                    FEATURES,
                    "--all-targets",
                    "--quiet",
                    "--",
                    "-D",
                    "warnings",
                ]),
            ),
            "docs" => steps.command(
                name,
                cargo(["doc", "--workspace", "--no-deps", "--quiet"]).env("RUSTDOCFLAGS", "-D warnings"),
            ),
            "tests" => steps
                .command(name, &mut cargo(["test", "--workspace", "--features", FEATURES, "--no-fail-fast"])),
            "examples" => examples::run_all(&mut steps),
            "simulator" => {
                let runs = ["run", "--release", "--quiet", "-p", "leasehold-sim", "--", "--seeds"];
                let server = steps.command(name, cargo(runs).arg(SEEDS));
                server & steps.command("simulator: quorum", cargo(runs).args([QUORUM_SEEDS, "--quorum"]))
            }
            "model" => {
                steps.command(name, &mut cargo(["run", "--release", "--quiet", "-p", "leasehold-check"]))
            }
            _ => unreachable!("every name is listed here"),
        };
    }
    steps.summary()
}
