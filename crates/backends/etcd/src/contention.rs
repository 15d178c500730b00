//! What this client does about contention: hints for the first transaction of an acquire, and pauses between
//! attempts.
//!
//! # Hints
//! [`ContentionHints`] remembers on which resources this client met other claims last time. The first
//! transaction of an acquire has two forms. The long form also queues the claim and reads the resource if it
//! is not free. It is much longer than the short form, which only grants a free resource, and every member
//! writes the whole transaction to its log. So the long form is sent only where another claim, or a pause,
//! was in the way last time. A wrong hint costs a read and one more transaction, or some bytes.
//!
//! # Pauses
//! All writes are compared with what was read, so of two clients that change a resource at the same time one
//! has to read again. A random pause, longer with every attempt, keeps them from disturbing each other again
//! and again.

use std::{
    collections::HashSet,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crate::backend::Etcd;

/// How often a verb reads and decides again because other clients were faster.
pub(crate) const ATTEMPTS_MAX: u32 = 40;
/// The attempts that are repeated without a pause.
const ATTEMPTS_WITHOUT_PAUSE: u32 = 3;
/// The longest pause after an attempt, multiplied by the number of the attempt, in microseconds.
const PAUSE_US_PER_ATTEMPT: u64 = 1_000;

/// How many resources are remembered before all are forgotten.
const RESOURCES_MAX: usize = 4_096;

/// The resources where this client met other claims last time.
#[derive(Debug, Default)]
pub(crate) struct ContentionHints {
    /// The lock prefixes of the contended resources.
    lock_prefixes: Mutex<HashSet<String>>,
}

impl ContentionHints {
    fn lock_prefixes(&self) -> MutexGuard<'_, HashSet<String>> {
        self.lock_prefixes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the last acquire found the resource not free.
    pub(crate) fn is_contended(&self, lock_prefix: &str) -> bool {
        self.lock_prefixes().contains(lock_prefix)
    }

    /// The resource was not free.
    pub(crate) fn was_contended(&self, lock_prefix: &str) {
        let mut prefixes = self.lock_prefixes();
        if prefixes.len() >= RESOURCES_MAX && !prefixes.contains(lock_prefix) {
            prefixes.clear();
        }
        prefixes.insert(lock_prefix.to_owned());
    }

    /// The resource was free.
    pub(crate) fn was_free(&self, lock_prefix: &str) {
        self.lock_prefixes().remove(lock_prefix);
    }
}

impl Etcd {
    /// Pauses after a failed attempt; attempts count from zero.
    pub(crate) async fn back_off(&self, attempt: u32) {
        if attempt >= ATTEMPTS_WITHOUT_PAUSE {
            let most = PAUSE_US_PER_ATTEMPT * u64::from(attempt);
            let pause = Duration::from_micros(self.environment.random() % most);
            self.environment.sleep(pause).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_acquire_counts_and_memory_is_bounded() {
        let hints = ContentionHints::default();
        assert!(!hints.is_contended("a/"));
        hints.was_contended("a/");
        assert!(hints.is_contended("a/") && !hints.is_contended("b/"));
        hints.was_free("a/");
        assert!(!hints.is_contended("a/"));
        (0..3 * RESOURCES_MAX).for_each(|number| hints.was_contended(&number.to_string()));
        assert!(hints.lock_prefixes().len() <= RESOURCES_MAX);
    }
}
