//! `leasehold run` as a child process on the same store, for `leasehold cron` and `leasehold elect`.
//!
//! A command may exit with any code, also with one that `leasehold` itself uses, such as 75. So the parent
//! must know whether an exit code is the command's or `leasehold`'s:
//!
//! 1. The parent makes a file in memory (memfd) and passes `--with-parent PID:FD` to the child.
//! 2. The child writes its report to `/proc/PID/fd/FD`: `command`, or the kind and the message of its own
//!    error. An inherited pipe would not do: the command would inherit it as well.
//! 3. The parent reads the report when the child has ended. Without a report it guesses by the exit code.
//!
//! The child gets TERM when the parent dies (`PR_SET_PDEATHSIG`), so it does not outlive the parent.

use std::{
    fs::File,
    io::Read as _,
    os::fd::AsRawFd as _,
    path::Path,
    process::{ExitCode, ExitStatus},
    str::FromStr,
};

use clap::ValueEnum as _;
use leasehold::ErrorKind;
use rustix::{
    fs::{MemfdFlags, memfd_create},
    process::{Pid, Signal, getpid, getppid, kill_process, set_parent_process_death_signal},
};
use tokio::process::{Child, Command};

use crate::{
    args::Global,
    exit::{Exit, Failure},
    redact,
    signals::Signals,
};

/// A `leasehold run` that is about to be started.
pub(crate) struct ChildRun {
    /// The command line so far. The caller adds options, the resource and the command.
    pub(crate) command: Command,
    /// The file that the child writes its report to.
    report: File,
}

/// How the child ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ChildOutcome {
    /// With the exit code of its command, or 128+n if signal n killed the command.
    Command(u8),
    /// The child itself was killed.
    Killed(ExitStatus),
    /// With an error of `leasehold run` itself, and one of its own exit codes.
    Leasehold { code: u8, kind: String, message: String },
}

impl ChildOutcome {
    /// The exit code. A child that was killed has none.
    pub(crate) fn code(&self) -> Option<u8> {
        match self {
            ChildOutcome::Command(code) | ChildOutcome::Leasehold { code, .. } => Some(*code),
            ChildOutcome::Killed(_) => None,
        }
    }

    /// Whether `leasehold run` itself failed, with this kind of error.
    pub(crate) fn failed_with(&self, reason: ErrorKind) -> bool {
        matches!(self, ChildOutcome::Leasehold { kind, .. } if kind == reason.as_str())
    }

    fn of(status: ExitStatus, report: &str) -> ChildOutcome {
        let Some(code) = status.code().and_then(|code| u8::try_from(code).ok()) else {
            return ChildOutcome::Killed(status);
        };
        match report.split_once('\n') {
            Some((REPORT_COMMAND, _)) => ChildOutcome::Command(code),
            Some((kind, message)) => {
                ChildOutcome::Leasehold { code, kind: kind.to_owned(), message: message.to_owned() }
            }
            None => ChildOutcome::guessed(code),
        }
    }

    /// Without a report. If the program file is executable but not readable, the kernel hides our files in
    /// `/proc` from the child, and it cannot write one.
    fn guessed(code: u8) -> ChildOutcome {
        let ours = [
            (Exit::Busy, ErrorKind::Contended),
            (Exit::Lost, ErrorKind::Lost),
            (Exit::Unavailable, ErrorKind::Unavailable),
        ];
        ours.iter().find(|(exit, _)| exit.code() == code).map_or(ChildOutcome::Command(code), |(_, kind)| {
            ChildOutcome::Leasehold {
                code,
                kind: kind.as_str().to_owned(),
                message: format!("exit code {code}"),
            }
        })
    }
}

/// The report of a child that passes the exit code of its command on.
const REPORT_COMMAND: &str = "command";

impl ChildRun {
    /// `metrics` is the metrics file of the child. It adds to the counters that it finds there.
    pub(crate) fn new(global: &Global, metrics: Option<&Path>) -> Result<ChildRun, Failure> {
        let program = std::env::current_exe().map_err(Failure::host)?;
        let report =
            memfd_create("leasehold", MemfdFlags::CLOEXEC).map_err(|errno| Failure::host(errno.into()))?;
        let report = File::from(report);
        let mut command = Command::new(program);
        if let Some(store) = &global.store {
            command.env("LEASEHOLD_STORE", store); // not as an argument: every user can read those
        }
        // Two processes must not write to one metrics file.
        command.env_remove("LEASEHOLD_METRICS_FILE");
        let files = [
            ("--config", global.config.as_deref()),
            ("--password-file", global.password_file.as_deref()),
            ("--hash-key-file", global.hash_key_file.as_deref()),
            ("--metrics-file", metrics),
        ];
        for (flag, path) in files {
            if let Some(path) = path {
                command.arg(flag).arg(path);
            }
        }
        if let Some(format) = global.log_format.and_then(|format| format.to_possible_value()) {
            command.arg("--log-format").arg(format.get_name());
        }
        command.args(std::iter::repeat_n("-v", usize::from(global.verbose)));
        match &global.namespace {
            Some(namespace) => command.arg("--namespace").arg(namespace),
            None => command.arg("--no-namespace"),
        };
        command.args(global.pass_secrets.then_some("--pass-secrets"));
        command.args(global.quiet.then_some("-q")).args(global.json.then_some("--json"));
        let parent = ParentProcess { pid: getpid().as_raw_nonzero().get(), report_fd: report.as_raw_fd() };
        command.arg("run").arg("--with-parent").arg(parent.to_string());
        Ok(ChildRun { command, report })
    }

