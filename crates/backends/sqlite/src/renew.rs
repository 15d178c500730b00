//! The verb `renew`: extends holders and places in the queue. A whole batch is one transaction.
//!
//! The renewal of a holder does not look at the queue. The renewal of a place says that its claim lives.

use leasehold_core::{FinishRequest, GoneReason, RenewRequest, Renewal, Renewed, Result};

use crate::{
    acquire::{HeldClaim, check_note},
    sql,
    tables::{StoreResult, Tables},
    writer::WriteVerb,
};

/// The most renewals in one call that run in the caller's own future. A larger batch would keep the caller's
/// async runtime from its other tasks, so it goes to the writer thread.
const RENEWED_INLINE_MAX: usize = 32;

/// The verb, for the writer.
pub(crate) struct Renew(pub(crate) Vec<RenewRequest>);

impl WriteVerb for Renew {
    type Reply = Vec<Result<Renewal>>;

    fn is_long(&self) -> bool {
        self.0.len() > RENEWED_INLINE_MAX
    }

    fn run(&self, tables: &mut Tables<'_>) -> StoreResult<Self::Reply> {
        self.0.iter().map(|request| tables.renew(request)).collect()
    }
}

impl Tables<'_> {
    /// Renews one claim. The inner error concerns this claim alone.
    fn renew(&mut self, request: &RenewRequest) -> StoreResult<Result<Renewal>> {
        if let Err(error) = check_note(request.note.as_deref()) {
            return Ok(Err(error));
        }
        let mut row = self.load(&request.resource)?;
        let owner = request.owner.to_bytes();
        let held = self.find_holder(&row, request.owner)?.filter(|held| !held.kept);
        let renewal = if let Some(held) = held {
            // A claim that an operator lets run out keeps its end. No renewal makes a lease shorter.
            let ends = if held.evicting { held.ends } else { held.ends.max(self.after(request.ttl)) };
            if ends != held.ends {
                self.execute(sql::holder::extend, (row.id, owner, ends))?;
            }
            if let Some(note) = request.note.as_deref() {
                self.execute(sql::holder::set_note, (row.id, owner, note))?;
                row.version += 1;
            }
            Renewal::Renewed(self.renewed(held, ends))
        } else if let Some(ends) = self.note_heard(&mut row, request.owner, self.after(request.ttl))? {
            self.pass_over_silent(&mut row, Some(request.owner))?;
            self.call(&mut row)?;
            Renewal::Queued { remaining: self.until(ends) }
        } else {
            let reason = self.find_tombstone(&row, request.owner)?;
            Renewal::Gone { why: reason.unwrap_or(GoneReason::NotThere) }
        };
        // `settle_at` is not moved to the new end: it may be early, and then finds nothing to remove.
        self.save(&row)?;
        Ok(Ok(renewal))
    }

    fn renewed(&self, held: HeldClaim, ends: i64) -> Renewed {
        let mut renewed = Renewed::new(held.token, self.until(ends));
        let finish_request = held.finish_request;
        renewed.asked = finish_request
            .map(|request| FinishRequest::new(self.until(request.until), request.by, request.why));
        renewed.evicting = held.evicting;
        renewed
    }
}
