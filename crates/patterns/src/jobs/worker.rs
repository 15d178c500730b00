//! Takes jobs and does them, one after the other.

use std::{convert::Infallible, fmt, sync::Arc, time::Duration};

use leasehold::{Client, Error, ErrorKind, Lease, Result, Timestamp};
use leasehold_support::race::{Either, first};

use super::{Claim, Jobs};

/// How long to wait before a job is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// After the first attempt; doubled after each further one.
    pub first: Duration,
    /// Never longer than this.
    pub most: Duration,
}

impl Default for Backoff {
    fn default() -> Backoff {
        Backoff { first: Duration::from_secs(1), most: Duration::from_secs(3600) }
    }
}

impl Backoff {
    /// After this attempt, which counts from 1: between a half and the whole of its step, by chance.
    pub fn after(&self, attempt: u32, chance: u64) -> Duration {
        let doubled =
            self.first.saturating_mul(1_u32.checked_shl(attempt.saturating_sub(1)).unwrap_or(u32::MAX));
        let step = doubled.min(self.most);
        let half = u64::try_from(step.as_millis() / 2).unwrap_or(u64::MAX);
        step - Duration::from_millis(chance % half.saturating_add(1))
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
    backoff: Backoff,
    filter: bool,
}

/// How many of the due jobs a filtered worker looks at before it takes none.
const LOOKED_AT: u32 = 16;
/// How long the filter may take to answer.
const FILTER_WITHIN: Duration = Duration::from_secs(1);

impl Worker {
    /// A worker of this queue. The client's clock and chance are used; its leases only with [`Worker::filtered`].
    pub fn new(jobs: Arc<dyn Jobs>, client: &Client, queue: &str, name: &str) -> Worker {
        let (client, queue, name) = (client.clone(), queue.to_owned(), name.to_owned());
        let (hold, poll) = (Duration::from_secs(30), Duration::from_secs(1));
        Worker { jobs, client, queue, name, hold, poll, backoff: Backoff::default(), filter: false }
    }

    /// How long a job is ours without a heartbeat; one is sent at every third of it. Default: 30 s.
    pub fn hold(self, hold: Duration) -> Worker {
        Worker { hold, ..self }
    }

    /// How long to rest when nothing is due. Default: 1 s.
    pub fn poll(self, poll: Duration) -> Worker {
        Worker { poll, ..self }
    }

    /// How long to wait before a job is tried again. Default: a second, doubled each time, at most an hour.
    pub fn backoff(self, backoff: Backoff) -> Worker {
        Worker { backoff, ..self }
    }

    /// Takes a lease of `job/ID` before it asks the table, so that many workers do not meet at the same rows. The table
    /// still decides: without the filter everything stays right. Default: no filter.
    pub fn filtered(self) -> Worker {
        Worker { filter: true, ..self }
    }

