//! Between a node and the server: delays, losses, repeats, partitions. What has left a node cannot be called back.

use std::{
    collections::BTreeMap,
    fmt,
    future::{Future, pending},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use leasehold::{
    Backend, BackendInfo, Claim, ClaimRef, CommandOutcome, Cursor, Effect, Error, ErrorKind, FailureDomain,
    GoneReason, OperatorCommand, OwnerToken, Page, Query, ReleaseRequest, Released, RenewRequest, Renewal,
    Resource, Result, Verdict,
};
use leasehold_support::race::{Either, first};
use tokio::sync::oneshot;

use crate::{
    clock::Time,
    ledger::Ledger,
    plan::{Plan, Weather},
    random::{Random, nanos},
    report::Tally,
    server::Server,
    world::{NodeId, SERVER, World},
};

/// Which way a host is cut off.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cut {
    pub(crate) requests: bool,
    pub(crate) replies: bool,
}

/// All links.
#[derive(Debug)]
pub(crate) struct Network {
    world: Arc<World>,
    tally: Arc<Tally>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    random: Random,
    weather: Weather,
    /// Nothing that is late arrives after this.
    late_until: Time,
    cuts: BTreeMap<u64, Cut>,
}

/// What becomes of one exchange.
#[derive(Clone, Copy, Debug)]
struct Fate {
    request: u64,
    reply: u64,
    request_lost: bool,
    reply_lost: bool,
    twice: bool,
    refused: bool,
    /// Instead of silence, the caller learns that the connection broke.
    reset: bool,
}

impl Network {
    pub(crate) fn new(
        world: &Arc<World>,
        tally: &Arc<Tally>,
        random: Random,
        weather: Weather,
        late_until: Time,
    ) -> Arc<Network> {
        let state = Mutex::new(State { random, weather, late_until, cuts: BTreeMap::new() });
        let (world, tally) = (Arc::clone(world), Arc::clone(tally));
        Arc::new(Network { world, tally, state })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn trace(&self, text: impl FnOnce() -> String) {
        self.world.trace(text);
    }

    pub(crate) fn cut(&self, host: u64, cut: Cut) {
        self.state().cuts.insert(host, cut);
    }

    fn is_cut(&self, host: u64) -> Cut {
        self.state().cuts.get(&host).copied().unwrap_or_default()
    }

    /// Every link is whole, and the sky is clear.
    pub(crate) fn heal(&self) {
        let mut state = self.state();
        state.cuts.clear();
        state.weather = Weather::calm();
    }

    fn fate(&self) -> Fate {
        let now = self.world.now();
        let mut state = self.state();
        let State { random, weather, late_until, .. } = &mut *state;
        let mut latency = |late: u32| {
            let ordinary = random.spread(Duration::from_micros(100), weather.latency_max);
            let late = late > 0 && random.chance(late);
            let most = late_until.saturating_sub(now);
            if late {
                self.tally.count("fault: late message");
                let extra = random.spread(Duration::from_millis(50), weather.late_max);
                return nanos(ordinary) + nanos(extra).min(most);
            }
            nanos(ordinary)
        };
        let (request, reply) = (latency(weather.late_request), latency(weather.late_reply));
        let mut meets = |rate: u32, what: &'static str| {
            let met = rate > 0 && random.chance(rate);
            if met {
                self.tally.count(what);
            }
            met
        };
        Fate {
            request,
            reply,
            request_lost: meets(weather.lose_request, "fault: request lost"),
            reply_lost: meets(weather.lose_reply, "fault: reply lost"),
            twice: meets(weather.twice, "fault: executed twice"),
            refused: meets(weather.refuse, "fault: refused"),
            reset: meets(weather.reset, "fault: connection reset"),
        }
    }

    /// Sends, executes and answers. Dropping it undoes nothing; `idle` requests end when nobody listens any more.
    pub(crate) async fn exchange<S, T, F, W>(
        self: &Arc<Network>,
        (from, host): (NodeId, u64),
        (to, server): (NodeId, &Arc<S>),
        idle: bool,
        execute: F,
    ) -> Result<T>
    where
        S: Send + Sync + 'static,
        T: Send + 'static,
        F: Fn(Arc<S>) -> W + Send + 'static,
        W: Future<Output = T> + Send + 'static,
    {
        let fate = self.fate();
        if fate.refused {
            self.world.sleep(from, fate.request).await;
            return Err(Error::new(ErrorKind::Unavailable, "the connection was refused"));
        }
        let (mut answer, answered) = oneshot::channel();
        let (network, server) = (Arc::clone(self), Arc::clone(server));
        self.world.spawn(
            to,
            Box::pin(async move {
                let world = &network.world;
                let broken = || {
                    Err(Error::new(ErrorKind::Unavailable, "the connection broke")
                        .with_effect(Effect::Unknown))
                };
                world.sleep(to, fate.request).await;
                if fate.request_lost || network.is_cut(host).requests {
                    if fate.reset {
                        drop(answer.send(broken()));
                    }
                    return;
                }
                let output = if idle {
                    let Either::Left(output) = first(execute(Arc::clone(&server)), answer.closed()).await
                    else {
                        return;
                    };
                    output
                } else {
                    if fate.twice {
                        drop(execute(Arc::clone(&server)).await);
                    }
                    execute(Arc::clone(&server)).await
                };
                world.sleep(to, fate.reply).await;
                let lost = fate.reply_lost || network.is_cut(host).replies;
                match (lost, fate.reset) {
                    (false, false) => drop(answer.send(Ok(output))),
                    (_, true) => drop(answer.send(broken())),
                    (true, false) => {}
                }
            }),
        );
        match answered.await {
            Ok(answer) => answer,
            Err(_) => pending().await, // silence
        }
    }
}

