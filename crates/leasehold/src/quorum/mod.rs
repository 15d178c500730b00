//! Leases over a majority of independent servers: Redlock, with fencing tokens that grow.
//!
//! | module | what it does |
//! |---|---|
//! | [`acquire`] | asks all nodes for their vote at once |
//! | [`undo`] | takes back the votes of an attempt that failed, and releases |
//! | [`renew`] | renews, and gives a lease again to nodes that have lost it |
//! | [`grants`] | remembers what this client was granted |
//! | [`membership`] | founds the set, and decides which nodes vote |
//! | [`founding`] | the command of an operator that founds a set of new servers at once |
//! | [`inspect`] | what a majority sees |
//! | [`nodes`] | which nodes vote now, and why others do not |
//! | [`checks`] | what is refused before anything is sent |
//! | [`node_handle`], [`node_requests`] | one node, and requests to several of them |
//! | [`memory_node`] | a node in memory, with faults |
//!
//! The decisions are pure functions in [`leasehold_core::quorum_node`], so that they can be model checked (ADR 0018).

mod acquire;
mod checks;
mod founding;
mod grants;
mod inspect;
mod membership;
mod memory_node;
mod node_handle;
mod node_requests;
mod nodes;
mod renew;
mod undo;

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use leasehold_core::{
    Backend, BackendInfo, Claim, ClaimRef, CommandOutcome, Cursor, Environment, ErrorKind, FailureDomain,
    Guarantee, OperatorAction, OperatorCommand, OwnerToken, Page, Query, QuorumNode, ReleaseRequest,
    Released, RenewRequest, Renewal, Resource, Result, Verdict, async_trait,
    backoff::jitter,
    one_by_one,
    quorum_node::{AttemptId, RETENTION, SKEW_MAX, membership as core_membership, tally::majority},
};
use leasehold_support::race::first;
use tokio::sync::Notify;

use self::{
    checks::unsupported, grants::Grants, membership::SetStatus, node_handle::NodeHandle,
    node_requests::NodeRequests,
};

pub use founding::{Founded, found_redlock};
pub use memory_node::MemoryNode;

/// A backend over a majority of independent nodes.
///
/// It has exclusive leases only. Each node is a server that knows nothing of the others. A claim that has the votes of a
/// majority of the nodes holds the lease. There is no queue: a claim that is blocked asks again.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// use leasehold::{Client, MemoryNode, Quorum, QuorumNode, System};
/// use std::sync::Arc;
///
/// let environment = Arc::new(System::current());
/// let node = |number| Arc::new(MemoryNode::durable(&format!("node-{number}"), environment.clone()));
/// let nodes: Vec<Arc<MemoryNode>> = (1..=5).map(node).collect();
/// let of: Vec<Arc<dyn QuorumNode>> = nodes.iter().map(|node| node.clone() as _).collect();
/// let leases = Client::new(Arc::new(Quorum::connect(of, Quorum::GATE, environment).await?));
///
/// nodes[0].stop();
/// nodes[1].stop(); // three of five are a majority
/// leases.lease("report", "42").run(async |lease| println!("token {}", lease.token())).await?;
/// # Ok(()) }
/// ```
pub struct Quorum {
    info: BackendInfo,
    state: Arc<QuorumState>,
}

/// What the backend shares with its background tasks.
struct QuorumState {
    nodes: Vec<NodeHandle>,
    environment: Arc<dyn Environment>,
    grants: Grants,
    status: Mutex<SetStatus>,
    /// Notified when a node may have lost its vote, or may get it back.
    membership_wakeup: Arc<Notify>,
    /// The gate that the caller names, for a set of which no node votes yet.
    founding_gate: Option<Duration>,
    attempts: AtomicU32,
}

/// The longest time that `wait` takes before the claim asks again.
const POLL_EVERY_MAX: Duration = Duration::from_secs(2);
/// The shortest time that a node is given to answer, even for a short ttl.
const NODE_TIMEOUT_MIN: Duration = Duration::from_millis(25);

