//! `cargo xtask audit`: checks the dependencies against the rules in `deny.toml`.

use std::process::Stdio;

use crate::{cargo, steps::Steps};

pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let verbose = args.iter().any(|arg| arg == "-v" || arg == "--verbose");
    let mut steps = Steps::new(verbose);
    let there = cargo(["deny", "--version"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !there.is_ok_and(|status| status.success()) {
        println!("cargo-deny is missing: compiling it takes some minutes, once");
        if !steps.command("install cargo-deny", &mut cargo(["install", "--locked", "cargo-deny"])) {
            return steps.summary();
        }
    }
    for check in ["licenses", "bans", "sources"] {
        steps.command(check, &mut cargo(["deny", "--workspace", "check", check]));
    }
    steps.summary()
}
