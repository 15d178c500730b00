//! How a resource becomes free, and the commands that help.

use leasehold::{ForeignLock, HeldBy, Snapshot, WallTime};
use serde::Serialize;

use crate::{
    foreign,
    marks::{self, Mark},
    session::OperatorSession,
    text,
    this_host::ProcessTable,
    view,
};

/// One way in which the resource becomes free.
#[derive(Debug, Serialize)]
pub(super) struct UnblockOption {
    /// A stable name, for programs.
    how: &'static str,
    pub(super) say: String,
    pub(super) command: Option<String>,
}

impl UnblockOption {
    fn wait(how: &'static str, say: impl Into<String>) -> UnblockOption {
        UnblockOption { how, say: say.into(), command: None }
    }

    fn order(how: &'static str, say: impl Into<String>, command: String) -> UnblockOption {
        UnblockOption { how, say: say.into(), command: Some(command) }
    }
}

/// What the options are computed from.
pub(super) struct Unblock<'a> {
    pub(super) session: &'a OperatorSession,
    pub(super) snapshot: &'a Snapshot,
    pub(super) processes: &'a ProcessTable,
    pub(super) now: WallTime,
}

impl Unblock<'_> {
    pub(super) fn options(&self) -> Vec<UnblockOption> {
        let mut options: Vec<_> = self.resume().into_iter().collect();
        // The options are about the holder with the most time left: it keeps the resource for longest.
        if let Some(held) = self.snapshot.holders.iter().max_by_key(|held| held.remaining) {
            options.extend(self.by_itself(held));
            if self.session.takes_orders() {
                options.extend(self.by_an_order(held));
            }
        }
        options.extend(self.snapshot.foreign.iter().flat_map(|lock| self.foreign(lock)));
        options
    }

    fn resume(&self) -> Option<UnblockOption> {
        self.snapshot.paused_for?;
        let name = self.snapshot.resource.to_string();
        let newest = view::newest(self.snapshot).map(|held| held.token.to_string());
        let mut words = vec!["resume", name.as_str()];
        words.extend(newest.iter().flat_map(|token| ["--token", token.as_str()]));
        words.extend(["--reason", "WHY"]);
        let say = "the end of the pause, or by ending it now:";
        Some(UnblockOption::order("resume", say, self.session.command(&words)))
    }

    fn by_itself(&self, held: &HeldBy) -> Vec<UnblockOption> {
        let is_gone = marks::of(held, self.processes).contains(&Mark::Gone);
        let cannot_renew = held.kept || held.evicting || is_gone;
        let if_it_stops = if cannot_renew { "" } else { ", if it stops renewing" };
        let end = view::left(held).map(|left| {
            let (at, left) = (text::time(self.now.after(left)), text::span(left));
            UnblockOption::wait("expiry", format!("the end of the lease at {at} (in {left}){if_it_stops}"))
        });
        let release = (!held.kept && !is_gone)
            .then(|| UnblockOption::wait("release", "its release, when the work is done"));
        release.into_iter().chain(end).collect()
    }

    fn by_an_order(&self, held: &HeldBy) -> Vec<UnblockOption> {
        let (name, token) = (self.snapshot.resource.to_string(), held.token.to_string());
        let command = |order: &str, options: &[&str]| {
            let words = [&[order, &name, "--token", &token], options, &["--reason", "WHY"]].concat();
            self.session.command(&words)
        };
        let is_gone = marks::of(held, self.processes).contains(&Mark::Gone);
        let has_no_end = view::left(held).is_none();
        let now = ["--now", "--two-may-run"];
        if held.kept {
            let say = "opening it before that time, once you know that the work may be repeated:";
            return vec![UnblockOption::order("evict", say, command("evict", &now))];
        }
        if is_gone || has_no_end {
            let say = "evicting the holder at once, once you know that its work has ended:";
            return vec![UnblockOption::order("evict", say, command("evict", &now))];
        }
        if held.evicting {
            let say = "ending the eviction at once, once you know that its work has ended:";
            let options = ["--now", "--two-may-run", "--even-if-alive"];
            return vec![UnblockOption::order("evict", say, command("evict", &options))];
        }
        let ask =
            UnblockOption::order("ask", "asking the holder to finish:", command("ask", &["--by", "30s"]));
        let say = "evicting the holder, once you know that it is dead or stuck:";
        vec![ask, UnblockOption::order("evict", say, command("evict", &[]))]
    }

    fn foreign(&self, lock: &ForeignLock) -> Vec<UnblockOption> {
        let mut options = vec![UnblockOption::wait("foreign", "the release by the other program")];
        if let Some(left) = lock.remaining {
            let at = text::time(self.now.after(left));
            let end =
                format!("the expiry of its lock at {at} (in {}), unless it is extended", text::span(left));
            options.push(UnblockOption::wait("foreign_expiry", end));
        }
        let command = foreign::evict_command(self.session, &self.snapshot.resource, lock, "WHY");
        let on_each = if self.session.takes_orders() { "" } else { " on each node by itself" };
        let say = format!("removing its lock{on_each}, once you know that the other program has ended:");
        options.push(UnblockOption::order("evict_foreign", say, command));
        options
    }
}
