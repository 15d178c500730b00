//! Behind a recorder the memory backend passes the same suite, and every history of it can have happened.

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
        target.keeping(CheckedAtLast(journal))
    });
}

/// Checks the history of a test when its stage is taken down.
struct CheckedAtLast(Journal);

impl Drop for CheckedAtLast {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let checked = self.0.history().check(Duration::ZERO);
            checked.unwrap_or_else(|violations| panic!("the checker refuses it: {violations:#?}"));
        }
    }
}
