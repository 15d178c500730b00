//! `leasehold elect`: a command while leading, and who leads.
#![allow(clippy::unwrap_used, reason = "a test is a program of its own")]

mod support;

use std::{fs, process::Command};

use leasehold::Eviction;
use rustix::process::Signal;
use serde_json::Value;
use support::{Site, Start as _, ended, eventually};

/// Stands for `x/1`; the command says who it is and goes on until it is told to stop.
fn candidate(site: &Site, name: &str, options: &[&str]) -> Command {
    let mut command = site.leasehold();
    let script = format!("trap 'exit 0' TERM; echo {name} $LEASEHOLD_TOKEN; while :; do sleep 0.05; done");
    command.args(["elect", "x/1", "--value", name]).args(options).args(["--", "sh", "-c", &script]);
    command
}

#[test]
fn one_leads_and_the_next_one_when_it_resigns() {
    let site = Site::new();
    let mut observer = site.leasehold();
    let observer = observer.args(["elect", "--observe", "x/1", "--json"]).start();
    let seen = || serde_json::from_str::<Value>(&observer.line()).unwrap()["value"].clone();
    assert_eq!(seen(), Value::Null);
    let mut first = candidate(&site, "host-a", &[]).start();
    assert!(first.line().starts_with("host-a "));
    assert_eq!(seen(), "host-a");
    let mut second = candidate(&site, "host-b", &[]).start();
    site.until_waiting(1);
    first.signal(Signal::TERM);
    assert_eq!(first.wait().code(), Some(0), "its command ended well");
    assert!(second.line().starts_with("host-b "));
    eventually("it is seen", || seen() == "host-b");
    second.signal(Signal::TERM);
    assert_eq!(second.wait().code(), Some(0));
    eventually("nobody leads", || seen() == Value::Null);
    observer.signal(Signal::INT);
    assert_eq!(observer.end().0, 130);
}

#[test]
fn who_lost_the_lead_stands_again_and_the_ready_file_tells() {
    let site = Site::new();
    let ready = site.path("ready");
    let mut leader = candidate(&site, "host-a", &["--ready-file", ready.to_str().unwrap()]).start();
    let token = |line: String| line.split(' ').nth(1).unwrap().parse::<u64>().unwrap();
    let first = token(leader.line());
    eventually("it is ready", || ready.exists());
    assert_eq!(fs::read_to_string(&ready).unwrap(), format!("x/1 {first}\n"));
    site.evict(Eviction::Now);
    let second = token(leader.line());
    assert!(second > first);
    eventually("it is ready again", || {
        fs::read_to_string(&ready).is_ok_and(|text| text == format!("x/1 {second}\n"))
    });
    leader.signal(Signal::TERM);
    assert_eq!(leader.wait().code(), Some(0));
    assert!(!ready.exists());
    assert!(site.look("x", "1").holders.is_empty());
}

#[test]
fn once_is_once_and_the_exit_code_is_the_commands() {
    let site = Site::new();
    let leader = candidate(&site, "host-a", &["--once"]).start();
    leader.line();
    site.evict(Eviction::Now);
    assert_eq!(leader.end().0, 79);
    let output = site.leasehold().args(["elect", "x/2", "--", "sh", "-c", "exit 7"]).output().unwrap();
    assert_eq!(output.status.code(), Some(7));
    // Also one that would be ours, had the lead been lost or the store gone.
    for code in [69, 79] {
        let script = format!("echo ran >> ran-{code}; exit {code}");
        let leader = site.leasehold().args(["elect", "x/2", "--", "sh", "-c", &script]).start();
        assert_eq!(leader.end().0, code);
        assert_eq!(fs::read_to_string(site.path(&format!("ran-{code}"))).unwrap(), "ran\n");
    }
    for wrong in
        [&["elect", "x/1"][..], &["elect", "x", "--", "true"], &["elect", "--observe", "x/1", "--", "true"]]
    {
        assert_eq!(ended(&site.leasehold().args(wrong).output().unwrap()).0, 64, "{wrong:?}");
    }
}

/// The program dies without a word: what it started ends with it.
#[test]
fn a_leader_that_is_killed_leaves_nothing_behind() {
    let site = Site::new();
    let mut leader = candidate(&site, "host-a", &[]).start();
    leader.line();
    leader.signal(Signal::KILL);
    leader.wait();
    eventually("the lead is given back", || site.look("x", "1").holders.is_empty());
}
