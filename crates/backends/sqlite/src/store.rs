//! The file: opening it, one transaction on it, and keeping its log short.

use std::{fs, io, os::unix::fs::MetadataExt as _, path::Path, thread, time::Duration};

use leasehold_core::{Error, ErrorKind, Result};
use rusqlite::{Connection, OpenFlags, OptionalExtension as _, config::DbConfig};

use crate::{
    bell::Presence,
    error::{Fault, from_io},
    ledger::{Ledger, News, Step, Sweep},
    site::{self, FileIdentity, Site},
    sql,
};

/// What follows the name of the database in that of its doorbell.
pub(crate) const BELL: &str = "-bell";

/// `leas`, in the header of the file: it is ours.
const APPLICATION: i32 = 0x6c65_6173;
/// The format that this version writes. The header says which version is the oldest that can share the file; a later
/// one that breaks with it must be alone to say so.
const FORMAT: i32 = 1;

/// How often to try to open a file that someone else is just making, and how long to wait in between.
const OPEN_TRIES: u32 = 500;
const OPEN_PAUSE: Duration = Duration::from_millis(5);

/// Commits after which the clerk writes the log back into the file, at least and at most. Writing back waits for the
/// disk, three times. A long log costs every commit: SQLite finds a page in it by a hash table in which the versions
/// of one page stand side by side, and walks past all of them to add another; our commits write the same few pages
/// over and over. From some 400 on the pages are in each other's way, too, and it costs twice as much and more.
const CHECKPOINT_EVERY: std::ops::RangeInclusive<u32> = 300..=1000;
/// What writing back may cost, per commit, before the log is left to grow longer. More than the bytes themselves take:
/// those grow with the log, and waiting longer would not make them fewer.
const CHECKPOINT_COST: Duration = Duration::from_micros(10);
/// Frames in the log at which SQLite writes it back by itself, in the middle of a commit. For processes that come and
/// go: whoever finds the file closed reads the whole log, so it should be short.
const CHECKPOINT_AT: u32 = 1000;
/// The same once a process has stayed this many commits, and has a clerk who sees to it.
const CHECKPOINT_AT_LAST: u32 = 8000;
const STAYS: u32 = 100;
/// A log of this many bytes that others left behind is written back at once by whoever comes when all are gone: else
/// everyone after would have to read it, too.
const LONG_LOG: u64 = 8 << 20;

/// The file, and what this process has done with it.
pub(crate) struct Store {
    /// None once the file at the path is another one: it must be opened again.
    open: Option<Open>,
    sweep: Sweep,
    commits: u32,
    checkpoint_after: u32,
}

struct Open {
    connection: Connection,
    identity: FileIdentity,
    presence: Presence,
}

impl Store {
    /// Opens the file, and makes it a database of ours if it is empty.
    pub(crate) fn open(site: &Site) -> Result<Store> {
        let open = Some(Open::new(site)?);
        Ok(Store { open, sweep: Sweep::default(), commits: 0, checkpoint_after: *CHECKPOINT_EVERY.start() })
    }

    /// Whether the file at the path is another one.
    pub(crate) fn is_replaced(&self) -> bool {
        self.open.is_none()
    }

    /// Opens what is at the path now.
    pub(crate) fn reopen(&mut self, site: &Site) -> Result<()> {
        self.open = Some(Open::new(site)?);
        self.sweep = Sweep::default();
        Ok(())
    }

