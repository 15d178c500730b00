//! Acquire over a quorum: ask all nodes at once, and grant as soon as a majority is certain.
//!
//! 1. Choose an attempt id and a token to propose. Ask every node for its vote, but leave out nodes that failed a short
//!    while ago if there is a majority without them.
//! 2. After each reply, [`tally::decide`] says what to do next:
//!    - `Granted`: a majority gave the same token. Done.
//!    - `Claim`: a majority gave the lock, but with different numbers. Ask for the greatest of them on all nodes.
//!    - `Propose`: the proposal is too far from the clocks of the nodes. Propose again, once, by their clocks.
//!    - `Contested`: the vote is split, and this attempt has the most votes. Pause, and ask the other nodes again.
//!    - `Blocked`, `Cancelled`, and errors: stop.
//!    - `Wait`: wait for the next reply. Nodes that do not reply in a tenth of the ttl count as silent.
//! 3. Granted: remember the grant, and tell the token to nodes that gave another number. Late replies are handled in the
//!    background ([`renew`](super::renew)).
//! 4. Not granted: take back the votes of this attempt ([`undo`](super::undo)). Where a vote went unanswered, leave a
//!    tombstone for the attempt, so that a late request does not take the lock.
//!
//! Votes belong to an attempt, not to the owner (ADR 0017): the owner may ask again while an earlier attempt is being
//! undone.

use std::{sync::Arc, time::Duration};

use leasehold_core::{
    Blocked, Claim, Effect, Error, ErrorKind, FencingToken, ForeignLock, Grant, HeldBy, Limits,
    ReleaseRequest, Result, Timestamp, Verdict,
    backoff::jitter,
    clock::Task,
    quorum_node::{
        Vote, VoteOutcome, VoteRequest,
        tally::{self, Decision, NodeAnswer},
    },
};
use leasehold_support::race::{Either, first};

use super::{
    NodeRequests, QuorumState,
    checks::{ttl_above_gate, unavailable},
};

/// How often a split vote is repeated before this attempt gives up.
const CONTESTS_MAX: u32 = 6;
/// How often a greater number may be claimed.
const CLAIMS_MAX: u32 = 8;
/// How often a token may be proposed again by the clocks of the nodes.
const PROPOSALS_MAX: u32 = 1;
/// The first pause in a split vote: about a round trip, in which the other attempts take back their votes.
const CONTEST_PAUSE: Duration = Duration::from_millis(4);
/// How soon nodes that another claim holds are asked again, while other nodes do not reply. A release may have reached
/// them by then.
const ASK_HELD_AGAIN: Duration = Duration::from_millis(50);
/// How long to wait for late replies after an error. The more is known, the fewer tombstones are needed.
const LATE_REPLIES_MAX: Duration = Duration::from_millis(100);

/// How much shorter a grant is than the locks of its nodes: clocks may run at different speeds.
fn clock_drift(remaining: Duration) -> Duration {
    remaining / 100 + Duration::from_millis(2)
}

pub(super) fn is_ours(outcome: &VoteOutcome) -> bool {
    matches!(outcome, VoteOutcome::Yours { .. })
}

fn is_held(outcome: &VoteOutcome) -> bool {
    matches!(outcome, VoteOutcome::Held { .. } | VoteOutcome::Foreign(_))
}

/// Whether the node voted, with an outcome like this.
pub(super) fn voted(answer: &NodeAnswer, like: impl Fn(&VoteOutcome) -> bool) -> bool {
    matches!(answer, NodeAnswer::Vote(vote) if like(&vote.choice))
}

impl QuorumState {
    pub(super) async fn acquire(self: &Arc<QuorumState>, claim: &Claim, limits: &Limits) -> Result<Verdict> {
        self.check_claim(claim, limits)?;
        if let Some(from) = &claim.takes_over_from {
            // A quorum cannot hand over in one step (ADR 0017): release the predecessor, then ask.
            let mut request = ReleaseRequest::new(claim.reference());
            (request.owner, request.tombstone) = (from.owner, from.tombstone);
            self.release(&request).await?;
        }
        let mut attempt = QuorumAttempt::new(self, claim)?;
        let outcome = attempt.run().await;
        match outcome {
            Ok(Verdict::Granted(_)) => {
                attempt.record_grant();
                outcome
            }
            Ok(verdict) => {
                // Without a wait: the claim asks again soon, and late votes are undone in the background.
                attempt.take_late_replies(Duration::ZERO).await;
                attempt.undo_votes().await;
                Ok(verdict)
            }
            Err(error) => {
                attempt.take_late_replies(LATE_REPLIES_MAX).await;
                let effect = if attempt.undo_votes().await { Effect::None } else { Effect::Unknown };
                Err(error.with_effect(effect))
            }
        }
    }
}

