//! A Redis server as one node of a quorum.
//!
//! | module | what it does |
//! |---|---|
//! | [`config`] | from `redlock://h1,h2,h3` to its nodes |
//! | [`mark`] | how the birth mark is spelled |
//! | [`reply`] | what the scripts answer |
//! | [`listen`] | hints that a lock was given back |

mod config;
mod listen;
mod mark;
mod reply;

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use leasehold_core::{
    Environment, Error, ErrorKind, FencingToken, QuorumNode, RenewRequest, Resource, Result, WallTime,
    async_trait,
    quorum_node::{
        AttemptId, BirthMark, Health, NodeEntry, NodePage, NodeRenewal, NodeView, RETENTION, SKEW_MAX,
        UndoRequest, Vote, VoteRequest,
    },
};
use redis::{Cmd, Value};

use self::{
    listen::Listener,
    reply::{holder, renewal, setting, text, time, vote},
};
use crate::{
    backend::{at_least_a_milli, millis},
    config::Config,
    error::Fault,
    keys::{BIRTH, Keys, OWNER, REGISTER, pattern, resource_of},
    link::{Link, Wire},
    reply::Fields,
    script::{NODE_LOOK, NODE_MARK, NODE_RAISE, NODE_RENEW, NODE_UNDO, NODE_VOTE},
    site,
};

pub use config::Nodes;

/// How many keys the server looks at for one step of a walk.
const STEP: u32 = 1000;

/// A Redis server as one node of a quorum: it votes, and knows nothing of the others.
///
/// Connects when it is first asked, and again whenever the connection was lost. [`Nodes`] makes them of a URL.
pub struct RedisNode {
    name: String,
    link: Link,
    listener: Listener,
    run: Mutex<Option<Known>>,
}

/// Which run of the server a connection leads to. A restart breaks every connection, so this stays true.
#[derive(Clone)]
struct Known {
    wire: Arc<Wire>,
    run: Arc<str>,
}

impl RedisNode {
    /// The server that the configuration names.
    pub fn new(config: Config, environment: Arc<dyn Environment>) -> RedisNode {
        let (host, port) = &config.hosts[0];
        let name = format!("{host}:{port}");
        let listener = Listener::new(config.clone(), Arc::clone(&environment));
        RedisNode { name, link: Link::new(config, environment), listener, run: Mutex::new(None) }
    }

    /// The connection, and which run of the server it leads to.
    async fn wire(&self) -> Result<Known, Fault> {
        let wire = self.link.wire().await?;
        let known = self.run.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(known) = known.filter(|known| Arc::ptr_eq(&known.wire, &wire)) {
            return Ok(known);
        }
        let mut ask = Cmd::new();
        ask.arg("INFO").arg("server");
        let answer = site::info(&self.link.send(&wire, &ask).await?);
        let run = answer.into_iter().find(|(name, _)| name == "run_id").map(|(_, run)| run);
        let run = run.ok_or_else(|| no_run_id("the server does not say its run_id"))?;
        let known = Known { wire, run: run.into() };
        *self.run.lock().unwrap_or_else(PoisonError::into_inner) = Some(known.clone());
        Ok(known)
    }

    async fn ask_health(&self) -> Result<Health, Fault> {
        let Known { wire, run } = self.wire().await?;
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
        let mut answers = self.link.pipe(&wire, &questions).await.into_iter();
        let mut next =
            || answers.next().unwrap_or_else(|| Err(Fault::Strange("an answer is missing".to_owned())));
        let now = time(next()?)?;
        let server = site::info(&next()?);
        let uptime = server.iter().find(|(name, _)| name == "uptime_in_seconds");
        let uptime = uptime.and_then(|(_, seconds)| seconds.parse().ok()).unwrap_or(0);
        // What the user may not ask is taken for the worse.
        let durable = setting("appendonly", next()) == Some("yes".to_owned());
        let durable = setting("appendfsync", next()) == Some("always".to_owned()) && durable;
        let mark = match next()? {
            Value::Nil => None,
            value => Some(mark::parse(&text(value)?).map_err(Fault::Refused)?),
        };
        Ok(Health { run: run.to_string(), now, uptime: Duration::from_secs(uptime), durable, mark })
    }

