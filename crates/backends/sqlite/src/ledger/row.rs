//! The row of one resource, as it is while a verb is at work on it.

use leasehold_core::{FencingToken, Resource};
use rusqlite::{Connection, Row as Columns, params};

use super::{NEVER, Step, token};
use crate::sql;

/// The row of one resource.
#[derive(Clone, Debug)]
pub(crate) struct Entry<'r> {
    pub(crate) resource: &'r Resource,
    /// 0: not in the file yet.
    pub(crate) id: i64,
    pub(crate) capacity: u32,
    pub(crate) held: u64,
    pub(crate) seats: u32,
    pub(crate) places: u32,
    pub(crate) graves: u32,
    pub(crate) settle_at: i64,
    pub(crate) paused_until: i64,
    pub(crate) paused_for: i64,
    pub(crate) paused_wall: i64,
    pub(crate) last: i64,
    pub(crate) floor: i64,
    pub(crate) version: i64,
    pub(crate) watched_until: i64,
    /// As it was read.
    version_before: i64,
    touched: bool,
}

impl<'r> Entry<'r> {
    /// Where nobody is and nobody has been.
    pub(crate) fn blank(resource: &'r Resource) -> Entry<'r> {
        Entry {
            resource,
            id: 0,
            capacity: 0,
            held: 0,
            seats: 0,
            places: 0,
            graves: 0,
            settle_at: NEVER,
            paused_until: 0,
            paused_for: 0,
            paused_wall: 0,
            last: 0,
            floor: 0,
            version: 0,
            watched_until: 0,
            version_before: 0,
            touched: false,
        }
    }

    /// From the columns of `resource.find`.
    pub(crate) fn read(resource: &'r Resource, row: &Columns<'_>) -> rusqlite::Result<Entry<'r>> {
        let version = row.get(12)?;
        Ok(Entry {
            resource,
            id: row.get(0)?,
            capacity: row.get(1)?,
            held: row.get::<_, i64>(2)?.unsigned_abs(),
            seats: row.get(3)?,
            places: row.get(4)?,
            graves: row.get(5)?,
            settle_at: row.get(6)?,
            paused_until: row.get(7)?,
            paused_for: row.get(8)?,
            paused_wall: row.get(9)?,
            last: row.get(10)?,
            floor: row.get(11)?,
            version,
            watched_until: row.get(13)?,
            version_before: version,
            touched: false,
        })
    }

    /// Makes the row. Its cursor begins at the clock, so that one of an earlier row is never repeated.
    pub(crate) fn insert(&mut self, sql: &Connection, now: i64) -> Step<()> {
        let mut statement = sql.prepare_cached(sql::resource::insert)?;
        let made = statement.query_row((self.resource.key(), now), |row| Ok((row.get(0)?, row.get(1)?)))?;
        (self.id, self.floor) = made;
        (self.version, self.version_before) = (now, now);
        Ok(())
    }

    pub(crate) fn write(&self, sql: &Connection) -> Step<()> {
        let held = i64::try_from(self.held).unwrap_or(NEVER);
        sql.prepare_cached(sql::resource::update)?.execute(params![
            self.id,
            self.capacity,
            held,
            self.seats,
            self.places,
            self.graves,
            self.settle_at,
            self.paused_until,
            self.paused_for,
            self.paused_wall,
            self.last,
            self.version,
            self.watched_until
        ])?;
        Ok(())
    }

    pub(crate) fn touch(&mut self) {
        self.touched = true;
    }

    /// Whether there is something to write.
    pub(crate) fn is_changed(&self) -> bool {
        self.id != 0 && (self.touched || self.has_news())
    }

    /// Whether something happened that others may wait for.
    pub(crate) fn has_news(&self) -> bool {
        self.version != self.version_before
    }

    /// Whether anyone holds or waits.
    pub(crate) fn is_there(&self) -> bool {
        self.seats > 0 || self.places > 0
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.paused_until > 0
    }

    pub(crate) fn resume(&mut self) {
        (self.paused_until, self.paused_for, self.paused_wall) = (0, 0, 0);
    }

    /// A seat of this weight is empty.
    pub(crate) fn stand_up(&mut self, weight: u32) {
        self.held = self.held.saturating_sub(u64::from(weight));
        self.seats = self.seats.saturating_sub(1);
        self.version += 1;
    }

    /// Something ends then: settle no later.
    pub(crate) fn ends_at(&mut self, ends: i64) {
        self.settle_at = self.settle_at.min(ends);
        self.touched = true;
    }

    /// The newest token given out for this resource, as far as the file remembers.
    pub(crate) fn last_token(&self) -> Step<Option<FencingToken>> {
        if self.last == 0 { Ok(None) } else { token(self.last).map(Some) }
    }

    /// The next token is above this one.
    pub(crate) fn mint_above(&self) -> Step<Option<FencingToken>> {
        let above = self.last.max(self.floor);
        if above == 0 { Ok(None) } else { token(above).map(Some) }
    }
}
