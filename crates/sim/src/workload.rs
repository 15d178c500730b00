//! What the tasks of a host do all day: every primitive, in every way that it can be asked for.

use std::{future::Future, sync::Arc, time::Duration};

use leasehold::{
    Client, Error, ErrorKind, FencingToken, Lease, LeaseRequest, Released, Scope, ShareNumber, Timestamp,
    TokenKind,
};
use leasehold_support::race::{Either, first};

use crate::{
    holding::{self, HeldLeaseCheck, HoldOptions},
    plan::Kind,
    progress::Phase,
    random::Random,
    simulation::{Host, Operation, Simulation},
    world::NodeId,
};

/// One task: operation after operation until the run drains.
pub(crate) async fn work(simulation: Arc<Simulation>, host: Host, random: Random) {
    let mut worker = Worker { node: host.node, client: host.client, simulation, random, scope: Scope::new() };
    while worker.simulation.progress.phase() < Phase::Drain {
        let pause = worker.random.spread(Duration::from_millis(1), Duration::from_millis(600));
        worker.pause(pause).await;
        worker.operate().await;
    }
}

pub(crate) struct Worker {
    pub(crate) simulation: Arc<Simulation>,
    pub(crate) node: NodeId,
    pub(crate) client: Client,
    pub(crate) random: Random,
    scope: Scope,
}

/// How long an acquire goes on trying.
#[derive(Clone, Copy, Debug)]
enum WaitLimit {
    Try,
    Attempts(u32),
    Wait(Duration),
    Forever,
}

/// What a token says.
pub(crate) trait Numbered: TokenKind {
    const FENCES: bool;
    fn number(self) -> u64;
}
impl Numbered for FencingToken {
    const FENCES: bool = true;
    fn number(self) -> u64 {
        self.get()
    }
}
impl Numbered for ShareNumber {
    const FENCES: bool = false;
    fn number(self) -> u64 {
        self.get()
    }
}

impl Worker {
    pub(crate) async fn pause(&self, duration: Duration) {
        self.simulation.pause(self.node, duration).await;
    }

    fn id(&mut self) -> String {
        self.random.below(self.simulation.plan.ids).to_string()
    }

    pub(crate) fn ttl(&mut self) -> Duration {
        let (low, high) = self.simulation.plan.ttl;
        self.random.duration(low, high)
    }

    async fn operate(&mut self) {
        let kind = *self.random.pick(&self.simulation.plan.kinds);
        let op = self.simulation.begin_op();
        match kind {
            Kind::Lease => self.lease(op).await,
            Kind::Fair => {
                let id = self.id();
                let request = self.client.lease("fair", &id).fair();
                self.exclusive(op, request, 1).await;
            }
            Kind::Semaphore => {
                let permits = u32::try_from(self.random.between(1, 3)).unwrap_or(1);
                let id = self.id();
                let request = self.client.semaphore("semaphore", &id, SEATS).permits(permits);
                self.shared(op, request, permits).await;
            }
            Kind::ReadWrite => self.read_or_write(op).await,
            Kind::Election => self.lead_or_watch(op).await,
            Kind::Scope => self.reenter(op).await,
            Kind::All => self.several(op).await,
        }
    }

    async fn lease(&mut self, op: Operation) {
        let detached = if self.random.chance(150) { self.simulation.detached().pop() } else { None };
        if let Some((detached, before)) = detached {
            drop(op);
            let (weight, resource) = (1, detached.resource().clone());
            let adopting = self.client.adopt(detached);
            let Ok(lease) = adopting.await else { return };
            let name = format!("op{before}");
            let check = HeldLeaseCheck::new(self, &lease, name, weight, HoldOptions::default());
            self.simulation.world.trace(|| format!("{:?} adopts op{before} of {resource}", self.node));
            let lease = holding::hold(self, lease, &check).await;
            holding::part(self, lease, check).await;
            return self.simulation.end_op(before);
        }
        let id = self.id();
        let request = self.client.lease("lease", &id);
        self.exclusive(op, request, 1).await;
    }

