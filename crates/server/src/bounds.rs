//! Bounds on numbers from outside. One request must not be able to use up tokens, memory or time of others.

use std::time::Duration;

use leasehold_api::{Problem, ProblemKind, bounds};
use leasehold_core::{Claim, Error, FencingToken, OwnerToken, Query, ReleaseRequest, RenewRequest};

use crate::{router::Call, server::Shared};

pub(crate) fn invalid(detail: impl Into<String>) -> Problem {
    Problem::new(ProblemKind::Invalid, detail)
}

/// An error of reading a request: never one of the store, so without an effect.
pub(crate) fn refused(error: &Error) -> Problem {
    Problem::from(error)
}

fn at_most(field: &str, ms: u64, most: u64) -> Result<(), Problem> {
    if ms <= most {
        Ok(())
    } else {
        Err(invalid(format!("`{field}` is {ms}, and at most {most} is allowed")))
    }
}

/// `wait_ms`, in bounds.
pub(crate) fn wait(wait_ms: Option<u64>) -> Result<Duration, Problem> {
    let wait_ms = wait_ms.unwrap_or(0);
    at_most("wait_ms", wait_ms, bounds::WAIT_MS)?;
    Ok(Duration::from_millis(wait_ms))
}

/// `timeout_ms` of a list, in bounds.
pub(crate) fn timeout(timeout_ms: Option<u64>, default: Duration) -> Result<Duration, Problem> {
    let Some(timeout_ms) = timeout_ms else { return Ok(default) };
    at_most("timeout_ms", timeout_ms, bounds::TIMEOUT_MS)?;
    if timeout_ms == 0 {
        return Err(invalid("`timeout_ms` must be greater than 0"));
    }
    Ok(Duration::from_millis(timeout_ms))
}

/// The number of entries of a list.
pub(crate) fn entries(count: usize) -> Result<(), Problem> {
    if count <= bounds::ENTRIES {
        return Ok(());
    }
    let detail = format!("the list has {count} entries, and at most {} are allowed", bounds::ENTRIES);
    Err(Problem::new(ProblemKind::TooLarge, detail))
}

/// Owner tokens are capabilities: one that anybody would guess is none.
pub(crate) fn owner(owner: OwnerToken) -> Result<(), Problem> {
    let digits = owner.reveal();
    let first = digits.as_bytes().first();
    if digits.as_bytes().iter().any(|digit| Some(digit) != first) {
        return Ok(());
    }
    Err(invalid(
        "the owner token is one digit repeated: choose 32 random hex digits, as with `openssl rand -hex 16`",
    ))
}

/// A claim, in bounds. Its ttl is shortened to the limit of the store and of the caller.
pub(crate) async fn claim(call: &Call<'_>, claim: &mut Claim) -> Result<(), Problem> {
    owner(claim.owner)?;
    ttl(&mut claim.ttl, call)?;
    let place_ttl_ms = leasehold_api::fields::ms_up(claim.place_ttl);
    at_most("place_ttl_ms", place_ttl_ms, bounds::PLACE_TTL_MS)?;
    if place_ttl_ms == 0 {
        return Err(invalid("`place_ttl_ms` must be greater than 0"));
    }
    if let Some(from) = &mut claim.takes_over_from {
        owner(from.owner)?;
        tombstone(from.tombstone)?;
        from.tombstone = tombstone_of(call.shared, from.tombstone);
    }
    match claim.floor {
        Some(floor) => self::floor(call.shared, claim, floor).await,
        None => Ok(()),
    }
}

fn ttl(ttl: &mut Duration, call: &Call<'_>) -> Result<(), Problem> {
    if ttl.is_zero() {
        return Err(invalid("`ttl_ms` must be greater than 0"));
    }
    *ttl = (*ttl).min(call.ttl_max());
    Ok(())
}

fn tombstone(tombstone: Option<Duration>) -> Result<(), Problem> {
    at_most("bury_ms", tombstone.map_or(0, leasehold_api::fields::ms_up), bounds::BURY_MS)
}

/// With `bury_always`: how long a proxy may take to send a request again. Longer than the waits and the retries of one.
const REPEATED_WITHIN: Duration = Duration::from_secs(600);

/// The tombstone of a claim that ends: as asked for, or longer if the server leaves one for every claim.
pub(crate) fn tombstone_of(shared: &Shared, tombstone: Option<Duration>) -> Option<Duration> {
    tombstone.max(shared.config.bury_always.then_some(REPEATED_WITHIN))
}

/// A renewal, in bounds.
pub(crate) fn renewal(call: &Call<'_>, request: &mut RenewRequest) -> Result<(), Problem> {
    owner(request.owner)?;
    ttl(&mut request.ttl, call)
}

/// A release, in bounds.
pub(crate) fn release(call: &Call<'_>, request: &mut ReleaseRequest) -> Result<(), Problem> {
    owner(request.owner)?;
    tombstone(request.tombstone)?;
    request.tombstone = tombstone_of(call.shared, request.tombstone);
    let most = leasehold_api::fields::ms_down(call.ttl_max());
    at_most("keep_for_ms", request.keep_for.map_or(0, leasehold_api::fields::ms_up), most)
}

/// A floor above every token of the resource makes the next token greater still. So a floor that nobody can have seen is
/// refused: it would use up the tokens of the resource.
async fn floor(shared: &Shared, claim: &Claim, floor: FencingToken) -> Result<(), Problem> {
    let clock = shared.environment.wall().as_micros();
    if floor.get() <= clock.saturating_add(bounds::FLOOR_LEAD) {
        return Ok(());
    }
    // The tokens of this resource may be ahead of the clock: then the store remembers them.
    let page =
        shared.store.inspect(&Query::One(claim.resource.clone())).await.map_err(|error| refused(&error))?;
    let last = page.into_snapshots().pop().and_then(|snapshot| snapshot.last_token);
    if last.is_some_and(|last| floor.get() <= last.get().saturating_add(bounds::FLOOR_LEAD)) {
        return Ok(());
    }
    Err(invalid(format!(
        "`floor` is {floor}, more than an hour ahead of the clock and of the last token of the resource"
    )))
}
