//! The verb `release`: ends a holder or gives up a place in the queue.
//!
//! With `keep_for`, the holder's row stays and is marked as kept: the resource stays closed although nobody
//! works under the claim. With `tombstone`, a late `acquire` of the same owner is refused.

use std::time::Duration;

use leasehold_core::{GoneReason, OwnerToken, ReleaseRequest, Released};

use crate::{
    resource_row::ResourceRow,
    sql,
    tables::{self, StoreResult, Tables, stored_wall},
    writer::WriteVerb,
};

/// The verb, for the writer.
pub(crate) struct Release(pub(crate) ReleaseRequest);

impl WriteVerb for Release {
    type Reply = Released;

    fn run(&self, tables: &mut Tables<'_>) -> StoreResult<Self::Reply> {
        tables.release(&self.0)
    }
}

impl Tables<'_> {
    fn release(&mut self, request: &ReleaseRequest) -> StoreResult<Released> {
        let mut row = self.load(&request.resource)?;
        self.pass_over_silent(&mut row, None)?;
        let owner = request.owner;
        let keep_for = request.keep_for.filter(|keep_for| !keep_for.is_zero());
        let was_holder = match keep_for {
            Some(keep_for) => self.keep_closed(&mut row, owner, keep_for)?,
            None => self.remove_holder(&mut row, owner)?,
        };
        let was_queued = !was_holder && self.remove_place(&mut row, owner)?.is_some();
        if was_queued {
            // Another task or process of the same owner may wait with this place.
            self.note_lost_place(&row, owner)?;
        }
        if let Some(keep) = request.tombstone {
            self.tombstone(&mut row, owner, keep, GoneReason::Cancelled)?;
        }
        self.call(&mut row)?;
        self.save(&row)?;
        Ok(if was_holder || was_queued { Released::Now } else { Released::AlreadyGone })
    }

    /// Marks the holder's row as kept, and says whether the owner held.
    fn keep_closed(
        &mut self,
        row: &mut ResourceRow<'_>,
        owner: OwnerToken,
        keep_for: Duration,
    ) -> StoreResult<bool> {
        if self.find_holder(row, owner)?.is_none_or(|held| held.kept) {
            return Ok(false);
        }
        // ADR 0010: the length and the wall clock time are stored too, because this promise survives a
        // reboot.
        let (ends, length) = (self.after(keep_for), tables::after(0, keep_for));
        let wall = stored_wall(self.wall.after(keep_for));
        self.execute(sql::holder::keep, (row.id, owner.to_bytes(), ends, length, wall))?;
        row.version += 1;
        row.ends_at(ends);
        Ok(true)
    }
}
