//! `leasehold ls [PREFIX]`

use std::{cmp::Reverse, process::ExitCode, time::Duration};

use clap::{Args, ValueEnum};
use leasehold::{HeldBy, Snapshot};
use serde::Serialize;

use crate::{
    exit::Failure,
    names,
    session::OperatorSession,
    table::{Cell, Style, Table},
    text,
    view::{self, ResourceView},
};

#[derive(Debug, Args)]
#[command(
    after_help = "Lists the resources that are held, waited for or paused. If there are several holders, the row has the \
                  one that has held for longest and how many more there are; `leasehold show RESOURCE` lists all."
)]
pub(crate) struct Ls {
    /// Only resources whose name starts with this, such as report/ or acme:
    #[arg(value_parser = names::prefix, default_value = "", hide_default_value = true)]
    prefix: String,
    /// Only resources of this kind, in every namespace
    #[arg(long)]
    kind: Option<String>,
    /// Only resources with waiters
    #[arg(long)]
    waiting: bool,
    /// The order: by name, longest wait first, longest held first, or least time left first
    #[arg(long, value_enum, default_value_t = Sort::Key)]
    sort: Sort,
    /// Show at most this many resources
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Sort {
    Key,
    Wait,
    Held,
    Remaining,
}

#[derive(Serialize)]
struct ResourceList {
    resources: Vec<ResourceView>,
    /// The number of resources that were left out because of `--limit`.
    more: usize,
}

impl Ls {
    pub(crate) async fn run(&self, session: &OperatorSession) -> Result<ExitCode, Failure> {
        let mut found = session.snapshots(&self.prefix).await?;
        found.retain(|snapshot| self.is_wanted(snapshot));
        match self.sort {
            Sort::Key => {}
            Sort::Wait => found.sort_by_key(|snapshot| Reverse(oldest_wait(snapshot))),
            Sort::Held => found.sort_by_key(|snapshot| Reverse(longest(snapshot).map(|held| held.held_for))),
            Sort::Remaining => found.sort_by_key(next_end),
        }
        let more = found.len().saturating_sub(self.limit.unwrap_or(usize::MAX));
        found.truncate(found.len() - more);
        if session.output.json {
            let resources = found.iter().map(ResourceView::of).collect();
            session.screen().print_json(&ResourceList { resources, more })?;
            return Ok(ExitCode::SUCCESS);
        }
        if found.is_empty() {
            session.output.note("nothing is held, waited for or paused");
        } else {
            let screen = session.screen();
            screen.print_lines(&screen.lines(&table(&found)))?;
        }
        if more > 0 {
            session.output.note(&format!("{more} more resources are not shown: use --limit to see them"));
        }
        Ok(ExitCode::SUCCESS)
    }

    fn is_wanted(&self, snapshot: &Snapshot) -> bool {
        // `cron` marks a tick as done by a lease that stays closed (ADR 0029). `leasehold cron ls` shows
        // these.
        let is_tick_mark = matches!(snapshot.resource.kind(), "tick" | "tick-end")
            && snapshot.holders.iter().all(|by| by.kept);
        let kind = match self.kind.as_deref() {
            Some(kind) => kind == snapshot.resource.kind(),
            None => !is_tick_mark || !self.prefix.is_empty(),
        };
        kind && (!self.waiting || snapshot.queue_length > 0)
    }
}

/// A lease with less than this left is highlighted.
const ENDS_SOON: Duration = Duration::from_secs(5);

/// A table with one row per resource.
pub(crate) fn table(found: &[Snapshot]) -> Table<7> {
    let mut table = Table::new(["RESOURCE", "HOLDER", "=HELD", "=LEFT", "=TOKEN", "=WAITING", "FLAGS"]);
    for snapshot in found {
        let held = longest(snapshot);
        let when = |time: fn(&HeldBy) -> Duration| held.map_or(String::new(), |held| text::span(time(held)));
        let left = Cell::styled(when(|held| held.remaining), urgency(held));
        let token = held.map_or(String::new(), |held| held.token.to_string());
        table.row([
            Cell::styled(view::name(&snapshot.resource), Style::Bold),
            holder(snapshot),
            when(|held| held.held_for).into(),
            left,
            token.into(),
            waiting(snapshot),
            flags(snapshot),
        ]);
    }
    table
}

fn holder(snapshot: &Snapshot) -> Cell {
    let Some(held) = longest(snapshot) else { return Cell::styled("nobody", Style::Dim) };
    let mut name = text::holder(&held.holder);
    if snapshot.holder_count > 1 {
        name = format!("+{} more, {name}", snapshot.holder_count - 1);
    }
    name.into()
}

fn urgency(held: Option<&HeldBy>) -> Style {
    match held {
        Some(held) if held.evicting => Style::Bad,
        Some(held) if held.remaining < ENDS_SOON => Style::Warn,
        _ => Style::Plain,
    }
}

fn waiting(snapshot: &Snapshot) -> Cell {
    match snapshot.queue_length {
        0 => Cell::default(),
        waiting => {
            let oldest = oldest_wait(snapshot).unwrap_or_default();
            Cell::styled(format!("{waiting}, oldest {}", text::span(oldest)), Style::Warn)
        }
    }
}

fn flags(snapshot: &Snapshot) -> Cell {
    let any = |is: fn(&HeldBy) -> bool| snapshot.holders.iter().any(is);
    let paused = snapshot.paused_for.map(|left| format!("paused {}", text::span(left)));
    let flags = [
        paused,
        any(|held| held.asked.is_some()).then(|| "asked".to_owned()),
        any(|held| held.evicting).then(|| "evicting".to_owned()),
        any(|held| held.kept).then(|| "kept".to_owned()),
    ];
    Cell::styled(flags.into_iter().flatten().collect::<Vec<_>>().join(", "), Style::Warn)
}

pub(crate) fn oldest_wait(snapshot: &Snapshot) -> Option<Duration> {
    snapshot.queue.iter().map(|waiter| waiter.waited).max()
}

fn longest(snapshot: &Snapshot) -> Option<&HeldBy> {
    snapshot.holders.iter().max_by_key(|held| held.held_for)
}

/// The time until the first holder ends. A resource without a holder comes last.
fn next_end(snapshot: &Snapshot) -> Duration {
    snapshot.holders.iter().map(|held| held.remaining).min().unwrap_or(Duration::MAX)
}
