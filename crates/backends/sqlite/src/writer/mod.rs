//! One writer at a time, and group commit (ADR 0011).
//!
//! A backend has one connection that writes. A write takes one of three ways:
//!
//! 1. **In the caller's own future**, if the connection is free and no other task wrote within the last two
//!    milliseconds. No other thread is involved, and nothing in the transaction waits for the disk.
//! 2. **As a group**, if other tasks write at the same time. Each caller puts its write into the queue and
//!    yields once, so that the other tasks of the runtime do the same. The first caller that is polled again
//!    does all queued writes in one transaction.
//! 3. **By the writer thread** (`thread.rs`), if the connection is in use, or if the write may block: another
//!    process has the write lock, a commit waits for the disk (`durability=full`), the batch is long, a
//!    checkpoint is due, or the file was replaced and must be opened again. The thread starts when it is
//!    first needed.
//!
//! No transaction contains an `await`, so a dropped future cannot leave one half done.

mod queued_write;
mod thread;

use std::{
    future::poll_fn,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    task::{Poll, Waker},
    time::Duration,
};

use leasehold_core::{Effect, Error, ErrorKind, Result, Timestamp};
use tokio::sync::oneshot;

pub(crate) use self::queued_write::WriteVerb;
use self::queued_write::{PendingWrite, QueuedWrite, reply_all};
use crate::{
    change_signal::ChangeSignal, connection::WriteConnection, database::Database, error::StoreError,
    tables::WakeupsToSend,
};

/// The most writes that a caller does in one transaction for others. It runs in an async runtime and must not
/// stay there long.
const GROUP_MAX: usize = 64;
/// How many times in a row one task may write in its own future. A task that never waits for anything would
/// otherwise starve the other tasks of its runtime.
const STREAK_MAX: u32 = 32;
/// If another task wrote this short a time ago, writes are grouped.
const GROUPING_WINDOW: Duration = Duration::from_millis(2);

/// The way to the connection that writes.
pub(crate) struct Writer {
    shared: Arc<WriterShared>,
}

/// What callers and the writer thread share.
struct WriterShared {
    database: Arc<Database>,
    state: Mutex<WriterState>,
    /// Wakes the writer thread.
    thread_wakeup: Condvar,
}

struct WriterState {
    /// None while it is in use.
    connection: Option<WriteConnection>,
    queue: Vec<Box<dyn QueuedWrite>>,
    /// A write in the queue counts on the writer thread.
    needs_thread: bool,
    thread_is_running: bool,
    /// A checkpoint is due, so the writer thread gets the connection next. Without this, a caller that writes
    /// without pause would always be a little faster than the thread, and every commit would wake the thread
    /// in vain.
    thread_is_next: bool,
    is_closed: bool,
    last_caller: Option<LastCaller>,
}

/// The task that wrote last.
struct LastCaller {
    waker: Waker,
    when: Timestamp,
    /// How many times in a row it wrote.
    streak: u32,
}

impl Writer {
    pub(crate) fn new(database: Arc<Database>, connection: WriteConnection) -> Writer {
        let state = WriterState {
            connection: Some(connection),
            queue: Vec::new(),
            needs_thread: false,
            thread_is_running: false,
            thread_is_next: false,
            is_closed: false,
            last_caller: None,
        };
        let shared = WriterShared { database, state: Mutex::new(state), thread_wakeup: Condvar::new() };
        Writer { shared: Arc::new(shared) }
    }

