//! Handover: a claim takes over the grant or the place of another claim.

use leasehold_core::{Eviction, GoneReason, Handover, OperatorAction, Released, admission};

use super::{
    ConformanceTest,
    context::{LONG, TestContext, blocked, cancelled, gone, granted, queued_behind},
    test,
};

pub(super) const TESTS: &[ConformanceTest] = &[
    test!(a_successor_takes_over_the_grant, Takeover),
    test!(a_successor_takes_over_the_grant_before_the_queue, Handover, Queue),
    test!(a_repeated_handover_takes_over_once, Takeover),
    test!(a_successor_finds_a_predecessor_that_the_other_handle_granted_anew, Takeover, SecondHandle),
    test!(
        a_successor_whose_place_the_other_handle_released_takes_over_the_grant,
        Takeover,
        Queue,
        SecondHandle
    ),
    test!(b8_a_handover_with_a_tombstone_cancels_the_predecessor, Takeover),
    test!(a_handover_without_a_tombstone_leaves_none, Takeover),
    test!(a_successor_has_its_own_ttl, Takeover, OwnTtl),
    test!(a_successor_of_an_unknown_claim_is_an_ordinary_claim),
    test!(a_successor_of_an_unknown_claim_still_leaves_the_tombstone, Queue),
    test!(a_successor_of_an_expired_grant_is_an_ordinary_claim, Queue, OwnTtl),
    test!(a_successor_of_a_kept_grant_is_an_ordinary_claim, KeepFor),
    test!(b8_a_cancelled_successor_still_releases_its_predecessor, Takeover),
    test!(a_successor_takes_over_the_place, Queue),
    test!(a_successor_of_a_waiter_leaves_the_tombstone_if_asked, Queue),
    test!(a_successor_that_does_not_queue_gives_up_the_place, Queue),
    test!(a_successor_in_the_queue_keeps_its_own_place, Queue),
    test!(handovers_are_bounded_while_others_wait, Handover, Queue),
    test!(handovers_are_unbounded_while_the_queue_is_empty, Takeover),
    test!(a_refused_successor_that_does_not_queue_has_nothing, Handover, Queue),
    test!(no_handover_happens_during_a_pause, Takeover, Orders),
    test!(no_handover_happens_after_an_eviction_at_expiry, Handover, Queue, Orders),
    test!(without_handover_a_successor_joins_the_queue, Queue, NoHandover),
];

fn from(ctx: &TestContext, name: &str) -> Handover {
    Handover::from(ctx.owner(name))
}

fn with_tombstone(ctx: &TestContext, name: &str) -> Handover {
    Handover::with_tombstone(ctx.owner(name), LONG * 2)
}

async fn a_successor_takes_over_the_grant(ctx: &TestContext) {
    let first = granted(ctx.acquire(&ctx.claim("ann")).await);
    let second = granted(ctx.acquire(&ctx.claim("bob").taking_over(from(ctx, "ann"))).await);
    assert!(second.token > first.token, "a handover mints a new token");
    gone(&ctx.renew("ann", LONG).await, GoneReason::NotThere);
    assert_eq!(ctx.release("ann").await, Released::AlreadyGone);
    let seen = ctx.snapshot().await;
    assert_eq!((seen.holder_count, seen.holders[0].holder.label.as_str()), (1, "bob"));
}

async fn a_successor_takes_over_the_grant_before_the_queue(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim("ann")).await);
    queued_behind(ctx.acquire(&ctx.claim("cy").queued()).await, 0);
    granted(ctx.acquire(&ctx.claim("bob").queued().taking_over(from(ctx, "ann"))).await);
    queued_behind(ctx.acquire(&ctx.claim("cy").queued()).await, 0);
    assert_eq!(ctx.snapshot().await.holders[0].handovers, 1, "handovers are counted");
    ctx.release("bob").await;
    granted(ctx.acquire(&ctx.claim("cy").queued()).await);
    assert_eq!(ctx.snapshot().await.holders[0].handovers, 0, "a grant from the queue starts at 0");
}

async fn a_repeated_handover_takes_over_once(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim("ann")).await);
    let claim = ctx.claim("bob").taking_over(from(ctx, "ann"));
    let first = granted(ctx.acquire(&claim).await);
    let again = granted(ctx.acquire(&claim).await);
    assert_eq!(first.token, again.token);
    assert_eq!(ctx.snapshot().await.holder_count, 1);
}

async fn a_successor_finds_a_predecessor_that_the_other_handle_granted_anew(ctx: &TestContext) {
    granted(ctx.acquire_second(&ctx.claim("ann")).await);
    assert_eq!(ctx.release("ann").await, Released::Now);
    granted(ctx.acquire(&ctx.claim("ann")).await);
    granted(ctx.acquire_second(&ctx.claim("bob").taking_over(from(ctx, "ann"))).await);
    assert_eq!(ctx.snapshot().await.holders[0].holder.label, "bob");
}

