//! Many tasks of one process, and what stays in the file afterwards.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test is a program of its own")]

mod common;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use common::{TTL, acquire_and_wait, check_file, claim, granted, open};
use leasehold::testing::ManualTime;
use leasehold_core::{
    Backend, BackendExt as _, Cursor, Handover, Listing, Query, ReleaseRequest, RenewRequest, Renewal, Share,
    Snapshot, Verdict,
};
use leasehold_sqlite::{Config, Durability, Sqlite};

async fn contend(config: Config, tasks: usize, rounds: usize) {
    let backend = Arc::new(open(config));
    let (inside, finished) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let all: Vec<_> = (0..tasks)
        .map(|task| {
            let (backend, inside, finished) =
                (Arc::clone(&backend), Arc::clone(&inside), Arc::clone(&finished));
            tokio::spawn(async move {
                for round in 0..rounds {
                    // Half of the claims share one resource of capacity 3, the others each have their own.
                    let is_shared = (task + round) % 2 == 0;
                    let mut claim =
                        claim(&if is_shared { "shared".to_owned() } else { format!("own/{task}") }).queued();
                    claim.share = if is_shared { Share::new(1, 3).unwrap() } else { Share::WHOLE };
                    acquire_and_wait(&backend, &claim).await;
                    if is_shared {
                        assert!(
                            inside.fetch_add(1, Ordering::SeqCst) < 3,
                            "more than three hold at the same time"
                        );
                        tokio::task::yield_now().await;
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                    backend.release_one(&ReleaseRequest::new(claim.reference())).await.unwrap();
                    finished.fetch_add(1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    for task in all {
        task.await.unwrap();
    }
    assert_eq!(finished.load(Ordering::SeqCst), tasks * rounds);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn tasks_on_many_threads_share_commits_and_never_overlap() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("leases.db");
    contend(Config::new(&file), 64, 20).await;
    check_file(&file);
}

#[tokio::test]
async fn tasks_on_one_thread_share_commits_and_never_overlap() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("leases.db");
    contend(Config::new(&file), 64, 20).await;
    contend(Config::new(&file).durability(Durability::Full), 16, 4).await;
    check_file(&file);
}

#[tokio::test]
async fn a_whole_batch_is_renewed_in_one_call() {
    let directory = tempfile::tempdir().unwrap();
    let backend = open(Config::new(directory.path().join("leases.db")));
    let claims: Vec<_> = (0..1000).map(|number| claim(&number.to_string())).collect();
    for claim in &claims {
        granted(&backend, claim).await;
    }
    let held: Vec<_> = claims.iter().map(|claim| RenewRequest::new(claim.reference(), TTL * 2)).collect();
    let renewed = backend.renew(&held).await;
    assert_eq!(renewed.len(), 1000);
    assert!(
        renewed
            .iter()
            .all(|renewal| matches!(renewal, Ok(Renewal::Renewed(renewed)) if renewed.remaining > TTL))
    );
}

/// Tasks are cancelled at any point; every other task gets its reply.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_task_keeps_no_other_task_waiting() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("leases.db");
    let backend = Arc::new(open(Config::new(&file)));
    for round in 0..50 {
        let tasks: Vec<_> = (0..20)
            .map(|task: u64| {
                let backend = Arc::clone(&backend);
                tokio::spawn(async move {
                    let claim = claim(&format!("{round}/{task}"));
                    let work = backend.acquire_one(&claim);
                    if task.is_multiple_of(2) {
                        let _ = tokio::time::timeout(Duration::from_micros(task * 10), work).await;
                    } else {
                        work.await.unwrap();
                    }
                })
            })
            .collect();
        tasks.iter().skip(1).step_by(5).for_each(tokio::task::JoinHandle::abort);
        for task in tasks {
            let ended =
                tokio::time::timeout(Duration::from_secs(20), task).await.expect("the task gets its reply");
            assert!(ended.is_ok() || ended.is_err_and(|error| error.is_cancelled()));
        }
    }
    check_file(&file);
}

/// The number of rows in the table of resources.
fn rows(file: &std::path::Path) -> i64 {
    let file = rusqlite::Connection::open(file).unwrap();
    file.query_row("SELECT count(*) FROM resource", [], |row| row.get(0)).unwrap()
}

/// Idle resources are removed, a few with each new one. No token is given out twice, not even if the wall
/// clock goes back.
#[tokio::test]
async fn the_file_does_not_grow_without_bound() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("leases.db");
    let time = ManualTime::new();
    let backend = Sqlite::open(Config::new(&file), Arc::new(time.clone())).unwrap();
    let first = claim("first");
    let token = granted(&backend, &first).await.token;
    let mut most = 0;
    for number in 0..3000 {
        let claim = claim(&format!("unique/{number}"));
        granted(&backend, &claim).await;
        if number % 2 == 0 {
            backend.release_one(&ReleaseRequest::new(claim.reference()).with_tombstone(TTL)).await.unwrap();
        }
        time.jump(Duration::from_secs(10)); // ten seconds each: an hour of them is 360 rows
        if number % 500 == 0 {
            most = most.max(rows(&file));
        }
    }
    assert!(most < 600, "{most} rows");
    check_file(&file);
    drop(backend);
    let early = ManualTime::new(); // its wall clock is as it was at the beginning
    let backend = Sqlite::open(Config::new(&file).pretend_boot("later"), Arc::new(early)).unwrap();
    let again = granted(&backend, &claim("first")).await.token;
    assert!(again > token, "{again:?} after {token:?}");
}

/// A claim costs the same in a queue of thousands as in a short one.
#[tokio::test]
async fn a_long_queue_is_no_slower_than_a_short_one() {
    let directory = tempfile::tempdir().unwrap();
    let backend = open(Config::new(directory.path().join("leases.db")));
    let holder = claim("busy");
    granted(&backend, &holder).await;
    let mut long = Vec::new();
    for _ in 0..2000 {
        let mut waiting = claim("busy").queued();
        waiting.place_ttl = TTL;
        let Verdict::Blocked(blocked) = backend.acquire_one(&waiting).await.unwrap() else {
            panic!("granted")
        };
        assert!(blocked.queued && blocked.holders.len() == 1);
        long.push(waiting);
    }
    let time = std::time::Instant::now();
    for waiting in long.iter().rev().take(500) {
        let renewed = backend.renew(&[RenewRequest::new(waiting.reference(), TTL)]).await.remove(0).unwrap();
        assert!(matches!(renewed, Renewal::Queued { .. }));
    }
    assert!(time.elapsed() < Duration::from_secs(5), "{:?} for 500", time.elapsed());
    let successor = claim("busy").queued().taking_over(Handover::from(long[0].owner));
    assert!(
        matches!(backend.acquire_one(&successor).await.unwrap(), Verdict::Blocked(blocked) if blocked.ahead == 0)
    );
    backend.release_one(&ReleaseRequest::new(holder.reference())).await.unwrap();
    granted(&backend, &successor).await;
    let page = backend.inspect(&Query::Resources(Listing::of("test/"))).await.unwrap().into_snapshots();
    assert_eq!((page[0].queue_length, page[0].queue.len()), (1999, Snapshot::LISTED_MAX));
}

/// A waiter without a place is woken by every change of its resource, and by no change of another one.
#[tokio::test]
async fn a_watcher_is_woken_by_changes_of_its_resource_alone() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("leases.db");
    let (here, there) = (open(Config::new(&file)), open(Config::new(&file)));
    let watcher = claim("watched").reference();
    let nothing_yet = Cursor::default();
    let waiting = here.wait(&watcher, &nothing_yet, Duration::from_secs(20));
    tokio::pin!(waiting);
    let quiet = tokio::time::timeout(Duration::from_millis(300), &mut waiting).await;
    assert!(quiet.is_err(), "nothing happened");
    granted(&there, &claim("another")).await;
    let quiet = tokio::time::timeout(Duration::from_millis(300), &mut waiting).await;
    assert!(quiet.is_err(), "another resource changed");
    granted(&there, &claim("watched")).await;
    tokio::time::timeout(Duration::from_secs(10), &mut waiting).await.expect("the watcher is woken").unwrap();
}

/// A caller that writes without pause is always faster than the writer thread, so it has to wait for the
/// checkpoint.
#[tokio::test]
async fn a_caller_that_never_pauses_lets_the_writer_thread_run_its_checkpoint() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("leases.db");
    let backend = open(Config::new(&file));
    let claim = claim("x");
    for _ in 0..152 {
        granted(&backend, &claim).await;
        backend.release_one(&ReleaseRequest::new(claim.reference())).await.unwrap();
    }
    // The checkpoint is due after 300 commits. The write after the next one has waited for it.
    let logs = "SELECT value FROM meta WHERE name = 'logs'";
    let logs: i64 = rusqlite::Connection::open(&file).unwrap().query_row(logs, [], |row| row.get(0)).unwrap();
    assert_eq!(logs, 1);
}