    async fn exclusive(&mut self, op: Operation, request: LeaseRequest, weight: u32) {
        let Some((lease, options)) = self.acquire(&op, request).await else { return };
        let check = HeldLeaseCheck::new(self, &lease, op.label(), weight, options);
        let lease = holding::hold(self, lease, &check).await;
        if weight == 1 && self.simulation.progress.phase() == Phase::Storm && self.random.chance(60) {
            if let Ok(detached) = lease.detach() {
                self.simulation.tally.count("detached");
                let id = op.hand_on();
                self.simulation.detached().push((detached, id));
            }
            return;
        }
        holding::part(self, lease, check).await;
    }

    async fn shared(&mut self, op: Operation, request: LeaseRequest<ShareNumber>, weight: u32) {
        let Some((lease, options)) = self.acquire(&op, request).await else { return };
        let check = HeldLeaseCheck::new(self, &lease, op.label(), weight, options);
        let lease = holding::hold(self, lease, &check).await;
        holding::part(self, lease, check).await;
    }

    async fn read_or_write(&mut self, op: Operation) {
        let id = self.id();
        let lock = self.client.rwlock("index", &id);
        if self.random.chance(600) {
            return self.shared(op, lock.read(), 1).await;
        }
        if !self.random.chance(400) {
            return self.exclusive_writer(op, lock.write()).await;
        }
        let Some((writer, options)) = self.acquire(&op, lock.write()).await else { return };
        let check = HeldLeaseCheck::new(self, &writer, op.label(), u32::MAX, options.clone());
        let writer = holding::hold(self, writer, &check).await;
        let downgrading = writer.downgrade();
        let reader = if self.random.chance(self.simulation.plan.cancel) {
            let limit = self.random.spread(Duration::from_micros(200), Duration::from_millis(300));
            self.simulation.tally.count("fault: cancelled downgrade");
            first(downgrading, self.pause(limit)).await.left()
        } else {
            Some(downgrading.await)
        };
        drop(check);
        match reader {
            Some(Ok(reader)) => {
                self.simulation.tally.count("downgraded");
                let check = HeldLeaseCheck::new(self, &reader, op.label(), 1, options);
                let reader = holding::hold(self, reader, &check).await;
                holding::part(self, reader, check).await;
            }
            Some(Err(error)) => self.expect(&error, &[ErrorKind::Lost, ErrorKind::Unavailable]),
            None => {}
        }
    }

    async fn exclusive_writer(&mut self, op: Operation, request: LeaseRequest) {
        let Some((lease, options)) = self.acquire(&op, request).await else { return };
        let check = HeldLeaseCheck::new(self, &lease, op.label(), u32::MAX, options);
        let lease = holding::hold(self, lease, &check).await;
        holding::part(self, lease, check).await;
    }

    async fn lead_or_watch(&mut self, op: Operation) {
        let id = self.id();
        let election = self.client.election("election", &id);
        if self.random.chance(700) {
            let request = election.candidate(format!("http://{}", op.label()));
            return self.exclusive(op, request, 1).await;
        }
        let Ok(mut observer) = election.observe() else { return };
        let mut newest = 0;
        for _ in 0..self.random.between(1, 8) {
            let limit = self.random.spread(Duration::from_millis(10), Duration::from_secs(2));
            let Either::Left(Ok(leader)) = first(observer.next(), self.pause(limit)).await else { continue };
            let token = leader.map_or(newest, |leader| leader.token.get());
            if token < newest {
                let message = format!("an observer saw leader {token} after {newest}");
                self.simulation.world.fail("observer", message);
            }
            newest = token;
        }
    }

