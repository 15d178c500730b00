//! `leasehold elect RESOURCE -- COMMAND…`, `leasehold elect --observe RESOURCE`

use std::{ffi::OsString, path::PathBuf, process::ExitCode, time::Duration};

use clap::Args;
use leasehold::{Backoff, Client, Clock as _, ErrorKind, Leader, Resource, SystemClock};
use rustix::process::Signal;

use super::Context;
use crate::{
    args::{Global, duration},
    exit::{self, Exit, Failure},
    output::Output,
    relaunch::Relaunch,
    screen::Screen,
    signals::Signals,
    text,
};

/// Run a command while leading, and stand for election again when the lead is lost
///
/// Start it on every machine. One of them leads and runs the command, as `leasehold run` does: when the lead is lost, the
/// command is ended before anyone else can lead. TERM and INT are passed on; the lead is given up when the command has
/// ended, and its exit code is ours.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  leasehold elect scheduler/eu --value http://host-a:8080 -- ./scheduler\n  leasehold elect scheduler/eu --ready-file /run/leader -- ./scheduler\n  leasehold elect --observe scheduler/eu"
)]
pub(crate) struct Elect {
    /// What to lead: [NAMESPACE:]KIND/ID, as in scheduler/eu
    resource: Resource,
    /// The command and its arguments, exactly as they are
    #[arg(trailing_var_arg = true, required_unless_present = "observe", conflicts_with = "observe")]
    command: Vec<OsString>,
    /// Do not stand: print who leads, now and after every change
    #[arg(long)]
    observe: bool,
    /// What the others are to know about the leader, such as its address [default: the host's name]
    #[arg(long, value_name = "TEXT", conflicts_with = "observe")]
    value: Option<String>,
    /// Make this file while leading, for a readiness probe
    #[arg(long, value_name = "FILE", conflicts_with = "observe")]
    ready_file: Option<PathBuf>,
    /// How long the lead lasts unless renewed, which happens by itself: 1s to 24h [default: 30s]
    #[arg(long, value_parser = duration, conflicts_with = "observe")]
    ttl: Option<Duration>,
    /// How long the command has from TERM to KILL when the lead is lost [default: a sixth of the ttl]
    #[arg(long, value_parser = duration, conflicts_with = "observe")]
    grace: Option<Duration>,
    /// End when the lead is lost, with 79
    #[arg(long, conflicts_with = "observe")]
    once: bool,
}

impl Elect {
    pub(crate) async fn run(&self, global: &Global, output: Output) -> Result<ExitCode, Failure> {
        if self.observe { self.watch(global, output).await } else { self.stand(global, output).await }
    }

    async fn stand(&self, global: &Global, output: Output) -> Result<ExitCode, Failure> {
        let mut signals = Signals::ending().map_err(Failure::host)?;
        let (mut has_led, mut failures) = (false, 0);
        loop {
            let (ended, told) = self.relaunch(global)?.see_through(&mut signals).await?;
            let lost = ended.is_by(ErrorKind::Lost);
            // A store that answered before may answer again: the others cannot reach it, either.
            let again = lost || (has_led && ended.is_by(ErrorKind::Unavailable));
            if !again || self.once || told.is_some() {
                let killed = || told.map_or(Exit::Internal.code(), by_signal);
                return Ok(ExitCode::from(ended.code().unwrap_or_else(killed)));
            }
            has_led |= lost;
            failures = if lost { 0 } else { failures + 1 };
            output.say(&format!("{}: standing for election again", self.resource));
            let pause = Backoff::FIRST.saturating_mul(1 << failures.min(9)); // at most half a minute
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                signal = signals.next() => return Ok(ExitCode::from(by_signal(signal))),
            }
        }
    }

    fn relaunch(&self, global: &Global) -> Result<Relaunch, Failure> {
        let mut relaunch = Relaunch::new(global)?;
        let command = &mut relaunch.command;
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
        Ok(relaunch)
    }

    async fn watch(&self, global: &Global, output: Output) -> Result<ExitCode, Failure> {
        let mut signals = Signals::ending().map_err(Failure::host)?;
        let context = Context::new(global, output)?;
        let client = Client::new(context.store.open().await?);
        let resource = &self.resource;
        let client = resource.namespace().map_or(client.clone(), |namespace| client.namespace(namespace));
        let mut observer = client.election(resource.kind(), &resource.id()).observe()?;
        loop {
            let seen = tokio::select! {
                seen = observer.next() => seen,
                signal = signals.next() => return Ok(ExitCode::from(by_signal(signal))),
            };
            match seen {
                Ok(leader) => {
                    if !show(leader.as_ref(), output)? {
                        return Ok(ExitCode::SUCCESS); // the reader has had enough
                    }
                }
                Err(error) if error.is_retryable() => {
                    output.say(&format!("{error}: trying again"));
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn show(leader: Option<&Leader>, output: Output) -> Result<bool, Failure> {
    let (screen, at) = (Screen::now(), text::exact_time(SystemClock.wall()));
    let value = leader.and_then(|leader| leader.note.as_deref()).map(text::note);
    if output.json {
        let token = leader.map(|leader| leader.token.to_string());
        let holder = leader.map(|leader| leader.holder.to_string());
        return screen
            .print_json(&serde_json::json!({ "at": at, "value": value, "token": token, "holder": holder }));
    }
    let line = leader.map_or("nobody leads".to_owned(), |leader| {
        let value = value.map_or(String::new(), |value| format!("{} ", text::printable(&value)));
        format!("{value}leads, token {}, {}", leader.token, text::holder(&leader.holder))
    });
    screen.print(&format!("{at} {line}\n"))
}

fn by_signal(signal: Signal) -> u8 {
    exit::by_signal(signal.as_raw())
}
