//! The program on a real etcd server: the suite for all servers, and tests for etcd alone.
#![allow(clippy::unwrap_used, reason = "a test is a program of its own")]

mod server_suite;
mod support;

use std::fs;

use leasehold_testkit::servers::EtcdCluster;
use serde_json::{Value, json};
use server_suite::{Server, ServerStore};
use support::{Start as _, eventually, exit_and_errors, text_of};

/// The name of `report/42` for `etcdctl lock`.
const LOCK: &str = "leasehold/v1/lock/report/42";

impl Server for EtcdCluster {
    const SUITS_CORRECTNESS: bool = true;

    fn start() -> EtcdCluster {
        EtcdCluster::start(1)
    }

    fn url(&self) -> String {
        EtcdCluster::url(self)
    }

    fn freeze(&self) {
        EtcdCluster::freeze(self, 0);
    }

    fn thaw(&self) {
        EtcdCluster::thaw(self, 0);
    }

    fn kill(&self) {
        EtcdCluster::kill(self, 0);
    }

    fn is_held(&self) -> bool {
        !self.keys(&format!("{LOCK}/")).is_empty()
    }
}

server_suite::run_on!(EtcdCluster);

#[test]
fn a_run_and_etcdctl_lock_wait_for_each_other() {
    let store = ServerStore::<EtcdCluster>::new();
    let contenders = |count| {
        eventually("both are in the queue", || store.server.keys(&format!("{LOCK}/")).len() == count);
    };
    let file = store.dir.path("held");
    // A command of `etcdctl lock` has no stdin, so it runs as long as a file exists.
    let script = format!("echo theirs; while [ -e {} ]; do sleep 0.05; done", file.display());
    let lock = || store.server.command(&["lock", "--", LOCK, "sh", "-c", &script]).start();

    let (mut ours, token) = store.hold(&[]);
    let theirs = lock();
    contenders(2);
    ours.write("\n");
    assert_eq!(ours.code(), 0);
    theirs.wait_for_line("theirs");
    assert_eq!(theirs.code(), 0);

    fs::write(&file, "").unwrap();
    let theirs = lock();
    theirs.wait_for_line("theirs");
    store.refuses(&["run", "-n", "report/42", "--", "true"], 75, "another program");
    let ours = store.script(&["-w", "60"], "echo $LEASEHOLD_TOKEN").start();
    contenders(2);
    fs::remove_file(&file).unwrap();
    assert_eq!(theirs.code(), 0);
    assert!(ours.next_line().parse::<leasehold::FencingToken>().unwrap() > token);
    assert_eq!(ours.code(), 0);
}

#[test]
fn a_store_that_cannot_be_used_is_reported_in_one_line() {
    let store = ServerStore::<EtcdCluster>::new();
    store.server.etcdctl(&["user", "add", "root:secret"]);
    store.server.etcdctl(&["user", "grant-role", "root", "root"]);
    store.server.etcdctl(&["auth", "enable"]);
    let port = store.server.ports()[0];
    store.refuses_url(&format!("etcd://root:guess@127.0.0.1:{port}"), 78, "refused the user or the password");
    store.refuses_url(&format!("etcd://127.0.0.1:{port}"), 78, "wants a user");
    store.refuses_url(
        "etcd://127.0.0.1:1?connect_timeout=1s",
        69,
        "cannot connect to 127.0.0.1:1: Connection refused",
    );
    store.refuses_url("etcd://127.0.0.1?colour=red", 78, "colour");
}

#[test]
fn a_lease_of_ours_whose_key_lost_its_etcd_lease_is_shown_so_and_can_be_ended() {
    let store = ServerStore::<EtcdCluster>::new();
    let (holder, token) = store.hold(&["--ttl", "1h"]);
    holder.signal(rustix::process::Signal::KILL);
    assert_eq!(holder.code(), -9);
    let key = store.server.keys(&format!("{LOCK}/")).remove(0);
    let value = store.server.etcdctl(&["get", "--print-value-only", &key]);
    store.server.etcdctl(&["put", &key, value.trim_end()]); // without a lease
    for words in [&["ls"][..], &["show", "report/42"]] {
        let shown = store.prints(words);
        assert!(shown.contains("no end"), "{shown}");
    }
    store.refuses(&["run", "-n", "report/42", "--", "true"], 75, "has lost its expiry");
    let why: Value = serde_json::from_str(&store.prints(&["--json", "why", "report/42"])).unwrap();
    assert_eq!((&why["free"], &why["at_the_latest"]), (&json!(false), &Value::Null), "{why}");
    let evict = format!("evict report/42 --token {token} --now --two-may-run --reason WHY");
    assert!(why["frees"].to_string().contains(&evict), "{why}");
    let leaks = text_of(&store.output(&["--json", "leaks"]).stdout);
    let leaks: Value = serde_json::from_str(&leaks).unwrap();
    let found = leaks["findings"].as_array().unwrap().iter().find(|leak| leak["leak"] == "no_ttl");
    let line = found.unwrap()["command"].as_str().unwrap();
    assert!(line.ends_with(&evict), "{line}");
    let line = line.replacen("leasehold", env!("CARGO_BIN_EXE_leasehold"), 1);
    assert_eq!(exit_and_errors(&store.dir.shell(&line).output().unwrap()).0, 0, "{line}");
    store.token();
}