    /// Does the steps in one transaction, and says whom to wake.
    pub(crate) fn transact(
        &mut self,
        site: &Site,
        steps: impl FnOnce(&mut Ledger<'_>) -> Step<()>,
    ) -> Result<News, Fault> {
        let Some(open) = &self.open else { return Err(Fault::Replaced) };
        let done = open.transact(site, &mut self.sweep, steps);
        if done.is_err() && !open.connection.is_autocommit() {
            // If this fails, too, the transaction is gone with its connection.
            let _ = open.connection.execute_batch(sql::meta::rollback);
        }
        if done.is_ok() {
            self.commits += 1;
            if self.commits == STAYS {
                // It is committed, so nothing may fail any more.
                let _ = autocheckpoint(&open.connection, CHECKPOINT_AT_LAST);
            }
        }
        if matches!(done, Err(Fault::Replaced))
            && let Some(Open { presence, .. }) = self.open.take()
        {
            presence.abandon(&site.beside(BELL));
        }
        done
    }

    /// Whether it is time to write the log back into the file.
    pub(crate) fn is_checkpoint_due(&self) -> bool {
        self.commits >= self.checkpoint_after
    }

    /// Writes the log back into the file as far as nobody reads it, and begins it anew. Waits for the disk, three times;
    /// the slower that is, the later the next time.
    pub(crate) fn checkpoint(&mut self, site: &Site) {
        let begin = site.environment.now();
        if let Some(open) = &self.open {
            // What cannot be written back now stays in the log, which is as good. The first commit of a new log waits
            // for the disk: better this one than one that is done in somebody's async runtime.
            let _ = write_back(&open.connection).and_then(|()| begin_log(&open.connection));
        }
        let took = begin.until(site.environment.now());
        let commits = u32::try_from(took.as_nanos() / CHECKPOINT_COST.as_nanos()).unwrap_or(u32::MAX);
        self.checkpoint_after = commits.clamp(*CHECKPOINT_EVERY.start(), *CHECKPOINT_EVERY.end());
        self.commits = 0;
    }
}

impl Open {
    fn new(site: &Site) -> Result<Open> {
        site::create(&site.path)?;
        for _ in 0..OPEN_TRIES {
            if let Some(open) = Open::attempt(site)? {
                return Ok(open);
            }
            thread::sleep(OPEN_PAUSE);
        }
        Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "{}: another process uses it and counts its time from another boot: is the file shared between \
                 hosts, or between containers that pretend to be hosts?",
                site.path.display()
            ),
        ))
    }

    /// None if someone else has it for themselves, or must go first.
    fn attempt(site: &Site) -> Result<Option<Open>> {
        let io = |error: io::Error| from_io(error, &site.path, "open it");
        let mode = fs::metadata(&site.path).map_err(io)?.mode() & 0o777;
        let bell = site.beside(BELL);
        let presence = Presence::open(&bell, mode).map_err(|error| from_io(error, &bell, "make the file"))?;
        let alone = presence.is_alone().map_err(io)?;
        if !alone && !presence.join().map_err(io)? {
            return Ok(None);
        }
        let identity = FileIdentity::at(&site.path).map_err(io)?;
        let connection = match prepare(site, alone) {
            Ok(Some(connection)) => connection,
            Ok(None) => return Ok(None),
            Err(refusal) => {
                if alone {
                    presence.abandon(&bell); // nothing of ours stays beside a file that is not ours
                }
                return Err(refusal.into_error(&site.path));
            }
        };
        if alone && !presence.join().map_err(io)? {
            return Ok(None);
        }
        Ok(Some(Open { connection, identity, presence }))
    }

    fn transact(
        &self,
        site: &Site,
        sweep: &mut Sweep,
        steps: impl FnOnce(&mut Ledger<'_>) -> Step<()>,
    ) -> Result<News, Fault> {
        self.connection.prepare_cached(sql::meta::begin)?.execute([])?;
        if FileIdentity::at(&site.path).ok() != Some(self.identity) {
            return Err(Fault::Replaced);
        }
        let mut ledger = Ledger {
            sql: &self.connection,
            now: site.now(),
            wall: site.wall(),
            line_max: site.config.line_max(),
            sweep,
            waiters: &site.waiters,
            news: News::default(),
        };
        steps(&mut ledger)?;
        let news = ledger.news;
        self.connection.prepare_cached(sql::meta::commit)?.execute([]).map_err(Fault::Commit)?;
        Ok(news)
    }
}

/// Why a file is not opened.
enum Refusal {
    Fault(Fault),
    Other(ErrorKind, String),
}

impl<F: Into<Fault>> From<F> for Refusal {
    fn from(fault: F) -> Refusal {
        Refusal::Fault(fault.into())
    }
}

impl Refusal {
    fn into_error(self, path: &Path) -> Error {
        match self {
            Refusal::Fault(fault) => fault.into_error(path),
            Refusal::Other(kind, what) => Error::new(kind, format!("{}: {what}", path.display())),
        }
    }
}

