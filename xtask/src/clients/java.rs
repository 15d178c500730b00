//! The Java client and its provider for `ShedLock`.

use std::{path::PathBuf, process::Command};

use super::runner;
use crate::{root, target_dir};

/// The version in the names of the jars.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Builds and tests it: Maven does both at once.
pub(super) fn tests() -> Vec<(String, Command)> {
    let mut verify = runner();
    // The profile of a release also makes the documentation, whose warnings are errors. Nothing is signed.
    verify.args(["--postgres", "mvn", "--quiet", "--batch-mode", "-Prelease", "-Dgpg.skip", "verify"]);
    verify.current_dir(folder());
    verify.env("LEASEHOLD_PROGRAM", target_dir().join("debug/leasehold"));
    vec![("clients: java".to_owned(), verify)]
}

/// The command that starts the driver of the stories.
pub(super) fn driver() -> String {
    let (client, tests) = (jar(""), jar("-tests"));
    let class_path = format!("{}:{}", client.display(), tests.display());
    format!("java -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -cp {class_path} io.github.leasehold.StoryDriver")
}

/// The words before a program of one file.
pub(super) fn program_runner() -> String {
    format!("java -cp {}", jar("").display())
}

fn folder() -> PathBuf {
    root().join("clients/java")
}

fn jar(suffix: &str) -> PathBuf {
    folder().join(format!("leasehold/target/leasehold-{VERSION}{suffix}.jar"))
}
