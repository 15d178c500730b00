//! `leasehold why RESOURCE`

use std::{process::ExitCode, time::Duration};

use clap::Args;
use leasehold::{Clock as _, Resource, Snapshot, SystemClock, WallTime};
use serde::Serialize;

use crate::{
    exit::Failure,
    names,
    session::OperatorSession,
    table::Style,
    text,
    view::{self, ResourceView},
};

/// How many holders get a sentence of their own.
const HOLDERS_NAMED: usize = 3;

#[derive(Debug, Args)]
#[command(
    after_help = "The latest time is only valid if no holder renews and no waiter ahead of you takes the resource. A holder \
                  at work renews; then there is no latest time."
)]
pub(crate) struct Why {
    /// The resource: kind/id or namespace:kind/id
    #[arg(value_parser = names::resource)]
    resource: Resource,
    /// The number of permits that you want, for a semaphore
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    permits: u32,
}

#[derive(Serialize)]
struct WhyReport {
    #[serde(flatten)]
    resource: ResourceView,
    /// Whether a claim would be granted at once.
    free: bool,
    /// The number of waiters ahead of a new claim.
    ahead: u32,
    /// When a claim is granted at the latest, if no holder renews and no waiter ahead takes the resource.
    at_the_latest_ms: Option<u64>,
    at_the_latest: Option<String>,
    why: Vec<String>,
    frees: Vec<UnblockOption>,
}

/// One way in which the resource becomes free.
#[derive(Debug, Serialize)]
struct UnblockOption {
    /// A stable name, for programs.
    how: &'static str,
    say: String,
    command: Option<String>,
}

