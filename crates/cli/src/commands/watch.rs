//! `leasehold watch [PREFIX|RESOURCE]`

use std::{collections::BTreeMap, process::ExitCode, time::Duration};

use clap::Args;
use leasehold::{Clock as _, ForeignLock, HeldBy, Resource, Snapshot, SystemClock, WallTime};
use serde::Serialize;

use crate::{
    args, commands::ls, exit::Failure, foreign, names::Scope, order, screen::Screen,
    session::OperatorSession, table::Style, text, this_host::ProcessTable, view,
};

#[derive(Debug, Args)]
#[command(
    after_help = "On a terminal, a table is redrawn. Elsewhere, each change is printed as a line, with --json as a JSON \
                  object. A change that is undone between two looks is not seen. Ctrl-C ends it.\n\nResources \
                  that are only kept closed after a release (the ticks of `leasehold cron`, `run --once-per`) are left out \
                  without --all or a name."
)]
pub(crate) struct Watch {
    /// One resource, or all whose name starts with this: report/42, report/4*, report/, acme:
    #[arg(value_parser = Scope::read, default_value = "", hide_default_value = true)]
    pub(crate) scope: Scope,
    /// Also resources that are only kept closed after a release
    #[arg(long)]
    all: bool,
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

    async fn look(&self, session: &OperatorSession) -> Result<Vec<Snapshot>, Failure> {
        let mut found = session.snapshots_in(&self.scope).await?;
        if matches!(&self.scope, Scope::Prefix(prefix) if *prefix == session.default_prefix && !self.all) {
            found.retain(|snapshot| !view::is_only_kept(snapshot));
        }
        Ok(found)
    }

    async fn pause(&self) {
        tokio::time::sleep(self.interval.max(INTERVAL_MIN)).await;
    }

    /// Redraws a table in place.
    async fn draw(&self, session: &OperatorSession) -> Result<(), Failure> {
        let (mut snapshots, mut drawn) = (self.look(session).await?, 0);
        let mut answered_at = SystemClock.wall();
        let mut stale: Option<Stale> = None;
        let processes = ProcessTable::of_this_host();
        loop {
            let screen = session.screen();
            let lines = frame(screen, &snapshots, stale.as_ref(), &processes);
            let back = if drawn > 0 { format!("\x1b[{drawn}F\x1b[J") } else { String::new() };
            screen.print(&format!("{back}{}\n", lines.join("\n")))?;
            drawn = lines.len();
            self.pause().await;
            match self.look(session).await {
                Ok(now) => (snapshots, answered_at, stale) = (now, SystemClock.wall(), None),
                Err(failure) => stale = Some(Stale { since: answered_at, problem: failure.message }),
            }
        }
    }

    /// Prints a line per change. Ends when the reader of stdout has closed it.
    async fn report(&self, session: &OperatorSession) -> Result<(), Failure> {
        let mut known: BTreeMap<Resource, Snapshot> = BTreeMap::new();
        let mut now = self.look(session).await?;
        loop {
            let answered_at = SystemClock.wall();
            for change in changes(&known, &now) {
                let screen = session.screen();
                let json = session.output.json;
                if !(if json { screen.print_json(&change)? } else { screen.print(&change.line())? }) {
                    return Ok(());
                }
            }
            known = now.into_iter().map(|snapshot| (snapshot.resource.clone(), snapshot)).collect();
            match self.look_again(session, answered_at).await {
                Some(snapshots) => now = snapshots,
                None => return Ok(()),
            }
        }
    }

    /// The next snapshots. A store that does not reply is asked again; that is noted once, and its end too. `answered_at` is when it
    /// replied last. `None` if the reader of stdout has closed it.
    async fn look_again(&self, session: &OperatorSession, answered_at: WallTime) -> Option<Vec<Snapshot>> {
        let mut stale: Option<Stale> = None;
        loop {
            self.pause().await;
            if !session.screen().has_reader() {
                return None;
            }
            match self.look(session).await {
                Ok(now) => {
                    if let Some(stale) = stale {
                        session.output.note(&format!("the store answers again, after {}", stale.lasted()));
                    }
                    return Some(now);
                }
                Err(failure) if stale.is_none() => {
                    let stale = stale.insert(Stale { since: answered_at, problem: failure.message });
                    session.output.note(&format!("{} {}", stale.text(), stale.problem));
                }
                Err(_) => {}
            }
        }
    }
}

