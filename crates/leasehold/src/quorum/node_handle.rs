//! A node, and whether it is worth asking now.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
};

use leasehold_core::{Backoff, Environment, QuorumNode, Timestamp};

/// A node as this client sees it.
///
/// A node that failed is not asked for a while, so that a dead node costs nothing. If there is no majority without it, it
/// is asked all the same.
#[derive(Debug)]
pub(super) struct NodeHandle {
    pub(super) node: Arc<dyn QuorumNode>,
    /// In nanoseconds; 0 if it answered last.
    backs_off_until: AtomicU64,
    failures: AtomicU32,
    /// Whether its health was part of a look at the set that found no fault. Before that its answers do not count.
    checked: AtomicBool,
}

impl NodeHandle {
    pub(super) fn new(node: Arc<dyn QuorumNode>) -> NodeHandle {
        NodeHandle {
            node,
            backs_off_until: AtomicU64::new(0),
            failures: AtomicU32::new(0),
            checked: AtomicBool::new(false),
        }
    }

    pub(super) fn is_checked(&self) -> bool {
        self.checked.load(Ordering::Relaxed)
    }

    pub(super) fn set_checked(&self) {
        self.checked.store(true, Ordering::Relaxed);
    }

    /// Whether it failed a short while ago.
    pub(super) fn is_backing_off(&self, now: Timestamp) -> bool {
        let until = self.backs_off_until.load(Ordering::Relaxed);
        until != 0 && now < Timestamp::from_nanos(until)
    }

    /// Records that it answered. Says whether it had failed before.
    pub(super) fn record_success(&self) -> bool {
        if self.failures.load(Ordering::Relaxed) == 0 {
            return false;
        }
        self.backs_off_until.store(0, Ordering::Relaxed);
        self.failures.swap(0, Ordering::Relaxed) > 0
    }

    pub(super) fn record_failure(&self, environment: &dyn Environment) {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed);
        let pause = Backoff::new().after(failures).next(environment.random());
        self.backs_off_until.store(environment.now().after(pause).as_nanos(), Ordering::Relaxed);
    }
}
