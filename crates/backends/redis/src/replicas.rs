//! Grants that replicas have acknowledged before they are given.
//!
//! `WAIT` speaks of the writes of its own connection and lets nothing else through meanwhile, so each of these calls has
//! a connection to itself. What was not written by that very call would be acknowledged at once: hence a small write
//! before each `WAIT`.
//!
//! The number that `WAIT` answers names no request. So it stands between the last script's answer and that of a `PING`,
//! which do: see `proof`. A pool that sends the commands of one client over several connections makes `WAIT` worthless.
//!
//! After a failover the new primary has no replicas for a while: each must ask it for what it lacks, and if that is
//! everything, Redis waits 5 s before it sends it. A grant in that time would be written, waited for in vain and taken
//! back. So on a new connection, and after a write that too few replicas had, `acquire` first waits until enough replicas
//! follow the primary.

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
    error::Fault,
    link::{Link, Wire},
    proof,
    reply::number,
    script::Script,
    site,
};

/// How many idle connections are kept.
const IDLE_MAX: usize = 16;
/// How often a primary with too few replicas is asked whether they have come.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Connections that each call has to itself.
#[derive(Default)]
pub(crate) struct Pool {
    /// Those that nobody uses at the moment.
    idle: Mutex<Vec<Arc<Wire>>>,
    /// Too few replicas may follow the primary: `acquire` looks before it writes.
    short: AtomicBool,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pool")
    }
}

impl Pool {
    fn idle(&self) -> MutexGuard<'_, Vec<Arc<Wire>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection to itself. Dropped with its future part-way, it is not used again.
    pub(crate) async fn take(&self, link: &Link) -> Result<Arc<Wire>, Fault> {
        let idle = {
            let mut idle = self.idle();
            idle.retain(|wire| link.is_current(wire));
            idle.pop()
        };
        match idle {
            Some(wire) => Ok(wire),
            None => {
                let wire = link.connect_patiently_alone(link.config.replica_timeout).await?;
                self.short.store(true, Ordering::Relaxed);
                Ok(Arc::new(wire))
            }
        }
    }

    /// Waits until enough replicas follow the primary, if that is in doubt: as long as for an answer, then it is an error
    /// without effect.
    pub(crate) async fn await_replicas(&self, wire: &Arc<Wire>, link: &Link) -> Result<(), Fault> {
        let (needed, until) = (needed(link), link.now().after(link.config.timeout));
        while needed > 0 && self.short.load(Ordering::Relaxed) {
            let online = online(wire, link, needed).await.inspect_err(|_| self.clear())?;
            if online >= needed {
                self.short.store(false, Ordering::Relaxed);
            } else if link.now() >= until {
                self.give_back(Arc::clone(wire));
                let message = format!("{online} replicas follow the primary, {needed} must acknowledge");
                return Err(Fault::Refused(Error::new(ErrorKind::Unavailable, message)));
            } else {
                link.sleep(LOOK_EVERY).await;
            }
        }
        Ok(())
    }

    fn give_back(&self, wire: Arc<Wire>) {
        let mut idle = self.idle();
        if idle.len() < IDLE_MAX {
            idle.push(wire);
        }
    }

    /// Forgets all of them: the primary is another one.
    pub(crate) fn clear(&self) {
        self.idle().clear();
    }

    /// Calls a script several times, makes a write at `mark`, and waits for the replicas.
    pub(crate) async fn run(
        &self,
        wire: Arc<Wire>,
        link: &Link,
        script: &Script,
        mut calls: Vec<Cmd>,
        mark: &str,
    ) -> Result<Written, Fault> {
        let mut done = self.attempt(&wire, link, &calls, mark).await?;
        let forgotten = |answer: &Result<Value, Fault>| matches!(answer, Err(fault) if fault.is_no_script());
        if done.answers.iter().any(forgotten) {
            // The verbs are idempotent: all of them again, the first one with the text.
            calls[0] = script.spelled_out(&calls[0]);
            done = self.attempt(&wire, link, &calls, mark).await?;
            if done.answers.first().is_some_and(forgotten) {
                return Err(proof::mixed_up(link.ids.next(), &wire.address));
            }
        }
        let broken =
            |answer: &Result<Value, Fault>| matches!(answer, Err(fault) if fault.breaks_connection());
        if done.answers.iter().any(broken) {
            // The others lead there too.
            self.clear();
        } else {
            self.give_back(wire);
        }
        Ok(done)
    }

