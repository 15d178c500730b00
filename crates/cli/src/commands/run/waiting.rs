//! While it waits: who holds it, since when, how many are ahead; and whether it has been done meanwhile.

use std::{future::pending, sync::Arc, time::Duration};

use leasehold::{Backend, ClaimRef, Client, HeldBy, OwnerToken, Snapshot, System};

use super::{Run, claim::of_namespace};
use crate::commands::Context;

/// A person is told after this long, and whenever the holder changes.
const TELL_AFTER: Duration = Duration::from_secs(1);
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// Tells a person who watches. Never resolves: it is raced against the wait.
pub(super) async fn tell(run: &Run, context: &Context, client: &Client) {
    if !context.output.is_watched() {
        pending::<()>().await;
    }
    let client = of_namespace(client, &run.resource);
    let mut told = None;
    tokio::time::sleep(TELL_AFTER).await;
    loop {
        if let Ok(snapshot) = client.look(run.resource.kind(), &run.resource.id()).await {
            let holder = snapshot.holders.first().map(|by| by.token);
            if told != Some(holder) {
                context.output.say(&describe(&snapshot));
                told = Some(holder);
            }
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// Resolves when another run has done it; never, unless it is to be done only once.
pub(super) async fn done_elsewhere(run: &Run, backend: &Arc<dyn Backend>, client: &Client) {
    if run.once_per.is_none() {
        pending::<()>().await;
    }
    let client = of_namespace(client, &run.resource);
    let watcher = ClaimRef { resource: run.resource.clone(), owner: OwnerToken::fresh(&System::current()) };
    loop {
        let Ok(snapshot) = client.look(run.resource.kind(), &run.resource.id()).await else {
            tokio::time::sleep(TELL_AFTER).await; // the claim itself says what is wrong
            continue;
        };
        if snapshot.holders.iter().any(|by| by.kept) {
            return;
        }
        if snapshot.holders.is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await; // the claim is about to be granted
        }
        if backend.wait(&watcher, &snapshot.cursor, LOOK_AGAIN).await.is_err() {
            tokio::time::sleep(TELL_AFTER).await;
        }
    }
}

/// `report/42: held by 7@host nightly for 2m 3s (since 2026-01-02T03:04:05Z), 2 ahead of us`
fn describe(snapshot: &Snapshot) -> String {
    let mut line = format!("{}: ", snapshot.resource);
    match (snapshot.holders.first(), snapshot.paused_for) {
        (_, Some(left)) => line.push_str(&format!("paused by an operator for {} more", human(left))),
        (None, None) => line.push_str("waiting in line"),
        (Some(by), None) if by.kept => {
            line.push_str(&format!("closed for {} more after {}", human(by.remaining), by.holder));
        }
        (Some(by), None) => line.push_str(&held_by(by)),
    }
    if snapshot.holder_count > 1 {
        line.push_str(&format!(" and {} more", snapshot.holder_count - 1));
    }
    let us = std::process::id();
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let ahead = snapshot.queue.iter().position(|place| place.holder.pid == us && place.holder.host == host);
    match ahead {
        None => {}
        Some(0) => line.push_str(", we are next"),
        Some(ahead) => line.push_str(&format!(", {ahead} ahead of us")),
    }
    line
}

fn held_by(by: &HeldBy) -> String {
    let since = std::time::SystemTime::now() - by.held_for;
    let since = humantime::format_rfc3339_seconds(since);
    format!("held by {} for {} (since {since})", by.holder, human(by.held_for))
}

fn human(duration: Duration) -> String {
    humantime::format_duration(Duration::from_secs(duration.as_secs())).to_string()
}
