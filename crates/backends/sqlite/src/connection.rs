//! The connections to the file: the one that writes, with its transactions and checkpoints, and those that
//! only read.

use std::{path::Path, time::Duration};

use leasehold_core::{Error, ErrorKind, Result};
use rusqlite::Connection;
use tokio::sync::oneshot;

use crate::{
    database::Database,
    error::StoreError,
    file_system::FileIdentity,
    open::{self, OpenDatabase},
    sql,
    sweep::Sweep,
    tables::{StoreResult, Tables, WakeupsToSend},
};

/// The number of commits after which the writer thread runs a checkpoint: at least, and at most.
///
/// A checkpoint copies the log into the database file, and waits for the disk three times. But a long log
/// costs every commit: SQLite finds a page in the log by a hash table, and all versions of one page share a
/// slot. Each commit of ours writes the same few pages, so it walks past all their versions. From about 400
/// commits on, the slots of different pages also collide, and a commit costs twice as much and more.
const COMMITS_PER_CHECKPOINT: std::ops::RangeInclusive<u32> = 300..=1000;
/// The time that a checkpoint may cost per commit, before the log is allowed to grow longer. It is more than
/// copying the bytes takes: that part grows with the log, so it is not saved by waiting longer.
const CHECKPOINT_COST_PER_COMMIT: Duration = Duration::from_micros(10);
/// The same as [`open::AUTOCHECKPOINT_FRAMES`] for a process that stays: its writer thread runs the
/// checkpoints.
const AUTOCHECKPOINT_FRAMES_LATER: u32 = 8000;
/// The number of commits after which a process counts as one that stays.
const COMMITS_OF_A_STAYING_PROCESS: u32 = 100;

/// The connection that writes. There is one per backend; `writer/` says who may use it when.
pub(crate) struct WriteConnection {
    /// None once another file is at the path: it must be opened again.
    open: Option<OpenDatabase>,
    sweep: Sweep,
    commits_since_checkpoint: u32,
    checkpoint_after: u32,
}

impl WriteConnection {
    /// Opens the file, and creates the tables if it is empty.
    pub(crate) fn open(database: &Database) -> Result<WriteConnection> {
        Ok(WriteConnection {
            open: Some(OpenDatabase::open(database)?),
            sweep: Sweep::default(),
            commits_since_checkpoint: 0,
            checkpoint_after: *COMMITS_PER_CHECKPOINT.start(),
        })
    }

    /// Whether another file is at the path.
    pub(crate) fn is_replaced(&self) -> bool {
        self.open.is_none()
    }

    /// Opens the file that is at the path now.
    pub(crate) fn reopen(&mut self, database: &Database) -> Result<()> {
        self.open = Some(OpenDatabase::open(database)?);
        self.sweep = Sweep::default();
        Ok(())
    }

