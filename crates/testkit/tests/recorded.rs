//! The suite on the memory backend with a recorder. The checker must accept the history of every test.

use std::{sync::Arc, time::Duration};

use leasehold::{Memory, testing::ManualTime};
use leasehold_core::Backend;
use leasehold_testkit::{BackendUnderTest, Recorded, conformance, history::Journal};

fn main() {
    conformance::main("recorded", || async {
        let time = ManualTime::new();
        let memory = Arc::new(Memory::in_environment(Arc::new(time.clone())));
        let journal = Journal::new(Arc::new(time.clone()));
        let recorded = |backend| -> Arc<dyn Backend> { Arc::new(Recorded::new(backend, &journal)) };
        let target = BackendUnderTest::manual(memory.clone(), time).opened_again(memory).wrapped(recorded);
        target.keeping(CheckedOnDrop(journal))
    });
}

/// Checks the history of a test at its end.
struct CheckedOnDrop(Journal);

impl Drop for CheckedOnDrop {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let checked = self.0.history().check(Duration::ZERO);
            checked.unwrap_or_else(|violations| panic!("the checker found violations: {violations:#?}"));
        }
    }
}
