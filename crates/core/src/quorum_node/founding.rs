//! The first use of a set of nodes: its first marks, and the command of an operator who knows that its servers are new.
//! Pure, as [`membership`](super::membership). ADR 0058.
//!
//! A set that was never used and a set that lost all of its data look the same. So without a word from an operator, a new
//! set waits for the length of its gate. The operator's command does not wait:
//!
//! 1. All nodes must reply, and none may have lost its mark while another one votes: that node stays behind the gate.
//! 2. All nodes get the same founding mark. No node votes yet.
//! 3. No node may have a lock or a register: the caller looks for them, because a plan sees no resources.
//! 4. Every founding mark becomes a voting mark.
//!
//! Each step is a compare-and-set, so the command can be interrupted, repeated, and run next to clients.

use std::time::Duration;

use sha2::{Digest as _, Sha256};

use super::{
    BirthMark, Health, VoterStatus,
    membership::{GATE, GATE_MIN, MembershipPlan, MembershipStep, check, invalid},
};
use crate::error::{Error, ErrorKind, Result};

/// The marks of a set before its first node votes.
pub(super) struct FoundingMarks {
    /// The mark that each node must have, by its number.
    pub(super) marks: Vec<BirthMark>,
    /// What to write, if a node has another mark.
    pub(super) steps: Vec<MembershipStep>,
    pub(super) gate: Duration,
}

/// The same mark for all nodes. A gate that a client names replaces the one that the nodes store, as long as none votes.
pub(super) fn marks(healths: &[&Health], gate: Option<Duration>) -> FoundingMarks {
    let stored = || healths.iter().filter_map(|health| health.mark.as_ref());
    let set = stored().map(|mark| mark.set.clone()).min().unwrap_or_else(|| name_of(healths));
    let unmarked = healths.iter().any(|health| health.mark.is_none());
    let gate = match gate {
        Some(named) => named.max(GATE_MIN),
        None => stored().map(|mark| mark.gate).chain(unmarked.then_some(GATE)).max().unwrap_or(GATE),
    };
    let mark = |health: &&Health| BirthMark {
        set: set.clone(),
        size: healths.len(),
        gate,
        run: health.run.clone(),
        durable: health.durable,
        standing: VoterStatus::Founding,
    };
    let marks: Vec<BirthMark> = healths.iter().map(mark).collect();
    let differs = |(node, new): (usize, &BirthMark)| {
        let expected = healths[node].mark.clone();
        (expected.as_ref() != Some(new)).then(|| MembershipStep::Mark { node, expected, new: new.clone() })
    };
    let steps = marks.iter().enumerate().filter_map(differs).collect();
    FoundingMarks { marks, steps, gate }
}

/// The name of a set is a hash of its servers, so that all clients that found it choose the same name.
fn name_of(healths: &[&Health]) -> String {
    let mut runs: Vec<&str> = healths.iter().map(|health| health.run.as_str()).collect();
    runs.sort_unstable();
    let digest = Sha256::digest(runs.join("|"));
    digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// Decides what to write next, for an operator who says that nothing was ever granted on these nodes. When there is
/// nothing to write, every node votes. Before a step that makes a node [vote](VoterStatus::Voting), the caller checks that
/// the node has no lock and no register.
///
/// # Errors
/// `Unavailable` if a node does not reply; `Invalid` if the nodes are not one set, or if one of them may have lost data
/// after another one voted.
pub fn plan(nodes: &[Option<Health>], gate: Option<Duration>) -> Result<MembershipPlan> {
    check(nodes)?;
    let healths: Vec<&Health> = nodes.iter().flatten().collect();
    if healths.len() < nodes.len() {
        let message = format!(
            "founding a set needs all of its {} nodes: {} do not answer",
            nodes.len(),
            nodes.len() - healths.len()
        );
        return Err(Error::new(ErrorKind::Unavailable, message));
    }
    let standing = |health: &Health| health.mark.as_ref().map(|mark| mark.standing);
    let is_unused = |health: &&&Health| matches!(standing(health), None | Some(VoterStatus::Founding));
    if healths.iter().filter(is_unused).count() == healths.len() {
        return Ok(found(&healths, gate));
    }
    finish(&healths)
}

/// No node has voted.
fn found(healths: &[&Health], gate: Option<Duration>) -> MembershipPlan {
    let FoundingMarks { marks, steps, gate } = marks(healths, gate);
    if !steps.is_empty() {
        return MembershipPlan { steps, gate, ..MembershipPlan::default() };
    }
    let steps = marks.into_iter().enumerate().map(|(node, mark)| vote_from_now(node, mark, gate)).collect();
    MembershipPlan { steps, gate, ..MembershipPlan::default() }
}

/// Some nodes vote: the set is founded, or an earlier command was interrupted. A node that has had its founding mark since
/// then, in the same run, has forgotten nothing.
fn finish(healths: &[&Health]) -> Result<MembershipPlan> {
    let marks = || healths.iter().filter_map(|health| health.mark.as_ref());
    let gate = marks().map(|mark| mark.gate).max().unwrap_or(GATE);
    let mut plan = MembershipPlan { gate, ..MembershipPlan::default() };
    for (node, health) in healths.iter().enumerate() {
        match &health.mark {
            Some(mark) if mark.run == health.run && mark.standing == VoterStatus::Voting => {
                plan.voting.push(node);
            }
            Some(mark) if mark.run == health.run && mark.standing == VoterStatus::Founding => {
                plan.steps.push(vote_from_now(node, mark.clone(), gate));
            }
            _ => {
                let message = format!(
                    "the set is in use, and node {} may have forgotten what it granted: it votes again by itself, \
                     after the uptime gate of {gate:?}",
                    node + 1
                );
                return Err(invalid(message));
            }
        }
    }
    Ok(plan)
}

fn vote_from_now(node: usize, mark: BirthMark, gate: Duration) -> MembershipStep {
    let new = BirthMark { gate, standing: VoterStatus::Voting, ..mark.clone() };
    MembershipStep::Mark { node, expected: Some(mark), new }
}
