//! Reports on jobs for operators: how the last tick ended, and whether a job has stopped.

use std::{collections::BTreeMap, time::Duration};

use leasehold::{Client, Result, Snapshot};

use super::{
    cron::{CLAIMED, ENDED, RUNNING},
    expression::Schedule,
    record::{TickOutcome, TickRecord},
    tick_time::TickTime,
};

/// What is known about a job.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CronReport {
    /// The name of the job.
    pub job: String,
    /// The last tick of the job.
    pub tick: TickTime,
    /// What is stored about the last tick.
    pub record: TickRecord,
    /// The host that claimed the last tick.
    pub host: String,
    /// The last tick that succeeded, if its marker is still there.
    pub last_success: Option<TickTime>,
    /// The next tick.
    pub next: Option<TickTime>,
    /// How much the tick after the last one is overdue.
    pub late_by: Option<Duration>,
    /// How many ticks are recorded: the newest ones.
    pub recorded: u32,
    /// How many of them failed or lost their lease.
    pub failures: u32,
    /// How many of them did not run, because the run before them had not ended.
    pub skipped: u32,
}

/// A tick is not late within this time: machines are busy, and clocks differ.
const GRACE: Duration = Duration::from_secs(60);
/// A run releases its lease, then stores its outcome. This is much longer than the time between the two.
const OUTCOME_DELAY: Duration = Duration::from_secs(1);

/// The record and the host of each tick, by job.
type TicksByJob = BTreeMap<String, BTreeMap<TickTime, (TickRecord, String)>>;

/// Reports on every job in the client's namespace, sorted by name. A job is listed until a hundred ticks
/// after its last one: at least three days, at most ten years.
///
/// # Errors
/// The errors of the backend.
pub async fn reports(client: &Client) -> Result<Vec<CronReport>> {
    let mut ticks = TicksByJob::new();
    for kind in [CLAIMED, ENDED] {
        let any = client.lease(kind, "x");
        let markers = client.list(any.resource()?.key().trim_end_matches('x')).await?;
        // The markers of ended ticks come second, and replace those of claimed ticks.
        markers.iter().for_each(|marker| add_marker(marker, &mut ticks));
    }
    let now = TickTime::of(client.environment().wall());
    let mut reports: Vec<_> =
        ticks.into_iter().filter_map(|(job, ticks)| report_on(job, &ticks, now)).collect();
    mark_vanished(client, &mut reports).await?;
    Ok(reports)
}

/// Finds runs that are stored as running and hold no lease. Such a run has ended just now, or its process
/// died.
async fn mark_vanished(client: &Client, reports: &mut [CronReport]) -> Result<()> {
    let mut doubtful = Vec::new();
    for report in reports {
        let age = TickTime::of(report.record.began).until(TickTime::of(client.environment().wall()));
        let is_old = report.record.outcome == TickOutcome::Running && age > GRACE;
        if is_old && client.look(RUNNING, &report.job).await?.holders.iter().all(|by| by.kept) {
            doubtful.push(report);
        }
    }
    if !doubtful.is_empty() {
        client.environment().sleep(OUTCOME_DELAY).await;
    }
    for report in doubtful {
        let ended = client.look(ENDED, &format!("{}@{}", report.job, report.tick)).await?;
        match ended.holders.first().and_then(|by| by.note.as_deref()).and_then(TickRecord::read) {
            Some(record) => report.record = record,
            None => report.record.outcome = TickOutcome::Vanished,
        }
    }
    Ok(())
}

/// Adds the record in a marker, and replaces an earlier one of the same tick.
fn add_marker(marker: &Snapshot, ticks: &mut TicksByJob) {
    let id = marker.resource.id();
    let Some((job, at)) = id.rsplit_once('@') else { return };
    let (Ok(at), Some(by)) = (at.parse(), marker.holders.first()) else { return };
    let Some(record) = by.note.as_deref().and_then(TickRecord::read) else { return };
    ticks.entry(job.to_owned()).or_default().insert(at, (record, by.holder.host.clone()));
}

fn report_on(
    job: String,
    ticks: &BTreeMap<TickTime, (TickRecord, String)>,
    now: TickTime,
) -> Option<CronReport> {
    let (tick, (record, host)) = ticks.last_key_value()?;
    let succeeded = ticks.iter().filter(|(_, (record, _))| record.outcome == TickOutcome::Succeeded);
    let last_success = succeeded.map(|(tick, _)| *tick).next_back();
    let schedule =
        Schedule::parse(&record.expression).and_then(|schedule| schedule.in_zone(&record.zone)).ok();
    let next_after = |time| schedule.as_ref().and_then(|schedule| schedule.next_after(time));
    let late_by = next_after(*tick).map(|due| due.until(now)).filter(|late| *late > GRACE);
    let (tick, record, host, next) = (*tick, record.clone(), host.clone(), next_after(now.max(*tick)));
    let count = |is_one: fn(&TickOutcome) -> bool| {
        let found = ticks.values().filter(|(record, _)| is_one(&record.outcome)).count();
        u32::try_from(found).unwrap_or(u32::MAX)
    };
    Some(CronReport {
        job,
        tick,
        record,
        host,
        last_success,
        next,
        late_by,
        recorded: count(|_| true),
        failures: count(|outcome| matches!(outcome, TickOutcome::Failed(_) | TickOutcome::Lost)),
        skipped: count(|outcome| *outcome == TickOutcome::Skipped),
    })
}
