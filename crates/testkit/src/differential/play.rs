//! Plays one case on both sides.

use std::{collections::BTreeMap, future::Future, time::Duration};

use leasehold_core::{
    AuditRecord, Backend, Capabilities, ClaimRef, CommandOutcome, Error, Eviction, Handover, Listing,
    OperatorAction, OperatorCommand, OwnerToken, Page, Query, ReleaseRequest, Released, RenewRequest,
    Renewal, Result as Answer, Snapshot, Timestamp, Verdict, WallTime,
};

use super::{
    compare::{self, Tolerance},
    steps::{Asking, Case, Family, Meaning, Renewing, Span, Step, What, Who},
    world::World,
};
use crate::target::BackendUnderTest;

/// Plays it, and tells the story if the two sides differ.
pub(super) async fn play(target: &BackendUnderTest, case: &Case) -> Result<(), String> {
    let mut game = Game::new(target, case.family);
    for step in &case.steps {
        let stepped = match game.step(step).await {
            Ok(Some(())) => game.seat_movers().await,
            other => other,
        };
        match stepped {
            Ok(Some(())) => {}
            Ok(None) => return Ok(()), // a slow call came too close to an end: nothing can be said
            Err(difference) => {
                game.story.push(difference);
                return Err(game.story.join("\n   "));
            }
        }
    }
    Ok(())
}

struct Game<'a> {
    target: &'a BackendUnderTest,
    has: Capabilities,
    family: Family,
    world: World,
    slowest: Duration,
    story: Vec<String>,
    /// How whoever waits came to its place.
    waiting: BTreeMap<(usize, OwnerToken), Asking>,
}

/// When a call ran. With a real clock the model is told the later moment.
#[derive(Clone, Copy)]
struct Ran {
    began: Timestamp,
    ended: Timestamp,
}

/// How far calls stay away from an end, with a real clock.
const MARGIN: Duration = Duration::from_millis(120);

/// `None` if nothing can be said.
type Played = Result<Option<()>, String>;

impl<'a> Game<'a> {
    fn new(target: &'a BackendUnderTest, family: Family) -> Game<'a> {
        let has = target.backend().info().capabilities;
        let family = if has.shares { family } else { Family::Mutex };
        let story = vec![format!("used as {family:?}")];
        Game {
            target,
            has,
            family,
            world: World::new(),
            slowest: Duration::ZERO,
            story,
            waiting: BTreeMap::new(),
        }
    }

    async fn step(&mut self, step: &Step) -> Played {
        match step {
            Step::Acquire(asking) => self.acquire(asking).await,
            Step::Renew { batch, second } => self.renew(batch, *second).await,
            Step::Release { who, tombstone, keep_for, second } => {
                self.release(*who, (*tombstone, *keep_for), *second).await
            }
            Step::Order { resource, meaning, what, second } if self.has.orders => {
                self.order(*resource, *meaning, *what, *second).await
            }
            Step::Look { resource } => self.look(*resource).await,
            Step::List { limit } => self.list(*limit).await,
            Step::Audit { limit } if self.has.orders => self.audit(*limit).await,
            Step::Pass(pause) => {
                let lasting = pause.lasting(self.target);
                self.story.push(format!("{lasting:?} pass"));
                self.target.pass(lasting).await;
                Ok(Some(()))
            }
            Step::Order { .. } | Step::Audit { .. } => Ok(Some(())),
        }
    }

    /// Where the store seats by itself, whoever can move holds already: there it asks at once, so that the model
    /// says the same.
    async fn seat_movers(&mut self) -> Played {
        if !self.has.self_granting {
            return Ok(Some(()));
        }
        for at in 0..self.world.models.len() {
            loop {
                let mover = self.world.models[at].movers().next();
                let Some(asking) = mover.and_then(|mover| self.waiting.get(&(at, mover)).cloned()) else {
                    break;
                };
                match self.acquire(&asking).await {
                    Ok(Some(())) => {}
                    other => return other,
                }
            }
        }
        Ok(Some(()))
    }

    /// Runs a call clear of every moment at which something ends; `None` if that did not succeed.
    async fn call<T>(&mut self, call: impl Future<Output = T>) -> (T, Option<Ran>) {
        let exact = self.target.is_exact();
        if !exact {
            while let Some(clear) = self.world.horizon.clear_from(self.target.now(), MARGIN) {
                let wait = self.target.now().until(clear) + Duration::from_millis(1);
                self.target.pass(wait).await;
            }
        }
        let began = self.target.now();
        let answer = call.await;
        let ran = Ran { began, ended: self.target.now() };
        self.slowest = self.slowest.max(began.until(ran.ended));
        let touched = !exact && self.world.horizon.touches(began, ran.ended, self.target.slack());
        (answer, (!touched).then_some(ran))
    }

    fn tolerance(&self) -> Tolerance {
        // What may end late may also be told to last that much longer.
        let real = self.slowest + self.target.slack() + self.target.expiry_grace();
        let apart = if self.target.is_exact() { Duration::ZERO } else { real };
        Tolerance { apart, own_ttl: self.has.own_ttl, eager: self.has.self_granting, unsettled: false }
    }

    fn given(&mut self, ran: Ran, lasting: Duration) {
        self.world.horizon.given(ran.began, ran.ended, lasting, self.target.expiry_grace());
    }

    fn backend(&self, second: bool) -> &'a dyn Backend {
        let target: &'a BackendUnderTest = self.target;
        if second { &**target.second() } else { &**target.backend() }
    }

