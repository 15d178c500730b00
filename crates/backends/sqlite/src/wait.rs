//! The verb `wait`: returns when it is worth to call `acquire` again.
//!
//! 1. Register the waiter in the [`WaiterRegistry`](crate::waiters::WaiterRegistry), so that no wake-up after
//!    this is missed.
//! 2. Make sure that the [`WakeupListener`](crate::listener::WakeupListener) of this process runs.
//! 3. Check the file, in one transaction: if the claim was called or is silent, or the resource changed since the
//!    claim's cursor, return at once. If the claim has no place in the queue, set `watched_until`: this asks
//!    other processes to report every change of the resource.
//! 4. Sleep until a wake-up. `backend.rs` adds the timeout.

use std::time::Duration;

use leasehold_core::{ClaimRef, Cursor, Error, ErrorKind, Result};

use crate::{
    backend::Sqlite,
    tables::{StoreResult, Tables},
    writer::WriteVerb,
};

impl Sqlite {
    /// Waits for a wake-up, without a timeout.
    pub(crate) async fn wait_for_wakeup(
        &self,
        claim: &ClaimRef,
        since: Cursor,
        at_most: Duration,
    ) -> Result<()> {
        let waiter = self.database.waiters.register(claim);
        self.listener.ensure_running(&self.database).map_err(|error| {
            let path = self.database.path.display();
            let message = format!("{path}: cannot start the thread that listens for changes: {error}");
            Error::new(ErrorKind::Unavailable, message).because(error)
        })?;
        match self.writer.run(CheckBeforeWait { claim: claim.clone(), since, at_most }).await? {
            WaitCheck::AskAgain => return Ok(()),
            WaitCheck::Queued => waiter.has_place(),
            WaitCheck::NotQueued { version } => waiter.knows_version(version),
        }
        waiter.woken().await;
        Ok(())
    }
}

/// Step 3, for the writer.
struct CheckBeforeWait {
    claim: ClaimRef,
    since: Cursor,
    at_most: Duration,
}

impl WriteVerb for CheckBeforeWait {
    type Reply = WaitCheck;

    fn run(&self, tables: &mut Tables<'_>) -> StoreResult<Self::Reply> {
        tables.check_before_wait(self)
    }
}

/// Whether a claim has to wait, and for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitCheck {
    /// The claim should call `acquire` again.
    AskAgain,
    /// The claim has a place in the queue and cannot be granted yet.
    Queued,
    /// The claim has no place, and nothing changed.
    NotQueued {
        /// The version of the resource that the claim knows.
        version: u64,
    },
}

impl Tables<'_> {
    fn check_before_wait(&mut self, wait: &CheckBeforeWait) -> StoreResult<WaitCheck> {
        let mut row = self.load(&wait.claim.resource)?;
        self.pass_over_silent(&mut row, None)?;
        self.call(&mut row)?;
        let check = if let Some(place) = self.find_place(&row, wait.claim.owner)? {
            if place.is_called || place.is_silent { WaitCheck::AskAgain } else { WaitCheck::Queued }
        } else if row.version.unsigned_abs() != wait.since.0 {
            WaitCheck::AskAgain
        } else {
            self.ensure_row(&mut row)?;
            let until = self.after(wait.at_most);
            if row.watched_until < until {
                row.watched_until = until;
                row.mark_changed();
            }
            WaitCheck::NotQueued { version: row.version.unsigned_abs() }
        };
        self.save(&row)?;
        Ok(check)
    }
}
