//! Queued claims that do not answer, as in `leasehold_core::queue` (ADR 0045).
//!
//! 1. Every verb that looks at the queue begins with [`Tables::pass_over_silent`]: claims that were called and did
//!    not answer in time become silent. `resource.silence_at` says when that can be, so a verb reads the queue for
//!    this only then.
//! 2. A verb of a queued claim notes that the claim was heard: [`Tables::note_heard`]. If the claim is granted, it
//!    loses its place, so nothing is noted.
//! 3. Every verb that looks at the queue ends with [`Tables::call`]: the claims that can be granted are called. If
//!    there is no room, nothing is read.
//! 4. A claim whose client is gone is not called but silent at once, and with it every claim near the head whose
//!    client is gone (`client_lock.rs`). The claims behind them are called in the same step.
//!
//! Places of an older program (`place.heard` is 0) are called and never silent: such a program does not say when a
//! claim was heard.

use std::collections::HashMap;

use leasehold_core::{OwnerToken, admission};
use rusqlite::Connection;

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
fn late_at(since: i64) -> i64 {
    tables::after(since, admission::ANSWER_WITHIN)
}

impl QueuedClaim {
    /// When it becomes silent if it does not answer. `None` if it was not called, or is of an older program.
    pub(crate) fn silent_at(&self) -> Option<i64> {
        (self.called > 0 && self.heard > 0).then(|| late_at(self.called))
    }

    /// It was called and did not answer in time.
    fn is_late(&self, now: i64) -> bool {
        self.silent_at().is_some_and(|silent_at| silent_at <= now)
    }

    fn was_heard_lately(&self, now: i64) -> bool {
        late_at(self.heard) > now
    }
}

/// The head of a queue, the silent claims left out.
#[derive(Default)]
struct QueueHead {
    /// The claims that can be granted now. If a claim is silent and there is room: all claims in the window.
    claims: Vec<QueuedClaim>,
    /// How many of them can be granted now.
    grantable: usize,
}

impl QueueHead {
    fn read(connection: &Connection, row: &ResourceRow<'_>) -> StoreResult<QueueHead> {
        if row.is_paused() || row.places == 0 || row.held >= u64::from(row.capacity) {
            return Ok(QueueHead::default());
        }
        read_queue(connection, row, admission::WINDOW, |queue| {
            let mut claims = Vec::new();
            let weights = (&mut *queue).map(|claim| {
                let weight = claim.weight;
                claims.push(claim);
                weight
            });
            let grantable = admission::grantable(row.held, weights, row.capacity);
            if row.silent && grantable > 0 {
                claims.extend(queue);
            } else {
                claims.truncate(grantable);
            }
            QueueHead { claims, grantable }
        })
    }

    /// The claims to call: those that can be granted and were not called yet; of the others, those that were not
    /// heard lately.
    fn to_call(&self, now: i64) -> impl Iterator<Item = &QueuedClaim> {
        let is_to_call = move |(index, claim): &(usize, &QueuedClaim)| {
            claim.called == 0 && (*index < self.grantable || !claim.was_heard_lately(now))
        };
        self.claims.iter().enumerate().filter(is_to_call).map(|(_, claim)| claim)
    }

