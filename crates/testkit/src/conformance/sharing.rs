//! Semaphores and read-write locks: several holders at once.

use std::{collections::HashSet, sync::Arc};

use leasehold_core::{
    BackendExt as _, Blocked, Eviction, Handover, OperatorAction, ReleaseRequest, Released, Share, Verdict,
};

use super::{
    ConformanceTest,
    context::{LONG, TestContext, blocked, granted, queued_behind, renewed},
    resize, share, test,
};

pub(super) const TESTS: &[ConformanceTest] = &[
    test!(a_semaphore_admits_up_to_its_capacity, Shares),
    test!(b1_concurrent_claims_never_exceed_the_capacity, Shares),
    test!(weights_add_up, Shares),
    test!(a_light_claim_does_not_overtake_a_heavy_one, Shares, Queue),
    test!(a_claim_that_fits_beside_all_earlier_waiters_need_not_wait_for_them, Shares, Queue),
    test!(b6_the_capacity_is_fixed_while_a_claim_waits, Shares, Queue),
    test!(b6_a_waiting_claim_of_another_capacity_loses_its_place, Shares, Queue, Orders),
    test!(every_permit_has_its_own_token, Shares),
    test!(a_blocked_claim_sees_the_holders_that_expire_first, Shares, OwnTtl),
    test!(readers_hold_together, Shares),
    test!(a_writer_waits_for_every_reader, Shares),
    test!(readers_do_not_pass_a_waiting_writer, Shares, Queue),
    test!(a_downgrade_lets_readers_in_and_keeps_the_expiry, Shares, Takeover),
    test!(a_downgrade_through_the_other_handle_keeps_the_expiry, Shares, Takeover, OwnTtl, SecondHandle),
    test!(a_grant_downgraded_by_the_other_handle_is_not_taken_over_twice, Shares, Takeover, SecondHandle),
    test!(
        a_grant_downgraded_by_the_other_handle_outlives_releases_of_that_handle,
        Shares,
        Takeover,
        SecondHandle
    ),
    test!(a_downgrade_passes_the_queue_and_is_not_counted_as_a_handover, Shares, Handover, Queue),
    test!(a_downgrade_is_not_refused_during_a_pause, Shares, Takeover, Orders),
    test!(a_downgrade_does_not_escape_an_eviction, Shares, Takeover, Orders),
    test!(a_heavier_successor_is_an_ordinary_claim, Shares),
    test!(one_permit_expires_alone, Shares, OwnTtl),
];

async fn a_semaphore_admits_up_to_its_capacity(ctx: &TestContext) {
    let permit = share(1, 3);
    for name in ["ann", "bob", "cy"] {
        granted(ctx.acquire(&ctx.claim_of(name, permit)).await);
    }
    let seen = blocked(ctx.acquire(&ctx.claim_of("dee", permit)).await);
    assert_eq!(seen.holders.len(), 3);
    assert_eq!(ctx.snapshot().await.holder_count, 3);
    assert_eq!(ctx.release("bob").await, Released::Now);
    granted(ctx.acquire(&ctx.claim_of("dee", permit)).await);
    blocked(ctx.acquire(&ctx.claim_of("bob", permit)).await);
}

async fn b1_concurrent_claims_never_exceed_the_capacity(ctx: &TestContext) {
    let handles = [ctx.target.backend(), ctx.target.second()];
    let tasks: Vec<_> = (0..16)
        .zip(handles.iter().cycle())
        .map(|(number, &backend)| {
            let (backend, claim) =
                (Arc::clone(backend), ctx.claim_of(&format!("claim {number}"), share(1, 5)));
            tokio::spawn(async move { backend.acquire_one(&claim).await })
        })
        .collect();
    let mut grants = 0;
    for task in tasks {
        let verdict = task.await.expect("acquire does not panic").expect("acquire answers");
        grants += u32::from(matches!(verdict, Verdict::Granted(_)));
    }
    assert_eq!((grants, ctx.snapshot().await.holder_count), (5, 5), "five of five permits are taken");
}

async fn weights_add_up(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim_of("ann", share(2, 5))).await);
    blocked(ctx.acquire(&ctx.claim_of("bob", share(4, 5))).await);
    granted(ctx.acquire(&ctx.claim_of("bob", share(3, 5))).await);
    blocked(ctx.acquire(&ctx.claim_of("cy", share(1, 5))).await);
    ctx.release("ann").await;
    granted(ctx.acquire(&ctx.claim_of("cy", share(1, 5))).await);
    granted(ctx.acquire(&ctx.claim_of("dee", share(1, 5))).await);
    blocked(ctx.acquire(&ctx.claim_of("eve", share(1, 5))).await);
}

