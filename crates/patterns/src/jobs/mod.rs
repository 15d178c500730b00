//! Durable jobs: a row for each job says which worker has it, until when, and how it ended. It survives every
//! worker.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
//! # let directory = tempfile::tempdir().unwrap(); let path = directory.path().join("jobs.db");
//! use leasehold_patterns::jobs::{Jobs, NewJob, SqliteJobs};
//!
//! let jobs = SqliteJobs::open(&path).await?;
//! jobs.add(&NewJob::new("mail", b"order 42").key("reminder-42")).await?; // the key makes adding it twice harmless
//! let claim = jobs.claim("mail", "host-a", std::time::Duration::from_secs(30)).await?.expect("the job is due");
//! // … do the work; whatever it writes should check claim.token …
//! assert!(jobs.complete(&claim, b"sent").await?, "false: another worker has claimed it since");
//! # Ok(()) }
//! ```
//!
//! [`Worker`] does that in a loop, with heartbeats, retries and a dead-letter state.
//!
//! # Guarantees
//!
//! - One worker at a time has a job. If it stops sending heartbeats, the job is overdue, and another worker
//!   can claim it.
//! - **Every transition is fenced**: it names the version and the token of its claim, and changes nothing if
//!   there was another claim since. The token grows with every claim of the job. Pass it to what the work
//!   writes.
//! - A job that fails is tried again, after a longer pause each time. After the last attempt it is `dead`:
//!   see [`Jobs::dead`].
//! - The work may run twice: a worker that was frozen goes on until its next heartbeat fails. So the work
//!   must be idempotent, or its writes must check the token.
//!
//! # When not to use it
//!
//! - Thousands of jobs a second: use a broker.
//! - Steps that wait for days for an event: use a workflow engine.
//! - The work is a change in the same database: do it in one transaction, without a job.

#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;
mod worker;

use std::{fmt, time::Duration};

use leasehold::{Error, ErrorKind, FencingToken, Result, async_trait};

#[cfg(feature = "postgres")]
pub use self::postgres::PostgresJobs;
#[cfg(feature = "sqlite")]
pub use self::sqlite::SqliteJobs;
pub use self::worker::{RetryBackoff, Worker};

/// A store of jobs.
#[async_trait]
pub trait Jobs: fmt::Debug + Send + Sync {
    /// Adds a job, and returns its id. `None` if the queue has a job with this key, in whatever state.
    async fn add(&self, job: &NewJob) -> Result<Option<i64>>;

    /// Claims the job of the queue that has been due for longest. For `hold`, no other worker can claim it.
    async fn claim(&self, queue: &str, worker: &str, hold: Duration) -> Result<Option<JobClaim>>;

    /// Claims this job, if it is due.
    async fn claim_one(&self, id: i64, worker: &str, hold: Duration) -> Result<Option<JobClaim>>;

    /// The ids of jobs that are due, the longest due first. For a filter before
    /// [`claim_one`](Jobs::claim_one).
    async fn due(&self, queue: &str, limit: u32) -> Result<Vec<i64>>;

    /// Extends the claim to `hold` from now. False if the claim has run out or another worker has the job:
    /// stop the work.
    async fn heartbeat(&self, claim: &JobClaim, hold: Duration) -> Result<bool>;

    /// Marks the job as done. False if another worker has claimed it since: then nothing is changed.
    async fn complete(&self, claim: &JobClaim, result: &[u8]) -> Result<bool>;

    /// Marks the attempt as failed. The job is due again after `retry_in`, or dead if this was the last
    /// attempt. False as for [`complete`](Jobs::complete).
    async fn fail(&self, claim: &JobClaim, error: &str, retry_in: Duration) -> Result<bool>;

    /// Reads a job.
    async fn get(&self, id: i64) -> Result<Option<JobRecord>>;

    /// The dead jobs of a queue, the latest first.
    async fn dead(&self, queue: &str, limit: u32) -> Result<Vec<JobRecord>>;

    /// Makes a dead job ready again, with all its attempts. False if it is not dead.
    async fn revive(&self, id: i64) -> Result<bool>;
}

