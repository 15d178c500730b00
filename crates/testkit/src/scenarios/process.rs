//! Holders in processes of their own, which are killed, stopped and continued.

use std::{path::Path, time::Duration};

use leasehold_core::FencingToken;

use crate::ClientProcess;

/// How long a waiting process is observed to show that it is not granted.
const OBSERVED_FOR: Duration = Duration::from_millis(100);
/// The ttl of the process that replaces a stopped holder: longer, so that it keeps its lease on a loaded
/// machine.
const NEXT_TTL: Duration = Duration::from_secs(10);

/// Client processes that want the same lease.
#[derive(Clone, Copy, Debug)]
pub struct ProcessScenario<'a> {
    /// The program of the client process.
    pub program: &'a Path,
    /// The URL of the backend.
    pub url: &'a str,
    /// The ttl of the leases.
    pub ttl: Duration,
}

/// A holder that was stopped until its lease expired, and the holder after it.
#[derive(Debug)]
pub struct ReplacedHolder {
    /// The process that was stopped. It runs again, and knows that its lease has ended.
    pub stopped: ClientProcess,
    /// The process that holds the lease now.
    pub next: ClientProcess,
    /// The token of `next`.
    pub next_token: FencingToken,
}

impl ProcessScenario<'_> {
    /// Starts a process, which waits for the lease.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(&self) -> ClientProcess {
        ClientProcess::start(self.program, self.url, "report/42", self.ttl)
    }

    /// A killed holder releases nothing. When its lease has expired, the next process gets a higher token.
    ///
    /// # Panics
    /// If it does not.
    pub fn killed_holder_is_replaced(&self) {
        let first = self.start();
        let token = first.granted();
        let second = self.start();
        first.kill();
        assert!(second.granted() > token, "the second token is higher");
    }

    /// A holder that is stopped until its lease has expired is replaced. When it continues, it learns that
    /// the lease has ended, and no check says that it still holds.
    ///
    /// # Panics
    /// If it is otherwise.
    pub fn holder_stopped_past_its_ttl(&self) -> ReplacedHolder {
        let mut stopped = self.start();
        let token = stopped.granted();
        stopped.signal("STOP");
        let next = ProcessScenario { ttl: self.ttl.max(NEXT_TTL), ..*self }.start();
        let next_token = next.granted();
        assert!(next_token > token, "a fence refuses late writes of the stopped holder");
        // Sent before the process continues: the check comes as early as it can.
        stopped.send("check");
        stopped.signal("CONT");
        let mut lines = [stopped.expect_line(""), stopped.expect_line("")];
        lines.sort();
        assert!(lines[0].starts_with("ended") && lines[1] == "over", "{lines:?}");
        ReplacedHolder { stopped, next, next_token }
    }

    /// A holder that is stopped for less than its ttl keeps the lease and its token. `while_held` checks the
    /// store.
    ///
    /// # Panics
    /// If it is otherwise.
    pub fn holder_stopped_briefly(&self, stopped_for: Duration, while_held: impl FnOnce(FencingToken)) {
        let mut holder = self.start();
        let token = holder.granted();
        let waiting = self.start();
        holder.signal("STOP");
        std::thread::sleep(stopped_for);
        holder.signal("CONT");
        holder.send("check");
        assert_eq!(holder.expect_line(""), "ok");
        assert_eq!(waiting.line_within(OBSERVED_FOR), None, "no other process is granted");
        while_held(token);
        holder.send("release");
        assert_eq!(holder.expect_line("released"), "Now");
        assert!(waiting.granted() > token, "the next token is higher");
    }
}

impl ReplacedHolder {
    /// Releases the lost lease. The next holder keeps its lease. Returns the reply to the late release.
    ///
    /// # Panics
    /// If the release took effect, or the next holder lost its lease.
    pub fn late_release(&mut self) -> String {
        self.stopped.send("release");
        let reply = self.stopped.expect_line("released");
        assert_ne!(reply, "Now", "the late release finds nothing to release");
        self.next.send("check");
        assert_eq!(self.next.expect_line(""), "ok", "the late release does not affect the next holder");
        reply
    }

    /// Releases the lease of the next holder.
    ///
    /// # Panics
    /// If it did not hold any more.
    pub fn release_next(&mut self) {
        self.next.send("release");
        assert_eq!(self.next.expect_line("released"), "Now");
    }
}
