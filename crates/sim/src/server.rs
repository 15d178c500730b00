//! The server: the memory backend on a host of its own, with a referee behind it.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use leasehold::{
    Backend, BackendExt as _, BackendInfo, Claim, ClaimRef, Clock, CommandOutcome, Cursor, Listing, Memory,
    OperatorCommand, Page, Query, ReleaseRequest, Released, RenewRequest, Renewal, Result, Snapshot, Verdict,
    one_by_one,
};

use crate::{environment::NodeEnvironment, plan::RunPlan, referee::Referee, world::World};

#[derive(Debug)]
pub(crate) struct Server {
    world: Arc<World>,
    memory: Memory,
    info: BackendInfo,
    environment: Arc<NodeEnvironment>,
    referee: Mutex<Referee>,
}

impl Server {
    pub(crate) fn new(
        world: &Arc<World>,
        environment: Arc<NodeEnvironment>,
        referee: Referee,
        plan: &RunPlan,
    ) -> Arc<Server> {
        let memory = Memory::in_environment(environment.clone());
        let mut info = memory.info().clone();
        (info.limits.gather, info.limits.calls_in_flight) = (plan.gather, plan.calls_in_flight);
        Arc::new(Server { world: Arc::clone(world), memory, info, environment, referee: Mutex::new(referee) })
    }

    pub(crate) fn referee(&self) -> MutexGuard<'_, Referee> {
        self.referee.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn info(&self) -> &BackendInfo {
        &self.info
    }

    pub(crate) fn tick(&self) {
        self.referee().tick(self.environment.now());
    }

    /// How many resources are remembered, once everything should be forgotten; and what they are, for people.
    pub(crate) fn left(&self) -> (usize, String) {
        (self.memory.resources(), format!("{:?}", self.referee()))
    }

    pub(crate) async fn acquire(&self, claims: &[Claim]) -> Vec<Result<Verdict>> {
        one_by_one(claims, |claim| self.acquire_claim(claim)).await
    }

    async fn acquire_claim(&self, claim: &Claim) -> Result<Verdict> {
        let verdict = self.memory.acquire_one(claim).await;
        if let Ok(Verdict::Granted(grant)) = &verdict {
            self.world.stamp(grant.token.get());
        }
        self.world.trace(|| {
            let after =
                claim.takes_over_from.map(|from| format!(" after {:?}", from.owner)).unwrap_or_default();
            let Claim { holder, owner, resource, share, .. } = claim;
            format!(
                "server: acquire {} {owner:?} {share:?} of {resource}{after}: {}",
                holder.label,
                short(&verdict)
            )
        });
        self.referee().acquired(self.environment.now(), claim, &verdict);
        verdict
    }

    pub(crate) async fn renew(&self, held: &[RenewRequest]) -> Vec<Result<Renewal>> {
        let answers = self.memory.renew(held).await;
        for (held, answer) in held.iter().zip(&answers) {
            self.world.trace(|| format!("server: renew {:?} of {}: {answer:?}", held.owner, held.resource));
            self.referee().renewed(self.environment.now(), held, answer);
        }
        answers
    }

    pub(crate) async fn release(&self, requests: &[ReleaseRequest]) -> Vec<Result<Released>> {
        one_by_one(requests, |request| self.release_claim(request)).await
    }

    async fn release_claim(&self, request: &ReleaseRequest) -> Result<Released> {
        let released = self.memory.release_one(request).await;
        self.world.trace(|| {
            let ReleaseRequest { owner, resource, tombstone, keep_for, .. } = request;
            format!("server: release {owner:?} of {resource} tombstone {tombstone:?} keep {keep_for:?}: {released:?}")
        });
        self.referee().released(self.environment.now(), request);
        released
    }

    pub(crate) async fn wait(&self, claim: &ClaimRef, since: &Cursor, at_most: Duration) -> Result<()> {
        self.memory.wait(claim, since, at_most).await
    }

    pub(crate) async fn inspect(&self, query: &Query) -> Result<Page> {
        self.memory.inspect(query).await
    }

    pub(crate) async fn order(&self, order: &OperatorCommand) -> Result<CommandOutcome> {
        let answer = self.memory.order(order).await;
        self.world.trace(|| format!("server: order {:?} on {}: {answer:?}", order.action, order.resource));
        self.referee().ordered(self.environment.now(), order, &answer);
        answer
    }

    /// Everything that is held or waited for.
    pub(crate) async fn all(&self) -> Vec<Snapshot> {
        let page = self.memory.inspect(&Query::Resources(Listing::default())).await;
        page.map(Page::into_snapshots).unwrap_or_default()
    }
}

fn short(verdict: &Result<Verdict>) -> String {
    match verdict {
        Ok(Verdict::Blocked(blocked)) => {
            format!(
                "blocked, placed {}, {} ahead, changes in {:?}",
                blocked.queued, blocked.ahead, blocked.changes_in
            )
        }
        other => format!("{other:?}"),
    }
}
