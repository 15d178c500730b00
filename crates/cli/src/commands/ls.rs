//! `leasehold ls [PREFIX]`

use std::{cmp::Reverse, process::ExitCode, time::Duration};

use clap::{Args, ValueEnum};
use leasehold::{HeldBy, Snapshot};
use serde::Serialize;

use crate::{
    desk::Desk,
    exit::Failure,
    names,
    table::{Cell, Style, Table},
    text,
    view::{self, ResourceView},
};

#[derive(Debug, Args)]
#[command(
    after_help = "Shows what is held, waited for or paused. Of several holders the longest is shown, and how \
                        many more there are: `leasehold show RESOURCE` has them all."
)]
pub(crate) struct Ls {
    /// Only names that begin so, as in report/ or acme:
    #[arg(value_parser = names::prefix, default_value = "", hide_default_value = true)]
    prefix: String,
    /// Only this kind, in every namespace
    #[arg(long)]
    kind: Option<String>,
    /// Only where someone waits
    #[arg(long)]
    waiting: bool,
    /// Which comes first: by name, the oldest wait, the longest hold, or the soonest end
    #[arg(long, value_enum, default_value_t = Sort::Key)]
    sort: Sort,
    /// Show at most this many
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
struct Listed {
    resources: Vec<ResourceView>,
    /// How many are not shown.
    more: usize,
}

impl Ls {
    pub(crate) async fn run(&self, desk: &Desk) -> Result<ExitCode, Failure> {
        let mut found = desk.all(&self.prefix).await?;
        found.retain(|seen| self.is_wanted(seen));
        match self.sort {
            Sort::Key => {}
            Sort::Wait => found.sort_by_key(|seen| Reverse(oldest_wait(seen))),
            Sort::Held => found.sort_by_key(|seen| Reverse(longest(seen).map(|held| held.held_for))),
            Sort::Remaining => found.sort_by_key(next_end),
        }
        let more = found.len().saturating_sub(self.limit.unwrap_or(usize::MAX));
        found.truncate(found.len() - more);
        if desk.output.json {
            let resources = found.iter().map(ResourceView::of).collect();
            desk.screen().print_json(&Listed { resources, more })?;
            return Ok(ExitCode::SUCCESS);
        }
        if found.is_empty() {
            desk.output.say("nothing is held, waited for or paused");
        } else {
            let screen = desk.screen();
            screen.print_lines(&screen.lines(&table(&found)))?;
        }
        if more > 0 {
            desk.output.say(&format!("{more} more are not shown"));
        }
        Ok(ExitCode::SUCCESS)
    }

    fn is_wanted(&self, seen: &Snapshot) -> bool {
        // What remembers a tick is held by nobody: `leasehold cron ls` shows it.
        let is_mark =
            matches!(seen.resource.kind(), "tick" | "tick-end") && seen.holders.iter().all(|by| by.kept);
        let kind = match self.kind.as_deref() {
            Some(kind) => kind == seen.resource.kind(),
            None => !is_mark || !self.prefix.is_empty(),
        };
        kind && (!self.waiting || seen.queue_length > 0)
    }
}

/// One row each.
pub(crate) fn table(found: &[Snapshot]) -> Table<7> {
    let mut table = Table::new(["RESOURCE", "HOLDER", "=HELD", "=LEFT", "=TOKEN", "=WAITING", "FLAGS"]);
    for seen in found {
        let held = longest(seen);
        let when = |time: fn(&HeldBy) -> Duration| held.map_or(String::new(), |held| text::span(time(held)));
        let left = Cell::styled(when(|held| held.remaining), urgency(held));
        let token = held.map_or(String::new(), |held| held.token.to_string());
        table.row([
            Cell::styled(view::name(&seen.resource), Style::Bold),
            holder(seen),
            when(|held| held.held_for).into(),
            left,
            token.into(),
            waiting(seen),
            flags(seen),
        ]);
    }
    table
}

fn holder(seen: &Snapshot) -> Cell {
    let Some(held) = longest(seen) else { return Cell::styled("nobody", Style::Dim) };
    let mut who = text::holder(&held.holder);
    if seen.holder_count > 1 {
        who = format!("+{} more, {who}", seen.holder_count - 1);
    }
    who.into()
}

fn urgency(held: Option<&HeldBy>) -> Style {
    match held {
        Some(held) if held.evicting => Style::Bad,
        Some(held) if held.remaining < Duration::from_secs(5) => Style::Warn,
        _ => Style::Plain,
    }
}

fn waiting(seen: &Snapshot) -> Cell {
    match seen.queue_length {
        0 => Cell::default(),
        waiting => {
            let oldest = oldest_wait(seen).unwrap_or_default();
            Cell::styled(format!("{waiting}, oldest {}", text::span(oldest)), Style::Warn)
        }
    }
}

fn flags(seen: &Snapshot) -> Cell {
    let any = |is: fn(&HeldBy) -> bool| seen.holders.iter().any(is);
    let paused = seen.paused_for.map(|left| format!("paused {}", text::span(left)));
    let flags = [
        paused,
        any(|held| held.asked.is_some()).then(|| "asked".to_owned()),
        any(|held| held.evicting).then(|| "evicting".to_owned()),
        any(|held| held.kept).then(|| "kept".to_owned()),
    ];
    Cell::styled(flags.into_iter().flatten().collect::<Vec<_>>().join(", "), Style::Warn)
}

pub(crate) fn oldest_wait(seen: &Snapshot) -> Option<Duration> {
    seen.queue.iter().map(|placed| placed.waited).max()
}

fn longest(seen: &Snapshot) -> Option<&HeldBy> {
    seen.holders.iter().max_by_key(|held| held.held_for)
}

/// What nobody holds comes last.
fn next_end(seen: &Snapshot) -> Duration {
    seen.holders.iter().map(|held| held.remaining).min().unwrap_or(Duration::MAX)
}
