//! One run: storm, calm, drain, and a look at what is left.

use std::{sync::Arc, time::Duration};

use crate::{
    clock::Time,
    environment::NodeEnvironment,
    ledger::Ledger,
    nemesis,
    network::Network,
    plan::Plan,
    progress::Phase,
    random::{Random, nanos},
    referee::Referee,
    report::{Report, Tally},
    server::Server,
    stage::Stage,
    world::{DIRECTOR, NodeId, SERVER, World},
};

/// How long the workload goes on once nothing may go wrong any more.
const STRICT_FOR: Duration = Duration::from_secs(12);
/// How long those who wait may need to get their turn once everyone gives back at once.
const DRAIN_MAX: Duration = Duration::from_secs(90);
/// How long the server may have something of an operation that has ended, in calm weather.
const ORPHAN_MAX: Duration = Duration::from_secs(3);

/// Runs one seed.
pub fn run_seed(seed: u64, tracing: bool) -> Report {
    let plan = Plan::draw(seed);
    let mut random = Random::new(seed, 0);
    let shuffle = plan.shuffle.then(|| Random::new(seed, 0x5aff));
    let world = World::new(plan.clock(&mut random), shuffle, tracing);
    world.trace(|| format!("{plan:?}"));
    let stage = set_up(plan, &world, &mut random);
    let simulated = play(&stage);
    let (hash, polls) = (world.hash(), world.polls());
    let mut counts = stage.tally.take();
    {
        let referee = stage.server.referee();
        counts.insert("grants checked", referee.grants);
        counts.insert("hand-overs", referee.hand_overs);
    }
    let violation = world.violation();
    stage.hosts().clear();
    world.clear();
    Report { seed, hash, simulated, polls, counts, violation }
}

fn set_up(plan: Plan, world: &Arc<World>, random: &mut Random) -> Arc<Stage> {
    let seed = plan.seed;
    let tally: Arc<Tally> = Arc::default();
    let ledger = Ledger::new(world);
    let referee = Referee::new(world, &ledger, plan.inside);
    let server = Server::new(world, NodeEnvironment::new(world, SERVER, seed), referee);
    let late_until = nanos(plan.storm + Duration::from_secs(2));
    let weather = plan.weather.clone();
    let network = Network::new(world, &tally, Random::new(seed, 0xae7), weather, late_until);
    let stage = Stage::new(plan, Arc::clone(world), server, network, ledger, tally);
    for at in 0..stage.plan.hosts {
        stage.start_host(at, stage.plan.clock(random));
    }
    world.spawn(DIRECTOR, Box::pin(nemesis::rage(Arc::clone(&stage), Random::new(seed, 0x0ff))));
    if stage.plan.orders {
        let client = stage.client(DIRECTOR, stage.plan.hosts);
        let operator = nemesis::operate(Arc::clone(&stage), client, Random::new(seed, 0x0dd));
        world.spawn(DIRECTOR, Box::pin(operator));
    }
    stage
}

/// Returns how much virtual time it took.
fn play(stage: &Arc<Stage>) -> Duration {
    let world = &stage.world;
    let never = || false;
    world.run(nanos(stage.plan.storm), never);
    stage.progress.enter(world, Phase::Calm);
    nemesis::heal(stage);
    let strict_from = world.now() + nanos(stage.plan.settling());
    world.run(strict_from, never);
    stage.progress.enter(world, Phase::Strict);
    stage.server.referee().strict = true;
    let watching = Arc::clone(stage);
    world.spawn(DIRECTOR, Box::pin(async move { watch(&watching).await }));
    world.run(world.now() + nanos(STRICT_FOR), never);
    stage.progress.enter(world, Phase::Drain);
    let goal = world.now() + nanos(DRAIN_MAX);
    world.run(goal, || stage.progress.busy() == 0);
    if stage.progress.busy() > 0 {
        let message =
            format!("{} tasks still wait {DRAIN_MAX:?} after everyone gave back", stage.progress.busy());
        world.fail("asleep", message);
    }
    let simulated = Duration::from_nanos(world.now());
    if world.violation().is_none() {
        close_down(stage);
    }
    simulated
}

/// Looks around every half second while nothing may go wrong.
async fn watch(stage: &Arc<Stage>) {
    while stage.progress.phase() == Phase::Strict {
        stage.world.pause(Duration::from_millis(500)).await;
        stage.server.tick();
        find_orphans(stage).await;
    }
}

/// What the server holds or keeps in line belongs to someone.
async fn find_orphans(stage: &Arc<Stage>) {
    let now = stage.world.now();
    for seen in stage.server.all().await {
        let holders = seen.holders.iter().filter(|by| !by.kept).map(|by| (&by.holder.label, "is held"));
        let places = seen.queue.iter().map(|place| (&place.holder.label, "is waited for"));
        for (label, what) in holders.chain(places) {
            let Some(ended) = stage.ended(label) else { continue };
            let since = Duration::from_nanos(now - ended);
            if since > ORPHAN_MAX {
                let message = format!("{} {what} by {label}, which ended {since:?} ago", seen.resource);
                stage.world.fail("orphan", message);
            }
        }
    }
}

/// Shuts everything down, and looks for what is left.
fn close_down(stage: &Arc<Stage>) {
    let world = &stage.world;
    let hosts: Vec<_> = stage.hosts().drain(..).collect();
    let nodes: Vec<NodeId> = hosts.iter().map(|host| host.node).collect();
    let open = Arc::new(std::sync::atomic::AtomicUsize::new(hosts.len()));
    for host in hosts {
        let (open, stage) = (Arc::clone(&open), Arc::clone(stage));
        world.spawn(
            host.node,
            Box::pin(async move {
                host.client.shutdown().await;
                if host.client.watched() > 0 {
                    let message =
                        format!("{:?} is shut down and keeps {} alive", host.node, host.client.watched());
                    stage.world.fail("leak", message);
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
    look_for_claims(stage);
    // Tombstones stand for three minutes of the server, whose clock may be slow.
    let long = Duration::from_secs(300);
    world.run(world.now() + nanos(long), || false);
    for node in nodes {
        let tasks = world.tasks_on(node);
        if tasks > 0 {
            world.fail("leak", format!("{tasks} tasks of {node:?} outlive their client"));
        }
    }
    let (left, books) = stage.server.left();
    if left > 0 {
        world.trace(|| books);
        world.fail("leak", format!("the server remembers {left} resources that nobody uses"));
    }
}

/// Everyone has gone: at once, not only when the ttl ends.
fn look_for_claims(stage: &Arc<Stage>) {
    let looking = Arc::clone(stage);
    stage.world.spawn(
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
    let now: Time = stage.world.now();
    stage.world.run(now, || false);
}
