//! Semaphores.

use leasehold_core::{Resource, Result, Share, ShareNumber};

use crate::{client::Client, request::LeaseRequest};

/// A semaphore: at most `capacity` permits at a time, across all processes.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// let leases = leasehold::connect("memory:").await?;
/// let exports = leases.semaphore("export", "acme", 3);
/// let two = exports.permits(2).acquire().await?;
/// let one = exports.permits(1).acquire().await?;
/// assert!(exports.permits(1).try_acquire().await?.is_none());
/// # drop((one, two));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Semaphore {
    client: Client,
    resource: Result<Resource>,
    capacity: u32,
}

impl Semaphore {
    pub(crate) fn new(client: &Client, resource: Result<Resource>, capacity: u32) -> Semaphore {
        Semaphore { client: client.clone(), resource, capacity }
    }

    /// A request for this many permits. Requests are granted in order of arrival, so small ones do not starve a large one.
    pub fn permits(&self, weight: u32) -> LeaseRequest<ShareNumber> {
        LeaseRequest::of(&self.client, self.resource.clone(), Share::new(weight, self.capacity))
    }
}
