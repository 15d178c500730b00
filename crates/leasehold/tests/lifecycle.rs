//! How handles and clients end: outside of the runtime, in a panic, after the runtime, and by shutdown. And requests that
//! are refused.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test is a program of its own")]

mod common;

use std::{num::NonZeroU32, panic::AssertUnwindSafe, sync::Arc, thread};

use common::{Fault, TestBed, millis, seconds};
use leasehold::{
    Attempt, Client, Error, ErrorKind, EventKind, Guarantee, Memory, Purpose, Released, Resource, Scope,
    StaleTokenReport, State, System,
};

#[tokio::test]
async fn a_lease_dropped_outside_of_the_runtime_is_released() {
    let client = leasehold::connect("memory:").await.unwrap();
    let lease = client.lease("report", "42").acquire().await.unwrap();
    thread::spawn(move || drop(lease)).join().unwrap();
    client.lease("report", "42").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_lease_dropped_in_a_panic_is_released() {
    let client = leasehold::connect("memory:").await.unwrap();
    let lease = client.lease("report", "42").acquire().await.unwrap();
    let panicked = tokio::spawn(async move {
        let _lease = lease;
        panic!("on purpose");
    });
    assert!(panicked.await.unwrap_err().is_panic());
    let lease = client.lease("report", "42").acquire().await.unwrap();
    let outcome = std::panic::catch_unwind(AssertUnwindSafe(move || {
        let _lease = lease;
        panic!("on purpose, outside of a task");
    }));
    assert!(outcome.is_err());
    client.lease("report", "42").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_downgraded_lease_keeps_its_label() {
    let client = leasehold::connect("memory:").await.unwrap();
    let writer = client.rwlock("index", "main").write().label("reindex").acquire().await.unwrap();
    let reader = writer.downgrade().await.unwrap();
    let holders = client.look("index", "main").await.unwrap().holders;
    assert_eq!(holders[0].holder.label, "reindex");
    reader.release().await.unwrap();
}

#[test]
fn a_client_whose_runtime_has_stopped_refuses_claims_and_its_leases_end() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let first = runtime();
    let (client, lease) = first.block_on(async {
        let client = leasehold::connect("memory:").await.unwrap();
        let lease = client.lease("report", "42").ttl(millis(300)).acquire().await.unwrap();
        (client, lease)
    });
    let view = lease.view();
    drop(first);
    runtime().block_on(async {
        let error = client.lease("report", "43").acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ShutDown);
        assert!(view.ended().await.is_loss(), "`ended` has its own timer");
        client.shutdown().await; // does not hang
    });
    drop(lease); // the release cannot be sent, and this must not panic
    assert!(view.check().is_err());
}

#[tokio::test]
async fn a_client_that_is_dropped_before_its_leases_keeps_them_alive() {
    let bed = TestBed::new();
    let lease = bed.client().lease("report", "42").acquire().await.unwrap();
    bed.advance(seconds(100)).await;
    lease.check().unwrap();
    drop(lease); // the last reference to its client; it is released all the same
    assert!(bed.is_clean().await);
}

#[tokio::test]
async fn a_background_release_is_repeated_until_it_is_answered() {
    let bed = TestBed::new();
    let client = bed.client();
    let lease = client.lease("report", "42").ttl(seconds(3600)).acquire().await.unwrap();
    bed.probe.set_fault(Fault::Unavailable);
    drop(lease);
    bed.advance(seconds(100)).await;
    assert!(!bed.is_clean().await);
    bed.probe.set_fault(Fault::None);
    bed.advance(seconds(3)).await;
    assert!(bed.is_clean().await, "long before its ttl");
}

#[tokio::test]
async fn a_claim_that_may_be_executed_late_gets_a_tombstone() {
    use leasehold::{BackendExt as _, Claim, Holder, OwnerToken, Share, Verdict};
    let bed = TestBed::new();
    let client = bed.client();
    bed.probe.set_fault(Fault::LosesReplies);
    let error = client.lease("report", "42").try_acquire().await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, leasehold::Effect::Unknown));
    bed.probe.set_fault(Fault::None);
    bed.advance(seconds(3)).await;
    assert!(bed.is_clean().await, "its grant was released");
    // Its request could still be executed late, so the memory keeps a tombstone of its owner. A claim of another owner is
    // granted.
    let owner = OwnerToken::from_bytes([7; 16]);
    let resource = Resource::new("report", "42").unwrap();
    let claim = Claim::new(resource, owner, Share::WHOLE, seconds(30), Arc::new(Holder::new("h", 1, "")));
    assert!(matches!(bed.probe.memory.acquire_one(&claim).await.unwrap(), Verdict::Granted(_)));
    assert_eq!(bed.probe.memory.resources(), 1, "the grant and the tombstone are of one resource");
}

