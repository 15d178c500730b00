//! Holding a lease: the work, how its end is noticed, and how it is given back.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use leasehold::{
    EndReason, ErrorKind, Lease, LeaseSet, LeaseView, OwnerToken, Released, Resource, State, Timestamp,
};
use leasehold_support::race::{Either, first};

use crate::{
    clock::Time,
    ledger::{self, BeliefPage},
    progress::Phase,
    random::{Random, nanos},
    register,
    stage::Op,
    workload::{Numbered, Worker},
};

/// What the request asked for besides the ttl.
#[derive(Clone, Debug, Default)]
pub(crate) struct Terms {
    pub(crate) fixed: bool,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) progress_within: Option<Duration>,
    pub(crate) at_least: Option<Duration>,
}

impl Terms {
    pub(crate) fn draw(random: &mut Random, ttl: Duration) -> Terms {
        let mut terms = Terms::default();
        match random.below(20) {
            0 | 1 => terms.fixed = true,
            2 => terms.max_hold = Some(random.spread(ttl / 4, ttl * 3)),
            3 => terms.progress_within = Some(random.spread(ttl / 4, ttl * 2)),
            4 => terms.at_least = Some(random.spread(Duration::from_millis(10), Duration::from_secs(3))),
            _ => {}
        }
        terms
    }
}

/// A held lease, as the checkers see it.
pub(crate) struct Grip {
    page: BeliefPage,
    name: String,
    terms: Terms,
    owner: OwnerToken,
    resource: Resource,
}

impl Grip {
    pub(crate) fn new<T: Numbered>(
        worker: &Worker,
        lease: &Lease<T>,
        name: String,
        weight: u32,
        terms: Terms,
    ) -> Grip {
        let (node, owner, resource) = (worker.node, lease.owner_token(), lease.resource().clone());
        let view = lease.view();
        let page = worker.stage.ledger.enter(ledger::Entry {
            node,
            resource: resource.clone(),
            owner: Some(owner),
            weight,
            name: format!("{name} ({owner:?}, {:?})", lease.token()),
            not_past: terms.max_hold.map(|max_hold| worker.now().after(max_hold)),
            vouches: Box::new(move || view.check().is_ok()),
        });
        Grip { page, name, terms, owner, resource }
    }
}

/// Works until done, lost, or stopped by the end of the run.
pub(crate) async fn hold<T: Numbered>(worker: &mut Worker, lease: Lease<T>, grip: &Grip) -> Lease<T> {
    let how = worker.random.below(4);
    let view = lease.view();
    let ended = match how {
        0 => match lease.hold(labour(worker, view, grip)).await {
            Ok(()) => None,
            Err(error) => {
                worker.expect(&error, &[ErrorKind::Lost]);
                match lease.state() {
                    State::Ended(ending) => Some(ending),
                    state => {
                        worker.stage.world.fail("latch", format!("{} was lost and is {state:?}", grip.name));
                        None
                    }
                }
            }
        },
        1 => first(lease.ended(), labour(worker, view, grip)).await.left(),
        2 => {
            let cancelled = lease.cancellation();
            let cancelled = first(cancelled.cancelled(), labour(worker, view, grip)).await.left().is_some();
            match lease.state() {
                State::Ended(ending) if cancelled => Some(ending),
                state if cancelled => {
                    worker.stage.world.fail("latch", format!("{} was cancelled and is {state:?}", grip.name));
                    None
                }
                _ => None,
            }
        }
        _ => {
            labour(worker, view, grip).await; // looks at the clock by itself, or not at all
            None
        }
    };
    if let Some(ending) = ended {
        judge_end(worker, grip, ending, how == 2);
        if worker.random.chance(500) {
            let pause = worker.random.spread(Duration::from_millis(1), lease.ttl() * 2);
            worker.pause(pause).await; // still in someone's hand
        }
    }
    lease
}

