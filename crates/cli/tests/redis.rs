//! The program on a real Redis server: the suite for all servers, and tests for Redis alone.
#![allow(clippy::unwrap_used, reason = "a test is a program of its own")]

mod server_suite;
mod support;

use leasehold_testkit::servers::{RedisCluster, RedisServer};
use server_suite::{Server, ServerStore};
use support::{TestDir, text_of as text};

impl Server for RedisServer {
    const SUITS_CORRECTNESS: bool = false;

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

    fn is_held(&self) -> bool {
        self.command(&["EXISTS", "lock:v1:{report/42}:owner"]) == "1"
    }
}

server_suite::run_on!(RedisServer);

#[test]
fn leaks_finds_locks_of_other_libraries_without_a_ttl() {
    let store = ServerStore::<RedisServer>::new();
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
    let (dir, cluster) = (TestDir::new(), RedisCluster::without_replicas());
    let output = |arguments: &[&str]| {
        let mut command = dir.leasehold();
        command.args(["--store", &cluster.url()]).args(arguments).output().unwrap()
    };
    // Eight names on all three primaries. The resources stay closed for a while, so that they are listed.
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
    let listed = text(&output(&["ls", "--all"]).stdout);
    assert!(names.iter().all(|name| listed.contains(name.as_str())), "{listed}");
    let busy = output(&["run", "-n", &names[3], "--", "echo", "ran"]);
    assert_eq!((busy.status.code(), text(&busy.stdout)), (Some(75), String::new()));
}

#[cfg(feature = "redis-tls")]
#[test]
fn a_url_with_tls_is_accepted() {
    let store = ServerStore::<RedisServer>::new();
    let mut command = store.dir.leasehold();
    command.args(["--store", "rediss://127.0.0.1:1/", "run", "-n", "report/42", "--", "true"]);
    let output = command.output().unwrap();
    let why = text(&output.stderr);
    assert!(why.contains("refused"), "it tried to connect: {why}");
}