    /// The owners to wake: those that can be granted, and the others that were called.
    fn owners_to_wake(&self) -> Vec<OwnerToken> {
        let is_to_wake = |(index, claim): &(usize, &QueuedClaim)| *index < self.grantable || claim.called > 0;
        self.claims.iter().enumerate().filter(is_to_wake).map(|(_, claim)| claim.owner).collect()
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

    /// Passes over the claims that were called and did not answer, and over those of the same clients. A request of
    /// `heard` came just now.
    pub(crate) fn pass_over_silent(
        &mut self,
        row: &mut ResourceRow<'_>,
        heard: Option<OwnerToken>,
    ) -> StoreResult<()> {
        if row.places == 0 || row.silence_at == 0 || row.silence_at > self.now {
            return Ok(());
        }
        let now = self.now;
        let (silent, next) = read_queue(self.sql, row, admission::SAME_CLIENT_WINDOW, |queue| {
            let note_heard = |claim: QueuedClaim| {
                let is_heard = Some(claim.owner) == heard;
                if is_heard { QueuedClaim { heard: now, called: 0, ..claim } } else { claim }
            };
            late_claims(&mut queue.map(note_heard), now)
        })?;
        self.make_silent(row, &silent)?;
        row.silence_at = next.unwrap_or(0);
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
        if row.silent && row.held < u64::from(row.capacity) && self.silent_owners(row, 1)?.is_empty() {
            row.silent = false;
            row.mark_changed();
        }
        let mut head = QueueHead::read(self.sql, row)?;
        if head.to_call(self.now).any(|claim| self.change_file.is_client_gone(claim.client_lock)) {
            self.pass_over_gone(row)?;
            head = QueueHead::read(self.sql, row)?;
        }
        let called = self.now_or_one();
        let to_call: Vec<i64> = head.to_call(self.now).map(|claim| claim.arrival).collect();
        for claim in head.claims.iter_mut().filter(|claim| to_call.contains(&claim.arrival)) {
            self.execute(sql::queue::call, (row.id, claim.arrival, called))?;
            claim.called = called;
        }
        row.version += i64::from(!to_call.is_empty());
        // Not only the claims that were called now: one that was called before may have been outside the window.
        if let Some(silent_at) = head.claims.iter().filter_map(QueuedClaim::silent_at).min() {
            row.may_be_silent_at(silent_at);
        }
        row.owners_to_wake = Some(head.owners_to_wake());
        Ok(())
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
        read_silent_owners(self.sql, row, limit)
    }
}

/// The arrivals of the claims that become silent now, and when the next one does.
fn late_claims(queue: &mut dyn Iterator<Item = QueuedClaim>, now: i64) -> (Vec<i64>, Option<i64>) {
    let mut near: Vec<QueuedClaim> = queue.take(admission::WINDOW).collect();
    let next = near.iter().filter_map(QueuedClaim::silent_at).filter(|silent_at| *silent_at > now).min();
    let late_clients: Vec<i64> = near
        .iter()
        .filter(|claim| claim.is_late(now) && claim.client != 0)
        .map(|claim| claim.client)
        .collect();
    let window = near.len();
    if !late_clients.is_empty() {
        near.extend(queue);
    }
    let of_late_client =
        |claim: &QueuedClaim| !claim.was_heard_lately(now) && late_clients.contains(&claim.client);
    let is_silent = |(index, claim): &(usize, QueuedClaim)| {
        (*index < window && claim.is_late(now)) || of_late_client(claim)
    };
    let silent = near.into_iter().enumerate().filter(is_silent).map(|(_, claim)| claim.arrival).collect();
    (silent, next)
}

/// The owners that a process wakes if they wait there: those that can be granted (an older program does not call
/// them), those that were called, and the silent ones, which should ask to stand in the queue again.
pub(crate) fn owners_to_wake(connection: &Connection, row: &ResourceRow<'_>) -> StoreResult<Vec<OwnerToken>> {
    let mut owners = QueueHead::read(connection, row)?.owners_to_wake();
    if row.silent {
        owners.extend(read_silent_owners(connection, row, admission::SAME_CLIENT_WINDOW)?);
    }
    Ok(owners)
}

fn read_silent_owners(
    connection: &Connection,
    row: &ResourceRow<'_>,
    limit: usize,
) -> StoreResult<Vec<OwnerToken>> {
    let mut statement = connection.prepare_cached(sql::queue::silent)?;
    let mut rows = statement.query((row.id, i64::try_from(limit).unwrap_or(i64::MAX)))?;
    let mut owners = Vec::new();
    while let Some(columns) = rows.next()? {
        owners.push(OwnerToken::from_bytes(columns.get(0)?));
    }
    Ok(owners)
}
