//! The writer thread: does the writes that may block, and those that arrive while the connection is in use.
//!
//! 1. Wait until a write needs the thread or a checkpoint is due, and the connection is free.
//! 2. Open the file again if it was replaced.
//! 3. Do all queued writes in one transaction. While another process has the write lock, try again until
//!    `busy_timeout`. If the disk is full, run a checkpoint and try once more.
//! 4. If one write makes the transaction fail, do each in a transaction of its own, so that it harms no
//!    other.
//! 5. Reply to the callers, run the checkpoint if it is due, and wake the waiters.

use std::{
    sync::{Arc, PoisonError},
    thread,
    time::Duration,
};

use leasehold_core::Result;

use super::{
    ConnectionGuard, WriterShared, WriterState,
    queued_write::{FinishedWrite, QueuedWrite},
};
use crate::{
    connection::{WriteConnection, cannot_start_thread},
    tables::{StoreResult, WakeupsToSend},
};

/// The most writes in one transaction.
const BATCH_MAX: usize = 256;
/// The first pause before the write lock of another process is tried again. It doubles each time.
const LOCK_PAUSE_MIN: Duration = Duration::from_micros(50);
/// The longest pause.
const LOCK_PAUSE_MAX: Duration = Duration::from_micros(500);

impl WriterShared {
    /// Wakes the writer thread, and starts it if it does not run.
    pub(super) fn wake_thread(self: &Arc<Self>, state: &mut WriterState) -> Result<()> {
        if !state.thread_is_running {
            let shared = Arc::clone(self);
            let builder = thread::Builder::new().name("leasehold-sqlite".to_owned());
            let started = builder.spawn(move || WriterThread { shared }.run());
            started.map_err(cannot_start_thread)?;
            state.thread_is_running = true;
        }
        // Without the connection it could do nothing yet. Giving the connection back wakes it.
        if state.connection.is_some() {
            self.thread_wakeup.notify_one();
        }
        Ok(())
    }
}

/// The thread that does the writes that may block.
struct WriterThread {
    shared: Arc<WriterShared>,
}

/// What the writes of one round came to.
#[derive(Default)]
struct Round {
    finished: Vec<FinishedWrite>,
    wakeups: Vec<WakeupsToSend>,
}

impl WriterThread {
    fn run(&self) {
        while let Some((mut guard, writes)) = self.wait_for_work() {
            let Some(connection) = &mut guard.connection else { continue };
            let round = self.do_round(connection, writes);
            if connection.is_checkpoint_due() {
                round.finished.into_iter().for_each(FinishedWrite::reply);
                connection.checkpoint(&self.shared.database);
            } else {
                // Give the connection back before the replies: then a caller that is alone does its next
                // write itself.
                drop(guard);
                round.finished.into_iter().for_each(FinishedWrite::reply);
            }
            round.wakeups.iter().for_each(|wakeups| self.shared.send_wakeups(wakeups));
        }
    }

    /// Waits for the connection and for writes or a checkpoint to do. Returns None when the backend is
    /// closed.
    fn wait_for_work(&self) -> Option<(ConnectionGuard<'_>, Vec<Box<dyn QueuedWrite>>)> {
        let shared = &self.shared;
        let mut state = shared.state();
        loop {
            let checkpoint_due = state.connection.as_ref().is_some_and(WriteConnection::is_checkpoint_due);
            if (state.needs_thread || checkpoint_due)
                && let Some(connection) = state.connection.take()
            {
                state.thread_is_next = false;
                let writes = state.take_queued(BATCH_MAX);
                return Some((ConnectionGuard { shared, connection: Some(connection) }, writes));
            }
            if state.is_closed {
                return None;
            }
            state = shared.thread_wakeup.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn do_round(&self, connection: &mut WriteConnection, mut writes: Vec<Box<dyn QueuedWrite>>) -> Round {
        let mut round = Round { finished: Vec::with_capacity(writes.len()), ..Round::default() };
        writes.retain(|write| !write.is_abandoned());
        if connection.is_replaced()
            && !writes.is_empty()
            && let Err(error) = connection.reopen(&self.shared.database)
        {
            let failed = writes.drain(..).map(|write| FinishedWrite::new(write, Err(error.clone())));
            round.finished.extend(failed);
        }
        if !writes.is_empty() {
            self.write_together_or_alone(connection, writes, &mut round);
        }
        round
    }

    /// Does all writes in one transaction; if one of them makes it fail, each in a transaction of its own.
    fn write_together_or_alone(
        &self,
        connection: &mut WriteConnection,
        mut writes: Vec<Box<dyn QueuedWrite>>,
        round: &mut Round,
    ) {
        match self.transact_with_retries(connection, &mut writes) {
            Ok(wakeups) => {
                round.wakeups.push(wakeups);
                round.finished.extend(writes.into_iter().map(|write| FinishedWrite::new(write, Ok(()))));
            }
            Err(error) if writes.len() > 1 && error.may_be_of_one_write() => {
                let alone = writes.into_iter().map(|write| vec![write]);
                alone.for_each(|write| self.write_together_or_alone(connection, write, round));
            }
            Err(error) => {
                let error = error.into_error(&self.shared.database.path);
                let failed = writes.into_iter().map(|write| FinishedWrite::new(write, Err(error.clone())));
                round.finished.extend(failed);
            }
        }
    }

    /// Tries again while another process has the write lock, until the busy timeout; makes room once if the
    /// disk is full.
    fn transact_with_retries(
        &self,
        connection: &mut WriteConnection,
        writes: &mut [Box<dyn QueuedWrite>],
    ) -> StoreResult<WakeupsToSend> {
        let database = &self.shared.database;
        let (mut time_left, mut pause) = (database.config.lock_timeout(), LOCK_PAUSE_MIN);
        let mut made_room = false;
        loop {
            let result = connection
                .transact(database, |tables| writes.iter_mut().try_for_each(|write| write.run(tables)));
            match result {
                Err(error) if error.is_busy() && !time_left.is_zero() => {
                    thread::sleep(pause);
                    time_left = time_left.saturating_sub(pause);
                    pause = (pause * 2).min(LOCK_PAUSE_MAX);
                }
                // After a checkpoint the log starts again at its beginning, in the space that it has already.
                Err(error) if error.is_full() && !made_room => {
                    connection.checkpoint(database);
                    made_room = true;
                }
                result => return result,
            }
        }
    }
}

impl Drop for WriterThread {
    /// If a bug ends the thread, the callers in the queue get an error, and the next write starts a new
    /// thread.
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.thread_is_running = false;
        (state.needs_thread, state.thread_is_next) = (false, false);
        let abandoned = std::mem::take(&mut state.queue);
        // Dropping the writes wakes their callers, which take this lock.
        drop(state);
        drop(abandoned);
    }
}
