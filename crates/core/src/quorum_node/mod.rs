//! One node of a quorum: a server that knows nothing of the others.
//!
//! A lease over a quorum is held by whoever holds the lock on a majority of independent nodes, and its fencing token
//! is a number that a majority has accepted for its owner. Everything that decides is pure and here:
//!
//! | module | what it decides |
//! |---|---|
//! | [`rule`] | what one node answers: the specification that a node in memory runs and that Lua scripts repeat |
//! | [`tally`] | what a client makes of the answers so far |
//! | [`membership`] | which nodes may vote, and what makes one that forgot vote again |
//!
//! # Why tokens grow
//!
//! A node accepts a number for an owner only if it is above every number that it accepted before, or if the last one
//! was this owner's too. A grant is complete when a majority has accepted the *same* number. Two majorities share a
//! node, so no number is granted to two owners, and a grant that begins after another one was complete is above it.
//! No clock and no exclusion is used in this: tokens stay right where the lock itself fails. What is used is that a
//! node does not forget; [`membership`] is about those that do.
//!
//! Numbers are taken from clocks all the same (in microseconds), so that a register may end: when it does, the node's
//! clock is so far past it that the node accepts nothing below it any more.

pub mod membership;
pub mod node_model;
pub mod tally;

use std::{fmt, sync::Arc, time::Duration};

use crate::{
    claim::{Holder, RenewRequest},
    clock::WallTime,
    error::Result,
    resource::Resource,
    token::{FencingToken, OwnerToken},
    verdict::{GoneReason, HeldBy},
};

/// How far a proposal may be from a node's clock. A majority of clocks must be right to within this.
pub const SKEW_MAX: Duration = Duration::from_secs(600);
/// How long a node keeps the last number of a resource after its clock has passed it. More than twice
/// [`SKEW_MAX`]: then a register that has ended was of no use any more, even if the clock went back by that much.
pub const RETENTION: Duration = Duration::from_secs(2 * 3600);

/// A server that votes.
///
/// Nodes know nothing of each other: whoever asks puts their answers together. Each verb happens in one step on its
/// node, or not at all; an error says its effect as in the [contract of backends](crate::Backend). What each verb
/// does is [`node_model::NodeModel`].
#[async_trait::async_trait]
pub trait QuorumNode: fmt::Debug + Send + Sync + 'static {
    /// Which one, for people: an address without secrets.
    fn name(&self) -> &str;

    /// Who it is and how it is.
    async fn health(&self) -> Result<Health>;

    /// Replaces the birth mark if it is the `expected` one, and says which one is there then.
    async fn mark(&self, expected: Option<&BirthMark>, new: &BirthMark) -> Result<Option<BirthMark>>;

    /// Asks for the lock, and for the proposed number with it.
    async fn vote(&self, ballot: &VoteRequest) -> Result<Vote>;

    /// Asks for the number alone, on a lock that is held.
    async fn claim(&self, ballot: &VoteRequest) -> Result<Vote>;

    /// Takes the lock, if it is free, as a part of a grant that a majority has given already: the proposal is its token.
    /// No number is accepted.
    async fn join(&self, ballot: &VoteRequest) -> Result<Vote>;

    /// Gives the lock back, or what a late request would take; says whether it was there.
    async fn undo(&self, undo: &UndoRequest) -> Result<bool>;

    /// Goes on holding. One answer each, in order.
    async fn renew(&self, held: &[RenewRequest]) -> Vec<Result<NodeRenewal>>;

    /// Looks at one resource.
    async fn look(&self, resource: &Resource) -> Result<NodeView>;

    /// Walks over what is there, a page at a time; the same entry perhaps twice.
    async fn walk(&self, prefix: &str, after: Option<&str>) -> Result<NodePage>;

    /// Raises registers to at least these numbers, for nobody.
    async fn raise(&self, registers: &[(Resource, FencingToken)]) -> Result<()>;

    /// Returns when something about the resource changed here after this was called, or after `at_most`. A hint.
    async fn listen(&self, resource: &Resource, at_most: Duration) -> Result<()>;
}

// The trait must stay dyn-compatible: a quorum may be of nodes of several kinds.
const _: fn(&dyn QuorumNode) = |_| {};

/// Who a node is and how it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Health {
    /// Of the running server: another one after each start. Two addresses with the same one are one server.
    pub run: String,
    /// Its clock.
    pub now: WallTime,
    /// Since it started.
    pub uptime: Duration,
    /// It provably syncs every write to its disk before it answers: a restart forgets nothing.
    pub durable: bool,
    /// What it remembers of itself.
    pub mark: Option<BirthMark>,
}

