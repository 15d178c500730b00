//! `leasehold show RESOURCE`

use std::{process::ExitCode, time::Duration};

use clap::Args;
use leasehold::{AuditRecord, Clock as _, ForeignLock, HeldBy, QueueEntry, Resource, Snapshot, SystemClock};
use serde::Serialize;

use crate::{
    commands::audit,
    exit::Failure,
    foreign,
    holder_state::HolderState,
    marks::{self, Mark},
    names,
    screen::Screen,
    session::{OperatorSession, PauseInfo},
    table::{Style, Table},
    text,
    this_host::ProcessTable,
    view::{self, AuditView, ResourceView},
};

/// How many of the last orders are shown.
const ORDERS_SHOWN: usize = 10;

#[derive(Debug, Args)]
pub(crate) struct Show {
    /// The resource: [NAMESPACE:]KIND/ID, a plain name, or a path
    #[arg(value_parser = names::resource)]
    pub(crate) resource: Resource,
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
        let (screen, processes) = (session.screen(), ProcessTable::of_this_host());
        if session.output.json {
            let audit = records.iter().map(AuditView::of).collect();
            screen.print_json(&ShowReport { resource: ResourceView::of(&snapshot, &processes), audit })?;
        } else {
            let pause = session.pause_info(&snapshot).await;
            let page = Page { screen, snapshot: &snapshot, processes: &processes };
            screen.print_lines(&page.lines(pause.as_ref(), &records))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The text about one resource.
struct Page<'a> {
    screen: Screen,
    snapshot: &'a Snapshot,
    processes: &'a ProcessTable,
}

impl Page<'_> {
    fn lines(&self, pause: Option<&PauseInfo>, records: &[AuditRecord]) -> Vec<String> {
        let Page { screen, snapshot, .. } = *self;
        let mut lines = vec![title(screen, snapshot)];
        let pause = pause.map(|pause| format!("  {}", pause.sentence(SystemClock.wall())));
        let pause = pause.iter().flat_map(|pause| text::wrapped(pause, screen.columns(), 2));
        lines.extend(pause.map(|line| Style::Warn.paint(&line, screen.colour)));
        for held in &snapshot.holders {
            lines.push(String::new());
            lines.extend(self.holder(held));
        }
        lines.extend(left_out(snapshot.holder_count, snapshot.holders.len(), "holders"));
        for lock in &snapshot.foreign {
            lines.push(String::new());
            lines.extend(self.foreign(lock));
        }
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

    /// The lines about one holder: its name, then a line per known fact.
    fn holder(&self, held: &HeldBy) -> Vec<String> {
        let since = text::time(text::before(SystemClock.wall(), held.held_for));
        let marks = marks::of(held, self.processes);
        let unless = match held {
            _ if view::left(held).is_none() => ": its key in the store has lost its expiry",
            HeldBy { kept: true, .. } => ", then it is open again",
            HeldBy { evicting: true, .. } => ", then its lease has run out",
            _ if marks.contains(&Mark::Gone) => ", then its lease has run out",
            _ => ", unless it renews",
        };
        let ttl = held.ttl.filter(|_| view::left(held).is_some());
        let ttl = ttl.map_or(String::new(), |ttl| format!(" of {}", text::span(ttl)));
        let handovers = (held.handovers > 0)
            .then(|| format!("handed over {} times in a row within one client", held.handovers));
        let (state, style) = state(held, &marks);
        let facts = [
            ("token", Some(held.token.to_string()), Style::Plain),
            ("since", Some(format!("{since} ({})", text::span(held.held_for))), Style::Plain),
            ("left", Some(format!("{}{ttl}{unless}", view::left_text(held))), Style::Plain),
            ("state", state, style),
            ("share", view::share(held.weight, self.snapshot.capacity), Style::Plain),
            ("turns", handovers, Style::Plain),
            ("asked", held.asked.as_ref().map(view::asked), Style::Warn),
            ("note", held.note.as_deref().map(text::note), Style::Plain),
        ];
        self.facts(&text::holder(&held.holder), facts)
    }

    fn foreign(&self, lock: &ForeignLock) -> Vec<String> {
        let facts = [
            ("key", Some(text::printable(&lock.key).into_owned()), Style::Plain),
            ("form", Some(text::printable(&lock.form).into_owned()), Style::Plain),
            ("hash", Some(format!("{} (of its value)", lock.value_hash)), Style::Plain),
            ("state", Some(format!("foreign: it {}", foreign::expiry(lock))), Style::Warn),
        ];
        self.facts("a lock of another program", facts)
    }

    /// A name, and a line for each known fact.
    fn facts<const N: usize>(&self, name: &str, facts: [(&str, Option<String>, Style); N]) -> Vec<String> {
        const INDENT: usize = 11;
        let Screen { colour, .. } = self.screen;
        let columns = self.screen.columns().map(|columns| columns.saturating_sub(INDENT));
        let mut lines = vec![format!("  {}", Style::Bold.paint(name, colour))];
        for (name, fact, style) in facts {
            let wrapped = fact.iter().flat_map(|fact| text::wrapped(fact, columns, 0));
            lines.extend(wrapped.enumerate().map(|(at, line)| {
                let name = if at == 0 { name } else { "" };
                let label = Style::Dim.paint(&format!("{name:<6}"), colour);
                format!("    {label} {}", style.paint(&line, colour))
            }));
        }
        lines
    }
}

/// The marks of a holder with what they mean, and the style of the worst. Without a mark, whether it renews.
fn state(held: &HeldBy, marks: &[Mark]) -> (Option<String>, Style) {
    // The request to finish has a line of its own.
    let shown: Vec<_> = marks.iter().filter(|mark| **mark != Mark::Asked).collect();
    if let Some(worst) = shown.first() {
        let say = |mark: &&Mark| format!("{}: {}", mark.as_str(), mark.meaning(held));
        return (Some(shown.iter().map(say).collect::<Vec<_>>().join("; ")), worst.style());
    }
    let state = marks::state(held);
    let style = if state == Some(HolderState::Renewing) { Style::Good } else { Style::Plain };
    (state.map(|state| state.as_str().to_owned()), style)
}

fn title(screen: Screen, snapshot: &Snapshot) -> String {
    let name = Style::Bold.paint(&view::name(&snapshot.resource), screen.colour);
    let state = match (snapshot.holder_count, snapshot.queue_length) {
        (0, waiting) if !snapshot.foreign.is_empty() => {
            format!("held by another program, {waiting} waiting")
        }
        (0, 0) if snapshot.paused_for.is_some() => Style::Warn.paint("paused", screen.colour),
        (0, 0) => Style::Good.paint("free", screen.colour),
        (0, waiting) => format!("nobody holds it, {waiting} waiting"),
        (held, waiting) => {
            let holders = text::count(held, "holder", "holders");
            let taken = match view::holders_mode(snapshot) {
                taken if taken.contains(" of ") => format!(", {taken} permits taken"),
                _ => String::new(),
            };
            format!("{}, {holders}{taken}, {waiting} waiting", view::primitive(snapshot.capacity))
        }
    };
    let last = snapshot.last_token.filter(|_| snapshot.holders.is_empty());
    let last = last.map_or(String::new(), |token| format!(", last token {token}"));
    format!("{name}: {state}{last}")
}

fn queue(snapshot: &Snapshot) -> Table<5> {
    let mut table = Table::new(["QUEUE", "WAITER", "=WAITED", "=PLACE ENDS IN", "WANTS"]);
    for (at, waiter) in snapshot.queue.iter().enumerate() {
        table.row([
            (at + 1).to_string().into(),
            waiter_name(waiter).into(),
            when(waiter, waiter.waited).into(),
            when(waiter, waiter.remaining).into(),
            view::share(waiter.weight, snapshot.capacity).unwrap_or_else(|| "all of it".to_owned()).into(),
        ]);
    }
    table
}

fn waiter_name(waiter: &QueueEntry) -> String {
    let name = view::waiter(waiter);
    if waiter.silent { format!("{name} (silent, passed over)") } else { name }
}

/// Nothing is known about the times of a lock of another program.
fn when(waiter: &QueueEntry, time: Duration) -> String {
    if waiter.foreign { String::new() } else { text::span(time) }
}

fn left_out(count: u32, shown: usize, what: &str) -> Option<String> {
    let more = (count as usize).saturating_sub(shown);
    (more > 0).then(|| format!("  and {more} more {what}"))
}
