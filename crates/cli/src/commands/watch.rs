//! `leasehold watch [PREFIX|RESOURCE]`

use std::{collections::BTreeMap, process::ExitCode, time::Duration};

use clap::Args;
use leasehold::{Clock as _, HeldBy, Resource, Snapshot, SystemClock};
use serde::Serialize;

use crate::{
    args, commands::ls, exit::Failure, names::Scope, order, screen::Screen, session::OperatorSession,
    table::Style, text, view,
};

#[derive(Debug, Args)]
#[command(
    after_help = "On a terminal, a table is redrawn. Elsewhere, each change is printed as a line, with --json as a JSON \
                  object. A change that is undone between two looks is not snapshot. Ctrl-C ends it."
)]
pub(crate) struct Watch {
    /// One resource, or all whose name starts with this: report/42, report/4*, report/, acme:
    #[arg(value_parser = Scope::read, default_value = "", hide_default_value = true)]
    scope: Scope,
    /// The pause between two looks at the store
    #[arg(long, value_name = "DUR", value_parser = args::duration, default_value = "1s")]
    interval: Duration,
}

/// The shortest pause between two looks, to spare the store.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

impl Watch {
    pub(crate) async fn run(&self, session: &OperatorSession) -> Result<ExitCode, Failure> {
        let follow = async {
            if session.screen().can_redraw { self.draw(session).await } else { self.report(session).await }
        };
        tokio::select! {
            ended = follow => ended?,
            _ = tokio::signal::ctrl_c() => {}
        }
        Ok(ExitCode::SUCCESS)
    }

    async fn pause(&self) {
        tokio::time::sleep(self.interval.max(INTERVAL_MIN)).await;
    }

    /// Redraws a table in place.
    async fn draw(&self, session: &OperatorSession) -> Result<(), Failure> {
        let (mut snapshots, mut drawn) = (session.snapshots_in(&self.scope).await?, 0);
        let mut problem = None;
        loop {
            let screen = session.screen();
            let lines = frame(screen, &snapshots, problem.as_deref());
            let back = if drawn > 0 { format!("\x1b[{drawn}F\x1b[J") } else { String::new() };
            screen.print(&format!("{back}{}\n", lines.join("\n")))?;
            drawn = lines.len();
            self.pause().await;
            match session.snapshots_in(&self.scope).await {
                Ok(now) => (snapshots, problem) = (now, None),
                Err(failure) => problem = Some(failure.message),
            }
        }
    }

    /// Prints a line per change. Ends when the reader of stdout has closed it.
    async fn report(&self, session: &OperatorSession) -> Result<(), Failure> {
        let mut known: BTreeMap<Resource, Snapshot> = BTreeMap::new();
        let mut now = session.snapshots_in(&self.scope).await?;
        loop {
            for change in changes(&known, &now) {
                let screen = session.screen();
                let json = session.output.json;
                if !(if json { screen.print_json(&change)? } else { screen.print(&change.line())? }) {
                    return Ok(());
                }
            }
            known = now.into_iter().map(|snapshot| (snapshot.resource.clone(), snapshot)).collect();
            match self.look_again(session).await {
                Some(snapshots) => now = snapshots,
                None => return Ok(()),
            }
        }
    }

    /// The next snapshots. A store that does not reply is asked again; the error is printed once. `None` if
    /// the reader of stdout has closed it.
    async fn look_again(&self, session: &OperatorSession) -> Option<Vec<Snapshot>> {
        let mut was_reported = false;
        loop {
            self.pause().await;
            if !session.screen().has_reader() {
                return None;
            }
            match session.snapshots_in(&self.scope).await {
                Ok(now) => return Some(now),
                Err(failure) if !was_reported => {
                    session.output.note(&format!("{}; trying again", failure.message));
                }
                Err(_) => {}
            }
            was_reported = true;
        }
    }
}

fn frame(screen: Screen, snapshots: &[Snapshot], problem: Option<&str>) -> Vec<String> {
    let columns = screen.columns().unwrap_or(usize::MAX);
    let live = snapshots.iter().filter(|snapshot| {
        snapshot.holder_count > 0 || snapshot.queue_length > 0 || snapshot.paused_for.is_some()
    });
    let head = format!(
        "{}  {}",
        text::time(SystemClock.wall()),
        match (problem, live.count()) {
            (Some(problem), _) => format!("out of date: {}", text::printable(problem)),
            (None, live) => format!("{live} in use"),
        }
    );
    let style = if problem.is_some() { Style::Bad } else { Style::Dim };
    let mut lines = vec![style.paint(&text::cut(&head, columns), screen.colour)];
    let table = screen.lines(&ls::table(snapshots));
    // Three rows are for the first line, "and N more", and the cursor. At least the heading and one row are
    // shown.
    let rows = screen.size.map_or(usize::MAX, |size| size.rows.saturating_sub(3)).max(2);
    let hidden = table.len().saturating_sub(rows);
    lines.extend(table.into_iter().take(rows));
    lines.extend((hidden > 0).then(|| format!("and {hidden} more")));
    lines
}

