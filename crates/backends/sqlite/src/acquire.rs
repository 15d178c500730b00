//! The verb `acquire`.
//!
//! One transaction:
//!
//! 1. Load the row of the resource, or insert it (`tables.rs`). Note that the owner was heard, and pass over the
//!    other queued claims that did not answer (`silence.rs`).
//! 2. If the owner has a tombstone, refuse the claim: `Cancelled`.
//! 3. If the owner holds already, this is a repeated request: return the same grant.
//! 4. If others use the resource with another capacity, refuse the claim: `Mismatch`.
//! 5. If the queue is full and the owner has no place in it, refuse the claim: `Limit`.
//! 6. If the claim takes over from another claim, take its holder row or its place in the queue.
//! 7. Otherwise apply the admission rule of `leasehold_core::admission`: insert a holder row (`Granted`), or
//!    queue the claim or let it go (`Blocked`).
//! 8. Call the queued claims that can be granted now.

use std::sync::Arc;

use leasehold_core::{
    Blocked, Claim, Cursor, Error, ErrorKind, FencingToken, GoneReason, Grant, Handover, HeldBy, OwnerToken,
    Result, Verdict, WhenBlocked, admission,
};
use rusqlite::params;

use crate::{
    NOTE_MAX,
    inspect::read_holder,
    queue::read_queue,
    resource_row::ResourceRow,
    sql,
    tables::{NEVER, StoreResult, Tables, read_token},
    writer::WriteVerb,
};

const HOLDERS_MAX: i64 = Blocked::HOLDERS_MAX as i64;

/// The verb, for the writer.
pub(crate) struct Acquire(pub(crate) Claim);

impl WriteVerb for Acquire {
    type Reply = Result<Verdict>;

    fn run(&self, tables: &mut Tables<'_>) -> StoreResult<Self::Reply> {
        tables.acquire(&self.0)
    }
}

/// Refuses a note that is too long.
pub(crate) fn check_note(note: Option<&[u8]>) -> Result<()> {
    match note.map(<[u8]>::len) {
        Some(length) if length > NOTE_MAX => {
            let message = format!("a note has at most {NOTE_MAX} bytes, this one has {length}");
            Err(Error::new(ErrorKind::Limit, message))
        }
        _ => Ok(()),
    }
}

/// A row of the table `seat`: a claim that holds the resource.
pub(crate) struct HeldClaim {
    pub(crate) ends: i64,
    pub(crate) token: FencingToken,
    pub(crate) weight: u32,
    pub(crate) handovers: u32,
    /// An operator lets it run out: it cannot be renewed.
    pub(crate) evicting: bool,
    /// It was released with `keep_for`: the resource stays closed, and nobody works under this claim.
    pub(crate) kept: bool,
    pub(crate) finish_request: Option<StoredFinishRequest>,
}

/// An operator's request that the holder finish, as the file stores it.
pub(crate) struct StoredFinishRequest {
    pub(crate) until: i64,
    pub(crate) by: Arc<str>,
    pub(crate) why: Arc<str>,
}

/// The parts of a holder row that do not come from the claim.
struct GrantTerms {
    token: FencingToken,
    ends: i64,
    handovers: u32,
}

