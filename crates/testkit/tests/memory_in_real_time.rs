//! The suite on the memory backend with a real clock, as real servers have one.

use std::sync::Arc;

use leasehold::Memory;
use leasehold_testkit::{BackendUnderTest, conformance};

fn main() {
    conformance::main("memory_in_real_time", || async {
        let memory = Arc::new(Memory::new());
        BackendUnderTest::real(memory.clone()).opened_again(memory)
    });
}
