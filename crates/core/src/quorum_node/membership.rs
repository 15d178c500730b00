//! Which nodes may vote, and what makes one vote again that may have forgotten. Pure: takes how the nodes are, and
//! says what to write on them.
//!
//! A node that lost its data would grant again what it has granted, and accept numbers that it has accepted. So every
//! node carries a [birth mark](BirthMark) that names the run of the server for which it is valid, and does not vote without
//! one. A node whose mark is missing, or is of another run, *may have forgotten* (unless it provably syncs every
//! write): it is quarantined for the length of the [gate](BirthMark::gate), after which every lock that it may have
//! forgotten has ended and every attempt that counted on it is over; then its registers are raised to those of a
//! majority of nodes that vote; then it votes. That majority shares a node with every majority that counted on it.
//!
//! A set of nodes is *founded* when all of its nodes are there and none has ever voted. Without all of them, or where
//! a majority may have forgotten, nothing can be known: it stops, and says so.

use std::time::Duration;

use sha2::{Digest as _, Sha256};

use super::{BirthMark, Health, VoterStatus, node_model::since, tally::majority};
use crate::{
    clock::WallTime,
    error::{Error, ErrorKind, Result},
};

/// The fewest nodes of which one may fail.
pub const NODES_MIN: usize = 3;
/// The gate unless told otherwise.
pub const GATE: Duration = Duration::from_secs(600);
/// The shortest gate: below it there is no ttl.
pub const GATE_MIN: Duration = Duration::from_millis(300);

/// What to write on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MembershipStep {
    /// Replace the mark of this node, if it still is what it was.
    Mark {
        /// Which one.
        node: usize,
        /// What it was.
        expected: Option<BirthMark>,
        /// By this.
        new: BirthMark,
    },
    /// Raise the registers of this node to those of these others, then replace its mark.
    Recover {
        /// Which one.
        node: usize,
        /// A majority that votes.
        from: Vec<usize>,
        /// Its mark.
        expected: BirthMark,
        /// By this.
        new: BirthMark,
    },
}

/// How a set of nodes is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MembershipPlan {
    /// What to do now; then look again.
    pub steps: Vec<MembershipStep>,
    /// Which nodes may vote.
    pub voting: Vec<usize>,
    /// The longest ttl.
    pub gate: Duration,
    /// How many have never voted and wait for the gate.
    pub waiting: usize,
    /// When another node may be allowed to vote.
    pub again_in: Option<Duration>,
    /// Why nothing can be granted, if that is so.
    pub stopped: Option<String>,
}

