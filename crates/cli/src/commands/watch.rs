//! `leasehold watch [PREFIX|RESOURCE]`

use std::{collections::BTreeMap, process::ExitCode, time::Duration};

use clap::Args;
use leasehold::{Clock as _, HeldBy, Resource, Snapshot, SystemClock};
use serde::Serialize;

use crate::{
    args, commands::ls, desk::Desk, exit::Failure, names::Scope, order, screen::Screen, table::Style, text,
    view,
};

#[derive(Debug, Args)]
#[command(
    after_help = "On a terminal a table is kept up to date; elsewhere each change is a line, and with --json an \
                        object. What comes and goes between two looks is not seen. Ctrl-C ends it."
)]
pub(crate) struct Watch {
    /// One resource, or all that begin so: report/42, report/4*, report/, acme:
    #[arg(value_parser = Scope::read, default_value = "", hide_default_value = true)]
    what: Scope,
    /// How often to look
    #[arg(long, value_name = "DUR", value_parser = args::duration, default_value = "1s")]
    interval: Duration,
}

/// The shortest interval: looking is not free.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

impl Watch {
    pub(crate) async fn run(&self, desk: &Desk) -> Result<ExitCode, Failure> {
        let follow =
            async { if desk.screen().moves { self.draw(desk).await } else { self.report(desk).await } };
        tokio::select! {
            ended = follow => ended?,
            _ = tokio::signal::ctrl_c() => {}
        }
        Ok(ExitCode::SUCCESS)
    }

    async fn pause(&self) {
        tokio::time::sleep(self.interval.max(INTERVAL_MIN)).await;
    }

    /// Keeps a table up to date, in place.
    async fn draw(&self, desk: &Desk) -> Result<(), Failure> {
        let (mut seen, mut drawn) = (desk.within(&self.what).await?, 0);
        let mut trouble = None;
        loop {
            let screen = desk.screen();
            let lines = frame(screen, &seen, trouble.as_deref());
            let back = if drawn > 0 { format!("\x1b[{drawn}F\x1b[J") } else { String::new() };
            screen.print(&format!("{back}{}\n", lines.join("\n")))?;
            drawn = lines.len();
            self.pause().await;
            match desk.within(&self.what).await {
                Ok(now) => (seen, trouble) = (now, None),
                Err(failure) => trouble = Some(failure.message),
            }
        }
    }

    /// Prints what changed; ends when nobody reads it.
    async fn report(&self, desk: &Desk) -> Result<(), Failure> {
        let mut known: BTreeMap<Resource, Snapshot> = BTreeMap::new();
        let mut now = desk.within(&self.what).await?;
        loop {
            for change in changes(&known, &now) {
                let screen = desk.screen();
                let json = desk.output.json;
                if !(if json { screen.print_json(&change)? } else { screen.print(&change.line())? }) {
                    return Ok(());
                }
            }
            known = now.into_iter().map(|seen| (seen.resource.clone(), seen)).collect();
            match self.look_again(desk).await {
                Some(seen) => now = seen,
                None => return Ok(()),
            }
        }
    }

    /// A store that does not answer is said once, and asked again. `None` if nobody reads what is printed.
    async fn look_again(&self, desk: &Desk) -> Option<Vec<Snapshot>> {
        let mut said = false;
        loop {
            self.pause().await;
            if !desk.screen().is_read() {
                return None;
            }
            match desk.within(&self.what).await {
                Ok(now) => return Some(now),
                Err(failure) if !said => desk.output.say(&format!("{}; looking again", failure.message)),
                Err(_) => {}
            }
            said = true;
        }
    }
}

fn frame(screen: Screen, seen: &[Snapshot], trouble: Option<&str>) -> Vec<String> {
    let columns = screen.columns().unwrap_or(usize::MAX);
    let live = seen
        .iter()
        .filter(|seen| seen.holder_count > 0 || seen.queue_length > 0 || seen.paused_for.is_some());
    let head = format!(
        "{}  {}",
        text::time(SystemClock.wall()),
        match (trouble, live.count()) {
            (Some(trouble), _) => format!("as it was: {}", text::printable(trouble)),
            (None, live) => format!("{live} in use"),
        }
    );
    let style = if trouble.is_some() { Style::Bad } else { Style::Dim };
    let mut lines = vec![style.paint(&text::cut(&head, columns), screen.colour)];
    let table = screen.lines(&ls::table(seen));
    let room = screen.size.map_or(usize::MAX, |size| size.rows.saturating_sub(3));
    let hidden = table.len().saturating_sub(room.max(2));
    lines.extend(table.into_iter().take(room.max(2)));
    lines.extend((hidden > 0).then(|| format!("and {hidden} more")));
    lines
}

