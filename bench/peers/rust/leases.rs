//! leasehold, on any backend.

use std::time::Duration;

use leasehold::{Client, Lease};

use crate::lock::Lock;

const TTL: Duration = Duration::from_secs(30);

/// A client of leasehold.
pub(crate) struct Leases {
    client: Client,
    /// Whether waiters of this process queue one by one with those of other processes.
    fair: bool,
}

impl Leases {
    pub(crate) async fn connect(url: &str, fair: bool) -> Result<Leases, String> {
        let client = leasehold::connect(url).await.map_err(|error| error.to_string())?;
        Ok(Leases { client, fair })
    }
}

impl Lock for Leases {
    type Held = Lease;

    async fn acquire(&self, _: usize, resource: &str) -> Result<Lease, String> {
        let request = self.client.lease("bench", resource).ttl(TTL).wait_forever();
        let request = if self.fair { request.fair() } else { request };
        request.acquire().await.map_err(|error| error.to_string())
    }

    async fn release(&self, _: usize, _: &str, lease: Lease) -> Result<(), String> {
        lease.release().await.map(drop).map_err(|error| error.to_string())
    }

    async fn waiting(&self, resource: &str) -> Result<usize, String> {
        let snapshot = self.client.look("bench", resource).await.map_err(|error| error.to_string())?;
        Ok(snapshot.queue_length as usize)
    }

    fn is_alive(lease: &Lease) -> bool {
        lease.check().is_ok()
    }
}
