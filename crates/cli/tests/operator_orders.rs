//! `ask`, `evict`, `pause`, `resume`, `resize` and `audit`: an order reaches only the holder with its token,
//! and is recorded.
#![allow(clippy::unwrap_used, reason = "tests")]

mod operator_support;

use std::{
    io::{BufRead as _, BufReader},
    process::Stdio,
    time::{Duration, Instant},
};

use operator_support::{Running, TestStore, eventually};
use serde_json::{Value, json};

const MINUTE: Duration = Duration::from_secs(60);

fn records(store: &TestStore) -> Vec<Value> {
    store.json(&["audit"])["records"].as_array().unwrap().clone()
}

#[test]
fn an_order_needs_a_token_and_a_reason() {
    let store = TestStore::new();
    let token = store.dead_holder("report", "42", MINUTE, "nightly").to_string();
    for words in [
        &["ask", "report/42", "--by", "30s"][..],
        &["evict", "report/42"],
        &["pause", "report/42", "--for", "1m"],
        &["resume", "report/42"],
        &["resize", "report/42", "--capacity", "2"],
    ] {
        store.call(words).fails(64, &["--reason"]);
        let with_reason = [words, &["--reason", "it's late"]].concat();
        let copied = format!("--token {token} --reason 'it'\\''s late'");
        store.call(&with_reason).fails(64, &["nightly", &token, words[0], &copied]);
        store.call(&[words, &["--reason", " "]].concat()).fails(64, &[]);
    }
    store.call(&["ask", "report/42", "--token", "0", "--by", "1s", "--reason", "x"]).fails(64, &[]);
    store.call(&["resize", "report/42", "--capacity", "0", "--reason", "x"]).fails(64, &["0 is not in 1.."]);
    store
        .call(&["pause", "report/42", "--token", &token, "--for", "0", "--reason", "x"])
        .fails(64, &["resume"]);
    assert_eq!(records(&store).len(), 0);
}

#[test]
fn a_free_resource_needs_no_token_and_has_no_holder_to_ask() {
    let store = TestStore::new();
    store.call(&["pause", "report/42", "--for", "1m", "--reason", "deploy"]).ok();
    store.call(&["resume", "report/42", "--reason", "done"]).ok();
    store.call(&["evict", "report/42", "--reason", "x"]).fails(77, &["nobody holds it"]);
    store.call(&["resize", "report/42", "--capacity", "2", "--reason", "x"]).fails(77, &["nobody holds it"]);
    let error = store.json_error(&["ask", "report/42", "--by", "1s", "--reason", "x"]);
    assert_eq!((&error["kind"], &error["exit_code"]), (&json!("not_that_one"), &json!(77)));
}

#[test]
fn a_newer_holder_is_never_hit() {
    let store = TestStore::new();
    let old = store.dead_holder("report", "42", Duration::from_millis(300), "old").to_string();
    eventually(|| store.json(&["show", "report/42"])["holder_count"] == 0);
    let new = store.dead_holder("report", "42", MINUTE, "new").to_string();
    for words in [
        &["ask", "report/42", "--by", "30s"][..],
        &["evict", "report/42", "--even-if-alive"],
        &["evict", "report/42", "--now", "--two-may-run"],
        &["pause", "report/42", "--for", "1m"],
        &["resume", "report/42"],
        &["resize", "report/42", "--capacity", "2"],
    ] {
        let words = [words, &["--token", &old, "--reason", "x"]].concat();
        store.call(&words).fails(77, &["nothing was done", "new", &new]);
        store.call(&[&words[..], &["--dry-run"]].concat()).fails(77, &["nothing was done", &new]);
    }
    let shown = store.json(&["show", "report/42"]);
    let holder = &shown["holders"][0];
    assert_eq!(
        (&holder["token"], &holder["evicting"], &holder["asked"]),
        (&json!(new), &json!(false), &Value::Null)
    );
    assert_eq!((&shown["capacity"], &shown["paused_for_ms"]), (&json!(1), &Value::Null));
    let records = records(&store);
    assert_eq!(records.len(), 6, "each attempt is recorded, and no dry run");
    assert!(records.iter().all(|record| record["done"] == false && record["token"] == json!(old)));
}

