//! One tick: the command, under `leasehold run`.

use std::process::Stdio;

use leasehold::ErrorKind;
use leasehold_patterns::schedule::{Instant, Outcome};
use rustix::process::Signal;

use super::{Context, Cron};
use crate::{
    args::Global,
    exit::Failure,
    relaunch::{Ended, Relaunch},
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
        let (ended, told) = self.relaunch(at)?.see_through(signals).await?;
        let outcome = match ended {
            Ended::Command(0) => Outcome::Succeeded,
            Ended::Command(code) => Outcome::Failed(format!("exit code {code}")),
            Ended::Killed(status) => Outcome::Failed(status.to_string()),
            ended if ended.is_by(ErrorKind::Contended) => Outcome::Skipped,
            ended if ended.is_by(ErrorKind::Lost) => Outcome::Lost,
            Ended::Itself { message, .. } => Outcome::Failed(message),
        };
        Ok((outcome, told))
    }

    /// Everything that `leasehold run` does for a command, it does for this one.
    fn relaunch(&self, at: Instant) -> Result<Relaunch, Failure> {
        let mut relaunch = Relaunch::new(self.global)?;
        let command = &mut relaunch.command;
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
        Ok(relaunch)
    }
}
