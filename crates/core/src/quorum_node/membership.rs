//! Which nodes may vote, and when a node that may have lost data votes again. Pure: it takes the state of the nodes and
//! returns what to write on them. ADR 0016.
//!
//! A node that lost its data would grant again what it has granted, and accept numbers that it has accepted. So every
//! node has a [birth mark](BirthMark) that is valid for one run of its server, and does not vote without a valid one.
//!
//! A node whose mark is missing, or is of another run, *may have lost data*, unless it provably writes everything to its
//! disk. It votes again after these steps:
//!
//! 1. It is quarantined for the length of the [gate](BirthMark::gate). After that, every lock that it may have lost has
//!    expired, and every attempt that counted on its vote has ended.
//! 2. Its registers are raised to those of a majority of voting nodes. That majority shares a node with every majority that
//!    the lost votes belonged to.
//! 3. Its mark is replaced, and it votes.
//!
//! A set of nodes is *founded* when all of its nodes are reachable and none has ever voted. If one is missing, or a majority
//! may have lost data, no safe decision is possible: the quorum stops, and says so. [`founding`] has the
//! command of an operator who knows that the servers are new.

use std::time::Duration;

use super::{
    BirthMark, Health, VoterStatus,
    founding::{self, FoundingMarks},
    node_model::since,
    tally::majority,
};
use crate::{
    clock::WallTime,
    error::{Error, ErrorKind, Result},
};

/// The smallest set in which one node may fail.
pub const NODES_MIN: usize = 3;
/// The default of the gate.
pub const GATE: Duration = Duration::from_secs(600);
/// The shortest gate: the shortest ttl.
pub const GATE_MIN: Duration = Duration::from_millis(300);

/// One change to write on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MembershipStep {
    /// Replace the mark of this node, if it has not changed since.
    Mark {
        /// The number of the node.
        node: usize,
        /// The mark that it had.
        expected: Option<BirthMark>,
        /// The new mark.
        new: BirthMark,
    },
    /// Raise the registers of this node to those of the nodes `from`, then replace its mark.
    Recover {
        /// The number of the node.
        node: usize,
        /// A majority of voting nodes.
        from: Vec<usize>,
        /// The mark that it had.
        expected: BirthMark,
        /// The new mark.
        new: BirthMark,
    },
}

/// The state of a set of nodes, and what to do with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MembershipPlan {
    /// What to write now. Then look at the nodes again.
    pub steps: Vec<MembershipStep>,
    /// The numbers of the nodes that may vote.
    pub voting: Vec<usize>,
    /// The longest ttl.
    pub gate: Duration,
    /// How many nodes have never voted and wait for the end of the gate.
    pub waiting: usize,
    /// When the next node may be allowed to vote.
    pub again_in: Option<Duration>,
    /// Why nothing can be granted, if nothing can.
    pub stopped: Option<String>,
}

/// Decides what to do with a set of nodes. `None` is a node that does not reply. `gate` counts until a node votes; without
/// one, the gate that the nodes store counts, or [`GATE`].
///
/// # Errors
/// `Invalid` if the nodes are not one set: too few, one of them twice, or from different sets.
pub fn plan(nodes: &[Option<Health>], gate: Option<Duration>) -> Result<MembershipPlan> {
    check(nodes)?;
    let marks = || nodes.iter().flatten().filter_map(|health| health.mark.as_ref());
    if marks().all(|mark| mark.standing == VoterStatus::Founding) {
        return Ok(found(nodes, gate));
    }
    // The set was founded earlier: all marks but those of a first use name the same set.
    let known = marks().find(|mark| mark.standing != VoterStatus::Founding).cloned();
    let Some(mut known) = known else { return Ok(found(nodes, gate)) };
    known.gate = marks().map(|mark| mark.gate).max().unwrap_or(known.gate);
    Ok(maintain(nodes, &known))
}

pub(super) fn invalid(message: String) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

/// Refuses nodes that are not one set.
pub(super) fn check(nodes: &[Option<Health>]) -> Result<()> {
    let size = nodes.len();
    if size < NODES_MIN {
        let message =
            format!("a quorum needs at least {NODES_MIN} nodes, better 5, and the URL names {size}");
        return Err(invalid(message));
    }
    for (index, health) in nodes.iter().enumerate() {
        let Some(health) = health else { continue };
        let twin =
            nodes[..index].iter().position(|other| other.as_ref().is_some_and(|it| it.run == health.run));
        if let Some(twin) = twin {
            let message = format!(
                "nodes {} and {} are the same server, which would vote twice: name each server once",
                twin + 1,
                index + 1
            );
            return Err(invalid(message));
        }
        if let Some(mark) = health.mark.as_ref().filter(|mark| mark.size != size) {
            let message = format!(
                "node {} belongs to a set of {} nodes, and the URL names {size}: all clients must name the same nodes",
                index + 1,
                mark.size
            );
            return Err(invalid(message));
        }
    }
    let founded =
        |health: &&Health| health.mark.as_ref().is_some_and(|it| it.standing != VoterStatus::Founding);
    let sets =
        nodes.iter().flatten().filter(founded).filter_map(|health| health.mark.as_ref().map(|it| &it.set));
    let sets: Vec<_> = sets.collect();
    if sets.windows(2).any(|pair| pair[0] != pair[1]) {
        let message = "these nodes belong to different sets: all clients must name the same nodes";
        return Err(invalid(message.to_owned()));
    }
    Ok(())
}

