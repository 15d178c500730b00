//! How long things last: what remains of a contender, and how it is made to last longer.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use leasehold_core::{Blocked, ClaimRef, Cursor, QueueEntry, Timestamp};

use crate::{
    backend::Etcd,
    claims::Record,
    error::Fault,
    keys::{Keys, mark},
    line::{Contender, Line, stranger},
    pool::{Lease, seconds_for},
    txn::{Change, Changes, Guard},
};

/// Of how many holders and of how many places it is asked when they end: each is a question of its own.
const ASKED_MAX: (usize, usize) = (16, 8);

/// What came of making something last.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Lasting {
    /// Until then, and under this lease.
    Until(Timestamp, Lease),
    /// The contender has changed or gone meanwhile: look again.
    Changed,
}

impl Etcd {
    /// The lease that a contender is under, as far as we know it, and until when its claim was told that it lasts.
    pub(crate) async fn lease_of(
        &self,
        known: Option<&Record>,
        contender: &Contender,
    ) -> Result<Option<(Lease, Timestamp)>, Fault> {
        if let Some((under, record)) = known.and_then(|record| Some((record.under?, record)))
            && under.id == contender.lease
        {
            return Ok(Some((under, record.ends)));
        }
        let now = self.environment.now();
        let Some((left, granted)) = self.pool.left(contender.lease).await? else { return Ok(None) };
        let kept = now.after(left).before(Duration::from_secs(granted));
        let told = contender.entry.as_ref().map_or(left, |entry| left.min(entry.ttl()));
        Ok(Some((Lease { id: contender.lease, asked: granted, seconds: granted, kept }, now.after(told))))
    }

    /// The same, asked of etcd too: another client may have kept it since.
    pub(crate) async fn seen_lease_of(
        &self,
        known: &Record,
        contender: &Contender,
    ) -> Result<Option<(Lease, Timestamp)>, Fault> {
        let Some(seen) = self.lease_of(None, contender).await? else { return Ok(None) };
        // What we know is exact.
        let known = known.under.filter(|under| under.id == contender.lease).map(|under| (under, known.ends));
        Ok(Some(known.filter(|(_, ends)| *ends > seen.1).unwrap_or(seen)))
    }

    /// Sees that a contender lasts this long from now. Never shortens.
    pub(crate) async fn extend(
        &self,
        keys: &Keys,
        claim: &ClaimRef,
        contender: &Contender,
        ttl: Duration,
    ) -> Result<Lasting, Fault> {
        let known = self.claims.get(claim);
        let Some((mut under, told)) = self.lease_of(known.as_ref(), contender).await? else {
            return Ok(Lasting::Changed);
        };
        let now = self.environment.now();
        let wanted = now.after(ttl);
        if wanted <= told {
            let seen = match &known {
                Some(known) => self.seen_lease_of(known, contender).await?,
                None => Some((under, told)),
            };
            return Ok(seen.map_or(Lasting::Changed, |(under, told)| Lasting::Until(told, under)));
        }
        if under.asked != seconds_for(ttl) {
            return self.relocate(keys, claim, contender, ttl).await;
        }
        if !under.lasts(now, ttl) {
            match self.pool.keep(&mut under).await {
                Err(fault) if fault.is_lease_gone() => return Ok(Lasting::Changed),
                kept => kept?,
            }
        }
        self.claims.change(claim, |record| {
            if record.under.is_some_and(|known| known.id == under.id) {
                (record.under, record.ends) = (Some(under), record.ends.max(wanted));
            }
        });
        Ok(Lasting::Until(wanted, under))
    }

    /// Moves a contender to a lease of another length; its creation revision stays.
    async fn relocate(
        &self,
        keys: &Keys,
        claim: &ClaimRef,
        contender: &Contender,
        ttl: Duration,
    ) -> Result<Lasting, Fault> {
        let Some(mut entry) = contender.entry.clone() else { return Ok(Lasting::Changed) };
        let mut lease = self.pool.take(ttl).await?;
        let now = self.environment.now();
        if !lease.lasts(now, ttl) {
            self.pool.keep(&mut lease).await?;
        }
        entry.set_ttl(ttl);
        let (key, me) = (keys.contender(&contender.name), mark(claim.owner));
        let put = |value: String| Change::Put { value, lease: lease.id };
        let mut changes = Changes::from([(key.clone(), put(entry.write()))]);
        if contender.name != me {
            changes.insert(keys.own(&me), put(contender.name.clone()));
        }
        let unchanged = vec![Guard::Modified(key, contender.modified)];
        let Some(written) = self.link.commit(unchanged, &changes).await? else {
            self.pool.revoke_unused(lease.id);
            return Ok(Lasting::Changed);
        };
        let ends = now.after(ttl);
        self.claims.change(claim, |record| {
            (record.under, record.ends, record.written) = (Some(lease), ends, written);
        });
        Ok(Lasting::Until(ends, lease))
    }

