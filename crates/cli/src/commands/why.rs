//! `leasehold why RESOURCE`

use std::{process::ExitCode, time::Duration};

use clap::Args;
use leasehold::{Clock as _, Resource, Snapshot, SystemClock, WallTime};
use serde::Serialize;

use crate::{
    desk::Desk,
    exit::Failure,
    names,
    table::Style,
    text,
    view::{self, ResourceView},
};

/// Holders who are named in a sentence each.
const NAMED: usize = 3;

#[derive(Debug, Args)]
#[command(
    after_help = "The latest time holds if nobody renews and nobody ahead takes it; a holder at work renews, and \
                        then there is none."
)]
pub(crate) struct Why {
    /// Which, as kind/id or namespace:kind/id
    #[arg(value_parser = names::resource)]
    resource: Resource,
    /// How much of it you want, of a semaphore
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    permits: u32,
}

#[derive(Serialize)]
struct Answer {
    #[serde(flatten)]
    resource: ResourceView,
    /// A claim would be granted at once.
    free: bool,
    ahead: u32,
    /// If nobody renews and nobody ahead takes it.
    at_the_latest_ms: Option<u64>,
    at_the_latest: Option<String>,
    why: Vec<String>,
    frees: Vec<Way>,
}

/// What would free it.
#[derive(Debug, Serialize)]
struct Way {
    how: &'static str,
    say: String,
    command: Option<String>,
}

