//! Handles and clients that go away in every way: off the runtime, in a panic, after the runtime, twice.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test is a program of its own")]

mod common;

use std::{num::NonZeroU32, panic::AssertUnwindSafe, sync::Arc, thread};

use common::{Mood, Stage, millis, seconds};
use leasehold::{
    Client, ErrorKind, EventKind, Guarantee, Memory, Purpose, Released, Resource, Scope, State, System,
};

#[tokio::test]
async fn a_lease_dropped_outside_of_the_runtime_is_given_back() {
    let client = leasehold::connect("memory:").await.unwrap();
    let lease = client.lease("report", "42").acquire().await.unwrap();
    thread::spawn(move || drop(lease)).join().unwrap();
    client.lease("report", "42").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_lease_dropped_in_a_panic_is_given_back() {
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

#[test]
fn a_client_whose_runtime_is_gone_says_so_and_its_leases_end() {
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
        assert!(view.ended().await.is_loss(), "told by its own timer: nothing renews it any more");
        client.shutdown().await; // does not hang
    });
    drop(lease); // nobody is there to give it back to; no panic
    assert!(view.check().is_err());
}

#[tokio::test]
async fn a_client_that_is_dropped_before_its_leases_keeps_them_alive() {
    let stage = Stage::new();
    let lease = stage.client().lease("report", "42").acquire().await.unwrap();
    stage.pass(seconds(100)).await;
    lease.check().unwrap();
    drop(lease); // the last of its client: the farewell is said all the same
    assert!(stage.is_clean().await);
}

#[tokio::test]
async fn the_reaper_goes_on_until_it_is_answered() {
    let stage = Stage::new();
    let client = stage.client();
    let lease = client.lease("report", "42").ttl(seconds(3600)).acquire().await.unwrap();
    stage.probe.mood(Mood::Down);
    drop(lease);
    stage.pass(seconds(100)).await;
    assert!(!stage.is_clean().await);
    stage.probe.mood(Mood::Well);
    stage.pass(seconds(3)).await;
    assert!(stage.is_clean().await, "long before its ttl");
}

#[tokio::test]
async fn a_claim_that_may_be_executed_late_is_buried() {
    use leasehold::{Backend, Claim, Holder, OwnerToken, Share, Verdict};
    let stage = Stage::new();
    let client = stage.client();
    stage.probe.mood(Mood::Mute);
    let error = client.lease("report", "42").try_acquire().await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, leasehold::Effect::Unknown));
    stage.probe.mood(Mood::Well);
    stage.pass(seconds(3)).await;
    assert!(stage.is_clean().await, "what it had taken was given back");
    // Its request arrives once more, late. We do not know its owner token; the memory does, and says no to it:
    // a claim by any other name is granted.
    let owner = OwnerToken::from_bytes([7; 16]);
    let resource = Resource::new("report", "42").unwrap();
    let claim = Claim::new(resource, owner, Share::WHOLE, seconds(30), Arc::new(Holder::new("h", 1, "")));
    assert!(matches!(stage.probe.memory.acquire(&claim).await.unwrap(), Verdict::Granted(_)));
    assert_eq!(stage.probe.memory.resources(), 1, "and the tombstone stands with it");
}

#[tokio::test]
async fn releasing_is_final_for_views_before_anyone_else_is_granted() {
    let stage = Stage::new();
    let client = stage.client();
    let lease = client.lease("report", "42").acquire().await.unwrap();
    let view = lease.view();
    stage.probe.mood(Mood::Deaf);
    let releasing = tokio::spawn(lease.release());
    stage.settle().await;
    assert_eq!(view.state(), State::Ended(leasehold::EndReason::Released), "though no answer has come");
    releasing.abort();
}

#[tokio::test]
async fn shutdown_drains_what_was_dropped() {
    let stage = Stage::new();
    let client = stage.client();
    for id in 0..50 {
        drop(client.lease("report", &id.to_string()).acquire().await.unwrap());
    }
    let kept = client.lease("report", "kept").acquire().await.unwrap();
    client.shutdown().await;
    let left = stage.probe.memory.resources();
    assert_eq!(left, 1, "only what is still in someone's hand");
    stage.pass(seconds(60)).await;
    kept.check().unwrap();
}

#[tokio::test]
async fn bad_requests_get_one_clear_error_and_reach_no_backend() {
    let stage = Stage::new();
    let client = stage.client();
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
    assert_eq!(stage.probe.calls(), 0);
    assert_eq!(
        leasehold::connect("nonsense://user:secret@host/").await.unwrap_err().kind(),
        ErrorKind::Invalid
    );
    let error = leasehold::connect("nonsense://user:secret@host/").await.unwrap_err();
    assert!(!error.to_string().contains("secret"), "{error}");
}

#[tokio::test]
async fn others_with_another_capacity_are_a_mismatch_until_resized() {
    let stage = Stage::new();
    let client = stage.client();
    let two = client.semaphore("export", "acme", 2).permits(1).acquire().await.unwrap();
    let error = client.semaphore("export", "acme", 3).permits(1).acquire().await.unwrap_err();
    assert_eq!((error.kind(), error.capacity()), (ErrorKind::Mismatch, Some(2)));
    assert_eq!(client.lease("export", "acme").acquire().await.unwrap_err().kind(), ErrorKind::Mismatch);
    let resize = leasehold::OperatorAction::Resize { capacity: NonZeroU32::new(3).unwrap() };
    let order = leasehold::OperatorCommand::new(two.resource().clone(), resize, "eve", "more load");
    client.order(&order).await.unwrap();
    client.semaphore("export", "acme", 3).permits(2).acquire().await.unwrap().release().await.unwrap();
    let nameless = leasehold::OperatorCommand::new(two.resource().clone(), resize, "", "");
    assert_eq!(client.order(&nameless).await.unwrap_err().kind(), ErrorKind::Invalid);
}

