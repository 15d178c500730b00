//! `leasehold run RESOURCE [--] COMMAND…`: a command under a lease.
//!
//! 1. Read the configuration, compute the times ([`timing`]), start the guardian, open the store. If the store cannot be reached,
//!    wait for it as long as for the lease.
//! 2. Claim the resource, or enter the lease of an outer run. Meanwhile print who holds it ([`claim`]).
//! 3. Have the guardian start the command, and supervise both ([`supervise`], ADR 0013).
//! 4. When the command has ended, release the lease and pass the exit code on.

mod defaults;
mod flock;
mod ready_file;
mod supervise;
mod timing;

use std::{
    ffi::{OsStr, OsString},
    fs,
    future::Future,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use clap::Args;
use leasehold::{Backend, Client, HeldBy, Released, Resource};
use rustix::process::Signal;

use self::{
    ready_file::ReadyFile,
    supervise::{RunOutcome, Supervisor},
    timing::RunTimes,
};
use super::Context;
use crate::{
    args::{Global, duration},
    child_run::ParentProcess,
    claim::{
        self, ClaimContext, ClaimOptions, ClaimOutcome, ClaimRequest, INTERRUPTED_MAX, WITHDRAW_MAX,
        nested::InsideOuterRun, withdraw,
    },
    exit::{Exit, Failure},
    guardian::WaitingGuardian,
    held_leases::HeldLeases,
    metrics_file, names,
    outage::WaitLimit,
    output::Output,
    signals::{self, Signals, code_of, ended_by},
    text,
};

/// Run a command while holding a resource, or several
///
/// The exit code is that of the command, or 128+n if signal n killed it. The command runs in a process group
/// of its own. If the lease is lost, the command and everything that it started get TERM, then KILL, before
/// the resource can be granted to anyone else; the exit code is then 79. The command finds what it holds in
/// its environment, as `LEASEHOLD_RESOURCE`, `LEASEHOLD_TOKEN`, `LEASEHOLD_PASS`, `LEASEHOLD_OWNER` and
/// `LEASEHOLD_STORE`.
#[derive(Debug, Args)]
#[command(
    override_usage = "leasehold run [OPTIONS] RESOURCE [--] COMMAND...\n       leasehold run [OPTIONS] RESOURCE -c STRING\n       leasehold run [OPTIONS] -r RESOURCE -r RESOURCE... -- COMMAND...",
    after_help = "Examples:\n  leasehold run report/42 -- ./report.sh --all\n  leasehold run -r account/1 -r account/2 -- ./transfer\n  leasehold run -n backup/db -c 'pg_dump app | gzip > app.gz'\n  leasehold run --once-per 1h mail/digest -- ./send-digest"
)]
pub(crate) struct Run {
    /// The resource: [NAMESPACE:]KIND/ID such as report/42, a plain name such as backup, or a path
    #[arg(required_unless_present_any = ["resources", "unlock"])]
    resource: Option<OsString>,

    /// The command and its arguments, passed on unchanged
    #[arg(trailing_var_arg = true, value_name = "COMMAND", required_unless_present_any = ["shell", "resources", "unlock"])]
    command: Vec<OsString>,

    /// Hold this resource; give it several times to hold several: all or none, taken in the order of their keys. Then there is no
    /// other RESOURCE before the command
    #[arg(short = 'r', long = "resource", value_name = "RESOURCE", value_parser = names::resource)]
    resources: Vec<Resource>,

    /// What to hold and what to run: computed from the options above
    #[arg(skip)]
    targets: Targets,

    /// Run this command line in a shell ($SHELL, else /bin/sh)
    #[arg(short = 'c', long = "command", value_name = "STRING", conflicts_with = "command")]
    shell: Option<OsString>,

    #[command(flatten)]
    claim: ClaimOptions,

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

    /// Create this file while the command runs and the lease is held, for a readiness probe. A file of someone else is never
    /// replaced
    #[arg(long, value_name = "FILE")]
    ready_file: Option<PathBuf>,

    /// Used by cron and elect: end with this process, and report to it whose exit code ours is (see
    /// `child_run`)
    #[arg(long, value_name = "PID:FD", hide = true)]
    with_parent: Option<ParentProcess>,

    /// Send the command this signal when an operator asks it to finish [default: none]
    #[arg(long, value_name = "SIGNAL", value_parser = signals::parse)]
    on_ask: Option<Signal>,

    #[command(flatten)]
    flock: flock::Flock,
}

/// What a run holds and runs.
#[derive(Debug, Default)]
struct Targets {
    /// In the order of their keys, each once.
    resources: Vec<Resource>,
    /// The program and its arguments.
    argv: Vec<OsString>,
}

impl Targets {
    /// Puts the resources into the order of their keys. Called when their names are complete. Fails if one is named twice.
    fn order(&mut self) -> Result<(), Failure> {
        self.resources.sort();
        match self.resources.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(twice) => {
                Err(Failure::usage(format!("{}: the resource is named twice: name it once", twice[0])))
            }
            None => Ok(()),
        }
    }
}

