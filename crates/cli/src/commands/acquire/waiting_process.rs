//! The process that the shell waits for, with `--keep`: it starts the keeper, prints the lease, and ends.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    os::{
        fd::OwnedFd,
        unix::{net::UnixStream, process::CommandExt as _},
    },
    process::{Child, Command, ExitCode, Stdio},
};

use super::{Acquire, Granted, OnLoss, keeper};
use crate::{exit::Failure, kept_process::KeptProcess, output::Output, process_id::ProcessId};

pub(super) fn run(acquire: &Acquire, pid: i32, output: Output) -> Result<ExitCode, Failure> {
    let no_process = || keeper::has_ended(&acquire.resource, pid);
    // Now, and not in the keeper: until then, another process could have this id.
    let process = ProcessId::of(pid).ok_or_else(no_process)?;
    if acquire.on_loss != Some(OnLoss::Nothing) && !KeptProcess::may_be_signalled(pid) {
        let message =
            format!("process {pid} belongs to another user, so it could not be told of a loss (--keep)");
        return Err(Failure::usage(message).hint("use --on-loss none if it need not be told"));
    }
    let (socket, mut keeper) = start(process).map_err(Failure::host)?;
    let mut line = String::new();
    let read = BufReader::new(&socket).read_line(&mut line);
    let granted = read.ok().and_then(|_| serde_json::from_str::<Granted>(&line).ok());
    let Some(granted) = granted else { return keeper_failed(&mut keeper) };
    granted.print(acquire, output.json)?; // if it fails, the socket closes, and the keeper releases the lease
    (&socket).write_all(keeper::PRINTED).map_err(Failure::host)?;
    Ok(ExitCode::SUCCESS)
}

/// Starts this same program as the keeper. Passwords that were typed reach it in the environment (ADR 0069).
fn start(process: ProcessId) -> std::io::Result<(UnixStream, Child)> {
    let (ours, theirs) = UnixStream::pair()?;
    let mut words = std::env::args_os();
    let mut command = Command::new("/proc/self/exe");
    command.arg0(words.next().unwrap_or_default()).arg(keeper::COMMAND).arg(process.to_string()).args(words);
    let keeper = command.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null()).spawn()?;
    Ok((ours, keeper)) // `command` is dropped, and with it our copy of `theirs`
}

/// The keeper has printed why.
fn keeper_failed(keeper: &mut Child) -> Result<ExitCode, Failure> {
    let status = keeper.wait().map_err(Failure::host)?;
    match status.code().and_then(|code| u8::try_from(code).ok()) {
        // Also 0: with `-E 0`, that the resource is held is no error.
        Some(code) => Ok(ExitCode::from(code)),
        None => {
            Err(Failure::internal(format!("the process that was to keep the lease was killed ({status})"))
                .hint("run it again"))
        }
    }
}
