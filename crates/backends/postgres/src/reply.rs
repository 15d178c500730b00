//! Reads columns of replies.

use std::{sync::Arc, time::Duration};

use leasehold_core::{FencingToken, FinishRequest, HeldBy, Result, StoredHolder};
use tokio_postgres::{Row, types::FromSql};

use crate::error;

/// A hundred years, in microseconds. Larger spans overflow the timestamps of the database.
const MICROS_MAX: i64 = 100 * 366 * 86_400 * 1_000_000;

/// A duration as a parameter of our SQL functions: microseconds, at most a hundred years.
pub(crate) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(MICROS_MAX).min(MICROS_MAX)
}

/// The first row of a reply that has at least one.
pub(crate) fn first_row(rows: &[Row]) -> Result<&Row> {
    rows.first().ok_or_else(|| error::unexpected_reply("it has no rows"))
}

/// Where the columns of a holder are in a row.
#[derive(Clone, Copy)]
pub(crate) struct HolderColumns {
    pub(crate) token: usize,
    pub(crate) weight: usize,
    pub(crate) remaining: usize,
    /// The first of `held_for`, `turns`, `evicting`, `kept`, `holder`, `note`, `asked_for`, `asked_by` and `asked_why`, which
    /// follow each other.
    pub(crate) details: usize,
}

/// Reads the columns of a row by their index.
pub(crate) trait Columns {
    fn read<'a, T: FromSql<'a>>(&'a self, index: usize) -> Result<T>;

    /// A number that comes from this column of a table.
    fn number(&self, index: usize, column: &str) -> Result<u32> {
        let number: i64 = self.read(index)?;
        u32::try_from(number).map_err(|_| error::bad_value(column, number, "a number from 0 to 2^32 - 1"))
    }

    /// A span in microseconds; zero if it is null.
    fn span(&self, index: usize) -> Result<Duration> {
        Ok(self.maybe_span(index)?.unwrap_or_default())
    }

    fn maybe_span(&self, index: usize) -> Result<Option<Duration>> {
        let micros: Option<i64> = self.read(index)?;
        Ok(micros.map(|micros| Duration::from_micros(u64::try_from(micros).unwrap_or(0))))
    }

    /// A token that comes from this column of a table.
    fn token(&self, index: usize, column: &str) -> Result<FencingToken> {
        let number: i64 = self.read(index)?;
        FencingToken::try_from(number)
            .map_err(|_| error::bad_value(column, number, "a token from 1 to 2^53 - 1"))
    }

    /// A token in a column where 0 means that there is none.
    fn token_or_zero(&self, index: usize, column: &str) -> Result<Option<FencingToken>> {
        if self.read::<i64>(index)? == 0 { Ok(None) } else { self.token(index, column).map(Some) }
    }

    fn stored_holder(&self, index: usize) -> Result<StoredHolder> {
        let Ok(stored) = self.read::<&str>(index)?.parse::<StoredHolder>();
        Ok(stored)
    }

    /// The request of an operator that the holder finish, in three columns: time left, operator, reason.
    fn finish_request(&self, index: usize) -> Result<Option<FinishRequest>> {
        let Some(within) = self.maybe_span(index)? else { return Ok(None) };
        let (by, why): (Option<&str>, Option<&str>) = (self.read(index + 1)?, self.read(index + 2)?);
        Ok(Some(FinishRequest::new(within, by.unwrap_or_default(), why.unwrap_or_default())))
    }

    /// A holder, as other clients may see it.
    fn held_by(&self, at: HolderColumns) -> Result<HeldBy> {
        let details = at.details;
        let StoredHolder { holder, ttl } = self.stored_holder(details + 4)?;
        let (token, weight) = (self.token(at.token, "seat.token")?, self.number(at.weight, "seat.weight")?);
        let mut held = HeldBy::new(holder, token, weight);
        held.ttl = ttl;
        held.remaining = self.span(at.remaining)?;
        held.held_for = self.span(details)?;
        held.handovers = self.number(details + 1, "seat.turns")?;
        held.evicting = self.read(details + 2)?;
        held.kept = self.read(details + 3)?;
        held.note = self.read::<Option<&[u8]>>(details + 5)?.map(Arc::from);
        held.asked = self.finish_request(details + 6)?;
        Ok(held)
    }
}

impl Columns for Row {
    fn read<'a, T: FromSql<'a>>(&'a self, index: usize) -> Result<T> {
        self.try_get(index).map_err(error::unexpected_reply)
    }
}