    /// Does the write in a transaction, in one of the three ways above.
    ///
    /// # Cancel safety
    /// The write may still be done after the future was dropped.
    pub(crate) async fn run<V: WriteVerb>(&self, verb: V) -> Result<V::Reply> {
        let shared = &self.shared;
        let must_group = poll_fn(|cx| Poll::Ready(shared.must_group(cx.waker()))).await;
        let is_long = shared.database.config.is_full() || verb.is_long();
        let attempt =
            if must_group || is_long { InlineAttempt::InUse(verb) } else { shared.try_inline(verb) };
        let (verb, by_thread) = match attempt {
            InlineAttempt::Done(reply) => return reply,
            InlineAttempt::MayBlock(verb) => (verb, true),
            InlineAttempt::InUse(verb) => (verb, is_long),
        };
        let (sender, mut reply) = oneshot::channel();
        shared.enqueue(Box::new(PendingWrite::new(verb, sender)), by_thread)?;
        if !by_thread {
            let guard = LeaveToThreadOnDrop(shared);
            yield_once().await;
            std::mem::forget(guard);
            // If another caller did the write meanwhile, the writes in the queue now are newer: their callers
            // have not been polled again yet, and one of them will do them.
            if let Ok(reply) = reply.try_recv() {
                return reply;
            }
            shared.write_group();
        }
        reply.await.unwrap_or_else(|_| Err(writer_stopped()))
    }
}

/// What came of the attempt to write in the caller's own future.
enum InlineAttempt<V: WriteVerb> {
    Done(Result<V::Reply>),
    /// Another process has the write lock, or the disk is full: the writer thread tries again.
    MayBlock(V),
    /// The connection is in use.
    InUse(V),
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.shared.state().is_closed = true;
        self.shared.thread_wakeup.notify_all();
    }
}

/// Gives every other task that is ready a turn.
async fn yield_once() {
    let mut yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Leaves the queue to the writer thread when it is dropped: a caller that is dropped while it yields cannot
/// do the writes that others count on.
struct LeaveToThreadOnDrop<'a>(&'a Arc<WriterShared>);

impl Drop for LeaveToThreadOnDrop<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.needs_thread = true;
        // If the thread cannot be started, the next caller does what is queued.
        let _ = self.0.wake_thread(&mut state);
    }
}

fn writer_stopped() -> Error {
    let message = "the SQLite writer thread has stopped before it replied: ask again to see what is stored";
    Error::new(ErrorKind::Unavailable, message).with_effect(Effect::Unknown)
}

/// Exclusive use of the connection. Dropping it gives the connection back, also after a panic.
struct ConnectionGuard<'a> {
    shared: &'a Arc<WriterShared>,
    connection: Option<WriteConnection>,
}

impl Drop for ConnectionGuard<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        let checkpoint_due = self.connection.as_ref().is_some_and(WriteConnection::is_checkpoint_due);
        state.connection = self.connection.take();
        if checkpoint_due || state.needs_thread {
            // If the thread cannot be started, no write counts on it, and SQLite runs a checkpoint by itself
            // later.
            let woken = self.shared.wake_thread(&mut state).is_ok();
            state.thread_is_next = checkpoint_due && woken;
        }
    }
}

impl WriterShared {
    fn state(&self) -> MutexGuard<'_, WriterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether another task wrote a moment ago, or this task wrote so often that others may be waiting for a
    /// turn.
    fn must_group(&self, waker: &Waker) -> bool {
        let when = self.database.environment.now();
        let mut state = self.state();
        match &mut state.last_caller {
            // Compare the data alone: the wakers of one task may have different vtables.
            Some(last) if last.waker.data() == waker.data() => {
                last.when = when;
                last.streak = (last.streak + 1) % STREAK_MAX;
                last.streak == 0
            }
            last => {
                let before = last.replace(LastCaller { waker: waker.clone(), when, streak: 0 });
                before.is_some_and(|before| before.when.until(when) < GROUPING_WINDOW)
            }
        }
    }

    /// Way 1: does the write now if the connection is free.
    fn try_inline<V: WriteVerb>(self: &Arc<Self>, verb: V) -> InlineAttempt<V> {
        let Some(mut guard) = self.take_connection() else { return InlineAttempt::InUse(verb) };
        let Some(connection) = &mut guard.connection else { return InlineAttempt::InUse(verb) };
        let mut reply = None;
        let result = connection.transact(&self.database, |tables| {
            reply = Some(verb.run(tables)?);
            Ok(())
        });
        drop(guard);
        match (result, reply) {
            (Ok(wakeups), Some(reply)) => {
                self.send_wakeups(&wakeups);
                InlineAttempt::Done(Ok(reply))
            }
            (Err(error), _) if is_worth_waiting(&error) => InlineAttempt::MayBlock(verb),
            (Err(error), _) => InlineAttempt::Done(Err(error.into_error(&self.database.path))),
            (Ok(_), None) => InlineAttempt::Done(Err(writer_stopped())),
        }
    }