impl Run {
    pub(crate) async fn run(mut self, global: &Global, output: Output) -> Result<ExitCode, Failure> {
        self.targets.order()?;
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
        let mut guardian = WaitingGuardian::spawn(&self.targets.argv).ok();
        let limit = WaitLimit::from_now(self.claim.wait_at_most());
        // `elect` starts one process after another, and their metrics are those of the election.
        let earlier = self.with_parent.and(global.metrics_file.as_ref()).map(fs::read_to_string);
        let context = Context::new(global, output)?;
        if let Some(Ok(earlier)) = earlier {
            metrics_file::add_counters(&earlier);
        }
        let times = RunTimes::of(&self, &context.config.run)?;
        ReadyFile::check(self.ready_file.as_deref())?;
        let mut signals = Signals::ending().map_err(Failure::host)?;
        let backend = match self.open(&context, &limit, &mut signals, &mut guardian).await? {
            Ok(backend) => backend,
            Err(signal) => return Ok(ended_by(signal)),
        };
        let client = Client::builder(backend.clone()).label(&self.label()).build();
        let claimed = {
            let request = &self.request(&times);
            let (context, backend, client, limit) = (&context, &backend, &client, &limit);
            let claim = ClaimContext { request, context, backend, client, limit };
            // Dropped at the end of this block: a claim that was interrupted must have left when `withdraw` waits.
            unless_interrupted(claim.claim(), &mut signals, &mut guardian).await
        };
        context.write_metrics();
        let mut leases = match claimed {
            Ok(Ok(ClaimOutcome::Held(leases))) => leases,
            Ok(Ok(ClaimOutcome::AlreadyDone(done))) => {
                withdraw(&client, WITHDRAW_MAX).await;
                return Ok(self.skipped(&done, output));
            }
            Ok(Err(failure)) => {
                withdraw(&client, WITHDRAW_MAX).await;
                return Err(failure);
            }
            Err(signal) => {
                withdraw(&client, INTERRUPTED_MAX).await;
                return Ok(ended_by(signal));
            }
        };
        signals.subscribe_forwarded().map_err(Failure::host)?;
        let guardian = guardian.map_or_else(|| WaitingGuardian::spawn(&self.targets.argv), Ok);
        let supervisor = Supervisor { run: &self, times: &times, context: &context };
        let (outcome, guardian) =
            supervisor.supervise(&mut leases, guardian.map_err(Failure::host)?, &mut signals).await?;
        let released = self.release(&outcome, leases, &mut signals).await;
        drop(guardian); // it has ended meanwhile
        context.write_metrics();
        self.conclude(&context, outcome, released)
    }