    async fn set_mark(
        &self,
        expected: Option<&BirthMark>,
        new: &BirthMark,
    ) -> Result<Option<BirthMark>, Fault> {
        let wire = self.link.wire().await?;
        let mut call = NODE_MARK.call(1);
        call.arg(BIRTH).arg(expected.map(mark::spell).unwrap_or_default()).arg(mark::spell(new));
        let there = Fields::of(self.link.run(&wire, &NODE_MARK, call).await?)?.text()?;
        if there.is_empty() { Ok(None) } else { mark::parse(&there).map(Some).map_err(Fault::Refused) }
    }

    async fn ballot(&self, verb: &str, ballot: &VoteRequest) -> Result<Vote, Fault> {
        let Known { wire, run } = self.wire().await?;
        let (owner, attempt) = (ballot.owner.reveal(), spell(ballot.attempt));
        let mut keys = Keys::of(&ballot.resource);
        let mut call = NODE_VOTE.call(5);
        call.arg(keys.owner()).arg(keys.register()).arg(BIRTH);
        call.arg(keys.grave(&owner)).arg(keys.attempt_grave(&owner, &attempt));
        call.arg(verb).arg(&owner).arg(&attempt).arg(at_least_a_milli(ballot.ttl)).arg(ballot.proposal.get());
        call.arg(ballot.holder.to_string()).arg(noted(ballot.note.as_deref()));
        call.arg(&*run).arg(SKEW_MAX.as_micros().to_string()).arg(millis(RETENTION));
        vote(Fields::of(self.link.run(&wire, &NODE_VOTE, call).await?)?)
    }

    async fn take_back(&self, undo: &UndoRequest) -> Result<bool, Fault> {
        let (owner, attempt) = (undo.owner.reveal(), undo.attempt.map(spell).unwrap_or_default());
        let mut keys = Keys::of(&undo.resource);
        let mut call = NODE_UNDO.call(2);
        call.arg(keys.owner());
        call.arg(if attempt.is_empty() { keys.grave(&owner) } else { keys.attempt_grave(&owner, &attempt) });
        call.arg(&owner).arg(&attempt);
        match undo.tombstone {
            None => call.arg(-1),
            Some(tombstone) => call.arg(millis(tombstone)),
        };
        call.arg(keys.news());
        let wire = self.link.wire().await?;
        let answer = self.link.run(&wire, &NODE_UNDO, call).await?;
        Ok(Fields::of(answer)?.int()? == 1)
    }

    async fn renew_all(&self, held: &[RenewRequest]) -> Result<Vec<Result<NodeRenewal, Fault>>, Fault> {
        let wire = self.link.wire().await?;
        let call = |held: &RenewRequest| {
            let owner = held.owner.reveal();
            let mut keys = Keys::of(&held.resource);
            let mut call = NODE_RENEW.call(3);
            call.arg(keys.owner()).arg(keys.grave(&owner)).arg(BIRTH);
            call.arg(&owner)
                .arg(at_least_a_milli(held.ttl))
                .arg(noted(held.note.as_deref()))
                .arg(keys.news());
            call
        };
        let answers = self.link.run_all(&wire, &NODE_RENEW, held.iter().map(call).collect()).await;
        Ok(answers.into_iter().map(|answer| renewal(Fields::of(answer?)?)).collect())
    }

    async fn see(&self, resource: &Resource) -> Result<NodeView, Fault> {
        let wire = self.link.wire().await?;
        let mut keys = Keys::of(resource);
        let mut call = NODE_LOOK.call(2);
        call.arg(keys.owner()).arg(keys.register());
        let mut fields = Fields::of(self.link.run(&wire, &NODE_LOOK, call).await?)?;
        let now = WallTime::from_micros(fields.int()?.unsigned_abs());
        let last = fields.maybe_token()?;
        let held = if fields.is_empty() { None } else { Some(holder(&mut fields)?) };
        Ok(NodeView { now, held, last })
    }

    async fn step(&self, prefix: &str, after: Option<&str>) -> Result<NodePage, Fault> {
        let wire = self.link.wire().await?;
        let mut scan = Cmd::new();
        scan.arg("SCAN")
            .arg(after.unwrap_or("0"))
            .arg("MATCH")
            .arg(pattern(prefix, ""))
            .arg("COUNT")
            .arg(STEP);
        let mut fields = Fields::of(self.link.send(&wire, &scan).await?)?;
        let (next, mut keys, mut walk) = (fields.text()?, fields.list()?, NodePage::default());
        let mut registers = Vec::new();
        while let Some(key) = keys.bytes()? {
            let key = String::from_utf8_lossy(&key).into_owned();
            let Some(resource) = resource_of(&key).and_then(|key| Resource::from_key(key).ok()) else {
                continue;
            };
            if key.ends_with(OWNER) {
                walk.entries.push(NodeEntry { resource, held: true, last: None });
            } else if key.ends_with(REGISTER) {
                registers.push((key, resource));
            }
        }
        let asks: Vec<Cmd> =
            registers.iter().map(|(key, _)| Cmd::new().arg("GET").arg(key).to_owned()).collect();
        for (answer, (_, resource)) in self.link.pipe(&wire, &asks).await.into_iter().zip(registers) {
            if let Value::BulkString(value) = answer? {
                let value = String::from_utf8_lossy(&value).into_owned();
                let last = value.split('|').next().and_then(|number| number.parse().ok());
                walk.entries.push(NodeEntry { resource, held: false, last });
            }
        }
        walk.next = (next != "0").then_some(next);
        Ok(walk)
    }

