//! `cargo xtask build`: builds the program with every backend and full optimisation.

use std::{fs, path::PathBuf};

use crate::{cargo, packages, steps::Steps, target_dir};

pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let verbose = args.iter().any(|arg| arg == "-v" || arg == "--verbose");
    let mut steps = Steps::new(verbose);
    if !steps.check("packages", packages::install_to_build) {
        return steps.summary();
    }
    let build = ["build", "--profile", "dist", "--package", "leasehold-cli", "--features", "full"];
    if steps.command("build", &mut cargo(build)) && steps.check("install", install) {
        println!("{}", installed().display());
    }
    steps.summary()
}

/// Where people look for a release build.
fn installed() -> PathBuf {
    target_dir().join("release/leasehold")
}

/// Puts the program there by a rename, so that a running one is not disturbed.
fn install() -> Result<(), String> {
    let (to, new) = (installed(), target_dir().join("release/leasehold.new"));
    let moved = fs::create_dir_all(target_dir().join("release"))
        .and_then(|()| fs::copy(target_dir().join("dist/leasehold"), &new))
        .and_then(|_| fs::rename(&new, &to));
    moved.map_err(|error| format!("cannot put the program at {}: {error}", to.display()))
}

/// Checks that the default build does not need `protoc`: no default member depends on etcd, not even in its tests. ADR 0024.
pub(crate) fn check_default() -> Result<(), String> {
    let output = cargo(["tree", "--edges", "all", "--prefix", "none", "--format", "{p}"]).output();
    let output = output.map_err(|error| format!("cannot run cargo tree: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let tree = String::from_utf8_lossy(&output.stdout);
    match tree.lines().find(|line| line.starts_with("etcd-client ") || line.starts_with("prost-build ")) {
        None => Ok(()),
        Some(line) => Err(format!("the default build depends on {line}, which needs protoc")),
    }
}
