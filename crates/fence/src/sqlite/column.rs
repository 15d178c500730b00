//! A column `last_fencing_token` in your own table: each row holds its own mark.

use leasehold_core::{Error, ErrorKind, FencingToken, Pass, Result};
use rusqlite::{Connection, OptionalExtension as _, ToSql, params};

use super::{DOWNSTREAM, check_in_transaction, error::interpret};
use crate::{observe, rule::Refusal, tables::quoted};

/// A table whose rows hold their own marks.
///
/// The column has no owner, so the same token is admitted only once for each row. To write a row several times under one
/// lease, do so in one transaction after one [`raise`](Column::raise), or use [`admit`](super::admit).
#[derive(Clone, Debug)]
pub struct Column {
    raise: String,
    read: String,
    table: String,
}

impl Column {
    /// The column `last_fencing_token` of a table whose rows are found by the unique column `key`.
    pub fn new(table: &str, key: &str) -> Column {
        Column::named(table, key, "last_fencing_token")
    }

    /// A column with another name.
    pub fn named(table: &str, key: &str, column: &str) -> Column {
        let [at, key, column] = [table, key, column].map(quoted);
        Column {
            raise: format!("UPDATE {at} SET {column} = ?1 WHERE {key} = ?2 AND coalesce({column}, 0) < ?1"),
            read: format!("SELECT coalesce({column}, 0) FROM {at} WHERE {key} = ?1"),
            table: table.to_owned(),
        }
    }

    /// Raises the mark of one row to the token of the pass, or refuses the pass; in the transaction of your effect.
    ///
    /// # Errors
    /// `StaleToken`, counted and logged; `Invalid` if no row or several rows have this key, or without a transaction.
    ///
    /// ```
    /// # use leasehold_fence::{FencingToken, Pass, Resource, sqlite};
    /// let mut database = rusqlite::Connection::open_in_memory()?;
    /// database.execute_batch(
    ///     "CREATE TABLE job (id TEXT PRIMARY KEY, status TEXT, last_fencing_token INTEGER NOT NULL DEFAULT 0);
    ///      INSERT INTO job (id) VALUES ('r1')",
    /// )?;
    /// # let pass = Pass::new(Resource::new("report", "r1")?, FencingToken::new(34)?);
    /// let fence = sqlite::Column::new("job", "id");
    /// let transaction = database.transaction()?;
    /// fence.raise(&transaction, "r1", &pass)?;
    /// transaction.execute("UPDATE job SET status = 'RUNNING' WHERE id = 'r1'", [])?;
    /// transaction.commit()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn raise(&self, transaction: &Connection, key: impl ToSql, pass: &Pass) -> Result<()> {
        check_in_transaction(transaction)?;
        let raised =
            transaction.execute(&self.raise, params![pass.token.as_i64(), key]).map_err(interpret)?;
        if raised == 1 {
            return Ok(());
        }
        if raised > 1 {
            return Err(
                self.invalid("several rows have this key; roll back, and use a unique key column", pass)
            );
        }
        // No row was changed. Either the token is stale, or the row does not exist: read it to find out.
        let found = transaction.query_row(&self.read, params![key], |row| row.get::<_, i64>(0));
        match found.optional().map_err(interpret)? {
            None => Err(self.invalid("no row has this key: insert it first", pass)),
            Some(highest) => {
                let highest = FencingToken::try_from(highest)?;
                let refusal = Refusal::Stale { presented: pass.token, highest };
                Err(observe::refused(pass, refusal, DOWNSTREAM))
            }
        }
    }

    fn invalid(&self, what: &str, pass: &Pass) -> Error {
        Error::new(ErrorKind::Invalid, format!("table {}: {what}", self.table)).on(&pass.resource)
    }
}
