//! The same program on another store, a real ZooKeeper: what is different there, and what is not.
#![allow(clippy::unwrap_used, reason = "a test is a program of its own")]

mod stories;
mod support;

use leasehold_testkit::servers::ZooKeeperServer;
use stories::{Server, Store};

impl Server for ZooKeeperServer {
    const STRONG: bool = true;

    fn start() -> ZooKeeperServer {
        ZooKeeperServer::start()
    }

    /// With the longest session that the server gives: a program under load must keep it.
    fn url(&self) -> String {
        ZooKeeperServer::url(self).replace("session_timeout=2s", "session_timeout=4s")
    }

    fn freeze(&self) {
        ZooKeeperServer::freeze(self);
    }

    fn thaw(&self) {
        ZooKeeperServer::thaw(self);
    }

    fn kill(&self) {
        ZooKeeperServer::kill(self);
    }

    fn is_taken(&self) -> bool {
        self.ask("dump").contains("/leasehold/v1/locks/report/42/")
    }
}

stories::told_on!(ZooKeeperServer);

#[test]
fn what_a_session_cannot_do_is_refused_in_one_line_with_the_reason() {
    let store = Store::<ZooKeeperServer>::new();
    store.refuses(&["run", "--ttl", "1s", "report/42", "--", "true"], 78, "session_timeout");
    store.refuses(&["run", "--at-least", "1m", "report/42", "--", "true"], 78, "stay closed");
}

#[test]
fn a_store_that_cannot_be_used_is_one_clear_line() {
    let store = Store::<ZooKeeperServer>::new();
    let url = store.server.url();
    let private = |login: &str| url.replace("://", &format!("://{login}@")).replace("/?", "/private?");
    let mut first = store.site.leasehold();
    first.args(["--store", &private("ann:sesame"), "run", "x/1", "--", "true"]);
    assert_eq!(support::ended(&first.output().unwrap()), (0, vec![]));
    store.refuses_url(&private("ann:guess"), 78, "the user may not");
    store.refuses_url("zookeeper://127.0.0.1:1/?connect_timeout=1s", 69, "cannot connect");
    store.refuses_url(&url.replace("tick=200ms", "tick=2s"), 78, "tickTime");
    store.refuses_url("zookeeper://127.0.0.1/?colour=red", 78, "colour");
}