/// A change of one resource between two looks.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Change {
    at: String,
    resource: String,
    /// The kind of change: a stable name, for programs.
    event: &'static str,
    token: Option<String>,
    say: String,
}

impl Change {
    fn new(resource: &Resource, event: &'static str, held: Option<&HeldBy>, say: String) -> Change {
        let at = text::exact_time(SystemClock.wall());
        let token = held.map(|held| held.token.to_string());
        Change { at, resource: resource.to_string(), event, token, say }
    }

    fn line(&self) -> String {
        format!("{}  {}  {}\n", self.at, text::printable(&self.resource), self.say)
    }
}

/// All changes from the snapshots of the last look to those of this look.
fn changes(known: &BTreeMap<Resource, Snapshot>, now: &[Snapshot]) -> Vec<Change> {
    let is_there = |resource: &Resource| now.iter().any(|snapshot| snapshot.resource == *resource);
    let removed = known.values().filter(|snapshot| !is_there(&snapshot.resource));
    let gone = removed.flat_map(|before| between(before, &Snapshot::empty(before.resource.clone())));
    let changed = now.iter().flat_map(|after| {
        let empty = Snapshot::empty(after.resource.clone());
        between(known.get(&after.resource).unwrap_or(&empty), after)
    });
    gone.chain(changed).collect()
}

fn between(before: &Snapshot, after: &Snapshot) -> Vec<Change> {
    let resource = &after.resource;
    let mut all = Vec::new();
    for held in before.holders.iter().filter(|held| view::find(after, held.token).is_none()) {
        let say = format!("{} does not hold it any more", order::holder_and_token(held));
        all.push(Change::new(resource, "ended", Some(held), say));
    }
    for held in &after.holders {
        let old = view::find(before, held.token);
        if old.is_none() {
            let say = format!("held by {}", order::holder_and_token(held));
            all.push(Change::new(resource, "held", Some(held), say));
        }
        for (event, say) in new_flags(old, held) {
            all.push(Change::new(
                resource,
                event,
                Some(held),
                format!("{} {say}", order::holder_and_token(held)),
            ));
        }
    }
    if before.queue_length != after.queue_length {
        let say = match after.queue_length {
            0 => "no waiters".to_owned(),
            waiting => text::count(waiting, "waiter", "waiters"),
        };
        all.push(Change::new(resource, "line", None, say));
    }
    if before.paused_for.is_some() != after.paused_for.is_some() {
        let paused = after.paused_for.map(|left| format!("paused for {}", text::span(left)));
        let event = if paused.is_some() { "paused" } else { "resumed" };
        all.push(Change::new(
            resource,
            event,
            None,
            paused.unwrap_or_else(|| "not paused any more".to_owned()),
        ));
    }
    all
}

/// The flags of a holder that were not set at the last look: the kind of change, and its text.
fn new_flags(old: Option<&HeldBy>, held: &HeldBy) -> impl Iterator<Item = (&'static str, String)> {
    let is_new = |is: fn(&HeldBy) -> bool| is(held) && !old.is_some_and(is);
    let asked = held.asked.as_ref().filter(|_| is_new(|held| held.asked.is_some()));
    let asked = asked.map(|asked| format!("is asked {}", view::asked(asked)));
    let evicting = is_new(|held| held.evicting)
        .then(|| format!("is being evicted and runs out within {}", text::span(held.remaining)));
    let kept = is_new(|held| held.kept)
        .then(|| format!("has released it; it stays closed for {}", text::span(held.remaining)));
    [("asked", asked), ("evicting", evicting), ("kept", kept)]
        .into_iter()
        .filter_map(|(event, say)| say.map(|say| (event, say)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold::{FencingToken, Holder};
    use std::sync::Arc;

    fn held(token: u64) -> HeldBy {
        HeldBy::new(Arc::new(Holder::new("h", 1, "")), FencingToken::new(token).unwrap(), 1)
    }

    fn snapshot(holders: Vec<HeldBy>) -> Snapshot {
        let mut snapshot = Snapshot::empty("report/42".parse().unwrap());
        (snapshot.holder_count, snapshot.holders) = (holders.len() as u32, holders);
        snapshot
    }

    #[test]
    fn each_change_is_reported_once() {
        let mut known = BTreeMap::new();
        let mut step = |now: Vec<Snapshot>| {
            let events: Vec<_> = changes(&known, &now).into_iter().map(|change| change.event).collect();
            known = now.into_iter().map(|snapshot| (snapshot.resource.clone(), snapshot)).collect();
            events
        };
        assert_eq!(step(vec![snapshot(vec![held(1)])]), ["held"]);
        assert_eq!(step(vec![snapshot(vec![held(1)])]), [""; 0]);
        let mut evicted = held(1);
        evicted.evicting = true;
        let mut waiting = snapshot(vec![evicted]);
        (waiting.queue_length, waiting.paused_for) = (2, Some(Duration::from_secs(5)));
        assert_eq!(step(vec![waiting]), ["evicting", "line", "paused"]);
        assert_eq!(step(vec![snapshot(vec![held(2)])]), ["ended", "held", "line", "resumed"]);
        assert_eq!(step(vec![]), ["ended"]);
        assert_eq!(step(vec![]), [""; 0]);
    }
}
