//! The verb `acquire`.
//!
//! 1. A plain claim on a resource that was not contended a moment ago: call `scripts/acquire_plain.lua`, or for a
//!    handover `scripts/handover_plain.lua` (ADR 0038). Mostly that is all.
//! 2. Otherwise, if the claim may queue and wake-ups are received, register it as a waiter. This comes before the
//!    request, so that no wake-up between the reply and `wait` is missed.
//! 3. Call `scripts/acquire.lua`, which decides every case.
//! 4. If the claim got a place in the queue, keep its waiter for `wait`.
//!
//! If the cluster moves the slot of the resource, grant on the owner key alone, where that is possible
//! (`slot_migration.rs`).
//!
//! With `replicas=` the whole script runs on a connection of its own, followed by `WAIT`. If too few replicas
//! acknowledge, the grant is released again, with a tombstone.

use std::{borrow::Cow, time::Duration};

use leasehold_core::{
    Blocked, Claim, Effect, Error, ErrorKind, FencingToken, Grant, Handover, ReleaseRequest, Share, Verdict,
    WhenBlocked,
};
use redis::{Cmd, RedisWrite as _, Value};

use crate::{
    backend::{Redis, at_least_one_milli, millis, note_argument},
    cluster::PrimaryNode,
    cluster_router::RetryState,
    config::Replicas,
    error::StoreError,
    keys::Keys,
    replicas::ReplicatedWrite,
    reply::Fields,
    script::{self, Script},
};

/// A token that is further ahead of the clock is reported: if the data is lost now, tokens go back.
const TOKEN_LEAD_WARNING: Duration = Duration::from_secs(3600);

impl Redis {
    pub(crate) async fn try_acquire(&self, claim: &Claim) -> Result<Verdict, StoreError> {
        if let Some(error) = self.check_note(claim.note.as_deref()) {
            return Err(error);
        }
        if self.router.config().replicas != Replicas::None {
            // Boxed, because that future is large and most clients have no `replicas=`.
            return Box::pin(self.acquire_replicated(claim)).await;
        }
        if self.is_plain_claim(claim) {
            let reply = self.call_plain(claim).await;
            if matches!(&reply, Err(error) if error.is_try_again()) && self.can_use_owner_key_alone(claim) {
                return Box::pin(self.acquire_with_owner_key(claim)).await;
            }
            if let Some(verdict) = self.read_plain_verdict(claim, reply?)? {
                return Ok(verdict);
            }
        }
        self.acquire_whole(claim).await
    }

    /// Whether `acquire_plain.lua` or `handover_plain.lua` may grant the claim.
    pub(crate) fn is_plain_claim(&self, claim: &Claim) -> bool {
        let is_plain = claim.share == Share::WHOLE && claim.note.is_none();
        is_plain && !self.contended.contains(&claim.resource, self.environment.now())
    }

    async fn call_plain(&self, claim: &Claim) -> Result<Value, StoreError> {
        let resource = &claim.resource;
        let reply = match claim.takes_over_from {
            None => {
                let make = |lead| Cow::Owned(plain_acquire_call(&script::ACQUIRE_PLAIN, &[claim], lead));
                self.router.run(resource, &script::ACQUIRE_PLAIN, &make).await?
            }
            Some(from) => {
                let make = |lead| Cow::Owned(plain_handover_call(claim, &from, lead));
                self.router.run(resource, &script::HANDOVER_PLAIN, &make).await?
            }
        };
        match reply {
            // A token or 0.
            Value::Array(mut fields) if fields.len() == 1 => Ok(fields.remove(0)),
            reply => Ok(reply),
        }
    }

    /// Reads the reply of a plain script for one claim. `None`: it is not plain, and nothing was done.
    pub(crate) fn read_plain_verdict(
        &self,
        claim: &Claim,
        reply: Value,
    ) -> Result<Option<Verdict>, StoreError> {
        match reply {
            Value::Int(0) => {
                self.contended.note(&claim.resource, self.environment.now());
                Ok(None)
            }
            Value::BulkString(_) => {
                let token = Fields::of(Value::Array(vec![reply]))?.token()?;
                Ok(Some(Verdict::Granted(Grant::new(token, Duration::from_millis(millis(claim.ttl))))))
            }
            reply => read_verdict(claim, reply).map(Some),
        }
    }

