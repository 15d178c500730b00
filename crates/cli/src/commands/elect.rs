//! `leasehold elect RESOURCE -- COMMAND…`, `leasehold elect --observe RESOURCE`

mod defaults;

use std::{ffi::OsString, path::PathBuf, process::ExitCode, time::Duration};

use clap::Args;
use leasehold::{Backoff, Client, Clock as _, ErrorKind, Leader, Resource, SystemClock};
use rustix::process::Signal;

use super::Context;
use crate::{
    args::{Global, duration},
    child_run::ChildRun,
    exit::{self, Exit, Failure},
    names,
    outage::WaitLimit,
    output::Output,
    screen::Screen,
    signals::Signals,
    store::Store,
    text,
};

/// Run a command while this process is the elected leader, and stand for election again when leadership is
/// lost
///
/// Start it on every machine. One of them becomes the leader and runs the command, as `leasehold run` does:
/// if leadership is lost, the command is ended before another machine can lead. TERM and INT are forwarded to
/// the command; leadership is given up when the command has ended, and its exit code is passed on. While the
/// store cannot be reached, it tries again.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  leasehold elect scheduler/eu --value http://host-a:8080 -- ./scheduler\n  leasehold elect scheduler/eu --ready-file /run/leader -- ./scheduler\n  leasehold elect --observe scheduler/eu"
)]
pub(crate) struct Elect {
    /// The election: [NAMESPACE:]KIND/ID such as scheduler/eu, or a plain name
    #[arg(value_parser = names::resource)]
    pub(crate) resource: Resource,
    /// The command and its arguments, passed on unchanged
    #[arg(trailing_var_arg = true, required_unless_present = "observe", conflicts_with = "observe")]
    command: Vec<OsString>,
    /// Only print the current leader, now and after every change
    #[arg(long)]
    observe: bool,
    /// What observers learn about the leader, such as its address [default: the host name]
    #[arg(long, value_name = "TEXT", conflicts_with = "observe")]
    value: Option<String>,
    /// Create this file while leading, for a readiness probe
    #[arg(long, value_name = "FILE", conflicts_with = "observe")]
    ready_file: Option<PathBuf>,
    /// How long leadership lasts without a renewal; renewals are automatic. 1s to 24h [default: 30s]
    #[arg(long, value_parser = duration, conflicts_with = "observe")]
    ttl: Option<Duration>,
    /// The time from TERM to KILL when leadership is lost [default: a sixth of the ttl]
    #[arg(long, value_parser = duration, conflicts_with = "observe")]
    grace: Option<Duration>,
    /// Exit with 79 when leadership is lost, instead of standing again
    #[arg(long, conflicts_with = "observe")]
    once: bool,
}

/// The pause before standing again doubles with every failure, this often: then it is about three seconds.
const DOUBLINGS_MAX: u32 = 6;

impl Elect {
    pub(crate) async fn run(&self, global: &Global, output: Output) -> Result<ExitCode, Failure> {
        if self.observe {
            self.observe_leader(global, output).await
        } else {
            self.campaign(global, output).await
        }
    }

    /// Stands for election until the command has run to its end.
    ///
    /// 1. Start `leasehold run` as a child: it waits for the lease, and runs the command.
    /// 2. If leadership was lost, pause, and go to step 1; with `--once`, end.
    /// 3. If the store could not be reached, wait until it can, and go to step 1. (The child waits for it, too.)
    /// 4. Otherwise end, with the exit code of the child.
    async fn campaign(&self, global: &Global, output: Output) -> Result<ExitCode, Failure> {
        let mut signals = Signals::ending().map_err(Failure::host)?;
        let store = Store::choose(global)?;
        let (mut outages, no_limit) = (0, WaitLimit::from_now(None));
        loop {
            let (ended, signal) = self.child_run(global)?.run_to_end(&mut signals).await?;
            let lost = ended.failed_with(ErrorKind::Lost);
            let away = ended.failed_with(ErrorKind::Unavailable);
            let again = away || (lost && !self.once);
            if !again || signal.is_some() {
                let killed = || signal.map_or(Exit::Internal.code(), by_signal);
                return Ok(ExitCode::from(ended.code().unwrap_or_else(killed)));
            }
            outages = if lost { 0 } else { outages + 1 };
            if lost {
                output.note(&format!("{}: leadership lost, standing for election again", self.resource));
            }
            let wait = async {
                // A store may accept a connection and then fail: do not start a child for each of these.
                tokio::time::sleep(Backoff::FIRST.saturating_mul(1 << outages.min(DOUBLINGS_MAX))).await;
                if away {
                    drop(store.open_when_reachable(&self.resource.to_string(), output, &no_limit).await?);
                }
                Ok::<(), Failure>(())
            };
            tokio::select! {
                ready = wait => ready?,
                signal = signals.next() => return Ok(ExitCode::from(by_signal(signal))),
            }
        }
    }

    fn child_run(&self, global: &Global) -> Result<ChildRun, Failure> {
        let mut child_run = ChildRun::new(global, global.metrics_file.as_deref())?;
        let command = &mut child_run.command;
        let host = || rustix::system::uname().nodename().to_string_lossy().into_owned();
        command.arg("--note").arg(self.value.clone().unwrap_or_else(host));
        if let Some(file) = &self.ready_file {
            command.arg("--ready-file").arg(file);
        }
        for (flag, value) in [("--ttl", self.ttl), ("--grace", self.grace)] {
            if let Some(value) = value {
                command.arg(flag).arg(value.as_secs_f64().to_string());
            }
        }
        command.arg(self.resource.to_string()).arg("--").args(&self.command);
        Ok(child_run)
    }

    async fn observe_leader(&self, global: &Global, output: Output) -> Result<ExitCode, Failure> {
        let mut signals = Signals::ending().map_err(Failure::host)?;
        let (context, task) = (Context::new(global, output)?, self.resource.to_string());
        let no_limit = WaitLimit::from_now(None);
        signals.end_at_once(true); // opening a file can block this thread
        let backend = context.store.read_when_reachable(&task, output, &no_limit).await?;
        signals.end_at_once(false);
        let client = Client::new(backend);
        let mut observer = client.election_of(&self.resource).observe()?;
        loop {
            let seen = tokio::select! {
                seen = observer.next() => seen,
                signal = signals.next() => return Ok(ExitCode::from(by_signal(signal))),
            };
            match seen {
                Ok(leader) => {
                    if !show(leader.as_ref(), output)? {
                        return Ok(ExitCode::SUCCESS); // the reader of the pipe has closed it
                    }
                }
                Err(error) if error.is_retryable() => {
                    output.note(&format!("{error}; trying again"));
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Prints the leader. False if the reader of stdout has closed it.
fn show(leader: Option<&Leader>, output: Output) -> Result<bool, Failure> {
    let (screen, at) = (Screen::now(), text::exact_time(SystemClock.wall()));
    let value = leader.and_then(|leader| leader.note.as_deref()).map(text::note);
    if output.json {
        let token = leader.map(|leader| leader.token.to_string());
        let holder = leader.map(|leader| leader.holder.to_string());
        return screen
            .print_json(&serde_json::json!({ "at": at, "value": value, "token": token, "holder": holder }));
    }
    let line = leader.map_or("there is no leader".to_owned(), |leader| {
        let value = value.map_or(String::new(), |value| format!("{} ", text::printable(&value)));
        format!("{value}is the leader, token {}, {}", leader.token, text::holder(&leader.holder))
    });
    screen.print(&format!("{at} {line}\n"))
}

fn by_signal(signal: Signal) -> u8 {
    exit::by_signal(signal.as_raw())
}
