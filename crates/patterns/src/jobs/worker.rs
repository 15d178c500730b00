//! A worker: claims the jobs of a queue and does them, one after the other.
//!
//! One round of [`Worker::run_once`]:
//!
//! 1. With a filter: list a few jobs that are due, and take a lease on `job/ID` for the first one that is
//!    free. So many workers do not try to claim the same rows. The table still decides; the filter only saves
//!    work.
//! 2. Claim the job in the table.
//! 3. Run the work, and send heartbeats meanwhile, one at every third of `hold`. If a heartbeat is refused,
//!    or none was confirmed within `hold`, drop the work: the job may belong to another worker now.
//! 4. Store the result, or the error and when to try again. Both are refused if another worker has claimed
//!    the job.
//! 5. Release the lease of the filter.

use std::{
    convert::Infallible,
    fmt,
    future::{pending, ready},
    sync::Arc,
    time::Duration,
};

use leasehold::{Client, Error, ErrorKind, Lease, Result, Timestamp};
use leasehold_support::{
    StopRequest,
    race::{Either, first},
};

use super::{JobClaim, Jobs};

/// How long to wait before a job is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryBackoff {
    /// The pause after the first attempt. It doubles after each further one.
    pub first: Duration,
    /// The longest pause.
    pub max: Duration,
}

impl Default for RetryBackoff {
    fn default() -> RetryBackoff {
        RetryBackoff { first: Duration::from_secs(1), max: Duration::from_secs(3600) }
    }
}

impl RetryBackoff {
    /// The pause after this attempt, which counts from 1. `random` makes it between half of the step and the
    /// whole, so that jobs that failed together are not tried again together.
    pub fn after(&self, attempt: u32, random: u64) -> Duration {
        let doubled =
            self.first.saturating_mul(1_u32.checked_shl(attempt.saturating_sub(1)).unwrap_or(u32::MAX));
        let step = doubled.min(self.max);
        let half = u64::try_from(step.as_millis() / 2).unwrap_or(u64::MAX);
        step - Duration::from_millis(random % half.saturating_add(1))
    }
}

/// Does the jobs of a queue.
#[derive(Clone, Debug)]
#[must_use = "nothing is done until `.run(…)`"]
pub struct Worker {
    jobs: Arc<dyn Jobs>,
    client: Client,
    queue: String,
    name: String,
    hold: Duration,
    poll: Duration,
    backoff: RetryBackoff,
    is_filtered: bool,
}

/// How many of the due jobs a worker with a filter checks before it asks the table for any job.
const FILTER_CANDIDATES: u32 = 16;
/// How long the filter may take to reply.
const FILTER_TIMEOUT: Duration = Duration::from_secs(1);

/// A job that this worker has claimed.
struct ClaimedJob {
    claim: JobClaim,
    /// When the claim was requested: `hold` counts from here.
    requested: Timestamp,
    /// The lease of the filter.
    lease: Option<Lease>,
}

impl Worker {
    /// A worker of this queue. It uses the client for its clock and for random numbers; for leases only with
    /// [`Worker::filtered`].
    pub fn new(jobs: Arc<dyn Jobs>, client: &Client, queue: &str, name: &str) -> Worker {
        let (client, queue, name) = (client.clone(), queue.to_owned(), name.to_owned());
        let (hold, poll) = (Duration::from_secs(30), Duration::from_secs(1));
        let backoff = RetryBackoff::default();
        Worker { jobs, client, queue, name, hold, poll, backoff, is_filtered: false }
    }

    /// How long a claim lasts without a heartbeat. A heartbeat is sent at every third of it. Default: 30 s.
    pub fn hold(self, hold: Duration) -> Worker {
        Worker { hold, ..self }
    }

    /// How long to pause when no job is due. Default: 1 s.
    pub fn poll(self, poll: Duration) -> Worker {
        Worker { poll, ..self }
    }

    /// How long to wait before a job is tried again. Default: a second, doubled each time, at most an hour.
    pub fn backoff(self, backoff: RetryBackoff) -> Worker {
        Worker { backoff, ..self }
    }

