//! `evict`: holders that are dead, holders that are being evicted, and a stronger order after a weaker one.
#![allow(clippy::unwrap_used, reason = "tests")]

mod operator_support;

use std::{
    process::Stdio,
    time::{Duration, Instant},
};

use operator_support::{Running, TestStore, eventually};
use serde_json::json;

const HOUR: Duration = Duration::from_secs(3600);

/// The words of an eviction.
fn evict<'a>(token: &'a str, options: &[&'a str]) -> Vec<&'a str> {
    [&["evict", "report/42", "--token", token, "--reason", "INC-512"], options].concat()
}

#[test]
fn a_process_of_this_host_that_is_gone_is_not_watched() {
    let store = TestStore::new();
    let mut killed = store.hold(&["--ttl", "2h", "report/42"]);
    killed.kill();
    let began = Instant::now();
    let answer = store.call(&evict(&killed.token, &[]));
    assert!(began.elapsed() < Duration::from_secs(30), "it was watched");
    assert!(answer.err.contains("its process on this host is gone"), "{answer:?}");
    let stronger = format!("evict report/42 --token {} --now --two-may-run --reason INC-512", killed.token);
    assert!(answer.err.contains(&stronger), "{answer:?}");
    assert!(answer.ok().contains("is not renewed any more"));
    // The stronger order, without --even-if-alive.
    let answer = store.call(&evict(&killed.token, &["--now", "--two-may-run"]));
    assert!(answer.ok().contains("ended the lease"));
    assert_eq!(store.json(&["why", "report/42"])["free"], true);
}

#[test]
fn an_eviction_that_is_pending_can_be_ended_now() {
    let store = TestStore::new();
    let held = store.hold(&["--ttl", "2h", "report/42"]);
    store.call(&evict(&held.token, &["--even-if-alive"])).ok();
    let now = evict(&held.token, &["--now", "--two-may-run"]);
    store.call(&now).fails(77, &["nothing was done", "Eviction pending. To end it now add --even-if-alive."]);
    let why = store.json(&["why", "report/42"])["frees"].take();
    let command = why.as_array().unwrap().last().unwrap()["command"].as_str().unwrap().to_owned();
    assert!(command.contains("--now --two-may-run --even-if-alive"), "{command}");
    store.call(&[&now[..], &["--even-if-alive"]].concat()).ok();
    assert_eq!(store.json(&["show", "report/42"])["holder_count"], 0);
}

#[test]
fn a_holder_that_was_silent_before_its_eviction_is_dead() {
    let store = TestStore::new();
    // Its process, this test, is alive. It does not renew.
    let token = store.dead_holder("report", "42", Duration::from_secs(12), "hangs").to_string();
    let answer = store.call(&evict(&token, &[]));
    assert!(answer.err.contains("watching") && answer.err.contains("up to"), "{answer:?}");
    assert!(!answer.err.contains("--even-if-alive"), "{answer:?}");
    store.call(&evict(&token, &["--now", "--two-may-run"])).ok();
    assert_eq!(store.json(&["show", "report/42"])["holder_count"], 0);
}

#[test]
fn watching_is_announced_at_once() {
    let store = TestStore::new();
    let token = store.dead_holder("report", "42", HOUR, "hangs").to_string();
    let mut command = store.command(&evict(&token, &["--dry-run"]));
    let errors = store.path().join("errors");
    let file = std::fs::File::create(&errors).unwrap();
    let child = command.stdout(Stdio::null()).stderr(file).spawn().unwrap();
    let watching = Running { child, token: String::new() };
    let said = || std::fs::read_to_string(&errors).unwrap();
    eventually(|| said().contains("watching") && said().contains("up to 1m 06s"));
    drop(watching);
    assert_eq!(said().lines().count(), 1, "one line at the start: {}", said());
}

#[test]
fn an_order_to_a_foreign_lock_needs_a_lock_a_hash_and_a_confirmation() {
    let store = TestStore::new();
    let hash = "0123456789abcdef";
    let foreign = ["evict", "report/42", "--foreign", "--reason", "x"];
    let with = |options: &[&'static str]| [&foreign[..], options].concat();
    store.call(&foreign).fails(77, &["nobody holds it"]);
    store.call(&with(&["--value-hash", "12"])).fails(64, &["16 hexadecimal digits"]);
    store.call(&with(&["--token", "1"])).fails(64, &["--token"]);
    store.call(&with(&["--now"])).fails(64, &["--now"]);
    store.call(&["evict", "report/42", "--value-hash", hash, "--reason", "x"]).fails(64, &["--foreign"]);
    let error = store.json_error(&with(&["--value-hash", hash, "--two-may-run"]));
    assert_eq!((&error["kind"], &error["exit_code"]), (&json!("not_that_one"), &json!(77)));
}