/// The first use of a set: first all nodes get the same mark, then each may vote. No node votes while one has no mark, so
/// several clients can do this at the same time, and one can continue what another one began.
fn found(nodes: &[Option<Health>], gate: Option<Duration>) -> MembershipPlan {
    let missing = nodes.iter().filter(|node| node.is_none()).count();
    if missing > 0 {
        let stopped = format!(
            "this set of {} nodes has never been used, and its first use needs all of them: {missing} do not answer",
            nodes.len()
        );
        let gate = gate.unwrap_or(GATE);
        return MembershipPlan { stopped: Some(stopped), gate, ..MembershipPlan::default() };
    }
    let healths: Vec<&Health> = nodes.iter().flatten().collect();
    let FoundingMarks { marks, steps, gate } = founding::marks(&healths, gate);
    if !steps.is_empty() {
        return MembershipPlan { steps, gate, ..MembershipPlan::default() };
    }
    let mut plan = MembershipPlan { gate, ..MembershipPlan::default() };
    for (node, (health, mark)) in healths.iter().zip(marks).enumerate() {
        plan.admit_founder(node, health, mark);
    }
    plan.judge(nodes);
    plan
}

fn maintain(nodes: &[Option<Health>], known: &BirthMark) -> MembershipPlan {
    let mut plan = MembershipPlan { gate: known.gate, ..MembershipPlan::default() };
    let is_voting = |health: &Health| {
        health.mark.as_ref().is_some_and(|it| it.standing == VoterStatus::Voting && it.run == health.run)
    };
    plan.voting = (0..nodes.len()).filter(|&node| nodes[node].as_ref().is_some_and(is_voting)).collect();
    for (node, health) in nodes.iter().enumerate() {
        if let Some(health) = health {
            plan.check_node(node, health, known, nodes.len());
        }
    }
    plan.judge(nodes);
    plan
}

/// When the running server started, by its own clock.
fn started_at(health: &Health) -> WallTime {
    let uptime = u64::try_from(health.uptime.as_micros()).unwrap_or(u64::MAX);
    WallTime::from_micros(health.now.as_micros().saturating_sub(uptime))
}

impl MembershipPlan {
    /// Decides what to write on one node of a founded set.
    fn check_node(&mut self, node: usize, health: &Health, known: &BirthMark, size: usize) {
        let fresh = |standing| BirthMark {
            set: known.set.clone(),
            size,
            gate: known.gate,
            run: health.run.clone(),
            durable: health.durable,
            standing,
        };
        let Some(mark) = &health.mark else {
            // It is not known when it lost its data: a flush leaves no trace. So the quarantine begins now.
            let new = fresh(VoterStatus::Quarantined { since: health.now });
            return self.steps.push(MembershipStep::Mark { node, expected: None, new });
        };
        let mut write = |new: BirthMark| {
            self.steps.push(MembershipStep::Mark { node, expected: Some(mark.clone()), new });
        };
        if mark.run != health.run {
            let kept_all = mark.durable && health.durable;
            let quarantined = VoterStatus::Quarantined { since: started_at(health) };
            return write(fresh(if kept_all { mark.standing } else { quarantined }));
        }
        match mark.standing {
            // Its configuration has changed: from now on a restart may lose data.
            VoterStatus::Voting if mark.durable && !health.durable => write(fresh(VoterStatus::Voting)),
            VoterStatus::Voting => {}
            VoterStatus::Founding => self.admit_founder(node, health, mark.clone()),
            VoterStatus::Quarantined { since: from } => {
                let left = known.gate.saturating_sub(since(from, health.now));
                if !left.is_zero() {
                    return self.again_after(left);
                }
                let needed = majority(size);
                let from: Vec<usize> =
                    self.voting.iter().copied().filter(|it| *it != node).take(needed).collect();
                if from.len() == needed {
                    let new = fresh(VoterStatus::Voting);
                    self.steps.push(MembershipStep::Recover { node, from, expected: mark.clone(), new });
                }
            }
        }
    }

    /// Lets a node vote that has never voted. It has nothing to lose, but the whole set may have lost its data at once and
    /// only look new. So it waits for the end of the gate too.
    fn admit_founder(&mut self, node: usize, health: &Health, mark: BirthMark) {
        let left = self.gate.saturating_sub(health.uptime);
        if !health.durable && !left.is_zero() {
            self.waiting += 1;
            return self.again_after(left);
        }
        let new = BirthMark {
            gate: self.gate,
            standing: VoterStatus::Voting,
            durable: health.durable,
            ..mark.clone()
        };
        self.steps.push(MembershipStep::Mark { node, expected: Some(mark), new });
    }

    fn again_after(&mut self, left: Duration) {
        self.again_in = Some(self.again_in.map_or(left, |known| known.min(left)));
    }

    fn judge(&mut self, nodes: &[Option<Health>]) {
        let (size, needed) = (nodes.len(), majority(nodes.len()));
        let silent = nodes.iter().filter(|node| node.is_none()).count();
        if self.voting.len() + silent >= needed || !self.steps.is_empty() {
            return;
        }
        let barred = size - silent - self.voting.len();
        let may_pass = self.voting.len() + silent + self.waiting >= needed;
        self.stopped = Some(match self.again_in.filter(|_| may_pass) {
            Some(wait) => format!(
                "{barred} of {size} nodes started less than the uptime gate of {:?} ago and may have forgotten what \
                 they granted: the next one votes in {:?}. If the servers are new and nothing was ever granted on \
                 them, let them vote now: leasehold redlock found URL. The option uptime_gate of the URL sets a \
                 shorter gate; with appendonly yes and appendfsync always on every node there is none",
                self.gate,
                Duration::from_secs(wait.as_secs() + 1)
            ),
            None => format!(
                "{barred} of {size} nodes may have forgotten what they granted, and the others are no majority that \
                 could tell them: stop all clients, delete lock:v1:birth on every node, and start again"
            ),
        });
    }
}
