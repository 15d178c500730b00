//! `leasehold run` as a child of ours, on the same store: for commands that run others again and again.
//!
//! A command may exit with any code, with ours as well. So the child does not only end, it also tells whose code it was:
//! in a file in our memory, which it finds below our process. A pipe that it inherited would go on to the command.

use std::{
    fs::File,
    io::Read as _,
    os::fd::AsRawFd as _,
    process::{ExitCode, ExitStatus},
    str::FromStr,
};

use leasehold::ErrorKind;
use rustix::{
    fs::{MemfdFlags, memfd_create},
    process::{Pid, Signal, getpid, getppid, kill_process, set_parent_process_death_signal},
};
use tokio::process::{Child, Command};

use crate::{
    args::Global,
    exit::{Exit, Failure},
    secret,
    signals::Signals,
};

/// `leasehold run`, to be started. It ends with us.
pub(crate) struct Relaunch {
    /// To be given options, a resource and a command.
    pub(crate) command: Command,
    /// Where it tells whose exit code it was.
    told: File,
}

/// How it ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// With the command's exit code, or 128+n after signal n.
    Command(u8),
    /// It was killed itself.
    Killed(ExitStatus),
    /// With a code of ours.
    Itself { code: u8, kind: String, message: String },
}

impl Ended {
    /// Of the three, only being killed has no code.
    pub(crate) fn code(&self) -> Option<u8> {
        match self {
            Ended::Command(code) | Ended::Itself { code, .. } => Some(*code),
            Ended::Killed(_) => None,
        }
    }

    /// Whether it was ours, for this reason.
    pub(crate) fn is_by(&self, reason: ErrorKind) -> bool {
        matches!(self, Ended::Itself { kind, .. } if kind == reason.as_str())
    }

    fn of(status: ExitStatus, told: &str) -> Ended {
        let Some(code) = status.code().and_then(|code| u8::try_from(code).ok()) else {
            return Ended::Killed(status);
        };
        match told.split_once('\n') {
            Some((COMMAND, _)) => Ended::Command(code),
            Some((kind, message)) => {
                Ended::Itself { code, kind: kind.to_owned(), message: message.to_owned() }
            }
            None => Ended::guessed(code),
        }
    }

    /// It could not tell: the program may be executed but not read, so that our files are hidden from it.
    fn guessed(code: u8) -> Ended {
        let ours = [
            (Exit::Busy, ErrorKind::Contended),
            (Exit::Lost, ErrorKind::Lost),
            (Exit::Unavailable, ErrorKind::Unavailable),
        ];
        ours.iter().find(|(exit, _)| exit.code() == code).map_or(Ended::Command(code), |(_, kind)| {
            Ended::Itself { code, kind: kind.as_str().to_owned(), message: format!("exit code {code}") }
        })
    }
}

/// What stands where a kind of failure would, if there was none of ours.
const COMMAND: &str = "command";

impl Relaunch {
    pub(crate) fn new(global: &Global) -> Result<Relaunch, Failure> {
        let program = std::env::current_exe().map_err(Failure::host)?;
        let told =
            memfd_create("leasehold", MemfdFlags::CLOEXEC).map_err(|errno| Failure::host(errno.into()))?;
        let told = File::from(told);
        let mut command = Command::new(program);
        if let Some(store) = &global.store {
            command.env("LEASEHOLD_STORE", store); // not an argument: anyone can read those
        }
        for (flag, path) in [("--config", &global.config), ("--password-file", &global.password_file)] {
            if let Some(path) = path {
                command.arg(flag).arg(path);
            }
        }
        command.args(std::iter::repeat_n("-v", usize::from(global.verbose)));
        command.args(global.quiet.then_some("-q")).args(global.json.then_some("--json"));
        let parent = Parent { pid: getpid().as_raw_nonzero().get(), told: told.as_raw_fd() };
        command.arg("run").arg("--with-parent").arg(parent.to_string());
        Ok(Relaunch { command, told })
    }

    /// Starts it and waits for its end; signals that would end us are passed on, and the last of them is told.
    pub(crate) async fn see_through(
        mut self,
        signals: &mut Signals,
    ) -> Result<(Ended, Option<Signal>), Failure> {
        let mut child = self.command.spawn().map_err(Failure::host)?;
        let mut last = None;
        let status = loop {
            tokio::select! {
                status = child.wait() => break status.map_err(Failure::host)?,
                signal = signals.next() => {
                    last = Some(signal);
                    pass_on(&child, signal);
                }
            }
        };
        let mut told = String::new();
        self.told.read_to_string(&mut told).map_err(Failure::host)?;
        Ok((Ended::of(status, &told), last))
    }
}

fn pass_on(child: &Child, signal: Signal) {
    let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    // It may have ended in this moment.
    let _ = pid.map(|pid| kill_process(pid, signal));
}

/// In the child: who started it, and which of its files is to be told how it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parent {
    pid: i32,
    told: i32,
}

impl std::fmt::Display for Parent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.pid, self.told)
    }
}

impl FromStr for Parent {
    type Err = String;

    fn from_str(text: &str) -> Result<Parent, String> {
        let parts = text.split_once(':').map(|(pid, told)| (pid.parse(), told.parse()));
        let Some((Ok(pid), Ok(told))) = parts else { return Err("write PID:FILE".to_owned()) };
        Ok(Parent { pid, told })
    }
}

impl Parent {
    /// From now on TERM comes when the parent ends. False if it has ended already.
    pub(crate) fn ends_us(self) -> bool {
        let is_set = set_parent_process_death_signal(Some(Signal::TERM)).is_ok();
        is_set && getppid().is_some_and(|now| now.as_raw_nonzero().get() == self.pid)
    }

    /// Tells it whose exit code comes.
    pub(crate) fn tell(self, ended: &Result<ExitCode, Failure>) {
        let told = match ended {
            Ok(_) => format!("{COMMAND}\n"),
            Err(failure) => format!("{}\n{}", failure.kind, secret::scrub(&failure.message)),
        };
        // If that is refused, it has to guess by the code.
        let _ = std::fs::write(format!("/proc/{}/fd/{}", self.pid, self.told), told);
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
    fn whose_code_it_was_is_told_and_else_guessed() {
        for code in [0, 1, 69, 75, 79] {
            assert_eq!(Ended::of(exited(code), "command\n"), Ended::Command(code));
        }
        let busy = Ended::of(exited(3), "contended\nheld by\nanother");
        assert!(busy.is_by(ErrorKind::Contended) && busy.code() == Some(3));
        assert!(matches!(busy, Ended::Itself { message, .. } if message == "held by\nanother"));
        let guesses = [(75, ErrorKind::Contended), (79, ErrorKind::Lost), (69, ErrorKind::Unavailable)];
        for (code, kind) in guesses {
            assert!(Ended::of(exited(code), "").is_by(kind), "{code}");
        }
        assert_eq!(Ended::of(exited(7), ""), Ended::Command(7));
        let killed = ExitStatus::from_raw(9);
        assert_eq!(Ended::of(killed, ""), Ended::Killed(killed));
    }

    #[test]
    fn a_parent_reads_back_and_nothing_else_does() {
        let parent = Parent { pid: 7, told: 12 };
        assert_eq!(parent.to_string().parse(), Ok(parent));
        for wrong in ["", "7", "7:", ":7", "7:x", "7:8:9"] {
            assert!(wrong.parse::<Parent>().is_err(), "{wrong}");
        }
    }
}
