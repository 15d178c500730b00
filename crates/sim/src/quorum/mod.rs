//! Leases over a majority of nodes: the real quorum and the real engine, over nodes in memory, each on a clock of its
//! own, with wires that lose and delay. A run is a storm, a calm, and a look at what is left, as for one server.
//!
//! Promised always: no token is given twice, a later grant has the greater one, no update is lost behind the fence.
//! Promised unless a node's clock is set: no two believe to hold at the same moment.

mod judge;
mod nemesis;
mod plan;
mod theatre;
mod wire;
mod work;

use std::{sync::Arc, time::Duration};

use leasehold_core::QuorumNode;

use self::{plan::Plan, theatre::Theatre};
use crate::{
    progress::Phase,
    random::{Random, nanos},
    report::Report,
    world::{DIRECTOR, World},
};

/// How long the workload goes on once nothing may go wrong any more.
const STRICT_FOR: Duration = Duration::from_secs(10);
/// How long nodes may have something of an operation that has ended, in calm weather.
const ORPHAN_MAX: Duration = Duration::from_millis(600);
/// How long everyone may need to finish.
const DRAIN_MAX: Duration = Duration::from_secs(30);

/// Runs one seed over a quorum.
pub fn run_quorum_seed(seed: u64, tracing: bool) -> Report {
    let plan = Plan::draw(seed);
    let mut random = Random::new(seed, 0x90);
    let world = World::new(plan.clock(&mut random), Some(Random::new(seed, 0x5aff)), tracing);
    world.trace(|| format!("{plan:?}"));
    let theatre = Theatre::new(plan, &world, &mut random);
    for at in 0..theatre.plan.hosts {
        theatre.start_host(at, theatre.plan.clock(&mut random));
    }
    world.spawn(DIRECTOR, Box::pin(nemesis::rage(Arc::clone(&theatre), Random::new(seed, 0x0ff))));
    play(&theatre);
    let simulated = Duration::from_nanos(world.now());
    let mut counts = theatre.tally.take();
    counts.insert("grants checked", theatre.judge.grants());
    let (hash, polls, violation) = (world.hash(), world.polls(), world.violation());
    world.clear();
    Report { seed, hash, simulated, polls, counts, violation }
}

fn play(theatre: &Arc<Theatre>) {
    let world = &theatre.world;
    let watching = Arc::clone(theatre);
    world.spawn(DIRECTOR, Box::pin(async move { watch(&watching).await }));
    world.run(nanos(Plan::GATE + theatre.plan.storm + Duration::from_secs(2)), || false);
    theatre.progress.enter(world, Phase::Calm);
    nemesis::heal(theatre);
    // Old locks end, nodes that forgot wait out the gate, late messages arrive, and whoever backed off comes back.
    let settling = Plan::TTL.1 + Plan::GATE * 2 + Duration::from_secs(8);
    world.run(world.now() + nanos(settling), || false);
    theatre.progress.enter(world, Phase::Strict);
    world.run(world.now() + nanos(STRICT_FOR), || false);
    theatre.progress.enter(world, Phase::Drain);
    world.run(world.now() + nanos(DRAIN_MAX), || theatre.progress.busy() == 0);
    if theatre.progress.busy() > 0 {
        world.fail("asleep", format!("{} tasks have not ended after {DRAIN_MAX:?}", theatre.progress.busy()));
    }
    look_for_locks(theatre);
}

/// Looks around while the run lasts.
async fn watch(theatre: &Arc<Theatre>) {
    while theatre.progress.phase() < Phase::Drain {
        theatre.world.pause(Duration::from_millis(50)).await;
        theatre.judge.look();
        // A clock that was set back keeps a lock for longer: that costs time, and is no leak.
        if theatre.progress.phase() == Phase::Strict && theatre.plan.excludes() {
            find_orphans(theatre).await;
        }
    }
}

/// What a node has belongs to someone.
async fn find_orphans(theatre: &Arc<Theatre>) {
    for (number, (_, node)) in theatre.nodes.iter().enumerate() {
        let Ok(view) = node.look(&Theatre::resource()).await else { continue };
        let Some((by, _)) = view.held else { continue };
        let Some(ended) = theatre.ended(&by.holder.label) else { continue };
        let since = Duration::from_nanos(theatre.world.now() - ended);
        if since > ORPHAN_MAX {
            let message = format!("node {number} is held by {}, which ended {since:?} ago", by.holder.label);
            theatre.world.fail("orphan", message);
        }
    }
}

/// Everyone has gone.
fn look_for_locks(theatre: &Arc<Theatre>) {
    let world = &theatre.world;
    world.run(world.now() + nanos(Duration::from_secs(1)), || false);
    for (number, (_, node)) in theatre.nodes.iter().enumerate() {
        let (locks, ..) = node.stored();
        if locks > 0 && theatre.plan.excludes() && world.violation().is_none() {
            world.fail("leak", format!("node {number} has {locks} locks, and nobody is there"));
        }
    }
}
