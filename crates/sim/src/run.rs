//! One run: storm, calm, strict, drain, and a check that nothing is left.

use std::{sync::Arc, time::Duration};

use crate::{
    beliefs::BeliefChecker,
    clock::Time,
    environment::NodeEnvironment,
    faults,
    network::Network,
    plan::RunPlan,
    progress::Phase,
    random::{Random, nanos},
    referee::Referee,
    report::{Report, Tally},
    server::Server,
    simulation::{Simulation, SimulationParts},
    world::{DIRECTOR, NodeId, SERVER, World},
};

/// How long the workload goes on once nothing may go wrong any more.
const STRICT_FOR: Duration = Duration::from_secs(12);
/// How long the waiters may need to be granted once every holder releases at once.
const DRAIN_MAX: Duration = Duration::from_secs(90);
/// How long the server may have something of an operation that has ended, without faults.
const ORPHAN_MAX: Duration = Duration::from_secs(3);

/// Runs one seed.
pub fn run_seed(seed: u64, tracing: bool) -> Report {
    let plan = RunPlan::draw(seed);
    let mut random = Random::new(seed, 0);
    let shuffle = plan.shuffle.then(|| Random::new(seed, 0x5aff));
    let world = World::new(plan.clock(&mut random), shuffle, tracing);
    world.trace(|| format!("{plan:?}"));
    let simulation = set_up(plan, &world, &mut random);
    let simulated = play(&simulation);
    let (hash, polls) = (world.hash(), world.polls());
    let mut counts = simulation.tally.take();
    {
        let referee = simulation.server.referee();
        counts.insert("grants checked", referee.grants);
        counts.insert("handovers", referee.handover_count);
    }
    let violation = world.violation();
    simulation.hosts().clear();
    world.clear();
    Report { seed, hash, simulated, polls, counts, violation }
}

fn set_up(plan: RunPlan, world: &Arc<World>, random: &mut Random) -> Arc<Simulation> {
    let seed = plan.seed;
    let tally: Arc<Tally> = Arc::default();
    let beliefs = BeliefChecker::new(world);
    let referee = Referee::new(world, &beliefs, plan.inside);
    let server = Server::new(world, NodeEnvironment::new(world, SERVER, seed), referee, &plan);
    let late_until = nanos(plan.storm + Duration::from_secs(2));
    let conditions = plan.conditions.clone();
    let network = Network::new(world, &tally, Random::new(seed, 0xae7), conditions, late_until);
    let simulation =
        Simulation::new(plan, Arc::clone(world), SimulationParts { server, network, beliefs, tally });
    for at in 0..simulation.plan.hosts {
        simulation.start_host(at, simulation.plan.clock(random));
    }
    world.spawn(DIRECTOR, Box::pin(faults::inject_faults(Arc::clone(&simulation), Random::new(seed, 0x0ff))));
    if simulation.plan.orders {
        let client = simulation.client(DIRECTOR, simulation.plan.hosts);
        let operator = faults::operate(Arc::clone(&simulation), client, Random::new(seed, 0x0dd));
        world.spawn(DIRECTOR, Box::pin(operator));
    }
    simulation
}

/// Returns how much virtual time it took.
fn play(simulation: &Arc<Simulation>) -> Duration {
    let world = &simulation.world;
    let never = || false;
    world.run(nanos(simulation.plan.storm), never);
    simulation.progress.enter(world, Phase::Calm);
    faults::heal(simulation);
    let strict_from = world.now() + nanos(simulation.plan.settling());
    world.run(strict_from, never);
    simulation.progress.enter(world, Phase::Strict);
    simulation.server.referee().strict = true;
    let watching = Arc::clone(simulation);
    world.spawn(DIRECTOR, Box::pin(async move { watch(&watching).await }));
    world.run(world.now() + nanos(STRICT_FOR), never);
    simulation.progress.enter(world, Phase::Drain);
    let goal = world.now() + nanos(DRAIN_MAX);
    world.run(goal, || simulation.progress.busy() == 0);
    if simulation.progress.busy() > 0 {
        let message =
            format!("{} tasks still wait {DRAIN_MAX:?} after everyone gave back", simulation.progress.busy());
        world.fail("asleep", message);
    }
    let simulated = Duration::from_nanos(world.now());
    if world.violation().is_none() {
        close_down(simulation);
    }
    simulated
}

