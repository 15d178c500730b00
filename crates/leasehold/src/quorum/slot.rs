//! A node as one client sees it: whether it is worth asking now.

use std::sync::{
    Arc,
    atomic::{AtomicU32, AtomicU64, Ordering},
};

use leasehold_core::{Backoff, Environment, QuorumNode, Timestamp};

/// A node. One that failed is left alone for a while, so that a dead one costs nothing; it is asked all the same if
/// there is no majority without it.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) node: Arc<dyn QuorumNode>,
    quiet_until: AtomicU64,
    failures: AtomicU32,
}

impl Slot {
    pub(super) fn new(node: Arc<dyn QuorumNode>) -> Slot {
        Slot { node, quiet_until: AtomicU64::new(0), failures: AtomicU32::new(0) }
    }

    pub(super) fn is_quiet(&self, now: Timestamp) -> bool {
        let until = self.quiet_until.load(Ordering::Relaxed);
        until != 0 && now < Timestamp::from_nanos(until)
    }

    /// It answered; says whether it had failed before.
    pub(super) fn answered(&self) -> bool {
        if self.failures.load(Ordering::Relaxed) == 0 {
            return false;
        }
        self.quiet_until.store(0, Ordering::Relaxed);
        self.failures.swap(0, Ordering::Relaxed) > 0
    }

    pub(super) fn failed(&self, environment: &dyn Environment) {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed);
        let pause = Backoff::new().after(failures).next(environment.random());
        self.quiet_until.store(environment.now().after(pause).as_nanos(), Ordering::Relaxed);
    }
}