    /// Does jobs, for ever.
    ///
    /// # Cancel safety
    /// Dropped while a job is done, the work is dropped; the job is claimed again when it is overdue.
    ///
    /// # Errors
    /// What will not pass by itself; a store that does not answer is asked again.
    pub async fn run<F, W, E>(&self, mut work: F) -> Result<Infallible>
    where
        F: FnMut(Claim) -> W,
        W: Future<Output = Result<Vec<u8>, E>>,
        E: fmt::Display,
    {
        loop {
            match self.once(&mut work).await {
                Ok(true) => {}
                Ok(false) => self.rest().await,
                Err(error) if error.is_retryable() => {
                    tracing::warn!(target: "leasehold", queue = self.queue, %error, "the jobs do not answer");
                    self.rest().await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Does one job; false if none is due.
    ///
    /// # Errors
    /// As the store's.
    pub async fn once<F, W, E>(&self, work: &mut F) -> Result<bool>
    where
        F: FnMut(Claim) -> W,
        W: Future<Output = Result<Vec<u8>, E>>,
        E: fmt::Display,
    {
        let Some((claim, sent, lease)) = self.claim().await? else { return Ok(false) };
        let done = match first(work(claim.clone()), self.heartbeats(&claim, sent)).await {
            Either::Left(Ok(result)) => self.jobs.complete(&claim, &result).await,
            Either::Left(Err(error)) => {
                let again_in = self.backoff.after(claim.attempt, self.client.environment().random());
                self.jobs.fail(&claim, &error.to_string(), again_in).await
            }
            Either::Right(()) => Ok(false),
        };
        if let Some(lease) = lease {
            drop(lease.release().await); // repeated in the background until answered
        }
        if !done? {
            tracing::warn!(target: "leasehold", queue = self.queue, job = claim.id, "it is somebody else's by now");
        }
        Ok(true)
    }

    /// A job, when it was asked for, and the lease of the filter.
    async fn claim(&self) -> Result<Option<(Claim, Timestamp, Option<Lease>)>> {
        let now = || self.client.environment().now();
        let due = if self.filter { self.jobs.due(&self.queue, LOOKED_AT).await? } else { Vec::new() };
        for id in due {
            let lease = match self.pass_filter(id).await {
                Ok(Some(lease)) => lease,
                Ok(None) => continue,
                Err(error) if error.is_retryable() => {
                    tracing::warn!(target: "leasehold", queue = self.queue, %error, "the filter does not answer");
                    break;
                }
                Err(error) => return Err(error),
            };
            let sent = now();
            if let Some(claim) = self.jobs.claim_one(id, &self.name, self.hold).await? {
                return Ok(Some((claim, sent, Some(lease))));
            }
            drop(lease.release().await); // somebody was there before us, or the table says no
        }
        // Whoever holds a lease may have died with it: the table has the last word. And it buries the dead.
        let sent = now();
        let claim = self.jobs.claim(&self.queue, &self.name, self.hold).await?;
        Ok(claim.map(|claim| (claim, sent, None)))
    }

    /// A lease in front of the table. It saves work, so it must not hold work up.
    async fn pass_filter(&self, id: i64) -> Result<Option<Lease>> {
        let request = self.client.lease("job", &id.to_string());
        match first(request.try_acquire(), self.client.environment().sleep(FILTER_WITHIN)).await {
            Either::Left(answer) => answer,
            Either::Right(()) => Err(Error::new(ErrorKind::Unavailable, "no lease within a second")),
        }
    }

    /// Ends when the job is not ours any more, by the answer or by the clock: it was ours for a hold from when it was asked
    /// for. A heartbeat that is never answered does not keep it from looking at the clock.
    async fn heartbeats(&self, claim: &Claim, asked: Timestamp) {
        let environment = self.client.environment();
        let mut ours_until = asked.after(self.hold);
        let left = |ours_until| environment.now().until(ours_until);
        while !left(ours_until).is_zero() {
            environment.sleep(left(ours_until).min(self.hold / 3)).await;
            let sent = environment.now();
            let answer = self.jobs.heartbeat(claim, self.hold);
            match first(answer, environment.sleep(left(ours_until))).await {
                Either::Left(Ok(true)) => ours_until = sent.after(self.hold),
                Either::Left(Ok(false)) => return,
                Either::Left(Err(error)) => {
                    tracing::warn!(target: "leasehold", queue = self.queue, job = claim.id, %error, "a heartbeat failed");
                }
                Either::Right(()) => {}
            }
        }
    }

    async fn rest(&self) {
        let half = u64::try_from(self.poll.as_millis() / 2).unwrap_or(u64::MAX);
        let chance = self.client.environment().random() % half.saturating_add(1);
        self.client.environment().sleep(self.poll - Duration::from_millis(chance)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_limit_and_keep_their_half() {
        let backoff = Backoff { first: Duration::from_secs(1), most: Duration::from_secs(60) };
        for (attempt, step) in [(0, 1), (1, 1), (2, 2), (3, 4), (7, 60), (40, 60), (u32::MAX, 60)] {
            for chance in [0, 1, 499, u64::MAX] {
                let pause = backoff.after(attempt, chance);
                let step = Duration::from_secs(step);
                assert!(pause <= step && pause >= step / 2, "{attempt}: {pause:?}");
            }
        }
    }
}
