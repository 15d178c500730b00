//! The conformance suite on the host's clock, with `durability=full` and a limit of the queue that a test can
//! reach.

use std::sync::Arc;

use leasehold::System;
use leasehold_core::Backend;
use leasehold_sqlite::{Config, Durability, Sqlite};
use leasehold_testkit::{BackendUnderTest, conformance};

fn main() {
    conformance::main("sqlite_in_real_time", || async {
        let directory = tempfile::tempdir().expect("a directory can be made");
        let config = Config::new(directory.path().join("leases.db"));
        let config = config.durability(Durability::Full).pretend_queue_max(110);
        let open = move || -> Arc<dyn Backend> {
            let opened = Sqlite::open(config.clone(), Arc::new(System::current()));
            Arc::new(opened.expect("the file can be opened"))
        };
        let target = BackendUnderTest::real(open()).opened_again(open()).keeping(directory);
        target.reopened_by(move || std::future::ready(open()))
    });
}
