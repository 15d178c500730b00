//! A node that forgot is told what the others have accepted. What can go wrong while it is being told.
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

/// One client's way to a node: it can be cut, and the node can restart just before it is read.
#[derive(Debug)]
struct Way {
    node: Arc<MemoryNode>,
    cut: AtomicBool,
    restarts_when_read: AtomicBool,
}

impl Way {
    fn there(&self) -> Result<()> {
        let cut = || Err(Error::new(ErrorKind::Unavailable, "the connection was refused"));
        if self.cut.load(SeqCst) { cut() } else { Ok(()) }
    }
}

#[async_trait]
impl QuorumNode for Way {
    fn name(&self) -> &str {
        self.node.name()
    }
    async fn health(&self) -> Result<Health> {
        self.there()?;
        self.node.health().await
    }
    async fn mark(&self, expected: Option<&BirthMark>, new: &BirthMark) -> Result<Option<BirthMark>> {
        self.there()?;
        self.node.mark(expected, new).await
    }
    async fn vote(&self, ballot: &VoteRequest) -> Result<Vote> {
        self.there()?;
        self.node.vote(ballot).await
    }
    async fn claim(&self, ballot: &VoteRequest) -> Result<Vote> {
        self.there()?;
        self.node.claim(ballot).await
    }
    async fn join(&self, ballot: &VoteRequest) -> Result<Vote> {
        self.there()?;
        self.node.join(ballot).await
    }
    async fn undo(&self, undo: &UndoRequest) -> Result<bool> {
        self.there()?;
        self.node.undo(undo).await
    }
    async fn renew(&self, held: &[RenewRequest]) -> Vec<Result<NodeRenewal>> {
        match self.there() {
            Ok(()) => self.node.renew(held).await,
            Err(error) => held.iter().map(|_| Err(error.clone())).collect(),
        }
    }
    async fn look(&self, resource: &Resource) -> Result<NodeView> {
        self.there()?;
        self.node.look(resource).await
    }
    async fn walk(&self, prefix: &str, after: Option<&str>) -> Result<NodePage> {
        self.there()?;
        if self.restarts_when_read.swap(false, SeqCst) {
            self.node.restart();
        }
        self.node.walk(prefix, after).await
    }
    async fn raise(&self, registers: &[(Resource, FencingToken)]) -> Result<()> {
        self.there()?;
        self.node.raise(registers).await
    }
    async fn listen(&self, resource: &Resource, at_most: Duration) -> Result<()> {
        self.there()?;
        self.node.listen(resource, at_most).await
    }
}

async fn client(nodes: &[Arc<MemoryNode>], time: &ManualTime) -> (Client, Vec<Arc<Way>>) {
    let way = |node: &Arc<MemoryNode>| Way {
        node: Arc::clone(node),
        cut: AtomicBool::new(false),
        restarts_when_read: AtomicBool::new(false),
    };
    let ways: Vec<Arc<Way>> = nodes.iter().map(|node| Arc::new(way(node))).collect();
    let environment: Arc<dyn Environment> = Arc::new(time.clone());
    let nodes = ways.iter().map(|way| Arc::clone(way) as _).collect();
    let quorum = Quorum::connect(nodes, GATE, Arc::clone(&environment)).await.expect("all nodes answer");
    let quorum: Arc<dyn Backend> = Arc::new(quorum);
    (Client::builder(quorum).environment(environment).build(), ways)
}

/// Two of five forget, one while it is being read for the other: a minority, so tokens must go on growing. The third
/// node that remembers is out of sight meanwhile.
#[tokio::test]
async fn a_node_that_forgets_while_it_is_read_for_another_is_not_taken_at_its_word() {
    let time = ManualTime::new();
    let environment: Arc<dyn Environment> = Arc::new(time.clone());
    let node = |number| Arc::new(MemoryNode::new(&format!("node-{number}"), Arc::clone(&environment)));
    let nodes: Vec<Arc<MemoryNode>> = (1..=5).map(node).collect();
    time.advance(seconds(60)).await;
    // The first client's calendar is five minutes ahead, which is allowed: so its token is.
    let ahead = ManualTime::new();
    ahead.jump(seconds(60));
    ahead.step_wall(seconds(300));
    let (a, to) = client(&nodes, &ahead).await;
    let (b, from) = client(&nodes, &time).await;

    to[3].cut.store(true, SeqCst);
    to[4].cut.store(true, SeqCst);
    let first = a.lease("report", "42").ttl(seconds(3)).acquire().await.unwrap();
    let token = first.token();
    first.release().await.unwrap();

    nodes[0].restart();
    from[2].cut.store(true, SeqCst);
    from[1].restarts_when_read.store(true, SeqCst);
    for _ in 0..10 {
        // Whoever uses the set sees to its nodes.
        let using = tokio::spawn(b.lease("report", "another").ttl(seconds(3)).try_acquire());
        time.advance(seconds(1)).await;
        using.abort();
    }
    assert!(!from[1].restarts_when_read.load(SeqCst), "it was read for the first one");
    let asking = tokio::spawn(b.lease("report", "42").ttl(seconds(3)).try_acquire());
    time.advance(seconds(5)).await;
    if let Ok(Some(second)) = asking.await.unwrap() {
        assert!(second.token() > token, "{:?} after {token:?}", second.token());
    }

    from[2].cut.store(false, SeqCst);
    let again = tokio::spawn(b.lease("report", "42").ttl(seconds(3)).wait(seconds(60)).acquire());
    time.advance(seconds(60)).await;
    let second = again.await.unwrap().expect("a majority is back");
    assert!(second.token() > token, "{:?} after {token:?}", second.token());
}
