//! `cargo xtask openapi`: writes the OpenAPI document of the HTTP API.
//!
//! The generator is in `crates/api`, behind a feature. The server contains the finished file, so that its users build no generator.
//! `crates/server/tests/openapi.rs` checks that the file is current.

use std::fs;

use crate::{cargo, root};

pub(crate) fn write() -> Result<(), String> {
    let mut command = cargo(["run", "--quiet", "--package", "leasehold-api", "--features", "openapi"]);
    let output = command.args(["--example", "openapi"]).output();
    let output = output.map_err(|error| format!("cannot run {command:?}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{command:?}\n{}", String::from_utf8_lossy(&output.stderr)));
    }
    let file = root().join("crates/api/openapi.json");
    fs::write(&file, output.stdout).map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    println!("{}", file.display());
    Ok(())
}