    async fn acquire(&mut self, asking: &Asking) -> Played {
        let at = usize::from(asking.who.resource);
        let stray = asking.stray && self.has.shares;
        let share = self.family.share(asking.weight, stray);
        let mut claim = self.world.claim(asking, share, self.target);
        if asking.queue && self.has.queue {
            claim = claim.queued();
        }
        let heir =
            asking.takes_over_from.filter(|(owner, _)| *owner != asking.who.owner && self.may_succeed(at));
        if let Some((owner, tombstone)) = heir {
            let mut from = Handover::from(self.world.owner(owner));
            from.tombstone = tombstone.map(|tombstone| tombstone.given(self.target));
            claim = claim.taking_over(from);
        }
        let mut theirs = claim.clone();
        theirs.floor = self.world.tokens[at].newest.filter(|_| asking.floor);

        // A session keeps its places: whoever waits asks through the handle by which it came.
        let place = self.waiting.get(&(at, claim.owner)).filter(|_| !self.has.own_ttl);
        let place = place.filter(|_| self.world.models[at].is_placed(claim.owner));
        let second = place.map_or(asking.second, |place| place.second);
        let backend = self.backend(second);
        let (answer, ran) = self.call(backend.acquire(&theirs)).await;
        self.story.push(format!("acquire {asking:?} as {share:?}\n      -> {answer:?}"));
        let Some(ran) = ran else { return Ok(None) };
        let clock = self.world.clock();
        let waited = self.world.models[at].is_placed(claim.owner);
        let ours = self.world.models[at].acquire(ran.ended, &claim, clock);
        if !waited && self.world.models[at].is_placed(claim.owner) {
            let asking = Asking { takes_over_from: None, floor: false, second, ..asking.clone() };
            self.waiting.insert((at, claim.owner), asking);
        }
        self.given(ran, claim.ttl);
        self.given(ran, claim.place_ttl);
        heir.and_then(|(_, tombstone)| tombstone)
            .into_iter()
            .for_each(|tombstone| self.given(ran, tombstone.given(self.target)));

        let Some((ours, answer)) = both(ours, answer)? else { return Ok(Some(())) };
        if let (Verdict::Granted(ours), Verdict::Granted(grant)) = (&ours, &answer) {
            let known = self.world.tokens[at].translate(ours.token).is_some();
            self.world.tokens[at].granted(claim.owner, share, ours.token, grant.token)?;
            if let Some(floor) = theirs.floor.filter(|floor| !known && grant.token <= *floor) {
                return Err(format!("a new grant has {:?}, not above the floor {floor:?}", grant.token));
            }
        }
        let all = self.world.models[at].snapshot(ran.ended, &claim.resource);
        let mut tolerance = self.tolerance();
        tolerance.unsettled = self.has.self_granting && self.world.models[at].movers().next().is_some();
        tolerance.verdict(&self.world.tokens[at], &all, &ours, &answer)?;
        Ok(Some(()))
    }

    /// Where a seat is handed over only while nobody waits, the suite does not ask for more.
    fn may_succeed(&self, at: usize) -> bool {
        let now = self.target.now();
        let line = self.world.models[at].snapshot(now, &self.world.resources[at]).queue_length;
        self.has.handover || (self.has.queue && line == 0)
    }

