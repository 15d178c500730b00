//! B3: `wait` returns soon after a change, and never later than `at_most`.

use std::time::Duration;

use leasehold_core::{Claim, Cursor, Eviction, OperatorAction, ReleaseRequest, RenewRequest};

use super::{
    ConformanceTest,
    context::{LONG, TestContext, blocked, granted, queued_behind},
    test,
};

pub(super) const TESTS: &[ConformanceTest] = &[
    test!(b3_a_wait_returns_after_at_most),
    test!(b3_a_wait_with_an_unknown_cursor_returns_after_at_most),
    test!(b3_a_release_wakes_the_head_of_the_queue, Queue),
    test!(b3_a_release_before_the_wait_is_not_missed, Queue),
    test!(b3_a_removed_waiter_is_woken, Queue),
    test!(b3_a_change_wakes_a_claim_outside_the_queue),
    test!(b3_a_change_before_the_wait_is_not_missed),
    test!(b3_a_waiter_that_leaves_the_queue_wakes_the_next, Queue),
    test!(b3_an_eviction_wakes_the_head_of_the_queue, Queue, Orders),
    test!(b3_a_resume_wakes_the_head_of_the_queue, Queue, Orders),
    test!(b3_a_release_by_the_second_handle_wakes_the_first, Queue, SecondHandle),
    test!(b3_a_waiter_is_woken_through_the_handle_that_waits, Queue, SecondHandle),
    test!(b3_an_observer_is_woken_by_a_new_holder),
    test!(b3_an_observer_is_woken_by_a_new_note),
    test!(b3_a_dropped_wait_does_not_disturb_the_next_wait, Queue),
];

/// A wake-up must come within this time. Without one the wait would last for [`LONG`].
const SOON: Duration = Duration::from_secs(5);

async fn b3_a_wait_returns_after_at_most(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim("ann")).await);
    let claim = ctx.claim("bob");
    let seen = blocked(ctx.acquire(&claim).await);
    let at_most = Duration::from_millis(300);
    let waiting = ctx.wait(&claim, seen.cursor, at_most).await;
    assert!(
        ctx.returns_within(&waiting, at_most + Duration::from_secs(2)).await,
        "the wait returns after at_most"
    );
    if ctx.target.is_exact() {
        let took = waiting.began.until(ctx.target.now());
        assert!(took <= at_most + Duration::from_millis(10), "it took {took:?}");
    }
}

async fn b3_a_wait_with_an_unknown_cursor_returns_after_at_most(ctx: &TestContext) {
    for cursor in [Cursor(0), Cursor(u64::MAX)] {
        let waiting = ctx.wait(&ctx.claim("ann"), cursor, Duration::from_millis(300)).await;
        assert!(ctx.returns_within(&waiting, SOON).await, "the wait returns after at_most");
    }
}

/// Ann holds the resource. Bob is the head of the queue and waits.
async fn holder_and_waiter(ctx: &TestContext) -> (Claim, super::context::PendingWait) {
    granted(ctx.acquire(&ctx.claim("ann")).await);
    let claim = ctx.claim("bob").queued();
    let seen = queued_behind(ctx.acquire(&claim).await, 0);
    let waiting = ctx.wait(&claim, seen.cursor, LONG).await;
    (claim, waiting)
}

async fn b3_a_release_wakes_the_head_of_the_queue(ctx: &TestContext) {
    let (claim, waiting) = holder_and_waiter(ctx).await;
    ctx.release("ann").await;
    assert!(ctx.returns_within(&waiting, SOON).await, "the head of the queue can be granted");
    granted(ctx.acquire(&claim).await);
}

async fn b3_a_release_before_the_wait_is_not_missed(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim("ann")).await);
    let claim = ctx.claim("bob").queued();
    let seen = queued_behind(ctx.acquire(&claim).await, 0);
    ctx.release("ann").await;
    let waiting = ctx.wait(&claim, seen.cursor, LONG).await;
    assert!(ctx.returns_within(&waiting, SOON).await, "the release came before the wait");
}

async fn b3_a_removed_waiter_is_woken(ctx: &TestContext) {
    let (_, waiting) = holder_and_waiter(ctx).await;
    ctx.release("bob").await;
    assert!(
        ctx.returns_within(&waiting, SOON).await,
        "the waiter must acquire again to learn that its place is gone"
    );
}

async fn b3_a_change_wakes_a_claim_outside_the_queue(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim("ann")).await);
    let claim = ctx.claim("bob");
    let seen = blocked(ctx.acquire(&claim).await);
    let waiting = ctx.wait(&claim, seen.cursor, LONG).await;
    ctx.release("ann").await;
    assert!(ctx.returns_within(&waiting, SOON).await, "the holder released");
}

