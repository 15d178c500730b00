//! Programs outside of the workspace that use leasehold beside another library (ADR 0054).
//!
//! Only one crate of a build may link SQLite, and each of `rusqlite` and `sqlx` picks a version of it. So leasehold can make
//! the dependencies of a user's program unsolvable. Inside of the workspace that would not be seen.

use std::{fs, path::PathBuf};

use crate::{cargo, python::succeed, root, steps::Steps, target_dir};

/// The folders in `tests/beside` that are only resolved: compiling them would take minutes and show nothing more.
const RESOLVED: &[&str] = &["sea-orm-1"];
/// The folders that are compiled, too. The first time takes two minutes of CPU, mostly for sqlx and for SQLite.
const COMPILED: &[&str] = &["sqlx-0.8"];

pub(crate) fn run(steps: &mut Steps) -> bool {
    let mut passed = true;
    for name in RESOLVED.iter().chain(COMPILED) {
        passed &= steps.check(&format!("beside: {name} is resolved"), || resolve(name));
    }
    for name in COMPILED {
        let mut check = cargo(["check", "--quiet"]);
        check.current_dir(folder(name)).env("CARGO_TARGET_DIR", target_dir().join("beside"));
        passed &= steps.command(&format!("beside: {name} compiles"), &mut check);
    }
    passed
}

fn folder(name: &str) -> PathBuf {
    root().join("tests/beside").join(name)
}

/// Resolves the dependencies. It begins with the versions of the workspace, so that a new version of some crate does not
/// change the outcome from one day to the next.
fn resolve(name: &str) -> Result<(), String> {
    let lock = folder(name).join("Cargo.lock");
    fs::copy(root().join("Cargo.lock"), &lock).map_err(|error| format!("{}: {error}", lock.display()))?;
    succeed(cargo(["update", "--workspace", "--quiet"]).current_dir(folder(name))).map(drop)
}
