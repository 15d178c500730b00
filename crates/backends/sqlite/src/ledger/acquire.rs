//! The verb `acquire`.

use std::sync::Arc;

use leasehold_core::{
    Blocked, Claim, Cursor, Error, ErrorKind, FencingToken, GoneReason, Grant, Handover, HeldBy, OwnerToken,
    Verdict, WhenBlocked, admission,
};
use rusqlite::params;

use super::{Entry, Ledger, Step, inspect::read_seat, line::head, token};
use crate::sql;

const HOLDERS_MAX: i64 = Blocked::HOLDERS_MAX as i64;

/// What a seat says to those who decide.
pub(super) struct Seat {
    pub(super) ends: i64,
    pub(super) token: FencingToken,
    pub(super) weight: u32,
    pub(super) turns: u32,
    pub(super) evicting: bool,
    pub(super) kept: bool,
    pub(super) asked: Option<(i64, Arc<str>, Arc<str>)>,
}

impl Ledger<'_> {
    /// The verb `acquire`; the inner result is the claim's own error, which undoes nothing.
    pub(crate) fn acquire(&mut self, claim: &Claim) -> Step<leasehold_core::Result<Verdict>> {
        let mut entry = self.open(&claim.resource)?;
        let verdict = self.judge(&mut entry, claim)?;
        self.close(&entry)?;
        Ok(verdict)
    }

    fn judge(&mut self, entry: &mut Entry<'_>, claim: &Claim) -> Step<leasehold_core::Result<Verdict>> {
        self.establish(entry)?;
        let token = match FencingToken::mint(entry.mint_above()?, self.wall.as_micros(), claim.floor) {
            Ok(token) => token,
            Err(error) => return Ok(Err(error)),
        };
        if self.grave(entry, claim.owner)?.is_some() {
            // The claim is dead, but whom it was to succeed wanted to go all the same.
            claim.takes_over_from.iter().try_for_each(|from| self.depart(entry, from))?;
            return Ok(Ok(Verdict::Cancelled));
        }
        if let Some(seat) = self.seat(entry, claim.owner)? {
            let grant = Grant::new(seat.token, self.until(seat.ends));
            // A kept seat is nobody's: its owner has said farewell, so this is a request that comes late.
            return Ok(Ok(if seat.kept { Verdict::Cancelled } else { Verdict::Granted(grant) }));
        }
        if entry.is_there() && entry.capacity != claim.share.capacity() {
            self.leave_line(entry, claim.owner)?;
            return Ok(Ok(Verdict::Mismatch { capacity: entry.capacity }));
        }
        if claim.when_blocked == WhenBlocked::Queue && entry.places >= self.line_max {
            let waiting = self.place(entry, claim.owner)?.is_some();
            if !waiting {
                let message = format!("{} wait in line already", entry.places);
                return Ok(Err(Error::new(ErrorKind::Limit, message)));
            }
        }
        if let Some(from) = &claim.takes_over_from
            && let Some(grant) = self.succeed(entry, claim, from, token)?
        {
            return Ok(Ok(Verdict::Granted(grant)));
        }
        self.seat_or_queue(entry, claim, token).map(Ok)
    }

    /// By the rule of seating.
    fn seat_or_queue(&mut self, entry: &mut Entry<'_>, claim: &Claim, token: FencingToken) -> Step<Verdict> {
        if entry.capacity != claim.share.capacity() {
            entry.capacity = claim.share.capacity();
            entry.touch();
        }
        if !entry.is_paused() && self.fits(entry, claim)? {
            self.leave_line(entry, claim.owner)?;
            let ends = self.after(claim.ttl);
            return Ok(Verdict::Granted(self.sit(entry, claim, token, ends, 0)?));
        }
        match claim.when_blocked {
            WhenBlocked::Leave => self.leave_line(entry, claim.owner)?,
            WhenBlocked::Queue => self.queue(entry, claim)?,
        }
        Ok(Verdict::Blocked(self.blocked(entry, claim.owner)?))
    }

    /// Takes over a seat, and says so; or takes over a place, or finds nothing, and leaves the rest to the rule.
    fn succeed(
        &mut self,
        entry: &mut Entry<'_>,
        claim: &Claim,
        from: &Handover,
        token: FencingToken,
    ) -> Step<Option<Grant>> {
        let weight = claim.share.weight();
        let seat = self.seat(entry, from.owner)?.filter(|seat| !seat.kept && seat.weight >= weight);
        if let Some(seat) = seat {
            let downgrade = weight < seat.weight;
            let bounded = seat.turns >= admission::HANDOVERS_MAX && entry.places > 0;
            let refused = !downgrade && (entry.is_paused() || seat.evicting || bounded);
            self.depart(entry, from)?;
            if refused {
                return Ok(None);
            }
            self.leave_line(entry, claim.owner)?;
            let ends = if downgrade { seat.ends } else { self.after(claim.ttl) };
            let turns = if downgrade { seat.turns } else { seat.turns + 1 };
            let grant = self.sit(entry, claim, token, ends, turns)?;
            if downgrade {
                self.inherit(entry, claim.owner, &seat)?;
            }
            return Ok(Some(grant));
        }
        self.succeed_in_line(entry, claim, from)?;
        self.depart(entry, from)?;
        Ok(None)
    }

    /// The same work goes on with less: what an operator said to it stands.
    fn inherit(&self, entry: &Entry<'_>, heir: OwnerToken, from: &Seat) -> Step<()> {
        let heir = heir.to_bytes();
        if from.evicting {
            self.execute(sql::seat::let_run_out, (entry.id, heir))?;
        }
        if let Some((until, by, why)) = &from.asked {
            self.execute(sql::seat::ask, params![entry.id, heir, until, by, why])?;
        }
        Ok(())
    }

    /// The predecessor goes, and is buried if some request of it may still come.
    fn depart(&mut self, entry: &mut Entry<'_>, from: &Handover) -> Step<()> {
        self.stand_up(entry, from.owner)?;
        self.leave_line(entry, from.owner)?;
        match from.tombstone {
            Some(keep) => self.tombstone(entry, from.owner, keep, GoneReason::Cancelled),
            None => Ok(()),
        }
    }

    fn fits(&self, entry: &Entry<'_>, claim: &Claim) -> Step<bool> {
        let (own, capacity) = (claim.share.weight(), claim.share.capacity());
        if entry.places == 0 {
            return Ok(admission::is_granted(entry.held, [], own, capacity));
        }
        let place = self.place(entry, claim.owner)?;
        let arrival = place.map_or(super::NEVER, |(arrival, _)| arrival);
        head(self.sql, entry.id, admission::WINDOW + 1, |places| {
            let ahead = places.take_while(|place| place.arrival < arrival).map(|place| place.weight);
            admission::is_granted(entry.held, ahead, own, capacity)
        })
    }

    fn sit(
        &mut self,
        entry: &mut Entry<'_>,
        claim: &Claim,
        token: FencingToken,
        ends: i64,
        turns: u32,
    ) -> Step<Grant> {
        debug_assert!(entry.last < token.as_i64(), "a token grew");
        let weight = claim.share.weight();
        entry.held += u64::from(weight);
        entry.last = token.as_i64();
        entry.version += 1;
        entry.ends_at(ends);
        let (owner, holder) = (claim.owner.to_bytes(), claim.holder.to_string());
        let note = claim.note.as_deref();
        self.statement(sql::seat::insert)?
            .execute(params![entry.id, owner, ends, entry.last, weight, self.now, turns, holder, note])?;
        entry.seats += 1;
        Ok(Grant::new(token, self.until(ends)))
    }

    pub(super) fn seat(&self, entry: &Entry<'_>, owner: OwnerToken) -> Step<Option<Seat>> {
        if entry.seats == 0 {
            return Ok(None);
        }
        let mut statement = self.statement(sql::seat::find)?;
        let mut rows = statement.query((entry.id, owner.to_bytes()))?;
        let Some(row) = rows.next()? else { return Ok(None) };
        let asked_until: i64 = row.get(6)?;
        let asked = if asked_until == 0 {
            None
        } else {
            let (by, why): (Option<Arc<str>>, Option<Arc<str>>) = (row.get(7)?, row.get(8)?);
            Some((asked_until, by.unwrap_or_default(), why.unwrap_or_default()))
        };
        Ok(Some(Seat {
            ends: row.get(0)?,
            token: token(row.get(1)?)?,
            weight: row.get(2)?,
            turns: row.get(3)?,
            evicting: row.get(4)?,
            kept: row.get::<_, i64>(5)? > 0,
            asked,
        }))
    }

    fn blocked(&self, entry: &Entry<'_>, owner: OwnerToken) -> Step<Blocked> {
        let mut blocked = Blocked::default();
        let (ahead, next_place) = self.outlook(entry, owner, &mut blocked.queued)?;
        blocked.ahead = ahead;
        blocked.holders = self.next_holders(entry)?;
        let next_seat = blocked.holders.first().map(|seat| seat.remaining);
        let next_place = next_place.map(|at| self.until(at));
        let pause = entry.is_paused().then(|| self.until(entry.paused_until));
        blocked.changes_in = [next_seat, next_place, pause].into_iter().flatten().min();
        blocked.paused = entry.is_paused();
        blocked.cursor = Cursor(entry.version.unsigned_abs());
        Ok(blocked)
    }

    fn next_holders(&self, entry: &Entry<'_>) -> Step<Vec<HeldBy>> {
        let mut statement = self.statement(sql::seat::next_ends)?;
        let mut rows = statement.query((entry.id, HOLDERS_MAX))?;
        let mut holders = Vec::new();
        while let Some(row) = rows.next()? {
            holders.push(read_seat(self.now, row)?);
        }
        Ok(holders)
    }
}
