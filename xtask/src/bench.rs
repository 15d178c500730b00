//! `cargo xtask bench`: the benchmarks, built as `cargo xtask build` builds the program.

use std::process::Command;

use crate::{cargo, packages, rebuild, root, target_dir};

/// The parts of the program `leasehold-bench`; any other name is a bench target of some package.
const PARTS: [&str; 3] = ["overhead", "flat", "keep-alive"];

pub(crate) fn run(args: &[String]) -> Result<(), String> {
    if let Some((name, options)) = args.split_first()
        && name == "peers"
    {
        return peers(options);
    }
    if let Some((name, options)) = args.split_first()
        && name == "clients"
    {
        return clients(options);
    }
    if let Some((name, features)) = args.split_first()
        && name == "rebuild"
    {
        return rebuild::run(features);
    }
    let target = args.iter().find(|arg| !arg.starts_with('-') && !PARTS.contains(&arg.as_str()));
    let mut command = match target {
        None => cargo(["run", "--profile", "bench", "--quiet", "-p", "leasehold-bench", "--"]),
        Some(target) => cargo(["bench", "--workspace", "--bench", target, "--"]),
    };
    command.args(args.iter().filter(|arg| Some(*arg) != target));
    run_to_the_end(&mut command)
}

/// leasehold beside other lock libraries: `bench/src/main.rs`. Its programs are built with the same profile as the other
/// benchmarks.
fn peers(options: &[String]) -> Result<(), String> {
    let measures_nothing = ["--report", "--list", "--help", "-h"];
    if !options.iter().any(|option| measures_nothing.contains(&option.as_str())) {
        packages::install_for_peers();
    }
    let mut build =
        cargo(["build", "--profile", "bench", "--quiet", "-p", "leasehold-bench-peers", "--bins"]);
    run_to_the_end(&mut build)?;
    // Cargo puts what the profile `bench` builds into the folder `release`.
    let mut program = Command::new(target_dir().join("release/leasehold-bench-peers"));
    run_to_the_end(program.args(options).current_dir(root()))
}

/// The clients of other languages, through the server: `bench/src/clients_main.rs`.
fn clients(options: &[String]) -> Result<(), String> {
    if !options.iter().any(|option| option == "--help" || option == "-h") {
        packages::install_for_clients();
    }
    // It starts programs and reads what they print, so it needs no optimisation. It builds the server as `cargo xtask build` does.
    let package = ["-p", "leasehold-bench-peers", "--bin", "leasehold-bench-clients"];
    run_to_the_end(cargo(["build", "--quiet"]).args(package))?;
    run_to_the_end(Command::new(target_dir().join("debug/leasehold-bench-clients")).args(options))
}

fn run_to_the_end(command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|error| format!("cannot run {command:?}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("the benchmarks ended with {status}")) }
}
