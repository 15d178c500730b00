//! The verb `acquire`: one call of the SQL function `acquire`, so one transaction and one round trip. The algorithm is in
//! `sql/acquire.sql`.

use leasehold_core::{
    Blocked, Claim, Cursor, Error, ErrorKind, FencingToken, Grant, Result, Verdict, WhenBlocked,
};
use tokio_postgres::{Row, types::Type};

use crate::{
    backend::Postgres,
    connection::{Parameter, Statement},
    error,
    reply::{Columns as _, HolderColumns, first_row, micros},
};

/// What the SQL functions take for "no tombstone".
pub(crate) const NO_TOMBSTONE: i64 = -1;
/// What the SQL functions take for "no token".
pub(crate) const NO_TOKEN: i64 = 0;

/// The columns of the type `verdict`, in the order of `acquire.sql`.
mod column {
    pub(super) const SAID: usize = 0;
    pub(super) const TOKEN: usize = 1;
    pub(super) const REMAINING: usize = 2;
    /// The capacity if it does not match. In the row of a holder: its weight.
    pub(super) const CAPACITY: usize = 3;
    pub(super) const PLACED: usize = 4;
    pub(super) const AHEAD: usize = 5;
    pub(super) const CHANGES_IN: usize = 6;
    pub(super) const PAUSED: usize = 7;
    pub(super) const VERSION: usize = 8;
    pub(super) const HELD_FOR: usize = 9;
}

const HOLDER: HolderColumns = HolderColumns {
    token: column::TOKEN,
    weight: column::CAPACITY,
    remaining: column::REMAINING,
    details: column::HELD_FOR,
};

impl Postgres {
    pub(crate) async fn try_acquire(&self, claim: &Claim) -> Result<Verdict> {
        self.check_note(claim.note.as_deref())?;
        let (key, owner) = (claim.resource.key(), claim.owner.to_bytes());
        let (weight, capacity) = (i64::from(claim.share.weight()), i64::from(claim.share.capacity()));
        let (ttl, place_ttl) = (micros(claim.ttl), micros(claim.place_ttl));
        let queues = claim.when_blocked == WhenBlocked::Queue;
        let from = claim.takes_over_from.map(|from| from.owner.to_bytes().to_vec());
        let from_tombstone = claim.takes_over_from.and_then(|from| from.tombstone);
        let from_tombstone = from_tombstone.map_or(NO_TOMBSTONE, micros);
        let floor = claim.floor.map_or(NO_TOKEN, FencingToken::as_i64);
        let (note, holder) = (claim.note.as_deref(), claim.holder.to_string());
        // The channel is stored with the place in the queue, so that a release can notify this client.
        let (channel, queue_max) = (self.listener.channel(), i64::from(self.connections.info().limits.queue));
        let parameters: [Parameter<'_>; 14] = [
            (&key, Type::TEXT),
            (&owner.as_slice(), Type::BYTEA),
            (&weight, Type::INT8),
            (&capacity, Type::INT8),
            (&ttl, Type::INT8),
            (&place_ttl, Type::INT8),
            (&queues, Type::BOOL),
            (&from, Type::BYTEA),
            (&from_tombstone, Type::INT8),
            (&floor, Type::INT8),
            (&note, Type::BYTEA),
            (&holder, Type::TEXT),
            (&channel, Type::TEXT),
            (&queue_max, Type::INT8),
        ];
        // The same text as the DETAIL of the errors in `acquire.sql`.
        let claim_name = format!("{}|{key}", claim.owner.prefix());
        let statement = Statement {
            sql: &self.statements.acquire,
            parameters: &parameters,
            error_detail: Some(&claim_name),
        };
        verdict(&self.connections.execute(&statement).await?)
    }

    /// Checks that a note is not too long.
    pub(crate) fn check_note(&self, note: Option<&[u8]>) -> Result<()> {
        let max = self.connections.info().limits.note;
        match note.map(<[u8]>::len).filter(|&length| length > max) {
            Some(length) => {
                let message =
                    format!("the note has {length} bytes, and at most {max} are allowed: shorten it");
                Err(Error::new(ErrorKind::Limit, message))
            }
            None => Ok(()),
        }
    }
}

/// Reads the rows that `acquire` returns: the verdict, then the holders if the claim is blocked.
fn verdict(rows: &[Row]) -> Result<Verdict> {
    let row = first_row(rows)?;
    match row.read::<&str>(column::SAID)? {
        "granted" => {
            let (token, remaining) = (row.token(column::TOKEN)?, row.span(column::REMAINING)?);
            Ok(Verdict::Granted(Grant::new(token, remaining)))
        }
        // The stored word for a claim with a tombstone, part of the format since the first release.
        "buried" => Ok(Verdict::Cancelled),
        "mismatch" => Ok(Verdict::Mismatch { capacity: row.number(column::CAPACITY)? }),
        "blocked" => {
            let mut blocked = Blocked::default();
            blocked.queued = row.read(column::PLACED)?;
            blocked.ahead = row.number(column::AHEAD)?;
            blocked.changes_in = row.maybe_span(column::CHANGES_IN)?;
            blocked.paused = row.read(column::PAUSED)?;
            blocked.cursor = Cursor(row.read::<i64>(column::VERSION)?.cast_unsigned());
            blocked.holders = rows[1..].iter().map(|row| row.held_by(HOLDER)).collect::<Result<_>>()?;
            Ok(Verdict::Blocked(blocked))
        }
        other => {
            let expected = "granted, blocked, buried or mismatch";
            Err(error::unexpected_reply(format_args!("acquire returned {other:.20?}, expected {expected}")))
        }
    }
}
