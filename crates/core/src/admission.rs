//! The admission rule: when a claim is granted.
//!
//! *A claim is granted if and only if the weights of the holders, plus the weights of the live claims ahead of it in the
//! queue, plus its own weight, fit the capacity.*
//!
//! No claim overtakes the queue, not even one that would leave when blocked. So grants follow the order of arrival, no
//! waiter starves behind lighter ones, and the claims that a release lets in are always a run at the head of the queue.
//! At most [`WINDOW`] queued claims are looked at, so the cost does not grow with the queue.
//!
//! A queued claim is live unless it was told that it can be granted and did not answer: the rule passes over such a claim,
//! which may belong to a process that is dead. [`queue`](crate::queue) says how.

use std::time::Duration;

/// How many queued claims are looked at, from the head. A claim behind more than these is blocked.
pub const WINDOW: usize = 64;

/// How long a claim that was called may take to answer, before it is passed over. See [`queue`](crate::queue).
pub const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// How many queued claims, from the head, are silent together with a claim of the same client.
pub const SAME_CLIENT_WINDOW: usize = 256;

/// How many times in a row a grant may be handed over inside one client while other claims are queued.
pub const HANDOVERS_MAX: u32 = 16;

/// Whether a claim is granted.
///
/// `ahead` are the weights of the live claims ahead of it in the queue, from the head. It is not read past [`WINDOW`].
///
/// ```
/// use leasehold_core::admission::is_granted;
///
/// assert!(is_granted(1, [1, 1], 2, 5)); // one holder, two waiters ahead, and a weight of two: five in all, which fits
/// assert!(!is_granted(1, [4], 1, 5)); // a heavy claim is ahead: a light one does not overtake it
/// ```
pub fn is_granted(held: u64, ahead: impl IntoIterator<Item = u32>, own: u32, capacity: u32) -> bool {
    let mut taken = held + u64::from(own);
    for (index, weight) in ahead.into_iter().enumerate() {
        taken += u64::from(weight);
        if index >= WINDOW || taken > u64::from(capacity) {
            return false;
        }
    }
    taken <= u64::from(capacity)
}

/// How many claims at the head of the queue can be granted now: the ones to wake.
///
/// Weights only add up along the queue, so these claims are always a run at its head.
pub fn grantable(held: u64, queue: impl IntoIterator<Item = u32>, capacity: u32) -> usize {
    let fits = |taken: &mut u64, weight: u32| {
        *taken += u64::from(weight);
        (*taken <= u64::from(capacity)).then_some(())
    };
    queue.into_iter().take(WINDOW).scan(held, |taken, weight| fits(taken, weight)).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn queue() -> impl Strategy<Value = Vec<u32>> {
        prop::collection::vec(prop_oneof![Just(1u32), 1u32..10, Just(u32::MAX)], 0..100)
    }

    proptest! {
        #[test]
        fn a_queued_claim_is_grantable_if_and_only_if_the_rule_grants_it(held in 0u64..12, queue in queue(), capacity in prop_oneof![1u32..20, Just(u32::MAX)]) {
            let run = grantable(held, queue.iter().copied(), capacity);
            for (index, &own) in queue.iter().enumerate() {
                let ahead = queue[..index].iter().copied();
                prop_assert_eq!(is_granted(held, ahead, own, capacity), index < run, "place {}", index);
            }
        }

        #[test]
        fn granting_all_grantable_claims_fits_the_capacity(held in 0u64..12, queue in queue(), capacity in 1u32..20) {
            let run = grantable(held, queue.iter().copied(), capacity);
            let taken: u64 = held + queue[..run].iter().map(|&w| u64::from(w)).sum::<u64>();
            prop_assert!(run == 0 || taken <= u64::from(capacity));
        }

        #[test]
        fn no_claim_overtakes_the_queue(held in 0u64..12, queue in queue(), own in 1u32..20, capacity in 1u32..20) {
            // If a claim behind the queue is granted, every queued claim could be granted together with it.
            if is_granted(held, queue.iter().copied(), own, capacity) {
                prop_assert_eq!(grantable(held, queue.iter().copied(), capacity), queue.len());
            }
        }
    }

    #[test]
    fn the_window_bounds_what_is_looked_at() {
        assert!(is_granted(0, std::iter::repeat_n(1, WINDOW), 1, u32::MAX));
        assert!(!is_granted(0, std::iter::repeat_n(1, WINDOW + 1), 1, u32::MAX));
        assert_eq!(grantable(0, std::iter::repeat(1), u32::MAX), WINDOW);
    }

    #[test]
    fn a_writer_waits_for_all_holders_and_readers_do_not_overtake_it() {
        let all = u32::MAX;
        assert!(is_granted(0, [], all, all));
        assert!(!is_granted(1, [], all, all));
        assert!(!is_granted(1, [all], 1, all));
        assert!(is_granted(3, [1, 1], 1, all));
    }
}
