//! The fence of MariaDB on a real server, with sqlx: in the transaction of a program, in a column, and with triggers for
//! any client.
#![allow(clippy::unwrap_used, reason = "a test")]

mod guard;
mod isolation;
mod program;
mod rebase;
mod test_server;

use std::sync::Arc;

use libtest_mimic::{Arguments, Trial};
use test_server::{Test, TestServer};

fn main() {
    let arguments = Arguments::from_args();
    let tests: Vec<Test> = [program::TESTS, isolation::TESTS, guard::TESTS, rebase::TESTS].concat();
    // A list of the names needs no server.
    let server = (!arguments.list).then(|| Arc::new(TestServer::start()));
    let trials = tests.into_iter().map(|(name, test)| {
        let server = server.clone();
        Trial::test(name, move || {
            test(server.as_ref().expect("a test runs on a server"));
            Ok(())
        })
    });
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    drop(server);
    conclusion.exit();
}