/// The end came when it had to: not before, not after.
fn judge_end(worker: &Worker, grip: &Grip, ending: EndReason, by_driver: bool) {
    let Worker { stage, node, .. } = worker;
    let (name, world) = (&grip.name, &stage.world);
    worker.trace(|| format!("{name} is told: {ending}"));
    stage.tally.count("losses signalled");
    let (resumed_at, disturbances) = world.past(*node);
    let Some(voucher) = stage.ledger.voucher(*node, grip.owner) else { return };
    let undisturbed = disturbances == voucher.disturbances;
    let fixed = grip.terms.fixed;
    let expected = match ending {
        EndReason::MaxHold => grip.terms.max_hold.is_some(),
        EndReason::NoProgress => grip.terms.progress_within.is_some(),
        EndReason::Evicted => stage.plan.orders,
        EndReason::Expired => fixed || !stage.progress.is_strict() || !undisturbed || !stage.plan.inside,
        _ => !stage.progress.is_strict() || !stage.plan.inside,
    };
    if !expected {
        world.fail("lost for nothing", format!("{name} is told, with nothing in its way: {ending}"));
    }
    // A yes that came in the same instant may have come after the end.
    if ending != EndReason::Expired || !undisturbed || voucher.heard == world.now() {
        return;
    }
    let now = worker.now();
    // If the calendar was set at any time since the grant, the lease may have been over before anyone looked.
    if now < voucher.not_before() && disturbances == voucher.granted_disturbances {
        let early = now.until(voucher.not_before());
        world.fail("lost for nothing", format!("{name} is told {early:?} before it has to stop"));
    }
    let resumed = world.clock(*node, |clock, _| clock.boot(resumed_at));
    let late = voucher.stop().max(resumed).until(now);
    if late > Duration::from_millis(if by_driver { 5 } else { 1 }) {
        world.fail("loss in time", format!("{name} is told {late:?} after it had to stop"));
    }
}

/// The work: steps, each of which looks at the lease first.
async fn labour<T: Numbered>(worker: &mut Worker, view: LeaseView<T>, grip: &Grip) {
    let ttl = view.ttl();
    let long = worker.random.chance(250);
    let most = if long {
        worker.random.spread(ttl / 2, ttl * 4)
    } else {
        worker.random.spread(Duration::from_millis(1), Duration::from_millis(300))
    };
    let until = worker.now().after(most);
    let mut computed = None;
    let mut ttl_asked = None;
    loop {
        let step = worker.random.spread(Duration::from_millis(1), (ttl / 3).min(most));
        worker.pause(step.min(worker.now().until(until).max(Duration::from_millis(1)))).await;
        let holds = grip.page.holds();
        if T::FENCES {
            use_register(worker, grip, view.token().number(), holds, &mut computed);
        }
        if holds && worker.random.chance(900) {
            view.progress();
        }
        if holds && ttl_asked.is_some_and(|asked| asked != view.ttl()) && !grip.terms.fixed {
            let message = format!("{} asked for {ttl_asked:?} and has {:?}", grip.name, view.ttl());
            worker.stage.world.fail("extend", message);
        }
        if worker.now() >= until
            || worker.stage.progress.phase() == Phase::Drain
            || (!holds && worker.random.chance(300))
        {
            return;
        }
        if holds && worker.random.chance(40) {
            extend(worker, &view, grip, &mut ttl_asked).await;
        }
    }
}

async fn extend<T: Numbered>(
    worker: &mut Worker,
    view: &LeaseView<T>,
    grip: &Grip,
    ttl_asked: &mut Option<Duration>,
) {
    let outcome = if worker.random.chance(500) {
        let ttl = worker.ttl();
        let outcome = view.extend(ttl).await;
        *ttl_asked = outcome.is_ok().then_some(ttl);
        outcome
    } else {
        let note = format!("{} at {:?}", grip.name, worker.now());
        view.set_note(note).await
    };
    worker.stage.tally.count("extended");
    if let Err(error) = outcome {
        worker.expect(&error, &[ErrorKind::Lost, ErrorKind::Unavailable]);
    }
}

/// Reads under the token, and writes at the next step: even if the lease was lost in between.
fn use_register(worker: &Worker, grip: &Grip, token: u64, holds: bool, computed: &mut Option<u64>) {
    let Worker { stage, .. } = worker;
    let mut registers = stage.registers();
    let register = registers.entry(grip.resource.clone()).or_default();
    if let Some(value) = computed.take() {
        if !register.write(token, value) {
            stage.world.fail("fence", format!("an update of {} was lost", grip.resource));
        }
    } else if holds {
        match register.enter(token, Some(grip.owner)) {
            register::Entry::Read(value) => *computed = Some(value + 1),
            register::Entry::Stale if stage.plan.inside => {
                let message = format!("{} vouches for its lease, and a newer one was at work", grip.name);
                stage.world.fail("exclusion", message);
            }
            register::Entry::Stale => {}
            register::Entry::Shared => {
                stage.world.fail("token", format!("{} shows a token that another one has shown", grip.name));
            }
        }
    }
}

