//! `leasehold run RESOURCE [--] COMMAND…`: a command under a lease.

mod claim;
mod nested;
mod ready;
mod supervise;
pub(crate) mod terms;
mod waiting;

use std::{
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use clap::Args;
use leasehold::{Client, Released, Resource};
use rustix::process::Signal;

use self::{
    claim::Claimed,
    supervise::{Outcome, Supervision},
    terms::{Permits, Terms},
};
use super::Context;
use crate::{
    args::{Global, duration},
    exit::{self, Exit, Failure},
    hold::Hold,
    output::Output,
    relaunch::Parent,
    signals::{self, Signals},
    terminal::Terminal,
};

/// Run a command while holding a resource
///
/// The exit code is the command's, 128+n if signal n killed it. It runs in a process group of its own. If the lease is
/// lost, it and everything that it started is ended before anyone else can be granted: TERM, then KILL; the exit code
/// is then 79. It finds what it holds in its environment, as `LEASEHOLD_RESOURCE`, `LEASEHOLD_TOKEN`, `LEASEHOLD_PASS`, `LEASEHOLD_OWNER` and `LEASEHOLD_STORE`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  leasehold run report/42 -- ./report.sh --all\n  leasehold run -n backup/db -c 'pg_dump app | gzip > app.gz'\n  leasehold run --once-per 1h mail/digest -- ./send-digest"
)]
pub(crate) struct Run {
    /// What to hold: [NAMESPACE:]KIND/ID, as in report/42
    resource: Resource,

    /// The command and its arguments, exactly as they are
    #[arg(trailing_var_arg = true, value_name = "COMMAND", required_unless_present = "shell")]
    command: Vec<OsString>,

    /// Run this in a shell ($SHELL, else /bin/sh)
    #[arg(short = 'c', long = "command", value_name = "STRING", conflicts_with = "command")]
    shell: Option<OsString>,

    /// Do not wait if someone else holds it: exit with 75
    #[arg(short, long, visible_alias = "nb", alias = "nonblocking")]
    nonblock: bool,

    /// Wait at most this long (seconds, or a duration as in 2m) [default: as long as it takes]
    #[arg(short, long, visible_alias = "timeout", value_parser = duration, conflicts_with = "nonblock")]
    wait: Option<Duration>,

    /// The exit code when someone else holds it [default: 75]
    #[arg(short = 'E', long, value_name = "CODE")]
    conflict_exit_code: Option<u8>,

    /// Hold it together with others who say --shared, but not with those who do not
    #[arg(short, long, conflicts_with_all = ["permits", "exclusive"])]
    shared: bool,

    /// Hold it alone: the default, and flock's letters for it
    #[arg(short = 'x', long, short_alias = 'e', conflicts_with = "permits")]
    exclusive: bool,

    /// Hold K of N permits: at most N in all, as others who say the same N
    #[arg(long, value_name = "K/N")]
    permits: Option<Permits>,

    /// Strict order of arrival
    #[arg(long)]
    fair: bool,

    /// How long the lease lasts unless renewed, which happens by itself: 1s to 24h [default: 30s]
    #[arg(long, value_parser = duration)]
    ttl: Option<Duration>,

    /// How long the command has from TERM to KILL when the lease is lost [default: a sixth of the ttl]
    #[arg(long, value_parser = duration)]
    grace: Option<Duration>,

    /// Do not renew: the command is stopped shortly before the ttl is over
    #[arg(long)]
    no_renew: bool,

    /// Stop the command after this long, however well renewals go
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    max_hold: Option<Duration>,

    /// Keep it closed until this long after the grant, even when the command has ended
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    at_least: Option<Duration>,

    /// Run once per this long: exit with 0 if another run has succeeded within it
    #[arg(long, value_name = "DURATION", value_parser = duration, conflicts_with = "at_least")]
    once_per: Option<Duration>,

    /// Refuse a store that promises too little for work that must be right
    #[arg(long)]
    correctness: bool,

    /// With --correctness: the command checks the fencing token where its effect happens, so any store will do
    #[arg(long)]
    fenced: bool,

    /// What for: shown to people who look at who holds it [default: the command's name]
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,

    /// What others are to know about whoever holds it: an address, a version
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,

    /// Make this file while the command runs and the lease is held, for a probe
    #[arg(long, value_name = "FILE")]
    ready_file: Option<PathBuf>,

    /// End when the process that started us does, and tell it whose exit code ours is
    #[arg(long, value_name = "PID:FILE", hide = true)]
    with_parent: Option<Parent>,

    /// Send the command this signal when an operator asks it to finish [default: none]
    #[arg(long, value_name = "SIGNAL", value_parser = signals::named)]
    on_ask: Option<Signal>,

    /// Taken for flock's sake: there is no file descriptor to close
    #[arg(short = 'o', long, hide = true)]
    close: bool,
}

impl Run {
    pub(crate) async fn run(self, global: &Global, output: Output) -> Result<ExitCode, Failure> {
        let Some(parent) = self.with_parent else { return self.keep(global, output).await };
        if !parent.ends_us() {
            return Ok(code_of(Signal::TERM.as_raw())); // nobody is left to run for
        }
        let ended = self.keep(global, output).await;
        parent.tell(&ended);
        ended
    }

