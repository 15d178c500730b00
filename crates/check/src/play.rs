//! How a moment becomes the next one: what a client, a node and a caretaker do, decided by core's own code.

use std::sync::Arc;

use leasehold_core::quorum_node::{
    BirthMark, Health, NodeRenewal, Vote, VoteOutcome, VoterStatus, founding,
    membership::{self, MembershipStep},
    tally::{self, Decision, NodeAnswer, RenewalDecision},
};
use leasehold_core::{GoneReason, WallTime};

use crate::{
    model::Step,
    node::{Heard, attempt, small, ticks, token, whole_ticks},
    setup::{Clocks, GATE, LeftOut, Setup, TTL},
    state::{Attempt, Care, Link, Marks, Phase, Renewal, State},
};

impl Setup {
    pub(crate) fn take(&self, state: &mut State, step: Step) {
        match step {
            Step::Begin(claim) => self.begin(state, claim),
            Step::Execute { node, claim, round } => self.execute(state, node, claim, round),
            Step::Hear { node, claim } => self.hear(state, node, claim),
            Step::ClaimGreatest(claim) => self.claim_greatest(state, claim),
            Step::Leave(claim) => self.leave(state, claim),
            Step::Undo { node, claim } => {
                state.columns[node].links[claim].undo = false;
                let now = self.clock(state);
                state.columns[node].node.undo(now, claim);
            }
            Step::Renew(claim) => self.renew(state, claim),
            Step::ExecuteRenewal { node, claim } => self.execute_renewal(state, node, claim),
            Step::HearRenewal { node, claim } => self.hear_renewal(state, node, claim),
            Step::Join { node, claim } => {
                let now = self.clock(state);
                let column = &mut state.columns[node];
                let token = std::mem::take(&mut column.links[claim].join);
                column.node.join(now, claim, token);
            }
            Step::Tick => self.tick(state),
            Step::Jump(node) => {
                let now = self.clock(state);
                state.columns[node].node.drop_lock(now);
            }
            Step::Forget(node, how) => {
                state.losses += 1;
                state.columns[node].forgetful = true;
                state.columns[node].node.lose(state.now, how);
                if self.left_out == Some(LeftOut::Quarantine) {
                    state.columns[node].node.mark_as_voting(state.now, self.nodes);
                }
            }
            Step::Look { node, at } => self.look(state, node, at),
            Step::Write { node, by } => self.write(state, node, by),
        }
    }

    fn begin(&self, state: &mut State, at: usize) {
        let (began, above) = (state.now, state.greatest());
        state.claims[at] = Attempt { phase: Phase::Asking, began, sent: began, above, ..Attempt::default() };
        for column in &mut state.columns {
            column.links[at].asks[0] = 1;
        }
    }

    /// What the clock of a node shows when it decides about locks. Where clocks are wild it may as well stand still: that makes
    /// fewer moments, and locks end when the clock jumps.
    pub(crate) fn clock(&self, state: &State) -> u8 {
        if self.clocks == Clocks::Wild { 0 } else { state.now }
    }

    fn execute(&self, state: &mut State, node: usize, claim: usize, round: usize) {
        let (now, attempt) = (self.clock(state), state.claims[claim]);
        let column = &mut state.columns[node];
        let number = std::mem::take(&mut column.links[claim].asks[round]);
        match self.left_out {
            Some(LeftOut::Lock) => column.node.drop_lock(now),
            Some(LeftOut::OwnerCheck) => column.node.allow_last_number_again(now),
            _ => {}
        }
        let heard = if round == 0 {
            column.node.vote(now, claim, number)
        } else {
            column.node.claim(now, claim, number)
        };
        // Who has the lock matters to later rounds alone: without them, the clock may as well jump at once.
        if self.clocks == Clocks::Wild && self.rounds == 1 {
            column.node.drop_lock(now);
        }
        // Nobody waits for the answer to an earlier round.
        if attempt.phase == Phase::Asking && usize::from(attempt.round) == round {
            column.links[claim].answer = heard;
        }
    }

    fn decide(&self, state: &State, claim: usize) -> Decision {
        let answers: Vec<NodeAnswer> =
            state.columns.iter().map(|column| answer(column.links[claim].heard)).collect();
        if self.left_out == Some(LeftOut::Majority) {
            // Counts as if only some of the nodes were there, of which one less than a real majority is a majority.
            let fewer = 2 * (tally::majority(answers.len()) - 1) - 1;
            let granted = answers.windows(fewer).map(|some| tally::decide(some, attempt(claim)));
            if let Some(decision) = granted.into_iter().find(|it| matches!(it, Decision::Granted { .. })) {
                return decision;
            }
        }
        tally::decide(&answers, attempt(claim))
    }

