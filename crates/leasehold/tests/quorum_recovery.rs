//! Recovery of a node that forgot its registers: what can go wrong while they are copied from the other nodes.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test is a program of its own")]

mod common;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use common::seconds;
use leasehold::{
    Backend, Client, Environment, Error, ErrorKind, FencingToken, MemoryNode, Quorum, RenewRequest, Resource,
    Result, async_trait, testing::ManualTime,
};
use leasehold_core::{
    QuorumNode,
    quorum_node::{BirthMark, Health, NodePage, NodeRenewal, NodeView, UndoRequest, Vote, VoteRequest},
};

const GATE: Duration = seconds(5);

/// One client's connection to a node. It can be cut, and the node can restart just before its registers are read.
#[derive(Debug)]
struct NodeConnection {
    node: Arc<MemoryNode>,
    cut: AtomicBool,
    restarts_when_read: AtomicBool,
}

impl NodeConnection {
    fn check_connected(&self) -> Result<()> {
        let cut = || Err(Error::new(ErrorKind::Unavailable, "the connection was refused"));
        if self.cut.load(SeqCst) { cut() } else { Ok(()) }
    }
}

#[async_trait]
impl QuorumNode for NodeConnection {
    fn name(&self) -> &str {
        self.node.name()
    }
    async fn health(&self) -> Result<Health> {
        self.check_connected()?;
        self.node.health().await
    }
    async fn mark(&self, expected: Option<&BirthMark>, new: &BirthMark) -> Result<Option<BirthMark>> {
        self.check_connected()?;
        self.node.mark(expected, new).await
    }
    async fn vote(&self, request: &VoteRequest) -> Result<Vote> {
        self.check_connected()?;
        self.node.vote(request).await
    }
    async fn claim(&self, request: &VoteRequest) -> Result<Vote> {
        self.check_connected()?;
        self.node.claim(request).await
    }
    async fn join(&self, request: &VoteRequest) -> Result<Vote> {
        self.check_connected()?;
        self.node.join(request).await
    }
    async fn undo(&self, undo: &UndoRequest) -> Result<bool> {
        self.check_connected()?;
        self.node.undo(undo).await
    }
    async fn renew(&self, requests: &[RenewRequest]) -> Vec<Result<NodeRenewal>> {
        match self.check_connected() {
            Ok(()) => self.node.renew(requests).await,
            Err(error) => requests.iter().map(|_| Err(error.clone())).collect(),
        }
    }
    async fn look(&self, resource: &Resource) -> Result<NodeView> {
        self.check_connected()?;
        self.node.look(resource).await
    }
    async fn walk(&self, prefix: &str, after: Option<&str>) -> Result<NodePage> {
        self.check_connected()?;
        if self.restarts_when_read.swap(false, SeqCst) {
            self.node.restart();
        }
        self.node.walk(prefix, after).await
    }
    async fn raise(&self, registers: &[(Resource, FencingToken)]) -> Result<()> {
        self.check_connected()?;
        self.node.raise(registers).await
    }
    async fn listen(&self, resource: &Resource, at_most: Duration) -> Result<()> {
        self.check_connected()?;
        self.node.listen(resource, at_most).await
    }
}

async fn client(nodes: &[Arc<MemoryNode>], time: &ManualTime) -> (Client, Vec<Arc<NodeConnection>>) {
    let connection = |node: &Arc<MemoryNode>| NodeConnection {
        node: Arc::clone(node),
        cut: AtomicBool::new(false),
        restarts_when_read: AtomicBool::new(false),
    };
    let connections: Vec<Arc<NodeConnection>> = nodes.iter().map(|node| Arc::new(connection(node))).collect();
    let environment: Arc<dyn Environment> = Arc::new(time.clone());
    let nodes = connections.iter().map(|connection| Arc::clone(connection) as _).collect();
    let quorum = Quorum::connect(nodes, GATE, Arc::clone(&environment)).await.expect("all nodes answer");
    let quorum: Arc<dyn Backend> = Arc::new(quorum);
    (Client::builder(quorum).environment(environment).build(), connections)
}

/// Two of five nodes forget, one of them while its registers are read for the other. That is a minority, so tokens must
/// still grow. The third node that knows the last token cannot be reached meanwhile.
#[tokio::test]
async fn registers_of_a_node_that_forgets_while_they_are_read_are_not_used() {
    let time = ManualTime::new();
    let environment: Arc<dyn Environment> = Arc::new(time.clone());
    let node = |number| Arc::new(MemoryNode::new(&format!("node-{number}"), Arc::clone(&environment)));
    let nodes: Vec<Arc<MemoryNode>> = (1..=5).map(node).collect();
    time.advance(seconds(60)).await;
    // The calendar clock of the first client is five minutes ahead, which is allowed. So its token is ahead, too.
    let ahead = ManualTime::new();
    ahead.jump(seconds(60));
    ahead.step_wall(seconds(300));
    let (a, to_a) = client(&nodes, &ahead).await;
    let (b, to_b) = client(&nodes, &time).await;

    to_a[3].cut.store(true, SeqCst);
    to_a[4].cut.store(true, SeqCst);
    let first = a.lease("report", "42").ttl(seconds(3)).acquire().await.unwrap();
    let token = first.token();
    first.release().await.unwrap();

    nodes[0].restart();
    to_b[2].cut.store(true, SeqCst);
    to_b[1].restarts_when_read.store(true, SeqCst);
    for _ in 0..10 {
        // A client that uses the set also updates its membership.
        let using = tokio::spawn(b.lease("report", "another").ttl(seconds(3)).try_acquire());
        time.advance(seconds(1)).await;
        using.abort();
    }
    assert!(!to_b[1].restarts_when_read.load(SeqCst), "its registers were read for the first node");
    let asking = tokio::spawn(b.lease("report", "42").ttl(seconds(3)).try_acquire());
    time.advance(seconds(5)).await;
    if let Ok(Some(second)) = asking.await.unwrap() {
        assert!(second.token() > token, "{:?} after {token:?}", second.token());
    }

    to_b[2].cut.store(false, SeqCst);
    let again = tokio::spawn(b.lease("report", "42").ttl(seconds(3)).wait(seconds(60)).acquire());
    time.advance(seconds(60)).await;
    let second = again.await.unwrap().expect("a majority is back");
    assert!(second.token() > token, "{:?} after {token:?}", second.token());
}
