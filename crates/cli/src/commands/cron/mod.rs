//! `leasehold cron SCHEDULE JOB -- COMMAND…`, `leasehold cron ls`, `leasehold cron next SCHEDULE`

mod ls;
mod next;
mod tick;

use std::{ffi::OsString, process::ExitCode, time::Duration};

use clap::{Args, Subcommand};
use leasehold::Client;
use leasehold_patterns::schedule::{Cron as Job, Missed, Schedule};
use rustix::process::Signal;

use super::Context;
use crate::{
    args::{Global, duration},
    exit::{self, Failure},
    output::Output,
    signals::Signals,
};

/// Run a command on a schedule, once on all machines together
///
/// Start it on every machine, with the same schedule and job. Of each tick, whoever comes first runs the command, as
/// `leasehold run` does: one at a time, ended if its lease is lost. A tick is run at most once, even if clocks differ and
/// even if the run crashes. The command finds the instant of its tick in `LEASEHOLD_TICK`.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "Examples:\n  leasehold cron '*/5 * * * *' cleanup -- ./cleanup.sh\n  leasehold cron --zone Europe/Berlin --missed latest '30 2 * * *' report -- ./report.sh\n  leasehold cron ls --check"
)]
pub(crate) struct Cron {
    #[command(subcommand)]
    look: Option<Look>,
    /// When: minute, hour, day of the month, month, day of the week; or @hourly and the like
    #[arg(required = true)]
    schedule: Option<String>,
    /// The job, by a name that is the same on all machines: [NAMESPACE:]NAME
    #[arg(required = true)]
    job: Option<String>,
    /// The command and its arguments, exactly as they are
    #[arg(required = true, trailing_var_arg = true)]
    command: Vec<OsString>,
    /// The time zone of the schedule, as in Europe/Berlin
    #[arg(long, default_value = "UTC", global = true)]
    zone: String,
    /// Ticks that nobody ran, because all machines were down: skip them, run the latest, or run the last N
    #[arg(long, value_name = "skip|latest|N", default_value = "skip", value_parser = missed)]
    missed: Missed,
    /// Wait so long for the run before to end, else skip the tick [default: do not wait]
    #[arg(short, long, value_name = "DURATION", value_parser = duration)]
    wait: Option<Duration>,
    /// No run within this long after the beginning of another
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    at_least: Option<Duration>,
    /// How long the lease lasts unless renewed, which happens by itself: 1s to 24h [default: 30s]
    #[arg(long, value_parser = duration)]
    ttl: Option<Duration>,
    /// Stop the command after this long
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    max_hold: Option<Duration>,
}

#[derive(Debug, Subcommand)]
enum Look {
    /// List jobs: their last ticks, what became of them, when they are due, and which are late
    Ls(ls::Ls),
    /// Say what a schedule means, and when it is due next
    Next(next::Next),
}

fn missed(text: &str) -> Result<Missed, String> {
    match (text, text.parse::<u32>()) {
        ("skip", _) => Ok(Missed::Skip),
        ("latest", _) => Ok(Missed::Latest),
        (_, Ok(most @ 1..=100)) => Ok(Missed::Last(most)),
        _ => Err("write skip, latest, or how many of the last ones: 1 to 100".to_owned()),
    }
}

impl Cron {
    pub(crate) async fn run(self, global: &Global, output: Output) -> Result<ExitCode, Failure> {
        match &self.look {
            Some(Look::Ls(ls)) => ls.run(global, output).await,
            Some(Look::Next(next)) => next.run(&self.zone, output),
            None => self.keep_time(global, output).await,
        }
    }

    /// Runs the ticks until a signal comes.
    async fn keep_time(&self, global: &Global, output: Output) -> Result<ExitCode, Failure> {
        let (Some(schedule), Some(job)) = (&self.schedule, &self.job) else {
            return Err(Failure::usage("a schedule and a job are needed").hint("see --help"));
        };
        let schedule = Schedule::parse(schedule)?.in_zone(&self.zone)?;
        let (namespace, name) =
            job.split_once(':').map_or((None, job.as_str()), |(space, name)| (Some(space), name));
        let context = Context::new(global, output)?;
        let mut signals = Signals::ending().map_err(Failure::host)?;
        let client = Client::builder(context.store.open().await?).label(name).build();
        let client = namespace.map_or(client.clone(), |namespace| client.namespace(namespace));
        client.lease("cron", name).resource()?;
        let cron = Job::new(&client, name, schedule).missed(self.missed);
        if output.is_watched() {
            output.say(&format!("{job}: {}, {}", cron.schedule(), next::due(cron.schedule(), &client)));
        }
        let work = tick::Work { global, context: &context, options: self, job };
        let ended = self.ticks(&cron, &work, &mut signals).await;
        let _ = tokio::time::timeout(Duration::from_secs(2), client.shutdown()).await;
        context.write_metrics();
        ended.map(|signal| ExitCode::from(exit::by_signal(signal.as_raw())))
    }

    async fn ticks(
        &self,
        cron: &Job,
        work: &tick::Work<'_>,
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
                    let (outcome, signal) = work.run(at, signals).await?;
                    claimed.finish(outcome).await;
                    work.context.write_metrics();
                    if let Some(signal) = signal {
                        return Ok(signal);
                    }
                }
                Err(error) if error.is_retryable() => {
                    work.context.output.say(&format!("{}: the tick of {at} is lost: {error}", work.job));
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}
