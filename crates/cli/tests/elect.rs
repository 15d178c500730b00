//! `leasehold elect`: a command that runs on the leader, and observing the leader.
#![allow(clippy::unwrap_used, reason = "a test is a program of its own")]

mod support;

use std::{fs, process::Command};

use leasehold::Eviction;
use rustix::process::Signal;
use serde_json::Value;
use support::{Start as _, TestDir, eventually, exit_and_errors};

/// A candidate of the election `x/1`. Its command prints name and token, and runs until TERM.
fn candidate(dir: &TestDir, name: &str, options: &[&str]) -> Command {
    let mut command = dir.leasehold();
    let script = format!("trap 'exit 0' TERM; echo {name} $LEASEHOLD_TOKEN; while :; do sleep 0.05; done");
    command.args(["elect", "x/1", "--value", name]).args(options).args(["--", "sh", "-c", &script]);
    command
}

#[test]
fn one_candidate_leads_and_the_next_one_follows_when_it_resigns() {
    let dir = TestDir::new();
    dir.look("x", "1"); // an observer creates no store, and waits for one
    let mut observer = dir.leasehold();
    let observer = observer.args(["elect", "--observe", "x/1", "--json"]).start();
    let seen = || serde_json::from_str::<Value>(&observer.next_line()).unwrap()["value"].clone();
    assert_eq!(seen(), Value::Null);
    let mut first = candidate(&dir, "host-a", &[]).start();
    assert!(first.next_line().starts_with("host-a "));
    assert_eq!(seen(), "host-a");
    let mut second = candidate(&dir, "host-b", &[]).start();
    dir.until_waiting(1);
    first.signal(Signal::TERM);
    assert_eq!(first.wait().code(), Some(0), "the exit code of its command");
    assert!(second.next_line().starts_with("host-b "));
    eventually("the observer sees it", || seen() == "host-b");
    second.signal(Signal::TERM);
    assert_eq!(second.wait().code(), Some(0));
    eventually("there is no leader", || seen() == Value::Null);
    observer.signal(Signal::INT);
    assert_eq!(observer.end().0, 130);
}

#[test]
fn a_candidate_that_lost_leadership_stands_again_and_the_ready_file_shows_it() {
    let dir = TestDir::new();
    let ready = dir.path("ready");
    let mut leader = candidate(&dir, "host-a", &["--ready-file", ready.to_str().unwrap()]).start();
    let token = |line: String| line.split(' ').nth(1).unwrap().parse::<u64>().unwrap();
    let first = token(leader.next_line());
    let is_ready = |token: u64| {
        fs::read_to_string(&ready)
            .is_ok_and(|text| text.starts_with(&format!("x/1 {token}\nleasehold process ")))
    };
    eventually("it is ready", || is_ready(first));
    dir.evict(Eviction::Now);
    let second = token(leader.next_line());
    assert!(second > first);
    eventually("it is ready again", || is_ready(second));
    leader.signal(Signal::TERM);
    assert_eq!(leader.wait().code(), Some(0));
    assert!(!ready.exists());
    assert!(dir.look("x", "1").holders.is_empty());
}

#[test]
fn with_once_a_lost_leadership_ends_it_and_the_exit_code_is_that_of_the_command() {
    let dir = TestDir::new();
    let leader = candidate(&dir, "host-a", &["--once"]).start();
    leader.next_line();
    dir.evict(Eviction::Now);
    assert_eq!(leader.end().0, 79);
    let output = dir.leasehold().args(["elect", "x/2", "--", "sh", "-c", "exit 7"]).output().unwrap();
    assert_eq!(output.status.code(), Some(7));
    // Also codes that leasehold itself uses for a lost lease (79) and an unavailable store (69).
    for code in [69, 79] {
        let script = format!("echo ran >> ran-{code}; exit {code}");
        let leader = dir.leasehold().args(["elect", "x/2", "--", "sh", "-c", &script]).start();
        assert_eq!(leader.end().0, code);
        assert_eq!(fs::read_to_string(dir.path(&format!("ran-{code}"))).unwrap(), "ran\n");
    }
    for wrong in
        [&["elect", "x/1"][..], &["elect", "X/1", "--", "true"], &["elect", "--observe", "x/1", "--", "true"]]
    {
        assert_eq!(exit_and_errors(&dir.leasehold().args(wrong).output().unwrap()).0, 64, "{wrong:?}");
    }
}

/// `kill -9`: everything that the program started ends with it.
#[test]
fn a_leader_that_is_killed_leaves_nothing_behind() {
    let dir = TestDir::new();
    let mut leader = candidate(&dir, "host-a", &[]).start();
    leader.next_line();
    leader.signal(Signal::KILL);
    leader.wait();
    eventually("leadership is released", || dir.look("x", "1").holders.is_empty());
}

/// The sum of a counter in a metrics file.
fn counter(file: &std::path::Path, name: &str) -> u64 {
    let text = fs::read_to_string(file).unwrap_or_default();
    let lines = text.lines().filter(|line| line.starts_with(name));
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}

#[test]
fn the_metrics_file_counts_over_all_leaderships() {
    let dir = TestDir::new();
    let file = dir.path("metrics.prom");
    let mut leader =
        candidate(&dir, "host-a", &["--ttl", "2s", "--metrics-file", file.to_str().unwrap()]).start();
    for losses in 0..3 {
        leader.next_line();
        eventually("it is counted", || {
            counter(&file, "leasehold_acquire_total{") == losses + 1
                && counter(&file, "leasehold_lost_total{") == losses
        });
        dir.evict(Eviction::Now);
    }
    leader.next_line();
    leader.signal(Signal::TERM);
    assert_eq!(leader.wait().code(), Some(0));
    assert_eq!(counter(&file, "leasehold_lost_total{"), 3);
}
