//! What SQLite says, in the words of the contract.

use std::{io, path::Path};

use leasehold_core::{Effect, Error, ErrorKind};
use rusqlite::ErrorCode;

/// Why a transaction came to nothing, or why it is not known whether it did.
#[derive(Debug)]
pub(crate) enum Fault {
    /// A statement failed, so the whole transaction was rolled back.
    Statement(rusqlite::Error),
    /// The commit failed.
    Commit(rusqlite::Error),
    /// The file at the path is not the one that was opened.
    Replaced,
    /// A row makes no sense.
    Row(String),
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Fault {
        Fault::Statement(error)
    }
}

impl Fault {
    fn code(&self) -> Option<ErrorCode> {
        match self {
            Fault::Statement(error) | Fault::Commit(error) => error.sqlite_error_code(),
            Fault::Replaced | Fault::Row(_) => None,
        }
    }

    /// Whether another process has the write lock: worth another try in a moment.
    pub(crate) fn is_busy(&self) -> bool {
        use ErrorCode::{DatabaseBusy, DatabaseLocked, FileLockingProtocolFailed};
        matches!(self.code(), Some(DatabaseBusy | DatabaseLocked | FileLockingProtocolFailed))
    }

    /// Whether there was no room.
    pub(crate) fn is_full(&self) -> bool {
        self.code() == Some(ErrorCode::DiskFull)
    }

    /// Whether one job of many may have made the transaction fail, without effect: the others deserve another try.
    pub(crate) fn is_of_one_job(&self) -> bool {
        !matches!(self, Fault::Replaced) && !self.is_busy() && self.effect() == Effect::None
    }

    /// Whether the transaction may have been committed all the same.
    pub(crate) fn effect(&self) -> Effect {
        use ErrorCode::{DatabaseBusy, DatabaseLocked, DiskFull, ReadOnly};
        match (self, self.code()) {
            // Refused before the frame that makes it a commit was written.
            (Fault::Commit(_), Some(DatabaseBusy | DatabaseLocked | DiskFull | ReadOnly)) => Effect::None,
            (Fault::Commit(_), _) => Effect::Unknown,
            _ => Effect::None,
        }
    }

    /// As the caller sees it.
    pub(crate) fn into_error(self, path: &Path) -> Error {
        let effect = self.effect();
        let (kind, what) = self.interpret();
        let error = Error::new(kind, format!("{}: {what}", path.display())).with_effect(effect);
        match self {
            Fault::Statement(source) | Fault::Commit(source) => error.because(source),
            Fault::Replaced | Fault::Row(_) => error,
        }
    }

    fn interpret(&self) -> (ErrorKind, String) {
        let (kind, what) = match self {
            Fault::Replaced => (
                ErrorKind::Unavailable,
                "the file was deleted or replaced while it was open: leases in the old one are lost",
            ),
            Fault::Row(what) => return (ErrorKind::Corrupt, what.clone()),
            Fault::Statement(error) | Fault::Commit(error) => match error.sqlite_error_code() {
                Some(code) => meaning(code),
                None => {
                    return (
                        ErrorKind::Corrupt,
                        format!("holds something that leasehold did not write: {error}"),
                    );
                }
            },
        };
        (kind, what.to_owned())
    }
}

fn meaning(code: ErrorCode) -> (ErrorKind, &'static str) {
    match code {
        ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::FileLockingProtocolFailed => {
            (ErrorKind::Unavailable, "another process kept the write lock")
        }
        ErrorCode::DiskFull => (ErrorKind::Unavailable, "the disk is full"),
        ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::AuthorizationForStatementDenied => {
            (ErrorKind::Denied, "the file, or the directory that it is in, cannot be written")
        }
        ErrorCode::CannotOpen => {
            (ErrorKind::Unavailable, "the file, or one that belongs beside it, cannot be opened")
        }
        ErrorCode::SystemIoFailure => (ErrorKind::Unavailable, "the disk failed"),
        ErrorCode::OutOfMemory => (ErrorKind::Unavailable, "out of memory"),
        ErrorCode::NotADatabase => (ErrorKind::Corrupt, "the file is not a SQLite database"),
        ErrorCode::DatabaseCorrupt => {
            (ErrorKind::Corrupt, "the file is damaged: move it away, then every lease in it is over")
        }
        ErrorCode::OperationInterrupted | ErrorCode::OperationAborted => {
            (ErrorKind::Unavailable, "the operation was interrupted")
        }
        _ => (ErrorKind::Corrupt, "the tables are not as leasehold left them"),
    }
}

/// What the operating system says about the file or its directory.
pub(crate) fn from_io(error: io::Error, path: &Path, doing: &str) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => ErrorKind::Denied,
        io::ErrorKind::NotADirectory
        | io::ErrorKind::IsADirectory
        | io::ErrorKind::AlreadyExists
        | io::ErrorKind::InvalidInput => ErrorKind::Invalid,
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, format!("{}: cannot {doing}: {error}", path.display())).because(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rusqlite::{Error as Sql, ffi};

    fn failure(code: i32) -> Sql {
        Sql::SqliteFailure(ffi::Error::new(code), None)
    }

    /// Code, kind, effect of a statement's failure, effect of a commit's.
    #[test]
    fn every_answer_of_sqlite_has_a_kind_and_an_effect() {
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
            let statement = Fault::Statement(failure(code)).into_error(path);
            assert_eq!((statement.kind(), statement.effect()), (kind, in_statement), "{code}: {statement:?}");
            let commit = Fault::Commit(failure(code)).into_error(path);
            assert_eq!((commit.kind(), commit.effect()), (kind, at_commit), "{code}: {commit:?}");
            assert!(commit.to_string().starts_with("/x/leases.db: "), "{commit}");
        }
    }

    #[test]
    fn a_strange_row_is_corrupt() {
        let strange = Fault::from(Sql::InvalidColumnType(0, "ends".into(), rusqlite::types::Type::Text));
        assert_eq!(strange.into_error(Path::new("x")).kind(), ErrorKind::Corrupt);
        assert_eq!(Fault::Row("odd".into()).into_error(Path::new("x")).kind(), ErrorKind::Corrupt);
    }
}
