//! Claims resources, one after another in the order of their keys, so that two runs never wait for each other.
//!
//! 1. If an outer run holds the resource, use its lease ([`nested`]).
//! 2. Otherwise acquire a lease. If other clients use the resource with another capacity, try again with the
//!    share that means the same there ([`ShareMode::adapted_to`]). If the store cannot be reached, try again as long as the run
//!    waits ([`Outage`]).
//! 3. Meanwhile print notes about the wait, and with `--once-per` see whether another run does the work.
//! 4. If one of several leases is not granted, or is lost during the wait for another, the others are released.

use std::{cell::RefCell, sync::Arc, time::Duration};

use leasehold::Clock as _;
use leasehold::{
    Backend, Client, EndReason, Error, ErrorKind, HeldBy, LeaseRequest, Listing, Page, Purpose, Query,
    Resource, SystemClock, TokenKind,
};

use super::{ClaimOptions, ShareMode, busy_text, nested, wait_notes};
use crate::{
    commands::Context,
    exit::Failure,
    held_leases::HeldLeases,
    outage::{Outage, WaitLimit},
    run_lease::{OwnLease, RunLease},
    text,
};

/// How a claim ended.
pub(crate) enum ClaimOutcome {
    Held(HeldLeases),
    /// With `--once-per`: another run has succeeded within that time. Nobody holds the resource, and it is kept closed.
    AlreadyDone(HeldBy),
}

/// What is claimed, and how.
pub(crate) struct ClaimRequest<'a> {
    pub(crate) options: &'a ClaimOptions,
    /// In the order of their keys. At least one.
    pub(crate) resources: &'a [Resource],
    pub(crate) ttl: Duration,
    pub(crate) renew: bool,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) at_least: Option<Duration>,
    pub(crate) once_per: Option<Duration>,
    /// The process that others see as the holder; 0 if it is not known.
    pub(crate) process_id: u32,
    pub(crate) inside_outer_run: nested::InsideOuterRun,
}

/// What a claim needs to know.
#[derive(Clone, Copy)]
pub(crate) struct ClaimContext<'a> {
    pub(crate) request: &'a ClaimRequest<'a>,
    pub(crate) context: &'a Context,
    pub(crate) backend: &'a Arc<dyn Backend>,
    pub(crate) client: &'a Client,
    /// `--wait`: for the store and all leases together.
    pub(crate) limit: &'a WaitLimit,
}

impl ClaimContext<'_> {
    /// Claims the resources. The steps are listed at the top of this file.
    pub(crate) async fn claim(&self) -> Result<ClaimOutcome, Failure> {
        let waiting_for = RefCell::new(self.request.resources[0].clone());
        let claim = PendingClaims { claim: *self, waiting_for: &waiting_for };
        let wait = wait_notes::Wait { claim: *self, resource: &waiting_for };
        tokio::select! {
            biased;
            claimed = claim.acquire_all() => claimed,
            () = wait.show() => unreachable!("it never resolves"),
            done = wait_notes::done_elsewhere(self) => Ok(ClaimOutcome::AlreadyDone(done)),
        }
    }
}

/// How long to wait for the store when the claim is withdrawn.
pub(crate) const WITHDRAW_MAX: Duration = Duration::from_secs(2);
/// The same after a signal. A claim that the store does not hear of ends by itself: a place in the queue is passed over within
/// seconds, and a grant that went unnoticed ends with its ttl.
pub(crate) const INTERRUPTED_MAX: Duration = Duration::from_millis(300);

/// Withdraws the claim, so that it does not stay in the queue. A store that does not reply in time is not
/// waited for.
pub(crate) async fn withdraw(client: &Client, at_most: Duration) {
    let _ = tokio::time::timeout(at_most, client.shutdown()).await;
}

/// The record of a success, if the claim failed because the resource is kept closed after it.
fn kept(error: &Error) -> Option<HeldBy> {
    error.busy()?.holders.iter().find(|by| by.kept).cloned()
}

/// A claim for leases of its own.
struct PendingClaims<'a> {
    claim: ClaimContext<'a>,
    /// The resource that is claimed now, for the notes about the wait.
    waiting_for: &'a RefCell<Resource>,
}

/// How often the share is changed because other clients use the resource in another way.
const SHARE_CHANGES_MAX: usize = 100;