#[tokio::test]
async fn views_report_the_release_before_another_claim_can_be_granted() {
    let bed = TestBed::new();
    let client = bed.client();
    let lease = client.lease("report", "42").acquire().await.unwrap();
    let view = lease.view();
    bed.probe.set_fault(Fault::Hangs);
    let releasing = tokio::spawn(lease.release());
    bed.settle().await;
    assert_eq!(
        view.state(),
        State::Ended(leasehold::EndReason::Released),
        "although the release is not answered"
    );
    releasing.abort();
}

#[tokio::test]
async fn shutdown_waits_until_dropped_leases_are_released() {
    let bed = TestBed::new();
    let client = bed.client();
    for id in 0..50 {
        drop(client.lease("report", &id.to_string()).acquire().await.unwrap());
    }
    let kept = client.lease("report", "kept").acquire().await.unwrap();
    client.shutdown().await;
    let left = bed.probe.memory.resources();
    assert_eq!(left, 1, "only the lease that is still held");
    bed.advance(seconds(60)).await;
    kept.check().unwrap();
}

#[tokio::test]
async fn invalid_requests_fail_with_a_short_error_and_do_not_reach_the_backend() {
    let bed = TestBed::new();
    let client = bed.client();
    let long = "x".repeat(257);
    let huge = "x".repeat(1 << 20);
    for (kind, id) in [
        ("", "42"),
        ("Report", "42"),
        ("re/port", "42"),
        ("report", ""),
        ("report", "a\nb"),
        ("report", "\u{0}"),
        ("report", &long),
        ("report", &huge),
        (&huge, "42"),
    ] {
        let error = client.lease(kind, id).acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().len() < 200 && !error.to_string().contains('\n'), "{error}");
    }
    let lease = || client.lease("report", "42");
    for request in [
        lease().ttl(millis(0)),
        lease().ttl(millis(299)),
        lease().ttl(seconds(86_401)),
        lease().ttl(std::time::Duration::MAX),
        lease().max_hold(millis(0)),
        lease().progress_within(millis(0)),
        lease().sensitive(),
    ] {
        assert_eq!(request.acquire().await.unwrap_err().kind(), ErrorKind::Invalid);
    }
    assert_eq!(client.namespace("A").lease("a", "b").acquire().await.unwrap_err().kind(), ErrorKind::Invalid);
    let semaphore = client.semaphore("export", "acme", 3);
    for permits in [0, 4, u32::MAX] {
        assert_eq!(semaphore.permits(permits).acquire().await.unwrap_err().kind(), ErrorKind::Invalid);
    }
    let note = lease().note(vec![0; 5000]).acquire().await.unwrap_err();
    assert_eq!(note.kind(), ErrorKind::Limit);
    let twice = client.all([lease(), lease()]).acquire().await.unwrap_err();
    assert_eq!(twice.kind(), ErrorKind::Invalid);
    assert_eq!(bed.probe.calls(), 0);
    assert_eq!(
        leasehold::connect("nonsense://user:secret@host/").await.unwrap_err().kind(),
        ErrorKind::Invalid
    );
    let error = leasehold::connect("nonsense://user:secret@host/").await.unwrap_err();
    assert!(!error.to_string().contains("secret"), "{error}");
}

#[tokio::test]
async fn a_claim_with_another_capacity_is_a_mismatch_until_the_resource_is_resized() {
    let bed = TestBed::new();
    let client = bed.client();
    let two = client.semaphore("export", "acme", 2).permits(1).acquire().await.unwrap();
    let error = client.semaphore("export", "acme", 3).permits(1).acquire().await.unwrap_err();
    assert_eq!((error.kind(), error.capacity()), (ErrorKind::Mismatch, Some(2)));
    assert_eq!(client.lease("export", "acme").acquire().await.unwrap_err().kind(), ErrorKind::Mismatch);
    let resize = leasehold::OperatorAction::Resize { capacity: NonZeroU32::new(3).unwrap() };
    let command = leasehold::OperatorCommand::new(two.resource().clone(), resize, "eve", "more load");
    client.order(&command).await.unwrap();
    client.semaphore("export", "acme", 3).permits(2).acquire().await.unwrap().release().await.unwrap();
    let nameless = leasehold::OperatorCommand::new(two.resource().clone(), resize, "", "");
    assert_eq!(client.order(&nameless).await.unwrap_err().kind(), ErrorKind::Invalid);
}

