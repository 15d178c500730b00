//! The start of an acquire: through the local queue, or straight to the backend.
//!
//! 1. A request that waits, and wants an exclusive lease without `fair`, joins the local queue of its resource
//!    ([`local_queue`](super::local_queue)). Every other request goes straight to step 3.
//! 2. Behind another request of this client, it waits until it is handed the lease, fails, or becomes the head.
//! 3. The head asks the backend ([`Acquisition`]).
//!
//! All of this runs in the caller's own future: one round trip when the resource is free, and no hop to another task
//! (ADR 0006).

use std::{sync::Arc, time::Duration};

use leasehold_core::{Busy, Claim, Grant, Result, Timestamp, WhenBlocked};
use leasehold_support::race::{Either, first};

use super::{
    Engine, LeaseOptions,
    acquisition::Acquisition,
    held_lease::{LeaseHandle, LeaseStart},
    local_queue::{Joined, LocalWaiter, QueueHead, WaiterState},
    telemetry::WaitingGauge,
    times::SendTime,
};

/// How long a claim waits for its grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitLimit {
    /// Asks this many times, without a place in the queue.
    Attempts(u32),
    /// Waits in the queue for this long.
    AtMost(Duration),
    /// Waits in the queue without a limit.
    Forever,
}

/// Everything that the engine needs to acquire a lease.
#[derive(Debug)]
pub(crate) struct AcquireRequest {
    pub(crate) claim: Claim,
    pub(crate) options: LeaseOptions,
    pub(crate) wait: WaitLimit,
    /// Has a place of its own in the backend's queue: strict arrival order across processes.
    pub(crate) fair: bool,
}

#[derive(Debug)]
pub(crate) enum AcquireOutcome {
    Granted(LeaseHandle),
    Busy(Busy),
}

/// How long each caller goes on while the backend cannot be reached, unless its own limit is shorter.
pub(super) const OUTAGE_MAX: Duration = Duration::from_secs(10);

impl Engine {
    /// Acquires a lease, and reports the outcome.
    pub(crate) async fn acquire(self: &Arc<Engine>, request: AcquireRequest) -> Result<AcquireOutcome> {
        self.check_open()?;
        let started = self.environment.now();
        let (resource, owner) = (request.claim.resource.clone(), request.claim.owner);
        let outcome = self.join_queue_or_ask(request, started).await;
        let waited = || started.until(self.environment.now());
        match &outcome {
            Ok(AcquireOutcome::Granted(_)) => {}
            Ok(AcquireOutcome::Busy(_)) => self.telemetry.contended(&resource, owner, waited()),
            Err(error) => self.telemetry.failed(&resource, owner, waited(), error),
        }
        outcome
    }

    async fn join_queue_or_ask(
        self: &Arc<Engine>,
        mut request: AcquireRequest,
        started: Timestamp,
    ) -> Result<AcquireOutcome> {
        // Not a write lease, which is exclusive too: readers of this client would have to join the same queue.
        let exclusive = request.claim.share.capacity() == 1;
        let waits = !matches!(request.wait, WaitLimit::Attempts(_));
        // A claim that does not wait must not take a place: it would block others until the place ends.
        if waits && self.backend.info().capabilities.queue {
            request.claim.when_blocked = WhenBlocked::Queue;
        }
        // ADR 0007: `fair` means a place of its own, in arrival order across processes.
        let ticket = if !exclusive || request.fair || !waits {
            None
        } else {
            match self.local_queues.join(&request.claim, &request.options, started) {
                Joined::Head(ticket) => Some(ticket),
                // Boxed, like all futures that only waiters need: an uncontended acquire stays small.
                Joined::Waiting(waiter) => {
                    let queued = QueuedRequest { engine: self, waiter };
                    return Box::pin(self.wait_in_local_queue(queued, request, started)).await;
                }
            }
        };
        Acquisition::new(self, request, started, ticket, QueueHead::default()).run().await
    }

    /// Waits until the request is handed the lease by the holder before it, or is the head and asks for itself.
    async fn wait_in_local_queue(
        self: &Arc<Engine>,
        queued: QueuedRequest<'_>,
        request: AcquireRequest,
        started: Timestamp,
    ) -> Result<AcquireOutcome> {
        let ticket = queued.waiter.ticket;
        match self.until_signalled(&queued.waiter, request.wait).await {
            Either::Left(WaiterState::Granted(handle)) => Ok(AcquireOutcome::Granted(handle)),
            Either::Left(WaiterState::Failed(error)) => Err(error),
            Either::Left(WaiterState::Head(head)) => {
                Acquisition::new(self, request, started, Some(ticket), head).run().await
            }
            Either::Left(WaiterState::Waiting | WaiterState::Left) => {
                unreachable!("a signal is never one of these two states")
            }
            Either::Right(()) => {
                let now = self.environment.now();
                self.local_queues.busy_for(&queued.waiter, now).map(AcquireOutcome::Busy)
            }
        }
    }

    /// Waits for a signal in the local queue, as long as the limit allows.
    async fn until_signalled(&self, waiter: &LocalWaiter, wait: WaitLimit) -> Either<WaiterState, ()> {
        let metrics = self.telemetry.metrics(&waiter.claim.resource);
        metrics.contention.increment(1);
        let _waiting = WaitingGauge::count(&metrics.waiting);
        match wait {
            WaitLimit::AtMost(at_most) => {
                first(waiter.until_signalled(), self.environment.sleep(at_most)).await
            }
            WaitLimit::Attempts(_) | WaitLimit::Forever => Either::Left(waiter.until_signalled().await),
        }
    }

    /// Makes a lease of a grant. `None` if the reply came so late that the holder would have to stop at once.
    pub(super) fn start_granted(
        self: &Arc<Engine>,
        claim: &Claim,
        options: &LeaseOptions,
        grant: GrantReply,
    ) -> Option<LeaseHandle> {
        let start = LeaseStart {
            claim: claim.reference(),
            holder: Arc::clone(&claim.holder),
            share: claim.share,
            token: grant.grant.token,
            ttl: claim.ttl,
            remaining: grant.grant.remaining,
            sent: grant.sent,
            needs_tombstone: grant.needs_tombstone,
            options: options.clone(),
        };
        let handle = self.start_lease(start, grant.received)?;
        // Sent with later claims, so that a backend that lost its numbers does not give a smaller token.
        if claim.share.is_exclusive() {
            self.raise_floor(&claim.resource, grant.grant.token);
        }
        Some(handle)
    }

    /// How long one request may take. After half of its ttl, a grant is not worth having.
    pub(crate) fn request_limit(ttl: Duration) -> Duration {
        (ttl / 2).min(OUTAGE_MAX)
    }
}

/// A grant, when its request was sent, and when the reply came.
#[derive(Clone, Copy, Debug)]
pub(super) struct GrantReply {
    pub(super) grant: Grant,
    pub(super) sent: SendTime,
    pub(super) received: Timestamp,
    /// An earlier request of this owner went unanswered.
    pub(super) needs_tombstone: bool,
}

/// A waiter of the local queue, which leaves the queue when it is dropped.
struct QueuedRequest<'a> {
    engine: &'a Arc<Engine>,
    waiter: Arc<LocalWaiter>,
}

impl Drop for QueuedRequest<'_> {
    fn drop(&mut self) {
        self.engine.leave_local_queue(&self.waiter);
    }
}
