//! What all parts of one backend share: the path of the file, the clock, and the waiters of this process.

use std::{
    fs, io,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use leasehold_core::{Environment, Error, ErrorKind, Result, WallTime};

use crate::{
    boot_clock, change_file::CHANGE_FILE_SUFFIX, config::Config, error::from_io, file_system, tables,
    waiters::WaiterRegistry,
};

/// What all parts of one backend share.
#[derive(Debug)]
pub(crate) struct Database {
    pub(crate) config: Config,
    /// The path of the file, without symbolic links: SQLite puts its own files beside the real one.
    pub(crate) path: PathBuf,
    pub(crate) environment: Arc<dyn Environment>,
    /// The id of the host's boot.
    pub(crate) boot: String,
    pub(crate) waiters: WaiterRegistry,
    clock_shift: i64,
}

impl Database {
    /// Finds the file, or creates an empty one unless the store must exist. SQLite opens it later.
    pub(crate) fn find(config: Config, environment: Arc<dyn Environment>) -> Result<Database> {
        if !config.allows_any_file_system() {
            // Check before anything is created, and once more below: the last part of the path may be a
            // symbolic link.
            let path = absolute(config.path())?;
            path.ancestors().find(|ancestor| ancestor.exists()).map_or(Ok(()), file_system::check)?;
        }
        let path = find_file(config.path(), &config)?;
        if !config.allows_any_file_system() {
            file_system::check(&path)?;
        }
        let boot = match config.pretended_boot() {
            Some(boot) => boot.to_owned(),
            None => boot_clock::boot_id()?,
        };
        let clock_shift = boot_clock::clock_shift()?;
        Ok(Database { config, path, environment, boot, waiters: WaiterRegistry::default(), clock_shift })
    }

    /// The time by the host's boot clock, in nanoseconds.
    pub(crate) fn now(&self) -> i64 {
        // ADR 0010: without the shift of the time namespace, so that all containers of a host agree.
        tables::stored_time(self.environment.now()).saturating_sub(self.clock_shift)
    }

    pub(crate) fn wall(&self) -> WallTime {
        self.environment.wall()
    }

    pub(crate) fn random(&self) -> u64 {
        let mut bytes = [0; 8];
        self.environment.fill(&mut bytes);
        u64::from_ne_bytes(bytes)
    }

    /// The path of the change file.
    pub(crate) fn change_file(&self) -> PathBuf {
        self.path_with_suffix(CHANGE_FILE_SUFFIX)
    }

    /// The path of a file beside the database.
    pub(crate) fn path_with_suffix(&self, suffix: &str) -> PathBuf {
        let mut path = self.path.clone().into_os_string();
        path.push(suffix);
        PathBuf::from(path)
    }
}

/// Returns the real path of the file. If there is none, creates an empty one, unless the store must exist. Other users may
/// not read it: it holds owner tokens.
///
/// Creates no directory: with a wrong path, the leases would be in a place where nobody looks for them.
pub(crate) fn find_file(path: &Path, config: &Config) -> Result<PathBuf> {
    let path = absolute(path)?;
    if config.may_create() {
        create_file(&path)?;
    }
    let real = match fs::canonicalize(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && !config.may_create() => {
            return Err(no_store(&path));
        }
        real => real.map_err(|error| from_io(error, &path, "find the file"))?,
    };
    let metadata = fs::metadata(&real).map_err(|error| from_io(error, &path, "read the file's metadata"))?;
    match file_system::other_than_file(metadata.file_type()) {
        None => Ok(real),
        Some(found) => {
            let what = format!("is {found}, not a file: write the path of a file, which leasehold creates");
            Err(Error::new(ErrorKind::Invalid, format!("{}: {what}", path.display())))
        }
    }
}

fn create_file(path: &Path) -> Result<()> {
    match fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => match path.parent().filter(|parent| !parent.exists()) {
            Some(parent) if error.kind() == io::ErrorKind::NotFound => {
                let (file, parent) = (path.display(), parent.display());
                let what = format!("cannot create the file: there is no directory {parent}: create it first");
                Err(Error::new(ErrorKind::Invalid, format!("{file}: {what}")))
            }
            _ => Err(from_io(error, path, "create the file")),
        },
    }
}

/// The error if a store must exist and does not.
pub(crate) fn no_store(path: &Path) -> Error {
    let message = format!("there is no store at {}; nothing was ever leased there", path.display());
    Error::new(ErrorKind::Invalid, message)
}

fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(|error| from_io(error, path, "make the path absolute"))
}
