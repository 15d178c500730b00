//! `cargo xtask build`: the program with every backend, optimised as far as it goes.

use std::{fs, path::PathBuf};

use crate::{cargo, packages, steps::Steps, target_dir};

pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let verbose = args.iter().any(|arg| arg == "-v" || arg == "--verbose");
    let mut steps = Steps::new(verbose);
    if !steps.check("packages", packages::install_to_build) {
        return steps.summary();
    }
    let build = ["build", "--profile", "dist", "--package", "leasehold-cli", "--features", "full"];
    if steps.command("build", &mut cargo(build)) && steps.check("place", place) {
        println!("{}", placed().display());
    }
    steps.summary()
}

/// Where people look for a program that was built to be used.
fn placed() -> PathBuf {
    target_dir().join("release/leasehold")
}

/// Puts it there in one step: one that runs from there goes on.
fn place() -> Result<(), String> {
    let (to, new) = (placed(), target_dir().join("release/leasehold.new"));
    let moved = fs::create_dir_all(target_dir().join("release"))
        .and_then(|()| fs::copy(target_dir().join("dist/leasehold"), &new))
        .and_then(|_| fs::rename(&new, &to));
    moved.map_err(|error| format!("cannot put the program at {}: {error}", to.display()))
}

/// A build that nobody asked to have etcd in does not need `protoc`: nothing of a default member depends on it, in
/// tests either.
pub(crate) fn check_default() -> Result<(), String> {
    let output = cargo(["tree", "--edges", "all", "--prefix", "none", "--format", "{p}"]).output();
    let output = output.map_err(|error| format!("cannot run cargo tree: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let tree = String::from_utf8_lossy(&output.stdout);
    match tree.lines().find(|line| line.starts_with("etcd-client ") || line.starts_with("prost-build ")) {
        None => Ok(()),
        Some(line) => Err(format!("the default build has {line}: whoever builds it needs protoc")),
    }
}
