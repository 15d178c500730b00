//! Commands whose processes all end with this program.
//!
//! A step starts programs, which start others: test servers, browsers. None of them may stay behind.
//!
//! 1. Each command has a process group of its own.
//! 2. A shell beside it, the guard, reads from a pipe that this program holds.
//! 3. When the pipe closes, the guard ends the whole group. It closes when the step takes too long, and also when this program ends in
//!    any way: Ctrl-C, SIGTERM or SIGKILL. So no signal has to be handled.
//! 4. When the command has ended by itself, the guard is told so, and ends nothing: some test servers clean up after the tests.

use std::{
    io::{self, Write as _},
    os::unix::process::CommandExt as _,
    process::{Child, Command, ExitStatus, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

/// SIGTERM first, and SIGKILL when ten seconds have passed.
const GUARD: &str = r#"read -r _ && exit
kill -s TERM -- "-$1"
n=0
while [ $n -lt 50 ] && kill -s 0 -- "-$1"; do sleep 0.2; n=$((n + 1)); done
kill -s KILL -- "-$1""#;

/// The shell that ends a process group when this is dropped, and also when this program ends in any way.
#[derive(Debug)]
pub(crate) struct Guard(Child);

/// Starts a command in a process group of its own.
pub(crate) fn spawn(command: &mut Command) -> io::Result<(Child, Guard)> {
    let mut child = command.process_group(0).spawn()?;
    let guard = Command::new("sh")
        .args(["-c", GUARD, "sh", &child.id().to_string()])
        // Ctrl-C ends the group of this program, which must not have the guard in it.
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    match guard {
        Ok(guard) => Ok((child, Guard(guard))),
        Err(error) => {
            drop(child.kill());
            Err(error)
        }
    }
}

impl Guard {
    /// The command has ended by itself.
    pub(crate) fn dismiss(mut self) {
        if let Some(mut pipe) = self.0.stdin.take() {
            drop(pipe.write_all(b"ended\n"));
        }
        drop(self.0.wait());
    }

    /// Ends all processes of the group.
    pub(crate) fn end_group(mut self, leader: &mut Child) {
        drop(self.0.stdin.take());
        // The guard waits for the end of the group, to which a process belongs until its end is read.
        drop(leader.wait());
        drop(self.0.wait());
    }
}

/// Waits for the end of a command for so long. `None` if it took longer: then its group is ended.
pub(crate) fn wait(
    (mut child, guard): (Child, Guard),
    limit: Duration,
    mut meanwhile: impl FnMut(),
) -> io::Result<Option<ExitStatus>> {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            guard.dismiss();
            return Ok(Some(status));
        }
        if started.elapsed() >= limit {
            guard.end_group(&mut child);
            return Ok(None);
        }
        meanwhile();
        thread::sleep(Duration::from_millis(100));
    }
}

/// Runs a command, and returns its output.
pub(crate) fn output(command: &mut Command) -> io::Result<Output> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let (child, guard) = spawn(command)?;
    let output = child.wait_with_output()?;
    guard.dismiss();
    Ok(output)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    /// A shell with a child; both hold its standard output open, and the shell does not end at SIGTERM.
    fn stubborn() -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "trap '' TERM; sleep 600 & sleep 600; sleep 600"]).stdout(Stdio::piped());
        command
    }

    #[test]
    fn a_command_that_takes_too_long_ends_with_its_children() {
        let (mut child, guard) = spawn(&mut stubborn()).unwrap();
        let mut output = child.stdout.take().unwrap();
        let ended = wait((child, guard), Duration::from_millis(200), || ()).unwrap();
        assert_eq!(ended, None);
        // The pipe closes when both have ended.
        assert_eq!(output.read_to_end(&mut Vec::new()).unwrap(), 0);
    }

    #[test]
    fn the_group_ends_when_the_guard_is_gone() {
        let (mut child, guard) = spawn(&mut stubborn()).unwrap();
        let mut output = child.stdout.take().unwrap();
        // As the end of this program does.
        drop(guard);
        assert_eq!(output.read_to_end(&mut Vec::new()).unwrap(), 0);
        assert!(!child.wait().unwrap().success());
    }

    #[test]
    fn what_a_command_leaves_running_goes_on_after_its_end() {
        // The child answers after the shell has ended and the guard was dismissed.
        let mut command = Command::new("sh");
        command.args(["-c", "(read -r word; echo \"got $word\") <&3 3<&- & exit 3"]);
        let mut relay = Command::new("sh");
        relay
            .args(["-c", "exec 3<&0; exec \"$@\"", "sh"])
            .arg(command.get_program())
            .args(command.get_args());
        relay.stdin(Stdio::piped()).stdout(Stdio::piped());
        let (mut child, guard) = spawn(&mut relay).unwrap();
        let (mut input, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let status = wait((child, guard), LONG, || ()).unwrap();
        assert_eq!(status.and_then(|status| status.code()), Some(3));
        input.write_all(b"it\n").unwrap();
        let mut text = String::new();
        output.read_to_string(&mut text).unwrap();
        assert_eq!(text, "got it\n");
    }

    #[test]
    fn the_output_is_returned() {
        let output = output(Command::new("sh").args(["-c", "echo out; echo err >&2; exit 1"])).unwrap();
        assert_eq!((output.stdout.as_slice(), output.stderr.as_slice()), (&b"out\n"[..], &b"err\n"[..]));
        assert_eq!(output.status.code(), Some(1));
    }
}