    async fn attempt(&self, wire: &Wire, link: &Link, calls: &[Cmd], mark: &str) -> Result<Written, Fault> {
        let mut pipeline = Pipeline::with_capacity(calls.len() + 3);
        pipeline.cmd("SET").arg(mark).arg(1).arg("PX").arg(1000);
        let mut ids = Vec::with_capacity(calls.len());
        for call in calls {
            let mut call = call.clone();
            ids.push(proof::number(&mut call, &link.ids));
            pipeline.add_command(call);
        }
        let last = link.ids.next();
        pipeline.cmd("WAIT").arg(needed(link)).arg(millis(link.config.replica_timeout));
        pipeline.add_command(proof::ping(last));
        let mut answers = wire.send_all(&pipeline, calls.len() + 3).await?;
        let in_order = proof::check_ping(last, answers.pop(), &wire.address);
        let acks = answers.pop().unwrap_or(Value::Nil).extract_error().map_err(Fault::Command);
        let replies = ids.into_iter().zip(answers.into_iter().skip(1));
        let answers: Vec<_> = replies.map(|(id, answer)| wire.reply_to(id, answer)).collect();
        if let Some(Err(fault)) = answers.iter().find(|answer| matches!(answer, Err(Fault::MixedUp(_)))) {
            return Err(fault.clone());
        }
        match in_order {
            // A server that refuses everything has refused the calls too.
            Err(Fault::Command(_)) if answers.iter().all(Result::is_err) => {}
            Err(fault) => return Err(Fault::Refused(fault.into_error().with_effect(Effect::Unknown))),
            Ok(()) => {}
        }
        let count = |acks: Value| u32::try_from(number(&acks).unwrap_or(0)).unwrap_or(0);
        let written = Written { answers, acks: acks.map(count), needed: needed(link) };
        if written.enough().is_err() {
            self.short.store(true, Ordering::Relaxed);
        }
        Ok(written)
    }
}

/// How many replicas follow the primary. A user who may not ask is told that there are enough, and finds out by `WAIT`. A
/// user who may not `WAIT` is told so now: no replica that comes will change that.
async fn online(wire: &Arc<Wire>, link: &Link, needed: u32) -> Result<u32, Fault> {
    let role = Cmd::new().arg("ROLE").to_owned();
    // For no replica, so it answers at once.
    let may_wait = Cmd::new().arg("WAIT").arg(0).arg(1).to_owned();
    let mut answers = link.pipe(wire, &[role, may_wait]).await.into_iter();
    let role = answers.next().unwrap_or(Ok(Value::Nil));
    answers.next().unwrap_or(Ok(Value::Nil))?;
    match role {
        Err(fault) if !fault.breaks_connection() && !fault.is_unanswered() => Ok(needed),
        Err(fault) => Err(fault),
        Ok(answer) => site::role(answer),
    }
}

/// What was written: the answers to it, and how many replicas have it.
pub(crate) struct Written {
    pub(crate) answers: Vec<Result<Value, Fault>>,
    acks: Result<u32, Fault>,
    needed: u32,
}

impl Written {
    /// How many have it; or why that does not do, once it is known what has become of what was written.
    pub(crate) fn enough(&self) -> Result<u32, impl FnOnce(Effect) -> Fault> {
        let why = match &self.acks {
            Ok(acks) if *acks >= self.needed => return Ok(*acks),
            Ok(acks) => too_few(*acks, self.needed),
            // It may not ask, or the server is not the primary any more.
            Err(fault) => fault.clone().into_error(),
        };
        Err(move |effect| Fault::Refused(why.with_effect(effect)))
    }
}

/// How many replicas must acknowledge.
pub(crate) fn needed(link: &Link) -> u32 {
    match link.config.replicas {
        Replicas::None => 0,
        Replicas::AtLeast(count) => count,
        // With the primary itself, more than half of all nodes.
        Replicas::Majority => link.replicas_seen().div_ceil(2),
    }
}

pub(crate) fn too_few(acks: u32, needed: u32) -> Error {
    let message = format!("{acks} replicas acknowledged in time, {needed} were asked for");
    Error::new(ErrorKind::Unavailable, message)
}
