//! A run inside another run that holds the same resource: it works under the lease of the outer run.
//!
//! 1. Every run adds a line about its lease to the variable `LEASEHOLD_HELD` of its command.
//! 2. A run that finds its own resource and store there asks the store whether that lease is still held. The
//!    variable alone proves nothing: it may be old, or inherited by a daemon.
//! 3. If the lease is held, the inner run uses it ([`InheritedLease`]). It goes on asking, and ends its
//!    command when the lease has ended. It never releases the lease: the outer run does.
//! 4. If not, the inner run claims the resource like any other.

use std::{env, future::pending, sync::Arc, time::Duration};

use leasehold::{
    Backend, ClaimRef, Clock as _, EndReason, Error, FinishRequest, GoneReason, OwnerToken, Released,
    RenewRequest, Renewal, Resource, SystemClock, Timestamp, async_trait,
};
use tokio::sync::watch;

use super::{ClaimContext, Permits, ShareMode};
use crate::{
    exit::Failure,
    run_lease::{BoxFuture, RunLease},
};

/// The variable with the leases of this run and of all outer runs: one line each, the innermost last.
pub(crate) const HELD: &str = "LEASEHOLD_HELD";

/// How often the store is asked whether the lease is still held.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// The ttl of the renewal that asks. A renewal never shortens a lease, so this short one only reads the
/// remaining time.
const CHECK_TTL: Duration = Duration::from_millis(300);
/// The timeout of one check.
const CHECK_TIMEOUT: Duration = Duration::from_secs(5);

/// A held lease: one line of `LEASEHOLD_HELD`, and of a lease file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HeldLine {
    pub(crate) share: ShareMode,
    pub(crate) owner: OwnerToken,
    pub(crate) token: String,
    pub(crate) ttl: Duration,
    pub(crate) resource: Resource,
    pub(crate) store: String,
}

impl HeldLine {
    /// The value of `LEASEHOLD_HELD` for the command: the lines of all outer runs, then these.
    pub(crate) fn appended(runs: impl Iterator<Item = HeldLine>) -> String {
        let outer = env::var(HELD).ok().filter(|lines| !lines.is_empty());
        outer.into_iter().chain(runs.map(|run| run.write())).collect::<Vec<_>>().join("\n")
    }

    /// `weight|capacity|owner|token|ttl in ms|key|store`. The store comes last: it may contain `|`.
    pub(crate) fn write(&self) -> String {
        let (weight, capacity) = match self.share {
            ShareMode::Exclusive => (1, 1),
            ShareMode::Read => (1, u32::MAX),
            ShareMode::Write => (u32::MAX, u32::MAX),
            ShareMode::Permits(permits) => (permits.weight, permits.capacity),
        };
        let (owner, token, ttl) = (self.owner.reveal(), &self.token, self.ttl.as_millis());
        format!("{weight}|{capacity}|{owner}|{token}|{ttl}|{}|{}", self.resource.key(), self.store)
    }

    pub(crate) fn read(line: &str) -> Option<HeldLine> {
        let mut parts = line.splitn(7, '|');
        let (weight, capacity) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let share = match (weight, capacity) {
            (1, 1) => ShareMode::Exclusive,
            (1, u32::MAX) => ShareMode::Read,
            (u32::MAX, u32::MAX) => ShareMode::Write,
            (weight, capacity) => ShareMode::Permits(Permits { weight, capacity }),
        };
        let owner = parts.next()?.parse().ok()?;
        let token = parts.next()?.to_owned();
        let ttl = Duration::from_millis(parts.next()?.parse().ok()?);
        let resource = Resource::from_key(parts.next()?).ok()?;
        Some(HeldLine { share, owner, token, ttl, resource, store: parts.next()?.to_owned() })
    }

