//! While a run waits: shows who holds the resource, whether that holder renews, and how many waiters are ahead; and sees whether
//! another run has done the work meanwhile (`--once-per`).
//!
//! On a terminal there is one line that is kept up to date. Elsewhere a line is printed now and then, in growing distances.

use std::{cell::RefCell, future::pending, time::Duration};

use leasehold::{
    ClaimRef, Clock as _, HeldBy, Holder, OwnerToken, Resource, Snapshot, System, SystemClock, Timestamp,
};

use super::{
    ClaimContext,
    busy_text::{ahead, held_by, held_by_foreign, human},
};
use crate::{status_line::StatusLine, text, this_host};

/// The first line comes after this long.
const FIRST_NOTE_AFTER: Duration = Duration::from_secs(1);
/// The time between the first two lines where there is no terminal. Then it grows by `GROWTH`, up to `NOTE_EVERY_MAX`.
const NOTE_EVERY_MIN: Duration = Duration::from_secs(5);
const NOTE_EVERY_MAX: Duration = Duration::from_secs(5 * 60);
const GROWTH: u32 = 3;
/// How often the line on a terminal is drawn again.
const REDRAW_EVERY: Duration = Duration::from_secs(1);
/// The pause after a look that failed.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// The pause after the resource was seen free: our own claim is about to be granted.
const GRANT_PAUSE: Duration = Duration::from_millis(20);
/// The pause between two looks at the store.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// A claim that waits.
pub(super) struct Wait<'a> {
    pub(super) claim: ClaimContext<'a>,
    /// The resource that is waited for now.
    pub(super) resource: &'a RefCell<Resource>,
}

impl Wait<'_> {
    /// Shows what goes on. Never resolves: the caller races it against the claim.
    pub(super) async fn show(&self) {
        let output = self.claim.context.output;
        // With --json, a program reads stderr.
        if output.quiet || self.claim.request.options.nonblock || (output.json && !output.verbose) {
            pending::<()>().await;
        }
        tokio::time::sleep(FIRST_NOTE_AFTER).await;
        match StatusLine::on_stderr().filter(|_| !output.verbose && !output.json) {
            Some(line) => self.keep_up_to_date(&line).await,
            // With -E 0 it is no error that the resource is held: cron mails whatever is printed.
            None if self.claim.request.options.conflict_exit_code == Some(0) && !output.verbose => {
                pending::<()>().await;
            }
            None => self.note_now_and_then().await,
        }
    }

    async fn note_now_and_then(&self) {
        let mut pause = NOTE_EVERY_MIN;
        loop {
            if let Some(seen) = self.look().await {
                let waited = text::span(self.claim.limit.waited());
                let (resource, what) = (&seen.snapshot.resource, seen.describe(Length::Long));
                let ahead = ahead(self.place(&seen));
                self.claim.context.output.note(&format!("{resource}: {what}{ahead}; waited {waited}"));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * GROWTH).min(NOTE_EVERY_MAX);
        }
    }

    async fn keep_up_to_date(&self, line: &StatusLine) {
        let mut seen: Option<Seen> = None;
        let mut failing_since = None;
        loop {
            let resource = self.resource.borrow().clone();
            if seen.as_ref().is_none_or(|seen| seen.is_old() || seen.snapshot.resource != resource) {
                // A store that does not reply must not stop the clock on the screen.
                match tokio::time::timeout(REDRAW_EVERY, self.look()).await {
                    Ok(Some(now)) => (seen, failing_since) = (Some(now), None),
                    _ => _ = failing_since.get_or_insert_with(|| SystemClock.now()),
                }
            }
            line.draw(&self.status(&resource, seen.as_ref(), failing_since));
            tokio::time::sleep(REDRAW_EVERY).await;
        }
    }

    /// `leasehold: waiting 3s of 60s for x/1 (2 ahead): held by 7@host nightly (renewing; free within 29s if it dies)`. What matters
    /// most comes first: a narrow terminal cuts the end.
    fn status(&self, resource: &Resource, seen: Option<&Seen>, failing_since: Option<Timestamp>) -> String {
        let waited = human(self.claim.limit.waited());
        let at_most = self.claim.limit.at_most().map_or(String::new(), |most| format!(" of {}", human(most)));
        let ahead = match seen.and_then(|seen| self.place(seen)) {
            None => String::new(),
            Some(0) => " (next)".to_owned(),
            Some(ahead) => format!(" ({ahead} ahead)"),
        };
        let mut line = format!("leasehold: waiting {waited}{at_most} for {resource}{ahead}");
        if let Some(since) = failing_since {
            let silence = text::span(since.until(SystemClock.now()));
            line.push_str(&format!(": the store has not answered for {silence}"));
        }
        if let Some(seen) = seen {
            line.push_str(&format!(": {}", seen.describe(Length::Short)));
        }
        line
    }

    /// How many waiters are ahead of this claim, if it is in the queue.
    fn place(&self, seen: &Seen) -> Option<usize> {
        let us = self.claim.request.process_id;
        let host = this_host::name();
        let is_ours = |waiter: &Holder| us != 0 && waiter.pid == us && waiter.host == host;
        seen.snapshot.queue.iter().position(|waiter| is_ours(&waiter.holder))
    }

    async fn look(&self) -> Option<Seen> {
        let resource = self.resource.borrow().clone();
        let at = SystemClock.now();
        let snapshot = self.claim.client.look_at(&resource).await.ok()?;
        Some(Seen { at, snapshot })
    }
}

