//! `leasehold leaks [PREFIX]`

use std::{process::ExitCode, time::Duration};

use clap::Args;
use leasehold::{Clock as _, ErrorKind, Query, Snapshot, SystemClock};
use rustix::{io::Errno, process};

use crate::{
    args,
    desk::Desk,
    exit::Failure,
    leak::{self, Finding, Head},
    names, order,
    table::{Style, Table},
};

/// A head of a line that could be granted and does not ask for this long is dead.
const DEAD_AFTER: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
#[command(after_help = "\
Finds: keys without a ttl; heads of lines that could be granted and do not ask (looks for 10 s if there is one); holders \
over --over, or over ten times the median of their kind if at least five are held; holders on this host whose process is \
gone; and with --pattern, locks of other libraries without a ttl. Exit code 1 if there is any, 0 if there is none.")]
pub(crate) struct Leaks {
    /// Only names that begin so, as in report/ or acme:
    #[arg(value_parser = names::prefix, default_value = "", hide_default_value = true)]
    prefix: String,
    /// Holders that hold for longer than this
    #[arg(long, value_name = "DUR", value_parser = args::duration, default_value = "1h")]
    over: Duration,
    /// Look for string and hash locks of other libraries that have no ttl, as in 'lock:*'
    #[arg(long, value_name = "GLOB")]
    pattern: Option<String>,
}

impl Leaks {
    pub(crate) async fn run(&self, desk: &Desk) -> Result<ExitCode, Failure> {
        let mut found = self.endless(desk).await?;
        let all = desk.all(&self.prefix).await?;
        found.extend(leak::process_gone(&all, &order::host(), lives));
        found.extend(leak::over_time(&all, self.over));
        found.extend(dead_heads(desk, &all).await?);
        let screen = desk.screen();
        if desk.output.json {
            screen.print_json(&serde_json::json!({ "findings": found }))?;
        } else if found.is_empty() {
            desk.output.say("no leaks");
        } else {
            screen.print_lines(&screen.lines(&table(&found)))?;
        }
        Ok(if found.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// Keys that never end: our own, and those that match the pattern.
    async fn endless(&self, desk: &Desk) -> Result<Vec<Finding>, Failure> {
        let ours = desk.leaks(|mut listing| {
            listing.prefix.clone_from(&self.prefix);
            Query::Leaks(listing)
        });
        let mut found: Vec<_> = match ours.await {
            Ok(ours) => ours.into_iter().map(|leak| Finding::endless("no_ttl", leak)).collect(),
            // A store that has no ttl of its own, such as one of sessions, cannot forget one.
            Err(error) if error.kind() == ErrorKind::Unsupported => Vec::new(),
            Err(error) => return Err(error.into()),
        };
        if let Some(pattern) = &self.pattern {
            let foreign = desk.leaks(|listing| Query::Foreign { pattern: pattern.clone(), listing });
            let foreign = foreign.await.map_err(|error| explained(error, pattern))?;
            found.extend(foreign.into_iter().map(|leak| Finding::endless("foreign_no_ttl", leak)));
        }
        Ok(found)
    }
}

fn explained(error: leasehold::Error, pattern: &str) -> Failure {
    let unsupported = error.kind() == ErrorKind::Unsupported;
    let failure = Failure::from(error);
    if unsupported {
        failure.hint(format!("leave out --pattern {pattern}, or name a Redis with --store"))
    } else {
        failure
    }
}

/// Whether there is such a process; one that we may not signal is there too.
fn lives(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(process::Pid::from_raw);
    pid.is_none_or(|pid| process::test_kill_process(pid) != Err(Errno::SRCH))
}

/// Looks again, each second, at the heads that could be granted; who is still there in the end is dead.
async fn dead_heads(desk: &Desk, all: &[Snapshot]) -> Result<Vec<Finding>, Failure> {
    let began = SystemClock.now();
    let mut heads: Vec<_> = all.iter().filter_map(|seen| Head::of(seen, began)).collect();
    if !heads.is_empty() && desk.output.is_watched() {
        desk.output.say("someone could be granted and does not ask: looking again for 10 s");
    }
    loop {
        let idle = began.until(SystemClock.now());
        if heads.is_empty() || idle >= DEAD_AFTER {
            return Ok(heads.iter().map(|head| head.finding(idle)).collect());
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        let mut still = Vec::new();
        for head in heads {
            let seen = desk.one(&head.resource).await?;
            let now = Head::of(&seen, SystemClock.now());
            still.extend(now.filter(|now| head.is_still(now)));
        }
        heads = still;
    }
}

fn table(found: &[Finding]) -> Table<4> {
    let mut table = Table::new(["NAME", "WHO", "=TOKEN", "WHAT"]);
    for finding in found {
        table.row([
            crate::table::Cell::styled(&finding.name, Style::Bold),
            (&finding.who).into(),
            finding.token.as_deref().unwrap_or("").into(),
            (&finding.say).into(),
        ]);
    }
    table
}
