//! `/v1/terraform`: `LOCK` or `POST` locks a state, `UNLOCK` or `DELETE` unlocks it, as the `http` backend of Terraform and OpenTofu
//! does.
//!
//! 1. A lock is one lease for the stated time. Terraform never renews, so nobody does, and no server need live.
//! 2. Its owner token is a hash of the resource and the lock's id: the same lock sent again finds its own lease.
//! 3. The LockInfo is the note of the lease. The body of 423 is the LockInfo of the holder and nothing else: Terraform shows its id.
//! 4. An unlock leaves a tombstone, because a lock request that was delayed on its way would hold the state for hours.
//! 5. An unlock of a lock that is gone succeeds, unless somebody else holds the state now: then two may have changed it.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use hyper::Method;
use leasehold_api::{
    Problem, ProblemKind, acquire,
    fields::{self, ClaimName, TokenText},
    list,
    problem::LostReason,
    terraform::{ID_MAX, LockInfo, LockReply, TOMBSTONE, TerraformQuery, UnlockReply, UnlockVerdict},
};
use leasehold_core::{
    Blocked, Claim, ClaimRef, Error, HeldBy, Holder, Query, ReleaseRequest, Released, Resource, Share,
    Verdict,
};

use crate::{answer::Answer, body, bounds, router::Call, routes};

pub(crate) const METHODS: [&str; 4] = ["POST", "DELETE", "LOCK", "UNLOCK"];

pub(crate) fn is_unlock(method: &Method) -> bool {
    matches!(method.as_str(), "UNLOCK" | "DELETE")
}

pub(crate) async fn answer(
    call: &Call<'_>,
    method: Method,
    query: TerraformQuery,
    bytes: &[u8],
) -> Result<Answer, Problem> {
    let resource: Resource = query.resource.parse().map_err(|error| bounds::refused(&error))?;
    call.caller.check_resource(&resource)?;
    let info = if bytes.is_empty() && is_unlock(&method) {
        LockInfo::default()
    } else {
        list::read_body(bytes).map_err(|error| body::unreadable(&error))?
    };
    if info.id.len() > ID_MAX {
        return Err(bounds::invalid(format!("`ID` has more than {ID_MAX} bytes")).on(&resource));
    }
    if is_unlock(&method) {
        unlock(call, resource, &info).await
    } else {
        let ttl = ttl(call, &query).map_err(|problem| problem.on(&resource))?;
        lock(call, claim(call, resource, &info, ttl)?).await
    }
}

/// How long the lock lasts. Not shortened: a caller who asks for four hours must not be left without a lock after one.
fn ttl(call: &Call<'_>, query: &TerraformQuery) -> Result<Duration, Problem> {
    let (ttl, most) = (query.ttl().map_err(|error| bounds::refused(&error))?, call.ttl_max());
    if ttl <= most {
        return Ok(ttl);
    }
    let [ttl, most] = [ttl, most].map(humantime::format_duration);
    let detail = format!("the lock would last {ttl}, and at most {most} is allowed");
    Err(Problem::new(ProblemKind::Limit, detail).with_hint("add &ttl= to the address, as in &ttl=1h"))
}

fn claim(call: &Call<'_>, resource: Resource, info: &LockInfo, ttl: Duration) -> Result<Claim, Problem> {
    if info.id.is_empty() {
        return Err(bounds::invalid("`ID` is missing: Terraform sends one with each lock").on(&resource));
    }
    let bytes_max = call.shared.backend.info().limits.note;
    let note = info.note(bytes_max).ok_or_else(|| {
        let detail = format!("the lock has more than {bytes_max} bytes, without its `Info`");
        Problem::new(ProblemKind::Limit, detail).on(&resource)
    })?;
    let address = call.peer.address.ip().to_string();
    let host = info.who.rsplit_once('@').map_or(address.as_str(), |(_, host)| host);
    let holder = Holder::new(host, 0, &format!("terraform {}", info.operation));
    let holder = Arc::new(match call.caller.subject() {
        Some(subject) => holder.with_subject(subject),
        None => holder,
    });
    let owner = info.owner(&resource);
    Ok(Claim::new(resource, owner, Share::WHOLE, ttl, holder).with_note(note.into_bytes()))
}