/// One attempt to get the votes of a majority.
pub(super) struct QuorumAttempt<'a> {
    pub(super) state: &'a Arc<QuorumState>,
    pub(super) claim: &'a Claim,
    pub(super) request: Arc<VoteRequest>,
    /// The last answer of each node.
    pub(super) answers: Vec<NodeAnswer>,
    /// For each node, whether a request to it may have been executed without a reply.
    pub(super) unanswered: Vec<bool>,
    /// For each node, whether it was left out because it failed a short while ago.
    skipped: Vec<bool>,
    pub(super) requests: NodeRequests<Result<Vote>>,
    started: Timestamp,
    rounds: Rounds,
    token: Option<FencingToken>,
    /// Why a node did not vote. That a node refuses us says more than that it cannot be reached.
    failure: Option<Error>,
}

/// How often this attempt has repeated something.
#[derive(Default)]
struct Rounds {
    contests: u32,
    /// From the first claim on, nodes are asked for the number and not for their vote.
    claims: u32,
    proposals: u32,
}

/// Whether to go on.
enum Progress {
    /// The outcome of the attempt.
    Done(Result<Verdict>),
    /// A reply was taken. The time limit runs on.
    Continue,
    /// Nodes were asked again, so they get a new time limit.
    Asked,
}

impl<'a> QuorumAttempt<'a> {
    fn new(state: &'a Arc<QuorumState>, claim: &'a Claim) -> Result<QuorumAttempt<'a>> {
        let started = state.environment.now();
        let request = Arc::new(VoteRequest {
            resource: claim.resource.clone(),
            owner: claim.owner,
            attempt: state.next_attempt(claim.owner),
            ttl: claim.ttl,
            proposal: state.first_proposal(claim)?,
            holder: Arc::clone(&claim.holder),
            note: claim.note.clone(),
        });
        let size = state.size();
        let backs_off: Vec<bool> = state.nodes.iter().map(|handle| handle.is_backing_off(started)).collect();
        let others_suffice = backs_off.iter().filter(|off| !**off).count() >= tally::majority(size);
        let mut attempt = QuorumAttempt {
            state,
            claim,
            request,
            answers: vec![NodeAnswer::Silent; size],
            unanswered: vec![false; size],
            skipped: backs_off.iter().map(|off| *off && others_suffice).collect(),
            requests: NodeRequests::new(),
            started,
            rounds: Rounds::default(),
            token: None,
            failure: None,
        };
        for node in 0..size {
            if !attempt.skipped[node] {
                attempt.ask(node);
            }
        }
        Ok(attempt)
    }

    async fn run(&mut self) -> Result<Verdict> {
        let mut timer = self.node_timer();
        loop {
            match self.advance(&mut timer).await {
                Progress::Done(outcome) => return outcome,
                Progress::Asked => timer = self.node_timer(),
                Progress::Continue => {}
            }
        }
    }

    /// Does what the tally decides.
    async fn advance(&mut self, timer: &mut Task) -> Progress {
        match tally::decide(&self.answers, self.request.attempt) {
            Decision::Wait => {
                match first(self.next_reply(), timer).await {
                    Either::Left(true) => {}
                    Either::Left(false) | Either::Right(()) => self.count_pending_as_silent(),
                }
                Progress::Continue
            }
            Decision::Granted { token, remaining } => Progress::Done(self.grant(token, remaining)),
            Decision::Claim { number } => self.claim_number(number),
            Decision::Propose { clock } => self.propose_again(clock.as_micros()),
            Decision::Contested => self.contest().await,
            Decision::Blocked { by, foreign } => Progress::Done(Ok(blocked_by(by, foreign))),
            Decision::Cancelled => Progress::Done(Ok(Verdict::Cancelled)),
            Decision::TooLong { gate } => Progress::Done(Err(ttl_above_gate(gate))),
            Decision::Stopped { abstain } => Progress::Done(Err(self.state.too_few_voters(abstain))),
            Decision::Unreachable { .. } if self.ask_skipped() => Progress::Asked,
            Decision::Unreachable { .. } => Progress::Done(Err(self.unreachable())),
        }
    }

    /// The nodes gave different numbers: ask all of them for the greatest.
    fn claim_number(&mut self, number: FencingToken) -> Progress {
        if self.rounds.claims >= CLAIMS_MAX || self.is_late(self.claim.ttl) {
            let message = "the nodes did not agree on a token in time: try again";
            return Progress::Done(Err(unavailable(message.to_owned())));
        }
        self.rounds.claims += 1;
        self.set_proposal(number);
        self.ask_again(is_ours);
        Progress::Asked
    }

    /// The proposal is too far from the clocks of the nodes: propose by their clocks.
    fn propose_again(&mut self, clock_micros: u64) -> Progress {
        if self.rounds.proposals >= PROPOSALS_MAX {
            return Progress::Done(Err(self.proposal_refused()));
        }
        self.rounds.proposals += 1;
        match FencingToken::propose(self.claim.floor, clock_micros) {
            Ok(proposal) => self.set_proposal(proposal),
            Err(error) => return Progress::Done(Err(error)),
        }
        self.ask_again(|outcome| matches!(outcome, VoteOutcome::Far));
        Progress::Asked
    }

    /// The vote is split. Pause, so that the other attempts take back their votes, and ask those nodes again.
    async fn contest(&mut self) -> Progress {
        if self.rounds.contests >= CONTESTS_MAX || self.is_late(self.claim.ttl) {
            return Progress::Done(Ok(Verdict::Blocked(Blocked::default())));
        }
        let environment = &self.state.environment;
        let longest = CONTEST_PAUSE * (1 << self.rounds.contests);
        let longest = longest.min(QuorumState::node_timeout(self.claim.ttl));
        environment.sleep(jitter(longest, environment.random())).await;
        self.rounds.contests += 1;
        self.ask_again(|outcome| !is_ours(outcome));
        Progress::Asked
    }

    fn grant(&mut self, token: FencingToken, remaining: Duration) -> Result<Verdict> {
        if self.is_late(remaining) {
            let message = "a majority agreed, but so late that little of the ttl is left: try again";
            return Err(unavailable(message.to_owned()));
        }
        // The engine counts from when it sent the request, and subtracts its own margin for the drift.
        self.token = Some(token);
        Ok(Verdict::Granted(Grant::new(token, remaining)))
    }

    fn is_late(&self, remaining: Duration) -> bool {
        let elapsed = self.started.until(self.state.environment.now());
        elapsed + clock_drift(remaining) >= remaining
    }

    fn set_proposal(&mut self, number: FencingToken) {
        self.request = Arc::new(VoteRequest { proposal: number, ..(*self.request).clone() });
    }
}

