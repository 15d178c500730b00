//! Holding a lease: the work, how its end is noticed, and how it is released.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use leasehold::{
    EndReason, ErrorKind, Lease, LeaseSet, LeaseView, OwnerToken, Released, Resource, State, Timestamp,
};
use leasehold_support::race::{Either, first};

use crate::{
    beliefs::{self, BeliefHandle},
    clock::Time,
    progress::Phase,
    random::{Random, nanos},
    register,
    simulation::Operation,
    workload::{Numbered, Worker},
};

/// What the request asked for besides the ttl.
#[derive(Clone, Debug, Default)]
pub(crate) struct HoldOptions {
    pub(crate) fixed: bool,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) progress_within: Option<Duration>,
    pub(crate) at_least: Option<Duration>,
}

impl HoldOptions {
    pub(crate) fn draw(random: &mut Random, ttl: Duration) -> HoldOptions {
        let mut options = HoldOptions::default();
        match random.below(20) {
            0 | 1 => options.fixed = true,
            2 => options.max_hold = Some(random.spread(ttl / 4, ttl * 3)),
            3 => options.progress_within = Some(random.spread(ttl / 4, ttl * 2)),
            4 => options.at_least = Some(random.spread(Duration::from_millis(10), Duration::from_secs(3))),
            _ => {}
        }
        options
    }
}

/// A held lease and what the checkers expect of it.
pub(crate) struct HeldLeaseCheck {
    page: BeliefHandle,
    name: String,
    options: HoldOptions,
    owner: OwnerToken,
    resource: Resource,
}

impl HeldLeaseCheck {
    pub(crate) fn new<T: Numbered>(
        worker: &Worker,
        lease: &Lease<T>,
        name: String,
        weight: u32,
        options: HoldOptions,
    ) -> HeldLeaseCheck {
        let (node, owner, resource) = (worker.node, lease.owner_token(), lease.resource().clone());
        let view = lease.view();
        let page = worker.simulation.beliefs.enter(beliefs::NewBelief {
            node,
            resource: resource.clone(),
            owner: Some(owner),
            weight,
            name: format!("{name} ({owner:?}, {:?})", lease.token()),
            not_past: options.max_hold.map(|max_hold| worker.now().after(max_hold)),
            vouches: Box::new(move || view.check().is_ok()),
        });
        HeldLeaseCheck { page, name, options, owner, resource }
    }
}

/// Works until done, lost, or stopped by the end of the run.
pub(crate) async fn hold<T: Numbered>(
    worker: &mut Worker,
    lease: Lease<T>,
    check: &HeldLeaseCheck,
) -> Lease<T> {
    let how = worker.random.below(4);
    let view = lease.view();
    let ended = match how {
        0 => match lease.hold(work(worker, view, check)).await {
            Ok(()) => None,
            Err(error) => {
                worker.expect(&error, &[ErrorKind::Lost]);
                ended_as(worker, &lease, check, "lost")
            }
        },
        1 => first(lease.ended(), work(worker, view, check)).await.left(),
        2 => {
            let cancelled = lease.cancellation();
            let cancelled = first(cancelled.cancelled(), work(worker, view, check)).await.left().is_some();
            if cancelled { ended_as(worker, &lease, check, "cancelled") } else { None }
        }
        _ => {
            work(worker, view, check).await; // checks the lease by itself, or not at all
            None
        }
    };
    if let Some(ending) = ended {
        judge_end(worker, check, ending, how == 2);
        if worker.random.chance(500) {
            let pause = worker.random.spread(Duration::from_millis(1), lease.ttl() * 2);
            worker.pause(pause).await; // the handle is still there
        }
    }
    lease
}

/// Why a lease ended whose loss was signalled. A signal without an end is a violation.
fn ended_as<T: Numbered>(
    worker: &Worker,
    lease: &Lease<T>,
    check: &HeldLeaseCheck,
    signal: &str,
) -> Option<EndReason> {
    match lease.state() {
        State::Ended(ending) => Some(ending),
        state => {
            let message = format!("{} was {signal} and is {state:?}", check.name);
            worker.simulation.world.fail("latch", message);
            None
        }
    }
}

