//! The blocking API, on memory and on SQLite.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test is a program of its own")]

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    sync::{
        atomic::{AtomicU64, AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use leasehold::{
    EndReason, ErrorKind, EventKind, Eviction, OperatorAction, OperatorCommand, Released, Scope,
    blocking::{self, Attempt, Client},
};

/// Longer than anything here takes on a loaded machine.
const LONG: Duration = Duration::from_secs(30);

/// A client of memory, and one of a SQLite file of its own.
fn clients() -> [Client; 2] {
    let file = sqlite_file();
    let url = format!("sqlite:{}", file.display());
    ["memory:", &url].map(|url| blocking::connect(url).expect("it opens"))
}

fn sqlite_file() -> PathBuf {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("leasehold-blocking-{}-{number}", std::process::id());
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).expect("the temporary folder can be written to");
    folder.join("leases.db")
}

#[test]
fn a_lease_is_acquired_renewed_and_released() {
    for leases in clients() {
        let lease = leases.lease("report", "1").ttl(Duration::from_secs(5)).note("first").acquire().unwrap();
        lease.check().unwrap();
        assert!(lease.remaining() > Duration::ZERO && lease.remaining() <= Duration::from_secs(5));
        lease.extend(LONG).unwrap();
        assert_eq!(lease.ttl(), LONG);
        lease.set_note("second").unwrap();
        let seen = leases.look("report", "1").unwrap();
        assert_eq!(seen.holders[0].note.as_deref(), Some(&b"second"[..]));
        assert_eq!(leases.list("report").unwrap().len(), 1);

        assert!(leases.lease("report", "1").try_acquire().unwrap().is_none());
        let Attempt::Busy(busy) = leases.lease("report", "1").attempt().unwrap() else {
            panic!("it is held")
        };
        assert_eq!(busy.holders.len(), 1);
        let contended = leases.lease("report", "1").wait(Duration::from_millis(50)).acquire().unwrap_err();
        assert_eq!(contended.kind(), ErrorKind::Contended);

        let (first, view) = (lease.token(), lease.view());
        assert_eq!(lease.release().unwrap(), Released::Now);
        assert_eq!(view.check().unwrap_err().kind(), ErrorKind::Lost);
        assert!(leases.lease("report", "1").acquire().unwrap().token() > first);
    }
}

#[test]
fn a_lease_is_renewed_while_the_thread_of_its_holder_is_blocked() {
    for leases in clients() {
        let ttl = Duration::from_secs(2);
        let lease = leases.lease("report", "2").ttl(ttl).acquire().unwrap();
        // The thread does nothing for longer than the ttl: that is what is tested, not a wait for something.
        thread::sleep(ttl * 2);
        lease.check().unwrap();
        assert!(leases.lease("report", "2").try_acquire().unwrap().is_none());
    }
}

#[test]
fn a_lost_lease_is_seen_by_check_by_a_wait_and_by_a_callback() {
    for leases in clients() {
        let lease = leases.lease("report", "3").max_hold(Duration::from_millis(200)).acquire().unwrap();
        let (sender, ended) = mpsc::channel();
        lease.on_ended(move |reason| sender.send(reason).unwrap());
        assert_eq!(lease.ended_within(LONG), Some(EndReason::MaxHold));
        assert_eq!(lease.ended(), EndReason::MaxHold);
        assert_eq!(ended.recv_timeout(LONG).unwrap(), EndReason::MaxHold);
        assert_eq!(lease.check().unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(lease.remaining(), Duration::ZERO);
    }
}

#[test]
fn a_lease_that_holds_has_not_ended() {
    let leases = blocking::connect("memory:").unwrap();
    let lease = leases.lease("report", "4").acquire().unwrap();
    assert_eq!(lease.ended_within(Duration::from_millis(20)), None);
}

/// A program without async often ends right after its last lease is dropped.
#[test]
fn a_dropped_lease_is_released_when_drop_returns() {
    let url = format!("sqlite:{}", sqlite_file().display());
    let (leases, others) = (blocking::connect(&url).unwrap(), blocking::connect(&url).unwrap());
    drop(leases.lease("report", "5").acquire().unwrap());
    assert!(others.lease("report", "5").try_acquire().unwrap().is_some());
}

#[test]
fn run_returns_the_output_and_releases_also_after_a_panic() {
    for leases in clients() {
        let request = || leases.lease("report", "6");
        assert!(request().run(|lease| lease.token().get() > 0).unwrap());
        let panicked = catch_unwind(AssertUnwindSafe(|| request().run(|_| panic!("the work fails"))));
        assert!(panicked.is_err());
        assert!(request().try_acquire().unwrap().is_some(), "released by the panic");
    }
}

#[test]
fn run_says_that_the_lease_was_lost_before_the_work_was_done() {
    let leases = blocking::connect("memory:").unwrap();
    let request = leases.lease("report", "7").max_hold(Duration::from_millis(100));
    let lost = request.run(|lease| assert_eq!(lease.ended(), EndReason::MaxHold)).unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::Lost);
}

#[test]
fn threads_take_turns() {
    for leases in clients() {
        let counter = AtomicU64::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10 {
                        let add = |_: &_| {
                            let seen = counter.load(Ordering::SeqCst);
                            thread::yield_now();
                            counter.store(seen + 1, Ordering::SeqCst);
                        };
                        leases.lease("counter", "1").wait(LONG).run(add).unwrap();
                    }
                });
            }
        });
        assert_eq!(counter.into_inner(), 40);
    }
}

