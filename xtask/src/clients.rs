//! The clients of the HTTP API in other languages, in `clients/`: their own tests, and the stories that all of them must pass.
//!
//! A client for a new language is its folder, a driver, and an entry in [`STORIES`]: see `crates/stories/README.md`.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    cargo,
    python::{environment, succeed},
    root,
    steps::Steps,
    target_dir,
    test::FEATURES,
};

/// A step's name, and the command that starts a driver: words, of which the program of a Python environment is looked up there.
const STORIES: &[(&str, &[&str])] = &[
    ("clients: python stories", &["python", "clients/python/stories_driver.py"]),
    ("clients: python stories, asyncio", &["python", "clients/python/stories_driver.py", "--asyncio"]),
];

/// The programs of docs/languages.md: the heading, the language of the block below it, the name of its file, and what runs it.
const PROGRAMS: &[(&str, &str, &str, &[&str])] = &[
    ("Shell", "sh", "shell.sh", &["sh"]),
    ("curl", "sh", "curl.sh", &["sh"]),
    ("Python", "python", "export.py", &["python"]),
];
/// The one in Rust is built from this file, which must end with the same text.
const RUST_PROGRAM: &str = "crates/stories/examples/export.rs";

pub(crate) fn run(steps: &mut Steps) -> bool {
    let programs = ["--bin", "leasehold", "--bin", "leasehold-stories", "--example", "export"];
    let mut build = cargo(["build", "--quiet", "--workspace", "--features", FEATURES]);
    // All of them, even after a failure.
    steps.command("clients: build", build.args(programs))
        && (python(steps) & stories(steps) & languages(steps))
}

/// Runs each program of docs/languages.md.
fn languages(steps: &mut Steps) -> bool {
    let page = root().join("docs/languages.md");
    let page = fs::read_to_string(&page).map_err(|error| format!("{}: {error}", page.display()));
    let rust = page.clone().and_then(|page| {
        let code = block(&page, "Rust", "rust")?;
        let built = fs::read_to_string(root().join(RUST_PROGRAM)).map_err(|error| error.to_string())?;
        if built.ends_with(&code) {
            Ok(target_dir().join("debug/examples/export").display().to_string())
        } else {
            Err(format!("{RUST_PROGRAM} must end with the code of the page"))
        }
    });
    let mut passed = program(steps, "Rust", rust);
    for (heading, language, file, words) in PROGRAMS {
        let written = page.clone().and_then(|page| write_program(&block(&page, heading, language)?, file));
        let command = written.map(|path| format!("{} {}", words.join(" "), path.display()));
        passed &= program(steps, heading, command);
    }
    passed
}

fn program(steps: &mut Steps, heading: &str, command: Result<String, String>) -> bool {
    let name = format!("clients: the program in {heading}");
    match command {
        Ok(command) => {
            let mut runner = Command::new(target_dir().join("debug/leasehold-stories"));
            runner.args(["--program", &command]).current_dir(root());
            runner.env("PATH", search_path()).env("PYTHONPATH", root().join("clients/python/src"));
            steps.command(&name, &mut runner)
        }
        Err(why) => steps.check(&name, || Err(why)),
    }
}

fn write_program(code: &str, file: &str) -> Result<PathBuf, String> {
    let folder = target_dir().join("clients/programs");
    let path = folder.join(file);
    let written = fs::create_dir_all(&folder).and_then(|()| fs::write(&path, code));
    written.map(|()| path.clone()).map_err(|error| format!("{}: {error}", path.display()))
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

fn stories(steps: &mut Steps) -> bool {
    let tell = |(name, driver): &(&str, &[&str])| {
        let mut command = Command::new(target_dir().join("debug/leasehold-stories"));
        command.args(["--driver", &driver.join(" ")]).current_dir(root());
        steps.command(name, command.env("PATH", search_path()))
    };
    let passed: Vec<bool> = STORIES.iter().map(tell).collect(); // all of them, even after a failure
    passed.into_iter().all(|passed| passed)
}

/// Types, tests and package of the Python client.
fn python(steps: &mut Steps) -> bool {
    let requirements = root().join("xtask/clients/python.txt");
    if !steps.check("clients: python tools", || environment("clients/python", &requirements).map(drop)) {
        return false;
    }
    let package = root().join("clients/python");
    let tool = |name: &str| {
        let mut command = Command::new(python_programs().join(name));
        command.current_dir(&package).env("PATH", search_path());
        command
    };
    let cache = target_dir().join("clients/python");
    let mypy =
        steps.command("clients: python types, mypy", tool("mypy").arg("--cache-dir").arg(cache.join("mypy")));
    let pyright = steps.command("clients: python types, pyright", &mut tool("pyright"));
    let mut tests = Command::new(target_dir().join("debug/leasehold-stories"));
    tests.arg("--postgres").arg(python_programs().join("pytest"));
    tests.args(["-o", &format!("cache_dir={}", cache.join("pytest").display())]);
    tests.current_dir(&package).env("LEASEHOLD_PROGRAM", target_dir().join("debug/leasehold"));
    let tested = steps.command("clients: python tests", &mut tests);
    mypy & pyright & tested & steps.check("clients: python package", || python_package(&package))
}

/// The package can be built, installed and used, and has what an index needs.
fn python_package(package: &Path) -> Result<(), String> {
    let folder = target_dir().join("clients/python/package");
    drop(fs::remove_dir_all(&folder));
    let pip = |verb: &str| {
        let mut pip = Command::new(python_programs().join("python"));
        pip.args(["-m", "pip", verb, "--quiet", "--no-deps", "--no-build-isolation"]);
        pip
    };
    succeed(pip("wheel").arg("--wheel-dir").arg(&folder).arg(package))?;
    let files = fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let wheel = files
        .filter_map(Result::ok)
        .map(|file| file.path())
        .find(|path| path.extension().is_some_and(|end| end == "whl"));
    let wheel = wheel.ok_or("no wheel was built")?;
    succeed(pip("install").arg("--target").arg(folder.join("installed")).arg(&wheel))?;
    let uses = "import importlib.metadata as m, importlib.resources as r, leasehold; d = m.distribution('leasehold'); \
                assert d.version == leasehold.__version__ and not d.requires, d.requires; \
                assert r.files(leasehold).joinpath('py.typed').is_file(); \
                assert {f.name for f in d.files} >= {'LICENSE-MIT', 'LICENSE-APACHE'}";
    let mut python = Command::new(python_programs().join("python"));
    succeed(python.args(["-c", uses]).env("PYTHONPATH", folder.join("installed")).current_dir(&folder))
        .map(drop)
}

fn python_programs() -> PathBuf {
    target_dir().join("clients/python/venv/bin")
}

/// Finds `python` in its environment first.
fn search_path() -> std::ffi::OsString {
    let before = env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(python_programs()).chain(env::split_paths(&before));
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
