//! The suite on a quorum of in-memory nodes. Tests beyond its capabilities are ignored.

use std::sync::Arc;

use leasehold::{MemoryNode, Quorum, testing::ManualTime};
use leasehold_core::{Backend, Environment, QuorumNode};
use leasehold_testkit::{BackendUnderTest, conformance};

fn main() {
    conformance::main("quorum", || async {
        let time = ManualTime::new();
        let environment: Arc<dyn Environment> = Arc::new(time.clone());
        let node = |number| MemoryNode::durable(&format!("node-{number}"), Arc::clone(&environment));
        let nodes: Vec<Arc<dyn QuorumNode>> = (1..=5).map(|number| Arc::new(node(number)) as _).collect();
        let open = move || {
            let opening = Quorum::connect(nodes.clone(), Quorum::GATE, Arc::clone(&environment));
            async { Arc::new(opening.await.expect("the nodes are there")) as Arc<dyn Backend> }
        };
        let (first, second) = (open().await, open().await);
        BackendUnderTest::manual(first, time).opened_again(second).reopened_by(open)
    });
}
