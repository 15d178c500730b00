//! Injects faults and heals them again; also acts as an operator.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use leasehold::{Client, Eviction, OperatorAction, OperatorCommand, Resource};

use crate::{
    network::Cut,
    plan::Fault,
    progress::Phase,
    random::Random,
    simulation::Simulation,
    workload::SEATS,
    world::{Health, SERVER},
};

/// Injects faults until the storm is over.
pub(crate) async fn inject_faults(simulation: Arc<Simulation>, mut random: Random) {
    while simulation.progress.phase() == Phase::Storm && !simulation.plan.faults.is_empty() {
        let pause = random.spread(simulation.plan.fault_every / 8, simulation.plan.fault_every * 2);
        simulation.world.pause(pause).await;
        if simulation.progress.phase() != Phase::Storm {
            return;
        }
        let fault = *random.pick(&simulation.plan.faults);
        let at = random.below(simulation.plan.hosts);
        inject(&simulation, &mut random, fault, at);
    }
}

fn inject(simulation: &Arc<Simulation>, random: &mut Random, fault: Fault, at: u64) {
    let host = simulation.host(at);
    let (world, node) = (&simulation.world, host.node);
    let lasting = random.spread(Duration::from_millis(5), simulation.plan.ttl.1 * 2);
    world.trace(|| format!("fault: {fault:?} of host {at} ({node:?}) for {lasting:?}"));
    simulation.tally.count(name(fault));
    match fault {
        Fault::Pause => stop_for(simulation, at, Health::Paused, lasting),
        Fault::Suspend => stop_for(simulation, at, Health::Suspended, lasting),
        Fault::Freeze => stop_for(simulation, at, Health::Frozen, lasting),
        Fault::Crash => crash(simulation, at, lasting),
        Fault::PartitionBoth => cut_for(simulation, at, Cut { requests: true, replies: true }, lasting),
        Fault::PartitionRequests => cut_for(simulation, at, Cut { requests: true, replies: false }, lasting),
        Fault::PartitionReplies => cut_for(simulation, at, Cut { requests: false, replies: true }, lasting),
        Fault::ServerPause => {
            world.stop(SERVER, Health::Paused);
            let after = Arc::clone(simulation);
            later(simulation, lasting.min(Duration::from_secs(3)), move || after.world.resume(SERVER));
        }
        Fault::WallForward | Fault::WallBack => {
            world.disturb(node);
            let by = random.spread(Duration::from_millis(10), Duration::from_secs(3600));
            world.clock(node, |clock, now| clock.step_wall(now, fault == Fault::WallForward, by));
        }
        Fault::Drift if world.health(node) == Health::Running => {
            world.disturb(node);
            let rate = simulation.plan.rate(random);
            world.clock(node, |clock, now| clock.set_rate(now, rate));
        }
        Fault::Drift => {}
    }
}

fn name(fault: Fault) -> &'static str {
    match fault {
        Fault::Pause => "fault: pause",
        Fault::Suspend => "fault: suspend",
        Fault::Freeze => "fault: machine frozen",
        Fault::Crash => "fault: crash",
        Fault::PartitionBoth => "fault: partition",
        Fault::PartitionRequests => "fault: partition of requests",
        Fault::PartitionReplies => "fault: partition of replies",
        Fault::ServerPause => "fault: server pause",
        Fault::WallForward => "fault: wall clock set forward",
        Fault::WallBack => "fault: wall clock set back",
        Fault::Drift => "fault: clock rate",
    }
}

fn later(simulation: &Arc<Simulation>, after: Duration, heal: impl FnOnce() + Send + 'static) {
    let pause = simulation.world.pause(after);
    simulation.world.spawn(
        crate::world::DIRECTOR,
        Box::pin(async move {
            pause.await;
            heal();
        }),
    );
}

fn stop_for(simulation: &Arc<Simulation>, at: u64, how: Health, lasting: Duration) {
    let node = simulation.host(at).node;
    if simulation.world.health(node) != Health::Running {
        return;
    }
    simulation.world.stop(node, how);
    let after = Arc::clone(simulation);
    later(simulation, lasting, move || {
        after.world.trace(|| format!("{node:?} goes on"));
        after.world.resume(node);
    });
}

fn cut_for(simulation: &Arc<Simulation>, at: u64, cut: Cut, lasting: Duration) {
    simulation.network.cut(at, cut);
    let after = Arc::clone(simulation);
    later(simulation, lasting, move || after.network.cut(at, Cut::default()));
}

fn crash(simulation: &Arc<Simulation>, at: u64, down_for: Duration) {
    let node = simulation.host(at).node;
    if simulation.world.health(node) != Health::Running {
        return;
    }
    simulation.world.crash(node);
    let after = Arc::clone(simulation);
    later(simulation, down_for, move || restart(&after, at));
}

/// Starts a host that is down.
fn restart(simulation: &Arc<Simulation>, at: u64) {
    let node = simulation.host(at).node;
    if simulation.world.health(node) == Health::Crashed {
        let clock = simulation.world.clock(node, |clock, _| clock.clone());
        simulation.start_host(at, clock);
    }
}

/// Heals all faults at once.
pub(crate) fn heal(simulation: &Arc<Simulation>) {
    simulation.network.heal();
    simulation.world.resume(SERVER);
    for at in 0..simulation.plan.hosts {
        simulation.world.resume(simulation.host(at).node);
        restart(simulation, at);
    }
}

/// An operator that sends random commands.
pub(crate) async fn operate(simulation: Arc<Simulation>, client: Client, mut random: Random) {
    while simulation.progress.phase() < Phase::Strict {
        let pause = random.spread(Duration::from_millis(100), Duration::from_secs(6));
        simulation.world.pause(pause).await;
        let kind = *random.pick(&["lease", "fair", "semaphore", "index", "election", "scope"]);
        let Ok(resource) = Resource::new(kind, &random.below(simulation.plan.ids).to_string()) else {
            continue;
        };
        let command = match random.below(10) {
            0..=2 => OperatorAction::Ask { within: Duration::from_secs(1) },
            3 | 4 => OperatorAction::Evict(Eviction::AtExpiry),
            5 if !simulation.plan.inside => OperatorAction::Evict(Eviction::Now),
            5 | 6 => OperatorAction::Pause {
                lasting: random.spread(Duration::from_millis(50), Duration::from_secs(5)),
            },
            7 => OperatorAction::Resume,
            _ if kind == "semaphore" => {
                let capacity = u32::try_from(random.between(2, 4)).unwrap_or(SEATS);
                let Some(capacity) = NonZeroU32::new(capacity) else { continue };
                OperatorAction::Resize { capacity }
            }
            _ => continue,
        };
        simulation.tally.count("orders");
        drop(client.order(&OperatorCommand::new(resource, command, "an operator", "a drill")).await);
    }
}
