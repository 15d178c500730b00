//! Leases for programs without async: the same requests and leases, with calls that block.
//!
//! ```
//! use leasehold::blocking;
//!
//! fn main() -> Result<(), leasehold::Error> {
//!     let leases = blocking::connect("memory:")?; // or sqlite:PATH, redis://HOST, postgres://…
//!     let pages = leases.lease("report", "42").run(|lease| {
//!         println!("exporting with {:?}", lease.token());
//!         12
//!     })?;
//!     assert_eq!(pages, 12);
//!     Ok(())
//! }
//! ```
//!
//! The guarantees are those of the async API, which does all the work here as well. One thread of the process, started by
//! the first call, renews all leases and wakes all waiters. So a lease is renewed while the thread of its holder computes,
//! sleeps or waits for I/O. Three things differ:
//!
//! - Work that holds a lease is not interrupted when the lease is lost. It asks with [`LeaseView::check`], before each step
//!   that only the holder may do.
//! - Dropping a [`Lease`] releases it, and waits for the reply for up to a second. So a program may end right after it.
//! - A call cannot be cancelled. Give it a limit: [`LeaseRequest::wait`] is 10 s by default.
//!
//! A process that was forked without `exec` has none of the threads of its parent, so a client or lease that it inherits does
//! not work there. Calls return `Invalid`, or panic if they cannot return an error; dropping an inherited lease does nothing.
//! Fork before [`connect`], or connect again in the new process.
//!
//! All types can be shared between threads. They also work inside of an async runtime, as every call that blocks: it stops
//! the other tasks of that thread. Use the async API there, or `spawn_blocking`.
//!
//! [`Client::wait_for`] runs any other future of the async API: `leases.wait_for(leases.as_async().all([…]).acquire())`.

mod client;
mod election;
mod lease;
mod primitives;
mod request;
mod runtime;

pub use client::{Client, Events, connect, open};
pub use election::{Election, Observer};
pub use lease::{Lease, LeaseView, SharedLease};
pub use primitives::{RwLock, Semaphore};
pub use request::{Attempt, LeaseRequest};
