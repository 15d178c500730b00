//! One tick: the command, under `leasehold run`.

use std::process::Stdio;

use leasehold_patterns::schedule::{Instant, Outcome};
use rustix::process::Signal;
use tokio::process::Command;

use super::{Context, Cron};
use crate::{
    args::Global,
    exit::{Exit, Failure},
    relaunch,
    signals::Signals,
};

pub(super) struct Work<'a> {
    pub(super) global: &'a Global,
    pub(super) context: &'a Context,
    pub(super) options: &'a Cron,
    pub(super) job: &'a str,
}

impl Work<'_> {
    /// Runs the command; a signal that ends us is passed on, and the command waited for.
    pub(super) async fn run(
        &self,
        at: Instant,
        signals: &mut Signals,
    ) -> Result<(Outcome, Option<Signal>), Failure> {
        let (status, told) = relaunch::see_through(&mut self.command(at)?, signals).await?;
        let outcome = match status.code() {
            Some(0) => Outcome::Succeeded,
            Some(code) if code == i32::from(Exit::Busy.code()) => Outcome::Skipped,
            Some(code) if code == i32::from(Exit::Lost.code()) => Outcome::Lost,
            Some(code) => Outcome::Failed(format!("exit code {code}")),
            None => Outcome::Failed(status.to_string()),
        };
        Ok((outcome, told))
    }

    /// Everything that `leasehold run` does for a command, it does for this one.
    fn command(&self, at: Instant) -> Result<Command, Failure> {
        let mut command = relaunch::run(self.global)?;
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
        Ok(command)
    }
}
