//! A Redis server as one node of a quorum, for `redlock://`.
//!
//! The rules of a node are `NodeModel` in `leasehold_core::quorum_node`; the scripts `node_*.lua` repeat
//! them, and a test compares both. ADR 0016 says when a node has a vote, ADR 0017 why a vote belongs to an
//! attempt.
//!
//! | module | what it holds |
//! |---|---|
//! | [`config`] | [`Nodes`]: from `redlock://h1,h2,h3` to its nodes |
//! | [`birth_mark`] | the stored form of the birth mark |
//! | [`votes`] | votes and undos, several in one call |
//! | [`reply`] | reads the replies of the scripts |
//! | [`listener`] | wake-ups when a lock is given back |

mod birth_mark;
mod config;
mod listener;
mod reply;
mod votes;

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError, atomic::AtomicBool},
    time::Duration,
};

use leasehold_core::{
    Environment, Error, ErrorKind, FencingToken, QuorumNode, RenewRequest, Resource, Result, WallTime,
    async_trait,
    quorum_node::{
        BirthMark, Health, NodeEntry, NodePage, NodeRenewal, NodeView, RETENTION, UndoRequest, Vote,
        VoteRequest,
    },
};
use leasehold_support::Gatherer;
use redis::{Cmd, Value};

use self::{
    listener::NodeListener,
    reply::{read_holder, read_renewal, read_setting, read_text},
    votes::{NodeVote, Undos, VoteVerb, Votes},
};
use crate::{
    backend::{at_least_one_milli, millis, note_argument},
    config::Config,
    connection::{Connection, Connections},
    error::StoreError,
    keys::{BIRTH, Keys, OWNER, REGISTER, pattern, resource_of},
    reply::{Fields, read_time},
    script::{NODE_LOOK, NODE_MARK, NODE_RAISE, NODE_RENEW},
    server_info,
};

pub use config::Nodes;

/// How many keys the server visits for one page of [`RedisNode::walk`](QuorumNode::walk).
const KEYS_PER_PAGE: u32 = 1000;
/// The cursor of `SCAN` before the first and after the last step.
const SCAN_START: &str = "0";

/// A Redis server as one node of a quorum: it votes, and knows nothing of the other nodes.
///
/// It connects at the first call, and again after the connection was lost. [`Nodes`] makes the nodes of a
/// URL.
pub struct RedisNode {
    name: String,
    server: Arc<NodeServer>,
    listener: NodeListener,
    votes: Arc<Gatherer<Votes>>,
    undos: Arc<Gatherer<Undos>>,
}

/// The server of a node, and the connection to it.
struct NodeServer {
    connections: Connections,
    server_run: Mutex<Option<ServerRun>>,
}

/// A connection, and the `run_id` of the server that it leads to. A restart of the server breaks every
/// connection, so the `run_id` of a connection never changes. ADR 0016.
#[derive(Clone)]
struct ServerRun {
    connection: Arc<Connection>,
    run_id: Arc<str>,
}

impl RedisNode {
    /// A node for the server that the configuration names.
    pub fn new(config: Config, environment: Arc<dyn Environment>) -> RedisNode {
        let (host, port) = &config.hosts[0];
        let name = format!("{host}:{port}");
        let listener = NodeListener::new(config.clone(), Arc::clone(&environment));
        let connections = Connections::to_quorum_node(config, Arc::clone(&environment));
        let server = Arc::new(NodeServer { connections, server_run: Mutex::new(None) });
        let votes = Gatherer::new(Arc::clone(&server), Arc::clone(&environment));
        let undos = Gatherer::new(Arc::clone(&server), environment);
        RedisNode { name, server, listener, votes, undos }
    }

    async fn ask_vote(&self, verb: VoteVerb, request: &VoteRequest) -> Result<Vote> {
        // Whether it was sent does not matter: the quorum undoes every attempt that was not granted.
        let in_flight = AtomicBool::new(false);
        let request = NodeVote { verb, request: request.clone() };
        self.votes.send(&request, &in_flight, true).await.result
    }
}

impl NodeServer {
    /// The connection, and the `run_id` of its server, which is asked for once for each connection.
    async fn server_run(&self) -> Result<ServerRun, StoreError> {
        let connection = self.connections.get().await?;
        let known = self.server_run.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(known) = known.filter(|known| Arc::ptr_eq(&known.connection, &connection)) {
            return Ok(known);
        }
        let mut question = Cmd::new();
        question.arg("INFO").arg("server");
        let server = server_info::info_fields(&self.connections.send(&connection, &question).await?);
        let run_id = server_info::field(&server, "run_id").ok_or_else(no_run_id)?;
        let server_run = ServerRun { connection, run_id: run_id.into() };
        *self.server_run.lock().unwrap_or_else(PoisonError::into_inner) = Some(server_run.clone());
        Ok(server_run)
    }

