//! What the tasks of a host do all day: every primitive, in every way that it can be asked for.

use std::{future::Future, sync::Arc, time::Duration};

use leasehold::{
    Client, Error, ErrorKind, FencingToken, Lease, LeaseRequest, Released, Scope, ShareNumber, Timestamp,
    TokenKind,
};
use leasehold_support::race::{Either, first};

use crate::{
    holding::{self, Grip, Terms},
    plan::Kind,
    progress::Phase,
    random::Random,
    stage::{Host, Op, Stage},
    world::NodeId,
};

/// One task: operation after operation until the run drains.
pub(crate) async fn work(stage: Arc<Stage>, host: Host, random: Random) {
    let mut worker = Worker { node: host.node, client: host.client, stage, random, scope: Scope::new() };
    while worker.stage.progress.phase() < Phase::Drain {
        let pause = worker.random.spread(Duration::from_millis(1), Duration::from_millis(600));
        worker.pause(pause).await;
        worker.operate().await;
    }
}

pub(crate) struct Worker {
    pub(crate) stage: Arc<Stage>,
    pub(crate) node: NodeId,
    pub(crate) client: Client,
    pub(crate) random: Random,
    scope: Scope,
}

/// How long an acquire goes on trying.
#[derive(Clone, Copy, Debug)]
enum Patience {
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
        self.stage.pause(self.node, duration).await;
    }

    fn id(&mut self) -> String {
        self.random.below(self.stage.plan.ids).to_string()
    }

    pub(crate) fn ttl(&mut self) -> Duration {
        let (low, high) = self.stage.plan.ttl;
        self.random.duration(low, high)
    }

    async fn operate(&mut self) {
        let kind = *self.random.pick(&self.stage.plan.kinds);
        let op = self.stage.begin_op();
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

    async fn lease(&mut self, op: Op) {
        let detached = if self.random.chance(150) { self.stage.detached().pop() } else { None };
        if let Some((detached, before)) = detached {
            drop(op);
            let (weight, resource) = (1, detached.resource().clone());
            let adopting = self.client.adopt(detached);
            let Ok(lease) = adopting.await else { return };
            let name = format!("op{before}");
            let grip = Grip::new(self, &lease, name, weight, Terms::default());
            self.stage.world.trace(|| format!("{:?} adopts op{before} of {resource}", self.node));
            let lease = holding::hold(self, lease, &grip).await;
            holding::part(self, lease, grip).await;
            return self.stage.end_op(before);
        }
        let id = self.id();
        let request = self.client.lease("lease", &id);
        self.exclusive(op, request, 1).await;
    }

    async fn exclusive(&mut self, op: Op, request: LeaseRequest, weight: u32) {
        let Some((lease, terms)) = self.acquire(&op, request).await else { return };
        let grip = Grip::new(self, &lease, op.label(), weight, terms);
        let lease = holding::hold(self, lease, &grip).await;
        if weight == 1 && self.stage.progress.phase() == Phase::Storm && self.random.chance(60) {
            if let Ok(detached) = lease.detach() {
                self.stage.tally.count("detached");
                let id = op.hand_on();
                self.stage.detached().push((detached, id));
            }
            return;
        }
        holding::part(self, lease, grip).await;
    }

    async fn shared(&mut self, op: Op, request: LeaseRequest<ShareNumber>, weight: u32) {
        let Some((lease, terms)) = self.acquire(&op, request).await else { return };
        let grip = Grip::new(self, &lease, op.label(), weight, terms);
        let lease = holding::hold(self, lease, &grip).await;
        holding::part(self, lease, grip).await;
    }

    async fn read_or_write(&mut self, op: Op) {
        let id = self.id();
        let lock = self.client.rwlock("index", &id);
        if self.random.chance(600) {
            return self.shared(op, lock.read(), 1).await;
        }
        if !self.random.chance(400) {
            return self.exclusive_writer(op, lock.write()).await;
        }
        let Some((writer, terms)) = self.acquire(&op, lock.write()).await else { return };
        let grip = Grip::new(self, &writer, op.label(), u32::MAX, terms.clone());
        let writer = holding::hold(self, writer, &grip).await;
        let downgrading = writer.downgrade();
        let reader = if self.random.chance(self.stage.plan.cancel) {
            let limit = self.random.spread(Duration::from_micros(200), Duration::from_millis(300));
            self.stage.tally.count("fault: cancelled downgrade");
            first(downgrading, self.pause(limit)).await.left()
        } else {
            Some(downgrading.await)
        };
        drop(grip);
        match reader {
            Some(Ok(reader)) => {
                self.stage.tally.count("downgraded");
                let grip = Grip::new(self, &reader, op.label(), 1, terms);
                let reader = holding::hold(self, reader, &grip).await;
                holding::part(self, reader, grip).await;
            }
            Some(Err(error)) => self.expect(&error, &[ErrorKind::Lost, ErrorKind::Unavailable]),
            None => {}
        }
    }

    async fn exclusive_writer(&mut self, op: Op, request: LeaseRequest) {
        let Some((lease, terms)) = self.acquire(&op, request).await else { return };
        let grip = Grip::new(self, &lease, op.label(), u32::MAX, terms);
        let lease = holding::hold(self, lease, &grip).await;
        holding::part(self, lease, grip).await;
    }

    async fn lead_or_watch(&mut self, op: Op) {
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
                self.stage.world.fail("observer", message);
            }
            newest = token;
        }
    }

    /// Enters, and enters again inside, with the same scope.
    async fn reenter(&mut self, op: Op) {
        let (id, scope) = (self.id(), self.scope.clone());
        let request = self.client.lease("scope", &id).within(&scope);
        let Some((outer, terms)) = self.acquire(&op, request).await else { return };
        let grip = Grip::new(self, &outer, op.label(), 1, terms);
        let again = self.client.lease("scope", &id).within(&scope).label(&op.label());
        let inner = match again.try_acquire().await {
            Ok(inner) => inner,
            Err(error) => {
                self.expect(&error, &[ErrorKind::Unavailable]);
                None
            }
        };
        let Some(inner) = inner else {
            let lease = holding::hold(self, outer, &grip).await;
            return holding::part(self, lease, grip).await;
        };
        if inner.token() != outer.token() {
            if outer.check().is_ok() {
                let message = format!("{} entered again and got another token", op.label());
                self.stage.world.fail("re-entry", message);
            }
            return; // the outer one was lost in between; both are dropped
        }
        let lease = if self.random.chance(500) {
            drop(outer);
            inner
        } else {
            let answer = inner.release().await;
            if !matches!(answer, Ok(Released::StillHeld)) {
                self.stage.world.fail("re-entry", format!("{} left the inner one: {answer:?}", op.label()));
            }
            outer
        };
        let lease = holding::hold(self, lease, &grip).await;
        holding::part(self, lease, grip).await;
    }

    /// Several at once, in an order of its own.
    async fn several(&mut self, op: Op) {
        let label = op.label();
        let ttl = self.ttl();
        let mut requests: Vec<LeaseRequest> = (0..self.stage.plan.ids)
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
        self.stage.tally.count("sets granted");
        holding::hold_set(self, &op, set).await;
    }

    /// Drops the future part-way, now and then.
    async fn perhaps_cancelled<T>(&mut self, future: impl Future<Output = T>) -> Option<T> {
        if !self.random.chance(self.stage.plan.cancel) {
            return Some(future.await);
        }
        let limit = self.random.spread(Duration::from_micros(100), Duration::from_secs(2));
        let outcome = first(future, self.pause(limit)).await.left();
        if outcome.is_none() {
            self.stage.tally.count("fault: cancelled acquire");
        }
        outcome
    }

    fn patience(&mut self) -> Patience {
        match self.random.below(10) {
            0 | 1 => Patience::Try,
            2 => Patience::Attempts(u32::try_from(self.random.between(2, 5)).unwrap_or(2)),
            3..=6 => Patience::Wait(self.random.spread(Duration::from_millis(5), Duration::from_secs(8))),
            _ => Patience::Forever,
        }
    }

    /// Makes the request in one of the many ways, and judges how it ended.
    async fn acquire<T: Numbered>(&mut self, op: &Op, request: LeaseRequest<T>) -> Option<(Lease<T>, Terms)> {
        let ttl = self.ttl();
        let terms = Terms::draw(&mut self.random, ttl);
        let mut request = request.ttl(ttl).renew(!terms.fixed).label(&op.label());
        if let Some(max_hold) = terms.max_hold {
            request = request.max_hold(max_hold);
        }
        if let Some(within) = terms.progress_within {
            request = request.progress_within(within);
        }
        if let Some(least) = terms.at_least {
            request = request.at_least(least);
        }
        let patience = self.patience();
        let resource = request.resource().cloned().ok();
        self.trace(|| format!("{} asks for {resource:?}, {patience:?}, ttl {ttl:?}, {terms:?}", op.label()));
        let before = (self.now(), self.stage.world.past(self.node));
        let asking = async {
            match patience {
                Patience::Try => request.try_acquire().await,
                Patience::Attempts(most) => request.attempts(most).acquire().await.map(Some),
                Patience::Wait(most) => request.wait(most).acquire().await.map(Some),
                Patience::Forever => request.wait_forever().acquire().await.map(Some),
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
                self.stage.tally.count("granted");
                Some((lease, terms))
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
    fn check_outage(&self, op: &Op, patience: Patience, started: Timestamp, error: &Error) {
        let most = match patience {
            Patience::Try | Patience::Attempts(_) => return,
            Patience::Wait(most) => most.min(OUTAGE_MAX),
            Patience::Forever => OUTAGE_MAX,
        };
        let took = started.until(self.now());
        // A clock that runs at another rate than the timers is seen to be a little early.
        if error.kind() == ErrorKind::Unavailable && took < most * 9 / 10 {
            let message =
                format!("{} was to wait {patience:?} and gave up after {took:?}: {error}", op.label());
            self.stage.world.fail("gave up early", message);
        }
    }

    pub(crate) fn trace(&self, text: impl FnOnce() -> String) {
        self.stage.world.trace(|| format!("{:?}: {}", self.node, text()));
    }

    /// A wait that was bounded came back in time, unless the node was stopped meanwhile.
    fn check_patience(&self, op: &Op, patience: Patience, before: (Timestamp, (u64, u32))) {
        let (started, past) = before;
        let Patience::Wait(most) = patience else { return };
        let took = started.until(self.now());
        if took > most + Duration::from_millis(2500) && past == self.stage.world.past(self.node) {
            self.stage
                .world
                .fail("patience", format!("{} was to wait {most:?} and took {took:?}", op.label()));
        }
    }

    fn refused(&self, error: &Error) {
        self.stage.tally.count(match error.kind() {
            ErrorKind::Contended => "contended",
            ErrorKind::Unavailable => "unavailable",
            _ => "refused otherwise",
        });
        let mut kinds = vec![ErrorKind::Contended, ErrorKind::Unavailable, ErrorKind::Lost];
        if self.stage.plan.orders {
            kinds.push(ErrorKind::Mismatch);
        }
        self.expect(error, &kinds);
    }

    /// Nothing but these may go wrong, and the backend always answers once the weather is calm.
    pub(crate) fn expect(&self, error: &Error, kinds: &[ErrorKind]) {
        let calm = error.kind() != ErrorKind::Unavailable || !self.stage.progress.is_strict();
        if !kinds.contains(&error.kind()) || !calm {
            self.stage.world.fail("unexpected error", format!("{error:?}"));
        }
    }
}

/// How long the engine lets a caller wait for a backend that does not answer.
const OUTAGE_MAX: Duration = Duration::from_secs(10);

/// Of every semaphore.
pub(crate) const SEATS: u32 = 3;
