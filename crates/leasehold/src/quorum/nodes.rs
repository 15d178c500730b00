//! The nodes as they are now, for people: which of them has a vote, why another one has none, and what their clocks say.

use std::sync::Arc;

use leasehold_core::{
    Error, ErrorKind, NodeStatus, Result,
    quorum_node::{Health, standing::reason_without_vote},
};
use leasehold_support::{
    ask_nodes::{ANSWER_WITHIN, RoundTrip, down, not_counting, silent, timed_over_connection},
    race::{Either, first},
};

use super::{NodeRequests, QuorumState};

/// The reply of a node, and how long it took.
type TimedHealth = (Health, RoundTrip);

impl QuorumState {
    /// The status of each node, in the order of the URL.
    pub(super) async fn node_statuses(self: &Arc<QuorumState>) -> Vec<NodeStatus> {
        let mut requests = NodeRequests::new();
        for (number, handle) in self.nodes.iter().enumerate() {
            let (node, environment) = (Arc::clone(&handle.node), Arc::clone(&self.environment));
            requests.send(number, async move {
                let is_broken = |error: &Error| error.kind() == ErrorKind::Unavailable;
                timed_over_connection(&*environment, || node.health(), is_broken).await
            });
        }
        let mut replies: Vec<Option<Result<TimedHealth>>> = self.nodes.iter().map(|_| None).collect();
        let mut timer = self.environment.sleep(ANSWER_WITHIN);
        while let Either::Left(Some((node, reply))) = first(requests.next(), &mut timer).await {
            self.record_reply(node, &reply);
            replies[node] = Some(reply);
        }
        // A connection that is being made is not given up.
        self.finish_in_background(requests);
        self.judge(replies)
    }

    fn judge(&self, replies: Vec<Option<Result<TimedHealth>>>) -> Vec<NodeStatus> {
        let health = |reply: &Option<Result<TimedHealth>>| match reply {
            Some(Ok((health, _))) => Some(health.clone()),
            _ => None,
        };
        let healths: Vec<Option<Health>> = replies.iter().map(health).collect();
        if healths.iter().flatten().any(was_not_looked_at) {
            self.membership_wakeup.notify_one();
        }
        let judge = |(node, reply): (usize, Option<Result<TimedHealth>>)| {
            let name = self.nodes[node].node.name();
            match reply {
                None => silent(name),
                Some(Err(error)) => down(name, &error),
                Some(Ok((health, trip))) => {
                    let status = trip.answered(name, Some(health.now));
                    match reason_without_vote(&healths, node) {
                        Some(why) => not_counting(status, why),
                        None => status,
                    }
                }
            }
        };
        replies.into_iter().enumerate().map(judge).collect()
    }
}

/// Whether no client has seen this run of the server: then this one looks at the set now.
fn was_not_looked_at(health: &Health) -> bool {
    health.mark.as_ref().is_none_or(|mark| mark.run != health.run)
}