    /// Enters, and enters again inside, with the same scope.
    async fn reenter(&mut self, op: Operation) {
        let (id, scope) = (self.id(), self.scope.clone());
        let request = self.client.lease("scope", &id).within(&scope);
        let Some((outer, options)) = self.acquire(&op, request).await else { return };
        let check = HeldLeaseCheck::new(self, &outer, op.label(), 1, options);
        let again = self.client.lease("scope", &id).within(&scope).label(&op.label());
        let inner = match again.try_acquire().await {
            Ok(inner) => inner,
            Err(error) => {
                self.expect(&error, &[ErrorKind::Unavailable]);
                None
            }
        };
        let Some(inner) = inner else {
            let lease = holding::hold(self, outer, &check).await;
            return holding::part(self, lease, check).await;
        };
        if inner.token() != outer.token() {
            if outer.check().is_ok() {
                let message = format!("{} entered again and got another token", op.label());
                self.simulation.world.fail("re-entry", message);
            }
            return; // the outer one was lost in between; both are dropped
        }
        let lease = if self.random.chance(500) {
            drop(outer);
            inner
        } else {
            let answer = inner.release().await;
            if !matches!(answer, Ok(Released::StillHeld)) {
                self.simulation
                    .world
                    .fail("re-entry", format!("{} left the inner one: {answer:?}", op.label()));
            }
            outer
        };
        let lease = holding::hold(self, lease, &check).await;
        holding::part(self, lease, check).await;
    }

    /// Several at once, in an order of its own.
    async fn several(&mut self, op: Operation) {
        let label = op.label();
        let ttl = self.ttl();
        let mut requests: Vec<LeaseRequest> = (0..self.simulation.plan.ids)
            .map(|id| self.client.lease("lease", &id.to_string()).ttl(ttl).label(&label))
            .collect();
        if self.random.chance(500) {
            requests.reverse();
        }
        let permits = self.client.semaphore("semaphore", "0", SEATS).permits(1).ttl(ttl).label(&label);
        let most = self.random.spread(Duration::from_millis(20), Duration::from_secs(4));
        let asking = self.client.all(requests).and(permits).wait(most).acquire();
        let set = match self.perhaps_cancelled(asking).await {
            None => return,
            Some(Ok(set)) => set,
            Some(Err(error)) => return self.refused(&error),
        };
        self.simulation.tally.count("sets granted");
        holding::hold_set(self, &op, set).await;
    }

    /// Drops the future part-way, now and then.
    async fn perhaps_cancelled<T>(&mut self, future: impl Future<Output = T>) -> Option<T> {
        if !self.random.chance(self.simulation.plan.cancel) {
            return Some(future.await);
        }
        let limit = self.random.spread(Duration::from_micros(100), Duration::from_secs(2));
        let outcome = first(future, self.pause(limit)).await.left();
        if outcome.is_none() {
            self.simulation.tally.count("fault: cancelled acquire");
        }
        outcome
    }

    fn patience(&mut self) -> WaitLimit {
        match self.random.below(10) {
            0 | 1 => WaitLimit::Try,
            2 => WaitLimit::Attempts(u32::try_from(self.random.between(2, 5)).unwrap_or(2)),
            3..=6 => WaitLimit::Wait(self.random.spread(Duration::from_millis(5), Duration::from_secs(8))),
            _ => WaitLimit::Forever,
        }
    }

