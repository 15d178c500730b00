//! The way to whoever has a resource: the one server, or the node of the cluster that has its slot.
//!
//! A node that does not have the slot has done nothing and says where it is, so going there repeats nothing. Whatever may
//! have been executed is never sent again from here.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc, time::Duration};

use leasehold_core::{Environment, Error, ErrorKind, FailureDomain, Resource, Timestamp};
use redis::{Cmd, Value};

use crate::{
    cluster::{Cluster, Node},
    config::Config,
    error::{Fault, Redirect},
    script::Script,
    slot::slot,
    together,
};

/// How often a call is sent on before the nodes are taken to be in disagreement.
const HOPS_MAX: u32 = 8;
/// How long a slot that is on its way is waited for. Most are there sooner.
const MOVING_MAX: Duration = Duration::from_millis(50);
/// The first pause before a node is asked again; it doubles.
const PAUSE: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// How many calls that were sent elsewhere are followed at once.
const FOLLOWED_TOGETHER: usize = 64;

type Answer = Result<Value, Fault>;
/// Makes a call for a node whose tokens are ahead of its clock by so many microseconds.
type Make<'a> = &'a (dyn Fn(u64) -> Cow<'a, Cmd> + Send + Sync);

#[derive(Debug)]
pub(crate) enum Route {
    One(Arc<Node>),
    Cluster(Arc<Cluster>),
}

impl Route {
    pub(crate) async fn open(config: Config, environment: Arc<dyn Environment>) -> Result<Route, Fault> {
        if config.cluster {
            return Cluster::connect(config, environment).await.map(Route::Cluster);
        }
        let node = Node::new(0, config, environment);
        node.link.wire().await?;
        Ok(Route::One(Arc::new(node)))
    }

    pub(crate) fn config(&self) -> &Config {
        match self {
            Route::One(node) => &node.link.config,
            Route::Cluster(cluster) => &cluster.config,
        }
    }

    pub(crate) fn cluster(&self) -> Option<&Arc<Cluster>> {
        match self {
            Route::One(_) => None,
            Route::Cluster(cluster) => Some(cluster),
        }
    }

    pub(crate) fn failure_domain(&self, resource: &Resource) -> FailureDomain {
        self.cluster().map_or_else(FailureDomain::default, |cluster| cluster.failure_domain(resource))
    }

    /// Who has the resource, as far as we know.
    pub(crate) fn node(&self, resource: &Resource) -> Result<Arc<Node>, Fault> {
        match self {
            Route::One(node) => Ok(Arc::clone(node)),
            Route::Cluster(cluster) => cluster.owner(slot(resource)),
        }
    }

    /// Everyone who has resources, in a stable order.
    pub(crate) fn nodes(&self) -> Vec<Arc<Node>> {
        match self {
            Route::One(node) => vec![Arc::clone(node)],
            Route::Cluster(cluster) => cluster.primaries(),
        }
    }

    /// Calls a script on one resource.
    pub(crate) async fn run(&self, resource: &Resource, script: &Script, make: Make<'_>) -> Answer {
        match self {
            Route::One(node) => attempt(node, Some(script), make).await,
            Route::Cluster(cluster) => cluster.run(slot(resource), Some(script), make).await,
        }
    }

    /// A command on one key of a resource.
    pub(crate) async fn send(&self, resource: &Resource, command: &Cmd) -> Answer {
        match self {
            Route::One(node) => attempt(node, None, &|_| Cow::Borrowed(command)).await,
            Route::Cluster(cluster) => cluster.run(slot(resource), None, &|_| Cow::Borrowed(command)).await,
        }
    }

    /// Many calls of one script, or many commands, each on a resource: an answer each, in order.
    pub(crate) async fn run_all(&self, script: Option<&Script>, calls: Vec<(&Resource, Cmd)>) -> Vec<Answer> {
        match self {
            Route::One(node) => {
                attempt_all(node, script, calls.into_iter().map(|(_, call)| call).collect()).await
            }
            Route::Cluster(cluster) => {
                let calls = calls.into_iter().map(|(resource, call)| (slot(resource), call)).collect();
                cluster.run_all(script, calls).await
            }
        }
    }
}

async fn attempt(node: &Node, script: Option<&Script>, make: Make<'_>) -> Answer {
    let wire = node.link.wire().await?;
    let call = make(wire.lead());
    match script {
        Some(script) => node.link.run(&wire, script, call.into_owned()).await,
        None => node.link.send(&wire, &call).await,
    }
}

async fn attempt_asking(node: &Node, script: Option<&Script>, make: Make<'_>) -> Answer {
    let wire = node.link.wire().await?;
    node.link.run_asking(&wire, script, make(wire.lead()).into_owned()).await
}

async fn attempt_all(node: &Node, script: Option<&Script>, calls: Vec<Cmd>) -> Vec<Answer> {
    match node.link.wire().await {
        Err(fault) => calls.iter().map(|_| Err(fault.clone())).collect(),
        Ok(wire) => match script {
            Some(script) => node.link.run_all(&wire, script, calls).await,
            None => node.link.pipe(&wire, &calls).await,
        },
    }
}

impl Route {
    /// For whoever calls a node itself: whether to ask again whoever has the resource by then, after this fault.
    pub(crate) async fn goes_on(
        &self,
        resource: &Resource,
        node: &Node,
        fault: &Fault,
        journey: &mut Journey,
    ) -> bool {
        let Some(cluster) = self.cluster() else { return false };
        matches!(cluster.next(slot(resource), node, fault, journey).await, Some(None))
    }

    /// The same, for whoever does not ask again at once.
    pub(crate) fn learn(&self, resource: &Resource, node: &Node, fault: &Fault) {
        if let (Some(cluster), Some(Redirect::Moved(host, port))) = (self.cluster(), fault.redirect()) {
            cluster.moved(slot(resource), &cluster.node_at(&host, port, node));
        }
    }

    /// What is told of it in the end.
    pub(crate) fn in_words(&self, fault: Fault) -> Fault {
        if self.cluster().is_some() { in_words(fault) } else { fault }
    }
}

/// A call that has been sent elsewhere.
pub(crate) struct Journey {
    began: Timestamp,
    hops: u32,
    pause: Duration,
}

impl Journey {
    pub(crate) fn begin(now: Timestamp) -> Journey {
        Journey { began: now, hops: 0, pause: PAUSE }
    }
}

impl Cluster {
    async fn run(&self, slot: u16, script: Option<&Script>, make: Make<'_>) -> Answer {
        let node = match self.owner(slot) {
            Ok(node) => node,
            Err(_) => {
                self.refresh(self.environment.now()).await;
                self.owner(slot)?
            }
        };
        match attempt(&node, script, make).await {
            // Boxed: the usual call need not carry it along.
            Err(fault) => Box::pin(self.follow(slot, script, make, node, fault)).await,
            answer => answer,
        }
    }

    /// Goes where the nodes say that the slot is, as long as they say that nothing was done.
    async fn follow(
        &self,
        slot: u16,
        script: Option<&Script>,
        make: Make<'_>,
        mut node: Arc<Node>,
        mut fault: Fault,
    ) -> Answer {
        let mut journey = Journey::begin(self.environment.now());
        loop {
            let asking = self.next(slot, &node, &fault, &mut journey).await;
            let answer = match asking {
                None => return Err(in_words(fault)),
                Some(Some(importing)) => {
                    node = importing;
                    attempt_asking(&node, script, make).await
                }
                Some(None) => {
                    node = self.owner(slot)?;
                    attempt(&node, script, make).await
                }
            };
            match answer {
                Err(next) => fault = next,
                answer => return answer,
            }
        }
    }

    /// Whom to ask next: the owner, or a node that the slot is on its way to. `None`: this is how it ends.
    async fn next(
        &self,
        slot: u16,
        node: &Node,
        fault: &Fault,
        journey: &mut Journey,
    ) -> Option<Option<Arc<Node>>> {
        let now = self.environment.now();
        let went_on = journey.began.until(now);
        match fault.redirect() {
            Some(Redirect::Moved(host, port)) if journey.hops < HOPS_MAX => {
                journey.hops += 1;
                self.moved(slot, &self.node_at(&host, port, node));
                Some(None)
            }
            Some(Redirect::Ask(host, port)) if journey.hops < HOPS_MAX => {
                journey.hops += 1;
                Some(Some(self.node_at(&host, port, node)))
            }
            Some(Redirect::TryAgain) if went_on < MOVING_MAX => {
                self.pause(journey).await;
                Some(None)
            }
            Some(Redirect::Elsewhere) if went_on < self.config.timeout => {
                self.refresh(now).await;
                self.pause(journey).await;
                Some(None)
            }
            None if fault.is_connect() && went_on < self.config.timeout => {
                self.refresh(now).await;
                self.pause(journey).await;
                Some(None)
            }
            _ => {
                if fault.is_unanswered() {
                    // Perhaps because another node is the primary by now.
                    self.suspect();
                }
                None
            }
        }
    }

    async fn pause(&self, journey: &mut Journey) {
        self.environment.sleep(journey.pause).await;
        journey.pause = (journey.pause * 2).min(PAUSE_MAX);
    }

    /// Node by node, all nodes at once. What was sent elsewhere is followed.
    async fn run_all(&self, script: Option<&Script>, calls: Vec<(u16, Cmd)>) -> Vec<Answer> {
        let began = self.environment.now();
        let mut answers: Vec<Answer> = calls.iter().map(|_| Err(nobody())).collect();
        let everything: Vec<usize> = (0..calls.len()).collect();
        self.round(script, &calls, &everything, &mut answers).await;
        let unreached = |answer: &Answer| matches!(answer, Err(fault) if fault.is_connect());
        let unreached: Vec<usize> = (0..calls.len()).filter(|&index| unreached(&answers[index])).collect();
        if !unreached.is_empty() {
            self.refresh(began).await;
            self.round(script, &calls, &unreached, &mut answers).await;
        }
        let elsewhere = |answer: &Answer| matches!(answer, Err(fault) if fault.redirect().is_some());
        let elsewhere: Vec<usize> = (0..calls.len()).filter(|&index| elsewhere(&answers[index])).collect();
        for some in elsewhere.chunks(FOLLOWED_TOGETHER) {
            let followed = some.iter().map(|&index| {
                let (slot, call) = &calls[index];
                let fault = std::mem::replace(&mut answers[index], Err(nobody())).err();
                async move {
                    let node = self.owner(*slot)?;
                    self.follow(*slot, script, &|_| Cow::Borrowed(call), node, fault.unwrap_or_else(nobody))
                        .await
                }
            });
            let followed = together::all(followed.collect()).await;
            some.iter().zip(followed).for_each(|(&index, answer)| answers[index] = answer);
        }
        answers
    }

    async fn round(
        &self,
        script: Option<&Script>,
        calls: &[(u16, Cmd)],
        which: &[usize],
        answers: &mut [Answer],
    ) {
        let mut by_node: BTreeMap<u32, (Arc<Node>, Vec<usize>)> = BTreeMap::new();
        for &index in which {
            if let Ok(node) = self.owner(calls[index].0) {
                by_node.entry(node.number).or_insert_with(|| (node, Vec::new())).1.push(index);
            }
        }
        let groups: Vec<(Arc<Node>, Vec<usize>)> = by_node.into_values().collect();
        let sent = groups.iter().map(|(node, indexes)| {
            let calls = indexes.iter().map(|&index| calls[index].1.clone()).collect();
            async move { attempt_all(node, script, calls).await }
        });
        let replies = together::all(sent.collect()).await;
        for ((_, indexes), replies) in groups.iter().zip(replies) {
            indexes.iter().zip(replies).for_each(|(&index, reply)| answers[index] = reply);
        }
    }
}

fn nobody() -> Fault {
    crate::site::unavailable("no node of the cluster has the slot of this resource")
}

/// What nodes say to each other's clients, as a caller understands it.
fn in_words(fault: Fault) -> Fault {
    match fault.redirect() {
        Some(Redirect::Moved(..) | Redirect::Ask(..)) => {
            let message = "the nodes of the cluster do not agree where the slot of this resource is";
            Fault::Refused(Error::new(ErrorKind::Unavailable, message))
        }
        _ => fault,
    }
}
