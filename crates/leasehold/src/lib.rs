//! Time-bounded ownership of anything, with fences that hold.

mod client;
mod connect;
mod detached;
mod engine;
mod lease;
mod memory;
mod primitives;
mod race;
mod request;
mod system;
pub mod testing;

pub use client::{Client, ClientBuilder, Events, TokenKind};
pub use connect::{connect, open};
pub use detached::Detached;
pub use lease::{Lease, LeaseView, SharedLease, State};
pub use leasehold_core::*;
pub use memory::Memory;
pub use primitives::{AllRequest, Election, Leader, LeaseSet, Observer, RwLock, Scope, Semaphore};
pub use request::{Attempt, LeaseRequest, Purpose};
pub use system::System;
