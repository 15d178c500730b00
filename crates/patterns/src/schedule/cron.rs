//! Runs a job at its ticks.

use std::{convert::Infallible, fmt, time::Duration};

use leasehold::{Client, Effect, Error, ErrorKind, LeaseRequest, LeaseView, Result, WallTime};

use super::{
    expression::Schedule,
    instant::Instant,
    memory::remembered,
    record::{Outcome, Record},
    ticks::Ticks,
};

/// What to do about ticks that nobody ran: every machine was down, or asleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Missed {
    /// Nothing: a tick that is more than a minute late is skipped. The default, and what cron does.
    #[default]
    Skip,
    /// Run the latest of them, once.
    Latest,
    /// Run the latest so many of them, in order: at most 100.
    Last(u32),
}

/// What to do when a tick is due and the run before it is still at work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Overlap {
    /// Skip the tick. The default.
    #[default]
    Skip,
    /// Wait so long for the run to end, then skip the tick.
    Wait(Duration),
}

/// A tick that runs now.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Tick {
    /// The job.
    pub job: String,
    /// The instant for which it was scheduled.
    pub at: Instant,
    /// The lease under which it runs; its token is for the fence.
    pub lease: LeaseView,
}

/// A job on a schedule.
#[derive(Clone, Debug)]
#[must_use = "nothing runs until `.run(…)`"]
pub struct Cron {
    client: Client,
    job: String,
    schedule: Schedule,
    missed: Missed,
    overlap: Overlap,
    ttl: Duration,
    at_least: Option<Duration>,
}

/// The lease that becomes a mark. Whoever dies before it is one leaves the tick to the others, who are late by then.
const TTL: Duration = Duration::from_secs(60);
/// Between two tries to reach a backend that does not answer.
const PAUSE: Duration = Duration::from_secs(2);

impl Cron {
    /// A job by its name: the same name and schedule on every machine.
    pub fn new(client: &Client, job: &str, schedule: Schedule) -> Cron {
        let (client, job, ttl) = (client.clone(), job.to_owned(), <LeaseRequest>::TTL);
        Cron { client, job, schedule, missed: Missed::Skip, overlap: Overlap::Skip, ttl, at_least: None }
    }

    /// What to do about ticks that nobody ran. Default: [`Missed::Skip`].
    pub fn missed(self, missed: Missed) -> Cron {
        Cron { missed, ..self }
    }

    /// What to do when the run before is still at work. Default: [`Overlap::Skip`].
    pub fn overlap(self, overlap: Overlap) -> Cron {
        Cron { overlap, ..self }
    }

    /// How long the lease of a run lasts unless renewed, which happens by itself. Default: 30 s.
    pub fn ttl(self, ttl: Duration) -> Cron {
        Cron { ttl, ..self }
    }

    /// No run within this long after the beginning of another. Default: no such rule.
    pub fn at_least(self, at_least: Duration) -> Cron {
        Cron { at_least: Some(at_least), ..self }
    }

