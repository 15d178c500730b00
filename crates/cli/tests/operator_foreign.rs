//! Locks of other programs, keys without an expiry and corrupt keys, on a real Redis server.
#![allow(clippy::unwrap_used, reason = "tests")]

mod operator_support;

use leasehold_testkit::servers::RedisServer;
use operator_support::{CallOutput, TestStore};
use serde_json::{Value, json};

const OWNER: &str = "lock:v1:{report/42}:owner";
const SECRET: &str = "my-very-secret-value";

struct RedisStore {
    server: RedisServer,
    directory: TestStore,
}

impl RedisStore {
    fn new() -> RedisStore {
        RedisStore { server: RedisServer::start(), directory: TestStore::new() }
    }

    fn call(&self, words: &[&str]) -> CallOutput {
        let mut command = self.directory.command(words);
        let output = command.env("LEASEHOLD_STORE", self.server.url()).output().unwrap();
        let answer = CallOutput {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        };
        assert!(!format!("{answer:?}").contains(SECRET), "the value is shown: {answer:?}");
        answer
    }

    fn json(&self, words: &[&str]) -> Value {
        let output = self.call(&[words, &["--json"]].concat());
        serde_json::from_str(&output.out).unwrap_or_else(|error| panic!("{error}: {output:?}"))
    }

    /// Runs a printed command line.
    fn run_printed(&self, line: &str) {
        let line = line.replacen("leasehold", env!("CARGO_BIN_EXE_leasehold"), 1);
        let mut shell = std::process::Command::new("sh");
        let ran = shell.args(["-c", &line]).env("LEASEHOLD_STORE", self.server.url()).status().unwrap();
        assert!(ran.success(), "{line}");
    }
}

#[test]
fn a_lock_of_another_program_is_its_own_kind_everywhere() {
    let store = RedisStore::new();
    store.server.command(&["SET", OWNER, SECRET]);
    let row = store.call(&["ls"]).ok();
    let row = row.lines().nth(1).unwrap();
    assert!(row.contains("foreign") && row.contains("no end") && !row.contains("renewing"), "{row}");
    for words in [["show", "report/42"], ["why", "report/42"]] {
        let shown = store.call(&words).ok();
        assert!(shown.contains("another program") && shown.contains("no expiry"), "{shown}");
        for claimed in ["token", "since", "renews", "2036", "1970"] {
            assert!(!shown.contains(claimed), "{claimed}: {shown}");
        }
    }
    let shown = store.json(&["show", "report/42"]);
    let foreign = &shown["foreign"][0];
    assert_eq!((&foreign["key"], &foreign["remaining_ms"]), (&json!(OWNER), &Value::Null));
    assert_eq!((&shown["holders"], &shown["holder_count"]), (&json!([]), &json!(0)));
    let why = store.json(&["why", "report/42"]);
    assert_eq!((&why["free"], &why["at_the_latest"]), (&json!(false), &Value::Null));
    store.call(&["pause", "report/42", "--for", "1m", "--reason", "x"]).ok();
    assert!(store.call(&["ls"]).ok().contains("foreign, paused"));
}

#[test]
fn only_an_order_with_its_hash_removes_a_foreign_lock() {
    let store = RedisStore::new();
    store.server.command(&["SET", OWNER, SECRET, "PX", "600000"]);
    let is_there = || store.server.command(&["EXISTS", OWNER]) == "1";
    let lock = store.json(&["show", "report/42"])["foreign"][0].take();
    let hash = lock["value_hash"].as_str().unwrap();
    let reason = ["--reason", "INC-512"];
    let evict = ["evict", "report/42"];
    let exact = format!("evict report/42 --foreign --value-hash {hash} --two-may-run --reason INC-512");
    store.call(&[&evict[..], &reason].concat()).fails(77, &["another program", &exact]);
    store.call(&[&evict[..], &["--even-if-alive"], &reason].concat()).fails(77, &[&exact]);
    store.call(&[&["ask", "report/42", "--by", "9s"], &reason[..]].concat()).fails(77, &["cannot be asked"]);
    let foreign = [&evict[..], &["--foreign"], &reason].concat();
    store.call(&foreign).fails(64, &["--value-hash", &exact]);
    let with_hash = [&foreign[..], &["--value-hash", hash]].concat();
    store.call(&with_hash).fails(64, &["two may run", "--two-may-run"]);
    assert!(store.call(&[&with_hash[..], &["--dry-run"]].concat()).ok().contains("nothing was done"));
    let wrong = [&foreign[..], &["--value-hash", "0123456789abcdef", "--two-may-run"]].concat();
    store.call(&wrong).fails(77, &["0123456789abcdef", hash]);
    assert!(is_there());
    let report = store.json(&[&with_hash[..], &["--two-may-run"]].concat());
    assert_eq!((&report["order"], &report["done"]), (&json!("evict-foreign"), &json!(true)));
    assert_eq!(report["foreign"]["key"], OWNER);
    assert!(!is_there());
    let records = store.json(&["audit"])["records"].take();
    let done: Vec<_> = records.as_array().unwrap().iter().map(|record| &record["done"]).collect();
    assert_eq!(done, [&json!(true), &json!(false), &json!(false)], "{records}");
}

