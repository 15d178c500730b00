//! The clients of the HTTP API in other languages, in `clients/`: their own tests, and the stories that all of them must pass.
//!
//! A client for a new language is its folder, a driver, and an entry in [`stories`]: see `crates/stories/README.md`.

mod go;
mod java;
mod python;
mod typescript;

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{cargo, root, steps::Steps, target_dir, test::FEATURES};

pub(crate) fn run(steps: &mut Steps) -> bool {
    let programs = ["--bin", "leasehold", "--bin", "leasehold-stories", "--example", "export"];
    let mut build = cargo(["build", "--quiet", "--workspace", "--features", FEATURES]);
    // All of them, even after a failure.
    steps.command("clients: build", build.args(programs))
        && (tests(steps) & checks(steps) & stories(steps) & languages(steps))
}

/// The own tests of each client. They wait more than they compute, so all of them run at once; what is built is built before,
/// except by Maven.
fn tests(steps: &mut Steps) -> bool {
    let clients = [
        (python::prepare(steps), python::tests()),
        (typescript::prepare(steps), typescript::tests()),
        (go::prepare(steps), go::tests()),
        (true, java::tests()),
    ];
    let prepared = clients.iter().all(|(prepared, _)| *prepared);
    let tests = clients.into_iter().filter(|(prepared, _)| *prepared).flat_map(|(_, tests)| tests).collect();
    steps.commands_at_once(tests) && prepared
}

/// The types and the packages of the clients whose build does not check them.
fn checks(steps: &mut Steps) -> bool {
    python::check(steps) & steps.check("clients: typescript package", typescript::package)
}

/// The program that tells the stories.
fn runner() -> Command {
    let mut command = Command::new(target_dir().join("debug/leasehold-stories"));
    command.current_dir(root()).env("PATH", search_path());
    command
}

/// Runs the stories with each driver. They wait more than they compute, so all drivers run at once.
fn stories(steps: &mut Steps) -> bool {
    let python = "python clients/python/stories_driver.py";
    // With what each of them cannot do.
    let drivers = [
        ("python", python.to_owned(), "block"),
        ("python, asyncio", format!("{python} --asyncio"), ""),
        ("typescript", "node clients/typescript/stories_driver.mjs".to_owned(), "fork"),
        ("go", go::driver().display().to_string(), "fork,block"),
        ("java", java::driver(), "fork"),
    ];
    let tell = |(name, driver, cannot): (&str, String, &str)| {
        let mut command = runner();
        command.args(["--driver", &driver, "--cannot", cannot]);
        (format!("clients: stories, {name}"), command)
    };
    steps.commands_at_once(drivers.map(tell).into())
}

/// A program of docs/languages.md: a heading, and below it a block of this language.
struct Program {
    heading: &'static str,
    language: &'static str,
    runs: Runs,
}

/// How a program of the page is run.
enum Runs {
    /// It is written to a file of this name, which follows these words.
    Script(&'static str, String),
    /// It was built from this file, which must end with the same text, as this program.
    Built(PathBuf, PathBuf),
}

fn programs() -> [Program; 7] {
    let program = |heading, language, runs| Program { heading, language, runs };
    let script = |file, words: &str| Runs::Script(file, words.to_owned());
    let rust = root().join("crates/stories/examples/export.rs");
    [
        program("Shell", "sh", script("shell.sh", "sh")),
        program("curl", "sh", script("curl.sh", "sh")),
        program("Rust", "rust", Runs::Built(rust, target_dir().join("debug/examples/export"))),
        program("Python", "python", script("export.py", "python")),
        program("TypeScript", "js", script("export.mjs", "node")),
        program("Go", "go", Runs::Built(go::example_source(), go::example())),
        program("Java", "java", Runs::Script("Export.java", java::program_runner())),
    ]
}

/// Runs each program of docs/languages.md. All of them run at once.
fn languages(steps: &mut Steps) -> bool {
    let folder = target_dir().join("clients/programs");
    let prepared = fs::create_dir_all(&folder).and_then(|()| typescript::link_package(&folder));
    let prepared = prepared.map_err(|error| format!("{}: {error}", folder.display()));
    let page = prepared.and_then(|()| read(&root().join("docs/languages.md")));
    let (mut commands, mut passed) = (Vec::new(), true);
    for program in programs() {
        let name = format!("clients: the program in {}", program.heading);
        match page.clone().and_then(|page| program.command(&page, &folder)) {
            Ok(command) => {
                let mut runner = runner();
                runner.args(["--program", &command]).env("PYTHONPATH", root().join("clients/python/src"));
                commands.push((name, runner));
            }
            Err(why) => passed &= steps.check(&name, || Err(why)),
        }
    }
    passed & steps.commands_at_once(commands)
}

impl Program {
    /// The command that runs it. A script is written to the folder.
    fn command(&self, page: &str, folder: &Path) -> Result<String, String> {
        let code = block(page, self.heading, self.language)?;
        match &self.runs {
            Runs::Script(file, words) => {
                let path = folder.join(file);
                fs::write(&path, code).map_err(|error| format!("{}: {error}", path.display()))?;
                Ok(format!("{words} {}", path.display()))
            }
            Runs::Built(source, _) if !read(source)?.ends_with(&code) => {
                Err(format!("{} must end with the code of the page", source.display()))
            }
            Runs::Built(_, program) => Ok(program.display().to_string()),
        }
    }
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// The first block of this language below the heading.
fn block(page: &str, heading: &str, language: &str) -> Result<String, String> {
    let missing = || format!("docs/languages.md has no {language} block below {heading:?}");
    let (_, below) = page.split_once(&format!("\n## {heading}\n")).ok_or_else(missing)?;
    let section = below.split_once("\n## ").map_or(below, |(section, _)| section);
    let (_, code) = section.split_once(&format!("\n```{language}\n")).ok_or_else(missing)?;
    let (code, _) = code.split_once("\n```").ok_or_else(missing)?;
    Ok(format!("{code}\n"))
}

/// Finds `python` in its environment first.
fn search_path() -> std::ffi::OsString {
    let before = env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(python::programs()).chain(env::split_paths(&before));
    env::join_paths(folders).unwrap_or(before)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_found_below_its_heading() {
        let page = "# Page\n\n## A\n\n```sh\none\ntwo\n```\n\n## B\n\n```sh\nthree\n```\n";
        assert_eq!(block(page, "A", "sh"), Ok("one\ntwo\n".to_owned()));
        assert_eq!(block(page, "B", "sh"), Ok("three\n".to_owned()));
        assert!(block(page, "A", "rust").is_err() && block(page, "C", "sh").is_err());
    }
}
