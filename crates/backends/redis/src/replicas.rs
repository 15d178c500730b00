//! Grants and renewals that replicas acknowledge before they count (`replicas=`).
//!
//! 1. Take a connection for this call alone: `WAIT` counts the writes of its own connection and blocks that
//!    connection.
//! 2. Before a grant, if it is in doubt, wait until enough replicas follow the primary.
//! 3. Send one pipeline: a small write, the scripts, `WAIT`, and a `PING` with a request id.
//! 4. Compare the number that `WAIT` returns with the number of replicas that are needed.
//!
//! The small write is there because a call may write nothing (a claim that is already granted). `WAIT` would
//! then return at once, although no replica has acknowledged anything.
//!
//! The reply of `WAIT` carries no request id, so it stands between the reply of the last script and that of
//! the `PING`, which do (`request_id.rs`). A pool that spreads the commands of one client over several
//! connections makes `WAIT` worthless.
//!
//! Step 2 is there because after a failover the new primary has no replicas for a while: each must ask it for
//! the writes that it lacks, and for a full copy Redis waits 5 s before it begins. A grant in that time would
//! be written, waited for in vain and released again. So it is done on a new connection, and after a write
//! that too few replicas acknowledged.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use leasehold_core::{Effect, Error, ErrorKind};
use redis::{Cmd, Pipeline, Value};

use crate::{
    backend::millis,
    config::Replicas,
    connection::{Connection, Connections},
    error::{StoreError, unavailable},
    reply::number,
    request::Reply,
    request_id,
    script::Script,
    server_info,
};

/// How many idle connections are kept.
const IDLE_MAX: usize = 16;
/// How often a primary with too few replicas is asked whether more have come.
const COUNT_REPLICAS_EVERY: Duration = Duration::from_millis(50);
/// How long the key of the small write lives.
const PROBE_TTL_MS: u32 = 1000;

/// Connections that one call at a time uses.
#[derive(Default)]
pub(crate) struct ExclusiveConnections {
    /// Those that no call uses at the moment.
    idle: Mutex<Vec<Arc<Connection>>>,
    /// Too few replicas may follow the primary: `acquire` counts them before it writes.
    replicas_in_doubt: AtomicBool,
}

impl std::fmt::Debug for ExclusiveConnections {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ExclusiveConnections")
    }
}

impl ExclusiveConnections {
    fn idle(&self) -> MutexGuard<'_, Vec<Arc<Connection>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection for one call. If the call is dropped part-way, so is the connection.
    pub(crate) async fn take(&self, connections: &Connections) -> Result<Arc<Connection>, StoreError> {
        let idle = {
            let mut idle = self.idle();
            // Connections from before a failover lead to the old primary.
            idle.retain(|connection| connections.is_current(connection));
            idle.pop()
        };
        match idle {
            Some(connection) => Ok(connection),
            None => {
                let connection = connections.open_exclusive(connections.config.replica_timeout).await?;
                self.replicas_in_doubt.store(true, Ordering::Relaxed);
                Ok(Arc::new(connection))
            }
        }
    }

    /// If it is in doubt, waits until enough replicas follow the primary: for as long as a reply may take.
    /// After that it is an error without effect.
    pub(crate) async fn wait_for_replicas(
        &self,
        connection: &Arc<Connection>,
        connections: &Connections,
    ) -> Result<(), StoreError> {
        let (needed, until) = (needed(connections), connections.now().after(connections.config.timeout));
        while needed > 0 && self.replicas_in_doubt.load(Ordering::Relaxed) {
            let online = count_replicas(connection, connections, needed).await;
            let online = online.inspect_err(|_| self.clear())?;
            if online >= needed {
                self.replicas_in_doubt.store(false, Ordering::Relaxed);
            } else if connections.now() >= until {
                self.give_back(Arc::clone(connection));
                return Err(unavailable(too_few_follow(online, needed)));
            } else {
                connections.sleep(COUNT_REPLICAS_EVERY).await;
            }
        }
        Ok(())
    }

    fn give_back(&self, connection: Arc<Connection>) {
        let mut idle = self.idle();
        if idle.len() < IDLE_MAX {
            idle.push(connection);
        }
    }

    /// Drops all idle connections: they lead to a server that is no longer the primary.
    pub(crate) fn clear(&self) {
        self.idle().clear();
    }

    /// Calls a script several times, writes the key `probe`, and waits for the replicas.
    pub(crate) async fn run(
        &self,
        connection: Arc<Connection>,
        connections: &Connections,
        script: &Script,
        mut calls: Vec<Cmd>,
        probe: &str,
    ) -> Result<ReplicatedWrite, StoreError> {
        let mut write = self.attempt(&connection, connections, &calls, probe).await?;
        let is_no_script = |reply: &Reply| matches!(reply, Err(error) if error.is_no_script());
        if write.replies.iter().any(is_no_script) {
            // The verbs may be repeated: send all of them again, the first one with the source of the script.
            calls[0] = script.with_source(&calls[0]);
            write = self.attempt(&connection, connections, &calls, probe).await?;
            if write.replies.first().is_some_and(is_no_script) {
                return Err(request_id::misdelivered(connections.request_ids.next(), &connection.address));
            }
        }
        let is_broken = |reply: &Reply| matches!(reply, Err(error) if error.breaks_connection());
        if write.replies.iter().any(is_broken) {
            // The other connections lead to the same server.
            self.clear();
        } else {
            self.give_back(connection);
        }
        Ok(write)
    }

