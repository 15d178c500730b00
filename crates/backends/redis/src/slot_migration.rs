//! `acquire`, `renew` and `release` while a cluster moves the slot of a resource. ADR 0015.
//!
//! Meanwhile the keys of the resource are on two nodes, and neither runs a script that names a key which it
//! does not have. A single key is always on exactly one node, so a claim of 1 of 1 can do with the owner key
//! alone:
//!
//! 1. Read the fence, for a token above it.
//! 2. Set the owner key for [`PROVISIONAL_TTL`] at most.
//! 3. Read the other keys one by one: tombstone, holders of shares, capacity, pause.
//! 4. If none of them forbids the grant, raise the fence and renew the owner key for the whole ttl.
//!    Otherwise delete the owner key again.
//!
//! The key is set before the others are read: a claim that shares the resource either was there before and is
//! seen in step 3, or comes later and sees the owner key.
//!
//! The queue is not read, so such a grant may overtake it. Claims of readers, writers and permits are not in
//! the owner key: they wait until the slot has arrived. So does a claim of 1 of 1 if any of them holds a
//! share, or the resource is paused.

use std::{borrow::Cow, time::Duration};

use leasehold_core::{
    Claim, Effect, Error, ErrorKind, FencingToken, Grant, ReleaseRequest, Released, RenewRequest, Renewal,
    Resource, Share, Verdict,
};
use redis::{Cmd, Value};

use crate::{
    acquire::read_verdict,
    backend::{Redis, at_least_one_milli},
    config::Replicas,
    error::{StoreError, unavailable},
    join,
    keys::Keys,
    renew::{plain_renew_call, read_plain_renewal},
    reply::{Fields, number},
    script::{
        RENEW, SLOT_MIGRATION_ACQUIRE, SLOT_MIGRATION_FENCE, SLOT_MIGRATION_RELEASE, SLOT_MIGRATION_RENEW,
        Script,
    },
};

/// How long a grant lasts until the other keys were read. It bounds the harm of a request that is executed
/// after its caller gave up: a tombstone cannot stop it, because that is another key.
const PROVISIONAL_TTL: Duration = Duration::from_secs(10);
/// The field in the reply of `slot_migration_acquire.lua` that is 1 if the grant is new.
const IS_NEW_FIELD: usize = 4;

impl Redis {
    /// Whether a claim can be granted on the owner key alone.
    pub(crate) fn can_use_owner_key_alone(&self, claim: &Claim) -> bool {
        let plain = claim.share == Share::WHOLE && claim.note.is_none() && claim.takes_over_from.is_none();
        plain && self.router.cluster().is_some() && self.router.config().replicas == Replicas::None
    }

    pub(crate) async fn acquire_with_owner_key(&self, claim: &Claim) -> Result<Verdict, StoreError> {
        let resource = &claim.resource;
        let read_fence = command("GET", Keys::of(resource).fence());
        let fence = self.router.send(resource, &read_fence).await.map_err(without_effect)?;
        let last = number(&fence).and_then(|last| FencingToken::try_from(last).ok());
        let (floor, last) = (claim.floor.map_or(0, FencingToken::get), last.map_or(0, FencingToken::get));
        let make = |lead: u64| {
            let mut call = SLOT_MIGRATION_ACQUIRE.call(1);
            call.arg(Keys::of(resource).owner()).arg(claim.owner.reveal());
            call.arg(at_least_one_milli(claim.ttl.min(PROVISIONAL_TTL)))
                .arg(claim.stored_holder().to_string())
                .arg(floor)
                .arg(lead)
                .arg(last);
            Cow::Owned(call)
        };
        let reply = self.router.run(resource, &SLOT_MIGRATION_ACQUIRE, &make).await?;
        let is_new =
            matches!(&reply, Value::Array(fields) if fields.get(IS_NEW_FIELD).and_then(number) == Some(1));
        let grant = match read_verdict(claim, reply)? {
            Verdict::Granted(grant) => grant,
            other => return Ok(other),
        };
        if !is_new {
            // An earlier request of this claim set the key, perhaps for the provisional ttl only.
            let renewed = self.renew_owner_key(claim).await.ok().flatten();
            return Ok(Verdict::Granted(renewed.unwrap_or(grant)));
        }
        match self.confirm(claim, grant).await {
            Ok(Some(grant)) => Ok(Verdict::Granted(grant)),
            Ok(None) => self.take_back(claim).await.map(|()| Verdict::Cancelled),
            Err(error) => match self.take_back(claim).await {
                Ok(()) => Err(without_effect(error)),
                Err(unknown) => Err(unknown),
            },
        }
    }

    /// Steps 3 and 4: reads the other keys, and makes the grant last. `None`: the owner has a tombstone.
    async fn confirm(&self, claim: &Claim, grant: Grant) -> Result<Option<Grant>, StoreError> {
        let (resource, owner) = (&claim.resource, claim.owner.reveal());
        let mut keys = Keys::of(resource);
        let questions = [
            command("EXISTS", keys.tombstone(&owner)),
            command("ZCARD", keys.shares()),
            command("GET", keys.state()),
        ];
        let asking = questions.iter().map(|question| self.router.send(resource, question)).collect();
        let mut replies = join::join_all(asking).await.into_iter();
        let mut next = || replies.next().unwrap_or_else(|| Err(StoreError::missing_reply()));
        if number(&next()?) == Some(1) {
            return Ok(None);
        }
        let share_count = number(&next()?).unwrap_or(0);
        let is_open = match next()? {
            Value::Nil => true,
            Value::BulkString(state) => {
                // As `state_text` in `resource.lua` writes it.
                let state = String::from_utf8_lossy(&state).into_owned();
                state.starts_with("capacity=1 ") && state.contains(" pause=- ")
            }
            _ => false,
        };
        if share_count > 0 || !is_open {
            return Err(unavailable(
                "the cluster is moving the slot of this resource, which is shared or paused: try again when it has moved",
            ));
        }
        let raise_fence = |_| {
            let mut call = SLOT_MIGRATION_FENCE.call(1);
            call.arg(Keys::of(resource).fence()).arg(grant.token.get());
            Cow::Owned(call)
        };
        self.router.run(resource, &SLOT_MIGRATION_FENCE, &raise_fence).await?;
        match self.renew_owner_key(claim).await? {
            Some(renewed) if renewed.token == grant.token => Ok(Some(renewed)),
            _ => {
                Err(unavailable("the grant was lost again while the cluster moved the slot of this resource"))
            }
        }
    }

