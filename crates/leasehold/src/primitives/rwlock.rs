//! Read-write locks.

use leasehold_core::{Resource, Result, Share, ShareNumber};

use super::UpgradableRwLock;
use crate::{client::Client, request::LeaseRequest};

/// A read-write lock: many readers or one writer, in order of arrival. A reader that comes after a waiting writer waits
/// behind it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// let leases = leasehold::connect("memory:").await?;
/// let index = leases.rwlock("index", "main");
/// let writer = index.write().acquire().await?;
/// let reader = writer.downgrade().await?; // no other writer in between
/// let another = index.read().acquire().await?;
/// assert!(index.write().try_acquire().await?.is_none());
/// # drop((reader, another));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct RwLock {
    client: Client,
    resource: Result<Resource>,
}

impl RwLock {
    pub(crate) fn new(client: &Client, resource: Result<Resource>) -> RwLock {
        RwLock { client: client.clone(), resource }
    }

    /// A request for a read lease, which other readers can hold at the same time.
    pub fn read(&self) -> LeaseRequest<ShareNumber> {
        LeaseRequest::of(&self.client, self.resource.clone(), Ok(Share::READ))
    }

    /// A request for the write lease, which is exclusive.
    pub fn write(&self) -> LeaseRequest {
        LeaseRequest::of(&self.client, self.resource.clone(), Ok(Share::WRITE))
    }

    /// The same lock for programs of which a reader can become the writer. It costs one more round trip for each upgradeable
    /// reader and each writer.
    pub fn upgradable(&self) -> UpgradableRwLock {
        UpgradableRwLock::new(&self.client, self.resource.clone())
    }
}