    fn hear(&self, state: &mut State, node: usize, claim: usize) {
        let link = &mut state.columns[node].links[claim];
        link.heard = std::mem::take(&mut link.answer);
        if let Decision::Granted { token, remaining } = self.decide(state, claim) {
            self.grant(state, claim, small(token), whole_ticks(remaining));
        }
    }

    fn grant(&self, state: &mut State, at: usize, token: u8, remaining: u8) {
        let claim = &mut state.claims[at];
        state.seen.twice |= state.granted & (1 << token) != 0;
        state.seen.inverted |= token <= claim.above;
        state.seen.claimed |= claim.round > 0;
        state.granted |= 1 << token;
        claim.phase = Phase::Held;
        let counted_from = if self.left_out == Some(LeftOut::Validity) { state.now } else { claim.began };
        (claim.until, claim.token) = (counted_from + remaining, token);
        for column in &mut state.columns {
            let link = &mut column.links[at];
            (link.answer, link.heard) = (Heard::Nothing, Heard::Nothing);
        }
        if self.clocks == Clocks::Wild {
            self.leave(state, at);
        }
    }

    /// The number to claim, if there is one and a round is left.
    pub(crate) fn may_claim(&self, state: &State, at: usize) -> Option<u8> {
        let left = usize::from(state.claims[at].round) + 1 < self.rounds;
        match self.decide(state, at) {
            Decision::Claim { number } if left => Some(small(number)),
            _ => None,
        }
    }

    fn claim_greatest(&self, state: &mut State, at: usize) {
        let Some(number) = self.may_claim(state, at) else { return };
        state.claims[at].round += 1;
        state.claims[at].sent = state.now;
        let round = usize::from(state.claims[at].round);
        for column in &mut state.columns {
            let link = &mut column.links[at];
            link.asks[round] = number;
            (link.answer, link.heard) = (Heard::Nothing, Heard::Nothing);
        }
    }

    /// It is over for its client; what it has sent is still on the wire.
    fn leave(&self, state: &mut State, at: usize) {
        state.claims[at] = Attempt { phase: Phase::Over, ..Attempt::default() };
        for column in &mut state.columns {
            let Link { asks, join, .. } = column.links[at];
            let renewal =
                if column.links[at].renewal == Renewal::Sent { Renewal::Sent } else { Renewal::None };
            let undo = self.clocks == Clocks::Sound;
            column.links[at] = Link { asks, undo, join, renewal, ..Link::default() };
        }
    }

    fn tick(&self, state: &mut State) {
        state.now += 1;
        for at in 0..self.claims {
            let claim = state.claims[at];
            let ends = match claim.phase {
                Phase::Asking if self.left_out == Some(LeftOut::Validity) => u8::MAX,
                Phase::Asking => claim.began + TTL,
                Phase::Held => claim.until,
                Phase::Unborn | Phase::Over => continue,
            };
            if state.now >= ends {
                self.leave(state, at);
            }
        }
    }

    fn renew(&self, state: &mut State, at: usize) {
        let claim = &mut state.claims[at];
        (claim.sent, claim.renewals) = (state.now, claim.renewals + 1);
        for column in &mut state.columns {
            column.links[at].renewal = Renewal::Sent;
        }
    }

    fn execute_renewal(&self, state: &mut State, node: usize, claim: usize) {
        let column = &mut state.columns[node];
        let kept = match column.node.renew(state.now, claim) {
            Some(NodeRenewal::Renewed { number, remaining }) => Some((small(number), whole_ticks(remaining))),
            _ => None,
        };
        let waits = state.claims[claim].phase == Phase::Held;
        column.links[claim].renewal = if waits { Renewal::Executed(kept) } else { Renewal::None };
    }

    fn hear_renewal(&self, state: &mut State, node: usize, claim: usize) {
        let link = &mut state.columns[node].links[claim];
        let Renewal::Executed(kept) = link.renewal else { return };
        link.renewal = Renewal::Heard(kept);
        let answers: Vec<_> =
            state.columns.iter().map(|column| renewed(column.links[claim].renewal)).collect();
        match tally::decide_renewal(&answers, Some(token(state.claims[claim].token))) {
            None => return,
            Some(RenewalDecision::Renewed { remaining, .. }) => {
                let attempt = &mut state.claims[claim];
                attempt.until = attempt.until.max(attempt.sent + whole_ticks(remaining));
                let token = attempt.token;
                for column in &mut state.columns {
                    let link = &mut column.links[claim];
                    link.join = if link.renewal == Renewal::Heard(None) { token } else { 0 };
                }
            }
            Some(RenewalDecision::Gone { .. }) => return self.leave(state, claim),
            Some(RenewalDecision::TooLong { .. } | RenewalDecision::Unreachable) => {}
        }
        for column in &mut state.columns {
            column.links[claim].renewal = Renewal::None;
        }
    }

