//! The program `leasehold`: leases and locks for shell commands, and the operator's commands.
//!
//! | module | what it holds |
//! |---|---|
//! | `args` | the command line: global options and the list of commands |
//! | `commands` | one file or folder per command |
//! | `config`, `store`, `redact` | `config.toml`, the URL of the store, and removing passwords from texts |
//! | `exit`, `output` | exit codes and errors, and how they are printed |
//! | `logs`, `metrics_file` | log lines on stderr, and metrics in a file |
//! | `run_lease` | the lease that a command of `leasehold run` works under |
//! | `guardian`, `signals` | stopping the command in time (ADR 0013), and forwarding signals to it |
//! | `child_run` | `leasehold run` as a child process, for `cron` and `elect` |
//! | `terminal`, `job_control` | the controlling terminal, and shell job control |
//! | `session`, `order`, `liveness`, `leak_detection` | what the operator's commands share |
//! | `screen`, `table`, `text`, `view`, `names` | printing on stdout, JSON output, and reading resource names |

#![allow(rustdoc::broken_intra_doc_links, reason = "help texts have brackets that are no links")]

mod args;
mod child_run;
mod commands;
mod config;
mod exit;
mod guardian;
mod job_control;
mod leak_detection;
mod liveness;
mod logs;
mod metrics_file;
mod names;
mod order;
mod outage;
mod output;
mod redact;
mod run_lease;
mod screen;
mod session;
mod signals;
mod store;
mod table;
mod terminal;
mod text;
mod view;

use std::process::ExitCode;

use crate::{args::Cli, exit::Failure, output::Output};

#[cfg(not(target_os = "linux"))]
compile_error!("the program `leasehold` needs Linux (subreapers, pidfd, timerfd); the library does not");

fn main() -> ExitCode {
    // `leasehold run` starts this same program again as the guardian of its command (ADR 0013). The guardian
    // reads no options: everything after the hidden command is the user's command.
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_some_and(|first| first == guardian::COMMAND) {
        return guardian::main(arguments.collect());
    }
    let cli = match Cli::read(std::env::args_os()) {
        Ok(cli) => cli,
        Err(error) => return output::usage(&error),
    };
    let output = Output::new(&cli.global);
    let ended = logs::start(&cli.global).and_then(|()| in_runtime(commands::run(cli, output)));
    match ended {
        Ok(code) => code,
        Err(failure) => output.fail(&failure),
    }
}

/// Runs the command on a runtime with one thread: one lease needs no more, and a waiting process should cost
/// little.
fn in_runtime<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime =
        runtime.map_err(|error| Failure::internal(format!("cannot start the async runtime: {error}")))?;
    let ended = runtime.block_on(work);
    // Do not wait for blocking threads: one of them may hang on a store that does not reply.
    runtime.shutdown_background();
    ended
}