    /// When it is due.
    pub fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// Runs the job at its ticks, for ever.
    ///
    /// A backend that does not answer is tried again until the next tick is due.
    ///
    /// # Guarantees
    /// A tick runs at most once on all machines together, as far as the backend's promise goes and clocks are apart by
    /// less than six hours. A machine whose clock is ahead runs its ticks early.
    ///
    /// # Cancel safety
    /// Dropped while a tick runs, the work is dropped, and the tick is not run again.
    ///
    /// # Errors
    /// `Invalid` for a bad name; `Unsupported` if the backend cannot remember a tick; `Denied` and whatever else will not
    /// pass by itself.
    pub async fn run<F, W, E>(&self, mut work: F) -> Result<Infallible>
    where
        F: FnMut(Tick) -> W,
        W: Future<Output = Result<(), E>>,
        E: fmt::Display,
    {
        let mut ticks = self.ticks().await?;
        loop {
            let at = ticks.next().await?;
            match self.claim(at).await {
                Ok(Some(claimed)) => claimed.finish(self.under_lease(at, &mut work).await).await,
                Ok(None) => {}
                Err(error) if error.is_retryable() => {
                    tracing::error!(target: "leasehold", job = self.job, tick = %at, %error, "the tick is lost");
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The ticks from now on; and those since the last that was claimed, if missed ones are to be run.
    ///
    /// # Errors
    /// As [`Cron::run`].
    pub async fn ticks(&self) -> Result<Ticks> {
        let now = self.now();
        // What cannot be is told now, not when the first tick is due: that may be in a month.
        let mark = self.mark(CLAIMED, "")?;
        drop(self.mark(ENDED, &now.to_string())?);
        self.client.lease(RUNNING, &self.job).resource()?;
        let info = self.client.info();
        if !info.capabilities.keep_for {
            let message = format!("{} cannot remember that a tick was run: keep leases elsewhere", info.name);
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let mut last = None;
        if self.missed != Missed::Skip {
            let claimed = self.client.list(mark.resource()?.key()).await?;
            let claimed =
                claimed.iter().filter_map(|seen| seen.resource.id().rsplit_once('@')?.1.parse().ok());
            last = claimed.filter(|tick| *tick <= now).max();
        }
        if let Err(error) = self.recall_success().await {
            tracing::warn!(target: "leasehold", job = self.job, %error, "its last success is not known");
        }
        Ok(Ticks::new(&self.client, &self.schedule, self.missed, last.unwrap_or(now)))
    }

    /// A job that is due once a month would have no last success for a month after each start, and could stop unseen.
    async fn recall_success(&self) -> Result<()> {
        let ended = self.client.list(self.mark(ENDED, "")?.resource()?.key()).await?;
        let records = ended.iter().filter_map(|seen| Record::read(seen.holders.first()?.note.as_deref()?));
        let succeeded = records.filter(|record| record.outcome == Outcome::Succeeded);
        if let Some(at) = succeeded.filter_map(|record| record.ended).max() {
            self.count_success(at);
        }
        Ok(())
    }

    #[expect(
        clippy::cast_precision_loss,
        reason = "a gauge is a float; a microsecond more or less is nothing"
    )]
    fn count_success(&self, at: WallTime) {
        metrics::gauge!("leasehold_cron_last_success_timestamp_seconds", "job" => self.job.clone())
            .set(at.as_micros() as f64 / 1e6);
    }

    /// Claims a tick: `None` if it was claimed before, by anyone.
    ///
    /// Two round trips. From then on nobody else runs it, whatever becomes of this process. A backend that does not answer
    /// is asked again until the next tick is due.
    ///
    /// # Cancel safety
    /// Dropped part-way, the tick may be claimed and never run.
    ///
    /// # Errors
    /// As [`Cron::run`]; `Unavailable` if the backend has not answered when the next tick is due, or if it is not known
    /// whether a claim that went unanswered is the one that stands. Then nobody may run it.
    pub async fn claim(&self, at: Instant) -> Result<Option<Claimed>> {
        let record = Record {
            expression: self.schedule.expression().to_owned(),
            zone: self.schedule.zone().to_owned(),
            began: self.client.environment().wall(),
            ended: None,
            outcome: Outcome::Running,
        };
        let until = self.schedule.next_after(at).unwrap_or(at);
        let mut may_be_ours = false;
        loop {
            match self.stamp(CLAIMED, at, &record).await {
                Err(error) if error.is_retryable() && self.now() < until => {
                    tracing::warn!(target: "leasehold", job = self.job, tick = %at, %error, "cannot claim the tick");
                    may_be_ours |= error.effect() == Effect::Unknown;
                    self.client.environment().sleep(PAUSE).await;
                }
                Ok(false) if may_be_ours => {
                    let message = "a claim was not answered, and now the tick is claimed: perhaps by us, so it is not run";
                    return Err(Error::new(ErrorKind::Unavailable, message));
                }
                stamped => return Ok(stamped?.then(|| Claimed { cron: self.clone(), at, record })),
            }
        }
    }

    /// Leaves a mark that nobody can leave twice, and that stays.
    async fn stamp(&self, kind: &str, at: Instant, record: &Record) -> Result<bool> {
        let mark = self.mark(kind, &at.to_string())?.note(record.write());
        let Some(lease) =
            mark.ttl(TTL).renew(false).at_least(remembered(&self.schedule, at)).try_acquire().await?
        else {
            return Ok(false);
        };
        // Kept from here on, with nobody behind it: even if this process dies in the next moment.
        lease.release().await?;
        Ok(true)
    }

    fn mark(&self, kind: &str, at: &str) -> Result<LeaseRequest> {
        let mark = self.client.lease(kind, &format!("{}@{at}", self.job));
        mark.resource()?;
        Ok(mark)
    }

    fn now(&self) -> Instant {
        Instant::of(self.client.environment().wall())
    }

    async fn under_lease<F, W, E>(&self, at: Instant, work: &mut F) -> Outcome
    where
        F: FnMut(Tick) -> W,
        W: Future<Output = Result<(), E>>,
        E: fmt::Display,
    {
        let request = self.client.lease(RUNNING, &self.job).ttl(self.ttl);
        let request = self.at_least.into_iter().fold(request, LeaseRequest::at_least);
        let granted = match self.overlap {
            Overlap::Skip => request.try_acquire().await,
            Overlap::Wait(wait) => request.wait(wait).acquire().await.map(Some),
        };
        let lease = match granted {
            Ok(Some(lease)) => lease,
            Ok(None) => return Outcome::Skipped,
            Err(error) if error.kind() == ErrorKind::Contended => return Outcome::Skipped,
            Err(error) => return Outcome::Failed(error.to_string()),
        };
        let tick = Tick { job: self.job.clone(), at, lease: lease.view() };
        let outcome = match lease.hold(work(tick)).await {
            Ok(Ok(())) => Outcome::Succeeded,
            Ok(Err(error)) => Outcome::Failed(error.to_string()),
            Err(_) => Outcome::Lost,
        };
        if let Err(error) = lease.release().await {
            tracing::warn!(target: "leasehold", job = self.job, tick = %at, %error, "released in the background");
        }
        outcome
    }
}

/// The kinds of resources that a schedule uses.
pub(crate) const CLAIMED: &str = "tick";
pub(crate) const ENDED: &str = "tick-end";
pub(crate) const RUNNING: &str = "cron";

/// A tick that is yours to run, and nobody else's.
#[derive(Debug)]
pub struct Claimed {
    cron: Cron,
    at: Instant,
    record: Record,
}

impl Claimed {
    /// The instant for which it was scheduled.
    pub fn at(&self) -> Instant {
        self.at
    }

    /// Writes down how it ended, for [`reports`](super::reports) and the metrics. What cannot be written is logged: the
    /// work is done all the same.
    pub async fn finish(self, outcome: Outcome) {
        let Claimed { cron, at, record } = self;
        let ended = cron.client.environment().wall();
        metrics::counter!("leasehold_cron_ticks_total", "job" => cron.job.clone(), "outcome" => outcome.as_str())
            .increment(1);
        if outcome == Outcome::Succeeded {
            cron.count_success(ended);
        }
        let record = Record { ended: Some(ended), outcome, ..record };
        tracing::info!(target: "leasehold", job = cron.job, tick = %at, outcome = record.outcome.as_str(), "tick ended");
        if let Err(error) = cron.stamp(ENDED, at, &record).await {
            tracing::warn!(target: "leasehold", job = cron.job, tick = %at, %error, "its outcome is not written down");
        }
    }
}