#[tokio::test]
async fn work_that_must_be_right_is_refused_on_a_weak_backend() {
    for guarantee in [Guarantee::BestEffort, Guarantee::Quorum] {
        let bed = TestBed::with(|probe| probe.with_guarantee(guarantee));
        let client = bed.client();
        let request = client.lease("payment", "1").purpose(Purpose::Correctness);
        let error = request.clone().acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::GuaranteeTooWeak);
        assert!(error.to_string().contains("postgres"), "the error names other backends: {error}");
        request.fenced().acquire().await.unwrap().release().await.unwrap();
    }
    let client = TestBed::new().client();
    client
        .lease("payment", "1")
        .purpose(Purpose::Correctness)
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
}

#[tokio::test]
async fn features_that_a_backend_does_not_support_are_refused() {
    let bed = TestBed::with(|probe| {
        probe.with_capabilities(|can| (can.queue, can.shares, can.keep_for) = (false, false, false))
    });
    let client = bed.client();
    let refusals = [
        client.lease("a", "b").fair().acquire().await.unwrap_err(),
        client.lease("a", "b").at_least(seconds(1)).acquire().await.unwrap_err(),
        client.rwlock("a", "b").read().acquire().await.unwrap_err(),
        client.semaphore("a", "b", 2).permits(1).acquire().await.unwrap_err(),
    ];
    for error in refusals {
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    }
    // Without a queue, a waiter polls, and a release does not hand over.
    let held = client.lease("a", "b").acquire().await.unwrap();
    let waiter = tokio::spawn(client.lease("a", "b").acquire());
    bed.settle().await;
    assert_eq!(held.release().await.unwrap(), Released::Now);
    bed.advance(seconds(3)).await;
    waiter.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn on_a_session_backend_a_lost_lease_is_released_at_its_deadline() {
    let bed = TestBed::with(|probe| probe.with_capabilities(|can| can.own_ttl = false));
    let client = bed.client();
    let lease = client.lease("a", "b").max_hold(seconds(5)).acquire().await.unwrap();
    bed.advance(seconds(6)).await;
    assert!(lease.check().is_err());
    assert!(!bed.is_clean().await);
    // After its deadline and before the end of its ttl, so it has not expired.
    bed.advance(std::time::Duration::from_millis(23_800)).await;
    assert!(bed.is_clean().await);
}

/// A regression: the lease was released only if the driver noticed the loss first. Otherwise the session kept it for as
/// long as the process lived.
#[tokio::test]
async fn on_a_session_backend_a_loss_that_check_finds_first_is_released_at_its_deadline_too() {
    let bed = TestBed::with(|probe| probe.with_capabilities(|can| can.own_ttl = false));
    let client = bed.client();
    let lease = client.lease("a", "b").max_hold(seconds(5)).acquire().await.unwrap();
    bed.settle().await;
    bed.time.jump(seconds(6));
    assert!(lease.check().is_err(), "`check` finds the loss before the driver wakes up");
    bed.advance(std::time::Duration::from_millis(23_800)).await;
    assert!(bed.is_clean().await);
}

#[tokio::test]
async fn requests_of_one_scope_share_its_leases() {
    let bed = TestBed::new();
    let client = bed.client();
    let scope = Scope::new();
    // Two tasks of one scope at the same time: one acquires, the other waits for the outcome and enters again.
    let request = || client.lease("order", "7").within(&scope).acquire();
    let (a, b) = tokio::join!(request(), request());
    let (a, b) = (a.unwrap(), b.unwrap());
    assert_eq!((a.token(), bed.probe.acquires_sent()), (b.token(), 1));
    drop(a);
    bed.settle().await;
    b.check().unwrap();
    assert_eq!(b.release().await.unwrap(), Released::Now);
    // After the release, the scope acquires it again.
    let again = request().await.unwrap();
    assert_eq!(bed.probe.acquires_sent(), 2);
    again.release().await.unwrap();

    // A single attempt does not wait for another task of its scope that is acquiring.
    let theirs = bed.client().lease("order", "8").acquire().await.unwrap();
    let acquiring = tokio::spawn(client.lease("order", "8").within(&scope).acquire());
    bed.settle().await;
    // It is told who holds the resource, and that the other task is ahead.
    let Attempt::Busy(busy) = client.lease("order", "8").within(&scope).attempt().await.unwrap() else {
        panic!("it is held")
    };
    assert_eq!((busy.holders[0].token, busy.ahead), (theirs.token(), 1));
    assert!(busy.retry_after.is_some());
    theirs.release().await.unwrap();
    acquiring.await.unwrap().unwrap().release().await.unwrap();

    let index = client.rwlock("index", "main");
    let read = index.read().within(&scope).acquire().await.unwrap();
    let error = index.write().within(&scope).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "a reader does not become a writer: {error}");
    read.release().await.unwrap();
    let write = index.write().within(&scope).acquire().await.unwrap();
    let read = index.read().within(&scope).acquire().await.unwrap();
    assert_eq!(read.release().await.unwrap(), Released::StillHeld);
    assert_eq!(write.release().await.unwrap(), Released::Now);
    assert!(bed.is_clean().await);
}

