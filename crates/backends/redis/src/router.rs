//! Sends a call to the server that has its resource: the one server, or the node of the cluster that has its
//! slot.
//!
//! How redirects of a cluster are followed is in `cluster_router.rs`.

use std::{borrow::Cow, sync::Arc};

use leasehold_core::{Environment, FailureDomain, Resource};
use redis::Cmd;

use crate::{
    cluster::{Cluster, PrimaryNode},
    cluster_router::{RetryState, explain_redirect},
    config::Config,
    error::{Redirect, StoreError},
    request::Reply,
    script::Script,
    slot::slot,
};

/// Makes the call for a node. The argument is how far the tokens of that node are ahead of its clock, in
/// microseconds.
pub(crate) type MakeCall<'a> = &'a (dyn Fn(u64) -> Cow<'a, Cmd> + Send + Sync);

/// Knows which server has which resource.
#[derive(Debug)]
pub(crate) enum Router {
    Single(Arc<PrimaryNode>),
    Cluster(Arc<Cluster>),
}

impl Router {
    pub(crate) async fn open(
        config: Config,
        environment: Arc<dyn Environment>,
    ) -> Result<Router, StoreError> {
        if config.cluster {
            return Cluster::connect(config, environment).await.map(Router::Cluster);
        }
        let node = PrimaryNode::new(0, config, environment);
        // Connects now, so that a wrong password is an error of `connect` and not of the first call.
        node.connections.get().await?;
        Ok(Router::Single(Arc::new(node)))
    }

    pub(crate) fn config(&self) -> &Config {
        match self {
            Router::Single(node) => &node.connections.config,
            Router::Cluster(cluster) => &cluster.config,
        }
    }

    pub(crate) fn cluster(&self) -> Option<&Arc<Cluster>> {
        match self {
            Router::Single(_) => None,
            Router::Cluster(cluster) => Some(cluster),
        }
    }

    pub(crate) fn failure_domain(&self, resource: &Resource) -> FailureDomain {
        self.cluster().map_or_else(FailureDomain::default, |cluster| cluster.failure_domain(resource))
    }

    /// The node that has the resource, as far as this client knows.
    pub(crate) fn node(&self, resource: &Resource) -> Result<Arc<PrimaryNode>, StoreError> {
        match self {
            Router::Single(node) => Ok(Arc::clone(node)),
            Router::Cluster(cluster) => cluster.owner(slot(resource)),
        }
    }

    /// All nodes that have resources, in a stable order.
    pub(crate) fn nodes(&self) -> Vec<Arc<PrimaryNode>> {
        match self {
            Router::Single(node) => vec![Arc::clone(node)],
            Router::Cluster(cluster) => cluster.primaries(),
        }
    }

    /// Calls a script on one resource.
    pub(crate) async fn run(&self, resource: &Resource, script: &Script, make: MakeCall<'_>) -> Reply {
        match self {
            Router::Single(node) => call(node, Some(script), make).await,
            Router::Cluster(cluster) => cluster.run(slot(resource), Some(script), make).await,
        }
    }

    /// Sends a command on one key of a resource.
    pub(crate) async fn send(&self, resource: &Resource, command: &Cmd) -> Reply {
        match self {
            Router::Single(node) => call(node, None, &|_| Cow::Borrowed(command)).await,
            Router::Cluster(cluster) => cluster.run(slot(resource), None, &|_| Cow::Borrowed(command)).await,
        }
    }

    /// Sends many calls of one script, or many commands, each on one resource. The replies are in the same
    /// order.
    pub(crate) async fn run_all(&self, script: Option<&Script>, calls: Vec<(&Resource, Cmd)>) -> Vec<Reply> {
        match self {
            Router::Single(node) => {
                call_all(node, script, calls.into_iter().map(|(_, call)| call).collect()).await
            }
            Router::Cluster(cluster) => {
                let calls = calls.into_iter().map(|(resource, call)| (slot(resource), call)).collect();
                cluster.run_all(script, calls).await
            }
        }
    }

    /// For callers that call a node themselves: whether to ask [`Router::node`] again after this error. Waits
    /// if the cluster needs time.
    pub(crate) async fn should_retry(
        &self,
        resource: &Resource,
        node: &PrimaryNode,
        error: &StoreError,
        state: &mut RetryState,
    ) -> bool {
        let Some(cluster) = self.cluster() else { return false };
        cluster.next_target(slot(resource), node, error, state).await.is_owner()
    }

    /// Remembers where a slot is if the error says so, for callers that do not ask again at once.
    pub(crate) fn learn_from(&self, resource: &Resource, node: &PrimaryNode, error: &StoreError) {
        if let (Some(cluster), Some(Redirect::Moved(host, port))) = (self.cluster(), error.redirect()) {
            cluster.slot_moved(slot(resource), &cluster.node_at(&host, port, node));
        }
    }

    /// The error as the caller of the backend gets it: a redirect that was not followed is explained.
    pub(crate) fn explain(&self, error: StoreError) -> StoreError {
        if self.cluster().is_some() { explain_redirect(error) } else { error }
    }
}

/// Calls a script at a node, or sends a command if there is no script.
pub(crate) async fn call(node: &PrimaryNode, script: Option<&Script>, make: MakeCall<'_>) -> Reply {
    let connection = node.connections.get().await?;
    let call = make(connection.token_lead_micros());
    match script {
        Some(script) => node.connections.run(&connection, script, call.into_owned()).await,
        None => node.connections.send(&connection, &call).await,
    }
}

/// As [`call`], at a node that imports the slot.
pub(crate) async fn call_asking(node: &PrimaryNode, script: Option<&Script>, make: MakeCall<'_>) -> Reply {
    let connection = node.connections.get().await?;
    let call = make(connection.token_lead_micros()).into_owned();
    node.connections.run_asking(&connection, script, call).await
}

/// As [`call`], for several calls in one pipeline.
pub(crate) async fn call_all(node: &PrimaryNode, script: Option<&Script>, calls: Vec<Cmd>) -> Vec<Reply> {
    match node.connections.get().await {
        Err(error) => calls.iter().map(|_| Err(error.clone())).collect(),
        Ok(connection) => match script {
            Some(script) => node.connections.run_all(&connection, script, calls).await,
            None => node.connections.send_all(&connection, &calls).await,
        },
    }
}