#[test]
fn a_dry_run_changes_nothing() {
    let store = TestStore::new();
    let token = store.dead_holder("report", "42", Duration::from_secs(20), "nightly").to_string();
    let before = store.json(&["show", "report/42"]);
    for words in [
        &["ask", "report/42", "--by", "30s"][..],
        &["evict", "report/42", "--even-if-alive"],
        &["evict", "report/42", "--even-if-alive", "--now"],
        &["pause", "report/42", "--for", "1m"],
        &["resume", "report/42"],
        &["resize", "report/42", "--capacity", "2"],
    ] {
        let words = [words, &["--token", &token, "--reason", "x", "--dry-run"]].concat();
        let said = store.call(&words).ok();
        assert!(said.contains("would") && said.contains("nothing was done"), "{said}");
        let report = store.json(&words);
        assert_eq!((&report["done"], &report["dry_run"]), (&json!(false), &json!(true)));
        assert_eq!((&report["token"], &report["holder"]["label"]), (&json!(token), &json!("nightly")));
    }
    let after = store.json(&["show", "report/42"]);
    for same in ["capacity", "paused_for_ms", "audit"] {
        assert_eq!(before[same], after[same], "{same}");
    }
    for same in ["token", "asked", "evicting", "since"] {
        let of = |shown: &Value| shown["holders"][0][same].as_str().map(|text| text[..16].to_owned());
        assert_eq!(of(&before), of(&after), "{same}");
    }
    assert_eq!(records(&store).len(), 0);
}

