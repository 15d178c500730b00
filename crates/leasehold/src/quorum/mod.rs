//! Leases over a majority of independent servers: Redlock, with fencing tokens that grow.
//!
//! | module | what it does |
//! |---|---|
//! | [`acquire`] | asks all nodes at once, and undoes what came of it if that was no majority |
//! | [`keep`] | renews, releases, and gives a holder back to nodes that have lost it |
//! | [`tend`] | founds the set, keeps nodes that forgot from voting, and makes them vote again |
//! | [`look`] | what a majority sees |
//! | [`refuse`] | what is refused before anything is sent |
//! | [`memory`] | a node in memory, with faults |
//!
//! What is decided is pure, in [`leasehold_core::quorum_node`].

mod acquire;
mod fan;
mod keep;
mod look;
mod memory;
mod refuse;
mod slot;
mod tend;

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use leasehold_core::{
    Backend, BackendInfo, Claim, ClaimRef, CommandOutcome, Cursor, Environment, Error, ErrorKind,
    FailureDomain, Guarantee, OperatorCommand, OwnerToken, Page, Query, QuorumNode, ReleaseRequest, Released,
    RenewRequest, Renewal, Resource, Result, Verdict, async_trait,
    backoff::jitter,
    quorum_node::{AttemptId, RETENTION, SKEW_MAX, membership, tally::majority},
};
use leasehold_support::race::first;
use tokio::sync::Notify;

use self::{fan::Fan, keep::Grants, slot::Slot};

pub use memory::MemoryNode;

/// A backend over a majority of independent nodes.
///
/// Exclusive leases of 1 of 1. Each node is a server that knows nothing of the others; whoever holds a majority of
/// them holds the lease. There is no line: waiting is asking again.
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
/// let lease = leases.lease("report", "42").acquire().await?;
/// lease.release().await?;
/// # Ok(()) }
/// ```
pub struct Quorum {
    info: BackendInfo,
    shared: Arc<Shared>,
}

/// What tasks beside the caller share with the backend.
struct Shared {
    slots: Vec<Slot>,
    environment: Arc<dyn Environment>,
    grants: Grants,
    condition: Mutex<Condition>,
    /// Rung when a node may need tending.
    tending: Arc<Notify>,
    /// For a set that is used for the first time.
    gate: Duration,
    attempts: AtomicU32,
}

/// How the set was when it was last looked at.
#[derive(Clone, Debug, Default)]
struct Condition {
    gate: Duration,
    stopped: Option<String>,
}

/// Nobody waits longer than this without asking again.
const POLL: Duration = Duration::from_secs(2);
/// However short the ttl, a node is given this long to answer.
const ANSWER_MIN: Duration = Duration::from_millis(25);

impl Quorum {
    /// How long a node that may have forgotten has no vote, unless told otherwise; no ttl is longer.
    pub const GATE: Duration = membership::GATE;
    /// The backend's name in errors and metrics.
    pub const NAME: &'static str = "redlock";

    /// Looks at the nodes, and founds the set if it has never been used: that needs all of them. `gate` is for that
    /// first use; later on the one that the nodes remember counts.
    ///
    /// # Cancel safety
    /// Dropped part-way, whoever connects next goes on with it.
    ///
    /// # Errors
    /// `Invalid` if there are fewer than three nodes, one of them is there twice or is a replica, or they are of
    /// different sets; `Unavailable` if a majority does not answer; what a node says of a password.
    pub async fn connect(
        nodes: Vec<Arc<dyn QuorumNode>>,
        gate: Duration,
        environment: Arc<dyn Environment>,
    ) -> Result<Quorum> {
        let size = nodes.len();
        let shared = Arc::new(Shared {
            slots: nodes.into_iter().map(Slot::new).collect(),
            environment: Arc::clone(&environment),
            grants: Grants::default(),
            condition: Mutex::new(Condition { gate, stopped: None }),
            tending: Arc::new(Notify::new()),
            gate,
            attempts: AtomicU32::new(0),
        });
        let again_in = shared.tend(true).await?;
        let (task, tending) = (Arc::downgrade(&shared), Arc::clone(&shared.tending));
        environment.spawn(Box::pin(tend::watch(task, tending, Arc::clone(&environment), again_in)));
        Ok(Quorum { info: info(size), shared })
    }

