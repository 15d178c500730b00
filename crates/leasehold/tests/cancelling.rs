//! Every public async operation, dropped at each of its await points, leaves nothing held.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test is a program of its own")]

mod common;

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
};

use common::{Mood, Stage, millis, seconds};
use leasehold::{Client, ErrorKind, Query, Scope, testing::ManualTime};

/// Polls the future this often, then drops it. Returns whether it was done by then.
async fn cut_after<F: Future>(polls: usize, future: F) -> bool {
    let mut future = pin!(future);
    let mut polled = 0;
    poll_fn(move |cx| {
        if polled == polls {
            return Poll::Ready(false);
        }
        polled += 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(_) => Poll::Ready(true),
            Poll::Pending if polled == polls => Poll::Ready(false),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Lets time pass while an operation sleeps.
async fn ticking(time: ManualTime) {
    loop {
        time.advance(millis(50)).await;
    }
}

/// Drops what `operation` makes at each of its await points in turn, until it is done before it is dropped; after
/// each, someone else must get the resource without waiting for a ttl.
async fn at_every_point<F: Future>(name: &str, mood: Mood, operation: impl Fn(Stage, Client) -> F) {
    for polls in 0..400 {
        let stage = Stage::new();
        stage.probe.yields.store(true, std::sync::atomic::Ordering::SeqCst);
        let client = stage.client();
        let (time, probe) = (stage.time.clone(), stage.probe.clone());
        probe.mood(mood);
        let clock = tokio::spawn(ticking(time.clone()));
        let done = cut_after(polls, operation(stage, client.clone())).await;
        clock.abort();
        probe.mood(Mood::Well);
        let stage = Stage { time, probe };
        stage.pass(seconds(3)).await;
        assert!(stage.is_clean().await, "{name} dropped after {polls} polls left {:?}", held(&stage).await);
        assert_eq!(client.watched(), 0, "{name} dropped after {polls} polls is still watched");
        let free = tokio::spawn(stage.client().lease("report", "42").acquire());
        stage.pass(seconds(1)).await;
        let free = free.await.unwrap();
        assert!(free.is_ok(), "{name} dropped after {polls} polls: {free:?}");
        if done {
            assert!(polls > 0, "{name} has no await point");
            return;
        }
    }
    assert_ne!(mood, Mood::Well, "{name} was never done");
}

async fn held(stage: &Stage) -> Vec<leasehold::Snapshot> {
    use leasehold::Backend;
    stage
        .probe
        .memory
        .inspect(&Query::Resources(leasehold::Listing::default()))
        .await
        .unwrap()
        .into_snapshots()
}

const MOODS: [Mood; 3] = [Mood::Well, Mood::Mute, Mood::Down];

#[tokio::test]
async fn acquire() {
    for mood in MOODS {
        at_every_point("acquire", mood, async |_stage, client| client.lease("report", "42").acquire().await)
            .await;
        at_every_point("fair", mood, async |_stage, client| {
            client.lease("report", "42").fair().acquire().await
        })
        .await;
    }
}

#[tokio::test]
async fn try_acquire_and_attempts() {
    for mood in MOODS {
        at_every_point("try", mood, async |_stage, client| client.lease("report", "42").try_acquire().await)
            .await;
        let attempts =
            async |_stage: Stage, client: Client| client.lease("report", "42").attempts(3).acquire().await;
        at_every_point("attempts", mood, attempts).await;
    }
}

#[tokio::test]
async fn acquire_while_someone_holds_it_and_releases() {
    at_every_point("contended acquire", Mood::Well, async |stage, client| {
        let held = stage.client().lease("report", "42").acquire().await.unwrap();
        let task = tokio::spawn(async move {
            for _ in 0..20 {
                tokio::task::yield_now().await;
            }
            held.release().await
        });
        let lease = client.lease("report", "42").acquire().await.unwrap();
        task.await.unwrap().unwrap();
        lease
    })
    .await;
}

#[tokio::test]
async fn acquire_behind_local_waiters() {
    at_every_point("local line", Mood::Well, async |_stage, client| {
        let held = client.lease("report", "42").acquire().await.unwrap();
        let again = client.clone();
        let other = tokio::spawn(async move { again.lease("report", "42").acquire().await.map(drop) });
        tokio::task::yield_now().await;
        let (first, second) = tokio::join!(held.release(), client.lease("report", "42").acquire());
        first.unwrap();
        drop(second.unwrap());
        other.await.unwrap().unwrap();
    })
    .await;
}

#[tokio::test]
async fn release() {
    for mood in MOODS {
        at_every_point("release", Mood::Well, async |stage, client| {
            let lease = client.lease("report", "42").acquire().await.unwrap();
            stage.probe.mood(mood);
            lease.release().await
        })
        .await;
    }
}

#[tokio::test]
async fn release_that_hands_over() {
    for mood in MOODS {
        at_every_point("hand-over", Mood::Well, async |stage, client| {
            let lease = client.lease("report", "42").acquire().await.unwrap();
            let again = client.clone();
            let next = tokio::spawn(async move { again.lease("report", "42").acquire().await.map(drop) });
            for _ in 0..5 {
                tokio::task::yield_now().await;
            }
            stage.probe.mood(mood);
            drop(lease.release().await);
            stage.probe.mood(Mood::Well);
            stage.pass(seconds(1)).await;
            next.await.unwrap().unwrap();
        })
        .await;
    }
}

#[tokio::test]
async fn run_and_hold() {
    at_every_point("run", Mood::Well, async |_stage, client| {
        let work = async |_lease: leasehold::LeaseView| {
            tokio::task::yield_now().await;
            tokio::task::yield_now().await;
        };
        client.lease("report", "42").run(work).await
    })
    .await;
    at_every_point("hold", Mood::Well, async |_stage, client| {
        let lease = client.lease("report", "42").acquire().await.unwrap();
        lease.hold(tokio::task::yield_now()).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn extend_and_note() {
    at_every_point("extend", Mood::Well, async |_stage, client| {
        let lease = client.lease("report", "42").acquire().await.unwrap();
        lease.extend(seconds(60)).await.unwrap();
        lease.set_note("a").await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn shared_primitives_and_downgrade() {
    for mood in MOODS {
        at_every_point("downgrade", Mood::Well, async |stage, client| {
            let write = client.rwlock("report", "42").write().acquire().await.unwrap();
            stage.probe.mood(mood);
            write.downgrade().await
        })
        .await;
    }
    at_every_point("permits", Mood::Well, async |_stage, client| {
        let semaphore = client.semaphore("report", "42", 3);
        let _two = semaphore.permits(2).acquire().await.unwrap();
        semaphore.permits(1).acquire().await
    })
    .await;
}

#[tokio::test]
async fn several_at_once() {
    at_every_point("all", Mood::Well, async |_stage, client| {
        let set = client
            .all([client.lease("report", "42"), client.lease("account", "a")])
            .and(client.semaphore("db", "main", 2).permits(1))
            .acquire()
            .await
            .unwrap();
        set.hold(tokio::task::yield_now()).await.unwrap();
        set.release().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn reentrant() {
    at_every_point("within", Mood::Well, async |_stage, client| {
        let scope = Scope::new();
        let outer = client.lease("report", "42").within(&scope).acquire().await.unwrap();
        let inner = client.lease("report", "42").within(&scope).acquire().await.unwrap();
        inner.release().await.unwrap();
        outer.release().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn election_and_observer() {
    at_every_point("election", Mood::Well, async |_stage, client| {
        let election = client.election("report", "42");
        let lead = election.candidate("a").acquire().await.unwrap();
        let mut observer = election.observe().unwrap();
        assert_eq!(observer.next().await.unwrap().unwrap().token, lead.token());
        lead.release().await.unwrap();
        assert_eq!(observer.next().await.unwrap(), None);
    })
    .await;
}

#[tokio::test]
async fn detach_and_adopt() {
    // A detached lease stays until its ttl if nobody adopts it: that is what it is for.
    let stage = Stage::new();
    let client = stage.client();
    stage.probe.yields.store(true, std::sync::atomic::Ordering::SeqCst);
    let detached = client.lease("report", "42").acquire().await.unwrap().detach().unwrap();
    for polls in 0..4 {
        let cut = cut_after(polls, client.adopt(detached.clone())).await;
        assert!(!cut || polls == 3);
    }
    stage.pass(seconds(31)).await;
    assert!(stage.is_clean().await);
    assert_eq!(client.watched(), 0);
}

#[tokio::test]
async fn shutdown() {
    let stage = Stage::new();
    let client = stage.client();
    drop(client.lease("report", "42").acquire().await.unwrap());
    assert!(!cut_after(1, client.shutdown()).await, "something is being given back");
    client.shutdown().await;
    assert!(stage.is_clean().await);
    assert_eq!(client.lease("report", "42").acquire().await.unwrap_err().kind(), ErrorKind::ShutDown);
}
