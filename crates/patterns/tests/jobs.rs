//! Durable jobs, on SQLite, on PostgreSQL, and behind PgBouncer in transaction mode: the same tests on all.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test is a program of its own")]

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use leasehold::{Client, ErrorKind, Memory, Result, async_trait, testing::ManualTime};
use leasehold_fence::postgres::ConnectionManager;
use leasehold_patterns::jobs::{
    JobClaim, JobRecord, JobState, Jobs, NewJob, PostgresJobs, RetryBackoff, SqliteJobs, Worker,
};
use leasehold_testkit::servers::{PgBouncer, PostgresServer, RedisServer};
use tokio_postgres::NoTls;

const HOLD: Duration = Duration::from_secs(30);
/// A claim that runs out soon, but is long enough for a busy machine.
const SHORT: Duration = Duration::from_millis(50);

fn link(server: &PostgresServer) -> ConnectionManager {
    ConnectionManager::new(server.url().parse().unwrap(), NoTls)
}

async fn connection(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// Runs the test on every store, with `count` connections to an empty table.
async fn stores(count: usize, test: impl AsyncFn(Vec<Arc<dyn Jobs>>)) {
    let directory = tempfile::tempdir().unwrap();
    let mut files: Vec<Arc<dyn Jobs>> = Vec::new();
    for _ in 0..count {
        files.push(Arc::new(SqliteJobs::open(directory.path().join("jobs.db")).await.unwrap()));
    }
    test(files).await;
    let server = PostgresServer::start();
    let pool = PgBouncer::start(&server, 2);
    for url in [server.url(), pool.url()] {
        let mut clients: Vec<Arc<dyn Jobs>> = Vec::new();
        for _ in 0..count {
            let jobs = PostgresJobs::new(ConnectionManager::new(url.parse().unwrap(), NoTls));
            jobs.create().await.unwrap();
            clients.push(Arc::new(jobs));
        }
        test(clients).await;
        server.sql("DROP TABLE leasehold_jobs");
    }
}

fn client() -> Client {
    Client::new(Arc::new(Memory::new()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_claimed_once_completed_once_and_stays_in_the_table() {
    stores(1, async |jobs| {
        let jobs = &jobs[0];
        let id = jobs.add(&NewJob::new("mail", b"order 42").key("42")).await.unwrap().unwrap();
        assert_eq!(
            jobs.add(&NewJob::new("mail", b"again").key("42")).await.unwrap(),
            None,
            "the key is taken"
        );
        assert!(
            jobs.add(&NewJob::new("other", b"").key("42")).await.unwrap().is_some(),
            "the key is taken in the other queue only"
        );
        let claim = jobs.claim("mail", "a", HOLD).await.unwrap().unwrap();
        assert_eq!((claim.id, claim.attempt, claim.payload.as_slice()), (id, 1, &b"order 42"[..]));
        assert!(jobs.claim("mail", "b", HOLD).await.unwrap().is_none());
        assert!(jobs.heartbeat(&claim, HOLD).await.unwrap());
        assert!(jobs.complete(&claim, b"sent").await.unwrap());
        assert!(!jobs.complete(&claim, b"twice").await.unwrap());
        assert!(!jobs.heartbeat(&claim, HOLD).await.unwrap());
        let seen = jobs.get(id).await.unwrap().unwrap();
        assert_eq!((seen.state, seen.result.as_deref()), (JobState::Done, Some(&b"sent"[..])));
        assert!(jobs.get(id + 1000).await.unwrap().is_none());
    })
    .await;
}

/// Worker A stalls until its claim runs out, worker B claims the job, A comes back.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_comes_back_too_late_changes_nothing() {
    stores(2, async |jobs| {
        let id = jobs[0].add(&NewJob::new("mail", b"x")).await.unwrap().unwrap();
        let late = jobs[0].claim("mail", "a", SHORT).await.unwrap().unwrap();
        tokio::time::sleep(2 * SHORT).await;
        assert!(!jobs[0].heartbeat(&late, HOLD).await.unwrap(), "its claim has run out");
        let next = jobs[1].claim("mail", "b", HOLD).await.unwrap().unwrap();
        assert!(next.token > late.token && next.attempt == 2);
        assert!(!jobs[0].complete(&late, b"late").await.unwrap());
        assert!(!jobs[0].fail(&late, "late", HOLD).await.unwrap());
        assert!(jobs[1].complete(&next, b"in time").await.unwrap());
        assert_eq!(jobs[0].get(id).await.unwrap().unwrap().result.unwrap(), b"in time");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_fails_is_tried_again_and_dead_after_the_last_attempt() {
    stores(1, async |jobs| {
        let jobs = &jobs[0];
        let id = jobs.add(&NewJob::new("mail", b"x").attempts(2)).await.unwrap().unwrap();
        let first = jobs.claim("mail", "a", HOLD).await.unwrap().unwrap();
        assert!(jobs.fail(&first, "no\0disk", HOLD).await.unwrap());
        assert!(jobs.claim("mail", "a", HOLD).await.unwrap().is_none(), "not yet");
        assert_eq!(jobs.get(id).await.unwrap().unwrap().state, JobState::Ready);
        let single_attempt = jobs.add(&NewJob::new("mail", b"y").attempts(1)).await.unwrap().unwrap();
        let claim = jobs.claim("mail", "a", HOLD).await.unwrap().unwrap();
        assert!(jobs.fail(&claim, "no disk", Duration::ZERO).await.unwrap());
        let dead = jobs.dead("mail", 10).await.unwrap();
        assert_eq!(
            dead.iter().map(|job| (job.id, job.error.as_deref())).collect::<Vec<_>>(),
            [(single_attempt, Some("no disk"))]
        );
        assert!(!jobs.revive(id).await.unwrap(), "it is not dead");
        assert!(jobs.revive(single_attempt).await.unwrap());
        assert_eq!(jobs.claim("mail", "a", HOLD).await.unwrap().unwrap().attempt, 1);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_does_not_come_back_from_the_last_attempt_leaves_a_dead_job() {
    stores(1, async |jobs| {
        let jobs = &jobs[0];
        let id = jobs.add(&NewJob::new("mail", b"x").attempts(1)).await.unwrap().unwrap();
        jobs.claim("mail", "a", SHORT).await.unwrap().unwrap();
        tokio::time::sleep(2 * SHORT).await;
        assert!(jobs.claim("mail", "b", HOLD).await.unwrap().is_none());
        assert!(jobs.claim_one(id, "b", HOLD).await.unwrap().is_none());
        assert_eq!(jobs.dead("mail", 10).await.unwrap()[0].id, id);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_workers_do_every_job_once_with_and_without_the_filter() {
    stores(8, async |stores| {
        for filtered in [false, true] {
            let memory = Arc::new(Memory::new());
            let queue = format!("queue-{filtered}");
            for n in 0..100_u32 {
                stores[0].add(&NewJob::new(&queue, n.to_be_bytes())).await.unwrap();
            }
            let done: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
            let mut workers = tokio::task::JoinSet::new();
            for (n, jobs) in stores.iter().enumerate() {
                let worker =
                    Worker::new(jobs.clone(), &Client::new(memory.clone()), &queue, &format!("w{n}"));
                let (worker, done) = (if filtered { worker.filtered() } else { worker }, Arc::clone(&done));
                workers.spawn(async move {
                    let mut work = async |claim: JobClaim| {
                        done.lock().unwrap().push(claim.payload);
                        Ok::<_, String>(vec![])
                    };
                    while worker.run_once(&mut work).await.unwrap() {}
                });
            }
            workers.join_all().await;
            let done = done.lock().unwrap();
            assert_eq!(
                (done.len(), done.iter().collect::<BTreeSet<_>>().len()),
                (100, 100),
                "filtered: {filtered}"
            );
        }
    })
    .await;
}

/// Heartbeats are sent while the work runs, and the work is dropped when another worker has the job.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_keeps_its_job_and_drops_the_work_when_another_has_claimed_it() {
    stores(2, async |jobs| {
        let hold = Duration::from_secs(1);
        jobs[0].add(&NewJob::new("mail", b"x")).await.unwrap();
        let worker = Worker::new(jobs[0].clone(), &client(), "mail", "a").hold(hold);
        let (other, started) = (jobs[1].clone(), tokio::sync::Notify::new());
        let mut work = async |_| {
            started.notify_one();
            tokio::time::sleep(3 * hold).await;
            Ok::<_, String>(b"done".to_vec())
        };
        let rival = async {
            started.notified().await;
            tokio::time::sleep(2 * hold).await;
            other.claim("mail", "b", HOLD).await.unwrap()
        };
        let (done, claimed) = tokio::join!(worker.run_once(&mut work), rival);
        assert!(done.unwrap() && claimed.is_none(), "the claim was kept for three times its hold");
        let id = jobs[0].add(&NewJob::new("mail", b"y")).await.unwrap().unwrap();
        let mut frozen = async |claim: JobClaim| {
            // As if another worker had claimed the job meanwhile.
            assert!(other.fail(&claim, "taken", Duration::ZERO).await.unwrap());
            std::future::pending::<Result<Vec<u8>, String>>().await
        };
        assert!(worker.run_once(&mut frozen).await.unwrap(), "run_once returns although the work never ends");
        assert_eq!(jobs[0].get(id).await.unwrap().unwrap().state, JobState::Ready);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_lets_the_job_finish_and_takes_no_other() {
    let directory = tempfile::tempdir().unwrap();
    let jobs = Arc::new(SqliteJobs::open(directory.path().join("jobs.db")).await.unwrap());
    let first = jobs.add(&NewJob::new("mail", b"x")).await.unwrap().unwrap();
    let second = jobs.add(&NewJob::new("mail", b"y")).await.unwrap().unwrap();
    let (worker, stop) = (Worker::new(jobs.clone(), &client(), "mail", "a"), tokio::sync::Notify::new());
    let work = async |claim: JobClaim| {
        stop.notify_one();
        tokio::task::yield_now().await;
        Ok::<_, String>(claim.payload)
    };
    worker.run_until(stop.notified(), work).await.unwrap();
    assert_eq!(jobs.get(first).await.unwrap().unwrap().state, JobState::Done);
    assert_eq!(jobs.get(second).await.unwrap().unwrap().state, JobState::Ready);
    // Also while no job is due.
    worker.run_until(std::future::ready(()), work).await.unwrap();
    let (done, pause) = (tokio::sync::Notify::new(), Duration::from_secs(3600));
    let last = async |claim: JobClaim| {
        done.notify_one();
        Ok::<_, String>(claim.payload)
    };
    let stopped = async {
        done.notified().await;
        tokio::time::sleep(Duration::from_millis(100)).await; // it pauses, or is about to: either way it ends
    };
    worker.poll(pause).run_until(stopped, last).await.unwrap();
    assert_eq!(jobs.get(second).await.unwrap().unwrap().state, JobState::Done);
}

/// The filter only saves work, so work must not depend on it.
#[tokio::test(flavor = "multi_thread")]
async fn a_filter_that_does_not_reply_stops_no_work() {
    let directory = tempfile::tempdir().unwrap();
    let jobs = Arc::new(SqliteJobs::open(directory.path().join("jobs.db")).await.unwrap());
    let redis = RedisServer::start();
    let client = leasehold::connect(&redis.url()).await.unwrap();
    let worker = Worker::new(jobs.clone(), &client, "mail", "a").filtered();
    let mut work = async |_| Ok::<_, String>(Vec::new());
    jobs.add(&NewJob::new("mail", b"x")).await.unwrap();
    assert!(worker.run_once(&mut work).await.unwrap());
    drop(redis);
    let id = jobs.add(&NewJob::new("mail", b"y")).await.unwrap().unwrap();
    assert!(worker.run_once(&mut work).await.unwrap());
    assert_eq!(jobs.get(id).await.unwrap().unwrap().state, JobState::Done);
}

/// A store that never replies to a heartbeat.
#[derive(Debug)]
struct SilentJobs(SqliteJobs);

#[async_trait]
impl Jobs for SilentJobs {
    async fn claim(&self, queue: &str, worker: &str, hold: Duration) -> Result<Option<JobClaim>> {
        self.0.claim(queue, worker, hold).await
    }

    async fn heartbeat(&self, _: &JobClaim, _: Duration) -> Result<bool> {
        std::future::pending().await
    }

    async fn add(&self, _: &NewJob) -> Result<Option<i64>> {
        unreachable!()
    }

    async fn claim_one(&self, _: i64, _: &str, _: Duration) -> Result<Option<JobClaim>> {
        unreachable!()
    }

    async fn due(&self, _: &str, _: u32) -> Result<Vec<i64>> {
        unreachable!()
    }

    async fn complete(&self, _: &JobClaim, _: &[u8]) -> Result<bool> {
        unreachable!()
    }

    async fn fail(&self, _: &JobClaim, _: &str, _: Duration) -> Result<bool> {
        unreachable!()
    }

    async fn get(&self, _: i64) -> Result<Option<JobRecord>> {
        unreachable!()
    }

    async fn dead(&self, _: &str, _: u32) -> Result<Vec<JobRecord>> {
        unreachable!()
    }

    async fn revive(&self, _: i64) -> Result<bool> {
        unreachable!()
    }
}

#[tokio::test]
async fn work_is_dropped_at_the_end_of_its_hold_if_the_store_does_not_reply() {
    let directory = tempfile::tempdir().unwrap();
    let jobs = SqliteJobs::open(directory.path().join("jobs.db")).await.unwrap();
    jobs.add(&NewJob::new("mail", b"x")).await.unwrap();
    let time = ManualTime::new();
    let client = Client::builder(Arc::new(Memory::new())).environment(Arc::new(time.clone())).build();
    let worker = Worker::new(Arc::new(SilentJobs(jobs)), &client, "mail", "a").hold(HOLD);
    let started = Arc::new(tokio::sync::Notify::new());
    let work_started = Arc::clone(&started);
    let round = tokio::spawn(async move {
        let mut work = async |_| {
            work_started.notify_one();
            std::future::pending::<Result<Vec<u8>, String>>().await
        };
        worker.run_once(&mut work).await
    });
    started.notified().await;
    time.advance(HOLD - Duration::from_secs(1)).await;
    assert!(!round.is_finished(), "the claim is still valid");
    time.advance(Duration::from_secs(1)).await;
    assert!(round.is_finished(), "another worker may have the job now");
    assert!(round.await.unwrap().unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_error_of_failing_work_is_stored_and_the_job_tried_later() {
    stores(1, async |jobs| {
        let id = jobs[0].add(&NewJob::new("mail", b"x")).await.unwrap().unwrap();
        let backoff = RetryBackoff { first: HOLD, max: HOLD };
        let worker = Worker::new(jobs[0].clone(), &client(), "mail", "a").backoff(backoff);
        let mut work = async |_| Err::<Vec<u8>, _>("no disk");
        assert!(worker.run_once(&mut work).await.unwrap());
        assert!(!worker.run_once(&mut work).await.unwrap(), "not before half of its pause");
        let seen = jobs[0].get(id).await.unwrap().unwrap();
        assert_eq!((seen.state, seen.attempts, seen.error.as_deref()), (JobState::Ready, 1, Some("no disk")));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_added_with_the_transaction_or_not_at_all() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("jobs.db");
    let jobs = SqliteJobs::open(&path).await.unwrap();
    let mut own = rusqlite::Connection::open(&path).unwrap();
    let transaction = own.transaction().unwrap();
    SqliteJobs::add_in(&transaction, &NewJob::new("mail", b"never")).unwrap().unwrap();
    transaction.rollback().unwrap();
    let transaction = own.transaction().unwrap();
    SqliteJobs::add_in(&transaction, &NewJob::new("mail", b"yes")).unwrap().unwrap();
    transaction.commit().unwrap();
    assert_eq!(jobs.claim("mail", "a", HOLD).await.unwrap().unwrap().payload, b"yes");
    assert!(jobs.claim("mail", "a", HOLD).await.unwrap().is_none());

    let server = PostgresServer::start();
    let jobs = PostgresJobs::new(link(&server));
    assert_eq!(jobs.due("mail", 1).await.unwrap_err().kind(), ErrorKind::Invalid, "there is no table yet");
    jobs.create().await.unwrap();
    let mut own = connection(&server.url()).await;
    let transaction = own.transaction().await.unwrap();
    PostgresJobs::add_in(&transaction, &NewJob::new("mail", b"never")).await.unwrap().unwrap();
    transaction.rollback().await.unwrap();
    let transaction = own.transaction().await.unwrap();
    PostgresJobs::add_in(&transaction, &NewJob::new("mail", b"yes")).await.unwrap().unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(jobs.claim("mail", "a", HOLD).await.unwrap().unwrap().payload, b"yes");
    server.stop();
    let error = jobs.claim("mail", "a", HOLD).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_work_again_after_a_lost_connection_and_a_restarted_database() {
    let server = PostgresServer::start();
    let jobs = PostgresJobs::new(link(&server));
    jobs.create().await.unwrap();
    for lose in [end_sessions, PostgresServer::kill] {
        let id = jobs.add(&NewJob::new("mail", b"order 42")).await.unwrap().unwrap();
        let claim = jobs.claim("mail", "a", HOLD).await.unwrap().unwrap();
        lose(&server);
        if server.try_sql("SELECT 1").is_err() {
            let error = jobs.heartbeat(&claim, HOLD).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            server.run_again();
        }
        let until = Instant::now() + Duration::from_secs(60);
        // The first statement may find that the connection is lost.
        while let Err(error) = jobs.heartbeat(&claim, HOLD).await {
            assert!(error.kind() == ErrorKind::Unavailable && Instant::now() < until, "{error}");
            tokio::time::sleep(SHORT).await;
        }
        assert!(jobs.complete(&claim, b"sent").await.unwrap(), "the claim is still valid");
        assert_eq!(jobs.get(id).await.unwrap().unwrap().state, JobState::Done);
    }
}

fn end_sessions(server: &PostgresServer) {
    server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()");
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_input_gets_a_clear_error() {
    stores(1, async |jobs| {
        let huge = vec![0; (1 << 20) + 1];
        assert_eq!(jobs[0].add(&NewJob::new("mail", &huge)).await.unwrap_err().kind(), ErrorKind::Limit);
        for queue in ["", "a\0b", &"x".repeat(257)] {
            assert_eq!(jobs[0].add(&NewJob::new(queue, b"")).await.unwrap_err().kind(), ErrorKind::Invalid);
        }
        assert!(
            jobs[0].add(&NewJob::new("Füße '; DROP TABLE jobs --", b"").key("k'")).await.unwrap().is_some()
        );
    })
    .await;
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("no.db"), "this is not a database, but long enough to be looked at")
        .unwrap();
    let error = SqliteJobs::open(directory.path().join("no.db")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(SqliteJobs::open(directory.path().join("none/jobs.db")).await.is_err());
}