/// A connection to a file that is ours, of this boot. None if that would take being alone, and we are not.
fn prepare(site: &Site, alone: bool) -> Result<Option<Connection>, Refusal> {
    let connection = connect(&site.path)?;
    if connection.is_readonly(rusqlite::MAIN_DB)? {
        let what = "the file cannot be written by this user".to_owned();
        return Err(Refusal::Other(ErrorKind::Denied, what));
    }
    let ours = is_ours(&connection)?;
    if !ours && !alone {
        return Ok(None);
    }
    close_at_once(&connection)?;
    let mode: String = connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    if mode != "wal" {
        let what = format!("the file system cannot carry a shared log (journal mode {mode})");
        return Err(Refusal::Other(ErrorKind::Unsupported, what));
    }
    let synchronous = if site.config.is_full() { "FULL" } else { "NORMAL" };
    connection.execute_batch(&format!("PRAGMA synchronous = {synchronous}"))?;
    autocheckpoint(&connection, CHECKPOINT_AT)?;
    if !ours {
        initialise(&connection)?;
    }
    let mut statement = connection.prepare(sql::meta::get)?;
    let boot: Option<String> = statement.query_row(["boot"], |row| row.get(0)).optional()?;
    drop(statement);
    if boot.as_deref() != Some(&site.boot) {
        if !alone {
            return Ok(None);
        }
        begin_boot(site, &connection)?;
    }
    if alone && fs::metadata(site.beside("-wal")).is_ok_and(|log| log.len() > LONG_LOG) {
        // What cannot be written back now stays in the log, which is as good.
        let _ = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
    }
    connection.busy_timeout(Duration::ZERO)?; // from here on we wait in our own way
    Ok(Some(connection))
}

fn connect(path: &Path) -> Result<Connection, Fault> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(Duration::from_secs(5))?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
}

/// Writing back takes a wait for the disk, which the next one to come can do as well.
fn close_at_once(connection: &Connection) -> Result<bool, Fault> {
    Ok(connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?)
}

fn autocheckpoint(connection: &Connection, frames: u32) -> Result<(), Fault> {
    Ok(connection.query_row(&format!("PRAGMA wal_autocheckpoint = {frames}"), [], |_| Ok(()))?)
}

fn write_back(connection: &Connection) -> Result<(), Fault> {
    Ok(connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))?)
}

fn begin_log(connection: &Connection) -> Result<(), Fault> {
    connection.prepare_cached(sql::meta::begin_log)?.execute([])?;
    Ok(())
}

/// A connection that only looks.
pub(crate) fn open_reader(path: &Path) -> Result<Connection, Fault> {
    let connection = connect(path)?;
    close_at_once(&connection)?;
    connection.execute_batch("PRAGMA query_only = 1")?;
    Ok(connection)
}

/// False if it is empty; an error if it is someone else's, or too new.
fn is_ours(connection: &Connection) -> Result<bool, Refusal> {
    let pragma = |name| connection.query_row(&format!("PRAGMA {name}"), [], |row| row.get::<_, i32>(0));
    let (application, oldest) = (pragma("application_id")?, pragma("user_version")?);
    if application == APPLICATION && oldest <= FORMAT {
        return Ok(true);
    }
    if application == APPLICATION {
        let what = format!(
            "a newer leasehold wrote it: its format needs at least version {oldest}, this one knows {FORMAT}"
        );
        return Err(Refusal::Other(ErrorKind::Unsupported, what));
    }
    let tables: i64 = connection.query_row(sql::meta::tables, [], |row| row.get(0))?;
    if application != 0 || oldest != 0 || tables != 0 {
        let what = "is the database of another program: name a file of leasehold's own".to_owned();
        return Err(Refusal::Other(ErrorKind::Corrupt, what));
    }
    Ok(false)
}

fn initialise(connection: &Connection) -> Result<(), Fault> {
    connection.execute_batch(&format!(
        "BEGIN IMMEDIATE; {} PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {FORMAT}; \
         INSERT INTO meta (name, value) VALUES ('format', {FORMAT}); COMMIT;",
        sql::SCHEMA
    ))?;
    // The tables have their room in the file from now on, and the log can always be written back: on a disk that is
    // full, what is held can still be renewed.
    write_back(connection)
}

/// Ends what an earlier boot of the host left behind.
fn begin_boot(site: &Site, connection: &Connection) -> Result<(), Fault> {
    let (now, wall) = (site.now(), i64::try_from(site.wall().as_micros()).unwrap_or(i64::MAX));
    connection.execute_batch(sql::meta::begin)?;
    for statement in [sql::boot::end_seats, sql::boot::end_places, sql::boot::end_graves] {
        connection.execute(statement, [])?;
    }
    connection.execute(sql::boot::move_seats, (now, wall))?;
    connection.execute(sql::boot::move_resources, (now, wall))?;
    connection.execute(sql::meta::put, ("boot", &site.boot))?;
    connection.execute_batch(sql::meta::commit)?;
    Ok(())
}
