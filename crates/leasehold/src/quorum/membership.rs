//! Decides which nodes vote: founds the set, keeps nodes that may have forgotten their votes from voting, and lets them
//! vote again (ADR 0016).
//!
//! 1. Ask every node for its health: its run id, its uptime and its birth mark.
//! 2. [`core_membership::plan`] makes a plan of steps from the answers. It is pure.
//! 3. Execute the steps. `Mark` writes a birth mark, if the node still has the expected one. `Recover` first raises the
//!    registers of the node to the greatest of a majority, and then marks it as voting.
//! 4. Repeat until the plan has no more steps. Then wait until a node may have changed, or may get its vote back.
//!
//! Every client does this when it sees a reason. That is safe, because each step is a compare-and-set or can be repeated.

use std::{
    collections::BTreeMap,
    error::Error as StdError,
    sync::{Arc, Weak},
    time::Duration,
};

use leasehold_core::{
    Effect, Environment, Error, ErrorKind, FencingToken, Resource, Result,
    quorum_node::{
        Health, VoterStatus,
        membership::{self as core_membership, MembershipPlan, MembershipStep},
        tally::majority,
    },
};
use leasehold_support::race::{Either, first};
use tokio::sync::Notify;

use super::{NodeRequests, QuorumState, checks::unavailable};

/// How long a node may take to answer a request of this file, and the pause before a failed update is repeated.
const NODE_TIMEOUT: Duration = Duration::from_secs(3);
/// How many plans are made in a row. Few are needed; more would mean that clients undo each other's steps.
const PLANS_MAX: u32 = 16;
/// The shortest pause between two updates, so that a node that fails now and then does not cause updates all the time.
const UPDATE_PAUSE: Duration = Duration::from_millis(100);
/// Added to the time when a node may vote again: nodes count by their own clocks.
const CLOCK_ALLOWANCE: Duration = Duration::from_millis(20);
/// How long nodes are waited for at the start after a majority that votes has answered, at least and at most.
const SLOWER_NODES_MIN: Duration = Duration::from_millis(50);
const SLOWER_NODES_MAX: Duration = Duration::from_millis(300);
/// How many registers are raised in one request.
const REGISTERS_PER_REQUEST: usize = 500;

/// The set of nodes as it was when its membership was last updated.
#[derive(Clone, Debug, Default)]
pub(super) struct SetStatus {
    /// The uptime gate: how long a node that may have forgotten its votes has no vote.
    pub(super) gate: Duration,
    /// Why the set grants nothing, if it does not.
    pub(super) stopped: Option<String>,
    /// Why the nodes are no set. It was seen after the start: a node that did not answer then turned out to be wrong.
    pub(super) refused: Option<Error>,
    /// The last health of each node that answered a look.
    pub(super) healths: Vec<Option<Health>>,
}

/// Updates the membership when it is woken, and when a node may get its vote back, until the backend is dropped.
pub(super) async fn keep_updated(
    state: Weak<QuorumState>,
    wakeup: Arc<Notify>,
    environment: Arc<dyn Environment>,
    mut again_in: Option<Duration>,
) {
    loop {
        match again_in {
            Some(pause) => {
                first(wakeup.notified(), environment.sleep(pause + CLOCK_ALLOWANCE)).await;
            }
            None => wakeup.notified().await,
        }
        let Some(state) = state.upgrade() else { return };
        again_in = match state.update_membership(false).await {
            Ok(again_in) => again_in,
            Err(error) => {
                tracing::warn!(%error, "the membership of a quorum could not be updated: it is tried again");
                Some(NODE_TIMEOUT)
            }
        };
        drop(state);
        environment.sleep(UPDATE_PAUSE).await;
    }
}

impl Drop for QuorumState {
    fn drop(&mut self) {
        // Wakes `keep_updated`, which then finds that the backend is gone.
        self.membership_wakeup.notify_one();
    }
}