/// The store does not answer, so what is shown is old.
#[derive(Debug)]
struct Stale {
    /// When the store answered last.
    since: WallTime,
    problem: String,
}

impl Stale {
    fn text(&self) -> String {
        format!("STALE: store not answering since {}.", text::time(self.since))
    }

    fn lasted(&self) -> String {
        let micros = SystemClock.wall().as_micros().saturating_sub(self.since.as_micros());
        text::span(Duration::from_micros(micros))
    }
}

fn frame(
    screen: Screen,
    snapshots: &[Snapshot],
    stale: Option<&Stale>,
    processes: &ProcessTable,
) -> Vec<String> {
    let columns = screen.columns().unwrap_or(usize::MAX);
    let in_use = snapshots.iter().filter(|snapshot| snapshot.is_in_use()).count();
    let (head, style) = match stale {
        Some(stale) => (format!("{} {}", stale.text(), text::printable(&stale.problem)), Style::Bad),
        None => (format!("{}  {in_use} in use", text::time(SystemClock.wall())), Style::Dim),
    };
    let mut lines = vec![style.paint(&text::cut(&head, columns), screen.colour)];
    let table = screen.lines(&ls::table(snapshots, processes));
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
    if let Some(why) = &after.unreadable {
        // Nothing else is known about it.
        let is_new = before.unreadable.is_none();
        let say = format!("cannot be read: {}", text::printable(why));
        return is_new.then(|| Change::new(resource, "unreadable", None, say)).into_iter().collect();
    }
    let mut all = Vec::new();
    if before.unreadable.is_some() {
        all.push(Change::new(resource, "readable", None, "can be read again".to_owned()));
    }
    all.extend(foreign_changes(before, after));
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

/// Locks of other programs that were taken or have ended. The hash of its value names a lock.
fn foreign_changes(before: &Snapshot, after: &Snapshot) -> Vec<Change> {
    let missing = |in_: &Snapshot, lock: &ForeignLock| {
        !in_.foreign.iter().any(|other| (&other.key, other.value_hash) == (&lock.key, lock.value_hash))
    };
    let ended = before.foreign.iter().filter(|lock| missing(after, lock)).map(|lock| {
        let say = format!("{} does not hold it any more", foreign::name(lock));
        Change::new(&after.resource, "foreign_ended", None, say)
    });
    let held = after.foreign.iter().filter(|lock| missing(before, lock)).map(|lock| {
        let say = format!("held by {}; it {}", foreign::name(lock), foreign::expiry(lock));
        Change::new(&after.resource, "foreign_held", None, say)
    });
    ended.chain(held).collect()
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

    #[test]
    fn foreign_locks_and_unreadable_resources_are_reported_once() {
        let mut known = BTreeMap::new();
        let mut step = |now: Vec<Snapshot>| {
            let changes = changes(&known, &now);
            known = now.into_iter().map(|snapshot| (snapshot.resource.clone(), snapshot)).collect();
            changes.into_iter().map(|change| (change.event, change.token)).collect::<Vec<_>>()
        };
        let lock = |value: &[u8]| ForeignLock::new("key", "string", leasehold::ValueHash::of(value));
        let with = |lock: ForeignLock| {
            let mut held = snapshot(vec![]);
            held.foreign.push(lock);
            held
        };
        assert_eq!(step(vec![with(lock(b"a"))]), [("foreign_held", None)]);
        assert_eq!(step(vec![with(lock(b"a"))]), []);
        assert_eq!(step(vec![with(lock(b"b"))]), [("foreign_ended", None), ("foreign_held", None)]);
        let bad = Snapshot::unreadable("report/42".parse().unwrap(), "corrupt");
        assert_eq!(step(vec![bad.clone()]), [("unreadable", None)]);
        assert_eq!(step(vec![bad]), []);
        assert_eq!(step(vec![snapshot(vec![])]), [("readable", None)]);
    }

    #[test]
    fn a_frame_says_since_when_it_is_stale() {
        let screen = Screen { colour: false, can_redraw: true, size: None };
        let stale = Stale { since: WallTime::from_micros(0), problem: "no reply".to_owned() };
        let lines = frame(screen, &[], Some(&stale), &ProcessTable::of_this_host());
        assert_eq!(lines[0], "STALE: store not answering since 1970-01-01T00:00:00Z. no reply");
    }
}
