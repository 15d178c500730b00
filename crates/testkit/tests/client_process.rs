//! Holders in processes of their own, on SQLite: killed, stopped past their ttl, continued.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use leasehold_testkit::{ClientProcess, scenarios::ProcessScenario};

const TTL: Duration = Duration::from_secs(2);

/// A database file in a folder of its own.
struct Database {
    _folder: tempfile::TempDir,
    url: String,
}

impl Database {
    fn new() -> Database {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let url = format!("sqlite:{}", folder.path().join("leases.db").display());
        Database { _folder: folder, url }
    }

    fn scenario(&self) -> ProcessScenario<'_> {
        let program = Path::new(env!("CARGO_BIN_EXE_leasehold-client-process"));
        ProcessScenario { program, url: &self.url, ttl: TTL }
    }

    fn client_process(&self) -> ClientProcess {
        self.scenario().start()
    }
}

#[test]
fn a_killed_holder_is_replaced_after_its_ttl_with_a_higher_token() {
    Database::new().scenario().killed_holder_is_replaced();
}

#[test]
fn a_holder_stopped_past_its_ttl_learns_of_the_loss_and_its_late_release_does_no_harm() {
    let database = Database::new();
    let mut replaced = database.scenario().holder_stopped_past_its_ttl();
    assert_eq!(replaced.late_release(), "AlreadyGone");
    replaced.release_next();
}

#[test]
fn a_holder_that_is_stopped_for_less_than_its_ttl_keeps_renewing() {
    let database = Database::new();
    let mut holder = database.client_process();
    holder.granted();
    holder.signal("STOP");
    assert_eq!(holder.line_within(TTL / 4), None);
    holder.signal("CONT");
    // Twice the ttl: without renewals the lease would expire.
    assert_eq!(holder.line_within(TTL * 2), None, "the lease does not end");
    holder.send("check");
    holder.expect_line("ok");
    holder.send("release");
    assert_eq!(holder.expect_line("released"), "Now");
}

#[test]
fn a_release_lets_a_waiting_process_in_at_once() {
    let database = Database::new();
    let mut first = database.client_process();
    first.granted();
    let second = database.client_process();
    assert_eq!(second.line_within(Duration::from_millis(200)), None);
    first.send("release");
    assert_eq!(first.expect_line("released"), "Now");
    second.granted();
}

#[test]
fn a_client_process_has_the_default_action_for_signals() {
    let database = Database::new();
    let process = database.client_process();
    process.granted();
    process.signal("INT");
    // A process that has ended is a zombie until its parent, this test, reads its exit status.
    let has_ended = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid())).unwrap_or_default();
        status.contains("State:\tZ")
    };
    let until = Instant::now() + Duration::from_secs(10);
    while !has_ended() {
        assert!(Instant::now() < until, "SIGINT does not end the process");
        std::thread::sleep(Duration::from_millis(10));
    }
}
