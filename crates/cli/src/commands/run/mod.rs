//! `leasehold run RESOURCE [--] COMMAND…`: a command under a lease.
//!
//! 1. Read the configuration, compute the times ([`timing`]), start the guardian, open the store.
//! 2. Claim the resource ([`claim`]), or enter the lease of an outer run ([`nested`]). Meanwhile print who
//!    holds it ([`wait_notes`]).
//! 3. Have the guardian start the command, and supervise both ([`supervise`], ADR 0013).
//! 4. When the command has ended, release the lease and pass the exit code on.

mod claim;
mod nested;
mod ready_file;
mod supervise;
pub(crate) mod timing;
mod wait_notes;

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
    claim::{ClaimContext, ClaimOutcome},
    supervise::{RunOutcome, Supervisor},
    timing::{Permits, RunTimes},
};
use super::Context;
use crate::{
    args::{Global, duration},
    child_run::ParentProcess,
    exit::{self, Exit, Failure},
    guardian::WaitingGuardian,
    output::Output,
    run_lease::RunLease,
    signals::{self, Signals},
    terminal::Terminal,
};

/// Run a command while holding a resource
///
/// The exit code is that of the command, or 128+n if signal n killed it. The command runs in a process group
/// of its own. If the lease is lost, the command and everything that it started get TERM, then KILL, before
/// the resource can be granted to anyone else; the exit code is then 79. The command finds what it holds in
/// its environment, as `LEASEHOLD_RESOURCE`, `LEASEHOLD_TOKEN`, `LEASEHOLD_PASS`, `LEASEHOLD_OWNER` and
/// `LEASEHOLD_STORE`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  leasehold run report/42 -- ./report.sh --all\n  leasehold run -n backup/db -c 'pg_dump app | gzip > app.gz'\n  leasehold run --once-per 1h mail/digest -- ./send-digest"
)]
pub(crate) struct Run {
    /// The resource: [NAMESPACE:]KIND/ID, such as report/42
    resource: Resource,

    /// The command and its arguments, passed on unchanged
    #[arg(trailing_var_arg = true, value_name = "COMMAND", required_unless_present = "shell")]
    command: Vec<OsString>,

    /// Run this command line in a shell ($SHELL, else /bin/sh)
    #[arg(short = 'c', long = "command", value_name = "STRING", conflicts_with = "command")]
    shell: Option<OsString>,

    /// Do not wait if the resource is held: exit with 75
    #[arg(short, long, visible_alias = "nb", alias = "nonblocking")]
    nonblock: bool,

    /// Wait at most this long (seconds, or a duration such as 2m) [default: no limit]
    #[arg(short, long, visible_alias = "timeout", value_parser = duration, conflicts_with = "nonblock")]
    wait: Option<Duration>,

    /// The exit code if the resource is held by others [default: 75]
    #[arg(short = 'E', long, value_name = "CODE")]
    conflict_exit_code: Option<u8>,

    /// Hold the resource together with other runs that use --shared, and not with runs without it
    #[arg(short, long, conflicts_with_all = ["permits", "exclusive"])]
    shared: bool,

    /// Hold the resource alone; this is the default, and the option exists for users of flock
    #[arg(short = 'x', long, short_alias = 'e', conflicts_with = "permits")]
    exclusive: bool,

    /// Hold K of N permits: all holders together have at most N. All runs must name the same N
    #[arg(long, value_name = "K/N")]
    permits: Option<Permits>,

    /// Grant in strict order of arrival
    #[arg(long)]
    fair: bool,

    /// How long the lease lasts without a renewal; renewals are automatic. 1s to 24h [default: 30s]
    #[arg(long, value_parser = duration)]
    ttl: Option<Duration>,

    /// The time from TERM to KILL when the lease is lost [default: a sixth of the ttl]
    #[arg(long, value_parser = duration)]
    grace: Option<Duration>,

    /// Do not renew the lease: the command is stopped shortly before the ttl has passed
    #[arg(long)]
    no_renew: bool,

    /// Stop the command after this long, even if renewals succeed
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    max_hold: Option<Duration>,

