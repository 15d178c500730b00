//! `leasehold leaks [PREFIX]`

use std::{collections::BTreeSet, process::ExitCode, time::Duration};

use clap::Args;
use leasehold::{Clock as _, ErrorKind, Leak, Query, Snapshot, SystemClock};

use crate::{
    args,
    exit::Failure,
    leak_detection::{self, IdleQueueHead, SuspectedLeak},
    names,
    session::OperatorSession,
    table::{Cell, Style, Table},
    this_host::ProcessTable,
};

/// A first waiter that could be granted and does not ask for this long is reported.
const IDLE_AFTER: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
#[command(after_help = "\
Finds: keys of leasehold without a ttl; first waiters of a queue that could be granted and do not ask (watched for 10 s if \
there is one); holders over --over, or over ten times the median of their kind if at least five are held; holders on this \
host whose process is gone; locks of other programs that hold a resource and have no end; resources whose data is corrupt; \
with --pattern, locks of other libraries without a ttl. For each finding that an order can clear, the order is printed. The \
exit code is 1 if anything is found, else 0.")]
pub(crate) struct Leaks {
    /// Only resources whose name starts with this, such as report/ or acme:
    #[arg(value_parser = names::prefix, default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
    /// Report holders that have held for longer than this
    #[arg(long, value_name = "DUR", value_parser = args::duration, default_value = "1h")]
    over: Duration,
    /// Also report locks of other libraries (strings and hashes) without a ttl, such as 'lock:*'; Redis only
    #[arg(long, value_name = "GLOB")]
    pattern: Option<String>,
}

impl Leaks {
    pub(crate) async fn run(&self, session: &OperatorSession) -> Result<ExitCode, Failure> {
        // The keys first: reading a resource counts as a use of its keys.
        let keys = self.without_ttl(session).await?;
        let all = session.snapshots(&self.prefix).await?;
        let endless = leak_detection::foreign_without_end(&all, &keys.ours);
        let ours = keys.ours.into_iter().map(|leak| SuspectedLeak::without_ttl(leak, &all));
        let foreign = keys.foreign.into_iter().map(SuspectedLeak::of_other_library);
        let mut found: Vec<_> = endless.into_iter().chain(ours).chain(foreign).collect();
        found.extend(leak_detection::unreadable(&all));
        found.extend(leak_detection::process_gone(&all, &ProcessTable::of_this_host()));
        found.extend(leak_detection::over_time(&all, self.over));
        found.extend(idle_heads(session, &all).await?);
        for leak in found.iter_mut().filter(|leak| !leak.order.is_empty()) {
            let words = leak.order.iter().map(String::as_str).chain(["--reason", "WHY"]);
            let words: Vec<_> = words.collect();
            leak.command = match leak.is_foreign() {
                true => Some(session.foreign_command(&words)),
                false => session.takes_orders().then(|| session.command(&words)),
            };
        }
        let screen = session.screen();
        if session.output.json {
            screen.print_json(&serde_json::json!({ "findings": found }))?;
        } else if found.is_empty() {
            session.output.note("no leaks found");
        } else {
            let mut lines = screen.lines(&table(&found));
            // One resource can have several findings with the same command.
            let commands: BTreeSet<_> = found.iter().filter_map(|leak| leak.command.as_deref()).collect();
            if !commands.is_empty() {
                lines.extend([
                    String::new(),
                    "To clear them, once you know that the work has ended:".to_owned(),
                ]);
            }
            lines.extend(commands.iter().map(|line| format!("  {}", Style::Bold.paint(line, screen.colour))));
            screen.print_lines(&lines)?;
        }
        Ok(if found.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    async fn without_ttl(&self, session: &OperatorSession) -> Result<KeysWithoutTtl, Failure> {
        let ours = session.leaks(|mut listing| {
            listing.prefix.clone_from(&self.prefix);
            Query::Leaks(listing)
        });
        let ours = match ours.await {
            Ok(ours) => ours,
            // A Redlock set has no keys of its own. A lock of another program on most of its nodes is found by its snapshot.
            Err(error) if error.kind() == ErrorKind::Unsupported => Vec::new(),
            Err(error) => return Err(error.into()),
        };
        let foreign = match &self.pattern {
            Some(pattern) => {
                let foreign = session.leaks(|listing| Query::Foreign { pattern: pattern.clone(), listing });
                foreign.await.map_err(|error| pattern_failure(error, pattern))?
            }
            None => Vec::new(),
        };
        Ok(KeysWithoutTtl { ours, foreign })
    }
}

/// Keys without a ttl: our own, and those of other libraries that match the pattern.
struct KeysWithoutTtl {
    ours: Vec<Leak>,
    foreign: Vec<Leak>,
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
    // The problem is what matters. The command below has the token.
    let mut table = Table::new(["NAME", "HOLDER", "=TOKEN", "PROBLEM"]).may_drop(&["TOKEN"]).readable(50);
    for leak in found {
        table.row([
            Cell::styled(&leak.name, Style::Bold),
            (&leak.holder_text).into(),
            leak.token.as_deref().unwrap_or("").into(),
            (&leak.say).into(),
        ]);
    }
    table
}