async fn a_light_claim_does_not_overtake_a_heavy_one(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim_of("ann", share(3, 5))).await);
    queued_behind(ctx.acquire(&ctx.claim_of("heavy", share(4, 5)).queued()).await, 0);
    // Two of five permits are free, but the heavy claim is ahead in the queue.
    blocked(ctx.acquire(&ctx.claim_of("light", share(1, 5))).await);
    queued_behind(ctx.acquire(&ctx.claim_of("light", share(1, 5)).queued()).await, 1);
    ctx.release("ann").await;
    granted(ctx.acquire(&ctx.claim_of("heavy", share(4, 5)).queued()).await);
    granted(ctx.acquire(&ctx.claim_of("light", share(1, 5)).queued()).await);
}

async fn a_claim_that_fits_beside_all_earlier_waiters_need_not_wait_for_them(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim_of("ann", share(3, 3))).await);
    for (ahead, name) in (0..).zip(["bob", "cy", "dee", "eve"]) {
        queued_behind(ctx.acquire(&ctx.claim_of(name, share(1, 3)).queued()).await, ahead);
    }
    ctx.release("ann").await;
    blocked(ctx.acquire(&ctx.claim_of("eve", share(1, 3)).queued()).await);
    granted(ctx.acquire(&ctx.claim_of("dee", share(1, 3)).queued()).await);
    blocked(ctx.acquire(&ctx.claim_of("eve", share(1, 3)).queued()).await);
    granted(ctx.acquire(&ctx.claim_of("bob", share(1, 3)).queued()).await);
    granted(ctx.acquire(&ctx.claim_of("cy", share(1, 3)).queued()).await);
    queued_behind(ctx.acquire(&ctx.claim_of("eve", share(1, 3)).queued()).await, 0);
}

#[track_caller]
fn expect_mismatch(verdict: &Verdict, expected: u32) {
    let Verdict::Mismatch { capacity } = verdict else { panic!("expected Mismatch, got {verdict:?}") };
    assert_eq!(*capacity, expected);
}

async fn b6_the_capacity_is_fixed_while_a_claim_waits(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim_of("ann", share(2, 2))).await);
    queued_behind(ctx.acquire(&ctx.claim_of("bob", share(1, 2)).queued()).await, 0);
    ctx.release("ann").await;
    expect_mismatch(&ctx.acquire(&ctx.claim_of("cy", Share::WHOLE)).await, 2);
    ctx.release("bob").await;
    granted(ctx.acquire(&ctx.claim_of("cy", Share::WHOLE)).await);
    expect_mismatch(&ctx.acquire(&ctx.claim_of("dee", Share::READ).queued()).await, 1);
    expect_mismatch(&ctx.acquire(&ctx.claim_of("dee", Share::WRITE).queued()).await, 1);
}

async fn b6_a_waiting_claim_of_another_capacity_loses_its_place(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim_of("ann", share(2, 2))).await);
    queued_behind(ctx.acquire(&ctx.claim_of("bob", share(2, 2)).queued()).await, 0);
    ctx.order(resize(4)).await;
    // Bob asks with the old capacity, learns the new one, and asks again with it.
    expect_mismatch(&ctx.acquire(&ctx.claim_of("bob", share(2, 2)).queued()).await, 4);
    assert_eq!(ctx.snapshot().await.queue_length, 0);
    granted(ctx.acquire(&ctx.claim_of("bob", share(2, 4)).queued()).await);
}

async fn every_permit_has_its_own_token(ctx: &TestContext) {
    let mut tokens = HashSet::new();
    for name in ["ann", "bob", "cy", "dee"] {
        tokens.insert(granted(ctx.acquire(&ctx.claim_of(name, share(1, 4))).await).token);
    }
    assert_eq!(tokens.len(), 4);
    ctx.release("ann").await;
    assert!(tokens.insert(granted(ctx.acquire(&ctx.claim_of("eve", share(1, 4))).await).token));
}

async fn a_blocked_claim_sees_the_holders_that_expire_first(ctx: &TestContext) {
    for (number, name) in (1u32..).zip(["ann", "bob", "cy", "dee", "eve"]) {
        let mut claim = ctx.claim_of(name, share(1, 5));
        claim.ttl = LONG * (10 - number);
        granted(ctx.acquire(&claim).await);
    }
    let seen = blocked(ctx.acquire(&ctx.claim_of("fay", share(1, 5))).await);
    assert!(!seen.holders.is_empty() && seen.holders.len() <= Blocked::HOLDERS_MAX);
    let labels: Vec<_> = seen.holders.iter().map(|by| by.holder.label.as_str()).collect();
    assert_eq!(labels, ["eve", "dee", "cy"][..labels.len()], "the holder that expires first is listed first");
}