#[test]
fn a_command_that_is_asked_gets_its_signal() {
    let store = TestStore::new();
    let script = "trap 'echo asked; exit 7' USR1; echo $LEASEHOLD_TOKEN; while :; do sleep 0.1; done";
    let words = ["run", "--ttl", "1s", "--on-ask", "USR1", "report/42", "--", "sh", "-c", script];
    let child = store.command(&words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut running = Running { child, token: String::new() };
    let mut lines = BufReader::new(running.child.stdout.take().unwrap()).lines();
    let token = lines.next().unwrap().unwrap();
    let report = store.json(&["ask", "report/42", "--token", &token, "--by", "30s", "--reason", "deploy"]);
    assert_eq!((&report["order"], &report["done"]), (&json!("ask"), &json!(true)));
    assert_eq!(lines.next().unwrap().unwrap(), "asked");
    let (code, said) = running.end();
    assert_eq!(code, 7);
    assert!(said.contains("deploy") && said.contains("anna@"), "{said}");
}

#[test]
fn a_holder_that_renews_is_not_evicted_by_mistake() {
    let store = TestStore::new();
    let held = store.hold(&["--ttl", "6s", "report/42", "--label", "nightly"]);
    let words = ["evict", "report/42", "--token", &held.token, "--reason", "seems stuck"];
    store.call(&words).fails(77, &["nightly", "is alive", "nothing was done", "--even-if-alive"]);
    let error = store.json_error(&[&words[..], &["--now", "--two-may-run"]].concat());
    assert_eq!((&error["kind"], &error["exit_code"]), (&json!("alive"), &json!(77)));
    assert_eq!(records(&store).len(), 0);

    let said = store.call(&[&words[..], &["--even-if-alive"]].concat()).ok();
    assert!(said.contains("runs out within"), "{said}");
    // The evicted holder cannot renew, so it looks dead. That is no reason to end it at once.
    store
        .call(&[&words[..], &["--now", "--two-may-run"]].concat())
        .fails(77, &["cannot be seen", "Eviction pending. To end it now add --even-if-alive."]);
    let (code, said) = held.end();
    assert_eq!(code, 79, "{said}");
    let records = records(&store);
    assert_eq!(records.len(), 1);
    assert_eq!((&records[0]["command"], &records[0]["done"]), (&json!("evict"), &json!(true)));
}

#[test]
fn a_holder_that_was_killed_is_evicted_and_runs_out() {
    let store = TestStore::new();
    let mut held = store.hold(&["--ttl", "6s", "report/42"]);
    held.kill();
    let began = Instant::now();
    let words = ["evict", "report/42", "--token", &held.token, "--reason", "its host is gone"];
    let said = store.call(&words).ok();
    assert!(said.contains("is not renewed any more"), "{said}");
    assert!(began.elapsed() < Duration::from_secs(5), "a process of this host that is gone is not watched");
    assert_eq!(store.json(&["ls"])["resources"][0]["holders"][0]["evicting"], true);
    eventually(|| store.json(&["why", "report/42"])["free"] == true);
}

#[test]
fn evicting_at_once_needs_two_may_run() {
    let store = TestStore::new();
    let token = store.dead_holder("report", "42", Duration::from_secs(2), "nightly").to_string();
    let words = ["evict", "report/42", "--token", &token, "--reason", "hangs", "--now"];
    store.call(&words).fails(64, &["two may run", "--two-may-run", "the lease runs out in"]);
    let answer = store.call(&[&words[..], &["--two-may-run"]].concat());
    assert!(answer.err.contains("two may run"), "{answer:?}");
    assert!(answer.ok().contains("ended"));
    assert_eq!(store.json(&["show", "report/42"])["holder_count"], 0);
    assert_eq!(records(&store)[0]["command"], "evict-now");
    store
        .call(&["evict", "report/42", "--token", &token, "--reason", "x", "--two-may-run"])
        .fails(64, &["--now"]);
}

#[test]
fn during_a_pause_no_claim_is_granted() {
    let store = TestStore::new();
    let token = store.dead_holder("report", "42", Duration::from_millis(800), "nightly").to_string();
    store.call(&["pause", "report/42", "--token", &token, "--for", "10m", "--reason", "deploy"]).ok();
    eventually(|| store.json(&["show", "report/42"])["holder_count"] == 0);
    store.call(&["run", "-n", "report/42", "--", "true"]).fails(75, &["Paused until"]);
    let why = store.json(&["why", "report/42"]);
    assert_eq!((&why["free"], &why["frees"][0]["how"]), (&json!(false), &json!("resume")));
    assert!(store.call(&["why", "report/42"]).ok().contains("Paused until"));
    assert!(store.call(&["ls"]).ok().contains("paused 9m"));
    store.call(&["resume", "report/42", "--reason", "done"]).ok();
    store.call(&["run", "-n", "report/42", "--", "true"]).ok();
}

#[test]
fn a_semaphore_is_resized_while_it_is_used() {
    let store = TestStore::new();
    let held = store.hold(&["--permits", "1/1", "export/acme"]);
    store.call(&["run", "-n", "--permits", "1/2", "export/acme", "--", "true"]).fails(78, &["resize"]);
    let words =
        ["resize", "export/acme", "--token", &held.token, "--capacity", "2", "--reason", "more disks"];
    store.call(&words).ok();
    store.call(&["run", "-n", "--permits", "1/2", "export/acme", "--", "true"]).ok();
}

#[test]
fn the_audit_trail_has_operator_time_and_reason() {
    let store = TestStore::new();
    for (name, reason) in [("report/1", "first"), ("import/2", "second")] {
        store.call(&["pause", name, "--for", "1m", "--reason", reason]).ok();
    }
    let mut command = store.command(&["resume", "report/1", "--reason", "third"]);
    assert!(command.env("LEASEHOLD_OPERATOR", "pager/7").output().unwrap().status.success());
    store.call(&["resume", "import/2", "--reason", "fourth", "--by-whom", "ben"]).ok();
    let records = records(&store);
    let of = |field: &str| records.iter().map(|record| record[field].as_str().unwrap()).collect::<Vec<_>>();
    assert_eq!(of("why"), ["fourth", "third", "second", "first"]);
    assert_eq!(of("command"), ["resume", "resume", "pause", "pause"]);
    assert_eq!(of("by")[..2], ["ben", "pager/7"]);
    assert!(of("by")[2].starts_with("anna@"));
    assert!(of("at").iter().all(|at| at.ends_with('Z')));
    let some = store.json(&["audit", "report", "--limit", "1"]);
    assert_eq!((&some["records"][0]["why"], &some["more"]), (&json!("third"), &json!(true)));
    let table = store.call(&["audit"]).ok();
    assert_eq!(table.lines().count(), 5);
    assert!(table.lines().nth(1).unwrap().contains("fourth"), "{table}");
}