async fn a_successor_whose_place_the_other_handle_released_takes_over_the_grant(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim("ann")).await);
    queued_behind(ctx.acquire_second(&ctx.claim("bob").queued()).await, 0);
    assert_eq!(ctx.release("bob").await, Released::Now);
    granted(ctx.acquire_second(&ctx.claim("bob").taking_over(from(ctx, "ann"))).await);
    let seen = ctx.snapshot().await;
    assert_eq!((seen.holder_count, seen.queue_length), (1, 0));
}

async fn b8_a_handover_with_a_tombstone_cancels_the_predecessor(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim("ann")).await);
    granted(ctx.acquire(&ctx.claim("bob").taking_over(with_tombstone(ctx, "ann"))).await);
    gone(&ctx.renew("ann", LONG).await, GoneReason::Cancelled);
    ctx.release("bob").await;
    cancelled(&ctx.acquire(&ctx.claim("ann")).await);
}

async fn a_handover_without_a_tombstone_leaves_none(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim("ann")).await);
    granted(ctx.acquire(&ctx.claim("bob").taking_over(from(ctx, "ann"))).await);
    blocked(ctx.acquire(&ctx.claim("ann")).await);
    ctx.release("bob").await;
    granted(ctx.acquire(&ctx.claim("ann")).await);
}

async fn a_successor_has_its_own_ttl(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.short_claim("ann")).await);
    let grant = granted(ctx.acquire(&ctx.claim("bob").taking_over(from(ctx, "ann"))).await);
    assert!(grant.remaining > LONG / 2);
    ctx.target.let_expire(ctx.short_ttl()).await;
    blocked(ctx.acquire(&ctx.claim("cy")).await);
    granted(ctx.acquire(&ctx.short_claim("cy").taking_over(from(ctx, "bob"))).await);
    ctx.target.let_expire(ctx.short_ttl()).await;
    granted(ctx.acquire(&ctx.claim("dee")).await);
}

async fn a_successor_of_an_unknown_claim_is_an_ordinary_claim(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim("bob").taking_over(from(ctx, "ann"))).await);
    blocked(ctx.acquire(&ctx.claim("cy").taking_over(from(ctx, "ann"))).await);
}

async fn a_successor_of_an_unknown_claim_still_leaves_the_tombstone(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim("cy")).await);
    queued_behind(ctx.acquire(&ctx.claim("bob").queued().taking_over(with_tombstone(ctx, "ann"))).await, 0);
    cancelled(&ctx.acquire(&ctx.claim("ann").queued()).await);
}

async fn a_successor_of_an_expired_grant_is_an_ordinary_claim(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.short_claim("ann")).await);
    queued_behind(ctx.acquire(&ctx.claim("cy").queued()).await, 0);
    ctx.target.let_expire(ctx.short_ttl()).await;
    queued_behind(ctx.acquire(&ctx.claim("bob").queued().taking_over(from(ctx, "ann"))).await, 1);
    granted(ctx.acquire(&ctx.claim("cy").queued()).await);
}

async fn a_successor_of_a_kept_grant_is_an_ordinary_claim(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim("ann")).await);
    ctx.send_release(&leasehold_core::ReleaseRequest::new(ctx.reference("ann")).keeping(LONG)).await;
    let seen = blocked(ctx.acquire(&ctx.claim("bob").taking_over(from(ctx, "ann"))).await);
    assert!(seen.holders[0].kept, "the resource stays closed");
}

async fn b8_a_cancelled_successor_still_releases_its_predecessor(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim("ann")).await);
    ctx.release_with_tombstone("bob").await;
    cancelled(&ctx.acquire(&ctx.claim("bob").taking_over(from(ctx, "ann"))).await);
    assert_eq!(ctx.snapshot().await.holder_count, 0, "the release of ann was part of the same request");
    granted(ctx.acquire(&ctx.claim("cy")).await);
}

async fn a_successor_takes_over_the_place(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim("ann")).await);
    queued_behind(ctx.acquire(&ctx.claim("bob").queued()).await, 0);
    queued_behind(ctx.acquire(&ctx.claim("cy").queued()).await, 1);
    queued_behind(ctx.acquire(&ctx.claim("dee").queued().taking_over(from(ctx, "bob"))).await, 0);
    gone(&ctx.renew("bob", LONG).await, GoneReason::NotThere);
    queued_behind(ctx.acquire(&ctx.claim("cy").queued()).await, 1);
    assert_eq!(ctx.snapshot().await.queue_length, 2);
    ctx.release("ann").await;
    blocked(ctx.acquire(&ctx.claim("cy").queued()).await);
    granted(ctx.acquire(&ctx.claim("dee").queued()).await);
}

async fn a_successor_of_a_waiter_leaves_the_tombstone_if_asked(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim("ann")).await);
    queued_behind(ctx.acquire(&ctx.claim("bob").queued()).await, 0);
    queued_behind(ctx.acquire(&ctx.claim("cy").queued().taking_over(with_tombstone(ctx, "bob"))).await, 0);
    cancelled(&ctx.acquire(&ctx.claim("bob").queued()).await);
    // Without a tombstone the predecessor may queue again, at the end.
    queued_behind(ctx.acquire(&ctx.claim("dee").queued().taking_over(from(ctx, "cy"))).await, 0);
    queued_behind(ctx.acquire(&ctx.claim("cy").queued()).await, 1);
}