    async fn attempt(
        &self,
        connection: &Connection,
        connections: &Connections,
        calls: &[Cmd],
        probe: &str,
    ) -> Result<ReplicatedWrite, StoreError> {
        let mut pipeline = Pipeline::with_capacity(calls.len() + 3);
        pipeline.cmd("SET").arg(probe).arg(1).arg("PX").arg(PROBE_TTL_MS);
        let mut ids = Vec::with_capacity(calls.len());
        for call in calls {
            let mut call = call.clone();
            ids.push(request_id::add_id(&mut call, &connections.request_ids));
            pipeline.add_command(call);
        }
        let last = connections.request_ids.next();
        pipeline.cmd("WAIT").arg(needed(connections)).arg(millis(connections.config.replica_timeout));
        pipeline.add_command(request_id::ping(last));
        let mut values = connection.send_all(&pipeline, calls.len() + 3).await?;
        let in_order = request_id::check_ping(last, values.pop(), &connection.address);
        let acks = values.pop().unwrap_or(Value::Nil).extract_error().map_err(StoreError::Command);
        // The first value is the reply to the SET.
        let replies = ids.into_iter().zip(values.into_iter().skip(1));
        let replies: Vec<_> = replies.map(|(id, reply)| connection.check_reply(id, reply)).collect();
        let misdelivered = |reply: &&Reply| matches!(reply, Err(StoreError::Misdelivered(_)));
        if let Some(Err(error)) = replies.iter().find(misdelivered) {
            return Err(error.clone());
        }
        match in_order {
            // A server that refuses every command has refused the calls too, so this is not a wrong order.
            Err(StoreError::Command(_) | StoreError::NoReply(..)) if replies.iter().all(Result::is_err) => {}
            Err(error) => {
                return Err(StoreError::Translated(error.into_error().with_effect(Effect::Unknown)));
            }
            Ok(()) => {}
        }
        let count = |acks: Value| u32::try_from(number(&acks).unwrap_or(0)).unwrap_or(0);
        let write = ReplicatedWrite { replies, acks: acks.map(count), needed: needed(connections) };
        if write.acknowledged().is_err() {
            self.replicas_in_doubt.store(true, Ordering::Relaxed);
        }
        Ok(write)
    }
}

/// How many replicas follow the primary.
///
/// If the user may not ask for `ROLE`, returns `needed`: `WAIT` will tell. If the user may not `WAIT`,
/// returns that error now: waiting for replicas cannot change it.
async fn count_replicas(
    connection: &Arc<Connection>,
    connections: &Connections,
    needed: u32,
) -> Result<u32, StoreError> {
    let role = Cmd::new().arg("ROLE").to_owned();
    // It waits for 0 replicas, so it returns at once.
    let may_wait = Cmd::new().arg("WAIT").arg(0).arg(1).to_owned();
    let mut replies = connections.send_all(connection, &[role, may_wait]).await.into_iter();
    let role = replies.next().unwrap_or(Ok(Value::Nil));
    replies.next().unwrap_or(Ok(Value::Nil))?;
    match role {
        Err(error) if !error.breaks_connection() && !error.is_unanswered() => Ok(needed),
        Err(error) => Err(error),
        Ok(reply) => server_info::replica_count(reply),
    }
}

/// The replies to what was written, and how many replicas have it.
pub(crate) struct ReplicatedWrite {
    pub(crate) replies: Vec<Reply>,
    acks: Result<u32, StoreError>,
    needed: u32,
}

impl ReplicatedWrite {
    /// How many replicas have it. If that is not enough, a function that makes the error, for when the caller
    /// knows the effect.
    pub(crate) fn acknowledged(&self) -> Result<u32, impl FnOnce(Effect) -> StoreError> {
        let why = match &self.acks {
            Ok(acks) if *acks >= self.needed => return Ok(*acks),
            Ok(acks) => too_few(*acks, self.needed),
            // The user may not `WAIT`, or the server is no longer the primary.
            Err(error) => error.clone().into_error(),
        };
        Err(move |effect| StoreError::Translated(why.with_effect(effect)))
    }
}

/// How many replicas must acknowledge.
pub(crate) fn needed(connections: &Connections) -> u32 {
    match connections.config.replicas {
        Replicas::None => 0,
        Replicas::AtLeast(count) => count,
        // Together with the primary, more than half of all servers.
        Replicas::Majority => connections.replicas_seen().div_ceil(2),
    }
}

/// Says that fewer replicas follow the primary than must acknowledge a grant.
pub(crate) fn too_few_follow(online: u32, needed: u32) -> String {
    format!("{online} replicas follow the primary, {needed} must acknowledge")
}

pub(crate) fn too_few(acks: u32, needed: u32) -> Error {
    let message = format!("{acks} replicas acknowledged in time, {needed} were asked for");
    Error::new(ErrorKind::Unavailable, message)
}
