//! `leasehold ls [PREFIX]`

use std::{cmp::Reverse, process::ExitCode, time::Duration};

use clap::{Args, ValueEnum};
use leasehold::{HeldBy, Snapshot};
use serde::Serialize;

use crate::{
    exit::Failure,
    holder_state::HolderState,
    marks, names,
    session::OperatorSession,
    table::{Cell, Style, Table},
    text,
    this_host::ProcessTable,
    view::{self, ResourceView},
};

#[derive(Debug, Args)]
#[command(after_help = "\
Lists the resources that are held, waited for or paused. If there are several holders, the row has the one that has held \
for longest and how many more there are; `leasehold show RESOURCE` lists all.

STATE: renewing; late: a renewal is overdue; silent: less than a sixth of the ttl is left, so a holder at work has stopped; \
gone: the process was on this host and has ended; foreign: a lock of another program; evicting, asked, paused: an operator's \
order; kept: released, and closed for a while; unreadable: the store has data for it that is corrupt.

Resources that are only kept closed after a release are left out without --all, a PREFIX or --kind: the ticks of `leasehold \
cron`, and work that `run --once-per` does not repeat yet.")]
pub(crate) struct Ls {
    /// Only resources whose name starts with this, such as report/ or acme:
    #[arg(value_parser = names::prefix, default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
    /// Only resources of this kind, in every namespace
    #[arg(long)]
    kind: Option<String>,
    /// Only resources with waiters
    #[arg(long)]
    waiting: bool,
    /// Also resources that are only kept closed after a release
    #[arg(long)]
    all: bool,
    /// The order: by name, longest wait first, longest held first, or least time left first
    #[arg(long, value_enum, default_value_t = Sort::Key)]
    sort: Sort,
    /// Show at most this many resources; in the order of names, no more are read than that takes
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
    /// The number of resources that were left out because of `--limit`: at least this many.
    more: usize,
    /// The number of resources that were left out because they are only kept closed.
    hidden: usize,
    /// The number of resources that cannot be read.
    unreadable: usize,
}

/// The resources to show, and how many were left out.
#[derive(Default)]
struct Found {
    shown: Vec<Snapshot>,
    more: usize,
    hidden: usize,
}

impl Ls {
    pub(crate) async fn run(&self, session: &OperatorSession) -> Result<ExitCode, Failure> {
        let found = self.find(session).await?;
        let processes = ProcessTable::of_this_host();
        let is_unreadable = |snapshot: &&Snapshot| snapshot.unreadable.is_some();
        let unreadable = found.shown.iter().filter(is_unreadable).count();
        if session.output.json {
            let resources =
                found.shown.iter().map(|snapshot| ResourceView::of(snapshot, &processes)).collect();
            let list = ResourceList { resources, more: found.more, hidden: found.hidden, unreadable };
            session.screen().print_json(&list)?;
        } else if found.shown.is_empty() {
            let kept = (found.hidden > 0)
                .then(|| format!(" ({} kept closed after a release: see --all)", found.hidden));
            let kept = kept.unwrap_or_default();
            session.output.note(&format!("nothing is held, waited for or paused{kept}"));
        } else {
            let screen = session.screen();
            screen.print_lines(&screen.lines(&table(&found.shown, &processes)))?;
        }
        if found.more > 0 && !session.output.json {
            session.output.note("more resources are not shown: use a larger --limit to see them");
        }
        if unreadable > 0 {
            let count = text::count(u32::try_from(unreadable).unwrap_or(u32::MAX), "resource", "resources");
            session.output.note(&format!("{count} cannot be read: leasehold show RESOURCE says why"));
        }
        Ok(ExitCode::SUCCESS)
    }

    async fn find(&self, session: &OperatorSession) -> Result<Found, Failure> {
        let limit = self.limit.unwrap_or(usize::MAX);
        // One more than the limit, to see whether there are more.
        let stop_after = if self.sort == Sort::Key { limit.saturating_add(1) } else { usize::MAX };
        let mut found = Found::default();
        let mut hidden = 0;
        let wanted = |snapshot: &Snapshot| {
            let hide = self.hides_kept(session) && view::is_only_kept(snapshot);
            hidden += usize::from(hide);
            !hide && self.is_wanted(snapshot)
        };
        found.shown = session.some_snapshots(&self.prefix, stop_after, wanted).await?;
        let shown = &mut found.shown;
        match self.sort {
            Sort::Key => {}
            Sort::Wait => shown.sort_by_key(|snapshot| Reverse(oldest_wait(snapshot))),
            Sort::Held => shown.sort_by_key(|snapshot| Reverse(longest(snapshot).map(|held| held.held_for))),
            Sort::Remaining => shown.sort_by_key(next_end),
        }
        found.more = shown.len().saturating_sub(limit);
        shown.truncate(limit);
        Ok(Found { hidden, ..found })
    }

    fn hides_kept(&self, session: &OperatorSession) -> bool {
        !self.all && self.kind.is_none() && self.prefix == session.default_prefix
    }

    fn is_wanted(&self, snapshot: &Snapshot) -> bool {
        let kind = self.kind.as_deref().is_none_or(|kind| kind == snapshot.resource.kind());
        kind && (!self.waiting || snapshot.queue_length > 0)
    }
}

/// A lease with less than this left is highlighted.
const ENDS_SOON: Duration = Duration::from_secs(5);

