//! `POST /v1/wait`: which claims are worth asking for again.

use std::time::Duration;

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use leasehold_api::{
    Problem,
    wait::{WaitBody, WaitReply},
};
use leasehold_core::{ClaimRef, Cursor, Effect};

use crate::{access, answer::Answer, body, bounds, listener::drained, router::Call, routes};

/// After the first wake-up: wake-ups that come together are reported together.
const TOGETHER: Duration = Duration::from_millis(2);
/// A store whose `wait` fails at once must not be asked in a tight loop.
const AFTER_FAILURE: Duration = Duration::from_millis(250);

pub(crate) async fn answer(call: &Call<'_>, bytes: &[u8]) -> Result<Answer, Problem> {
    let body = WaitBody::read(bytes).map_err(|error| body::unreadable(&error))?;
    let at_most = bounds::wait(Some(body.wait_ms))?;
    bounds::entries(body.claims.len())?;
    let claims = check(call, &body)?;
    // A cursor that this store did not give says nothing: ask at once.
    let unknown: Vec<usize> = claims
        .iter()
        .enumerate()
        .filter(|(_, (_, cursor))| cursor.is_none())
        .map(|(position, _)| position)
        .collect();
    if !unknown.is_empty() || claims.is_empty() {
        return Ok(Answer::json(200, &WaitReply { ask: unknown }));
    }
    let _waiters = routes::waiters(call, claims.len())?;
    let mut ask = tokio::select! {
        ask = woken(call, &claims, at_most) => ask,
        () = call.caller.revoked() => return Err(access::revoked().with_effect(Effect::None)),
    };
    if call.shared.is_draining() {
        ask = (0..claims.len()).collect();
    }
    Ok(Answer::json(200, &WaitReply { ask }))
}

fn check(call: &Call<'_>, body: &WaitBody) -> Result<Vec<(ClaimRef, Option<Cursor>)>, Problem> {
    let store = &call.shared.config.store;
    let read = |waiting: &leasehold_api::wait::WaitingClaim| {
        let (claim, cursor) = waiting.claim(store).map_err(|error| bounds::refused(&error))?;
        bounds::owner(claim.owner)?;
        call.caller.check_resource(&claim.resource)?;
        Ok((claim, cursor))
    };
    body.claims.iter().map(read).collect()
}

/// The positions of the claims that were woken. Returns with the first ones.
async fn woken(call: &Call<'_>, claims: &[(ClaimRef, Option<Cursor>)], at_most: Duration) -> Vec<usize> {
    let store = &call.shared.store;
    let started = tokio::time::Instant::now();
    let waits = claims.iter().enumerate().map(|(position, (claim, cursor))| async move {
        if store.wait(claim, cursor.unwrap_or_default(), at_most).await.is_err() {
            tokio::time::sleep(AFTER_FAILURE).await;
        }
        position
    });
    let mut waits: FuturesUnordered<_> = waits.collect();
    let mut ask = Vec::new();
    tokio::select! {
        first = waits.next() => ask.extend(first),
        () = drained(call.shared.draining.subscribe()) => return ask,
    }
    // A wait that ran out is no wake-up. Its caller asks all the same when it likes.
    if started.elapsed() >= at_most {
        return Vec::new();
    }
    while let Ok(Some(position)) = tokio::time::timeout(TOGETHER, waits.next()).await {
        ask.push(position);
    }
    ask.sort_unstable();
    ask
}
