//! A column `last_fencing_token` in a table of yours: the mark stands in the row itself.

use leasehold_core::{Effect, Error, ErrorKind, FencingToken, Pass, Result};
use tokio_postgres::{Transaction, types::ToSql};

use super::{DOWNSTREAM, error::interpret};
use crate::{observe, rule::Refusal, tables::quoted};

/// A table whose rows carry their own mark.
///
/// There is no owner in it, so it is strict: each token raises the mark of a row once. Whoever writes a row several times
/// under one lease does so in one transaction, after one [`raise`](Column::raise), or uses [`admit`](super::admit).
///
/// The same in plain SQL is one statement; if it changes no row, the writer is stale and stops:
///
/// ```sql
/// UPDATE job SET status = 'RUNNING', last_fencing_token = 34 WHERE id = 'r1' AND last_fencing_token < 34;
/// ```
#[derive(Clone, Debug)]
pub struct Column {
    raise: String,
    look: String,
    table: String,
}

impl Column {
    /// The column `last_fencing_token` of a table whose rows are found by the column `key`, which is unique. The names
    /// are taken as they are; a table that is not on the search path is named as `["schema", "table"]`.
    pub fn new<'a>(table: impl AsRef<[&'a str]>, key: &str) -> Column {
        Column::named(table, key, "last_fencing_token")
    }

    /// A column of another name.
    pub fn named<'a>(table: impl AsRef<[&'a str]>, key: &str, column: &str) -> Column {
        let names = table.as_ref();
        let at = names.iter().map(|name| quoted(name)).collect::<Vec<_>>().join(".");
        let (key, column) = (quoted(key), quoted(column));
        Column {
            raise: format!("UPDATE {at} SET {column} = $1 WHERE {key} = $2 AND coalesce({column}, 0) < $1"),
            look: format!("SELECT coalesce({column}, 0)::bigint FROM {at} WHERE {key} = $1"),
            table: names.join("."),
        }
    }

    /// Raises the mark of one row to the pass's token, or refuses; in your transaction, together with the effect.
    ///
    /// Called before the first read, it makes a read-modify-write in this transaction safe: the row stays locked.
    ///
    /// # Cancel safety
    /// Dropped part-way, the transaction is rolled back, and nothing was raised.
    ///
    /// # Errors
    /// `StaleToken`, counted and logged; `Invalid` if there is no such row, or several.
    pub async fn raise(
        &self,
        transaction: &Transaction<'_>,
        key: &(dyn ToSql + Sync),
        pass: &Pass,
    ) -> Result<()> {
        let none = |error| interpret(error, Effect::None).on(&pass.resource);
        let raised = transaction.execute(&self.raise, &[&pass.token.as_i64(), key]).await.map_err(none)?;
        if raised == 1 {
            return Ok(());
        }
        if raised > 1 {
            return Err(self.invalid("several rows have this key: roll back", pass));
        }
        match transaction.query_opt(&self.look, &[key]).await.map_err(none)? {
            None => Err(self.invalid("there is no such row", pass)),
            Some(row) => {
                let highest = FencingToken::try_from(row.get::<_, i64>(0))?;
                let refusal = Refusal::Stale { presented: pass.token, highest };
                Err(observe::refused(pass, refusal, DOWNSTREAM))
            }
        }
    }

    fn invalid(&self, what: &str, pass: &Pass) -> Error {
        Error::new(ErrorKind::Invalid, format!("{}: {what}", self.table)).on(&pass.resource)
    }
}
