//! Founds a set of servers that are new, at once: the command of an operator (ADR 0058).
//!
//! The steps are in [`leasehold_core::quorum_node::founding`]. This executes them, and looks for locks and registers before
//! a node votes.

use std::{sync::Arc, time::Duration};

use leasehold_core::{
    Environment, Error, ErrorKind, QuorumNode, Result,
    quorum_node::{
        VoterStatus, founding,
        membership::{MembershipPlan, MembershipStep},
    },
};

use super::{Quorum, QuorumState, checks::unavailable};

/// How often the nodes are looked at. Three times is enough, unless clients change the marks meanwhile.
const PLANS_MAX: u32 = 16;

/// A set of nodes that was founded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Founded {
    /// How many nodes vote: all of them.
    pub nodes: usize,
    /// The uptime gate, which is also the longest ttl.
    pub gate: Duration,
    /// Whether there was nothing to do: all nodes voted before.
    pub already: bool,
}

impl Quorum {
    /// Founds a set of new servers, so that they vote at once and not after the uptime gate.
    ///
    /// Call it only if nothing was ever granted on these nodes, or if all clients have been stopped for longer than the
    /// longest ttl: a set that has lost all of its data looks like a new one. Everything else is checked: all nodes must
    /// answer, and a node with a lock or a token, or one that has lost its data while another one votes, is refused. A node
    /// that loses its data later stays behind the gate, as ever.
    ///
    /// `gate` is the uptime gate of the set, as for [`Quorum::connect`].
    ///
    /// # Cancel safety
    /// It can be repeated, and goes on where it stopped.
    ///
    /// # Errors
    /// `Unavailable` if a node does not answer; `Invalid` if the nodes are no set, or if the set was used before.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// use leasehold::{Client, MemoryNode, Quorum, QuorumNode, System};
    /// use std::sync::Arc;
    ///
    /// let environment = Arc::new(System::current());
    /// let node = |number| Arc::new(MemoryNode::new(&format!("node-{number}"), environment.clone()));
    /// let nodes: Vec<Arc<dyn QuorumNode>> = (1..=5).map(|number| node(number) as _).collect();
    ///
    /// let founded = Quorum::found(nodes.clone(), None, environment.clone()).await?;
    /// assert_eq!((founded.nodes, founded.gate), (5, Quorum::GATE));
    ///
    /// let leases = Client::new(Arc::new(Quorum::connect(nodes, None, environment).await?));
    /// leases.lease("report", "42").run(async |lease| println!("token {}", lease.token())).await?;
    /// # Ok(()) }
    /// ```
    pub async fn found(
        nodes: Vec<Arc<dyn QuorumNode>>,
        gate: impl Into<Option<Duration>>,
        environment: Arc<dyn Environment>,
    ) -> Result<Founded> {
        let gate = gate.into();
        let state = QuorumState::new(nodes, gate, environment);
        for round in 0..PLANS_MAX {
            let (healths, failure) = state.read_healths(false).await?;
            let plan = founding::plan(&healths, gate).map_err(|error| because_of(error, failure))?;
            if plan.steps.is_empty() {
                return Ok(Founded { nodes: state.size(), gate: plan.gate, already: round == 0 });
            }
            state.check_unused(&plan).await?;
            for step in &plan.steps {
                state.execute(step, &healths).await?;
            }
        }
        Err(unavailable("the marks of the nodes changed while the set was founded: try again".to_owned()))
    }
}

/// Adds why a node did not answer.
fn because_of(error: Error, failure: Option<Error>) -> Error {
    match failure {
        Some(failure) if error.kind() == ErrorKind::Unavailable => {
            Error::new(error.kind(), format!("{error}: {failure}")).because(failure)
        }
        _ => error,
    }
}

impl QuorumState {
    /// Fails if a node that is about to vote has a lock or a register: then something was granted on it.
    async fn check_unused(&self, plan: &MembershipPlan) -> Result<()> {
        for step in &plan.steps {
            let MembershipStep::Mark { node, new, .. } = step else { continue };
            if new.standing != VoterStatus::Voting {
                continue;
            }
            let node = &self.nodes[*node].node;
            let mut after: Option<String> = None;
            loop {
                let page = self.with_timeout(node.walk("", after.as_deref())).await?;
                if let Some(entry) = page.entries.first() {
                    let message = format!(
                        "node {} has a lease or a token of {}, so the set is not new: it votes by itself when its servers \
                         have been up for the uptime gate of {:?}",
                        node.name(),
                        entry.resource,
                        plan.gate
                    );
                    return Err(Error::new(ErrorKind::Invalid, message));
                }
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
        }
        Ok(())
    }
}

/// Founds the set of servers that a `redlock://` URL names, as [`Quorum::found`]. The program does the same:
/// `leasehold redlock found URL`.
///
/// # Cancel safety
/// As [`Quorum::found`].
///
/// # Errors
/// As [`Quorum::found`]; `Invalid` for another URL; `Unsupported` if this build does not include Redis.
#[cfg_attr(not(feature = "redis"), allow(clippy::unused_async, reason = "the same function in every build"))]
pub async fn found_redlock(url: &str) -> Result<Founded> {
    #[cfg(feature = "redis")]
    {
        let nodes = leasehold_redis::Nodes::parse(url)?;
        let environment: Arc<dyn Environment> = Arc::new(crate::System::current());
        Quorum::found(nodes.open(&environment), nodes.gate(), environment).await
    }
    #[cfg(not(feature = "redis"))]
    {
        let _ = url;
        let message = "this build has no Redis: build leasehold with the feature \"redis\"";
        Err(Error::new(ErrorKind::Unsupported, message))
    }
}
