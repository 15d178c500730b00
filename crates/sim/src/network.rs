//! The network between a node and the server: delays, losses, repeats, partitions. A message that was sent cannot be
//! called back.

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
use leasehold_support::race::first;
use tokio::sync::oneshot;

use crate::{
    beliefs::BeliefChecker,
    clock::Time,
    plan::{NetworkConditions, RunPlan},
    random::{Random, nanos},
    report::Tally,
    server::Server,
    world::{NodeId, SERVER, World},
};

/// Which direction of a host's traffic is cut off.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cut {
    pub(crate) requests: bool,
    pub(crate) replies: bool,
}

/// The simulated network.
#[derive(Debug)]
pub(crate) struct Network {
    world: Arc<World>,
    tally: Arc<Tally>,
    state: Mutex<NetworkState>,
}

#[derive(Debug)]
struct NetworkState {
    random: Random,
    conditions: NetworkConditions,
    /// No delayed message arrives after this.
    late_until: Time,
    cuts: BTreeMap<u64, Cut>,
}

/// The faults of one request and its reply, and how long each takes.
#[derive(Clone, Copy, Debug)]
struct ExchangeFaults {
    request: u64,
    reply: u64,
    request_lost: bool,
    reply_lost: bool,
    twice: bool,
    refused: bool,
    /// The caller is told that the connection broke, and does not have to wait for its timeout.
    reset: bool,
}

impl Network {
    pub(crate) fn new(
        world: &Arc<World>,
        tally: &Arc<Tally>,
        random: Random,
        conditions: NetworkConditions,
        late_until: Time,
    ) -> Arc<Network> {
        let state = Mutex::new(NetworkState { random, conditions, late_until, cuts: BTreeMap::new() });
        let (world, tally) = (Arc::clone(world), Arc::clone(tally));
        Arc::new(Network { world, tally, state })
    }

    fn state(&self) -> MutexGuard<'_, NetworkState> {
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

    /// Ends all partitions and faults.
    pub(crate) fn heal(&self) {
        let mut state = self.state();
        state.cuts.clear();
        state.conditions = NetworkConditions::without_faults();
    }

    fn faults(&self) -> ExchangeFaults {
        let now = self.world.now();
        let mut state = self.state();
        let NetworkState { random, conditions, late_until, .. } = &mut *state;
        let mut latency = |late: u32| {
            let ordinary = random.spread(Duration::from_micros(100), conditions.latency_max);
            let late = late > 0 && random.chance(late);
            let most = late_until.saturating_sub(now);
            if late {
                self.tally.count("fault: late message");
                let extra = random.spread(Duration::from_millis(50), conditions.late_max);
                return nanos(ordinary) + nanos(extra).min(most);
            }
            nanos(ordinary)
        };
        let (request, reply) = (latency(conditions.late_request), latency(conditions.late_reply));
        let mut meets = |rate: u32, what: &'static str| {
            let met = rate > 0 && random.chance(rate);
            if met {
                self.tally.count(what);
            }
            met
        };
        ExchangeFaults {
            request,
            reply,
            request_lost: meets(conditions.lose_request, "fault: request lost"),
            reply_lost: meets(conditions.lose_reply, "fault: reply lost"),
            twice: meets(conditions.twice, "fault: executed twice"),
            refused: meets(conditions.refuse, "fault: refused"),
            reset: meets(conditions.reset, "fault: connection reset"),
        }
    }

    /// Sends a request, executes it at the server and returns the reply.
    ///
    /// # Cancel safety
    /// A request that was sent is executed, even if this future is dropped. An `idle` request (a wait or a look) ends when
    /// the caller is gone.
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
        let faults = self.faults();
        if faults.refused {
            self.world.sleep(from, faults.request).await;
            return Err(Error::new(ErrorKind::Unavailable, "the connection was refused"));
        }
        let (mut reply, replied) = oneshot::channel();
        let (network, server) = (Arc::clone(self), Arc::clone(server));
        self.world.spawn(
            to,
            Box::pin(async move {
                network.world.sleep(to, faults.request).await;
                if faults.request_lost || network.is_cut(host).requests {
                    if faults.reset {
                        drop(reply.send(connection_broke()));
                    }
                    return;
                }
                let executed = run_at_server(&server, execute, idle, faults.twice, &mut reply).await;
                let Some(output) = executed else { return };
                network.world.sleep(to, faults.reply).await;
                let lost = faults.reply_lost || network.is_cut(host).replies;
                match (lost, faults.reset) {
                    (false, false) => drop(reply.send(Ok(output))),
                    (_, true) => drop(reply.send(connection_broke())),
                    (true, false) => {}
                }
            }),
        );
        match replied.await {
            Ok(reply) => reply,
            Err(_) => pending().await, // the reply was lost
        }
    }
}

fn connection_broke<T>() -> Result<T> {
    Err(Error::new(ErrorKind::Unavailable, "the connection broke").with_effect(Effect::Unknown))
}

/// Executes a request, perhaps twice. `None` if it is idle and its caller is gone.
async fn run_at_server<S, T, F, W>(
    server: &Arc<S>,
    execute: F,
    idle: bool,
    twice: bool,
    reply: &mut oneshot::Sender<Result<T>>,
) -> Option<T>
where
    F: Fn(Arc<S>) -> W,
    W: Future<Output = T>,
{
    if idle {
        return first(execute(Arc::clone(server)), reply.closed()).await.left();
    }
    if twice {
        drop(execute(Arc::clone(server)).await);
    }
    Some(execute(Arc::clone(server)).await)
}

