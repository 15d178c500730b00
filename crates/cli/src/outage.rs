//! Waiting for a store that cannot be reached, for the commands that run for ever: `cron` and `elect`.

use std::{sync::Arc, time::Duration};

use leasehold::{Backend, Backoff, Clock as _, ErrorKind, SystemClock, Timestamp};

use crate::{exit::Failure, output::Output, store::Store, text};

/// How often a long outage is reported again.
const REMIND_EVERY: Duration = Duration::from_secs(60);

impl Store {
    /// Connects to the store. If it cannot be reached, tries again until it can: reports that at once, every minute, and when
    /// it is over. `task` is the job or the election that has to wait. Every other error is returned: it will not
    /// pass.
    pub(crate) async fn open_when_reachable(
        &self,
        task: &str,
        output: Output,
    ) -> Result<Arc<dyn Backend>, Failure> {
        let (mut backoff, mut outage) = (Backoff::new(), None);
        loop {
            match self.open().await {
                Err(failure) if failure.kind == ErrorKind::Unavailable.as_str() => {
                    let outage = outage.get_or_insert_with(Outage::now);
                    if let Some(note) = outage.note(&failure.message, self.shown()) {
                        output.note(&format!("{task}: {note}"));
                    }
                    // The clock is random enough to spread the attempts of several machines.
                    tokio::time::sleep(backoff.next(SystemClock.wall().as_micros())).await;
                }
                opened => {
                    if outage.is_some() && opened.is_ok() {
                        output.note(&format!("{task}: the store can be reached again"));
                    }
                    return opened;
                }
            }
        }
    }
}

/// An outage, and when it was last reported.
struct Outage {
    since: Timestamp,
    reported: Option<Timestamp>,
}

impl Outage {
    fn now() -> Outage {
        Outage { since: SystemClock.now(), reported: None }
    }

    /// What to print about it now, if anything.
    fn note(&mut self, why: &str, store: &str) -> Option<String> {
        let now = SystemClock.now();
        let note = match self.reported {
            None => format!("{why}: trying again until the store {store} can be reached"),
            Some(last) if last.until(now) >= REMIND_EVERY => {
                let lasting = text::span(self.since.until(now));
                format!("{why}, for {lasting} now: still trying to reach the store {store}")
            }
            Some(_) => return None,
        };
        self.reported = Some(now);
        Some(note)
    }
}
