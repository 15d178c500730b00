//! Child processes with default signal dispositions.

use std::{ffi::OsStr, process::Command};

/// The signals that a shell or `nohup` may have set to "ignore" in the process that runs the tests.
///
/// A shell without job control starts its background commands with SIGINT and SIGQUIT ignored, `nohup`
/// ignores SIGHUP, and children inherit that.
pub(crate) const DEFAULT_SIGNALS: &str = "--default-signal=INT,QUIT,HUP,TERM";

/// A command that starts `program` with the default action for SIGINT, SIGQUIT, SIGHUP and SIGTERM.
///
/// Use it for every child that a test ends or interrupts by a signal: otherwise the test fails when the whole
/// run was started in the background of a script. The process id is that of `program`, because `env` replaces
/// itself by it.
///
/// ```
/// let output = leasehold_testkit::command_with_default_signals("echo").arg("started").output().unwrap();
/// assert_eq!(output.stdout, b"started\n");
/// ```
pub fn command_with_default_signals(program: impl AsRef<OsStr>) -> Command {
    // `env` of GNU coreutils 8.31 or newer. Resetting signals in this process would need unsafe code
    // (`pre_exec`).
    let mut command = Command::new("env");
    command.arg(DEFAULT_SIGNALS).arg(program);
    command
}
