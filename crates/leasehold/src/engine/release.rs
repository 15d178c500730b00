//! Releases a lease, or hands it to the next waiter of the local queue.
//!
//! 1. End the lease locally. Every view reports the end before any other claim can be granted.
//! 2. If a waiter of this client is next, and the backend has a queue, send one `acquire` that takes over from the lease:
//!    it replaces the owner and makes the new token. One round trip, no gap and no wake-up (ADR 0007).
//! 3. Otherwise, or if that request had no effect, send `release`.
//! 4. If the reply is missing, repeat the release in the background, with a tombstone ([`cleanup`](super::cleanup)).
//!
//! Two guards make this safe to drop at any await point: [`ReleaseGuard`] repeats the release in the background, and
//! [`HandoverGuard`] makes the waiter ask for itself.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use leasehold_core::{
    BackendExt as _, Effect, EndReason, Grant, Handover, ReleaseRequest, Released, Result, Verb, Verdict,
};

use super::{
    Engine,
    acquire::GrantReply,
    held_lease::{HeldLease, LeaseHandle},
    local_queue::{LocalWaiter, QueueHead, WaiterState},
    telemetry::GrantDetails,
};

/// A release is given at least the time that a request with this ttl would have.
const RELEASE_TTL_MIN: Duration = Duration::from_secs(2);

/// Who releases a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReleasedBy {
    /// A caller of `release`, which waits for the reply.
    Caller,
    /// The last handle was dropped. The release runs in a background task.
    Drop,
}

impl Engine {
    /// Releases a lease for a caller that waits for the reply.
    pub(crate) async fn release(
        self: &Arc<Engine>,
        lease: &Arc<HeldLease>,
        at_least: Option<Duration>,
    ) -> Result<Released> {
        self.unwatch(lease);
        if lease.end(EndReason::Released) {
            self.telemetry.ended(lease);
        }
        if !lease.begin_release() {
            return Ok(Released::AlreadyGone);
        }
        self.cleanup_started(); // `Client::shutdown` waits for this release, too
        let (released, handed_over) = self.hand_over_or_release(lease, at_least, ReleasedBy::Caller).await;
        self.cleanup_finished();
        if handed_over && released.is_ok() {
            // All waiters behind depend on the new holder, and nobody on this caller. Let the new holder run first.
            yield_to_woken_tasks().await;
        }
        released
    }

    /// Hands the lease to the next waiter of the local queue, or releases it. Also says whether it was handed over by a
    /// request that took time: then the new holder has a request of its own to send now.
    pub(super) async fn hand_over_or_release(
        self: &Arc<Engine>,
        lease: &Arc<HeldLease>,
        at_least: Option<Duration>,
        by: ReleasedBy,
    ) -> (Result<Released>, bool) {
        let guard = ReleaseGuard { engine: self, lease, at_least, done: false };
        let keep_for = lease.keep_for(at_least);
        let next = self.local_queues.remove_holder(lease);
        let mut handover = next.as_deref().map(|waiter| HandoverGuard::new(self, waiter));
        let (released, handed_over) = match &mut handover {
            // A resource that must stay closed cannot be handed over.
            Some(handover) if keep_for.is_none() && self.backend.info().capabilities.queue => {
                report_pending(self.hand_over(lease, handover)).await
            }
            _ => (self.send_release(lease, keep_for).await, false),
        };
        drop(handover);
        guard.done();
        match &released {
            Ok(reply) => self.telemetry.released(lease, *reply, by == ReleasedBy::Drop),
            Err(_) => {
                self.telemetry.release_failed(&lease.resource);
                let repeated = lease.repeated_release(at_least);
                match by {
                    ReleasedBy::Drop => self.release_until_answered(&repeated).await,
                    ReleasedBy::Caller => self.release_in_background(repeated),
                }
            }
        }
        (released, handed_over)
    }

    async fn send_release(&self, lease: &HeldLease, keep_for: Option<Duration>) -> Result<Released> {
        let mut request = ReleaseRequest::new(lease.reference());
        request.tombstone = lease.tombstone();
        request.keep_for = keep_for;
        let at_most = Engine::request_limit(lease.ttl().max(RELEASE_TTL_MIN));
        self.call_release(&request, at_most).await
    }

