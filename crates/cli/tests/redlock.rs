//! The program on a quorum of independent Redis servers.
#![allow(clippy::unwrap_used, reason = "a test is a program of its own")]

mod support;

use std::{
    io::{BufRead as _, BufReader},
    process::{Output, Stdio},
    time::Duration,
};

use leasehold_testkit::servers::RedisNodes;
use serde_json::Value;
use support::TestDir;

struct QuorumStore {
    dir: TestDir,
    nodes: RedisNodes,
}

impl QuorumStore {
    fn new() -> QuorumStore {
        QuorumStore { dir: TestDir::new(), nodes: RedisNodes::long_lived(3, Duration::from_secs(600)) }
    }

    fn output(&self, arguments: &[&str]) -> Output {
        self.dir.leasehold().args(["--store", &self.nodes.url()]).args(arguments).output().unwrap()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn with_one_server_down_a_run_gets_its_token_and_releases_the_lease() {
    let store = QuorumStore::new();
    store.nodes.servers[0].kill();
    let script = "echo $LEASEHOLD_RESOURCE $LEASEHOLD_TOKEN; exit 7";
    let output = store.output(&["run", "report/42", "--", "sh", "-c", script]);
    assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    let token = said.trim().strip_prefix("report/42 ").unwrap();
    for server in &store.nodes.servers[1..] {
        assert!(server.command(&["GET", "lock:v1:{report/42}:register"]).starts_with(token));
        assert_eq!(server.command(&["EXISTS", "lock:v1:{report/42}:owner"]), "0", "released");
    }
}

#[test]
fn a_schedule_is_refused_at_the_start_and_not_at_its_first_tick() {
    let store = QuorumStore::new();
    let output = store.output(&["cron", "@yearly", "audit", "--", "true"]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(78), "{said}");
    assert!(said.contains("redlock cannot remember that a tick was run"), "{said}");
}

#[test]
fn the_holder_is_the_one_that_a_majority_reports() {
    let store = QuorumStore::new();
    let mut holder = store.dir.leasehold();
    holder.args([
        "--store",
        &store.nodes.url(),
        "run",
        "report/42",
        "--",
        "sh",
        "-c",
        "echo held; read -r _",
    ]);
    let mut holder = holder.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "held\n");
    for command in [&["ls"] as &[&str], &["show", "report/42"], &["why", "report/42"]] {
        let output = store.output(command);
        let (said, why) = (text(&output.stdout), text(&output.stderr));
        assert!(said.contains("report/42") && said.contains("sh"), "{command:?}: {said}{why}");
        assert!(!said.contains("evict"), "{command:?} offers what a quorum refuses: {said}");
    }
    let busy = store.output(&["run", "-n", "report/42", "--", "true"]);
    assert_eq!(busy.status.code(), Some(75), "{}", text(&busy.stderr));
    drop(holder.stdin.take());
    holder.wait().unwrap();
    assert_eq!(
        store.output(&["run", "-n", "report/42", "--", "true"]).status.code(),
        Some(0),
        "it was released"
    );
}

#[test]
fn features_that_a_quorum_does_not_have_are_refused_in_one_line() {
    let store = QuorumStore::new();
    std::fs::write(store.dir.path("c.toml"), "[run]\ncorrectness = true\n").unwrap();
    let table: [(&[&str], &str); 5] = [
        (&["--config", "c.toml", "run", "report/42", "--", "true"], "quorum"),
        (&["run", "--fair", "report/42", "--", "true"], "queue"),
        (&["run", "--permits", "1/3", "report/42", "--", "true"], "semaphores"),
        (&["run", "--correctness", "report/42", "--", "true"], "quorum"),
        (&["pause", "report/42", "--for", "1m", "--reason", "test"], "orders"),
    ];
    for (arguments, word) in table {
        let output = store.output(arguments);
        let why = text(&output.stderr);
        assert_ne!(output.status.code(), Some(0), "{arguments:?}");
        assert!(why.contains(word) && why.lines().count() == 1, "{arguments:?}: {why}");
    }
}

#[test]
fn new_servers_are_founded_by_a_command() {
    let store = QuorumStore { dir: TestDir::new(), nodes: RedisNodes::start(3, &[]) };
    let early = store.output(&["run", "-n", "report/42", "--", "true"]);
    let said = text(&early.stderr);
    assert_eq!(early.status.code(), Some(69), "{said}");
    assert!(said.contains("leasehold redlock found") && said.contains("uptime_gate"), "{said}");
    let url = store.nodes.url();
    let founded = store.dir.leasehold().args(["redlock", "found", &url]).output().unwrap();
    assert_eq!(founded.status.code(), Some(0), "{}", text(&founded.stderr));
    assert!(text(&founded.stdout).starts_with("all 3 nodes vote now"), "{}", text(&founded.stdout));
    let again = store.output(&["--json", "redlock", "found"]);
    assert_eq!(text(&again.stdout).trim(), r#"{"already":true,"gate_ms":600000,"nodes":3}"#);
    assert_eq!(store.output(&["run", "-n", "report/42", "--", "true"]).status.code(), Some(0));
    let other = store.dir.leasehold().args(["redlock", "found", "redis://localhost"]).output().unwrap();
    assert_eq!(other.status.code(), Some(78), "{}", text(&other.stderr));
}

#[test]
fn a_lock_of_another_program_without_an_end_is_found_and_removed_on_each_node() {
    let store = QuorumStore::new();
    for server in &store.nodes.servers[..2] {
        server.command(&["SET", "lock:v1:{report/42}:owner", "not-of-leasehold"]);
    }
    let json = |arguments: &[&str]| {
        let output = store.output(&[&["--json"], arguments].concat());
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let found = json(&["leaks"])["findings"].take();
    assert_eq!(
        (&found[0]["leak"], &found[0]["name"]),
        (&"foreign_no_ttl".into(), &"report/42".into()),
        "{found}"
    );
    let command = found[0]["command"].as_str().unwrap();
    let start = "leasehold --store redis://HOST evict report/42 --foreign --value-hash ";
    assert!(command.starts_with(start), "{command}");
    let frees = json(&["why", "report/42"])["frees"].take();
    assert!(frees.to_string().contains(command), "{frees}");
    for options in [&[][..], &["--foreign"]] {
        let evict = [&["evict", "report/42", "--reason", "WHY"], options].concat();
        let output = store.output(&evict);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(78), "{said}");
        assert!(said.contains("on each node by itself") && said.contains(command), "{said}");
    }
    for server in &store.nodes.servers[..2] {
        let line = command.replacen("redis://HOST", &server.url(), 1);
        let line = line.replacen("leasehold", env!("CARGO_BIN_EXE_leasehold"), 1);
        assert!(store.dir.shell(&line).status().unwrap().success(), "{line}");
    }
    assert_eq!(store.output(&["leaks"]).status.code(), Some(0));
    assert_eq!(store.output(&["run", "-n", "report/42", "--", "true"]).status.code(), Some(0));
}
