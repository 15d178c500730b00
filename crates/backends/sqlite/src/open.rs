//! How the database file is opened.
//!
//! 1. Create the file if it does not exist, unless the store must exist (`database.rs`).
//! 2. Open the change file and try its exclusive lock. With it, this process is alone; else it takes the
//!    shared lock.
//! 3. Open the file with SQLite, and check that it is empty or a file of leasehold in a format that this
//!    version knows.
//! 4. Create the tables if the file is empty; begin a new boot if the file is of another one. Both need to be
//!    alone. Add what later formats added if an older version wrote the file.
//! 5. Exchange the exclusive lock for the shared one, and lock a byte for this client (`client_lock.rs`).
//!
//! If step 2 or 4 finds that another process must go first, or is in the way, the attempt is repeated after a
//! pause.

use std::{fs, io, os::unix::fs::MetadataExt as _, path::Path, thread, time::Duration};

use leasehold_core::{Error, ErrorKind, Result};
use rusqlite::{Connection, OpenFlags, OptionalExtension as _, config::DbConfig};

use crate::{
    change_file::ChangeFile,
    database::{self, Database},
    error::{StoreError, from_io},
    file_system::FileIdentity,
    sql,
    tables::{StoreResult, stored_wall},
};

/// `leas` in the header of the file (`application_id`): it is a file of leasehold.
const APPLICATION_ID: i32 = 0x6c65_6173;
/// The format that this version writes, in the row `format` of the table `meta`.
const FORMAT: i32 = 2;
/// The oldest format whose versions can share a file with this one, in the header of the file (`user_version`). A
/// later version that breaks with it must be alone to raise it.
const OLDEST_FORMAT: i32 = 1;

/// How often to try to open a file that another process is about to create.
const OPEN_TRIES: u32 = 500;
/// The pause between two tries.
const OPEN_PAUSE: Duration = Duration::from_millis(5);
/// How long SQLite waits for a lock while the file is opened.
const OPEN_BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// The frames in the log at which SQLite itself runs a checkpoint, in the middle of a commit. This is for
/// processes that come and go: a process that finds nobody else reads the whole log, so it should be short.
pub(crate) const AUTOCHECKPOINT_FRAMES: u32 = 1000;
/// A log of more bytes, left behind by other processes, is copied into the file when it is opened. Else every
/// later process would have to read it again.
const LONG_LOG_BYTES: u64 = 8 << 20;
/// A log of more bytes is shortened by the writer thread after the first commit (ADR 0042). A process that is
/// alone reads the whole log; from about here on, that takes as long as everything else about opening the file.
const SHORTEN_LOG_BYTES: u64 = 512 << 10;
/// What is left of a log that is shortened. The space must be enough for some commits: on a full disk there is
/// no more.
const SHORT_LOG_BYTES: u64 = 128 << 10;
/// Prepared statements that a connection keeps: more than there are statements.
const STATEMENT_CACHE: usize = 80;

/// The opened database file.
pub(crate) struct OpenDatabase {
    pub(crate) connection: Connection,
    pub(crate) identity: FileIdentity,
    pub(crate) change_file: ChangeFile,
    /// The log should be shortened.
    pub(crate) is_log_long: bool,
}

impl OpenDatabase {
    pub(crate) fn open(database: &Database) -> Result<OpenDatabase> {
        database::find_file(&database.path, &database.config)?;
        for _ in 0..OPEN_TRIES {
            if let Some(open) = OpenDatabase::try_open(database)? {
                return Ok(open);
            }
            thread::sleep(OPEN_PAUSE);
        }
        Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "{}: another process has the file open and belongs to another boot: the file must not be shared \
                 between hosts, or between containers that have boot ids of their own",
                database.path.display()
            ),
        ))
    }

    /// One attempt. Returns None if another process has the exclusive lock, or must go first.
    fn try_open(database: &Database) -> Result<Option<OpenDatabase>> {
        let path = &database.path;
        let failed = |error: io::Error| from_io(error, path, "open the file");
        let mode = fs::metadata(path).map_err(failed)?.mode() & 0o777;
        let change_path = database.change_file();
        let mut change_file = ChangeFile::open(&change_path, mode)?;
        let is_alone = change_file.try_lock_exclusive().map_err(failed)?;
        if !is_alone && !change_file.try_lock_shared().map_err(failed)? {
            return Ok(None);
        }
        let identity = FileIdentity::of(path).map_err(failed)?;
        let connection = match prepare(database, is_alone) {
            Ok(Some(connection)) => connection,
            Ok(None) => return Ok(None),
            Err(refusal) => {
                if is_alone {
                    // Leave nothing of ours beside a file that is not ours.
                    change_file.delete(&change_path);
                }
                return Err(refusal.into_error(path));
            }
        };
        if is_alone && !change_file.try_lock_shared().map_err(failed)? {
            return Ok(None);
        }
        if !database.config.allows_any_file_system() {
            change_file.lock_client(database.random());
        }
        let is_log_long = is_alone && log_length(database) > SHORTEN_LOG_BYTES;
        Ok(Some(OpenDatabase { connection, identity, change_file, is_log_long }))
    }
}

