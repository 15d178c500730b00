//! Semaphores and read-write: shares that are there together.

use std::{collections::HashSet, sync::Arc};

use leasehold_core::{Blocked, Eviction, Handover, OperatorAction, ReleaseRequest, Released, Share, Verdict};

use super::{
    Test,
    desk::{Desk, LONG, blocked, granted, kept, placed},
    resize, share, test,
};

pub(super) const TESTS: &[Test] = &[
    test!(a_semaphore_admits_up_to_its_capacity, Shares),
    test!(b1_of_many_at_once_no_more_than_fit_are_granted, Shares),
    test!(weights_add_up, Shares),
    test!(a_light_claim_does_not_overtake_a_heavy_one, Shares, Line),
    test!(who_fits_with_all_ahead_need_not_wait_for_them, Shares, Line),
    test!(b6_the_capacity_stands_while_anyone_waits, Shares, Line),
    test!(b6_a_waiting_claim_of_another_capacity_loses_its_place, Shares, Line, Orders),
    test!(every_permit_has_a_number_of_its_own, Shares),
    test!(the_blocked_see_a_few_holders_soonest_first, Shares, OwnTtl),
    test!(readers_are_there_together, Shares),
    test!(a_writer_waits_for_every_reader, Shares),
    test!(readers_do_not_pass_a_waiting_writer, Shares, Line),
    test!(a_downgrade_lets_readers_in_and_keeps_the_expiry, Shares, Heirs),
    test!(a_downgrade_by_the_other_handle_keeps_the_expiry_too, Shares, Heirs, OwnTtl, Twice),
    test!(a_seat_that_the_other_handle_downgraded_is_not_taken_twice, Shares, Heirs, Twice),
    test!(
        a_seat_that_the_other_handle_downgraded_does_not_end_with_what_that_one_holds,
        Shares,
        Heirs,
        Twice
    ),
    test!(a_downgrade_passes_the_line_and_is_not_counted, Shares, HandOver, Line),
    test!(a_downgrade_is_not_refused_during_a_pause, Shares, Heirs, Orders),
    test!(a_downgrade_does_not_escape_an_eviction, Shares, Heirs, Orders),
    test!(a_heavier_heir_is_an_ordinary_claim, Shares),
    test!(one_permit_expires_alone, Shares, OwnTtl),
];

async fn a_semaphore_admits_up_to_its_capacity(desk: &Desk) {
    let permit = share(1, 3);
    for name in ["ann", "bob", "cy"] {
        granted(desk.ask(&desk.claim_of(name, permit)).await);
    }
    let seen = blocked(desk.ask(&desk.claim_of("dee", permit)).await);
    assert_eq!(seen.holders.len(), 3);
    assert_eq!(desk.look().await.holder_count, 3);
    assert_eq!(desk.leave("bob").await, Released::Now);
    granted(desk.ask(&desk.claim_of("dee", permit)).await);
    blocked(desk.ask(&desk.claim_of("bob", permit)).await);
}

async fn b1_of_many_at_once_no_more_than_fit_are_granted(desk: &Desk) {
    let handles = [desk.target.backend(), desk.target.second()];
    let tasks: Vec<_> = (0..16)
        .zip(handles.iter().cycle())
        .map(|(number, &backend)| {
            let (backend, claim) =
                (Arc::clone(backend), desk.claim_of(&format!("rival {number}"), share(1, 5)));
            tokio::spawn(async move { backend.acquire(&claim).await })
        })
        .collect();
    let mut grants = 0;
    for task in tasks {
        let verdict = task.await.expect("acquire does not panic").expect("acquire answers");
        grants += u32::from(matches!(verdict, Verdict::Granted(_)));
    }
    assert_eq!((grants, desk.look().await.holder_count), (5, 5), "five of five are taken");
}

async fn weights_add_up(desk: &Desk) {
    granted(desk.ask(&desk.claim_of("ann", share(2, 5))).await);
    blocked(desk.ask(&desk.claim_of("bob", share(4, 5))).await);
    granted(desk.ask(&desk.claim_of("bob", share(3, 5))).await);
    blocked(desk.ask(&desk.claim_of("cy", share(1, 5))).await);
    desk.leave("ann").await;
    granted(desk.ask(&desk.claim_of("cy", share(1, 5))).await);
    granted(desk.ask(&desk.claim_of("dee", share(1, 5))).await);
    blocked(desk.ask(&desk.claim_of("eve", share(1, 5))).await);
}