/// Gives the lease back, in one of the many ways.
pub(crate) async fn part<T: Numbered>(worker: &mut Worker, lease: Lease<T>, grip: Grip) {
    let held = grip.page.holds();
    let least = grip.terms.at_least.filter(|_| held && T::FENCES);
    if let Some(least) = least.filter(|_| worker.stage.progress.is_strict()) {
        close(worker, &grip, least);
    }
    worker.trace(|| format!("{} gives back {:?}, {held}", grip.name, grip.owner));
    match worker.random.below(10) {
        0..=1 => drop(lease),
        2 if worker.stage.plan.cancel > 0 => {
            let limit = worker.random.spread(Duration::from_micros(50), Duration::from_millis(200));
            if first(lease.release(), worker.pause(limit)).await.left().is_none() {
                worker.stage.tally.count("fault: cancelled release");
            }
        }
        _ => match lease.release().await {
            Err(error) => worker.expect(&error, &[ErrorKind::Unavailable]),
            Ok(Released::AlreadyGone)
                if held && worker.stage.progress.is_strict() && worker.stage.plan.inside =>
            {
                let message = format!("{} vouched for its lease, and the server had it no more", grip.name);
                worker.stage.world.fail("record", message);
            }
            Ok(Released::Now) => least.into_iter().for_each(|least| close(worker, &grip, least)),
            Ok(_) => {}
        },
    }
    if grip.page.holds() {
        worker.stage.world.fail("latch", format!("{} vouches for a lease that was given back", grip.name));
    }
    if worker.random.chance(300) {
        let pause = worker.random.spread(Duration::from_millis(1), Duration::from_secs(1));
        worker.pause(pause).await; // a view that outlives its lease
        grip.page.holds();
    }
}

/// After this release the resource stays closed for what is left of `least`.
fn close(worker: &Worker, grip: &Grip, least: Duration) {
    let Worker { stage, node, .. } = worker;
    if let Some(voucher) = stage.ledger.voucher(*node, grip.owner) {
        let until: Time = voucher.granted_sent + nanos(least) / 100 * 98;
        stage.ledger.close(&grip.resource, until);
    }
}

/// Several leases that stand and fall together.
pub(crate) async fn hold_set(worker: &mut Worker, op: &Op, set: LeaseSet) {
    let resources: Vec<Resource> = set.resources().cloned().collect();
    let set = Arc::new(set);
    let mut pages = Vec::new();
    for resource in resources {
        let seen: Weak<LeaseSet> = Arc::downgrade(&set);
        pages.push(worker.stage.ledger.enter(ledger::Entry {
            node: worker.node,
            resource,
            owner: None,
            weight: 1,
            name: format!("{} (a set)", op.label()),
            not_past: None,
            vouches: Box::new(move || seen.upgrade().is_some_and(|set| set.check().is_ok())),
        }));
    }
    let most = worker.random.spread(Duration::from_millis(1), Duration::from_secs(2));
    let labour = async {
        let until = worker.now().after(most);
        while worker.now() < until && worker.stage.progress.phase() < Phase::Drain {
            let step = worker.random.spread(Duration::from_millis(1), Duration::from_millis(300));
            worker.pause(step).await;
            for page in &pages {
                page.holds();
            }
        }
    };
    if let Err(error) = set.hold(labour).await {
        worker.expect(&error, &[ErrorKind::Lost]);
    }
    let Ok(set) = Arc::try_unwrap(set) else {
        return worker.stage.world.fail("leak", format!("{} cannot take its set back", op.label()));
    };
    if worker.random.chance(200) {
        return drop(set);
    }
    let limit = Duration::from_secs(if worker.random.chance(worker.stage.plan.cancel) { 0 } else { 600 });
    if let Either::Left(Err(error)) = first(set.release(), worker.pause(limit)).await {
        worker.expect(&error, &[ErrorKind::Unavailable]);
    }
}

impl Worker {
    /// What this node's clock says.
    pub(crate) fn now(&self) -> Timestamp {
        self.stage.world.clock(self.node, |clock, now| clock.boot(now))
    }
}
