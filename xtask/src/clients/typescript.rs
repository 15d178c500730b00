//! The TypeScript client. It is built where it is: Node looks for packages beside the files that import them.

use std::{
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use super::runner;
use crate::{python::succeed, root, steps::Steps, target_dir};

/// Types, and the programs.
pub(super) fn prepare(steps: &mut Steps) -> bool {
    let npm = |script: &str| {
        let mut command = Command::new("npm");
        command.args(["run", "--silent", script]).current_dir(folder());
        command
    };
    steps.check("clients: typescript tools", install)
        && steps.command("clients: typescript build", &mut npm("build"))
        && steps.command("clients: typescript types", &mut npm("check"))
        && steps.command("clients: typescript build of the tests", &mut npm("build:test"))
}

pub(super) fn tests() -> Vec<(String, Command)> {
    let mut tests = runner();
    tests.args(["--postgres", "npm", "test"]).current_dir(folder());
    tests.env("LEASEHOLD_PROGRAM", target_dir().join("debug/leasehold"));
    vec![("clients: typescript tests".to_owned(), tests)]
}

/// Lets the programs in this folder import the package by its name.
pub(super) fn link_package(programs: &Path) -> io::Result<()> {
    let packages = programs.join("node_modules");
    fs::create_dir_all(&packages)?;
    match symlink(folder(), packages.join("leasehold")) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

fn folder() -> PathBuf {
    root().join("clients/typescript")
}

/// Installs the versions of the lock file, unless they are there already.
fn install() -> Result<(), String> {
    let lock = fs::read(folder().join("package-lock.json")).map_err(|error| error.to_string())?;
    let installed = folder().join("node_modules/.installed-lock.json");
    if fs::read(&installed).is_ok_and(|text| text == lock) {
        return Ok(());
    }
    let mut npm = Command::new("npm");
    succeed(npm.args(["ci", "--no-audit", "--no-fund", "--ignore-scripts"]).current_dir(folder()))?;
    fs::write(&installed, lock).map_err(|error| format!("{}: {error}", installed.display()))
}

/// The package has what its users need, and nothing of the tests.
pub(super) fn package() -> Result<(), String> {
    let mut npm = Command::new("npm");
    let listed =
        succeed(npm.args(["pack", "--dry-run", "--json", "--ignore-scripts"]).current_dir(folder()))?;
    for needed in ["dist/index.js", "dist/index.d.ts", "README.md", "LICENSE-MIT", "LICENSE-APACHE"] {
        if !listed.contains(&format!("\"{needed}\"")) {
            return Err(format!("the package lacks {needed}"));
        }
    }
    if listed.contains("\"build/") || listed.contains("\"test/") {
        return Err("the package has files of the tests".to_owned());
    }
    Ok(())
}
