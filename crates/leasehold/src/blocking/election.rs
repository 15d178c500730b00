//! Blocking elections.

use leasehold_core::{Backoff, Result};

use super::{Lease, LeaseRequest, runtime::Runtime};
use crate::primitives::Leader;

/// An election: one leader at a time, with a value that all clients can see. See the async [`Election`](crate::Election).
///
/// ```
/// # fn main() -> Result<(), leasehold::Error> {
/// let leases = leasehold::blocking::connect("memory:")?;
/// let scheduler = leases.election("scheduler", "eu");
/// let planned = scheduler.lead("http://host-a", |lead| {
///     let leader = scheduler.observe()?.next().expect("an observer never ends")?.expect("someone leads");
///     assert_eq!((leader.value(), leader.token), (Some("http://host-a"), lead.token()));
///     Ok::<_, leasehold::Error>(3)
/// })??;
/// assert_eq!(planned, 3);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Election {
    election: crate::Election,
    runtime: Runtime,
}

impl Election {
    pub(super) fn new(election: crate::Election, runtime: &Runtime) -> Election {
        Election { election, runtime: runtime.clone() }
    }

    /// A request to lead, with the value that other clients see. By default it waits without a limit.
    pub fn candidate(&self, value: impl AsRef<[u8]>) -> LeaseRequest {
        LeaseRequest::new(self.election.candidate(value), &self.runtime)
    }

    /// Waits until it leads, and runs the work. If the lead was lost when the work returns, it waits again and starts the
    /// work anew.
    ///
    /// The work is not interrupted when the lead is lost: it asks with [`check`](super::LeaseView::check), and returns.
    ///
    /// # Errors
    /// As [`LeaseRequest::acquire`]. A lost lead is not an error.
    pub fn lead<R>(&self, value: impl AsRef<[u8]>, mut work: impl FnMut(&Lease) -> R) -> Result<R> {
        loop {
            let lead = self.candidate(value.as_ref()).acquire()?;
            let output = work(&lead);
            if lead.check().is_ok() {
                drop(lead.release()); // the work is done; a failed release is repeated in the background
                return Ok(output);
            }
            drop(lead);
            // Pause, so that a backend that refuses every renewal is not asked in a tight loop.
            self.runtime.sleep(Backoff::FIRST);
        }
    }

    /// An observer of the leader.
    ///
    /// # Errors
    /// `Invalid` if the name is invalid.
    pub fn observe(&self) -> Result<Observer> {
        Ok(Observer { observer: self.election.observe()?, runtime: self.runtime.clone() })
    }
}

/// Observes who leads: an iterator without an end. The first item is the leader at once; the next ones come when the leader
/// or its value has changed. `None` if nobody leads. After an error, go on.
#[derive(Debug)]
pub struct Observer {
    observer: crate::Observer,
    runtime: Runtime,
}

impl Iterator for Observer {
    type Item = Result<Option<Leader>>;

    fn next(&mut self) -> Option<Result<Option<Leader>>> {
        Some(self.runtime.call(self.observer.next()))
    }
}
