//! Errors of SQLite and of the file system, and what they mean for a caller.

use std::{io, path::Path};

use leasehold_core::{Effect, Error, ErrorKind};
use rusqlite::{Error as Sql, ErrorCode, Row, types::ValueRef};

/// Why a transaction failed, or why it is not known whether it was committed.
#[derive(Debug)]
pub(crate) enum StoreError {
    /// A statement failed, so the whole transaction was rolled back.
    Statement(rusqlite::Error),
    /// The commit failed.
    Commit(rusqlite::Error),
    /// The file at the path is not the one that was opened.
    Replaced,
    /// A row holds a value that leasehold does not write.
    Row(String),
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> StoreError {
        StoreError::Statement(error)
    }
}

impl StoreError {
    fn code(&self) -> Option<ErrorCode> {
        match self {
            StoreError::Statement(error) | StoreError::Commit(error) => error.sqlite_error_code(),
            StoreError::Replaced | StoreError::Row(_) => None,
        }
    }

    /// Whether a stored value cannot be read, while the file itself is readable.
    pub(crate) fn is_bad_value(&self) -> bool {
        match self {
            StoreError::Row(_) => true,
            StoreError::Statement(error) => error.sqlite_error_code().is_none(),
            StoreError::Commit(_) | StoreError::Replaced => false,
        }
    }

    /// Names the table and the column, if a value of this row cannot be read.
    pub(crate) fn in_row(self, table: &str, row: &Row<'_>) -> StoreError {
        let StoreError::Statement(error) = &self else { return self };
        let index = match error {
            Sql::IntegralValueOutOfRange(index, _)
            | Sql::FromSqlConversionFailure(index, ..)
            | Sql::InvalidColumnType(index, ..) => Some(*index),
            // Text that is not UTF-8. Versions of rusqlite differ in what this error holds (ADR 0054).
            _ if self.is_bad_value() => (0..row.as_ref().column_count())
                .find(|&index| row.get_ref(index).is_ok_and(|value| is_broken_text(value))),
            _ => None,
        };
        let Some(index) = index else { return self };
        let column = row.as_ref().column_name(index).unwrap_or("?");
        let found = match row.get_ref(index) {
            Ok(ValueRef::Integer(number)) => format!("{number}, which is out of range"),
            Ok(ValueRef::Text(_)) => "text that cannot be read".to_owned(),
            _ => "a value of another type".to_owned(),
        };
        StoreError::Row(format!(
            "the column {table}.{column} holds {found}: it was changed by hand; correct it"
        ))
    }

    /// Whether another process has the write lock: another try a moment later may succeed.
    pub(crate) fn is_busy(&self) -> bool {
        use ErrorCode::{DatabaseBusy, DatabaseLocked, FileLockingProtocolFailed};
        matches!(self.code(), Some(DatabaseBusy | DatabaseLocked | FileLockingProtocolFailed))
    }

    /// Whether the disk was full.
    pub(crate) fn is_full(&self) -> bool {
        self.code() == Some(ErrorCode::DiskFull)
    }

    /// Whether one write of a group commit may have made the transaction fail, without effect: the others can
    /// be tried alone.
    pub(crate) fn may_be_of_one_write(&self) -> bool {
        !matches!(self, StoreError::Replaced) && !self.is_busy() && self.effect() == Effect::None
    }

    /// Whether the transaction may have been committed all the same.
    pub(crate) fn effect(&self) -> Effect {
        use ErrorCode::{DatabaseBusy, DatabaseLocked, DiskFull, ReadOnly};
        match (self, self.code()) {
            // SQLite returns these codes before it writes the frame that makes the transaction a commit.
            (StoreError::Commit(_), Some(DatabaseBusy | DatabaseLocked | DiskFull | ReadOnly)) => {
                Effect::None
            }
            (StoreError::Commit(_), _) => Effect::Unknown,
            _ => Effect::None,
        }
    }

    /// What failed, without the file.
    pub(crate) fn reason(&self) -> String {
        self.interpret().1
    }

    /// The error for the caller. It names the file.
    pub(crate) fn into_error(self, path: &Path) -> Error {
        let effect = self.effect();
        let (kind, what) = self.interpret();
        let error = Error::new(kind, format!("{}: {what}", path.display())).with_effect(effect);
        match self {
            StoreError::Statement(source) | StoreError::Commit(source) => error.because(source),
            StoreError::Replaced | StoreError::Row(_) => error,
        }
    }

    fn interpret(&self) -> (ErrorKind, String) {
        let (kind, what) = match self {
            StoreError::Replaced => (
                ErrorKind::Unavailable,
                "the file was deleted or replaced while it was open: the leases in the old file are lost; the next \
                 request opens the file that is there now",
            ),
            StoreError::Row(what) => return (ErrorKind::Corrupt, what.clone()),
            StoreError::Statement(error) | StoreError::Commit(error) => match error.sqlite_error_code() {
                Some(code) => meaning(code),
                None => {
                    return (
                        ErrorKind::Corrupt,
                        format!("a row holds a value that leasehold does not write: {error}"),
                    );
                }
            },
        };
        (kind, what.to_owned())
    }
}