/// Resolves when another run has done the work (`--once-per`). Without `--once-per` it never resolves.
pub(super) async fn done_elsewhere(claim: &ClaimContext<'_>) -> HeldBy {
    let ClaimContext { request, backend, client, .. } = *claim;
    if request.once_per.is_none() {
        pending::<()>().await;
    }
    let resource = &request.resources[0];
    let watcher = ClaimRef { resource: resource.clone(), owner: OwnerToken::fresh(&System::current()) };
    loop {
        let Ok(snapshot) = client.look_at(resource).await else {
            tokio::time::sleep(RETRY_AFTER).await; // the claim itself reports what is wrong
            continue;
        };
        if let Some(kept) = snapshot.holders.iter().find(|by| by.kept) {
            return kept.clone();
        }
        if snapshot.holders.is_empty() {
            tokio::time::sleep(GRANT_PAUSE).await;
        }
        if backend.wait(&watcher, &snapshot.cursor, LOOK_AGAIN).await.is_err() {
            tokio::time::sleep(RETRY_AFTER).await;
        }
    }
}

/// A resource as it was seen some time ago.
struct Seen {
    at: Timestamp,
    snapshot: Snapshot,
}

/// How much is said.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Length {
    /// For one line on a terminal.
    Short,
    Long,
}

impl Seen {
    fn is_old(&self) -> bool {
        self.at.until(SystemClock.now()) >= LOOK_AGAIN
    }

    /// `held by 7@host nightly (renewing; free within 29s if it dies) since 2026-01-02T03:04:05Z`
    fn describe(&self, length: Length) -> String {
        let snapshot = &self.snapshot;
        let passed = self.at.until(SystemClock.now());
        let mut line = String::new();
        match (snapshot.holders.first(), snapshot.foreign.first(), snapshot.paused_for) {
            (_, _, Some(left)) => {
                let left = text::span(left.saturating_sub(passed));
                line.push_str(&format!("paused by an operator for {left} more"));
            }
            (Some(by), _, None) => {
                let mut by = by.clone();
                by.remaining = by.remaining.saturating_sub(passed);
                line.push_str(&held_by(&by));
                if length == Length::Long && !by.kept {
                    line.push_str(&since(&by));
                }
            }
            (None, Some(lock), None) => {
                let left = lock.remaining.map(|left| left.saturating_sub(passed));
                line.push_str(&held_by_foreign(&lock.key, left));
            }
            (None, None, None) => line.push_str("waiting in the queue"),
        }
        if snapshot.holder_count > 1 {
            line.push_str(&format!(" and {} more", snapshot.holder_count - 1));
        }
        line
    }
}

/// ` since 2026-01-02T03:04:05Z`
fn since(by: &HeldBy) -> String {
    format!(" since {}", text::time(text::before(SystemClock.wall(), by.held_for)))
}
