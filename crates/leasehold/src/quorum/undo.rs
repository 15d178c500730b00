//! Takes back votes and releases leases.
//!
//! Both are the same request to a node, [`UndoRequest`]: for a release it names the owner, for a failed attempt also the
//! attempt (ADR 0017).
//!
//! An attempt that failed:
//! 1. Undo at once on the nodes that gave their vote.
//! 2. Where a vote request went unanswered, undo in the background and leave a tombstone for the attempt.
//! 3. Nodes that have not replied yet are handled in the background, when they reply.
//!
//! Release:
//! 1. Forget the grant, so that no background task gives the lease to a node again.
//! 2. Undo on all nodes at once, and return when a majority has answered.
//! 3. The other nodes are asked in the background, for at most [`RELEASE_REPEATED_MAX`]. A late release harms nobody,
//!    because an owner that has released does not ask again.

use std::{sync::Arc, time::Duration};

use leasehold_core::{
    Backoff, Effect, ReleaseRequest, Released, Result, Verb,
    quorum_node::{
        UndoRequest,
        tally::{self, majority},
    },
};
use leasehold_support::race::{Either, first};

use super::{
    NodeRequests, Quorum, QuorumState,
    acquire::{QuorumAttempt, is_ours, voted},
    checks::{unavailable, unsupported},
};

/// How long a release is repeated to a node that does not answer. After that, the lock of the node ends by itself.
const RELEASE_REPEATED_MAX: Duration = Duration::from_secs(10);
/// How long nodes may take to answer an undo: as long as a connection may take to be made. Callers have limits of their
/// own.
const UNDO_TIMEOUT: Duration = Duration::from_secs(3);

impl QuorumState {
    pub(super) async fn release(self: &Arc<QuorumState>, request: &ReleaseRequest) -> Result<Released> {
        if request.keep_for.is_some_and(|keep_for| !keep_for.is_zero()) {
            return Err(unsupported("on a quorum a resource cannot stay closed after a release"));
        }
        self.grants.forget(&request.resource, request.owner);
        let ReleaseRequest { resource, owner, tombstone, .. } = request.clone();
        let undo = UndoRequest { resource, owner, attempt: None, tombstone };
        let mut requests = self.send_undo(&undo, self.all_nodes());
        // For each node that answered, whether it had the lease.
        let mut had_lease: Vec<Option<bool>> = vec![None; self.size()];
        let mut failed = Vec::new();
        let mut timer = self.environment.sleep(UNDO_TIMEOUT);
        while had_lease.iter().flatten().count() < majority(self.size()) {
            match first(requests.next(), &mut timer).await {
                Either::Left(Some((node, reply))) => {
                    self.record_reply(node, &reply);
                    match reply {
                        Ok(had) => had_lease[node] = Some(had),
                        Err(_) => failed.push(node),
                    }
                }
                Either::Left(None) | Either::Right(()) => break,
            }
        }
        self.finish_release(undo, requests, failed);
        let answered = had_lease.iter().flatten().count();
        if answered >= majority(self.size()) {
            let was_held = tally::was_there(&had_lease);
            return Ok(if was_held { Released::Now } else { Released::AlreadyGone });
        }
        let message =
            format!("{} of {} nodes did not answer the release", self.size() - answered, self.size());
        let error = unavailable(message).with_effect(Effect::Unknown);
        Err(error.at(Verb::Release, Quorum::NAME).on(&request.resource))
    }

    /// A majority has released. Asks the other nodes in the background.
    fn finish_release(
        self: &Arc<QuorumState>,
        undo: UndoRequest,
        mut requests: NodeRequests<Result<bool>>,
        mut failed: Vec<usize>,
    ) {
        if requests.is_empty() && failed.is_empty() {
            return;
        }
        let state = Arc::clone(self);
        self.environment.spawn(Box::pin(async move {
            while let Some((node, reply)) = requests.next().await {
                state.record_reply(node, &reply);
                if reply.is_err() {
                    failed.push(node);
                }
            }
            if !failed.is_empty() {
                state.undo_until_answered(&undo, failed, RELEASE_REPEATED_MAX).await;
            }
        }));
    }

    fn send_undo(
        &self,
        undo: &UndoRequest,
        nodes: impl IntoIterator<Item = usize>,
    ) -> NodeRequests<Result<bool>> {
        let undo = Arc::new(undo.clone());
        let mut requests = NodeRequests::new();
        for number in nodes {
            let (node, undo) = (Arc::clone(&self.nodes[number].node), Arc::clone(&undo));
            requests.send(number, async move { node.undo(&undo).await });
        }
        requests
    }