fn blocked_by(holder: Option<Box<HeldBy>>, foreign: Option<Box<ForeignLock>>) -> Verdict {
    let mut blocked = Blocked::default();
    let foreign_end = foreign.as_ref().and_then(|lock| lock.remaining);
    blocked.changes_in = holder.as_ref().map(|by| by.remaining).or(foreign_end);
    blocked.foreign = foreign.map(|lock| *lock);
    blocked.holders = holder.into_iter().map(|by| *by).collect();
    Verdict::Blocked(blocked)
}

/// Asks nodes, and takes their replies.
impl QuorumAttempt<'_> {
    fn node_timer(&self) -> Task {
        self.state.environment.sleep(QuorumState::node_timeout(self.claim.ttl))
    }

    /// Asks a node for its vote; once numbers are claimed, asks a node that gave its vote for the number.
    fn ask(&mut self, node: usize) {
        let (asked, request) = (Arc::clone(&self.state.nodes[node].node), Arc::clone(&self.request));
        let gave_vote = voted(&self.answers[node], is_ours);
        self.answers[node] = NodeAnswer::Pending;
        if self.rounds.claims > 0 && gave_vote {
            self.requests.send(node, async move { asked.claim(&request).await });
        } else {
            let state = Arc::clone(self.state);
            self.requests.send(node, async move {
                state.check_node(node).await?;
                asked.vote(&request).await
            });
        }
    }

    /// Asks the nodes again whose vote had an outcome like this.
    fn ask_again(&mut self, like: impl Fn(&VoteOutcome) -> bool) {
        for node in 0..self.answers.len() {
            if voted(&self.answers[node], &like) {
                self.ask(node);
            }
        }
    }

    /// Asks the nodes that were left out: there is no majority without them. Says whether there were any.
    fn ask_skipped(&mut self) -> bool {
        let skipped: Vec<usize> = (0..self.skipped.len()).filter(|&node| self.skipped[node]).collect();
        for &node in &skipped {
            self.skipped[node] = false;
            self.ask(node);
        }
        !skipped.is_empty()
    }

    /// Takes the next reply; false if no more replies will come.
    ///
    /// If no reply comes for a while, asks the nodes again that another claim holds: a release reaches one node before
    /// the other.
    async fn next_reply(&mut self) -> bool {
        let any_held = self.answers.iter().any(|answer| voted(answer, is_held));
        let next = if any_held {
            match first(self.requests.next(), self.state.environment.sleep(ASK_HELD_AGAIN)).await {
                Either::Left(next) => next,
                Either::Right(()) => {
                    self.ask_again(is_held);
                    return true;
                }
            }
        } else {
            self.requests.next().await
        };
        let Some((node, reply)) = next else { return false };
        self.take_reply(node, reply);
        true
    }

    fn take_reply(&mut self, node: usize, reply: Result<Vote>) {
        self.state.record_reply(node, &reply);
        match reply {
            Ok(vote) => self.take_vote(node, vote),
            Err(error) => {
                self.unanswered[node] |= error.effect() == Effect::Unknown;
                tracing::debug!(node = self.state.nodes[node].node.name(), %error, "a node did not vote");
                self.answers[node] = NodeAnswer::Silent;
                let refuses = |error: &Error| error.kind() != ErrorKind::Unavailable;
                if refuses(&error) || !self.failure.as_ref().is_some_and(refuses) {
                    self.failure = Some(error);
                }
            }
        }
    }

    fn take_vote(&mut self, node: usize, vote: Vote) {
        // The node answered the request of an earlier round, with a smaller number.
        let is_outdated = match vote.choice {
            VoteOutcome::Yours { number, .. } => self.rounds.claims > 0 && number < self.request.proposal,
            _ => false,
        };
        if vote.choice == VoteOutcome::NoVote {
            self.state.membership_wakeup.notify_one();
        }
        self.answers[node] = NodeAnswer::Vote(vote);
        if is_outdated {
            self.ask(node);
        }
    }

    /// Nodes that have not replied in time count as silent.
    fn count_pending_as_silent(&mut self) {
        for node in 0..self.answers.len() {
            if self.answers[node] == NodeAnswer::Pending {
                self.answers[node] = NodeAnswer::Silent;
                self.state.nodes[node].record_failure(&*self.state.environment);
            }
        }
    }

    /// The attempt has failed. Takes the replies that are there, or that come soon.
    async fn take_late_replies(&mut self, at_most: Duration) {
        let mut timer = self.state.environment.sleep(at_most);
        loop {
            let next = if at_most.is_zero() {
                first(self.requests.next(), std::future::ready(())).await
            } else {
                first(self.requests.next(), &mut timer).await
            };
            let Either::Left(Some((node, reply))) = next else { return };
            self.take_reply(node, reply);
        }
    }
}