    /// Which nodes a caretaker may look at for the sake of one: all, or all but one other.
    pub(crate) fn looks(&self, node: usize) -> impl Iterator<Item = u8> + use<'_> {
        let all = u8::MAX >> (8 - self.nodes);
        let without =
            (0..self.nodes).filter(move |other| *other != node).map(move |other| all & !(1 << other));
        let without = without.filter(move |_| self.caretakers > 1);
        std::iter::once(all).chain(without)
    }

    fn look(&self, state: &mut State, node: usize, at: u8) {
        let now = state.now;
        let mut healths: Vec<Option<Health>> = state
            .columns
            .iter()
            .enumerate()
            .map(|(number, column)| (at & (1 << number) != 0).then(|| named(column.node.health(now), number)))
            .collect();
        if self.left_out == Some(LeftOut::Waiting) {
            healths.iter_mut().flatten().for_each(skip_the_gate);
        }
        let Ok(plan) = membership::plan(&healths, Some(ticks(GATE))) else { return };
        // An operator may run the founding command at any time, on a set that is in use.
        let founding = founding::plan(&healths, None).map_or(Vec::new(), |plan| plan.steps);
        for step in plan.steps.into_iter().chain(founding) {
            let (target, from, expected, new) = match step {
                MembershipStep::Mark { node, expected, new } => (node, Vec::new(), expected, new),
                MembershipStep::Recover { node, from, expected, new } => (node, from, Some(expected), new),
            };
            if target != node {
                continue;
            }
            let read =
                from.iter().filter_map(|other| state.columns[*other].node.last(self.clock(state))).max();
            let floor = if self.left_out == Some(LeftOut::Reading) { None } else { read };
            let marks = Marks { expected: expected.map(unnamed), new: unnamed(new) };
            let care = Some(Arc::new(Care { floor, marks }));
            let writes = &mut state.columns[node].care;
            if writes[0] != care {
                let free = usize::from(writes[0].is_some());
                writes[free] = care;
                writes.sort_unstable_by(|a, b| b.cmp(a));
            }
        }
    }

    fn write(&self, state: &mut State, node: usize, by: usize) {
        let now = self.clock(state);
        let column = &mut state.columns[node];
        let Some(care) = column.care[by].take() else { return };
        column.care.sort_unstable_by(|a, b| b.cmp(a));
        column.node.raise(now, care.floor);
        column.node.mark(care.marks.expected.as_ref(), &care.marks.new);
        let health = column.node.health(state.now);
        let votes = |mark: &BirthMark| mark.standing == VoterStatus::Voting && mark.run == health.run;
        if health.mark.as_ref().is_some_and(votes) {
            (column.forgetful, state.seen.readmitted) = (false, true);
        }
    }
}

/// As core wants to hear it.
fn answer(heard: Heard) -> NodeAnswer {
    let vote = |choice| NodeAnswer::Vote(Vote { now: WallTime::default(), choice });
    match heard {
        Heard::Nothing => NodeAnswer::Pending,
        Heard::Yours { number, remaining } => {
            vote(VoteOutcome::Yours { number: token(number), remaining: ticks(remaining) })
        }
        Heard::Held { .. } | Heard::No => vote(VoteOutcome::NoVote),
    }
}

fn renewed(renewal: Renewal) -> Option<Option<NodeRenewal>> {
    match renewal {
        Renewal::Heard(Some((number, remaining))) => {
            Some(Some(NodeRenewal::Renewed { number: token(number), remaining: ticks(remaining) }))
        }
        Renewal::Heard(None) => Some(Some(NodeRenewal::Gone { why: GoneReason::NotThere })),
        Renewal::None | Renewal::Sent | Renewal::Executed(_) => None,
    }
}

/// Nodes have no names here, so that those which are alike are one. A caretaker tells servers apart by their runs.
fn named(mut health: Health, number: usize) -> Health {
    let name = |run: &mut String| *run = format!("{number}/{run}");
    name(&mut health.run);
    health.mark.iter_mut().for_each(|mark| name(&mut mark.run));
    health
}

/// To a caretaker it looks as if the gate were over.
fn skip_the_gate(health: &mut Health) {
    let waits = |mark: &BirthMark| matches!(mark.standing, VoterStatus::Quarantined { .. });
    if health.mark.as_ref().is_some_and(waits) {
        health.now = health.now.after(ticks(GATE));
    }
}

fn unnamed(mut mark: BirthMark) -> BirthMark {
    mark.run = mark.run.split_once('/').map_or(mark.run.clone(), |(_, run)| run.to_owned());
    mark
}