/// Looks around every half second while nothing may go wrong.
async fn watch(simulation: &Arc<Simulation>) {
    while simulation.progress.phase() == Phase::Strict {
        simulation.world.pause(Duration::from_millis(500)).await;
        simulation.server.tick();
        find_orphans(simulation).await;
    }
}

/// Checks that every holder and waiter at the server belongs to a running operation.
async fn find_orphans(simulation: &Arc<Simulation>) {
    let now = simulation.world.now();
    for seen in simulation.server.all().await {
        let holders = seen.holders.iter().filter(|by| !by.kept).map(|by| (&by.holder.label, "is held"));
        let places = seen.queue.iter().map(|place| (&place.holder.label, "is waited for"));
        for (label, what) in holders.chain(places) {
            let Some(ended) = simulation.ended(label) else { continue };
            let since = Duration::from_nanos(now - ended);
            if since > ORPHAN_MAX {
                let message = format!("{} {what} by {label}, which ended {since:?} ago", seen.resource);
                simulation.world.fail("orphan", message);
            }
        }
    }
}

/// Shuts everything down, and looks for what is left.
fn close_down(simulation: &Arc<Simulation>) {
    let world = &simulation.world;
    let hosts: Vec<_> = simulation.hosts().drain(..).collect();
    let nodes: Vec<NodeId> = hosts.iter().map(|host| host.node).collect();
    let open = Arc::new(std::sync::atomic::AtomicUsize::new(hosts.len()));
    for host in hosts {
        let (open, simulation) = (Arc::clone(&open), Arc::clone(simulation));
        world.spawn(
            host.node,
            Box::pin(async move {
                host.client.shutdown().await;
                if host.client.watched() > 0 {
                    let message =
                        format!("{:?} is shut down and keeps {} alive", host.node, host.client.watched());
                    simulation.world.fail("leak", message);
                }
                open.fetch_sub(1, std::sync::atomic::Ordering::AcqRel);
            }),
        );
    }
    let is_open = || open.load(std::sync::atomic::Ordering::Acquire) > 0;
    world.run(world.now() + nanos(Duration::from_secs(30)), || !is_open());
    if is_open() {
        world.fail("leak", "a client does not shut down".to_owned());
    }
    look_for_claims(simulation);
    // Tombstones stand for three minutes of the server, whose clock may be slow.
    let long = Duration::from_secs(300);
    world.run(world.now() + nanos(long), || false);
    for node in nodes {
        let tasks = world.tasks_on(node);
        if tasks > 0 {
            world.fail("leak", format!("{tasks} tasks of {node:?} outlive their client"));
        }
    }
    let (left, state) = simulation.server.left();
    if left > 0 {
        world.trace(|| state);
        world.fail("leak", format!("the server remembers {left} resources that nobody uses"));
    }
}

/// Everyone has gone: at once, not only when the ttl ends.
fn look_for_claims(simulation: &Arc<Simulation>) {
    let looking = Arc::clone(simulation);
    simulation.world.spawn(
        DIRECTOR,
        Box::pin(async move {
            for seen in looking.server.all().await {
                let held = seen.holders.iter().filter(|by| !by.kept).count();
                if held > 0 || seen.queue_length > 0 {
                    let message = format!("{held} hold and {} wait for {}", seen.queue_length, seen.resource);
                    looking.world.fail("leak", format!("all clients are shut down, and {message}"));
                }
            }
        }),
    );
    let now: Time = simulation.world.now();
    simulation.world.run(now, || false);
}