fn is_broken_text(value: ValueRef<'_>) -> bool {
    matches!(value, ValueRef::Text(_)) && value.as_str().is_err()
}

fn meaning(code: ErrorCode) -> (ErrorKind, &'static str) {
    match code {
        ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::FileLockingProtocolFailed => (
            ErrorKind::Unavailable,
            "another process kept the write lock for longer than busy_timeout: try again",
        ),
        ErrorCode::DiskFull => (ErrorKind::Unavailable, "the disk is full: free some space"),
        ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::AuthorizationForStatementDenied => (
            ErrorKind::Denied,
            "no permission to write the file or its directory, or the file system is read-only",
        ),
        ErrorCode::CannotOpen => (ErrorKind::Unavailable, "cannot open the file, or its -wal or -shm file"),
        ErrorCode::SystemIoFailure => {
            (ErrorKind::Unavailable, "reading or writing the disk failed (I/O error)")
        }
        ErrorCode::OutOfMemory => (ErrorKind::Unavailable, "out of memory"),
        ErrorCode::NotADatabase => (ErrorKind::Corrupt, "the file is not a SQLite database"),
        ErrorCode::DatabaseCorrupt => (
            ErrorKind::Corrupt,
            "the file is damaged: stop its users and move it away; this ends every lease in it",
        ),
        ErrorCode::OperationInterrupted | ErrorCode::OperationAborted => {
            (ErrorKind::Unavailable, "the operation was interrupted")
        }
        _ => (
            ErrorKind::Corrupt,
            "the tables are not as leasehold created them: another program may have changed the file",
        ),
    }
}

/// An error of the operating system about the file or its directory. `action` says what was tried ("create
/// the file").
pub(crate) fn from_io(error: io::Error, path: &Path, action: &str) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => ErrorKind::Denied,
        io::ErrorKind::NotADirectory
        | io::ErrorKind::IsADirectory
        | io::ErrorKind::AlreadyExists
        | io::ErrorKind::InvalidInput => ErrorKind::Invalid,
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, format!("{}: cannot {action}: {error}", path.display())).because(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rusqlite::ffi;

    fn failure(code: i32) -> Sql {
        Sql::SqliteFailure(ffi::Error::new(code), None)
    }

    /// The table: code, kind, effect if a statement failed, effect if the commit failed.
    #[test]
    fn every_error_code_of_sqlite_has_a_kind_and_an_effect() {
        use {Effect::*, ErrorKind::*};
        let table = [
            (ffi::SQLITE_BUSY, Unavailable, None, None),
            (ffi::SQLITE_BUSY_SNAPSHOT, Unavailable, None, None),
            (ffi::SQLITE_BUSY_RECOVERY, Unavailable, None, None),
            (ffi::SQLITE_LOCKED, Unavailable, None, None),
            (ffi::SQLITE_PROTOCOL, Unavailable, None, Unknown),
            (ffi::SQLITE_FULL, Unavailable, None, None),
            (ffi::SQLITE_READONLY, Denied, None, None),
            (ffi::SQLITE_READONLY_DIRECTORY, Denied, None, None),
            (ffi::SQLITE_PERM, Denied, None, Unknown),
            (ffi::SQLITE_CANTOPEN, Unavailable, None, Unknown),
            (ffi::SQLITE_IOERR, Unavailable, None, Unknown),
            (ffi::SQLITE_IOERR_FSYNC, Unavailable, None, Unknown),
            (ffi::SQLITE_IOERR_SHMMAP, Unavailable, None, Unknown),
            (ffi::SQLITE_NOMEM, Unavailable, None, Unknown),
            (ffi::SQLITE_INTERRUPT, Unavailable, None, Unknown),
            (ffi::SQLITE_CORRUPT, Corrupt, None, Unknown),
            (ffi::SQLITE_NOTADB, Corrupt, None, Unknown),
            (ffi::SQLITE_SCHEMA, Corrupt, None, Unknown),
            (ffi::SQLITE_CONSTRAINT, Corrupt, None, Unknown),
            (ffi::SQLITE_ERROR, Corrupt, None, Unknown),
        ];
        for (code, kind, in_statement, at_commit) in table {
            let path = Path::new("/x/leases.db");
            let statement = StoreError::Statement(failure(code)).into_error(path);
            assert_eq!((statement.kind(), statement.effect()), (kind, in_statement), "{code}: {statement:?}");
            let commit = StoreError::Commit(failure(code)).into_error(path);
            assert_eq!((commit.kind(), commit.effect()), (kind, at_commit), "{code}: {commit:?}");
            assert!(commit.to_string().starts_with("/x/leases.db: "), "{commit}");
        }
    }

    #[test]
    fn a_row_with_an_unknown_value_is_corrupt() {
        let error = StoreError::from(Sql::InvalidColumnType(0, "ends".into(), rusqlite::types::Type::Text));
        assert_eq!(error.into_error(Path::new("x")).kind(), ErrorKind::Corrupt);
        assert_eq!(
            StoreError::Row("unknown value".into()).into_error(Path::new("x")).kind(),
            ErrorKind::Corrupt
        );
    }
}
