//! The facts of this machine. Nothing that names it: no host, no path.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::Write as _,
    process::Command,
};

use crate::results::Machine;

/// Keeps the processor out of its idle states while it exists, where the kernel allows that.
///
/// A processor that sleeps between two requests adds its time to wake up to each of them.
#[derive(Debug)]
pub struct IdleStates {
    /// The kernel holds the idle states off as long as this file is open.
    file: Option<File>,
}

impl IdleStates {
    /// Asks the kernel for no delay at all.
    pub fn hold_off() -> IdleStates {
        let open = || -> std::io::Result<File> {
            let mut file = File::options().write(true).open("/dev/cpu_dma_latency")?;
            file.write_all(&0_i32.to_ne_bytes())?;
            Ok(file)
        };
        IdleStates { file: open().ok() }
    }

    /// Whether the kernel agreed.
    pub fn are_held_off(&self) -> bool {
        self.file.is_some()
    }
}

/// Reads the facts.
pub fn facts(idle: &IdleStates) -> Machine {
    let processor = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let processor = processor.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let memory = memory
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next()?.parse::<u64>().ok());
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    Machine {
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        processor: processor.map_or("unknown", |(_, name)| name).trim().to_owned(),
        memory_gb: memory.unwrap_or(0) / 1_000_000,
        // Without what the maker of the kernel added.
        kernel: kernel.trim().split('-').next().unwrap_or_default().to_owned(),
        load_at_start: load.split_whitespace().next().and_then(|load| load.parse().ok()).unwrap_or(0.0),
        idle_states_held_off: idle.are_held_off(),
    }
}

/// The versions of the toolchains that build and run the peers. One that is missing has no entry.
pub fn toolchains() -> BTreeMap<String, String> {
    let all: [(&str, &str, &[&str]); 5] = [
        ("Rust", "rustc", &["--version"]),
        ("Go", "go", &["version"]),
        ("Java", "java", &["--version"]),
        ("Node", "node", &["--version"]),
        ("Python", "python3", &["--version"]),
    ];
    let versions = all.map(|(name, program, args)| (name.to_owned(), version_in(&first_line(program, args))));
    versions.into_iter().filter(|(_, version)| !version.is_empty()).collect()
}

/// The first line that a command prints; empty if it cannot be run.
pub(crate) fn first_line(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.lines().next().unwrap_or_default().trim().to_owned()
}

/// The first word with a digit and a point.
fn version_in(line: &str) -> String {
    let mut words =
        line.split([' ', ',']).map(|word| word.trim_start_matches(|c: char| c.is_ascii_alphabetic()));
    let is_version = |word: &&str| word.contains('.') && word.starts_with(|c: char| c.is_ascii_digit());
    words.find(is_version).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_what_the_toolchains_print() {
        let expected = [
            ("rustc 1.91.0 (f8297e351 2025-10-28)", "1.91.0"),
            ("go version go1.26.8 linux/amd64", "1.26.8"),
            ("openjdk 17.0.15 2025-04-15", "17.0.15"),
            ("v20.20.2", "20.20.2"),
            ("Python 3.11.7", "3.11.7"),
            ("", ""),
        ];
        for (line, version) in expected {
            assert_eq!(version_in(line), version);
        }
    }
}
