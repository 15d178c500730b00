//! What every part of one backend shares: where the file is, whose time it keeps, and who waits.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use leasehold_core::{Environment, Error, ErrorKind, Result, WallTime};

use crate::{config::Config, error::from_io, host, ledger, wait::Waiters};

/// What every part of one backend shares.
#[derive(Debug)]
pub(crate) struct Site {
    pub(crate) config: Config,
    /// Without symbolic links: SQLite puts its own files beside the real one.
    pub(crate) path: PathBuf,
    pub(crate) environment: Arc<dyn Environment>,
    pub(crate) boot: String,
    pub(crate) waiters: Waiters,
    clock_shift: i64,
}

impl Site {
    /// Finds or makes the file. It may be empty: SQLite has not seen it yet.
    pub(crate) fn find(config: Config, environment: Arc<dyn Environment>) -> Result<Site> {
        if !config.takes_any_file_system() {
            // Before anything is made, and once more below: the last step may be a symbolic link.
            let path = absolute(config.path())?;
            path.ancestors().find(|ancestor| ancestor.exists()).map_or(Ok(()), host::check_file_system)?;
        }
        let path = create(config.path())?;
        if !config.takes_any_file_system() {
            host::check_file_system(&path)?;
        }
        let boot = match config.pretended_boot() {
            Some(boot) => boot.to_owned(),
            None => host::boot_id()?,
        };
        let clock_shift = host::clock_shift()?;
        Ok(Site { config, path, environment, boot, waiters: Waiters::default(), clock_shift })
    }

    /// Now, on the host's boot clock.
    pub(crate) fn now(&self) -> i64 {
        ledger::moment(self.environment.now()).saturating_sub(self.clock_shift)
    }

    pub(crate) fn wall(&self) -> WallTime {
        self.environment.wall()
    }

    /// A file that belongs beside the database.
    pub(crate) fn beside(&self, suffix: &str) -> PathBuf {
        let mut path = self.path.clone().into_os_string();
        path.push(suffix);
        PathBuf::from(path)
    }
}

/// Which file it is, whatever its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileIdentity {
    device: u64,
    inode: u64,
}

impl FileIdentity {
    /// Of the file at this path now. By name alone: closing a second descriptor of the database would drop the locks
    /// that SQLite holds on it in this process.
    pub(crate) fn at(path: &Path) -> io::Result<FileIdentity> {
        let metadata = fs::metadata(path)?;
        Ok(FileIdentity { device: metadata.dev(), inode: metadata.ino() })
    }
}

/// Makes the file and the directories that lead to it, unless they are there. Nobody else may read them: the file
/// holds owner tokens.
pub(crate) fn create(path: &Path) -> Result<PathBuf> {
    let path = absolute(path)?;
    if let Some(parent) = path.parent() {
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(parent);
        made.map_err(|error| from_io(error, parent, "make the directory"))?;
    }
    match fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(from_io(error, &path, "make the file"));
        }
        _ => {}
    }
    let real = fs::canonicalize(&path).map_err(|error| from_io(error, &path, "find the file"))?;
    let metadata = fs::metadata(&real).map_err(|error| from_io(error, &path, "look at the file"))?;
    if !metadata.is_file() {
        return Err(Error::new(ErrorKind::Invalid, format!("{}: is not a file", path.display())));
    }
    Ok(real)
}

fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(|error| from_io(error, path, "find it"))
}
