//! Tombstones: a claim that was ended or evicted is never granted afterwards, however late its request is
//! executed.
//!
//! Every transaction that creates a contender also creates and deletes the tombstone of its claim. If the
//! tombstone exists, that operation fails, and the whole transaction with it (ADR 0026). A tombstone is left
//! only if a request of the claim went unanswered (ADR 0004), or if an operator evicts the claim.
//!
//! ZooKeeper's TTL nodes are off by default, so a tombstone is a persistent node that states its own end. A
//! client that finds a tombstone past its end deletes it, and every release with a tombstone looks at a few
//! others ([`Session::sweep_tombstones`]).

use std::time::Duration;

use leasehold_core::{ClaimRef, GoneReason};
use serde::{Deserialize, Serialize};
use zookeeper_client::{CreateMode, Error as Driver};

use crate::{
    ROUNDS_MAX,
    error::StoreError,
    paths::{self, TOMBSTONES},
    session::Session,
    transaction::{OperationPosition, Transaction, TransactionError},
};

/// The data of a tombstone. The names in JSON are a stored format.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Tombstone {
    /// Until when it refuses its claim, by the servers' clock, in milliseconds since 1970.
    #[serde(rename = "until")]
    until_ms: i64,
    /// An operator evicted the claim. Otherwise its client ended it.
    #[serde(default)]
    evicted: bool,
}

/// How many other tombstones a release looks at. Expired ones are deleted a few at a time, so that no release
/// is slow.
const SWEEP_MAX: usize = 16;

/// When a tombstone ends, by the servers' clock in milliseconds. 0 if the data is not that of a tombstone.
pub(crate) fn end_of_tombstone_ms(data: &[u8]) -> i64 {
    serde_json::from_slice::<Tombstone>(data).map_or(0, |tombstone| tombstone.until_ms)
}

impl Transaction<'_> {
    /// Makes the transaction fail with `NodeExists` at the returned position if the claim has a tombstone.
    pub(crate) fn check_no_tombstone(&mut self, claim: &ClaimRef) -> OperationPosition {
        self.check_absent(&paths::tombstone(claim))
    }
}

impl Session {
    /// The data of a tombstone that ends `keep` from now.
    fn tombstone_data(&self, keep: Duration, why: GoneReason) -> Vec<u8> {
        let keep_ms = i64::try_from(keep.as_millis()).unwrap_or(i64::MAX);
        let tombstone = Tombstone {
            until_ms: self.server_now_ms().saturating_add(keep_ms),
            evicted: why == GoneReason::Evicted,
        };
        serde_json::to_vec(&tombstone).expect("a number and a flag can be written as JSON")
    }

    /// Adds the creation of the tombstone of an evicted claim to a transaction. It fails if there is one
    /// already.
    pub(crate) fn add_eviction_tombstone(
        &self,
        transaction: &mut Transaction<'_>,
        claim: &ClaimRef,
        keep: Duration,
    ) {
        let data = self.tombstone_data(keep, GoneReason::Evicted);
        transaction.create(&paths::tombstone(claim), &data, &self.options(CreateMode::Persistent));
    }

    /// Creates the tombstone of a claim, or sets a new end if there is one already.
    pub(crate) async fn write_tombstone(&self, claim: &ClaimRef, keep: Duration) -> Result<(), StoreError> {
        let sent = self.now();
        let (path, data) = (paths::tombstone(claim), self.tombstone_data(keep, GoneReason::Cancelled));
        for _ in 0..ROUNDS_MAX {
            let mut transaction = self.transaction();
            transaction.create(&path, &data, &self.options(CreateMode::Persistent));
            match transaction.commit().await {
                Ok(_) => {
                    self.note_commit(sent);
                    return Ok(());
                }
                Err(TransactionError::Operation { source: Driver::NodeExists, .. }) => {}
                Err(error) => return Err(StoreError::from(error)),
            }
            let mut transaction = self.transaction();
            transaction.set_data(&path, &data, None);
            match transaction.commit_with_request_id().await {
                Ok(_) => {
                    self.note_commit(sent);
                    return Ok(());
                }
                // The old tombstone had ended, and another client has deleted it.
                Err(TransactionError::Operation { source: Driver::NoNode, .. }) => {}
                Err(error) => return Err(StoreError::from(error)),
            }
        }
        Err(StoreError::contention())
    }

    /// Why the claim has a tombstone. `None` if it has none. A tombstone past its end is deleted.
    pub(crate) async fn read_tombstone(&self, claim: &ClaimRef) -> Result<Option<GoneReason>, StoreError> {
        self.read_or_expire(&paths::tombstone(claim)).await
    }

    async fn read_or_expire(&self, path: &str) -> Result<Option<GoneReason>, StoreError> {
        let server_now_ms = self.server_now_ms();
        let Some((bytes, stat)) = self.read_node(path).await? else { return Ok(None) };
        match serde_json::from_slice(&bytes).ok() {
            Some(Tombstone { until_ms, .. }) if until_ms <= server_now_ms => {
                match self.client.delete(path, Some(stat.version)).await {
                    Ok(()) | Err(Driver::NoNode | Driver::BadVersion) => Ok(None),
                    Err(error) => Err(StoreError::from(error)),
                }
            }
            Some(Tombstone { evicted: true, .. }) => Ok(Some(GoneReason::Evicted)),
            // Data that cannot be read refuses the claim too: a false refusal is safe, a false grant is not.
            _ => Ok(Some(GoneReason::Cancelled)),
        }
    }

    /// Deletes some tombstones that have ended, starting at a random one. Best effort: an old tombstone
    /// refuses only a claim that has ended.
    pub(crate) async fn sweep_tombstones(&self) {
        let Ok(names) = self.client.list_children(TOMBSTONES).await else { return };
        let start = usize::try_from(self.random()).unwrap_or(0) % names.len().max(1);
        for name in names.iter().cycle().skip(start).take(SWEEP_MAX.min(names.len())) {
            if self.read_or_expire(&format!("{TOMBSTONES}/{name}")).await.is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stored_form_does_not_change() {
        let tombstone = Tombstone { until_ms: 1_500, evicted: false };
        assert_eq!(serde_json::to_vec(&tombstone).unwrap(), br#"{"until":1500,"evicted":false}"#);
        assert_eq!(end_of_tombstone_ms(br#"{"until":1500}"#), 1_500);
        assert_eq!(end_of_tombstone_ms(b"what is this?"), 0);
    }
}
