//! The trait that every backend implements, and its contract.

use std::{borrow::Cow, fmt, time::Duration};

use crate::{
    claim::{Claim, ClaimRef, Cursor, OperatorCommand, Query, ReleaseRequest, RenewRequest},
    error::Result,
    resource::Resource,
    verdict::{CommandOutcome, Page, Released, Renewal, Verdict},
};

/// Where state lives.
///
/// Few verbs, no default methods. A lock, a semaphore, an election are the same verbs with other data; the engine
/// in the crate `leasehold` is the only caller. One suite (`leasehold-testkit`) tests every line of this contract
/// on every backend, against the [model](crate::Model).
///
/// # The contract
///
/// - **B1 Atomic.** Each verb happens in one step or not at all. (On ZooKeeper no observer sees a grant that was
///   not given, and debris ends with the session.)
/// - **B2 Idempotent on the owner token.** Asking again returns the same grant, with what *remains* of it;
///   releasing twice says [`AlreadyGone`](Released::AlreadyGone).
/// - **B3 Waiting is a hint.** `acquire` never waits. `wait` returns at once if it cannot prove that nothing
///   happened since the cursor, and always by `at_most`. A place lives only as long as it is kept: a dead waiter
///   costs seconds.
/// - **B4 Durations travel.** Expiry is judged by the backend's clock alone. Every yes says how much remained when
///   it was executed.
/// - **B5 Tokens grow.** Tokens of exclusive grants strictly grow per resource: across release, expiry, restart
///   and an empty line. [`BackendInfo::tokens_break_when`] states what can break this.
/// - **B6 One capacity.** The first claim fixes the capacity while anyone is there.
/// - **B7 Effects are named.** Every error says its effect: `None` or `Unknown`. Dropping a verb's future is
///   `Unknown`, nothing worse.
/// - **B8 Buried.** After a farewell with `tombstone`, a request of that owner which the server executes late comes to
///   nothing. A buried successor still releases its predecessor.
/// - **B9 Bounded.** Line, note, page and batch have [stated limits](Limits); every verb but `inspect` and `order`
///   is O(log n) or better. (On ZooKeeper listing is O(n).)
/// - **B10 No revival.** `renew` never revives what expired, and never shortens.
///
/// Who is granted when is [the rule of seating](crate::seat); succession, pause, eviction and resizing are
/// spelled out, step by step, in [`Model`](crate::Model).
#[async_trait::async_trait]
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// Its name, its promise, what it can do, and its bounds.
    fn info(&self) -> &BackendInfo;

    /// What fails together with this resource: a node, a shard, a slot. Renewals are batched by lane.
    fn failure_domain(&self, resource: &Resource) -> FailureDomain;

    /// Asks for a grant. Never waits; may take or keep a place in the line.
    async fn acquire(&self, claim: &Claim) -> Result<Verdict>;

    /// Goes on holding, or keeps a place. One answer each, in order; at most [`Limits::batch`] of one lane.
    async fn renew(&self, held: &[RenewRequest]) -> Vec<Result<Renewal>>;

    /// Ends a claim: gives up its seat, or leaves the line.
    async fn release(&self, request: &ReleaseRequest) -> Result<Released>;

    /// Returns when it is worth asking again: the claim can move, or its place is gone; for a claim that has no
    /// place, when anything changed since the cursor; in any case after `at_most`.
    async fn wait(&self, claim: &ClaimRef, since: &Cursor, at_most: Duration) -> Result<()>;

    /// Looks, and changes nothing.
    async fn inspect(&self, query: &Query) -> Result<Page>;

    /// The operator's verb. Recorded in the audit trail in the same step.
    async fn order(&self, order: &OperatorCommand) -> Result<CommandOutcome>;
}

// The trait must stay dyn-compatible: the backend is chosen by URL, at run time.
const _: fn(&dyn Backend) = |_| {};

/// Leases of one lane fail together; the engine renews each lane on its own, so that a dead one delays no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct FailureDomain(pub u32);

/// What a backend is and promises.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BackendInfo {
    /// A short name: `sqlite`, `redis`.
    pub name: &'static str,
    /// How far its exclusion can be trusted.
    pub guarantee: Guarantee,
    /// Why it is at that level, in one sentence.
    pub because: Cow<'static, str>,
    /// What can make a token go back, in one sentence.
    pub tokens_break_when: Cow<'static, str>,
    /// What it can do.
    pub capabilities: Capabilities,
    /// Its bounds.
    pub limits: Limits,
}

impl BackendInfo {
    /// Everything that the model can do, at this level.
    pub fn new(name: &'static str, guarantee: Guarantee) -> BackendInfo {
        BackendInfo {
            name,
            guarantee,
            because: Cow::Borrowed(""),
            tokens_break_when: Cow::Borrowed("nothing known"),
            capabilities: Capabilities::default(),
            limits: Limits::default(),
        }
    }
}

/// How far a backend's exclusion can be trusted, weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Guarantee {
    /// One copy, or copies that may forget what was acknowledged: a failover can grant twice.
    BestEffort,
    /// A majority of independent nodes, trusting their clocks.
    Quorum,
    /// A transaction log on one durable node, or synchronous replicas.
    Database,
    /// A consensus protocol.
    Consensus,
}

impl Guarantee {
    /// A stable name, for programs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Guarantee::BestEffort => "best-effort",
            Guarantee::Quorum => "quorum",
            Guarantee::Database => "database",
            Guarantee::Consensus => "consensus",
        }
    }
}

impl fmt::Display for Guarantee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a backend can do. The suite chooses its tests by this; the engine refuses what is false, with a reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Waiting claims have places, granted in order.
    pub queue: bool,
    /// Shares other than 1 of 1.
    pub shares: bool,
    /// A claim may succeed a holder while others wait. (Succeeding a place, or a holder without a line: always.)
    pub handover: bool,
    /// A released resource may stay closed for a while.
    pub keep_for: bool,
    /// Every claim has a ttl of its own. If not, a session keeps what it holds: the engine says farewell at the
    /// deadline of a lost lease.
    pub own_ttl: bool,
    /// Operators' orders, with their audit trail.
    pub orders: bool,
    /// A place that can move holds already, before it asks again: the store itself seats, in the order of the line.
    pub self_granting: bool,
}

impl Default for Capabilities {
    fn default() -> Capabilities {
        Capabilities {
            queue: true,
            shares: true,
            handover: true,
            keep_for: true,
            own_ttl: true,
            orders: true,
            self_granting: false,
        }
    }
}

/// A backend's bounds (B9). Beyond them it answers `Limit`, without effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Places in one line.
    pub queue: u32,
    /// Bytes in a note.
    pub note: usize,
    /// Renewals in one call.
    pub batch: usize,
    /// Entries in one page.
    pub page: u32,
    /// The longest ttl. A claim for longer is made for this long, and renewed as often.
    pub ttl: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { queue: 1_000_000, note: 4096, batch: 1000, page: 1000, ttl: Duration::from_secs(24 * 3600) }
    }
}
