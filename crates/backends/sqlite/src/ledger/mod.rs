//! The verbs, on rows: the model of `leasehold_core::Model`, step by step, in one transaction.
//!
//! Each verb reads the row of its resource, drops what has ended, does its step, and writes the row back. The row
//! carries the sums and counts of the other tables, so a claim on what is free touches that row and the seat.

mod acquire;
mod inspect;
mod line;
mod order;
mod release;
mod renew;
mod row;
mod sweep;
mod watch;

use std::time::Duration;

use leasehold_core::{FencingToken, GoneReason, OwnerToken, Resource, Timestamp, WallTime};
use rusqlite::{CachedStatement, Connection, OptionalExtension as _, Params, Row as Columns};

pub(crate) use self::{
    inspect::{find, inspect},
    line::movers,
    row::Entry,
    sweep::Sweep,
    watch::Prospect,
};
use crate::{error::Fault, sql, wait::Waiters};

/// A step of a transaction. A fault undoes the whole of it.
pub(crate) type Step<T> = Result<T, Fault>;

/// A moment that never comes.
pub(crate) const NEVER: i64 = i64::MAX;

/// One write transaction.
pub(crate) struct Ledger<'a> {
    pub(crate) sql: &'a Connection,
    pub(crate) now: i64,
    pub(crate) wall: WallTime,
    pub(crate) line_max: u32,
    pub(crate) sweep: &'a mut Sweep,
    pub(crate) waiters: &'a Waiters,
    /// Whom to wake once this is committed.
    pub(crate) news: News,
}

/// Whom to wake.
#[derive(Debug, Default)]
pub(crate) struct News {
    pub(crate) owners: Vec<(Resource, OwnerToken)>,
    /// Those without a place at these resources, who know another version than this.
    pub(crate) watchers: Vec<(Resource, u64)>,
    /// Someone who is not waiting in this process.
    pub(crate) abroad: bool,
}

impl Ledger<'_> {
    fn statement(&self, sql: &'static str) -> Step<CachedStatement<'_>> {
        Ok(self.sql.prepare_cached(sql)?)
    }

    fn execute(&self, sql: &'static str, params: impl Params) -> Step<usize> {
        Ok(self.statement(sql)?.execute(params)?)
    }

    fn one<T>(
        &self,
        sql: &'static str,
        params: impl Params,
        read: impl FnOnce(&Columns<'_>) -> rusqlite::Result<T>,
    ) -> Step<Option<T>> {
        Ok(self.statement(sql)?.query_row(params, read).optional()?)
    }

    fn after(&self, by: Duration) -> i64 {
        after(self.now, by)
    }

    fn until(&self, moment: i64) -> Duration {
        until(self.now, moment)
    }

    /// The row of a resource, with what has ended dropped.
    fn open<'r>(&mut self, resource: &'r Resource) -> Step<Entry<'r>> {
        let read = self.one(sql::resource::find, [resource.key()], |row| Entry::read(resource, row))?;
        let mut entry = read.unwrap_or_else(|| Entry::blank(resource));
        if entry.settle_at <= self.now {
            self.settle(&mut entry)?;
        }
        Ok(entry)
    }

    /// Writes the row back if it changed, and notes whom that lets move.
    fn close(&mut self, entry: &Entry<'_>) -> Step<()> {
        if entry.is_changed() {
            self.tell(entry)?;
            entry.write(self.sql)?;
        }
        Ok(())
    }

    /// Gives the resource a row, if it has none.
    fn establish(&mut self, entry: &mut Entry<'_>) -> Step<()> {
        if entry.id == 0 {
            entry.insert(self.sql, self.now)?;
            self.sweep(entry.id)?;
        }
        Ok(())
    }

    /// Drops what has ended.
    fn settle(&mut self, entry: &mut Entry<'_>) -> Step<()> {
        if entry.seats > 0 {
            let mut statement = self.statement(sql::seat::settle)?;
            let mut rows = statement.query((entry.id, self.now))?;
            while let Some(row) = rows.next()? {
                entry.stand_up(row.get(0)?);
            }
        }
        if entry.places > 0 {
            self.settle_line(entry)?;
        }
        if entry.graves > 0 {
            let ended = self.execute(sql::grave::settle, (entry.id, self.now))?;
            entry.graves -= u32::try_from(ended).unwrap_or(u32::MAX).min(entry.graves);
        }
        if entry.paused_until > 0 && entry.paused_until <= self.now {
            entry.resume();
            entry.version += 1;
        }
        let next = self.one(sql::resource::earliest_end, [entry.id], |row| row.get(0))?.unwrap_or(NEVER);
        entry.settle_at = if entry.paused_until > 0 { next.min(entry.paused_until) } else { next };
        entry.touch();
        Ok(())
    }

    /// Gives up the seat of this owner, if it has one that it has not yet said farewell to.
    fn stand_up(&mut self, entry: &mut Entry<'_>, owner: OwnerToken) -> Step<bool> {
        if entry.seats == 0 {
            return Ok(false);
        }
        let whose = (entry.id, owner.to_bytes());
        let weight = if entry.seats == 1 {
            let removed = self.execute(sql::seat::remove_only, whose)?;
            (removed > 0).then_some(u32::try_from(entry.held).unwrap_or(u32::MAX))
        } else {
            self.one(sql::seat::remove, whose, |row| row.get(0))?
        };
        weight.into_iter().for_each(|weight| entry.stand_up(weight));
        Ok(weight.is_some())
    }

    /// A request of this owner that comes late comes to nothing.
    fn tombstone(
        &mut self,
        entry: &mut Entry<'_>,
        owner: OwnerToken,
        keep: Duration,
        why: GoneReason,
    ) -> Step<()> {
        self.establish(entry)?;
        let known = if entry.graves > 0 {
            self.execute(sql::grave::remove, (entry.id, owner.to_bytes()))?
        } else {
            0
        };
        let ends = self.after(keep);
        self.execute(sql::grave::insert, (entry.id, owner.to_bytes(), ends, why == GoneReason::Evicted))?;
        entry.graves = entry.graves + 1 - u32::from(known > 0);
        entry.ends_at(ends);
        Ok(())
    }

    fn grave(&self, entry: &Entry<'_>, owner: OwnerToken) -> Step<Option<GoneReason>> {
        if entry.graves == 0 {
            return Ok(None);
        }
        let evicted =
            self.one(sql::grave::find, (entry.id, owner.to_bytes()), |row| row.get::<_, bool>(0))?;
        Ok(evicted.map(|evicted| if evicted { GoneReason::Evicted } else { GoneReason::Cancelled }))
    }
}

/// This much later; stops at [`NEVER`].
pub(crate) fn after(now: i64, by: Duration) -> i64 {
    now.saturating_add(i64::try_from(by.as_nanos()).unwrap_or(NEVER))
}

/// How long until `moment`; zero if that is past.
pub(crate) fn until(now: i64, moment: i64) -> Duration {
    Duration::from_nanos(u64::try_from(moment.saturating_sub(now)).unwrap_or(0))
}

/// As it stands in the file.
pub(crate) fn moment(at: Timestamp) -> i64 {
    i64::try_from(at.as_nanos()).unwrap_or(NEVER)
}

/// A number that was written as a token.
fn token(number: i64) -> Step<FencingToken> {
    FencingToken::try_from(number).map_err(|error| Fault::Row(error.to_string()))
}
