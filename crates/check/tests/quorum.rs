//! The promises hold wherever they are looked for, and each rule that keeps them is missed when it is left out.
//! `cargo run --release -p leasehold-check` checks larger sizes.

use leasehold_check::{EXCLUSION, Setup, TOKENS_DIFFER, broken, check, sound};

fn left_out(name: &str) -> Setup {
    broken().into_iter().find(|setup| setup.name == name).expect("a check of this name")
}

fn is_found(name: &str, promise: &str, steps: usize) {
    let outcome = check(&left_out(name), 1);
    let (broken, path) =
        outcome.broken.unwrap_or_else(|| panic!("{} states, and nothing found", outcome.states));
    println!("{name}: {} steps, after {} states: {path:?}", path.len(), outcome.states);
    assert_eq!((broken, path.len()), (promise, steps));
}

#[test]
fn without_the_owner_check_a_token_is_given_twice() {
    is_found("without the owner check", TOKENS_DIFFER, 10);
}

#[test]
fn without_quarantine_a_token_is_given_twice() {
    is_found("without quarantine: the token", TOKENS_DIFFER, 13);
}

#[test]
fn without_quarantine_two_hold() {
    is_found("without quarantine: the lock", EXCLUSION, 11);
}

#[test]
fn a_node_that_reads_the_others_without_waiting_gives_a_token_twice() {
    is_found("reading the others at once, without waiting", TOKENS_DIFFER, 15);
}

#[test]
fn a_node_that_waits_without_reading_the_others_gives_a_token_twice() {
    is_found("waiting, without reading the others", TOKENS_DIFFER, 17);
}

#[test]
fn one_short_of_a_majority_gives_a_token_twice() {
    is_found("one short of a majority", TOKENS_DIFFER, 6);
}

#[test]
fn a_lock_that_holds_nobody_off_lets_two_hold() {
    is_found("a lock that holds nobody off", EXCLUSION, 10);
}

#[test]
fn a_grant_that_counts_from_its_answer_lets_two_hold() {
    is_found("counting from the answer", EXCLUSION, 12);
}

/// The larger ones are a step of their own in `cargo xtask test`.
#[test]
fn every_promise_holds_in_every_order_of_events() {
    for setup in sound().into_iter().filter(|setup| setup.is_small()) {
        let outcome = check(&setup, 2);
        println!("{}: {} states, {} steps deep", setup.name, outcome.states, outcome.depth);
        assert_eq!((outcome.broken, outcome.never), (None, None), "{}", setup.name);
    }
}
