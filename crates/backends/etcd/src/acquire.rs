//! The verb `acquire`: one transaction when it is free.

use std::time::Duration;

use futures_util::future::join;
use leasehold_core::{
    Claim, ClaimRef, Effect, Error, ErrorKind, FencingToken, Grant, Timestamp, Verdict, WallTime, WhenBlocked,
};

use crate::{
    backend::Etcd,
    claims::Record,
    entry::Entry,
    error::Fault,
    keeping::Lasting,
    keys::{Keys, mark},
    line::{Contender, Line},
    plan::{Answer, Leases, Plan, beyond, decide, full},
    pool::{Lease, seconds_for, whole_seconds},
    read::Reading,
    txn::{Change, Changes, Guard, Op, Transaction, ops, reading},
};

/// How often a decision is made anew because others were faster.
const ATTEMPTS: u32 = 40;
/// How often of these the head of the line is enough to decide by.
const HEAD_ATTEMPTS: u32 = 4;

/// What an acquire has in hand.
struct Grip {
    claim: ClaimRef,
    me: String,
    record: Record,
    /// What it will hold under.
    hold: Lease,
    /// What it waits under, if it must.
    place: Option<Lease>,
    /// What its predecessor's tombstone is put under.
    grave: Option<Lease>,
    /// As long as what is left of its predecessor's lease, which is another client's: that one may use it again.
    remainder: Option<Lease>,
    /// An earlier request of this claim went unanswered.
    tainted: bool,
    /// This call has written something.
    wrote: bool,
    /// What it wrote was its place, by the one transaction.
    joined: bool,
    /// Others were met there last time.
    crowded: bool,
}

/// What the first transaction came to.
enum First {
    /// At this revision, under this lease.
    Granted(i64, Lease),
    /// It was read, and perhaps a place was taken.
    Read(Reading),
    /// Somebody is there, or a pause, or something of this claim.
    NotFree,
}

impl Etcd {
    pub(crate) async fn try_acquire(&self, claim: &Claim) -> Result<Verdict, Fault> {
        let most = self.info.limits.note;
        if claim.note.as_ref().is_some_and(|note| note.len() > most) {
            let message = format!("a note has at most {most} bytes");
            return Err(Fault::Refused(Error::new(ErrorKind::Limit, message)));
        }
        let keys = self.link.config.root.of(&claim.resource);
        self.check_floor(&keys, claim).await?;
        let mut grip = self.grip(claim, &keys).await?;
        let outcome = self.ask(claim, &keys, &mut grip).await;
        let Err(fault) = outcome else { return outcome };
        let error = fault.into_error();
        if error.effect() == Effect::None && grip.wrote {
            // The last request came to nothing, but not the one before: the claim may have a place.
            return Err(Fault::Refused(error.with_effect(Effect::Unknown)));
        }
        if error.effect() == Effect::None {
            self.let_go(&grip);
        }
        Err(Fault::Refused(error))
    }

    /// A floor that no revision can be above is refused before anything is written.
    async fn check_floor(&self, keys: &Keys, claim: &Claim) -> Result<(), Fault> {
        let floor = claim.floor.map_or(0, FencingToken::as_i64);
        if floor <= self.link.highest_seen() {
            return Ok(());
        }
        let revision = self.link.read(keys, &[], 1).await?.line.revision;
        if floor <= revision { Ok(()) } else { Err(Fault::Refused(beyond(floor, revision))) }
    }

