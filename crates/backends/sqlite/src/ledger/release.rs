//! The verb `release`.

use std::time::Duration;

use leasehold_core::{GoneReason, OwnerToken, ReleaseRequest, Released};

use super::{Entry, Ledger, Step};
use crate::sql;

impl Ledger<'_> {
    pub(crate) fn release(&mut self, request: &ReleaseRequest) -> Step<Released> {
        let mut entry = self.open(&request.resource)?;
        let owner = request.owner;
        let keep_for = request.keep_for.filter(|keep_for| !keep_for.is_zero());
        let held = match keep_for {
            Some(keep_for) => self.keep(&mut entry, owner, keep_for)?,
            None => self.stand_up(&mut entry, owner)?,
        };
        let waited = !held && self.remove_place(&mut entry, owner)?.is_some();
        if waited {
            self.tell_gone(&entry, owner)?;
        }
        if let Some(keep) = request.tombstone {
            self.tombstone(&mut entry, owner, keep, GoneReason::Cancelled)?;
        }
        self.close(&entry)?;
        Ok(if held || waited { Released::Now } else { Released::AlreadyGone })
    }

    /// The seat stays closed, for nobody.
    fn keep(&mut self, entry: &mut Entry<'_>, owner: OwnerToken, keep_for: Duration) -> Step<bool> {
        if self.seat(entry, owner)?.is_none_or(|seat| seat.kept) {
            return Ok(false);
        }
        let (ends, kept) = (self.after(keep_for), super::after(0, keep_for));
        let wall = i64::try_from(self.wall.after(keep_for).as_micros()).unwrap_or(super::NEVER);
        self.execute(sql::seat::keep, (entry.id, owner.to_bytes(), ends, kept, wall))?;
        entry.version += 1;
        entry.ends_at(ends);
        Ok(true)
    }
}
