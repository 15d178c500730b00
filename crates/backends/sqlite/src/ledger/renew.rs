//! The verb `renew`, for one of the batch.

use leasehold_core::{Error, ErrorKind, FinishRequest, GoneReason, RenewRequest, Renewal, Renewed};

use super::{Ledger, Step, acquire::Seat};
use crate::{NOTE_MAX, sql};

impl Ledger<'_> {
    pub(crate) fn renew(&mut self, held: &RenewRequest) -> Step<leasehold_core::Result<Renewal>> {
        if held.note.as_ref().is_some_and(|note| note.len() > NOTE_MAX) {
            return Ok(Err(Error::new(ErrorKind::Limit, format!("a note has at most {NOTE_MAX} bytes"))));
        }
        let mut entry = self.open(&held.resource)?;
        let owner = held.owner.to_bytes();
        let seat = self.seat(&entry, held.owner)?.filter(|seat| !seat.kept);
        let renewal = if let Some(seat) = seat {
            let ends = if seat.evicting { seat.ends } else { seat.ends.max(self.after(held.ttl)) };
            if ends != seat.ends {
                self.execute(sql::seat::prolong, (entry.id, owner, ends))?;
            }
            if let Some(note) = held.note.as_deref() {
                self.execute(sql::seat::note, (entry.id, owner, note))?;
                entry.version += 1;
            }
            Renewal::Renewed(self.kept(seat, ends))
        } else if let Some((arrival, ends)) = self.place(&entry, held.owner)? {
            let ends = ends.max(self.after(held.ttl));
            self.prolong_place(&entry, arrival, ends)?;
            Renewal::Queued { remaining: self.until(ends) }
        } else {
            Renewal::Gone { why: self.grave(&entry, held.owner)?.unwrap_or(GoneReason::NotThere) }
        };
        self.close(&entry)?;
        Ok(Ok(renewal))
    }

    fn kept(&self, seat: Seat, ends: i64) -> Renewed {
        let mut kept = Renewed::new(seat.token, self.until(ends));
        kept.asked = seat.asked.map(|(until, by, why)| FinishRequest::new(self.until(until), by, why));
        kept.evicting = seat.evicting;
        kept
    }
}