#[tokio::test]
async fn work_that_must_be_right_is_refused_on_a_weak_backend() {
    for guarantee in [Guarantee::BestEffort, Guarantee::Quorum] {
        let stage = Stage::with(|probe| probe.promising(guarantee));
        let client = stage.client();
        let request = client.lease("payment", "1").purpose(Purpose::Correctness);
        let error = request.clone().acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::GuaranteeTooWeak);
        assert!(error.to_string().contains("postgres"), "names what to use instead: {error}");
        request.fenced().acquire().await.unwrap().release().await.unwrap();
    }
    let client = Stage::new().client();
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
async fn what_a_backend_cannot_do_is_refused_with_the_reason() {
    let stage = Stage::with(|probe| {
        probe.without(|can| (can.queue, can.shares, can.keep_for) = (false, false, false))
    });
    let client = stage.client();
    let refusals = [
        client.lease("a", "b").fair().acquire().await.unwrap_err(),
        client.lease("a", "b").at_least(seconds(1)).acquire().await.unwrap_err(),
        client.rwlock("a", "b").read().acquire().await.unwrap_err(),
        client.semaphore("a", "b", 2).permits(1).acquire().await.unwrap_err(),
    ];
    for error in refusals {
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    }
    // Without a line, waiting is asking again, and a release is not a hand-over.
    let held = client.lease("a", "b").acquire().await.unwrap();
    let waiter = tokio::spawn(client.lease("a", "b").acquire());
    stage.settle().await;
    assert_eq!(held.release().await.unwrap(), Released::Now);
    stage.pass(seconds(3)).await;
    waiter.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn where_a_session_keeps_what_it_holds_a_lost_lease_is_given_up_at_its_deadline() {
    let stage = Stage::with(|probe| probe.without(|can| can.own_ttl = false));
    let client = stage.client();
    let lease = client.lease("a", "b").max_hold(seconds(5)).acquire().await.unwrap();
    stage.pass(seconds(6)).await;
    assert!(lease.check().is_err());
    assert!(!stage.is_clean().await);
    // Past its deadline, and short of its ttl: it has not run out by itself.
    stage.pass(std::time::Duration::from_millis(23_800)).await;
    assert!(stage.is_clean().await);
}

/// It was given up only if the driver saw the loss first: a session then kept it for as long as the process lived.
#[tokio::test]
async fn where_a_session_keeps_what_it_holds_a_loss_that_a_look_finds_is_given_up_too() {
    let stage = Stage::with(|probe| probe.without(|can| can.own_ttl = false));
    let client = stage.client();
    let lease = client.lease("a", "b").max_hold(seconds(5)).acquire().await.unwrap();
    stage.settle().await;
    stage.time.jump(seconds(6));
    assert!(lease.check().is_err(), "found before the driver wakes up");
    stage.pass(std::time::Duration::from_millis(23_800)).await;
    assert!(stage.is_clean().await);
}

#[tokio::test]
async fn a_scope_shares_what_it_holds() {
    let stage = Stage::new();
    let client = stage.client();
    let scope = Scope::new();
    // Two tasks of one scope at once: one acquires, the other waits for the outcome and enters.
    let request = || client.lease("order", "7").within(&scope).acquire();
    let (a, b) = tokio::join!(request(), request());
    let (a, b) = (a.unwrap(), b.unwrap());
    assert_eq!((a.token(), stage.probe.asked()), (b.token(), 1));
    drop(a);
    stage.settle().await;
    b.check().unwrap();
    assert_eq!(b.release().await.unwrap(), Released::Now);
    // What was released is acquired anew, with a higher token.
    let again = request().await.unwrap();
    assert_eq!(stage.probe.asked(), 2);
    again.release().await.unwrap();

    // An attempt does not wait for another task of its scope that is just acquiring.
    let theirs = stage.client().lease("order", "8").acquire().await.unwrap();
    let acquiring = tokio::spawn(client.lease("order", "8").within(&scope).acquire());
    stage.settle().await;
    assert!(client.lease("order", "8").within(&scope).try_acquire().await.unwrap().is_none());
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
    assert!(stage.is_clean().await);
}

#[tokio::test]
async fn leases_taken_together_never_wait_in_a_circle() {
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
async fn a_set_gives_back_what_it_had_when_one_cannot_be_had() {
    let stage = Stage::new();
    let (ours, theirs) = (stage.client(), stage.client());
    let held = theirs.lease("account", "b").acquire().await.unwrap();
    let requests = ["a", "b", "c"].map(|id| ours.lease("account", id));
    let waiting = tokio::spawn(ours.all(requests).wait(seconds(2)).acquire());
    stage.pass(seconds(3)).await;
    assert_eq!(waiting.await.unwrap().unwrap_err().kind(), ErrorKind::Contended);
    stage.settle().await;
    assert_eq!(stage.probe.memory.resources(), 1);
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
                    assert_eq!(inside.fetch_add(1, SeqCst), 0, "two at once");
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
async fn events_tell_what_happened_and_a_slow_listener_how_much_it_missed() {
    let stage = Stage::new();
    let client = stage.client();
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
    client.report_stale_token(
        &Resource::new("user", "bob").unwrap(),
        leasehold::FencingToken::new(3).unwrap(),
        leasehold::FencingToken::new(4).unwrap(),
        "orders",
    );
    let mut last = None;
    while let Some(event) = events.try_next() {
        last = Some(event.kind);
    }
    assert!(matches!(last, Some(EventKind::StaleTokenRefused { downstream: "orders", .. })));
}
