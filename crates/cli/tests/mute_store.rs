//! `leasehold run` on a store that cannot be reached or does not reply: it waits as long as for the lease, and a signal ends it at
//! once.
#![allow(clippy::unwrap_used, reason = "a test is a program of its own")]

mod support;

use std::{
    fs,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use leasehold_testkit::servers::RedisServer;
use rustix::{
    fs::{CWD, Mode, mkfifoat},
    process::Signal,
};
use support::{Running, Start as _, TestDir, eventually, exit_and_errors};

const AWAY: &str = "trying again until the store redis://127.0.0.1:";

fn run(dir: &TestDir, server: &RedisServer, options: &[&str], command: &[&str]) -> Command {
    let mut run = dir.leasehold();
    run.args(["--store", &server.url(), "run"]).args(options).args(["x/1", "--"]).args(command);
    run.stdin(Stdio::null());
    run
}

#[track_caller]
fn wait_for_error(running: &Running, wanted: &str) {
    while !running.next_error_line().contains(wanted) {}
}

/// Ends it with this signal. It takes much less than one timeout of a store, which was waited for before.
#[track_caller]
fn ends_at_once(running: Running, signal: Signal) {
    let sent = Instant::now();
    running.signal(signal);
    let code = running.code();
    assert!(sent.elapsed() < Duration::from_secs(3), "it took {:?}", sent.elapsed());
    let number = signal.as_raw();
    assert!(code == 128 + number || code == -number, "{code}");
}

#[test]
fn a_store_that_is_away_at_the_start_is_waited_for() {
    let (dir, server) = (TestDir::new(), RedisServer::start());
    server.kill();
    for options in [&[][..], &["-w", "60"]] {
        let waiter = run(&dir, &server, options, &["echo", "ran"]).start();
        wait_for_error(&waiter, AWAY);
        server.run_again();
        wait_for_error(&waiter, "the store can be reached again");
        waiter.wait_for_line("ran");
        assert_eq!(waiter.code(), 0);
        server.kill();
    }
}

#[test]
fn a_store_that_stays_away_is_69_when_the_wait_is_over() {
    let (dir, server) = (TestDir::new(), RedisServer::start());
    server.kill();
    for (options, at_least) in [(&["-n"][..], 0), (&["-w", "2"], 2)] {
        let started = Instant::now();
        let (code, errors) = exit_and_errors(&run(&dir, &server, options, &["true"]).output().unwrap());
        assert_eq!(code, 69, "{errors:?}");
        assert!(started.elapsed() >= Duration::from_secs(at_least), "{options:?}");
        // A note about an outage of more than a second may come before the error.
        assert!(errors.len() == 1 || (errors.len() == 2 && at_least > 0), "{errors:?}");
    }
}

/// The engine alone gives up after ten seconds without an answer.
#[test]
fn an_outage_during_the_wait_is_survived() {
    let (dir, server) = (TestDir::new(), RedisServer::start());
    let mut holder = run(&dir, &server, &["--ttl", "1h"], &["sh", "-c", "echo go; read line"]);
    let mut holder = holder.stdin(Stdio::piped()).start();
    holder.wait_for_line("go");
    let waiter = run(&dir, &server, &["-w", "120"], &["echo", "ran"]).start();
    wait_for_error(&waiter, "held by ");
    server.freeze();
    wait_for_error(&waiter, AWAY);
    server.thaw();
    holder.write("\n");
    waiter.wait_for_line("ran");
    assert_eq!((holder.code(), waiter.code()), (0, 0));
}

#[test]
fn a_signal_ends_a_run_whose_server_is_mute() {
    let (dir, server) = (TestDir::new(), RedisServer::start());
    let holder = run(&dir, &server, &["--ttl", "1h"], &["sh", "-c", "echo go; exec sleep 600"]).start();
    holder.wait_for_line("go");
    let waiters: Vec<_> = [Signal::TERM, Signal::INT, Signal::HUP]
        .into_iter()
        .map(|signal| (run(&dir, &server, &[], &["true"]).start(), signal))
        .collect();
    waiters.iter().for_each(|(waiter, _)| wait_for_error(waiter, "held by "));
    server.freeze();
    for (waiter, signal) in waiters {
        ends_at_once(waiter, signal);
    }
    // And one that does not even get a connection.
    for signal in [Signal::TERM, Signal::INT] {
        let mut waiter = run(&dir, &server, &["--ready-file", "ready"], &["true"]).start();
        eventually("it catches signals", || catches_signals(waiter.pid()));
        assert!(waiter.is_running());
        ends_at_once(waiter, signal);
    }
    server.thaw();
}

/// Whether the process has a handler for TERM.
fn catches_signals(pid: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or_default();
    u64::from_str_radix(caught.trim(), 16).is_ok_and(|mask| mask & (1 << (Signal::TERM.as_raw() - 1)) != 0)
}

/// To open a file blocks the thread that handles signals.
#[test]
fn a_signal_ends_a_run_whose_file_is_locked() {
    let dir = TestDir::new();
    assert_eq!(dir.run(["x/1", "true"]).start().code(), 0);
    let locked = dir.lock();
    for arguments in [
        &["run", "x/1", "--", "true"][..],
        &["cron", "* * * * *", "cleanup", "--", "true"],
        &["elect", "--observe", "x/1"],
    ] {
        let running = dir.leasehold().args(arguments).stdin(Stdio::null()).start();
        eventually("it catches signals", || catches_signals(running.pid()));
        ends_at_once(running, Signal::TERM);
    }
    drop(locked);
}

#[test]
fn a_signal_ends_a_run_whose_change_file_is_a_fifo() {
    let dir = TestDir::new();
    assert_eq!(dir.run(["x/1", "true"]).start().code(), 0);
    let change_file = fs::read_dir(dir.directory.path()).unwrap().map(|entry| entry.unwrap().path());
    let change_file = change_file.filter(|path| path.to_str().unwrap().ends_with("-bell")).last().unwrap();
    fs::remove_file(&change_file).unwrap();
    mkfifoat(CWD, &change_file, Mode::RUSR | Mode::WUSR).unwrap();
    let mut running = dir.run(["x/1", "--", "sleep", "600"]).start();
    eventually("it catches signals", || catches_signals(running.pid()) || !running.is_running());
    // The store may refuse such a file by itself.
    running.signal(Signal::TERM);
    let code = running.code();
    assert!(matches!(code, 143 | 78), "{code}");
}

#[test]
fn a_signal_ends_the_wait_for_the_release() {
    let (dir, server) = (TestDir::new(), RedisServer::start());
    let script = "echo go; until [ -e end ]; do sleep 0.01; done; exit 3";
    let running = run(&dir, &server, &[], &["sh", "-c", script]).start();
    running.wait_for_line("go");
    server.freeze();
    fs::write(dir.path("end"), "").unwrap();
    let guardian = support::children(running.pid())[0];
    eventually("its command has ended", || support::children(guardian).is_empty());
    // It may not have seen the end yet, and then forwards the signal: so more than one.
    let mut running = running;
    eventually("it ends", || {
        if running.is_running() {
            running.signal(Signal::TERM);
        }
        !running.is_running()
    });
    server.thaw();
    let (code, errors) = running.end();
    assert_eq!(code, 3, "the exit code of the command: {errors:?}");
    assert!(errors[0].contains("before a signal came; the lease was not given back"), "{errors:?}");
}
