//! Founds the set, keeps nodes that may have forgotten from voting, and makes them vote again.
//!
//! Any client does this, whenever it sees a reason: every step is a comparison and a write in one, or may be repeated.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
    time::Duration,
};

use leasehold_core::{
    Effect, Environment, Error, ErrorKind, Result,
    quorum_node::{
        Health,
        membership::{self, MembershipPlan, MembershipStep},
        tally::majority,
    },
};
use leasehold_support::race::{Either, first};
use tokio::sync::Notify;

use super::{Condition, Fan, Shared, refuse::unavailable};

/// How long a node may take to answer whoever tends it.
const HEALTH_MAX: Duration = Duration::from_secs(3);
/// A plan has few steps; one that does not end is given up.
const PLANS_MAX: u32 = 16;
/// Nodes that fail now and then do not make us look all the time.
const TEND_EVERY: Duration = Duration::from_millis(100);
/// How many registers are raised in one go.
const TOGETHER: usize = 500;

/// Tends the set whenever it is rung for, and when a node may be allowed to vote, until the client is gone.
pub(super) async fn watch(
    shared: Weak<Shared>,
    rung: Arc<Notify>,
    environment: Arc<dyn Environment>,
    mut again_in: Option<Duration>,
) {
    loop {
        match again_in {
            // A little later than needed: nodes count in their own time.
            Some(pause) => {
                first(rung.notified(), environment.sleep(pause + Duration::from_millis(20))).await;
            }
            None => rung.notified().await,
        }
        let Some(shared) = shared.upgrade() else { return };
        again_in = match shared.tend(false).await {
            Ok(again_in) => again_in,
            Err(error) => {
                tracing::warn!(%error, "the nodes of a quorum cannot be tended");
                Some(HEALTH_MAX)
            }
        };
        drop(shared);
        environment.sleep(TEND_EVERY).await;
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // So that the watch sees that nobody is there any more.
        self.tending.notify_one();
    }
}

impl Shared {
    /// Looks at all nodes and does what there is to do; says when to look again. At the start, a majority must be there
    /// and a node that refuses us is an error.
    pub(super) async fn tend(self: &Arc<Shared>, starting: bool) -> Result<Option<Duration>> {
        for _ in 0..PLANS_MAX {
            let (healths, failure) = self.healths(starting).await?;
            let silent = healths.iter().filter(|health| health.is_none()).count();
            if silent > self.size() - majority(self.size()) {
                let names = self.names((0..self.size()).filter(|&node| healths[node].is_none()));
                let message = format!("{silent} of {} nodes do not answer: {names}", self.size());
                let error = match failure {
                    Some(failure) => unavailable(format!("{message}: {failure}")).because(failure),
                    None => unavailable(message),
                };
                return if starting { Err(error) } else { Ok(Some(HEALTH_MAX)) };
            }
            let plan = membership::plan(&healths, self.gate)?;
            *self.condition() = Condition { gate: plan.gate, stopped: plan.stopped.clone() };
            if plan.steps.is_empty() {
                self.tell(&plan);
                return Ok(plan.again_in);
            }
            for step in plan.steps {
                if let Err(error) = self.take_step(&step, &healths).await {
                    tracing::debug!(%error, "a node could not be tended: it is tried again");
                    return Ok(Some(HEALTH_MAX));
                }
            }
        }
        Ok(Some(HEALTH_MAX))
    }

    fn tell(&self, plan: &MembershipPlan) {
        if let Some(why) = &plan.stopped {
            tracing::warn!(voting = plan.voting.len(), "a quorum grants nothing: {why}");
        }
    }

    /// How the nodes are; and why one of those does not answer that do not.
    async fn healths(&self, starting: bool) -> Result<(Vec<Option<Health>>, Option<Error>)> {
        let mut fan = Fan::new();
        for (number, slot) in self.slots.iter().enumerate() {
            let node = Arc::clone(&slot.node);
            fan.ask(number, async move { node.health().await });
        }
        let (mut healths, mut failure) = (vec![None; self.size()], None);
        let mut timer = self.environment.sleep(HEALTH_MAX);
        while let Either::Left(Some((node, answer))) = first(fan.next(), &mut timer).await {
            match answer {
                Ok(health) => healths[node] = Some(health),
                Err(error) if starting && error.kind() != ErrorKind::Unavailable => {
                    return Err(refused(self.slots[node].node.name(), &error));
                }
                Err(error) => {
                    tracing::debug!(node = self.slots[node].node.name(), %error, "a node does not answer");
                    failure = Some(error);
                }
            }
        }
        Ok((healths, failure))
    }

    /// A node that is silent must not keep the others waiting for good.
    async fn in_time<T>(&self, asking: impl Future<Output = Result<T>>) -> Result<T> {
        match first(asking, self.environment.sleep(HEALTH_MAX)).await {
            Either::Left(answer) => answer,
            Either::Right(()) => {
                let silent = unavailable("a node did not answer in time".to_owned());
                Err(silent.with_effect(Effect::Unknown))
            }
        }
    }

    async fn take_step(&self, step: &MembershipStep, healths: &[Option<Health>]) -> Result<()> {
        match step {
            MembershipStep::Mark { node, expected, new } => {
                let node = &self.slots[*node].node;
                tracing::info!(node = node.name(), standing = ?new.standing, "a node of a quorum is marked");
                self.in_time(node.mark(expected.as_ref(), new)).await.map(drop)
            }
            MembershipStep::Recover { node, from, expected, new } => {
                self.copy_registers(*node, from, healths).await?;
                let node = &self.slots[*node].node;
                tracing::info!(node = node.name(), "a node that may have forgotten votes again");
                self.in_time(node.mark(Some(expected), new)).await.map(drop)
            }
        }
    }

    /// Raises the registers of a node to the greatest of a majority's.
    async fn copy_registers(&self, node: usize, from: &[usize], healths: &[Option<Health>]) -> Result<()> {
        let mut greatest = BTreeMap::new();
        for &source in from {
            let mut after: Option<String> = None;
            loop {
                let page = self.in_time(self.slots[source].node.walk("", after.as_deref())).await?;
                for entry in page.entries {
                    if let Some(last) = entry.last {
                        let known = greatest.entry(entry.resource).or_insert(last);
                        *known = last.max(*known);
                    }
                }
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
            self.is_still(source, healths[source].as_ref()).await?;
        }
        let greatest: Vec<_> = greatest.into_iter().collect();
        for some in greatest.chunks(TOGETHER) {
            self.in_time(self.slots[node].node.raise(some)).await?;
        }
        Ok(())
    }

    /// A node that forgot while it was read has told nothing: its run or its mark is another one now.
    async fn is_still(&self, node: usize, before: Option<&Health>) -> Result<()> {
        let node = &self.slots[node].node;
        let now = self.in_time(node.health()).await?;
        if before.is_some_and(|before| before.run == now.run && before.mark == now.mark) {
            return Ok(());
        }
        Err(unavailable(format!("{} may have forgotten while it was read", node.name())))
    }
}

fn refused(name: &str, error: &Error) -> Error {
    Error::new(error.kind(), format!("node {name}: {error}")).because(error.clone())
}
