//! One write transaction on the tables, and the steps that several verbs share.
//!
//! Every verb works the same way, and gives the verdicts of `leasehold_core::Model`:
//!
//! 1. [`Tables::load`] reads the row of the resource and removes the holders, queued claims, tombstones and
//!    the pause that have ended.
//! 2. The verb passes over the queued claims that do not answer (`silence.rs`), changes rows of the other tables
//!    and the [`ResourceRow`] in memory, and calls the queued claims that can be granted now.
//! 3. [`Tables::save`] writes the row back if it changed, and notes the waiters to wake after the commit.
//!
//! The row of the resource carries sums and counts of the other tables. So a claim on a free resource reads
//! and writes that row and one row of `seat`, and nothing else.

use std::time::Duration;

use leasehold_core::{FencingToken, GoneReason, OwnerToken, Resource, Timestamp, WallTime};
use rusqlite::{CachedStatement, Connection, OptionalExtension as _, Params, Row as Columns};

use crate::{
    change_file::ChangeFile, error::StoreError, resource_row::ResourceRow, sql, sweep::Sweep,
    waiters::WaiterRegistry,
};

/// The result of a step of a transaction. An error rolls the whole transaction back.
pub(crate) type StoreResult<T> = Result<T, StoreError>;

/// A time that never comes.
pub(crate) const NEVER: i64 = i64::MAX;

/// One write transaction. Times are nanoseconds of the boot clock (ADR 0010).
pub(crate) struct Tables<'a> {
    pub(crate) sql: &'a Connection,
    /// The time of the transaction, by the boot clock.
    pub(crate) now: i64,
    /// The time of the transaction, by the wall clock.
    pub(crate) wall: WallTime,
    /// The most claims in one queue.
    pub(crate) queue_max: u32,
    pub(crate) sweep: &'a mut Sweep,
    pub(crate) waiters: &'a WaiterRegistry,
    /// Which clients live.
    pub(crate) change_file: &'a ChangeFile,
    /// The waiters to wake once this is committed.
    pub(crate) wakeups: WakeupsToSend,
}

/// The waiters to wake after a commit.
#[derive(Debug, Default)]
pub(crate) struct WakeupsToSend {
    /// Claims that wait in this process.
    pub(crate) owners: Vec<(Resource, OwnerToken)>,
    /// Resources with their new version: waiters of this process without a place are woken if they know
    /// another version.
    pub(crate) watchers: Vec<(Resource, u64)>,
    /// Whether the table `ring` has a new row, so that other processes must be signalled.
    pub(crate) other_processes: bool,
}

