//! A cluster: which node has which slot, since which epoch, and a link to each of them.
//!
//! The map is a guess that the nodes correct: one that is asked for a slot that it does not have says where that is, and
//! has done nothing. So an old map costs a round trip, never an error.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak},
    time::Duration,
};

use leasehold_core::{Effect, Environment, Error, ErrorKind, FailureDomain, Resource, Timestamp};
use leasehold_support::race;
use redis::{Cmd, Pipeline, Value, aio::MultiplexedConnection};
use tokio::sync::Notify;

use crate::{
    config::Config,
    error::Fault,
    link::Link,
    replicas::Pool,
    site::{self, Role, unavailable},
    slot::{SLOTS, slot},
    together,
};

/// How often a map that nobody complains about is looked at: epochs are part of tokens.
const GLANCE: Duration = Duration::from_secs(15);
/// How soon after a look at the map there may be the next one.
const REST: Duration = Duration::from_millis(100);
/// How many nodes are asked at once.
const ASKED_TOGETHER: usize = 5;
/// Nobody has this slot, as far as we know.
const NOBODY: u32 = u32::MAX;

/// A server, and what leads to it.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) number: u32,
    pub(crate) address: (String, u16),
    pub(crate) link: Arc<Link>,
    pub(crate) pool: Pool,
}

impl Node {
    pub(crate) fn new(number: u32, config: Config, environment: Arc<dyn Environment>) -> Node {
        let address = config.hosts[0].clone();
        Node { number, address, link: Arc::new(Link::new(config, environment)), pool: Pool::default() }
    }
}

/// The cluster, as far as this client knows.
pub(crate) struct Cluster {
    pub(crate) config: Config,
    pub(crate) environment: Arc<dyn Environment>,
    map: Mutex<Map>,
    /// When the last look at the map began. Held while someone looks.
    looked_at: tokio::sync::Mutex<Timestamp>,
    stale: Arc<Notify>,
    follower: OnceLock<Weak<dyn Follower>>,
}

/// Who must know that slots have moved.
pub(crate) trait Follower: Send + Sync {
    fn slots_moved(&self, cluster: &Cluster);
}

/// The numbers of nodes stay: they are lanes.
struct Map {
    nodes: Vec<Arc<Node>>,
    owners: Vec<u32>,
    epoch: u64,
    replicas: Vec<(String, u16)>,
}

/// What one node says of the cluster.
#[derive(Debug, PartialEq, Eq)]
struct View {
    epoch: u64,
    ranges: Vec<(u16, u16, (String, u16))>,
    replicas: Vec<(String, u16)>,
}

impl Cluster {
    /// Asks the nodes that the URL names, and keeps an eye on the map until this is dropped.
    pub(crate) async fn connect(
        config: Config,
        environment: Arc<dyn Environment>,
    ) -> Result<Arc<Cluster>, Fault> {
        let map = Map { nodes: Vec::new(), owners: vec![NOBODY; SLOTS], epoch: 0, replicas: Vec::new() };
        let cluster = Arc::new(Cluster {
            config,
            environment,
            map: Mutex::new(map),
            looked_at: tokio::sync::Mutex::new(Timestamp::from_nanos(0)),
            stale: Arc::new(Notify::new()),
            follower: OnceLock::new(),
        });
        cluster.look().await?;
        let primaries = cluster.primaries();
        // One of them will do: a dead one is no reason not to start.
        let wires = primaries.iter().map(|node| node.link.wire()).collect();
        let (reached, failures) = together::some(wires, 1).await;
        if reached.is_empty() {
            let failure = Fault::clearest(failures);
            return Err(failure.unwrap_or_else(|| unavailable("no node of the cluster has a slot")));
        }
        let keep = keep(Arc::downgrade(&cluster), Arc::clone(&cluster.stale));
        cluster.environment.spawn(Box::pin(keep));
        Ok(cluster)
    }

    fn map(&self) -> MutexGuard<'_, Map> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells this one whenever slots may have moved.
    pub(crate) fn tell(&self, follower: Weak<dyn Follower>) {
        let _ = self.follower.set(follower);
    }

    pub(crate) fn failure_domain(&self, resource: &Resource) -> FailureDomain {
        FailureDomain(self.map().owners[usize::from(slot(resource))])
    }

    /// The node that has a slot.
    pub(crate) fn owner(&self, slot: u16) -> Result<Arc<Node>, Fault> {
        let map = self.map();
        let node = map.nodes.get(map.owners[usize::from(slot)] as usize);
        node.cloned().ok_or_else(|| unavailable("no node of the cluster has the slot of this resource"))
    }