    async fn try_health(&self) -> Result<Health, StoreError> {
        let ServerRun { connection, run_id } = self.server_run().await?;
        let command = |words: &[&str]| {
            let mut command = Cmd::new();
            command.arg(words);
            command
        };
        let questions = [
            command(&["TIME"]),
            command(&["INFO", "server"]),
            command(&["CONFIG", "GET", "appendonly"]),
            command(&["CONFIG", "GET", "appendfsync"]),
            command(&["GET", BIRTH]),
        ];
        let mut replies = self.connections.send_all(&connection, &questions).await.into_iter();
        let mut next = || replies.next().unwrap_or_else(|| Err(StoreError::missing_reply()));
        let now = read_time(next()?)?;
        let server = server_info::info_fields(&next()?);
        let uptime = server_info::field(&server, "uptime_in_seconds");
        let uptime = uptime.and_then(|seconds| seconds.parse().ok()).unwrap_or(0);
        // If the user may not read a setting, the node counts as not durable, which is the safe assumption.
        let appends = read_setting("appendonly", next()).as_deref() == Some("yes");
        let syncs = read_setting("appendfsync", next()).as_deref() == Some("always");
        let mark = match next()? {
            Value::Nil => None,
            value => Some(birth_mark::parse(&read_text(value)?).map_err(StoreError::Translated)?),
        };
        let uptime = Duration::from_secs(uptime);
        Ok(Health { run: run_id.to_string(), now, uptime, durable: appends && syncs, mark })
    }

    async fn try_mark(
        &self,
        expected: Option<&BirthMark>,
        new: &BirthMark,
    ) -> Result<Option<BirthMark>, StoreError> {
        let connection = self.connections.get().await?;
        let mut call = NODE_MARK.call(1);
        call.arg(BIRTH)
            .arg(expected.map(birth_mark::format).unwrap_or_default())
            .arg(birth_mark::format(new));
        let mark = Fields::of(self.connections.run(&connection, &NODE_MARK, call).await?)?.text()?;
        if mark.is_empty() {
            return Ok(None);
        }
        birth_mark::parse(&mark).map(Some).map_err(StoreError::Translated)
    }

    /// Calls `scripts/node_vote.lua` for one of its three verbs.
    async fn try_renew(
        &self,
        requests: &[RenewRequest],
    ) -> Result<Vec<Result<NodeRenewal, StoreError>>, StoreError> {
        let connection = self.connections.get().await?;
        let call = |request: &RenewRequest| {
            let owner = request.owner.reveal();
            let mut keys = Keys::of(&request.resource);
            let mut call = NODE_RENEW.call(3);
            call.arg(keys.owner()).arg(keys.tombstone(&owner)).arg(BIRTH);
            call.arg(&owner)
                .arg(at_least_one_milli(request.ttl))
                .arg(note_argument(request.note.as_deref()))
                .arg(keys.change_channel());
            call
        };
        let calls = requests.iter().map(call).collect();
        let replies = self.connections.run_all(&connection, &NODE_RENEW, calls).await;
        Ok(replies.into_iter().map(|reply| read_renewal(Fields::of(reply?)?)).collect())
    }

    async fn try_look(&self, resource: &Resource) -> Result<NodeView, StoreError> {
        let connection = self.connections.get().await?;
        let mut keys = Keys::of(resource);
        let mut call = NODE_LOOK.call(2);
        call.arg(keys.owner()).arg(keys.register());
        let mut fields = Fields::of(self.connections.run(&connection, &NODE_LOOK, call).await?)?;
        let now = WallTime::from_micros(fields.int()?.unsigned_abs());
        let last = fields.maybe_token()?;
        let mut view = NodeView { now, held: None, foreign: None, last };
        match fields.text()?.as_str() {
            "held" => view.held = Some(read_holder(&mut fields)?),
            "foreign" => view.foreign = Some(fields.foreign_lock(resource)?),
            _ => {}
        }
        Ok(view)
    }