/// Checks that the loss was signalled when it had to be: not before, not after.
fn judge_end(worker: &Worker, check: &HeldLeaseCheck, ending: EndReason, by_driver: bool) {
    let Worker { simulation, node, .. } = worker;
    let (name, world) = (&check.name, &simulation.world);
    worker.trace(|| format!("{name} is told: {ending}"));
    simulation.tally.count("losses signalled");
    let (resumed_at, disturbances) = world.past(*node);
    let Some(validity) = simulation.beliefs.validity(*node, check.owner) else { return };
    let undisturbed = disturbances == validity.disturbances;
    let fixed = check.options.fixed;
    let expected = match ending {
        EndReason::MaxHold => check.options.max_hold.is_some(),
        EndReason::NoProgress => check.options.progress_within.is_some(),
        EndReason::Evicted => simulation.plan.orders,
        EndReason::Expired => {
            fixed || !simulation.progress.is_strict() || !undisturbed || !simulation.plan.inside
        }
        _ => !simulation.progress.is_strict() || !simulation.plan.inside,
    };
    if !expected {
        world.fail("lost for nothing", format!("{name} is told, with nothing in its way: {ending}"));
    }
    // A yes that came in the same instant may have come after the end.
    if ending != EndReason::Expired || !undisturbed || validity.heard == world.now() {
        return;
    }
    let now = worker.now();
    // If the wall clock was set at any time since the grant, the lease may have ended before it was checked.
    if now < validity.not_before() && disturbances == validity.granted_disturbances {
        let early = now.until(validity.not_before());
        world.fail("lost for nothing", format!("{name} is told {early:?} before it has to stop"));
    }
    let resumed = world.clock(*node, |clock, _| clock.boot(resumed_at));
    let late = validity.stop().max(resumed).until(now);
    if late > Duration::from_millis(if by_driver { 5 } else { 1 }) {
        world.fail("loss in time", format!("{name} is told {late:?} after it had to stop"));
    }
}

/// The work: steps, each of which looks at the lease first.
async fn work<T: Numbered>(worker: &mut Worker, view: LeaseView<T>, check: &HeldLeaseCheck) {
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
        let holds = check.page.holds();
        if T::FENCES {
            use_register(worker, check, view.token().number(), holds, &mut computed);
        }
        if holds && worker.random.chance(900) {
            view.progress();
        }
        if holds && ttl_asked.is_some_and(|asked| asked != view.ttl()) && !check.options.fixed {
            let message = format!("{} asked for {ttl_asked:?} and has {:?}", check.name, view.ttl());
            worker.simulation.world.fail("extend", message);
        }
        if worker.now() >= until
            || worker.simulation.progress.phase() == Phase::Drain
            || (!holds && worker.random.chance(300))
        {
            return;
        }
        if holds && worker.random.chance(40) {
            extend(worker, &view, check, &mut ttl_asked).await;
        }
    }
}

async fn extend<T: Numbered>(
    worker: &mut Worker,
    view: &LeaseView<T>,
    check: &HeldLeaseCheck,
    ttl_asked: &mut Option<Duration>,
) {
    let outcome = if worker.random.chance(500) {
        let ttl = worker.ttl();
        let outcome = view.extend(ttl).await;
        *ttl_asked = outcome.is_ok().then_some(ttl);
        outcome
    } else {
        let note = format!("{} at {:?}", check.name, worker.now());
        view.set_note(note).await
    };
    worker.simulation.tally.count("extended");
    if let Err(error) = outcome {
        worker.expect(&error, &[ErrorKind::Lost, ErrorKind::Unavailable]);
    }
}

/// Reads under the token, and writes at the next step: even if the lease was lost in between.
fn use_register(
    worker: &Worker,
    check: &HeldLeaseCheck,
    token: u64,
    holds: bool,
    computed: &mut Option<u64>,
) {
    let Worker { simulation, .. } = worker;
    let mut registers = simulation.registers();
    let register = registers.entry(check.resource.clone()).or_default();
    if let Some(value) = computed.take() {
        if !register.write(token, value) {
            simulation.world.fail("fence", format!("an update of {} was lost", check.resource));
        }
    } else if holds {
        match register.enter(token, Some(check.owner)) {
            register::FenceReply::Read(value) => *computed = Some(value + 1),
            register::FenceReply::Stale if simulation.plan.inside => {
                let message =
                    format!("{} takes its lease for valid, and a newer holder was at work", check.name);
                simulation.world.fail("exclusion", message);
            }
            register::FenceReply::Stale => {}
            register::FenceReply::Shared => {
                simulation
                    .world
                    .fail("token", format!("{} shows a token that another one has shown", check.name));
            }
        }
    }
}

