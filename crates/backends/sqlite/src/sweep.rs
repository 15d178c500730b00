//! Removes the rows of idle resources, a few at a time, so that the file does not grow without bound.

use leasehold_core::Resource;

use crate::{
    error::StoreError,
    resource_row::ResourceRow,
    sql,
    tables::{StoreResult, Tables, stored_wall},
};

/// How long an idle resource is kept, so that `inspect` can still show its last token.
const RETENTION_MICROS: i64 = 3600 * 1_000_000;
/// How many rows are checked for each new row. More than one, so that the sweep is faster than the growth.
const CHECKED_PER_INSERT: i64 = 8;

/// How far the sweep has come. After the last row it starts again with the first.
#[derive(Debug, Default)]
pub(crate) struct Sweep {
    last_id: i64,
}

impl Tables<'_> {
    /// Checks a few rows and removes the idle ones. Called for every row that is inserted.
    pub(crate) fn sweep(&mut self, inserted_id: i64) -> StoreResult<()> {
        // Tokens are at least the wall clock in microseconds, so an old last token means that the row is old.
        let oldest_kept = stored_wall(self.wall).saturating_sub(RETENTION_MICROS);
        let mut idle = Vec::new();
        let mut checked = 0;
        {
            let mut statement = self.statement(sql::resource::sweep_candidates)?;
            let mut rows =
                statement.query((self.sweep.last_id, CHECKED_PER_INSERT, self.now, oldest_kept))?;
            let mut last_id = self.sweep.last_id;
            while let Some(row) = rows.next()? {
                checked += 1;
                last_id = row.get(0)?;
                if row.get(2)? && last_id != inserted_id {
                    idle.push(row.get::<_, String>(1)?);
                }
            }
            drop(rows);
            drop(statement);
            self.sweep.last_id = if checked < CHECKED_PER_INSERT { 0 } else { last_id };
        }
        idle.iter().try_for_each(|key| self.remove_resource(key))
    }

    fn remove_resource(&mut self, key: &str) -> StoreResult<()> {
        let resource = Resource::from_key(key)
            .map_err(|error| StoreError::Row(format!("a stored resource key is not valid: {error}")))?;
        let row = self.load(&resource)?;
        if !is_idle(&row) {
            return self.save(&row);
        }
        self.execute(sql::resource::remove, [row.id])?;
        if row.last > 0 {
            // ADR 0010: new rows start above this token, so it cannot be given out again even if the clock
            // goes back.
            self.execute(sql::resource::raise_floor, [row.last.max(row.floor)])?;
        }
        Ok(())
    }
}

fn is_idle(row: &ResourceRow<'_>) -> bool {
    !row.is_in_use() && row.graves == 0 && !row.is_paused()
}
