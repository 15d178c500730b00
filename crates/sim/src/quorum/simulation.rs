//! Everything that the parts of a run share.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use leasehold::{Client, MemoryNode, Quorum, Resource};
use leasehold_core::QuorumNode;

use super::{belief_checker::BeliefChecker, plan::QuorumRunPlan, simulated_node::SimulatedNode, work};
use crate::{
    clock::{HostClock, Time},
    environment::NodeEnvironment,
    network::Network,
    progress::{Phase, Progress},
    random::{Random, nanos},
    report::Tally,
    world::{NodeId, World},
};

pub(crate) struct QuorumSimulation {
    pub(crate) plan: QuorumRunPlan,
    pub(crate) world: Arc<World>,
    pub(crate) network: Arc<Network>,
    pub(crate) tally: Arc<Tally>,
    pub(crate) nodes: Vec<(NodeId, Arc<MemoryNode>)>,
    pub(crate) beliefs: Arc<BeliefChecker>,
    hosts: Mutex<Vec<NodeId>>,
    ended: Mutex<BTreeMap<String, Time>>,
    pub(crate) progress: Progress,
    labels: AtomicUsize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl QuorumSimulation {
    pub(crate) fn new(plan: QuorumRunPlan, world: &Arc<World>, random: &mut Random) -> Arc<QuorumSimulation> {
        let tally: Arc<Tally> = Arc::default();
        let late_until = nanos(QuorumRunPlan::GATE + plan.storm + Duration::from_secs(4));
        let conditions = plan.conditions.clone();
        let network = Network::new(world, &tally, Random::new(plan.seed, 0xae7), conditions, late_until);
        let node = |number: usize, random: &mut Random| {
            let at = world.add_node(plan.clock(random));
            let environment = NodeEnvironment::new(world, at, plan.seed);
            let name = format!("node-{number}");
            let made = if plan.durable { MemoryNode::durable } else { MemoryNode::new };
            (at, Arc::new(made(&name, environment)))
        };
        let nodes = (0..plan.nodes).map(|number| node(number, random)).collect();
        let beliefs = Arc::new(BeliefChecker::new(world, plan.excludes()));
        Arc::new(QuorumSimulation {
            world: Arc::clone(world),
            network,
            tally,
            nodes,
            beliefs,
            hosts: Mutex::default(),
            ended: Mutex::default(),
            progress: Progress::default(),
            labels: AtomicUsize::new(0),
            plan,
        })
    }

    pub(crate) fn resource() -> Resource {
        Resource::new("lease", "0").expect("follows the grammar")
    }

    pub(crate) fn host(&self, at: u64) -> NodeId {
        lock(&self.hosts)[usize::try_from(at).expect("few hosts")]
    }

    /// For partitions.
    pub(crate) fn key(&self, host: u64, node: usize) -> u64 {
        host * 16 + node as u64
    }

    /// Starts a host, or starts it again after a crash.
    pub(crate) fn start_host(self: &Arc<QuorumSimulation>, at: u64, clock: HostClock) {
        let node = self.world.add_node(clock);
        self.world.trace(|| format!("host {at} starts as {node:?}"));
        {
            let mut hosts = lock(&self.hosts);
            let at = usize::try_from(at).expect("few hosts");
            if at < hosts.len() { hosts[at] = node } else { hosts.push(node) }
        }
        let (simulation, guard) = (Arc::clone(self), self.progress.begin());
        self.world.spawn(
            node,
            Box::pin(async move {
                let Some(client) = simulation.connect(at, node).await else { return };
                let elsewhere = simulation.plan.lopsided && at > 1;
                for task in 0..simulation.plan.tasks {
                    let random =
                        Random::new(simulation.plan.seed, 0xbeef_0000 + ((node.0 as u64) << 8) + task);
                    let guard = simulation.progress.begin();
                    let work = work::work(Arc::clone(&simulation), node, client.clone(), random, elsewhere);
                    let task = async move {
                        work.await;
                        drop(guard);
                    };
                    simulation.world.spawn(node, Box::pin(task));
                }
                drop(guard);
            }),
        );
    }

    /// Until it succeeds, or the run ends.
    async fn connect(self: &Arc<QuorumSimulation>, at: u64, node: NodeId) -> Option<Client> {
        let environment = NodeEnvironment::new(&self.world, node, self.plan.seed);
        while self.progress.phase() < Phase::Drain {
            let wire = |(number, (to, server)): (usize, &(NodeId, Arc<MemoryNode>))| {
                let key = self.key(at, number);
                Arc::new(SimulatedNode::new(&self.network, node, key, (*to, server))) as Arc<dyn QuorumNode>
            };
            let nodes = self.nodes.iter().enumerate().map(wire).collect();
            match Quorum::connect(nodes, QuorumRunPlan::GATE, environment.clone()).await {
                Ok(quorum) => {
                    return Some(Client::builder(Arc::new(quorum)).environment(environment).build());
                }
                Err(error) => self.world.trace(|| format!("{node:?} cannot connect: {error}")),
            }
            self.world.sleep(node, nanos(Duration::from_millis(300))).await;
        }
        None
    }

    /// Names an operation.
    pub(crate) fn next_label(&self) -> String {
        format!("op{}", self.labels.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn end(&self, label: String) {
        let now = self.world.now();
        lock(&self.ended).insert(label, now);
    }

    pub(crate) fn ended(&self, label: &str) -> Option<Time> {
        lock(&self.ended).get(label).copied()
    }
}

impl fmt::Debug for QuorumSimulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuorumSimulation").field("phase", &self.progress.phase()).finish_non_exhaustive()
    }
}
