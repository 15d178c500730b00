//! Small named handles that make the one request type. Verbs are methods, primitives are data.

mod all;
mod election;
mod reentrant;
mod rwlock;
mod semaphore;

pub use all::{AllRequest, LeaseSet};
pub use election::{Election, Leader, Observer};
pub(crate) use reentrant::Reentry;
pub use reentrant::Scope;
pub use rwlock::RwLock;
pub use semaphore::Semaphore;
