//! One host's way to one node.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use leasehold::{FencingToken, MemoryNode, RenewRequest, Resource, Result};
use leasehold_core::{
    QuorumNode,
    quorum_node::{BirthMark, Health, NodePage, NodeRenewal, NodeView, UndoRequest, Vote, VoteRequest},
};

use crate::{network::Network, world::NodeId};

/// Requests and replies that are late, lost, repeated, cut off.
pub(crate) struct SimulatedNode {
    network: Arc<Network>,
    from: (NodeId, u64),
    to: (NodeId, Arc<MemoryNode>),
}

impl SimulatedNode {
    /// `key` names this way, for partitions.
    pub(crate) fn new(
        network: &Arc<Network>,
        from: NodeId,
        key: u64,
        to: (NodeId, &Arc<MemoryNode>),
    ) -> SimulatedNode {
        SimulatedNode { network: Arc::clone(network), from: (from, key), to: (to.0, Arc::clone(to.1)) }
    }

    async fn send<T, F, W>(&self, idle: bool, execute: F) -> Result<T>
    where
        T: Send + 'static,
        F: Fn(Arc<MemoryNode>) -> W + Send + 'static,
        W: Future<Output = T> + Send + 'static,
    {
        self.network.exchange(self.from, (self.to.0, &self.to.1), idle, execute).await
    }
}

impl fmt::Debug for SimulatedNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimulatedNode from {:?} to {:?}", self.from, self.to.0)
    }
}

/// Sends a verb with what it takes.
macro_rules! send {
    ($self:ident, $idle:literal, $verb:ident($($what:ident),*)) => {{
        let asked = Arc::new(($($what,)*));
        $self.send($idle, move |node: Arc<MemoryNode>| {
            let asked = Arc::clone(&asked);
            async move {
                let ($($what,)*) = &*asked;
                node.$verb($($what),*).await
            }
        })
    }};
}

#[async_trait]
impl QuorumNode for SimulatedNode {
    fn name(&self) -> &str {
        self.to.1.name()
    }

    async fn health(&self) -> Result<Health> {
        self.send(false, |node| async move { node.health().await }).await?
    }

    async fn mark(&self, expected: Option<&BirthMark>, new: &BirthMark) -> Result<Option<BirthMark>> {
        let (expected, new) = (expected.cloned(), new.clone());
        let asked = Arc::new((expected, new));
        let execute = move |node: Arc<MemoryNode>| {
            let asked = Arc::clone(&asked);
            async move { node.mark(asked.0.as_ref(), &asked.1).await }
        };
        self.send(false, execute).await?
    }

    async fn vote(&self, ballot: &VoteRequest) -> Result<Vote> {
        let ballot = ballot.clone();
        let label = ballot.holder.label.clone();
        let answer = send!(self, false, vote(ballot)).await?;
        self.network.trace(|| format!("{label} hears of {}: {answer:?}", self.name()));
        answer
    }

    async fn claim(&self, ballot: &VoteRequest) -> Result<Vote> {
        let ballot = ballot.clone();
        send!(self, false, claim(ballot)).await?
    }

    async fn join(&self, ballot: &VoteRequest) -> Result<Vote> {
        let ballot = ballot.clone();
        send!(self, false, join(ballot)).await?
    }

    async fn undo(&self, undo: &UndoRequest) -> Result<bool> {
        let undo = undo.clone();
        let owner = undo.owner;
        self.network.trace(|| format!("{owner:?} undoes on {}", self.name()));
        let answer = send!(self, false, undo(undo)).await?;
        self.network.trace(|| format!("{owner:?} hears of {}: undone, {answer:?}", self.name()));
        answer
    }

    async fn renew(&self, held: &[RenewRequest]) -> Vec<Result<NodeRenewal>> {
        let asked = held.to_vec();
        match send!(self, false, renew(asked)).await {
            Ok(answers) => answers,
            Err(error) => held.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    async fn look(&self, resource: &Resource) -> Result<NodeView> {
        let resource = resource.clone();
        send!(self, false, look(resource)).await?
    }

    async fn walk(&self, prefix: &str, _: Option<&str>) -> Result<NodePage> {
        let prefix = prefix.to_owned();
        let execute = move |node: Arc<MemoryNode>| {
            let prefix = prefix.clone();
            async move { node.walk(&prefix, None).await }
        };
        self.send(false, execute).await?
    }

    async fn raise(&self, registers: &[(Resource, FencingToken)]) -> Result<()> {
        let registers = registers.to_vec();
        send!(self, false, raise(registers)).await?
    }

    async fn listen(&self, resource: &Resource, at_most: Duration) -> Result<()> {
        let resource = resource.clone();
        let execute = move |node: Arc<MemoryNode>| {
            let resource = resource.clone();
            async move { node.listen(&resource, at_most).await }
        };
        self.send(true, execute).await?
    }
}
