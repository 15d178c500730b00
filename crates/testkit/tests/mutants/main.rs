//! Tests of the suite itself: backends that are wrong in one way each, and the test that must fail for each.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod mutant;

use std::sync::Arc;

use leasehold::{Memory, testing::ManualTime};
use leasehold_core::Backend;
use leasehold_testkit::{
    BackendUnderTest, conformance,
    differential::{self, DifferentialPlan},
};

use mutant::{Flaw, Mutant};

/// Each flaw, the test that must fail, and whether the random calls must find the flaw, too.
const FLAWS: &[(Flaw, &str, bool)] = &[
    (Flaw::AnyOwnerReleases, "mutex::1_of_1::a_release_needs_the_owner_token", true),
    (Flaw::AnyOwnerReleases, "holding::1_of_1::a_late_release_does_not_affect_the_next_holder", true),
    (Flaw::RenewalsRevive, "holding::1_of_1::b10_a_renewal_never_revives_an_expired_grant", true),
    (Flaw::RenewalsShorten, "holding::write::b10_a_renewal_never_shortens_a_grant", true),
    (Flaw::RepeatedAcquiresExtend, "holding::1_of_1::b10_a_repeated_acquire_does_not_extend_the_grant", true),
    (Flaw::TokensDoNotGrow, "mutex::3_of_3::b5_tokens_grow_across_releases", true),
    (Flaw::TokensDoNotGrow, "mutex::1_of_1::b5_tokens_grow_across_expiry", true),
    (Flaw::FloorsAreIgnored, "mutex::1_of_1::b5_a_token_is_above_the_floor", false),
    (Flaw::FloorsAreIgnored, "mutex::write::b5_a_floor_far_ahead_is_refused_and_uses_no_tokens", false),
    (Flaw::RepeatedAcquiresAreNewClaims, "mutex::1_of_1::b2_a_repeated_acquire_returns_the_same_grant", true),
    (Flaw::RepeatedAcquiresAreNewClaims, "queue::1_of_1::a_repeated_acquire_keeps_the_place", true),
    (Flaw::EveryClaimFits, "mutex::1_of_1::b1_one_of_many_concurrent_claims_is_granted", true),
    (
        Flaw::ClaimsOutsideTheQueueOvertake,
        "queue::1_of_1::a_claim_that_does_not_queue_cannot_overtake_the_queue",
        true,
    ),
    (Flaw::WaitersAreForgotten, "queue::1_of_1::grants_follow_the_queue_order", true),
    (Flaw::PlacesNeverExpire, "queue::1_of_1::b3_a_dead_waiter_is_removed_after_its_place_ttl", true),
    (Flaw::GrantsNeverExpire, "holding::1_of_1::b4_an_expired_grant_frees_the_resource", true),
    (Flaw::RemainingTimeIsTheWholeTtl, "mutex::1_of_1::b2_a_repeated_acquire_returns_the_same_grant", true),
    (Flaw::TombstonesAreIgnored, "mutex::1_of_1::b8_an_owner_with_a_tombstone_is_never_granted", true),
    (
        Flaw::TombstonesAreIgnored,
        "handover::1_of_1::b8_a_handover_with_a_tombstone_cancels_the_predecessor",
        true,
    ),
    (
        Flaw::CancelledSuccessorsDoNothing,
        "handover::1_of_1::b8_a_cancelled_successor_still_releases_its_predecessor",
        true,
    ),
    (Flaw::HandoversAreIgnored, "handover::1_of_1::a_successor_takes_over_the_grant", true),
    (Flaw::HandoversAreUnbounded, "handover::1_of_1::handovers_are_bounded_while_others_wait", false),
    (Flaw::DowngradesExtend, "sharing::a_downgrade_lets_readers_in_and_keeps_the_expiry", true),
    (Flaw::KeepForIsIgnored, "holding::1_of_1::a_kept_resource_stays_closed", true),
    (Flaw::MismatchesAreIgnored, "mutex::1_of_1::b6_another_capacity_is_a_mismatch", true),
    (Flaw::PausesAreIgnored, "orders::a_pause_grants_nothing_and_keeps_holders", true),
    (Flaw::EvictionsAreIgnored, "orders::an_eviction_at_expiry_lets_the_grant_expire", true),
    (Flaw::EvictionsAreIgnored, "orders::an_eviction_now_ends_the_grant_at_once", true),
    (Flaw::OrderTokensAreIgnored, "orders::an_order_with_a_token_affects_only_that_grant", true),
    (Flaw::NothingIsAudited, "orders::every_order_is_recorded", true),
    (Flaw::PagesEndEarly, "names::a_listing_comes_in_pages_in_key_order", true),
    (Flaw::PagesEndEarly, "orders::the_audit_trail_comes_in_pages_newest_first", true),
    (Flaw::NamesAreLowercased, "names::hostile_names_are_ordinary_names", false),
    (Flaw::NotesAreLost, "holding::1_of_1::a_note_is_visible_and_can_be_replaced", true),
    (Flaw::NotesAreCut, "names::b9_a_note_has_a_limit", false),
    (Flaw::BatchesAreReversed, "together::1_of_1::each_claim_of_a_call_has_its_own_result", true),
    (Flaw::BatchesAreReversed, "together::1_of_1::each_release_of_a_call_has_its_own_result", true),
    (Flaw::BatchesAreReversed, "holding::1_of_1::the_replies_to_a_batch_are_in_its_order", true),
    (
        Flaw::HoldersAreHidden,
        "mutex::1_of_1::a_claim_for_a_held_resource_is_blocked_and_sees_the_holder",
        true,
    ),
    (Flaw::TheQueueIsMiscounted, "queue::1_of_1::grants_follow_the_queue_order", true),
    (Flaw::WakeupsAreLost, "waiting::1_of_1::b3_a_release_wakes_the_head_of_the_queue", false),
    (Flaw::WaitsNeverEnd, "waiting::1_of_1::b3_a_wait_returns_after_at_most", false),
];

