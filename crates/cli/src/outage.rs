//! Waiting for a store that cannot be reached: `cron` and `elect` wait without a limit, `run` as long as it waits for its lease.

use std::{future::Future, sync::Arc, time::Duration};

use leasehold::{Backend, Backoff, Clock as _, ErrorKind, SystemClock, Timestamp};

use crate::{
    exit::{Exit, Failure},
    output::Output,
    store::Store,
    text,
};

/// An outage is first reported when it has lasted this long.
const REPORT_AFTER: Duration = Duration::from_secs(1);
/// How often a long outage is reported again.
const REMIND_EVERY: Duration = Duration::from_secs(60);
/// An attempt to open the store is given at least this long, even if the limit is shorter.
const ATTEMPT_MIN: Duration = Duration::from_secs(5);

/// How long to wait, for the store and for a lease together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitLimit {
    started: Timestamp,
    at_most: Option<Duration>,
}

impl WaitLimit {
    /// From now on at most this long; `None` is no limit.
    pub(crate) fn from_now(at_most: Option<Duration>) -> WaitLimit {
        WaitLimit { started: SystemClock.now(), at_most }
    }

    /// The limit itself.
    pub(crate) fn at_most(&self) -> Option<Duration> {
        self.at_most
    }

    /// How long was waited so far.
    pub(crate) fn waited(&self) -> Duration {
        self.started.until(SystemClock.now())
    }

    /// How long to wait at most from now on; `None` is no limit.
    pub(crate) fn left(&self) -> Option<Duration> {
        self.at_most.map(|at_most| at_most.saturating_sub(self.waited()))
    }

    fn is_over(&self) -> bool {
        self.left().is_some_and(|left| left.is_zero())
    }
}

impl Store {
    /// Connects to the store. If it cannot be reached, tries again until it can or the limit is over, and reports that. `task` is
    /// the resource or the job that has to wait. Every other error is returned: it will not pass.
    pub(crate) async fn open_when_reachable(
        &self,
        task: &str,
        output: Output,
        limit: &WaitLimit,
    ) -> Result<Arc<dyn Backend>, Failure> {
        self.until_reachable(task, output, limit, async || self.open_within(limit, self.open()).await).await
    }

    /// The same for a command that only looks: it creates no store.
    pub(crate) async fn read_when_reachable(
        &self,
        task: &str,
        output: Output,
        limit: &WaitLimit,
    ) -> Result<Arc<dyn Backend>, Failure> {
        let open = async || self.open_within(limit, self.open_to_read(output)).await;
        self.until_reachable(task, output, limit, open).await
    }

    async fn until_reachable(
        &self,
        task: &str,
        output: Output,
        limit: &WaitLimit,
        open: impl AsyncFn() -> Result<Arc<dyn Backend>, Failure>,
    ) -> Result<Arc<dyn Backend>, Failure> {
        let mut outage = Outage::new(task, self.shown(), output, limit);
        loop {
            match open().await {
                Err(failure) if failure.kind == ErrorKind::Unavailable.as_str() && !limit.is_over() => {
                    outage.pause(&failure.message).await;
                }
                opened => {
                    if opened.is_ok() {
                        outage.ended();
                    }
                    return opened;
                }
            }
        }
    }

    /// Opens the store with one attempt of its own. Its time is bounded if the limit is.
    async fn open_within(
        &self,
        limit: &WaitLimit,
        open: impl Future<Output = Result<Arc<dyn Backend>, Failure>>,
    ) -> Result<Arc<dyn Backend>, Failure> {
        let Some(left) = limit.left() else { return open.await };
        let at_most = left.max(ATTEMPT_MIN);
        tokio::time::timeout(at_most, open).await.unwrap_or_else(|_| {
            let message = format!("the store {} did not reply within {}", self.shown(), text::span(at_most));
            Err(Failure::new(Exit::Unavailable, ErrorKind::Unavailable.as_str(), message)
                .hint("check that the store is running and reachable, then try again"))
        })
    }
}

/// An outage of the store: pauses between attempts, and when it was last reported.
pub(crate) struct Outage<'a> {
    task: &'a str,
    store: &'a str,
    output: Output,
    limit: &'a WaitLimit,
    pauses: Backoff,
    since: Option<Timestamp>,
    reported: Option<Timestamp>,
}

impl<'a> Outage<'a> {
    /// No outage yet.
    pub(crate) fn new(task: &'a str, store: &'a str, output: Output, limit: &'a WaitLimit) -> Outage<'a> {
        Outage { task, store, output, limit, pauses: Backoff::new(), since: None, reported: None }
    }

    /// Calls `ask` until the store replies or the limit is over. An error other than `Unavailable` is a reply.
    pub(crate) async fn ask_again<T, F: Future<Output = leasehold::Result<T>>>(
        &mut self,
        ask: impl Fn() -> F,
    ) -> leasehold::Result<T> {
        loop {
            match ask().await {
                Err(error) if error.kind() == ErrorKind::Unavailable && !self.limit.is_over() => {
                    self.pause(&error.to_string()).await;
                }
                Err(error) if error.kind() == ErrorKind::Unavailable => return Err(error),
                reply => {
                    self.ended();
                    return reply;
                }
            }
        }
    }

    /// The store could not be reached: reports that, if it is time to, and pauses before the next attempt.
    async fn pause(&mut self, why: &str) {
        self.since.get_or_insert_with(|| SystemClock.now());
        // The clock is random enough to spread the attempts of several machines.
        let pause = self.pauses.next(SystemClock.wall().as_micros());
        tokio::time::sleep(self.limit.left().map_or(pause, |left| pause.min(left))).await;
        if let Some(note) = self.note(why) {
            self.output.note(&format!("{}: {note}", self.task));
        }
    }

    /// The store has replied.
    fn ended(&mut self) {
        self.since = None;
        self.pauses = Backoff::new();
        if self.reported.take().is_some() {
            self.output.note(&format!("{}: the store can be reached again", self.task));
        }
    }

    /// What to print about it now, if anything.
    fn note(&mut self, why: &str) -> Option<String> {
        let (now, store) = (SystemClock.now(), self.store);
        let lasting = self.since?.until(now);
        let note = match self.reported {
            _ if self.limit.is_over() => return None,
            None if lasting >= REPORT_AFTER => {
                let limit = self.limit.left();
                let limit = limit.map_or(String::new(), |left| format!(", for at most {}", text::span(left)));
                format!("{why}: trying again until the store {store} can be reached{limit}")
            }
            Some(last) if last.until(now) >= REMIND_EVERY => {
                format!("{why}, for {} now: still trying to reach the store {store}", text::span(lasting))
            }
            _ => return None,
        };
        self.reported = Some(now);
        Some(note)
    }
}