/// Why a file is not opened.
enum OpenRefusal {
    Store(StoreError),
    Other(ErrorKind, String),
    /// The file is empty, and the store must exist.
    NoStore,
}

impl<E: Into<StoreError>> From<E> for OpenRefusal {
    fn from(error: E) -> OpenRefusal {
        OpenRefusal::Store(error.into())
    }
}

impl OpenRefusal {
    fn into_error(self, path: &Path) -> Error {
        match self {
            OpenRefusal::Store(error) => error.into_error(path),
            OpenRefusal::Other(kind, what) => Error::new(kind, format!("{}: {what}", path.display())),
            OpenRefusal::NoStore => database::no_store(path),
        }
    }
}

/// Steps 3 and 4. Returns None if this process would have to be alone, and is not.
fn prepare(database: &Database, is_alone: bool) -> Result<Option<Connection>, OpenRefusal> {
    let connection = connect(&database.path)?;
    if connection.is_readonly(rusqlite::MAIN_DB)? {
        let what = "no permission to write the file: run as its owner, or change its mode".to_owned();
        return Err(OpenRefusal::Other(ErrorKind::Denied, what));
    }
    let has_tables = check_header(&connection)?;
    if !has_tables && !is_alone {
        return Ok(None);
    }
    if !has_tables && !database.config.may_create() {
        return Err(OpenRefusal::NoStore);
    }
    skip_checkpoint_on_close(&connection)?;
    let mode: String = connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    if mode != "wal" {
        let what = format!(
            "the file system does not support SQLite's write-ahead log (journal mode {mode}): use a local disk"
        );
        return Err(OpenRefusal::Other(ErrorKind::Unsupported, what));
    }
    let synchronous = if database.config.is_full() { "FULL" } else { "NORMAL" };
    connection.execute_batch(&format!("PRAGMA synchronous = {synchronous}"))?;
    set_autocheckpoint(&connection, AUTOCHECKPOINT_FRAMES)?;
    if has_tables {
        upgrade(&connection)?;
    } else {
        create_tables(&connection)?;
    }
    let mut statement = connection.prepare(sql::meta::get)?;
    let boot: Option<String> = statement.query_row(["boot"], |row| row.get(0)).optional()?;
    drop(statement);
    if boot.as_deref() != Some(&database.boot) {
        // ADR 0010: two hosts or made-up boot ids get an error, and do not end each other's leases in turn.
        if !is_alone {
            return Ok(None);
        }
        begin_boot(database, &connection)?;
    }
    if is_alone && log_length(database) > LONG_LOG_BYTES {
        // Whatever cannot be copied now stays in the log, where it is just as safe.
        let _ = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
    }
    // From here on SQLite must not sleep: the caller may be an async runtime. The writer thread waits
    // instead.
    connection.busy_timeout(Duration::ZERO)?;
    Ok(Some(connection))
}

/// The length of the log in bytes. It may be longer than what is valid in it.
fn log_length(database: &Database) -> u64 {
    fs::metadata(database.path_with_suffix("-wal")).map_or(0, |log| log.len())
}

fn connect(path: &Path) -> StoreResult<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(OPEN_BUSY_TIMEOUT)?;
    connection.set_prepared_statement_cache_capacity(STATEMENT_CACHE);
    Ok(connection)
}

/// A connection that only reads.
pub(crate) fn open_reader(path: &Path) -> StoreResult<Connection> {
    let connection = connect(path)?;
    skip_checkpoint_on_close(&connection)?;
    connection.execute_batch("PRAGMA query_only = 1")?;
    Ok(connection)
}

/// A checkpoint waits for the disk. The next process can do it as well, so closing a connection does not.
fn skip_checkpoint_on_close(connection: &Connection) -> StoreResult<bool> {
    Ok(connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?)
}

