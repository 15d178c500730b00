//! The queue of a resource: claims in the order of their arrival (table `place`). `silence.rs` says which of them
//! are passed over.

use leasehold_core::{Claim, ClientId, Handover, OwnerToken, WhenBlocked, admission};
use rusqlite::{Connection, params};

use crate::{
    resource_row::ResourceRow,
    silence::owners_to_wake,
    sql,
    tables::{StoreResult, Tables},
};

/// If more places than this expire at once, other processes get one wake-up for everyone instead of one per
/// owner.
const SINGLE_WAKEUPS_MAX: usize = 16;
/// The number of rows kept in the table `ring`. A process that missed more checks all its waiters.
const STORED_WAKEUPS_MAX: i64 = 1024;
/// In the column `ring.owner`: wake everyone that waits for the resource.
const EVERYONE: &[u8] = &[];

/// A claim in the queue.
pub(crate) struct QueuedClaim {
    pub(crate) arrival: i64,
    pub(crate) weight: u32,
    pub(crate) owner: OwnerToken,
    pub(crate) ends: i64,
    pub(crate) heard: i64,
    pub(crate) called: i64,
    pub(crate) client: i64,
    pub(crate) client_lock: i64,
}

/// The owner's place in the queue.
#[derive(Clone, Copy)]
pub(crate) struct OwnPlace {
    pub(crate) arrival: i64,
    pub(crate) ends: i64,
    /// It was told that it can be granted.
    pub(crate) is_called: bool,
    pub(crate) is_silent: bool,
}

/// A place that was removed.
pub(crate) struct RemovedPlace {
    arrival: i64,
    /// Since when the claim waited.
    since: i64,
}

/// Where a blocked claim is in the queue.
#[derive(Default)]
pub(crate) struct QueuePosition {
    pub(crate) is_queued: bool,
    /// The number of live claims ahead: exact within the window of the admission rule, an upper bound beyond it.
    pub(crate) ahead: u32,
    /// When the next place within the window ends, or the next claim in it becomes silent.
    pub(crate) next_change: Option<i64>,
}

/// Reads the live claims of the queue from its head: as far as `read` goes, and at most `limit` claims.
pub(crate) fn read_queue<T>(
    connection: &Connection,
    row: &ResourceRow<'_>,
    limit: usize,
    read: impl FnOnce(&mut dyn Iterator<Item = QueuedClaim>) -> T,
) -> StoreResult<T> {
    // Without silent claims, the rows are read in the order of the table, without an index.
    let statement = if row.silent { sql::queue::live_head } else { sql::queue::head };
    let mut statement = connection.prepare_cached(statement)?;
    let mut rows = statement.query((row.id, i64::try_from(limit).unwrap_or(i64::MAX)))?;
    let mut next = || -> StoreResult<Option<QueuedClaim>> {
        let Some(row) = rows.next()? else { return Ok(None) };
        Ok(Some(QueuedClaim {
            arrival: row.get(0)?,
            weight: row.get(1)?,
            owner: OwnerToken::from_bytes(row.get(2)?),
            ends: row.get(3)?,
            heard: row.get(4)?,
            called: row.get(5)?,
            client: row.get(6)?,
            client_lock: row.get(7)?,
        }))
    };
    // `read` takes plain claims, so an error ends the iterator and is returned afterwards.
    let mut failed = None;
    let result = read(&mut std::iter::from_fn(|| {
        next().unwrap_or_else(|error| {
            failed = Some(error);
            None
        })
    }));
    failed.map_or(Ok(result), Err)
}

/// The id of a client as the file stores it; 0 for none.
fn stored_client(client: Option<ClientId>) -> i64 {
    client.map_or(0, |client| i64::from_ne_bytes(client.get().to_ne_bytes()))
}