    /// Renews a plain holder; `None` if the claim does not hold the owner key.
    async fn renew_owner_key(&self, claim: &Claim) -> Result<Option<Grant>, StoreError> {
        let request = RenewRequest::new(claim.reference(), claim.ttl);
        let call = plain_renew_call(std::slice::from_ref(&request), &[0]);
        let reply = self.router.run(&claim.resource, &RENEW, &|_| Cow::Borrowed(&call)).await?;
        let Value::Array(tokens) = reply else { return Ok(None) };
        let renewed = tokens.first().and_then(|token| read_plain_renewal(&request, token));
        Ok(match renewed {
            Some(Renewal::Renewed(renewed)) => Some(Grant::new(renewed.token, renewed.remaining)),
            _ => None,
        })
    }

    /// Renews the requests that failed because their slot is being moved, if they hold the owner key.
    pub(crate) async fn renew_while_slots_move(
        &self,
        requests: &[RenewRequest],
        outcomes: &mut [Option<Result<Renewal, StoreError>>],
    ) {
        let slot_moves =
            |index: &usize| matches!(&outcomes[*index], Some(Err(error)) if error.is_try_again());
        let indexes: Vec<usize> = (0..requests.len())
            .filter(|index| requests[*index].note.is_none() && slot_moves(index))
            .collect();
        if indexes.is_empty() {
            return;
        }
        let call = |&index: &usize| {
            let mut call = SLOT_MIGRATION_RENEW.call(1);
            call.arg(Keys::of(&requests[index].resource).owner());
            call.arg(requests[index].owner.reveal()).arg(at_least_one_milli(requests[index].ttl));
            (&requests[index].resource, call)
        };
        let calls = indexes.iter().map(call).collect();
        let replies = self.router.run_all(Some(&SLOT_MIGRATION_RENEW), calls).await;
        for (&index, reply) in indexes.iter().zip(replies) {
            // Otherwise the first error stays: nothing was done, and the engine tries again.
            let token = reply.and_then(Fields::of).and_then(|mut fields| fields.int()).ok();
            let renewed = token.and_then(|token| read_plain_renewal(&requests[index], &Value::Int(token)));
            if let Some(renewed) = renewed {
                outcomes[index] = Some(Ok(renewed));
            }
        }
    }

    /// Deletes the owner key that step 2 has set.
    async fn take_back(&self, claim: &Claim) -> Result<(), StoreError> {
        let reply =
            self.run_on_owner_key(&SLOT_MIGRATION_RELEASE, &claim.resource, &claim.owner.reveal()).await;
        // If this fails, the key is in the way for `PROVISIONAL_TTL` at the most.
        let message = "a grant could not be taken back while the cluster moved the slot of this resource";
        reply.map(drop).map_err(|_| unknown(message))
    }

    /// Releases a plain holder. `error` is why the script of `release` did not run.
    ///
    /// Waiters get no wake-up: they poll while the slot moves.
    pub(crate) async fn release_with_owner_key(
        &self,
        request: &ReleaseRequest,
        error: StoreError,
    ) -> Result<Released, StoreError> {
        if request.keep_for.is_some_and(|keep_for| !keep_for.is_zero()) {
            return Err(error);
        }
        let (resource, owner) = (&request.resource, request.owner.reveal());
        if let Some(tombstone_ttl) = request.tombstone {
            let mut tombstone = command("SET", Keys::of(resource).tombstone(&owner));
            tombstone.arg("b").arg("PX").arg(at_least_one_milli(tombstone_ttl));
            self.router.send(resource, &tombstone).await?;
        }
        let reply = self.run_on_owner_key(&SLOT_MIGRATION_RELEASE, resource, &owner).await;
        match reply.and_then(Fields::of).and_then(|mut fields| fields.int()) {
            Ok(1) => Ok(Released::Now),
            // The tombstone was written, so the error of the script, which says "no effect", is no longer
            // true.
            _ if request.tombstone.is_some() => {
                Err(unknown("the cluster is moving the slot of this resource: try again when it has moved"))
            }
            Ok(_) => Err(error),
            Err(other) => Err(other),
        }
    }

    async fn run_on_owner_key(
        &self,
        script: &Script,
        resource: &Resource,
        owner: &str,
    ) -> Result<Value, StoreError> {
        let make = |_| {
            let mut call = script.call(1);
            call.arg(Keys::of(resource).owner()).arg(owner);
            Cow::Owned(call)
        };
        self.router.run(resource, script, &make).await
    }
}

fn command(verb: &str, key: &str) -> Cmd {
    Cmd::new().arg(verb).arg(key).to_owned()
}

fn unknown(message: &'static str) -> StoreError {
    StoreError::Translated(Error::new(ErrorKind::Unavailable, message).with_effect(Effect::Unknown))
}

/// The same error without effect: nothing was written, or it was taken back.
fn without_effect(error: StoreError) -> StoreError {
    StoreError::Translated(error.into_error().with_effect(Effect::None))
}