impl Why {
    pub(crate) async fn run(&self, desk: &Desk) -> Result<ExitCode, Failure> {
        let seen = desk.one(&self.resource).await?;
        let now = SystemClock.wall();
        let latest = latest(&seen, self.permits);
        let free = latest == Some(Duration::ZERO);
        let why = sentences(&seen, free, latest, now);
        let frees = if free { Vec::new() } else { ways(desk, &seen, now) };
        let screen = desk.screen();
        if desk.output.json {
            let answer = Answer {
                resource: ResourceView::of(&seen),
                free,
                ahead: seen.queue_length,
                at_the_latest_ms: latest.map(view::millis),
                at_the_latest: latest.map(|latest| text::exact_time(now.after(latest))),
                why,
                frees,
            };
            screen.print_json(&answer)?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut lines = why;
        if !frees.is_empty() {
            lines.push("What would free it:".to_owned());
        }
        for way in frees {
            lines.push(format!("  - {}", way.say));
            lines
                .extend(way.command.map(|line| format!("      {}", Style::Bold.paint(&line, screen.colour))));
        }
        screen.print_lines(&lines)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// When a claim made now fits at the latest, if nobody renews, and nobody ahead takes his turn. None if more are
/// there than are listed.
fn latest(seen: &Snapshot, wanted: u32) -> Option<Duration> {
    let listed =
        seen.holders.len() == seen.holder_count as usize && seen.queue.len() == seen.queue_length as usize;
    let holders = seen.holders.iter().map(|held| (held.remaining, held.weight));
    let mut there: Vec<_> =
        holders.chain(seen.queue.iter().map(|placed| (placed.remaining, placed.weight))).collect();
    there.sort_unstable_by_key(|(remaining, _)| *remaining);
    let mut taken: u64 = there.iter().map(|(_, weight)| u64::from(*weight)).sum();
    let fits = |taken: u64| there.is_empty() || taken + u64::from(wanted) <= u64::from(seen.capacity);
    let mut after = Duration::ZERO;
    for &(remaining, weight) in &there {
        if fits(taken) {
            break;
        }
        (after, taken) = (remaining, taken - u64::from(weight));
    }
    listed.then(|| after.max(seen.paused_for.unwrap_or_default()))
}

fn sentences(seen: &Snapshot, free: bool, latest: Option<Duration>, now: WallTime) -> Vec<String> {
    let name = view::name(&seen.resource);
    let mut why = Vec::new();
    if let Some(left) = seen.paused_for {
        let until = text::time(now.after(left));
        why.push(format!("{name} is paused until {until} ({} more): nothing is granted.", text::span(left)));
    }
    if seen.holder_count == 0 {
        why.push(if free {
            format!("{name} is free: a claim is granted at once.")
        } else {
            format!("Nobody holds {name}.")
        });
    } else {
        why.extend(holders(seen, &name, now));
        if free {
            why.push("There is room: a claim is granted at once.".to_owned());
        }
    }
    why.extend(line(seen));
    if !free {
        why.push(limit(seen, latest, now));
    }
    why
}

fn holders(seen: &Snapshot, name: &str, now: WallTime) -> Vec<String> {
    let mut said = Vec::new();
    if seen.capacity > 1 {
        let taken: u64 = seen.holders.iter().map(|held| u64::from(held.weight)).sum();
        let of = if seen.capacity == u32::MAX { String::new() } else { format!(", {taken} of it taken") };
        said.push(format!("{name} is {}{of}.", view::sort_of(seen.capacity)));
    }
    for held in seen.holders.iter().take(NAMED) {
        let (who, since) = (text::holder(&held.holder), text::time(text::before(now, held.held_for)));
        let what =
            view::share(held.weight, seen.capacity).map_or(String::new(), |share| format!(" ({share})"));
        let long = text::span(held.held_for);
        let state = match held {
            _ if held.kept => ", and it stays closed though nobody is there",
            _ if held.evicting => ", and it is being evicted",
            _ if held.asked.is_some() => ", and it has been asked to finish",
            _ => "",
        };
        said.push(format!(
            "{name} is held by {who}{what} since {since} ({long}), token {}{state}.",
            held.token
        ));
    }
    let more = (seen.holder_count as usize).saturating_sub(NAMED);
    said.extend((more > 0).then(|| format!("{more} more hold it too.")));
    said
}

fn line(seen: &Snapshot) -> Option<String> {
    let first = seen.queue.first()?;
    let waiting = text::count(seen.queue_length, "waits", "wait");
    let (who, waited) = (text::holder(&first.holder), text::span(first.waited));
    Some(format!("{waiting} ahead of you; the first, {who}, for {waited}."))
}

fn limit(seen: &Snapshot, latest: Option<Duration>, now: WallTime) -> String {
    let Some(latest) = latest else {
        return "When you get it at the latest cannot be told: too many are there.".to_owned();
    };
    let (span, at) = (text::span(latest), text::time(now.after(latest)));
    let unless = match (seen.holder_count, seen.queue_length) {
        (0, 0) => "unless it is paused again",
        (_, 0) => "if nobody renews; a holder at work does",
        (0, _) => "if nobody ahead of you takes it first",
        _ => "if nobody renews and nobody ahead of you takes it; those at work do",
    };
    format!("You get it in {span} at the latest (at {at}), {unless}.")
}

fn ways(desk: &Desk, seen: &Snapshot, now: WallTime) -> Vec<Way> {
    let name = seen.resource.to_string();
    let newest = view::newest(seen).map(|held| held.token.to_string());
    let mut ways = Vec::new();
    if seen.paused_for.is_some() {
        let mut words = vec!["resume", name.as_str()];
        words.extend(newest.iter().flat_map(|token| ["--token", token.as_str()]));
        words.extend(["--reason", "WHY"]);
        let say = "the end of the pause, or ending it now:".to_owned();
        ways.push(Way { how: "resume", say, command: Some(desk.command(&words)) });
    }
    // Whoever ends last is in the way; of a line, whoever is ahead.
    let Some(held) = seen.holders.iter().max_by_key(|held| held.remaining) else { return ways };
    let (at, left, token) =
        (text::time(now.after(held.remaining)), text::span(held.remaining), held.token.to_string());
    if !held.kept {
        let say = "its release, when the work is done".to_owned();
        ways.push(Way { how: "release", say, command: None });
    }
    let if_it_stops = if held.kept || held.evicting { "" } else { ", if it stops renewing" };
    ways.push(Way { how: "expiry", say: format!("its end at {at} (in {left}){if_it_stops}"), command: None });
    if desk.check_orders().is_err() {
        return ways;
    }
    if !held.kept {
        let words = ["ask", &name, "--token", &token, "--by", "30s", "--reason", "WHY"];
        let say = "asking it to finish:".to_owned();
        ways.push(Way { how: "ask", say, command: Some(desk.command(&words)) });
    }
    let words = ["evict", &name, "--token", &token, "--reason", "WHY"];
    let say = "evicting it, once you know that it is dead or stuck:".to_owned();
    ways.push(Way { how: "evict", say, command: Some(desk.command(&words)) });
    ways
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold::{FencingToken, HeldBy, Holder, QueueEntry};
    use std::sync::Arc;

    fn seen(capacity: u32, held: &[(u32, u64)], line: &[(u32, u64)]) -> Snapshot {
        let mut seen = Snapshot::empty("report/42".parse().unwrap());
        let who = Arc::new(Holder::new("h", 1, ""));
        seen.capacity = capacity;
        for &(weight, seconds) in held {
            let mut by = HeldBy::new(Arc::clone(&who), FencingToken::new(1).unwrap(), weight);
            by.remaining = Duration::from_secs(seconds);
            seen.holders.push(by);
        }
        let place = |&(weight, seconds): &(u32, u64)| {
            QueueEntry::new(Arc::clone(&who), weight, Duration::ZERO, Duration::from_secs(seconds))
        };
        seen.queue = line.iter().map(place).collect();
        (seen.holder_count, seen.queue_length) = (held.len() as u32, line.len() as u32);
        seen
    }

    #[test]
    fn the_latest_time_is_when_enough_has_ended() {
        let at = |seconds| Some(Duration::from_secs(seconds));
        assert_eq!(latest(&seen(0, &[], &[]), 1), at(0));
        assert_eq!(latest(&seen(1, &[(1, 20)], &[]), 1), at(20));
        assert_eq!(latest(&seen(1, &[(1, 2)], &[(1, 6)]), 1), at(6), "a dead waiter ends by itself");
        assert_eq!(latest(&seen(3, &[(1, 9), (1, 5)], &[]), 1), at(0), "there is room");
        assert_eq!(latest(&seen(3, &[(1, 9), (1, 5)], &[]), 2), at(5));
        assert_eq!(latest(&seen(3, &[(1, 9), (1, 5)], &[]), 3), at(9));
        assert_eq!(latest(&seen(u32::MAX, &[(u32::MAX, 7)], &[]), 1), at(7));
        let mut paused = seen(1, &[(1, 20)], &[]);
        paused.paused_for = at(60);
        assert_eq!(latest(&paused, 1), at(60));
        let mut many = seen(200, &[(1, 1)], &[]);
        many.holder_count = 150;
        assert_eq!(latest(&many, 200), None);
    }
}
