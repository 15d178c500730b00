//! The verbs `renew` and `release`, and what goes on beside them.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use leasehold_core::{
    Backoff, ClaimRef, Effect, Error, ErrorKind, FencingToken, Limits, OwnerToken, ReleaseRequest, Released,
    RenewRequest, Renewal, Resource, Result, Timestamp, Verb,
    quorum_node::{
        NodeRenewal, UndoRequest, Vote, VoteOutcome, VoteRequest,
        tally::{self, RenewalDecision, majority},
    },
};
use leasehold_support::race::{Either, first};

use super::{
    Fan, Quorum, Shared,
    refuse::{too_long, unavailable},
};

/// How long a farewell is repeated to a node that does not answer. Its lock ends by itself.
const FAREWELL_MAX: Duration = Duration::from_secs(10);

/// What this client was granted: so that a node which lost it, or was away, can be given it back.
#[derive(Debug, Default)]
pub(super) struct Grants(Mutex<Remembered>);

#[derive(Debug, Default)]
struct Remembered {
    ballots: HashMap<(Resource, OwnerToken), (Arc<VoteRequest>, Timestamp)>,
    sweep_at: usize,
}

const SWEEP_MIN: usize = 64;

impl Grants {
    fn lock(&self) -> MutexGuard<'_, Remembered> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The ballot proposes the token of the grant.
    pub(super) fn remember(&self, ballot: &Arc<VoteRequest>, until: Timestamp, now: Timestamp) {
        let mut remembered = self.lock();
        if remembered.ballots.len() >= remembered.sweep_at.max(SWEEP_MIN) {
            remembered.ballots.retain(|_, (_, until)| *until > now);
            remembered.sweep_at = remembered.ballots.len() * 2;
        }
        remembered.ballots.insert((ballot.resource.clone(), ballot.owner), (Arc::clone(ballot), until));
    }

    fn forget(&self, resource: &Resource, owner: OwnerToken) {
        self.lock().ballots.remove(&(resource.clone(), owner));
    }

    /// The token that was granted here.
    fn token(&self, held: &RenewRequest) -> Option<FencingToken> {
        let remembered = self.lock();
        let known = remembered.ballots.get(&(held.resource.clone(), held.owner));
        known.map(|(ballot, _)| ballot.proposal)
    }

    /// The grant goes on, perhaps with another note.
    fn renewed(&self, held: &RenewRequest, token: FencingToken, until: Timestamp) {
        let mut remembered = self.lock();
        let known = remembered.ballots.get_mut(&(held.resource.clone(), held.owner));
        let Some((ballot, ends)) = known else { return };
        *ends = (*ends).max(until);
        if held.note.is_some() || ballot.ttl != held.ttl || ballot.proposal != token {
            let note = held.note.clone().or_else(|| ballot.note.clone());
            *ballot = Arc::new(VoteRequest { note, ttl: held.ttl, proposal: token, ..(**ballot).clone() });
        }
    }

    /// It was granted here, and neither given back nor lost since.
    fn is_known(&self, ballot: &VoteRequest) -> bool {
        self.lock().ballots.contains_key(&(ballot.resource.clone(), ballot.owner))
    }

    /// The grant, while a majority surely has it.
    fn live(&self, resource: &Resource, owner: OwnerToken, now: Timestamp) -> Option<Arc<VoteRequest>> {
        let remembered = self.lock();
        let (ballot, until) = remembered.ballots.get(&(resource.clone(), owner))?;
        (*until > now).then(|| Arc::clone(ballot))
    }
}

/// Whether a node does not have the grant of this token, or has it with another number.
fn is_astray(answer: NodeRenewal, token: FencingToken) -> bool {
    match answer {
        NodeRenewal::Renewed { number, .. } => number != token,
        NodeRenewal::Gone { .. } => true,
        NodeRenewal::TooLong { .. } => false,
    }
}

