//! What goes wrong with hosts and nodes, and when it is put right again.

use std::{sync::Arc, time::Duration};

use leasehold_core::{QuorumNode, quorum_node::VoterStatus};

use super::{
    plan::{QuorumFault, QuorumRunPlan},
    simulation::QuorumSimulation,
};
use crate::{
    network::Cut,
    progress::Phase,
    random::Random,
    world::{DIRECTOR, Health, NodeId},
};

/// Injects faults until the storm is over.
pub(crate) async fn rage(simulation: Arc<QuorumSimulation>, mut random: Random) {
    simulation.world.pause(QuorumRunPlan::GATE + Duration::from_secs(2)).await; // for the set to be founded
    for host in 0..simulation.plan.hosts {
        for node in (0..simulation.plan.nodes).filter(|node| simulation.plan.misses(host, *node)) {
            simulation.network.cut(simulation.key(host, node), Cut { requests: true, replies: true });
        }
    }
    while !simulation.plan.faults.is_empty() {
        let pause = random.spread(simulation.plan.fault_every / 8, simulation.plan.fault_every * 2);
        simulation.world.pause(pause).await;
        if simulation.progress.phase() != Phase::Storm {
            return;
        }
        let fault = *random.pick(&simulation.plan.faults);
        strike(&simulation, &mut random, fault).await;
    }
}

async fn strike(simulation: &Arc<QuorumSimulation>, random: &mut Random, fault: QuorumFault) {
    let world = &simulation.world;
    let at = random.below(simulation.plan.hosts);
    let number = usize::try_from(random.below(simulation.plan.nodes as u64)).expect("few nodes");
    let (host, node) = (simulation.host(at), simulation.nodes[number].0);
    let lasting = random.spread(Duration::from_millis(5), QuorumRunPlan::TTL.1 * 2);
    world
        .trace(|| format!("fault: {fault:?}, host {at} ({host:?}) or node {number} ({node:?}), {lasting:?}"));
    simulation.tally.count(fault.name());
    match fault {
        QuorumFault::HostPause => stop_for(simulation, host, Health::Paused, lasting),
        QuorumFault::HostSuspend => stop_for(simulation, host, Health::Suspended, lasting),
        QuorumFault::NodePause => stop_for(simulation, node, Health::Paused, lasting),
        QuorumFault::HostCrash => crash(simulation, at, lasting),
        QuorumFault::Partition => cut(simulation, random, at, lasting),
        QuorumFault::NodeForgets => forget(simulation, random, number).await,
        QuorumFault::NodeClock | QuorumFault::HostClock => {
            let set = if fault == QuorumFault::NodeClock { node } else { host };
            let (forward, by) = (random.chance(600), simulation.plan.step(random));
            world.disturb(set);
            world.clock(set, |clock, now| clock.step_wall(now, forward, by));
        }
    }
}

/// At most a minority of nodes has forgotten at the same time: more is not promised.
async fn forget(simulation: &Arc<QuorumSimulation>, random: &mut Random, number: usize) {
    let mut out = 0;
    for (at, (_, node)) in simulation.nodes.iter().enumerate() {
        let Ok(health) = node.health().await else { continue };
        let votes = health.mark.is_some_and(|it| it.standing == VoterStatus::Voting && it.run == health.run);
        out += usize::from(!votes && at != number);
    }
    if out >= (simulation.plan.nodes - 1) / 2 {
        return;
    }
    let node = &simulation.nodes[number].1;
    match random.below(if simulation.plan.durable { 1 } else { 3 }) {
        0 => node.restart(),
        1 => node.restart_cut_short(),
        _ => node.forget(),
    }
    simulation.tally.count("nodes that forgot");
}

fn later(
    simulation: &Arc<QuorumSimulation>,
    after: Duration,
    heal: impl FnOnce(&Arc<QuorumSimulation>) + Send + 'static,
) {
    let (pause, simulation) = (simulation.world.pause(after), Arc::clone(simulation));
    let world = Arc::clone(&simulation.world);
    world.spawn(
        DIRECTOR,
        Box::pin(async move {
            pause.await;
            heal(&simulation);
        }),
    );
}

fn stop_for(simulation: &Arc<QuorumSimulation>, node: NodeId, how: Health, lasting: Duration) {
    if simulation.world.health(node) == Health::Running {
        simulation.world.stop(node, how);
        later(simulation, lasting, move |simulation| simulation.world.resume(node));
    }
}

fn crash(simulation: &Arc<QuorumSimulation>, at: u64, down_for: Duration) {
    let node = simulation.host(at);
    if simulation.world.health(node) == Health::Running {
        simulation.world.crash(node);
        later(simulation, down_for, move |simulation| restart(simulation, at));
    }
}

fn restart(simulation: &Arc<QuorumSimulation>, at: u64) {
    let node = simulation.host(at);
    if simulation.world.health(node) == Health::Crashed {
        let clock = simulation.world.clock(node, |clock, _| clock.clone());
        simulation.start_host(at, clock);
    }
}

fn cut(simulation: &Arc<QuorumSimulation>, random: &mut Random, host: u64, lasting: Duration) {
    let (requests, replies) = *random.pick(&[(true, true), (true, false), (false, true)]);
    for node in 0..simulation.plan.nodes {
        if random.chance(500) {
            let key = simulation.key(host, node);
            simulation.network.cut(key, Cut { requests, replies });
            later(simulation, lasting, move |simulation| simulation.network.cut(key, Cut::default()));
        }
    }
}

/// Puts everything right at once.
pub(crate) fn heal(simulation: &Arc<QuorumSimulation>) {
    simulation.network.heal();
    for (node, _) in &simulation.nodes {
        simulation.world.resume(*node);
    }
    for at in 0..simulation.plan.hosts {
        simulation.world.resume(simulation.host(at));
        restart(simulation, at);
    }
}