    /// Keep the resource closed until this long after the grant, even if the command ends earlier
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    at_least: Option<Duration>,

    /// Run at most once in this time: exit with 0 if another run has succeeded within it
    #[arg(long, value_name = "DURATION", value_parser = duration, conflicts_with = "at_least")]
    once_per: Option<Duration>,

    /// Refuse a store whose guarantees are too weak for work where two holders at once would do harm
    #[arg(long)]
    correctness: bool,

    /// With --correctness: the command checks the fencing token where its effect happens, so accept any store
    #[arg(long)]
    fenced: bool,

    /// A label for the holder, shown by ls, show and why [default: the name of the command]
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,

    /// A note about the holder that others can read, such as an address or a version
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,

    /// Create this file while the command runs and the lease is held, for a readiness probe
    #[arg(long, value_name = "FILE")]
    ready_file: Option<PathBuf>,

    /// Used by cron and elect: end with this process, and report to it whose exit code ours is (see
    /// `child_run`)
    #[arg(long, value_name = "PID:FD", hide = true)]
    with_parent: Option<ParentProcess>,

    /// Send the command this signal when an operator asks it to finish [default: none]
    #[arg(long, value_name = "SIGNAL", value_parser = signals::parse)]
    on_ask: Option<Signal>,

    /// Accepted for users of flock, without effect: there is no file descriptor to close
    #[arg(short = 'o', long, hide = true)]
    close: bool,
}

impl Run {
    pub(crate) async fn run(self, global: &Global, output: Output) -> Result<ExitCode, Failure> {
        let Some(parent) = self.with_parent else { return self.run_under_lease(global, output).await };
        if !parent.bind_lifetime() {
            return Ok(code_of(Signal::TERM.as_raw())); // the parent has ended, so nobody needs the result
        }
        let ended = self.run_under_lease(global, output).await;
        parent.report(&ended);
        ended
    }

    async fn run_under_lease(self, global: &Global, output: Output) -> Result<ExitCode, Failure> {
        // First, so that it gets ready while the store is opened (ADR 0042). If it cannot be started, the second
        // attempt below says why.
        let mut guardian = WaitingGuardian::spawn(&self.argv()).ok();
        let context = Context::new(global, output)?;
        let times = RunTimes::of(&self, &context.config.run)?;
        let mut signals = Signals::ending().map_err(Failure::host)?;
        let backend = context.store.open().await?;
        timing::check_note(self.note.as_deref(), backend.info())?;
        let client = Client::builder(backend.clone()).label(&self.label()).build();
        let claim_context =
            ClaimContext { run: &self, times: &times, context: &context, backend: &backend, client: &client };
        let claimed = {
            // Dropped at the end of this block: a claim that was interrupted must have left when `withdraw` waits.
            let mut claim = std::pin::pin!(claim::claim(&claim_context));
            loop {
                tokio::select! {
                    biased;
                    claimed = &mut claim => break claimed,
                    signal = signals.next() => break Ok(ClaimOutcome::Interrupted(signal)),
                    // A process that waits for long should cost little, so it does without a guardian meanwhile.
                    () = tokio::time::sleep(GUARDIAN_WAITS_MAX), if guardian.is_some() => guardian = None,
                }
            }
        };
        context.write_metrics();
        let mut lease = match claimed {
            Ok(ClaimOutcome::Held(lease)) => lease,
            other => {
                withdraw(&client).await;
                return match other? {
                    ClaimOutcome::Interrupted(signal) => Ok(ended_by(signal)),
                    ClaimOutcome::AlreadyDone | ClaimOutcome::Held(_) => Ok(ExitCode::SUCCESS),
                };
            }
        };
        signals.subscribe_forwarded().map_err(Failure::host)?;
        let guardian =
            guardian.map_or_else(|| WaitingGuardian::spawn(&self.argv()), Ok).map_err(Failure::host)?;
        let supervisor = Supervisor { run: &self, times: &times, context: &context };
        let (outcome, guardian) = supervisor.supervise(&mut *lease, guardian, &mut signals).await?;
        let released = self.release(&outcome, lease).await;
        drop(guardian); // it has ended meanwhile
        context.write_metrics();
        self.conclude(&context, outcome, released)
    }