impl Shared {
    pub(super) async fn renew(
        self: &Arc<Shared>,
        held: &[RenewRequest],
        limits: &Limits,
    ) -> Vec<Result<Renewal>> {
        if held.is_empty() {
            return Vec::new();
        }
        let refusal = |held: &RenewRequest| {
            let long = held.note.as_ref().is_some_and(|note| note.len() > limits.note);
            let gate = self.condition().gate;
            let message = || format!("a note has at most {} bytes", limits.note);
            let limit = long.then(|| Error::new(ErrorKind::Limit, message()));
            limit.or_else(|| (held.ttl > gate).then(|| too_long(gate)))
        };
        let refusals: Vec<Option<Error>> = held.iter().map(refusal).collect();
        let asked =
            held.iter().zip(&refusals).filter(|(_, refusal)| refusal.is_none()).map(|(held, _)| held.clone());
        let asked: Vec<RenewRequest> = asked.collect();
        let mut outcomes = self.renew_all(&asked).await.into_iter();
        let outcome = |refusal: Option<Error>| match refusal {
            Some(error) => Err(error),
            None => outcomes.next().unwrap_or_else(|| Err(unavailable("no node answered".to_owned()))),
        };
        refusals.into_iter().map(outcome).collect()
    }

    async fn renew_all(self: &Arc<Shared>, held: &[RenewRequest]) -> Vec<Result<Renewal>> {
        let Some(shortest) = held.iter().map(|held| held.ttl).min() else { return Vec::new() };
        let started = self.environment.now();
        let batch: Arc<[RenewRequest]> = held.into();
        let mut fan = Fan::new();
        for (number, slot) in self.slots.iter().enumerate() {
            let (node, batch) = (Arc::clone(&slot.node), Arc::clone(&batch));
            fan.ask(number, async move { Ok(node.renew(&batch).await) });
        }
        // One row for each lease, one column for each node.
        let mut answers = vec![vec![None; self.size()]; held.len()];
        let mut timer = self.environment.sleep(Shared::patience(shortest));
        let mut undecided: Vec<usize> = (0..held.len()).collect();
        while !undecided.is_empty() {
            match first(fan.next(), &mut timer).await {
                Either::Left(Some((node, rows))) => self.take_renewals(&mut answers, node, rows),
                Either::Left(None) => break,
                Either::Right(()) => {
                    for row in &mut answers {
                        row.iter_mut().for_each(|answer| *answer = Some(answer.flatten()));
                    }
                    break;
                }
            }
            undecided.retain(|&lease| tally::decide_renewal(&answers[lease], None).is_none());
        }
        let renewals =
            held.iter().zip(&answers).map(|(held, row)| self.renewal(held, row, started)).collect();
        self.finish_renewals(fan, batch);
        renewals
    }

    /// A majority has answered. What the others say decides nothing, but one of them may have lost a lease.
    fn finish_renewals(
        self: &Arc<Shared>,
        mut fan: Fan<Result<Vec<Result<NodeRenewal>>>>,
        batch: Arc<[RenewRequest]>,
    ) {
        if fan.is_empty() {
            return;
        }
        let shared = Arc::clone(self);
        self.environment.spawn(Box::pin(async move {
            while let Some((node, rows)) = fan.next().await {
                for (held, answer) in batch.iter().zip(rows.unwrap_or_default()) {
                    shared.heard(node, &answer);
                    let known = shared.grants.live(&held.resource, held.owner, shared.environment.now());
                    let astray =
                        |ballot: Arc<VoteRequest>| answer.is_ok_and(|it| is_astray(it, ballot.proposal));
                    if known.is_some_and(astray) {
                        shared.give_again(node, held).await;
                    }
                }
            }
        }));
    }

    fn take_renewals(
        &self,
        answers: &mut [Vec<Option<Option<NodeRenewal>>>],
        node: usize,
        rows: Result<Vec<Result<NodeRenewal>>>,
    ) {
        let mut rows = rows.unwrap_or_default().into_iter();
        for (index, row) in answers.iter_mut().enumerate() {
            let answer = rows.next().unwrap_or_else(|| Err(unavailable("it did not answer".to_owned())));
            if index == 0 {
                self.heard(node, &answer);
            }
            row[node] = Some(answer.ok());
        }
    }

