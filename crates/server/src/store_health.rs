//! The health of the store: what its servers say, asked at most once in five seconds for any number of pages.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use leasehold_api::{
    overview::StoreSummary,
    store::{QuorumBody, StoreState},
};
use leasehold_core::{BackendInfo, ErrorKind, Guarantee, NodeStatus, Query};
use tokio::{sync::Mutex as AsyncMutex, time::Instant};

use crate::store::Store;

/// An answer is this old at most.
const FRESH: Duration = Duration::from_secs(5);
/// A store that has no servers is asked again only after this time: it may be a leasehold server that is replaced by a newer one.
const UNSUPPORTED_FRESH: Duration = Duration::from_secs(300);

/// What is known of the store's servers.
#[derive(Debug)]
pub(crate) struct StoreHealth {
    store: Store,
    known: Mutex<Known>,
    /// Held while the servers are asked, so that one question is enough for all who want to know.
    asking: AsyncMutex<()>,
}

#[derive(Clone, Debug, Default)]
struct Known {
    at: Option<Instant>,
    /// `None` if the store has no servers, or does not tell.
    nodes: Option<Vec<NodeStatus>>,
    /// Why the servers could not be asked.
    failed: Option<String>,
}

/// The health of the store, as far as is known.
#[derive(Clone, Debug)]
pub(crate) struct Health {
    pub(crate) state: StoreState,
    /// `redis, healthy`
    pub(crate) sentence: String,
    pub(crate) nodes: Option<Vec<NodeStatus>>,
    pub(crate) quorum: Option<QuorumBody>,
    /// Why the servers could not be asked.
    pub(crate) failed: Option<String>,
}

impl Health {
    pub(crate) fn summary(&self) -> StoreSummary {
        StoreSummary { state: self.state, sentence: self.sentence.clone(), quorum: self.quorum }
    }
}

impl StoreHealth {
    pub(crate) fn new(store: Store) -> StoreHealth {
        StoreHealth { store, known: Mutex::default(), asking: AsyncMutex::new(()) }
    }

    fn known(&self) -> Known {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn is_fresh(&self) -> bool {
        let Known { at, nodes, failed } = self.known();
        let is_unsupported = nodes.is_none() && failed.is_none();
        let fresh = if is_unsupported { UNSUPPORTED_FRESH } else { FRESH };
        at.is_some_and(|at| at.elapsed() < fresh)
    }

    /// Asks the servers, unless that was done just now.
    pub(crate) async fn refresh(&self) {
        if self.is_fresh() {
            return;
        }
        let _asking = self.asking.lock().await;
        if self.is_fresh() {
            return;
        }
        let answer = self.store.inspect(&Query::Nodes).await;
        let (nodes, failed) = match answer {
            Ok(page) => (Some(page.into_nodes()), None),
            Err(error) if error.kind() == ErrorKind::Unsupported => (None, None),
            Err(error) => (None, Some(error.to_string())),
        };
        let known = Known { at: Some(Instant::now()), nodes, failed };
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = known;
    }

    /// What is known now, without asking. `failing`: the newest sample of the store failed with this kind of error.
    pub(crate) fn now(&self, info: &BackendInfo, failing: Option<&str>) -> Health {
        let Known { nodes, failed, .. } = self.known();
        let quorum = nodes.as_deref().and_then(|nodes| quorum(nodes, info.guarantee));
        let (mut state, mut because) = judge(nodes.as_deref(), quorum, failing);
        if failed.is_some() && state == StoreState::Healthy {
            (state, because) = (StoreState::Degraded, Some("its servers could not be asked".to_owned()));
        }
        let mut sentence = format!("{}, {}", info.name, state.as_str());
        if let Some(because) = because {
            sentence.push_str(": ");
            sentence.push_str(&because);
        }
        Health { state, sentence, nodes, quorum, failed }
    }
}

/// The quorum of a store all of whose servers are known. etcd and ZooKeeper count their votes themselves, and an address may name only some
/// of their members.
fn quorum(nodes: &[NodeStatus], level: Guarantee) -> Option<QuorumBody> {
    let votes = level == Guarantee::Quorum;
    let count = |many: usize| u32::try_from(many).unwrap_or(u32::MAX);
    (votes && !nodes.is_empty())
        .then(|| QuorumBody::of(count(nodes.len()), count(nodes.iter().filter(|node| node.counts).count())))
}

/// The state of the store, and why it is not healthy.
fn judge(
    nodes: Option<&[NodeStatus]>,
    quorum: Option<QuorumBody>,
    failing: Option<&str>,
) -> (StoreState, Option<String>) {
    if let Some(kind) = failing {
        return (StoreState::Down, Some(format!("the newest sample of it failed ({kind})")));
    }
    let nodes = nodes.unwrap_or_default();
    // A standby is no server that is missing.
    let all = nodes.iter().filter(|node| !node.stands_by).count();
    let up = nodes.iter().filter(|node| node.counts).count();
    if quorum.is_some_and(|quorum| quorum.margin < 0) || (!nodes.is_empty() && up == 0) {
        return (StoreState::Down, Some(format!("{up} of {all} servers are up")));
    }
    if up < all {
        return (StoreState::Degraded, Some(format!("{up} of {all} servers are up")));
    }
    (StoreState::Healthy, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(up: usize, all: usize) -> Vec<NodeStatus> {
        let node = |number: usize| {
            let mut node = NodeStatus::named(format!("node-{number}"));
            node.counts = number < up;
            node
        };
        (0..all).map(node).collect()
    }

    fn state(up: usize, all: usize, level: Guarantee) -> (StoreState, Option<String>) {
        let nodes = nodes(up, all);
        judge(Some(&nodes), quorum(&nodes, level), None)
    }

    #[test]
    fn a_store_is_as_healthy_as_its_servers() {
        use StoreState::{Degraded, Down, Healthy};
        let level = Guarantee::Quorum;
        assert_eq!(state(5, 5, level), (Healthy, None));
        assert_eq!(state(4, 5, level), (Degraded, Some("4 of 5 servers are up".to_owned())));
        assert_eq!(state(2, 5, level).0, Down, "no majority");
        assert_eq!(state(1, 3, Guarantee::BestEffort).0, Degraded, "they do not vote");
        assert_eq!(state(0, 1, Guarantee::BestEffort).0, Down);
        assert_eq!(judge(None, None, None).0, Healthy);
        assert_eq!(judge(None, None, Some("unavailable")).0, Down);
        assert_eq!(quorum(&nodes(1, 1), Guarantee::Database), None);
        assert_eq!(quorum(&nodes(1, 1), Guarantee::Consensus), None, "one of three members may be named");
    }

    #[test]
    fn a_standby_is_not_missing() {
        let mut servers = nodes(1, 2);
        servers[1].stands_by = true;
        assert_eq!(judge(Some(&servers), None, None), (StoreState::Healthy, None));
        servers[0].counts = false;
        assert_eq!(judge(Some(&servers), None, None).0, StoreState::Down, "the primary");
    }
}
