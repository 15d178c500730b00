//! Wake-ups from other processes (ADR 0012).
//!
//! A process that has waiters runs one thread:
//!
//! 1. While there are no waiters, sleep until [`WakeupListener::ensure_running`] wakes it.
//! 2. Read the rows of the table `ring` that are new, and wake the waiters of this process that they concern.
//!    If rows are missing, because the table keeps only the newest, check every resource that has waiters.
//! 3. Wait for the next change signal (`change_signal.rs`), and go on with 1.

use std::sync::{
    Arc, Mutex, PoisonError, Weak,
    atomic::{AtomicBool, Ordering},
};

use leasehold_core::{OwnerToken, Resource};
use rusqlite::{Connection, OptionalExtension as _};

use crate::{
    change_signal::{ChangeReceiver, ReceiverWaker},
    connection::ReadConnection,
    database::Database,
    file_system::FileIdentity,
    inspect::find_row,
    silence::owners_to_wake,
    sql,
    tables::StoreResult,
};

/// Receives wake-ups from other processes. One thread serves all waiters; it starts with the first of them.
#[derive(Debug, Default)]
pub(crate) struct WakeupListener {
    thread: Mutex<Option<Arc<ListenerThread>>>,
}

/// The thread, as the backend sees it. The thread ends when this is dropped.
#[derive(Debug)]
struct ListenerThread {
    waker: ReceiverWaker,
    /// There are no waiters, so the thread does not watch the change file.
    is_asleep: AtomicBool,
}

impl WakeupListener {
    /// Makes sure that the thread runs and is awake. Call it after the waiter was registered.
    pub(crate) fn ensure_running(&self, database: &Arc<Database>) -> std::io::Result<()> {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = &*thread {
            if thread.is_asleep.load(Ordering::SeqCst) {
                thread.waker.wake();
            }
            return Ok(());
        }
        let (receiver, waker) = ChangeReceiver::new(database.change_file())?;
        let started = Arc::new(ListenerThread { waker, is_asleep: AtomicBool::new(false) });
        let (database, weak) = (Arc::clone(database), Arc::downgrade(&started));
        let name = "leasehold-wait".to_owned();
        std::thread::Builder::new().name(name).spawn(move || run(&database, &weak, receiver))?;
        *thread = Some(started);
        Ok(())
    }
}

impl Drop for ListenerThread {
    fn drop(&mut self) {
        self.waker.wake();
    }
}

fn run(database: &Database, thread: &Weak<ListenerThread>, mut receiver: ChangeReceiver) {
    let mut reader = WakeupReader::default();
    receiver.watch_file();
    loop {
        {
            let Some(thread) = thread.upgrade() else { return };
            thread.is_asleep.store(true, Ordering::SeqCst);
            // The order matters. A waiter that registered before the store is seen here; one that registers
            // after it sees `is_asleep` and wakes this thread.
            if database.waiters.is_empty() {
                drop(thread);
                receiver.wait_for_waker();
                reader.check_everything_next();
                continue;
            }
            thread.is_asleep.store(false, Ordering::SeqCst);
        }
        // After an error, the next round opens a new connection.
        if reader.wake_waiters(database).is_err() {
            reader = WakeupReader::default();
        }
        receiver.wait_for_signal();
    }
}

/// Reads the table `ring`.
#[derive(Debug, Default)]
struct WakeupReader {
    connection: Option<ReadConnection>,
    /// The last row that was read; `None` means that every resource with waiters must be checked.
    last: Option<i64>,
}

/// How many rows of `ring` are read at once.
const BATCH_MAX: i64 = 256;

impl WakeupReader {
    fn check_everything_next(&mut self) {
        self.last = None;
    }

    /// Reads what is new, and wakes the waiters of this process that it concerns.
    fn wake_waiters(&mut self, database: &Database) -> StoreResult<()> {
        let file = FileIdentity::of(&database.path).ok();
        if self.connection.as_ref().map(|open| open.identity) != file {
            *self = WakeupReader::default();
            if let Some(file) = file {
                self.connection = Some(ReadConnection::open(&database.path, file)?);
            }
        }
        let Some(ReadConnection { connection, .. }) = &self.connection else { return Ok(()) };
        let Some(mut last) = self.last else {
            self.last = Some(newest_wakeup(connection)?);
            return check_all_waiters(connection, database);
        };
        loop {
            let wakeups = wakeups_after(connection, last)?;
            let Some(newest) = wakeups.last().map(|wakeup| wakeup.sequence) else { break };
            if wakeups.first().is_some_and(|first| first.sequence > last + 1) {
                // Rows were pruned before this process read them.
                check_all_waiters(connection, database)?;
            } else {
                wakeups.iter().try_for_each(|wakeup| deliver(connection, database, wakeup))?;
            }
            last = newest;
            self.last = Some(last);
        }
        Ok(())
    }
}

