//! What goes wrong, and when it is put right again.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use leasehold::{Client, Eviction, OperatorAction, OperatorCommand, Resource};

use crate::{
    network::Cut,
    plan::Fault,
    progress::Phase,
    random::Random,
    stage::Stage,
    workload::SEATS,
    world::{Health, SERVER},
};

/// Throws faults until the storm is over.
pub(crate) async fn rage(stage: Arc<Stage>, mut random: Random) {
    while stage.progress.phase() == Phase::Storm && !stage.plan.faults.is_empty() {
        let pause = random.spread(stage.plan.fault_every / 8, stage.plan.fault_every * 2);
        stage.world.pause(pause).await;
        if stage.progress.phase() != Phase::Storm {
            return;
        }
        let fault = *random.pick(&stage.plan.faults);
        let at = random.below(stage.plan.hosts);
        strike(&stage, &mut random, fault, at);
    }
}

fn strike(stage: &Arc<Stage>, random: &mut Random, fault: Fault, at: u64) {
    let host = stage.host(at);
    let (world, node) = (&stage.world, host.node);
    let lasting = random.spread(Duration::from_millis(5), stage.plan.ttl.1 * 2);
    world.trace(|| format!("fault: {fault:?} of host {at} ({node:?}) for {lasting:?}"));
    stage.tally.count(name(fault));
    match fault {
        Fault::Pause => stop_for(stage, at, Health::Paused, lasting),
        Fault::Suspend => stop_for(stage, at, Health::Suspended, lasting),
        Fault::Freeze => stop_for(stage, at, Health::Frozen, lasting),
        Fault::Crash => crash(stage, at, lasting),
        Fault::PartitionBoth => cut_for(stage, at, Cut { requests: true, replies: true }, lasting),
        Fault::PartitionRequests => cut_for(stage, at, Cut { requests: true, replies: false }, lasting),
        Fault::PartitionReplies => cut_for(stage, at, Cut { requests: false, replies: true }, lasting),
        Fault::ServerPause => {
            world.stop(SERVER, Health::Paused);
            let after = Arc::clone(stage);
            later(stage, lasting.min(Duration::from_secs(3)), move || after.world.resume(SERVER));
        }
        Fault::WallForward | Fault::WallBack => {
            world.disturb(node);
            let by = random.spread(Duration::from_millis(10), Duration::from_secs(3600));
            world.clock(node, |clock, now| clock.step_wall(now, fault == Fault::WallForward, by));
        }
        Fault::Drift if world.health(node) == Health::Running => {
            world.disturb(node);
            let rate = stage.plan.rate(random);
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
        Fault::WallForward => "fault: calendar set forward",
        Fault::WallBack => "fault: calendar set back",
        Fault::Drift => "fault: clock rate",
    }
}

fn later(stage: &Arc<Stage>, after: Duration, heal: impl FnOnce() + Send + 'static) {
    let pause = stage.world.pause(after);
    stage.world.spawn(
        crate::world::DIRECTOR,
        Box::pin(async move {
            pause.await;
            heal();
        }),
    );
}

fn stop_for(stage: &Arc<Stage>, at: u64, how: Health, lasting: Duration) {
    let node = stage.host(at).node;
    if stage.world.health(node) != Health::Running {
        return;
    }
    stage.world.stop(node, how);
    let after = Arc::clone(stage);
    later(stage, lasting, move || {
        after.world.trace(|| format!("{node:?} goes on"));
        after.world.resume(node);
    });
}

fn cut_for(stage: &Arc<Stage>, at: u64, cut: Cut, lasting: Duration) {
    stage.network.cut(at, cut);
    let after = Arc::clone(stage);
    later(stage, lasting, move || after.network.cut(at, Cut::default()));
}

fn crash(stage: &Arc<Stage>, at: u64, down_for: Duration) {
    let node = stage.host(at).node;
    if stage.world.health(node) != Health::Running {
        return;
    }
    stage.world.crash(node);
    let after = Arc::clone(stage);
    later(stage, down_for, move || restart(&after, at));
}

/// Starts a host that is down.
fn restart(stage: &Arc<Stage>, at: u64) {
    let node = stage.host(at).node;
    if stage.world.health(node) == Health::Crashed {
        let clock = stage.world.clock(node, |clock, _| clock.clone());
        stage.start_host(at, clock);
    }
}

/// Puts everything right at once.
pub(crate) fn heal(stage: &Arc<Stage>) {
    stage.network.heal();
    stage.world.resume(SERVER);
    for at in 0..stage.plan.hosts {
        stage.world.resume(stage.host(at).node);
        restart(stage, at);
    }
}

/// An operator with too much time.
pub(crate) async fn operate(stage: Arc<Stage>, client: Client, mut random: Random) {
    while stage.progress.phase() < Phase::Strict {
        let pause = random.spread(Duration::from_millis(100), Duration::from_secs(6));
        stage.world.pause(pause).await;
        let kind = *random.pick(&["lease", "fair", "semaphore", "index", "election", "scope"]);
        let Ok(resource) = Resource::new(kind, &random.below(stage.plan.ids).to_string()) else { continue };
        let command = match random.below(10) {
            0..=2 => OperatorAction::Ask { within: Duration::from_secs(1) },
            3 | 4 => OperatorAction::Evict(Eviction::AtExpiry),
            5 if !stage.plan.inside => OperatorAction::Evict(Eviction::Now),
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
        stage.tally.count("orders");
        drop(client.order(&OperatorCommand::new(resource, command, "an operator", "a drill")).await);
    }
}
