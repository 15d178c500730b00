//! What a quorum says about its nodes, with nodes in memory, on manual time.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test may spawn, and may panic")]

mod common;

use std::{sync::Arc, time::Duration};

use common::{millis, seconds};
use leasehold::{Client, MemoryNode, NodeStatus, Quorum, QuorumNode, WallTime, testing::ManualTime};

const GATE: Duration = seconds(60);

struct NodeSet {
    time: ManualTime,
    nodes: Vec<Arc<MemoryNode>>,
    client: Client,
}

impl NodeSet {
    /// Five nodes that keep nothing on disk and vote.
    async fn voting() -> NodeSet {
        let time = ManualTime::new();
        let node = |number| Arc::new(MemoryNode::new(&format!("n{number}"), Arc::new(time.clone())));
        let nodes: Vec<Arc<MemoryNode>> = (1..=5).map(node).collect();
        time.advance(GATE).await;
        let of = nodes.iter().map(|node| Arc::clone(node) as Arc<dyn QuorumNode>).collect();
        let quorum = Quorum::connect(of, GATE, Arc::new(time.clone())).await.expect("the nodes are there");
        let client = Client::builder(Arc::new(quorum)).environment(Arc::new(time.clone())).build();
        NodeSet { time, nodes, client }
    }

    /// Asks the nodes, and says how long the answer took on the manual clock.
    async fn ask(&self) -> (Vec<NodeStatus>, Duration) {
        let asking = self.client.nodes();
        let (mut asking, mut took) = (std::pin::pin!(asking), Duration::ZERO);
        for _ in 0..10_000 {
            tokio::select! { biased;
                statuses = &mut asking => return (statuses.expect("a quorum has servers"), took),
                () = self.time.advance(millis(5)) => took += millis(5),
            }
        }
        panic!("no answer after 50 s");
    }
}

fn why(status: &NodeStatus) -> &str {
    status.why.as_deref().unwrap_or("it counts")
}

fn counting(statuses: &[NodeStatus]) -> Vec<&str> {
    statuses.iter().filter(|status| status.counts).map(|status| status.name.as_str()).collect()
}

#[tokio::test]
async fn every_node_that_votes_counts_and_tells_its_time() {
    let set = NodeSet::voting().await;
    set.nodes[3].set_clock_ahead(7);
    let (statuses, _) = set.ask().await;
    assert_eq!(counting(&statuses), ["n1", "n2", "n3", "n4", "n5"], "in the order of the URL");
    assert!(statuses.iter().all(|status| status.why.is_none() && status.round_trip.is_some()));
    let ahead = |status: &NodeStatus| {
        let (theirs, ours): (WallTime, WallTime) = status.clocks.expect("a node tells its time");
        theirs.as_micros().cast_signed() - ours.as_micros().cast_signed()
    };
    assert_eq!(statuses.iter().map(ahead).collect::<Vec<_>>(), [0, 0, 0, 7_000_000, 0]);
}

#[tokio::test]
async fn a_dead_node_and_a_mute_one_are_named_and_delay_the_answer_by_a_second_at_most() {
    let set = NodeSet::voting().await;
    set.nodes[0].stop();
    set.nodes[1].freeze();
    set.nodes[2].slow_down(millis(200));
    let (statuses, took) = set.ask().await;
    assert_eq!(counting(&statuses), ["n3", "n4", "n5"]);
    assert_eq!(why(&statuses[0]), "the connection was refused");
    assert_eq!(why(&statuses[1]), "no answer within 1s");
    assert!(statuses[..2].iter().all(|status| status.round_trip.is_none() && status.clocks.is_none()));
    assert!(statuses[2].round_trip.unwrap() >= millis(200), "{:?}", statuses[2]);
    assert!(took <= seconds(1) + millis(5), "{took:?}");
    set.nodes[1].thaw();
    set.nodes[0].reach();
    assert_eq!(counting(&set.ask().await.0), ["n1", "n2", "n3", "n4", "n5"]);
}

#[tokio::test]
async fn a_node_that_may_have_forgotten_does_not_count_until_it_votes_again() {
    let set = NodeSet::voting().await;
    set.nodes[4].restart();
    let (statuses, _) = set.ask().await;
    assert_eq!(counting(&statuses), ["n1", "n2", "n3", "n4"]);
    assert!(why(&statuses[4]).contains("lost its data"), "{:?}", statuses[4]);
    assert!(statuses[4].round_trip.is_some(), "it answers");
    // The look of this client has quarantined it.
    set.time.advance(seconds(5)).await;
    let (statuses, _) = set.ask().await;
    assert!(why(&statuses[4]).contains("quarantined"), "{:?}", statuses[4]);
    set.time.advance(GATE + seconds(5)).await;
    assert_eq!(counting(&set.ask().await.0), ["n1", "n2", "n3", "n4", "n5"]);
}
