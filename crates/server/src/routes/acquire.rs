//! `POST /v1/acquire`

use std::{sync::Arc, time::Duration};

use leasehold_api::{
    Problem, ProblemKind,
    acquire::{self, AcquireReply, ClaimBody},
    list::{Claims, Entry, Many, OneOrMany},
};
use leasehold_core::{Claim, Holder};
use tokio::time::{Instant, timeout_at};

use crate::{access, answer::Answer, body, bounds, router::Call, routes, waiting::Waiting};

pub(crate) async fn answer(call: &Call<'_>, bytes: &[u8]) -> Result<Answer, Problem> {
    routes::refuse_while_draining(call.shared)?;
    // Boxed: thousands of these futures may wait.
    match ClaimBody::read(bytes).map_err(|error| body::unreadable(&error))? {
        OneOrMany::One(claim) => Box::pin(one(call, claim)).await.map(Answer::from),
        OneOrMany::Many(many) => Box::pin(self::many(call, many)).await,
    }
}

async fn one(call: &Call<'_>, body: ClaimBody) -> Result<Entry<AcquireReply>, Problem> {
    let wait = bounds::wait(body.wait_ms)?;
    let (leave_on_hangup, says_place_ttl) = (body.hangup.is_some(), body.place_ttl_ms.is_some());
    let claim = Box::pin(check(call, body)).await?;
    let reference = claim.reference();
    let waiting = Waiting::new(call.shared, claim, call.read_at, wait);
    let waiting = if says_place_ttl { waiting } else { waiting.with_chosen_place_ttl() };
    let waiting = Box::pin(waiting.answer(leave_on_hangup));
    if wait.is_zero() {
        return Ok(waiting.await);
    }
    let _waiter = routes::waiters(call, 1)?;
    tokio::select! {
        entry = waiting => Ok(entry),
        // As if the caller had gone.
        () = call.caller.revoked() => Err(access::revoked().about(&reference.resource, reference.owner)),
    }
}

async fn many(call: &Call<'_>, many: Many<ClaimBody>) -> Result<Answer, Problem> {
    bounds::entries(many.entries.len())?;
    let limit = bounds::timeout(many.timeout_ms, call.shared.store.timeout())?;
    let ends_at = Instant::now() + limit;
    let mut checked = Vec::with_capacity(many.entries.len());
    for body in many.entries {
        checked.push(match body {
            body if body.wait_ms.is_some() || body.hangup.is_some() => {
                Err(bounds::invalid("`wait_ms` and `hangup` are for a single claim, not for a list"))
            }
            // The check of a floor may ask the store.
            body => timeout_at(ends_at, check(call, body)).await.unwrap_or_else(|_| Err(no_answer())),
        });
    }
    let limit = ends_at.saturating_duration_since(Instant::now());
    let sorted = routes::Sorted::new(checked);
    let claims: Vec<Claim> = sorted.accepted.iter().map(|(_, claim)| claim.clone()).collect();
    let verdicts = call.shared.store.acquire_many(claims, limit).await;
    let store = &call.shared.config.store;
    let replies = sorted.accepted.iter().zip(verdicts);
    // Claims of a list are not waited for. Zero is too little by what they travel, which is safe.
    let replies =
        replies.map(|((_, claim), verdict)| acquire::reply(claim, verdict, Duration::ZERO, store)).collect();
    Ok(Answer::json(200, &Claims { claims: sorted.merge(call, replies) }))
}

fn no_answer() -> Problem {
    Problem::new(
        ProblemKind::Unavailable,
        "the store did not answer in time whether the floor of the claim may be so high",
    )
}

/// The claim, if it is valid, in bounds, and allowed.
async fn check(call: &Call<'_>, mut body: ClaimBody) -> Result<Claim, Problem> {
    // A caller that does not name its host is shown by its address.
    body.host.get_or_insert_with(|| call.peer.address.ip().to_string());
    let mut claim = body.claim().map_err(|error| bounds::refused(&error))?;
    if let Some(subject) = call.caller.subject() {
        claim.holder = Arc::new(Holder::clone(&claim.holder).with_subject(subject));
    }
    let checked = async {
        call.caller.check_resource(&claim.resource)?;
        let level = call.shared.backend.info().guarantee;
        if let Some(wanted) = body.level.map(|wanted| wanted.to_core()).filter(|wanted| level < *wanted) {
            let detail = format!("the store is {level}, and the claim needs {wanted}");
            return Err(
                Problem::new(ProblemKind::GuaranteeTooWeak, detail).with_hint("use a server on such a store")
            );
        }
        bounds::claim(call, &mut claim).await
    };
    let checked = checked.await;
    checked.map_err(|problem| problem.about(&claim.resource, claim.owner))?;
    Ok(claim)
}
