//! `leasehold run` as a child of ours, on the same store: for commands that run others again and again.

use std::process::ExitStatus;

use rustix::process::{Pid, Signal, getpid, getppid, kill_process, set_parent_process_death_signal};
use tokio::process::{Child, Command};

use crate::{args::Global, exit::Failure, signals::Signals};

/// `leasehold run`, to be given options, a resource and a command. It ends with us.
pub(crate) fn run(global: &Global) -> Result<Command, Failure> {
    let program = std::env::current_exe().map_err(Failure::host)?;
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
    command.arg("run").arg("--with-parent").arg(getpid().as_raw_nonzero().to_string());
    Ok(command)
}

/// In the child: TERM comes when the parent ends. False if it has ended already.
pub(crate) fn ends_with(parent: i32) -> bool {
    let is_set = set_parent_process_death_signal(Some(Signal::TERM)).is_ok();
    is_set && getppid().is_some_and(|now| now.as_raw_nonzero().get() == parent)
}

/// Starts it and waits for its end; signals that would end us are passed on, and the last of them is told.
pub(crate) async fn see_through(
    command: &mut Command,
    signals: &mut Signals,
) -> Result<(ExitStatus, Option<Signal>), Failure> {
    let mut child = command.spawn().map_err(Failure::host)?;
    let mut told = None;
    loop {
        tokio::select! {
            status = child.wait() => return Ok((status.map_err(Failure::host)?, told)),
            signal = signals.next() => {
                told = Some(signal);
                pass_on(&child, signal);
            }
        }
    }
}

fn pass_on(child: &Child, signal: Signal) {
    let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    // It may have ended in this moment.
    let _ = pid.map(|pid| kill_process(pid, signal));
}