    async fn renew(&mut self, batch: &[Renewing], second: bool) -> Played {
        // One batch is of one lane.
        let failure_domain = |renewing: &Renewing| {
            let resource = &self.world.resources[usize::from(renewing.who.resource)];
            self.target.backend().failure_domain(resource)
        };
        let batch: Vec<_> =
            batch.iter().filter(|renewing| failure_domain(renewing) == failure_domain(&batch[0])).collect();
        let held = |renewing: &&Renewing| {
            let mut held = RenewRequest::new(self.reference(renewing.who), renewing.ttl.given(self.target));
            held.note = renewing.note.map(|byte| [byte].into());
            held
        };
        let held: Vec<_> = batch.iter().map(held).collect();
        let backend = self.backend(second);
        let (answers, ran) = self.call(backend.renew(&held)).await;
        self.story.push(format!("renew {batch:?}{}\n      -> {answers:?}", by(second)));
        let Some(ran) = ran else { return Ok(None) };
        if answers.len() != held.len() {
            return Err(format!("{} answers to {} renewals", answers.len(), held.len()));
        }
        for ((renewing, held), answer) in batch.iter().zip(&held).zip(answers) {
            let at = usize::from(renewing.who.resource);
            let ours = self.world.models[at].renew(ran.ended, held);
            self.given(ran, held.ttl);
            let answer: Renewal = answer.map_err(|error| format!("renew failed: {error:?}"))?;
            self.tolerance().renewal(&self.world.tokens[at], &ours, &answer)?;
        }
        Ok(Some(()))
    }

    async fn release(
        &mut self,
        who: Who,
        (tombstone, keep_for): (Option<Span>, Option<Span>),
        second: bool,
    ) -> Played {
        let mut request = ReleaseRequest::new(self.reference(who));
        request.tombstone = tombstone.map(|tombstone| tombstone.given(self.target));
        request.keep_for = keep_for.filter(|_| self.has.keep_for).map(|keep_for| keep_for.given(self.target));
        let backend = self.backend(second);
        let (answer, ran) = self.call(backend.release(&request)).await;
        let (tombstone, keep_for) = (request.tombstone, request.keep_for);
        let said = format!("release {who:?}, tombstone {tombstone:?}, keep for {keep_for:?}{}", by(second));
        self.story.push(format!("{said}\n      -> {answer:?}"));
        let Some(ran) = ran else { return Ok(None) };
        let ours = self.world.models[usize::from(who.resource)].release(ran.ended, &request);
        tombstone.into_iter().chain(keep_for).for_each(|lasting| self.given(ran, lasting));
        let answer: Released = answer.map_err(|error| format!("release failed: {error:?}"))?;
        if ours == answer {
            Ok(Some(()))
        } else {
            Err(format!("the model says {ours:?}, the backend {answer:?}"))
        }
    }

    async fn order(&mut self, resource: u8, meaning: Meaning, what: What, second: bool) -> Played {
        let at = usize::from(resource);
        let command = self.command(what);
        let mut ours =
            OperatorCommand::new(self.world.resources[at].clone(), command, "someone", "to compare");
        ours.token = match meaning {
            Meaning::Whoever => None,
            Meaning::LastGrantOf(owner) => self.world.tokens[at].last_grant_of(self.world.owner(owner)),
        };
        let mut theirs = ours.clone();
        theirs.token = ours.token.and_then(|token| self.world.tokens[at].translate(token));

        let backend = self.backend(second);
        let (answer, ran) = self.call(backend.order(&theirs)).await;
        let said = format!("order resource {resource}: {command:?}, {meaning:?}{}", by(second));
        self.story.push(format!("{said}\n      -> {answer:?}"));
        let Some(ran) = ran else { return Ok(None) };
        let answered = self.world.models[at].order(ran.ended, &ours);
        if let OperatorAction::Pause { lasting } = command {
            self.given(ran, lasting);
        }
        let answer = answer.map_err(|error| format!("an order failed: {error:?}"))?;
        self.world.audit.push(AuditRecord::of(
            &theirs,
            WallTime::default(),
            answered == CommandOutcome::Done,
        ));
        compare::ordered(&self.world.tokens[at], answered, answer)?;
        Ok(Some(()))
    }

    fn command(&self, what: What) -> OperatorAction {
        match what {
            What::Ask => OperatorAction::Ask { within: Span::Long.given(self.target) },
            What::EvictAtExpiry => OperatorAction::Evict(Eviction::AtExpiry),
            What::EvictNow => OperatorAction::Evict(Eviction::Now),
            What::Pause(lasting) => OperatorAction::Pause { lasting: lasting.given(self.target) },
            What::Resume => OperatorAction::Resume,
            What::Resize(capacity) => OperatorAction::Resize { capacity: capacity.into() },
        }
    }