impl Why {
    pub(crate) async fn run(&self, session: &OperatorSession) -> Result<ExitCode, Failure> {
        let snapshot = session.snapshot(&self.resource).await?;
        let now = SystemClock.wall();
        let latest = latest(&snapshot, self.permits);
        let free = latest == Some(Duration::ZERO);
        let why = sentences(&snapshot, free, latest, now);
        let frees = if free { Vec::new() } else { unblock_options(session, &snapshot, now) };
        let screen = session.screen();
        if session.output.json {
            let answer = WhyReport {
                resource: ResourceView::of(&snapshot),
                free,
                ahead: snapshot.queue_length,
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
            lines.push("It becomes free by:".to_owned());
        }
        for option in frees {
            lines.push(format!("  - {}", option.say));
            lines.extend(
                option.command.map(|line| format!("      {}", Style::Bold.paint(&line, screen.colour))),
            );
        }
        screen.print_lines(&lines)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// How long a claim made now waits at the latest, if no holder renews and no waiter ahead takes its turn.
/// `None` if the snapshot does not list all holders and waiters.
///
/// Holders and waiters end in the order of their remaining times. The claim fits as soon as enough of them
/// have ended.
fn latest(snapshot: &Snapshot, wanted: u32) -> Option<Duration> {
    let listed = snapshot.holders.len() == snapshot.holder_count as usize
        && snapshot.queue.len() == snapshot.queue_length as usize;
    let holders = snapshot.holders.iter().map(|held| (held.remaining, held.weight));
    let waiters = snapshot.queue.iter().map(|waiter| (waiter.remaining, waiter.weight));
    let mut claims: Vec<_> = holders.chain(waiters).collect();
    claims.sort_unstable_by_key(|(remaining, _)| *remaining);
    let mut taken: u64 = claims.iter().map(|(_, weight)| u64::from(*weight)).sum();
    let fits = |taken: u64| claims.is_empty() || taken + u64::from(wanted) <= u64::from(snapshot.capacity);
    let mut after = Duration::ZERO;
    for &(remaining, weight) in &claims {
        if fits(taken) {
            break;
        }
        (after, taken) = (remaining, taken - u64::from(weight));
    }
    listed.then(|| after.max(snapshot.paused_for.unwrap_or_default()))
}

fn sentences(snapshot: &Snapshot, free: bool, latest: Option<Duration>, now: WallTime) -> Vec<String> {
    let name = view::name(&snapshot.resource);
    let mut why = Vec::new();
    if let Some(left) = snapshot.paused_for {
        let until = text::time(now.after(left));
        why.push(format!("{name} is paused until {until} ({} more): no claim is granted.", text::span(left)));
    }
    if snapshot.holder_count == 0 {
        why.push(if free {
            format!("{name} is free: a claim is granted at once.")
        } else {
            format!("Nobody holds {name}.")
        });
    } else {
        why.extend(holders(snapshot, &name, now));
        if free {
            why.push("There is room: a claim is granted at once.".to_owned());
        }
    }
    why.extend(queue(snapshot));
    if !free {
        why.push(limit(snapshot, latest, now));
    }
    why
}

fn holders(snapshot: &Snapshot, name: &str, now: WallTime) -> Vec<String> {
    let mut sentences = Vec::new();
    if snapshot.capacity > 1 {
        let taken: u64 = snapshot.holders.iter().map(|held| u64::from(held.weight)).sum();
        let of = if snapshot.capacity == u32::MAX {
            String::new()
        } else {
            format!(", {taken} of its permits are taken")
        };
        sentences.push(format!("{name} is {}{of}.", view::primitive(snapshot.capacity)));
    }
    for held in snapshot.holders.iter().take(HOLDERS_NAMED) {
        let (holder, since) = (text::holder(&held.holder), text::time(text::before(now, held.held_for)));
        let share =
            view::share(held.weight, snapshot.capacity).map_or(String::new(), |share| format!(" ({share})"));
        let long = text::span(held.held_for);
        let state = match held {
            _ if held.kept => ", has been released and stays closed",
            _ if held.evicting => ", and is being evicted",
            _ if held.asked.is_some() => ", and has been asked to finish",
            _ => "",
        };
        sentences.push(format!(
            "{name} is held by {holder}{share} since {since} ({long}), token {}{state}.",
            held.token
        ));
    }
    let more = (snapshot.holder_count as usize).saturating_sub(HOLDERS_NAMED);
    sentences.extend((more > 0).then(|| format!("There are {more} more holders.")));
    sentences
}

fn queue(snapshot: &Snapshot) -> Option<String> {
    let first = snapshot.queue.first()?;
    let waiters = text::count(snapshot.queue_length, "waiter is", "waiters are");
    let (first_waiter, waited) = (text::holder(&first.holder), text::span(first.waited));
    Some(format!("{waiters} ahead of you; the first is {first_waiter}, for {waited}."))
}

fn limit(snapshot: &Snapshot, latest: Option<Duration>, now: WallTime) -> String {
    let Some(latest) = latest else {
        return "The latest time cannot be computed: there are more holders or waiters than are listed."
            .to_owned();
    };
    let (span, at) = (text::span(latest), text::time(now.after(latest)));
    let unless = match (snapshot.holder_count, snapshot.queue_length) {
        (0, 0) => "unless it is paused again",
        (_, 0) => "if no holder renews; a holder at work does",
        (0, _) => "if no waiter ahead of you takes it first",
        _ => "if no holder renews and no waiter ahead of you takes it; those at work do",
    };
    format!("You get it in {span} at the latest (at {at}), {unless}.")
}

fn unblock_options(session: &OperatorSession, snapshot: &Snapshot, now: WallTime) -> Vec<UnblockOption> {
    let name = snapshot.resource.to_string();
    let newest = view::newest(snapshot).map(|held| held.token.to_string());
    let mut unblock_options = Vec::new();
    if snapshot.paused_for.is_some() {
        let mut words = vec!["resume", name.as_str()];
        words.extend(newest.iter().flat_map(|token| ["--token", token.as_str()]));
        words.extend(["--reason", "WHY"]);
        let say = "the end of the pause, or by ending it now:".to_owned();
        unblock_options.push(UnblockOption { how: "resume", say, command: Some(session.command(&words)) });
    }
    // The options are about the holder with the most time left: it keeps the resource for longest.
    let Some(held) = snapshot.holders.iter().max_by_key(|held| held.remaining) else {
        return unblock_options;
    };
    let (at, left, token) =
        (text::time(now.after(held.remaining)), text::span(held.remaining), held.token.to_string());
    if !held.kept {
        let say = "its release, when the work is done".to_owned();
        unblock_options.push(UnblockOption { how: "release", say, command: None });
    }
    let if_it_stops = if held.kept || held.evicting { "" } else { ", if it stops renewing" };
    unblock_options.push(UnblockOption {
        how: "expiry",
        say: format!("the end of the lease at {at} (in {left}){if_it_stops}"),
        command: None,
    });
    if session.check_orders_supported().is_err() {
        return unblock_options;
    }
    if !held.kept {
        let words = ["ask", &name, "--token", &token, "--by", "30s", "--reason", "WHY"];
        let say = "asking the holder to finish:".to_owned();
        unblock_options.push(UnblockOption { how: "ask", say, command: Some(session.command(&words)) });
    }
    let words = ["evict", &name, "--token", &token, "--reason", "WHY"];
    let say = "evicting the holder, once you know that it is dead or stuck:".to_owned();
    unblock_options.push(UnblockOption { how: "evict", say, command: Some(session.command(&words)) });
    unblock_options
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold::{FencingToken, HeldBy, Holder, QueueEntry};
    use std::sync::Arc;

    fn snapshot(capacity: u32, held: &[(u32, u64)], queue: &[(u32, u64)]) -> Snapshot {
        let mut snapshot = Snapshot::empty("report/42".parse().unwrap());
        let holder = Arc::new(Holder::new("h", 1, ""));
        snapshot.capacity = capacity;
        for &(weight, seconds) in held {
            let mut by = HeldBy::new(Arc::clone(&holder), FencingToken::new(1).unwrap(), weight);
            by.remaining = Duration::from_secs(seconds);
            snapshot.holders.push(by);
        }
        let waiter = |&(weight, seconds): &(u32, u64)| {
            QueueEntry::new(Arc::clone(&holder), weight, Duration::ZERO, Duration::from_secs(seconds))
        };
        snapshot.queue = queue.iter().map(waiter).collect();
        (snapshot.holder_count, snapshot.queue_length) = (held.len() as u32, queue.len() as u32);
        snapshot
    }

    #[test]
    fn the_latest_time_is_when_enough_claims_have_ended() {
        let at = |seconds| Some(Duration::from_secs(seconds));
        assert_eq!(latest(&snapshot(0, &[], &[]), 1), at(0));
        assert_eq!(latest(&snapshot(1, &[(1, 20)], &[]), 1), at(20));
        assert_eq!(
            latest(&snapshot(1, &[(1, 2)], &[(1, 6)]), 1),
            at(6),
            "the place of a dead waiter expires"
        );
        assert_eq!(latest(&snapshot(3, &[(1, 9), (1, 5)], &[]), 1), at(0), "there is room");
        assert_eq!(latest(&snapshot(3, &[(1, 9), (1, 5)], &[]), 2), at(5));
        assert_eq!(latest(&snapshot(3, &[(1, 9), (1, 5)], &[]), 3), at(9));
        assert_eq!(latest(&snapshot(u32::MAX, &[(u32::MAX, 7)], &[]), 1), at(7));
        let mut paused = snapshot(1, &[(1, 20)], &[]);
        paused.paused_for = at(60);
        assert_eq!(latest(&paused, 1), at(60));
        let mut many = snapshot(200, &[(1, 1)], &[]);
        many.holder_count = 150;
        assert_eq!(latest(&many, 200), None);
    }
}
