//! `leasehold`: leases for anyone with a shell.
//!
//! | module | what it holds |
//! |---|---|
//! | `args` | what can be typed |
//! | `commands` | one file per command: its whole life on one screen |
//! | `config`, `store`, `secret` | where leases are kept, and what of that may be shown |
//! | `exit`, `output` | how a command ends, and what it says |
//! | `logs`, `metrics_file` | for those who watch |
//! | `hold` | what a command holds while it runs |
//! | `guardian`, `signals` | who stops it in time, and what it is told |
//! | `relaunch` | `run` again and again, as a child: for `cron` and `elect` |
//! | `terminal`, `job` | who may read from the terminal, and how the shell sees us |
//! | `desk`, `order`, `alive`, `leak` | the operator: looking, ordering, telling the living from the dead |
//! | `screen`, `table`, `text`, `view`, `names` | what people and programs are shown, and how they name things |

#![allow(rustdoc::broken_intra_doc_links, reason = "help texts have brackets that are no links")]

mod alive;
mod args;
mod commands;
mod config;
mod desk;
mod exit;
mod guardian;
mod hold;
mod job;
mod leak;
mod logs;
mod metrics_file;
mod names;
mod order;
mod output;
mod relaunch;
mod screen;
mod secret;
mod signals;
mod store;
mod table;
mod terminal;
mod text;
mod view;

use std::process::ExitCode;

use crate::{args::Cli, exit::Failure, output::Output};

#[cfg(not(target_os = "linux"))]
compile_error!("the program needs Linux; the library does not");

fn main() -> ExitCode {
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

/// One thread: a lease needs no more, and a waiting command should cost little.
fn in_runtime<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::internal(format!("cannot start: {error}")))?;
    let ended = runtime.block_on(work);
    // Threads that wait for a backend which does not answer are not waited for.
    runtime.shutdown_background();
    ended
}
