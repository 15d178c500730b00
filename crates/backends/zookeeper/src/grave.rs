//! Tombstones: a claim that was buried is never made, however late its request is executed.
//!
//! Every request that makes a contender also makes and removes the tombstone of its claim, in the same transaction. If
//! the tombstone is there already, that fails, and with it all the rest.

use std::time::Duration;

use leasehold_core::{ClaimRef, GoneReason, Timestamp};
use serde::{Deserialize, Serialize};
use zookeeper_client::{CreateMode, Error as Driver, MultiWriteError};

use crate::{
    error::Fault,
    evaluate::LOOKS,
    names::{GRAVES, grave},
    session::Session,
    transaction::Transaction,
};

/// The data of a tombstone.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Stone {
    /// By the servers' clock, in milliseconds since 1970.
    until: i64,
    #[serde(default)]
    evicted: bool,
}

/// How many tombstones are looked at when one is laid: what is over is cleared away a few at a time.
const SWEEP: usize = 16;

impl Session {
    /// Makes a transaction fail if the claim is buried, at its first operation. Two operations in all.
    pub(crate) fn check_not_buried(&self, transaction: &mut Transaction<'_>, claim: &ClaimRef) {
        transaction.check_absent(&grave(claim));
    }

    fn stone(&self, keep: Duration, why: GoneReason, now: Timestamp) -> Vec<u8> {
        let keep = i64::try_from(keep.as_millis()).unwrap_or(i64::MAX);
        let stone = Stone {
            until: self.server_millis(now).saturating_add(keep),
            evicted: why == GoneReason::Evicted,
        };
        serde_json::to_vec(&stone).expect("a number and a flag can be written")
    }

    /// Lays a tombstone as a part of a transaction, which fails if there is one.
    pub(crate) fn add_grave(
        &self,
        transaction: &mut Transaction<'_>,
        claim: &ClaimRef,
        (keep, why): (Duration, GoneReason),
        now: Timestamp,
    ) {
        let stone = self.stone(keep, why, now);
        transaction.create(&grave(claim), &stone, &self.mode(CreateMode::Persistent));
    }

    /// Lays a tombstone, or lets the one that is there stand longer.
    pub(crate) async fn tombstone(
        &self,
        claim: &ClaimRef,
        keep: Duration,
        now: Timestamp,
    ) -> Result<(), Fault> {
        let (path, stone) = (grave(claim), self.stone(keep, GoneReason::Cancelled, now));
        for _ in 0..LOOKS {
            let mut transaction = self.transaction();
            transaction.create(&path, &stone, &self.mode(CreateMode::Persistent));
            match transaction.commit().await {
                Ok(_) => {
                    self.vouch(now);
                    return Ok(());
                }
                Err(MultiWriteError::OperationFailed { source: Driver::NodeExists, .. }) => {}
                Err(error) => return Err(Fault::from(error)),
            }
            let mut transaction = self.transaction();
            transaction.set_data(&path, &stone, None);
            match transaction.commit_named().await {
                Ok(_) => {
                    self.vouch(now);
                    return Ok(());
                }
                // It was over, and somebody has cleared it away.
                Err(MultiWriteError::OperationFailed { source: Driver::NoNode, .. }) => {}
                Err(error) => return Err(Fault::from(error)),
            }
        }
        Err(Fault::too_busy())
    }

    /// Why the claim is buried, if it is. A tombstone that is over is cleared away.
    pub(crate) async fn buried(&self, claim: &ClaimRef, now: Timestamp) -> Result<Option<GoneReason>, Fault> {
        self.stands(&grave(claim), now).await
    }

    async fn stands(&self, path: &str, now: Timestamp) -> Result<Option<GoneReason>, Fault> {
        let (bytes, stat) = match self.client.get_data(path).await {
            Ok(found) => found,
            Err(Driver::NoNode) => return Ok(None),
            Err(error) => return Err(Fault::of(error)),
        };
        let stone: Option<Stone> = serde_json::from_slice(&bytes).ok();
        match stone {
            Some(stone) if stone.until <= self.server_millis(now) => {
                match self.client.delete(path, Some(stat.version)).await {
                    Ok(()) | Err(Driver::NoNode | Driver::BadVersion) => Ok(None),
                    Err(error) => Err(Fault::of(error)),
                }
            }
            Some(Stone { evicted: true, .. }) => Ok(Some(GoneReason::Evicted)),
            _ => Ok(Some(GoneReason::Cancelled)),
        }
    }

    /// Clears away some tombstones that are over. A hint: nothing depends on it.
    pub(crate) async fn sweep(&self, random: u64, now: Timestamp) {
        let Ok(names) = self.client.list_children(GRAVES).await else { return };
        let start = usize::try_from(random).unwrap_or(0) % names.len().max(1);
        for name in names.iter().cycle().skip(start).take(SWEEP.min(names.len())) {
            if self.stands(&format!("{GRAVES}/{name}"), now).await.is_err() {
                return;
            }
        }
    }
}
