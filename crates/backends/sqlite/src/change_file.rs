//! The change file, `<database>-bell`: an empty file beside the database. It has three purposes.
//!
//! - Every process that has the database open holds a shared lock on it. So a process can find out whether it
//!   is the only one, which it must be to create the tables or to begin a new boot (ADR 0010).
//! - Every client has a lock on one byte of it, so that others see when the client is gone: `client_lock.rs`.
//! - Opening it for writing tells the other processes that something changed: see `change_signal.rs`.

use std::{
    fs::{File, Metadata, OpenOptions, Permissions},
    io,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::Path,
};

use leasehold_core::{Error, ErrorKind, Result};
use rustix::fs::{FlockOperation, Mode, OFlags, flock};

use crate::{
    client_lock::{self, NO_LOCK},
    error::from_io,
    file_system,
};

/// What follows the name of the database in the name of the change file.
pub(crate) const CHANGE_FILE_SUFFIX: &str = "-bell";

/// The opened change file. Its lock ends with the process, however the process ends.
#[derive(Debug)]
pub(crate) struct ChangeFile {
    file: File,
    /// The byte that says that this client lives, or [`NO_LOCK`].
    client_lock: i64,
}

impl ChangeFile {
    /// Opens the file, and creates it with the permissions of the database if it does not exist. Does not wait, whatever is
    /// at the path: to open a FIFO would otherwise wait for its other end.
    pub(crate) fn open(path: &Path, mode: u32) -> Result<ChangeFile> {
        let found = path.metadata().ok().and_then(|found| file_system::other_than_file(found.file_type()));
        if let Some(found) = found {
            return Err(not_ours(path, found));
        }
        let file = match open_at_once(path, OFlags::RDONLY) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                create(path, mode).map_err(|error| from_io(error, path, "create the file"))?;
                open_at_once(path, OFlags::RDONLY)
            }
            opened => opened,
        };
        let file = file.map_err(|error| from_io(error, path, "open the file"))?;
        Ok(ChangeFile { file, client_lock: NO_LOCK })
    }

    /// Takes the exclusive lock; false if another process has the database open. While it is held, no other
    /// process can open the database.
    pub(crate) fn try_lock_exclusive(&self) -> io::Result<bool> {
        self.try_lock(FlockOperation::NonBlockingLockExclusive)
    }

    /// Takes the shared lock, also in exchange for the exclusive one; false if another process has the
    /// exclusive lock.
    pub(crate) fn try_lock_shared(&self) -> io::Result<bool> {
        self.try_lock(FlockOperation::NonBlockingLockShared)
    }

    /// Locks a byte that says that this client lives. Without the lock, the client has a second to answer a call,
    /// also if it is dead; so an error here needs no report.
    pub(crate) fn lock_client(&mut self, random: u64) {
        let byte = client_lock::byte_for(random);
        if client_lock::lock(&self.file, byte).is_ok() {
            self.client_lock = byte;
        }
    }

    /// The byte that this client has locked, for its places in queues; 0 if none.
    pub(crate) fn client_lock(&self) -> i64 {
        self.client_lock
    }

    /// Whether the client that locked this byte is gone for certain.
    pub(crate) fn is_client_gone(&self, byte: i64) -> bool {
        let is_other = byte != NO_LOCK && byte != self.client_lock;
        is_other && client_lock::is_free(&self.file, byte).unwrap_or(false)
    }

    /// Deletes the file, because the database was replaced.
    ///
    /// Processes that have not noticed the replacement keep their lock on the deleted file. So they do not
    /// keep others from being alone with the new database. Another process may have deleted the file already;
    /// then the file at the path is a new one and stays.
    pub(crate) fn delete(self, path: &Path) {
        let same = |here: Metadata, there: Metadata| (here.dev(), here.ino()) == (there.dev(), there.ino());
        if self.file.metadata().ok().zip(path.metadata().ok()).is_some_and(|(here, there)| same(here, there))
        {
            let _ = std::fs::remove_file(path);
        }
    }

    fn try_lock(&self, operation: FlockOperation) -> io::Result<bool> {
        match flock(&self.file, operation) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// Opens a file that exists, without waiting. A terminal does not become the one that controls this process.
pub(crate) fn open_at_once(path: &Path, access: OFlags) -> io::Result<File> {
    let flags = access | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::open(path, flags, Mode::empty())?))
}

fn create(path: &Path, mode: u32) -> io::Result<()> {
    match OpenOptions::new().write(true).create_new(true).mode(mode).open(path) {
        // The process's umask may have taken bits away.
        Ok(created) => created.set_permissions(Permissions::from_mode(mode)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

fn not_ours(path: &Path, found: &str) -> Error {
    let what = format!("is {found}: an empty file of leasehold belongs here; remove what is there");
    Error::new(ErrorKind::Invalid, format!("{}: {what}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_lock_keeps_others_from_the_exclusive_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("leases.db-bell");
        let open = || ChangeFile::open(&path, 0o600).unwrap();
        let (first, second) = (open(), open());
        assert!(first.try_lock_exclusive().unwrap());
        assert!(!second.try_lock_shared().unwrap(), "the first has the exclusive lock");
        assert!(first.try_lock_shared().unwrap() && second.try_lock_shared().unwrap());
        assert!(!second.try_lock_exclusive().unwrap());
        drop(first);
        assert!(second.try_lock_exclusive().unwrap());
    }

    #[test]
    #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
    fn a_client_is_gone_when_its_file_is_closed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("leases.db-bell");
        let open = || ChangeFile::open(&path, 0o600).unwrap();
        let (mut first, mut second, looker) = (open(), open(), open());
        first.lock_client(7);
        second.lock_client(u64::MAX);
        assert!(!second.is_client_gone(first.client_lock()) && !looker.is_client_gone(first.client_lock()));
        assert!(!first.is_client_gone(first.client_lock()), "this client itself lives");
        assert!(!first.is_client_gone(looker.client_lock()), "a client without a lock may live");
        let byte = first.client_lock();
        drop(first);
        assert!(second.is_client_gone(byte) && looker.is_client_gone(byte));
    }

    #[test]
    fn only_the_file_that_was_opened_is_deleted() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("leases.db-bell");
        let open = || ChangeFile::open(&path, 0o600).unwrap();
        let first = open();
        first.delete(&path);
        assert!(!path.exists());
        let other = open();
        open().delete(&path);
        assert!(!path.exists(), "both had the same file open");
        let newer = open();
        other.delete(&path);
        assert!(path.exists(), "the file at the path is another one");
        drop(newer);
    }
}