    /// Releases the lease. With `--once-per`, and if the command succeeded, the resource stays closed for
    /// that time.
    async fn release(
        &self,
        outcome: &RunOutcome,
        lease: Box<dyn RunLease>,
    ) -> Result<Released, leasehold::Error> {
        let done = matches!(outcome, RunOutcome::Exited(0));
        let released = lease.release(self.once_per.filter(|_| done));
        if !matches!(outcome, RunOutcome::Lost) {
            return released.await;
        }
        // The lease runs out soon anyway, and the store may be the reason why it was lost.
        tokio::time::timeout(LOST_RELEASE_MAX, released).await.unwrap_or(Ok(Released::AlreadyGone))
    }

    fn conclude(
        &self,
        context: &Context,
        outcome: RunOutcome,
        released: Result<Released, leasehold::Error>,
    ) -> Result<ExitCode, Failure> {
        let resource = &self.resource;
        match (&outcome, released) {
            (RunOutcome::Lost | RunOutcome::Unguarded, _) => {}
            (_, Ok(Released::AlreadyGone)) => {
                let message = format!("{resource}: the lease was gone before the command ended");
                return Err(Failure::new(Exit::Lost, "lost", message)
                    .hint("check whether another run was at work at the same time"));
            }
            (_, Ok(_)) => {}
            (_, Err(error)) => {
                context.output.note(&format!("{error}; the lease was not given back and ends with its ttl"));
            }
        }
        match outcome {
            RunOutcome::Exited(code) => Ok(ExitCode::from(u8::try_from(code & 0xff).unwrap_or(u8::MAX))),
            RunOutcome::Killed(number) => {
                Ok(Signal::from_named_raw(number).map_or_else(|| code_of(number), ended_by))
            }
            RunOutcome::NotStarted(errno) => Err(self.not_started(errno)),
            RunOutcome::Lost => {
                let message = format!("{resource}: the lease was lost, and the command is dead");
                Err(Failure::new(Exit::Lost, "lost", message).hint("run it again"))
            }
            RunOutcome::Unguarded => Err(Failure::internal(format!(
                "{resource}: the guardian process of the command was killed, so the command was killed as well"
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
                .hint("check its name and PATH");
        }
        Failure::new(Exit::CannotRun, "cannot_run", format!("{program}: cannot be run: {error}"))
            .hint("check that it is a program and that its execute permission is set")
    }

    /// The program and its arguments.
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

    /// `--label`, else the name of the command. Never its arguments: they may contain secrets.
    fn label(&self) -> String {
        let named =
            || self.argv().first().and_then(|program| Path::new(program).file_name().map(OsStr::to_owned));
        self.label.clone().unwrap_or_else(|| named().unwrap_or_default().to_string_lossy().into_owned())
    }
}

/// How long a guardian process waits for the grant before it is given up. It is started again with the grant.
const GUARDIAN_WAITS_MAX: Duration = Duration::from_millis(100);
/// How long to wait for the store when the claim is withdrawn.
const WITHDRAW_MAX: Duration = Duration::from_secs(2);
/// How long to wait for the store when the lease is released after it was lost.
const LOST_RELEASE_MAX: Duration = Duration::from_secs(1);

/// Withdraws the claim, so that it does not stay in the queue. A store that does not reply in time is not
/// waited for.
async fn withdraw(client: &Client) {
    let _ = tokio::time::timeout(WITHDRAW_MAX, client.shutdown()).await;
}

/// The exit code 128+n. In the foreground of a terminal, INT kills this process as well: a shell ends the
/// script or loop around us only if it sees that we died of INT.
fn ended_by(signal: Signal) -> ExitCode {
    let interactive =
        Terminal::controlling().is_some_and(|terminal| terminal.is_foreground(rustix::process::getpgrp()));
    if signal == Signal::INT && interactive {
        let _ = signal_hook::low_level::emulate_default_handler(signal.as_raw());
    }
    code_of(signal.as_raw())
}

fn code_of(signal: i32) -> ExitCode {
    ExitCode::from(exit::by_signal(signal))
}