    async fn try_walk(&self, prefix: &str, after: Option<&str>) -> Result<NodePage, StoreError> {
        let connection = self.connections.get().await?;
        let mut scan = Cmd::new();
        scan.arg("SCAN")
            .arg(after.unwrap_or(SCAN_START))
            .arg("MATCH")
            .arg(pattern(prefix, ""))
            .arg("COUNT")
            .arg(KEYS_PER_PAGE);
        let mut fields = Fields::of(self.connections.send(&connection, &scan).await?)?;
        let (next, mut keys, mut page) = (fields.text()?, fields.list()?, NodePage::default());
        let mut registers = Vec::new();
        while let Some(key) = keys.bytes()? {
            let key = String::from_utf8_lossy(&key).into_owned();
            // Another program may have written a key with this prefix that names no resource.
            let Some(resource) = resource_of(&key).and_then(|key| Resource::from_key(key).ok()) else {
                continue;
            };
            if key.ends_with(OWNER) {
                page.entries.push(NodeEntry { resource, held: true, last: None });
            } else if key.ends_with(REGISTER) {
                registers.push((key, resource));
            }
        }
        let questions: Vec<Cmd> =
            registers.iter().map(|(key, _)| Cmd::new().arg("GET").arg(key).to_owned()).collect();
        let replies = self.connections.send_all(&connection, &questions).await;
        for (reply, (_, resource)) in replies.into_iter().zip(registers) {
            let last = match reply {
                Ok(Value::BulkString(value)) => {
                    let value = String::from_utf8_lossy(&value).into_owned();
                    value.split('|').next().and_then(|number| number.parse().ok())
                }
                // One register that cannot be read must not hide the others.
                Err(error) if error.is_wrong_type() => None,
                Err(error) => return Err(error),
                Ok(_) => continue,
            };
            page.entries.push(NodeEntry { resource, held: false, last });
        }
        page.next = (next != SCAN_START).then_some(next);
        Ok(page)
    }

    async fn try_raise(&self, registers: &[(Resource, FencingToken)]) -> Result<(), StoreError> {
        let connection = self.connections.get().await?;
        let call = |(resource, last): &(Resource, FencingToken)| {
            let mut call = NODE_RAISE.call(1);
            call.arg(Keys::of(resource).register()).arg(last.get()).arg(millis(RETENTION));
            call
        };
        let calls = registers.iter().map(call).collect();
        let replies = self.connections.run_all(&connection, &NODE_RAISE, calls).await;
        replies.into_iter().try_for_each(|reply| reply.map(drop))
    }
}

fn no_run_id() -> StoreError {
    let message = "INFO of the server contains no run_id: a node of a quorum needs one";
    StoreError::Translated(Error::new(ErrorKind::Unsupported, message))
}

/// The error of [`QuorumNode::health`]. A replica or a node of a cluster is refused for good: waiting does
/// not help, because another server has its vote or may take it over.
fn health_error(error: StoreError) -> Error {
    let error = error.into_error();
    let what = match error.to_string().as_str() {
        server_info::IS_REPLICA => "replica",
        server_info::IS_CLUSTERED => "node of a cluster",
        _ => return error,
    };
    let message = format!("the server is a {what}: a quorum needs servers that know nothing of each other");
    Error::new(ErrorKind::Invalid, message)
}

#[async_trait]
impl QuorumNode for RedisNode {
    fn name(&self) -> &str {
        &self.name
    }

    async fn health(&self) -> Result<Health> {
        self.server.try_health().await.map_err(health_error)
    }

    async fn mark(&self, expected: Option<&BirthMark>, new: &BirthMark) -> Result<Option<BirthMark>> {
        self.server.try_mark(expected, new).await.map_err(StoreError::into_error)
    }

    async fn vote(&self, request: &VoteRequest) -> Result<Vote> {
        self.ask_vote(VoteVerb::Vote, request).await
    }

    async fn claim(&self, request: &VoteRequest) -> Result<Vote> {
        self.ask_vote(VoteVerb::Claim, request).await
    }

    async fn join(&self, request: &VoteRequest) -> Result<Vote> {
        self.ask_vote(VoteVerb::Join, request).await
    }

    async fn undo(&self, undo: &UndoRequest) -> Result<bool> {
        self.undos.send(undo, &AtomicBool::new(false), true).await.result
    }

    async fn renew(&self, requests: &[RenewRequest]) -> Vec<Result<NodeRenewal>> {
        match self.server.try_renew(requests).await {
            Ok(outcomes) => {
                outcomes.into_iter().map(|outcome| outcome.map_err(StoreError::into_error)).collect()
            }
            Err(error) => requests.iter().map(|_| Err(error.clone().into_error())).collect(),
        }
    }

    async fn look(&self, resource: &Resource) -> Result<NodeView> {
        self.server.try_look(resource).await.map_err(StoreError::into_error)
    }

    async fn walk(&self, prefix: &str, after: Option<&str>) -> Result<NodePage> {
        self.server.try_walk(prefix, after).await.map_err(StoreError::into_error)
    }

    async fn raise(&self, registers: &[(Resource, FencingToken)]) -> Result<()> {
        self.server.try_raise(registers).await.map_err(StoreError::into_error)
    }

    async fn listen(&self, resource: &Resource, at_most: Duration) -> Result<()> {
        let mut keys = Keys::of(resource);
        self.listener.wait(keys.change_channel(), at_most).await.map_err(StoreError::into_error)
    }
}

impl fmt::Debug for RedisNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisNode").field("connections", &self.server.connections).finish_non_exhaustive()
    }
}
