//! Optimistic update: read, change, write if nobody else wrote meanwhile.

use leasehold::{Error, ErrorKind, Result};
use tokio_postgres::{GenericClient, Row, types::ToSql};

use super::{Table, interpret, quote};

/// What to write into the columns, in their order.
pub type Change = Vec<Box<dyn ToSql + Sync + Send>>;

/// Rows with a version: a whole number that every writer raises by one.
///
/// ```no_run
/// # async fn example(client: tokio_postgres::Client) -> Result<(), leasehold::Error> {
/// use leasehold_patterns::database::{Table, Versioned};
///
/// let accounts = Versioned::new(&Table::new("accounts")?, "id", "version", &["balance"])?;
/// let withdrawn = accounts
///     .update(&client, &42i64, |row| {
///         let balance: i64 = row.get("balance");
///         (balance >= 100).then(|| vec![Box::new(balance - 100) as _])
///     })
///     .await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Versioned {
    select: String,
    update: String,
    columns: usize,
    attempts: u32,
}

impl Versioned {
    /// How often it is tried unless told.
    pub const ATTEMPTS: u32 = 5;

    /// Rows of this table, found by the column `id`, with a version of type `bigint` and the columns to change.
    ///
    /// # Errors
    /// `Invalid` if a name is none, or there is nothing to change.
    pub fn new(table: &Table, id: &str, version: &str, columns: &[&str]) -> Result<Versioned> {
        if columns.is_empty() {
            return Err(Error::new(ErrorKind::Invalid, "name the columns to change"));
        }
        let (id, version, table) = (quote(id)?, quote(version)?, &table.quoted);
        let columns = columns.iter().map(|column| quote(column)).collect::<Result<Vec<_>>>()?;
        let sets: Vec<_> =
            columns.iter().enumerate().map(|(index, column)| format!("{column} = ${}", index + 3)).collect();
        Ok(Versioned {
            select: format!("SELECT {}, {version} FROM {table} WHERE {id} = $1", columns.join(", ")),
            update: format!(
                "UPDATE {table} SET {}, {version} = {version} + 1 WHERE {id} = $1 AND {version} = $2",
                sets.join(", ")
            ),
            columns: columns.len(),
            attempts: Versioned::ATTEMPTS,
        })
    }

    /// How often it is tried. Five times unless told; at least once.
    pub fn attempts(mut self, attempts: u32) -> Versioned {
        self.attempts = attempts.max(1);
        self
    }

    /// Reads the row, has it changed, and writes it if it is as it was read; else once more, a few times.
    ///
    /// `change` sees the columns by name and returns what they are to be, or nothing to leave the row alone; it may be
    /// called several times, so it must do nothing else. Says whether a row was written: false if there is none, or it
    /// was left alone.
    ///
    /// In a transaction this needs the level *read committed*: at a higher one, reading again shows the same.
    ///
    /// # Cancel safety
    /// Dropped part-way, the row may have been written.
    ///
    /// # Errors
    /// `Contended` if it changed every time: lock the row instead ([`Table::lock_row`]). `Invalid` if `change` returns
    /// too few or too many values, or what the database says against them.
    pub async fn update<C: GenericClient + Sync>(
        &self,
        client: &C,
        id: &(dyn ToSql + Sync),
        mut change: impl FnMut(&Row) -> Option<Change>,
    ) -> Result<bool> {
        for _ in 0..self.attempts {
            let row = client.query_opt(&self.select, &[id]).await.map_err(interpret)?;
            let Some(row) = row else { return Ok(false) };
            let version: i64 = row.try_get(self.columns).map_err(|error| {
                Error::new(ErrorKind::Invalid, "the version is not a bigint").because(error)
            })?;
            let Some(values) = change(&row) else { return Ok(false) };
            if values.len() != self.columns {
                let message =
                    format!("{} columns are to be changed, and {} values came", self.columns, values.len());
                return Err(Error::new(ErrorKind::Invalid, message));
            }
            let mut parameters: Vec<&(dyn ToSql + Sync)> = vec![id, &version];
            parameters.extend(values.iter().map(|value| &**value as &(dyn ToSql + Sync)));
            if client.execute(&self.update, &parameters).await.map_err(interpret)? > 0 {
                return Ok(true);
            }
        }
        let message = format!(
            "the row changed under each of {} attempts: it is too busy for this, lock it instead (SELECT … FOR UPDATE, \
             Table::lock_row)",
            self.attempts
        );
        Err(Error::new(ErrorKind::Contended, message))
    }
}
