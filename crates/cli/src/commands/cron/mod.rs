//! `leasehold cron SCHEDULE JOB -- COMMAND…`, `leasehold cron ls`, `leasehold cron next SCHEDULE`

mod defaults;
mod ls;
mod next;
mod on_failure;
mod tick;

use std::{ffi::OsString, process::ExitCode, time::Duration};

use clap::{Args, Subcommand};
use leasehold::{Client, Resource};
use leasehold_patterns::schedule::{Cron as Job, Missed, Schedule};
use rustix::process::Signal;

use super::Context;
use crate::{
    args::{Global, duration},
    exit::{self, Failure},
    outage::WaitLimit,
    output::Output,
    signals::Signals,
};

/// Run a command on a schedule, once for all machines together
///
/// Start it on every machine, with the same schedule and job. For each tick, the first machine that claims it
/// runs the command, as `leasehold run` does: one at a time, and ended if its lease is lost. A tick runs at
/// most once, even if the clocks of the machines differ, and even if the run crashes. The command finds the
/// time of its tick in `LEASEHOLD_TICK`. While the store cannot be reached, it tries again.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "Examples:\n  leasehold cron '*/5 * * * *' cleanup -- ./cleanup.sh\n  leasehold cron --zone Europe/Berlin --missed latest '30 2 * * *' report -- ./report.sh\n  leasehold cron ls --check"
)]
pub(crate) struct Cron {
    #[command(subcommand)]
    inspect: Option<CronCommand>,
    /// The schedule: minute, hour, day of month, month, day of week; or @hourly, @daily, @weekly, @monthly,
    /// @yearly
    #[arg(required = true)]
    schedule: Option<String>,
    /// The name of the job, the same on all machines: [NAMESPACE:]NAME
    #[arg(required = true)]
    pub(crate) job: Option<String>,
    /// The command and its arguments, passed on unchanged
    #[arg(required = true, trailing_var_arg = true)]
    command: Vec<OsString>,
    /// The time zone of the schedule, such as Europe/Berlin [default: UTC]
    #[arg(long, global = true)]
    zone: Option<String>,
    /// What to do about ticks that were missed because all machines were down: skip them, run the latest, or
    /// run the last N [default: skip]
    #[arg(long, value_name = "skip|latest|N", value_parser = missed)]
    missed: Option<Missed>,
    /// Wait this long for the previous run to end, then skip the tick [default: do not wait]
    #[arg(short, long, value_name = "DURATION", value_parser = duration)]
    wait: Option<Duration>,
    /// The shortest time from the start of one run to the start of the next
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    at_least: Option<Duration>,
    /// How long the lease lasts without a renewal; renewals are automatic. 1s to 24h [default: 30s]
    #[arg(long, value_parser = duration)]
    ttl: Option<Duration>,
    /// Stop the command after this long
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    max_hold: Option<Duration>,
    /// When a run fails or loses its lease, run this in a shell (/bin/sh). It finds what happened in `LEASEHOLD_JOB`,
    /// `LEASEHOLD_TICK`, `LEASEHOLD_OUTCOME`, `LEASEHOLD_WHY`, `LEASEHOLD_EXIT_CODE`, `LEASEHOLD_TOOK_SECONDS`
    #[arg(long, value_name = "COMMAND")]
    on_failure: Option<OsString>,
}

#[derive(Debug, Subcommand)]
enum CronCommand {
    /// List jobs: the last tick and its outcome, the next tick, and whether the job is late
    Ls(ls::Ls),
    /// Explain a schedule and print its next ticks
    Next(next::Next),
}

fn missed(text: &str) -> Result<Missed, String> {
    match (text, text.parse::<u32>()) {
        ("skip", _) => Ok(Missed::Skip),
        ("latest", _) => Ok(Missed::Latest),
        // ADR 0029: the claim of a tick is kept until a hundred ticks have followed, so no more can be run
        // late.
        (_, Ok(most @ 1..=100)) => Ok(Missed::Last(most)),
        _ => Err("expected skip, latest, or the number of the last ticks to run: 1 to 100".to_owned()),
    }
}

/// How long to wait for the store at the end.
const SHUTDOWN_MAX: Duration = Duration::from_secs(2);

impl Cron {
    pub(crate) async fn run(self, global: &Global, output: Output) -> Result<ExitCode, Failure> {
        match &self.inspect {
            Some(CronCommand::Ls(ls)) => ls.run(global, output).await,
            Some(CronCommand::Next(next)) => next.run(self.zone(), output),
            None => self.run_schedule(global, output).await,
        }
    }

    /// Runs the ticks of the job until a signal ends it.
    async fn run_schedule(&self, global: &Global, output: Output) -> Result<ExitCode, Failure> {
        let (Some(schedule), Some(job)) = (&self.schedule, &self.job) else {
            return Err(Failure::usage("SCHEDULE and JOB are missing").hint("see leasehold cron --help"));
        };
        let schedule = Schedule::parse(schedule)?.in_zone(self.zone())?;
        let (namespace, name) =
            job.split_once(':').map_or((None, job.as_str()), |(space, name)| (Some(space), name));
        // A wrong name is reported before the store is asked for, which may take long.
        let resource = Resource::new("cron", name)?;
        namespace.map_or(Ok(resource.clone()), |namespace| resource.in_namespace(namespace))?;
        let context = Context::new(global, output)?;
        let mut signals = Signals::ending().map_err(Failure::host)?;
        signals.end_at_once(true); // opening a file can block this thread
        let backend = context.store.open_when_reachable(job, output, &WaitLimit::from_now(None)).await?;
        signals.end_at_once(false);
        let client = Client::builder(backend).label(name).build();
        let client = namespace.map_or(client.clone(), |namespace| client.namespace(namespace));
        let cron = Job::new(&client, name, schedule).missed(self.missed.unwrap_or(Missed::Skip));
        if output.shows_progress() {
            output.note(&format!("{job}: {}, {}", cron.schedule(), next::due(cron.schedule(), &client)));
        }
        let work = tick::TickRunner { global, context: &context, options: self, job };
        let ended = self.ticks(&cron, &work, &mut signals).await;
        let _ = tokio::time::timeout(SHUTDOWN_MAX, client.shutdown()).await;
        context.write_metrics();
        ended.map(|signal| ExitCode::from(exit::by_signal(signal.as_raw())))
    }

    async fn ticks(
        &self,
        cron: &Job,
        work: &tick::TickRunner<'_>,
        signals: &mut Signals,
    ) -> Result<Signal, Failure> {
        let mut ticks = tokio::select! {
            ticks = cron.ticks() => ticks?,
            signal = signals.next() => return Ok(signal),
        };
        work.context.write_metrics();
        loop {
            let at = tokio::select! {
                at = ticks.next() => at?,
                signal = signals.next() => return Ok(signal),
            };
            let claimed = tokio::select! {
                claimed = cron.claim(at) => claimed,
                signal = signals.next() => return Ok(signal),
            };
            match claimed {
                Ok(None) => {}
                Ok(Some(claimed)) => {
                    let ended = work.run(at, signals).await?;
                    claimed.finish(ended.outcome.clone()).await;
                    work.context.write_metrics();
                    if let Some(signal) = ended.signal {
                        return Ok(signal);
                    }
                    if let Some(signal) = work.report_failure(at, &ended, signals).await {
                        return Ok(signal);
                    }
                }
                Err(error) if error.is_retryable() => {
                    work.context.output.note(&format!(
                        "{}: the tick of {at} was not run on this machine: {error}",
                        work.job
                    ));
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}
