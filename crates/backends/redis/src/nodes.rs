//! The servers as they are now, for people: the primary, or every primary of the cluster.
//!
//! Each is asked for its time and its role in one round trip. On a cluster also for the state of the cluster as it sees it: a
//! node that is cut off from the others answers, and refuses every key.

use leasehold_core::{NodeStatus, Page};
use leasehold_support::ask_nodes::{NodeQuestion, ask_all, name_of, not_counting, timed_over_connection};
use redis::{Cmd, Value};

use crate::{
    backend::Redis,
    cluster::PrimaryNode,
    connect::ServerAddress,
    error::StoreError,
    replicas::{needed, too_few_follow},
    reply::read_time,
    request::Reply,
    server_info::{self, field, info_fields},
};

/// What `CLUSTER INFO` says of a cluster that serves every slot.
const CLUSTER_IS_UP: &str = "ok";

impl Redis {
    pub(crate) async fn nodes(&self) -> Page {
        let nodes = self.router.nodes();
        let question = |node| {
            let node: &PrimaryNode = node;
            NodeQuestion::new(name_before(node), async { ask(node).await.map_err(StoreError::into_error) })
        };
        let questions = nodes.iter().map(|node| question(node)).collect();
        Page::Nodes(ask_all(&*self.environment, questions).await)
    }
}

fn name(address: &ServerAddress) -> String {
    name_of(&address.host, address.port)
}

/// The name of a server that has not answered yet. Behind Sentinel the last primary is the one that is looked for.
fn name_before(node: &PrimaryNode) -> String {
    match (&node.connections.config.service, node.connections.last_primary()) {
        (_, Some(address)) => name(&address),
        (Some(service), None) => format!("the primary of {service}"),
        (None, None) => name_of(&node.address.0, node.address.1),
    }
}

/// The replies to the questions, in their order.
async fn send_questions(node: &PrimaryNode) -> Result<(Vec<Reply>, String), StoreError> {
    let connections = &node.connections;
    let connection = connections.get().await?;
    let questions: &[Cmd] = &[command(&["TIME"]), command(&["ROLE"]), command(&["CLUSTER", "INFO"])];
    let questions = if connections.config.cluster { questions } else { &questions[..2] };
    let replies = connections.send_all(&connection, questions).await;
    // A server that does not answer fails all of them alike.
    match replies.first() {
        Some(Err(error)) if error.breaks_connection() => Err(error.clone()),
        _ => Ok((replies, name(&connection.address))),
    }
}

async fn ask(node: &PrimaryNode) -> Result<NodeStatus, StoreError> {
    let connections = &node.connections;
    let asked = || send_questions(node);
    let asked = timed_over_connection(connections.clock(), asked, StoreError::breaks_connection).await;
    let ((replies, name), trip) = asked?;
    let mut replies = replies.into_iter().map(allowed);
    let mut next = || replies.next().unwrap_or_else(|| Err(StoreError::missing_reply()));
    let time = next()?.map(read_time).transpose()?;
    let replicas = next()?.map(server_info::replica_count).transpose()?;
    let cluster = if connections.config.cluster { next()? } else { None };
    let status = trip.answered(name, time);
    if let Some(online) = replicas.filter(|online| *online < needed(connections)) {
        return Ok(not_counting(status, too_few_follow(online, needed(connections))));
    }
    match cluster.map(|reply| info_fields(&reply)).as_deref().and_then(|info| field(info, "cluster_state")) {
        None | Some(CLUSTER_IS_UP) => Ok(status),
        Some(state) => {
            let why = format!("it sees the cluster as down (cluster_state:{state:.20}): see CLUSTER INFO");
            Ok(not_counting(status, why))
        }
    }
}

fn command(words: &[&str]) -> Cmd {
    Cmd::new().arg(words).to_owned()
}

/// A reply; `None` if the user may not ask.
fn allowed(reply: Reply) -> Result<Option<Value>, StoreError> {
    match reply {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_refused_permission() => Ok(None),
        Err(error) => Err(error),
    }
}
