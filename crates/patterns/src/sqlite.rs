//! What the patterns share on SQLite: a file that is used on threads for blocking work, and what its errors
//! mean.

use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use leasehold::{Effect, Error, ErrorKind, Result};
use rusqlite::{Connection, Transaction, TransactionBehavior};

/// SQL: milliseconds since 1970, by the clock of the host.
pub(crate) const NOW: &str = "CAST(unixepoch('subsec') * 1000 AS INTEGER)";

/// How long to wait for the lock of another process.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// A SQLite file with one connection.
#[derive(Clone)]
pub(crate) struct SqliteFile(Arc<Mutex<Connection>>);

impl SqliteFile {
    /// Opens the file, and prepares it: creates tables.
    pub(crate) async fn open<F>(path: &Path, prepare: F) -> Result<SqliteFile>
    where
        F: FnOnce(&Connection) -> Result<()> + Send + 'static,
    {
        let path = path.to_owned();
        let connection = blocking(move || {
            let open = || {
                let connection = Connection::open(path)?;
                connection.busy_timeout(BUSY_TIMEOUT)?;
                connection.pragma_update(None, "journal_mode", "WAL")?;
                Ok(connection)
            };
            let connection = open().map_err(|error| interpret(&error))?;
            prepare(&connection)?;
            Ok(connection)
        })
        .await?;
        Ok(SqliteFile(Arc::new(Mutex::new(connection))))
    }

    /// Runs `work` in one transaction.
    pub(crate) async fn transact<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Transaction<'_>) -> Result<T> + Send + 'static,
    {
        let connection = Arc::clone(&self.0);
        blocking(move || {
            let mut connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate);
            let transaction = transaction.map_err(|error| interpret(&error))?;
            let result = work(&transaction)?;
            transaction.commit().map_err(|error| interpret(&error))?;
            Ok(result)
        })
        .await
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| {
        let message = "the tokio runtime shut down during a SQLite transaction";
        Err(Error::new(ErrorKind::ShutDown, message).with_effect(Effect::Unknown))
    })
}

pub(crate) fn interpret(error: &rusqlite::Error) -> Error {
    use rusqlite::ErrorCode;
    let message = format!("the SQLite file cannot be used: {error}");
    match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => Error::new(ErrorKind::Corrupt, message),
        Some(ErrorCode::PermissionDenied | ErrorCode::ReadOnly) => Error::new(ErrorKind::Denied, message),
        // A statement that fails commits nothing. A commit that fails with an I/O error may have reached the
        // disk.
        Some(ErrorCode::SystemIoFailure) => {
            Error::new(ErrorKind::Unavailable, message).with_effect(Effect::Unknown)
        }
        _ => Error::new(ErrorKind::Unavailable, message),
    }
}