async fn readers_hold_together(ctx: &TestContext) {
    for number in 0..10 {
        granted(ctx.acquire(&ctx.claim_of(&format!("reader {number}"), Share::READ)).await);
    }
    let seen = ctx.snapshot().await;
    assert_eq!((seen.holder_count, seen.capacity), (10, u32::MAX));
    blocked(ctx.acquire(&ctx.claim_of("writer", Share::WRITE)).await);
}

async fn a_writer_waits_for_every_reader(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim_of("ann", Share::READ)).await);
    granted(ctx.acquire(&ctx.claim_of("bob", Share::READ)).await);
    blocked(ctx.acquire(&ctx.claim_of("writer", Share::WRITE)).await);
    ctx.release("ann").await;
    blocked(ctx.acquire(&ctx.claim_of("writer", Share::WRITE)).await);
    ctx.release("bob").await;
    granted(ctx.acquire(&ctx.claim_of("writer", Share::WRITE)).await);
    blocked(ctx.acquire(&ctx.claim_of("ann", Share::READ)).await);
    blocked(ctx.acquire(&ctx.claim_of("other writer", Share::WRITE)).await);
}

async fn readers_do_not_pass_a_waiting_writer(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim_of("ann", Share::READ)).await);
    queued_behind(ctx.acquire(&ctx.claim_of("writer", Share::WRITE).queued()).await, 0);
    queued_behind(ctx.acquire(&ctx.claim_of("bob", Share::READ).queued()).await, 1);
    queued_behind(ctx.acquire(&ctx.claim_of("cy", Share::READ).queued()).await, 2);
    ctx.release("ann").await;
    blocked(ctx.acquire(&ctx.claim_of("bob", Share::READ).queued()).await);
    granted(ctx.acquire(&ctx.claim_of("writer", Share::WRITE).queued()).await);
    ctx.release("writer").await;
    granted(ctx.acquire(&ctx.claim_of("cy", Share::READ).queued()).await);
    granted(ctx.acquire(&ctx.claim_of("bob", Share::READ).queued()).await);
}

async fn a_downgrade_lets_readers_in_and_keeps_the_expiry(ctx: &TestContext) {
    let before = ctx.target.now();
    let write = ctx.claim_of("writer", Share::WRITE);
    let first = granted(ctx.acquire(&write).await);
    let given = (before, ctx.target.now());
    let mut read = ctx.claim_of("reader", Share::READ).taking_over(Handover::from(write.owner));
    read.ttl = LONG * 5;
    let asked = ctx.target.now();
    let second = granted(ctx.acquire(&read).await);
    assert_ne!(second.token, first.token);
    ctx.assert_remaining(second.remaining, write.ttl, given, (asked, ctx.target.now()));
    granted(ctx.acquire(&ctx.claim_of("bob", Share::READ)).await);
    blocked(ctx.acquire(&ctx.claim_of("other writer", Share::WRITE)).await);
    assert_eq!(ctx.release("writer").await, Released::AlreadyGone);
}

async fn a_downgrade_through_the_other_handle_keeps_the_expiry(ctx: &TestContext) {
    for ttl in [ctx.short_ttl(), LONG * 5] {
        let resource = ctx.resource(&format!("for-{}", ttl.as_secs()));
        let before = ctx.target.now();
        let mut write = ctx.claim_of("writer", Share::WRITE);
        write.resource = resource.clone();
        granted(ctx.acquire(&write).await);
        let given = (before, ctx.target.now());
        let mut read = ctx.claim_of("reader", Share::READ).taking_over(Handover::from(write.owner));
        (read.resource, read.ttl) = (resource, ttl);
        let asked = ctx.target.now();
        let grant = granted(ctx.acquire_second(&read).await);
        ctx.assert_remaining(grant.remaining, write.ttl, given, (asked, ctx.target.now()));
    }
}

async fn a_grant_downgraded_by_the_other_handle_is_not_taken_over_twice(ctx: &TestContext) {
    let from = Handover::from(ctx.owner("writer"));
    granted(ctx.acquire_second(&ctx.claim_of("writer", Share::WRITE)).await);
    granted(ctx.acquire(&ctx.claim_of("reader", Share::READ).taking_over(from)).await);
    blocked(ctx.acquire_second(&ctx.claim_of("other writer", Share::WRITE).taking_over(from)).await);
    granted(ctx.acquire_second(&ctx.claim_of("bob", Share::READ).taking_over(from)).await);
    let seen = ctx.snapshot().await;
    let holders: Vec<_> = seen.holders.iter().map(|held| held.holder.label.as_str()).collect();
    assert_eq!(holders, ["reader", "bob"]);
}

