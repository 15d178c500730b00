//! A row, locked for the rest of the transaction.

use leasehold::Result;
use tokio_postgres::{Row, Transaction, error::SqlState, types::ToSql};

use super::{Table, interpret, quote};

/// What became of it.
#[derive(Clone, Debug)]
pub enum Locked {
    /// It is ours until the transaction ends; this is what is in it.
    Row(Row),
    /// Someone else has it locked. The transaction is of no more use: roll it back, and try again later.
    Busy,
    /// There is no such row.
    Missing,
}

impl Table {
    /// Locks the row whose column `id` has this value, or says at once that somebody else has it: `SELECT … FOR UPDATE
    /// NOWAIT`. Whatever the transaction reads from the row after this is not changed by others until it ends.
    ///
    /// No ttl: it is held until the transaction ends, even if this program hangs. Keep such transactions short, and set
    /// `idle_in_transaction_session_timeout`.
    ///
    /// # Cancel safety
    /// Dropped part-way, the row may be locked until the transaction ends.
    ///
    /// # Errors
    /// What the database says. `Invalid` if the column's name is none.
    pub async fn lock_row(
        &self,
        transaction: &Transaction<'_>,
        id: &str,
        value: &(dyn ToSql + Sync),
    ) -> Result<Locked> {
        let sql = format!("SELECT * FROM {} WHERE {} = $1 FOR UPDATE NOWAIT", self.quoted, quote(id)?);
        match transaction.query_opt(&sql, &[value]).await {
            Ok(Some(row)) => Ok(Locked::Row(row)),
            Ok(None) => Ok(Locked::Missing),
            Err(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => Ok(Locked::Busy),
            Err(error) => Err(interpret(error)),
        }
    }
}
