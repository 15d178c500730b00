//! The verb `wait`: `POST /v1/wait`, together with other waiters.

use std::time::Duration;

use leasehold_core::{ClaimRef, Cursor, Result};

use crate::backend::Http;

impl Http {
    pub(crate) async fn try_wait(&self, claim: &ClaimRef, since: Cursor, at_most: Duration) -> Result<()> {
        self.wait_requests.wait(claim, since, at_most).await
    }
}