    /// What remains of a contender for others to see: as much as is left of its lease, but not more than it asked for.
    /// `None` if that is not known, or if it is under no lease: then it does not end by itself, and it would be wrong to
    /// look again soon.
    pub(crate) async fn left_of(&self, contender: &Contender) -> Option<Duration> {
        let (left, _) = self.pool.left(contender.lease).await.ok().flatten()?;
        // Whole seconds, rounded down; for others the next one above is nearer to the truth.
        let left = left + Duration::from_secs(1);
        Some(contender.entry.as_ref().map_or(left, |entry| left.min(entry.ttl())))
    }

    async fn lefts(
        &self,
        line: &Line,
        indices: impl Iterator<Item = usize>,
    ) -> Vec<(usize, Option<Duration>)> {
        join_all(indices.map(|index| async move { (index, self.left_of(&line.contenders[index]).await) }))
            .await
    }

    /// A not-now, for the claim at this place of the line.
    pub(crate) async fn blocked(&self, line: &Line, place: Option<usize>, since: i64) -> Blocked {
        let holders = self.lefts(line, line.holders().take(ASKED_MAX.0));
        let places = self.lefts(line, line.places().take(ASKED_MAX.1));
        let (mut holders, places) = futures_util::future::join(holders, places).await;
        holders.sort_by_key(|(_, left)| left.unwrap_or(Duration::MAX));
        let mut blocked = Blocked::default();
        blocked.queued = place.is_some();
        blocked.ahead = u32::try_from(line.ahead(place)).unwrap_or(u32::MAX);
        blocked.paused = line.pause.is_some();
        blocked.cursor = Cursor(u64::try_from(since).unwrap_or_default());
        let paused_for = match &line.pause {
            Some(pause) => self.pool.left(pause.lease).await.ok().flatten().map(|(left, _)| left),
            None => None,
        };
        let ends = holders.iter().chain(&places).filter_map(|(_, left)| *left);
        blocked.changes_in = ends.chain(paused_for).min();
        let seen = |(index, left): (usize, Option<Duration>)| {
            let mut seen = line.seen(index, &*self.environment)?;
            seen.remaining = left.unwrap_or_default();
            Some(seen)
        };
        blocked.holders = holders.into_iter().take(Blocked::HOLDERS_MAX).filter_map(seen).collect();
        blocked
    }

    /// Holders and places as others see them, up to this many of each.
    pub(crate) async fn seen(
        &self,
        line: &Line,
        most: usize,
    ) -> (Vec<leasehold_core::HeldBy>, Vec<QueueEntry>) {
        let holders = self.lefts(line, line.holders().take(most));
        let places = self.lefts(line, line.places().take(most));
        let (mut holders, places) = futures_util::future::join(holders, places).await;
        holders.sort_by_key(|(index, _)| line.contenders[*index].created);
        let held = holders.into_iter().filter_map(|(index, left)| {
            let mut seen = line.seen(index, &*self.environment)?;
            seen.remaining = left.unwrap_or_default();
            Some(seen)
        });
        let places = places.into_iter().map(|(index, left)| (index, left.unwrap_or_default()));
        let placed = places.map(|(index, left)| match &line.contenders[index].entry {
            Some(entry) => {
                QueueEntry::new(entry.holder(), entry.weight, entry.since(&*self.environment), left)
            }
            None => {
                let holder = stranger(&line.contenders[index].text);
                QueueEntry::new(Arc::clone(&holder), line.weight(index), Duration::ZERO, left)
            }
        });
        (held.collect(), placed.collect())
    }

    /// The claim has ended: what it leaves behind here. Its leases are used again if all its requests were answered.
    pub(crate) fn forget(&self, claim: &ClaimRef, tombstone: bool) {
        let Some(record) = self.claims.remove(claim) else { return };
        self.dispose(&record, tombstone);
    }

    pub(crate) fn dispose(&self, record: &Record, tombstone: bool) {
        for lease in record.leases() {
            if tombstone || record.unanswered {
                // A request that is still under way finds no lease to put anything under.
                self.pool.revoke(lease.id);
            } else {
                self.pool.put_back(lease);
            }
        }
    }
}
