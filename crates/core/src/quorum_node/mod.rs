//! Leases over a quorum of independent servers (Redlock): what one node does, and how votes are counted.
//!
//! An owner holds the lease if it holds the lock on a majority of the nodes. Its fencing token is a number that a majority
//! has accepted for it. All decisions are pure functions, in these modules:
//!
//! | module | what it decides |
//! |---|---|
//! | [`node_model`] | how one node replies: the specification that a memory node runs and that the Lua scripts repeat |
//! | [`tally`] | what a client concludes from the replies so far |
//! | [`membership`] | which nodes may vote, and when a node that lost data may vote again |
//! | [`founding`] | the first use of a set of nodes |
//! | [`standing`] | why a node has no vote, in words |
//!
//! # Why tokens grow
//!
//! A node accepts a number for an owner only if it is above every number that it accepted before, or if the last one
//! was this owner's too. A grant is complete when a majority has accepted the *same* number. Two majorities share a
//! node, so no number is granted to two owners, and a grant that begins after another one was complete is above it.
//! This does not depend on clocks or on mutual exclusion: tokens stay right even where the lock itself fails. It depends on
//! nodes that do not lose their registers; [`membership`] deals with those that do.
//!
//! Numbers are taken from clocks (in microseconds) all the same, so that a register can expire: when it does, the clock of
//! the node is so far ahead that the node accepts no number below it any more.

pub mod founding;
pub mod membership;
pub mod node_model;
pub mod standing;
pub mod tally;

use std::{fmt, sync::Arc, time::Duration};

use crate::{
    claim::{Holder, RenewRequest, StoredHolder},
    clock::WallTime,
    error::Result,
    resource::Resource,
    token::{FencingToken, OwnerToken},
    verdict::{ForeignLock, GoneReason, HeldBy},
};

/// How far a proposal may be from the clock of a node. A majority of the clocks must be right to within this.
pub const SKEW_MAX: Duration = Duration::from_secs(600);
/// How long a node keeps the last number of a resource after its clock has passed it. More than twice [`SKEW_MAX`], so that
/// an expired register is not needed any more, even if the clock was set back by that much.
pub const RETENTION: Duration = Duration::from_secs(2 * 3600);

/// One server of a quorum.
///
/// Nodes do not know each other: the client combines their replies. Each verb happens in one step on its node, or not at
/// all; an error names its effect, as in the [contract of backends](crate::Backend). [`node_model::NodeModel`] specifies
/// what each verb does.
#[async_trait::async_trait]
pub trait QuorumNode: fmt::Debug + Send + Sync + 'static {
    /// The name of the node, for people to read: an address without secrets.
    fn name(&self) -> &str;

    /// The identity and the state of the node.
    async fn health(&self) -> Result<Health>;

    /// Replaces the birth mark if it is the `expected` one. Returns the mark that the node has afterwards.
    async fn mark(&self, expected: Option<&BirthMark>, new: &BirthMark) -> Result<Option<BirthMark>>;

    /// Asks for the lock, and proposes a number for the token.
    async fn vote(&self, request: &VoteRequest) -> Result<Vote>;

    /// Asks for another number, for a lock that this owner has.
    async fn claim(&self, request: &VoteRequest) -> Result<Vote>;

    /// Takes the lock, if it is free, as a part of a grant that a majority has given already. The proposal is the token of
    /// that grant; the node does not write its register.
    async fn join(&self, request: &VoteRequest) -> Result<Vote>;

    /// Releases the lock, and refuses delayed requests for it. Returns whether this owner had the lock.
    async fn undo(&self, request: &UndoRequest) -> Result<bool>;

    /// Renews locks. One result for each request, in order.
    async fn renew(&self, requests: &[RenewRequest]) -> Vec<Result<NodeRenewal>>;

    /// Reads one resource.
    async fn look(&self, resource: &Resource) -> Result<NodeView>;

    /// Lists resources, a page at a time. An entry may appear twice.
    async fn walk(&self, prefix: &str, after: Option<&str>) -> Result<NodePage>;

    /// Raises registers to at least these numbers, without an owner.
    async fn raise(&self, registers: &[(Resource, FencingToken)]) -> Result<()>;

    /// Returns when the resource changes on this node, or after `at_most`. A hint, as [`Backend::wait`](crate::Backend::wait).
    async fn listen(&self, resource: &Resource, at_most: Duration) -> Result<()>;
}

// The trait must stay dyn-compatible: a quorum may be of nodes of several kinds.
const _: fn(&dyn QuorumNode) = |_| {};

/// The identity and the state of a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Health {
    /// The id of the running server. It changes with each start. Two addresses with the same id are one server.
    pub run: String,
    /// The clock of the node.
    pub now: WallTime,
    /// The time since it started.
    pub uptime: Duration,
    /// It provably writes everything to its disk before it replies, so a restart loses nothing.
    pub durable: bool,
    /// Its birth mark, if it has one.
    pub mark: Option<BirthMark>,
}