    /// Whether the lease is enough for a run with this share. An error if that run would wait for the outer
    /// run, which waits for it.
    fn covers(&self, wanted: ShareMode) -> Result<bool, Failure> {
        match (self.share, wanted) {
            (ShareMode::Permits(have), ShareMode::Permits(want)) => {
                Ok(have.capacity == want.capacity && have.weight >= want.weight)
            }
            (have, ShareMode::Read | ShareMode::Exclusive) if have.is_exclusive() => Ok(true),
            (ShareMode::Read, ShareMode::Read) => Ok(true),
            (have, _) => {
                let has = if have.is_exclusive() { "alone" } else { "together with others" };
                let message = format!(
                    "{}: an outer leasehold run holds it {has}, so this one would wait for ever",
                    self.resource
                );
                Err(Failure::usage(message)
                    .hint("use the same of --shared, --exclusive and --permits in both"))
            }
        }
    }
}

/// What a claim does if an outer run holds its resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InsideOuterRun {
    /// It works under the lease of the outer run.
    Enter,
    /// It is refused if it would wait for the outer run, which waits for it: a lease of `acquire` is released by its owner, so it
    /// must not be that of the outer run.
    Refuse,
}

/// The leases of outer runs of this process, the innermost first.
pub(crate) fn outer_runs() -> Vec<HeldLine> {
    let lines = env::var(HELD).unwrap_or_default();
    lines.lines().rev().filter_map(HeldLine::read).collect()
}

/// The lease of an outer run, if one holds this resource and still has its lease.
pub(crate) async fn enter(
    claim: &ClaimContext<'_>,
    resource: &Resource,
) -> Result<Option<Box<dyn RunLease>>, Failure> {
    let ClaimContext { request, context, backend, .. } = *claim;
    let mut same = outer_runs()
        .into_iter()
        .filter(|outer| outer.resource == *resource && outer.store == context.store.shown());
    let Some(outer) = same.next() else { return Ok(None) };
    let state = tokio::time::timeout(CHECK_TIMEOUT, check(&**backend, &outer)).await;
    // The lease has ended or the store did not reply: claim like any other run. If the store is down, the
    // claim says so.
    let Ok(Ok(state @ OuterLeaseState::HeldUntil(_))) = state else { return Ok(None) };
    let wanted = request.options.share();
    match request.inside_outer_run {
        InsideOuterRun::Refuse if outer.share.is_exclusive() || wanted.is_exclusive() => {
            let message = format!(
                "{resource}: this shell holds it already, by an outer leasehold run or acquire, so this claim would wait for ever"
            );
            Err(Failure::usage(message)
                .hint("leave acquire out here: the lease lasts as long as the outer one"))
        }
        InsideOuterRun::Refuse => Ok(None),
        InsideOuterRun::Enter if !outer.covers(wanted)? => Ok(None),
        InsideOuterRun::Enter => Ok(Some(Box::new(InheritedLease::watch(outer, state, Arc::clone(backend))))),
    }
}

/// The state of the lease of an outer run.
#[derive(Clone, Copy, Debug)]
enum OuterLeaseState {
    HeldUntil(Timestamp),
    Ended(EndReason),
}

/// Asks the store whether the lease of the outer run is still held.
async fn check(backend: &dyn Backend, outer: &HeldLine) -> Result<OuterLeaseState, Error> {
    let claim = ClaimRef { resource: outer.resource.clone(), owner: outer.owner };
    let sent = SystemClock.now();
    let renewal = backend.renew(&[RenewRequest::new(claim, CHECK_TTL)]).await.pop().transpose()?;
    Ok(match renewal {
        Some(Renewal::Renewed(renewed)) if renewed.token.to_string() == outer.token => {
            // ADR 0005: the deadline is early by 1 % of the ttl and 2 ms, as in the engine.
            let margin = outer.ttl / 100 + Duration::from_millis(2);
            // Without a ttl of its own, the lease lives as long as the session of the outer run. Only the
            // outer run knows how long that is, and it stops this run in time.
            let has_own_ttl = backend.info().capabilities.own_ttl;
            let remaining = if has_own_ttl { renewed.remaining } else { outer.ttl };
            OuterLeaseState::HeldUntil(sent.after(remaining.saturating_sub(margin)))
        }
        Some(Renewal::Gone { why: GoneReason::Evicted }) => OuterLeaseState::Ended(EndReason::Evicted),
        _ => OuterLeaseState::Ended(EndReason::NotOurs),
    })
}