    /// Sends the `acquire` of the waiter's claim that takes over from the lease.
    async fn hand_over(
        self: &Arc<Engine>,
        lease: &Arc<HeldLease>,
        guard: &mut HandoverGuard<'_>,
    ) -> Result<Released> {
        let mut from = Handover::from(lease.owner);
        from.tombstone = lease.tombstone();
        let mut claim = guard.waiter.claim.clone().queued().taking_over(from);
        claim.floor = self.floor(&claim.resource);
        guard.unanswered = true; // until the reply comes: this future may be dropped while it waits
        let sent = self.send_time();
        let at_most = Engine::request_limit(claim.ttl);
        let call = self.backend.acquire_one(&claim);
        let verdict = self.call(Verb::Acquire, Some(&claim.resource), at_most, call).await;
        guard.unanswered = verdict.as_ref().is_err_and(|error| error.effect() == Effect::Unknown);
        match verdict {
            Ok(Verdict::Granted(grant)) => {
                let received = self.environment.now();
                let reply = GrantReply { grant, sent, received, needs_tombstone: false };
                match self.start_granted(&claim, &guard.waiter.options, reply) {
                    Some(handle) => guard.grant(handle, grant),
                    None => self.release_in_background(ReleaseRequest::new(claim.reference())),
                }
                Ok(Released::Now)
            }
            Ok(Verdict::Blocked(blocked)) => {
                guard.head = Some(QueueHead { blocked: Some(Box::new(blocked)), ..QueueHead::default() });
                Ok(Released::Now)
            }
            // The waiter's owner has a tombstone, but the lease was released: that was part of the same request.
            Ok(Verdict::Cancelled) => Ok(Released::Now),
            // Nothing was executed, so the lease must be released by itself.
            Ok(Verdict::Mismatch { .. }) => self.send_release(lease, None).await,
            Err(error) if error.effect() == Effect::None => self.send_release(lease, None).await,
            Err(error) => Err(error),
        }
    }
}

/// Awaits a future, and says whether it was pending in between.
async fn report_pending<T>(future: impl Future<Output = T>) -> (T, bool) {
    let (mut future, mut was_pending) = (pin!(future), false);
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready((output, was_pending)),
        Poll::Pending => {
            was_pending = true;
            Poll::Pending
        }
    })
    .await
}

/// Yields twice: once for the tasks that were woken before, and once for the tasks that they wake. What writes to the
/// network is often a task of its own.
async fn yield_to_woken_tasks() {
    const YIELDS: u32 = 2;
    let mut polls = 0;
    poll_fn(|cx| {
        polls += 1;
        if polls > YIELDS {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// A release under way. If it is dropped before `done`, the release is repeated in the background.
struct ReleaseGuard<'a> {
    engine: &'a Arc<Engine>,
    lease: &'a Arc<HeldLease>,
    at_least: Option<Duration>,
    done: bool,
}

impl ReleaseGuard<'_> {
    fn done(mut self) {
        self.done = true;
    }
}

impl Drop for ReleaseGuard<'_> {
    fn drop(&mut self) {
        if !self.done {
            self.engine.release_in_background(self.lease.repeated_release(self.at_least));
            self.engine.cleanup_finished();
        }
    }
}

/// A handover under way. However it ends, the waiter is signalled when this is dropped: it was granted the lease, or it
/// becomes the head and asks for itself.
struct HandoverGuard<'a> {
    engine: &'a Arc<Engine>,
    waiter: &'a LocalWaiter,
    /// What the waiter starts with as the head; `None` once it was granted the lease.
    head: Option<QueueHead>,
    /// The handover may have been executed, for an owner token that the waiter will not use.
    unanswered: bool,
}

impl<'a> HandoverGuard<'a> {
    fn new(engine: &'a Arc<Engine>, waiter: &'a LocalWaiter) -> HandoverGuard<'a> {
        // Unless the handover is answered, its owner token may be in use: the waiter asks under a new one.
        // Where the backend has no queue, it does not see who waits. Pause, so that other clients can ask first.
        let pause_first = !engine.backend.info().capabilities.queue;
        let head = Some(QueueHead { needs_new_owner: true, pause_first, ..QueueHead::default() });
        HandoverGuard { engine, waiter, head, unanswered: false }
    }

    fn grant(&mut self, handle: LeaseHandle, grant: Grant) {
        self.head = None;
        let lease = handle.lease();
        self.engine.local_queues.set_holder(Some(self.waiter.ticket), lease);
        let waited = self.waiter.since.until(self.engine.environment.now());
        let details = GrantDetails { handed_over: true, acks: grant.acks };
        self.engine.telemetry.acquired(lease, waited, 0, details);
        drop(self.waiter.signal(WaiterState::Granted(handle))); // if the waiter has left, this drops the handle
    }
}

impl Drop for HandoverGuard<'_> {
    fn drop(&mut self) {
        if self.unanswered {
            let claim = &self.waiter.claim;
            let request = ReleaseRequest::new(claim.reference())
                .with_tombstone(ReleaseRequest::tombstone_ttl(claim.ttl));
            self.engine.release_in_background(request);
        }
        if let Some(head) = self.head.take() {
            self.engine.start_head(self.waiter, head);
        }
    }
}