/// Gives the lease back, in one of the many ways.
pub(crate) async fn part<T: Numbered>(worker: &mut Worker, lease: Lease<T>, check: HeldLeaseCheck) {
    let held = check.page.holds();
    let least = check.options.at_least.filter(|_| held && T::FENCES);
    if let Some(least) = least.filter(|_| worker.simulation.progress.is_strict()) {
        close(worker, &check, least);
    }
    worker.trace(|| format!("{} gives back {:?}, {held}", check.name, check.owner));
    match worker.random.below(10) {
        0..=1 => drop(lease),
        2 if worker.simulation.plan.cancel > 0 => {
            let limit = worker.random.spread(Duration::from_micros(50), Duration::from_millis(200));
            if first(lease.release(), worker.pause(limit)).await.left().is_none() {
                worker.simulation.tally.count("fault: cancelled release");
            }
        }
        _ => match lease.release().await {
            Err(error) => worker.expect(&error, &[ErrorKind::Unavailable]),
            Ok(Released::AlreadyGone)
                if held && worker.simulation.progress.is_strict() && worker.simulation.plan.inside =>
            {
                let message =
                    format!("{} took its lease for valid, and the server had it no more", check.name);
                worker.simulation.world.fail("record", message);
            }
            Ok(Released::Now) => least.into_iter().for_each(|least| close(worker, &check, least)),
            Ok(_) => {}
        },
    }
    if check.page.holds() {
        worker.simulation.world.fail("latch", format!("{} takes a released lease for valid", check.name));
    }
    if worker.random.chance(300) {
        let pause = worker.random.spread(Duration::from_millis(1), Duration::from_secs(1));
        worker.pause(pause).await; // a view that outlives its lease
        check.page.holds();
    }
}

/// After this release the resource stays closed for what is left of `least`.
fn close(worker: &Worker, check: &HeldLeaseCheck, least: Duration) {
    let Worker { simulation, node, .. } = worker;
    if let Some(validity) = simulation.beliefs.validity(*node, check.owner) {
        let until: Time = validity.granted_sent + nanos(least) / 100 * 98;
        simulation.beliefs.close(&check.resource, until);
    }
}

/// Several leases that stand and fall together.
pub(crate) async fn hold_set(worker: &mut Worker, op: &Operation, set: LeaseSet) {
    let resources: Vec<Resource> = set.resources().cloned().collect();
    let set = Arc::new(set);
    let mut pages = Vec::new();
    for resource in resources {
        let seen: Weak<LeaseSet> = Arc::downgrade(&set);
        pages.push(worker.simulation.beliefs.enter(beliefs::NewBelief {
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
    let work = async {
        let until = worker.now().after(most);
        while worker.now() < until && worker.simulation.progress.phase() < Phase::Drain {
            let step = worker.random.spread(Duration::from_millis(1), Duration::from_millis(300));
            worker.pause(step).await;
            for page in &pages {
                page.holds();
            }
        }
    };
    if let Err(error) = set.hold(work).await {
        worker.expect(&error, &[ErrorKind::Lost]);
    }
    let Ok(set) = Arc::try_unwrap(set) else {
        return worker.simulation.world.fail("leak", format!("{} cannot take its set back", op.label()));
    };
    if worker.random.chance(200) {
        return drop(set);
    }
    let limit =
        Duration::from_secs(if worker.random.chance(worker.simulation.plan.cancel) { 0 } else { 600 });
    if let Either::Left(Err(error)) = first(set.release(), worker.pause(limit)).await {
        worker.expect(&error, &[ErrorKind::Unavailable]);
    }
}

impl Worker {
    /// What this node's clock says.
    pub(crate) fn now(&self) -> Timestamp {
        self.simulation.world.clock(self.node, |clock, now| clock.boot(now))
    }
}