    /// Takes a lease on `job/ID` before it claims the job in the table, so that many workers do not try the
    /// same rows. The table still decides: without the filter the results are the same. Default: no filter.
    pub fn filtered(self) -> Worker {
        Worker { is_filtered: true, ..self }
    }

    /// Does jobs, for ever. The work may borrow from its surroundings; what it changes there needs a cell, an atomic or a
    /// lock (ADR 0050).
    ///
    /// # Cancel safety
    /// If it is dropped while a job runs, the work is dropped. The job can be claimed again when its claim
    /// has run out.
    ///
    /// # Errors
    /// Errors that a retry does not solve. If the store does not reply, it tries again.
    pub async fn run<F, W, E>(&self, work: F) -> Result<Infallible>
    where
        F: FnMut(JobClaim) -> W,
        W: Future<Output = Result<Vec<u8>, E>>,
        E: fmt::Display,
    {
        self.run_until(pending::<Infallible>(), work).await?;
        unreachable!("nothing asks it to stop, so it returns only with an error")
    }

    /// As [`Worker::run`], until `stop` ends: a cancellation token, a signal, any future. A job that runs then runs to
    /// its end, and its result is stored.
    ///
    /// # Cancel safety
    /// As [`Worker::run`].
    ///
    /// # Errors
    /// As [`Worker::run`].
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let directory = tempfile::tempdir().unwrap(); let path = directory.path().join("jobs.db");
    /// # use {std::sync::Arc, leasehold_patterns::jobs::{SqliteJobs, Worker}};
    /// use tokio_util::sync::CancellationToken;
    ///
    /// let (leases, jobs) = (leasehold::connect("memory:").await?, SqliteJobs::open(&path).await?);
    /// let stop = CancellationToken::new(); // cancel it when the program is told to end
    /// # stop.cancel();
    /// let done = std::cell::Cell::new(0); // the work borrows it
    /// let worker = Worker::new(Arc::new(jobs), &leases, "mail", "host-a");
    /// let running = worker.run_until(stop.cancelled(), async |job| {
    ///     done.set(done.get() + 1);
    ///     Ok::<_, String>(job.payload)
    /// });
    /// running.await?;
    /// println!("{} jobs", done.get());
    /// # Ok(()) }
    /// ```
    pub async fn run_until<F, W, E>(&self, stop: impl Future, mut work: F) -> Result<()>
    where
        F: FnMut(JobClaim) -> W,
        W: Future<Output = Result<Vec<u8>, E>>,
        E: fmt::Display,
    {
        let mut stop = StopRequest::new(stop);
        while stop.unless_asked(ready(())).await.is_some() {
            match self.run_once(&mut work).await {
                Ok(true) => continue,
                Ok(false) => {}
                Err(error) if error.is_retryable() => {
                    tracing::warn!(
                        target: "leasehold", queue = self.queue, %error,
                        "cannot reach the store of jobs, trying again"
                    );
                }
                Err(error) => return Err(error),
            }
            stop.unless_asked(self.pause()).await;
        }
        Ok(())
    }

    /// Does one job; false if none is due.
    ///
    /// # Errors
    /// The errors of the store.
    pub async fn run_once<F, W, E>(&self, work: &mut F) -> Result<bool>
    where
        F: FnMut(JobClaim) -> W,
        W: Future<Output = Result<Vec<u8>, E>>,
        E: fmt::Display,
    {
        let Some(ClaimedJob { claim, requested, lease }) = self.claim().await? else { return Ok(false) };
        let stored = match first(work(claim.clone()), self.heartbeats(&claim, requested)).await {
            Either::Left(Ok(result)) => self.jobs.complete(&claim, &result).await,
            Either::Left(Err(error)) => {
                let retry_in = self.backoff.after(claim.attempt, self.client.environment().random());
                self.jobs.fail(&claim, &error.to_string(), retry_in).await
            }
            Either::Right(()) => Ok(false),
        };
        if let Some(lease) = lease {
            drop(lease.release().await); // repeated in the background until there is a reply
        }
        if !stored? {
            tracing::warn!(
                target: "leasehold", queue = self.queue, job = claim.id,
                "the claim of the job has run out, so its result is not stored"
            );
        }
        Ok(true)
    }

