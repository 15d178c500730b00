//! `leasehold show RESOURCE`

use std::process::ExitCode;

use clap::Args;
use leasehold::{AuditRecord, Clock as _, HeldBy, Resource, Snapshot, SystemClock};
use serde::Serialize;

use crate::{
    commands::audit,
    exit::Failure,
    names,
    screen::Screen,
    session::OperatorSession,
    table::{Style, Table},
    text,
    view::{self, AuditView, ResourceView},
};

/// How many of the last orders are shown.
const ORDERS_SHOWN: usize = 10;

#[derive(Debug, Args)]
pub(crate) struct Show {
    /// The resource: kind/id or namespace:kind/id
    #[arg(value_parser = names::resource)]
    resource: Resource,
}

#[derive(Serialize)]
struct ShowReport {
    #[serde(flatten)]
    resource: ResourceView,
    audit: Vec<AuditView>,
}

impl Show {
    pub(crate) async fn run(&self, session: &OperatorSession) -> Result<ExitCode, Failure> {
        let snapshot = session.snapshot(&self.resource).await?;
        let of_this_resource = |record: &AuditRecord| record.resource == self.resource;
        let (records, _) = session.audit(self.resource.key(), ORDERS_SHOWN, of_this_resource).await?;
        let screen = session.screen();
        if session.output.json {
            let audit = records.iter().map(AuditView::of).collect();
            screen.print_json(&ShowReport { resource: ResourceView::of(&snapshot), audit })?;
        } else {
            screen.print_lines(&page(screen, &snapshot, &records))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn page(screen: Screen, snapshot: &Snapshot, records: &[AuditRecord]) -> Vec<String> {
    let mut lines = vec![title(screen, snapshot)];
    if let Some(left) = snapshot.paused_for {
        let until = text::time(SystemClock.wall().after(left));
        lines.push(
            Style::Warn.paint(&format!("  paused until {until} ({} more)", text::span(left)), screen.colour),
        );
    }
    for held in &snapshot.holders {
        lines.push(String::new());
        lines.extend(holder(screen, held, snapshot.capacity));
    }
    lines.extend(left_out(snapshot.holder_count, snapshot.holders.len(), "holders"));
    if !snapshot.queue.is_empty() {
        lines.push(String::new());
        lines.extend(screen.indented(&queue(snapshot)));
        lines.extend(left_out(snapshot.queue_length, snapshot.queue.len(), "waiters"));
    }
    if !records.is_empty() {
        lines.push(String::new());
        lines.extend(screen.indented(&audit::table(records, false)));
    }
    lines
}

fn title(screen: Screen, snapshot: &Snapshot) -> String {
    let name = Style::Bold.paint(&view::name(&snapshot.resource), screen.colour);
    let state = match (snapshot.holder_count, snapshot.queue_length) {
        (0, 0) => Style::Good.paint("free", screen.colour),
        (0, waiting) => format!("nobody holds it, {waiting} waiting"),
        (held, waiting) => {
            let holders = text::count(held, "holder", "holders");
            format!("{}, {holders}, {waiting} waiting", view::primitive(snapshot.capacity))
        }
    };
    let last = snapshot.last_token.filter(|_| snapshot.holders.is_empty());
    let last = last.map_or(String::new(), |token| format!(", last token {token}"));
    format!("{name}: {state}{last}")
}

/// The lines about one holder: its name, then a line per known fact.
fn holder(screen: Screen, held: &HeldBy, capacity: u32) -> Vec<String> {
    let since = text::time(text::before(SystemClock.wall(), held.held_for));
    let unless = match held {
        HeldBy { kept: true, .. } => "released; the resource stays closed for so long",
        HeldBy { evicting: true, .. } => "being evicted: the lease is not renewed any more",
        _ => "unless it renews",
    };
    let facts = [
        ("token", Some(held.token.to_string())),
        ("since", Some(format!("{since} ({})", text::span(held.held_for)))),
        ("left", Some(format!("{}, {unless}", text::span(held.remaining)))),
        ("share", view::share(held.weight, capacity)),
        (
            "turns",
            (held.handovers > 0)
                .then(|| format!("handed over {} times in a row within one client", held.handovers)),
        ),
        ("asked", held.asked.as_ref().map(view::asked)),
        ("note", held.note.as_deref().map(text::note)),
    ];
    let name = format!("  {}", Style::Bold.paint(&text::holder(&held.holder), screen.colour));
    let known = facts.into_iter().filter_map(|(name, fact)| fact.map(|fact| (name, fact)));
    let label = |name: &str| Style::Dim.paint(&format!("{name:<6}"), screen.colour);
    std::iter::once(name).chain(known.map(|(name, fact)| format!("    {} {fact}", label(name)))).collect()
}

fn queue(snapshot: &Snapshot) -> Table<5> {
    let mut table = Table::new(["QUEUE", "WAITER", "=WAITED", "=PLACE ENDS IN", "WANTS"]);
    for (at, waiter) in snapshot.queue.iter().enumerate() {
        table.row([
            (at + 1).to_string().into(),
            text::holder(&waiter.holder).into(),
            text::span(waiter.waited).into(),
            text::span(waiter.remaining).into(),
            view::share(waiter.weight, snapshot.capacity).unwrap_or_else(|| "all of it".to_owned()).into(),
        ]);
    }
    table
}

fn left_out(count: u32, shown: usize, what: &str) -> Option<String> {
    let more = (count as usize).saturating_sub(shown);
    (more > 0).then(|| format!("  and {more} more {what}"))
}