#[tokio::test]
async fn sets_with_the_same_leases_do_not_deadlock() {
    let memory = Arc::new(Memory::new());
    let clients: Vec<Client> = (0..4).map(|_| Client::new(memory.clone())).collect();
    let mut tasks = Vec::new();
    for (index, client) in clients.into_iter().enumerate() {
        tasks.push(tokio::spawn(async move {
            for round in 0..25 {
                let mut ids = ["a", "b", "c"];
                ids.rotate_left((index + round) % 3);
                let requests = ids.map(|id| client.lease("account", id));
                let set = client.all(requests).wait(seconds(60)).acquire().await.unwrap();
                assert_eq!(set.resources().map(|r| r.id().into_owned()).collect::<Vec<_>>(), ["a", "b", "c"]);
                assert!(set.token("account", "a").is_some() && set.token("account", "z").is_none());
                set.release().await.unwrap();
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(memory.resources(), 0);
}

#[tokio::test]
async fn a_set_releases_its_leases_when_one_cannot_be_acquired() {
    let bed = TestBed::new();
    let (ours, theirs) = (bed.client(), bed.client());
    let held = theirs.lease("account", "b").acquire().await.unwrap();
    let requests = ["a", "b", "c"].map(|id| ours.lease("account", id));
    let waiting = tokio::spawn(ours.all(requests).wait(seconds(2)).acquire());
    bed.advance(seconds(3)).await;
    assert_eq!(waiting.await.unwrap().unwrap_err().kind(), ErrorKind::Contended);
    bed.settle().await;
    assert_eq!(bed.probe.memory.resources(), 1);
    held.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_on_many_threads_exclude_each_other() {
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
    let memory = Arc::new(Memory::in_environment(Arc::new(System::current())));
    let inside = Arc::new(AtomicU64::new(0));
    let highest = Arc::new(AtomicU64::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let client = Client::new(memory.clone());
        for _ in 0..8 {
            let (client, inside, highest) = (client.clone(), Arc::clone(&inside), Arc::clone(&highest));
            tasks.spawn(async move {
                for round in 0..50 {
                    let lease = client.lease("counter", "1").wait(seconds(60)).acquire().await.unwrap();
                    assert_eq!(inside.fetch_add(1, SeqCst), 0, "two holders at the same time");
                    assert!(
                        highest.fetch_max(lease.token().get(), SeqCst) < lease.token().get(),
                        "tokens grow"
                    );
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, SeqCst);
                    if round % 3 == 0 {
                        drop(lease);
                    } else {
                        lease.release().await.unwrap();
                    }
                }
            });
        }
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    assert!(highest.load(SeqCst) >= 1600);
}

#[tokio::test]
async fn events_report_what_happened_and_a_slow_listener_learns_how_many_it_missed() {
    let bed = TestBed::new();
    let client = bed.client();
    let mut events = client.events();
    let lease = client.lease("user", "alice@example.org").acquire().await.unwrap();
    let event = events.next().await.unwrap().unwrap();
    assert!(matches!(event.kind, EventKind::Acquired { behind: 0, handed_over: false, .. }));
    assert_eq!((event.token, event.owner_prefix.len()), (Some(lease.token()), 8));
    lease.release().await.unwrap();
    let event = events.next().await.unwrap().unwrap();
    assert!(
        matches!(event.kind, EventKind::Released { answer: Released::Now, dropped: false, .. }),
        "{event:?}"
    );
    for _ in 0..1000 {
        client.lease("user", "bob").acquire().await.unwrap().release().await.unwrap();
    }
    assert!(events.next().await.unwrap().unwrap_err() > 900);
    let token = |number| leasehold::FencingToken::new(number).unwrap();
    let refused = Error::stale(token(3), token(4)).on(&Resource::new("user", "bob").unwrap());
    client.report_stale_token(StaleTokenReport::of(&refused, "orders").unwrap());
    let mut last = None;
    while let Some(event) = events.try_next() {
        last = Some(event.kind);
    }
    let Some(EventKind::StaleTokenRefused { presented, highest, downstream: "orders" }) = last else {
        panic!("{last:?}")
    };
    assert_eq!((presented, highest), (token(3), token(4)));
}