    /// Runs `steps` in one transaction, and returns the wake-ups to send.
    pub(crate) fn transact(
        &mut self,
        database: &Database,
        steps: impl FnOnce(&mut Tables<'_>) -> StoreResult<()>,
    ) -> StoreResult<WakeupsToSend> {
        let Some(open) = &self.open else { return Err(StoreError::Replaced) };
        let result = transact(open, database, &mut self.sweep, steps);
        if result.is_err() && !open.connection.is_autocommit() {
            // If the rollback fails, SQLite rolls back when the connection is closed.
            let _ = open.connection.execute_batch(sql::meta::rollback);
        }
        if result.is_ok() {
            self.commits_since_checkpoint += 1;
            if self.commits_since_checkpoint == COMMITS_OF_A_STAYING_PROCESS {
                // The transaction is committed, so an error here must not be reported as its error.
                let _ = open::set_autocheckpoint(&open.connection, AUTOCHECKPOINT_FRAMES_LATER);
            }
        }
        if matches!(result, Err(StoreError::Replaced))
            && let Some(OpenDatabase { change_file, .. }) = self.open.take()
        {
            change_file.delete(&database.change_file());
        }
        result
    }

    /// Whether it is time for [`checkpoint`](WriteConnection::checkpoint).
    pub(crate) fn is_checkpoint_due(&self) -> bool {
        let is_log_long = self.open.as_ref().is_some_and(|open| open.is_log_long);
        self.commits_since_checkpoint >= if is_log_long { 1 } else { self.checkpoint_after }
    }

    /// Copies the log into the database file, as far as no reader needs it, and starts a new log. This waits
    /// for the disk three times; the slower the disk is, the later the next checkpoint.
    pub(crate) fn checkpoint(&mut self, database: &Database) {
        let begin = database.environment.now();
        if let Some(open) = &mut self.open {
            // Whatever cannot be copied now stays in the log, where it is just as safe. The first commit of a
            // new log waits for the disk: better here than in a commit that runs in a caller's async runtime.
            let shorten = std::mem::take(&mut open.is_log_long);
            let connection = &open.connection;
            let _ = if shorten { open::shorten_next_log(connection) } else { Ok(()) }
                .and_then(|()| open::copy_log(connection))
                .and_then(|()| start_new_log(connection));
            if shorten {
                let _ = open::keep_log_length(connection);
            }
        }
        let took = begin.until(database.environment.now());
        let commits =
            u32::try_from(took.as_nanos() / CHECKPOINT_COST_PER_COMMIT.as_nanos()).unwrap_or(u32::MAX);
        self.checkpoint_after = commits.clamp(*COMMITS_PER_CHECKPOINT.start(), *COMMITS_PER_CHECKPOINT.end());
        self.commits_since_checkpoint = 0;
    }
}

fn transact(
    open: &OpenDatabase,
    database: &Database,
    sweep: &mut Sweep,
    steps: impl FnOnce(&mut Tables<'_>) -> StoreResult<()>,
) -> StoreResult<WakeupsToSend> {
    open.connection.prepare_cached(sql::meta::begin)?.execute([])?;
    if FileIdentity::of(&database.path).ok() != Some(open.identity) {
        return Err(StoreError::Replaced);
    }
    let mut tables = Tables {
        sql: &open.connection,
        // Read after the write lock was taken: what waited for the lock must not see time go back.
        now: database.now(),
        wall: database.wall(),
        queue_max: database.config.queue_max(),
        sweep,
        waiters: &database.waiters,
        change_file: &open.change_file,
        wakeups: WakeupsToSend::default(),
    };
    steps(&mut tables)?;
    let wakeups = tables.wakeups;
    open.connection.prepare_cached(sql::meta::commit)?.execute([]).map_err(StoreError::Commit)?;
    Ok(wakeups)
}

fn start_new_log(connection: &Connection) -> StoreResult<()> {
    connection.prepare_cached(sql::meta::start_new_log)?.execute([])?;
    Ok(())
}

/// A connection that only reads.
#[derive(Debug)]
pub(crate) struct ReadConnection {
    pub(crate) connection: Connection,
    /// The file that was opened.
    pub(crate) identity: FileIdentity,
}

impl ReadConnection {
    /// Opens the file at the path, which has this identity.
    pub(crate) fn open(path: &Path, identity: FileIdentity) -> StoreResult<ReadConnection> {
        Ok(ReadConnection { connection: open::open_reader(path)?, identity })
    }
}

/// Runs work that may take long on a thread of its own, so that the caller's async runtime is not blocked.
pub(crate) async fn run_on_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    let (sender, reply) = oneshot::channel();
    let thread = std::thread::Builder::new().name("leasehold-look".to_owned());
    let started = thread.spawn(move || drop(sender.send(work())));
    started.map_err(cannot_start_thread)?;
    reply.await.map_err(|_| {
        Error::new(ErrorKind::Unavailable, "a thread of the SQLite backend panicked before it replied")
    })
}

/// The error if the operating system does not start a thread.
pub(crate) fn cannot_start_thread(error: std::io::Error) -> Error {
    let message = format!("cannot start a thread for the SQLite backend: {error}");
    Error::new(ErrorKind::Unavailable, message).because(error)
}
