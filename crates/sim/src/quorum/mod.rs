//! Leases over a majority of nodes: the real quorum and the real engine, over nodes in memory, each on a clock of its
//! own, with a network that loses and delays messages. A run is a storm, a calm, and a look at what is left, as for one server.
//!
//! Promised always: no token is given twice, a later grant has the greater one, no update is lost behind the fence.
//! Promised unless a node's clock is set: no two believe to hold at the same moment.

mod belief_checker;
mod faults;
mod plan;
mod simulated_node;
mod simulation;
mod work;

use std::{sync::Arc, time::Duration};

use leasehold_core::QuorumNode;

use self::{plan::QuorumRunPlan, simulation::QuorumSimulation};
use crate::{
    progress::Phase,
    random::{Random, nanos},
    report::Report,
    world::{DIRECTOR, World},
};

/// How long the workload goes on once nothing may go wrong any more.
const STRICT_FOR: Duration = Duration::from_secs(10);
/// How long nodes may have something of an operation that has ended, without faults.
const ORPHAN_MAX: Duration = Duration::from_millis(600);
/// How long everyone may need to finish.
const DRAIN_MAX: Duration = Duration::from_secs(30);

/// Runs one seed over a quorum.
pub fn run_quorum_seed(seed: u64, tracing: bool) -> Report {
    let plan = QuorumRunPlan::draw(seed);
    let mut random = Random::new(seed, 0x90);
    let world = World::new(plan.clock(&mut random), Some(Random::new(seed, 0x5aff)), tracing);
    world.trace(|| format!("{plan:?}"));
    let simulation = QuorumSimulation::new(plan, &world, &mut random);
    for at in 0..simulation.plan.hosts {
        simulation.start_host(at, simulation.plan.clock(&mut random));
    }
    world.spawn(DIRECTOR, Box::pin(faults::rage(Arc::clone(&simulation), Random::new(seed, 0x0ff))));
    play(&simulation);
    let simulated = Duration::from_nanos(world.now());
    let mut counts = simulation.tally.take();
    counts.insert("grants checked", simulation.beliefs.grants());
    let (hash, polls, violation) = (world.hash(), world.polls(), world.violation());
    world.clear();
    Report { seed, hash, simulated, polls, counts, violation }
}

fn play(simulation: &Arc<QuorumSimulation>) {
    let world = &simulation.world;
    let watching = Arc::clone(simulation);
    world.spawn(DIRECTOR, Box::pin(async move { watch(&watching).await }));
    world.run(nanos(QuorumRunPlan::GATE + simulation.plan.storm + Duration::from_secs(2)), || false);
    simulation.progress.enter(world, Phase::Calm);
    faults::heal(simulation);
    // Old locks expire, nodes that lost data wait for the end of the gate, delayed messages arrive, and clients that backed off
    // ask again.
    let settling = QuorumRunPlan::TTL.1 + QuorumRunPlan::GATE * 2 + Duration::from_secs(8);
    world.run(world.now() + nanos(settling), || false);
    simulation.progress.enter(world, Phase::Strict);
    world.run(world.now() + nanos(STRICT_FOR), || false);
    simulation.progress.enter(world, Phase::Drain);
    world.run(world.now() + nanos(DRAIN_MAX), || simulation.progress.busy() == 0);
    if simulation.progress.busy() > 0 {
        world.fail(
            "asleep",
            format!("{} tasks have not ended after {DRAIN_MAX:?}", simulation.progress.busy()),
        );
    }
    look_for_locks(simulation);
}

/// Looks around while the run lasts.
async fn watch(simulation: &Arc<QuorumSimulation>) {
    while simulation.progress.phase() < Phase::Drain {
        simulation.world.pause(Duration::from_millis(50)).await;
        simulation.beliefs.look();
        // A clock that was set back keeps a lock for longer: that costs time, and is no leak.
        if simulation.progress.phase() == Phase::Strict && simulation.plan.excludes() {
            find_orphans(simulation).await;
        }
    }
}

/// Checks that every lock on a node belongs to a running operation.
async fn find_orphans(simulation: &Arc<QuorumSimulation>) {
    for (number, (_, node)) in simulation.nodes.iter().enumerate() {
        let Ok(view) = node.look(&QuorumSimulation::resource()).await else { continue };
        let Some((by, _)) = view.held else { continue };
        let Some(ended) = simulation.ended(&by.holder.label) else { continue };
        let since = Duration::from_nanos(simulation.world.now() - ended);
        if since > ORPHAN_MAX {
            let message = format!("node {number} is held by {}, which ended {since:?} ago", by.holder.label);
            simulation.world.fail("orphan", message);
        }
    }
}

/// Everyone has gone.
fn look_for_locks(simulation: &Arc<QuorumSimulation>) {
    let world = &simulation.world;
    world.run(world.now() + nanos(Duration::from_secs(1)), || false);
    for (number, (_, node)) in simulation.nodes.iter().enumerate() {
        let (locks, ..) = node.stored();
        if locks > 0 && simulation.plan.excludes() && world.violation().is_none() {
            world.fail("leak", format!("node {number} has {locks} locks, and nobody is there"));
        }
    }
}
