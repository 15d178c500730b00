//! The same program on another store, a real etcd: what is different there, and what is not.
#![allow(clippy::unwrap_used, reason = "a test is a program of its own")]

mod stories;
mod support;

use std::fs;

use leasehold_testkit::servers::EtcdCluster;
use stories::{Server, Store};
use support::{Start as _, eventually};

/// Where `etcdctl lock` finds `report/42`.
const LOCK: &str = "leasehold/v1/lock/report/42";

impl Server for EtcdCluster {
    const STRONG: bool = true;

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

    fn is_taken(&self) -> bool {
        !self.keys(&format!("{LOCK}/")).is_empty()
    }
}

stories::told_on!(EtcdCluster);

#[test]
fn a_run_and_etcdctl_lock_wait_for_each_other() {
    let store = Store::<EtcdCluster>::new();
    let contenders = |count| {
        eventually("they stand in line", || store.server.keys(&format!("{LOCK}/")).len() == count);
    };
    let file = store.site.path("held");
    // What `etcdctl lock` runs has no stdin: it goes on while there is a file.
    let script = format!("echo theirs; while [ -e {} ]; do sleep 0.05; done", file.display());
    let lock = || store.server.command(&["lock", "--", LOCK, "sh", "-c", &script]).start();

    let (mut ours, token) = store.hold(&[]);
    let theirs = lock();
    contenders(2);
    ours.write("\n");
    assert_eq!(ours.code(), 0);
    theirs.until("theirs");
    assert_eq!(theirs.code(), 0);

    fs::write(&file, "").unwrap();
    let theirs = lock();
    theirs.until("theirs");
    store.refuses(&["run", "-n", "report/42", "--", "true"], 75, "another program");
    let ours = store.script(&["-w", "60"], "echo $LEASEHOLD_TOKEN").start();
    contenders(2);
    fs::remove_file(&file).unwrap();
    assert_eq!(theirs.code(), 0);
    assert!(ours.line().parse::<leasehold::FencingToken>().unwrap() > token);
    assert_eq!(ours.code(), 0);
}

#[test]
fn a_store_that_cannot_be_used_is_one_clear_line() {
    let store = Store::<EtcdCluster>::new();
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
