//! The line: places by arrival, and who of them can move.

use leasehold_core::{Claim, Handover, OwnerToken, WhenBlocked, admission};
use rusqlite::{Connection, params};

use super::{Entry, Ledger, Step};
use crate::sql;

/// More places than this that end at once are told as one.
const TOLD_ONE_BY_ONE_MAX: usize = 16;
/// Rings that are remembered. A process that slept through more looks at all its waiters.
const RINGS_MAX: i64 = 1024;

/// A place near the head of the line.
pub(super) struct Place {
    pub(super) arrival: i64,
    pub(super) weight: u32,
    pub(super) owner: OwnerToken,
    pub(super) ends: i64,
}

/// Reads the line from its head, as far as the reader wants and no further than `most`.
pub(super) fn head<T>(
    connection: &Connection,
    resource: i64,
    most: usize,
    read: impl FnOnce(&mut dyn Iterator<Item = Place>) -> T,
) -> Step<T> {
    let mut statement = connection.prepare_cached(sql::place::head)?;
    let mut rows = statement.query((resource, i64::try_from(most).unwrap_or(i64::MAX)))?;
    let mut next = || -> Step<Option<Place>> {
        let Some(row) = rows.next()? else { return Ok(None) };
        let owner = OwnerToken::from_bytes(row.get(2)?);
        Ok(Some(Place { arrival: row.get(0)?, weight: row.get(1)?, owner, ends: row.get(3)? }))
    };
    let mut fault = None;
    let answer = read(&mut std::iter::from_fn(|| {
        next().unwrap_or_else(|f| {
            fault = Some(f);
            None
        })
    }));
    fault.map_or(Ok(answer), Err)
}

/// The owners at the head of the line who can be granted now: the ones to wake.
pub(crate) fn movers(connection: &Connection, entry: &Entry<'_>) -> Step<Vec<OwnerToken>> {
    if entry.is_paused() || entry.places == 0 || entry.held >= u64::from(entry.capacity) {
        return Ok(Vec::new());
    }
    head(connection, entry.id, admission::WINDOW, |places| {
        let mut owners = Vec::new();
        let weights = places.map(|place| {
            owners.push(place.owner);
            place.weight
        });
        let run = admission::grantable(entry.held, weights, entry.capacity);
        owners.truncate(run);
        owners
    })
}

