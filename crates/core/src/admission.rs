//! The one rule of seating.
//!
//! *A claim is granted iff the weights of the holders, plus those of the live places ahead of it, plus its own,
//! fit the capacity.*
//!
//! Nobody overtakes the line, not even a claim that would leave if blocked. So grants follow the line, no waiter
//! starves behind lighter ones, and a release wakes exactly those who can move: a run at the head of the line.
//! At most [`WINDOW`] places are looked at, so the cost does not grow with the line.

/// How many places from the head are looked at. A claim behind more is blocked.
pub const WINDOW: usize = 64;

/// How many times in a row a seat may be handed over while others wait in line.
pub const HANDOVERS_MAX: u32 = 16;

/// Whether a claim is granted.
///
/// `ahead` are the weights of the live places ahead of it, from the head; it is not read past [`WINDOW`].
///
/// ```
/// use leasehold_core::admission::is_granted;
///
/// assert!(is_granted(1, [1, 1], 2, 5)); // one holds, two wait ahead, two more fit a capacity of five
/// assert!(!is_granted(1, [4], 1, 5)); // a heavy claim waits ahead: a light one does not overtake it
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

/// How many places at the head of the line can be granted now: the ones worth waking.
///
/// Weights only add up along the line, so those who can move are always a run at its head.
pub fn grantable(held: u64, line: impl IntoIterator<Item = u32>, capacity: u32) -> usize {
    let fits = |taken: &mut u64, weight: u32| {
        *taken += u64::from(weight);
        (*taken <= u64::from(capacity)).then_some(())
    };
    line.into_iter().take(WINDOW).scan(held, |taken, weight| fits(taken, weight)).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn line() -> impl Strategy<Value = Vec<u32>> {
        prop::collection::vec(prop_oneof![Just(1u32), 1u32..10, Just(u32::MAX)], 0..100)
    }

    proptest! {
        #[test]
        fn a_place_can_move_iff_the_rule_grants_it(held in 0u64..12, line in line(), capacity in prop_oneof![1u32..20, Just(u32::MAX)]) {
            let run = grantable(held, line.iter().copied(), capacity);
            for (index, &own) in line.iter().enumerate() {
                let ahead = line[..index].iter().copied();
                prop_assert_eq!(is_granted(held, ahead, own, capacity), index < run, "place {}", index);
            }
        }

        #[test]
        fn granting_the_movers_fits_the_capacity(held in 0u64..12, line in line(), capacity in 1u32..20) {
            let run = grantable(held, line.iter().copied(), capacity);
            let taken: u64 = held + line[..run].iter().map(|&w| u64::from(w)).sum::<u64>();
            prop_assert!(run == 0 || taken <= u64::from(capacity));
        }

        #[test]
        fn nobody_overtakes(held in 0u64..12, line in line(), own in 1u32..20, capacity in 1u32..20) {
            // If a claim behind the line is granted, everyone in the line could be granted with it.
            if is_granted(held, line.iter().copied(), own, capacity) {
                prop_assert_eq!(grantable(held, line.iter().copied(), capacity), line.len());
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
    fn a_writer_needs_everyone_gone_and_readers_do_not_pass_it() {
        let all = u32::MAX;
        assert!(is_granted(0, [], all, all));
        assert!(!is_granted(1, [], all, all));
        assert!(!is_granted(1, [all], 1, all));
        assert!(is_granted(3, [1, 1], 1, all));
    }
}
