//! What the tasks of a host do all day: take the lease, act under it, give it back.

use std::{sync::Arc, time::Duration};

use leasehold::{Client, Error, ErrorKind, Lease};
use leasehold_support::race::first;

use super::{plan::Plan, theatre::Theatre};
use crate::{progress::Phase, random::Random, world::NodeId};

struct Worker {
    theatre: Arc<Theatre>,
    node: NodeId,
    client: Client,
    random: Random,
}

/// One task: lease after lease until the run drains.
pub(crate) async fn work(
    theatre: Arc<Theatre>,
    node: NodeId,
    client: Client,
    random: Random,
    elsewhere: bool,
) {
    let mut worker = Worker { theatre, node, client, random };
    while worker.theatre.progress.phase() < Phase::Drain {
        worker.pause(Duration::from_millis(1), Duration::from_millis(700)).await;
        if elsewhere && worker.theatre.progress.phase() < Phase::Strict {
            // Whoever uses the set sees to its nodes.
            drop(worker.client.lease("lease", "elsewhere").ttl(Plan::TTL.0).try_acquire().await);
        } else {
            worker.operate().await;
        }
    }
}

/// An operation, by a name that nodes show. Once it has ended they must soon have nothing of it.
struct Op(Arc<Theatre>, String);

impl Drop for Op {
    fn drop(&mut self) {
        self.0.end(std::mem::take(&mut self.1));
    }
}

impl Worker {
    async fn pause(&mut self, low: Duration, high: Duration) {
        let duration = self.random.spread(low, high);
        let world = &self.theatre.world;
        let long = world.clock(self.node, |clock, _| clock.true_duration(duration));
        world.sleep(self.node, long).await;
    }

    async fn operate(&mut self) {
        let op = Op(Arc::clone(&self.theatre), self.theatre.next_label());
        let ttl = self.random.duration(Plan::TTL.0, Plan::TTL.1);
        let above = self.theatre.judge.begin();
        let request = self.client.lease("lease", "0").ttl(ttl).label(&op.1);
        let wait = self.random.spread(Duration::from_millis(5), Duration::from_secs(6));
        let tries = self.random.chance(300);
        let asking = async {
            if tries { request.try_acquire().await } else { request.wait(wait).acquire().await.map(Some) }
        };
        let outcome = if self.random.chance(self.theatre.plan.cancel) {
            self.theatre.tally.count("fault: cancelled acquire");
            first(asking, self.pause(Duration::from_micros(100), Duration::from_secs(1))).await.left()
        } else {
            Some(asking.await)
        };
        let name = format!("{} of {:?}", op.1, self.node);
        self.theatre.world.trace(|| {
            format!(
                "{name} got {:?}",
                outcome.as_ref().map(|it| it.as_ref().map(|it| it.as_ref().map(|it| it.token())))
            )
        });
        match outcome {
            None => {}
            Some(Ok(None)) => self.theatre.tally.count("contended"),
            Some(Ok(Some(lease))) => self.hold(lease, above, &name).await,
            Some(Err(error)) => self.refused(&error),
        }
    }

    async fn hold(&mut self, lease: Lease, above: Option<leasehold::FencingToken>, name: &str) {
        let (judge, view) = (Arc::clone(&self.theatre.judge), lease.view());
        let page = judge.granted(self.node, above, &view, name);
        self.theatre.tally.count("granted");
        for _ in 0..self.random.between(1, 6) {
            // Some look before they act; the fence has to hold for the others.
            let looks = self.random.chance(700);
            if looks && view.check().is_err() {
                break;
            }
            judge.look();
            let Some(value) = judge.read(&view, name) else { break };
            self.pause(Duration::from_millis(1), Duration::from_millis(900)).await;
            judge.write(&view, value + 1, name);
        }
        if view.check().is_err() {
            self.theatre.tally.count("losses signalled");
        }
        drop(page);
        if self.random.chance(200) {
            return drop(lease);
        }
        match lease.release().await {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Unavailable => {}
            Err(error) => self.theatre.world.fail("unexpected error", format!("{error:?}")),
        }
    }

    fn refused(&self, error: &Error) {
        self.theatre.tally.count(match error.kind() {
            ErrorKind::Contended => "contended",
            ErrorKind::Unavailable => "unavailable",
            _ => "refused otherwise",
        });
        let expected =
            matches!(error.kind(), ErrorKind::Contended | ErrorKind::Unavailable | ErrorKind::Lost);
        let calm = error.kind() != ErrorKind::Unavailable || self.theatre.progress.phase() < Phase::Strict;
        if !expected || !calm {
            self.theatre.world.fail("unexpected error", format!("{error:?}"));
        }
    }
}
