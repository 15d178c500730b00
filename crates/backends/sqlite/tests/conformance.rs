//! The conformance suite, on a clock that the tests control. Every handle opens the file again, as another
//! process would.

use std::sync::Arc;

use leasehold::testing::ManualTime;
use leasehold_core::Backend;
use leasehold_sqlite::{Config, Sqlite};
use leasehold_testkit::{BackendUnderTest, conformance};

fn main() {
    conformance::main("sqlite", || async {
        let directory = tempfile::tempdir().expect("a directory can be made");
        let path = directory.path().join("leases.db");
        let time = ManualTime::new();
        let clock = time.clone();
        let open = move || -> Arc<dyn Backend> {
            let opened = Sqlite::open(Config::new(&path), Arc::new(clock.clone()));
            Arc::new(opened.expect("the file can be opened"))
        };
        let target = BackendUnderTest::manual(open(), time).opened_again(open()).keeping(directory);
        target.reopened_by(move || std::future::ready(open()))
    });
}
