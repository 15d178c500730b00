//! How far a run is, and how many are at work in it.

use std::sync::{
    Arc,
    atomic::{AtomicU8, AtomicUsize, Ordering},
};

use crate::world::World;

/// How far a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Phase {
    /// Faults.
    Storm,
    /// No new faults; old ones may still be in the way.
    Calm,
    /// Nothing may go wrong any more.
    Strict,
    /// Nothing new is begun.
    Drain,
}

/// The phase of a run, and how many tasks work. Begins in the storm, without any.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    phase: AtomicU8,
    busy: Arc<AtomicUsize>,
}

impl Progress {
    pub(crate) fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            0 => Phase::Storm,
            1 => Phase::Calm,
            2 => Phase::Strict,
            _ => Phase::Drain,
        }
    }

    pub(crate) fn enter(&self, world: &World, phase: Phase) {
        world.trace(|| format!("--- {phase:?}"));
        self.phase.store(phase as u8, Ordering::Release);
    }

    /// Nothing may go wrong any more.
    pub(crate) fn is_strict(&self) -> bool {
        self.phase() >= Phase::Strict
    }

    /// How many tasks are at work.
    pub(crate) fn busy(&self) -> usize {
        self.busy.load(Ordering::Acquire)
    }

    /// One more, while this lives.
    pub(crate) fn begin(&self) -> Busy {
        self.busy.fetch_add(1, Ordering::AcqRel);
        Busy(Arc::clone(&self.busy))
    }
}

/// Counts a task while it lives.
#[derive(Debug)]
pub(crate) struct Busy(Arc<AtomicUsize>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
