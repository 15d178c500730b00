//! `cargo xtask build`: the program with every backend, optimised as far as it goes.

use crate::{cargo, packages, steps::Steps, target_dir};

pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let verbose = args.iter().any(|arg| arg == "-v" || arg == "--verbose");
    let mut steps = Steps::new(verbose);
    if !steps.check("packages", packages::install_to_build) {
        return steps.summary();
    }
    let build = ["build", "--profile", "dist", "--package", "leasehold-cli", "--features", "full"];
    if steps.command("build", &mut cargo(build)) {
        println!("{}", target_dir().join("dist/leasehold").display());
    }
    steps.summary()
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