/// The lease of an outer run, used by an inner run.
struct InheritedLease {
    outer: HeldLine,
    state: watch::Receiver<OuterLeaseState>,
}

impl InheritedLease {
    /// Starts a task that checks the lease again and again.
    fn watch(outer: HeldLine, state: OuterLeaseState, backend: Arc<dyn Backend>) -> InheritedLease {
        let (sender, state) = watch::channel(state);
        let checked = outer.clone();
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(CHECK_EVERY).await;
                // Without a reply the deadline stays as it is, and the guardian stops the command in time.
                let reply = tokio::time::timeout(CHECK_TIMEOUT, check(&*backend, &checked)).await;
                if let Ok(Ok(state)) = reply
                    && (sender.send(state).is_err() || matches!(state, OuterLeaseState::Ended(_)))
                {
                    return;
                }
            }
        });
        InheritedLease { outer, state }
    }
}

#[async_trait(?Send)]
impl RunLease for InheritedLease {
    fn token(&self) -> String {
        self.outer.token.clone()
    }

    fn owner(&self) -> OwnerToken {
        self.outer.owner
    }

    fn ttl(&self) -> Duration {
        self.outer.ttl
    }

    fn deadline(&self) -> Option<Timestamp> {
        match *self.state.borrow() {
            OuterLeaseState::HeldUntil(deadline) => {
                Some(deadline).filter(|deadline| *deadline > SystemClock.now())
            }
            OuterLeaseState::Ended(_) => None,
        }
    }

    fn ended(&self) -> BoxFuture<EndReason> {
        let mut state = self.state.clone();
        Box::pin(async move {
            let ended =
                state.wait_for(|state| matches!(state, OuterLeaseState::Ended(_))).await.map(|ended| *ended);
            match ended {
                Ok(OuterLeaseState::Ended(reason)) => reason,
                _ => pending().await,
            }
        })
    }

    fn finish_requested(&self) -> BoxFuture<Option<FinishRequest>> {
        Box::pin(pending()) // the outer run gets the request
    }

    async fn deadline_changed(&mut self) {
        if self.state.changed().await.is_err() {
            pending::<()>().await;
        }
    }

    async fn release(self: Box<Self>, _: Option<Duration>) -> Result<Released, Error> {
        Ok(Released::StillHeld)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outer(share: ShareMode) -> HeldLine {
        HeldLine {
            share,
            owner: OwnerToken::from_bytes([7; 16]),
            token: "42".into(),
            ttl: Duration::from_secs(30),
            resource: "acme:report/4|2 {x}".parse().unwrap(),
            store: "sqlite:/a|b".into(),
        }
    }

    #[test]
    fn a_line_is_read_as_it_was_written() {
        let permits = Permits { weight: 2, capacity: 5 };
        for share in [ShareMode::Exclusive, ShareMode::Read, ShareMode::Write, ShareMode::Permits(permits)] {
            assert_eq!(HeldLine::read(&outer(share).write()), Some(outer(share)));
        }
        assert_eq!(HeldLine::read(""), None);
        assert_eq!(HeldLine::read("1|1|x|42|30|a/b|c"), None);
    }

    #[test]
    fn a_lease_covers_the_same_share_and_less_and_waiting_for_itself_is_refused() {
        let permits = |weight, capacity| ShareMode::Permits(Permits { weight, capacity });
        assert!(outer(ShareMode::Exclusive).covers(ShareMode::Exclusive).unwrap());
        assert!(outer(ShareMode::Write).covers(ShareMode::Read).unwrap());
        assert!(outer(ShareMode::Read).covers(ShareMode::Read).unwrap());
        assert!(outer(permits(2, 5)).covers(permits(1, 5)).unwrap());
        assert!(!outer(permits(1, 5)).covers(permits(2, 5)).unwrap(), "the other permits may become free");
        assert_eq!(outer(ShareMode::Read).covers(ShareMode::Exclusive).unwrap_err().code, 64);
    }
}
