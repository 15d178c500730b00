//! What the patterns share on SQLite: a file, off the runtime's threads, and what its errors mean.

use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use leasehold::{Effect, Error, ErrorKind, Result};
use rusqlite::{Connection, Transaction, TransactionBehavior};

/// Milliseconds since 1970, as SQLite has them.
pub(crate) const NOW: &str = "CAST(unixepoch('subsec') * 1000 AS INTEGER)";

/// A file of our own.
#[derive(Clone)]
pub(crate) struct File(Arc<Mutex<Connection>>);

impl File {
    /// Opens it, and prepares it.
    pub(crate) async fn open<F>(path: &Path, prepare: F) -> Result<File>
    where
        F: FnOnce(&Connection) -> Result<()> + Send + 'static,
    {
        let path = path.to_owned();
        let connection = blocking(move || {
            let open = || {
                let connection = Connection::open(path)?;
                connection.busy_timeout(Duration::from_secs(5))?;
                connection.pragma_update(None, "journal_mode", "WAL")?;
                Ok(connection)
            };
            let connection = open().map_err(|error| interpret(&error))?;
            prepare(&connection)?;
            Ok(connection)
        })
        .await?;
        Ok(File(Arc::new(Mutex::new(connection))))
    }

    /// One transaction.
    pub(crate) async fn with<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Transaction<'_>) -> Result<T> + Send + 'static,
    {
        let connection = Arc::clone(&self.0);
        blocking(move || {
            let mut connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
            let begun = connection.transaction_with_behavior(TransactionBehavior::Immediate);
            let transaction = begun.map_err(|error| interpret(&error))?;
            let answer = work(&transaction)?;
            transaction.commit().map_err(|error| interpret(&error))?;
            Ok(answer)
        })
        .await
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| {
        Err(Error::new(ErrorKind::ShutDown, "the runtime has ended").with_effect(Effect::Unknown))
    })
}

pub(crate) fn interpret(error: &rusqlite::Error) -> Error {
    use rusqlite::ErrorCode;
    let message = format!("the database cannot be used: {error}");
    match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => Error::new(ErrorKind::Corrupt, message),
        Some(ErrorCode::PermissionDenied | ErrorCode::ReadOnly) => Error::new(ErrorKind::Denied, message),
        // Nothing is committed when a statement fails; a commit that fails may have reached the disk.
        Some(ErrorCode::SystemIoFailure) => {
            Error::new(ErrorKind::Unavailable, message).with_effect(Effect::Unknown)
        }
        _ => Error::new(ErrorKind::Unavailable, message),
    }
}