/// A row of the table `ring`.
struct StoredWakeup {
    sequence: i64,
    /// None if the resource was swept since.
    resource: Option<Resource>,
    target: WakeupTarget,
}

/// The waiters that a stored wake-up is for.
#[derive(Clone, Copy)]
enum WakeupTarget {
    /// The claims that can be granted now or should say that they live, and the watchers.
    Grantable,
    /// A claim that lost its place.
    Owner(OwnerToken),
    /// Every waiter of the resource.
    Everyone,
}

fn newest_wakeup(connection: &Connection) -> StoreResult<i64> {
    let mut statement = connection.prepare_cached(sql::wakeup::newest)?;
    Ok(statement.query_row([], |row| row.get::<_, Option<i64>>(0))?.unwrap_or(0))
}

fn wakeups_after(connection: &Connection, last: i64) -> StoreResult<Vec<StoredWakeup>> {
    let mut statement = connection.prepare_cached(sql::wakeup::after)?;
    let mut rows = statement.query((last, BATCH_MAX))?;
    let mut wakeups = Vec::new();
    while let Some(row) = rows.next()? {
        let key: Option<String> = row.get(1)?;
        let target = match row.get::<_, Option<Vec<u8>>>(2)? {
            None => WakeupTarget::Grantable,
            Some(owner) => match owner.try_into() {
                Ok(owner) => WakeupTarget::Owner(OwnerToken::from_bytes(owner)),
                // An empty value means everyone. Any other length does, too: to wake too many is harmless.
                Err(_) => WakeupTarget::Everyone,
            },
        };
        let resource = key.and_then(|key| Resource::from_key(&key).ok());
        wakeups.push(StoredWakeup { sequence: row.get(0)?, resource, target });
    }
    Ok(wakeups)
}

fn deliver(connection: &Connection, database: &Database, wakeup: &StoredWakeup) -> StoreResult<()> {
    let Some(resource) = &wakeup.resource else { return Ok(()) };
    match wakeup.target {
        WakeupTarget::Owner(owner) => database.waiters.update(resource, |waiters| waiters.wake_owner(owner)),
        WakeupTarget::Everyone => database.waiters.update(resource, |waiters| waiters.wake_all()),
        WakeupTarget::Grantable => {
            if database.waiters.has_waiters(resource) {
                wake_grantable(connection, database, resource)?;
            }
        }
    }
    Ok(())
}

/// Wakes the claims that can be granted now or should say that they live, and the watchers that know another
/// version.
fn wake_grantable(connection: &Connection, database: &Database, resource: &Resource) -> StoreResult<()> {
    let row = find_row(connection, resource)?;
    let owners = row.as_ref().map_or(Ok(Vec::new()), |row| owners_to_wake(connection, row))?;
    let version = row.map_or(0, |row| row.version.unsigned_abs());
    database.waiters.update(resource, |waiters| {
        owners.into_iter().for_each(|owner| waiters.wake_owner(owner));
        waiters.wake_watchers(version);
    });
    Ok(())
}

/// Checks every resource that has waiters in this process, because wake-ups may have been missed.
fn check_all_waiters(connection: &Connection, database: &Database) -> StoreResult<()> {
    for resource in database.waiters.resources() {
        wake_grantable(connection, database, &resource)?;
        let resource_id = find_row(connection, &resource)?.map(|row| row.id);
        for owner in database.waiters.queued_owners(&resource) {
            let mut statement = connection.prepare_cached(sql::queue::find)?;
            let place = statement.query_row((resource_id, owner.to_bytes()), |_| Ok(())).optional()?;
            if place.is_none() {
                database.waiters.update(&resource, |waiters| waiters.wake_owner(owner));
            }
        }
    }
    Ok(())
}