    fn request(&self, times: &RunTimes) -> ClaimRequest<'_> {
        ClaimRequest {
            options: &self.claim,
            resources: self.resources(),
            ttl: times.ttl,
            renew: !self.no_renew,
            max_hold: self.max_hold,
            at_least: self.at_least,
            once_per: self.once_per,
            process_id: std::process::id(),
            inside_outer_run: InsideOuterRun::Enter,
        }
    }

    /// Opens the store. Until then nothing is held, so a signal ends the process at once, even while the thread is blocked: opening
    /// a file may take long, or for ever.
    async fn open(
        &self,
        context: &Context,
        limit: &WaitLimit,
        signals: &mut Signals,
        guardian: &mut Option<WaitingGuardian>,
    ) -> Result<Result<Arc<dyn Backend>, Signal>, Failure> {
        let names = self.names();
        signals.end_at_once(true);
        let opening = context.store.open_when_reachable(&names, context.output, limit);
        let opened = unless_interrupted(opening, signals, guardian).await;
        signals.end_at_once(false);
        let backend = match opened {
            Ok(backend) => backend?,
            Err(signal) => return Ok(Err(signal)),
        };
        claim::check_note(self.claim.note.as_deref(), backend.info())?;
        Ok(Ok(backend))
    }

    /// Reports that another run has done the work (`--once-per`).
    fn skipped(&self, done: &HeldBy, output: Output) -> ExitCode {
        let (ago, once_per) = (done.held_for, self.once_per.unwrap_or_default());
        let (human_ago, human_once_per) = (claim::human(ago), humantime::format_duration(once_per));
        let text = format!(
            "{}: Skipped: last succeeded {human_ago} ago (--once-per {human_once_per}).",
            self.first()
        );
        let millis = crate::view::millis;
        output.outcome(&text, || {
            serde_json::json!({ "skipped": {
                "resource": self.first().to_string(),
                "last_succeeded_ago_ms": millis(ago),
                "once_per_ms": millis(once_per),
                "next_in_ms": millis(done.remaining),
                "by": done.holder.to_string(),
            } })
        });
        ExitCode::SUCCESS
    }

    /// Releases the lease. With `--once-per`, and if the command succeeded, the resource stays closed for
    /// that time.
    async fn release(
        &self,
        outcome: &RunOutcome,
        leases: HeldLeases,
        signals: &mut Signals,
    ) -> Result<Released, leasehold::Error> {
        let done = matches!(outcome, RunOutcome::Exited(0));
        let released = leases.release(self.once_per.filter(|_| done));
        if !matches!(outcome, RunOutcome::Lost) {
            // The command has ended, so a signal is for us: a store that does not reply must not hold us up.
            let interrupted = async {
                signals.next().await;
                tokio::time::sleep(INTERRUPTED_MAX).await;
            };
            return tokio::select! {
                biased;
                released = released => released,
                () = interrupted => Err(leasehold::Error::new(
                    leasehold::ErrorKind::Unavailable,
                    format!("{}: the store did not reply to the release before a signal came", self.names()),
                )),
            };
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
        let resource = self.names();
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
        let program = self
            .targets
            .argv
            .first()
            .map(|program| program.to_string_lossy().into_owned())
            .unwrap_or_default();
        let program = if program.is_empty() { "\"\"".to_owned() } else { program };
        if error.kind() == std::io::ErrorKind::NotFound {
            return Failure::new(Exit::NotFound, "not_found", format!("{program}: there is no such command"))
                .hint("check its name and PATH");
        }
        Failure::new(Exit::CannotRun, "cannot_run", format!("{program}: cannot be run: {error}"))
            .hint("check that it is a program and that its execute permission is set")
    }

    /// What to hold and what to run. With `-r`, the first word is not a resource but belongs to the command.
    fn read_targets(&self) -> Result<Targets, Failure> {
        self.flock.check()?;
        let mut words = self.resource.iter().chain(&self.command).cloned().peekable();
        let mut resources = self.resources.clone();
        if resources.is_empty() {
            let typed = words.next().unwrap_or_default();
            let typed = typed.to_string_lossy();
            let wrong = |why| {
                let shown = text::cut(&typed, TYPED_MAX).into_owned();
                Failure::usage(format!("invalid value '{shown}' for '<RESOURCE>': {why}")).hint("see --help")
            };
            resources.push(names::resource(&typed).map_err(wrong)?);
        }
        if resources.len() > 1 && self.once_per.is_some() {
            return Err(Failure::usage("--once-per is for one resource, and several are named with -r")
                .hint("use one resource that stands for the work"));
        }
        let argv = match &self.shell {
            None => words.collect(),
            Some(_) if words.peek().is_some() => {
                return Err(
                    Failure::usage("both -c and a command are given: use one of them").hint("see --help")
                );
            }
            Some(script) => {
                let shell = std::env::var_os("SHELL").filter(|shell| !shell.is_empty());
                let shell = shell.unwrap_or_else(|| "/bin/sh".into());
                vec![shell, "-c".into(), script.clone()]
            }
        };
        if argv.is_empty() {
            return Err(Failure::usage("the command is missing: write it after --").hint("see --help"));
        }
        Ok(Targets { resources, argv })
    }

    /// The resources, in the order of their keys.
    fn resources(&self) -> &[Resource] {
        &self.targets.resources
    }

    /// The first resource.
    fn first(&self) -> &Resource {
        &self.targets.resources[0] // `read_targets` finds at least one
    }

    /// The resources, for messages: `a/1, b/2`.
    fn names(&self) -> String {
        self.resources().iter().map(Resource::to_string).collect::<Vec<_>>().join(", ")
    }

    /// `--label`, else the name of the command. Never its arguments: they may contain secrets.
    fn label(&self) -> String {
        let named = || {
            self.targets.argv.first().and_then(|program| Path::new(program).file_name().map(OsStr::to_owned))
        };
        self.claim.label.clone().unwrap_or_else(|| named().unwrap_or_default().to_string_lossy().into_owned())
    }
}

/// How long a guardian process waits for the grant before it is given up. It is started again with the grant.
const GUARDIAN_WAITS_MAX: Duration = Duration::from_millis(100);
/// The most columns of a typed value in an error.
const TYPED_MAX: usize = 60;
/// How long to wait for the store when the lease is released after it was lost.
const LOST_RELEASE_MAX: Duration = Duration::from_secs(1);

/// Does `work`, which is dropped when a signal comes. A process that waits for long should cost little, so it does without a
/// guardian meanwhile.
async fn unless_interrupted<T>(
    work: impl Future<Output = T>,
    signals: &mut Signals,
    guardian: &mut Option<WaitingGuardian>,
) -> Result<T, Signal> {
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            biased;
            done = &mut work => return Ok(done),
            signal = signals.next() => return Err(signal),
            () = tokio::time::sleep(GUARDIAN_WAITS_MAX), if guardian.is_some() => *guardian = None,
        }
    }
}
