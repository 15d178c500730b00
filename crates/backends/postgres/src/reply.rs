//! How rows are read.

use std::{sync::Arc, time::Duration};

use leasehold_core::{FencingToken, FinishRequest, HeldBy, Holder, Result};
use tokio_postgres::{Row, types::FromSql};

use crate::error;

/// A hundred years, in microseconds: beyond, the database's arithmetic ends.
const MICROS_MAX: i64 = 100 * 366 * 86_400 * 1_000_000;

/// As it travels.
pub(crate) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(MICROS_MAX).min(MICROS_MAX)
}

/// The columns of a row.
pub(crate) trait Columns {
    fn read<'a, T: FromSql<'a>>(&'a self, index: usize) -> Result<T>;

    fn number(&self, index: usize) -> Result<u32> {
        let number: i64 = self.read(index)?;
        u32::try_from(number).map_err(error::strange)
    }

    fn span(&self, index: usize) -> Result<Duration> {
        Ok(self.maybe_span(index)?.unwrap_or_default())
    }

    fn maybe_span(&self, index: usize) -> Result<Option<Duration>> {
        let micros: Option<i64> = self.read(index)?;
        Ok(micros.map(|micros| Duration::from_micros(u64::try_from(micros).unwrap_or(0))))
    }

    fn token(&self, index: usize) -> Result<FencingToken> {
        FencingToken::try_from(self.read::<i64>(index)?).map_err(error::strange)
    }

    fn holder(&self, index: usize) -> Result<Arc<Holder>> {
        let Ok(holder) = self.read::<&str>(index)?.parse::<Holder>();
        Ok(Arc::new(holder))
    }

    /// What an operator asked: how long it has, by whom, why, in three columns.
    fn asked(&self, index: usize) -> Result<Option<FinishRequest>> {
        let Some(within) = self.maybe_span(index)? else { return Ok(None) };
        let (by, why): (Option<&str>, Option<&str>) = (self.read(index + 1)?, self.read(index + 2)?);
        Ok(Some(FinishRequest::new(within, by.unwrap_or_default(), why.unwrap_or_default())))
    }

    /// A holder as others see it. Token, weight and remaining stand where `at` says; from `rest` on: since when, turns,
    /// evicting, kept, holder, note, and what was asked.
    fn held_by(&self, at: [usize; 3], rest: usize) -> Result<HeldBy> {
        let [token, weight, remaining] = at;
        let mut seat = HeldBy::new(self.holder(rest + 4)?, self.token(token)?, self.number(weight)?);
        seat.remaining = self.span(remaining)?;
        seat.held_for = self.span(rest)?;
        seat.handovers = self.number(rest + 1)?;
        seat.evicting = self.read(rest + 2)?;
        seat.kept = self.read(rest + 3)?;
        seat.note = self.read::<Option<&[u8]>>(rest + 5)?.map(Arc::from);
        seat.asked = self.asked(rest + 6)?;
        Ok(seat)
    }
}

impl Columns for Row {
    fn read<'a, T: FromSql<'a>>(&'a self, index: usize) -> Result<T> {
        self.try_get(index).map_err(error::strange)
    }
}