async fn a_light_claim_does_not_overtake_a_heavy_one(desk: &Desk) {
    granted(desk.ask(&desk.claim_of("ann", share(3, 5))).await);
    placed(desk.ask(&desk.claim_of("heavy", share(4, 5)).queued()).await, 0);
    // Two of five are free, but the heavy one stands ahead.
    blocked(desk.ask(&desk.claim_of("light", share(1, 5))).await);
    placed(desk.ask(&desk.claim_of("light", share(1, 5)).queued()).await, 1);
    desk.leave("ann").await;
    granted(desk.ask(&desk.claim_of("heavy", share(4, 5)).queued()).await);
    granted(desk.ask(&desk.claim_of("light", share(1, 5)).queued()).await);
}

async fn who_fits_with_all_ahead_need_not_wait_for_them(desk: &Desk) {
    granted(desk.ask(&desk.claim_of("ann", share(3, 3))).await);
    for (ahead, name) in (0..).zip(["bob", "cy", "dee", "eve"]) {
        placed(desk.ask(&desk.claim_of(name, share(1, 3)).queued()).await, ahead);
    }
    desk.leave("ann").await;
    blocked(desk.ask(&desk.claim_of("eve", share(1, 3)).queued()).await);
    granted(desk.ask(&desk.claim_of("dee", share(1, 3)).queued()).await);
    blocked(desk.ask(&desk.claim_of("eve", share(1, 3)).queued()).await);
    granted(desk.ask(&desk.claim_of("bob", share(1, 3)).queued()).await);
    granted(desk.ask(&desk.claim_of("cy", share(1, 3)).queued()).await);
    placed(desk.ask(&desk.claim_of("eve", share(1, 3)).queued()).await, 0);
}

#[track_caller]
fn mismatch(verdict: &Verdict, theirs: u32) {
    let Verdict::Mismatch { capacity } = verdict else { panic!("a mismatch was due, not {verdict:?}") };
    assert_eq!(*capacity, theirs);
}

async fn b6_the_capacity_stands_while_anyone_waits(desk: &Desk) {
    granted(desk.ask(&desk.claim_of("ann", share(2, 2))).await);
    placed(desk.ask(&desk.claim_of("bob", share(1, 2)).queued()).await, 0);
    desk.leave("ann").await;
    mismatch(&desk.ask(&desk.claim_of("cy", Share::WHOLE)).await, 2);
    desk.leave("bob").await;
    granted(desk.ask(&desk.claim_of("cy", Share::WHOLE)).await);
    mismatch(&desk.ask(&desk.claim_of("dee", Share::READ).queued()).await, 1);
    mismatch(&desk.ask(&desk.claim_of("dee", Share::WRITE).queued()).await, 1);
}

async fn b6_a_waiting_claim_of_another_capacity_loses_its_place(desk: &Desk) {
    granted(desk.ask(&desk.claim_of("ann", share(2, 2))).await);
    placed(desk.ask(&desk.claim_of("bob", share(2, 2)).queued()).await, 0);
    desk.order(resize(4)).await;
    // It still believes in the old capacity, is told of the new one, and comes again with that.
    mismatch(&desk.ask(&desk.claim_of("bob", share(2, 2)).queued()).await, 4);
    assert_eq!(desk.look().await.queue_length, 0);
    granted(desk.ask(&desk.claim_of("bob", share(2, 4)).queued()).await);
}

async fn every_permit_has_a_number_of_its_own(desk: &Desk) {
    let mut numbers = HashSet::new();
    for name in ["ann", "bob", "cy", "dee"] {
        numbers.insert(granted(desk.ask(&desk.claim_of(name, share(1, 4))).await).token);
    }
    assert_eq!(numbers.len(), 4);
    desk.leave("ann").await;
    assert!(numbers.insert(granted(desk.ask(&desk.claim_of("eve", share(1, 4))).await).token));
}

async fn the_blocked_see_a_few_holders_soonest_first(desk: &Desk) {
    for (number, name) in (1u32..).zip(["ann", "bob", "cy", "dee", "eve"]) {
        let mut claim = desk.claim_of(name, share(1, 5));
        claim.ttl = LONG * (10 - number);
        granted(desk.ask(&claim).await);
    }
    let seen = blocked(desk.ask(&desk.claim_of("fay", share(1, 5))).await);
    assert!(!seen.holders.is_empty() && seen.holders.len() <= Blocked::HOLDERS_MAX);
    let labels: Vec<_> = seen.holders.iter().map(|by| by.holder.label.as_str()).collect();
    assert_eq!(labels, ["eve", "dee", "cy"][..labels.len()], "who ends soonest comes first");
}