/// A job to add.
#[derive(Clone, Debug)]
#[must_use = "the job does not exist until it is added"]
pub struct NewJob {
    pub(crate) queue: String,
    pub(crate) payload: Vec<u8>,
    pub(crate) key: Option<String>,
    pub(crate) delay: Duration,
    pub(crate) attempts_max: u32,
}

impl NewJob {
    /// A job of this queue, with what its worker needs to know: a payload of at most 1 MiB.
    pub fn new(queue: &str, payload: impl AsRef<[u8]>) -> NewJob {
        let (queue, payload) = (queue.to_owned(), payload.as_ref().to_owned());
        NewJob { queue, payload, key: None, delay: Duration::ZERO, attempts_max: 5 }
    }

    /// A key that is unique in the queue: adding a second job with it does nothing. Default: none.
    pub fn key(self, key: &str) -> NewJob {
        NewJob { key: Some(key.to_owned()), ..self }
    }

    /// How long from now the job is due. Default: at once.
    pub fn delay(self, delay: Duration) -> NewJob {
        NewJob { delay, ..self }
    }

    /// How often the job is tried before it is dead: at least once. Default: 5.
    pub fn attempts(self, max: u32) -> NewJob {
        NewJob { attempts_max: max.clamp(1, ATTEMPTS_MAX), ..self }
    }

    fn check(&self) -> Result<()> {
        let is_valid = |name: &str| !name.is_empty() && name.len() <= NAME_MAX && !name.contains('\0');
        if !is_valid(&self.queue) || !self.key.as_deref().is_none_or(is_valid) {
            let message = format!("the name of a queue and a key have 1 to {NAME_MAX} bytes, without NUL");
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        if self.payload.len() > PAYLOAD_MAX {
            let message =
                format!("a payload has at most {PAYLOAD_MAX} bytes, this one has {}", self.payload.len());
            return Err(Error::new(ErrorKind::Limit, message));
        }
        Ok(())
    }
}

/// The most bytes in the name of a queue, and in a key.
const NAME_MAX: usize = 256;
/// The most attempts.
const ATTEMPTS_MAX: u32 = 1_000_000;
/// The most bytes of a payload. Put more into another store, and its name into the payload.
const PAYLOAD_MAX: usize = 1 << 20;

/// A job that a worker has claimed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobClaim {
    /// The id of the job.
    pub id: i64,
    /// The payload of the job.
    pub payload: Vec<u8>,
    /// The number of this attempt, from 1.
    pub attempt: u32,
    /// The fencing token. It grows with every claim of the job. Pass it to what the work writes.
    pub token: FencingToken,
    /// The version of the row, when it was claimed.
    pub version: i64,
}

/// The state of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum JobState {
    /// It can be claimed, now or after its delay.
    Ready,
    /// A worker has it.
    Running,
    /// The work has succeeded.
    Done,
    /// The last attempt has failed.
    Dead,
}

impl JobState {
    fn read(text: &str) -> Result<JobState> {
        match text {
            "ready" => Ok(JobState::Ready),
            "running" => Ok(JobState::Running),
            "done" => Ok(JobState::Done),
            "dead" => Ok(JobState::Dead),
            other => Err(Error::new(
                ErrorKind::Corrupt,
                format!(
                    "the table leasehold_jobs is corrupt: expected the state ready, running, done or dead, found {other:.20?}"
                ),
            )),
        }
    }
}

/// What is stored about a job.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct JobRecord {
    /// The id of the job.
    pub id: i64,
    /// The key of the job, if it has one.
    pub key: Option<String>,
    /// The state of the job.
    pub state: JobState,
    /// How often the job was tried.
    pub attempts: u32,
    /// The name of the worker that claimed it last.
    pub worker: Option<String>,
    /// The result, if it is done.
    pub result: Option<Vec<u8>>,
    /// The error of the last attempt, if it failed.
    pub error: Option<String>,
}

/// The error that is stored for a job whose worker stopped its heartbeats in the last attempt.
const WORKER_VANISHED: &str = "its worker did not come back";
