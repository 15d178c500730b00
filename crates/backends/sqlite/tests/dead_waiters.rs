//! Waiters whose process is killed, closed or stopped do not hold up the waiters behind them.
//!
//! This program is also the client process: it is one when it is started with a URL.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test is a program of its own")]

mod common;

use std::{
    future::Future,
    path::PathBuf,
    process::{Command, ExitCode},
    sync::Arc,
    time::Duration,
};

use common::{check_file, claim, granted, resource};
use leasehold::testing::ManualTime;
use leasehold_core::{
    Backend, BackendExt as _, Claim, ClientId, Query, ReleaseRequest, Snapshot, Verdict,
    admission::{ANSWER_WITHIN, SAME_CLIENT_WINDOW, WINDOW},
};
use leasehold_sqlite::{Config, Sqlite};
use leasehold_testkit::{client_process, scenarios::ProcessScenario};

fn main() -> ExitCode {
    client_process::main_with_tests(
        "sqlite:",
        &[
            ("a_hundred_killed_waiters_cost_the_next_one_nothing", killed_waiters),
            ("a_killed_holder_and_waiter_cost_no_more_than_the_ttl_of_the_lease", killed_holder_and_waiter),
            ("a_stopped_waiter_loses_a_turn_and_not_its_place", stopped_waiter),
            ("the_places_of_a_closed_client_are_silent_at_once", closed_client),
            ("a_child_process_does_not_keep_a_closed_client_alive", child_process),
            ("a_client_that_does_not_answer_has_a_second", quiet_client),
            ("without_a_lock_a_client_has_a_second", without_lock),
            ("a_claim_that_another_client_asks_for_is_of_that_client", adopted_claim),
            ("a_long_queue_of_dead_clients_is_passed_over_in_steps", long_queue),
        ],
    )
}

/// A file, and this program as the client process.
struct Processes {
    _directory: tempfile::TempDir,
    url: String,
    program: PathBuf,
}

impl Processes {
    fn new() -> Processes {
        let directory = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", directory.path().join("leases.db").display());
        Processes { _directory: directory, url, program: std::env::current_exe().unwrap() }
    }

    fn scenario(&self, ttl_secs: u64) -> ProcessScenario<'_> {
        ProcessScenario { program: &self.program, url: &self.url, ttl: Duration::from_secs(ttl_secs) }
    }
}

/// A few milliseconds on an idle machine. The places of the killed processes last for six seconds.
fn killed_waiters() {
    let took = Processes::new().scenario(30).killed_waiters_are_passed_over();
    println!("granted {took:?} after the release");
    assert!(took < Duration::from_secs(2), "{took:?}");
}

fn killed_holder_and_waiter() {
    let ttl = Duration::from_secs(2);
    let took = Processes::new().scenario(ttl.as_secs()).holder_and_first_waiter_killed();
    println!("granted {took:?} after the kill");
    assert!(took < ttl + Duration::from_secs(2), "{took:?}");
}

fn stopped_waiter() {
    Processes::new().scenario(30).stopped_waiter_loses_a_turn();
}

/// Clients of one file, on a clock that the test controls.
struct Clients {
    directory: tempfile::TempDir,
    time: ManualTime,
    /// Holds the resource.
    holder: Sqlite,
    held: Claim,
}

impl Clients {
    async fn new() -> Clients {
        let (directory, time) = (tempfile::tempdir().unwrap(), ManualTime::new());
        let holder =
            Sqlite::open(Config::new(directory.path().join("leases.db")), Arc::new(time.clone())).unwrap();
        let mut held = claim("door");
        held.ttl = Duration::from_secs(3600);
        granted(&holder, &held).await;
        Clients { directory, time, holder, held }
    }

    fn config(&self) -> Config {
        Config::new(self.directory.path().join("leases.db"))
    }

    fn open(&self) -> Sqlite {
        Sqlite::open(self.config(), Arc::new(self.time.clone())).unwrap()
    }

    async fn release(&self) {
        self.holder.release_one(&ReleaseRequest::new(self.held.reference())).await.unwrap();
    }

