//! Time-bounded ownership of anything, with fences that hold.

mod memory;
mod race;
mod system;
pub mod testing;

pub use leasehold_core::*;
pub use memory::Memory;
pub use system::System;
