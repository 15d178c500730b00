//! The same program on another store, a real Redis: what is different there, and what is not.
#![allow(clippy::unwrap_used, reason = "a test is a program of its own")]

mod support;

use leasehold_testkit::servers::{RedisCluster, RedisServer};
use support::{Site, Store, said as text};

fn store() -> Store<RedisServer> {
    Store::on(RedisServer::start(), RedisServer::url)
}

#[test]
fn a_run_passes_on_what_it_holds_and_how_it_ended() {
    let store = store();
    let script = "echo $LEASEHOLD_RESOURCE $LEASEHOLD_TOKEN; exit 7";
    let output = store.output(&["run", "report/42", "--", "sh", "-c", script]);
    assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    let token = said.trim().strip_prefix("report/42 ").unwrap();
    assert_eq!(store.server.command(&["GET", "lock:v1:{report/42}:fence"]), token);
    assert_eq!(store.server.command(&["EXISTS", "lock:v1:{report/42}:owner"]), "0", "given back");
}

#[test]
fn work_that_must_be_right_is_refused_unless_its_effect_is_fenced() {
    let store = store();
    let refused = store.output(&["run", "--correctness", "payment/1", "--", "echo", "ran"]);
    assert_eq!((refused.status.code(), text(&refused.stdout)), (Some(78), String::new()));
    let why = text(&refused.stderr);
    assert!(why.contains("best-effort") && why.contains("postgres") && why.lines().count() == 1, "{why}");
    let fenced = store.output(&["run", "--correctness", "--fenced", "payment/1", "--", "echo", "ran"]);
    assert_eq!((fenced.status.code(), text(&fenced.stdout)), (Some(0), "ran\n".to_owned()));
}

#[test]
fn leaks_finds_what_other_libraries_left_without_an_end() {
    let store = store();
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
fn a_server_that_is_gone_is_one_clear_line() {
    let store = store();
    let url = store.server.url();
    drop(store.server);
    let mut command = store.site.leasehold();
    let output =
        command.args(["--store", &url, "run", "-w", "1", "report/42", "--", "true"]).output().unwrap();
    assert_eq!(output.status.code(), Some(69));
    assert_eq!(text(&output.stderr).lines().count(), 1, "{}", text(&output.stderr));
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
    let store = store();
    let mut command = store.site.leasehold();
    command.args(["--store", "rediss://127.0.0.1:1/", "run", "report/42", "--", "true"]);
    let output = command.output().unwrap();
    let why = text(&output.stderr);
    assert!(why.contains("refused"), "it got as far as to the port: {why}");
}
