//! While a slot moves: the keys of a resource are at two nodes, and no node runs a script that needs both.
//!
//! A single key is always at one of them. So a claim of 1 of 1 is granted on the owner key alone: for a short time first,
//! then, once nothing else speaks against it, for its ttl. Nobody looks at the line meanwhile, so it may overtake.
//! Readers, writers and permits are not in the owner key: their claims wait until the slot has arrived, and if any of them
//! holds something here, or the resource is paused, so does this one.

use std::{borrow::Cow, time::Duration};

use leasehold_core::{
    Claim, Effect, Error, ErrorKind, FencingToken, Grant, ReleaseRequest, Released, RenewRequest, Renewal,
    Resource, Share, Verdict,
};
use redis::{Cmd, Value};

use crate::{
    backend::{Redis, at_least_a_milli, millis, verdict},
    config::Replicas,
    error::Fault,
    keys::Keys,
    renew::{plain_call, plainly_kept},
    reply::{Fields, number},
    script::{MOVING_ACQUIRE, MOVING_FENCE, MOVING_RELEASE, MOVING_RENEW, RENEW, Script},
    together,
};

/// How long a grant lasts until it is known that nothing speaks against it: so long a request that is executed after its
/// caller gave up is in everyone's way, because tombstones are other keys.
const AT_FIRST: Duration = Duration::from_secs(10);

impl Redis {
    /// Whether a claim can be granted on the owner key alone.
    pub(crate) fn can_do_without_the_others(&self, claim: &Claim) -> bool {
        let plain = claim.share == Share::WHOLE && claim.note.is_none() && claim.takes_over_from.is_none();
        plain && self.route.cluster().is_some() && self.route.config().replicas == Replicas::None
    }

    pub(crate) async fn acquire_owner_alone(&self, claim: &Claim) -> Result<Verdict, Fault> {
        let resource = &claim.resource;
        let fence = self.single(resource, "GET", Keys::of(resource).fence()).await.map_err(without_effect)?;
        let last = number(&fence).and_then(|last| FencingToken::try_from(last).ok());
        let (floor, last) = (claim.floor.map_or(0, FencingToken::get), last.map_or(0, FencingToken::get));
        let make = |lead: u64| {
            let mut call = MOVING_ACQUIRE.call(1);
            call.arg(Keys::of(resource).owner()).arg(claim.owner.reveal());
            call.arg(at_least_a_milli(claim.ttl.min(AT_FIRST)))
                .arg(claim.holder.to_string())
                .arg(floor)
                .arg(lead)
                .arg(last);
            Cow::Owned(call)
        };
        let answer = self.route.run(resource, &MOVING_ACQUIRE, &make).await?;
        let fresh = matches!(&answer, Value::Array(fields) if fields.get(4).and_then(number) == Some(1));
        let grant = match verdict(claim, answer)? {
            Verdict::Granted(grant) => grant,
            other => return Ok(other),
        };
        if !fresh {
            let kept = self.keep_owner_alone(claim).await.ok().flatten();
            return Ok(Verdict::Granted(kept.unwrap_or(grant)));
        }
        match self.confirm(claim, grant).await {
            Ok(Some(grant)) => Ok(Verdict::Granted(grant)),
            Ok(None) => self.give_up(claim).await.map(|()| Verdict::Cancelled),
            Err(fault) => match self.give_up(claim).await {
                Ok(()) => Err(without_effect(fault)),
                Err(unknown) => Err(unknown),
            },
        }
    }

    /// Looks at what the owner key does not say, and makes the grant last. `None`: it was buried.
    async fn confirm(&self, claim: &Claim, grant: Grant) -> Result<Option<Grant>, Fault> {
        let (resource, owner) = (&claim.resource, claim.owner.reveal());
        let keys = || Keys::of(resource);
        let (grave, shares, state) =
            (keys().grave(&owner).to_owned(), keys().shares().to_owned(), keys().state().to_owned());
        let mut about = Cmd::new();
        about.arg("HMGET").arg(state).arg("capacity").arg("pause");
        let look = [command("EXISTS", &grave), command("ZCARD", &shares), about];
        let looks = look.iter().map(|command| self.route.send(resource, command)).collect();
        let mut seen = together::all(looks).await.into_iter();
        let mut next = || seen.next().unwrap_or_else(|| Err(Fault::Strange("no answer came".to_owned())));
        if number(&next()?) == Some(1) {
            return Ok(None);
        }
        let sharers = number(&next()?).unwrap_or(0);
        let (capacity, paused) = match next()? {
            Value::Array(fields) => {
                let capacity = fields.first().and_then(number).unwrap_or(1);
                (capacity, !matches!(fields.get(1), None | Some(Value::Nil)))
            }
            _ => (1, false),
        };
        if sharers > 0 || capacity != 1 || paused {
            return Err(moving("who else holds it cannot be seen while its slot moves"));
        }
        let fence = |_| {
            let mut call = MOVING_FENCE.call(1);
            call.arg(keys().fence()).arg(grant.token.get());
            Cow::Owned(call)
        };
        self.route.run(resource, &MOVING_FENCE, &fence).await?;
        match self.keep_owner_alone(claim).await? {
            Some(kept) if kept.token == grant.token => Ok(Some(kept)),
            _ => Err(moving("it was lost again while its slot moved")),
        }
    }

