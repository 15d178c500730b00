//! The fence of PostgreSQL on a real server: in the transaction of a program, in a column, and with triggers for any client.
#![allow(clippy::unwrap_used, reason = "a test")]

mod arguments;
#[path = "../common/mod.rs"]
mod common;
mod guard;
mod lost_connections;
mod program;
mod rebase;
mod test_database;

use std::sync::Arc;

use leasehold_testkit::servers::PostgresServer;
use libtest_mimic::{Arguments, Trial};
use test_database::{Test, TestDatabase};

fn main() {
    let arguments = Arguments::from_args();
    let tests: Vec<Test> =
        [program::TESTS, arguments::TESTS, guard::TESTS, rebase::TESTS, lost_connections::TESTS].concat();
    // A list of the names needs no server.
    let server = (!arguments.list).then(|| Arc::new(PostgresServer::start()));
    let trials = tests.into_iter().map(|(name, test)| {
        let server = server.clone();
        Trial::test(name, move || {
            test(&TestDatabase::new(server.as_ref().expect("a test runs on a server")));
            Ok(())
        })
    });
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    drop(server);
    conclusion.exit();
}
