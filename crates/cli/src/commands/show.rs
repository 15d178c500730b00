//! `leasehold show RESOURCE`

use std::process::ExitCode;

use clap::Args;
use leasehold::{AuditRecord, Clock as _, HeldBy, Resource, Snapshot, SystemClock};
use serde::Serialize;

use crate::{
    commands::audit,
    desk::Desk,
    exit::Failure,
    names,
    screen::Screen,
    table::{Style, Table},
    text,
    view::{self, AuditView, ResourceView},
};

/// Orders of the past that are shown.
const RECORDS: usize = 10;

#[derive(Debug, Args)]
pub(crate) struct Show {
    /// Which, as kind/id or namespace:kind/id
    #[arg(value_parser = names::resource)]
    resource: Resource,
}

#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    resource: ResourceView,
    audit: Vec<AuditView>,
}

impl Show {
    pub(crate) async fn run(&self, desk: &Desk) -> Result<ExitCode, Failure> {
        let seen = desk.one(&self.resource).await?;
        let ours = |record: &AuditRecord| record.resource == self.resource;
        let (records, _) = desk.audit(self.resource.key(), RECORDS, ours).await?;
        let screen = desk.screen();
        if desk.output.json {
            let audit = records.iter().map(AuditView::of).collect();
            screen.print_json(&Shown { resource: ResourceView::of(&seen), audit })?;
        } else {
            screen.print_lines(&page(screen, &seen, &records))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn page(screen: Screen, seen: &Snapshot, records: &[AuditRecord]) -> Vec<String> {
    let mut lines = vec![title(screen, seen)];
    if let Some(left) = seen.paused_for {
        let until = text::time(SystemClock.wall().after(left));
        lines.push(
            Style::Warn.paint(&format!("  paused until {until} ({} more)", text::span(left)), screen.colour),
        );
    }
    for held in &seen.holders {
        lines.push(String::new());
        lines.extend(holder(screen, held, seen.capacity));
    }
    lines.extend(left_out(seen.holder_count, seen.holders.len(), "holders"));
    if !seen.queue.is_empty() {
        lines.push(String::new());
        lines.extend(screen.indented(&line(seen)));
        lines.extend(left_out(seen.queue_length, seen.queue.len(), "places"));
    }
    if !records.is_empty() {
        lines.push(String::new());
        lines.extend(screen.indented(&audit::table(records, false)));
    }
    lines
}

fn title(screen: Screen, seen: &Snapshot) -> String {
    let name = Style::Bold.paint(&view::name(&seen.resource), screen.colour);
    let state = match (seen.holder_count, seen.queue_length) {
        (0, 0) => Style::Good.paint("free", screen.colour),
        (0, waiting) => format!("nobody holds it, {waiting} waiting"),
        (held, waiting) => {
            let holders = text::count(held, "holder", "holders");
            format!("{}, {holders}, {waiting} waiting", view::sort_of(seen.capacity))
        }
    };
    let last = seen.last_token.filter(|_| seen.holders.is_empty());
    let last = last.map_or(String::new(), |token| format!(", last token {token}"));
    format!("{name}: {state}{last}")
}

/// What one knows of a holder, a line each.
fn holder(screen: Screen, held: &HeldBy, capacity: u32) -> Vec<String> {
    let since = text::time(text::before(SystemClock.wall(), held.held_for));
    let unless = match held {
        HeldBy { kept: true, .. } => "nobody is there any more; it stays closed so long",
        HeldBy { evicting: true, .. } => "being evicted: it is not renewed any more",
        _ => "unless it renews",
    };
    let facts = [
        ("token", Some(held.token.to_string())),
        ("since", Some(format!("{since} ({})", text::span(held.held_for)))),
        ("left", Some(format!("{}, {unless}", text::span(held.remaining)))),
        ("share", view::share(held.weight, capacity)),
        ("turns", (held.handovers > 0).then(|| format!("handed over {} times in a row", held.handovers))),
        ("asked", held.asked.as_ref().map(view::asked)),
        ("note", held.note.as_deref().map(text::note)),
    ];
    let who = format!("  {}", Style::Bold.paint(&text::holder(&held.holder), screen.colour));
    let said = facts.into_iter().filter_map(|(name, fact)| fact.map(|fact| (name, fact)));
    let label = |name: &str| Style::Dim.paint(&format!("{name:<6}"), screen.colour);
    std::iter::once(who).chain(said.map(|(name, fact)| format!("    {} {fact}", label(name)))).collect()
}

fn line(seen: &Snapshot) -> Table<5> {
    let mut table = Table::new(["LINE", "WAITS", "=WAITED", "=PLACE ENDS IN", "WANTS"]);
    for (at, placed) in seen.queue.iter().enumerate() {
        table.row([
            (at + 1).to_string().into(),
            text::holder(&placed.holder).into(),
            text::span(placed.waited).into(),
            text::span(placed.remaining).into(),
            view::share(placed.weight, seen.capacity).unwrap_or_else(|| "all of it".to_owned()).into(),
        ]);
    }
    table
}

fn left_out(count: u32, shown: usize, what: &str) -> Option<String> {
    let more = (count as usize).saturating_sub(shown);
    (more > 0).then(|| format!("  and {more} more {what}"))
}
