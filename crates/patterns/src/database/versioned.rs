//! Optimistic update: read a row, change it, and write it if nobody else wrote it meanwhile.

use leasehold::{Error, ErrorKind, Result};
use tokio_postgres::{
    GenericClient, Row,
    types::{ToSql, Type},
};

use super::{Table, interpret, quote};

/// The new values of the columns, in their order.
pub type NewValues = Vec<Box<dyn ToSql + Sync + Send>>;

/// Rows with a version column: a `smallint`, `integer` or `bigint` that every writer raises by one.
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
    version: String,
    columns: usize,
    attempts: u32,
}

impl Versioned {
    /// The default number of attempts.
    pub const ATTEMPTS: u32 = 5;

    /// The rows of a table, with the names of the column that identifies a row, of the version column
    /// (`smallint`, `integer` or `bigint`), and of the columns to change.
    ///
    /// # Errors
    /// `Invalid` if a name cannot be one, or if there is no column to change.
    pub fn new(table: &Table, id: &str, version: &str, columns: &[&str]) -> Result<Versioned> {
        if columns.is_empty() {
            return Err(Error::new(ErrorKind::Invalid, "name at least one column to change"));
        }
        let (id, version, table) = (quote(id)?, quote(version)?, &table.quoted);
        let columns = columns.iter().map(|column| quote(column)).collect::<Result<Vec<_>>>()?;
        let sets: Vec<_> =
            columns.iter().enumerate().map(|(index, column)| format!("{column} = ${}", index + 3)).collect();
        Ok(Versioned {
            select: format!("SELECT {}, {version} FROM {table} WHERE {id} = $1", columns.join(", ")),
            update: format!(
                "UPDATE {table} SET {}, {version} = {version} + 1 WHERE {id} = $1 AND {version} = $2::bigint",
                sets.join(", ")
            ),
            version,
            columns: columns.len(),
            attempts: Versioned::ATTEMPTS,
        })
    }

    /// The number of attempts: at least one. Default: five.
    pub fn attempts(mut self, attempts: u32) -> Versioned {
        self.attempts = attempts.max(1);
        self
    }

    /// Reads the row, calls `change`, and writes the row if its version is unchanged. Otherwise it tries
    /// again, a few times.
    ///
    /// `change` gets the columns by name and returns their new values, or `None` to leave
    /// the row as it is. It may be called several times, so it must have no other effect. Returns whether a
    /// row was written: false if there is no such row, or `change` returned `None`.
    ///
    /// In a transaction it needs the isolation level *read committed*: at a higher level, a second read sees
    /// the same version.
    ///
    /// # Cancel safety
    /// If it is dropped, the row may have been written.
    ///
    /// # Errors
    /// `Contended` if the row changed in every attempt: lock it instead ([`Table::lock_row`]). `Invalid` if
    /// `change` returns too few or too many values, if the database refuses them, or if the version is null, no
    /// integer, or the highest number of its type.
    pub async fn update<C: GenericClient + Sync>(
        &self,
        client: &C,
        id: &(dyn ToSql + Sync),
        mut change: impl FnMut(&Row) -> Option<NewValues>,
    ) -> Result<bool> {
        for _ in 0..self.attempts {
            let row = client.query_opt(&self.select, &[id]).await.map_err(interpret)?;
            let Some(row) = row else { return Ok(false) };
            let (version, highest) = self.version_in(&row)?;
            let Some(values) = change(&row) else { return Ok(false) };
            if values.len() != self.columns {
                let message = format!(
                    "{} columns have to be changed, but there are {} values",
                    self.columns,
                    values.len()
                );
                return Err(Error::new(ErrorKind::Invalid, message));
            }
            if version == highest {
                return Err(self.at_its_end(highest));
            }
            let mut parameters: Vec<&(dyn ToSql + Sync)> = vec![id, &version];
            parameters.extend(values.iter().map(|value| &**value as &(dyn ToSql + Sync)));
            if client.execute(&self.update, &parameters).await.map_err(interpret)? > 0 {
                return Ok(true);
            }
        }
        let message = format!(
            "another writer changed the row in each of {} attempts: lock the row instead (Table::lock_row, SELECT … FOR \
             UPDATE)",
            self.attempts
        );
        Err(Error::new(ErrorKind::Contended, message))
    }

    /// The version of the row, and the highest number of its type.
    fn version_in(&self, row: &Row) -> Result<(i64, i64)> {
        let Versioned { columns: at, version: name, .. } = self;
        let (version, highest) = match row.columns()[*at].type_() {
            &Type::INT2 => (row.try_get::<_, Option<i16>>(at).map(|it| it.map(i64::from)), i16::MAX.into()),
            &Type::INT4 => (row.try_get::<_, Option<i32>>(at).map(|it| it.map(i64::from)), i32::MAX.into()),
            &Type::INT8 => (row.try_get(at), i64::MAX),
            other => {
                let message = format!(
                    "the version column {name} has the type {other}: it must be smallint, integer or bigint"
                );
                return Err(Error::new(ErrorKind::Invalid, message));
            }
        };
        let version = version.map_err(interpret)?.ok_or_else(|| {
            let message = format!("the version column {name} is null: declare it NOT NULL DEFAULT 1");
            Error::new(ErrorKind::Invalid, message)
        })?;
        Ok((version, highest))
    }

    fn at_its_end(&self, highest: i64) -> Error {
        let name = &self.version;
        let remedy = match highest {
            i64::MAX => "set it to a lower number",
            _ => "change the type of the column to bigint",
        };
        let message =
            format!("the version column {name} is at {highest}, the highest number of its type: {remedy}");
        Error::new(ErrorKind::Invalid, message)
    }
}