#[test]
fn leaks_prints_the_order_that_clears_a_key_without_a_ttl() {
    let store = RedisStore::new();
    store.server.command(&["SET", OWNER, SECRET]);
    store.server.command(&["SET", "lock:v1:{report/43}:fence", "17"]);
    let found = store.json(&["leaks"])["findings"].take();
    let found = found.as_array().unwrap();
    let of =
        |name: &str| found.iter().find(|leak| leak["name"] == name).unwrap_or_else(|| panic!("{found:?}"));
    assert_eq!(of("report/42")["leak"], "foreign_no_ttl");
    assert!(of("lock:v1:{report/43}:fence")["say"].as_str().unwrap().contains("it holds nothing"));
    store.run_printed(of("report/42")["command"].as_str().unwrap());
    assert_eq!(store.server.command(&["EXISTS", OWNER]), "0");
    // The next claim gives the record a ttl.
    store.call(&["run", "report/43", "--", "true"]).ok();
    assert_eq!(store.call(&["leaks"]).code, 0);
}

#[test]
fn a_lease_of_ours_that_lost_its_expiry_is_shown_so_and_can_be_ended() {
    let store = RedisStore::new();
    let mut command = store.directory.command(&["run", "--ttl", "1h", "report/42", "--", "sleep", "60"]);
    let child = command.env("LEASEHOLD_STORE", store.server.url()).spawn().unwrap();
    let mut running = operator_support::Running { child, token: String::new() };
    operator_support::eventually(|| store.server.command(&["PERSIST", OWNER]) == "1");
    running.kill();
    for words in [&["ls"][..], &["show", "report/42"], &["why", "report/42"], &["leaks"]] {
        let shown = store.call(words).out;
        assert!(!shown.contains("3650d") && !shown.contains("2036"), "{shown}");
    }
    assert!(store.call(&["ls"]).ok().contains("no end"));
    let found = store.json(&["leaks"])["findings"].take();
    let key = found.as_array().unwrap().iter().find(|leak| leak["leak"] == "no_ttl").unwrap();
    store.run_printed(key["command"].as_str().unwrap());
    assert_eq!(store.json(&["why", "report/42"])["free"], true);
}

#[test]
fn one_corrupt_key_does_not_hide_the_others() {
    let store = RedisStore::new();
    store.server.command(&["SET", "lock:v1:{bad/1}:fence", "notanumber", "PX", "600000"]);
    store.server.command(&["SET", "lock:v1:{bad/1}:owner", "x", "PX", "600000"]);
    store.server.command(&["SET", OWNER, SECRET, "PX", "600000"]);
    let listed = store.call(&["ls"]);
    assert!(listed.err.contains("1 resource cannot be read"), "{listed:?}");
    let table = listed.ok();
    assert!(table.contains("unreadable") && table.contains("lock:v1:{bad/1}:fence"), "{table}");
    assert!(table.contains("notanumber") && table.contains("report/42"), "{table}");
    let json = store.json(&["ls"]);
    assert_eq!(json["unreadable"], 1);
    assert!(json["resources"][0]["unreadable"].as_str().unwrap().contains("notanumber"), "{json}");
    let found = store.json(&["leaks"])["findings"].take();
    assert_eq!((&found[0]["leak"], &found[0]["name"]), (&json!("unreadable"), &json!("bad/1")));
    assert_eq!(store.call(&["leaks"]).code, 1);
}
