//! `cargo xtask bench rebuild [FEATURE…]`: the CPU time that a user's program takes to build again after a change (ADR 0053).
//!
//! The program is the one of the README. Its dependencies are built before; then only the program is built again, three
//! times, and the median is printed. What takes long there is code of leasehold that is generated in the user's crate.

use std::{fs, path::Path};

use crate::{cargo, root, target_dir};

const MAIN: &str = r#"#[tokio::main]
async fn main() -> Result<(), leasehold::Error> {
    let leases = leasehold::connect("memory:").await?;
    let work = leases.lease("report", "42").run(async |lease| println!("exporting with {:?}", lease.token()));
    work.await
}
"#;

/// How many times the program is built again.
const ROUNDS: usize = 3;

/// Measures with these features of leasehold: by default, with the default ones and with all.
pub(crate) fn run(chosen: &[String]) -> Result<(), String> {
    let chosen: Vec<&str> = chosen.iter().map(String::as_str).collect();
    let all = if chosen.is_empty() { vec!["default", "full"] } else { chosen };
    println!("CPU seconds to build the program of the README again (median of {ROUNDS})\n");
    println!("| features | `cargo build` | `cargo build --release` |");
    println!("|---|---|---|");
    for features in all {
        let folder = target_dir().join("rebuild").join(features);
        write_program(&folder, features)?;
        let [debug, release] = [measure(&folder, &[])?, measure(&folder, &["--release"])?];
        println!("| {features} | {debug:.1} | {release:.1} |");
    }
    Ok(())
}

fn write_program(folder: &Path, features: &str) -> Result<(), String> {
    let leasehold = root().join("crates/leasehold");
    let manifest = format!(
        "[package]\nname = \"rebuild\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[dependencies]\n\
         leasehold = {{ path = {leasehold:?}, features = [{features:?}] }}\n\
         tokio = {{ version = \"1\", features = [\"macros\", \"rt-multi-thread\"] }}\n\n[workspace]\n"
    );
    let written = fs::create_dir_all(folder.join("src"))
        .and_then(|()| fs::write(folder.join("Cargo.toml"), manifest))
        .and_then(|()| fs::write(folder.join("src/main.rs"), MAIN))
        .and_then(|()| fs::copy(root().join("Cargo.lock"), folder.join("Cargo.lock")));
    written.map(drop).map_err(|error| format!("cannot write {}: {error}", folder.display()))
}

/// Builds everything, then the program alone, some times. Returns the median of its CPU time, in seconds.
fn measure(folder: &Path, profile: &[&str]) -> Result<f64, String> {
    // Both programs share a folder, so that crates with the same features are compiled once.
    let shared = target_dir().join("rebuild/target");
    let run = |arguments: &[&str]| {
        let mut command = cargo(arguments.iter().copied());
        command.args(profile).arg("--quiet").current_dir(folder);
        // Without the incremental cache: it hides the work that a clean build, as in CI, has to do.
        let status = command.env("CARGO_TARGET_DIR", &shared).env("CARGO_INCREMENTAL", "0").status();
        match status {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("{command:?}: {status}")),
            Err(error) => Err(format!("cannot run {command:?}: {error}")),
        }
    };
    run(&["build"])?;
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        run(&["clean", "--package", "rebuild"])?;
        let before = children_cpu_seconds()?;
        run(&["build"])?;
        times.push(children_cpu_seconds()? - before);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[ROUNDS / 2])
}

/// The user time of all processes that this one has waited for: the field `cutime` of /proc/self/stat.
fn children_cpu_seconds() -> Result<f64, String> {
    /// Linux reports these times in hundredths of a second, on every architecture.
    const TICKS_PER_SECOND: f64 = 100.0;
    let stat = fs::read_to_string("/proc/self/stat").map_err(|error| format!("/proc/self/stat: {error}"))?;
    // The name of the program comes first, in parentheses, and may contain spaces.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks = fields.split_whitespace().nth(13).and_then(|field| field.parse::<f64>().ok());
    ticks
        .map(|ticks| ticks / TICKS_PER_SECOND)
        .ok_or_else(|| format!("/proc/self/stat is not understood: {stat}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_child_is_counted() {
        let before = children_cpu_seconds().expect("Linux has it");
        let spin = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done";
        std::process::Command::new("sh").args(["-c", spin]).status().expect("there is a shell");
        assert!(children_cpu_seconds().expect("as before") > before);
    }
}