    /// Takes the leases in hand, and notes that a request is under way: if it is dropped, that stays noted.
    async fn grip(&self, claim: &Claim, keys: &Keys) -> Result<Grip, Fault> {
        let (reference, now, me) = (claim.reference(), self.environment.now(), mark(claim.owner));
        let known = self.claims.get(&reference);
        let fits = |lease: &Lease| lease.asked == seconds_for(claim.ttl) && lease.is_usable(now);
        let reusable = known.as_ref().and_then(|record| record.leases().next()).filter(fits);
        let hold = match reusable {
            Some(lease) => lease,
            None => self.pool.take(claim.ttl).await?,
        };
        let tainted = known.as_ref().is_some_and(|record| record.unanswered);
        let mut record = match known {
            // Its contender may stand under the old lease.
            Some(record) if record.created != 0 || tainted => record,
            Some(record) => {
                self.dispose_unless(&record, hold);
                Record::new(hold, me.clone())
            }
            None => Record::new(hold, me.clone()),
        };
        record.unanswered = true;
        self.claims.insert(now, reference.clone(), record.clone());
        let queues = claim.when_blocked == WhenBlocked::Queue;
        // What is free as a rule is asked for in few bytes: a place is taken along where others were met.
        let crowded = self.crowds.expects(&keys.lock);
        let needs_place = crowded && queues && record.created == 0;
        let place = if needs_place { self.pool.take_ready(claim.place_ttl) } else { None };
        let grave = match claim.takes_over_from.and_then(|from| from.tombstone) {
            Some(tombstone) => Some(self.pool.grant(whole_seconds(tombstone)).await?),
            None => None,
        };
        Ok(Grip {
            claim: reference,
            me,
            record,
            hold,
            place,
            grave,
            remainder: None,
            tainted,
            wrote: false,
            joined: false,
            crowded,
        })
    }

    fn dispose_unless(&self, record: &Record, hold: Lease) {
        if record.taken.id != hold.id {
            self.dispose(record, false);
        }
    }

    /// Nothing was written: the leases lie ready again.
    fn let_go(&self, grip: &Grip) {
        self.claims.change(&grip.claim, |record| record.unanswered = grip.tainted);
        grip.place.into_iter().for_each(|lease| self.pool.put_back(lease));
        grip.grave.into_iter().chain(grip.remainder).for_each(|lease| self.pool.revoke(lease.id));
        let unused = grip.record.created == 0 && !grip.tainted;
        if unused && let Some(record) = self.claims.remove(&grip.claim) {
            self.dispose(&record, false);
        }
    }

    async fn ask(&self, claim: &Claim, keys: &Keys, grip: &mut Grip) -> Result<Verdict, Fault> {
        let mut read = None;
        let sent = self.environment.now();
        // Of a claim that may be there already the lease must not be kept: asking again does not extend.
        let is_new = grip.record.created == 0 && !grip.tainted;
        if claim.takes_over_from.is_none() && is_new {
            match self.first(claim, keys, grip).await {
                Ok(First::Granted(revision, hold)) => {
                    self.crowds.gone(&keys.lock);
                    let (name, new) = (grip.me.clone(), (revision, revision));
                    return self.granted(claim, grip, name, new, (sent, hold));
                }
                Ok(First::Read(reading)) => {
                    self.crowds.met(&keys.lock);
                    self.note_place(claim, grip, &reading.line);
                    read = Some(self.link.with_deep(keys, reading).await?);
                }
                Ok(First::NotFree) => self.crowds.met(&keys.lock),
                Err(fault) if fault.is_lease_gone() => self.regrip(claim, grip).await?,
                Err(fault) => return Err(fault),
            }
        }
        for attempt in 0..ATTEMPTS {
            let reading = match read.take() {
                Some(reading) => reading,
                None => self.read_for(claim, keys, grip, attempt).await?,
            };
            let plan = self.decide(claim, keys, grip, &reading)?;
            if plan.answer == Answer::NeedsPlace {
                grip.place = Some(self.pool.take(claim.place_ttl).await?);
                read = Some(reading);
                continue;
            }
            if let Answer::Granted { lease: Some(lease), .. } = plan.answer
                && grip.remainder.is_none()
                && !self.knows_predecessor(claim, lease)
            {
                grip.remainder = self.remainder(lease).await?;
                read = grip.remainder.map(|_| reading);
                continue;
            }
            match self.carry_out(claim, keys, grip, plan, reading.line.revision).await {
                Ok(Some(verdict)) => return Ok(verdict),
                Ok(None) => {
                    // How much is left may have changed, too.
                    grip.remainder.take().into_iter().for_each(|lease| self.pool.revoke_unused(lease.id));
                    self.step_aside(attempt).await;
                }
                Err(fault) if fault.is_lease_gone() => self.regrip(claim, grip).await?,
                Err(fault) => return Err(fault),
            }
        }
        let message = "the line changes faster than it can be joined";
        Err(Fault::Refused(Error::new(ErrorKind::Unavailable, message)))
    }

