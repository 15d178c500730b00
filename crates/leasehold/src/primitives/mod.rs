//! Semaphores, read-write locks, elections, sets, scopes, latches and barriers. Each makes the same
//! [`LeaseRequest`](crate::LeaseRequest) with other data (ADR 0002).

mod all;
mod election;
mod latch;
mod lease_set;
mod reentrant;
mod rwlock;
mod semaphore;
mod upgradable;

pub use all::AllRequest;
pub use election::{Election, Leader, Observer};
pub use latch::{Barrier, CountDownLatch};
pub use lease_set::{LeaseSet, LeaseSetView};
pub use reentrant::Scope;
pub(crate) use reentrant::ScopeEntry;
pub use rwlock::RwLock;
pub use semaphore::Semaphore;
pub use upgradable::{UpgradableLease, UpgradableRequest, UpgradableRwLock, UpgradedLease};
