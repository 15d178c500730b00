//! While a run waits: prints who holds the resource, since when and how many waiters are ahead; and sees
//! whether another run has done the work meanwhile (`--once-per`).

use std::{future::pending, sync::Arc, time::Duration};

use leasehold::{Backend, ClaimRef, Client, HeldBy, OwnerToken, Snapshot, System};

use super::{Run, claim::of_namespace};
use crate::commands::Context;

/// The first note is printed after this long. Further notes are printed whenever the holder changes.
const FIRST_NOTE_AFTER: Duration = Duration::from_secs(1);
/// The pause after a look that failed.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// The pause after the resource was seen free: our own claim is about to be granted.
const GRANT_PAUSE: Duration = Duration::from_millis(20);
/// The pause between two looks at the store.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// Prints notes about the wait, if the output shows progress. Never resolves: the caller races it against the
/// claim.
pub(super) async fn show(run: &Run, context: &Context, client: &Client) {
    if !context.output.shows_progress() {
        pending::<()>().await;
    }
    let client = of_namespace(client, &run.resource);
    let mut last_noted = None;
    tokio::time::sleep(FIRST_NOTE_AFTER).await;
    loop {
        if let Ok(snapshot) = client.look(run.resource.kind(), &run.resource.id()).await {
            let holder = snapshot.holders.first().map(|by| by.token);
            if last_noted != Some(holder) {
                context.output.note(&describe(&snapshot));
                last_noted = Some(holder);
            }
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// Resolves when another run has done the work (`--once-per`). Without `--once-per` it never resolves.
pub(super) async fn done_elsewhere(run: &Run, backend: &Arc<dyn Backend>, client: &Client) {
    if run.once_per.is_none() {
        pending::<()>().await;
    }
    let client = of_namespace(client, &run.resource);
    let watcher = ClaimRef { resource: run.resource.clone(), owner: OwnerToken::fresh(&System::current()) };
    loop {
        let Ok(snapshot) = client.look(run.resource.kind(), &run.resource.id()).await else {
            tokio::time::sleep(RETRY_AFTER).await; // the claim itself reports what is wrong
            continue;
        };
        if snapshot.holders.iter().any(|by| by.kept) {
            return;
        }
        if snapshot.holders.is_empty() {
            tokio::time::sleep(GRANT_PAUSE).await;
        }
        if backend.wait(&watcher, &snapshot.cursor, LOOK_AGAIN).await.is_err() {
            tokio::time::sleep(RETRY_AFTER).await;
        }
    }
}

/// `report/42: held by 7@host nightly for 2m 3s (since 2026-01-02T03:04:05Z), 2 ahead of us`
fn describe(snapshot: &Snapshot) -> String {
    let mut line = format!("{}: ", snapshot.resource);
    match (snapshot.holders.first(), snapshot.paused_for) {
        (_, Some(left)) => line.push_str(&format!("paused by an operator for {} more", human(left))),
        (None, None) => line.push_str("waiting in the queue"),
        (Some(by), None) if by.kept => {
            line.push_str(&format!(
                "closed for {} more after the release by {}",
                human(by.remaining),
                by.holder
            ));
        }
        (Some(by), None) => line.push_str(&held_by(by)),
    }
    if snapshot.holder_count > 1 {
        line.push_str(&format!(" and {} more", snapshot.holder_count - 1));
    }
    let us = std::process::id();
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let ahead =
        snapshot.queue.iter().position(|waiter| waiter.holder.pid == us && waiter.holder.host == host);
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
