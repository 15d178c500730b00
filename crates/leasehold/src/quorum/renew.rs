//! Renew over a quorum, and keep the lease on all nodes.
//!
//! 1. Refuse requests that break a limit. Send the rest to every node, in one batch.
//! 2. For each lease, [`tally::decide_renewal`] decides as soon as a majority of the nodes agrees. Nodes that do not answer
//!    in a tenth of the shortest ttl count as silent.
//! 3. Nodes that have lost the lease, or have it with another number, are given it again in the background while a
//!    majority has it. Otherwise a lease that is held for long would lose one node after the other to restarts (ADR 0017).

use std::sync::Arc;

use leasehold_core::{
    Effect, FencingToken, Limits, RenewRequest, Renewal, Renewed, Result, Timestamp, Verb,
    quorum_node::{
        NodeRenewal, UndoRequest, Vote, VoteOutcome, VoteRequest,
        tally::{self, RenewalDecision},
    },
};
use leasehold_support::race::{Either, first};

use super::{
    NodeRequests, Quorum, QuorumState,
    checks::{ttl_above_gate, unavailable},
};

/// What each node answered for one lease: `None` while it has not, `Some(None)` if it failed.
type NodeAnswers = Vec<Option<Option<NodeRenewal>>>;

/// Replies of one node to a batch.
type BatchReply = Result<Vec<Result<NodeRenewal>>>;

/// Whether the node lacks the grant of this token, or has it with another number.
fn lacks_grant(answer: NodeRenewal, token: FencingToken) -> bool {
    match answer {
        NodeRenewal::Renewed { number, .. } => number != token,
        NodeRenewal::Gone { .. } => true,
        NodeRenewal::TooLong { .. } => false,
    }
}

impl QuorumState {
    pub(super) async fn renew(
        self: &Arc<QuorumState>,
        requests: &[RenewRequest],
        limits: &Limits,
    ) -> Vec<Result<Renewal>> {
        if requests.is_empty() {
            return Vec::new();
        }
        let checks: Vec<Result<()>> =
            requests.iter().map(|request| self.check_renewal(request, limits)).collect();
        let accepted = requests.iter().zip(&checks).filter(|(_, check)| check.is_ok());
        let accepted: Vec<RenewRequest> = accepted.map(|(request, _)| request.clone()).collect();
        let mut renewals = self.renew_accepted(&accepted).await.into_iter();
        let no_node = || Err(unavailable("no node answered the renewal".to_owned()));
        checks.into_iter().map(|check| check.and_then(|()| renewals.next().unwrap_or_else(no_node))).collect()
    }

    async fn renew_accepted(self: &Arc<QuorumState>, requests: &[RenewRequest]) -> Vec<Result<Renewal>> {
        let Some(shortest) = requests.iter().map(|request| request.ttl).min() else { return Vec::new() };
        let started = self.environment.now();
        let batch: Arc<[RenewRequest]> = requests.into();
        let mut replies = self.send_batch(&batch);
        // One row for each lease, one column for each node.
        let mut answers: Vec<NodeAnswers> = vec![vec![None; self.size()]; requests.len()];
        let mut timer = self.environment.sleep(QuorumState::node_timeout(shortest));
        let mut undecided: Vec<usize> = (0..requests.len()).collect();
        while !undecided.is_empty() {
            match first(replies.next(), &mut timer).await {
                Either::Left(Some((node, reply))) => self.take_batch_reply(&mut answers, node, reply),
                Either::Left(None) => break,
                Either::Right(()) => {
                    // Nodes that have not answered count as silent.
                    for row in &mut answers {
                        row.iter_mut().for_each(|answer| *answer = Some(answer.flatten()));
                    }
                    break;
                }
            }
            undecided.retain(|&lease| tally::decide_renewal(&answers[lease], None).is_none());
        }
        let decided = requests.iter().zip(&answers);
        let renewals = decided.map(|(request, row)| self.renewal(request, row, started)).collect();
        self.finish_renewals(replies, batch);
        renewals
    }

    fn send_batch(self: &Arc<QuorumState>, batch: &Arc<[RenewRequest]>) -> NodeRequests<BatchReply> {
        let mut requests = NodeRequests::new();
        for (number, handle) in self.nodes.iter().enumerate() {
            let (state, node, batch) = (Arc::clone(self), Arc::clone(&handle.node), Arc::clone(batch));
            requests.send(number, async move {
                state.check_node(number).await?;
                Ok(node.renew(&batch).await)
            });
        }
        requests
    }

    fn take_batch_reply(&self, answers: &mut [NodeAnswers], node: usize, reply: BatchReply) {
        let mut replies = reply.unwrap_or_default().into_iter();
        for (index, row) in answers.iter_mut().enumerate() {
            let missing = || Err(unavailable("the node did not answer".to_owned()));
            let answer = replies.next().unwrap_or_else(missing);
            if index == 0 {
                // Once for the batch: it is one reply of the node.
                self.record_reply(node, &answer);
            }
            row[node] = Some(answer.ok());
        }
    }

