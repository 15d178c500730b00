//! What a waiting claim can expect.

use std::time::Duration;

use leasehold_core::{ClaimRef, Cursor};

use super::{Ledger, Step, movers};

/// What a waiting claim can expect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prospect {
    /// It should ask again.
    News,
    /// It has a place and cannot move yet.
    QueueEntry,
    /// It has no place, and nothing changed.
    Unplaced {
        /// Since this version.
        version: u64,
    },
}

impl Ledger<'_> {
    /// Looks whether there is reason to ask again; if not, and it has no place, leaves word that someone watches.
    pub(crate) fn watch(&mut self, claim: &ClaimRef, since: Cursor, at_most: Duration) -> Step<Prospect> {
        let mut entry = self.open(&claim.resource)?;
        let prospect = if self.place(&entry, claim.owner)?.is_some() {
            let can_move = movers(self.sql, &entry)?.contains(&claim.owner);
            if can_move { Prospect::News } else { Prospect::QueueEntry }
        } else if entry.version.unsigned_abs() != since.0 {
            Prospect::News
        } else {
            self.establish(&mut entry)?;
            let until = self.after(at_most);
            if entry.watched_until < until {
                entry.watched_until = until;
                entry.touch();
            }
            Prospect::Unplaced { version: entry.version.unsigned_abs() }
        };
        self.close(&entry)?;
        Ok(prospect)
    }
}
