//! Python environments with exact versions of what a step needs.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{process_group, target_dir};

/// Makes an environment with exactly these versions in this folder of `target`, unless it is there already. Returns where its
/// programs are.
///
/// # Errors
/// If it cannot be made: the output of the command that failed.
pub(crate) fn environment(name: &str, requirements: &Path) -> Result<PathBuf, String> {
    let folder = target_dir().join(name);
    let (venv, installed) = (folder.join("venv"), folder.join("installed.txt"));
    let programs = venv.join("bin");
    let wanted = fs::read(requirements).map_err(|error| format!("{}: {error}", requirements.display()))?;
    if fs::read(&installed).is_ok_and(|text| text == wanted) {
        return Ok(programs);
    }
    succeed(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv))?;
    let mut pip = Command::new(programs.join("python"));
    succeed(pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--requirement"]).arg(requirements))?;
    fs::write(&installed, wanted).map_err(|error| format!("{}: {error}", installed.display()))?;
    Ok(programs)
}

/// Runs a command, and returns what it prints.
///
/// # Errors
/// If it fails: all its output.
pub(crate) fn succeed(command: &mut Command) -> Result<String, String> {
    let output =
        process_group::output(command).map_err(|error| format!("cannot run {command:?}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!(
        "{command:?}\n{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    ))
}