impl PendingClaims<'_> {
    async fn acquire_all(&self) -> Result<ClaimOutcome, Failure> {
        let mut leases = HeldLeases::default();
        for resource in self.claim.request.resources {
            resource.clone_into(&mut self.waiting_for.borrow_mut());
            if let Some(lease) = nested::enter(&self.claim, resource).await? {
                leases.add(resource.clone(), lease);
                continue;
            }
            match self.acquire_beside(&leases, resource).await {
                Ok(lease) => leases.add(resource.clone(), lease),
                Err(error) => match kept(&error).filter(|_| self.claim.request.once_per.is_some()) {
                    Some(done) => return Ok(ClaimOutcome::AlreadyDone(done)),
                    None => return Err(self.failure(error, resource).await),
                },
            }
        }
        Ok(ClaimOutcome::Held(leases))
    }

    /// Acquires a lease as long as the others, which are held already, are not lost.
    async fn acquire_beside(
        &self,
        others: &HeldLeases,
        resource: &Resource,
    ) -> Result<Box<dyn RunLease>, Error> {
        let (task, context) = (resource.to_string(), self.claim.context);
        let mut outage = Outage::new(&task, context.store.shown(), context.output, self.claim.limit);
        let acquired = outage.ask_again(|| self.acquire_adapting_share(resource));
        if others.iter().next().is_none() {
            return acquired.await;
        }
        tokio::select! {
            biased;
            acquired = acquired => acquired,
            (lost, reason) = others.ended() => Err(lost_during_wait(&lost, reason, resource)),
        }
    }

    async fn acquire_adapting_share(&self, resource: &Resource) -> Result<Box<dyn RunLease>, Error> {
        let mut share = self.claim.request.options.share();
        let mut acquired = self.acquire_as(resource, share).await;
        for _ in 0..SHARE_CHANGES_MAX {
            let Err(error) = &acquired else { break };
            let mismatch = Some(error).filter(|error| error.kind() == ErrorKind::Mismatch);
            let typed = self.claim.request.options.share();
            // Others may have changed back meanwhile: then try again with the share that was typed.
            let back = if share == typed { None } else { Some(typed) };
            let Some(other) = mismatch.and_then(|error| share.adapted_to(error.capacity()).or(back)) else {
                break;
            };
            share = other;
            acquired = self.acquire_as(resource, share).await;
        }
        acquired
    }

    async fn acquire_as(&self, resource: &Resource, share: ShareMode) -> Result<Box<dyn RunLease>, Error> {
        match share {
            ShareMode::Exclusive => self.acquire(self.claim.client.lease_of(resource)).await,
            ShareMode::Write => self.acquire(self.claim.client.rwlock_of(resource).write()).await,
            ShareMode::Read => self.acquire(self.claim.client.rwlock_of(resource).read()).await,
            ShareMode::Permits(permits) => {
                let semaphore = self.claim.client.semaphore_of(resource, permits.capacity);
                self.acquire(semaphore.permits(permits.weight)).await
            }
        }
    }

    async fn acquire<T: TokenKind>(&self, request: LeaseRequest<T>) -> Result<Box<dyn RunLease>, Error> {
        let events = self.claim.client.events(); // before the grant, so that no renewal is missed
        let lease = self.with_options(request).acquire().await?;
        Ok(Box::new(OwnLease::new(lease, events, self.claim.client.info().name)))
    }

    /// Adds the options of the command line to the request.
    fn with_options<T: TokenKind>(&self, request: LeaseRequest<T>) -> LeaseRequest<T> {
        let ClaimRequest { options, ttl, renew, max_hold, at_least, .. } = *self.claim.request;
        let mut request = request.ttl(ttl).renew(renew);
        request = match self.claim.limit.left() {
            None => request.wait_forever(),
            Some(left) => request.wait(left),
        };
        if options.fair {
            request = request.fair();
        }
        if let Some(max_hold) = max_hold {
            request = request.max_hold(max_hold);
        }
        if let Some(at_least) = at_least {
            request = request.at_least(at_least);
        }
        if let Some(note) = &options.note {
            request = request.note(note);
        }
        if options.correctness {
            request = request.purpose(Purpose::Correctness);
        }
        if options.fenced { request.fenced() } else { request }
    }

    async fn failure(&self, error: Error, resource: &Resource) -> Failure {
        let busy = error.busy().cloned();
        let mut failure = Failure::from(error);
        let Some(busy) = busy else { return failure };
        let options = self.claim.request.options;
        failure.message = if busy.paused {
            format!("{resource}: {}", self.pause(resource, busy.retry_after).await)
        } else {
            format!("{resource}: {}", busy_text::busy(&busy))
        };
        let waited = options.wait.filter(|wait| !wait.is_zero()).is_some();
        failure = failure.hint(match waited {
            false => "Use -w to wait".to_owned(),
            // `why` explains an exclusive claim.
            true if options.shared || options.permits.is_some() => "Wait longer with -w".to_owned(),
            true => format!("Wait longer with -w, or see leasehold why {resource}"),
        });
        match options.conflict_exit_code {
            Some(code) => failure.with_code(code),
            None => failure,
        }
    }

    /// The pause of this resource, with its author if the audit trail can be read in time.
    async fn pause(&self, resource: &Resource, left: Option<Duration>) -> String {
        let audit = Query::Audit(Listing::of(resource.key()));
        let page = tokio::time::timeout(AUDIT_MAX, self.claim.client.inspect(&audit)).await;
        let records = match page {
            Ok(Ok(Page::Audit { records, .. })) => records,
            _ => Vec::new(),
        };
        let newest = records
            .into_iter()
            .find(|record| record.resource == *resource && matches!(&*record.command, "pause" | "resume"));
        let pause = newest.filter(|record| record.command == "pause");
        let author = pause.as_ref().map(|record| (&*record.by, &*record.why));
        text::paused(SystemClock.wall().after(left.unwrap_or_default()), author)
    }
}

/// How long to wait for the audit trail, which says who has paused the resource.
const AUDIT_MAX: Duration = Duration::from_secs(1);

fn lost_during_wait(lost: &Resource, reason: EndReason, wanted: &Resource) -> Error {
    let message = format!("the lease was lost ({reason}) during the wait for {wanted}");
    Error::new(ErrorKind::Lost, message).on(lost)
}
