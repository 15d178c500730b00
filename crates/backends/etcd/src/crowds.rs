//! Where others were met: a hint, and no more.
//!
//! A transaction that would also take a place and look is much longer than one that only takes what is free, and every
//! member writes it down. So the long one is sent where somebody was in the way last time. A wrong hint costs a look and
//! one more transaction, or some bytes.

use std::{
    collections::HashSet,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// How many are remembered before all are forgotten.
const MOST: usize = 4_096;

#[derive(Debug, Default)]
pub(crate) struct Crowds {
    /// By what the keys of a resource's contenders begin with.
    locks: Mutex<HashSet<String>>,
}

impl Crowds {
    fn locks(&self) -> MutexGuard<'_, HashSet<String>> {
        self.locks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn expects(&self, lock: &str) -> bool {
        self.locks().contains(lock)
    }

    /// Somebody, or a pause, was in the way.
    pub(crate) fn met(&self, lock: &str) {
        let mut locks = self.locks();
        if locks.len() >= MOST && !locks.contains(lock) {
            locks.clear();
        }
        locks.insert(lock.to_owned());
    }

    /// Nobody was there.
    pub(crate) fn gone(&self, lock: &str) {
        self.locks().remove(lock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_meeting_counts_and_memory_is_bounded() {
        let crowds = Crowds::default();
        assert!(!crowds.expects("a/"));
        crowds.met("a/");
        assert!(crowds.expects("a/") && !crowds.expects("b/"));
        crowds.gone("a/");
        assert!(!crowds.expects("a/"));
        (0..3 * MOST).for_each(|number| crowds.met(&number.to_string()));
        assert!(crowds.locks().len() <= MOST);
    }
}