    /// Whether the lease that the predecessor stands under is one of ours.
    fn knows_predecessor(&self, claim: &Claim, lease: i64) -> bool {
        let from = claim
            .takes_over_from
            .map(|from| ClaimRef { resource: claim.resource.clone(), owner: from.owner });
        let record = from.and_then(|from| self.claims.get(&from));
        record.and_then(|record| record.under).is_some_and(|under| under.id == lease)
    }

    /// A lease that ends when this one does; `None` if that is over. It is of no length that is asked for: a renewal moves
    /// on to one that is, and what is to run out is never kept alive.
    async fn remainder(&self, lease: i64) -> Result<Option<Lease>, Fault> {
        let Some((left, _)) = self.pool.left(lease).await? else { return Ok(None) };
        let lease = self.pool.grant(whole_seconds(left)).await?;
        Ok(Some(Lease { asked: 0, ..lease }))
    }

    /// The one transaction has taken a place, if the claim stands in the line under the lease in hand.
    fn note_place(&self, claim: &Claim, grip: &mut Grip, line: &Line) {
        let Some(index) = line.find(&grip.me) else { return };
        let contender = &line.contenders[index];
        let Some(place) = grip.place.take_if(|place| place.id == contender.lease) else { return };
        let now = self.environment.now();
        (grip.wrote, grip.joined) = (true, true);
        grip.record.name.clone_from(&contender.name);
        (grip.record.created, grip.record.written) = (contender.created, contender.modified);
        grip.record.under = Some(place);
        // From when the lease was kept, which was before the request was sent.
        grip.record.ends = place.kept.after(claim.place_ttl).min(now.after(claim.place_ttl));
        self.claims.insert(now, grip.claim.clone(), grip.record.clone());
    }

    /// A moment, longer with every attempt, so that those who disturb each other part.
    pub(crate) async fn step_aside(&self, attempt: u32) {
        if attempt > 2 {
            let most = 1_000 * u64::from(attempt);
            let pause = Duration::from_micros(self.environment.random() % most);
            self.environment.sleep(pause).await;
        }
    }

    /// The leases in hand are gone (etcd was restored, or an operator revoked them): others.
    async fn regrip(&self, claim: &Claim, grip: &mut Grip) -> Result<(), Fault> {
        grip.hold = self.pool.grant(seconds_for(claim.ttl)).await?;
        if grip.record.created == 0 {
            grip.record.taken = grip.hold;
            self.claims.change(&grip.claim, |record| record.taken = grip.hold);
        }
        grip.remainder = None;
        if grip.place.is_some() {
            grip.place = Some(self.pool.grant(seconds_for(claim.place_ttl)).await?);
        }
        Ok(())
    }

    async fn read_for(
        &self,
        claim: &Claim,
        keys: &Keys,
        grip: &Grip,
        attempt: u32,
    ) -> Result<Reading, Fault> {
        let from = claim.takes_over_from.map(|from| mark(from.owner));
        let marks: Vec<&str> = [Some(grip.me.as_str()), from.as_deref()].into_iter().flatten().collect();
        // What goes wrong again and again may be because of someone who is not seen from the head: a stranger.
        let limit = if attempt < HEAD_ATTEMPTS { limit(claim) } else { 0 };
        self.link.read(keys, &marks, limit).await
    }

    /// The one transaction: granted if nobody is there. Where others were met, it else takes a place, if one is taken
    /// along, and looks.
    async fn first(&self, claim: &Claim, keys: &Keys, grip: &Grip) -> Result<First, Fault> {
        let wall = self.environment.wall();
        let free = vec![
            Guard::Modified(keys.own(&grip.me), 0),
            Guard::Nobody { lock: keys.lock.clone() },
            Guard::Modified(keys.pause.clone(), 0),
        ];
        let seat = ops(&contending(keys, &grip.me, &Entry::holding(claim, wall), grip.hold.id));
        let otherwise = if grip.crowded { otherwise(claim, keys, grip, wall) } else { Vec::new() };
        let transaction = Transaction { guards: free, then: seat, otherwise };
        let (done, hold) = join(self.link.transact(&transaction), self.freshened(grip.hold, claim.ttl)).await;
        let done = done?;
        if done.succeeded {
            return Ok(First::Granted(done.revision, hold));
        }
        if !grip.crowded {
            return Ok(First::NotFree);
        }
        if grip.place.is_none() {
            return Reading::of(keys, &done, 0).map(First::Read);
        }
        let inner = done.nested()?;
        let written = usize::from(inner.succeeded);
        Reading::of(keys, &inner, written).map(First::Read)
    }

