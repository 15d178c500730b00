//! Sends renewals, and applies their replies.
//!
//! 1. A batch of renewals is one call to the backend, with a timeout below a third of its shortest ttl.
//! 2. A success gives the watchdog new times, which the lease publishes. The reply also carries what an operator wants.
//! 3. A reply that the lease is gone ends it.
//! 4. A failure ends nothing: the watchdog plans the next try, and the lease is `Doubtful` meanwhile.

use std::{sync::Arc, time::Duration};

use leasehold_core::{
    Effect, EndReason, Error, ErrorKind, EventKind, GoneReason, RenewRequest, Renewal, Renewed, Result,
    Timestamp, Verb,
};

use super::{
    Engine,
    driver::{DueRenewal, WatchedClaim},
    held_lease::HeldLease,
    queue_place::QueuePlace,
    times::{LeaseTimes, SendTime},
    watchdog::{RenewalReply, WatchKey},
};

impl Engine {
    pub(super) async fn renew_batch(self: Arc<Engine>, batch: Vec<DueRenewal>) {
        let shortest = batch.iter().map(|due| due.ttl).min().unwrap_or_default();
        let requests: Vec<_> =
            batch.iter().map(|due| RenewRequest::new(due.watched.claim(), due.ttl)).collect();
        let sent = self.send_time();
        let call = async { Ok(self.backend.renew(&requests).await) };
        let replies = self.call(Verb::Renew, None, LeaseTimes::renewal_timeout(shortest), call).await;
        let all_failed = |error: &Error| batch.iter().map(|_| Err(error.clone())).collect();
        let replies: Vec<Result<Renewal>> = replies.unwrap_or_else(|error| all_failed(&error));
        debug_assert_eq!(replies.len(), batch.len(), "one reply for each request");
        for (due, reply) in batch.into_iter().zip(replies) {
            match due.watched {
                WatchedClaim::Lease(lease) => self.apply_lease_reply(due.key, &lease, sent, reply),
                WatchedClaim::Place(place) => self.apply_place_reply(due.key, &place, sent.at, &reply),
            }
        }
    }

    /// Sends one renewal by itself, for a caller that waits for the reply.
    pub(crate) async fn renew_one(&self, request: RenewRequest, at_most: Duration) -> Result<Renewal> {
        let requests = [request];
        let call = async {
            let missing = || {
                let message = "the backend returned no reply for the renewal";
                Error::new(ErrorKind::Corrupt, message).with_effect(Effect::Unknown)
            };
            self.backend.renew(&requests).await.pop().unwrap_or_else(|| Err(missing()))
        };
        self.call(Verb::Renew, Some(&requests[0].resource), at_most, call).await
    }

    fn apply_lease_reply(&self, key: WatchKey, lease: &HeldLease, sent: SendTime, reply: Result<Renewal>) {
        match reply {
            Ok(Renewal::Renewed(renewed)) => self.apply_renewal(lease, sent, renewed, None),
            Ok(Renewal::Gone { why }) => self.end_gone(lease, why),
            Ok(Renewal::Queued { .. }) => self.end_gone(lease, GoneReason::NotThere),
            Err(error) => self.apply_failure(key, lease, error.kind()),
        }
    }

    /// Applies the reply to a renewal, by the driver or by a caller that extends. `new_ttl`: the lease is renewed for
    /// this long from now on.
    pub(crate) fn apply_renewal(
        &self,
        lease: &HeldLease,
        sent: SendTime,
        renewed: Renewed,
        new_ttl: Option<Duration>,
    ) {
        let Some(key) = lease.watch_key() else { return };
        if let Some(ttl) = new_ttl {
            lease.set_ttl(ttl);
        }
        let received = self.environment.now();
        let reply = RenewalReply { sent: sent.at, received, remaining: renewed.remaining, new_ttl };
        let random = self.environment.random();
        let Some(record) = self.watchdog().renewed(key, reply, random) else { return };
        self.wake_driver_if(record.wake);
        if let Some(times) = record.times {
            lease.set_times(times, sent);
        }
        lease.set_failures(0);
        self.telemetry.renewed(lease, record.margin, record.late);
        self.apply_operator_requests(lease, renewed);
    }

    /// The backend does not have this lease any more.
    pub(crate) fn end_gone(&self, lease: &HeldLease, why: GoneReason) {
        self.unwatch(lease);
        lease.end(if why == GoneReason::Evicted { EndReason::Evicted } else { EndReason::NotOurs });
    }

    /// Applies what an operator wants of a lease: that its holder finishes, or that it is not renewed any more.
    pub(crate) fn apply_operator_requests(&self, lease: &HeldLease, renewed: Renewed) {
        if let Some(request) = renewed.asked {
            lease.set_finish_request(request);
        }
        if renewed.evicting && lease.mark_evicting() {
            if let Some(key) = lease.watch_key() {
                self.watchdog().let_run_out(key);
            }
            self.telemetry.event(lease, EventKind::Evicting);
        }
    }

    fn apply_failure(&self, key: WatchKey, lease: &HeldLease, error: ErrorKind) {
        let (now, random) = (self.environment.now(), self.environment.random());
        let Some(record) = self.watchdog().failed(key, now, random) else { return };
        self.wake_driver_if(record.wake);
        lease.set_failures(record.failures);
        self.telemetry.renewal_failed(lease, error, record.failures, record.left);
    }

    fn apply_place_reply(&self, key: WatchKey, place: &QueuePlace, sent: Timestamp, reply: &Result<Renewal>) {
        let (now, random) = (self.environment.now(), self.environment.random());
        let wake = match reply {
            // `Renewed`: the claim was granted and that reply was lost. Asking again returns the grant.
            Ok(Renewal::Gone { .. } | Renewal::Renewed(_)) => {
                drop(self.forget(key));
                place.mark_lost();
                false
            }
            Ok(Renewal::Queued { remaining }) => {
                let reply = RenewalReply { sent, received: now, remaining: *remaining, new_ttl: None };
                self.watchdog().renewed(key, reply, random).is_some_and(|record| record.wake)
            }
            Err(_) => self.watchdog().failed(key, now, random).is_some_and(|record| record.wake),
        };
        self.wake_driver_if(wake);
    }
}
