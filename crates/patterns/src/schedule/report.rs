//! What became of the ticks: for operators, and to see that a job has stopped.

use std::{collections::BTreeMap, time::Duration};

use leasehold::{Client, Result, Snapshot};

use super::{
    cron::{CLAIMED, ENDED, RUNNING},
    expression::Schedule,
    instant::Instant,
    record::{Outcome, Record},
};

/// What is known of a job.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// Its name.
    pub job: String,
    /// Its last tick.
    pub tick: Instant,
    /// What became of it.
    pub record: Record,
    /// On which machine.
    pub host: String,
    /// The last tick that succeeded, if it is still remembered.
    pub last_success: Option<Instant>,
    /// When it is due next.
    pub next: Option<Instant>,
    /// The tick after its last one is overdue by this much.
    pub late_by: Option<Duration>,
}

/// A minute is not late: machines are busy, clocks differ.
const GRACE: Duration = Duration::from_secs(60);
/// Far longer than from the release of a run's lease until its end is written down.
const MOMENT: Duration = Duration::from_secs(1);

type Ticks = BTreeMap<String, BTreeMap<Instant, (Record, String)>>;

/// What is known of every job in the client's namespace, by name. A job is forgotten a hundred ticks after its last one, and
/// three days at the earliest; after ten years at the latest.
///
/// # Errors
/// Whatever the backend says.
pub async fn reports(client: &Client) -> Result<Vec<Report>> {
    let mut ticks = Ticks::new();
    for kind in [CLAIMED, ENDED] {
        let any = client.lease(kind, "x");
        let seen = client.list(any.resource()?.key().trim_end_matches('x')).await?;
        seen.iter().for_each(|seen| note(seen, &mut ticks));
    }
    let now = Instant::of(client.environment().wall());
    let mut reports: Vec<_> = ticks.into_iter().filter_map(|(job, ticks)| report(job, &ticks, now)).collect();
    find_vanished(client, &mut reports).await?;
    Ok(reports)
}

/// A run that is said to go on, and holds no lease, has ended in this moment, or its machine did.
async fn find_vanished(client: &Client, reports: &mut [Report]) -> Result<()> {
    let mut doubtful = Vec::new();
    for report in reports {
        let age = Instant::of(report.record.began).until(Instant::of(client.environment().wall()));
        let is_old = report.record.outcome == Outcome::Running && age > GRACE;
        if is_old && client.look(RUNNING, &report.job).await?.holders.iter().all(|by| by.kept) {
            doubtful.push(report);
        }
    }
    if !doubtful.is_empty() {
        client.environment().sleep(MOMENT).await;
    }
    for report in doubtful {
        let ended = client.look(ENDED, &format!("{}@{}", report.job, report.tick)).await?;
        match ended.holders.first().and_then(|by| by.note.as_deref()).and_then(Record::read) {
            Some(record) => report.record = record,
            None => report.record.outcome = Outcome::Vanished,
        }
    }
    Ok(())
}

/// What ended overwrites what began.
fn note(seen: &Snapshot, ticks: &mut Ticks) {
    let id = seen.resource.id();
    let Some((job, at)) = id.rsplit_once('@') else { return };
    let (Ok(at), Some(by)) = (at.parse(), seen.holders.first()) else { return };
    let Some(record) = by.note.as_deref().and_then(Record::read) else { return };
    ticks.entry(job.to_owned()).or_default().insert(at, (record, by.holder.host.clone()));
}

fn report(job: String, ticks: &BTreeMap<Instant, (Record, String)>, now: Instant) -> Option<Report> {
    let (tick, (record, host)) = ticks.last_key_value()?;
    let succeeded = ticks.iter().filter(|(_, (record, _))| record.outcome == Outcome::Succeeded);
    let last_success = succeeded.map(|(tick, _)| *tick).next_back();
    let schedule =
        Schedule::parse(&record.expression).and_then(|schedule| schedule.in_zone(&record.zone)).ok();
    let after = |instant| schedule.as_ref().and_then(|schedule| schedule.next_after(instant));
    let late_by = after(*tick).map(|due| due.until(now)).filter(|late| *late > GRACE);
    let (tick, record, host, next) = (*tick, record.clone(), host.clone(), after(now.max(*tick)));
    Some(Report { job, tick, record, host, last_success, next, late_by })
}
