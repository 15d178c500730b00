//! The Go client.

use std::{path::PathBuf, process::Command};

use super::runner;
use crate::{python::succeed, root, steps::Steps, target_dir};

/// The program of docs/languages.md, in `clients/go`.
const EXAMPLE: &str = "examples/export";

/// Format, lints, and the programs.
pub(super) fn prepare(steps: &mut Steps) -> bool {
    steps.check("clients: go format", format)
        && steps.command("clients: go vet", &mut go(&["vet", "./..."]))
        && steps.command(
            "clients: go vet of the fence tests",
            go(&["vet", "./..."]).current_dir(folder().join("fencetest")),
        )
        && steps.command("clients: go build", &mut build("./internal/storiesdriver", &driver()))
        && steps.command("clients: go build of the example", &mut build(&format!("./{EXAMPLE}"), &example()))
}

pub(super) fn tests() -> Vec<(String, Command)> {
    let program = target_dir().join("debug/leasehold");
    let mut tests = go(&["test", "-race", "-count=1"]);
    // Most tests wait: more of them at once than there are processors.
    tests.args(["-parallel", "16", "./..."]).env("LEASEHOLD_PROGRAM", &program);
    let mut fence = runner();
    fence.args(["--postgres", "go", "test", "-count=1", "./..."]);
    fence.current_dir(folder().join("fencetest")).env("LEASEHOLD_PROGRAM", &program);
    vec![("clients: go tests".to_owned(), tests), ("clients: go fence tests".to_owned(), fence)]
}

/// The driver of the stories, built.
pub(super) fn driver() -> PathBuf {
    target_dir().join("clients/go-driver")
}

/// The program of docs/languages.md, built.
pub(super) fn example() -> PathBuf {
    target_dir().join("clients/go-export")
}

/// Its source.
pub(super) fn example_source() -> PathBuf {
    folder().join(EXAMPLE).join("main.go")
}

fn folder() -> PathBuf {
    root().join("clients/go")
}

fn go(words: &[&str]) -> Command {
    let mut command = Command::new("go");
    command.args(words).current_dir(folder());
    command
}

fn build(package: &str, to: &std::path::Path) -> Command {
    let mut command = go(&["build", "-o"]);
    command.arg(to).arg(package);
    command
}

fn format() -> Result<(), String> {
    let unformatted = succeed(Command::new("gofmt").args(["-l", "."]).current_dir(folder()))?;
    if unformatted.is_empty() { Ok(()) } else { Err(format!("gofmt -w is needed for\n{unformatted}")) }
}
