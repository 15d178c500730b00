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

pub(crate) fn run(steps: &mut Steps) -> bool {
    let programs = ["--bin", "leasehold", "--bin", "leasehold-stories"];
    let mut build = cargo(["build", "--quiet", "--workspace", "--features", FEATURES]);
    steps.command("clients: build", build.args(programs)) && python(steps) && stories(steps)
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
    let pip = |args: &[&str]| {
        let mut pip = Command::new(python_programs().join("python"));
        pip.args(["-m", "pip"]).args(args).args(["--quiet", "--no-deps", "--no-build-isolation"]);
        pip
    };
    succeed(pip(&["wheel", "--wheel-dir"]).arg(&folder).arg(package))?;
    let files = fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let wheel = files
        .filter_map(Result::ok)
        .map(|file| file.path())
        .find(|path| path.extension().is_some_and(|end| end == "whl"));
    let wheel = wheel.ok_or("no wheel was built")?;
    succeed(pip(&["install", "--target"]).arg(folder.join("installed")).arg(&wheel))?;
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
