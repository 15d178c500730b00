//! The developer commands of this workspace. `cargo xtask` lists them.

mod api;
mod audit;
mod bench;
mod beside;
mod build;
mod clients;
mod dashboard;
mod disk;
mod examples;
mod links;
mod openapi;
mod output;
mod packages;
mod process_group;
mod publishing;
mod python;
mod rebuild;
mod schemathesis;
mod soak;
mod steps;
mod test;
mod test_programs;

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

const USAGE: &str = "\
cargo xtask build            the program with every backend, at target/release/leasehold; installs what that needs
cargo xtask test [STEP…]     everything that must pass before a change is merged; or only the named steps
cargo xtask api              write the public API of each crate to its api.txt, after a change on purpose
cargo xtask openapi          write the OpenAPI document of the HTTP API to crates/api/openapi.json
cargo xtask screenshots      take the pictures of the README: docs/images/dashboard-*.png
cargo xtask soak [MINUTES] [BACKEND…]
                             new random cases on the backends and in the simulator; 30 minutes by default
cargo xtask bench [NAME…]    what leasehold costs, optimised (`bench --help` lists the parts), or a bench target by name
cargo xtask bench rebuild [FEATURE…]
                             how long a program that uses leasehold takes to build again; by default with `default` and `full`
cargo xtask bench peers      leasehold beside other lock libraries (`bench peers --help` lists the options)
cargo xtask bench clients    the clients of other languages, through the server, beside libraries straight to Redis
cargo xtask audit            licences, duplicate and banned crates, sources (cargo-deny)

  -v, --verbose              show the output of each step as it comes
";

fn main() -> ExitCode {
    let mut args: Vec<String> = env::args().skip(1).collect();
    let name = if args.is_empty() { String::new() } else { args.remove(0) };
    let option = |arg: &&String| arg.starts_with('-') && !["-v", "--verbose"].contains(&arg.as_str());
    let outcome = match (name.as_str(), args.iter().find(option).map(String::as_str)) {
        // `bench` has options of its own.
        ("bench", _) => bench::run(&args),
        ("build", None) => build::run(&args),
        ("test", None) => test::run(&args),
        (test_programs::COMMAND, None) => test_programs::run(&args),
        ("screenshots", None) => dashboard::screenshots(&args),
        ("soak", None) => soak::run(&args),
        ("audit", None) => audit::run(&args),
        ("api", None) => api::write(),
        ("openapi", None) => openapi::write(),
        ("" | "help" | "-h" | "--help", _)
        | ("build" | "test" | "api" | "openapi" | "screenshots" | "soak" | "audit", Some("-h" | "--help")) => {
            print!("{USAGE}");
            Ok(())
        }
        ("build" | "test" | "api" | "openapi" | "screenshots" | "soak" | "audit", Some(option)) => {
            Err(format!("unknown option {option}\n\n{USAGE}"))
        }
        (other, _) => Err(format!("there is no command called {other:?}\n\n{USAGE}")),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

/// The root of the workspace, whatever directory this was called from.
fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("xtask is a directory of the workspace").to_owned()
}

/// Where builds and logs go.
fn target_dir() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |dir| root().join(dir))
}

/// The cargo that started this program, at the root of the workspace.
fn cargo<'a>(args: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(root());
    // A machine that builds once gains nothing from incremental builds, and they take a quarter of the disk.
    if env::var_os("CI").is_some() {
        command.env("CARGO_INCREMENTAL", "0");
    }
    command
}
