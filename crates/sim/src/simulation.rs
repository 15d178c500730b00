//! Everything that the parts of a run share.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use leasehold::{Client, Detached};

use crate::{
    beliefs::BeliefChecker,
    clock::{HostClock, Time},
    environment::NodeEnvironment,
    network::{Network, SimulatedConnection},
    plan::RunPlan,
    progress::Progress,
    random::Random,
    register::Registers,
    report::Tally,
    server::Server,
    workload,
    world::{NodeId, World},
};

/// One computer.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    pub(crate) node: NodeId,
    pub(crate) client: Client,
}

pub(crate) struct Simulation {
    pub(crate) plan: RunPlan,
    pub(crate) world: Arc<World>,
    pub(crate) server: Arc<Server>,
    pub(crate) network: Arc<Network>,
    pub(crate) beliefs: Arc<BeliefChecker>,
    pub(crate) tally: Arc<Tally>,
    pub(crate) hosts: Mutex<Vec<Host>>,
    /// Leases on their way from one host to another.
    pub(crate) detached: Mutex<Vec<(Detached, u64)>>,
    registers: Mutex<Registers>,
    ops: Mutex<BTreeMap<u64, Option<Time>>>,
    next_op: Mutex<u64>,
    pub(crate) progress: Progress,
}

/// What a simulation is built from.
pub(crate) struct SimulationParts {
    pub(crate) server: Arc<Server>,
    pub(crate) network: Arc<Network>,
    pub(crate) beliefs: Arc<BeliefChecker>,
    pub(crate) tally: Arc<Tally>,
}

impl Simulation {
    pub(crate) fn new(plan: RunPlan, world: Arc<World>, parts: SimulationParts) -> Arc<Simulation> {
        let SimulationParts { server, network, beliefs, tally } = parts;
        Arc::new(Simulation {
            plan,
            world,
            server,
            network,
            beliefs,
            tally,
            hosts: Mutex::default(),
            detached: Mutex::default(),
            registers: Mutex::default(),
            ops: Mutex::default(),
            next_op: Mutex::default(),
            progress: Progress::default(),
        })
    }

    pub(crate) fn registers(&self) -> MutexGuard<'_, Registers> {
        lock(&self.registers)
    }

    pub(crate) fn hosts(&self) -> MutexGuard<'_, Vec<Host>> {
        lock(&self.hosts)
    }

    pub(crate) fn host(&self, at: u64) -> Host {
        self.hosts()[usize::try_from(at).expect("few hosts")].clone()
    }

    pub(crate) fn detached(&self) -> MutexGuard<'_, Vec<(Detached, u64)>> {
        lock(&self.detached)
    }

    /// A client on a node of its own.
    pub(crate) fn client(&self, node: NodeId, host: u64) -> Client {
        let environment = NodeEnvironment::new(&self.world, node, self.plan.seed);
        let link = SimulatedConnection::new(&self.network, &self.server, &self.beliefs, node, host);
        Client::builder(Arc::new(link)).environment(environment).build()
    }

    /// Starts a host, or starts it again after a crash: a new process on the same clock.
    pub(crate) fn start_host(self: &Arc<Simulation>, at: u64, clock: HostClock) {
        let node = self.world.add_node(clock);
        let host = Host { node, client: self.client(node, at) };
        self.world.trace(|| format!("host {at} starts as {node:?}"));
        {
            let mut hosts = self.hosts();
            let at = usize::try_from(at).expect("few hosts");
            if at < hosts.len() {
                let before = std::mem::replace(&mut hosts[at], host.clone());
                drop(hosts);
                drop(before);
            } else {
                hosts.push(host.clone());
            }
        }
        for task in 0..self.plan.tasks {
            let salt = 0xbeef_0000 + ((node.0 as u64) << 8) + task;
            let random = Random::new(self.plan.seed, salt);
            let guard = self.progress.begin();
            let work = workload::work(Arc::clone(self), host.clone(), random);
            self.world.spawn(
                node,
                Box::pin(async move {
                    work.await;
                    drop(guard);
                }),
            );
        }
    }

    /// Something new is done, under a name that the server will show.
    pub(crate) fn begin_op(self: &Arc<Simulation>) -> Operation {
        let mut next = lock(&self.next_op);
        *next += 1;
        lock(&self.ops).insert(*next, None);
        Operation { simulation: Arc::clone(self), id: *next, handed_on: false }
    }

    /// When the operation of this label ended; None if it goes on, or was no operation.
    pub(crate) fn ended(&self, label: &str) -> Option<Time> {
        let id: u64 = label.strip_prefix("op")?.parse().ok()?;
        lock(&self.ops).get(&id).copied().flatten()
    }

    pub(crate) fn end_op(&self, id: u64) {
        let now = self.world.now();
        lock(&self.ops).insert(id, Some(now));
    }

    pub(crate) fn pause(&self, node: NodeId, duration: Duration) -> impl Future<Output = ()> + Send + use<> {
        let long = self.world.clock(node, |clock, _| clock.true_duration(duration));
        self.world.sleep(node, long)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Simulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Simulation").field("phase", &self.progress.phase()).finish_non_exhaustive()
    }
}

/// One use of one primitive. Once it is dropped, the server must soon have nothing of it.
#[derive(Debug)]
pub(crate) struct Operation {
    simulation: Arc<Simulation>,
    pub(crate) id: u64,
    handed_on: bool,
}

impl Operation {
    pub(crate) fn label(&self) -> String {
        format!("op{}", self.id)
    }

    /// Whatever it leaves is somebody else's now.
    pub(crate) fn hand_on(mut self) -> u64 {
        self.handed_on = true;
        self.id
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        if !self.handed_on {
            self.simulation.end_op(self.id);
        }
    }
}