    /// Starts the child and waits until it ends. Signals that would end us are forwarded to it; the last of
    /// them is returned.
    pub(crate) async fn run_to_end(
        mut self,
        signals: &mut Signals,
    ) -> Result<(ChildOutcome, Option<Signal>), Failure> {
        let mut child = self.command.spawn().map_err(Failure::host)?;
        let mut last = None;
        let status = loop {
            tokio::select! {
                status = child.wait() => break status.map_err(Failure::host)?,
                signal = signals.next() => {
                    last = Some(signal);
                    forward(&child, signal);
                }
            }
        };
        let mut report = String::new();
        self.report.read_to_string(&mut report).map_err(Failure::host)?;
        Ok((ChildOutcome::of(status, &report), last))
    }
}

fn forward(child: &Child, signal: Signal) {
    let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    // The child may have just ended.
    let _ = pid.map(|pid| kill_process(pid, signal));
}

/// In the child: the process that started it, and the number of the file for the report in that process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ParentProcess {
    pid: i32,
    report_fd: i32,
}

impl std::fmt::Display for ParentProcess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.pid, self.report_fd)
    }
}

impl FromStr for ParentProcess {
    type Err = String;

    fn from_str(text: &str) -> Result<ParentProcess, String> {
        let parts = text.split_once(':').map(|(pid, fd)| (pid.parse(), fd.parse()));
        let Some((Ok(pid), Ok(report_fd))) = parts else {
            return Err("expected PID:FD, two numbers".to_owned());
        };
        Ok(ParentProcess { pid, report_fd })
    }
}

impl ParentProcess {
    /// Has the kernel send us TERM when the parent ends. False if the parent has ended already.
    pub(crate) fn bind_lifetime(self) -> bool {
        let is_set = set_parent_process_death_signal(Some(Signal::TERM)).is_ok();
        is_set && getppid().is_some_and(|now| now.as_raw_nonzero().get() == self.pid)
    }

    /// Writes the report: whose exit code comes.
    pub(crate) fn report(self, ended: &Result<ExitCode, Failure>) {
        let report = match ended {
            Ok(_) => format!("{REPORT_COMMAND}\n"),
            Err(failure) => format!("{}\n{}", failure.kind, redact::redact(&failure.message)),
        };
        // If this fails, the parent guesses by the exit code.
        let _ = std::fs::write(format!("/proc/{}/fd/{}", self.pid, self.report_fd), report);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    fn exited(code: u8) -> ExitStatus {
        ExitStatus::from_raw(i32::from(code) << 8)
    }

    #[test]
    fn the_report_tells_whose_exit_code_it_is_and_without_one_it_is_guessed() {
        for code in [0, 1, 69, 75, 79] {
            assert_eq!(ChildOutcome::of(exited(code), "command\n"), ChildOutcome::Command(code));
        }
        let busy = ChildOutcome::of(exited(3), "contended\nheld by\nanother");
        assert!(busy.failed_with(ErrorKind::Contended) && busy.code() == Some(3));
        assert!(matches!(busy, ChildOutcome::Leasehold { message, .. } if message == "held by\nanother"));
        let guesses = [(75, ErrorKind::Contended), (79, ErrorKind::Lost), (69, ErrorKind::Unavailable)];
        for (code, kind) in guesses {
            assert!(ChildOutcome::of(exited(code), "").failed_with(kind), "{code}");
        }
        assert_eq!(ChildOutcome::of(exited(7), ""), ChildOutcome::Command(7));
        let killed = ExitStatus::from_raw(9);
        assert_eq!(ChildOutcome::of(killed, ""), ChildOutcome::Killed(killed));
    }

    #[test]
    fn a_parent_is_parsed_as_it_is_written() {
        let parent = ParentProcess { pid: 7, report_fd: 12 };
        assert_eq!(parent.to_string().parse(), Ok(parent));
        for wrong in ["", "7", "7:", ":7", "7:x", "7:8:9"] {
            assert!(wrong.parse::<ParentProcess>().is_err(), "{wrong}");
        }
    }
}