/// Looks at all nodes (`None` for one that does not answer) and says what to do. `gate` is for a set that is used for
/// the first time.
///
/// # Errors
/// `Invalid` if these are no set: too few, one of them twice, or of different sets.
pub fn plan(nodes: &[Option<Health>], gate: Duration) -> Result<MembershipPlan> {
    check(nodes)?;
    let marks = || nodes.iter().flatten().filter_map(|health| health.mark.as_ref());
    if marks().all(|mark| mark.standing == VoterStatus::Founding) {
        return Ok(found(nodes, gate));
    }
    // Founded: every mark that is not of a first use has the same set and gate.
    let known = marks().find(|mark| mark.standing != VoterStatus::Founding).cloned();
    let Some(mut known) = known else { return Ok(found(nodes, gate)) };
    known.gate = marks().map(|mark| mark.gate).max().unwrap_or(known.gate);
    Ok(maintain(nodes, &known))
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

fn check(nodes: &[Option<Health>]) -> Result<()> {
    let size = nodes.len();
    if size < NODES_MIN {
        let message = format!("a quorum of {size} is none: name at least {NODES_MIN} nodes, better 5");
        return Err(invalid(message));
    }
    for (index, health) in nodes.iter().enumerate() {
        let Some(health) = health else { continue };
        let twin =
            nodes[..index].iter().position(|other| other.as_ref().is_some_and(|it| it.run == health.run));
        if let Some(twin) = twin {
            let message =
                format!("nodes {} and {} are the same server: it would vote twice", twin + 1, index + 1);
            return Err(invalid(message));
        }
        if let Some(mark) = health.mark.as_ref().filter(|mark| mark.size != size) {
            let message = format!(
                "node {} is one of a set of {}, and this names {size}: all clients must name the same nodes",
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
        let message = "these nodes are of different sets: all clients must name the same nodes";
        return Err(invalid(message.to_owned()));
    }
    Ok(())
}

/// The first use: first all nodes are marked alike, then each is let vote. While one is not marked none votes, so
/// whoever comes at the same time, or after one that was interrupted, can go on with it.
fn found(nodes: &[Option<Health>], gate: Duration) -> MembershipPlan {
    let missing = nodes.iter().filter(|node| node.is_none()).count();
    if missing > 0 {
        let stopped = format!(
            "this set of {} nodes has never been used, and its first use needs all of them: {missing} do not answer",
            nodes.len()
        );
        return MembershipPlan { stopped: Some(stopped), gate, ..MembershipPlan::default() };
    }
    let healths: Vec<&Health> = nodes.iter().flatten().collect();
    let marks = || healths.iter().filter_map(|health| health.mark.as_ref());
    let set = marks().map(|mark| mark.set.clone()).min().unwrap_or_else(|| name_of(&healths));
    let unmarked = healths.iter().any(|health| health.mark.is_none());
    let asked = unmarked.then_some(gate.max(GATE_MIN));
    let gate = marks().map(|mark| mark.gate).chain(asked).max().unwrap_or(gate);
    let due = |health: &Health| BirthMark {
        set: set.clone(),
        size: nodes.len(),
        gate,
        run: health.run.clone(),
        durable: health.durable,
        standing: VoterStatus::Founding,
    };
    let differs = |(node, health): (usize, &&Health)| {
        let new = due(health);
        (health.mark.as_ref() != Some(&new)).then(|| MembershipStep::Mark {
            node,
            expected: health.mark.clone(),
            new,
        })
    };
    let steps: Vec<MembershipStep> = healths.iter().enumerate().filter_map(differs).collect();
    if !steps.is_empty() {
        return MembershipPlan { steps, gate, ..MembershipPlan::default() };
    }
    let mut plan = MembershipPlan { gate, ..MembershipPlan::default() };
    for (node, health) in healths.iter().enumerate() {
        plan.admit_founder(node, health, due(health));
    }
    plan.judge(nodes);
    plan
}

/// The name of a set is made of its servers: whoever founds it at the same time makes the same one.
fn name_of(healths: &[&Health]) -> String {
    let mut runs: Vec<&str> = healths.iter().map(|health| health.run.as_str()).collect();
    runs.sort_unstable();
    let digest = Sha256::digest(runs.join("|"));
    digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
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

impl MembershipPlan {
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
            // When it lost its data is not known: a flush leaves no trace. So it counts from now.
            let new = fresh(VoterStatus::Quarantined { since: health.now });
            return self.steps.push(MembershipStep::Mark { node, expected: None, new });
        };
        let mut write = |new: BirthMark| {
            self.steps.push(MembershipStep::Mark { node, expected: Some(mark.clone()), new })
        };
        if mark.run != health.run {
            let kept_all = mark.durable && health.durable;
            let started = WallTime::from_micros(
                health
                    .now
                    .as_micros()
                    .saturating_sub(u64::try_from(health.uptime.as_micros()).unwrap_or(u64::MAX)),
            );
            return write(fresh(if kept_all {
                mark.standing
            } else {
                VoterStatus::Quarantined { since: started }
            }));
        }
        match mark.standing {
            // It was told to sync less: from now on a restart may forget.
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

    /// A node that has never voted has nothing to forget, but the set may have lost everything at once: it waits out
    /// the gate all the same.
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
                 they granted: the next one votes in {:?}. With appendonly yes and appendfsync always on every node \
                 there is no gate",
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