    /// The lease, kept alive if it would not last for the ttl. If that fails it lasts as long as it did.
    async fn freshened(&self, mut lease: Lease, ttl: Duration) -> Lease {
        if !lease.lasts(self.environment.now(), ttl)
            && let Err(fault) = self.pool.keep(&mut lease).await
        {
            tracing::debug!(?fault, "a lease was not kept before its use: its claim gets what is left");
        }
        lease
    }

    fn decide(&self, claim: &Claim, keys: &Keys, grip: &Grip, reading: &Reading) -> Result<Plan, Fault> {
        let leases = Leases {
            hold: grip.hold.id,
            place: grip.place.map(|lease| lease.id),
            grave: grip.grave.map(|lease| lease.id),
            remainder: grip.remainder.map(|lease| lease.id),
        };
        let line_max = usize::try_from(self.info.limits.queue).unwrap_or(usize::MAX);
        let read = (reading.line.clone(), reading.owns.as_slice());
        decide(keys, claim, read, leases, self.environment.wall(), line_max).map_err(Fault::Refused)
    }

    /// Writes a plan and says what came of it; `None` if something has changed meanwhile.
    async fn carry_out(
        &self,
        claim: &Claim,
        keys: &Keys,
        grip: &mut Grip,
        plan: Plan,
        read_at: i64,
    ) -> Result<Option<Verdict>, Fault> {
        let sent = self.environment.now();
        let mut written = 0;
        if !plan.changes.is_empty() {
            let takes_seat = matches!(plan.answer, Answer::Granted { lease: None, .. });
            let ttl = if takes_seat { claim.ttl } else { Duration::ZERO };
            let commit = self.link.commit(plan.guards, &plan.changes);
            let (committed, hold) = join(commit, self.freshened(grip.hold, ttl)).await;
            grip.hold = hold;
            let Some(revision) = committed? else { return Ok(None) };
            (written, grip.wrote) = (revision, true);
        }
        let verdict = match plan.answer {
            Answer::NeedsPlace => return Ok(None),
            Answer::Cancelled => {
                self.succeeded(claim, None);
                self.done_with(grip);
                Verdict::Cancelled
            }
            Answer::Mismatch(capacity) => {
                self.done_with(grip);
                Verdict::Mismatch { capacity }
            }
            Answer::Holds(index) => return self.holds(claim, grip, &plan.line, index).await.map(Some),
            Answer::Granted { created, lease } => {
                let remainder = grip.remainder.take();
                let passed_on = self.succeeded(claim, lease.filter(|_| remainder.is_none()));
                let revisions = (created.unwrap_or(written), written);
                let seat = plan.line.find(&grip.me).map(|index| &plan.line.contenders[index]);
                match seat.filter(|_| lease.is_some()) {
                    None => {
                        let name = seat.map(|seat| seat.name.clone()).unwrap_or_default();
                        let hold = grip.hold;
                        self.granted(claim, grip, name, revisions, (sent, hold))?
                    }
                    Some(seat) => {
                        let lasts = |lease: Lease| lease.ends().min(lease.kept.after(ttl_of(seat)));
                        let remainder = remainder.map(|lease| (lease, lasts(lease)));
                        let Some(under) = remainder.or(passed_on) else { return Err(over()) };
                        self.carried_on(grip, seat, revisions, under)?
                    }
                }
            }
            Answer::Blocked(place) => {
                if written != 0 {
                    self.succeeded(claim, None);
                }
                return self.waits(claim, keys, grip, &plan.line, place, (read_at, written)).await.map(Some);
            }
        };
        Ok(Some(verdict))
    }

