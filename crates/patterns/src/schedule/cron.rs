//! Runs a job at its ticks.
//!
//! How a tick is claimed and run, on every machine alike (ADR 0029):
//!
//! 1. Wait until the tick is due (`ticks.rs`).
//! 2. Claim it: acquire a lease on `tick/JOB@TIME` and release it with `keep_for`. The lease is then a
//!    *marker*: the resource stays closed, no machine can leave the same marker again, and it stays although this
//!    process may die.
//! 3. If the marker was there, another machine has the tick: go on with the next one. If the backend does not
//!    reply, try again until the next tick is due. If a try that got no reply may have left the marker,
//!    no machine may run the tick.
//! 4. Acquire the lease of the job, `cron/JOB`. If the run before still holds it, skip the tick or wait
//!    ([`Overlap`]).
//! 5. Run the work under that lease.
//! 6. Leave a second marker on `tick-end/JOB@TIME`, with the outcome, for `reports`.

use std::{convert::Infallible, fmt, future::pending, time::Duration};

use leasehold::{Client, Effect, Error, ErrorKind, LeaseRequest, LeaseView, Result, Snapshot, WallTime};
use leasehold_support::StopRequest;

use super::{
    expression::Schedule,
    record::{TickOutcome, TickRecord},
    retention::claim_retention,
    tick_time::TickTime,
    ticks::Ticks,
};

/// What to do about ticks that no machine ran, because all were down or asleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Missed {
    /// Skip every tick that is more than a minute late. This is the default, and what cron does.
    #[default]
    Skip,
    /// Run the latest missed tick.
    Latest,
    /// Run the latest missed ticks, in order: this many, and at most 100.
    Last(u32),
}

/// What to do when a tick is due and the run before it has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Overlap {
    /// Skip the tick. The default.
    #[default]
    Skip,
    /// Wait this long for the run to end, then skip the tick.
    Wait(Duration),
}

/// A tick that runs now.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Tick {
    /// The job.
    pub job: String,
    /// The time for which the tick was scheduled.
    pub at: TickTime,
    /// The lease under which the tick runs. Pass its token to a fence.
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

/// The ttl of the lease before it is a marker. If the process dies in between, the lease ends after this
/// time; the tick is then too late for most settings of [`Missed`].
const MARKER_TTL: Duration = Duration::from_secs(60);
/// The pause between two tries to reach a backend that does not reply.
const RETRY_PAUSE: Duration = Duration::from_secs(2);

impl Cron {
    /// A job with this name and schedule. Use the same name and schedule on every machine.
    pub fn new(client: &Client, job: &str, schedule: Schedule) -> Cron {
        let (client, job, ttl) = (client.clone(), job.to_owned(), <LeaseRequest>::TTL);
        Cron { client, job, schedule, missed: Missed::Skip, overlap: Overlap::Skip, ttl, at_least: None }
    }

    /// What to do about ticks that no machine ran. Default: [`Missed::Skip`].
    pub fn missed(self, missed: Missed) -> Cron {
        Cron { missed, ..self }
    }

    /// What to do when the run before has not ended. Default: [`Overlap::Skip`].
    pub fn overlap(self, overlap: Overlap) -> Cron {
        Cron { overlap, ..self }
    }

    /// The ttl of the lease of a run. It is renewed while the run lasts. Default: 30 s.
    pub fn ttl(self, ttl: Duration) -> Cron {
        Cron { ttl, ..self }
    }

    /// The least time between the beginnings of two runs. Default: none.
    pub fn at_least(self, at_least: Duration) -> Cron {
        Cron { at_least: Some(at_least), ..self }
    }

