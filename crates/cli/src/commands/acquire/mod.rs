//! `leasehold acquire RESOURCE`: a lease for a script that cannot be wrapped by `leasehold run`.
//!
//! Without `--keep`, this process acquires the lease, prints its owner token, and ends. Nobody renews the lease then: the script
//! does, with `leasehold renew`.
//!
//! With `--keep PID` there is a second process, the [`keeper`] (ADR 0085):
//!
//! 1. This process starts the keeper and waits for its message.
//! 2. The keeper acquires the lease. So it also works on a store where a lease lives with the process that acquired it.
//! 3. The keeper lets go of all that it has inherited, and sends the lease.
//! 4. This process prints it, confirms that, and ends. If it ends before, the keeper releases the lease.
//! 5. The keeper renews the lease until the process PID ends, then releases it.

mod control;
mod granted;
mod keeper;
mod waiting_process;

use std::{future::Future, path::PathBuf, pin::Pin, process::ExitCode, sync::Arc, time::Duration};

use clap::Args;
use leasehold::{Backend, Client, Clock as _, Resource, SystemClock, Timestamp};
use rustix::process::Signal;

pub(crate) use self::control::{KeeperReply, ask_to_release};
use self::granted::Granted;
pub(crate) use self::keeper::KeeperStart;
use super::Context;
use crate::{
    args::Global,
    claim::{
        self, ClaimContext, ClaimOptions, ClaimOutcome, ClaimRequest, INTERRUPTED_MAX, WITHDRAW_MAX,
        nested::{HeldLine, InsideOuterRun},
        withdraw,
    },
    exit::{Exit, Failure},
    held_leases::HeldLeases,
    lease_file::{LeaseFile, LeaseRecord, RecordedState, WantedLease},
    names,
    outage::WaitLimit,
    output::Output,
    session,
    signals::{self, Signals, ended_by},
    text,
    view::millis,
};

/// Acquire a lease in a script, and leave it to the script
///
/// Prints the owner token: the secret that renews and releases the lease. Nobody renews it: do that with `leasehold renew` before
/// the ttl is over, or use --keep. `leasehold release` ends it. If you can, use `leasehold run` instead: it renews, and it ends the
/// command in time if the lease is lost.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lease=$(leasehold acquire --ttl 5m backup) || exit
  echo \"$lease\" | leasehold release backup --owner -

  leasehold acquire -w 30 --keep $$ -o /run/backup.lease backup || exit
  . /run/backup.lease; echo \"the fencing token is $LEASEHOLD_TOKEN\"
  leasehold release -f /run/backup.lease

  eval \"$(leasehold acquire --keep $$ --export backup || echo exit $?)\"

Every user of this host can see an owner token in a command line with ps. Pass it on by a file (-o, -f), by stdin (--owner -) or by
the variable LEASEHOLD_OWNER.")]
pub(crate) struct Acquire {
    /// The resource: [NAMESPACE:]KIND/ID such as report/42, a plain name such as backup, or a path
    #[arg(value_parser = names::resource)]
    pub(crate) resource: Resource,

    #[command(flatten)]
    pub(crate) claim: ClaimOptions,

    /// Write the lease to this file, for renew -f and release -f, instead of printing its owner token. Only you can read it. It
    /// replaces only a lease file whose lease has ended
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Print the variables that leasehold run sets for its command, to be evaluated by the shell
    #[arg(long)]
    export: bool,

    /// Renew the lease in the background until this process ends, then release it. Usually $$
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    keep: Option<i32>,

    /// With --keep: send the process this signal when the lease is lost, or none [default: TERM]
    #[arg(long, value_name = "SIGNAL", value_parser = on_loss, requires = "keep")]
    on_loss: Option<OnLoss>,

    /// With --keep: send the process this signal when an operator asks it to finish [default: none]
    #[arg(long, value_name = "SIGNAL", value_parser = signals::parse, requires = "keep")]
    on_ask: Option<Signal>,

    /// Set if this process is the keeper.
    #[arg(skip)]
    pub(crate) keeper: Option<KeeperStart>,
}

/// What to do with the kept process when the lease is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OnLoss {
    Signal(Signal),
    Nothing,
}

fn on_loss(text: &str) -> Result<OnLoss, String> {
    if text.eq_ignore_ascii_case("none") {
        return Ok(OnLoss::Nothing);
    }
    signals::parse(text).map(OnLoss::Signal).map_err(|error| format!("{error}, or none"))
}

/// What is held after a claim of `acquire`.
struct Acquired {
    leases: HeldLeases,
    file: Option<LeaseFile>,
    /// What stands in the file.
    record: LeaseRecord,
    granted: Granted,
}

