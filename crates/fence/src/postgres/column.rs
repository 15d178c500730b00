//! A column `last_fencing_token` in your own table: each row holds its own mark.

use leasehold_core::{Effect, Error, ErrorKind, FencingToken, Pass, Result};
use tokio_postgres::{Transaction, types::ToSql};

use super::{DOWNSTREAM, error::interpret};
use crate::{observe, rule::Refusal, tables::quoted};

/// A table whose rows hold their own marks.
///
/// The column has no owner, so the same token is admitted only once for each row. To write a row several times under one
/// lease, do so in one transaction after one [`raise`](Column::raise), or use [`admit`](super::admit).
///
/// In plain SQL this is one statement. If it changes no row, the token is stale and the writer must stop:
///
/// ```sql
/// UPDATE job SET status = 'RUNNING', last_fencing_token = 34 WHERE id = 'r1' AND last_fencing_token < 34;
/// ```
#[derive(Clone, Debug)]
pub struct Column {
    raise: String,
    read: String,
    table: String,
}

impl Column {
    /// The column `last_fencing_token` of a table whose rows are found by the unique column `key`. The names are quoted. A
    /// table that is not on the search path is given as `["schema", "table"]`.
    pub fn new<'a>(table: impl AsRef<[&'a str]>, key: &str) -> Column {
        Column::named(table, key, "last_fencing_token")
    }

    /// A column with another name.
    pub fn named<'a>(table: impl AsRef<[&'a str]>, key: &str, column: &str) -> Column {
        let names = table.as_ref();
        let at = names.iter().map(|name| quoted(name)).collect::<Vec<_>>().join(".");
        let (key, column) = (quoted(key), quoted(column));
        Column {
            raise: format!("UPDATE {at} SET {column} = $1 WHERE {key} = $2 AND coalesce({column}, 0) < $1"),
            read: format!("SELECT coalesce({column}, 0)::bigint FROM {at} WHERE {key} = $1"),
            table: names.join("."),
        }
    }

    /// Raises the mark of one row to the token of the pass, or refuses the pass; in the transaction of your effect.
    ///
    /// Called before the first read, it makes a read-modify-write in this transaction safe: the row stays locked.
    ///
    /// # Cancel safety
    /// The transaction is rolled back, and nothing was raised.
    ///
    /// # Errors
    /// `StaleToken`, counted and logged; `Invalid` if no row or several rows have this key.
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
            return Err(
                self.invalid("several rows have this key; roll back, and use a unique key column", pass)
            );
        }
        // No row was changed. Either the token is stale, or the row does not exist: read it to find out.
        match transaction.query_opt(&self.read, &[key]).await.map_err(none)? {
            None => Err(self.invalid("no row has this key: insert it first", pass)),
            Some(row) => {
                let highest = FencingToken::try_from(row.get::<_, i64>(0))?;
                let refusal = Refusal::Stale { presented: pass.token, highest };
                Err(observe::refused(pass, refusal, DOWNSTREAM))
            }
        }
    }

    fn invalid(&self, what: &str, pass: &Pass) -> Error {
        Error::new(ErrorKind::Invalid, format!("table {}: {what}", self.table)).on(&pass.resource)
    }
}