    async fn keep(self, global: &Global, output: Output) -> Result<ExitCode, Failure> {
        let context = Context::new(global, output)?;
        let terms = Terms::of(&self, &context.config.run)?;
        let mut signals = Signals::ending().map_err(Failure::host)?;
        let backend = context.store.open().await?;
        terms::check_note(self.note.as_deref(), backend.info())?;
        let client = Client::builder(backend.clone()).label(&self.label()).build();
        let claimed = tokio::select! {
            claimed = claim::claim(&self, &terms, &context, &backend, &client) => claimed,
            signal = signals.next() => Ok(Claimed::Interrupted(signal)),
        };
        context.write_metrics();
        let hold = match claimed {
            Ok(Claimed::Held(hold)) => hold,
            other => {
                leave(&client).await;
                return match other? {
                    Claimed::Interrupted(signal) => Ok(ended_by(signal)),
                    Claimed::AlreadyDone | Claimed::Held(_) => Ok(ExitCode::SUCCESS),
                };
            }
        };
        signals.hear_all().map_err(Failure::host)?;
        let supervision = Supervision { run: &self, terms: &terms, context: &context };
        let (outcome, hold) = supervision.keep(hold, &mut signals).await?;
        let released = self.release(&outcome, hold).await;
        context.write_metrics();
        self.conclude(&context, outcome, released)
    }

    /// Gives it back; kept closed if it is not to be done again for a while, and it was done.
    async fn release(&self, outcome: &Outcome, hold: Box<dyn Hold>) -> Result<Released, leasehold::Error> {
        let done = matches!(outcome, Outcome::Exited(0));
        let released = hold.release(self.once_per.filter(|_| done));
        if !matches!(outcome, Outcome::Lost) {
            return released.await;
        }
        // It ends by itself before long, and the backend may be what is wrong.
        tokio::time::timeout(Duration::from_secs(1), released).await.unwrap_or(Ok(Released::AlreadyGone))
    }

    fn conclude(
        &self,
        context: &Context,
        outcome: Outcome,
        released: Result<Released, leasehold::Error>,
    ) -> Result<ExitCode, Failure> {
        let resource = &self.resource;
        match (&outcome, released) {
            (Outcome::Lost | Outcome::Unguarded, _) | (_, Ok(Released::Now | Released::StillHeld)) => {}
            (_, Ok(Released::AlreadyGone)) => {
                let message = format!("{resource}: the lease was gone before the command ended");
                return Err(
                    Failure::new(Exit::Lost, "lost", message).hint("see whether another one ran meanwhile")
                );
            }
            (_, Err(error)) => {
                context.output.say(&format!("{error}: it was not given back, and ends with its ttl"));
            }
        }
        match outcome {
            Outcome::Exited(code) => Ok(ExitCode::from(u8::try_from(code & 0xff).unwrap_or(u8::MAX))),
            Outcome::Killed(number) => {
                Ok(Signal::from_named_raw(number).map_or_else(|| code_of(number), ended_by))
            }
            Outcome::NotStarted(errno) => Err(self.not_started(errno)),
            Outcome::Lost => {
                let message = format!("{resource}: the lease was lost, and the command is dead");
                Err(Failure::new(Exit::Lost, "lost", message).hint("run it again"))
            }
            Outcome::Unguarded => Err(Failure::internal(format!(
                "{resource}: the guardian of the command was killed, so the command was, too"
            ))
            .hint("run it again")),
        }
    }

    fn not_started(&self, errno: i32) -> Failure {
        let error = std::io::Error::from_raw_os_error(errno);
        let program =
            self.argv().first().map(|program| program.to_string_lossy().into_owned()).unwrap_or_default();
        let program = if program.is_empty() { "\"\"".to_owned() } else { program };
        if error.kind() == std::io::ErrorKind::NotFound {
            return Failure::new(Exit::NotFound, "not_found", format!("{program}: there is no such command"))
                .hint("check its name and the PATH");
        }
        Failure::new(Exit::CannotRun, "cannot_run", format!("{program}: cannot be run: {error}"))
            .hint("check that it is a program and may be executed")
    }

    /// What to run.
    fn argv(&self) -> Vec<OsString> {
        match &self.shell {
            None => self.command.clone(),
            Some(script) => {
                let shell = std::env::var_os("SHELL").filter(|shell| !shell.is_empty());
                let shell = shell.unwrap_or_else(|| "/bin/sh".into());
                vec![shell, "-c".into(), script.clone()]
            }
        }
    }

    /// The name of the command; never its arguments, which may hold secrets.
    fn label(&self) -> String {
        let named =
            || self.argv().first().and_then(|program| Path::new(program).file_name().map(OsStr::to_owned));
        self.label.clone().unwrap_or_else(|| named().unwrap_or_default().to_string_lossy().into_owned())
    }
}

/// Withdraws what was asked for, as far as the backend answers soon.
async fn leave(client: &Client) {
    let _ = tokio::time::timeout(Duration::from_secs(2), client.shutdown()).await;
}

/// As a shell has it. At a terminal we die of an interrupt ourselves, so that a script or a loop around us ends, too.
fn ended_by(signal: Signal) -> ExitCode {
    let interactive =
        Terminal::controlling().is_some_and(|terminal| terminal.is_with(rustix::process::getpgrp()));
    if signal == Signal::INT && interactive {
        let _ = signal_hook::low_level::emulate_default_handler(signal.as_raw());
    }
    code_of(signal.as_raw())
}

fn code_of(signal: i32) -> ExitCode {
    ExitCode::from(exit::by_signal(signal))
}