    /// Way 2: does the queued writes in one transaction if the connection is free; if not, leaves them to the
    /// writer thread.
    fn write_group(self: &Arc<Self>) {
        let Some((mut guard, mut writes)) = self.take_connection_and_queue() else { return };
        writes.retain(|write| !write.is_abandoned());
        let Some(connection) = &mut guard.connection else { return };
        let result = connection
            .transact(&self.database, |tables| writes.iter_mut().try_for_each(|write| write.run(tables)));
        match result {
            Ok(wakeups) => {
                drop(guard);
                reply_all(writes, &Ok(()));
                self.send_wakeups(&wakeups);
            }
            Err(error) if is_worth_waiting(&error) || (writes.len() > 1 && error.may_be_of_one_write()) => {
                // The guard, dropped after this, wakes the thread.
                let mut state = self.state();
                state.queue.splice(0..0, writes);
                state.needs_thread = true;
            }
            Err(error) => reply_all(writes, &Err(error.into_error(&self.database.path))),
        }
    }

    /// Takes the connection if it is free, nobody is queued for it, and nothing about it may block.
    fn take_connection(self: &Arc<Self>) -> Option<ConnectionGuard<'_>> {
        let mut state = self.state();
        let is_free = state.queue.is_empty() && !state.thread_is_next;
        let connection = state.connection.take_if(|connection| is_free && !connection.is_replaced())?;
        Some(ConnectionGuard { shared: self, connection: Some(connection) })
    }

    /// Takes the connection and the head of the queue. If there is a queue but no connection for it, the
    /// writer thread has to do the writes.
    fn take_connection_and_queue(
        self: &Arc<Self>,
    ) -> Option<(ConnectionGuard<'_>, Vec<Box<dyn QueuedWrite>>)> {
        let mut state = self.state();
        if state.queue.is_empty() {
            return None;
        }
        let short = state.queue.iter().take(GROUP_MAX).take_while(|write| !write.is_long()).count();
        let may_take = short > 0 && !state.thread_is_next;
        match state.connection.take_if(|connection| may_take && !connection.is_replaced()) {
            Some(connection) => {
                let guard = ConnectionGuard { shared: self, connection: Some(connection) };
                Some((guard, state.take_queued(short)))
            }
            None => {
                state.needs_thread = true;
                // If the thread cannot be started, the next caller does what is queued.
                let _ = self.wake_thread(&mut state);
                None
            }
        }
    }

    /// Wakes waiters after a commit: those of this process, and other processes if the transaction stored
    /// wake-ups for them.
    fn send_wakeups(&self, wakeups: &WakeupsToSend) {
        self.database.waiters.wake_after_commit(wakeups);
        if wakeups.other_processes {
            ChangeSignal::send(&self.database.change_file());
        }
    }

    fn enqueue(self: &Arc<Self>, write: Box<dyn QueuedWrite>, by_thread: bool) -> Result<()> {
        let mut state = self.state();
        if by_thread {
            state.needs_thread = true;
            self.wake_thread(&mut state)?;
        }
        state.queue.push(write);
        Ok(())
    }
}

/// Whether another try may succeed, but may take a while.
fn is_worth_waiting(error: &StoreError) -> bool {
    error.is_busy() || error.is_full()
}

impl WriterState {
    fn take_queued(&mut self, limit: usize) -> Vec<Box<dyn QueuedWrite>> {
        let count = self.queue.len().min(limit);
        let writes = self.queue.drain(..count).collect();
        self.needs_thread &= !self.queue.is_empty();
        writes
    }
}
