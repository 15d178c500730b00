//! What goes wrong with hosts and nodes, and when it is put right again.

use std::{sync::Arc, time::Duration};

use leasehold_core::{QuorumNode, quorum_node::VoterStatus};

use super::{
    plan::{Fault, Plan},
    theatre::Theatre,
};
use crate::{
    network::Cut,
    progress::Phase,
    random::Random,
    world::{DIRECTOR, Health, NodeId},
};

/// Throws faults until the storm is over.
pub(crate) async fn rage(theatre: Arc<Theatre>, mut random: Random) {
    theatre.world.pause(Plan::GATE + Duration::from_secs(2)).await; // for the set to be founded
    for host in 0..theatre.plan.hosts {
        for node in (0..theatre.plan.nodes).filter(|node| theatre.plan.misses(host, *node)) {
            theatre.network.cut(theatre.key(host, node), Cut { requests: true, replies: true });
        }
    }
    while !theatre.plan.faults.is_empty() {
        let pause = random.spread(theatre.plan.fault_every / 8, theatre.plan.fault_every * 2);
        theatre.world.pause(pause).await;
        if theatre.progress.phase() != Phase::Storm {
            return;
        }
        let fault = *random.pick(&theatre.plan.faults);
        strike(&theatre, &mut random, fault).await;
    }
}

async fn strike(theatre: &Arc<Theatre>, random: &mut Random, fault: Fault) {
    let world = &theatre.world;
    let at = random.below(theatre.plan.hosts);
    let number = usize::try_from(random.below(theatre.plan.nodes as u64)).expect("few nodes");
    let (host, node) = (theatre.host(at), theatre.nodes[number].0);
    let lasting = random.spread(Duration::from_millis(5), Plan::TTL.1 * 2);
    world
        .trace(|| format!("fault: {fault:?}, host {at} ({host:?}) or node {number} ({node:?}), {lasting:?}"));
    theatre.tally.count(fault.name());
    match fault {
        Fault::HostPause => stop_for(theatre, host, Health::Paused, lasting),
        Fault::HostSuspend => stop_for(theatre, host, Health::Suspended, lasting),
        Fault::NodePause => stop_for(theatre, node, Health::Paused, lasting),
        Fault::HostCrash => crash(theatre, at, lasting),
        Fault::Partition => cut(theatre, random, at, lasting),
        Fault::NodeForgets => forget(theatre, random, number).await,
        Fault::NodeClock | Fault::HostClock => {
            let set = if fault == Fault::NodeClock { node } else { host };
            let (forward, by) = (random.chance(600), theatre.plan.step(random));
            world.disturb(set);
            world.clock(set, |clock, now| clock.step_wall(now, forward, by));
        }
    }
}

/// At most a minority of nodes has forgotten at the same time: more is not promised.
async fn forget(theatre: &Arc<Theatre>, random: &mut Random, number: usize) {
    let mut out = 0;
    for (at, (_, node)) in theatre.nodes.iter().enumerate() {
        let Ok(health) = node.health().await else { continue };
        let votes = health.mark.is_some_and(|it| it.standing == VoterStatus::Voting && it.run == health.run);
        out += usize::from(!votes && at != number);
    }
    if out >= (theatre.plan.nodes - 1) / 2 {
        return;
    }
    let node = &theatre.nodes[number].1;
    match random.below(if theatre.plan.durable { 1 } else { 3 }) {
        0 => node.restart(),
        1 => node.restart_cut_short(),
        _ => node.forget(),
    }
    theatre.tally.count("nodes that forgot");
}

fn later(theatre: &Arc<Theatre>, after: Duration, heal: impl FnOnce(&Arc<Theatre>) + Send + 'static) {
    let (pause, theatre) = (theatre.world.pause(after), Arc::clone(theatre));
    let world = Arc::clone(&theatre.world);
    world.spawn(
        DIRECTOR,
        Box::pin(async move {
            pause.await;
            heal(&theatre);
        }),
    );
}

fn stop_for(theatre: &Arc<Theatre>, node: NodeId, how: Health, lasting: Duration) {
    if theatre.world.health(node) == Health::Running {
        theatre.world.stop(node, how);
        later(theatre, lasting, move |theatre| theatre.world.resume(node));
    }
}

fn crash(theatre: &Arc<Theatre>, at: u64, down_for: Duration) {
    let node = theatre.host(at);
    if theatre.world.health(node) == Health::Running {
        theatre.world.crash(node);
        later(theatre, down_for, move |theatre| restart(theatre, at));
    }
}

fn restart(theatre: &Arc<Theatre>, at: u64) {
    let node = theatre.host(at);
    if theatre.world.health(node) == Health::Crashed {
        let clock = theatre.world.clock(node, |clock, _| clock.clone());
        theatre.start_host(at, clock);
    }
}

fn cut(theatre: &Arc<Theatre>, random: &mut Random, host: u64, lasting: Duration) {
    let (requests, replies) = *random.pick(&[(true, true), (true, false), (false, true)]);
    for node in 0..theatre.plan.nodes {
        if random.chance(500) {
            let key = theatre.key(host, node);
            theatre.network.cut(key, Cut { requests, replies });
            later(theatre, lasting, move |theatre| theatre.network.cut(key, Cut::default()));
        }
    }
}

/// Puts everything right at once.
pub(crate) fn heal(theatre: &Arc<Theatre>) {
    theatre.network.heal();
    for (node, _) in &theatre.nodes {
        theatre.world.resume(*node);
    }
    for at in 0..theatre.plan.hosts {
        theatre.world.resume(theatre.host(at));
        restart(theatre, at);
    }
}
