//! The Python client.

use std::{fs, path::PathBuf, process::Command};

use super::search_path;
use crate::{
    python::{environment, succeed},
    root,
    steps::Steps,
    target_dir,
};

/// Installs its tools.
pub(super) fn prepare(steps: &mut Steps) -> bool {
    let requirements = root().join("xtask/clients/python.txt");
    steps.check("clients: python tools", || environment("clients/python", &requirements).map(drop))
}

/// Types and package.
pub(super) fn check(steps: &mut Steps) -> bool {
    let tool = |name: &str| {
        let mut command = Command::new(programs().join(name));
        command.current_dir(source()).env("PATH", search_path());
        command
    };
    let cache = target_dir().join("clients/python/mypy");
    steps.command("clients: python types, mypy", tool("mypy").arg("--cache-dir").arg(cache))
        & steps.command("clients: python types, pyright", &mut tool("pyright"))
        & steps.check("clients: python package", package)
}

pub(super) fn tests() -> Vec<(String, Command)> {
    let mut tests = super::runner();
    tests.arg("--postgres").arg(programs().join("pytest"));
    tests.args(["-o", &format!("cache_dir={}", target_dir().join("clients/python/pytest").display())]);
    tests.current_dir(source()).env("LEASEHOLD_PROGRAM", target_dir().join("debug/leasehold"));
    vec![("clients: python tests".to_owned(), tests)]
}

/// The package can be built, installed and used, and has what an index needs.
fn package() -> Result<(), String> {
    let folder = target_dir().join("clients/python/package");
    drop(fs::remove_dir_all(&folder));
    let pip = |verb: &str| {
        let mut pip = Command::new(programs().join("python"));
        pip.args(["-m", "pip", verb, "--quiet", "--no-deps", "--no-build-isolation"]);
        pip
    };
    succeed(pip("wheel").arg("--wheel-dir").arg(&folder).arg(source()))?;
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
    let mut python = Command::new(programs().join("python"));
    succeed(python.args(["-c", uses]).env("PYTHONPATH", folder.join("installed")).current_dir(&folder))
        .map(drop)
}

fn source() -> PathBuf {
    root().join("clients/python")
}

/// Where the programs of its environment are.
pub(super) fn programs() -> PathBuf {
    target_dir().join("clients/python/venv/bin")
}
