//! Copies the workspace, plants the bugs in the copy, and builds its simulator.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use super::{BUGS, VARIABLE};

/// What the copy needs to build the simulator. Cargo reads the manifests of all members.
const COPIED: &[&str] = &["Cargo.toml", "Cargo.lock", "bench", "crates", "examples", "xtask"];
/// Folders that are not sources.
const SKIPPED: &[&str] = &["target", "node_modules"];

/// Copies, plants and builds; returns the path of the program.
pub(super) fn build(workspace: &Path) -> Result<PathBuf, String> {
    let target = workspace.join("target/planted");
    let source = target.join("source");
    if source.exists() {
        fs::remove_dir_all(&source).map_err(|error| failed("remove", &source, &error))?;
    }
    for name in COPIED {
        copy(&workspace.join(name), &source.join(name))?;
    }
    plant(&source)?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["build", "--quiet", "--release", "--package", "leasehold-sim", "--target-dir"])
        .arg(&target)
        .current_dir(&source)
        .status();
    match status {
        Ok(status) if status.success() => Ok(target.join("release/leasehold-sim")),
        Ok(status) => Err(format!("the simulator with planted bugs does not build: {status}")),
        Err(error) => Err(format!("cannot run cargo: {error}")),
    }
}

fn plant(source: &Path) -> Result<(), String> {
    for bug in BUGS {
        for edit in bug.edits {
            change(&source.join(edit.file), |text| {
                let found = text.matches(edit.find).count();
                if found == 1 {
                    return Ok(text.replacen(edit.find, edit.replace, 1));
                }
                Err(format!(
                    "the planted bug {:?} does not fit {}: found its text {found} times instead of once. \
                     Change the edit in crates/sim/src/planted/bugs.rs to follow the source:\n{}",
                    bug.name, edit.file, edit.find
                ))
            })?;
        }
    }
    change(&source.join("crates/core/src/lib.rs"), |text| Ok(text.to_owned() + &switch()))
}

/// Added to core in the copy: asks whether a bug is switched on. The variable is read once, because this is on hot paths.
fn switch() -> String {
    format!(
        r#"
/// Whether this planted bug is switched on.
pub fn planted(bug: &str) -> bool {{
    static CHOSEN: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    CHOSEN.get_or_init(|| std::env::var("{VARIABLE}").ok()).as_deref() == Some(bug)
}}
"#
    )
}

fn change(file: &Path, change: impl FnOnce(&str) -> Result<String, String>) -> Result<(), String> {
    let text = fs::read_to_string(file).map_err(|error| failed("read", file, &error))?;
    fs::write(file, change(&text)?).map_err(|error| failed("write", file, &error))
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    if from.is_file() {
        if let Some(folder) = to.parent() {
            fs::create_dir_all(folder).map_err(|error| failed("make", folder, &error))?;
        }
        return fs::copy(from, to).map(drop).map_err(|error| failed("copy", from, &error));
    }
    for entry in fs::read_dir(from).map_err(|error| failed("read", from, &error))? {
        let name = entry.map_err(|error| failed("read", from, &error))?.file_name();
        if !SKIPPED.iter().any(|skipped| name == *skipped) {
            copy(&from.join(&name), &to.join(&name))?;
        }
    }
    Ok(())
}

fn failed(what: &str, path: &Path, error: &std::io::Error) -> String {
    format!("cannot {what} {}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Quick, so that a change of the source is told at once: building the copy takes longer.
    #[test]
    fn every_edit_fits_the_source() {
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for (bug, edit) in BUGS.iter().flat_map(|bug| bug.edits.iter().map(move |edit| (bug, edit))) {
            let text = fs::read_to_string(workspace.join(edit.file)).expect("the file exists");
            assert_eq!(text.matches(edit.find).count(), 1, "{}: {} in {}", bug.name, edit.find, edit.file);
        }
    }
}
