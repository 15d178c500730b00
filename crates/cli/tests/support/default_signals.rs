//! Starts programs with default signal dispositions.

use std::process::Command;

/// A command whose process does not inherit ignored signals from the test.
///
/// A shell starts a background job (`cargo test &` in a script) with SIGINT and SIGQUIT ignored, and `nohup`
/// ignores SIGHUP. Child processes inherit that, and `leasehold` keeps an ignored signal ignored on purpose.
/// A test that sends such a signal would wait for ever. `env` from coreutils resets all signals and then
/// becomes the program, with the same pid.
pub(crate) fn command(program: &str) -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal", program]);
    command
}
