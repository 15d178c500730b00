//! The tool still works: the Rust peers, one short repetition on a real Redis. No time is asserted.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use leasehold_bench_peers::{
    clients,
    peers::{Peer, Program, Programs},
    results::Table,
    run::{Effort, Runner},
    works::{Work, work_named},
};

fn runner() -> Runner {
    let lasting = Duration::from_millis(300);
    let effort = Effort { repetitions: 1, lasting, long_repetitions: 1, fair_lasting: lasting, commands: 1 };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    Runner {
        programs: Programs::new(PathBuf::from(env!("CARGO_BIN_EXE_leasehold-peer-rust"))),
        effort,
        runtime: runtime.unwrap(),
        terminal: false,
        versions: BTreeMap::new(),
    }
}

fn rust_peers(work: &Work) -> Vec<&'static Peer> {
    work.peers.iter().filter(|peer| peer.program == Program::Rust).copied().collect()
}

fn measured(name: &str) -> Table {
    let work = work_named(name).unwrap();
    let table = runner().measure(work, &rust_peers(work));
    for row in &table.rows {
        assert_eq!(row.not_run, None, "{}", row.peer);
        let main = row.values(work.main_figure());
        assert!(main.len() == 1 && main[0] > 0.0, "{}: {main:?}", row.peer);
        assert_eq!(row.values("errors"), [0.0], "{}", row.peer);
    }
    table
}

#[test]
fn the_rust_peers_acquire_and_release() {
    let table = measured("redis-pair-64");
    let peers: Vec<&str> = table.rows.iter().map(|row| row.peer.as_str()).collect();
    assert_eq!(peers, ["bare scripts", "leasehold", "rslock"]);
    // `SET`, `INCR` and their script; `GET`, `DEL` and theirs. A few more load the scripts and connect.
    let commands = table.rows[0].values("commands")[0];
    assert!((5.9..7.0).contains(&commands), "{commands} commands for a pair of the bare scripts");
}

#[test]
fn waiters_of_four_processes_hand_the_lock_over() {
    let table = measured("redis-handover-4x4-0ms");
    let ours = table.ours().unwrap();
    let (changes, grants) = (ours.values("changes_per_second")[0], ours.values("per_second")[0]);
    assert!(changes <= grants, "{changes} changes of {grants} grants");
}

#[test]
fn a_line_of_ten_moves() {
    measured("redis-fair-10");
}

#[test]
fn a_peer_that_cannot_be_started_is_reported_with_the_reason() {
    let work = work_named("redis-pair-1").unwrap();
    let mut runner = runner();
    runner.programs = Programs::new(PathBuf::from("/no/such/program"));
    let table = runner.measure(work, &rust_peers(work)[..1]);
    let why = table.rows[0].not_run.as_deref().unwrap_or_default();
    assert!(why.contains("/no/such/program"), "{why}");
}

#[test]
fn a_server_that_cannot_be_started_is_reported_with_the_reason() {
    let mut runner = runner();
    runner.programs.use_built(Program::Shell, Path::new("/no/such/server"));
    let table = runner.measure(&clients::ONE, clients::ONE.peers);
    for row in &table.rows {
        let why = row.not_run.as_deref().unwrap_or_default();
        assert!(why.contains("/no/such/server"), "{}: {why}", row.peer);
    }
}

#[test]
fn a_server_that_ends_at_once_is_reported_with_the_reason() {
    let mut runner = runner();
    runner.programs.use_built(Program::Shell, Path::new("false"));
    let table = runner.measure(&clients::ONE, &clients::ONE.peers[..1]);
    let why = table.rows[0].not_run.as_deref().unwrap_or_default();
    assert!(why.contains("leasehold serve has ended"), "{why}");
}