    /// All nodes that have slots, by address.
    pub(crate) fn primaries(&self) -> Vec<Arc<Node>> {
        let map = self.map();
        let mut has_slots = vec![false; map.nodes.len()];
        for &owner in map.owners.iter().filter(|&&owner| owner != NOBODY) {
            has_slots[owner as usize] = true;
        }
        let mut nodes: Vec<_> = map.nodes.iter().filter(|node| has_slots[node.number as usize]).collect();
        nodes.sort_by(|a, b| a.address.cmp(&b.address));
        nodes.into_iter().cloned().collect()
    }

    /// The node at an address that another one named; without a host, that one's.
    pub(crate) fn node_at(&self, host: &str, port: u16, named_by: &Node) -> Arc<Node> {
        let host = if host.is_empty() { named_by.address.0.as_str() } else { host };
        self.number(&mut self.map(), host, port)
    }

    fn number(&self, map: &mut Map, host: &str, port: u16) -> Arc<Node> {
        let known = map.nodes.iter().find(|node| node.address.0 == host && node.address.1 == port);
        if let Some(node) = known {
            return Arc::clone(node);
        }
        let number = u32::try_from(map.nodes.len()).unwrap_or(NOBODY - 1);
        let node = Node::new(number, self.config.of_node(host, port), Arc::clone(&self.environment));
        map.nodes.push(Arc::new(node));
        Arc::clone(&map.nodes[number as usize])
    }

    /// A node says that another one has the slot.
    pub(crate) fn moved(&self, slot: u16, to: &Node) {
        self.map().owners[usize::from(slot)] = to.number;
        self.suspect();
    }

    /// Something speaks against the map: it is looked at soon.
    pub(crate) fn suspect(&self) {
        self.stale.notify_one();
    }

    /// Looks at the map, unless someone has since `seen`. One at a time: who comes meanwhile waits for it.
    pub(crate) async fn refresh(&self, seen: Timestamp) {
        let mut looked_at = self.looked_at.lock().await;
        if *looked_at > seen {
            return;
        }
        *looked_at = self.environment.now();
        if let Err(fault) = self.look().await {
            tracing::debug!(?fault, "no node tells where the slots are");
        }
    }

    /// Asks some nodes at once, and believes the newest epoch that a majority of them has to offer: a node that was cut
    /// off still names the old primary.
    async fn look(&self) -> Result<(), Fault> {
        let mut failures = Vec::new();
        for some in self.candidates().chunks(ASKED_TOGETHER) {
            let asks = some.iter().map(|(host, port)| ask(&self.config, host, *port)).collect();
            let (views, failed) = together::some(asks, some.len() / 2 + 1).await;
            failures.extend(failed);
            if let Some(newest) = views.into_iter().max_by_key(|view| view.epoch) {
                self.believe(newest);
                return Ok(());
            }
        }
        Err(Fault::clearest(failures).unwrap_or_else(|| unavailable("no node of the cluster is named")))
    }

    /// Whoever may know the cluster, those with slots first.
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

    /// Asks one node on a connection that is there.
    async fn glance(&self) {
        let nodes = self.primaries();
        let start = usize::try_from(self.environment.random() % 64).unwrap_or(0);
        let mut order = nodes.iter().cycle().skip(start).take(nodes.len());
        let live = order.find_map(|node| Some((node, node.link.live_wire()?)));
        let Some((node, wire)) = live else { return };
        let questions = [Cmd::new().arg("CLUSTER").arg("SLOTS").to_owned(), cluster_info()];
        let mut answers = node.link.pipe(&wire, &questions).await.into_iter();
        if let (Some(Ok(slots)), Some(Ok(info))) = (answers.next(), answers.next()) {
            let seen = view(&slots, &info, &node.address.0);
            // One node alone may be behind the others.
            if seen.epoch >= self.map().epoch {
                self.believe(seen);
            }
        } else {
            self.refresh(self.environment.now()).await;
        }
    }

    fn believe(&self, view: View) {
        {
            let mut map = self.map();
            if view.ranges.is_empty() {
                return;
            }
            map.epoch = view.epoch;
            for (first, last, (host, port)) in &view.ranges {
                let number = self.number(&mut map, host, *port).number;
                map.owners[usize::from(*first)..=usize::from(*last)].fill(number);
            }
            map.replicas = view.replicas;
        }
        let primaries = self.primaries();
        let others = self.map().nodes.clone();
        for node in others {
            if primaries.iter().any(|primary| primary.number == node.number) {
                node.link.raise_epoch(view.epoch);
            } else {
                // Whatever it becomes again, it says its epoch anew.
                node.link.drop_any_wire();
            }
        }
        if let Some(follower) = self.follower.get().and_then(Weak::upgrade) {
            follower.slots_moved(self);
        }
    }
}

