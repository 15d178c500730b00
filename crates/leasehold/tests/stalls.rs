//! Turns that come while the backend stalls: a waiter whose grant was made, and whose answer was lost or late, keeps it.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test is a program of its own")]

mod common;

use std::{sync::Arc, time::Duration};

use common::{Mood, Stage, millis, seconds};
use leasehold::{
    Backend as _, Claim, FencingToken, Holder, Lease, OwnerToken, Query, ReleaseRequest, Resource, Result,
    Share, Snapshot, Verdict,
};
use tokio::task::JoinHandle;

fn report() -> Resource {
    "report/42".parse().unwrap()
}

/// A claim that no client makes: it does nothing by itself.
fn claim_of(stage: &Stage, label: &str) -> Claim {
    let holder = Arc::new(Holder::new("host", 1, label));
    Claim::new(report(), OwnerToken::fresh(&stage.time), Share::WHOLE, seconds(3600), holder)
}

struct Scene {
    stage: Stage,
    holder: Claim,
    waiter: JoinHandle<Result<Lease>>,
}

impl Scene {
    /// Someone holds, a fair waiter with this ttl is first in line, and someone else is second.
    async fn open(ttl: Duration) -> Scene {
        let stage = Stage::new();
        let holder = claim_of(&stage, "holder");
        assert!(matches!(stage.probe.memory.acquire(&holder).await, Ok(Verdict::Granted(_))));
        let request = stage.client().lease("report", "42").ttl(ttl).fair().wait_forever();
        let waiter = tokio::spawn(request.label("first").acquire());
        stage.settle().await;
        let mut second = claim_of(&stage, "second").queued();
        second.place_ttl = seconds(3600);
        assert!(matches!(stage.probe.memory.acquire(&second).await, Ok(Verdict::Blocked(_))));
        Scene { stage, holder, waiter }
    }

    /// Until the waiter has asked so often.
    async fn asked(&self, times: u64) {
        let goal = self.stage.probe.asked() + times;
        for _ in 0..10_000 {
            if self.stage.probe.asked() >= goal {
                return;
            }
            self.stage.pass(millis(1)).await;
        }
        panic!("it does not ask");
    }

    async fn seen(&self) -> Snapshot {
        let page = self.stage.probe.memory.inspect(&Query::One(report())).await.unwrap();
        page.into_snapshots().remove(0)
    }

    /// The holder leaves; the waiter asks, is granted, and does not hear of it. The token.
    async fn turn_comes_unheard(&self) -> FencingToken {
        self.stage.probe.mood(Mood::Mute);
        self.stage.probe.memory.release(&ReleaseRequest::new(self.holder.reference())).await.unwrap();
        self.asked(1).await;
        let seen = self.seen().await;
        assert_eq!(seen.holders[0].holder.label, "first");
        seen.last_token.unwrap()
    }

    /// The waiter has this grant, and nobody has come in before it.
    async fn has_its_turn(self, token: FencingToken, within: Duration) {
        self.stage.pass(within).await;
        assert!(self.waiter.is_finished(), "it is not granted: {:?}", self.seen().await);
        let lease = self.waiter.await.unwrap().unwrap();
        assert_eq!(lease.token(), token, "the same grant");
        lease.check().unwrap();
        self.stage.pass(seconds(20)).await;
        lease.check().unwrap();
        let page = self.stage.probe.memory.inspect(&Query::One(report())).await.unwrap();
        assert_eq!(page.into_snapshots()[0].queue_length, 1, "the second waits still");
        lease.release().await.unwrap();
    }
}

/// After some requests without an answer it slept for longer than a short lease lasts: the grant that one of them had
/// brought ran out meanwhile, and with it the place in line.
#[tokio::test]
async fn a_waiter_does_not_sleep_through_the_grant_of_an_unanswered_request() {
    let scene = Scene::open(millis(800)).await;
    // Nothing is answered, and its place lasts through it.
    scene.stage.probe.mood(Mood::Deaf);
    scene.asked(1).await;
    scene.asked(4).await;
    let token = scene.turn_comes_unheard().await;
    scene.stage.probe.mood(Mood::Well);
    scene.has_its_turn(token, millis(200)).await;
}

/// An outage that is over leaves no mark: the pauses of the next one begin small again.
#[tokio::test]
async fn pauses_begin_anew_after_an_answer() {
    let scene = Scene::open(seconds(8)).await;
    scene.stage.probe.mood(Mood::Down);
    scene.stage.pass(seconds(5)).await;
    scene.stage.probe.mood(Mood::Well);
    scene.stage.pass(seconds(5)).await;
    let token = scene.turn_comes_unheard().await;
    scene.stage.probe.mood(Mood::Well);
    scene.has_its_turn(token, millis(100)).await;
}

/// So little is left of the grant when it is heard of that work would have to stop at once. Given back, it cost the
/// waiter its turn; renewed, it is as good as any.
#[tokio::test]
async fn a_grant_that_comes_late_is_renewed_and_used() {
    let scene = Scene::open(seconds(6)).await;
    let token = scene.turn_comes_unheard().await;
    scene.stage.probe.mood(Mood::Down);
    scene.stage.pass(millis(5_000)).await;
    assert_eq!(scene.seen().await.holders[0].holder.label, "first", "it lasts still");
    scene.stage.probe.mood(Mood::Well);
    scene.has_its_turn(token, millis(1_000)).await;
}

/// What has ended is not revived: the turn is lost then, and the waiter waits in line again.
#[tokio::test]
async fn a_grant_that_has_ended_is_not_used() {
    let scene = Scene::open(seconds(2)).await;
    let token = scene.turn_comes_unheard().await;
    scene.stage.probe.mood(Mood::Down);
    scene.stage.pass(millis(2_100)).await;
    scene.stage.probe.mood(Mood::Well);
    scene.stage.pass(seconds(3)).await;
    let seen = scene.seen().await;
    assert_eq!((seen.holder_count, seen.queue_length), (0, 2), "{seen:?}");
    assert!(!scene.waiter.is_finished(), "token {token} is over");
    scene.waiter.abort();
}