impl QuorumState {
    /// Looks at all nodes, and executes the plan. Returns when to do so again.
    ///
    /// `starting`: a majority must answer, and a node that refuses us is an error. Later, both are only a reason to try
    /// again.
    pub(super) async fn update_membership(
        self: &Arc<QuorumState>,
        starting: bool,
    ) -> Result<Option<Duration>> {
        for _ in 0..PLANS_MAX {
            let (healths, failure) = self.read_healths(starting).await?;
            if let Some(error) = self.too_few_answers(&healths, failure) {
                return if starting { Err(error) } else { Ok(Some(NODE_TIMEOUT)) };
            }
            let plan = match core_membership::plan(&healths, self.founding_gate) {
                Ok(plan) => plan,
                Err(error) => {
                    self.status().refused = Some(error.clone());
                    return Err(error);
                }
            };
            {
                let mut status = self.status();
                (status.gate, status.stopped, status.refused) = (plan.gate, plan.stopped.clone(), None);
            }
            self.record_look(&healths);
            if plan.steps.is_empty() {
                log_if_stopped(&plan);
                return Ok(plan.again_in);
            }
            for step in plan.steps {
                if let Err(error) = self.execute(&step, &healths).await {
                    tracing::debug!(%error, "a membership step failed: it is tried again");
                    return Ok(Some(NODE_TIMEOUT));
                }
            }
        }
        Ok(Some(NODE_TIMEOUT))
    }

    /// The health of each node, and the error of one that did not answer.
    ///
    /// `starting`: once a majority votes, other nodes get a little more time, in proportion to what that majority needed.
    /// A node that is stopped or slow must not delay every program that starts (ADR 0059).
    pub(super) async fn read_healths(
        self: &Arc<QuorumState>,
        starting: bool,
    ) -> Result<(Vec<Option<Health>>, Option<Error>)> {
        let mut requests = NodeRequests::new();
        for (number, handle) in self.nodes.iter().enumerate() {
            let node = Arc::clone(&handle.node);
            requests.send(number, async move { node.health().await });
        }
        let (mut healths, mut failure) = (vec![None; self.size()], None);
        let started = self.environment.now();
        let (mut timer, mut may_go_on) = (self.environment.sleep(NODE_TIMEOUT), starting);
        while let Either::Left(Some((node, reply))) = first(requests.next(), &mut timer).await {
            let name = self.nodes[node].node.name();
            match reply {
                Ok(health) => healths[node] = Some(health),
                Err(error) if starting && error.kind() != ErrorKind::Unavailable => {
                    let message = format!("node {name}: {error}");
                    return Err(Error::new(error.kind(), message).because(error));
                }
                Err(error) => {
                    if error.kind() == ErrorKind::Unavailable {
                        tracing::debug!(node = name, %error, "a node does not answer");
                    } else {
                        tracing::warn!(node = name, %error, "a node refuses to be a part of the quorum");
                    }
                    failure = Some(error);
                }
            }
            if may_go_on && a_majority_votes(&healths) {
                may_go_on = false;
                let took = started.until(self.environment.now());
                timer = self.environment.sleep((took * 3).clamp(SLOWER_NODES_MIN, SLOWER_NODES_MAX));
            }
        }
        // A connection that is being made is not given up. When it is there, the node is looked at.
        self.finish_in_background(requests);
        Ok((healths, failure))
    }

    /// Remembers the nodes that answered a look that found no fault.
    fn record_look(&self, healths: &[Option<Health>]) {
        let mut status = self.status();
        status.healths.resize(self.size(), None);
        for ((handle, health), known) in self.nodes.iter().zip(healths).zip(&mut status.healths) {
            match health {
                Some(_) => {
                    known.clone_from(health);
                    handle.set_checked();
                }
                // So that the set is looked at when it answers. Until then others are asked first.
                None if !handle.is_checked() => handle.record_failure(&*self.environment),
                None => {}
            }
        }
    }

    /// Checks a node that has not answered a look yet, before its answers count: it may be another node under a second name,
    /// or belong to another set. Does nothing for a node that was checked.
    pub(super) async fn check_node(&self, node: usize) -> Result<()> {
        let handle = &self.nodes[node];
        if handle.is_checked() {
            return Ok(());
        }
        let health = handle.node.health().await?;
        let mut status = self.status();
        let mut healths = status.healths.clone();
        healths.resize(self.size(), None);
        healths[node] = Some(health);
        core_membership::plan(&healths, self.founding_gate).inspect_err(|error| {
            status.refused = Some(error.clone());
        })?;
        status.healths = healths;
        handle.set_checked();
        Ok(())
    }

