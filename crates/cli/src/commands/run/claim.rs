//! Claims the resource of a run.
//!
//! 1. If an outer run holds the resource, use its lease ([`nested`]).
//! 2. Otherwise acquire a lease. If other clients use the resource with another capacity, try again with the
//!    share that means the same there ([`ShareMode::adapted_to`]).
//! 3. Meanwhile print notes about the wait, and with `--once-per` see whether another run does the work.

use std::{sync::Arc, time::Duration};

use leasehold::{
    Backend, Client, Clock as _, Error, ErrorKind, LeaseRequest, Purpose, Resource, SystemClock, Timestamp,
    TokenKind,
};
use rustix::process::Signal;

use super::{
    Run, nested,
    timing::{Permits, RunTimes},
    wait_notes,
};
use crate::{
    commands::Context,
    exit::Failure,
    run_lease::{OwnLease, RunLease},
};

/// How a claim ended.
pub(super) enum ClaimOutcome {
    Held(Box<dyn RunLease>),
    /// With `--once-per`: another run has succeeded within that time.
    AlreadyDone,
    /// This signal ended the wait.
    Interrupted(Signal),
}

/// How a run holds its resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ShareMode {
    /// As an exclusive lease (capacity 1).
    Exclusive,
    /// As the writer of a read-write lock.
    Write,
    /// As a reader of a read-write lock.
    Read,
    /// With some permits of a semaphore.
    Permits(Permits),
}

impl ShareMode {
    pub(super) fn of(run: &Run) -> ShareMode {
        match run.permits {
            Some(permits) => ShareMode::Permits(permits),
            None if run.shared => ShareMode::Read,
            None => ShareMode::Exclusive,
        }
    }

    /// The share that means the same where other clients use the resource with this capacity. `None` if there
    /// is none.
    ///
    /// `flock -s` and `flock -x` of one file exclude each other, so `run --shared` and `run` do, too: an
    /// exclusive run takes the write lock where others read, and a reader takes an exclusive lease where
    /// others use one.
    fn adapted_to(self, capacity: Option<u32>) -> Option<ShareMode> {
        match (self, capacity) {
            // A read-write lock has the capacity `u32::MAX`.
            (ShareMode::Exclusive, Some(u32::MAX)) => Some(ShareMode::Write),
            (ShareMode::Write | ShareMode::Read, Some(1)) => Some(ShareMode::Exclusive),
            _ => None,
        }
    }

    pub(super) fn is_exclusive(self) -> bool {
        match self {
            ShareMode::Exclusive | ShareMode::Write => true,
            ShareMode::Read => false,
            ShareMode::Permits(permits) => permits.weight == permits.capacity,
        }
    }
}

/// What a claim needs to know.
pub(super) struct ClaimContext<'a> {
    pub(super) run: &'a Run,
    pub(super) times: &'a RunTimes,
    pub(super) context: &'a Context,
    pub(super) backend: &'a Arc<dyn Backend>,
    pub(super) client: &'a Client,
}

/// Claims the resource. The steps are listed at the top of this file.
pub(super) async fn claim(claim: &ClaimContext<'_>) -> Result<ClaimOutcome, Failure> {
    let ClaimContext { run, times, context, backend, client } = *claim;
    if let Some(lease) = nested::enter(run, context, backend).await? {
        return Ok(ClaimOutcome::Held(lease));
    }
    let claim = RunClaim { run, times, client, started: SystemClock.now() };
    let claimed = tokio::select! {
        biased;
        held = claim.acquire_adapting_share() => match held {
            Err(error) if run.once_per.is_some() && is_kept(&error) => ClaimOutcome::AlreadyDone,
            held => ClaimOutcome::Held(held.map_err(|error| claim.failure(error))?),
        },
        () = wait_notes::show(run, context, client) => unreachable!("it never resolves"),
        () = wait_notes::done_elsewhere(run, backend, client) => ClaimOutcome::AlreadyDone,
    };
    if matches!(claimed, ClaimOutcome::AlreadyDone) {
        context.output.note(&format!("{}: already done within --once-per, nothing to do", run.resource));
    }
    Ok(claimed)
}

/// Whether the claim failed because the resource is kept closed after a release.
fn is_kept(error: &Error) -> bool {
    error.busy().is_some_and(|busy| busy.holders.iter().any(|by| by.kept))
}

