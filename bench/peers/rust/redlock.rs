//! rslock: Redlock without a fence, on one server or several.

use std::time::Duration;

use rslock::{LockGuard, LockManager};

use crate::lock::Lock;

const TTL: Duration = Duration::from_secs(30);

/// rslock's manager, with its default retries.
pub(crate) struct Redlock {
    manager: LockManager,
}

impl Redlock {
    pub(crate) fn new(addresses: &[String]) -> Redlock {
        let urls: Vec<String> = addresses.iter().map(|address| format!("redis://{address}/")).collect();
        Redlock { manager: LockManager::new(urls) }
    }
}

impl Lock for Redlock {
    type Held = LockGuard;

    async fn acquire(&self, _: usize, resource: &str) -> Result<LockGuard, String> {
        self.manager.acquire(resource, TTL).await.map_err(|error| error.to_string())
    }

    async fn release(&self, _: usize, _: &str, held: LockGuard) -> Result<(), String> {
        held.release().await;
        Ok(())
    }

    fn is_alive(_: &LockGuard) -> bool {
        false
    }
}
