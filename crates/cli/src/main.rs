//! The program `leasehold`: leases and locks for shell commands, and the operator's commands.
//!
//! | module | what it holds |
//! |---|---|
//! | `args`, `help` | the command line: global options and the list of commands |
//! | `commands` | one file or folder per command |
//! | `config`, `settings` | `config.toml`, and which of option, variable and file counts |
//! | `store`, `store_url`, `missing_store` | opening the store, its URL, and the default store before it exists |
//! | `redact`, `secret_file`, `typed_urls` | keeping passwords out of texts, out of readable files and out of `ps` |
//! | `exit`, `output` | exit codes and errors, and how they are printed |
//! | `logs`, `metrics_file` | log lines on stderr, and metrics in a file |
//! | `claim` | claiming resources, for `run` and `acquire` |
//! | `run_lease`, `held_leases` | the lease, or leases, that a command of `leasehold run` works under |
//! | `guardian`, `signals` | stopping the command in time (ADR 0013), and forwarding signals to it |
//! | `lease_args`, `lease_file` | naming a held lease, for `renew` and `release` |
//! | `process_id`, `kept_process`, `syslog` | other processes, and the system log of a process without a terminal |
//! | `child_run` | `leasehold run` as a child process, for `cron` and `elect` |
//! | `terminal`, `status_line`, `job_control` | the controlling terminal, a line that is redrawn, and shell job control |
//! | `logs`, `traces` | the log on stderr, and traces of `serve` for a collector |
//! | `outage` | waiting for a store that cannot be reached |
//! | `session`, `order`, `liveness`, `holder_state`, `marks`, `leak_detection`, `this_host`, `foreign`, `countdown` | what the operator's commands share |
//! | `screen`, `table`, `text`, `view`, `names` | printing on stdout, JSON output, and reading resource names |

#![allow(rustdoc::broken_intra_doc_links, reason = "help texts have brackets that are no links")]

mod args;
mod child_run;
mod claim;
mod commands;
mod config;
mod countdown;
mod exit;
mod foreign;
mod guardian;
mod held_leases;
mod help;
mod holder_state;
mod job_control;
mod kept_process;
mod leak_detection;
mod lease_args;
mod lease_file;
mod liveness;
mod logs;
mod marks;
mod metrics_file;
mod missing_store;
mod names;
mod order;
mod outage;
mod output;
mod process_id;
mod redact;
mod run_lease;
mod screen;
mod secret_file;
mod session;
mod settings;
mod signals;
mod status_line;
mod store;
mod store_url;
mod syslog;
mod table;
mod terminal;
mod text;
mod this_host;
mod traces;
mod typed_urls;
mod view;

use std::process::ExitCode;

use tokio::runtime::Builder;

use crate::{
    args::{Cli, Command},
    commands::acquire::KeeperStart,
    exit::Failure,
    output::Output,
};

#[cfg(not(target_os = "linux"))]
compile_error!("the program `leasehold` needs Linux (subreapers, pidfd, timerfd); the library does not");

fn main() -> ExitCode {
    // `leasehold run` starts this same program again as the guardian of its command (ADR 0013). The guardian
    // reads no options: everything after the hidden command is the user's command.
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_some_and(|first| first == guardian::COMMAND) {
        return guardian::main(arguments.collect());
    }
    let mut words = typed_urls::restore(std::env::args_os().collect());
    let keeper = KeeperStart::take(&mut words);
    if words.len() < 2 {
        return output::short_help();
    }
    let mut cli = match Cli::read(&words) {
        Ok(cli) => cli,
        Err(error) => return output::usage(&error),
    };
    let output = Output::new(&cli.global);
    let typed_store = cli.global.store.as_deref().filter(|_| cli.global.typed.store);
    typed_urls::hide(typed_store.into_iter().chain(cli.command.typed_urls()), &words, output);
    if let Command::Acquire(acquire) = &mut cli.command {
        acquire.keeper = keeper;
    }
    let ended = settings::settle(&mut cli).and_then(|()| {
        screen::set_color(cli.global.color);
        logs::start(&cli.global, &cli.command)?;
        let runtime = runtime(&cli.command);
        in_runtime(runtime, commands::run(cli, output))
    });
    match ended {
        Ok(code) => code,
        Err(failure) => output.fail(&failure),
    }
}

/// A runtime with one thread: one lease needs no more, and a waiting process should cost little. A server has many connections,
/// so it has a thread for each core.
fn runtime(command: &Command) -> Builder {
    match command {
        #[cfg(feature = "serve")]
        Command::Serve(_) => Builder::new_multi_thread(),
        _ => Builder::new_current_thread(),
    }
}

fn in_runtime<T>(mut runtime: Builder, work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = runtime.enable_all().build();
    let runtime =
        runtime.map_err(|error| Failure::internal(format!("cannot start the async runtime: {error}")))?;
    let ended = runtime.block_on(work);
    // Do not wait for blocking threads: one of them may hang on a store that does not reply.
    runtime.shutdown_background();
    ended
}