impl Quorum {
    /// The default uptime gate: how long a node that may have forgotten its votes has no vote. No ttl is longer.
    pub const GATE: Duration = core_membership::GATE;
    /// The backend's name in errors and metrics.
    pub const NAME: &'static str = "redlock";

    /// Connects to the nodes, and founds the set if it was never used, for which all nodes must answer.
    ///
    /// If a majority votes, nodes that are slower join later, and do not delay this.
    ///
    /// `gate` is the uptime gate of a new set, [`Quorum::GATE`] by default. It counts until a node of the set votes; from
    /// then on the nodes remember it. A new set waits for its gate, unless [`Quorum::found`] was called.
    ///
    /// # Cancel safety
    /// If it is dropped part-way, the next client that connects goes on with the founding.
    ///
    /// # Errors
    /// `Invalid` if there are fewer than three nodes, if a node is named twice or is a replica, or if the nodes belong to
    /// different sets; `Unavailable` if a majority does not answer; the node's error if it refuses the password.
    pub async fn connect(
        nodes: Vec<Arc<dyn QuorumNode>>,
        gate: impl Into<Option<Duration>>,
        environment: Arc<dyn Environment>,
    ) -> Result<Quorum> {
        let size = nodes.len();
        let state = QuorumState::new(nodes, gate.into(), Arc::clone(&environment));
        let again_in = state.update_membership(true).await?;
        // Weak: the task ends when the backend is dropped.
        let (task, wakeup) = (Arc::downgrade(&state), Arc::clone(&state.membership_wakeup));
        let upkeep = membership::keep_updated(task, wakeup, Arc::clone(&environment), again_in);
        environment.spawn(Box::pin(upkeep));
        Ok(Quorum { info: info(size), state })
    }

    /// The uptime gate of the set, which is also the longest ttl.
    pub fn gate(&self) -> Duration {
        self.state.status().gate
    }
}

fn info(size: usize) -> BackendInfo {
    let mut info = BackendInfo::new(Quorum::NAME, Guarantee::Quorum);
    info.because = format!(
        "{} of {size} independent servers must agree, and their clocks are trusted to run alike for a ttl",
        majority(size)
    )
    .into();
    info.tokens_break_when = format!(
        "a majority of the nodes forgets, a majority of their clocks is wrong by more than {} minutes, or one leaps \
         ahead by more than {} hours and is set back",
        SKEW_MAX.as_secs() / 60,
        RETENTION.as_secs() / 3600
    )
    .into();
    let can = &mut info.capabilities;
    (can.queue, can.shares, can.handover, can.keep_for, can.orders) = (false, false, false, false, false);
    can.passes_over = false;
    info
}

impl QuorumState {
    fn new(
        nodes: Vec<Arc<dyn QuorumNode>>,
        gate: Option<Duration>,
        environment: Arc<dyn Environment>,
    ) -> Arc<QuorumState> {
        Arc::new(QuorumState {
            nodes: nodes.into_iter().map(NodeHandle::new).collect(),
            environment,
            grants: Grants::default(),
            status: Mutex::new(SetStatus { gate: gate.unwrap_or(Quorum::GATE), ..SetStatus::default() }),
            membership_wakeup: Arc::new(Notify::new()),
            founding_gate: gate,
            attempts: AtomicU32::new(0),
        })
    }