/// tokio's own `block_on` panics here. On a runtime of one thread, a call that needs that thread would never return.
#[test]
fn it_works_inside_of_an_async_runtime() {
    let url = format!("sqlite:{}", sqlite_file().display());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let leases = blocking::connect(&url).unwrap();
        let lease = leases.lease("report", "8").acquire().unwrap();
        assert!(leases.lease("report", "8").wait(Duration::from_millis(50)).acquire().is_err());
        drop(lease);
        leases.lease("report", "8").run(|lease| lease.check()).unwrap().unwrap();
    });
}

#[test]
fn semaphores_and_read_write_locks() {
    for leases in clients() {
        let exports = leases.semaphore("export", "acme", 2);
        let permits = [exports.permits(1).acquire().unwrap(), exports.permits(1).acquire().unwrap()];
        assert!(exports.permits(1).try_acquire().unwrap().is_none());
        drop(permits);
        exports.permits(2).acquire().unwrap().release().unwrap();

        let index = leases.rwlock("index", "main");
        let reader = index.write().acquire().unwrap().downgrade().unwrap();
        let another = index.read().acquire().unwrap();
        assert!(index.write().try_acquire().unwrap().is_none());
        drop((reader, another));
        index.write().acquire().unwrap().release().unwrap();
    }
}

#[test]
fn an_election_has_one_leader_and_leads_again_after_a_loss() {
    for leases in clients() {
        let scheduler = leases.election("scheduler", "eu");
        let mut observer = scheduler.observe().unwrap();
        assert_eq!(observer.next().unwrap().unwrap(), None);
        let mut terms = 0;
        let done = scheduler.lead("host-a", |lead| {
            terms += 1;
            let leader = scheduler.observe().unwrap().next().unwrap().unwrap().expect("it leads");
            assert_eq!((leader.value(), leader.token), (Some("host-a"), lead.token()));
            if terms == 1 {
                let evict = OperatorCommand::new(
                    lead.resource().clone(),
                    OperatorAction::Evict(Eviction::Now),
                    "a test",
                    "to see it lead again",
                );
                leases.wait_for(leases.as_async().order(&evict)).unwrap();
                lead.extend(LONG).unwrap_err(); // the reply says that the lead is gone
            }
            "done"
        });
        assert_eq!((done.unwrap(), terms), ("done", 2));
        assert_eq!(scheduler.candidate("host-b").acquire().unwrap().release().unwrap(), Released::Now);
    }
}

#[test]
fn scopes_detached_leases_events_and_shutdown() {
    for leases in clients() {
        let mut events = leases.events();
        let scope = Scope::new();
        let outer = leases.lease("order", "7").within(&scope).acquire().unwrap();
        let inner = leases.lease("order", "7").within(&scope).acquire().unwrap();
        assert_eq!(inner.release().unwrap(), Released::StillHeld);
        let token = outer.token();
        let adopted = leases.adopt(outer.detach().unwrap()).unwrap();
        assert_eq!(adopted.token(), token);
        drop(adopted);
        assert!(matches!(events.next(), Some(Ok(event)) if matches!(event.kind, EventKind::Acquired { .. })));
        leases.shutdown();
        assert_eq!(leases.lease("order", "7").acquire().unwrap_err().kind(), ErrorKind::ShutDown);
    }
}

#[test]
fn a_client_can_be_built_with_other_settings() {
    let builder =
        leasehold::Client::builder(blocking::open("memory:").unwrap()).label("nightly").namespace("acme");
    let leases = Client::build(builder).unwrap();
    let lease = leases.lease("report", "9").acquire().unwrap();
    assert_eq!(lease.resource().namespace(), Some("acme"));
    assert_eq!(leases.look("report", "9").unwrap().holders[0].holder.label, "nightly");
}