    /// The schedule.
    pub fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// Runs the job at its ticks, for ever.
    ///
    /// If the backend does not reply, it tries again until the next tick is due; at the start, until it replies. The work
    /// may borrow from its surroundings; what it changes there needs a cell, an atomic or a lock (ADR 0050).
    ///
    /// # Guarantees
    /// A tick runs at most once on all machines together, as far as the backend's guarantee goes, and if
    /// clocks differ by less than six hours. A machine whose clock is ahead runs its ticks early.
    ///
    /// # Cancel safety
    /// If it is dropped while a tick runs, the work is dropped and the tick does not run again.
    ///
    /// # Errors
    /// `Invalid` for a name that cannot be one; `Unsupported` if the backend cannot keep a marker; `Denied`
    /// and other errors that a retry does not solve.
    ///
    /// # Examples
    /// ```no_run
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # use leasehold_patterns::schedule::{Cron, Schedule};
    /// let leases = leasehold::connect("memory:").await?;
    /// let runs = std::cell::Cell::new(0); // the work borrows it
    /// let cron = Cron::new(&leases, "cleanup", Schedule::parse("@hourly")?);
    /// cron.run(async |tick| {
    ///     runs.set(runs.get() + 1);
    ///     println!("run {}, the tick of {}", runs.get(), tick.at);
    ///     Ok::<(), String>(())
    /// })
    /// .await?;
    /// # Ok(()) }
    /// ```
    pub async fn run<F, W, E>(&self, work: F) -> Result<Infallible>
    where
        F: FnMut(Tick) -> W,
        W: Future<Output = Result<(), E>>,
        E: fmt::Display,
    {
        self.run_until(pending::<Infallible>(), work).await?;
        unreachable!("nothing asks it to stop, so it returns only with an error")
    }

