//! Queued claims that do not answer, as in `leasehold_core::queue` (ADR 0045).
//!
//! 1. Every verb that looks at the queue begins with [`Tables::pass_over_silent`]: claims that were called and did
//!    not answer in time become silent. `resource.silence_at` says when that can be, so a verb reads the queue for
//!    this only then.
//! 2. A verb of a queued claim notes that the claim was heard: [`Tables::note_heard`].
//! 3. Every verb that looks at the queue ends with [`Tables::call`]: the claims that can be granted are called. If
//!    there is no room, nothing is read.
//! 4. A claim whose client is gone is not called but silent at once, and with it every claim near the head whose
//!    client is gone (`client_lock.rs`). The claims behind them are called in the same step.
//!
//! Places of an older program (`place.heard` is 0) are called and never silent: such a program does not say when a
//! claim was heard.

use std::collections::HashMap;

use leasehold_core::{OwnerToken, admission};

use crate::{
    queue::{QueuedClaim, read_queue},
    resource_row::ResourceRow,
    sql,
    tables::{self, StoreResult, Tables},
};

/// How many silent claims are counted. With more, `Blocked::ahead` is an upper bound, and a long queue of dead
/// waiters does not make each blocked claim slower.
const SILENT_COUNTED_MAX: usize = 1000;

/// When a claim that was called or heard at this time is late.
pub(crate) fn late_at(since: i64) -> i64 {
    tables::after(since, admission::ANSWER_WITHIN)
}

impl QueuedClaim {
    /// It was called and did not answer in time.
    fn is_late(&self, now: i64) -> bool {
        self.called > 0 && self.heard > 0 && late_at(self.called) <= now
    }

    fn was_heard_lately(&self, now: i64) -> bool {
        late_at(self.heard) > now
    }
}

impl Tables<'_> {
    /// The time of the transaction as it is stored in `heard` and `called`, where 0 means "none".
    pub(crate) fn now_or_one(&self) -> i64 {
        self.now.max(1)
    }

    /// Notes that a request of this owner came, and lets its place last until `ends`, if it does not last longer.
    /// Returns when the place ends; `None` if the owner has none.
    pub(crate) fn note_heard(
        &mut self,
        row: &mut ResourceRow<'_>,
        owner: OwnerToken,
        ends: i64,
    ) -> StoreResult<Option<i64>> {
        let Some(place) = self.find_place(row, owner)? else { return Ok(None) };
        let (ends, client_lock) = (place.ends.max(ends), self.change_file.client_lock());
        let heard = (row.id, place.arrival, self.now_or_one(), client_lock, ends);
        self.execute(sql::queue::note_heard, heard)?;
        row.version += i64::from(place.is_silent);
        Ok(Some(ends))
    }

    /// Passes over the claims that were called and did not answer, and over those of the same clients.
    pub(crate) fn pass_over_silent(&mut self, row: &mut ResourceRow<'_>) -> StoreResult<()> {
        if row.places == 0 || row.silence_at == 0 || row.silence_at > self.now {
            return Ok(());
        }
        let now = self.now;
        let silent =
            read_queue(self.sql, row, admission::SAME_CLIENT_WINDOW, |queue| late_claims(queue, now))?;
        self.make_silent(row, &silent)?;
        let first = self.query_one(sql::queue::earliest_call, [row.id], |columns| columns.get(0))?;
        row.silence_at = first.flatten().map_or(0, late_at);
        row.mark_changed();
        Ok(())
    }

    fn make_silent(&self, row: &mut ResourceRow<'_>, arrivals: &[i64]) -> StoreResult<()> {
        for arrival in arrivals {
            self.execute(sql::queue::make_silent, (row.id, arrival))?;
        }
        if !arrivals.is_empty() {
            row.silent = true;
            row.version += 1;
        }
        Ok(())
    }

    /// Calls the claims that can be granted now. They are woken when the row is saved.
    pub(crate) fn call(&mut self, row: &mut ResourceRow<'_>) -> StoreResult<()> {
        let mut to_call = self.claims_to_call(row)?;
        if to_call.iter().any(|claim| self.change_file.is_client_gone(claim.client_lock)) {
            self.pass_over_gone(row)?;
            to_call = self.claims_to_call(row)?;
        }
        if to_call.is_empty() {
            return Ok(());
        }
        let called = self.now_or_one();
        for claim in &to_call {
            self.execute(sql::queue::call, (row.id, claim.arrival, called))?;
        }
        let late_at = late_at(called);
        row.silence_at = if row.silence_at == 0 { late_at } else { row.silence_at.min(late_at) };
        row.version += 1;
        Ok(())
    }

    /// The claims to call: those that can be granted and were not called yet. If a claim is silent and there is
    /// room, also the others in the window that were not heard lately.
    fn claims_to_call(&self, row: &mut ResourceRow<'_>) -> StoreResult<Vec<QueuedClaim>> {
        if row.is_paused() || row.places == 0 || row.held >= u64::from(row.capacity) {
            return Ok(Vec::new());
        }
        if row.silent && self.silent_owners(row, 1)?.is_empty() {
            row.silent = false;
            row.mark_changed();
        }
        let now = self.now;
        read_queue(self.sql, row, admission::WINDOW, |queue| {
            let (mut claims, grantable) = grantable_claims(row, queue);
            if row.silent && grantable > 0 {
                claims.extend(queue);
            } else {
                claims.truncate(grantable);
            }
            let is_to_call = |(index, claim): &(usize, QueuedClaim)| {
                claim.called == 0 && (*index < grantable || !claim.was_heard_lately(now))
            };
            claims.into_iter().enumerate().filter(is_to_call).map(|(_, claim)| claim).collect()
        })
    }

    /// Passes over the claims near the head of the queue whose clients are gone.
    fn pass_over_gone(&mut self, row: &mut ResourceRow<'_>) -> StoreResult<()> {
        let near =
            read_queue(self.sql, row, admission::SAME_CLIENT_WINDOW, |queue| queue.collect::<Vec<_>>())?;
        let mut looked_at = HashMap::new();
        let mut is_gone = |claim: &QueuedClaim| {
            let lock = claim.client_lock;
            *looked_at.entry(lock).or_insert_with(|| self.change_file.is_client_gone(lock))
        };
        let gone: Vec<i64> = near.iter().filter(|claim| is_gone(claim)).map(|claim| claim.arrival).collect();
        self.make_silent(row, &gone)
    }

    /// The number of claims in the queue that are not silent.
    pub(crate) fn live_places(&self, row: &ResourceRow<'_>) -> StoreResult<u32> {
        if !row.silent {
            return Ok(row.places);
        }
        let silent = self.silent_owners(row, SILENT_COUNTED_MAX)?.len();
        Ok(row.places.saturating_sub(u32::try_from(silent).unwrap_or(u32::MAX)))
    }

    fn silent_owners(&self, row: &ResourceRow<'_>, limit: usize) -> StoreResult<Vec<OwnerToken>> {
        read_owners(self.sql, sql::queue::silent, row.id, limit)
    }

    /// The owners that were called and have not answered.
    pub(crate) fn called_owners(&self, row: &ResourceRow<'_>) -> StoreResult<Vec<OwnerToken>> {
        if row.places == 0 || row.silence_at == 0 {
            return Ok(Vec::new());
        }
        read_owners(self.sql, sql::queue::called, row.id, admission::WINDOW)
    }
}