    async fn look(&self) -> Snapshot {
        self.holder.inspect(&Query::One(resource("door"))).await.unwrap().into_snapshots().remove(0)
    }

    async fn silent_places(&self) -> usize {
        self.look().await.queue.iter().filter(|place| place.silent).count()
    }

    fn check(&self) {
        check_file(self.config().path());
    }
}

/// Takes a place in the queue for a claim of this client.
async fn queued(backend: &Sqlite, client: u64) -> Claim {
    let mut claim = claim("door").queued();
    claim.client = ClientId::from_number(client);
    assert!(!is_granted(backend, &claim).await);
    claim
}

async fn is_granted(backend: &Sqlite, claim: &Claim) -> bool {
    match backend.acquire_one(claim).await.unwrap() {
        Verdict::Granted(_) => true,
        Verdict::Blocked(_) => false,
        other => panic!("{other:?}"),
    }
}

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
}

fn closed_client() {
    run(async {
        let clients = Clients::new().await;
        let (first, second, live) = (clients.open(), clients.open(), clients.open());
        for number in 0..100 {
            queued(if number % 3 == 0 { &first } else { &second }, 1).await;
        }
        let waiting = queued(&live, 2).await;
        drop((first, second));
        clients.release().await;
        assert_eq!(clients.silent_places().await, 100);
        clients.check();
        assert!(is_granted(&live, &waiting).await, "no time has passed");
        clients.check();
    });
}

fn child_process() {
    run(async {
        let clients = Clients::new().await;
        let (gone, live) = (clients.open(), clients.open());
        queued(&gone, 1).await;
        let waiting = queued(&live, 2).await;
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        drop(gone);
        clients.release().await;
        let granted = is_granted(&live, &waiting).await;
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(granted, "the child process has not inherited the lock");
    });
}

fn quiet_client() {
    run(async {
        let clients = Clients::new().await;
        let (quiet, live) = (clients.open(), clients.open());
        let first = queued(&quiet, 1).await;
        let waiting = queued(&live, 2).await;
        clients.release().await;
        assert!(!is_granted(&live, &waiting).await, "the first one lives and may answer");
        clients.time.advance(ANSWER_WITHIN).await;
        assert!(is_granted(&live, &waiting).await);
        assert_eq!(clients.silent_places().await, 1);
        assert!(!is_granted(&quiet, &first).await);
        assert_eq!(clients.silent_places().await, 0, "it answered, and stands in the queue again");
        clients.check();
    });
}

fn without_lock() {
    run(async {
        let clients = Clients::new().await;
        let any = clients.config().any_file_system();
        let gone = Sqlite::open(any, Arc::new(clients.time.clone())).unwrap();
        let live = clients.open();
        queued(&gone, 1).await;
        let waiting = queued(&live, 2).await;
        drop(gone);
        clients.release().await;
        assert!(!is_granted(&live, &waiting).await);
        clients.time.advance(ANSWER_WITHIN).await;
        assert!(is_granted(&live, &waiting).await);
    });
}

/// The place follows the client that was heard last.
fn adopted_claim() {
    run(async {
        let clients = Clients::new().await;
        let (gone, heir, live) = (clients.open(), clients.open(), clients.open());
        let first = queued(&gone, 1).await;
        let waiting = queued(&live, 2).await;
        assert!(!is_granted(&heir, &first).await);
        drop(gone);
        clients.release().await;
        assert!(!is_granted(&live, &waiting).await, "the client that asked last lives");
        assert!(is_granted(&heir, &first).await);
    });
}

/// A verb looks at no more than the first 256 places. What is behind them has a second, as without a lock.
fn long_queue() {
    run(async {
        let clients = Clients::new().await;
        let (gone, live) = (clients.open(), clients.open());
        for _ in 0..SAME_CLIENT_WINDOW + WINDOW {
            queued(&gone, 1).await;
        }
        let waiting = queued(&live, 2).await;
        drop(gone);
        clients.release().await;
        assert!(!is_granted(&live, &waiting).await);
        clients.check();
        clients.time.advance(ANSWER_WITHIN).await;
        assert!(is_granted(&live, &waiting).await);
        clients.check();
    });
}