    /// The predecessor is gone from here too; what it was under, if that lease was passed on.
    fn succeeded(&self, claim: &Claim, passed_on: Option<i64>) -> Option<(Lease, Timestamp)> {
        let from = claim.takes_over_from?;
        let reference = ClaimRef { resource: claim.resource.clone(), owner: from.owner };
        let mut record = self.claims.remove(&reference)?;
        let (under, ends) = (record.under, record.ends);
        if passed_on.is_some() {
            record.under = None;
            if under.is_some_and(|under| under.id == record.taken.id) {
                return under.map(|under| (under, ends));
            }
        }
        self.dispose(&record, from.tombstone.is_some());
        under.filter(|under| Some(under.id) == passed_on).map(|under| (under, ends))
    }

    /// A seat: what is told counts from before the request was sent.
    fn granted(
        &self,
        claim: &Claim,
        grip: &mut Grip,
        name: String,
        (created, written): (i64, i64),
        (sent, hold): (Timestamp, Lease),
    ) -> Result<Verdict, Fault> {
        let token = token(created)?;
        let ends = sent.after(claim.ttl).min(hold.ends());
        let record = Record {
            taken: grip.record.taken,
            name,
            under: Some(hold),
            created,
            written,
            ends,
            unanswered: grip.tainted,
        };
        self.claims.insert(sent, grip.claim.clone(), record);
        self.put_down_place(grip, hold.id);
        Ok(Verdict::Granted(Grant::new(token, sent.until(ends))))
    }

    /// A place's lease that is not in use lies ready again.
    fn put_down_place(&self, grip: &mut Grip, in_use: i64) {
        let waited_under = grip.record.under.filter(|under| under.id != grip.record.taken.id);
        for lease in [grip.place.take(), waited_under].into_iter().flatten() {
            if lease.id != in_use {
                self.pool.put_back(lease);
            }
        }
    }

    /// A downgrade: it goes on under the lease of its predecessor, until the same end.
    fn carried_on(
        &self,
        grip: &mut Grip,
        seat: &Contender,
        (created, written): (i64, i64),
        (under, ends): (Lease, Timestamp),
    ) -> Result<Verdict, Fault> {
        let now = self.environment.now();
        let (taken, unanswered) = (grip.record.taken, grip.tainted);
        let name = seat.name.clone();
        let record = Record { taken, name, under: Some(under), created, written, ends, unanswered };
        self.claims.insert(now, grip.claim.clone(), record);
        self.put_down_place(grip, under.id);
        Ok(Verdict::Granted(Grant::new(token(created)?, now.until(ends))))
    }

    /// It was granted before: the same grant, with what remains of it.
    async fn holds(
        &self,
        claim: &Claim,
        grip: &mut Grip,
        line: &Line,
        index: usize,
    ) -> Result<Verdict, Fault> {
        let contender = &line.contenders[index];
        let Some((under, ends)) = self.seen_lease_of(&grip.record, contender).await? else {
            self.done_with(grip);
            return Err(over());
        };
        // Another client's lease is not noted here: it would be used again once the claim has ended.
        let is_ours = grip.record.leases().any(|lease| lease.id == under.id);
        let now = self.environment.now();
        let record = Record {
            taken: grip.record.taken,
            name: contender.name.clone(),
            under: is_ours.then_some(under),
            created: contender.created,
            written: contender.modified,
            ends,
            unanswered: grip.tainted,
        };
        // An earlier request that went unanswered has granted it: then nothing of this claim is open any more.
        self.claims.insert(now, claim.reference(), record);
        self.put_down_place(grip, contender.lease);
        Ok(Verdict::Granted(Grant::new(token(contender.created)?, now.until(ends))))
    }