/// The birth mark of a node: a record that the node keeps beside its data. A node that has lost its data has lost the mark
/// too. ADR 0016.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BirthMark {
    /// The name of the set of nodes that it belongs to.
    pub set: String,
    /// The number of nodes of that set.
    pub size: usize,
    /// How long a node that may have lost data must not vote. No ttl is longer than this.
    pub gate: Duration,
    /// The [run](Health::run) of the server that the mark is valid for.
    pub run: String,
    /// Whether that run wrote everything to its disk.
    pub durable: bool,
    /// Whether the node may vote.
    pub standing: VoterStatus,
}

/// Whether a node may vote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VoterStatus {
    /// The set is used for the first time, and this node has not voted yet.
    Founding,
    /// It may have lost data at this time, by its own clock. It must not vote yet.
    Quarantined {
        /// The time of the loss.
        since: WallTime,
    },
    /// It may vote.
    Voting,
}

/// The id of one call of `acquire`. A failed attempt is undone by its id, so that a later attempt of the same owner is not
/// touched. The ids of one owner grow. ADR 0017.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AttemptId(pub u64);

/// A request for the lock of a resource on one node.
#[derive(Clone, Debug)]
pub struct VoteRequest {
    /// The resource.
    pub resource: Resource,
    /// The owner token of the claim.
    pub owner: OwnerToken,
    /// The attempt that asks.
    pub attempt: AttemptId,
    /// How long the lock lasts unless it is renewed.
    pub ttl: Duration,
    /// The number that the client proposes for the token.
    pub proposal: FencingToken,
    /// The process that asks, for people to read.
    pub holder: Arc<Holder>,
    /// A note for others to read.
    pub note: Option<Arc<[u8]>>,
}

impl VoteRequest {
    /// What a node stores about the process that asks.
    pub fn stored_holder(&self) -> StoredHolder {
        StoredHolder { holder: Arc::clone(&self.holder), ttl: Some(self.ttl) }
    }
}

/// The reply of a node to a vote request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vote {
    /// The clock of the node.
    pub now: WallTime,
    /// What the node decided.
    pub choice: VoteOutcome,
}

/// What a node decided about a vote request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VoteOutcome {
    /// This owner has the lock here, and the node has accepted the number for it.
    Yours {
        /// The accepted number.
        number: FencingToken,
        /// The time until the lock expires.
        remaining: Duration,
    },
    /// Another owner has the lock here.
    Held {
        /// That holder.
        by: Box<HeldBy>,
        /// The attempt that took the lock.
        attempt: AttemptId,
    },
    /// A lock of another program is in the place of the lock.
    Foreign(Box<ForeignLock>),
    /// No owner has the lock here, so there is no number to change: the lock has expired.
    Free,
    /// The owner or this attempt has a tombstone.
    Cancelled,
    /// The proposal is too far from the clock of this node.
    Far,
    /// The ttl is longer than the gate.
    TooLong {
        /// The longest ttl that is allowed.
        gate: Duration,
    },
    /// This node may not vote.
    NoVote,
}

/// A request to release what an owner has on a node.
#[derive(Clone, Debug)]
pub struct UndoRequest {
    /// The resource.
    pub resource: Resource,
    /// The owner token of the claim.
    pub owner: OwnerToken,
    /// Release only what this attempt took. Without one: everything of the owner.
    pub attempt: Option<AttemptId>,
    /// Leave a tombstone for this long: delayed requests are refused.
    pub tombstone: Option<Duration>,
}

impl UndoRequest {
    /// Undoes what this attempt took.
    pub fn of(request: &VoteRequest) -> UndoRequest {
        UndoRequest {
            resource: request.resource.clone(),
            owner: request.owner,
            attempt: Some(request.attempt),
            tombstone: None,
        }
    }
}

/// The reply of a node to a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeRenewal {
    /// The lock was renewed.
    Renewed {
        /// The number of the grant.
        number: FencingToken,
        /// The time until the lock expires.
        remaining: Duration,
    },
    /// This owner does not have the lock.
    Gone {
        /// The reason, as far as the node knows.
        why: GoneReason,
    },
    /// The ttl is longer than the gate.
    TooLong {
        /// The longest ttl that is allowed.
        gate: Duration,
    },
}

/// One resource as one node has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeView {
    /// The clock of the node.
    pub now: WallTime,
    /// The holder of the lock here, and the attempt that took it.
    pub held: Option<(HeldBy, AttemptId)>,
    /// The lock of another program in the place of the lock.
    pub foreign: Option<ForeignLock>,
    /// The last number that the node accepted, if it remembers one.
    pub last: Option<FencingToken>,
}

/// A page of the resources on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodePage {
    /// Resources that are locked, or have a register.
    pub entries: Vec<NodeEntry>,
    /// Where the next page begins, if there is one.
    pub next: Option<String>,
}

/// A resource in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeEntry {
    /// The resource.
    pub resource: Resource,
    /// Whether it is locked, also by another program.
    pub held: bool,
    /// The last number that the node accepted, if this entry comes from a register that can be read.
    pub last: Option<FencingToken>,
}