/// A claim of this run for a lease of its own.
struct RunClaim<'a> {
    run: &'a Run,
    times: &'a RunTimes,
    client: &'a Client,
    /// When the claim began: `--wait` counts from here over all attempts.
    started: Timestamp,
}

/// How often the share is changed because other clients use the resource in another way.
const SHARE_CHANGES_MAX: usize = 100;

impl RunClaim<'_> {
    async fn acquire_adapting_share(&self) -> Result<Box<dyn RunLease>, Error> {
        let mut share = ShareMode::of(self.run);
        let mut acquired = self.acquire_as(share).await;
        for _ in 0..SHARE_CHANGES_MAX {
            let Err(error) = &acquired else { break };
            let mismatch = Some(error).filter(|error| error.kind() == ErrorKind::Mismatch);
            let typed = ShareMode::of(self.run);
            // Others may have changed back meanwhile: then try again with the share that was typed.
            let back = if share == typed { None } else { Some(typed) };
            let Some(other) = mismatch.and_then(|error| share.adapted_to(error.capacity()).or(back)) else {
                break;
            };
            share = other;
            acquired = self.acquire_as(share).await;
        }
        acquired
    }

    async fn acquire_as(&self, share: ShareMode) -> Result<Box<dyn RunLease>, Error> {
        let resource = &self.run.resource;
        let (kind, id) = (resource.kind(), resource.id());
        let client = of_namespace(self.client, resource);
        match share {
            ShareMode::Exclusive => self.acquire(client.lease(kind, &id)).await,
            ShareMode::Write => self.acquire(client.rwlock(kind, &id).write()).await,
            ShareMode::Read => self.acquire(client.rwlock(kind, &id).read()).await,
            ShareMode::Permits(permits) => {
                let semaphore = client.semaphore(kind, &id, permits.capacity);
                self.acquire(semaphore.permits(permits.weight)).await
            }
        }
    }

    async fn acquire<T: TokenKind>(&self, request: LeaseRequest<T>) -> Result<Box<dyn RunLease>, Error> {
        let events = self.client.events(); // before the grant, so that no renewal is missed
        let lease = self.with_run_options(request).acquire().await?;
        Ok(Box::new(OwnLease::new(lease, events)))
    }

    /// Adds the options of `leasehold run` to the request.
    fn with_run_options<T: TokenKind>(&self, request: LeaseRequest<T>) -> LeaseRequest<T> {
        let run = self.run;
        let mut request = request.ttl(self.times.ttl).renew(!run.no_renew);
        request = match if run.nonblock { Some(Duration::ZERO) } else { run.wait } {
            None => request.wait_forever(),
            Some(wait) => request.wait(wait.saturating_sub(self.started.until(SystemClock.now()))),
        };
        if run.fair {
            request = request.fair();
        }
        if let Some(max_hold) = run.max_hold {
            request = request.max_hold(max_hold);
        }
        if let Some(at_least) = run.at_least {
            request = request.at_least(at_least);
        }
        if let Some(note) = &run.note {
            request = request.note(note);
        }
        if run.correctness {
            request = request.purpose(Purpose::Correctness);
        }
        if run.fenced { request.fenced() } else { request }
    }

    fn failure(&self, error: Error) -> Failure {
        let contended = error.kind() == ErrorKind::Contended;
        let mut failure = Failure::from(error);
        if contended {
            failure =
                failure.hint(format!("wait longer with -w, or see leasehold why {}", self.run.resource));
        }
        match self.run.conflict_exit_code {
            Some(code) if contended => failure.with_code(code),
            _ => failure,
        }
    }
}

/// The client for the namespace of this resource.
pub(super) fn of_namespace(client: &Client, resource: &Resource) -> Client {
    resource.namespace().map_or_else(|| client.clone(), |namespace| client.namespace(namespace))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_adapts_to_the_capacity_that_others_use() {
        assert_eq!(ShareMode::Exclusive.adapted_to(Some(u32::MAX)), Some(ShareMode::Write));
        assert_eq!(ShareMode::Read.adapted_to(Some(1)), Some(ShareMode::Exclusive));
        assert_eq!(ShareMode::Write.adapted_to(Some(1)), Some(ShareMode::Exclusive));
        let three = Permits { weight: 1, capacity: 3 };
        for (share, capacity) in
            [(ShareMode::Exclusive, 5), (ShareMode::Read, 5), (ShareMode::Permits(three), 1)]
        {
            assert_eq!(share.adapted_to(Some(capacity)), None);
        }
    }
}