    async fn raise_all(&self, registers: &[(Resource, FencingToken)]) -> Result<(), Fault> {
        let wire = self.link.wire().await?;
        let call = |(resource, last): &(Resource, FencingToken)| {
            let mut call = NODE_RAISE.call(1);
            call.arg(Keys::of(resource).register()).arg(last.get()).arg(millis(RETENTION));
            call
        };
        let answers = self.link.run_all(&wire, &NODE_RAISE, registers.iter().map(call).collect()).await;
        answers.into_iter().try_for_each(|answer| answer.map(drop))
    }
}

fn no_run_id(why: &str) -> Fault {
    Fault::Refused(Error::new(ErrorKind::Unsupported, why.to_owned()))
}

fn spell(attempt: AttemptId) -> String {
    format!("{:016x}", attempt.0)
}

fn noted(note: Option<&[u8]>) -> Vec<u8> {
    note.map(|note| [b"n", note].concat()).unwrap_or_default()
}

/// A replica or a part of a cluster is no node, and will not become one by waiting: another server has its vote, or may
/// take it over.
fn refused(fault: Fault) -> Error {
    let error = fault.into_error();
    let what = match error.to_string().as_str() {
        site::IS_REPLICA => "replica",
        site::IS_CLUSTERED => "node of a cluster",
        _ => return error,
    };
    let message = format!("it is a {what}: a quorum needs servers that know nothing of each other");
    Error::new(ErrorKind::Invalid, message)
}

#[async_trait]
impl QuorumNode for RedisNode {
    fn name(&self) -> &str {
        &self.name
    }

    async fn health(&self) -> Result<Health> {
        self.ask_health().await.map_err(refused)
    }

    async fn mark(&self, expected: Option<&BirthMark>, new: &BirthMark) -> Result<Option<BirthMark>> {
        self.set_mark(expected, new).await.map_err(Fault::into_error)
    }

    async fn vote(&self, ballot: &VoteRequest) -> Result<Vote> {
        self.ballot("vote", ballot).await.map_err(Fault::into_error)
    }

    async fn claim(&self, ballot: &VoteRequest) -> Result<Vote> {
        self.ballot("claim", ballot).await.map_err(Fault::into_error)
    }

    async fn join(&self, ballot: &VoteRequest) -> Result<Vote> {
        self.ballot("join", ballot).await.map_err(Fault::into_error)
    }

    async fn undo(&self, undo: &UndoRequest) -> Result<bool> {
        self.take_back(undo).await.map_err(Fault::into_error)
    }

    async fn renew(&self, held: &[RenewRequest]) -> Vec<Result<NodeRenewal>> {
        match self.renew_all(held).await {
            Ok(answers) => answers.into_iter().map(|answer| answer.map_err(Fault::into_error)).collect(),
            Err(fault) => held.iter().map(|_| Err(fault.clone().into_error())).collect(),
        }
    }

    async fn look(&self, resource: &Resource) -> Result<NodeView> {
        self.see(resource).await.map_err(Fault::into_error)
    }

    async fn walk(&self, prefix: &str, after: Option<&str>) -> Result<NodePage> {
        self.step(prefix, after).await.map_err(Fault::into_error)
    }

    async fn raise(&self, registers: &[(Resource, FencingToken)]) -> Result<()> {
        self.raise_all(registers).await.map_err(Fault::into_error)
    }

    async fn listen(&self, resource: &Resource, at_most: Duration) -> Result<()> {
        self.listener.listen(Keys::of(resource).news(), at_most).await.map_err(Fault::into_error)
    }
}

impl fmt::Debug for RedisNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisNode").field("link", &self.link).finish_non_exhaustive()
    }
}
