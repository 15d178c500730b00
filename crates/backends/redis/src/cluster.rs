//! A cluster: which node has which slot, since which epoch, and the connections to each node.
//!
//! The slot map may be out of date. A node that is asked for a slot that it does not have says where the slot
//! is, and has done nothing (`cluster_router.rs`). So an old map costs a round trip, never an error.
//! ADR 0014.
//!
//! The map is read again when an error or a redirect contradicts it, and every [`CHECK_MAP_EVERY`].

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak},
    time::Duration,
};

use leasehold_core::{Environment, FailureDomain, Resource, Timestamp};
use leasehold_support::race;
use tokio::sync::Notify;

use crate::{
    config::Config,
    connection::Connections,
    error::{StoreError, unavailable},
    join,
    replicas::ExclusiveConnections,
    slot::{SLOTS, slot},
    slot_map::{self, ClusterReport},
};

/// How often the map is read although nothing contradicts it: epochs are part of tokens.
const CHECK_MAP_EVERY: Duration = Duration::from_secs(15);
/// The least time between two checks of the map.
const CHECK_PAUSE: Duration = Duration::from_millis(100);
/// How many nodes are asked for the map at once.
const ASKED_AT_ONCE: usize = 5;
/// In the slot map: no node has this slot, as far as this client knows.
const NO_NODE: u32 = u32::MAX;

/// A server and the connections to it.
#[derive(Debug)]
pub(crate) struct PrimaryNode {
    /// The place in the list of nodes. It never changes, because it is the failure domain of the node's
    /// resources.
    pub(crate) number: u32,
    pub(crate) address: (String, u16),
    pub(crate) connections: Arc<Connections>,
    pub(crate) exclusive: ExclusiveConnections,
}

impl PrimaryNode {
    pub(crate) fn new(number: u32, config: Config, environment: Arc<dyn Environment>) -> PrimaryNode {
        let address = config.hosts[0].clone();
        let connections = Arc::new(Connections::new(config, environment));
        PrimaryNode { number, address, connections, exclusive: ExclusiveConnections::default() }
    }
}

impl fmt::Display for PrimaryNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.address.0, self.address.1)
    }
}

/// The cluster, as far as this client knows it.
pub(crate) struct Cluster {
    pub(crate) config: Config,
    pub(crate) environment: Arc<dyn Environment>,
    map: Mutex<SlotMap>,
    /// When the last [`refresh`](Cluster::refresh) began. Held while a caller refreshes the map.
    refreshed_at: tokio::sync::Mutex<Timestamp>,
    /// Wakes [`keep_map_current`].
    map_suspected: Arc<Notify>,
    observer: OnceLock<Weak<dyn SlotObserver>>,
}

/// Gets a call when slots may have moved.
pub(crate) trait SlotObserver: Send + Sync {
    fn slots_moved(&self, cluster: &Cluster);
}

struct SlotMap {
    /// Nodes are added and never removed, so their numbers stay valid.
    nodes: Vec<Arc<PrimaryNode>>,
    /// The number of the node that has each slot, or [`NO_NODE`].
    owners: Vec<u32>,
    epoch: u64,
    replicas: Vec<(String, u16)>,
}

/// No node is known to have the slot.
pub(crate) fn no_owner() -> StoreError {
    unavailable("no node of the cluster has the slot of this resource: check CLUSTER INFO")
}

impl Cluster {
    /// Asks the nodes that the URL names for the slot map, and keeps it current until this is dropped.
    pub(crate) async fn connect(
        config: Config,
        environment: Arc<dyn Environment>,
    ) -> Result<Arc<Cluster>, StoreError> {
        let owners = vec![NO_NODE; SLOTS];
        let map = SlotMap { nodes: Vec::new(), owners, epoch: 0, replicas: Vec::new() };
        let cluster = Arc::new(Cluster {
            config,
            environment,
            map: Mutex::new(map),
            refreshed_at: tokio::sync::Mutex::new(Timestamp::from_nanos(0)),
            map_suspected: Arc::new(Notify::new()),
            observer: OnceLock::new(),
        });
        cluster.read_map().await?;
        let primaries = cluster.primaries();
        // One connection is enough to start: a single dead node must not keep the client from starting.
        let connecting = primaries.iter().map(|node| node.connections.get()).collect();
        let (connected, errors) = join::join_until(connecting, 1).await;
        if connected.is_empty() {
            let error = StoreError::most_specific(errors);
            return Err(error.unwrap_or_else(|| unavailable("no node of the cluster has a slot")));
        }
        let task = keep_map_current(Arc::downgrade(&cluster), Arc::clone(&cluster.map_suspected));
        cluster.environment.spawn(Box::pin(task));
        Ok(cluster)
    }