impl Tables<'_> {
    pub(crate) fn find_place(
        &self,
        row: &ResourceRow<'_>,
        owner: OwnerToken,
    ) -> StoreResult<Option<OwnPlace>> {
        if row.places == 0 {
            return Ok(None);
        }
        let key = (row.id, owner.to_bytes());
        let read = |columns: &rusqlite::Row<'_>| {
            Ok(OwnPlace {
                arrival: columns.get(0)?,
                ends: columns.get(1)?,
                is_called: columns.get::<_, i64>(2)? > 0,
                is_silent: columns.get(3)?,
            })
        };
        self.query_one(sql::queue::find, key, read)
    }

    /// Puts the claim at the end of the queue, or notes that it was heard and extends the place that it has.
    pub(crate) fn enter_queue(&mut self, row: &mut ResourceRow<'_>, claim: &Claim) -> StoreResult<()> {
        if self.note_heard(row, claim.owner, self.after(claim.place_ttl))?.is_some() {
            return Ok(());
        }
        let last = self.query_one(sql::queue::last, [row.id], |columns| columns.get::<_, Option<i64>>(0))?;
        let arrival = last.flatten().map_or(0, |last| last + 1);
        self.insert_place(row, claim, arrival, self.now)
    }

    fn insert_place(
        &mut self,
        row: &mut ResourceRow<'_>,
        claim: &Claim,
        arrival: i64,
        since: i64,
    ) -> StoreResult<()> {
        let ends = self.after(claim.place_ttl);
        let (owner, weight) = (claim.owner.to_bytes(), claim.share.weight());
        let holder = claim.stored_holder().to_string();
        self.statement(sql::queue::insert)?.execute(params![
            row.id,
            arrival,
            owner,
            ends,
            weight,
            since,
            holder,
            self.now_or_one(),
            stored_client(claim.client),
            self.change_file.client_lock()
        ])?;
        row.places += 1;
        row.version += 1;
        row.ends_at(ends);
        Ok(())
    }

    /// Removes the owner's place, and returns it if there was one.
    pub(crate) fn remove_place(
        &mut self,
        row: &mut ResourceRow<'_>,
        owner: OwnerToken,
    ) -> StoreResult<Option<RemovedPlace>> {
        if row.places == 0 {
            return Ok(None);
        }
        let key = (row.id, owner.to_bytes());
        let read = |columns: &rusqlite::Row<'_>| {
            Ok(RemovedPlace { arrival: columns.get(0)?, since: columns.get(1)? })
        };
        let removed = self.query_one(sql::queue::remove, key, read)?;
        if removed.is_some() {
            row.places -= 1;
            row.version += 1;
        }
        Ok(removed)
    }

    /// Removes the owner's place on its own request, so the owner needs no wake-up.
    pub(crate) fn leave_queue(&mut self, row: &mut ResourceRow<'_>, owner: OwnerToken) -> StoreResult<()> {
        self.remove_place(row, owner).map(drop)
    }

    /// Gives the predecessor's place in the queue to the claim, if the predecessor has one.
    pub(crate) fn take_over_place(
        &mut self,
        row: &mut ResourceRow<'_>,
        claim: &Claim,
        from: &Handover,
    ) -> StoreResult<()> {
        let Some(place) = self.remove_place(row, from.owner)? else { return Ok(()) };
        self.note_lost_place(row, from.owner)?;
        if claim.when_blocked == WhenBlocked::Queue && self.find_place(row, claim.owner)?.is_none() {
            self.insert_place(row, claim, place.arrival, place.since)?;
        }
        Ok(())
    }

    /// Removes the places that have ended, and wakes their owners: they are no longer in the queue.
    pub(crate) fn remove_expired_places(&mut self, row: &mut ResourceRow<'_>) -> StoreResult<()> {
        let mut expired = Vec::new();
        {
            let mut statement = self.statement(sql::queue::remove_expired)?;
            let mut rows = statement.query((row.id, self.now))?;
            while let Some(columns) = rows.next()? {
                expired.push(OwnerToken::from_bytes(columns.get(0)?));
            }
        }
        if expired.is_empty() {
            return Ok(());
        }
        row.places = row.places.saturating_sub(u32::try_from(expired.len()).unwrap_or(u32::MAX));
        row.version += 1;
        if expired.len() > SINGLE_WAKEUPS_MAX {
            expired.into_iter().for_each(|owner| self.wakeups.owners.push((row.resource.clone(), owner)));
            return self.store_wakeup(row, Some(EVERYONE));
        }
        expired.into_iter().try_for_each(|owner| self.note_lost_place(row, owner))
    }

    pub(crate) fn queue_position(
        &self,
        row: &ResourceRow<'_>,
        owner: OwnerToken,
    ) -> StoreResult<QueuePosition> {
        if row.places == 0 {
            return Ok(QueuePosition::default());
        }
        let own = self.find_place(row, owner)?.map(|place| place.arrival);
        let (ahead_nearby, next_change) = read_queue(self.sql, row, admission::WINDOW + 1, |queue| {
            let (mut ahead, mut next_change) = (0, None::<i64>);
            for (index, queued) in queue.enumerate() {
                ahead += usize::from(own.is_some_and(|own| queued.arrival < own));
                if index < admission::WINDOW {
                    let change =
                        queued.silent_at().map_or(queued.ends, |silent_at| silent_at.min(queued.ends));
                    next_change = Some(next_change.map_or(change, |next_change| next_change.min(change)));
                }
            }
            (ahead, next_change)
        })?;
        let ahead = match own {
            None => self.live_places(row)?,
            Some(_) if ahead_nearby <= admission::WINDOW => u32::try_from(ahead_nearby).unwrap_or(u32::MAX),
            // Counting all of a long queue would make each claim slower than the one before.
            Some(_) => self.live_places(row)?.saturating_sub(1),
        };
        Ok(QueuePosition { is_queued: own.is_some(), ahead, next_change })
    }

    /// Notes the wake-ups that a change of the row calls for: the claims that can be granted or were called, and the
    /// watchers.
    pub(crate) fn note_wakeups(&mut self, row: &ResourceRow<'_>) -> StoreResult<()> {
        if !row.version_changed() {
            return Ok(());
        }
        let is_watched = row.watched_until > self.now;
        if is_watched {
            self.wakeups.watchers.push((row.resource.clone(), row.version.unsigned_abs()));
        }
        // ADR 0012: other processes are signalled only if a waiter there may be concerned. So without
        // waiters, nothing is written to `ring` and the change file is not touched.
        let mut other_processes = is_watched;
        let owners = match &row.owners_to_wake {
            Some(owners) => owners.clone(),
            None => owners_to_wake(self.sql, row)?,
        };
        for owner in owners {
            if self.waiters.is_waiting(row.resource, owner) {
                self.wakeups.owners.push((row.resource.clone(), owner));
            } else {
                other_processes = true;
            }
        }
        if other_processes { self.store_wakeup(row, None) } else { Ok(()) }
    }

    /// Notes that this owner lost its place, and not by its own `acquire`.
    pub(crate) fn note_lost_place(&mut self, row: &ResourceRow<'_>, owner: OwnerToken) -> StoreResult<()> {
        if self.waiters.is_waiting(row.resource, owner) {
            self.wakeups.owners.push((row.resource.clone(), owner));
            return Ok(());
        }
        self.store_wakeup(row, Some(&owner.to_bytes()))
    }

    /// Writes a wake-up for other processes into the table `ring`.
    fn store_wakeup(&mut self, row: &ResourceRow<'_>, owner: Option<&[u8]>) -> StoreResult<()> {
        let sequence =
            self.query_one(sql::wakeup::insert, (row.id, owner), |columns| columns.get::<_, i64>(0))?;
        self.execute(sql::wakeup::prune, [sequence.unwrap_or(0) - STORED_WAKEUPS_MAX])?;
        self.wakeups.other_processes = true;
        Ok(())
    }
}