    fn renewal(
        self: &Arc<QuorumState>,
        request: &RenewRequest,
        row: &NodeAnswers,
        started: Timestamp,
    ) -> Result<Renewal> {
        let decision = tally::decide_renewal(row, self.grants.token(request));
        match decision.unwrap_or(RenewalDecision::Unreachable) {
            RenewalDecision::Renewed { token, remaining } => {
                self.grants.record_renewal(request, token, started.after(remaining));
                self.restore_on_nodes(request, token, row);
                Ok(Renewal::Renewed(Renewed::new(token, remaining)))
            }
            RenewalDecision::Gone { why } => {
                self.grants.forget(&request.resource, request.owner);
                Ok(Renewal::Gone { why })
            }
            RenewalDecision::TooLong { gate } => Err(ttl_above_gate(gate)),
            RenewalDecision::Unreachable => {
                let silent = row.iter().filter(|answer| answer.flatten().is_none()).count();
                let message = format!("{silent} of {} nodes did not answer the renewal", self.size());
                let error = unavailable(message).with_effect(Effect::Unknown);
                Err(error.at(Verb::Renew, Quorum::NAME).on(&request.resource))
            }
        }
    }
}

/// Gives a lease again to nodes that lack it.
impl QuorumState {
    /// In the background, gives the lease again to the nodes that lack it.
    fn restore_on_nodes(
        self: &Arc<QuorumState>,
        request: &RenewRequest,
        token: FencingToken,
        row: &NodeAnswers,
    ) {
        let mut requests = NodeRequests::new();
        for (node, answer) in row.iter().enumerate() {
            if answer.flatten().is_some_and(|answer| lacks_grant(answer, token)) {
                let (state, request) = (Arc::clone(self), request.clone());
                requests.send(node, async move {
                    state.restore_on_node(node, &request).await;
                    Ok(())
                });
            }
        }
        self.finish_in_background(requests);
    }

    /// A majority has answered. The other nodes decide nothing any more, but one of them may have lost a lease.
    fn finish_renewals(
        self: &Arc<QuorumState>,
        mut requests: NodeRequests<BatchReply>,
        batch: Arc<[RenewRequest]>,
    ) {
        if requests.is_empty() {
            return;
        }
        let state = Arc::clone(self);
        self.environment.spawn(Box::pin(async move {
            while let Some((node, reply)) = requests.next().await {
                for (request, answer) in batch.iter().zip(reply.unwrap_or_default()) {
                    state.record_reply(node, &answer);
                    let now = state.environment.now();
                    let grant = state.grants.live(&request.resource, request.owner, now);
                    let lacks = |grant: Arc<VoteRequest>| {
                        answer.is_ok_and(|answer| lacks_grant(answer, grant.proposal))
                    };
                    if grant.is_some_and(lacks) {
                        state.restore_on_node(node, request).await;
                    }
                }
            }
        }));
    }

    /// Gives a lease again to one node, if this client was granted it and a majority still has it.
    async fn restore_on_node(&self, node: usize, request: &RenewRequest) {
        let now = self.environment.now();
        let Some(grant) = self.grants.live(&request.resource, request.owner, now) else { return };
        match self.nodes[node].node.join(&grant).await {
            Ok(vote) if vote.choice == VoteOutcome::NoVote => self.membership_wakeup.notify_one(),
            Ok(_) if !self.grants.is_known(&grant) => {
                // It was released meanwhile.
                drop(self.nodes[node].node.undo(&UndoRequest::of(&grant)).await);
            }
            Ok(_) => {}
            Err(error) => tracing::debug!(%error, "a lease could not be restored on a node"),
        }
    }

    /// Handles votes that come after the grant, in the background: they join the grant, or are taken back if it is over by
    /// then.
    pub(super) fn settle_late_votes(
        self: &Arc<QuorumState>,
        mut requests: NodeRequests<Result<Vote>>,
        granted: Arc<VoteRequest>,
    ) {
        if requests.is_empty() {
            return;
        }
        let (state, until) = (Arc::clone(self), self.environment.now().after(granted.ttl));
        self.environment.spawn(Box::pin(async move {
            while let Some((number, reply)) = requests.next().await {
                state.record_reply(number, &reply);
                // After a ttl, the vote has ended by itself, unless a renewal counts on it. Either way: leave it alone.
                if state.environment.now() >= until {
                    continue;
                }
                let Ok(Vote { choice: VoteOutcome::Yours { number: accepted, .. }, .. }) = reply else {
                    continue;
                };
                let (node, granted) = (Arc::clone(&state.nodes[number].node), Arc::clone(&granted));
                if !state.grants.is_known(&granted) {
                    state.undo_in_background(UndoRequest::of(&granted), vec![number], granted.ttl);
                } else if accepted != granted.proposal {
                    requests.send(number, async move { node.join(&granted).await });
                }
            }
        }));
    }
}