impl Tables<'_> {
    pub(crate) fn statement(&self, sql: &'static str) -> StoreResult<CachedStatement<'_>> {
        Ok(self.sql.prepare_cached(sql)?)
    }

    pub(crate) fn execute(&self, sql: &'static str, params: impl Params) -> StoreResult<usize> {
        Ok(self.statement(sql)?.execute(params)?)
    }

    /// Runs a statement that gives at most one row.
    pub(crate) fn query_one<T>(
        &self,
        sql: &'static str,
        params: impl Params,
        read: impl FnOnce(&Columns<'_>) -> rusqlite::Result<T>,
    ) -> StoreResult<Option<T>> {
        Ok(self.statement(sql)?.query_row(params, read).optional()?)
    }

    /// The time `by` after now.
    pub(crate) fn after(&self, by: Duration) -> i64 {
        after(self.now, by)
    }

    /// The duration from now until `time`; zero if it is past.
    pub(crate) fn until(&self, time: i64) -> Duration {
        until(self.now, time)
    }

    /// Reads the row of a resource, and removes what has ended.
    pub(crate) fn load<'r>(&mut self, resource: &'r Resource) -> StoreResult<ResourceRow<'r>> {
        let found =
            self.query_one(sql::resource::find, [resource.key()], |row| ResourceRow::read(resource, row))?;
        let mut row = found.unwrap_or_else(|| ResourceRow::new(resource));
        if row.settle_at <= self.now {
            self.remove_expired(&mut row)?;
        }
        Ok(row)
    }

    /// Writes the row back if it changed, and notes the waiters to wake.
    pub(crate) fn save(&mut self, row: &ResourceRow<'_>) -> StoreResult<()> {
        if row.must_be_written() {
            self.note_wakeups(row)?;
            row.write(self.sql)?;
        }
        Ok(())
    }

    /// Inserts the row of the resource if it has none yet.
    pub(crate) fn ensure_row(&mut self, row: &mut ResourceRow<'_>) -> StoreResult<()> {
        if row.id == 0 {
            row.insert(self.sql, self.now)?;
            self.sweep(row.id)?;
        }
        Ok(())
    }

    /// Removes the holders, queued claims, tombstones and the pause that have ended.
    fn remove_expired(&mut self, row: &mut ResourceRow<'_>) -> StoreResult<()> {
        if row.seats > 0 {
            let mut statement = self.statement(sql::holder::remove_expired)?;
            let mut expired = statement.query((row.id, self.now))?;
            while let Some(columns) = expired.next()? {
                row.subtract_holder(columns.get(0)?);
            }
        }
        if row.places > 0 {
            self.remove_expired_places(row)?;
        }
        if row.graves > 0 {
            let expired = self.execute(sql::tombstone::remove_expired, (row.id, self.now))?;
            row.graves -= u32::try_from(expired).unwrap_or(u32::MAX).min(row.graves);
        }
        if row.paused_until > 0 && row.paused_until <= self.now {
            row.resume();
            row.version += 1;
        }
        let next = self.query_one(sql::resource::earliest_end, [row.id], |columns| columns.get(0))?;
        let next = next.unwrap_or(NEVER);
        row.settle_at = if row.paused_until > 0 { next.min(row.paused_until) } else { next };
        row.mark_changed();
        Ok(())
    }

    /// Removes the holder with this owner token, and says whether there was one. A holder that was released
    /// with `keep_for` stays.
    pub(crate) fn remove_holder(
        &mut self,
        row: &mut ResourceRow<'_>,
        owner: OwnerToken,
    ) -> StoreResult<bool> {
        if row.seats == 0 {
            return Ok(false);
        }
        let key = (row.id, owner.to_bytes());
        let weight = if row.seats == 1 {
            // The weight of the only holder is in the row. `RETURNING` would make SQLite use a temporary
            // table.
            let removed = self.execute(sql::holder::remove_only, key)?;
            (removed > 0).then_some(u32::try_from(row.held).unwrap_or(u32::MAX))
        } else {
            self.query_one(sql::holder::remove, key, |columns| columns.get(0))?
        };
        weight.into_iter().for_each(|weight| row.subtract_holder(weight));
        Ok(weight.is_some())
    }

    /// Leaves a tombstone, so that a late request of this owner is refused.
    pub(crate) fn tombstone(
        &mut self,
        row: &mut ResourceRow<'_>,
        owner: OwnerToken,
        keep: Duration,
        reason: GoneReason,
    ) -> StoreResult<()> {
        self.ensure_row(row)?;
        let replaced = if row.graves > 0 {
            self.execute(sql::tombstone::remove, (row.id, owner.to_bytes()))?
        } else {
            0
        };
        let ends = self.after(keep);
        let evicted = reason == GoneReason::Evicted;
        self.execute(sql::tombstone::insert, (row.id, owner.to_bytes(), ends, evicted))?;
        row.graves = row.graves + 1 - u32::from(replaced > 0);
        row.ends_at(ends);
        Ok(())
    }

    /// Why this owner's requests are refused, if it has a tombstone.
    pub(crate) fn find_tombstone(
        &self,
        row: &ResourceRow<'_>,
        owner: OwnerToken,
    ) -> StoreResult<Option<GoneReason>> {
        if row.graves == 0 {
            return Ok(None);
        }
        let key = (row.id, owner.to_bytes());
        let evicted = self.query_one(sql::tombstone::find, key, |columns| columns.get::<_, bool>(0))?;
        Ok(evicted.map(|evicted| if evicted { GoneReason::Evicted } else { GoneReason::Cancelled }))
    }
}

/// `now` plus `by`; at most [`NEVER`].
pub(crate) fn after(now: i64, by: Duration) -> i64 {
    now.saturating_add(i64::try_from(by.as_nanos()).unwrap_or(NEVER))
}

/// The duration from `now` until `time`; zero if it is past.
pub(crate) fn until(now: i64, time: i64) -> Duration {
    Duration::from_nanos(u64::try_from(time.saturating_sub(now)).unwrap_or(0))
}

/// A timestamp as the file stores it.
pub(crate) fn stored_time(at: Timestamp) -> i64 {
    i64::try_from(at.as_nanos()).unwrap_or(NEVER)
}

/// A wall clock time as the file stores it, in microseconds.
pub(crate) fn stored_wall(wall: WallTime) -> i64 {
    i64::try_from(wall.as_micros()).unwrap_or(NEVER)
}

/// A fencing token as read from the file.
pub(crate) fn read_token(column: &str, number: i64) -> StoreResult<FencingToken> {
    FencingToken::try_from(number).map_err(|error| {
        StoreError::Row(format!("the column {column} holds {number}, which is not a fencing token: {error}"))
    })
}
