//! Runs the command of one tick, as a child `leasehold run`.

use std::process::Stdio;

use leasehold::ErrorKind;
use leasehold_patterns::schedule::{TickOutcome, TickTime};
use rustix::process::Signal;

use super::{Context, Cron};
use crate::{
    args::Global,
    child_run::{ChildOutcome, ChildRun},
    exit::Failure,
    signals::Signals,
};

/// Runs the command of a job.
pub(super) struct TickRunner<'a> {
    pub(super) global: &'a Global,
    pub(super) context: &'a Context,
    pub(super) options: &'a Cron,
    pub(super) job: &'a str,
}

impl TickRunner<'_> {
    /// Runs the command and waits for it. A signal that ends us is forwarded to the command, and returned.
    pub(super) async fn run(
        &self,
        at: TickTime,
        signals: &mut Signals,
    ) -> Result<(TickOutcome, Option<Signal>), Failure> {
        let (ended, signal) = self.child_run(at)?.run_to_end(signals).await?;
        let outcome = match ended {
            ChildOutcome::Command(0) => TickOutcome::Succeeded,
            ChildOutcome::Command(code) => TickOutcome::Failed(format!("exit code {code}")),
            ChildOutcome::Killed(status) => TickOutcome::Failed(status.to_string()),
            ended if ended.failed_with(ErrorKind::Contended) => TickOutcome::Skipped,
            ended if ended.failed_with(ErrorKind::Lost) => TickOutcome::Lost,
            ChildOutcome::Leasehold { message, .. } => TickOutcome::Failed(message),
        };
        Ok((outcome, signal))
    }

    /// The child: `leasehold run` on the resource `cron/JOB`, which keeps two runs of the job apart. The tick
    /// itself is claimed by the caller, and its claim stays closed for longer (ADR 0029).
    fn child_run(&self, at: TickTime) -> Result<ChildRun, Failure> {
        let mut child_run = ChildRun::new(self.global)?;
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