    fn status(&self) -> MutexGuard<'_, SetStatus> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn size(&self) -> usize {
        self.nodes.len()
    }

    fn all_nodes(&self) -> std::ops::Range<usize> {
        0..self.size()
    }

    /// A new attempt id. The upper half is a part of the owner token, so that no client is favoured in a split vote. The
    /// lower half counts, so that the attempts of one owner grow (ADR 0017).
    fn next_attempt(&self, owner: OwnerToken) -> AttemptId {
        let [a, b, c, d, ..] = owner.to_bytes();
        let number = self.attempts.fetch_add(1, Ordering::Relaxed);
        AttemptId((u64::from(u32::from_be_bytes([a, b, c, d])) << 32) | u64::from(number))
    }

    /// How long a node may take to answer a request with this ttl: a tenth of it.
    fn node_timeout(ttl: Duration) -> Duration {
        (ttl / 10).max(NODE_TIMEOUT_MIN)
    }

    /// Records whether a node answered. A node that answers again may have been restarted, so its membership is checked.
    fn record_reply<T>(&self, node: usize, reply: &Result<T>) {
        match reply {
            Ok(_) => {
                if self.nodes[node].record_success() {
                    self.membership_wakeup.notify_one();
                }
            }
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                self.nodes[node].record_failure(&*self.environment);
            }
            Err(_) => {}
        }
    }

    /// Lets requests finish in the background: a connection that is being made is not given up, and a request that is
    /// under way is not cancelled.
    fn finish_in_background<T: Send + 'static>(
        self: &Arc<QuorumState>,
        mut requests: NodeRequests<Result<T>>,
    ) {
        if requests.is_empty() {
            return;
        }
        let state = Arc::clone(self);
        self.environment.spawn(Box::pin(async move {
            while let Some((node, reply)) = requests.next().await {
                state.record_reply(node, &reply);
            }
        }));
    }

    /// The names of these nodes, for a message.
    fn names(&self, nodes: impl Iterator<Item = usize>) -> String {
        nodes.map(|node| self.nodes[node].node.name()).collect::<Vec<_>>().join(", ")
    }
}

#[async_trait]
impl Backend for Quorum {
    fn info(&self) -> &BackendInfo {
        &self.info
    }

    fn failure_domain(&self, _: &Resource) -> FailureDomain {
        FailureDomain::default()
    }

    async fn acquire(&self, claims: &[Claim]) -> Vec<Result<Verdict>> {
        one_by_one(claims, |claim| self.state.acquire(claim, &self.info.limits)).await
    }

    async fn renew(&self, requests: &[RenewRequest]) -> Vec<Result<Renewal>> {
        self.state.renew(requests, &self.info.limits).await
    }

    async fn release(&self, requests: &[ReleaseRequest]) -> Vec<Result<Released>> {
        one_by_one(requests, |request| self.state.release(request)).await
    }

    /// Listens to one node. A release reaches all nodes, and a wake-up that is lost costs one poll.
    async fn wait(&self, claim: &ClaimRef, _: &Cursor, at_most: Duration) -> Result<()> {
        let environment = &self.state.environment;
        let at_most = at_most.min(jitter(POLL_EVERY_MAX, environment.random()));
        let now = environment.now();
        // One node is enough: wake-ups are hints, and listening to all would cost a connection each.
        let handle = self.state.nodes.iter().find(|handle| !handle.is_backing_off(now));
        let wakeup = async {
            match handle {
                Some(handle) if handle.node.listen(&claim.resource, at_most).await.is_ok() => {}
                _ => std::future::pending().await,
            }
        };
        first(wakeup, environment.sleep(at_most)).await;
        Ok(())
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        self.state.inspect(query, &self.info.limits).await
    }

    async fn order(&self, command: &OperatorCommand) -> Result<CommandOutcome> {
        if let OperatorAction::EvictForeign { value } = command.action {
            let message = format!(
                "a quorum cannot remove the lock of another program, because its nodes keep no audit trail together: remove \
                 it on each node by itself, with `leasehold --store redis://HOST evict {} --foreign --value-hash {value} …`",
                command.resource
            );
            return Err(unsupported(&message));
        }
        let message = "operator commands do not work on a quorum: each must be one atomic step, and independent nodes \
                       cannot take one together";
        Err(unsupported(message))
    }
}

impl fmt::Debug for Quorum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes: Vec<_> = self.state.nodes.iter().map(|handle| handle.node.name()).collect();
        let status = self.state.status().clone();
        f.debug_struct("Quorum").field("nodes", &nodes).field("status", &status).finish_non_exhaustive()
    }
}
