//! A waiter that was granted while the backend stalls keeps its grant, although the reply was lost or late.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test is a program of its own")]

mod common;

use std::{sync::Arc, time::Duration};

use common::{Fault, TestBed, millis, seconds};
use leasehold::{
    Backend as _, BackendExt as _, Claim, FencingToken, Holder, Lease, OwnerToken, Query, ReleaseRequest,
    Resource, Result, Share, Snapshot, Verdict,
};
use tokio::task::JoinHandle;

fn report() -> Resource {
    "report/42".parse().unwrap()
}

/// A claim that is sent to the memory directly, so that no client renews or releases it.
fn claim_of(bed: &TestBed, label: &str) -> Claim {
    let holder = Arc::new(Holder::new("host", 1, label));
    Claim::new(report(), OwnerToken::fresh(&bed.time), Share::WHOLE, seconds(3600), holder)
}

struct StalledQueue {
    bed: TestBed,
    holder: Claim,
    waiter: JoinHandle<Result<Lease>>,
}

impl StalledQueue {
    /// A claim holds, a fair waiter of a client with this ttl is first in the queue, and another claim is second.
    async fn new(ttl: Duration) -> StalledQueue {
        let bed = TestBed::new();
        let holder = claim_of(&bed, "holder");
        assert!(matches!(bed.probe.memory.acquire_one(&holder).await, Ok(Verdict::Granted(_))));
        let request = bed.client().lease("report", "42").ttl(ttl).fair().wait_forever();
        let waiter = tokio::spawn(request.label("first").acquire());
        bed.settle().await;
        let mut second = claim_of(&bed, "second").queued();
        second.place_ttl = seconds(3600);
        assert!(matches!(bed.probe.memory.acquire_one(&second).await, Ok(Verdict::Blocked(_))));
        StalledQueue { bed, holder, waiter }
    }

    /// Advances the time until the waiter has sent this many requests.
    async fn until_asked(&self, times: u64) {
        let goal = self.bed.probe.acquires_sent() + times;
        for _ in 0..10_000 {
            if self.bed.probe.acquires_sent() >= goal {
                return;
            }
            self.bed.advance(millis(1)).await;
        }
        panic!("the waiter sends no requests");
    }

    async fn snapshot(&self) -> Snapshot {
        let page = self.bed.probe.memory.inspect(&Query::One(report())).await.unwrap();
        page.into_snapshots().remove(0)
    }

    /// The holder releases. The waiter asks and is granted, but the reply is lost. Returns the token.
    async fn grant_with_lost_reply(&self) -> FencingToken {
        self.bed.probe.set_fault(Fault::LosesReplies);
        self.bed.probe.memory.release_one(&ReleaseRequest::new(self.holder.reference())).await.unwrap();
        self.until_asked(1).await;
        let snapshot = self.snapshot().await;
        assert_eq!(snapshot.holders[0].holder.label, "first");
        snapshot.last_token.unwrap()
    }

    /// Checks that the waiter has this grant, and that the second claim was not granted.
    async fn expect_grant(self, token: FencingToken, within: Duration) {
        self.bed.advance(within).await;
        assert!(self.waiter.is_finished(), "the waiter is not granted: {:?}", self.snapshot().await);
        let lease = self.waiter.await.unwrap().unwrap();
        assert_eq!(lease.token(), token, "the same grant");
        lease.check().unwrap();
        self.bed.advance(seconds(20)).await;
        lease.check().unwrap();
        let page = self.bed.probe.memory.inspect(&Query::One(report())).await.unwrap();
        assert_eq!(page.into_snapshots()[0].queue_length, 1, "the second claim still waits");
        lease.release().await.unwrap();
    }
}

/// A regression: after some unanswered requests the waiter slept for longer than a short lease lasts. The grant of one of
/// those requests expired meanwhile, and with it the place in the queue.
#[tokio::test]
async fn a_waiter_does_not_sleep_through_the_grant_of_an_unanswered_request() {
    let queue = StalledQueue::new(millis(800)).await;
    // No request is answered. Its place in the queue lasts for longer than that.
    queue.bed.probe.set_fault(Fault::Hangs);
    queue.until_asked(1).await;
    queue.until_asked(4).await;
    let token = queue.grant_with_lost_reply().await;
    queue.bed.probe.set_fault(Fault::None);
    queue.expect_grant(token, millis(200)).await;
}

/// After an outage is over, the pauses of the next outage start small again.
#[tokio::test]
async fn pauses_start_small_again_after_a_reply() {
    let queue = StalledQueue::new(seconds(8)).await;
    queue.bed.probe.set_fault(Fault::Unavailable);
    queue.bed.advance(seconds(5)).await;
    queue.bed.probe.set_fault(Fault::None);
    queue.bed.advance(seconds(5)).await;
    let token = queue.grant_with_lost_reply().await;
    queue.bed.probe.set_fault(Fault::None);
    queue.expect_grant(token, millis(100)).await;
}

/// When the reply comes, so little is left of the grant that work would have to stop at once. Releasing it would cost the
/// waiter its grant, so it is renewed.
#[tokio::test]
async fn a_grant_whose_reply_is_late_is_renewed_and_used() {
    let queue = StalledQueue::new(seconds(6)).await;
    let token = queue.grant_with_lost_reply().await;
    queue.bed.probe.set_fault(Fault::Unavailable);
    queue.bed.advance(millis(5_000)).await;
    assert_eq!(queue.snapshot().await.holders[0].holder.label, "first", "the grant has not expired");
    queue.bed.probe.set_fault(Fault::None);
    queue.expect_grant(token, millis(1_000)).await;
}

/// A grant that has expired is not revived. The waiter goes to the end of the queue. The claim before it does not answer, and is
/// passed over.
#[tokio::test]
async fn a_grant_that_has_ended_is_not_used() {
    let queue = StalledQueue::new(seconds(2)).await;
    let token = queue.grant_with_lost_reply().await;
    queue.bed.probe.set_fault(Fault::Unavailable);
    queue.bed.advance(millis(2_100)).await;
    queue.bed.probe.set_fault(Fault::None);
    queue.bed.advance(millis(500)).await;
    let snapshot = queue.snapshot().await;
    assert_eq!((snapshot.holder_count, snapshot.queue_length), (0, 2), "{snapshot:?}");
    assert!(!queue.waiter.is_finished(), "token {token} is over");
    queue.bed.advance(seconds(3)).await;
    assert!(queue.waiter.is_finished(), "the second claim does not answer");
    assert!(queue.waiter.await.unwrap().unwrap().token() > token, "a new grant");
}
