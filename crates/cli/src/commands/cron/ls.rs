//! `leasehold cron ls`

use std::process::ExitCode;

use clap::Args;
use leasehold::{Client, WallTime};
use leasehold_patterns::schedule::{CronReport, TickOutcome, TickTime, reports};
use serde::Serialize;

use crate::{
    args::Global,
    commands::{Access, Context},
    exit::Failure,
    output::Output,
    screen::Screen,
    table::{Cell, Style, Table},
    text,
};

#[derive(Debug, Args)]
#[command(
    after_help = "A job that has stopped is listed for another hundred of its ticks, and for at least three days.\nIn a monitor, name the jobs: a job that is not listed any more, or has never run, is only then reported."
)]
pub(super) struct Ls {
    /// Only these jobs
    #[arg(value_name = "JOB")]
    jobs: Vec<String>,
    /// For monitoring: exit with 1 if a job is late, its last tick did not succeed, or there is no record of
    /// it
    #[arg(long)]
    check: bool,
}

#[derive(Serialize)]
struct JobList<'a> {
    jobs: Vec<JobView<'a>>,
}

#[derive(Serialize)]
struct JobView<'a> {
    job: &'a str,
    schedule: &'a str,
    zone: &'a str,
    tick: String,
    outcome: &'static str,
    why: Option<&'a str>,
    host: &'a str,
    began: String,
    ended: Option<String>,
    last_success: Option<String>,
    next: Option<String>,
    late_by_ms: Option<u64>,
}

impl<'a> JobView<'a> {
    fn of(report: &'a CronReport) -> JobView<'a> {
        let record = &report.record;
        let why = if let TickOutcome::Failed(why) = &record.outcome { Some(why.as_str()) } else { None };
        JobView {
            job: &report.job,
            schedule: &record.expression,
            zone: &record.zone,
            tick: report.tick.to_string(),
            outcome: record.outcome.as_str(),
            why,
            host: &report.host,
            began: text::exact_time(record.began),
            ended: record.ended.map(text::exact_time),
            last_success: report.last_success.map(|tick| tick.to_string()),
            next: report.next.map(|tick| tick.to_string()),
            late_by_ms: report.late_by.map(crate::view::millis),
        }
    }
}

impl Ls {
    pub(super) async fn run(&self, global: &Global, output: Output) -> Result<ExitCode, Failure> {
        let context = Context::new(global, output)?;
        let client = Client::new(context.open(Access::Read).await?);
        let client =
            global.namespace.as_ref().map_or(client.clone(), |namespace| client.namespace(namespace));
        let mut found = reports(&client).await?;
        if !self.jobs.is_empty() {
            found.retain(|report| self.jobs.contains(&report.job));
        }
        let screen = Screen::now();
        if output.json {
            screen.print_json(&JobList { jobs: found.iter().map(JobView::of).collect() })?;
        } else if !found.is_empty() {
            screen.print_lines(&screen.lines(&table(&found)))?;
        }
        // `--check` fails for these: a monitor may look into the wrong store, or for a job that never ran.
        let is_unknown = |job: &&String| !found.iter().any(|report| report.job == **job);
        let unknown: Vec<_> = self.jobs.iter().filter(is_unknown).collect();
        unknown.iter().for_each(|job| output.note(&format!("there is no record of the job {job}")));
        if found.is_empty() && unknown.is_empty() {
            output.note("there is no record of any job");
        }
        let is_well = |report: &CronReport| {
            report.late_by.is_none()
                && matches!(report.record.outcome, TickOutcome::Succeeded | TickOutcome::Running)
        };
        let all_well = unknown.is_empty() && !found.is_empty() && found.iter().all(is_well);
        Ok(if self.check && !all_well { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}

fn table(reports: &[CronReport]) -> Table<8> {
    let mut table =
        Table::new(["=JOB", "SCHEDULE", "LAST TICK", "OUTCOME", "TOOK", "HOST", "LAST SUCCESS", "NEXT"]);
    let shown = |tick: Option<TickTime>| tick.map_or("-".to_owned(), |tick| tick.to_string());
    for report in reports {
        let record = &report.record;
        let next = match report.late_by {
            Some(late) => Cell::styled(format!("late by {}", text::span(late)), Style::Bad),
            None => Cell::from(shown(report.next)),
        };
        table.row([
            report.job.as_str().into(),
            format!("{} {}", record.expression, record.zone).into(),
            report.tick.to_string().into(),
            outcome(&record.outcome),
            record.ended.map_or("-".to_owned(), |ended| text::span(between(record.began, ended))).into(),
            report.host.as_str().into(),
            shown(report.last_success).into(),
            next,
        ]);
    }
    table
}

fn outcome(outcome: &TickOutcome) -> Cell {
    match outcome {
        TickOutcome::Succeeded => Cell::styled("succeeded", Style::Good),
        TickOutcome::Failed(why) => Cell::styled(format!("failed: {why}"), Style::Bad),
        TickOutcome::Lost | TickOutcome::Vanished => Cell::styled(outcome.as_str(), Style::Bad),
        other => Cell::styled(other.as_str(), Style::Warn),
    }
}

fn between(from: WallTime, to: WallTime) -> std::time::Duration {
    std::time::Duration::from_micros(to.as_micros().saturating_sub(from.as_micros()))
}
