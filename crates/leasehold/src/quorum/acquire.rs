//! The verb `acquire`: all nodes at once, granted as soon as a majority is certain.

use std::{sync::Arc, time::Duration};

use leasehold_core::{
    Blocked, Claim, Effect, Error, ErrorKind, FencingToken, Grant, Limits, ReleaseRequest, Result, Timestamp,
    Verdict,
    backoff::jitter,
    clock::Task,
    quorum_node::{
        UndoRequest, Vote, VoteOutcome, VoteRequest,
        tally::{self, Decision, NodeAnswer},
    },
};
use leasehold_support::race::{Either, first};

use super::{
    Fan, Shared,
    refuse::{too_long, unavailable},
};

/// How often a split vote is tried again before giving way.
const CONTESTS_MAX: u32 = 6;
/// How often numbers may have to be claimed again.
const CLAIMS_MAX: u32 = 8;
/// The first pause in a split vote: about a round trip, for the others to give way.
const CONTEST_PAUSE: Duration = Duration::from_millis(4);

/// How soon nodes that are held are asked again while others keep us waiting: they may have heard of a farewell by then.
const ASK_AGAIN: Duration = Duration::from_millis(50);
/// How long answers are waited for that cannot change the outcome.
const HEAR_OUT: Duration = Duration::from_millis(100);

/// How much less than its lock's time a grant is good for: clocks that run apart.
fn drift(remaining: Duration) -> Duration {
    remaining / 100 + Duration::from_millis(2)
}

impl Shared {
    pub(super) async fn acquire(self: &Arc<Shared>, claim: &Claim, limits: &Limits) -> Result<Verdict> {
        self.admit(claim, limits)?;
        if let Some(from) = &claim.takes_over_from {
            // Nobody stands in line here, so there is no seat to hand over: the one goes, the other asks.
            let mut request = ReleaseRequest::new(claim.reference());
            (request.owner, request.tombstone) = (from.owner, from.tombstone);
            self.release(&request).await?;
        }
        let mut seek = Seek::new(self, claim)?;
        let outcome = seek.run().await;
        match outcome {
            Ok(Verdict::Granted(_)) => {
                seek.granted();
                outcome
            }
            Ok(verdict) => {
                seek.hear_out(Duration::ZERO).await;
                seek.give_back().await;
                Ok(verdict)
            }
            Err(error) => {
                seek.hear_out(HEAR_OUT).await;
                let effect = if seek.give_back().await { Effect::None } else { Effect::Unknown };
                Err(error.with_effect(effect))
            }
        }
    }
}

/// One call of `acquire` on its way.
struct Seek<'a> {
    shared: &'a Arc<Shared>,
    claim: &'a Claim,
    ballot: Arc<VoteRequest>,
    answers: Vec<NodeAnswer>,
    /// Which nodes failed in a way that leaves open whether they executed it.
    unanswered: Vec<bool>,
    /// Which nodes were left alone.
    skipped: Vec<bool>,
    fan: Fan<Result<Vote>>,
    started: Timestamp,
    /// From the first disagreement on, numbers are claimed.
    claims: u32,
    token: Option<FencingToken>,
    /// Why a node did not vote: that it refuses us is worth more than that it is not there.
    failure: Option<Error>,
}