async fn b3_a_change_before_the_wait_is_not_missed(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim("ann")).await);
    let claim = ctx.claim("bob");
    let seen = blocked(ctx.acquire(&claim).await);
    ctx.release("ann").await;
    let waiting = ctx.wait(&claim, seen.cursor, LONG).await;
    assert!(ctx.returns_within(&waiting, SOON).await, "the holder released after the cursor");
    // The resource is held again, as at the time of the cursor, but by another claim.
    granted(ctx.acquire(&ctx.claim("cy")).await);
    let waiting = ctx.wait(&claim, seen.cursor, LONG).await;
    assert!(ctx.returns_within(&waiting, SOON).await, "the state has changed since the cursor");
}

async fn b3_a_waiter_that_leaves_the_queue_wakes_the_next(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim("ann")).await);
    queued_behind(ctx.acquire(&ctx.claim("bob").queued()).await, 0);
    let claim = ctx.claim("cy").queued();
    let seen = queued_behind(ctx.acquire(&claim).await, 1);
    let waiting = ctx.wait(&claim, seen.cursor, LONG).await;
    ctx.release("ann").await;
    ctx.release("bob").await;
    assert!(ctx.returns_within(&waiting, SOON).await, "no claim is ahead any more");
    granted(ctx.acquire(&claim).await);
}

async fn b3_an_eviction_wakes_the_head_of_the_queue(ctx: &TestContext) {
    let (claim, waiting) = holder_and_waiter(ctx).await;
    ctx.order(OperatorAction::Evict(Eviction::Now)).await;
    assert!(ctx.returns_within(&waiting, SOON).await, "the resource is free");
    granted(ctx.acquire(&claim).await);
}

async fn b3_a_resume_wakes_the_head_of_the_queue(ctx: &TestContext) {
    ctx.order(OperatorAction::Pause { lasting: LONG * 2 }).await;
    let claim = ctx.claim("bob").queued();
    let seen = queued_behind(ctx.acquire(&claim).await, 0);
    let waiting = ctx.wait(&claim, seen.cursor, LONG).await;
    ctx.order(OperatorAction::Resume).await;
    assert!(ctx.returns_within(&waiting, SOON).await, "the pause is over");
    granted(ctx.acquire(&claim).await);
}

async fn b3_a_release_by_the_second_handle_wakes_the_first(ctx: &TestContext) {
    let (claim, waiting) = holder_and_waiter(ctx).await;
    let request = ReleaseRequest::new(ctx.reference("ann"));
    ctx.send_release_second(&request).await;
    assert!(ctx.returns_within(&waiting, SOON).await, "the release came from another handle");
    granted(ctx.acquire(&claim).await);
}

/// The claim joins the queue through one handle and waits through the other, as when a process passes its
/// claim to another process.
async fn b3_a_waiter_is_woken_through_the_handle_that_waits(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim("ann")).await);
    let claim = ctx.claim("bob").queued();
    let seen = queued_behind(ctx.acquire(&claim).await, 0);
    let mut waiting = ctx.wait_second(&claim, seen.cursor, LONG).await;
    // The release must come after the backend knows of the wait. Meanwhile the wait may return without a
    // reason.
    for _ in 0..10 {
        if !ctx.returns_within(&waiting, Duration::from_millis(700)).await {
            break;
        }
        waiting = ctx.wait_second(&claim, seen.cursor, LONG).await;
    }
    ctx.release("ann").await;
    assert!(
        ctx.returns_within(&waiting, SOON).await,
        "the head of the queue can be granted, and waits through the second handle"
    );
    granted(ctx.acquire_second(&claim).await);
}

async fn b3_an_observer_is_woken_by_a_new_holder(ctx: &TestContext) {
    // An observer has no claim in the store, so it waits with a reference that no claim uses.
    let seen = ctx.snapshot().await;
    let waiting = ctx.wait(&ctx.claim("observer"), seen.cursor, LONG).await;
    granted(ctx.acquire(&ctx.claim("ann")).await);
    assert!(ctx.returns_within(&waiting, SOON).await, "the resource is held now");
    assert_eq!(ctx.snapshot().await.queue_length, 0, "an observer takes no place in the queue");
}

async fn b3_an_observer_is_woken_by_a_new_note(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim("ann").with_note(*b"old")).await);
    let seen = ctx.snapshot().await;
    let waiting = ctx.wait(&ctx.claim("observer"), seen.cursor, LONG).await;
    ctx.renew_one(RenewRequest::new(ctx.reference("ann"), LONG).with_note(*b"new")).await;
    assert!(ctx.returns_within(&waiting, SOON).await, "the note has changed");
    assert_eq!(ctx.snapshot().await.holders[0].note.as_deref(), Some(b"new".as_slice()));
}

async fn b3_a_dropped_wait_does_not_disturb_the_next_wait(ctx: &TestContext) {
    let (claim, waiting) = holder_and_waiter(ctx).await;
    drop(waiting);
    ctx.target.let_tasks_run().await;
    let seen = queued_behind(ctx.acquire(&claim).await, 0);
    let waiting = ctx.wait(&claim, seen.cursor, LONG).await;
    ctx.release("ann").await;
    assert!(ctx.returns_within(&waiting, SOON).await, "the second wait is woken, too");
    granted(ctx.acquire(&claim).await);
}
