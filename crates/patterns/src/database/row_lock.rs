//! A row, locked for the rest of the transaction.

use leasehold::Result;
use tokio_postgres::{Row, Transaction, error::SqlState, types::ToSql};

use super::{Table, interpret, quote};

/// The result of [`Table::lock_row`].
#[derive(Clone, Debug)]
pub enum RowLock {
    /// The row is locked until the transaction ends. These are its columns.
    Row(Row),
    /// Another transaction has locked the row. PostgreSQL has aborted this transaction: roll it back, and try
    /// again later.
    Busy,
    /// There is no such row.
    Missing,
}

impl Table {
    /// Locks the row whose column `id` has this value, or returns at once that another transaction has it:
    /// `SELECT … FOR UPDATE NOWAIT`. No other transaction changes the row until this one ends.
    ///
    /// The lock has no ttl: it is held until the transaction ends, even if this program hangs. Keep such
    /// transactions short, and set `idle_in_transaction_session_timeout`.
    ///
    /// # Cancel safety
    /// If it is dropped, the row may be locked until the transaction ends.
    ///
    /// # Errors
    /// The errors of the database. `Invalid` if `id` cannot be the name of a column.
    pub async fn lock_row(
        &self,
        transaction: &Transaction<'_>,
        id: &str,
        value: &(dyn ToSql + Sync),
    ) -> Result<RowLock> {
        let sql = format!("SELECT * FROM {} WHERE {} = $1 FOR UPDATE NOWAIT", self.quoted, quote(id)?);
        match transaction.query_opt(&sql, &[value]).await {
            Ok(Some(row)) => Ok(RowLock::Row(row)),
            Ok(None) => Ok(RowLock::Missing),
            Err(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => Ok(RowLock::Busy),
            Err(error) => Err(interpret(error)),
        }
    }
}
