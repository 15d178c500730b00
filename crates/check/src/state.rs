//! One moment of the world: claims, nodes, and what is on the wire between them.
//!
//! What can make no difference any more is wiped, so that moments which differ only in their past are one.

use std::sync::Arc;

use leasehold_core::{FencingToken, quorum_node::BirthMark};

use crate::{
    node::{CheckedNode, Heard},
    setup::{CLAIMS_MAX, ROUNDS_MAX},
};

/// A moment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub(crate) now: u8,
    pub(crate) losses: u8,
    pub(crate) claims: [Attempt; CLAIMS_MAX],
    pub(crate) columns: Vec<NodeColumn>,
    /// A bit for each token that was granted.
    pub(crate) granted: u64,
    pub(crate) seen: Seen,
}

/// What has happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Seen {
    /// Two grants have the same token.
    pub(crate) twice: bool,
    /// A grant that began after another had been given has a token that is not above.
    pub(crate) inverted: bool,
    /// A node that had forgotten votes again.
    pub(crate) readmitted: bool,
    /// A claim was granted with a number that it had to claim.
    pub(crate) claimed: bool,
}

/// How far a claim is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    #[default]
    Unborn,
    Asking,
    Held,
    Over,
}

/// A claim, as its client sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Attempt {
    pub(crate) phase: Phase,
    /// When its first request left.
    pub(crate) began: u8,
    /// The greatest token that had been granted then: known to the checker alone.
    pub(crate) above: u8,
    pub(crate) round: u8,
    /// When the last round left.
    pub(crate) sent: u8,
    /// Until when the claim takes its lease for valid.
    pub(crate) until: u8,
    pub(crate) renewals: u8,
    pub(crate) token: u8,
}

/// A node, and everything on the wire to and from it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct NodeColumn {
    pub(crate) node: CheckedNode,
    /// It has lost something that it had, and is not back.
    pub(crate) forgetful: bool,
    pub(crate) links: [Link; CLAIMS_MAX],
    /// What two caretakers have decided to write on it.
    pub(crate) care: [Option<Arc<Care>>; 2],
}

/// What a caretaker writes on a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Care {
    /// First its register is raised to this.
    pub(crate) floor: Option<FencingToken>,
    pub(crate) marks: Marks,
}

/// The mark, from and to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Marks {
    pub(crate) expected: Option<BirthMark>,
    pub(crate) new: BirthMark,
}

impl PartialOrd for Marks {
    fn partial_cmp(&self, other: &Marks) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Marks {
    /// Any order will do, as long as equal ones are equal.
    fn cmp(&self, other: &Marks) -> std::cmp::Ordering {
        if self == other { std::cmp::Ordering::Equal } else { format!("{self:?}").cmp(&format!("{other:?}")) }
    }
}

/// Between one claim and one node. Zero is nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Link {
    /// Requests on the wire, by round: what is proposed.
    pub(crate) asks: [u8; ROUNDS_MAX],
    /// An answer on the wire to the last request.
    pub(crate) answer: Heard,
    /// The answer to the last request that has arrived.
    pub(crate) heard: Heard,
    pub(crate) undo: bool,
    /// A node that does not have the lock is to join the others that do.
    pub(crate) join: u8,
    pub(crate) renewal: Renewal,
}

/// How far a renewal is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Renewal {
    #[default]
    None,
    Sent,
    /// The answer is on the wire: whether it was kept, and what remains.
    Executed(Option<(u8, u8)>),
    Heard(Option<(u8, u8)>),
}

impl State {
    pub(crate) fn new(nodes: usize) -> State {
        let column = NodeColumn {
            node: CheckedNode::new(nodes),
            forgetful: false,
            links: [Link::default(); CLAIMS_MAX],
            care: [None, None],
        };
        State {
            now: 0,
            losses: 0,
            claims: [Attempt::default(); CLAIMS_MAX],
            columns: vec![column; nodes],
            granted: 0,
            seen: Seen::default(),
        }
    }

    /// How many claims take their lease for valid at this moment.
    pub(crate) fn vouching(&self) -> usize {
        self.claims.iter().filter(|claim| claim.phase == Phase::Held).count()
    }

    pub(crate) fn forgetful(&self) -> usize {
        self.columns.iter().filter(|column| column.forgetful).count()
    }

    /// The greatest token that was granted.
    pub(crate) fn greatest(&self) -> u8 {
        u8::try_from(self.granted.checked_ilog2().unwrap_or(0)).expect("of 64 bits")
    }
}
