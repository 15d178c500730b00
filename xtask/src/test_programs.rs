//! Runs the test programs of the workspace, several at a time: most of them wait for servers.
//!
//! 1. Cargo builds all of them, and tells where each is.
//! 2. Each worker takes the next one, and runs it in the folder of its package, as `cargo test` does.
//! 3. The output of a program is printed whole, after its end.
//! 4. Cargo runs the examples of the documentation.
//!
//! It is a command of its own, so that a step can write its output to a log and end all its processes.

use std::{
    env,
    ffi::OsString,
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::{Mutex, PoisonError},
    thread,
};

use serde_json::Value;

use crate::{cargo, root};

/// How many test programs run at once. More than there are processors, because the tests mostly wait for servers.
const AT_ONCE: usize = 3;

/// The name of this command, which users do not need: `cargo xtask test tests` runs it.
pub(crate) const COMMAND: &str = "test-programs";

/// The command for a step.
pub(crate) fn command(features: &str) -> io::Result<Command> {
    let mut command = Command::new(env::current_exe()?);
    command.args([COMMAND, features]).current_dir(root());
    Ok(command)
}

/// A test program that cargo has built.
#[derive(Debug, PartialEq, Eq)]
struct TestProgram {
    executable: PathBuf,
    /// The folder of its package.
    folder: PathBuf,
    /// How cargo names it: `tests/conformance.rs`.
    source: String,
    /// What repeats it alone: `-p leasehold-redis --test conformance`.
    rerun: String,
}

pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let features = args.first().ok_or("the features are missing")?;
    let programs = build(features)?;
    let queue = Mutex::new(programs.iter());
    let failed = Mutex::new(Vec::new());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(program) = next() {
                    if !program.run() {
                        failed.lock().unwrap_or_else(PoisonError::into_inner).push(program.rerun.clone());
                    }
                }
            });
        }
    });
    let mut failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    let documentation = ["test", "--workspace", "--doc", "--no-fail-fast", "--features", features];
    if !cargo(documentation).status().is_ok_and(|status| status.success()) {
        failed.push("--workspace --doc".to_owned());
    }
    if failed.is_empty() {
        return Ok(());
    }
    Err(format!(
        "error: {} failed; to rerun one, pass `{}` to cargo test",
        failed.len(),
        failed.join("` or `")
    ))
}

/// Builds all test programs. Cargo tells of each of them in a line of JSON.
fn build(features: &str) -> Result<Vec<TestProgram>, String> {
    let args = ["test", "--workspace", "--no-run", "--features", features];
    let mut build = cargo(args);
    build.arg("--message-format=json-render-diagnostics").stderr(Stdio::inherit());
    let output = build.output().map_err(|error| format!("cannot run {build:?}: {error}"))?;
    if !output.status.success() {
        return Err(format!("error: the tests cannot be built: {}", output.status));
    }
    let programs: Vec<TestProgram> =
        String::from_utf8_lossy(&output.stdout).lines().filter_map(TestProgram::of_message).collect();
    if programs.is_empty() { Err("error: cargo has built no test program".to_owned()) } else { Ok(programs) }
}

impl TestProgram {
    /// Reads a message of cargo. `None` if it is of anything else.
    fn of_message(line: &str) -> Option<TestProgram> {
        let message: Value = serde_json::from_str(line).ok()?;
        if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
            return None;
        }
        let folder = Path::new(message["manifest_path"].as_str()?).parent()?;
        let source = Path::new(message["target"]["src_path"].as_str()?);
        let (name, kind) = (message["target"]["name"].as_str()?, message["target"]["kind"][0].as_str()?);
        let target = if kind.ends_with("lib") { "--lib".to_owned() } else { format!("--{kind} {name}") };
        Some(TestProgram {
            executable: message["executable"].as_str()?.into(),
            folder: folder.to_owned(),
            source: source.strip_prefix(folder).unwrap_or(source).display().to_string(),
            rerun: format!("-p {} {target}", package(message["package_id"].as_str()?)),
        })
    }

    /// Runs it, and prints its output. Returns whether it passed.
    fn run(&self) -> bool {
        let mut command = Command::new(&self.executable);
        // Cargo has set variables that tell of this program.
        let of_xtask = |name: &OsString| name.to_str().is_some_and(|name| name.starts_with("CARGO_PKG_"));
        for name in env::vars_os().map(|(name, _)| name).filter(of_xtask) {
            command.env_remove(name);
        }
        command.env_remove("CARGO_MANIFEST_PATH");
        command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder).stdin(Stdio::null());
        let (text, passed) = match command.output() {
            Ok(Output { status, stdout, stderr }) => {
                let ended = if status.success() { String::new() } else { format!("{status}\n") };
                ([stdout, stderr, ended.into_bytes()].concat(), status.success())
            }
            Err(error) => (format!("cannot run it: {error}\n").into_bytes(), false),
        };
        let heading = format!("     Running {} ({})\n", self.source, self.executable.display());
        let text = [heading.as_bytes(), &text].concat();
        // One call for the whole text, so that it is not mixed with that of another program.
        drop(io::stdout().lock().write_all(&text));
        passed
    }
}

/// The name of a package in its id: `path+file:///work/crates/core#leasehold-core@0.1.0`, or without the name if that is the folder's.
fn package(id: &str) -> &str {
    let (path, version) = id.rsplit_once('#').unwrap_or((id, ""));
    match version.split_once('@') {
        Some((name, _)) => name,
        None => path.rsplit('/').next().unwrap_or(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(test: bool, kind: &str) -> String {
        format!(
            r#"{{"reason":"compiler-artifact","package_id":"path+file:///w/crates/core#leasehold-core@0.1.0",
            "manifest_path":"/w/crates/core/Cargo.toml","target":{{"kind":["{kind}"],"name":"model",
            "src_path":"/w/crates/core/tests/model/main.rs"}},"profile":{{"test":{test}}},"executable":"/t/model-1"}}"#
        )
        .replace('\n', "")
    }

    #[test]
    fn test_programs_are_found_among_the_messages_of_cargo() {
        let program = TestProgram::of_message(&message(true, "test")).unwrap();
        assert_eq!(
            (program.folder.as_path(), program.executable.as_path()),
            (Path::new("/w/crates/core"), Path::new("/t/model-1"))
        );
        assert_eq!(
            (program.source.as_str(), program.rerun.as_str()),
            ("tests/model/main.rs", "-p leasehold-core --test model")
        );
        let library = TestProgram::of_message(&message(true, "lib")).unwrap();
        assert_eq!(library.rerun, "-p leasehold-core --lib");
        assert_eq!(TestProgram::of_message(&message(false, "bin")), None, "a program that is no test");
        assert_eq!(TestProgram::of_message(r#"{"reason":"build-finished","success":true}"#), None);
        assert_eq!(TestProgram::of_message("no JSON"), None);
    }

    #[test]
    fn the_name_of_a_package_is_in_its_id() {
        assert_eq!(package("path+file:///w/crates/core#leasehold-core@0.1.0"), "leasehold-core");
        assert_eq!(package("path+file:///w/xtask#0.1.0"), "xtask");
    }
}