/// One node's way to the server.
pub(crate) struct Link {
    network: Arc<Network>,
    server: Arc<Server>,
    ledger: Arc<Ledger>,
    node: NodeId,
    host: u64,
}

impl Link {
    pub(crate) fn new(
        network: &Arc<Network>,
        server: &Arc<Server>,
        ledger: &Arc<Ledger>,
        node: NodeId,
        host: u64,
    ) -> Link {
        let (network, server, ledger) = (Arc::clone(network), Arc::clone(server), Arc::clone(ledger));
        Link { network, server, ledger, node, host }
    }

    async fn exchange<T, F, W>(&self, idle: bool, execute: F) -> Result<T>
    where
        T: Send + 'static,
        F: Fn(Arc<Server>) -> W + Send + 'static,
        W: Future<Output = T> + Send + 'static,
    {
        let (from, to) = ((self.node, self.host), (SERVER, &self.server));
        self.network.exchange(from, to, idle, execute).await
    }

    /// Whoever knows that its lease is over does not renew it.
    fn check_renewal(&self, held: &RenewRequest) {
        let Some((since, name)) = self.ledger.over_since(self.node, held.owner) else { return };
        let world = &self.network.world;
        let (resumed_at, _) = world.past(self.node);
        if world.now() > since.max(resumed_at) {
            let since = Duration::from_nanos(since);
            world.fail("renewed after its end", format!("{name} was over at {since:?} and is renewed"));
        }
    }
}

/// A request of a claim, until it is answered or given up.
struct Unanswered<'a> {
    link: &'a Link,
    owner: OwnerToken,
    answered: bool,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.link.ledger.unanswered(self.link.node, self.owner);
        }
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Link of {:?}", self.node)
    }
}

#[async_trait]
impl Backend for Link {
    fn info(&self) -> &BackendInfo {
        self.server.info()
    }

    fn failure_domain(&self, _: &Resource) -> FailureDomain {
        FailureDomain::default()
    }

    async fn acquire(&self, claim: &Claim) -> Result<Verdict> {
        self.ledger.asks(self.node, claim.owner, claim.ttl);
        let mut unanswered = Unanswered { link: self, owner: claim.owner, answered: false };
        let sent = self.ledger.sending(self.node);
        let asked = Arc::new(claim.clone());
        let execute = move |server: Arc<Server>| {
            let claim = Arc::clone(&asked);
            async move { server.acquire(&claim).await }
        };
        let verdict = self.exchange(false, execute).await??;
        unanswered.answered = true;
        if let Verdict::Granted(grant) = &verdict {
            self.ledger.vouch(self.node, claim.owner, sent, grant.remaining, claim.ttl);
            // Who takes over has lost no turn if that fails: its place is where it was.
            if claim.takes_over_from.is_none() {
                self.ledger.is_late(self.node, claim.owner);
            }
        }
        Ok(verdict)
    }

    async fn renew(&self, held: &[RenewRequest]) -> Vec<Result<Renewal>> {
        for held in held {
            self.check_renewal(held);
            if self.ledger.renews_late(self.node, held.owner) {
                self.network.tally.count("late grants renewed");
            }
        }
        let sent = self.ledger.sending(self.node);
        let asked: Arc<[RenewRequest]> = held.into();
        let execute = move |server: Arc<Server>| {
            let held = Arc::clone(&asked);
            async move { server.renew(&held).await }
        };
        let answers = match self.exchange(false, execute).await {
            Ok(answers) => answers,
            Err(error) => return held.iter().map(|_| Err(error.clone())).collect(),
        };
        for (held, answer) in held.iter().zip(&answers) {
            match answer {
                // Of a place that has become a seat: nobody counts on it.
                Ok(Renewal::Renewed(_)) if held.ttl == Plan::PLACE_TTL => {}
                Ok(Renewal::Renewed(kept)) => {
                    self.ledger.vouch(self.node, held.owner, sent, kept.remaining, held.ttl);
                }
                Ok(Renewal::Gone {
                    why: GoneReason::NotThere | GoneReason::Evicted | GoneReason::Cancelled,
                }) => {
                    self.ledger.disown(self.node, held.owner);
                }
                Ok(Renewal::Queued { .. }) | Err(_) => {}
            }
        }
        answers
    }

    async fn release(&self, release_request: &ReleaseRequest) -> Result<Released> {
        self.ledger.gives_back(self.node, release_request.owner);
        let release_request = Arc::new(release_request.clone());
        let execute = move |server: Arc<Server>| {
            let release_request = Arc::clone(&release_request);
            async move { server.release(&release_request).await }
        };
        self.exchange(false, execute).await?
    }

    async fn wait(&self, claim: &ClaimRef, since: &Cursor, at_most: Duration) -> Result<()> {
        let (claim, since) = (Arc::new(claim.clone()), *since);
        let execute = move |server: Arc<Server>| {
            let claim = Arc::clone(&claim);
            async move { server.wait(&claim, &since, at_most).await }
        };
        self.exchange(true, execute).await?
    }

    async fn inspect(&self, query: &Query) -> Result<Page> {
        let query = Arc::new(query.clone());
        let execute = move |server: Arc<Server>| {
            let query = Arc::clone(&query);
            async move { server.inspect(&query).await }
        };
        self.exchange(true, execute).await?
    }

    async fn order(&self, order: &OperatorCommand) -> Result<CommandOutcome> {
        let order = Arc::new(order.clone());
        let execute = move |server: Arc<Server>| {
            let order = Arc::clone(&order);
            async move { server.order(&order).await }
        };
        self.exchange(false, execute).await?
    }
}
