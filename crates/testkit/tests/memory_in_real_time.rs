//! The same suite on the host's clock: it must judge a real server as it judges a manual clock.

use std::sync::Arc;

use leasehold::Memory;
use leasehold_testkit::{BackendUnderTest, conformance};

fn main() {
    conformance::main("memory_in_real_time", || async {
        let memory = Arc::new(Memory::new());
        BackendUnderTest::real(memory.clone()).opened_again(memory)
    });
}