/// Resolves when a claim is to be given up.
type InterruptionFuture<'a> = Pin<Box<dyn Future<Output = Interruption> + 'a>>;

/// Why a claim was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Interruption {
    Signal(Signal),
    /// The process that was to print the lease has ended.
    NobodyWaits,
    /// The process that the lease was to be kept for has ended.
    ProcessEnded,
}

impl Acquire {
    /// Fills options from `config.toml`. The ttl is filled when it is checked.
    pub(crate) fn take_defaults(&mut self, defaults: &crate::config::RunDefaults) {
        self.claim.take_defaults(defaults);
    }

    pub(crate) async fn run(mut self, global: &Global, output: Output) -> Result<ExitCode, Failure> {
        if self.export && output.json {
            return Err(Failure::usage(
                "--export and --json are two forms of the same output: use one of them",
            ));
        }
        match (self.keep, self.keeper.take()) {
            (Some(_), Some(keeper)) => keeper.run(&self, global, output).await,
            (Some(pid), None) => waiting_process::run(&self, pid, output),
            (None, _) => self.acquire_unkept(global, output).await,
        }
    }

    async fn acquire_unkept(&self, global: &Global, output: Output) -> Result<ExitCode, Failure> {
        let context = Context::new(global, output)?;
        let mut signals = Signals::ending().map_err(Failure::host)?;
        let never = Box::pin(std::future::pending());
        let acquired = match self.acquire(global, &context, &mut signals, never).await? {
            Ok(acquired) => acquired,
            Err(Interruption::Signal(signal)) => return Ok(ended_by(signal)),
            Err(Interruption::NobodyWaits | Interruption::ProcessEnded) => return Ok(ExitCode::FAILURE),
        };
        context.write_metrics();
        let Acquired { leases, file, record, granted } = acquired;
        if let Err(failure) = granted.print(self, output.json) {
            let _ = leases.release(None).await; // it ends with its ttl
            let _ = file.map(|file| file.released(&record.held));
            return Err(failure);
        }
        leases.leave();
        if !output.json {
            output.note(&granted.warning(&session::program(global, &context.store)));
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Acquires the lease and writes its file. `interruption` gives the claim up, and so does a signal.
    async fn acquire(
        &self,
        global: &Global,
        context: &Context,
        signals: &mut Signals,
        mut interruption: InterruptionFuture<'_>,
    ) -> Result<Result<Acquired, Interruption>, Failure> {
        let limit = WaitLimit::from_now(self.claim.wait_at_most());
        let ttl = self.claim.ttl(&context.config.run)?;
        let wanted = WantedLease {
            resource: &self.resource,
            store: context.store.shown(),
            is_exclusive: self.claim.share().is_exclusive(),
        };
        let file = self.output.as_deref().map(LeaseFile::new).transpose().map_err(Failure::host)?;
        file.iter().try_for_each(|file| file.check(&wanted))?;
        let backend = match self.open(context, &limit, signals, &mut interruption).await? {
            Ok(backend) => backend,
            Err(interruption) => return Ok(Err(interruption)),
        };
        let request = self.request(ttl);
        let client =
            Client::builder(backend.clone()).label(&self.label()).process_id(request.process_id).build();
        let claimed = {
            let (request, backend, client, limit) = (&request, &backend, &client, &limit);
            let claim = ClaimContext { request, context, backend, client, limit };
            // Dropped at the end of this block: a claim that was interrupted must have left when `withdraw` waits.
            unless_interrupted(claim.claim(), signals, &mut interruption).await
        };
        let leases = match claimed {
            Ok(Ok(ClaimOutcome::Held(leases))) => leases,
            Ok(Ok(ClaimOutcome::AlreadyDone(_))) => return Err(Failure::internal("a claim was not made")),
            Ok(Err(failure)) => {
                withdraw(&client, WITHDRAW_MAX).await;
                return Err(failure);
            }
            Err(interruption) => {
                withdraw(&client, INTERRUPTED_MAX).await;
                return Ok(Err(interruption));
            }
        };
        let acquired = self.describe(global, context, leases, file)?;
        self.write_file(acquired, &wanted).await.map(Ok)
    }

    async fn open(
        &self,
        context: &Context,
        limit: &WaitLimit,
        signals: &mut Signals,
        interruption: &mut InterruptionFuture<'_>,
    ) -> Result<Result<Arc<dyn Backend>, Interruption>, Failure> {
        let name = self.resource.to_string();
        signals.end_at_once(true); // nothing is held yet, and to open a file may take long
        let opening = context.store.open_when_reachable(&name, context.output, limit);
        let opened = unless_interrupted(opening, signals, interruption).await;
        signals.end_at_once(false);
        let backend = match opened {
            Ok(backend) => backend?,
            Err(interruption) => return Ok(Err(interruption)),
        };
        self.check(&backend)?;
        Ok(Ok(backend))
    }

    fn request(&self, ttl: Duration) -> ClaimRequest<'_> {
        ClaimRequest {
            options: &self.claim,
            resources: std::slice::from_ref(&self.resource),
            ttl,
            renew: self.keep.is_some(),
            max_hold: None,
            at_least: None,
            once_per: None,
            // Without a keeper the process that acquires ends at once, and its holder must not be taken for dead (ADR 0085).
            process_id: self.keep.and_then(|pid| u32::try_from(pid).ok()).unwrap_or(0),
            inside_outer_run: InsideOuterRun::Refuse,
        }
    }

    /// Fails if the store cannot give a lease that this command line asks for.
    fn check(&self, backend: &Arc<dyn Backend>) -> Result<(), Failure> {
        let info = backend.info();
        claim::check_note(self.claim.note.as_deref(), info)?;
        if self.keep.is_none() && !info.capabilities.own_ttl {
            let message = format!(
                "{}: {} ends a lease with the session of the process that acquired it, and this process ends at once",
                self.resource, info.name
            );
            return Err(Failure::config(message).hint("use --keep $$, or leasehold run"));
        }
        Ok(())
    }

    fn describe(
        &self,
        global: &Global,
        context: &Context,
        leases: HeldLeases,
        file: Option<LeaseFile>,
    ) -> Result<Acquired, Failure> {
        let share = self.claim.share();
        let gone = || {
            let message = format!("{}: the grant came so late that the lease has ended", self.resource);
            Failure::new(Exit::Lost, "lost", message).hint("run it again")
        };
        let held = leases.iter().next().ok_or_else(gone)?;
        let deadline = leases.deadline().ok_or_else(gone)?;
        let record = LeaseRecord {
            held: HeldLine {
                share,
                owner: held.lease.owner(),
                token: held.lease.token(),
                ttl: held.lease.ttl(),
                resource: self.resource.clone(),
                store: context.store.shown().to_owned(),
            },
            deadline: by_calendar(deadline),
            state: RecordedState::Held,
        };
        let variables = claim::variables(context, share, &leases);
        let exported =
            variables.into_iter().filter(|(name, _)| granted::is_exported(name, global.typed.store));
        let granted = Granted {
            resource: self.resource.to_string(),
            owner: record.held.owner.reveal(),
            token: claim::token(held, share),
            pass: claim::pass(held, share).unwrap_or_default(),
            ttl_ms: millis(record.held.ttl),
            remaining_ms: millis(SystemClock.now().until(deadline)),
            deadline: text::exact_time(record.deadline),
            file: file.as_ref().map(|file| file.path().display().to_string()),
            keeper: self.keep.map(|_| std::process::id()),
            variables: exported
                .map(|(name, value)| (name.to_owned(), value.to_string_lossy().into_owned()))
                .collect(),
        };
        Ok(Acquired { leases, file, record, granted })
    }

    /// Writes the file. If that fails, the lease is released: nobody could use it.
    async fn write_file(&self, acquired: Acquired, wanted: &WantedLease<'_>) -> Result<Acquired, Failure> {
        let created = acquired.file.as_ref().map_or(Ok(()), |file| file.create(&acquired.record, wanted));
        if let Err(failure) = created {
            let _ = acquired.leases.release(None).await; // it ends with its ttl
            return Err(failure);
        }
        Ok(acquired)
    }

    /// `--label`, else the name of the script: of the process that the lease is kept for, or of our parent.
    fn label(&self) -> String {
        let named = || {
            let pid =
                self.keep.or_else(|| rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get()))?;
            std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()
        };
        self.claim.label.clone().unwrap_or_else(|| named().unwrap_or_default().trim_end().to_owned())
    }
}

/// This time by the calendar clock.
fn by_calendar(time: Timestamp) -> leasehold::WallTime {
    SystemClock.wall().after(SystemClock.now().until(time))
}

/// Does `work`, which is dropped when a signal comes or `interruption` resolves.
async fn unless_interrupted<T>(
    work: impl Future<Output = T>,
    signals: &mut Signals,
    interruption: &mut InterruptionFuture<'_>,
) -> Result<T, Interruption> {
    tokio::select! {
        biased;
        done = work => Ok(done),
        signal = signals.next() => Err(Interruption::Signal(signal)),
        interruption = interruption => Err(interruption),
    }
}
