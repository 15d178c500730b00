//! The same program on another store, a real Redis: what is different there, and what is not.
#![allow(clippy::unwrap_used, reason = "a test is a program of its own")]

mod stories;
mod support;

use leasehold_testkit::servers::{RedisCluster, RedisServer};
use stories::{Server, Store};
use support::{Site, said as text};

impl Server for RedisServer {
    const STRONG: bool = false;

    fn start() -> RedisServer {
        RedisServer::start()
    }

    fn url(&self) -> String {
        RedisServer::url(self)
    }

    fn freeze(&self) {
        RedisServer::freeze(self);
    }

    fn thaw(&self) {
        RedisServer::thaw(self);
    }

    fn kill(&self) {
        RedisServer::kill(self);
    }

    fn is_taken(&self) -> bool {
        self.command(&["EXISTS", "lock:v1:{report/42}:owner"]) == "1"
    }
}

stories::told_on!(RedisServer);

#[test]
fn leaks_finds_what_other_libraries_left_without_an_end() {
    let store = Store::<RedisServer>::new();
    assert_eq!(store.output(&["leaks", "--pattern", "lock:*"]).status.code(), Some(0));
    store.server.command(&["SET", "lock:orders", "someone"]);
    store.server.command(&["HSET", "lock:stock", "owner", "1"]);
    store.server.command(&["SET", "lock:ends", "someone", "PX", "60000"]);
    let found = store.output(&["leaks", "--pattern", "lock:*"]);
    assert_eq!(found.status.code(), Some(1), "{}", text(&found.stderr));
    let table = text(&found.stdout);
    assert!(table.contains("lock:orders") && table.contains("lock:stock"), "{table}");
    assert!(!table.contains("lock:ends") && !table.contains("someone"), "{table}");
}

#[test]
fn on_a_cluster_commands_run_and_a_listing_covers_every_shard() {
    let (site, cluster) = (Site::new(), RedisCluster::without_replicas());
    let output = |arguments: &[&str]| {
        let mut command = site.leasehold();
        command.args(["--store", &cluster.url()]).args(arguments).output().unwrap()
    };
    // Eight names, on all three primaries; they stay closed for a while.
    let names: Vec<String> = (0..8).map(|number| format!("report/{number}")).collect();
    let owners: Vec<usize> = names.iter().map(|name| cluster.owner(cluster.slot(name))).collect();
    assert!((0..3).all(|primary| owners.contains(&primary)), "{owners:?}");
    for name in &names {
        let run = output(&["run", "--at-least", "60s", name, "--", "echo", "ran"]);
        assert_eq!(
            (run.status.code(), text(&run.stdout)),
            (Some(0), "ran\n".to_owned()),
            "{}",
            text(&run.stderr)
        );
    }
    let listed = text(&output(&["ls"]).stdout);
    assert!(names.iter().all(|name| listed.contains(name.as_str())), "{listed}");
    let busy = output(&["run", "-n", &names[3], "--", "echo", "ran"]);
    assert_eq!((busy.status.code(), text(&busy.stdout)), (Some(75), String::new()));
}

#[cfg(feature = "redis-tls")]
#[test]
fn a_url_with_tls_is_taken() {
    let store = Store::<RedisServer>::new();
    let mut command = store.site.leasehold();
    command.args(["--store", "rediss://127.0.0.1:1/", "run", "report/42", "--", "true"]);
    let output = command.output().unwrap();
    let why = text(&output.stderr);
    assert!(why.contains("refused"), "it got as far as to the port: {why}");
}