/// The connection of one node to the server.
pub(crate) struct SimulatedConnection {
    network: Arc<Network>,
    server: Arc<Server>,
    beliefs: Arc<BeliefChecker>,
    node: NodeId,
    host: u64,
}

impl SimulatedConnection {
    pub(crate) fn new(
        network: &Arc<Network>,
        server: &Arc<Server>,
        beliefs: &Arc<BeliefChecker>,
        node: NodeId,
        host: u64,
    ) -> SimulatedConnection {
        let (network, server, beliefs) = (Arc::clone(network), Arc::clone(server), Arc::clone(beliefs));
        SimulatedConnection { network, server, beliefs, node, host }
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

    /// A host that knows that its lease has ended must not renew it.
    fn check_renewal(&self, held: &RenewRequest) {
        let Some((since, name)) = self.beliefs.over_since(self.node, held.owner) else { return };
        let world = &self.network.world;
        let (resumed_at, _) = world.past(self.node);
        if world.now() > since.max(resumed_at) {
            let since = Duration::from_nanos(since);
            world.fail("renewed after its end", format!("{name} was over at {since:?} and is renewed"));
        }
    }
}

impl SimulatedConnection {
    /// Notes that a claim is sent.
    fn ask(&self, claim: &Claim) -> Unanswered<'_> {
        let number = self.beliefs.asks(self.node, claim.owner, claim.ttl);
        Unanswered { link: self, owner: claim.owner, number, answered: false }
    }
}

/// A request of a claim, until it is answered or given up.
struct Unanswered<'a> {
    link: &'a SimulatedConnection,
    owner: OwnerToken,
    number: u32,
    answered: bool,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.link.beliefs.unanswered(self.link.node, self.owner, self.number);
        }
    }
}

impl fmt::Debug for SimulatedConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimulatedConnection of {:?}", self.node)
    }
}

#[async_trait]
impl Backend for SimulatedConnection {
    fn info(&self) -> &BackendInfo {
        self.server.info()
    }

    fn failure_domain(&self, _: &Resource) -> FailureDomain {
        FailureDomain::default()
    }

    async fn acquire(&self, claims: &[Claim]) -> Vec<Result<Verdict>> {
        let mut unanswered: Vec<Unanswered<'_>> = claims.iter().map(|claim| self.ask(claim)).collect();
        let sent = self.beliefs.sending(self.node);
        let asked: Arc<[Claim]> = claims.into();
        let execute = move |server: Arc<Server>| {
            let claims = Arc::clone(&asked);
            async move { server.acquire(&claims).await }
        };
        let verdicts = match self.exchange(false, execute).await {
            Ok(verdicts) => verdicts,
            Err(error) => return claims.iter().map(|_| Err(error.clone())).collect(),
        };
        for ((claim, verdict), unanswered) in claims.iter().zip(&verdicts).zip(&mut unanswered) {
            let Ok(verdict) = verdict else { continue };
            unanswered.answered = true;
            if let Verdict::Granted(grant) = verdict {
                self.beliefs.vouch(self.node, claim.owner, sent, grant.remaining, claim.ttl);
                // A claim that takes over has lost no turn if that fails: its place has not changed. The first request of
                // a claim may be gathered: then its caller may give up before it learns of this reply.
                let is_gathered = unanswered.number == 1 && self.server.info().limits.gather > 1;
                if claim.takes_over_from.is_none() && !is_gathered {
                    self.beliefs.is_late(self.node, claim.owner);
                }
            }
        }
        verdicts
    }

    async fn renew(&self, held: &[RenewRequest]) -> Vec<Result<Renewal>> {
        for held in held {
            self.check_renewal(held);
            if self.beliefs.renews_late(self.node, held.owner) {
                self.network.tally.count("late grants renewed");
            }
        }
        let sent = self.beliefs.sending(self.node);
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
                // The renewal of a place that was granted meanwhile: no holder relies on it.
                Ok(Renewal::Renewed(_)) if held.ttl == RunPlan::PLACE_TTL => {}
                Ok(Renewal::Renewed(kept)) => {
                    self.beliefs.vouch(self.node, held.owner, sent, kept.remaining, held.ttl);
                }
                Ok(Renewal::Gone {
                    why: GoneReason::NotThere | GoneReason::Evicted | GoneReason::Cancelled,
                }) => {
                    self.beliefs.disown(self.node, held.owner);
                }
                Ok(Renewal::Queued { .. }) | Err(_) => {}
            }
        }
        answers
    }

    async fn release(&self, requests: &[ReleaseRequest]) -> Vec<Result<Released>> {
        for request in requests {
            self.beliefs.gives_back(self.node, request.owner);
        }
        let asked: Arc<[ReleaseRequest]> = requests.into();
        let execute = move |server: Arc<Server>| {
            let requests = Arc::clone(&asked);
            async move { server.release(&requests).await }
        };
        match self.exchange(false, execute).await {
            Ok(replies) => replies,
            Err(error) => requests.iter().map(|_| Err(error.clone())).collect(),
        }
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
