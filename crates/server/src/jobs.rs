//! What is known about jobs on a schedule: the records that they keep in the store, read at most once in two seconds for any number of
//! pages.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use leasehold::Client;
use leasehold_api::jobs::{ScheduleBody, TickOutcomeBody};
use leasehold_core::{Backend, Environment, Error, ErrorKind, Resource, Result};
use leasehold_patterns::schedule::{CronReport, TickOutcome, TickTime, reports};
use leasehold_support::text::{printable, span};
use tokio::{
    sync::Mutex,
    time::{Instant, timeout},
};

use crate::sampler::Sample;

/// An answer is this old at most.
const FRESH: Duration = Duration::from_secs(2);
/// The most namespaces whose records are read.
const NAMESPACES_MAX: usize = 100;
/// The kind of the lease that a job holds while it runs.
const RUNNING: &str = "cron";
/// The kinds of the records.
pub(crate) const RECORD_KINDS: [&str; 2] = ["tick", "tick-end"];

/// A job, with the resource that it holds while it runs.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) resource: Resource,
    pub(crate) report: CronReport,
}

/// Reads the records of jobs.
pub(crate) struct Jobs {
    client: Client,
    limit: Duration,
    /// Held while they are read, so that one reading is enough for all who want to know.
    known: Mutex<Option<(Instant, Arc<Vec<Job>>)>>,
}

impl Jobs {
    pub(crate) fn new(backend: Arc<dyn Backend>, environment: Arc<dyn Environment>, limit: Duration) -> Jobs {
        let client = Client::builder(backend).environment(environment).build();
        Jobs { client, limit, known: Mutex::new(None) }
    }

    /// All jobs, in the namespaces where this sample has records of them.
    ///
    /// # Errors
    /// Those of the store.
    pub(crate) async fn all(&self, sample: &Sample) -> Result<Arc<Vec<Job>>> {
        let mut known = self.known.lock().await;
        if let Some((_, jobs)) = known.as_ref().filter(|(at, _)| at.elapsed() < FRESH) {
            return Ok(Arc::clone(jobs));
        }
        let read = timeout(self.limit, self.read(namespaces(sample))).await;
        let jobs = Arc::new(read.map_err(|_| no_answer(self.limit)).flatten()?);
        *known = Some((Instant::now(), Arc::clone(&jobs)));
        Ok(jobs)
    }

    async fn read(&self, namespaces: BTreeSet<Option<String>>) -> Result<Vec<Job>> {
        let mut jobs = Vec::new();
        for namespace in namespaces.into_iter().take(NAMESPACES_MAX) {
            let client = match &namespace {
                Some(namespace) => self.client.namespace(namespace),
                None => self.client.clone(),
            };
            for report in reports(&client).await? {
                let resource = client.lease(RUNNING, &report.job).resource()?.clone();
                jobs.push(Job { resource, report });
            }
        }
        Ok(jobs)
    }
}

fn no_answer(limit: Duration) -> Error {
    let message = format!("the records of jobs could not be read within {}", span(limit));
    Error::new(ErrorKind::Unavailable, message)
}

/// The namespaces with records.
fn namespaces(sample: &Sample) -> BTreeSet<Option<String>> {
    let records = sample.rows().iter().map(|row| &row.snapshot.resource);
    let records = records.filter(|resource| RECORD_KINDS.contains(&resource.kind()));
    records.map(|resource| resource.namespace().map(str::to_owned)).collect()
}

impl Job {
    /// The job as the API shows it, with the process that runs it now.
    pub(crate) fn body(&self, sample: &Sample) -> ScheduleBody {
        let CronReport { job, tick, record, host, last_success, next, late_by, .. } = &self.report;
        let text = |tick: &TickTime| tick.to_string();
        let holder =
            sample.row(&self.resource).and_then(|row| row.snapshot.holders.iter().find(|by| !by.kept));
        let error = if let TickOutcome::Failed(why) = &record.outcome { Some(why.clone()) } else { None };
        let name =
            self.resource.namespace().map_or_else(|| job.clone(), |namespace| format!("{namespace}:{job}"));
        let vanished = u32::from(record.outcome == TickOutcome::Vanished);
        ScheduleBody {
            sentence: self.sentence(&name),
            name,
            schedule: format!("{} {}", record.expression, record.zone),
            next_at: next.as_ref().map(text),
            last_tick_at: Some(text(tick)),
            last_outcome: self.outcome(),
            last_success_at: last_success.as_ref().map(text),
            error,
            late_by_ms: late_by.map(leasehold_api::fields::ms_down),
            failures: self.report.failures + vanished,
            missed: self.report.skipped + u32::from(late_by.is_some()),
            recorded: self.report.recorded,
            holder: holder.map(|by| (&*by.holder).into()),
            host: host.clone(),
            resource: self.resource.to_string(),
        }
    }

    fn outcome(&self) -> TickOutcomeBody {
        match &self.report.record.outcome {
            TickOutcome::Failed(_) | TickOutcome::Lost | TickOutcome::Vanished => TickOutcomeBody::Failed,
            TickOutcome::Running => TickOutcomeBody::Running,
            TickOutcome::Skipped => TickOutcomeBody::Missed,
            _ if self.report.late_by.is_some() => TickOutcomeBody::Missed,
            _ => TickOutcomeBody::Ok,
        }
    }

    fn sentence(&self, name: &str) -> String {
        let CronReport { tick, record, next, late_by, .. } = &self.report;
        let how = match &record.outcome {
            TickOutcome::Succeeded => "succeeded".to_owned(),
            TickOutcome::Failed(why) => format!("failed: {}", why.lines().next().unwrap_or_default()),
            TickOutcome::Lost => "lost its lease".to_owned(),
            TickOutcome::Vanished => {
                "did not end properly: its process disappeared, and the result is unknown".to_owned()
            }
            TickOutcome::Running => "runs".to_owned(),
            TickOutcome::Skipped => "did not run, because the run before it had not ended".to_owned(),
            other => other.as_str().to_owned(),
        };
        let then = match (late_by, next) {
            (Some(late), _) => format!("the next one is {} late", span(*late)),
            (None, Some(next)) => format!("the next one is at {next}"),
            (None, None) => "there is no next one".to_owned(),
        };
        printable(&format!("{name}: the tick of {tick} {how}; {then}"))
    }
}
