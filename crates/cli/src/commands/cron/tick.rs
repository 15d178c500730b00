//! One tick: the command, under `leasehold run`.

use std::process::Stdio;

use leasehold_patterns::schedule::{Instant, Outcome};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};

use super::{Context, Cron};
use crate::{
    args::Global,
    exit::{Exit, Failure},
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
        let mut child = match self.command(at)?.spawn() {
            Ok(child) => child,
            Err(error) => return Ok((Outcome::Failed(format!("cannot start: {error}")), None)),
        };
        let mut told = None;
        let status = loop {
            tokio::select! {
                status = child.wait() => break status.map_err(Failure::host)?,
                signal = signals.next() => {
                    told = Some(signal);
                    pass_on(&child, signal);
                }
            }
        };
        let outcome = match status.code() {
            Some(0) => Outcome::Succeeded,
            Some(code) if code == i32::from(Exit::Busy.code()) => Outcome::Skipped,
            Some(code) if code == i32::from(Exit::Lost.code()) => Outcome::Lost,
            Some(code) => Outcome::Failed(format!("exit code {code}")),
            None => Outcome::Failed(status.to_string()),
        };
        Ok((outcome, told))
    }

    /// `leasehold run` on the same store: everything that it does for a command, it does for this one.
    fn command(&self, at: Instant) -> Result<Command, Failure> {
        let program = std::env::current_exe().map_err(Failure::host)?;
        let mut command = Command::new(program);
        command.env("LEASEHOLD_TICK", at.to_string()).stdin(Stdio::null());
        if let Some(store) = &self.global.store {
            command.env("LEASEHOLD_STORE", store); // not an argument: anyone can read those
        }
        for (flag, path) in
            [("--config", &self.global.config), ("--password-file", &self.global.password_file)]
        {
            if let Some(path) = path {
                command.arg(flag).arg(path);
            }
        }
        command.args(std::iter::repeat_n("-v", usize::from(self.global.verbose)));
        command.args(self.global.quiet.then_some("-q")).arg("run").args(["--label", self.job]);
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
        let (space, name) = self.job.split_once(':').map_or(("", self.job), |(space, name)| (space, name));
        let resource = if space.is_empty() { format!("cron/{name}") } else { format!("{space}:cron/{name}") };
        command.arg(resource).arg("--").args(&self.options.command);
        Ok(command)
    }
}

fn pass_on(child: &Child, signal: Signal) {
    let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    // It may have ended in this moment.
    let _ = pid.map(|pid| kill_process(pid, signal));
}
