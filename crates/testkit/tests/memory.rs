//! The suite on the memory backend, which is the model behind a lock, with a manual clock.

use std::sync::Arc;

use leasehold::{Memory, testing::ManualTime};
use leasehold_core::Backend;
use leasehold_testkit::{BackendUnderTest, conformance};

fn main() {
    conformance::main("memory", || async {
        let time = ManualTime::new();
        let memory = Arc::new(Memory::in_environment(Arc::new(time.clone())));
        let target = BackendUnderTest::manual(memory.clone(), time).opened_again(memory.clone());
        target.reopened_by(move || std::future::ready(memory.clone() as Arc<dyn Backend>))
    });
}
