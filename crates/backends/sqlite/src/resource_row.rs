//! The row of one resource in the table `resource`, while a verb works on it.

use leasehold_core::{FencingToken, OwnerToken, Resource};
use rusqlite::{Connection, Row as Columns, params};

use crate::{
    sql,
    tables::{NEVER, StoreResult, read_token},
};

/// The row of one resource. `sql/schema.sql` says what the columns mean; the fields have their names.
#[derive(Clone, Debug)]
pub(crate) struct ResourceRow<'r> {
    pub(crate) resource: &'r Resource,
    /// 0 if the resource has no row in the file yet.
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
    pub(crate) silence_at: i64,
    /// Whether claims in the queue may be silent.
    pub(crate) silent: bool,
    /// The owners to wake, if the verb has read the head of the queue; `None` if it has not.
    pub(crate) owners_to_wake: Option<Vec<OwnerToken>>,
    /// The version in the file.
    stored_version: i64,
    /// A column changed that waiters do not care about, so the version stays.
    changed: bool,
}

impl<'r> ResourceRow<'r> {
    /// The row of a resource that is not in the file.
    pub(crate) fn new(resource: &'r Resource) -> ResourceRow<'r> {
        ResourceRow {
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
            silence_at: 0,
            silent: false,
            owners_to_wake: None,
            stored_version: 0,
            changed: false,
        }
    }

    /// Reads the columns of `resource.find`.
    pub(crate) fn read(resource: &'r Resource, row: &Columns<'_>) -> rusqlite::Result<ResourceRow<'r>> {
        let version = row.get(12)?;
        Ok(ResourceRow {
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
            silence_at: row.get(14)?,
            silent: row.get(15)?,
            owners_to_wake: None,
            stored_version: version,
            changed: false,
        })
    }

    /// Inserts the row.
    pub(crate) fn insert(&mut self, sql: &Connection, now: i64) -> StoreResult<()> {
        let mut statement = sql.prepare_cached(sql::resource::insert)?;
        let inserted =
            statement.query_row((self.resource.key(), now), |row| Ok((row.get(0)?, row.get(1)?)))?;
        (self.id, self.floor) = inserted;
        // The version starts at the clock, so that it never repeats one of an earlier row of this resource.
        (self.version, self.stored_version) = (now, now);
        Ok(())
    }

    /// Writes the row back.
    pub(crate) fn write(&self, sql: &Connection) -> StoreResult<()> {
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
            self.watched_until,
            self.silence_at,
            self.silent
        ])?;
        Ok(())
    }

    /// Has the row written back although its version stays the same.
    pub(crate) fn mark_changed(&mut self) {
        self.changed = true;
    }

    /// Whether the row differs from the file.
    pub(crate) fn must_be_written(&self) -> bool {
        self.id != 0 && (self.changed || self.version_changed())
    }

    /// Whether something changed that others may wait for.
    pub(crate) fn version_changed(&self) -> bool {
        self.version != self.stored_version
    }

    /// Whether any claim holds the resource or waits for it.
    pub(crate) fn is_in_use(&self) -> bool {
        self.seats > 0 || self.places > 0
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.paused_until > 0
    }

    /// Ends the pause.
    pub(crate) fn resume(&mut self) {
        (self.paused_until, self.paused_for, self.paused_wall) = (0, 0, 0);
    }

    /// Subtracts a holder of this weight, whose row was removed.
    pub(crate) fn subtract_holder(&mut self, weight: u32) {
        self.held = self.held.saturating_sub(u64::from(weight));
        self.seats = self.seats.saturating_sub(1);
        self.version += 1;
    }

    /// Something ends at this time: look for expired rows then, or earlier.
    pub(crate) fn ends_at(&mut self, ends: i64) {
        self.settle_at = self.settle_at.min(ends);
        self.changed = true;
    }

    /// A claim becomes silent at this time if it does not answer: look for late claims then, or earlier.
    pub(crate) fn may_be_silent_at(&mut self, silent_at: i64) {
        if self.silence_at == 0 || silent_at < self.silence_at {
            self.silence_at = silent_at;
            self.changed = true;
        }
    }

    /// The newest token given out for this resource, as far as the file remembers.
    pub(crate) fn last_token(&self) -> StoreResult<Option<FencingToken>> {
        if self.last == 0 { Ok(None) } else { read_token("resource.last", self.last).map(Some) }
    }

    /// The token that the next one must exceed.
    pub(crate) fn token_floor(&self) -> StoreResult<Option<FencingToken>> {
        // ADR 0010: `floor` stands for the rows of this resource that were swept.
        let floor = self.last.max(self.floor);
        if floor == 0 { Ok(None) } else { read_token("resource.last", floor).map(Some) }
    }
}