/// The arrivals of the claims that become silent now.
fn late_claims(queue: &mut dyn Iterator<Item = QueuedClaim>, now: i64) -> Vec<i64> {
    let mut near: Vec<QueuedClaim> = queue.take(admission::WINDOW).collect();
    let mut silent: Vec<i64> =
        near.iter().filter(|claim| claim.is_late(now)).map(|claim| claim.arrival).collect();
    let late_clients: Vec<i64> = near
        .iter()
        .filter(|claim| claim.is_late(now) && claim.client != 0)
        .map(|claim| claim.client)
        .collect();
    if late_clients.is_empty() {
        return silent;
    }
    near.extend(queue);
    let of_late_client =
        |claim: &&QueuedClaim| !claim.was_heard_lately(now) && late_clients.contains(&claim.client);
    let with_them = near.iter().filter(|claim| !claim.is_late(now)).filter(of_late_client);
    silent.extend(with_them.map(|claim| claim.arrival));
    silent
}

/// Reads the queue until a claim does not fit. Returns what was read, and how many of them can be granted now.
pub(crate) fn grantable_claims(
    row: &ResourceRow<'_>,
    queue: &mut dyn Iterator<Item = QueuedClaim>,
) -> (Vec<QueuedClaim>, usize) {
    let mut claims = Vec::new();
    let weights = queue.map(|claim| {
        let weight = claim.weight;
        claims.push(claim);
        weight
    });
    let grantable = admission::grantable(row.held, weights, row.capacity);
    (claims, grantable)
}

/// The owners that a waiting process wakes if they wait there: those that were called, those that can be granted
/// (an older program does not call), and the silent ones, which should ask to stand in the queue again.
pub(crate) fn owners_to_wake(
    connection: &rusqlite::Connection,
    row: &ResourceRow<'_>,
) -> StoreResult<Vec<OwnerToken>> {
    if row.places == 0 {
        return Ok(Vec::new());
    }
    let mut owners = if row.is_paused() {
        Vec::new()
    } else {
        let (claims, grantable) =
            read_queue(connection, row, admission::WINDOW, |queue| grantable_claims(row, queue))?;
        claims.into_iter().take(grantable).map(|claim| claim.owner).collect()
    };
    if row.silence_at > 0 {
        owners.extend(read_owners(connection, sql::queue::called, row.id, admission::WINDOW)?);
    }
    if row.silent {
        owners.extend(read_owners(connection, sql::queue::silent, row.id, admission::SAME_CLIENT_WINDOW)?);
    }
    Ok(owners)
}

/// Reads the owners that a statement gives.
fn read_owners(
    connection: &rusqlite::Connection,
    statement: &'static str,
    resource: i64,
    limit: usize,
) -> StoreResult<Vec<OwnerToken>> {
    let mut statement = connection.prepare_cached(statement)?;
    let mut rows = statement.query((resource, i64::try_from(limit).unwrap_or(i64::MAX)))?;
    let mut owners = Vec::new();
    while let Some(columns) = rows.next()? {
        owners.push(OwnerToken::from_bytes(columns.get(0)?));
    }
    Ok(owners)
}