async fn readers_are_there_together(desk: &Desk) {
    for number in 0..10 {
        granted(desk.ask(&desk.claim_of(&format!("reader {number}"), Share::READ)).await);
    }
    let seen = desk.look().await;
    assert_eq!((seen.holder_count, seen.capacity), (10, u32::MAX));
    blocked(desk.ask(&desk.claim_of("writer", Share::WRITE)).await);
}

async fn a_writer_waits_for_every_reader(desk: &Desk) {
    granted(desk.ask(&desk.claim_of("ann", Share::READ)).await);
    granted(desk.ask(&desk.claim_of("bob", Share::READ)).await);
    blocked(desk.ask(&desk.claim_of("writer", Share::WRITE)).await);
    desk.leave("ann").await;
    blocked(desk.ask(&desk.claim_of("writer", Share::WRITE)).await);
    desk.leave("bob").await;
    granted(desk.ask(&desk.claim_of("writer", Share::WRITE)).await);
    blocked(desk.ask(&desk.claim_of("ann", Share::READ)).await);
    blocked(desk.ask(&desk.claim_of("rival", Share::WRITE)).await);
}

async fn readers_do_not_pass_a_waiting_writer(desk: &Desk) {
    granted(desk.ask(&desk.claim_of("ann", Share::READ)).await);
    placed(desk.ask(&desk.claim_of("writer", Share::WRITE).queued()).await, 0);
    placed(desk.ask(&desk.claim_of("bob", Share::READ).queued()).await, 1);
    placed(desk.ask(&desk.claim_of("cy", Share::READ).queued()).await, 2);
    desk.leave("ann").await;
    blocked(desk.ask(&desk.claim_of("bob", Share::READ).queued()).await);
    granted(desk.ask(&desk.claim_of("writer", Share::WRITE).queued()).await);
    desk.leave("writer").await;
    granted(desk.ask(&desk.claim_of("cy", Share::READ).queued()).await);
    granted(desk.ask(&desk.claim_of("bob", Share::READ).queued()).await);
}

async fn a_downgrade_lets_readers_in_and_keeps_the_expiry(desk: &Desk) {
    let before = desk.target.now();
    let write = desk.claim_of("writer", Share::WRITE);
    let first = granted(desk.ask(&write).await);
    let given = (before, desk.target.now());
    let mut read = desk.claim_of("reader", Share::READ).taking_over(Handover::from(write.owner));
    read.ttl = LONG * 5;
    let asked = desk.target.now();
    let second = granted(desk.ask(&read).await);
    assert_ne!(second.token, first.token);
    desk.remains(second.remaining, write.ttl, given, (asked, desk.target.now()));
    granted(desk.ask(&desk.claim_of("bob", Share::READ)).await);
    blocked(desk.ask(&desk.claim_of("rival", Share::WRITE)).await);
    assert_eq!(desk.leave("writer").await, Released::AlreadyGone);
}

async fn a_downgrade_by_the_other_handle_keeps_the_expiry_too(desk: &Desk) {
    for ttl in [desk.short(), LONG * 5] {
        let resource = desk.resource(&format!("for-{}", ttl.as_secs()));
        let before = desk.target.now();
        let mut write = desk.claim_of("writer", Share::WRITE);
        write.resource = resource.clone();
        granted(desk.ask(&write).await);
        let given = (before, desk.target.now());
        let mut read = desk.claim_of("reader", Share::READ).taking_over(Handover::from(write.owner));
        (read.resource, read.ttl) = (resource, ttl);
        let asked = desk.target.now();
        let grant = granted(desk.ask_second(&read).await);
        desk.remains(grant.remaining, write.ttl, given, (asked, desk.target.now()));
    }
}

async fn a_seat_that_the_other_handle_downgraded_is_not_taken_twice(desk: &Desk) {
    let from = Handover::from(desk.owner("writer"));
    granted(desk.ask_second(&desk.claim_of("writer", Share::WRITE)).await);
    granted(desk.ask(&desk.claim_of("reader", Share::READ).taking_over(from)).await);
    blocked(desk.ask_second(&desk.claim_of("rival", Share::WRITE).taking_over(from)).await);
    granted(desk.ask_second(&desk.claim_of("bob", Share::READ).taking_over(from)).await);
    let seen = desk.look().await;
    let holders: Vec<_> = seen.holders.iter().map(|held| held.holder.label.as_str()).collect();
    assert_eq!(holders, ["reader", "bob"]);
}

