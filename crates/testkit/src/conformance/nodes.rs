//! The servers of the store.

use std::{collections::BTreeSet, time::Duration};

use leasehold_core::{Effect, ErrorKind, NodeStatus, Page, Query};

use super::{ConformanceTest, context::TestContext, test};

pub(super) const TESTS: &[ConformanceTest] = &[test!(the_servers_are_named_and_count)];

/// A server may take this long to answer: a second, on a loaded machine.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// The servers run on this host, so their clocks are alike.
const CLOCKS_APART_MAX: u64 = 60_000_000;
/// What no name of a server contains: the password of the suite's users, and parts of a URL with a login.
const SECRETS: [&str; 3] = ["PASSWORD", "@", "://"];

async fn the_servers_are_named_and_count(ctx: &TestContext) {
    for backend in [ctx.target.backend(), ctx.target.second()] {
        let nodes = match backend.inspect(&Query::Nodes).await {
            Ok(Page::Nodes(nodes)) => nodes,
            Ok(other) => panic!("another page than the servers: {other:?}"),
            Err(error) => {
                assert!(error.to_string().contains("servers"), "it says why: {error}");
                assert_eq!(
                    (error.kind(), error.effect()),
                    (ErrorKind::Unsupported, Effect::None),
                    "{error:?}"
                );
                continue;
            }
        };
        assert!(!nodes.is_empty(), "a store with servers has one at least");
        nodes.iter().for_each(check);
        let names: BTreeSet<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
        assert_eq!(names.len(), nodes.len(), "each has a name of its own: {nodes:?}");
    }
}

fn check(node: &NodeStatus) {
    assert!(node.counts && node.why.is_none(), "every server is up: {node:?}");
    assert!(!node.name.is_empty() && !SECRETS.iter().any(|secret| node.name.contains(secret)), "{node:?}");
    assert!(node.round_trip.is_some_and(|took| took <= ANSWER_MAX), "{node:?}");
    if let Some((theirs, ours)) = node.clocks {
        let apart = theirs.as_micros().abs_diff(ours.as_micros());
        assert!(apart <= CLOCKS_APART_MAX, "the clocks are {apart} µs apart: {node:?}");
    }
}
