//! The suite must be able to fail: backends that are wrong in one way each, and the test that says so.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod mutant;

use std::sync::Arc;

use leasehold::{Memory, testing::ManualTime};
use leasehold_core::Backend;
use leasehold_testkit::{
    BackendUnderTest, conformance,
    differential::{self, Plan},
};

use mutant::{Flaw, Mutant};

/// Each flaw, the test that must refuse it, and whether random verbs find it too.
const FLAWS: &[(Flaw, &str, bool)] = &[
    (Flaw::AnyoneReleases, "mutex::1_of_1::a_release_needs_the_owner_token", true),
    (Flaw::AnyoneReleases, "holding::1_of_1::a_late_release_does_not_affect_the_next_holder", true),
    (Flaw::RenewingRevives, "holding::1_of_1::b10_a_renewal_never_revives_an_expired_grant", true),
    (Flaw::RenewingShortens, "holding::write::b10_a_renewal_never_shortens_a_grant", true),
    (Flaw::AskingExtends, "holding::1_of_1::b10_a_repeated_acquire_does_not_extend_the_grant", true),
    (Flaw::TokensStandStill, "mutex::3_of_3::b5_tokens_grow_across_releases", true),
    (Flaw::TokensStandStill, "mutex::1_of_1::b5_tokens_grow_across_expiry", true),
    (Flaw::FloorsAreIgnored, "mutex::1_of_1::b5_a_token_is_above_the_floor", false),
    (Flaw::FloorsAreIgnored, "mutex::write::b5_a_floor_far_ahead_is_refused_and_uses_no_tokens", false),
    (Flaw::AskingAgainIsANewClaim, "mutex::1_of_1::b2_a_repeated_acquire_returns_the_same_grant", true),
    (Flaw::AskingAgainIsANewClaim, "line::1_of_1::a_repeated_acquire_keeps_the_place", true),
    (Flaw::EveryoneFits, "mutex::1_of_1::b1_one_of_many_concurrent_claims_is_granted", true),
    (Flaw::LeaversOvertake, "line::1_of_1::a_claim_that_does_not_queue_cannot_overtake_the_queue", true),
    (Flaw::PlacesAreForgotten, "line::1_of_1::grants_follow_the_queue_order", true),
    (Flaw::PlacesNeverEnd, "line::1_of_1::b3_a_dead_waiter_is_removed_after_its_place_ttl", true),
    (Flaw::GrantsNeverEnd, "holding::1_of_1::b4_an_expired_grant_frees_the_resource", true),
    (Flaw::TheWholeTtlRemains, "mutex::1_of_1::b2_a_repeated_acquire_returns_the_same_grant", true),
    (Flaw::NobodyIsBuried, "mutex::1_of_1::b8_an_owner_with_a_tombstone_is_never_granted", true),
    (
        Flaw::NobodyIsBuried,
        "succession::1_of_1::b8_a_handover_with_a_tombstone_cancels_the_predecessor",
        true,
    ),
    (
        Flaw::BuriedHeirsDoNothing,
        "succession::1_of_1::b8_a_cancelled_successor_still_releases_its_predecessor",
        true,
    ),
    (Flaw::HeirsAreOrdinary, "succession::1_of_1::a_successor_takes_over_the_grant", true),
    (Flaw::HeirsWaitNoTurn, "succession::1_of_1::handovers_are_bounded_while_others_wait", false),
    (Flaw::DowngradesExtend, "sharing::a_downgrade_lets_readers_in_and_keeps_the_expiry", true),
    (Flaw::NothingIsKept, "holding::1_of_1::a_kept_resource_stays_closed", true),
    (Flaw::MismatchesAreAdapted, "mutex::1_of_1::b6_another_capacity_is_a_mismatch", true),
    (Flaw::PausesAreIgnored, "orders::a_pause_grants_nothing_and_keeps_holders", true),
    (Flaw::EvictionsAreIgnored, "orders::an_eviction_at_expiry_lets_the_grant_expire", true),
    (Flaw::EvictionsAreIgnored, "orders::an_eviction_now_ends_the_grant_at_once", true),
    (Flaw::OrdersMeanAnyone, "orders::an_order_with_a_token_affects_only_that_grant", true),
    (Flaw::NothingIsAudited, "orders::every_order_is_recorded", true),
    (Flaw::PagesEndEarly, "names::a_listing_comes_in_pages_in_key_order", true),
    (Flaw::PagesEndEarly, "orders::the_audit_trail_comes_in_pages_newest_first", true),
    (Flaw::NamesAreFolded, "names::hostile_names_are_ordinary_names", false),
    (Flaw::NotesAreLost, "holding::1_of_1::a_note_is_visible_and_can_be_replaced", true),
    (Flaw::NotesAreCut, "names::b9_a_note_has_a_limit", false),
    (Flaw::BatchesAreReversed, "holding::1_of_1::the_replies_to_a_batch_are_in_its_order", true),
    (
        Flaw::HoldersAreHidden,
        "mutex::1_of_1::a_claim_for_a_held_resource_is_blocked_and_sees_the_holder",
        true,
    ),
    (Flaw::TheLineIsMiscounted, "line::1_of_1::grants_follow_the_queue_order", true),
    (Flaw::WaitsOversleep, "waiting::1_of_1::b3_a_release_wakes_the_head_of_the_queue", false),
    (Flaw::WaitsNeverEnd, "waiting::1_of_1::b3_a_wait_returns_after_at_most", false),
];

