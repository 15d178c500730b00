//! leasehold under executors that are not tokio: what needs a tokio runtime says so, and what does not works.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test is a program of its own")]

use std::{path::PathBuf, sync::Arc, time::Duration};

use leasehold::{Client, Effect, ErrorKind, Released, System};
use smol::block_on;
use tokio::runtime::{Builder, Runtime};

const LONG: Duration = Duration::from_secs(30);

/// A runtime that runs by itself, on a thread of its own.
fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("threads can be started")
}

fn sqlite_url(name: &str) -> String {
    let folder: PathBuf = std::env::temp_dir().join(format!("leasehold-executors-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("the temporary folder can be written to");
    format!("sqlite:{}", folder.join(name).display())
}

#[test]
fn connect_outside_of_tokio_is_an_error_that_says_what_to_do() {
    for url in
        ["memory:", &sqlite_url("outside.db"), "redis://127.0.0.1:1", "redlock://127.0.0.1:1,127.0.0.1:2"]
    {
        let errors =
            [block_on(leasehold::connect(url)).unwrap_err(), block_on(leasehold::open(url)).unwrap_err()];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            let text = error.to_string();
            for advice in ["leasehold::blocking", "#[tokio::main]", "docs/runtimes.md"] {
                assert!(text.contains(advice), "{text}");
            }
        }
    }
    assert_eq!(System::try_current().unwrap_err().kind(), ErrorKind::Unsupported);
}

/// The client is made inside of tokio. Its futures only need a waker, so any executor may poll them.
#[test]
fn the_futures_of_a_client_run_under_any_executor() {
    let runtime = runtime();
    for url in ["memory:", &sqlite_url("any.db")] {
        let leases = runtime.block_on(leasehold::connect(url)).unwrap();
        block_on(use_every_kind_of_wait(&leases));
        block_on(drop_at_every_stage(&leases));
    }
}

async fn use_every_kind_of_wait(leases: &Client) {
    let lease = leases.lease("report", "1").ttl(Duration::from_secs(5)).acquire().await.unwrap();
    // These make timers: a wait in the queue, single attempts with pauses, and the end of a lease.
    let contended = leases.lease("report", "1").wait(Duration::from_millis(50)).acquire().await;
    assert_eq!(contended.unwrap_err().kind(), ErrorKind::Contended);
    let contended = leases.lease("report", "1").attempts(2).acquire().await;
    assert_eq!(contended.unwrap_err().kind(), ErrorKind::Contended);
    assert_eq!(lease.hold(async { 7 }).await.unwrap(), 7);
    lease.extend(LONG).await.unwrap();
    assert_eq!(lease.release().await.unwrap(), Released::Now);

    let short = leases.lease("report", "1").max_hold(Duration::from_millis(100)).acquire().await.unwrap();
    assert_eq!(short.ended().await, leasehold::EndReason::MaxHold);
    drop(short);
    let output = leases.lease("report", "2").wait(LONG).run(async |lease| lease.check()).await;
    output.unwrap().unwrap();
}

async fn drop_at_every_stage(leases: &Client) {
    drop(leases.lease("report", "3").acquire().await.unwrap());
    let again = leases.lease("report", "3").wait(LONG).acquire().await.unwrap();
    let waiting = leases.lease("report", "3").wait(LONG).acquire();
    let limit = async { leases.environment().sleep(Duration::from_millis(50)).await };
    let waiting = Box::pin(waiting);
    let limit = Box::pin(limit);
    drop(leasehold_support::race::first(waiting, limit).await); // dropped while it waits
    assert_eq!(again.release().await.unwrap(), Released::Now);
    leases.lease("report", "3").wait(LONG).acquire().await.unwrap().release().await.unwrap();
}

#[test]
fn the_futures_of_a_blocking_client_run_under_any_executor() {
    let leases = leasehold::blocking::connect(&sqlite_url("blocking.db")).unwrap();
    block_on(use_every_kind_of_wait(leases.as_async()));
    block_on(drop_at_every_stage(leases.as_async()));
}

#[test]
fn a_lease_can_be_dropped_on_a_thread_outside_of_tokio() {
    let runtime = runtime();
    let leases = runtime.block_on(leasehold::connect("memory:")).unwrap();
    let lease = runtime.block_on(leases.lease("report", "4").acquire()).unwrap();
    std::thread::spawn(move || drop(lease)).join().unwrap();
    let again = runtime.block_on(leases.lease("report", "4").wait(LONG).acquire());
    drop(again.unwrap());
}

#[test]
fn a_client_whose_runtime_has_stopped_says_so() {
    let runtime = runtime();
    let url = sqlite_url("stopped.db");
    let leases = runtime.block_on(leasehold::connect(&url)).unwrap();
    let held = runtime.block_on(leases.lease("report", "5").acquire()).unwrap();
    let dropped = runtime.block_on(leases.lease("report", "6").acquire()).unwrap();
    drop(runtime);
    let refused = block_on(leases.lease("report", "7").acquire()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ShutDown, "{refused}");
    drop(dropped);
    let unanswered = block_on(held.release()).unwrap_err();
    assert_eq!((unanswered.kind(), unanswered.effect()), (ErrorKind::ShutDown, Effect::Unknown));
}

#[test]
fn a_client_can_be_built_outside_of_tokio_on_a_given_runtime() {
    let runtime = runtime();
    let backend = runtime.block_on(leasehold::open("memory:")).unwrap();
    let environment = Arc::new(System::on(runtime.handle().clone()));
    let leases = Client::builder(backend).environment(environment).build();
    block_on(use_every_kind_of_wait(&leases));
}
