//! What can happen next. Whatever is late may also never come: so nothing needs to be lost.

use stateright::{Model, Property};

use crate::{
    node::Heard,
    setup::{Clocks, Loss, Setup},
    state::{Phase, Renewal, State},
};

/// Something that happens. Nodes and claims are numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A claim asks every node for its vote.
    Begin(usize),
    /// A node executes a request of a claim: its vote, or a number that it claims in a later round.
    Execute {
        /// Which node.
        node: usize,
        /// Whose request.
        claim: usize,
        /// Of which round.
        round: usize,
    },
    /// A claim hears what a node has answered.
    Hear {
        /// Which node.
        node: usize,
        /// Whose request.
        claim: usize,
    },
    /// A claim that has a majority, with different numbers, claims the greatest.
    ClaimGreatest(usize),
    /// A claim gives up, or gives back.
    Leave(usize),
    /// A node executes that a claim is over.
    Undo {
        /// Which node.
        node: usize,
        /// Whose lock.
        claim: usize,
    },
    /// A claim that was granted renews.
    Renew(usize),
    /// A node renews.
    ExecuteRenewal {
        /// Which node.
        node: usize,
        /// Whose lock.
        claim: usize,
    },
    /// A claim hears of it.
    HearRenewal {
        /// Which node.
        node: usize,
        /// Whose lock.
        claim: usize,
    },
    /// A node joins those that have a claim's lock.
    Join {
        /// Which node.
        node: usize,
        /// Whose lock.
        claim: usize,
    },
    /// Time passes.
    Tick,
    /// The clock of a node jumps, and it drops its lock.
    Jump(usize),
    /// A node forgets.
    Forget(usize, Loss),
    /// A caretaker looks at some nodes (a bit each), and decides what to write on one.
    Look {
        /// On which.
        node: usize,
        /// At which.
        at: u8,
    },
    /// What a caretaker has decided is written.
    Write {
        /// On which node.
        node: usize,
        /// Which caretaker.
        by: usize,
    },
}

impl Setup {
    fn claim_steps(&self, state: &State, at: usize, steps: &mut Vec<Step>) {
        let claim = &state.claims[at];
        match claim.phase {
            // Claims that have not begun are alike: let them begin in order.
            Phase::Unborn if at == 0 || state.claims[at - 1].phase != Phase::Unborn => {
                steps.push(Step::Begin(at));
            }
            Phase::Asking => {
                if self.may_claim(state, at).is_some() {
                    steps.push(Step::ClaimGreatest(at));
                }
                if self.clocks == Clocks::Sound {
                    steps.push(Step::Leave(at));
                }
            }
            Phase::Held => {
                steps.push(Step::Leave(at));
                if claim.renewals < self.renewals {
                    steps.push(Step::Renew(at));
                }
            }
            Phase::Unborn | Phase::Over => {}
        }
    }

    fn node_steps(&self, state: &State, node: usize, steps: &mut Vec<Step>) {
        let column = &state.columns[node];
        for (claim, link) in column.links.iter().enumerate().take(self.claims) {
            let asked = link.asks.iter().enumerate().filter(|(_, proposal)| **proposal > 0);
            steps.extend(asked.map(|(round, _)| Step::Execute { node, claim, round }));
            if link.answer != Heard::Nothing {
                steps.push(Step::Hear { node, claim });
            }
            if link.undo {
                steps.push(Step::Undo { node, claim });
            }
            if link.join > 0 {
                steps.push(Step::Join { node, claim });
            }
            match link.renewal {
                Renewal::Sent => steps.push(Step::ExecuteRenewal { node, claim }),
                Renewal::Executed(_) => steps.push(Step::HearRenewal { node, claim }),
                Renewal::None | Renewal::Heard(_) => {}
            }
        }
        if self.clocks == Clocks::Wild && column.node.is_held(self.clock(state)) {
            steps.push(Step::Jump(node));
        }
        let (ways, most) = self.losses;
        if state.losses < most && (column.forgetful || state.forgetful() < self.forgetful) {
            steps.extend(ways.iter().map(|way| Step::Forget(node, *way)));
        }
        if column.forgetful && column.care[self.caretakers - 1].is_none() {
            steps.extend(self.looks(node).map(|at| Step::Look { node, at }));
        }
        let pending = column.care.iter().enumerate().filter(|(_, care)| care.is_some());
        steps.extend(pending.map(|(by, _)| Step::Write { node, by }));
    }
}

impl Model for Setup {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(self.nodes)]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        for at in 0..self.claims {
            self.claim_steps(state, at, steps);
        }
        for node in 0..self.nodes {
            // Nodes that are alike do the same.
            if node == 0 || state.columns[node] != state.columns[node - 1] {
                self.node_steps(state, node, steps);
            }
        }
        if state.now < self.ticks {
            steps.push(Step::Tick);
        }
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        let mut next = state.clone();
        self.take(&mut next, step);
        // Nodes have no names: one order of the columns is as good as another.
        next.columns.sort_unstable();
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Setup>> {
        let mut properties = vec![
            Property::always(TOKENS_DIFFER, |_: &Setup, state: &State| !state.seen.twice),
            Property::always(TOKENS_GROW, |_: &Setup, state: &State| !state.seen.inverted),
        ];
        if self.clocks == Clocks::Sound {
            properties.push(Property::always(EXCLUSION, |_: &Setup, state: &State| state.vouching() < 2));
        }
        // A check in which nothing happens proves nothing.
        properties.push(Property::sometimes(GRANTED, |_: &Setup, state: &State| state.granted > 0));
        if self.rounds > 1 && self.clocks == Clocks::Wild {
            properties.push(Property::sometimes(CLAIMED, |_: &Setup, state: &State| state.seen.claimed));
        }
        if self.losses.1 > 0 {
            properties
                .push(Property::sometimes(READMITTED, |_: &Setup, state: &State| state.seen.readmitted));
        }
        properties
    }
}

/// No two grants have the same token.
pub const TOKENS_DIFFER: &str = "no two grants have the same token";
/// A grant that began after another was given has the greater token.
pub const TOKENS_GROW: &str = "a later grant has the greater token";
/// No two claims take their lease for valid at the same time.
pub const EXCLUSION: &str = "no two hold at once";
const GRANTED: &str = "(something is granted)";
const CLAIMED: &str = "(a number is claimed in a second round)";
const READMITTED: &str = "(a node that forgot votes again)";