async fn a_seat_that_the_other_handle_downgraded_does_not_end_with_what_that_one_holds(desk: &Desk) {
    let from = Handover::from(desk.owner("writer"));
    granted(desk.ask_second(&desk.claim_of("writer", Share::WRITE)).await);
    granted(desk.ask(&desk.claim_of("reader", Share::READ).taking_over(from)).await);
    assert_eq!(desk.bid_second(&ReleaseRequest::new(desk.reference("writer"))).await, Released::AlreadyGone);
    let mut other = desk.claim_of("other", Share::WRITE);
    other.resource = desk.resource("other");
    granted(desk.ask_second(&other).await);
    let request = ReleaseRequest::new(other.reference()).with_tombstone(LONG);
    assert_eq!(desk.bid_second(&request).await, Released::Now);
    desk.target.pass(desk.short() / 2).await;
    assert_eq!(desk.look().await.holders[0].holder.label, "reader");
}

async fn a_downgrade_passes_the_line_and_is_not_counted(desk: &Desk) {
    granted(desk.ask(&desk.claim_of("writer", Share::WRITE)).await);
    placed(desk.ask(&desk.claim_of("rival", Share::WRITE).queued()).await, 0);
    let from = Handover::from(desk.owner("writer"));
    granted(desk.ask(&desk.claim_of("reader", Share::READ).taking_over(from)).await);
    assert_eq!(desk.look().await.holders[0].handovers, 0);
    placed(desk.ask(&desk.claim_of("rival", Share::WRITE).queued()).await, 0);
    blocked(desk.ask(&desk.claim_of("bob", Share::READ)).await);
}

async fn a_downgrade_is_not_refused_during_a_pause(desk: &Desk) {
    granted(desk.ask(&desk.claim_of("writer", Share::WRITE)).await);
    desk.order(OperatorAction::Pause { lasting: LONG }).await;
    let from = Handover::from(desk.owner("writer"));
    granted(desk.ask(&desk.claim_of("reader", Share::READ).taking_over(from)).await);
    assert!(blocked(desk.ask(&desk.claim_of("bob", Share::READ)).await).paused);
}

async fn a_downgrade_does_not_escape_an_eviction(desk: &Desk) {
    granted(desk.ask(&desk.claim_of("writer", Share::WRITE)).await);
    desk.order(OperatorAction::Ask { within: LONG }).await;
    desk.order(OperatorAction::Evict(Eviction::AtExpiry)).await;
    let from = Handover::from(desk.owner("writer"));
    granted(desk.ask(&desk.claim_of("reader", Share::READ).taking_over(from)).await);
    let answer = kept(desk.renew("reader", LONG * 5).await);
    assert!(answer.evicting && answer.remaining <= LONG, "it still runs out: {answer:?}");
    assert!(answer.asked.is_some(), "and is still asked");
}

async fn a_heavier_heir_is_an_ordinary_claim(desk: &Desk) {
    granted(desk.ask(&desk.claim_of("reader", Share::READ)).await);
    granted(desk.ask(&desk.claim_of("bob", Share::READ)).await);
    let from = Handover::from(desk.owner("reader"));
    blocked(desk.ask(&desk.claim_of("writer", Share::WRITE).taking_over(from)).await);
    assert_eq!(desk.look().await.holder_count, 1, "its predecessor is released: an upgrade would deadlock");
    desk.leave("bob").await;
    granted(desk.ask(&desk.claim_of("writer", Share::WRITE).taking_over(from)).await);
}

async fn one_permit_expires_alone(desk: &Desk) {
    let mut brief = desk.claim_of("ann", share(1, 2));
    brief.ttl = desk.short();
    granted(desk.ask(&brief).await);
    granted(desk.ask(&desk.claim_of("bob", share(1, 2))).await);
    blocked(desk.ask(&desk.claim_of("cy", share(1, 2))).await);
    desk.target.outlast(desk.short()).await;
    granted(desk.ask(&desk.claim_of("cy", share(1, 2))).await);
    blocked(desk.ask(&desk.claim_of("dee", share(1, 2))).await);
}
