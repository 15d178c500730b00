//! Durable ownership of jobs: a row says who has it, until when, how far it is, and outlives everyone.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
//! # let directory = tempfile::tempdir().unwrap(); let path = directory.path().join("jobs.db");
//! use leasehold_patterns::jobs::{Jobs, NewJob, SqliteJobs};
//!
//! let jobs = SqliteJobs::open(&path).await?;
//! jobs.add(&NewJob::new("mail", b"order 42").key("reminder-42")).await?; // the key makes adding it twice harmless
//! let claim = jobs.claim("mail", "host-a", std::time::Duration::from_secs(30)).await?.expect("it is ready");
//! // … do it; what it writes checks claim.token …
//! assert!(jobs.complete(&claim, b"sent").await?, "false: somebody else has it by now");
//! # Ok(()) }
//! ```
//!
//! [`Worker`] does that in a loop, with heartbeats, retries and a dead-letter state.
//!
//! # What it promises
//!
//! - A job is claimed by one worker at a time. One that stops sending heartbeats is overdue, and the job is claimed again.
//! - **Every transition is fenced**: it names the version and the token of its claim, and changes nothing if another claim
//!   came after. The token grows with every claim of the job, and is for what the work itself writes.
//! - A job that fails is tried again, later each time; after the last attempt it is `dead`, where an operator finds it.
//! - Work may run twice: when a worker is frozen past its time, it goes on until it looks. What it does must be idempotent,
//!   or check the token.
//!
//! # When not to use it
//!
//! - Thousands of jobs a second: use a broker.
//! - Steps that wait for days for something to happen: use a workflow engine.
//! - The work is a change in the same database: do it in one transaction, and need no job.

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
pub use self::worker::{Backoff, Worker};

/// Where jobs are kept.
#[async_trait]
pub trait Jobs: fmt::Debug + Send + Sync {
    /// Adds a job. `None` if there is one with this key in the queue, whatever became of it.
    async fn add(&self, job: &NewJob) -> Result<Option<i64>>;

    /// Takes the job of the queue that is due for longest, for so long: until then it is nobody else's.
    async fn claim(&self, queue: &str, worker: &str, hold: Duration) -> Result<Option<Claim>>;

    /// Takes this job, if it is due.
    async fn claim_one(&self, id: i64, worker: &str, hold: Duration) -> Result<Option<Claim>>;

    /// The ids of jobs that are due, the longest first: for a filter in front of `claim_one`.
    async fn due(&self, queue: &str, most: u32) -> Result<Vec<i64>>;

    /// Goes on having it, for so long from now. False: it is somebody else's, or its time was over; stop.
    async fn heartbeat(&self, claim: &Claim, hold: Duration) -> Result<bool>;

    /// It is done. False: somebody else has it by now, and nothing was changed.
    async fn complete(&self, claim: &Claim, result: &[u8]) -> Result<bool>;

    /// It failed: again after a while, or never if that was the last attempt. False as above.
    async fn fail(&self, claim: &Claim, error: &str, again_in: Duration) -> Result<bool>;

    /// What is known of a job.
    async fn look(&self, id: i64) -> Result<Option<JobRecord>>;

    /// The dead ones of a queue, the latest first.
    async fn dead(&self, queue: &str, most: u32) -> Result<Vec<JobRecord>>;

    /// Makes a dead one ready again, with all its attempts. False if it is not dead.
    async fn revive(&self, id: i64) -> Result<bool>;
}

/// A job in the making.
#[derive(Clone, Debug)]
#[must_use = "it is no job until it is added"]
pub struct NewJob {
    pub(crate) queue: String,
    pub(crate) payload: Vec<u8>,
    pub(crate) key: Option<String>,
    pub(crate) delay: Duration,
    pub(crate) attempts_max: u32,
}

impl NewJob {
    /// A job of this queue, with what its worker needs to know: at most 1 MiB.
    pub fn new(queue: &str, payload: impl AsRef<[u8]>) -> NewJob {
        let (queue, payload) = (queue.to_owned(), payload.as_ref().to_owned());
        NewJob { queue, payload, key: None, delay: Duration::ZERO, attempts_max: 5 }
    }

    /// A name that no other job of the queue has: adding it again does nothing. Default: none.
    pub fn key(self, key: &str) -> NewJob {
        NewJob { key: Some(key.to_owned()), ..self }
    }

    /// Not before this long from now. Default: at once.
    pub fn delay(self, delay: Duration) -> NewJob {
        NewJob { delay, ..self }
    }

    /// Tried so often before it is dead: at least once. Default: 5.
    pub fn attempts(self, most: u32) -> NewJob {
        NewJob { attempts_max: most.clamp(1, 1_000_000), ..self }
    }

    fn check(&self) -> Result<()> {
        let named = |name: &str| !name.is_empty() && name.len() <= 256 && !name.contains('\0');
        if !named(&self.queue) || !self.key.as_deref().is_none_or(named) {
            return Err(Error::new(ErrorKind::Invalid, "a queue and a key have 1 to 256 bytes, without NUL"));
        }
        if self.payload.len() > PAYLOAD_MAX {
            let message =
                format!("a payload has at most {PAYLOAD_MAX} bytes, this one has {}", self.payload.len());
            return Err(Error::new(ErrorKind::Limit, message));
        }
        Ok(())
    }
}

/// More belongs into a store of its own, and its name into the payload.
const PAYLOAD_MAX: usize = 1 << 20;

/// A job that a worker has.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Claim {
    /// Of the job.
    pub id: i64,
    /// What its worker needs to know.
    pub payload: Vec<u8>,
    /// Which attempt this is, from 1.
    pub attempt: u32,
    /// Grows with every claim of the job: for what the work writes.
    pub token: FencingToken,
    /// Of the row, when it was claimed.
    pub version: i64,
}

/// Where a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum JobState {
    /// It can be claimed, or will be after a while.
    Ready,
    /// A worker has it.
    Running,
    /// It is done.
    Done,
    /// Its last attempt has failed.
    Dead,
}

impl JobState {
    fn read(text: &str) -> Result<JobState> {
        match text {
            "ready" => Ok(JobState::Ready),
            "running" => Ok(JobState::Running),
            "done" => Ok(JobState::Done),
            "dead" => Ok(JobState::Dead),
            other => Err(Error::new(ErrorKind::Corrupt, format!("a job has the state {other:.20?}"))),
        }
    }
}

/// What is known of a job.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct JobRecord {
    /// Its number.
    pub id: i64,
    /// Its key, if it has one.
    pub key: Option<String>,
    /// Where it is.
    pub state: JobState,
    /// How often it was tried.
    pub attempts: u32,
    /// Who had it last.
    pub worker: Option<String>,
    /// What came of it.
    pub result: Option<Vec<u8>>,
    /// What went wrong last.
    pub error: Option<String>,
}

/// The reason that is written down for a job whose worker did not come back from the last attempt.
const VANISHED: &str = "its worker did not come back";
