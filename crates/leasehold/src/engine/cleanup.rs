//! Background cleanup: releases what was dropped, and repeats releases that went unanswered.
//!
//! 1. A destructor must not block, so a dropped handle or future sends a [`CleanupTask`] to the driver.
//! 2. The driver starts a task for each of them, so that one that hangs delays no other.
//! 3. A dropped lease is handed over or released, as by a call of `release` ([`release`](super::release)).
//! 4. A release that went unanswered is repeated until it is answered, or until a late request could do no more harm. It
//!    leaves a tombstone, so that a request of the same owner that is executed late is refused (ADR 0004).
//! 5. `Client::shutdown` waits until no cleanup is pending.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use leasehold_core::{Backoff, EndReason, Error, ErrorKind, OwnerToken, ReleaseRequest, Resource};

use super::{Engine, held_lease::HeldLease, release::ReleasedBy};

/// How long one repeated release may take.
const REPEATED_RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// What a dropped handle or a dropped future leaves to do.
///
/// It keeps its engine alive: a client may be dropped right after its last lease.
#[derive(Debug)]
pub(crate) struct CleanupTask {
    engine: Arc<Engine>,
    work: CleanupWork,
}

#[derive(Debug)]
enum CleanupWork {
    /// Hand over or release a lease whose last handle was dropped.
    ReleaseLease(Arc<HeldLease>),
    /// Send this request until it is answered.
    Release(ReleaseRequest),
}

impl CleanupWork {
    fn claim(&self) -> (&Resource, OwnerToken) {
        match self {
            CleanupWork::ReleaseLease(lease) => (&lease.resource, lease.owner),
            CleanupWork::Release(request) => (&request.resource, request.owner),
        }
    }
}

impl CleanupTask {
    /// Runs the cleanup in a task of its own.
    pub(super) fn start(self) {
        let CleanupTask { engine, work } = self;
        let environment = Arc::clone(&engine.environment);
        environment.spawn(Box::pin(async move {
            match work {
                CleanupWork::ReleaseLease(lease) => {
                    let at_least = lease.options().at_least;
                    // A release that fails is repeated in there.
                    drop(engine.hand_over_or_release(&lease, at_least, ReleasedBy::Drop).await);
                }
                CleanupWork::Release(request) => engine.release_until_answered(&request).await,
            }
            engine.cleanup_finished();
        }));
    }
}

impl Engine {
    /// Releases a lease whose last handle was dropped.
    pub(crate) fn release_dropped(self: &Arc<Engine>, lease: &Arc<HeldLease>) {
        if !lease.begin_release() {
            return; // a call of `release` has begun, and its guard sees to the rest
        }
        self.unwatch(lease);
        if lease.end(EndReason::Released) {
            self.telemetry.ended(lease);
        }
        self.queue_cleanup(CleanupWork::ReleaseLease(Arc::clone(lease)));
    }

    /// Sends this release in the background until it is answered.
    pub(crate) fn release_in_background(self: &Arc<Engine>, request: ReleaseRequest) {
        self.queue_cleanup(CleanupWork::Release(request));
    }

    fn queue_cleanup(self: &Arc<Engine>, work: CleanupWork) {
        self.cleanup_started();
        if let Err(unsent) = self.cleanups.send(CleanupTask { engine: Arc::clone(self), work }) {
            // The runtime is gone, so nothing can be sent. The claim ends with its ttl.
            self.cleanup_finished();
            let (resource, owner) = unsent.0.work.claim();
            self.telemetry.leaked(resource, owner, ErrorKind::ShutDown);
        }
    }

    /// Counts a cleanup as pending, for `Client::shutdown`.
    pub(super) fn cleanup_started(&self) {
        self.cleanups_pending.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn cleanup_finished(&self) {
        if self.cleanups_pending.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.cleanups_done.notify_waiters();
        }
    }

    /// Sends a release until it is answered.
    pub(super) async fn release_until_answered(&self, request: &ReleaseRequest) {
        let started = self.environment.now();
        // After the time of a tombstone, a late request can do no more harm.
        let give_up_after = request.tombstone.unwrap_or(ReleaseRequest::tombstone_ttl(Duration::ZERO));
        let mut backoff = Backoff::new();
        loop {
            match self.call_release(request, REPEATED_RELEASE_TIMEOUT).await {
                Ok(_) if request.tombstone.is_some() => {
                    return self.telemetry.cancelled(&request.resource, request.owner);
                }
                Ok(_) => return, // it has left the queue, or is not held any more
                Err(error) if is_final(&error) || started.until(self.environment.now()) >= give_up_after => {
                    return self.telemetry.leaked(&request.resource, request.owner, error.kind());
                }
                Err(_) => self.environment.sleep(backoff.next(self.environment.random())).await,
            }
        }
    }
}

/// Whether repeating the request would fail in the same way.
fn is_final(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Invalid | ErrorKind::Unsupported)
}