    fn map(&self) -> MutexGuard<'_, SlotMap> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the observer of moved slots.
    pub(crate) fn set_observer(&self, observer: Weak<dyn SlotObserver>) {
        let _ = self.observer.set(observer);
    }

    // ADR 0014: a node is a failure domain, so that the engine renews the leases of each node on its own.
    pub(crate) fn failure_domain(&self, resource: &Resource) -> FailureDomain {
        FailureDomain(self.map().owners[usize::from(slot(resource))])
    }

    /// The node that has a slot.
    pub(crate) fn owner(&self, slot: u16) -> Result<Arc<PrimaryNode>, StoreError> {
        let map = self.map();
        let node = map.nodes.get(map.owners[usize::from(slot)] as usize);
        node.cloned().ok_or_else(no_owner)
    }

    /// All nodes that have slots, sorted by address.
    pub(crate) fn primaries(&self) -> Vec<Arc<PrimaryNode>> {
        let map = self.map();
        let mut has_slots = vec![false; map.nodes.len()];
        for &owner in map.owners.iter().filter(|&&owner| owner != NO_NODE) {
            has_slots[owner as usize] = true;
        }
        let mut nodes: Vec<_> = map.nodes.iter().filter(|node| has_slots[node.number as usize]).collect();
        nodes.sort_by(|a, b| a.address.cmp(&b.address));
        nodes.into_iter().cloned().collect()
    }

    /// The node at an address that `named_by` gave. An empty host means the host of `named_by`.
    pub(crate) fn node_at(&self, host: &str, port: u16, named_by: &PrimaryNode) -> Arc<PrimaryNode> {
        let host = if host.is_empty() { named_by.address.0.as_str() } else { host };
        self.node_in(&mut self.map(), host, port)
    }

    /// The node at an address; added to the map if it is new.
    fn node_in(&self, map: &mut SlotMap, host: &str, port: u16) -> Arc<PrimaryNode> {
        let known = map.nodes.iter().find(|node| node.address.0 == host && node.address.1 == port);
        if let Some(node) = known {
            return Arc::clone(node);
        }
        let number = u32::try_from(map.nodes.len()).unwrap_or(NO_NODE - 1);
        let node = PrimaryNode::new(number, self.config.of_node(host, port), Arc::clone(&self.environment));
        map.nodes.push(Arc::new(node));
        Arc::clone(&map.nodes[number as usize])
    }

    /// A node says that the slot is at `to`.
    pub(crate) fn slot_moved(&self, slot: u16, to: &PrimaryNode) {
        self.map().owners[usize::from(slot)] = to.number;
        self.suspect_map();
    }

    /// Marks the map as possibly out of date: it is read again soon.
    pub(crate) fn suspect_map(&self) {
        self.map_suspected.notify_one();
    }

    /// Reads the map, unless another caller began to do so after `seen`. One caller reads, the others wait.
    pub(crate) async fn refresh(&self, seen: Timestamp) {
        let mut refreshed_at = self.refreshed_at.lock().await;
        if *refreshed_at > seen {
            return;
        }
        *refreshed_at = self.environment.now();
        if let Err(error) = self.read_map().await {
            tracing::debug!(?error, "no node of the cluster says where the slots are");
        }
    }