fn target(flaw: Flaw) -> BackendUnderTest {
    let time = ManualTime::new();
    let memory = Arc::new(Memory::in_environment(Arc::new(time.clone())));
    let mutant: Arc<dyn Backend> = Arc::new(Mutant::new(memory, flaw));
    BackendUnderTest::manual(mutant.clone(), time).opened_again(mutant)
}

fn plan() -> Plan {
    Plan { cases: Some(1_500), seed: 7, ..Plan::default() }
}

#[test]
fn a_faithful_wrapper_passes_every_test_that_a_flaw_fails() {
    for (_, test, _) in FLAWS {
        let report = conformance::run(test, || async { target(Flaw::None) });
        assert!(!report.passed.is_empty(), "there is no test {test}");
        assert!(report.failed.is_empty(), "{:?}", report.failed);
    }
    let checked = differential::check(&plan(), || async { target(Flaw::None) });
    checked.unwrap_or_else(|divergence| panic!("{divergence}"));
}

#[test]
fn every_flaw_fails_its_test() {
    let unnoticed = |(flaw, test, _): &&(Flaw, &str, bool)| {
        let flaw = *flaw;
        !conformance::run(test, move || async move { target(flaw) }).refuses(test)
    };
    let missed: Vec<_> = FLAWS.iter().filter(unnoticed).collect();
    assert!(missed.is_empty(), "these pass: {missed:?}");
}

#[test]
fn random_verbs_find_flaws_too() {
    let unnoticed = |(flaw, _, findable): &&(Flaw, &str, bool)| {
        let flaw = *flaw;
        *findable && differential::check(&plan(), move || async move { target(flaw) }).is_ok()
    };
    let missed: Vec<_> = FLAWS.iter().filter(unnoticed).collect();
    assert!(missed.is_empty(), "nothing differs: {missed:?}");
}

#[test]
fn two_handles_to_different_states_are_found_out() {
    let apart = || async {
        let time = ManualTime::new();
        let memory = || Arc::new(Memory::in_environment(Arc::new(time.clone())));
        BackendUnderTest::manual(memory(), time.clone()).opened_again(memory())
    };
    assert!(
        conformance::run("b1_a_handle_sees_the_changes_of_the_other_handle", apart).refuses("other_sees")
    );
    assert!(differential::check(&plan(), apart).is_err());
}

#[test]
fn what_a_backend_cannot_do_is_ignored_with_a_reason() {
    let report = conformance::run("", || async { target(Flaw::CanDoNothing) });
    let reason =
        |part: &str| report.ignored.iter().find(|(name, _)| name.contains(part)).map(|(_, reason)| *reason);
    assert_eq!(reason("grants_follow_the_queue_order"), Some("no line"));
    assert_eq!(reason("mutex::3_of_3"), Some("no shares"));
    assert_eq!(reason("a_pause_ends_by_itself"), Some("no orders"));
    assert_eq!(reason("a_kept_resource_stays_closed"), Some("no keep_for"));
    assert_eq!(reason("b4_an_expired_grant_frees_the_resource"), Some("a session keeps what it holds"));
    assert_eq!(reason("a_successor_takes_over_the_grant"), Some("no succession of a holder"));
    assert_eq!(reason("b5_tokens_grow_across_a_restart"), Some("the target is not opened again"));
    assert!(report.passed.len() > 20, "the rest is tested: {:?}", report.passed);
    assert!(report.failed.is_empty(), "{:?}", report.failed);
}

#[test]
#[should_panic(expected = "the target cannot be set up: no server at 127.0.0.1:1")]
fn a_missing_server_is_a_failure() {
    conformance::run("", || async { panic!("no server at 127.0.0.1:1") });
}
