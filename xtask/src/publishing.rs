//! Every crate to be published can be packaged, and has what its page on the registry and docs.rs need.

use std::fs;

use crate::{api::PUBLISHED, cargo, root};

/// The fields that the manifest of a published crate must have.
const FIELDS: &[&str] =
    &["description", "license", "repository", "keywords", "categories", "readme", "rust-version"];

/// Checks the manifests, then lets cargo package all crates together without building them.
pub(crate) fn check() -> Result<(), String> {
    let missing: Vec<String> = PUBLISHED.iter().flat_map(|folder| missing_fields(folder)).collect();
    if !missing.is_empty() {
        return Err(missing.join("\n"));
    }
    let unlicensed: Vec<String> = PUBLISHED.iter().flat_map(|folder| missing_files(folder)).collect();
    if !unlicensed.is_empty() {
        return Err(unlicensed.join("\n"));
    }
    let mut command = cargo(["package", "--workspace", "--no-verify", "--allow-dirty", "--quiet"]);
    // They depend on crates that are never published, so cargo cannot package them.
    command.args(["--exclude", "leasehold-bench-peers", "--exclude", "leasehold-stories"]);
    let output = command.output().map_err(|error| format!("cannot run {command:?}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{command:?}\n{}", String::from_utf8_lossy(&output.stderr)))
}

fn missing_fields(folder: &str) -> Vec<String> {
    let manifest = root().join(folder).join("Cargo.toml");
    let text = fs::read_to_string(&manifest).unwrap_or_default();
    let has = |field: &str| {
        text.lines().any(|line| {
            line.starts_with(&format!("{field} =")) || line.starts_with(&format!("{field}.workspace"))
        })
    };
    let mut missing: Vec<String> = FIELDS
        .iter()
        .filter(|field| !has(field))
        .map(|field| format!("{}: the field {field} is missing", manifest.display()))
        .collect();
    for setting in ["[package.metadata.docs.rs]", "rustdoc-args = [\"--cfg\", \"docsrs\"]"] {
        if !text.contains(setting) {
            missing.push(format!("{}: {setting} is missing", manifest.display()));
        }
    }
    missing
}

/// A package on the registry is read without this repository, so it needs the texts of the licences itself.
fn missing_files(folder: &str) -> Vec<String> {
    let files = ["LICENSE-MIT", "LICENSE-APACHE"].into_iter().map(|name| root().join(folder).join(name));
    let missing = files.filter(|file| !file.exists());
    missing.map(|file| format!("{} is missing: link it to the one at the root", file.display())).collect()
}