/// The birth mark: what a node remembers of itself. One that has lost its data has lost its mark, too.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BirthMark {
    /// Of which set of nodes it is a part.
    pub set: String,
    /// How many nodes that set has.
    pub size: usize,
    /// How long a node that may have forgotten has no vote; no ttl is longer.
    pub gate: Duration,
    /// Which [run](Health::run) of the server it is valid for.
    pub run: String,
    /// That run synced every write.
    pub durable: bool,
    /// Whether it may vote.
    pub standing: VoterStatus,
}

/// Whether a node may vote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VoterStatus {
    /// The set is being used for the first time, and this node has not voted yet.
    Founding,
    /// It may have forgotten something at this time, by its own clock: no vote yet.
    Quarantined {
        /// When.
        since: WallTime,
    },
    /// It votes.
    Voting,
}

/// One call of `acquire`: what a failed one has taken is undone by this, and not what a later one took. Those of one
/// owner grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AttemptId(pub u64);

/// What a node is asked for.
#[derive(Clone, Debug)]
pub struct VoteRequest {
    /// The lock of what.
    pub resource: Resource,
    /// For whom.
    pub owner: OwnerToken,
    /// By which attempt.
    pub attempt: AttemptId,
    /// For how long.
    pub ttl: Duration,
    /// The number that the client would like.
    pub proposal: FencingToken,
    /// Who asks, for people.
    pub holder: Arc<Holder>,
    /// What it wants others to know.
    pub note: Option<Arc<[u8]>>,
}

/// What a node answers to a ballot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vote {
    /// The node's clock.
    pub now: WallTime,
    /// Yes or no.
    pub choice: VoteOutcome,
}

/// Yes or no.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VoteOutcome {
    /// This owner has the lock here, and this node has accepted the number for it.
    Yours {
        /// Accepted.
        number: FencingToken,
        /// Of the lock.
        remaining: Duration,
    },
    /// Someone else has the lock here.
    Held {
        /// Who.
        by: Box<HeldBy>,
        /// By which attempt it came.
        attempt: AttemptId,
    },
    /// Nobody has the lock here: a claim that comes too late.
    Free,
    /// A farewell buried this owner, or this attempt was undone.
    Cancelled,
    /// The proposal is too far from this node's clock.
    Far,
    /// The ttl is longer than the gate.
    TooLong {
        /// The longest.
        gate: Duration,
    },
    /// This node has no vote.
    NoVote,
}

/// Gives back what an owner has on a node.
#[derive(Clone, Debug)]
pub struct UndoRequest {
    /// Of what.
    pub resource: Resource,
    /// Whose.
    pub owner: OwnerToken,
    /// Only what this attempt took; without one, whatever the owner has.
    pub attempt: Option<AttemptId>,
    /// A request that is executed late comes to nothing for this long.
    pub tombstone: Option<Duration>,
}

impl UndoRequest {
    /// What this attempt took.
    pub fn of(ballot: &VoteRequest) -> UndoRequest {
        UndoRequest {
            resource: ballot.resource.clone(),
            owner: ballot.owner,
            attempt: Some(ballot.attempt),
            tombstone: None,
        }
    }
}

/// What a node answers to a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeRenewal {
    /// The lock is there, and goes on.
    Renewed {
        /// Of the grant.
        number: FencingToken,
        /// How much is left.
        remaining: Duration,
    },
    /// It is not there.
    Gone {
        /// Why, as far as the node knows.
        why: GoneReason,
    },
    /// The ttl is longer than the gate.
    TooLong {
        /// The longest.
        gate: Duration,
    },
}

/// One resource, as one node has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeView {
    /// The node's clock.
    pub now: WallTime,
    /// Who has the lock here, and by which attempt.
    pub held: Option<(HeldBy, AttemptId)>,
    /// The last number that it accepted, where it remembers.
    pub last: Option<FencingToken>,
}

/// A page of what is on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodePage {
    /// Resources that are held, or whose register is remembered.
    pub entries: Vec<NodeEntry>,
    /// Where to go on, if there are more.
    pub next: Option<String>,
}

/// A resource that a node knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeEntry {
    /// Which.
    pub resource: Resource,
    /// Someone has the lock.
    pub held: bool,
    /// The last number that it accepted, where this entry says so.
    pub last: Option<FencingToken>,
}