/// Something changed.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Change {
    at: String,
    resource: String,
    /// A stable name, for programs.
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

/// From what was known to what is now.
fn changes(known: &BTreeMap<Resource, Snapshot>, now: &[Snapshot]) -> Vec<Change> {
    let is_there = |resource: &Resource| now.iter().any(|seen| seen.resource == *resource);
    let left = known.values().filter(|seen| !is_there(&seen.resource));
    let gone = left.flat_map(|before| between(before, &Snapshot::empty(before.resource.clone())));
    let changed = now.iter().flat_map(|after| {
        let nobody = Snapshot::empty(after.resource.clone());
        between(known.get(&after.resource).unwrap_or(&nobody), after)
    });
    gone.chain(changed).collect()
}

fn between(before: &Snapshot, after: &Snapshot) -> Vec<Change> {
    let resource = &after.resource;
    let mut all = Vec::new();
    for held in before.holders.iter().filter(|held| view::find(after, held.token).is_none()) {
        let say = format!("{} holds it no longer", order::who(held));
        all.push(Change::new(resource, "ended", Some(held), say));
    }
    for held in &after.holders {
        let old = view::find(before, held.token);
        if old.is_none() {
            let say = format!("held by {}", order::who(held));
            all.push(Change::new(resource, "held", Some(held), say));
        }
        for (event, say) in news(old, held) {
            all.push(Change::new(resource, event, Some(held), format!("{} {say}", order::who(held))));
        }
    }
    if before.queue_length != after.queue_length {
        let say = match after.queue_length {
            0 => "nobody waits".to_owned(),
            waiting => text::count(waiting, "waits", "wait"),
        };
        all.push(Change::new(resource, "line", None, say));
    }
    if before.paused_for.is_some() != after.paused_for.is_some() {
        let paused = after.paused_for.map(|left| format!("paused for {}", text::span(left)));
        let event = if paused.is_some() { "paused" } else { "resumed" };
        all.push(Change::new(resource, event, None, paused.unwrap_or_else(|| "paused no longer".to_owned())));
    }
    all
}

/// What is new about a holder.
fn news(old: Option<&HeldBy>, held: &HeldBy) -> impl Iterator<Item = (&'static str, String)> {
    let is_new = |is: fn(&HeldBy) -> bool| is(held) && !old.is_some_and(is);
    let asked = held.asked.as_ref().filter(|_| is_new(|held| held.asked.is_some()));
    let asked = asked.map(|asked| format!("is asked {}", view::asked(asked)));
    let evicting =
        is_new(|held| held.evicting).then(|| format!("runs out within {}", text::span(held.remaining)));
    let kept =
        is_new(|held| held.kept).then(|| format!("is gone; closed for {}", text::span(held.remaining)));
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

    fn seen(holders: Vec<HeldBy>) -> Snapshot {
        let mut seen = Snapshot::empty("report/42".parse().unwrap());
        (seen.holder_count, seen.holders) = (holders.len() as u32, holders);
        seen
    }

    #[test]
    fn each_change_is_told_once() {
        let mut known = BTreeMap::new();
        let mut step = |now: Vec<Snapshot>| {
            let told: Vec<_> = changes(&known, &now).into_iter().map(|change| change.event).collect();
            known = now.into_iter().map(|seen| (seen.resource.clone(), seen)).collect();
            told
        };
        assert_eq!(step(vec![seen(vec![held(1)])]), ["held"]);
        assert_eq!(step(vec![seen(vec![held(1)])]), [""; 0]);
        let mut evicted = held(1);
        evicted.evicting = true;
        let mut waiting = seen(vec![evicted]);
        (waiting.queue_length, waiting.paused_for) = (2, Some(Duration::from_secs(5)));
        assert_eq!(step(vec![waiting]), ["evicting", "line", "paused"]);
        assert_eq!(step(vec![seen(vec![held(2)])]), ["ended", "held", "line", "resumed"]);
        assert_eq!(step(vec![]), ["ended"]);
        assert_eq!(step(vec![]), [""; 0]);
    }
}