/// Looks at the map when someone has reason to doubt it, and now and then.
async fn keep(cluster: Weak<Cluster>, stale: Arc<Notify>) {
    let Some(environment) = cluster.upgrade().map(|cluster| Arc::clone(&cluster.environment)) else { return };
    loop {
        race::first(stale.notified(), environment.sleep(GLANCE)).await;
        let Some(cluster) = cluster.upgrade() else { return };
        cluster.glance().await;
        drop(cluster);
        environment.sleep(REST).await;
    }
}

fn cluster_info() -> Cmd {
    Cmd::new().arg("CLUSTER").arg("INFO").to_owned()
}

async fn ask(config: &Config, host: &str, port: u16) -> Result<View, Fault> {
    let mut node = site::open(config, host, port, Role::Server, None).await?;
    let (slots, info) = questions(&mut node).await.map_err(not_a_cluster)?;
    Ok(view(&slots, &info, host))
}

/// On a connection of its own, and believed as it is: a wrong map costs a redirect, and the epoch that is part of tokens is
/// asked of every primary again when it is connected to (`site::examine`).
async fn questions(node: &mut MultiplexedConnection) -> Result<(Value, Value), redis::RedisError> {
    let mut pipeline = Pipeline::with_capacity(2);
    pipeline.cmd("CLUSTER").arg("SLOTS").add_command(cluster_info());
    let mut answers = node.send_packed_commands(&pipeline, 0, 2).await?.into_iter();
    let mut next = || answers.next().unwrap_or(Value::Nil).extract_error();
    Ok((next()?, next()?))
}

fn not_a_cluster(error: redis::RedisError) -> Fault {
    if error.detail().unwrap_or_default().contains("cluster support disabled") {
        let message = "the server is no node of a cluster: write redis://host";
        return Fault::Refused(Error::new(ErrorKind::Unsupported, message).with_effect(Effect::None));
    }
    Fault::Connect(error)
}

/// Reads `CLUSTER SLOTS`: ranges, each with its primary and then its replicas.
fn view(slots: &Value, info: &Value, asked: &str) -> View {
    let (mut ranges, mut replicas) = (Vec::new(), Vec::new());
    let Value::Array(shards) = slots else {
        return View { epoch: 0, ranges, replicas };
    };
    for shard in shards {
        let Value::Array(fields) = shard else { continue };
        let [Value::Int(first), Value::Int(last), nodes @ ..] = fields.as_slice() else { continue };
        let mut nodes = nodes.iter().filter_map(|node| address(node, asked));
        let bound = |slot: &i64| u16::try_from(*slot).ok().filter(|slot| usize::from(*slot) < SLOTS);
        if let (Some(first), Some(last), Some(primary)) = (bound(first), bound(last), nodes.next())
            && first <= last
        {
            ranges.push((first, last, primary));
        }
        replicas.extend(nodes);
    }
    replicas.sort();
    replicas.dedup();
    View { epoch: site::epoch_of(info), ranges, replicas }
}

/// `[host, port, id, …]`. A node that does not know its own host is where it was asked.
fn address(node: &Value, asked: &str) -> Option<(String, u16)> {
    let Value::Array(fields) = node else { return None };
    let [host, Value::Int(port), ..] = fields.as_slice() else { return None };
    let host = match host {
        Value::BulkString(host) => String::from_utf8_lossy(host).into_owned(),
        Value::SimpleString(host) => host.clone(),
        _ => String::new(),
    };
    let host = if matches!(host.as_str(), "" | "?") { asked.to_owned() } else { host };
    Some((host, u16::try_from(*port).ok()?))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Value {
        redis::parse_redis_value(text.replace('\n', "\r\n").as_bytes()).unwrap()
    }

    #[test]
    fn a_node_says_who_has_which_slots() {
        let node = |host: &str, port: u16| format!("*3\n{host}\n:{port}\n$2\nid\n");
        let (known, unknown, hidden) = ("$9\n127.0.0.1", "$0\n", "$-1");
        let slots = format!(
            "*2\n*4\n:0\n:8191\n{}{}*3\n:8192\n:16383\n{}",
            node(known, 7000),
            node(unknown, 7003),
            node(hidden, 7001)
        );
        let info = Value::BulkString(b"cluster_state:ok\r\ncluster_current_epoch:17\r\n".to_vec());
        let seen = view(&read(&slots), &info, "cache");
        assert_eq!(seen.epoch, 17);
        let of = |host: &str, port| (host.to_owned(), port);
        assert_eq!(seen.ranges, [(0, 8191, of("127.0.0.1", 7000)), (8192, 16383, of("cache", 7001))]);
        assert_eq!(seen.replicas, [of("cache", 7003)]);
        assert!(view(&Value::Nil, &Value::Nil, "cache").ranges.is_empty());
        let backwards = format!("*1\n*3\n:8191\n:0\n{}", node(known, 7000));
        assert!(view(&read(&backwards), &info, "cache").ranges.is_empty(), "that is no range");
    }
}
