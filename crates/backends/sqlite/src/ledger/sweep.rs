//! Forgetting resources where nobody has been for a while, a few at a time.

use leasehold_core::Resource;

use super::{Entry, Ledger, NEVER, Step};
use crate::{error::Fault, sql};

/// How long an idle resource is remembered, so that people still see its last token.
const RETENTION_MICROS: i64 = 3600 * 1_000_000;
/// Rows that are looked at for every new one. More than one, so that the sweep outruns the growth.
const LOOKED_AT: i64 = 8;

/// How far the sweep has come. It goes round and round.
#[derive(Debug, Default)]
pub(crate) struct Sweep {
    last_id: i64,
}

impl Ledger<'_> {
    /// Looks at a few rows and removes those that are idle; called for every row that is made, so the file does not
    /// grow without bound. What is removed leaves its token behind in `meta`: new rows begin above it.
    pub(super) fn sweep(&mut self, but_not: i64) -> Step<()> {
        let old = i64::try_from(self.wall.as_micros()).unwrap_or(NEVER).saturating_sub(RETENTION_MICROS);
        let mut idle = Vec::new();
        let mut seen = 0;
        {
            let mut statement = self.statement(sql::resource::after)?;
            let mut rows = statement.query((self.sweep.last_id, LOOKED_AT, self.now, old))?;
            let mut last_id = self.sweep.last_id;
            while let Some(row) = rows.next()? {
                seen += 1;
                last_id = row.get(0)?;
                if row.get(2)? && last_id != but_not {
                    idle.push(row.get::<_, String>(1)?);
                }
            }
            drop(rows);
            drop(statement);
            self.sweep.last_id = if seen < LOOKED_AT { 0 } else { last_id };
        }
        idle.iter().try_for_each(|key| self.forget(key))
    }

    fn forget(&mut self, key: &str) -> Step<()> {
        let resource = Resource::from_key(key).map_err(|error| Fault::Row(error.to_string()))?;
        let entry = self.open(&resource)?;
        if !is_idle(&entry) {
            return self.close(&entry);
        }
        self.execute(sql::resource::remove, [entry.id])?;
        if entry.last > 0 {
            self.execute(sql::resource::forget, [entry.last.max(entry.floor)])?;
        }
        Ok(())
    }
}

fn is_idle(entry: &Entry<'_>) -> bool {
    !entry.is_there() && entry.graves == 0 && !entry.is_paused()
}
