//! Runs the command of one tick, as a child `leasehold run`.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use leasehold::{Clock as _, ErrorKind, SystemClock};
use leasehold_patterns::schedule::{TickOutcome, TickTime};
use rustix::process::Signal;

use super::{Context, Cron};
use crate::{
    args::Global,
    child_run::{ChildOutcome, ChildRun},
    exit::Failure,
    metrics_file,
    signals::Signals,
};

/// Runs the command of a job.
pub(super) struct TickRunner<'a> {
    pub(super) global: &'a Global,
    pub(super) context: &'a Context,
    pub(super) options: &'a Cron,
    pub(super) job: &'a str,
}

/// How the run of a tick ended.
pub(super) struct TickEnd {
    pub(super) outcome: TickOutcome,
    /// The exit code of the command, or of `leasehold run` if that failed itself.
    pub(super) code: Option<u8>,
    pub(super) took: Duration,
    /// The signal that ends us, if one came.
    pub(super) signal: Option<Signal>,
}

impl TickRunner<'_> {
    /// Runs the command and waits for it. A signal that ends us is forwarded to the command.
    pub(super) async fn run(&self, at: TickTime, signals: &mut Signals) -> Result<TickEnd, Failure> {
        let metrics = self.global.metrics_file.as_deref().map(metrics_of_run);
        let began = SystemClock.now();
        let (ended, signal) = self.child_run(at, metrics.as_deref())?.run_to_end(signals).await?;
        let took = began.until(SystemClock.now());
        if let Some(file) = metrics {
            add_metrics(&file);
        }
        let code = ended.code();
        let outcome = match ended {
            ChildOutcome::Command(0) => TickOutcome::Succeeded,
            ChildOutcome::Command(code) => TickOutcome::Failed(format!("exit code {code}")),
            ChildOutcome::Killed(status) => TickOutcome::Failed(status.to_string()),
            ended if ended.failed_with(ErrorKind::Contended) => TickOutcome::Skipped,
            ended if ended.failed_with(ErrorKind::Lost) => TickOutcome::Lost,
            ChildOutcome::Leasehold { message, .. } => TickOutcome::Failed(message),
        };
        Ok(TickEnd { outcome, code, took, signal })
    }

    /// The child: `leasehold run` on the resource `cron/JOB`, which keeps two runs of the job apart. The tick
    /// itself is claimed by the caller, and its claim stays closed for longer (ADR 0029).
    fn child_run(&self, at: TickTime, metrics: Option<&Path>) -> Result<ChildRun, Failure> {
        let mut child_run = ChildRun::new(self.global, metrics)?;
        let command = &mut child_run.command;
        command.env("LEASEHOLD_TICK", at.to_string()).stdin(Stdio::null()).args(["--label", self.job]);
        let flags = [
            ("--wait", self.options.wait),
            ("--at-least", self.options.at_least),
            ("--ttl", self.options.ttl),
            ("--max-hold", self.options.max_hold),
        ];
        for (flag, value) in flags {
            if let Some(value) = value {
                command.arg(flag).arg(value.as_secs_f64().to_string());
            }
        }
        command.args(self.options.wait.is_none().then_some("-n"));
        let resource = match self.job.split_once(':') {
            Some((namespace, name)) => format!("{namespace}:cron/{name}"),
            None => format!("cron/{}", self.job),
        };
        command.arg(resource).arg("--").args(&self.options.command);
        Ok(child_run)
    }
}

/// The metrics file of the child. It is next to ours, and its name does not end in `.prom`: a node exporter does not read it.
fn metrics_of_run(ours: &Path) -> PathBuf {
    let mut path = ours.to_owned().into_os_string();
    path.push(format!(".run-{}", std::process::id()));
    path.into()
}

/// Adds the counters of the child to ours: there is one metrics file.
fn add_metrics(of_child: &Path) {
    if let Ok(text) = fs::read_to_string(of_child) {
        metrics_file::add_counters(&text);
        let _ = fs::remove_file(of_child); // the next child replaces it
    }
}