impl Tables<'_> {
    /// The inner error concerns this claim alone; the transaction is committed all the same.
    fn acquire(&mut self, claim: &Claim) -> StoreResult<Result<Verdict>> {
        let mut row = self.load(&claim.resource)?;
        let verdict = self.decide(&mut row, claim)?;
        self.call(&mut row)?;
        let verdict = match verdict {
            Ok(Some(verdict)) => Ok(verdict),
            Ok(None) => Ok(Verdict::Blocked(self.blocked(&row, claim.owner)?)),
            Err(error) => Err(error),
        };
        self.save(&row)?;
        Ok(verdict)
    }

    /// Steps 1 to 7. `None` if the claim is blocked.
    fn decide(&mut self, row: &mut ResourceRow<'_>, claim: &Claim) -> StoreResult<Result<Option<Verdict>>> {
        self.ensure_row(row)?;
        let token = match FencingToken::mint(row.token_floor()?, self.wall.as_micros(), claim.floor) {
            Ok(token) => token,
            Err(error) => return Ok(Err(error)),
        };
        if self.find_place(row, claim.owner)?.is_some_and(|place| place.is_silent) {
            // A claim that is not silent is noted as heard when it is queued again, if it is not granted.
            self.note_heard(row, claim.owner, self.after(claim.place_ttl))?;
        }
        self.pass_over_silent(row, Some(claim.owner))?;
        if self.find_tombstone(row, claim.owner)?.is_some() {
            // Still release the predecessor: that was part of the same request.
            claim.takes_over_from.iter().try_for_each(|from| self.release_predecessor(row, from))?;
            return Ok(Ok(Some(Verdict::Cancelled)));
        }
        if let Some(held) = self.find_holder(row, claim.owner)? {
            let grant = Grant::new(held.token, self.until(held.ends));
            // The owner released a kept claim, so this request was sent before the release and arrives late.
            return Ok(Ok(Some(if held.kept { Verdict::Cancelled } else { Verdict::Granted(grant) })));
        }
        if row.is_in_use() && row.capacity != claim.share.capacity() {
            self.leave_queue(row, claim.owner)?;
            return Ok(Ok(Some(Verdict::Mismatch { capacity: row.capacity })));
        }
        if claim.when_blocked == WhenBlocked::Queue
            && row.places >= self.queue_max
            && self.find_place(row, claim.owner)?.is_none()
        {
            let message = format!("the queue is full: {} claims wait already", row.places);
            return Ok(Err(Error::new(ErrorKind::Limit, message)));
        }
        if let Some(from) = &claim.takes_over_from
            && let Some(grant) = self.take_over(row, claim, from, token)?
        {
            return Ok(Ok(Some(Verdict::Granted(grant))));
        }
        self.grant_or_queue(row, claim, token).map(Ok)
    }

    /// Applies the admission rule.
    fn grant_or_queue(
        &mut self,
        row: &mut ResourceRow<'_>,
        claim: &Claim,
        token: FencingToken,
    ) -> StoreResult<Option<Verdict>> {
        if row.capacity != claim.share.capacity() {
            row.capacity = claim.share.capacity();
            row.mark_changed();
        }
        if !row.is_paused() && self.is_admitted(row, claim)? {
            self.leave_queue(row, claim.owner)?;
            let terms = GrantTerms { token, ends: self.after(claim.ttl), handovers: 0 };
            return Ok(Some(Verdict::Granted(self.grant(row, claim, &terms)?)));
        }
        match claim.when_blocked {
            WhenBlocked::Leave => self.leave_queue(row, claim.owner)?,
            WhenBlocked::Queue => self.enter_queue(row, claim)?,
        }
        Ok(None)
    }

    /// Takes over the predecessor's holder row and returns the grant. Returns `None` if it took over a place
    /// in the queue, found nothing, or may not take the holder row: then the admission rule decides.
    fn take_over(
        &mut self,
        row: &mut ResourceRow<'_>,
        claim: &Claim,
        from: &Handover,
        token: FencingToken,
    ) -> StoreResult<Option<Grant>> {
        let weight = claim.share.weight();
        let held = self.find_holder(row, from.owner)?.filter(|held| !held.kept && held.weight >= weight);
        let Some(held) = held else {
            self.take_over_place(row, claim, from)?;
            self.release_predecessor(row, from)?;
            return Ok(None);
        };
        let is_downgrade = weight < held.weight;
        // ADR 0007: without this bound, one client could keep the resource for ever while others wait.
        let handed_over_too_often = held.handovers >= admission::HANDOVERS_MAX && self.live_places(row)? > 0;
        let is_refused = !is_downgrade && (row.is_paused() || held.evicting || handed_over_too_often);
        self.release_predecessor(row, from)?;
        if is_refused {
            return Ok(None);
        }
        self.leave_queue(row, claim.owner)?;
        let terms = if is_downgrade {
            GrantTerms { token, ends: held.ends, handovers: held.handovers }
        } else {
            GrantTerms { token, ends: self.after(claim.ttl), handovers: held.handovers + 1 }
        };
        let grant = self.grant(row, claim, &terms)?;
        if is_downgrade {
            self.copy_operator_requests(row, claim.owner, &held)?;
        }
        Ok(Some(grant))
    }

    /// A downgrade continues the same work with a smaller share, so what an operator asked of the predecessor
    /// still holds.
    fn copy_operator_requests(
        &self,
        row: &ResourceRow<'_>,
        successor: OwnerToken,
        from: &HeldClaim,
    ) -> StoreResult<()> {
        let successor = successor.to_bytes();
        if from.evicting {
            self.execute(sql::holder::mark_evicting, (row.id, successor))?;
        }
        if let Some(StoredFinishRequest { until, by, why }) = &from.finish_request {
            self.execute(sql::holder::ask_to_finish, params![row.id, successor, until, by, why])?;
        }
        Ok(())
    }

    /// Releases the predecessor, and leaves a tombstone if one of its requests may still arrive.
    fn release_predecessor(&mut self, row: &mut ResourceRow<'_>, from: &Handover) -> StoreResult<()> {
        self.remove_holder(row, from.owner)?;
        self.leave_queue(row, from.owner)?;
        match from.tombstone {
            Some(keep) => self.tombstone(row, from.owner, keep, GoneReason::Cancelled),
            None => Ok(()),
        }
    }

    fn is_admitted(&self, row: &ResourceRow<'_>, claim: &Claim) -> StoreResult<bool> {
        let (own, capacity) = (claim.share.weight(), claim.share.capacity());
        if row.places == 0 {
            return Ok(admission::is_granted(row.held, [], own, capacity));
        }
        let place = self.find_place(row, claim.owner)?;
        let arrival = place.map_or(NEVER, |place| place.arrival);
        // One more than the rule looks at: it refuses a claim behind more than WINDOW others.
        read_queue(self.sql, row, admission::WINDOW + 1, |queue| {
            let ahead = queue.take_while(|queued| queued.arrival < arrival).map(|queued| queued.weight);
            admission::is_granted(row.held, ahead, own, capacity)
        })
    }

    /// Inserts the holder row.
    fn grant(&mut self, row: &mut ResourceRow<'_>, claim: &Claim, terms: &GrantTerms) -> StoreResult<Grant> {
        debug_assert!(row.last < terms.token.as_i64(), "a token must be greater than the last one");
        let weight = claim.share.weight();
        row.held += u64::from(weight);
        row.last = terms.token.as_i64();
        row.version += 1;
        row.ends_at(terms.ends);
        let (owner, holder) = (claim.owner.to_bytes(), claim.stored_holder().to_string());
        let note = claim.note.as_deref();
        self.statement(sql::holder::insert)?.execute(params![
            row.id,
            owner,
            terms.ends,
            row.last,
            weight,
            self.now,
            terms.handovers,
            holder,
            note
        ])?;
        row.seats += 1;
        Ok(Grant::new(terms.token, self.until(terms.ends)))
    }

    pub(crate) fn find_holder(
        &self,
        row: &ResourceRow<'_>,
        owner: OwnerToken,
    ) -> StoreResult<Option<HeldClaim>> {
        if row.seats == 0 {
            return Ok(None);
        }
        let mut statement = self.statement(sql::holder::find)?;
        let mut rows = statement.query((row.id, owner.to_bytes()))?;
        let Some(columns) = rows.next()? else { return Ok(None) };
        let asked_until: i64 = columns.get(6)?;
        let finish_request = if asked_until == 0 {
            None
        } else {
            let (by, why): (Option<Arc<str>>, Option<Arc<str>>) = (columns.get(7)?, columns.get(8)?);
            let (by, why) = (by.unwrap_or_default(), why.unwrap_or_default());
            Some(StoredFinishRequest { until: asked_until, by, why })
        };
        Ok(Some(HeldClaim {
            ends: columns.get(0)?,
            token: read_token("seat.token", columns.get(1)?)?,
            weight: columns.get(2)?,
            handovers: columns.get(3)?,
            evicting: columns.get(4)?,
            kept: columns.get::<_, i64>(5)? > 0,
            finish_request,
        }))
    }

    /// What a blocked claim is told: who holds, how many are ahead, and when something may change.
    fn blocked(&self, row: &ResourceRow<'_>, owner: OwnerToken) -> StoreResult<Blocked> {
        let mut blocked = Blocked::default();
        let position = self.queue_position(row, owner)?;
        blocked.queued = position.is_queued;
        blocked.ahead = position.ahead;
        blocked.holders = self.holders_ending_soonest(row)?;
        let holder_ends = blocked.holders.first().map(|holder| holder.remaining);
        let queue_changes = position.next_change.map(|at| self.until(at));
        let pause_ends = row.is_paused().then(|| self.until(row.paused_until));
        blocked.changes_in = [holder_ends, queue_changes, pause_ends].into_iter().flatten().min();
        (blocked.paused, blocked.pause_ends_in) = (row.is_paused(), pause_ends);
        blocked.cursor = Cursor(row.version.unsigned_abs());
        Ok(blocked)
    }

    fn holders_ending_soonest(&self, row: &ResourceRow<'_>) -> StoreResult<Vec<HeldBy>> {
        let mut statement = self.statement(sql::holder::ending_soonest)?;
        let mut rows = statement.query((row.id, HOLDERS_MAX))?;
        let mut holders = Vec::new();
        while let Some(columns) = rows.next()? {
            holders.push(read_holder(self.now, columns)?);
        }
        Ok(holders)
    }
}
