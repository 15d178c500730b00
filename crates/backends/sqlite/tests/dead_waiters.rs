//! Waiters whose process is killed or stopped do not hold up the waiters behind them.
//!
//! This program is also the client process: it is one when it is started with a URL.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test is a program of its own")]

use std::{path::PathBuf, process::ExitCode, time::Duration};

use leasehold_testkit::{client_process, scenarios::ProcessScenario};

fn main() -> ExitCode {
    client_process::main_with_tests(
        "sqlite:",
        &[
            ("a_hundred_killed_waiters_cost_the_next_one_nothing", killed_waiters),
            ("a_killed_holder_and_waiter_cost_no_more_than_the_ttl_of_the_lease", killed_holder_and_waiter),
            ("a_stopped_waiter_loses_a_turn_and_not_its_place", stopped_waiter),
        ],
    )
}

/// A file, and this program as the client process.
struct Processes {
    _directory: tempfile::TempDir,
    url: String,
    program: PathBuf,
}

impl Processes {
    fn new() -> Processes {
        let directory = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", directory.path().join("leases.db").display());
        Processes { _directory: directory, url, program: std::env::current_exe().unwrap() }
    }

    fn scenario(&self, ttl_secs: u64) -> ProcessScenario<'_> {
        ProcessScenario { program: &self.program, url: &self.url, ttl: Duration::from_secs(ttl_secs) }
    }
}

/// A few milliseconds on an idle machine. The places of the killed processes last for six seconds.
fn killed_waiters() {
    let took = Processes::new().scenario(30).killed_waiters_are_passed_over();
    println!("granted {took:?} after the release");
    assert!(took < Duration::from_secs(2), "{took:?}");
}

fn killed_holder_and_waiter() {
    let ttl = Duration::from_secs(2);
    let took = Processes::new().scenario(ttl.as_secs()).holder_and_first_waiter_killed();
    println!("granted {took:?} after the kill");
    assert!(took < ttl + Duration::from_secs(2), "{took:?}");
}

fn stopped_waiter() {
    Processes::new().scenario(30).stopped_waiter_loses_a_turn();
}