    /// Steps 1 and 2.
    async fn claim(&self) -> Result<Option<ClaimedJob>> {
        let now = || self.client.environment().now();
        let due =
            if self.is_filtered { self.jobs.due(&self.queue, FILTER_CANDIDATES).await? } else { Vec::new() };
        for id in due {
            let lease = match self.try_filter(id).await {
                Ok(Some(lease)) => lease,
                Ok(None) => continue,
                Err(error) if error.is_retryable() => {
                    tracing::warn!(
                        target: "leasehold", queue = self.queue, %error,
                        "cannot take a lease as a filter, claiming without it"
                    );
                    break;
                }
                Err(error) => return Err(error),
            };
            let requested = now();
            if let Some(claim) = self.jobs.claim_one(id, &self.name, self.hold).await? {
                return Ok(Some(ClaimedJob { claim, requested, lease: Some(lease) }));
            }
            // Another worker claimed it before we had the lease.
            drop(lease.release().await);
        }
        // A worker may have died with the lease of a job that is due: the table decides. This call also marks
        // jobs as dead whose last worker vanished.
        let requested = now();
        let claim = self.jobs.claim(&self.queue, &self.name, self.hold).await?;
        Ok(claim.map(|claim| ClaimedJob { claim, requested, lease: None }))
    }

    /// Takes the lease of the filter. It saves work, so it must not delay work.
    async fn try_filter(&self, id: i64) -> Result<Option<Lease>> {
        let request = self.client.lease("job", &id.to_string());
        match first(request.try_acquire(), self.client.environment().sleep(FILTER_TIMEOUT)).await {
            Either::Left(lease) => lease,
            Either::Right(()) => {
                let message = format!("no reply to the request for the lease job/{id} within a second");
                Err(Error::new(ErrorKind::Unavailable, message))
            }
        }
    }

    /// Sends heartbeats. Ends when the claim is over: because the store says so, or because none was
    /// confirmed within `hold`.
    async fn heartbeats(&self, claim: &JobClaim, requested: Timestamp) {
        let environment = self.client.environment();
        // From when the request was sent, not from its reply: the store began to count in between.
        let mut valid_until = requested.after(self.hold);
        let left = |valid_until| environment.now().until(valid_until);
        while !left(valid_until).is_zero() {
            environment.sleep(left(valid_until).min(self.hold / 3)).await;
            let sent = environment.now();
            let reply = self.jobs.heartbeat(claim, self.hold);
            // A heartbeat that never gets a reply must not keep us from seeing that the time is over.
            match first(reply, environment.sleep(left(valid_until))).await {
                Either::Left(Ok(true)) => valid_until = sent.after(self.hold),
                Either::Left(Ok(false)) => return,
                Either::Left(Err(error)) => {
                    tracing::warn!(
                        target: "leasehold", queue = self.queue, job = claim.id, %error,
                        "a heartbeat failed, trying again"
                    );
                }
                Either::Right(()) => {}
            }
        }
    }

    /// Pauses between half of `poll` and the whole, so that workers do not ask all at once.
    async fn pause(&self) {
        let half = u64::try_from(self.poll.as_millis() / 2).unwrap_or(u64::MAX);
        let random = self.client.environment().random() % half.saturating_add(1);
        self.client.environment().sleep(self.poll - Duration::from_millis(random)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_limit_and_vary_by_half() {
        let backoff = RetryBackoff { first: Duration::from_secs(1), max: Duration::from_secs(60) };
        for (attempt, step) in [(0, 1), (1, 1), (2, 2), (3, 4), (7, 60), (40, 60), (u32::MAX, 60)] {
            for random in [0, 1, 499, u64::MAX] {
                let pause = backoff.after(attempt, random);
                let step = Duration::from_secs(step);
                assert!(pause <= step && pause >= step / 2, "{attempt}: {pause:?}");
            }
        }
    }
}