    /// The longest ttl.
    pub fn gate(&self) -> Duration {
        self.shared.condition().gate
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
    info
}

impl Shared {
    fn condition(&self) -> MutexGuard<'_, Condition> {
        self.condition.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn size(&self) -> usize {
        self.slots.len()
    }

    /// Those of one owner grow, and those of two have no order that favours anyone.
    fn next_attempt(&self, owner: OwnerToken) -> AttemptId {
        let [a, b, c, d, ..] = owner.to_bytes();
        let number = self.attempts.fetch_add(1, Ordering::Relaxed);
        AttemptId((u64::from(u32::from_be_bytes([a, b, c, d])) << 32) | u64::from(number))
    }

    /// How long a node may take to answer a request with this ttl.
    fn patience(ttl: Duration) -> Duration {
        (ttl / 10).max(ANSWER_MIN)
    }

    /// Notes whether a node answered. One that is back may have been restarted: it is looked at.
    fn heard<T>(&self, node: usize, answer: &Result<T>) {
        match answer {
            Ok(_) => {
                if self.slots[node].answered() {
                    self.tending.notify_one();
                }
            }
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                self.slots[node].failed(&*self.environment);
            }
            Err(_) => {}
        }
    }

    /// Lets what is still under way come to its end beside the caller: a connection that is being made is not given up,
    /// and a request that is under way is not cut.
    fn finish<T: Send + 'static>(self: &Arc<Shared>, mut fan: Fan<Result<T>>) {
        if fan.is_empty() {
            return;
        }
        let shared = Arc::clone(self);
        self.environment.spawn(Box::pin(async move {
            while let Some((node, answer)) = fan.next().await {
                shared.heard(node, &answer);
            }
        }));
    }

    fn names(&self, nodes: impl Iterator<Item = usize>) -> String {
        nodes.map(|node| self.slots[node].node.name()).collect::<Vec<_>>().join(", ")
    }
}

fn unsupported(what: &str) -> Error {
    Error::new(ErrorKind::Unsupported, what.to_owned())
}

#[async_trait]
impl Backend for Quorum {
    fn info(&self) -> &BackendInfo {
        &self.info
    }

    fn failure_domain(&self, _: &Resource) -> FailureDomain {
        FailureDomain::default()
    }

    async fn acquire(&self, claim: &Claim) -> Result<Verdict> {
        self.shared.acquire(claim, &self.info.limits).await
    }

    async fn renew(&self, held: &[RenewRequest]) -> Vec<Result<Renewal>> {
        self.shared.renew(held, &self.info.limits).await
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<Released> {
        self.shared.release(request).await
    }

    /// Listens to one node. A release reaches all of them, and nobody waits longer than the poll.
    async fn wait(&self, claim: &ClaimRef, _: &Cursor, at_most: Duration) -> Result<()> {
        let environment = &self.shared.environment;
        let at_most = at_most.min(jitter(POLL, environment.random()));
        let now = environment.now();
        let slot = self.shared.slots.iter().find(|slot| !slot.is_quiet(now));
        let heard = async {
            match slot {
                Some(slot) if slot.node.listen(&claim.resource, at_most).await.is_ok() => {}
                _ => std::future::pending().await,
            }
        };
        first(heard, environment.sleep(at_most)).await;
        Ok(())
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        self.shared.inspect(query, &self.info.limits).await
    }

    async fn order(&self, _: &OperatorCommand) -> Result<CommandOutcome> {
        let message = "orders are not for a quorum: each must happen in one step, and nodes that know nothing of each \
                       other have none in common";
        Err(unsupported(message))
    }
}

impl fmt::Debug for Quorum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes: Vec<_> = self.shared.slots.iter().map(|slot| slot.node.name()).collect();
        let condition = self.shared.condition().clone();
        f.debug_struct("Quorum").field("nodes", &nodes).field("condition", &condition).finish_non_exhaustive()
    }
}
