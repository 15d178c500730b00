//! What the tasks of a host do all day: take the lease, act under it, give it back.

use std::{sync::Arc, time::Duration};

use leasehold::{Client, Error, ErrorKind, Lease};
use leasehold_support::race::first;

use super::{plan::QuorumRunPlan, simulation::QuorumSimulation};
use crate::{progress::Phase, random::Random, world::NodeId};

struct QuorumWorker {
    simulation: Arc<QuorumSimulation>,
    node: NodeId,
    client: Client,
    random: Random,
}

/// One task: lease after lease until the run drains.
pub(crate) async fn work(
    simulation: Arc<QuorumSimulation>,
    node: NodeId,
    client: Client,
    random: Random,
    elsewhere: bool,
) {
    let mut worker = QuorumWorker { simulation, node, client, random };
    while worker.simulation.progress.phase() < Phase::Drain {
        worker.pause(Duration::from_millis(1), Duration::from_millis(700)).await;
        if elsewhere && worker.simulation.progress.phase() < Phase::Strict {
            // The clients of a set also maintain its nodes.
            drop(worker.client.lease("lease", "elsewhere").ttl(QuorumRunPlan::TTL.0).try_acquire().await);
        } else {
            worker.operate().await;
        }
    }
}

/// An operation, by a name that nodes show. Once it has ended they must soon have nothing of it.
struct QuorumOperation(Arc<QuorumSimulation>, String);

impl Drop for QuorumOperation {
    fn drop(&mut self) {
        self.0.end(std::mem::take(&mut self.1));
    }
}

impl QuorumWorker {
    async fn pause(&mut self, low: Duration, high: Duration) {
        let duration = self.random.spread(low, high);
        let world = &self.simulation.world;
        let long = world.clock(self.node, |clock, _| clock.true_duration(duration));
        world.sleep(self.node, long).await;
    }

    async fn operate(&mut self) {
        let op = QuorumOperation(Arc::clone(&self.simulation), self.simulation.next_label());
        let ttl = self.random.duration(QuorumRunPlan::TTL.0, QuorumRunPlan::TTL.1);
        let above = self.simulation.beliefs.begin();
        let request = self.client.lease("lease", "0").ttl(ttl).label(&op.1);
        let wait = self.random.spread(Duration::from_millis(5), Duration::from_secs(6));
        let tries = self.random.chance(300);
        let asking = async {
            if tries { request.try_acquire().await } else { request.wait(wait).acquire().await.map(Some) }
        };
        let outcome = if self.random.chance(self.simulation.plan.cancel) {
            self.simulation.tally.count("fault: cancelled acquire");
            first(asking, self.pause(Duration::from_micros(100), Duration::from_secs(1))).await.left()
        } else {
            Some(asking.await)
        };
        let name = format!("{} of {:?}", op.1, self.node);
        self.simulation.world.trace(|| {
            format!(
                "{name} got {:?}",
                outcome.as_ref().map(|it| it.as_ref().map(|it| it.as_ref().map(|it| it.token())))
            )
        });
        match outcome {
            None => {}
            Some(Ok(None)) => self.simulation.tally.count("contended"),
            Some(Ok(Some(lease))) => self.hold(lease, above, &name).await,
            Some(Err(error)) => self.refused(&error),
        }
    }

    async fn hold(&mut self, lease: Lease, above: Option<leasehold::FencingToken>, name: &str) {
        let (beliefs, view) = (Arc::clone(&self.simulation.beliefs), lease.view());
        let page = beliefs.granted(self.node, above, &view, name);
        self.simulation.tally.count("granted");
        for _ in 0..self.random.between(1, 6) {
            // Some look before they act; the fence has to hold for the others.
            let looks = self.random.chance(700);
            if looks && view.check().is_err() {
                break;
            }
            beliefs.look();
            let Some(value) = beliefs.read(&view, name) else { break };
            self.pause(Duration::from_millis(1), Duration::from_millis(900)).await;
            beliefs.write(&view, value + 1, name);
        }
        if view.check().is_err() {
            self.simulation.tally.count("losses signalled");
        }
        drop(page);
        if self.random.chance(200) {
            return drop(lease);
        }
        match lease.release().await {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Unavailable => {}
            Err(error) => self.simulation.world.fail("unexpected error", format!("{error:?}")),
        }
    }

    fn refused(&self, error: &Error) {
        self.simulation.tally.count(match error.kind() {
            ErrorKind::Contended => "contended",
            ErrorKind::Unavailable => "unavailable",
            _ => "refused otherwise",
        });
        let expected =
            matches!(error.kind(), ErrorKind::Contended | ErrorKind::Unavailable | ErrorKind::Lost);
        let calm = error.kind() != ErrorKind::Unavailable || self.simulation.progress.phase() < Phase::Strict;
        if !expected || !calm {
            self.simulation.world.fail("unexpected error", format!("{error:?}"));
        }
    }
}