async fn a_successor_that_does_not_queue_gives_up_the_place(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim("ann")).await);
    queued_behind(ctx.acquire(&ctx.claim("bob").queued()).await, 0);
    queued_behind(ctx.acquire(&ctx.claim("cy").queued()).await, 1);
    assert!(!blocked(ctx.acquire(&ctx.claim("dee").taking_over(from(ctx, "bob"))).await).queued);
    queued_behind(ctx.acquire(&ctx.claim("cy").queued()).await, 0);
}

async fn a_successor_in_the_queue_keeps_its_own_place(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim("ann")).await);
    for (ahead, name) in (0..).zip(["bob", "cy", "dee"]) {
        queued_behind(ctx.acquire(&ctx.claim(name).queued()).await, ahead);
    }
    queued_behind(ctx.acquire(&ctx.claim("dee").queued().taking_over(from(ctx, "bob"))).await, 1);
    queued_behind(ctx.acquire(&ctx.claim("cy").queued()).await, 0);
    assert_eq!(ctx.snapshot().await.queue_length, 2);
}

async fn handovers_are_bounded_while_others_wait(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim("owner 0")).await);
    queued_behind(ctx.acquire(&ctx.claim("cy").queued()).await, 0);
    for number in 1..=admission::HANDOVERS_MAX {
        let successor = ctx.claim(&format!("owner {number}")).queued();
        granted(ctx.acquire(&successor.taking_over(from(ctx, &format!("owner {}", number - 1)))).await);
    }
    assert_eq!(ctx.snapshot().await.holders[0].handovers, admission::HANDOVERS_MAX);
    // One more handover is refused: the predecessor is released, and the successor joins the end of the
    // queue.
    let last = format!("owner {}", admission::HANDOVERS_MAX);
    let successor = ctx.claim("bob").queued();
    queued_behind(ctx.acquire(&successor.clone().taking_over(from(ctx, &last))).await, 1);
    gone(&ctx.renew(&last, LONG).await, GoneReason::NotThere);
    assert_eq!(ctx.snapshot().await.holder_count, 0);
    granted(ctx.acquire(&ctx.claim("cy").queued()).await);
    ctx.release("cy").await;
    granted(ctx.acquire(&successor).await);
}

async fn handovers_are_unbounded_while_the_queue_is_empty(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim("owner 0")).await);
    for number in 1..=admission::HANDOVERS_MAX + 4 {
        let successor = ctx.claim(&format!("owner {number}"));
        granted(ctx.acquire(&successor.taking_over(from(ctx, &format!("owner {}", number - 1)))).await);
    }
}

async fn a_refused_successor_that_does_not_queue_has_nothing(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim("owner 0")).await);
    queued_behind(ctx.acquire(&ctx.claim("cy").queued()).await, 0);
    for number in 1..=admission::HANDOVERS_MAX {
        let successor = ctx.claim(&format!("owner {number}"));
        granted(ctx.acquire(&successor.taking_over(from(ctx, &format!("owner {}", number - 1)))).await);
    }
    let last = format!("owner {}", admission::HANDOVERS_MAX);
    assert!(!blocked(ctx.acquire(&ctx.claim("bob").taking_over(from(ctx, &last))).await).queued);
    granted(ctx.acquire(&ctx.claim("cy").queued()).await);
}

async fn no_handover_happens_during_a_pause(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim("ann")).await);
    ctx.order(OperatorAction::Pause { lasting: LONG }).await;
    let seen = blocked(ctx.acquire(&ctx.claim("bob").taking_over(from(ctx, "ann"))).await);
    assert!(seen.paused);
    assert_eq!(ctx.snapshot().await.holder_count, 0, "the predecessor is released nevertheless");
    ctx.order(OperatorAction::Resume).await;
    granted(ctx.acquire(&ctx.claim("bob").taking_over(from(ctx, "ann"))).await);
}

async fn no_handover_happens_after_an_eviction_at_expiry(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim("ann")).await);
    queued_behind(ctx.acquire(&ctx.claim("cy").queued()).await, 0);
    ctx.order(OperatorAction::Evict(Eviction::AtExpiry)).await;
    queued_behind(ctx.acquire(&ctx.claim("bob").queued().taking_over(from(ctx, "ann"))).await, 1);
    granted(ctx.acquire(&ctx.claim("cy").queued()).await);
}

/// For backends that hand over only while the queue is empty: the predecessor is released, and the successor
/// queues.
async fn without_handover_a_successor_joins_the_queue(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim("ann")).await);
    queued_behind(ctx.acquire(&ctx.claim("cy").queued()).await, 0);
    let successor = ctx.claim("bob").queued().taking_over(from(ctx, "ann"));
    queued_behind(ctx.acquire(&successor).await, ctx.expected_ahead(1, 1));
    granted(ctx.acquire(&ctx.claim("cy").queued()).await);
}
