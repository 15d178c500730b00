//! The fence of PostgreSQL, on a real server: in a program's transaction, in a column, and by triggers against any client.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "../common/mod.rs"]
mod common;
mod guard;
mod lost;
mod moving;
mod program;
mod site;

use std::sync::Arc;

use leasehold_testkit::servers::PostgresServer;
use libtest_mimic::{Arguments, Trial};
use site::{Site, Test};

fn main() {
    let arguments = Arguments::from_args();
    let tests: Vec<Test> = [program::TESTS, guard::TESTS, moving::TESTS, lost::TESTS].concat();
    // No server for a list of names.
    let server = (!arguments.list).then(|| Arc::new(PostgresServer::start()));
    let trials = tests.into_iter().map(|(name, test)| {
        let server = server.clone();
        Trial::test(name, move || {
            test(&Site::new(server.as_ref().expect("a test runs on a server")));
            Ok(())
        })
    });
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    drop(server);
    conclusion.exit();
}