/// Sets the length of the log, in frames, at which SQLite runs a checkpoint by itself.
pub(crate) fn set_autocheckpoint(connection: &Connection, frames: u32) -> StoreResult<()> {
    Ok(connection.query_row(&format!("PRAGMA wal_autocheckpoint = {frames}"), [], |_| Ok(()))?)
}

/// Has the next new log begin with a short file: SQLite itself never shortens it.
pub(crate) fn shorten_next_log(connection: &Connection) -> StoreResult<()> {
    Ok(connection.query_row(&format!("PRAGMA journal_size_limit = {SHORT_LOG_BYTES}"), [], |_| Ok(()))?)
}

/// Lets logs grow again as they need.
pub(crate) fn keep_log_length(connection: &Connection) -> StoreResult<()> {
    Ok(connection.query_row("PRAGMA journal_size_limit = -1", [], |_| Ok(()))?)
}

/// Copies the log into the database file, as far as no reader needs it.
pub(crate) fn copy_log(connection: &Connection) -> StoreResult<()> {
    Ok(connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))?)
}

/// Whether the file has the tables of leasehold. False if it is empty; an error if it is of another program,
/// or too new.
fn check_header(connection: &Connection) -> Result<bool, OpenRefusal> {
    let pragma = |name| connection.query_row(&format!("PRAGMA {name}"), [], |row| row.get::<_, i32>(0));
    let (application, oldest) = (pragma("application_id")?, pragma("user_version")?);
    if application == APPLICATION_ID && oldest <= FORMAT {
        return Ok(true);
    }
    if application == APPLICATION_ID {
        let what = format!(
            "a newer leasehold wrote the file: its format needs at least version {oldest}, this one knows \
             {FORMAT}: upgrade this program"
        );
        return Err(OpenRefusal::Other(ErrorKind::Unsupported, what));
    }
    let tables: i64 = connection.query_row(sql::meta::count_tables, [], |row| row.get(0))?;
    if application != 0 || oldest != 0 || tables != 0 {
        let what = "the file is a database of another program: choose another path".to_owned();
        return Err(OpenRefusal::Other(ErrorKind::Corrupt, what));
    }
    Ok(false)
}

fn create_tables(connection: &Connection) -> StoreResult<()> {
    connection.execute_batch(&format!(
        "BEGIN IMMEDIATE; {} PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {OLDEST_FORMAT}; \
         INSERT INTO meta (name, value) VALUES ('format', {FORMAT}); COMMIT;",
        sql::SCHEMA
    ))?;
    // Now the tables have their pages in the file, so the log can always be copied back. So on a full disk,
    // leases that are held can still be renewed and released.
    copy_log(connection)
}

/// Brings a file of an older format to this one. Other processes may have it open, of either format.
fn upgrade(connection: &Connection) -> StoreResult<()> {
    let format = || connection.query_row(sql::meta::get, ["format"], |row| row.get::<_, i32>(0));
    if format()? >= FORMAT {
        return Ok(());
    }
    connection.execute_batch(sql::meta::begin)?;
    // Another process may have done it meanwhile.
    let upgraded = if format()? < FORMAT {
        connection
            .execute_batch(sql::UPGRADE_2)
            .and_then(|()| connection.execute(sql::meta::put, ("format", FORMAT)))
            .map(drop)
    } else {
        Ok(())
    };
    if let Err(error) = upgraded {
        // If the rollback fails, SQLite rolls back when the connection is closed.
        let _ = connection.execute_batch(sql::meta::rollback);
        return Err(error.into());
    }
    connection.execute_batch(sql::meta::commit)?;
    Ok(())
}

/// Ends what an earlier boot of the host left behind (ADR 0010).
fn begin_boot(database: &Database, connection: &Connection) -> StoreResult<()> {
    let (now, wall) = (database.now(), stored_wall(database.wall()));
    connection.execute_batch(sql::meta::begin)?;
    for statement in [sql::reboot::remove_holders, sql::reboot::remove_places, sql::reboot::remove_tombstones]
    {
        connection.execute(statement, [])?;
    }
    connection.execute(sql::reboot::move_kept, (now, wall))?;
    connection.execute(sql::reboot::move_resources, (now, wall))?;
    connection.execute(sql::meta::put, ("boot", &database.boot))?;
    connection.execute_batch(sql::meta::commit)?;
    Ok(())
}
