//! `cargo xtask bench`: the benchmarks, in release.

use crate::cargo;

pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let mut command = cargo(["run", "--release", "--quiet", "-p", "leasehold-bench", "--"]);
    command.args(args);
    let status = command.status().map_err(|error| format!("cannot run {command:?}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("the benchmarks ended with {status}")) }
}