    /// As [`Cron::run`], until `stop` ends: a cancellation token, a signal, any future. A tick that runs then runs to its
    /// end, and its outcome is stored.
    ///
    /// # Guarantees
    /// As [`Cron::run`]. A tick that was claimed runs: a stop does not lose it.
    ///
    /// # Cancel safety
    /// As [`Cron::run`].
    ///
    /// # Errors
    /// As [`Cron::run`].
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # use leasehold_patterns::schedule::{Cron, Schedule};
    /// use tokio_util::sync::CancellationToken;
    ///
    /// let leases = leasehold::connect("memory:").await?;
    /// let stop = CancellationToken::new(); // cancel it when the program is told to end
    /// # stop.cancel();
    /// let cron = Cron::new(&leases, "cleanup", Schedule::parse("@hourly")?);
    /// cron.run_until(stop.cancelled(), async |_| Ok::<(), String>(())).await?;
    /// # Ok(()) }
    /// ```
    pub async fn run_until<F, W, E>(&self, stop: impl Future, mut work: F) -> Result<()>
    where
        F: FnMut(Tick) -> W,
        W: Future<Output = Result<(), E>>,
        E: fmt::Display,
    {
        let mut stop = StopRequest::new(stop);
        let Some(ticks) = stop.unless_asked(self.ticks()).await else { return Ok(()) };
        let mut ticks = ticks?;
        loop {
            let Some(at) = stop.unless_asked(ticks.next()).await else { return Ok(()) };
            let at = at?;
            // Not cut short by a stop: the tick may be claimed by then, and no other machine would run it.
            match self.claim_until(at, &mut stop).await {
                Ok(Some(claimed)) => claimed.finish(self.run_under_lease(at, &mut work).await).await,
                Ok(None) => {}
                Err(error) if error.is_retryable() => {
                    tracing::error!(
                        target: "leasehold", job = self.job, tick = %at, %error,
                        "cannot claim the tick, so it is not run"
                    );
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The ticks from now on. If missed ticks are to run, also those since the last tick that was claimed.
    ///
    /// If the backend does not reply, it tries again until it does.
    ///
    /// # Cancel safety
    /// It changes nothing.
    ///
    /// # Errors
    /// As [`Cron::run`].
    pub async fn ticks(&self) -> Result<Ticks> {
        let now = self.now();
        // Report wrong names now, and not when the first tick is due, which may be in a month.
        let claims = self.marker_request(CLAIMED, "")?;
        drop(self.marker_request(ENDED, &now.to_string())?);
        self.client.lease(RUNNING, &self.job).resource()?;
        let info = self.client.info();
        if !info.capabilities.keep_for {
            let message = format!(
                "the backend {} cannot remember that a tick was run, because it cannot keep a released lease closed \
                 (keep_for): use another backend for schedules",
                info.name
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let mut last = None;
        if self.missed != Missed::Skip {
            let claimed = self.list_until_reply(claims.resource()?.key()).await?;
            let claimed =
                claimed.iter().filter_map(|marker| marker.resource.id().rsplit_once('@')?.1.parse().ok());
            last = claimed.filter(|tick| *tick <= now).max();
        }
        if let Err(error) = self.restore_last_success().await {
            tracing::warn!(
                target: "leasehold", job = self.job, %error,
                "cannot read when the job last succeeded, so its metric is not set"
            );
        }
        Ok(Ticks::new(&self.client, &self.schedule, self.missed, last.unwrap_or(now)))
    }

    /// Lists resources. If the backend does not reply, it tries again: a schedule outlives an outage.
    async fn list_until_reply(&self, prefix: &str) -> Result<Vec<Snapshot>> {
        loop {
            match self.client.list(prefix).await {
                Err(error) if error.is_retryable() => {
                    tracing::warn!(
                        target: "leasehold", job = self.job, %error,
                        "cannot read which ticks were run, trying again"
                    );
                    self.client.environment().sleep(RETRY_PAUSE).await;
                }
                listed => return listed,
            }
        }
    }

    /// Sets the metric of the last success from the stored markers. Otherwise a monthly job would have no
    /// last success for up to a month after each start, and an alert could not see that it has stopped.
    async fn restore_last_success(&self) -> Result<()> {
        let ended = self.client.list(self.marker_request(ENDED, "")?.resource()?.key()).await?;
        let records =
            ended.iter().filter_map(|marker| TickRecord::read(marker.holders.first()?.note.as_deref()?));
        let succeeded = records.filter(|record| record.outcome == TickOutcome::Succeeded);
        if let Some(at) = succeeded.filter_map(|record| record.ended).max() {
            self.set_last_success(at);
        }
        Ok(())
    }

    #[expect(clippy::cast_precision_loss, reason = "a gauge is a float, and a microsecond does not matter")]
    fn set_last_success(&self, at: WallTime) {
        metrics::gauge!("leasehold_cron_last_success_timestamp_seconds", "job" => self.job.clone())
            .set(at.as_micros() as f64 / 1e6);
    }

    /// Claims a tick. `None` if it is claimed already, by this or another machine.
    ///
    /// Takes two round trips. After that no other machine runs the tick, also if this process dies. If the
    /// backend does not reply, it tries again until the next tick is due.
    ///
    /// # Cancel safety
    /// If it is dropped, the tick may be claimed and never run.
    ///
    /// # Errors
    /// As [`Cron::run`]. `Unavailable` if the backend has not replied when the next tick is due. Also
    /// `Unavailable` if the tick is claimed and the claim may be our own, from a request without a reply:
    /// then no machine may run it.
    pub async fn claim(&self, at: TickTime) -> Result<Option<ClaimedTick>> {
        self.claim_until(at, &mut StopRequest::new(pending::<Infallible>())).await
    }

    /// As [`Cron::claim`]. A stop ends the pauses between tries, and there is no further try: `Unavailable`.
    async fn claim_until<S: Future>(
        &self,
        at: TickTime,
        stop: &mut StopRequest<S>,
    ) -> Result<Option<ClaimedTick>> {
        let record = TickRecord {
            expression: self.schedule.expression().to_owned(),
            zone: self.schedule.zone().to_owned(),
            began: self.client.environment().wall(),
            ended: None,
            outcome: TickOutcome::Running,
        };
        let deadline = self.schedule.next_after(at).unwrap_or(at);
        let mut may_be_ours = false;
        loop {
            match self.leave_marker(CLAIMED, at, &record).await {
                Err(error) if error.is_retryable() && self.now() < deadline => {
                    tracing::warn!(
                        target: "leasehold", job = self.job, tick = %at, %error,
                        "cannot claim the tick, trying again"
                    );
                    may_be_ours |= error.effect() == Effect::Unknown;
                    if stop.unless_asked(self.client.environment().sleep(RETRY_PAUSE)).await.is_none() {
                        return Err(error);
                    }
                }
                Ok(false) if may_be_ours => {
                    let message = "the tick is claimed, perhaps by an earlier request of this process that got no \
                                   reply: it is not run, because another machine may run it";
                    return Err(Error::new(ErrorKind::Unavailable, message));
                }
                marked => return Ok(marked?.then(|| ClaimedTick { cron: self.clone(), at, record })),
            }
        }
    }

    /// Leaves a marker that stays. False if it is there already.
    async fn leave_marker(&self, kind: &str, at: TickTime, record: &TickRecord) -> Result<bool> {
        let marker = self.marker_request(kind, &at.to_string())?.note(record.write());
        let marker = marker.ttl(MARKER_TTL).renew(false).at_least(claim_retention(&self.schedule, at));
        let Some(lease) = marker.try_acquire().await? else { return Ok(false) };
        // `at_least` keeps the resource closed after the release, also if this process dies in the next
        // moment. If the release fails, the marker is there all the same: whatever the error says, the claim had an
        // effect.
        lease.release().await.map_err(|error| error.with_effect(Effect::Unknown))?;
        Ok(true)
    }

    /// The request for a marker. An empty `at` gives the prefix of all markers of this kind.
    fn marker_request(&self, kind: &str, at: &str) -> Result<LeaseRequest> {
        let request = self.client.lease(kind, &format!("{}@{at}", self.job));
        request.resource()?; // checks the name
        Ok(request)
    }

    fn now(&self) -> TickTime {
        TickTime::of(self.client.environment().wall())
    }

    /// Steps 4 and 5: runs the work under the lease of the job.
    async fn run_under_lease<F, W, E>(&self, at: TickTime, work: &mut F) -> TickOutcome
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
            Ok(None) => return TickOutcome::Skipped,
            Err(error) if error.kind() == ErrorKind::Contended => return TickOutcome::Skipped,
            Err(error) => return TickOutcome::Failed(error.to_string()),
        };
        let tick = Tick { job: self.job.clone(), at, lease: lease.view() };
        let outcome = match lease.hold(work(tick)).await {
            Ok(Ok(())) => TickOutcome::Succeeded,
            Ok(Err(error)) => TickOutcome::Failed(error.to_string()),
            Err(_) => TickOutcome::Lost,
        };
        if let Err(error) = lease.release().await {
            tracing::warn!(
                target: "leasehold", job = self.job, tick = %at, %error,
                "cannot release the lease of the run, trying again in the background"
            );
        }
        outcome
    }
}

/// The kind of resource that marks a tick as claimed.
pub(crate) const CLAIMED: &str = "tick";
/// The kind of resource that marks a tick as ended.
pub(crate) const ENDED: &str = "tick-end";
/// The kind of resource that a run holds.
pub(crate) const RUNNING: &str = "cron";

/// A tick that this process claimed: no other may run it.
#[derive(Debug)]
pub struct ClaimedTick {
    cron: Cron,
    at: TickTime,
    record: TickRecord,
}

impl ClaimedTick {
    /// The time for which the tick was scheduled.
    pub fn at(&self) -> TickTime {
        self.at
    }

    /// Stores how the tick ended, for [`reports`](super::reports) and the metrics. If that fails it is only
    /// logged, because the work is done.
    pub async fn finish(self, outcome: TickOutcome) {
        let ClaimedTick { cron, at, record } = self;
        let ended = cron.client.environment().wall();
        metrics::counter!("leasehold_cron_ticks_total", "job" => cron.job.clone(), "outcome" => outcome.as_str())
            .increment(1);
        if outcome == TickOutcome::Succeeded {
            cron.set_last_success(ended);
        }
        let record = TickRecord { ended: Some(ended), outcome, ..record };
        tracing::info!(
            target: "leasehold", job = cron.job, tick = %at, outcome = record.outcome.as_str(),
            "tick ended"
        );
        if let Err(error) = cron.leave_marker(ENDED, at, &record).await {
            tracing::warn!(
                target: "leasehold", job = cron.job, tick = %at, %error,
                "cannot store the outcome of the tick"
            );
        }
    }
}
