//! A run of a job that failed: it is printed, and `--on-failure` runs a command.

use std::{
    process::{ExitStatus, Stdio},
    time::Duration,
};

use leasehold_patterns::schedule::{TickOutcome, TickTime};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::Command;

use super::tick::{TickEnd, TickRunner};
use crate::{settings, signals::Signals, text};

/// How long the command of `--on-failure` may take. It must not keep the next tick from being run.
const ON_FAILURE_MAX: Duration = Duration::from_secs(60);

impl TickRunner<'_> {
    /// Prints that the run failed, and runs the command of `--on-failure`. Returns the signal that ends us, if one comes
    /// meanwhile.
    pub(super) async fn report_failure(
        &self,
        at: TickTime,
        ended: &TickEnd,
        signals: &mut Signals,
    ) -> Option<Signal> {
        let why = match &ended.outcome {
            TickOutcome::Failed(why) => why.clone(),
            TickOutcome::Lost => "the lease was lost".to_owned(),
            _ => return None,
        };
        let took = text::span(ended.took);
        self.note(&format!("the run of {at} failed after {took}: {why}"));
        let mut command = self.failure_command()?;
        let code = ended.code.map_or(String::new(), |code| code.to_string());
        let facts = [
            ("LEASEHOLD_JOB", self.job.to_owned()),
            ("LEASEHOLD_TICK", at.to_string()),
            ("LEASEHOLD_OUTCOME", ended.outcome.as_str().to_owned()),
            ("LEASEHOLD_WHY", why),
            ("LEASEHOLD_EXIT_CODE", code),
            ("LEASEHOLD_TOOK_SECONDS", format!("{:.3}", ended.took.as_secs_f64())),
        ];
        let mut child = match command.envs(facts).spawn() {
            Ok(child) => child,
            Err(error) => {
                self.note(&format!("the command of --on-failure cannot be started: {error}"));
                return None;
            }
        };
        let group = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        let kill = |signal| group.map(|group| kill_process_group(group, signal)); // it may have just ended
        tokio::select! {
            ended = child.wait() => {
                if let Some(how) = unsuccessful(ended) {
                    self.note(&format!("the command of --on-failure failed: {how}"));
                }
                None
            }
            () = tokio::time::sleep(ON_FAILURE_MAX) => {
                kill(Signal::KILL);
                let limit = text::span(ON_FAILURE_MAX);
                self.note(&format!("the command of --on-failure was killed: it took more than {limit}"));
                None
            }
            signal = signals.next() => {
                kill(signal);
                Some(signal)
            }
        }
    }

    /// The command of `--on-failure`, with the environment that the command of a run gets: a `leasehold` in it uses the same
    /// store, and finds no password without `--pass-secrets`.
    fn failure_command(&self) -> Option<Command> {
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(self.options.on_failure.as_ref()?).stdin(Stdio::null()).process_group(0);
        for variable in settings::NOT_INHERITED {
            command.env_remove(variable);
        }
        // Two processes must not write to one metrics file.
        command.envs(self.context.variables()).env_remove("LEASEHOLD_METRICS_FILE");
        Some(command)
    }

    fn note(&self, text: &str) {
        self.context.output.note(&format!("{}: {text}", self.job));
    }
}

fn unsuccessful(ended: std::io::Result<ExitStatus>) -> Option<String> {
    match ended {
        Ok(status) if status.success() => None,
        Ok(status) => Some(status.to_string()),
        Err(error) => Some(error.to_string()),
    }
}
