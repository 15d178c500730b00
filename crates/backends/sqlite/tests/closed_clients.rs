//! A client that was closed is gone: its places in the queue are silent at once. On a clock that the test controls, so
//! no time passes unless the test says so.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test is a program of its own")]

mod common;

use std::{
    io::{BufRead as _, BufReader},
    process::{Command, Stdio},
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
use tokio::sync::Mutex;

/// Held by each test. A process that is being started has all files of its parent open until it calls `exec`, so for a
/// moment it would keep the clients of another test alive.
static ALONE: Mutex<()> = Mutex::const_new(());

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

#[tokio::test]
async fn the_places_of_a_closed_client_are_silent_at_once() {
    let _alone = ALONE.lock().await;
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
}

#[tokio::test]
async fn a_child_process_does_not_keep_a_closed_client_alive() {
    let _alone = ALONE.lock().await;
    let clients = Clients::new().await;
    let (gone, live) = (clients.open(), clients.open());
    queued(&gone, 1).await;
    let waiting = queued(&live, 2).await;
    let mut child = Command::new("sh");
    let mut child = child.args(["-c", "echo started; exec sleep 60"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut started = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut started).unwrap();
    drop(gone);
    clients.release().await;
    let granted = is_granted(&live, &waiting).await;
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(granted, "the child process has not inherited the lock");
}

#[tokio::test]
async fn a_client_that_does_not_answer_has_a_second() {
    let _alone = ALONE.lock().await;
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
}

#[tokio::test]
async fn without_a_lock_a_client_has_a_second() {
    let _alone = ALONE.lock().await;
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
}

/// The place follows the client that was heard last.
#[tokio::test]
async fn a_claim_that_another_client_asks_for_is_of_that_client() {
    let _alone = ALONE.lock().await;
    let clients = Clients::new().await;
    let (gone, heir, live) = (clients.open(), clients.open(), clients.open());
    let first = queued(&gone, 1).await;
    let waiting = queued(&live, 2).await;
    assert!(!is_granted(&heir, &first).await);
    drop(gone);
    clients.release().await;
    assert!(!is_granted(&live, &waiting).await, "the client that asked last lives");
    assert!(is_granted(&heir, &first).await);
}

/// A verb looks at no more than the first 256 places. The claims behind them have a second, as without a lock.
#[tokio::test]
async fn a_long_queue_of_dead_clients_is_passed_over_in_steps() {
    let _alone = ALONE.lock().await;
    let clients = Clients::new().await;
    // Two of them: after some hundred commits, a client has a thread that runs a checkpoint, and closes a little later.
    let (first, second, live) = (clients.open(), clients.open(), clients.open());
    for number in 0..SAME_CLIENT_WINDOW + WINDOW {
        queued(if number % 2 == 0 { &first } else { &second }, 1).await;
    }
    let waiting = queued(&live, 2).await;
    drop((first, second));
    clients.release().await;
    clients.check();
    assert!(!is_granted(&live, &waiting).await);
    clients.time.advance(ANSWER_WITHIN).await;
    assert!(is_granted(&live, &waiting).await);
    let seen = clients.look().await;
    assert_eq!(seen.queue_length as usize, SAME_CLIENT_WINDOW + WINDOW);
    assert!(seen.queue.iter().all(|place| place.silent));
    clients.check();
}