    /// The error if no majority of the nodes answered.
    fn too_few_answers(&self, healths: &[Option<Health>], failure: Option<Error>) -> Option<Error> {
        let silent = healths.iter().filter(|health| health.is_none()).count();
        if silent <= self.size() - majority(self.size()) {
            return None;
        }
        let names = self.names(self.all_nodes().filter(|&node| healths[node].is_none()));
        let message = format!("{silent} of {} nodes do not answer: {names}", self.size());
        Some(match failure {
            // A node whose certificate is refused counts as silent. If no majority is left, that is why.
            Some(failure) => {
                let refusal = StdError::source(&failure).and_then(|cause| cause.downcast_ref::<Error>());
                let kind = refusal.map_or(ErrorKind::Unavailable, Error::kind);
                Error::new(kind, format!("{message}: {failure}")).because(failure)
            }
            None => unavailable(message),
        })
    }

    pub(super) async fn execute(&self, step: &MembershipStep, healths: &[Option<Health>]) -> Result<()> {
        match step {
            MembershipStep::Mark { node, expected, new } => {
                let node = &self.nodes[*node].node;
                tracing::info!(node = node.name(), standing = ?new.standing, "writing the birth mark of a node");
                self.with_timeout(node.mark(expected.as_ref(), new)).await.map(drop)
            }
            MembershipStep::Recover { node, from, expected, new } => {
                self.copy_registers(*node, from, healths).await?;
                let node = &self.nodes[*node].node;
                tracing::info!(node = node.name(), "a node that may have forgotten its votes votes again");
                self.with_timeout(node.mark(Some(expected), new)).await.map(drop)
            }
        }
    }

    /// Raises the registers of a node (its last tokens) to the greatest of a majority, so that it cannot accept a token
    /// that was given before.
    async fn copy_registers(&self, node: usize, from: &[usize], healths: &[Option<Health>]) -> Result<()> {
        let mut greatest = BTreeMap::new();
        for &source in from {
            self.read_registers(source, &mut greatest).await?;
            self.check_unchanged(source, healths[source].as_ref()).await?;
        }
        let greatest: Vec<_> = greatest.into_iter().collect();
        for some in greatest.chunks(REGISTERS_PER_REQUEST) {
            self.with_timeout(self.nodes[node].node.raise(some)).await?;
        }
        Ok(())
    }

    /// Reads all registers of a node, page by page, and keeps the greater token of each resource.
    async fn read_registers(
        &self,
        source: usize,
        greatest: &mut BTreeMap<Resource, FencingToken>,
    ) -> Result<()> {
        let mut after: Option<String> = None;
        loop {
            let page = self.with_timeout(self.nodes[source].node.walk("", after.as_deref())).await?;
            for entry in page.entries {
                if let Some(last) = entry.last {
                    let known = greatest.entry(entry.resource).or_insert(last);
                    *known = last.max(*known);
                }
            }
            after = page.next;
            if after.is_none() {
                return Ok(());
            }
        }
    }

    /// Fails if the node restarted or was flushed while its registers were read: then what was read may be incomplete.
    async fn check_unchanged(&self, node: usize, before: Option<&Health>) -> Result<()> {
        let node = &self.nodes[node].node;
        let now = self.with_timeout(node.health()).await?;
        if before.is_some_and(|before| before.run == now.run && before.mark == now.mark) {
            return Ok(());
        }
        Err(unavailable(format!(
            "node {} may have forgotten its registers while they were read",
            node.name()
        )))
    }

    /// Limits a request, so that a node that does not answer does not block the others for good.
    pub(super) async fn with_timeout<T>(&self, request: impl Future<Output = Result<T>>) -> Result<T> {
        match first(request, self.environment.sleep(NODE_TIMEOUT)).await {
            Either::Left(reply) => reply,
            Either::Right(()) => {
                let message = format!("a node did not answer within {NODE_TIMEOUT:?}");
                Err(unavailable(message).with_effect(Effect::Unknown))
            }
        }
    }
}

/// Whether a majority of the set has answered that it votes: that is enough for every operation.
fn a_majority_votes(healths: &[Option<Health>]) -> bool {
    let votes = |health: &&Health| {
        let mark = health.mark.as_ref();
        mark.is_some_and(|mark| mark.standing == VoterStatus::Voting && mark.run == health.run)
    };
    healths.iter().flatten().filter(votes).count() >= majority(healths.len())
}

fn log_if_stopped(plan: &MembershipPlan) {
    if let Some(why) = &plan.stopped {
        tracing::warn!(voting = plan.voting.len(), "a quorum grants nothing: {why}");
    }
}