    /// Calls `scripts/acquire.lua`.
    pub(crate) async fn acquire_whole(&self, claim: &Claim) -> Result<Verdict, StoreError> {
        let queues = claim.when_blocked == WhenBlocked::Queue && self.listener.is_connected(&claim.resource);
        let waiter = queues.then(|| self.listener.register(claim.reference()));
        let make = |lead| Cow::Owned(self.acquire_call(claim, lead));
        let reply = self.router.run(&claim.resource, &script::ACQUIRE, &make).await;
        if matches!(&reply, Err(error) if error.is_try_again()) && self.can_use_owner_key_alone(claim) {
            return Box::pin(self.acquire_with_owner_key(claim)).await;
        }
        let verdict = read_verdict(claim, self.name_wrong_type(claim.reference(), reply).await?)?;
        if let Verdict::Blocked(blocked) = &verdict {
            let now = self.environment.now();
            self.contended.note(&claim.resource, now);
            if let Some(waiter) = waiter.filter(|_| blocked.queued) {
                self.listener.keep_pending(waiter, blocked.cursor, now, claim.place_ttl);
            }
        }
        Ok(verdict)
    }

    /// Refuses a note that is too long.
    pub(crate) fn check_note(&self, note: Option<&[u8]>) -> Option<StoreError> {
        let max = self.info.limits.note;
        let length = note.map_or(0, <[u8]>::len);
        (length > max).then(|| {
            let message = format!("the note has {length} bytes, and a note has at most {max} bytes");
            StoreError::Translated(Error::new(ErrorKind::Limit, message))
        })
    }

    /// The call of `scripts/acquire.lua`. `lead` is how far tokens are ahead of the server's clock, in
    /// microseconds.
    fn acquire_call(&self, claim: &Claim, lead: u64) -> Cmd {
        let (owner, resource) = (claim.owner.reveal(), &claim.resource);
        let mut keys = Keys::of(resource);
        let mut call = script::ACQUIRE.call(10);
        keys.push_all(&mut call, &owner);
        // Without a predecessor the script does not use the tenth key, but on a cluster it must be in the
        // same slot.
        let predecessor = claim.takes_over_from.map(|from| from.owner.reveal()).unwrap_or_default();
        call.arg(keys.tombstone(if predecessor.is_empty() { &owner } else { &predecessor }));
        self.push_common_arguments(&mut call, resource);
        call.arg(&owner).arg(claim.share.weight()).arg(claim.share.capacity());
        call.arg(millis(claim.ttl)).arg(millis(claim.place_ttl));
        call.arg(u8::from(claim.when_blocked == WhenBlocked::Queue)).write_arg_fmt(claim.stored_holder());
        match &claim.note {
            None => call.arg(""),
            Some(note) => call.arg(note_argument(Some(note))),
        };
        call.arg(claim.floor.map_or(0, FencingToken::get)).arg(lead).arg(&predecessor);
        match claim.takes_over_from.and_then(|from| from.tombstone) {
            None => call.arg(-1),
            Some(tombstone) => call.arg(millis(tombstone)),
        };
        call.arg(self.info.limits.queue);
        call.arg(claim.client.map(|client| client.to_string()).unwrap_or_default());
        call
    }

    /// Acquires, and releases again if too few replicas have the grant.
    async fn acquire_replicated(&self, claim: &Claim) -> Result<Verdict, StoreError> {
        let mut state = RetryState::new(self.environment.now());
        let (node, reply, write) = loop {
            let node = self.router.node(&claim.resource)?;
            let (reply, write) = match self.acquire_acknowledged(&node, claim).await {
                Ok((reply, write)) => (reply, Some(write)),
                Err(error) => (Err(error), None),
            };
            match &reply {
                Err(error) if self.router.should_retry(&claim.resource, &node, error, &mut state).await => {}
                _ => break (node, reply, write),
            }
        };
        let reply = reply.inspect_err(|error| self.router.learn_from(&claim.resource, &node, error));
        let reply = reply.map_err(|error| self.router.explain(error));
        let verdict = read_verdict(claim, self.name_wrong_type(claim.reference(), reply).await?)?;
        let Verdict::Granted(grant) = verdict else { return Ok(verdict) };
        let too_few = match write.as_ref().map(ReplicatedWrite::acknowledged) {
            Some(Ok(acks)) => return Ok(Verdict::Granted(grant.acknowledged(acks))),
            Some(Err(too_few)) => too_few,
            None => return Err(StoreError::missing_reply()),
        };
        // The primary has the grant. The tombstone also stops a copy of this request that is executed late.
        let request =
            ReleaseRequest::new(claim.reference()).with_tombstone(ReleaseRequest::tombstone_ttl(claim.ttl));
        let effect = if self.try_release(&request).await.is_ok() { Effect::None } else { Effect::Unknown };
        Err(too_few(effect))
    }