    async fn look(&mut self, resource: u8) -> Played {
        let at = usize::from(resource);
        let (backend, query) = (self.backend(true), Query::One(self.world.resources[at].clone()));
        let (answer, ran) = self.call(backend.inspect(&query)).await;
        self.story.push(format!("look at resource {resource}\n      -> {answer:?}"));
        let Some(ran) = ran else { return Ok(None) };
        let seen = answer.map_err(|error| format!("inspect failed: {error:?}"))?.into_snapshots();
        let [seen] = seen.as_slice() else { return Err("one resource was asked for".to_owned()) };
        let ours = self.world.models[at].snapshot(ran.ended, &self.world.resources[at]);
        self.tolerance().snapshot(&self.world.tokens[at], &ours, seen)?;
        Ok(Some(()))
    }

    async fn list(&mut self, limit: u8) -> Played {
        let (prefix, mut after, mut seen): (_, _, Vec<Snapshot>) = (self.world.prefix(), None, Vec::new());
        let backend = self.backend(false);
        let pages = async {
            loop {
                let mut listing = Listing::of(&prefix).limit(u32::from(limit));
                listing.after = after;
                let Page::Resources { snapshots, next } = backend.inspect(&Query::Resources(listing)).await?
                else {
                    return Ok::<_, Error>(None);
                };
                seen.extend(snapshots);
                after = next;
                if after.is_none() || seen.len() > 2 {
                    return Ok(Some(seen));
                }
            }
        };
        let (answer, ran) = self.call(pages).await;
        self.story.push(format!("list in pages of {limit}\n      -> {answer:?}"));
        let Some(ran) = ran else { return Ok(None) };
        let seen = answer.map_err(|error| format!("inspect failed: {error:?}"))?;
        let seen = seen.ok_or("resources were asked for, and something else came")?;
        let is_live =
            |seen: &Snapshot| seen.holder_count + seen.queue_length > 0 || seen.paused_for.is_some();
        let ours =
            (0..2).map(|at| (at, self.world.models[at].snapshot(ran.ended, &self.world.resources[at])));
        let ours: Vec<_> = ours.filter(|(_, ours)| is_live(ours)).collect();
        if ours.len() != seen.len() {
            return Err(format!("the model lists {} resources, the backend {}", ours.len(), seen.len()));
        }
        for ((at, ours), seen) in ours.iter().zip(&seen) {
            self.tolerance().snapshot(&self.world.tokens[*at], ours, seen)?;
        }
        Ok(Some(()))
    }

    async fn audit(&mut self, limit: u8) -> Played {
        let (prefix, mut after, mut seen): (_, _, Vec<AuditRecord>) = (self.world.prefix(), None, Vec::new());
        let (backend, due) = (self.backend(false), self.world.audit.len());
        let pages = async {
            loop {
                let mut listing = Listing::of(&prefix).limit(u32::from(limit));
                listing.after = after;
                let Page::Audit { records, next } = backend.inspect(&Query::Audit(listing)).await? else {
                    return Ok::<_, Error>(None);
                };
                seen.extend(records);
                after = next;
                if after.is_none() || seen.len() > due {
                    return Ok(Some(seen));
                }
            }
        };
        let (answer, ran) = self.call(pages).await;
        self.story.push(format!("read the audit trail in pages of {limit}\n      -> {answer:?}"));
        if ran.is_none() {
            return Ok(None);
        }
        let seen = answer.map_err(|error| format!("inspect failed: {error:?}"))?;
        let seen = seen.ok_or("the audit trail was asked for, and something else came")?;
        if seen.len() != due {
            return Err(format!("{due} orders were given, the audit trail has {}", seen.len()));
        }
        for (ours, seen) in self.world.audit.iter().rev().zip(&seen) {
            compare::record(ours, seen)?;
        }
        Ok(Some(()))
    }

    fn reference(&self, who: Who) -> ClaimRef {
        let resource = self.world.resources[usize::from(who.resource)].clone();
        ClaimRef { resource, owner: self.world.owner(who.owner) }
    }
}

/// Both answers, if both sides have one; nothing, if both refuse for the same reason.
/// Through which handle, for the story.
fn by(second: bool) -> &'static str {
    if second { ", second" } else { "" }
}

fn both<T: std::fmt::Debug>(model: Answer<T>, backend: Answer<T>) -> Result<Option<(T, T)>, String> {
    match (model, backend) {
        (Ok(model), Ok(backend)) => Ok(Some((model, backend))),
        (Err(model), Err(backend))
            if (model.kind(), model.effect()) == (backend.kind(), backend.effect()) =>
        {
            Ok(None)
        }
        (model, backend) => Err(format!("the model says {model:?},\n   the backend {backend:?}")),
    }
}
