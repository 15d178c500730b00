//! `cargo xtask bench`: the benchmarks, built as `cargo xtask build` builds the program.

use crate::cargo;

/// The parts of the program `leasehold-bench`; any other name is a bench target of some package.
const PARTS: [&str; 3] = ["overhead", "flat", "keep-alive"];

pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let target = args.iter().find(|arg| !arg.starts_with('-') && !PARTS.contains(&arg.as_str()));
    let mut command = match target {
        None => cargo(["run", "--profile", "bench", "--quiet", "-p", "leasehold-bench", "--"]),
        Some(target) => cargo(["bench", "--workspace", "--bench", target, "--"]),
    };
    command.args(args.iter().filter(|arg| Some(*arg) != target));
    let status = command.status().map_err(|error| format!("cannot run {command:?}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("the benchmarks ended with {status}")) }
}
