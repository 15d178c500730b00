//! The program on a real ZooKeeper server: the suite for all servers, and tests for ZooKeeper alone.
#![allow(clippy::unwrap_used, reason = "a test is a program of its own")]

mod server_suite;
mod support;

use leasehold_testkit::servers::ZooKeeperServer;
use server_suite::{Server, ServerStore};

impl Server for ZooKeeperServer {
    const SUITS_CORRECTNESS: bool = true;

    fn start() -> ZooKeeperServer {
        ZooKeeperServer::start()
    }

    /// With the longest session timeout that the server allows, so that a slow test machine does not lose the
    /// session.
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

    fn is_held(&self) -> bool {
        self.ask("dump").contains("/leasehold/v1/locks/report/42/")
    }
}

server_suite::run_on!(ZooKeeperServer);

#[test]
fn what_a_session_cannot_do_is_refused_in_one_line_with_the_reason() {
    let store = ServerStore::<ZooKeeperServer>::new();
    store.refuses(&["run", "--ttl", "1s", "report/42", "--", "true"], 78, "session_timeout");
    store.refuses(&["run", "--at-least", "1m", "report/42", "--", "true"], 78, "stay closed");
}

#[test]
fn a_store_that_cannot_be_used_is_reported_in_one_line() {
    let store = ServerStore::<ZooKeeperServer>::new();
    let url = store.server.url();
    let private = |login: &str| url.replace("://", &format!("://{login}@")).replace("/?", "/private?");
    let mut first = store.dir.leasehold();
    first.args(["--store", &private("ann:sesame"), "run", "x/1", "--", "true"]);
    assert_eq!(support::exit_and_errors(&first.output().unwrap()), (0, vec![]));
    store.refuses_url(&private("ann:guess"), 78, "the user may not");
    store.refuses_url("zookeeper://127.0.0.1:1/?connect_timeout=1s", 69, "cannot connect");
    store.refuses_url(&url.replace("tick=200ms", "tick=2s"), 78, "tickTime");
    store.refuses_url("zookeeper://127.0.0.1/?colour=red", 78, "colour");
}