    async fn keep_owner_alone(&self, claim: &Claim) -> Result<Option<Grant>, Fault> {
        let held = RenewRequest::new(claim.reference(), claim.ttl);
        let call = plain_call(std::slice::from_ref(&held), &[0]);
        let answer = self.route.run(&claim.resource, &RENEW, &|_| Cow::Borrowed(&call)).await?;
        let Value::Array(tokens) = answer else { return Ok(None) };
        let kept = tokens.first().and_then(|token| plainly_kept(&held, token));
        Ok(match kept {
            Some(Renewal::Renewed(kept)) => Some(Grant::new(kept.token, kept.remaining)),
            _ => None,
        })
    }

    /// Renews those whose slots move and who have the owner key, with or without something beside it.
    pub(crate) async fn renew_moving(
        &self,
        held: &[RenewRequest],
        answers: &mut [Option<Result<Renewal, Fault>>],
    ) {
        let moves = |index: &usize| matches!(&answers[*index], Some(Err(fault)) if fault.is_try_again());
        let moving: Vec<usize> =
            (0..held.len()).filter(|index| held[*index].note.is_none() && moves(index)).collect();
        if moving.is_empty() {
            return;
        }
        let call = |&index: &usize| {
            let mut call = MOVING_RENEW.call(1);
            call.arg(Keys::of(&held[index].resource).owner());
            call.arg(held[index].owner.reveal()).arg(at_least_a_milli(held[index].ttl));
            (&held[index].resource, call)
        };
        let replies = self.route.run_all(Some(&MOVING_RENEW), moving.iter().map(call).collect()).await;
        for (&index, reply) in moving.iter().zip(replies) {
            // If it is not that simple, what was said before stands: nothing was done, try again.
            let token = reply.and_then(Fields::of).and_then(|mut fields| fields.int());
            if let Some(kept) = token.ok().and_then(|token| plainly_kept(&held[index], &Value::Int(token))) {
                answers[index] = Some(Ok(kept));
            }
        }
    }

    /// Takes back what was set.
    async fn give_up(&self, claim: &Claim) -> Result<(), Fault> {
        let answer = self.alone(&MOVING_RELEASE, &claim.resource, &claim.owner.reveal()).await;
        answer.map(drop).map_err(|_| unknown("a grant could not be taken back while its slot moved"))
    }

    /// Gives up a plain seat. Waiters are not told: they look for themselves, soon.
    pub(crate) async fn release_owner_alone(
        &self,
        request: &ReleaseRequest,
        fault: Fault,
    ) -> Result<Released, Fault> {
        if request.keep_for.is_some_and(|keep_for| !keep_for.is_zero()) {
            return Err(fault);
        }
        let (resource, owner) = (&request.resource, request.owner.reveal());
        if let Some(keep) = request.tombstone {
            let mut tombstone = command("SET", Keys::of(resource).grave(&owner));
            tombstone.arg("b").arg("PX").arg(millis(keep).max(1));
            self.route.send(resource, &tombstone).await?;
        }
        let answer = self.alone(&MOVING_RELEASE, resource, &owner).await;
        match answer.and_then(Fields::of).and_then(|mut fields| fields.int()) {
            Ok(1) => Ok(Released::Now),
            _ if request.tombstone.is_some() => Err(unknown("the slot of this resource moves")),
            Ok(_) => Err(fault),
            Err(other) => Err(other),
        }
    }

    async fn alone(&self, script: &Script, resource: &Resource, owner: &str) -> Result<Value, Fault> {
        let make = |_| {
            let mut call = script.call(1);
            call.arg(Keys::of(resource).owner()).arg(owner);
            Cow::Owned(call)
        };
        self.route.run(resource, script, &make).await
    }

    async fn single(&self, resource: &Resource, verb: &str, key: &str) -> Result<Value, Fault> {
        self.route.send(resource, &command(verb, key)).await
    }
}

fn command(verb: &str, key: &str) -> Cmd {
    Cmd::new().arg(verb).arg(key).to_owned()
}

fn moving(message: &'static str) -> Fault {
    Fault::Refused(Error::new(ErrorKind::Unavailable, message))
}

fn unknown(message: &'static str) -> Fault {
    Fault::Refused(Error::new(ErrorKind::Unavailable, message).with_effect(Effect::Unknown))
}

/// What was only read, or taken back, has had none.
fn without_effect(fault: Fault) -> Fault {
    Fault::Refused(fault.into_error().with_effect(Effect::None))
}