async fn lock(call: &Call<'_>, claim: Claim) -> Result<Answer, Problem> {
    routes::refuse_while_draining(call.shared)?;
    match call.shared.store.acquire(claim.clone(), true).await {
        Ok(Verdict::Granted(grant)) => {
            let name = ClaimName::of(&claim.resource, claim.owner);
            let (token, remaining_ms) = (TokenText(grant.token), fields::ms_down(grant.remaining));
            Ok(Answer::json(200, &LockReply { claim: name, token, remaining_ms }))
        }
        Ok(Verdict::Blocked(blocked)) => Ok(locked(&claim.resource, blocked)),
        other => Ok(acquire::reply(&claim, other, Duration::ZERO, &call.shared.config.store).into()),
    }
}

/// 423, with the LockInfo of the holder. One that is not Terraform is described in the same form.
fn locked(resource: &Resource, blocked: Blocked) -> Answer {
    let holder = blocked.holders.first();
    let note = holder.and_then(|by| by.note.as_deref());
    let noted: Option<LockInfo> = note.and_then(|note| serde_json::from_slice(note).ok());
    let noted = noted.filter(|info| !info.id.is_empty());
    let since = holder.and_then(|by| SystemTime::now().checked_sub(by.held_for));
    let who = holder.map(|by| by.holder.to_string()).unwrap_or_default();
    let problem = Problem::from(&Error::contended(blocked.into_busy()));
    let described = || LockInfo {
        info: problem.detail.clone().unwrap_or_default(),
        who,
        created: since.map(|since| humantime::format_rfc3339_millis(since).to_string()),
        path: resource.to_string(),
        ..LockInfo::default()
    };
    let mut answer = Answer::json(423, &noted.unwrap_or_else(described));
    answer.problem = Some(problem.kind.clone());
    match problem.retry_after_ms {
        Some(ms) => answer.retry_after(ms),
        None => answer,
    }
}

async fn unlock(call: &Call<'_>, resource: Resource, info: &LockInfo) -> Result<Answer, Problem> {
    if info.id.is_empty() {
        return Err(no_id(call, &resource).await.on(&resource));
    }
    let owner = info.owner(&resource);
    let mut request = ReleaseRequest::new(ClaimRef { resource: resource.clone(), owner });
    request.tombstone = bounds::tombstone_of(call.shared, Some(TOMBSTONE));
    let about = |problem: Problem| problem.about(&resource, owner);
    let released = call.shared.store.release(request).await.map_err(|error| about(Problem::from(&error)))?;
    let verdict = match released {
        Released::AlreadyGone => {
            if let Some(by) = current_holder(call, &resource).await.map_err(about)? {
                let detail = format!("this lock is gone, and {} holds the state now", by.holder);
                let hint = "if a run was under way with this lock, check the state: two may have changed it";
                let mut problem = Problem::new(ProblemKind::Lost, detail).with_hint(hint);
                problem.why = Some(LostReason::NotThere);
                return Err(about(problem));
            }
            UnlockVerdict::AlreadyGone
        }
        _ => UnlockVerdict::Released,
    };
    Ok(Answer::json(200, &UnlockReply { claim: ClaimName::of(&resource, owner), verdict }))
}

/// `terraform force-unlock` sends no id, whatever it was told. An operator can end the lock by its token.
async fn no_id(call: &Call<'_>, resource: &Resource) -> Problem {
    let holder = match current_holder(call, resource).await {
        Ok(holder) => holder,
        Err(problem) => return problem,
    };
    let hint = match holder {
        // In single quotes, which a shell takes as they are.
        Some(by) => format!(
            "send {{\"ID\":\"…\"}} with the id of the lock, or let an operator run: leasehold evict '{}' --token {} --now \
             --two-may-run --reason WHY",
            resource.to_string().replace('\'', "'\\''"),
            by.token
        ),
        None => "nobody holds the state: there is nothing to unlock".to_owned(),
    };
    let detail = "the unlock has no `ID`, so it does not say which lock it means";
    Problem::new(ProblemKind::TokenRequired, detail).with_hint(hint)
}

async fn current_holder(call: &Call<'_>, resource: &Resource) -> Result<Option<HeldBy>, Problem> {
    let page = call.shared.store.inspect(&Query::One(resource.clone())).await;
    let snapshot = page.map_err(|error| Problem::from(&error))?.into_snapshots().pop();
    Ok(snapshot.and_then(|snapshot| snapshot.holders.into_iter().find(|by| !by.kept)))
}