    /// It waits, or has nothing.
    async fn waits(
        &self,
        claim: &Claim,
        keys: &Keys,
        grip: &mut Grip,
        line: &Line,
        place: Option<usize>,
        (since, written): (i64, i64),
    ) -> Result<Verdict, Fault> {
        let line_max = usize::try_from(self.info.limits.queue).unwrap_or(usize::MAX);
        let Some(index) = place else {
            self.done_with(grip);
            return Ok(Verdict::Blocked(self.blocked(line, None, since).await));
        };
        if line.ahead(place) > line_max && grip.joined {
            // The one transaction cannot count: whoever is one too many leaves again.
            let request = leasehold_core::ReleaseRequest::new(claim.reference());
            self.try_release(&request).await?;
            grip.wrote = false;
            return Err(Fault::Refused(full(line_max)));
        }
        let contender = &line.contenders[index];
        let now = self.environment.now();
        let mut record = grip.record.clone();
        record.unanswered = grip.tainted;
        record.name.clone_from(&contender.name);
        if let Some(place) = grip.place.take_if(|place| place.id == contender.lease) {
            (record.under, record.ends) = (Some(place), place.kept.after(claim.place_ttl));
        }
        // One that was just created has the revision at which that was written.
        record.created = if contender.created == i64::MAX { written } else { contender.created };
        let modified = if contender.modified == i64::MAX { written } else { contender.modified };
        record.written = modified;
        self.claims.insert(now, claim.reference(), record);
        grip.place.take().into_iter().for_each(|unused| self.pool.put_back(unused));
        let current = Contender { modified, ..contender.clone() };
        if let Lasting::Changed = self.extend(keys, &grip.claim, &current, claim.place_ttl).await? {
            let message = "its place was lost this moment: ask again";
            return Err(Fault::Refused(Error::new(ErrorKind::Unavailable, message)));
        }
        Ok(Verdict::Blocked(self.blocked(line, place, since).await))
    }

    /// Nothing of the claim is in etcd.
    fn done_with(&self, grip: &mut Grip) {
        grip.place.take().into_iter().for_each(|lease| self.pool.put_back(lease));
        if grip.tainted {
            self.claims.change(&grip.claim, |record| record.unanswered = true);
            return;
        }
        self.claims.change(&grip.claim, |record| record.unanswered = false);
        self.forget(&grip.claim, false);
        if grip.hold.id != grip.record.taken.id {
            self.pool.put_back(grip.hold);
        }
    }
}

/// A new contender.
fn contending(keys: &Keys, me: &str, entry: &Entry, lease: i64) -> Changes {
    Changes::from([(keys.contender(me), Change::Put { value: entry.write(), lease })])
}

/// What the one transaction does if it is not free: takes the place, unless others share it differently, and looks.
fn otherwise(claim: &Claim, keys: &Keys, grip: &Grip, wall: WallTime) -> Vec<Op> {
    let look = reading(keys, &[&grip.me], limit(claim));
    let Some(place) = grip.place else { return look };
    let guards = vec![
        Guard::Modified(keys.own(&grip.me), 0),
        Guard::Modified(keys.contender(&grip.me), 0),
        Guard::Capacity { lock: keys.lock.clone(), capacity: claim.share.capacity() },
    ];
    let (key, value) = (keys.contender(&grip.me), Entry::waiting(claim, wall).write());
    let mut then = vec![Op::Put { key: key.clone(), value, lease: Some(place.id) }];
    then.extend(look.iter().cloned());
    // The last look is at the contender of this claim, which was just written.
    then.pop();
    then.push(Op::Written { key, lease: Some(place.id), whole: true });
    vec![Op::Nested(Transaction { guards, then, otherwise: look })]
}

/// How much of the line is read: those who share must all be counted.
fn limit(claim: &Claim) -> i64 {
    if claim.share.capacity() == 1 { Line::HEAD } else { 0 }
}

fn ttl_of(seat: &Contender) -> Duration {
    seat.entry.as_ref().map_or(Duration::MAX, Entry::ttl)
}

/// The lease of a seat ended between the answer that told of it and the look at how long it lasts.
fn over() -> Fault {
    Fault::Refused(Error::new(ErrorKind::Unavailable, "it ran out this moment: ask again"))
}

pub(crate) fn token(created: i64) -> Result<FencingToken, Fault> {
    FencingToken::try_from(created).map_err(|_| {
        Fault::Refused(Error::new(ErrorKind::Limit, "etcd's revision is beyond 2^53: no token is left"))
    })
}
