//! The program on a real PostgreSQL server: the suite for all servers, and tests for PostgreSQL alone.
#![allow(clippy::unwrap_used, reason = "a test is a program of its own")]

mod server_suite;
mod support;

use leasehold_testkit::servers::PostgresServer;
use server_suite::{Server, ServerStore};
use support::{TestDir, text_of as text};

impl Server for PostgresServer {
    const SUITS_CORRECTNESS: bool = true;

    fn start() -> PostgresServer {
        PostgresServer::durable()
    }

    fn url(&self) -> String {
        PostgresServer::url(self)
    }

    fn freeze(&self) {
        PostgresServer::freeze(self);
    }

    fn thaw(&self) {
        PostgresServer::thaw(self);
    }

    fn kill(&self) {
        PostgresServer::kill(self);
    }

    fn is_held(&self) -> bool {
        self.sql("SELECT count(*) FROM leasehold.seat") != "0"
    }
}

server_suite::run_on!(PostgresServer);

#[test]
fn a_store_that_cannot_be_used_is_reported_in_one_line() {
    let store = ServerStore::<PostgresServer>::new();
    store.server.sql("CREATE ROLE guest LOGIN");
    let port = store.server.port();
    let at = |login: &str, database: &str| format!("postgres://{login}@127.0.0.1:{port}/{database}");
    store.refuses_url(&at("guest", "postgres"), 78, "leasehold schema postgres");
    store.refuses_url(&at("postgres", "nowhere"), 78, "nowhere");
    store.refuses_url("postgres://nobody@127.0.0.1:1/x", 69, "cannot connect");
    store.refuses_url("postgres://host/x", 78, "name the user");
}

#[test]
fn the_schema_is_printed_without_a_server_and_can_be_executed() {
    let dir = TestDir::new();
    let output = dir.leasehold().args(["schema", "postgres", "--schema", "locks"]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let server = PostgresServer::start();
    server.sql(&text(&output.stdout));
    assert_eq!(server.sql("SELECT value FROM locks.meta WHERE name = 'format'"), "1");
    let output = dir.leasehold().args(["schema", "postgres", "--schema", "x y"]).output().unwrap();
    assert_eq!(output.status.code(), Some(64));
}