fn target(flaw: Flaw) -> BackendUnderTest {
    let time = ManualTime::new();
    let memory = Arc::new(Memory::in_environment(Arc::new(time.clone())));
    let mutant: Arc<dyn Backend> = Arc::new(Mutant::new(memory, flaw));
    BackendUnderTest::manual(mutant.clone(), time).opened_again(mutant)
}

fn plan() -> DifferentialPlan {
    DifferentialPlan { cases: Some(1_500), seed: 7, ..DifferentialPlan::default() }
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
        !conformance::run(test, move || async move { target(flaw) }).has_failed(test)
    };
    let missed: Vec<_> = FLAWS.iter().filter(unnoticed).collect();
    assert!(missed.is_empty(), "these tests pass in spite of the flaw: {missed:?}");
}

#[test]
fn random_calls_find_flaws_too() {
    let unnoticed = |(flaw, _, findable): &&(Flaw, &str, bool)| {
        let flaw = *flaw;
        *findable && differential::check(&plan(), move || async move { target(flaw) }).is_ok()
    };
    let missed: Vec<_> = FLAWS.iter().filter(unnoticed).collect();
    assert!(missed.is_empty(), "random calls do not find these flaws: {missed:?}");
}

#[test]
fn two_handles_to_different_states_are_detected() {
    let apart = || async {
        let time = ManualTime::new();
        let memory = || Arc::new(Memory::in_environment(Arc::new(time.clone())));
        BackendUnderTest::manual(memory(), time.clone()).opened_again(memory())
    };
    assert!(
        conformance::run("b1_a_handle_sees_the_changes_of_the_other_handle", apart)
            .has_failed("other_handle")
    );
    assert!(differential::check(&plan(), apart).is_err());
}

#[test]
fn tests_that_need_a_missing_capability_are_ignored_with_a_reason() {
    let report = conformance::run("", || async { target(Flaw::HasNoCapabilities) });
    let reason =
        |part: &str| report.ignored.iter().find(|(name, _)| name.contains(part)).map(|(_, reason)| *reason);
    assert_eq!(reason("grants_follow_the_queue_order"), Some("no queue"));
    assert_eq!(reason("mutex::3_of_3"), Some("no shares"));
    assert_eq!(reason("a_pause_ends_by_itself"), Some("no orders"));
    assert_eq!(reason("a_kept_resource_stays_closed"), Some("no keep_for"));
    assert_eq!(
        reason("b4_an_expired_grant_frees_the_resource"),
        Some("a session keeps grants alive, not their ttl")
    );
    assert_eq!(reason("a_successor_takes_over_the_grant"), Some("no handover of a grant"));
    assert_eq!(reason("b5_tokens_grow_across_a_restart"), Some("the setup cannot open the state again"));
    assert!(report.passed.len() > 20, "the other tests run: {:?}", report.passed);
    assert!(report.failed.is_empty(), "{:?}", report.failed);
}

#[test]
#[should_panic(expected = "the backend cannot be opened: no server at 127.0.0.1:1")]
fn a_missing_server_is_a_failure() {
    conformance::run("", || async { panic!("no server at 127.0.0.1:1") });
}