impl<'a> Seek<'a> {
    fn new(shared: &'a Arc<Shared>, claim: &'a Claim) -> Result<Seek<'a>> {
        let started = shared.environment.now();
        let ballot = Arc::new(VoteRequest {
            resource: claim.resource.clone(),
            owner: claim.owner,
            attempt: shared.next_attempt(claim.owner),
            ttl: claim.ttl,
            proposal: shared.proposal(claim)?,
            holder: Arc::clone(&claim.holder),
            note: claim.note.clone(),
        });
        let size = shared.size();
        let quiet: Vec<bool> = shared.slots.iter().map(|slot| slot.is_quiet(started)).collect();
        let enough = quiet.iter().filter(|quiet| !**quiet).count() >= tally::majority(size);
        let skipped: Vec<bool> = quiet.iter().map(|quiet| *quiet && enough).collect();
        let mut seek = Seek {
            shared,
            claim,
            ballot,
            answers: vec![NodeAnswer::Silent; size],
            unanswered: vec![false; size],
            skipped,
            fan: Fan::new(),
            started,
            claims: 0,
            token: None,
            failure: None,
        };
        (0..size).for_each(|node| {
            if !seek.skipped[node] {
                seek.ask(node);
            }
        });
        Ok(seek)
    }

    /// Asks a node for the lock; from the first disagreement on, for the number.
    fn ask(&mut self, node: usize) {
        let (asked, ballot) = (Arc::clone(&self.shared.slots[node].node), Arc::clone(&self.ballot));
        let holds =
            matches!(&self.answers[node], NodeAnswer::Vote(Vote { choice: VoteOutcome::Yours { .. }, .. }));
        self.answers[node] = NodeAnswer::Pending;
        if self.claims > 0 && holds {
            self.fan.ask(node, async move { asked.claim(&ballot).await });
        } else {
            self.fan.ask(node, async move { asked.vote(&ballot).await });
        }
    }

    fn timer(&self) -> Task {
        self.shared.environment.sleep(Shared::patience(self.claim.ttl))
    }

    async fn run(&mut self) -> Result<Verdict> {
        let (mut timer, mut contests, mut proposals) = (self.timer(), 0, 0);
        loop {
            match tally::decide(&self.answers, self.ballot.attempt) {
                Decision::Wait => match first(self.hear(), &mut timer).await {
                    Either::Left(true) => {}
                    Either::Left(false) | Either::Right(()) => self.silence(),
                },
                Decision::Granted { token, remaining } => return self.in_time(token, remaining),
                Decision::Claim { number } => {
                    if self.claims >= CLAIMS_MAX || self.is_late(self.claim.ttl) {
                        return Err(unavailable("the nodes did not agree on a token in time".to_owned()));
                    }
                    self.claims += 1;
                    self.propose(number);
                    self.ask_again(|choice| matches!(choice, VoteOutcome::Yours { .. }));
                    timer = self.timer();
                }
                Decision::Propose { clock } if proposals == 0 => {
                    proposals += 1;
                    self.propose(FencingToken::propose(self.claim.floor, clock.as_micros())?);
                    self.ask_again(|choice| matches!(choice, VoteOutcome::Far));
                    timer = self.timer();
                }
                Decision::Propose { .. } => return Err(self.far()),
                Decision::Contested if contests < CONTESTS_MAX && !self.is_late(self.claim.ttl) => {
                    self.pause(contests).await;
                    contests += 1;
                    self.ask_again(|choice| !matches!(choice, VoteOutcome::Yours { .. }));
                    timer = self.timer();
                }
                Decision::Contested => return Ok(Verdict::Blocked(Blocked::default())),
                Decision::Blocked { by } => {
                    let mut blocked = Blocked::default();
                    blocked.changes_in = by.as_ref().map(|by| by.remaining);
                    blocked.holders = by.into_iter().map(|by| *by).collect();
                    return Ok(Verdict::Blocked(blocked));
                }
                Decision::Cancelled => return Ok(Verdict::Cancelled),
                Decision::TooLong { gate } => return Err(too_long(gate)),
                Decision::Stopped { abstain } => return Err(self.shared.stopped(abstain)),
                Decision::Unreachable { .. } if self.ask_skipped() => timer = self.timer(),
                Decision::Unreachable { .. } => return Err(self.unreachable()),
            }
        }
    }

    /// Takes the next answer; says whether there is one to come. If nobody answers for a while, asks those again that
    /// someone else has: a farewell reaches one node before the other.
    async fn hear(&mut self) -> bool {
        let is_held = |choice: &VoteOutcome| matches!(choice, VoteOutcome::Held { .. });
        let held = |answer: &NodeAnswer| matches!(answer, NodeAnswer::Vote(vote) if is_held(&vote.choice));
        let next = if self.answers.iter().any(held) {
            match first(self.fan.next(), self.shared.environment.sleep(ASK_AGAIN)).await {
                Either::Left(next) => next,
                Either::Right(()) => {
                    self.ask_again(is_held);
                    return true;
                }
            }
        } else {
            self.fan.next().await
        };
        let Some((node, answer)) = next else { return false };
        self.take(node, answer);
        true
    }

    /// In a split vote, for the others to give way. No longer than a node may take to answer.
    fn pause(&self, contests: u32) -> Task {
        let environment = &self.shared.environment;
        let most = (CONTEST_PAUSE * (1 << contests)).min(Shared::patience(self.claim.ttl));
        environment.sleep(jitter(most, environment.random()))
    }

    fn propose(&mut self, number: FencingToken) {
        self.ballot = Arc::new(VoteRequest { proposal: number, ..(*self.ballot).clone() });
    }

    fn ask_again(&mut self, which: impl Fn(&VoteOutcome) -> bool) {
        for node in 0..self.answers.len() {
            if matches!(&self.answers[node], NodeAnswer::Vote(vote) if which(&vote.choice)) {
                self.ask(node);
            }
        }
    }

    /// Asks those that were left alone, after all. Says whether there were any.
    fn ask_skipped(&mut self) -> bool {
        let skipped: Vec<usize> = (0..self.skipped.len()).filter(|&node| self.skipped[node]).collect();
        for &node in &skipped {
            self.skipped[node] = false;
            self.ask(node);
        }
        !skipped.is_empty()
    }

    fn take(&mut self, node: usize, answer: Result<Vote>) {
        self.shared.heard(node, &answer);
        match answer {
            Ok(vote) => {
                let behind = match vote.choice {
                    VoteOutcome::Yours { number, .. } => self.claims > 0 && number < self.ballot.proposal,
                    VoteOutcome::NoVote => {
                        self.shared.tending.notify_one();
                        false
                    }
                    _ => false,
                };
                self.answers[node] = NodeAnswer::Vote(vote);
                if behind {
                    // It answers a question that is no longer asked.
                    self.ask(node);
                }
            }
            Err(error) => {
                self.unanswered[node] |= error.effect() == Effect::Unknown;
                tracing::debug!(node = self.shared.slots[node].node.name(), %error, "a node did not vote");
                self.answers[node] = NodeAnswer::Silent;
                let refuses = |error: &Error| error.kind() != ErrorKind::Unavailable;
                if refuses(&error) || !self.failure.as_ref().is_some_and(refuses) {
                    self.failure = Some(error);
                }
            }
        }
    }

    /// Whoever has not answered by now counts as silent.
    fn silence(&mut self) {
        for node in 0..self.answers.len() {
            if self.answers[node] == NodeAnswer::Pending {
                self.answers[node] = NodeAnswer::Silent;
                self.shared.slots[node].failed(&*self.shared.environment);
            }
        }
    }

    fn is_late(&self, remaining: Duration) -> bool {
        let elapsed = self.started.until(self.shared.environment.now());
        elapsed + drift(remaining) >= remaining
    }

    fn in_time(&mut self, token: FencingToken, remaining: Duration) -> Result<Verdict> {
        if self.is_late(remaining) {
            return Err(unavailable("a majority agreed, but too late: little of the ttl is left".to_owned()));
        }
        self.token = Some(token);
        Ok(Verdict::Granted(Grant::new(token, remaining)))
    }

    /// Remembers the grant, and lets the other nodes know its number beside the caller.
    fn granted(&mut self) {
        let Some(token) = self.token else { return };
        let ballot = Arc::new(VoteRequest { proposal: token, ..(*self.ballot).clone() });
        let until = self.started.after(self.claim.ttl);
        self.shared.grants.remember(&ballot, until, self.shared.environment.now());
        for node in 0..self.answers.len() {
            let NodeAnswer::Vote(Vote { choice: VoteOutcome::Yours { number, .. }, .. }) =
                &self.answers[node]
            else {
                continue;
            };
            if *number != token {
                let (asked, ballot) = (Arc::clone(&self.shared.slots[node].node), Arc::clone(&ballot));
                self.fan.ask(node, async move { asked.join(&ballot).await });
            }
        }
        self.shared.settle(std::mem::replace(&mut self.fan, Fan::new()), ballot);
    }

    /// It is decided, and not in our favour: takes the answers that are there, or come soon. The more is known, the less
    /// must be buried.
    async fn hear_out(&mut self, at_most: Duration) {
        let mut timer = self.shared.environment.sleep(at_most);
        loop {
            let next = if at_most.is_zero() {
                first(self.fan.next(), std::future::ready(())).await
            } else {
                first(self.fan.next(), &mut timer).await
            };
            let Either::Left(Some((node, answer))) = next else { return };
            self.take(node, answer);
        }
    }

    /// Gives back whatever this attempt has taken: at once where that is known, beside the caller where it may be. Says
    /// whether nothing is left of it.
    async fn give_back(&mut self) -> bool {
        let undo = UndoRequest {
            resource: self.ballot.resource.clone(),
            owner: self.ballot.owner,
            attempt: Some(self.ballot.attempt),
            tombstone: None,
        };
        let is_taken = |node: &usize| {
            matches!(&self.answers[*node], NodeAnswer::Vote(Vote { choice: VoteOutcome::Yours { .. }, .. }))
        };
        let nodes = || 0..self.answers.len();
        let taken: Vec<usize> = nodes().filter(is_taken).collect();
        let unknown: Vec<usize> = nodes().filter(|node| self.unanswered[*node] && !is_taken(node)).collect();
        // A request that is executed late must find that it was given up.
        let buried =
            UndoRequest { tombstone: Some(ReleaseRequest::tombstone_ttl(self.claim.ttl)), ..undo.clone() };
        let certain = unknown.is_empty() && self.fan.is_empty();
        if !unknown.is_empty() {
            self.shared.sweep(buried.clone(), unknown, self.claim.ttl);
        }
        self.collect_late(undo.clone(), buried);
        let failed = self.shared.undo_now(&undo, &taken, Shared::patience(self.claim.ttl)).await;
        let clean = failed.is_empty();
        if !clean {
            self.shared.sweep(undo, failed, self.claim.ttl);
        }
        certain && clean
    }

    /// Beside the caller, hears those out that have not answered, and gives back what they give.
    fn collect_late(&mut self, undo: UndoRequest, buried: UndoRequest) {
        let mut fan = std::mem::replace(&mut self.fan, Fan::new());
        if fan.is_empty() {
            return;
        }
        let (shared, ttl) = (Arc::clone(self.shared), self.claim.ttl);
        self.shared.environment.spawn(Box::pin(async move {
            while let Some((node, answer)) = fan.next().await {
                shared.heard(node, &answer);
                match answer {
                    Ok(Vote { choice: VoteOutcome::Yours { .. }, .. }) => {
                        shared.sweep(undo.clone(), vec![node], ttl);
                    }
                    Err(error) if error.effect() == Effect::Unknown => {
                        shared.sweep(buried.clone(), vec![node], ttl);
                    }
                    _ => {}
                }
            }
        }));
    }

    fn unreachable(&self) -> Error {
        let silent = (0..self.answers.len()).filter(|&node| self.answers[node] == NodeAnswer::Silent);
        let (names, size) = (self.shared.names(silent.clone()), self.shared.size());
        let message = format!(
            "{} of {size} nodes did not vote, and the others are no majority: {names}",
            silent.count()
        );
        match &self.failure {
            Some(why) => Error::new(why.kind(), format!("{message}: {why}")).because(why.clone()),
            None => unavailable(message),
        }
    }

    /// No majority accepts the token that was proposed, although it was proposed again by their clocks.
    fn far(&self) -> Error {
        match self.claim.floor {
            Some(floor) if floor.get() + 1 == self.ballot.proposal.get() => Error::floor_too_high(floor),
            _ => unavailable(
                "the clocks of the nodes are too far apart: no majority accepts a token".to_owned(),
            ),
        }
    }
}
