//! The dashboard in a real browser: `tests/dashboard`, run by Playwright in Debian's Chromium against the real server.
//!
//! The npm packages, their versions fixed by a lock file, are installed in `target/dashboard`. No browser is downloaded.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{cargo, packages, python::succeed, root, steps::Steps, target_dir, test::FEATURES};

/// Where Debian's package puts the browser.
const CHROMIUM: &str = "/usr/bin/chromium";

pub(crate) fn run(steps: &mut Steps) -> bool {
    let prepared = steps.check("dashboard: install", install)
        && steps.command("dashboard: build", &mut build())
        && steps.command(
            "dashboard: types of the page",
            &mut types(&root().join("crates/server/dashboard/types")),
        )
        && steps.command("dashboard: types of the tests", &mut types(&folder()));
    prepared && steps.command("dashboard", &mut playwright(&["test"]))
}

/// Takes the pictures of the README from a demonstration that has run for some minutes, and writes them to `docs/images`.
pub(crate) fn screenshots(args: &[String]) -> Result<(), String> {
    let mut steps = Steps::new(args.iter().any(|arg| arg == "-v" || arg == "--verbose"));
    let images = root().join("docs/images");
    let mut take = playwright(&["test", "screenshots"]);
    take.env("LEASEHOLD_SCREENSHOTS", &images);
    let _ = steps.check("packages", packages::install)
        && steps.check("install", install)
        && steps.command("build", &mut build())
        && steps.command("screenshots", &mut take);
    steps.summary()
}

fn folder() -> PathBuf {
    target_dir().join("dashboard")
}

fn build() -> Command {
    cargo(["build", "--quiet", "--workspace", "--features", FEATURES, "--bin", "leasehold"])
}

fn types(project: &Path) -> Command {
    let mut command = Command::new(folder().join("node_modules/.bin/tsc"));
    command.arg("--project").arg(project);
    command
}

fn playwright(words: &[&str]) -> Command {
    let mut command = Command::new(folder().join("node_modules/.bin/playwright"));
    command.args(words).current_dir(folder()).env("LEASEHOLD_CHROMIUM", CHROMIUM);
    command.env("LEASEHOLD_PROGRAM", target_dir().join("debug/leasehold"));
    // Colours would be in the log file.
    command.env_remove("FORCE_COLOR").env("NO_COLOR", "1");
    command
}

/// Copies the tests to the folder with the packages, because Node looks for packages beside the files that import them. Installs the
/// packages, unless these versions are there already.
fn install() -> Result<(), String> {
    let (from, to) = (root().join("tests/dashboard"), folder());
    copy(&from, &to)?;
    copy(&from.join("lib"), &to.join("lib"))?;
    let lock = to.join("package-lock.json");
    let (wanted, installed) = (read(&lock)?, to.join("installed.json"));
    if fs::read(&installed).is_ok_and(|text| text == wanted) {
        return Ok(());
    }
    let mut npm = Command::new("npm");
    npm.args(["ci", "--no-audit", "--no-fund", "--ignore-scripts"]).current_dir(&to);
    succeed(&mut npm)?;
    fs::write(&installed, wanted).map_err(|error| format!("{}: {error}", installed.display()))
}

/// Copies the files of a folder, and removes those that are not there any more.
fn copy(from: &Path, to: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{} to {}: {error}", from.display(), to.display());
    fs::create_dir_all(to).map_err(failed)?;
    for old in fs::read_dir(to).map_err(failed)? {
        let old = old.map_err(failed)?.path();
        if old.extension().is_some_and(|extension| extension == "js") {
            fs::remove_file(&old).map_err(failed)?;
        }
    }
    for file in fs::read_dir(from).map_err(failed)? {
        let file = file.map_err(failed)?.path();
        if let Some(name) = file.file_name().filter(|_| file.is_file()) {
            fs::copy(&file, to.join(name)).map_err(failed)?;
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
}