    fn renewal(
        self: &Arc<Shared>,
        held: &RenewRequest,
        row: &[Option<Option<NodeRenewal>>],
        started: Timestamp,
    ) -> Result<Renewal> {
        match tally::decide_renewal(row, self.grants.token(held)).unwrap_or(RenewalDecision::Unreachable) {
            RenewalDecision::Renewed { token, remaining } => {
                self.grants.renewed(held, token, started.after(remaining));
                self.rejoin(held, token, row);
                Ok(Renewal::Renewed(leasehold_core::Renewed::new(token, remaining)))
            }
            RenewalDecision::Gone { why } => {
                self.grants.forget(&held.resource, held.owner);
                Ok(Renewal::Gone { why })
            }
            RenewalDecision::TooLong { gate } => Err(too_long(gate)),
            RenewalDecision::Unreachable => {
                let silent = row.iter().filter(|answer| answer.flatten().is_none()).count();
                let message = format!("{silent} of {} nodes did not answer a renewal", self.size());
                let error = unavailable(message).with_effect(Effect::Unknown);
                Err(error.at(Verb::Renew, Quorum::NAME).on(&held.resource))
            }
        }
    }

    /// Gives the lease back to nodes that do not have it, while a majority has: one that was restarted, or was away
    /// when it was granted. Otherwise a lease that is held for long would lose one after the other. Those that have it
    /// with another number are told the token.
    fn rejoin(
        self: &Arc<Shared>,
        held: &RenewRequest,
        token: FencingToken,
        row: &[Option<Option<NodeRenewal>>],
    ) {
        let mut fan = Fan::new();
        for (node, answer) in row.iter().enumerate() {
            if answer.flatten().is_some_and(|answer| is_astray(answer, token)) {
                let (shared, held) = (Arc::clone(self), held.clone());
                fan.ask(node, async move {
                    shared.give_again(node, &held).await;
                    Ok(())
                });
            }
        }
        self.finish(fan);
    }

    /// Votes that come in beside the caller join the grant; or they are given back, if it is over by then.
    pub(super) fn settle(self: &Arc<Shared>, mut fan: Fan<Result<Vote>>, ballot: Arc<VoteRequest>) {
        if fan.is_empty() {
            return;
        }
        let (shared, until) = (Arc::clone(self), self.environment.now().after(ballot.ttl));
        self.environment.spawn(Box::pin(async move {
            while let Some((number, answer)) = fan.next().await {
                shared.heard(number, &answer);
                // Later than that it has ended by itself, unless a renewal counts on it: leave it alone.
                if shared.environment.now() >= until {
                    continue;
                }
                let Ok(Vote { choice: VoteOutcome::Yours { number: accepted, .. }, .. }) = answer else {
                    continue;
                };
                let (node, ballot) = (Arc::clone(&shared.slots[number].node), Arc::clone(&ballot));
                if !shared.grants.is_known(&ballot) {
                    shared.sweep(UndoRequest::of(&ballot), vec![number], ballot.ttl);
                } else if accepted != ballot.proposal {
                    fan.ask(number, async move { node.join(&ballot).await });
                }
            }
        }));
    }

    /// Gives a lease back to one node, if it was granted here and a majority still has it.
    async fn give_again(&self, node: usize, held: &RenewRequest) {
        let now = self.environment.now();
        let Some(ballot) = self.grants.live(&held.resource, held.owner, now) else { return };
        match self.slots[node].node.join(&ballot).await {
            Ok(vote) if vote.choice == VoteOutcome::NoVote => self.tending.notify_one(),
            Ok(_) if !self.grants.is_known(&ballot) => {
                // Given back meanwhile.
                drop(self.slots[node].node.undo(&UndoRequest::of(&ballot)).await);
            }
            Ok(_) => {}
            Err(error) => tracing::debug!(%error, "a node could not be given a lease again"),
        }
    }