    /// Makes the request in one of many ways, and checks how it ended.
    async fn acquire<T: Numbered>(
        &mut self,
        op: &Operation,
        request: LeaseRequest<T>,
    ) -> Option<(Lease<T>, HoldOptions)> {
        let ttl = self.ttl();
        let options = HoldOptions::draw(&mut self.random, ttl);
        let mut request = request.ttl(ttl).renew(!options.fixed).label(&op.label());
        if let Some(max_hold) = options.max_hold {
            request = request.max_hold(max_hold);
        }
        if let Some(within) = options.progress_within {
            request = request.progress_within(within);
        }
        if let Some(least) = options.at_least {
            request = request.at_least(least);
        }
        let patience = self.patience();
        let resource = request.resource().cloned().ok();
        self.trace(|| {
            format!("{} asks for {resource:?}, {patience:?}, ttl {ttl:?}, {options:?}", op.label())
        });
        let before = (self.now(), self.simulation.world.past(self.node));
        let asking = async {
            match patience {
                WaitLimit::Try => request.try_acquire().await,
                WaitLimit::Attempts(most) => request.attempts(most).acquire().await.map(Some),
                WaitLimit::Wait(most) => request.wait(most).acquire().await.map(Some),
                WaitLimit::Forever => request.wait_forever().acquire().await.map(Some),
            }
        };
        let outcome = self.perhaps_cancelled(asking).await;
        self.check_patience(op, patience, before);
        self.trace(|| {
            format!("{} got {:?}", op.label(), outcome.as_ref().map(|o| o.as_ref().map(Option::is_some)))
        });
        match outcome {
            None | Some(Ok(None)) => None,
            Some(Ok(Some(lease))) => {
                self.simulation.tally.count("granted");
                Some((lease, options))
            }
            Some(Err(error)) => {
                self.check_outage(op, patience, before.0, &error);
                self.refused(&error);
                None
            }
        }
    }

    /// A request that waits is told that the backend is unavailable only when its own time is over, or an outage has
    /// lasted for as long as an outage is given.
    fn check_outage(&self, op: &Operation, patience: WaitLimit, started: Timestamp, error: &Error) {
        let most = match patience {
            WaitLimit::Try | WaitLimit::Attempts(_) => return,
            WaitLimit::Wait(most) => most.min(OUTAGE_MAX),
            WaitLimit::Forever => OUTAGE_MAX,
        };
        let took = started.until(self.now());
        // A clock that runs at another rate than the timers is seen to be a little early.
        if error.kind() == ErrorKind::Unavailable && took < most * 9 / 10 {
            let message =
                format!("{} was to wait {patience:?} and gave up after {took:?}: {error}", op.label());
            self.simulation.world.fail("gave up early", message);
        }
    }

    pub(crate) fn trace(&self, text: impl FnOnce() -> String) {
        self.simulation.world.trace(|| format!("{:?}: {}", self.node, text()));
    }

    /// A wait that was bounded came back in time, unless the node was stopped meanwhile.
    fn check_patience(&self, op: &Operation, patience: WaitLimit, before: (Timestamp, (u64, u32))) {
        let (started, past) = before;
        let WaitLimit::Wait(most) = patience else { return };
        let took = started.until(self.now());
        if took > most + Duration::from_millis(2500) && past == self.simulation.world.past(self.node) {
            self.simulation
                .world
                .fail("patience", format!("{} was to wait {most:?} and took {took:?}", op.label()));
        }
    }

    fn refused(&self, error: &Error) {
        self.simulation.tally.count(match error.kind() {
            ErrorKind::Contended => "contended",
            ErrorKind::Unavailable => "unavailable",
            _ => "refused otherwise",
        });
        let mut kinds = vec![ErrorKind::Contended, ErrorKind::Unavailable, ErrorKind::Lost];
        if self.simulation.plan.orders {
            kinds.push(ErrorKind::Mismatch);
        }
        self.expect(error, &kinds);
    }

    /// Only these errors may happen, and without faults the backend always replies.
    pub(crate) fn expect(&self, error: &Error, kinds: &[ErrorKind]) {
        let calm = error.kind() != ErrorKind::Unavailable || !self.simulation.progress.is_strict();
        if !kinds.contains(&error.kind()) || !calm {
            self.simulation.world.fail("unexpected error", format!("{error:?}"));
        }
    }
}

/// How long the engine lets a caller wait for a backend that does not answer.
const OUTAGE_MAX: Duration = Duration::from_secs(10);

/// Of every semaphore.
pub(crate) const SEATS: u32 = 3;