/// What follows the decision. See `undo.rs` for an attempt that failed.
impl QuorumAttempt<'_> {
    /// Remembers the grant, and tells its token in the background to nodes that gave another number.
    fn record_grant(&mut self) {
        let Some(token) = self.token else { return };
        let granted = Arc::new(VoteRequest { proposal: token, ..(*self.request).clone() });
        let until = self.started.after(self.claim.ttl);
        self.state.grants.remember(&granted, until, self.state.environment.now());
        let has_other_number =
            |outcome: &VoteOutcome| matches!(outcome, VoteOutcome::Yours { number, .. } if *number != token);
        for node in self.state.all_nodes() {
            if voted(&self.answers[node], has_other_number) {
                let (asked, granted) = (Arc::clone(&self.state.nodes[node].node), Arc::clone(&granted));
                self.requests.send(node, async move { asked.join(&granted).await });
            }
        }
        let late = std::mem::replace(&mut self.requests, NodeRequests::new());
        self.state.settle_late_votes(late, granted);
    }

    fn unreachable(&self) -> Error {
        let silent = (0..self.answers.len()).filter(|&node| self.answers[node] == NodeAnswer::Silent);
        let (names, size) = (self.state.names(silent.clone()), self.state.size());
        let message = format!(
            "{} of {size} nodes did not vote, and the others are no majority: {names}",
            silent.count()
        );
        match &self.failure {
            Some(why) => Error::new(why.kind(), format!("{message}: {why}")).because(why.clone()),
            None => unavailable(message),
        }
    }

    /// No majority accepts the proposed token, although it was proposed again by the clocks of the nodes.
    fn proposal_refused(&self) -> Error {
        match self.claim.floor {
            Some(floor) if floor.get() + 1 == self.request.proposal.get() => Error::floor_too_high(floor),
            _ => unavailable(
                "the clocks of the nodes are too far apart, so no majority accepts a token: synchronise the clocks"
                    .to_owned(),
            ),
        }
    }
}
