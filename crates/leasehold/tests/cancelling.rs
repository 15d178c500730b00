//! Every public async operation, dropped at each of its await points, leaves nothing held.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test is a program of its own")]

mod common;

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
};

use common::{Fault, TestBed, millis, seconds};
use leasehold::{Client, ErrorKind, Query, Scope, testing::ManualTime};

/// Polls the future this many times, then drops it. Returns whether it was done by then.
async fn poll_times_then_drop<F: Future>(polls: usize, future: F) -> bool {
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
async fn keep_advancing(time: ManualTime) {
    loop {
        time.advance(millis(50)).await;
    }
}

/// Runs `operation` again and again, and drops it at a later await point each time, until it is done before that. After
/// each drop, another client must be granted the resource without waiting for a ttl.
async fn drop_at_every_await_point<F: Future>(
    name: &str,
    fault: Fault,
    operation: impl Fn(TestBed, Client) -> F,
) {
    for polls in 0..400 {
        let bed = TestBed::new();
        bed.probe.yields.store(true, std::sync::atomic::Ordering::SeqCst);
        let client = bed.client();
        let (time, probe) = (bed.time.clone(), bed.probe.clone());
        probe.set_fault(fault);
        let clock = tokio::spawn(keep_advancing(time.clone()));
        let done = poll_times_then_drop(polls, operation(bed, client.clone())).await;
        clock.abort();
        probe.set_fault(Fault::None);
        let bed = TestBed { time, probe };
        bed.advance(seconds(3)).await;
        assert!(bed.is_clean().await, "{name} dropped after {polls} polls left {:?}", held(&bed).await);
        assert_eq!(client.watched(), 0, "{name} dropped after {polls} polls is still watched");
        let free = tokio::spawn(bed.client().lease("report", "42").acquire());
        bed.advance(seconds(1)).await;
        let free = free.await.unwrap();
        assert!(free.is_ok(), "{name} dropped after {polls} polls: {free:?}");
        if done {
            assert!(polls > 0, "{name} has no await point");
            return;
        }
    }
    assert_ne!(fault, Fault::None, "{name} was never done");
}

async fn held(bed: &TestBed) -> Vec<leasehold::Snapshot> {
    use leasehold::Backend;
    bed.probe.memory.inspect(&Query::Resources(leasehold::Listing::default())).await.unwrap().into_snapshots()
}

const FAULTS: [Fault; 3] = [Fault::None, Fault::LosesReplies, Fault::Unavailable];

#[tokio::test]
async fn acquire() {
    for fault in FAULTS {
        drop_at_every_await_point("acquire", fault, async |_bed, client| {
            client.lease("report", "42").acquire().await
        })
        .await;
        drop_at_every_await_point("fair", fault, async |_bed, client| {
            client.lease("report", "42").fair().acquire().await
        })
        .await;
    }
}

#[tokio::test]
async fn try_acquire_and_attempts() {
    for fault in FAULTS {
        drop_at_every_await_point("try", fault, async |_bed, client| {
            client.lease("report", "42").try_acquire().await
        })
        .await;
        let attempts =
            async |_bed: TestBed, client: Client| client.lease("report", "42").attempts(3).acquire().await;
        drop_at_every_await_point("attempts", fault, attempts).await;
    }
}

#[tokio::test]
async fn acquire_while_another_client_holds_and_releases() {
    drop_at_every_await_point("contended acquire", Fault::None, async |bed, client| {
        let held = bed.client().lease("report", "42").acquire().await.unwrap();
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
    drop_at_every_await_point("local queue", Fault::None, async |_bed, client| {
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
    for fault in FAULTS {
        drop_at_every_await_point("release", Fault::None, async |bed, client| {
            let lease = client.lease("report", "42").acquire().await.unwrap();
            bed.probe.set_fault(fault);
            lease.release().await
        })
        .await;
    }
}

#[tokio::test]
async fn release_that_hands_over() {
    for fault in FAULTS {
        drop_at_every_await_point("handover", Fault::None, async |bed, client| {
            let lease = client.lease("report", "42").acquire().await.unwrap();
            let again = client.clone();
            let next = tokio::spawn(async move { again.lease("report", "42").acquire().await.map(drop) });
            for _ in 0..5 {
                tokio::task::yield_now().await;
            }
            bed.probe.set_fault(fault);
            drop(lease.release().await);
            bed.probe.set_fault(Fault::None);
            bed.advance(seconds(1)).await;
            next.await.unwrap().unwrap();
        })
        .await;
    }
}

#[tokio::test]
async fn run_and_hold() {
    drop_at_every_await_point("run", Fault::None, async |_bed, client| {
        let work = async |_lease: leasehold::LeaseView| {
            tokio::task::yield_now().await;
            tokio::task::yield_now().await;
        };
        client.lease("report", "42").run(work).await
    })
    .await;
    drop_at_every_await_point("hold", Fault::None, async |_bed, client| {
        let lease = client.lease("report", "42").acquire().await.unwrap();
        lease.hold(tokio::task::yield_now()).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn extend_and_note() {
    drop_at_every_await_point("extend", Fault::None, async |_bed, client| {
        let lease = client.lease("report", "42").acquire().await.unwrap();
        lease.extend(seconds(60)).await.unwrap();
        lease.set_note("a").await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn shared_primitives_and_downgrade() {
    for fault in FAULTS {
        drop_at_every_await_point("downgrade", Fault::None, async |bed, client| {
            let write = client.rwlock("report", "42").write().acquire().await.unwrap();
            bed.probe.set_fault(fault);
            write.downgrade().await
        })
        .await;
    }
    drop_at_every_await_point("permits", Fault::None, async |_bed, client| {
        let semaphore = client.semaphore("report", "42", 3);
        let _two = semaphore.permits(2).acquire().await.unwrap();
        semaphore.permits(1).acquire().await
    })
    .await;
}

#[tokio::test]
async fn upgradable_readers() {
    for fault in FAULTS {
        drop_at_every_await_point("upgrade", Fault::None, async |bed, client| {
            let lock = client.rwlock("report", "42").upgradable();
            let reader = lock.upgradable_read().acquire().await.unwrap();
            bed.probe.set_fault(fault);
            if let Ok(upgraded) = reader.upgrade().await {
                drop(upgraded.downgrade().await);
            }
            drop(reader.release().await);
        })
        .await;
        drop_at_every_await_point("downgrade to a reader", Fault::None, async |bed, client| {
            let writer = client.rwlock("report", "42").upgradable().write().acquire().await.unwrap();
            bed.probe.set_fault(fault);
            if let Ok(reader) = writer.downgrade().await {
                drop(reader.downgrade().await);
            }
        })
        .await;
    }
    drop_at_every_await_point("upgradable try", Fault::None, async |bed, client| {
        let held = bed.client().rwlock("report", "42").write().acquire().await.unwrap();
        let lock = client.rwlock("report", "42").upgradable();
        assert!(lock.upgradable_read().try_acquire().await.unwrap().is_none());
        held.release().await.unwrap();
        lock.upgradable_read().try_acquire().await.unwrap().unwrap().release().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn several_at_once() {
    drop_at_every_await_point("all", Fault::None, async |_bed, client| {
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
    drop_at_every_await_point("within", Fault::None, async |_bed, client| {
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
    drop_at_every_await_point("election", Fault::None, async |_bed, client| {
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
    // A detached lease that is not adopted lasts until its ttl, by design.
    let bed = TestBed::new();
    let client = bed.client();
    bed.probe.yields.store(true, std::sync::atomic::Ordering::SeqCst);
    let detached = client.lease("report", "42").acquire().await.unwrap().detach().unwrap();
    for polls in 0..4 {
        let done = poll_times_then_drop(polls, client.adopt(detached.clone())).await;
        assert!(!done || polls == 3);
    }
    bed.advance(seconds(31)).await;
    assert!(bed.is_clean().await);
    assert_eq!(client.watched(), 0);
}

#[tokio::test]
async fn shutdown() {
    let bed = TestBed::new();
    let client = bed.client();
    drop(client.lease("report", "42").acquire().await.unwrap());
    assert!(!poll_times_then_drop(1, client.shutdown()).await, "a release is under way");
    client.shutdown().await;
    assert!(bed.is_clean().await);
    assert_eq!(client.lease("report", "42").acquire().await.unwrap_err().kind(), ErrorKind::ShutDown);
}
