//! The suite on a quorum of five real servers: all that its capabilities allow, on two clients of them. As the user that
//! the documentation describes.

#[path = "common/acl.rs"]
mod acl;

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use leasehold_core::Backend;
use leasehold_testkit::{Stage, conformance, servers::RedisNodes};

fn main() {
    // All tests share them: every test uses names of its own. They end with this process.
    static NODES: OnceLock<(RedisNodes, String)> = OnceLock::new();
    conformance::main("redlock", || async {
        let (_, url) = NODES.get_or_init(|| {
            let nodes = RedisNodes::long_lived(5, Duration::from_secs(600));
            let url = acl::let_in(&nodes);
            (nodes, url)
        });
        let open = move || {
            let url = url.clone();
            async move { leasehold::open(&url).await.expect("the servers are there") as Arc<dyn Backend> }
        };
        let (first, second) = (open().await, open().await);
        // A node has a tenth of the ttl to answer: on a loaded machine that must not be too little.
        Stage::real(first).opened_again(second).reopened_by(open).short_ttl(Duration::from_secs(2))
    });
}