    /// Asks several nodes at once and takes the report with the newest epoch, once a majority of them has
    /// replied: a node that was cut off from the others still names the old primary.
    async fn read_map(&self) -> Result<(), StoreError> {
        let mut errors = Vec::new();
        for some in self.candidates().chunks(ASKED_AT_ONCE) {
            let asking = some.iter().map(|(host, port)| slot_map::ask(&self.config, host, *port)).collect();
            let (reports, failed) = join::join_until(asking, some.len() / 2 + 1).await;
            errors.extend(failed);
            if let Some(newest) = reports.into_iter().max_by_key(|report| report.epoch) {
                self.apply(newest);
                return Ok(());
            }
        }
        let no_host = || unavailable("no node of the cluster is named in the URL");
        Err(StoreError::most_specific(errors).unwrap_or_else(no_host))
    }

    /// The nodes that may know the slot map: those with slots, then replicas, then the hosts of the URL.
    fn candidates(&self) -> Vec<(String, u16)> {
        let mut candidates: Vec<_> = self.primaries().iter().map(|node| node.address.clone()).collect();
        let map = self.map();
        for address in map.replicas.iter().chain(&self.config.hosts) {
            if !candidates.contains(address) {
                candidates.push(address.clone());
            }
        }
        candidates
    }

    /// Reads the map from one random node that is connected, which is cheaper than
    /// [`read_map`](Cluster::read_map).
    async fn check_map(&self) {
        let nodes = self.primaries();
        // A random start, so that the clients of a cluster do not all ask the same node.
        let start = usize::try_from(self.environment.random() % 64).unwrap_or(0);
        let mut order = nodes.iter().cycle().skip(start).take(nodes.len());
        let live = order.find_map(|node| Some((node, node.connections.live()?)));
        let Some((node, connection)) = live else { return };
        let mut replies = node.connections.send_all(&connection, &slot_map::questions()).await.into_iter();
        if let (Some(Ok(slots)), Some(Ok(info))) = (replies.next(), replies.next()) {
            let report = slot_map::parse(&slots, &info, &node.address.0);
            // One node alone may be behind the others.
            if report.epoch >= self.map().epoch {
                self.apply(report);
            }
        } else {
            self.refresh(self.environment.now()).await;
        }
    }

    /// Takes over the slot map of a report.
    fn apply(&self, report: ClusterReport) {
        {
            let mut map = self.map();
            // A node that has just joined knows no slots.
            if report.ranges.is_empty() {
                return;
            }
            map.epoch = report.epoch;
            // A slot without a range keeps its old owner, which says itself if it no longer serves the slot.
            for (first, last, (host, port)) in &report.ranges {
                let number = self.node_in(&mut map, host, *port).number;
                map.owners[usize::from(*first)..=usize::from(*last)].fill(number);
            }
            map.replicas = report.replicas;
        }
        let primaries = self.primaries();
        let nodes = self.map().nodes.clone();
        for node in nodes {
            if primaries.iter().any(|primary| primary.number == node.number) {
                node.connections.raise_epoch(report.epoch);
            } else {
                // If the node becomes a primary again, its new connection reads its new epoch.
                node.connections.discard_all();
            }
        }
        if let Some(observer) = self.observer.get().and_then(Weak::upgrade) {
            observer.slots_moved(self);
        }
    }
}

/// Checks the map when it may be out of date, and every [`CHECK_MAP_EVERY`].
async fn keep_map_current(cluster: Weak<Cluster>, suspected: Arc<Notify>) {
    let Some(environment) = cluster.upgrade().map(|cluster| Arc::clone(&cluster.environment)) else { return };
    loop {
        race::first(suspected.notified(), environment.sleep(CHECK_MAP_EVERY)).await;
        let Some(cluster) = cluster.upgrade() else { return };
        cluster.check_map().await;
        drop(cluster);
        environment.sleep(CHECK_PAUSE).await;
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let epoch = self.map().epoch;
        let primaries: Vec<_> = self.primaries().iter().map(|node| node.address.clone()).collect();
        f.debug_struct("Cluster")
            .field("config", &self.config)
            .field("epoch", &epoch)
            .field("primaries", &primaries)
            .finish_non_exhaustive()
    }
}
