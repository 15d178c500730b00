//! `leasehold leaks [PREFIX]`

use std::{process::ExitCode, time::Duration};

use clap::Args;
use leasehold::{Clock as _, ErrorKind, Query, Snapshot, SystemClock};
use rustix::{io::Errno, process};

use crate::{
    args,
    exit::Failure,
    leak_detection::{self, IdleQueueHead, SuspectedLeak},
    names, order,
    session::OperatorSession,
    table::{Style, Table},
};

/// A first waiter that could be granted and does not ask for this long is reported.
const IDLE_AFTER: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
#[command(after_help = "\
Finds: keys of leasehold without a ttl; first waiters of a queue that could be granted and do not ask (watched for 10 s if \
there is one); holders over --over, or over ten times the median of their kind if at least five are held; holders on this \
host whose process is gone; with --pattern, locks of other libraries without a ttl. The exit code is 1 if anything is \
found, else 0.")]
pub(crate) struct Leaks {
    /// Only resources whose name starts with this, such as report/ or acme:
    #[arg(value_parser = names::prefix, default_value = "", hide_default_value = true)]
    prefix: String,
    /// Report holders that have held for longer than this
    #[arg(long, value_name = "DUR", value_parser = args::duration, default_value = "1h")]
    over: Duration,
    /// Also report locks of other libraries (strings and hashes) without a ttl, such as 'lock:*'; Redis only
    #[arg(long, value_name = "GLOB")]
    pattern: Option<String>,
}

impl Leaks {
    pub(crate) async fn run(&self, session: &OperatorSession) -> Result<ExitCode, Failure> {
        let mut found = self.without_ttl(session).await?;
        let all = session.snapshots(&self.prefix).await?;
        found.extend(leak_detection::process_gone(&all, &order::host(), is_alive));
        found.extend(leak_detection::over_time(&all, self.over));
        found.extend(idle_heads(session, &all).await?);
        let screen = session.screen();
        if session.output.json {
            screen.print_json(&serde_json::json!({ "findings": found }))?;
        } else if found.is_empty() {
            session.output.note("no leaks found");
        } else {
            screen.print_lines(&screen.lines(&table(&found)))?;
        }
        Ok(if found.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// Keys without a ttl: our own, and those of other libraries that match the pattern.
    async fn without_ttl(&self, session: &OperatorSession) -> Result<Vec<SuspectedLeak>, Failure> {
        let ours = session.leaks(|mut listing| {
            listing.prefix.clone_from(&self.prefix);
            Query::Leaks(listing)
        });
        let mut found: Vec<_> = match ours.await {
            Ok(ours) => ours.into_iter().map(|leak| SuspectedLeak::without_ttl("no_ttl", leak)).collect(),
            // A store whose leases have no ttl of their own (sessions) cannot lose one.
            Err(error) if error.kind() == ErrorKind::Unsupported => Vec::new(),
            Err(error) => return Err(error.into()),
        };
        if let Some(pattern) = &self.pattern {
            let foreign = session.leaks(|listing| Query::Foreign { pattern: pattern.clone(), listing });
            let foreign = foreign.await.map_err(|error| pattern_failure(error, pattern))?;
            found.extend(foreign.into_iter().map(|leak| SuspectedLeak::without_ttl("foreign_no_ttl", leak)));
        }
        Ok(found)
    }
}

fn pattern_failure(error: leasehold::Error, pattern: &str) -> Failure {
    let unsupported = error.kind() == ErrorKind::Unsupported;
    let failure = Failure::from(error);
    if unsupported {
        failure.hint(format!("leave out --pattern {pattern}, or name a Redis server with --store"))
    } else {
        failure
    }
}

/// Whether there is such a process. A process that we may not signal exists too.
fn is_alive(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(process::Pid::from_raw);
    pid.is_none_or(|pid| process::test_kill_process(pid) != Err(Errno::SRCH))
}

/// Looks again every second at the first waiters that could be granted. Those that are still there in the end
/// are reported.
async fn idle_heads(session: &OperatorSession, all: &[Snapshot]) -> Result<Vec<SuspectedLeak>, Failure> {
    let began = SystemClock.now();
    let mut heads: Vec<_> = all.iter().filter_map(|snapshot| IdleQueueHead::of(snapshot, began)).collect();
    if !heads.is_empty() && session.output.shows_progress() {
        session.output.note("a first waiter could be granted and does not ask: watching it for 10 s");
    }
    loop {
        let idle = began.until(SystemClock.now());
        if heads.is_empty() || idle >= IDLE_AFTER {
            return Ok(heads.iter().map(|head| head.to_leak(idle)).collect());
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        let mut still = Vec::new();
        for head in heads {
            let snapshot = session.snapshot(&head.resource).await?;
            let now = IdleQueueHead::of(&snapshot, SystemClock.now());
            still.extend(now.filter(|now| head.is_same_waiter(now)));
        }
        heads = still;
    }
}

fn table(found: &[SuspectedLeak]) -> Table<4> {
    let mut table = Table::new(["NAME", "HOLDER", "=TOKEN", "PROBLEM"]);
    for leak in found {
        table.row([
            crate::table::Cell::styled(&leak.name, Style::Bold),
            (&leak.holder_text).into(),
            leak.token.as_deref().unwrap_or("").into(),
            (&leak.say).into(),
        ]);
    }
    table
}