    async fn acquire_acknowledged(
        &self,
        node: &PrimaryNode,
        claim: &Claim,
    ) -> Result<(Result<Value, StoreError>, ReplicatedWrite), StoreError> {
        let connection = node.exclusive.take(&node.connections).await?;
        node.exclusive.wait_for_replicas(&connection, &node.connections).await?;
        let calls = vec![self.acquire_call(claim, connection.token_lead_micros())];
        let mut keys = Keys::of(&claim.resource);
        let write = node
            .exclusive
            .run(connection, &node.connections, &script::ACQUIRE, calls, keys.replication_probe())
            .await;
        let mut write = write.inspect_err(|_| node.exclusive.clear())?;
        let reply = write.replies.pop().unwrap_or_else(|| Err(StoreError::missing_reply()));
        Ok((reply, write))
    }
}

/// The call of `scripts/acquire_plain.lua` for these claims, with the script for one or for several. `lead` is how
/// far tokens are ahead of the server's clock, in microseconds.
pub(crate) fn plain_acquire_call(script: &Script, claims: &[&Claim], lead: u64) -> Cmd {
    let mut call = script.call(4 * claims.len());
    let owners: Vec<String> = claims.iter().map(|claim| claim.owner.reveal()).collect();
    for (claim, owner) in claims.iter().zip(&owners) {
        Keys::of(&claim.resource).push_plain(&mut call, owner);
    }
    let letter = |claim: &&Claim| if claim.when_blocked == WhenBlocked::Queue { 'q' } else { 'l' };
    call.arg(lead).arg(claims.iter().map(letter).collect::<String>());
    for (claim, owner) in claims.iter().zip(&owners) {
        call.arg(owner).arg(at_least_one_milli(claim.ttl)).write_arg_fmt(claim.stored_holder());
        call.arg(claim.floor.map_or(0, FencingToken::get));
    }
    call
}

/// The call of `scripts/handover_plain.lua`.
fn plain_handover_call(claim: &Claim, from: &Handover, lead: u64) -> Cmd {
    let (owner, predecessor) = (claim.owner.reveal(), from.owner.reveal());
    let mut keys = Keys::of(&claim.resource);
    let mut call = script::HANDOVER_PLAIN.call(5);
    keys.push_plain(&mut call, &owner);
    call.arg(keys.tombstone(&predecessor));
    call.arg(lead).arg(&owner).arg(at_least_one_milli(claim.ttl)).write_arg_fmt(claim.stored_holder());
    call.arg(claim.floor.map_or(0, FencingToken::get)).arg(&predecessor);
    match from.tombstone {
        None => call.arg(-1),
        Some(tombstone) => call.arg(millis(tombstone)),
    };
    call
}

/// The error for a reply with another number of fields than the call had claims.
pub(crate) fn wrong_count() -> StoreError {
    StoreError::unexpected_reply("a script returned another number of results than it got claims".to_owned())
}

/// Reads the reply of `scripts/acquire.lua`.
pub(crate) fn read_verdict(claim: &Claim, reply: Value) -> Result<Verdict, StoreError> {
    let mut fields = Fields::of(reply)?;
    match fields.text()?.as_str() {
        "granted" => {
            let grant = Grant::new(fields.token()?, fields.millis()?.unwrap_or_default());
            let ahead = fields.micros()?;
            if ahead > TOKEN_LEAD_WARNING {
                let resource = claim.resource.id_hash();
                tracing::warn!(%resource, ?ahead, "tokens of this resource are ahead of the server's clock");
            }
            Ok(Verdict::Granted(grant))
        }
        "blocked" => {
            let mut blocked = Blocked::default();
            blocked.queued = fields.int()? == 1;
            blocked.ahead = fields.count()?;
            blocked.changes_in = fields.millis()?;
            blocked.pause_ends_in = fields.millis()?;
            blocked.paused = blocked.pause_ends_in.is_some();
            blocked.cursor = fields.cursor()?;
            blocked.holders = fields.each(Fields::holder)?;
            blocked.foreign = fields.foreign(&claim.resource)?;
            Ok(Verdict::Blocked(blocked))
        }
        // The words of replies are older than the names of the types.
        "buried" => Ok(Verdict::Cancelled),
        "mismatch" => Ok(Verdict::Mismatch { capacity: fields.count()? }),
        other => Err(StoreError::unexpected_reply(format!("acquire was answered with {other:.20?}"))),
    }
}
