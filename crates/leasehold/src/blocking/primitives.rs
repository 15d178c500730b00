//! Blocking semaphores and read-write locks.

use leasehold_core::ShareNumber;

use super::{LeaseRequest, runtime::Runtime};

/// A semaphore: at most `capacity` permits at a time, across all processes. See the async [`Semaphore`](crate::Semaphore).
///
/// ```
/// # fn main() -> Result<(), leasehold::Error> {
/// let leases = leasehold::blocking::connect("memory:")?;
/// let exports = leases.semaphore("export", "acme", 3);
/// let two = exports.permits(2).acquire()?;
/// let one = exports.permits(1).acquire()?;
/// assert!(exports.permits(1).try_acquire()?.is_none());
/// # drop((one, two));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Semaphore {
    semaphore: crate::Semaphore,
    runtime: Runtime,
}

impl Semaphore {
    pub(super) fn new(semaphore: crate::Semaphore, runtime: &Runtime) -> Semaphore {
        Semaphore { semaphore, runtime: runtime.clone() }
    }

    /// A request for this many permits.
    pub fn permits(&self, weight: u32) -> LeaseRequest<ShareNumber> {
        LeaseRequest::new(self.semaphore.permits(weight), &self.runtime)
    }
}

/// A read-write lock: many readers or one writer, in order of arrival. See the async [`RwLock`](crate::RwLock).
///
/// ```
/// # fn main() -> Result<(), leasehold::Error> {
/// let leases = leasehold::blocking::connect("memory:")?;
/// let index = leases.rwlock("index", "main");
/// let reader = index.write().acquire()?.downgrade()?; // no other writer in between
/// assert!(index.write().try_acquire()?.is_none());
/// # reader.release()?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct RwLock {
    lock: crate::RwLock,
    runtime: Runtime,
}

impl RwLock {
    pub(super) fn new(lock: crate::RwLock, runtime: &Runtime) -> RwLock {
        RwLock { lock, runtime: runtime.clone() }
    }

    /// A request for a read lease, which other readers can hold at the same time.
    pub fn read(&self) -> LeaseRequest<ShareNumber> {
        LeaseRequest::new(self.lock.read(), &self.runtime)
    }

    /// A request for the write lease, which is exclusive.
    pub fn write(&self) -> LeaseRequest {
        LeaseRequest::new(self.lock.write(), &self.runtime)
    }
}