async fn a_grant_downgraded_by_the_other_handle_outlives_releases_of_that_handle(ctx: &TestContext) {
    let from = Handover::from(ctx.owner("writer"));
    granted(ctx.acquire_second(&ctx.claim_of("writer", Share::WRITE)).await);
    granted(ctx.acquire(&ctx.claim_of("reader", Share::READ).taking_over(from)).await);
    assert_eq!(
        ctx.send_release_second(&ReleaseRequest::new(ctx.reference("writer"))).await,
        Released::AlreadyGone
    );
    let mut other = ctx.claim_of("other", Share::WRITE);
    other.resource = ctx.resource("other");
    granted(ctx.acquire_second(&other).await);
    let request = ReleaseRequest::new(other.reference()).with_tombstone(LONG);
    assert_eq!(ctx.send_release_second(&request).await, Released::Now);
    ctx.target.pass(ctx.short_ttl() / 2).await;
    assert_eq!(ctx.snapshot().await.holders[0].holder.label, "reader");
}

async fn a_downgrade_passes_the_queue_and_is_not_counted_as_a_handover(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim_of("writer", Share::WRITE)).await);
    queued_behind(ctx.acquire(&ctx.claim_of("other writer", Share::WRITE).queued()).await, 0);
    let from = Handover::from(ctx.owner("writer"));
    granted(ctx.acquire(&ctx.claim_of("reader", Share::READ).taking_over(from)).await);
    assert_eq!(ctx.snapshot().await.holders[0].handovers, 0);
    queued_behind(ctx.acquire(&ctx.claim_of("other writer", Share::WRITE).queued()).await, 0);
    blocked(ctx.acquire(&ctx.claim_of("bob", Share::READ)).await);
}

async fn a_downgrade_is_not_refused_during_a_pause(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim_of("writer", Share::WRITE)).await);
    ctx.order(OperatorAction::Pause { lasting: LONG }).await;
    let from = Handover::from(ctx.owner("writer"));
    granted(ctx.acquire(&ctx.claim_of("reader", Share::READ).taking_over(from)).await);
    assert!(blocked(ctx.acquire(&ctx.claim_of("bob", Share::READ)).await).paused);
}

async fn a_downgrade_does_not_escape_an_eviction(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim_of("writer", Share::WRITE)).await);
    ctx.order(OperatorAction::Ask { within: LONG }).await;
    ctx.order(OperatorAction::Evict(Eviction::AtExpiry)).await;
    let from = Handover::from(ctx.owner("writer"));
    granted(ctx.acquire(&ctx.claim_of("reader", Share::READ).taking_over(from)).await);
    let answer = renewed(ctx.renew("reader", LONG * 5).await);
    assert!(answer.evicting && answer.remaining <= LONG, "it still expires: {answer:?}");
    assert!(answer.asked.is_some(), "the finish request is still there");
}

async fn a_heavier_successor_is_an_ordinary_claim(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim_of("reader", Share::READ)).await);
    granted(ctx.acquire(&ctx.claim_of("bob", Share::READ)).await);
    let from = Handover::from(ctx.owner("reader"));
    blocked(ctx.acquire(&ctx.claim_of("writer", Share::WRITE).taking_over(from)).await);
    assert_eq!(
        ctx.snapshot().await.holder_count,
        1,
        "its predecessor is released, because waiting for an upgrade would deadlock"
    );
    ctx.release("bob").await;
    granted(ctx.acquire(&ctx.claim_of("writer", Share::WRITE).taking_over(from)).await);
}

async fn one_permit_expires_alone(ctx: &TestContext) {
    let mut brief = ctx.claim_of("ann", share(1, 2));
    brief.ttl = ctx.short_ttl();
    granted(ctx.acquire(&brief).await);
    granted(ctx.acquire(&ctx.claim_of("bob", share(1, 2))).await);
    blocked(ctx.acquire(&ctx.claim_of("cy", share(1, 2))).await);
    ctx.target.let_expire(ctx.short_ttl()).await;
    granted(ctx.acquire(&ctx.claim_of("cy", share(1, 2))).await);
    blocked(ctx.acquire(&ctx.claim_of("dee", share(1, 2))).await);
}