    pub(super) async fn release(self: &Arc<Shared>, request: &ReleaseRequest) -> Result<Released> {
        if request.keep_for.is_some_and(|keep_for| !keep_for.is_zero()) {
            return Err(super::unsupported("a quorum has no way to stay closed after a release"));
        }
        self.grants.forget(&request.resource, request.owner);
        let ReleaseRequest { resource, owner, tombstone, .. } = request.clone();
        let undo = UndoRequest { resource, owner, attempt: None, tombstone };
        let mut fan = self.undo_fan(&undo, &(0..self.size()).collect::<Vec<_>>());
        let mut answers: Vec<Option<bool>> = vec![None; self.size()];
        let mut failed = Vec::new();
        // As long as a connection may take to be made; the caller has a limit of its own.
        let mut timer = self.environment.sleep(Duration::from_secs(3));
        while answers.iter().flatten().count() < majority(self.size()) {
            match first(fan.next(), &mut timer).await {
                Either::Left(Some((node, answer))) => {
                    self.heard(node, &answer);
                    match answer {
                        Ok(there) => answers[node] = Some(there),
                        Err(_) => failed.push(node),
                    }
                }
                Either::Left(None) | Either::Right(()) => break,
            }
        }
        self.finish_farewell(undo, fan, failed);
        let answered = answers.iter().flatten().count();
        if answered >= majority(self.size()) {
            let was_there = tally::was_there(&answers);
            return Ok(if was_there { Released::Now } else { Released::AlreadyGone });
        }
        let message = format!("{} of {} nodes did not answer a request", self.size() - answered, self.size());
        let at = ClaimRef { resource: request.resource.clone(), owner: request.owner };
        Err(unavailable(message)
            .with_effect(Effect::Unknown)
            .at(Verb::Release, Quorum::NAME)
            .on(&at.resource))
    }

    fn undo_fan(&self, undo: &UndoRequest, nodes: &[usize]) -> Fan<Result<bool>> {
        let undo = Arc::new(undo.clone());
        let mut fan = Fan::new();
        for &number in nodes {
            let (node, undo) = (Arc::clone(&self.slots[number].node), Arc::clone(&undo));
            fan.ask(number, async move { node.undo(&undo).await });
        }
        fan
    }

    /// Undoes on these nodes; says which have not answered in time.
    pub(super) async fn undo_now(
        self: &Arc<Shared>,
        undo: &UndoRequest,
        nodes: &[usize],
        at_most: Duration,
    ) -> Vec<usize> {
        let mut left = nodes.to_vec();
        let mut fan = self.undo_fan(undo, nodes);
        let mut timer = self.environment.sleep(at_most);
        while let Either::Left(Some((node, answer))) = first(fan.next(), &mut timer).await {
            self.heard(node, &answer);
            if answer.is_ok() {
                left.retain(|other| *other != node);
            }
        }
        left
    }

    /// Undoes on these nodes beside the caller, again and again until each has answered or what is to be undone has
    /// ended by itself.
    pub(super) fn sweep(self: &Arc<Shared>, undo: UndoRequest, nodes: Vec<usize>, at_most: Duration) {
        let shared = Arc::clone(self);
        self.environment.spawn(Box::pin(async move { shared.sweep_now(&undo, nodes, at_most).await }));
    }

    async fn sweep_now(self: &Arc<Shared>, undo: &UndoRequest, mut nodes: Vec<usize>, at_most: Duration) {
        let until = self.environment.now().after(at_most);
        let mut backoff = Backoff::new();
        loop {
            nodes = self.undo_now(undo, &nodes, Duration::from_secs(3)).await;
            if nodes.is_empty() || self.environment.now() >= until {
                return;
            }
            self.environment.sleep(backoff.next(self.environment.random())).await;
        }
    }

    /// A majority knows: the others are told beside the caller. However late that is, it hurts nobody: an owner that has
    /// said farewell does not ask again.
    fn finish_farewell(
        self: &Arc<Shared>,
        undo: UndoRequest,
        mut fan: Fan<Result<bool>>,
        mut failed: Vec<usize>,
    ) {
        if fan.is_empty() && failed.is_empty() {
            return;
        }
        let shared = Arc::clone(self);
        self.environment.spawn(Box::pin(async move {
            while let Some((node, answer)) = fan.next().await {
                shared.heard(node, &answer);
                if answer.is_err() {
                    failed.push(node);
                }
            }
            if !failed.is_empty() {
                shared.sweep_now(&undo, failed, FAREWELL_MAX).await;
            }
        }));
    }
}
