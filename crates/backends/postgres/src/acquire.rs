//! The verb `acquire` for one claim: one call of the SQL function `acquire`, so one transaction and one round trip. The
//! algorithm is in `sql/acquire.sql`. Several claims: see `acquire_many.rs`.

use std::time::Duration;

use leasehold_core::{
    Blocked, Claim, Cursor, Error, ErrorKind, FencingToken, Grant, Result, Verdict, WhenBlocked,
};
use tokio_postgres::{Row, types::Type};

use crate::{
    backend::Postgres,
    batch::PATIENCE,
    connection::{Parameter, Statement},
    error,
    reply::{Columns as _, HolderColumns, micros},
    schema::Functions,
};

/// What the SQL functions take for "no tombstone".
pub(crate) const NO_TOMBSTONE: i64 = -1;
/// What the SQL functions take for "no token".
pub(crate) const NO_TOKEN: i64 = 0;

/// The columns of the type `verdict`, in the order of `acquire.sql`. In a reply they may follow other columns.
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

impl Postgres {
    pub(crate) async fn try_acquire(&self, claim: &Claim) -> Result<Verdict> {
        let rows = self.call_acquire(claim, None).await?;
        verdict(&rows.iter().collect::<Vec<_>>(), 0)
    }

    /// As [`try_acquire`](Postgres::try_acquire), but does not wait for locked rows for longer than [`PATIENCE`]: other claims
    /// of the same batch were carried out, and their callers wait for this one.
    pub(crate) async fn try_acquire_soon(&self, claim: &Claim) -> Result<Verdict> {
        let rows = self.call_acquire(claim, Some(PATIENCE)).await?;
        verdict(&rows.iter().collect::<Vec<_>>(), 0)
    }

    /// Calls `acquire`, or `acquire_soon` if there is a limit for locked rows. Returns its rows.
    async fn call_acquire(&self, claim: &Claim, patience: Option<Duration>) -> Result<Vec<Row>> {
        self.check_note(claim.note.as_deref())?;
        let (key, owner) = (claim.resource.key(), claim.owner.to_bytes().to_vec());
        let (weight, capacity) = (i64::from(claim.share.weight()), i64::from(claim.share.capacity()));
        let (ttl, place_ttl) = (micros(claim.ttl), micros(claim.place_ttl));
        let queues = claim.when_blocked == WhenBlocked::Queue;
        let from = claim.takes_over_from.map(|from| from.owner.to_bytes().to_vec());
        let from_tombstone = claim.takes_over_from.and_then(|from| from.tombstone);
        let from_tombstone = from_tombstone.map_or(NO_TOMBSTONE, micros);
        let floor = claim.floor.map_or(NO_TOKEN, FencingToken::as_i64);
        let (note, holder) = (claim.note.as_deref(), claim.stored_holder().to_string());
        // The channel is stored with the place in the queue, so that a release can notify this client.
        let (channel, queue_max) = (self.listener.channel(), i64::from(self.connections.info().limits.queue));
        let (client_id, listener) = (client_id(claim), self.listener.lock());
        let patience_ms = patience.map(|patience| i64::try_from(patience.as_millis()).unwrap_or(i64::MAX));
        let mut parameters: Vec<Parameter<'_>> = vec![
            (&key, Type::TEXT),
            (&owner, Type::BYTEA),
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
        if self.statements.functions == Functions::Current {
            parameters.extend([(&client_id as _, Type::INT8), (&listener as _, Type::INT4)]);
        }
        let sql = if patience_ms.is_some() {
            parameters.push((&patience_ms, Type::INT8));
            &self.statements.acquire_soon
        } else {
            &self.statements.acquire
        };
        // The same text as the DETAIL of the errors in `acquire.sql`.
        let claim_name = format!("{}|{key}", claim.owner.prefix());
        let statement = Statement { error_detail: Some(&claim_name), ..Statement::new(sql, &parameters) };
        self.connections.execute(&statement).await
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

/// The client of a claim, as a parameter.
pub(crate) fn client_id(claim: &Claim) -> Option<i64> {
    claim.client.map(|client| client.get().cast_signed())
}

/// Reads the rows of a claim: the verdict, then the holders if the claim is blocked. The columns of the type `verdict` begin
/// at column `first`.
pub(crate) fn verdict(rows: &[&Row], first: usize) -> Result<Verdict> {
    let [row, holders @ ..] = rows else { return Err(error::unexpected_reply("it has no rows")) };
    match row.read::<&str>(first + column::SAID)? {
        "granted" => {
            let (token, remaining) =
                (row.token(first + column::TOKEN, "seat.token")?, row.span(first + column::REMAINING)?);
            Ok(Verdict::Granted(Grant::new(token, remaining)))
        }
        // The stored word for a claim with a tombstone, part of the format since the first release.
        "buried" => Ok(Verdict::Cancelled),
        "mismatch" => {
            Ok(Verdict::Mismatch { capacity: row.number(first + column::CAPACITY, "resource.capacity")? })
        }
        "blocked" => {
            let holder = HolderColumns {
                token: first + column::TOKEN,
                weight: first + column::CAPACITY,
                remaining: first + column::REMAINING,
                details: first + column::HELD_FOR,
            };
            let mut blocked = Blocked::default();
            blocked.queued = row.read(first + column::PLACED)?;
            blocked.ahead = row.number(first + column::AHEAD, "resource.places")?;
            blocked.changes_in = row.maybe_span(first + column::CHANGES_IN)?;
            blocked.paused = row.read(first + column::PAUSED)?;
            blocked.pause_ends_in = row.maybe_span(first + column::HELD_FOR)?.filter(|_| blocked.paused);
            blocked.cursor = Cursor(row.read::<i64>(first + column::VERSION)?.cast_unsigned());
            blocked.holders = holders.iter().map(|row| row.held_by(holder)).collect::<Result<_>>()?;
            Ok(Verdict::Blocked(blocked))
        }
        "locked" => Err(error::row_locked(PATIENCE)),
        other => {
            let expected = "granted, blocked, buried or mismatch";
            Err(error::unexpected_reply(format_args!("acquire returned {other:.20?}, expected {expected}")))
        }
    }
}