    /// Undoes on these nodes. Returns the nodes that have not answered in time.
    pub(super) async fn undo_now(
        self: &Arc<QuorumState>,
        undo: &UndoRequest,
        nodes: &[usize],
        at_most: Duration,
    ) -> Vec<usize> {
        let mut left = nodes.to_vec();
        let mut requests = self.send_undo(undo, nodes.iter().copied());
        let mut timer = self.environment.sleep(at_most);
        while let Either::Left(Some((node, reply))) = first(requests.next(), &mut timer).await {
            self.record_reply(node, &reply);
            if reply.is_ok() {
                left.retain(|other| *other != node);
            }
        }
        left
    }

    /// Undoes on these nodes in the background, until each has answered. After `at_most`, what is to be undone has ended by
    /// itself.
    pub(super) fn undo_in_background(
        self: &Arc<QuorumState>,
        undo: UndoRequest,
        nodes: Vec<usize>,
        at_most: Duration,
    ) {
        let state = Arc::clone(self);
        self.environment.spawn(Box::pin(async move {
            state.undo_until_answered(&undo, nodes, at_most).await;
        }));
    }

    async fn undo_until_answered(
        self: &Arc<QuorumState>,
        undo: &UndoRequest,
        mut nodes: Vec<usize>,
        at_most: Duration,
    ) {
        let until = self.environment.now().after(at_most);
        let mut backoff = Backoff::new();
        loop {
            nodes = self.undo_now(undo, &nodes, UNDO_TIMEOUT).await;
            if nodes.is_empty() || self.environment.now() >= until {
                return;
            }
            self.environment.sleep(backoff.next(self.environment.random())).await;
        }
    }
}

/// Takes back the votes of an attempt that failed.
impl QuorumAttempt<'_> {
    /// Takes back every vote of this attempt: at once from nodes that gave it, in the background from nodes that may have
    /// given it. Says whether it is certain that nothing of the attempt is left.
    pub(super) async fn undo_votes(&mut self) -> bool {
        let undo = UndoRequest {
            resource: self.request.resource.clone(),
            owner: self.request.owner,
            attempt: Some(self.request.attempt),
            tombstone: None,
        };
        // A vote request that is executed late must find that its attempt was given up.
        let tombstone = Some(ReleaseRequest::tombstone_ttl(self.claim.ttl));
        let undo_unknown = UndoRequest { tombstone, ..undo.clone() };
        let gave_vote = |node: &usize| voted(&self.answers[*node], is_ours);
        let nodes = self.state.all_nodes();
        let given: Vec<usize> = nodes.clone().filter(gave_vote).collect();
        let unknown: Vec<usize> = nodes.filter(|node| self.unanswered[*node] && !gave_vote(node)).collect();
        let is_certain = unknown.is_empty() && self.requests.is_empty();
        if !unknown.is_empty() {
            self.state.undo_in_background(undo_unknown.clone(), unknown, self.claim.ttl);
        }
        self.undo_late_votes(undo.clone(), undo_unknown);
        let timeout = QuorumState::node_timeout(self.claim.ttl);
        let failed = self.state.undo_now(&undo, &given, timeout).await;
        let all_undone = failed.is_empty();
        if !all_undone {
            self.state.undo_in_background(undo, failed, self.claim.ttl);
        }
        is_certain && all_undone
    }

    /// In the background, waits for the nodes that have not replied, and takes back the votes that they give.
    fn undo_late_votes(&mut self, undo: UndoRequest, undo_unknown: UndoRequest) {
        let mut requests = std::mem::replace(&mut self.requests, NodeRequests::new());
        if requests.is_empty() {
            return;
        }
        let (state, ttl) = (Arc::clone(self.state), self.claim.ttl);
        self.state.environment.spawn(Box::pin(async move {
            while let Some((node, reply)) = requests.next().await {
                state.record_reply(node, &reply);
                match reply {
                    Ok(vote) if is_ours(&vote.choice) => {
                        state.undo_in_background(undo.clone(), vec![node], ttl);
                    }
                    Err(error) if error.effect() == Effect::Unknown => {
                        state.undo_in_background(undo_unknown.clone(), vec![node], ttl);
                    }
                    _ => {}
                }
            }
        }));
    }
}