impl Ledger<'_> {
    /// Arrival and end of the owner's place.
    pub(super) fn place(&self, entry: &Entry<'_>, owner: OwnerToken) -> Step<Option<(i64, i64)>> {
        if entry.places == 0 {
            return Ok(None);
        }
        let at = (entry.id, owner.to_bytes());
        self.one(sql::place::find, at, |row| Ok((row.get(0)?, row.get(1)?)))
    }

    /// Takes a place at the end, or keeps the one it has.
    pub(super) fn queue(&mut self, entry: &mut Entry<'_>, claim: &Claim) -> Step<()> {
        match self.place(entry, claim.owner)? {
            Some((arrival, ends)) => {
                let ends = ends.max(self.after(claim.place_ttl));
                self.prolong_place(entry, arrival, ends)
            }
            None => {
                let last = self.one(sql::place::last, [entry.id], |row| row.get::<_, Option<i64>>(0))?;
                let arrival = last.flatten().map_or(0, |last| last + 1);
                self.take_place(entry, claim, arrival, self.now)
            }
        }
    }

    fn take_place(&mut self, entry: &mut Entry<'_>, claim: &Claim, arrival: i64, since: i64) -> Step<()> {
        let ends = self.after(claim.place_ttl);
        let (owner, weight) = (claim.owner.to_bytes(), claim.share.weight());
        let holder = claim.holder.to_string();
        self.execute(sql::place::insert, params![entry.id, arrival, owner, ends, weight, since, holder])?;
        entry.places += 1;
        entry.version += 1;
        entry.ends_at(ends);
        Ok(())
    }

    pub(super) fn prolong_place(&mut self, entry: &Entry<'_>, arrival: i64, ends: i64) -> Step<()> {
        self.execute(sql::place::prolong, (entry.id, arrival, ends))?;
        Ok(())
    }

    /// Gives up the owner's place, and says when it arrived and since when it waits.
    pub(super) fn remove_place(
        &mut self,
        entry: &mut Entry<'_>,
        owner: OwnerToken,
    ) -> Step<Option<(i64, i64)>> {
        if entry.places == 0 {
            return Ok(None);
        }
        let at = (entry.id, owner.to_bytes());
        let removed = self.one(sql::place::remove, at, |row| Ok((row.get(0)?, row.get(1)?)))?;
        if removed.is_some() {
            entry.places -= 1;
            entry.version += 1;
        }
        Ok(removed)
    }

    /// The owner itself leaves; nobody needs to tell it.
    pub(super) fn leave_line(&mut self, entry: &mut Entry<'_>, owner: OwnerToken) -> Step<()> {
        self.remove_place(entry, owner).map(drop)
    }

    /// Takes the predecessor's place in the line, if it has one.
    pub(super) fn succeed_in_line(
        &mut self,
        entry: &mut Entry<'_>,
        claim: &Claim,
        from: &Handover,
    ) -> Step<()> {
        let Some((arrival, since)) = self.remove_place(entry, from.owner)? else { return Ok(()) };
        self.tell_gone(entry, from.owner)?;
        if claim.when_blocked == WhenBlocked::Queue && self.place(entry, claim.owner)?.is_none() {
            self.take_place(entry, claim, arrival, since)?;
        }
        Ok(())
    }

    pub(super) fn settle_line(&mut self, entry: &mut Entry<'_>) -> Step<()> {
        let mut ended = Vec::new();
        {
            let mut statement = self.statement(sql::place::settle)?;
            let mut rows = statement.query((entry.id, self.now))?;
            while let Some(row) = rows.next()? {
                ended.push(OwnerToken::from_bytes(row.get(0)?));
            }
        }
        if ended.is_empty() {
            return Ok(());
        }
        entry.places = entry.places.saturating_sub(u32::try_from(ended.len()).unwrap_or(u32::MAX));
        entry.version += 1;
        if ended.len() > TOLD_ONE_BY_ONE_MAX {
            ended.into_iter().for_each(|owner| self.news.owners.push((entry.resource.clone(), owner)));
            return self.ring(entry, Some(&[]));
        }
        ended.into_iter().try_for_each(|owner| self.tell_gone(entry, owner))
    }

    /// How many are ahead (exact within the window, an upper bound beyond), and when the next place there ends.
    pub(super) fn outlook(
        &self,
        entry: &Entry<'_>,
        owner: OwnerToken,
        placed: &mut bool,
    ) -> Step<(u32, Option<i64>)> {
        if entry.places == 0 {
            return Ok((0, None));
        }
        let own = self.place(entry, owner)?.map(|(arrival, _)| arrival);
        *placed = own.is_some();
        let (near, next) = head(self.sql, entry.id, admission::WINDOW + 1, |places| {
            let (mut near, mut next) = (0, None::<i64>);
            for (number, place) in places.enumerate() {
                near += usize::from(own.is_some_and(|own| place.arrival < own));
                if number < admission::WINDOW {
                    next = Some(next.map_or(place.ends, |next| next.min(place.ends)));
                }
            }
            (near, next)
        })?;
        let ahead = match own {
            None => entry.places,
            Some(_) if near <= admission::WINDOW => u32::try_from(near).unwrap_or(u32::MAX),
            Some(_) => entry.places - 1,
        };
        Ok((ahead, next))
    }

    /// Notes whom a change lets move.
    pub(super) fn tell(&mut self, entry: &Entry<'_>) -> Step<()> {
        if !entry.has_news() {
            return Ok(());
        }
        let mut abroad = entry.watched_until > self.now;
        if abroad {
            self.news.watchers.push((entry.resource.clone(), entry.version.unsigned_abs()));
        }
        for owner in movers(self.sql, entry)? {
            if self.waiters.is_waiting(entry.resource, owner) {
                self.news.owners.push((entry.resource.clone(), owner));
            } else {
                abroad = true;
            }
        }
        if abroad { self.ring(entry, None) } else { Ok(()) }
    }

    /// Notes that this owner's place is gone, and not by its own doing.
    pub(super) fn tell_gone(&mut self, entry: &Entry<'_>, owner: OwnerToken) -> Step<()> {
        if self.waiters.is_waiting(entry.resource, owner) {
            self.news.owners.push((entry.resource.clone(), owner));
            return Ok(());
        }
        self.ring(entry, Some(&owner.to_bytes()))
    }

    /// Leaves word for other processes.
    fn ring(&mut self, entry: &Entry<'_>, owner: Option<&[u8]>) -> Step<()> {
        let sequence = self.one(sql::ring::insert, (entry.id, owner), |row| row.get::<_, i64>(0))?;
        self.execute(sql::ring::prune, [sequence.unwrap_or(0) - RINGS_MAX])?;
        self.news.abroad = true;
        Ok(())
    }
}