/// A table with one row per resource.
pub(crate) fn table(found: &[Snapshot], processes: &ProcessTable) -> Table<9> {
    let heading =
        ["RESOURCE", "HOLDER", "=STATE", "=HELD", "=LEFT", "=WAITING", "=MODE", "=CAPACITY", "=TOKEN"];
    let mut table = Table::new(heading).may_drop(&["CAPACITY", "TOKEN", "MODE", "HELD"]);
    for snapshot in found {
        let held = longest(snapshot);
        let token = held.map_or(String::new(), |held| held.token.to_string());
        table.row([
            Cell::styled(view::name(&snapshot.resource), Style::Bold),
            holder(snapshot),
            state(snapshot, processes),
            held.map_or(String::new(), |held| text::span(held.held_for)).into(),
            left(snapshot),
            waiting(snapshot),
            view::holders_mode(snapshot).into(),
            view::capacity(snapshot.capacity).into(),
            token.into(),
        ]);
    }
    table
}

fn holder(snapshot: &Snapshot) -> Cell {
    if let Some(why) = &snapshot.unreadable {
        return Cell::styled(why, Style::Bad);
    }
    let foreign = snapshot.foreign.iter().map(|lock| format!("{} {}", lock.form, lock.key));
    let ours = longest(snapshot).map(|held| text::holder(&held.holder));
    let Some(name) = ours.into_iter().chain(foreign).next() else {
        return Cell::styled("nobody", Style::Dim);
    };
    match snapshot.holder_count as usize + snapshot.foreign.len() {
        0 | 1 => name.into(),
        several => format!("+{} more, {name}", several - 1).into(),
    }
}

/// The time until the longest holder ends, or the lock of another program, which may never end.
fn left(snapshot: &Snapshot) -> Cell {
    match (longest(snapshot), snapshot.foreign.first()) {
        (Some(held), _) => Cell::styled(view::left_text(held), urgency(held)),
        (None, Some(lock)) => match lock.remaining {
            Some(left) => text::span(left).into(),
            None => Cell::styled("no end", Style::Warn),
        },
        (None, None) => Cell::default(),
    }
}

fn urgency(held: &HeldBy) -> Style {
    match held {
        held if held.evicting => Style::Bad,
        held if view::left(held).is_none() => Style::Warn,
        held if held.remaining < ENDS_SOON => Style::Warn,
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

/// What stands out, the worst first. If nothing does, whether the holders renew.
fn state(snapshot: &Snapshot, processes: &ProcessTable) -> Cell {
    if snapshot.unreadable.is_some() {
        return Cell::styled("unreadable", Style::Bad);
    }
    let marks = marks::of_all(snapshot, processes);
    let foreign = (!snapshot.foreign.is_empty()).then(|| ("foreign".to_owned(), Style::Warn));
    let paused = snapshot.paused_for.map(|left| (format!("paused {}", text::span(left)), Style::Warn));
    let marks = marks.into_iter().map(|mark| (mark.as_str().to_owned(), mark.style()));
    let all: Vec<_> = marks.chain(foreign).chain(paused).collect();
    if let Some((_, style)) = all.first() {
        let words: Vec<_> = all.iter().map(|(word, _)| word.as_str()).collect();
        return Cell::styled(words.join(", "), *style);
    }
    let renews = |held: &HeldBy| marks::state(held) == Some(HolderState::Renewing);
    let all_renew = !snapshot.holders.is_empty() && snapshot.holders.iter().all(renews);
    if all_renew { Cell::styled(HolderState::Renewing.as_str(), Style::Good) } else { Cell::default() }
}

pub(crate) fn oldest_wait(snapshot: &Snapshot) -> Option<Duration> {
    snapshot.queue.iter().map(|waiter| waiter.waited).max()
}

fn longest(snapshot: &Snapshot) -> Option<&HeldBy> {
    snapshot.holders.iter().max_by_key(|held| held.held_for)
}

/// The time until the first holder ends. A resource without a holder comes last.
fn next_end(snapshot: &Snapshot) -> Duration {
    let foreign = snapshot.foreign.iter().filter_map(|lock| lock.remaining);
    snapshot.holders.iter().map(|held| held.remaining).chain(foreign).min().unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold::{ForeignLock, ValueHash};

    fn rows(snapshots: &[Snapshot]) -> Vec<String> {
        table(snapshots, &ProcessTable::of("here", |_| true)).lines(None, false).split_off(1)
    }

    #[test]
    fn a_lock_of_another_program_has_no_token_no_time_and_no_value() {
        let mut snapshot = Snapshot::empty("report/42".parse().unwrap());
        snapshot.foreign = vec![ForeignLock::new("lock:report", "string", ValueHash::of(b"secret"))];
        let row = rows(&[snapshot.clone()]).remove(0);
        assert_eq!(
            row.split("  ").filter(|part| !part.is_empty()).collect::<Vec<_>>(),
            ["report/42", "string lock:report", "foreign", "no end"]
        );
        let expiring =
            ForeignLock::new("k", "hash", ValueHash::of(b"x")).expiring(Some(Duration::from_secs(14)));
        snapshot.foreign.insert(0, expiring);
        let row = rows(&[snapshot]).remove(0);
        assert!(row.contains("+1 more, hash k") && row.contains("14s"), "{row}");
    }

    #[test]
    fn an_unreadable_resource_has_its_reason_in_the_row() {
        let bad = Snapshot::unreadable("report/42".parse().unwrap(), "key x: expected a number, found 'y'");
        let row = rows(&[bad]).remove(0);
        assert!(row.contains("key x: expected a number, found 'y'") && row.contains("unreadable"), "{row}");
    }
}
