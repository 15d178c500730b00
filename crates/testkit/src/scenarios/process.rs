//! Holders in processes of their own, which are killed, stopped and continued.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use leasehold_core::{FencingToken, Snapshot};

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

/// How many processes wait and are killed, and how many places each of them has in the queue.
const DEAD_PROCESSES: u32 = 5;
const PLACES_OF_EACH: u32 = 20;
/// How long a queue may take to have the expected length, on a loaded machine.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(30);

impl ProcessScenario<'_> {
    /// A hundred waiters of killed processes stand in the queue before a live one. When the holder releases, the
    /// live one is granted. Returns how long that took.
    ///
    /// # Panics
    /// If it is not granted, or if the waiters cannot be seen in the queue.
    pub fn killed_waiters_are_passed_over(&self) -> Duration {
        let mut holder = self.start();
        let token = holder.granted();
        let dead: Vec<ClientProcess> =
            (0..DEAD_PROCESSES).map(|_| self.start_waiters(PLACES_OF_EACH)).collect();
        self.until_queue_length(DEAD_PROCESSES * PLACES_OF_EACH);
        let live = self.start();
        self.until_queue_length(DEAD_PROCESSES * PLACES_OF_EACH + 1);
        dead.into_iter().for_each(ClientProcess::kill);
        let released = Instant::now();
        holder.send("release");
        assert_eq!(holder.expect_line("released"), "Now");
        assert!(live.granted() > token, "the next token is higher");
        released.elapsed()
    }

    /// The holder is killed, and so is the process that waits first. The next live waiter is granted when the
    /// lease has expired. Returns how long that took after the kill.
    ///
    /// # Panics
    /// If it is not granted.
    pub fn holder_and_first_waiter_killed(&self) -> Duration {
        let holder = self.start();
        let token = holder.granted();
        let dead = self.start();
        self.until_queue_length(1);
        let live = self.start();
        self.until_queue_length(2);
        let killed = Instant::now();
        dead.kill();
        holder.kill();
        assert!(live.granted() > token, "the next token is higher");
        killed.elapsed()
    }

    /// A waiter is stopped for two seconds while it could be granted. It loses its turn, and not its place: it is
    /// granted before a waiter that came later.
    ///
    /// # Panics
    /// If it is otherwise.
    pub fn stopped_waiter_loses_a_turn(&self) {
        let mut holder = self.start();
        holder.granted();
        let stopped = self.start();
        self.until_queue_length(1);
        let mut second = self.start();
        self.until_queue_length(2);
        let third = self.start();
        self.until_queue_length(3);
        stopped.signal("STOP");
        holder.send("release");
        let second_token = second.granted();
        stopped.signal("CONT");
        // It shows that it lives by renewing its place: only then does it stand in line again.
        self.until(|seen| seen.queue.first().is_some_and(|place| !place.silent));
        second.send("release");
        let token = stopped.granted();
        assert!(token > second_token);
        assert_eq!(third.line_within(OBSERVED_FOR), None, "it arrived later");
    }

    /// A waiter is stopped while it could be granted. Where silent waiters are removed, it loses its place: when it
    /// continues, it asks again and stands behind a waiter that came later.
    ///
    /// # Panics
    /// If it is otherwise.
    pub fn stopped_waiter_is_removed(&self) {
        let mut holder = self.start();
        holder.granted();
        let stopped = self.start();
        self.until_queue_length(1);
        let mut second = self.start();
        self.until_queue_length(2);
        let mut third = self.start();
        self.until_queue_length(3);
        stopped.signal("STOP");
        holder.send("release");
        let second_token = second.granted();
        self.until_queue_length(1);
        stopped.signal("CONT");
        self.until_queue_length(2);
        second.send("release");
        let third_token = third.granted();
        assert_eq!(stopped.line_within(OBSERVED_FOR), None, "it stands at the end of the queue");
        third.send("release");
        let token = stopped.granted();
        assert!(token > third_token && third_token > second_token);
    }

    /// Starts a process with several waiters, each with a place of its own.
    fn start_waiters(&self, places: u32) -> ClientProcess {
        let (ttl, places) = (self.ttl.as_millis().to_string(), places.to_string());
        ClientProcess::start_with(self.program, &[self.url, "report/42", &ttl, &places])
    }

    fn until_queue_length(&self, length: u32) {
        // The list of waiters is cut off at a hundred.
        self.until(|seen| seen.queue_length == length);
    }

    /// Looks at the queue until it is as expected.
    fn until(&self, is_as_expected: impl Fn(&Snapshot) -> bool) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime can be made").block_on(async {
            let client = leasehold::connect(self.url).await.expect("the store answers");
            let started = Instant::now();
            loop {
                let seen = client.look("report", "42").await.expect("the store answers");
                if is_as_expected(&seen) {
                    return;
                }
                assert!(started.elapsed() < QUEUE_TIMEOUT, "the resource is {seen:?}");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
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
