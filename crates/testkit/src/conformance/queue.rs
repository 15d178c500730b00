//! The queue: the order of the waiters, and how a waiter keeps or loses its place.

use leasehold_core::{Effect, ErrorKind, GoneReason, ReleaseRequest, Released, admission};

use super::{
    ConformanceTest,
    context::{LONG, TestContext, blocked, cancelled, gone, granted, queued_behind, still_queued},
    test,
};

pub(super) const TESTS: &[ConformanceTest] = &[
    test!(grants_follow_the_queue_order, Queue),
    test!(a_repeated_acquire_keeps_the_place, Queue),
    test!(a_claim_that_does_not_queue_cannot_overtake_the_queue, Queue),
    test!(a_waiter_that_asks_without_queueing_loses_its_place, Queue),
    test!(the_queue_moves_up_when_a_waiter_leaves, Queue),
    test!(b3_a_dead_waiter_is_removed_after_its_place_ttl, Queue, OwnTtl),
    test!(a_renewal_keeps_the_place, Queue, OwnTtl),
    test!(a_repeated_acquire_extends_the_place, Queue, OwnTtl),
    test!(a_place_is_never_shortened, Queue, OwnTtl),
    test!(an_expired_place_is_gone, Queue, OwnTtl),
    test!(the_head_of_the_queue_is_granted_when_the_holder_expires, Queue, OwnTtl),
    test!(b8_a_tombstone_removes_a_waiter, Queue),
    test!(b8_a_tombstone_bars_an_owner_from_the_queue, Queue),
    test!(a_long_queue_keeps_its_order, Queue),
    test!(a_waiter_is_told_when_the_holder_expires, Queue, OwnTtl),
    test!(a_granted_waiter_leaves_the_queue, Queue),
    test!(b9_a_full_queue_refuses_new_waiters, Queue, ShortQueue),
];

async fn grants_follow_the_queue_order(ctx: &TestContext) {
    let mut last = granted(ctx.acquire(&ctx.claim("ann")).await).token;
    let names = ["bob", "cy", "dee", "eve"];
    for (ahead, name) in (0..).zip(names) {
        queued_behind(ctx.acquire(&ctx.claim(name).queued()).await, ahead);
    }
    ctx.release("ann").await;
    for (index, name) in names.into_iter().enumerate() {
        for (ahead, later) in (1..).zip(&names[index + 1..]) {
            queued_behind(ctx.acquire(&ctx.claim(later).queued()).await, ctx.expected_ahead(ahead, 1));
        }
        let grant = granted(ctx.acquire(&ctx.claim(name).queued()).await);
        assert!(grant.token > last, "tokens grow in the order of the queue");
        last = grant.token;
        assert_eq!(ctx.release(name).await, Released::Now);
    }
    assert_eq!(ctx.snapshot().await.queue_length, 0);
}

async fn a_repeated_acquire_keeps_the_place(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim("ann")).await);
    queued_behind(ctx.acquire(&ctx.claim("bob").queued()).await, 0);
    queued_behind(ctx.acquire(&ctx.claim("cy").queued()).await, 1);
    queued_behind(ctx.acquire(&ctx.claim("bob").queued()).await, 0);
    queued_behind(ctx.acquire(&ctx.claim("cy").queued()).await, 1);
    let seen = ctx.snapshot().await;
    let labels: Vec<_> = seen.queue.iter().map(|waiter| waiter.holder.label.as_str()).collect();
    assert_eq!((seen.queue_length, labels), (2, vec!["bob", "cy"]), "one place for each waiter, in order");
}

async fn a_claim_that_does_not_queue_cannot_overtake_the_queue(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim("ann")).await);
    queued_behind(ctx.acquire(&ctx.claim("bob").queued()).await, 0);
    ctx.release("ann").await;
    let seen = blocked(ctx.acquire(&ctx.claim("cy")).await);
    // Bob can be granted. If the store grants by itself, he holds already.
    assert_eq!((seen.queued, seen.ahead), (false, ctx.expected_ahead(1, 1)));
    assert_eq!(seen.holders.len(), 1 - ctx.expected_ahead(1, 1) as usize);
    queued_behind(ctx.acquire(&ctx.claim("dee").queued()).await, ctx.expected_ahead(1, 1));
    granted(ctx.acquire(&ctx.claim("bob").queued()).await);
}

async fn a_waiter_that_asks_without_queueing_loses_its_place(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim("ann")).await);
    queued_behind(ctx.acquire(&ctx.claim("bob").queued()).await, 0);
    queued_behind(ctx.acquire(&ctx.claim("cy").queued()).await, 1);
    assert!(!blocked(ctx.acquire(&ctx.claim("bob")).await).queued);
    queued_behind(ctx.acquire(&ctx.claim("cy").queued()).await, 0);
    gone(&ctx.renew("bob", LONG).await, GoneReason::NotThere);
}

async fn the_queue_moves_up_when_a_waiter_leaves(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim("ann")).await);
    for (ahead, name) in (0..).zip(["bob", "cy", "dee"]) {
        queued_behind(ctx.acquire(&ctx.claim(name).queued()).await, ahead);
    }
    assert_eq!(ctx.release("cy").await, Released::Now, "a waiter leaves the queue by a release");
    assert_eq!(ctx.release("cy").await, Released::AlreadyGone);
    queued_behind(ctx.acquire(&ctx.claim("dee").queued()).await, 1);
    queued_behind(ctx.acquire(&ctx.claim("cy").queued()).await, 2);
}

async fn b3_a_dead_waiter_is_removed_after_its_place_ttl(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim("ann")).await);
    let mut dead = ctx.claim("bob").queued();
    dead.place_ttl = ctx.short_ttl();
    queued_behind(ctx.acquire(&dead).await, 0);
    queued_behind(ctx.acquire(&ctx.claim("cy").queued()).await, 1);
    ctx.release("ann").await;
    ctx.target.let_expire(ctx.short_ttl()).await;
    granted(ctx.acquire(&ctx.claim("cy").queued()).await);
}

async fn a_renewal_keeps_the_place(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim("ann")).await);
    let mut claim = ctx.claim("bob").queued();
    claim.place_ttl = ctx.short_ttl();
    queued_behind(ctx.acquire(&claim).await, 0);
    queued_behind(ctx.acquire(&ctx.claim("cy").queued()).await, 1);
    let before = ctx.target.now();
    let remaining = still_queued(&ctx.renew("bob", LONG).await);
    let span = (before, ctx.target.now());
    ctx.assert_remaining(remaining, LONG, span, span);
    ctx.target.let_expire(ctx.short_ttl()).await;
    queued_behind(ctx.acquire(&ctx.claim("cy").queued()).await, 1);
}

async fn a_repeated_acquire_extends_the_place(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim("ann")).await);
    let mut claim = ctx.claim("bob").queued();
    claim.place_ttl = ctx.short_ttl();
    queued_behind(ctx.acquire(&claim).await, 0);
    queued_behind(ctx.acquire(&ctx.claim("cy").queued()).await, 1);
    claim.place_ttl = LONG;
    queued_behind(ctx.acquire(&claim).await, 0);
    ctx.target.let_expire(ctx.short_ttl()).await;
    queued_behind(ctx.acquire(&ctx.claim("cy").queued()).await, 1);
}

async fn a_place_is_never_shortened(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim("ann")).await);
    let mut claim = ctx.claim("bob").queued();
    queued_behind(ctx.acquire(&claim).await, 0);
    claim.place_ttl = ctx.short_ttl();
    queued_behind(ctx.acquire(&claim).await, 0);
    assert!(still_queued(&ctx.renew("bob", ctx.short_ttl()).await) > LONG / 2);
    ctx.target.let_expire(ctx.short_ttl()).await;
    still_queued(&ctx.renew("bob", ctx.short_ttl()).await);
}

async fn an_expired_place_is_gone(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim("ann")).await);
    let mut claim = ctx.claim("bob").queued();
    claim.place_ttl = ctx.short_ttl();
    queued_behind(ctx.acquire(&claim).await, 0);
    queued_behind(ctx.acquire(&ctx.claim("cy").queued()).await, 1);
    ctx.target.let_expire(ctx.short_ttl()).await;
    gone(&ctx.renew("bob", LONG).await, GoneReason::NotThere);
    assert_eq!(ctx.release("bob").await, Released::AlreadyGone);
    queued_behind(ctx.acquire(&claim).await, 1);
}

async fn the_head_of_the_queue_is_granted_when_the_holder_expires(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.short_claim("ann")).await);
    queued_behind(ctx.acquire(&ctx.claim("bob").queued()).await, 0);
    ctx.target.let_expire(ctx.short_ttl()).await;
    blocked(ctx.acquire(&ctx.claim("cy")).await);
    blocked(ctx.acquire(&ctx.claim("ann")).await);
    granted(ctx.acquire(&ctx.claim("bob").queued()).await);
}

async fn b8_a_tombstone_removes_a_waiter(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim("ann")).await);
    queued_behind(ctx.acquire(&ctx.claim("bob").queued()).await, 0);
    queued_behind(ctx.acquire(&ctx.claim("cy").queued()).await, 1);
    assert_eq!(ctx.release_with_tombstone("bob").await, Released::Now);
    cancelled(&ctx.acquire(&ctx.claim("bob").queued()).await);
    gone(&ctx.renew("bob", LONG).await, GoneReason::Cancelled);
    queued_behind(ctx.acquire(&ctx.claim("cy").queued()).await, 0);
}

async fn b8_a_tombstone_bars_an_owner_from_the_queue(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim("ann")).await);
    ctx.release_with_tombstone("bob").await;
    cancelled(&ctx.acquire(&ctx.claim("bob").queued()).await);
    assert_eq!(ctx.snapshot().await.queue_length, 0);
}

async fn a_long_queue_keeps_its_order(ctx: &TestContext) {
    let length = admission::WINDOW + 6;
    granted(ctx.acquire(&ctx.claim("ann")).await);
    let names: Vec<_> = (0..length).map(|number| format!("waiter {number}")).collect();
    for (index, name) in names.iter().enumerate() {
        let seen = blocked(ctx.acquire(&ctx.claim(name).queued()).await);
        assert!(seen.queued);
        let ahead = seen.ahead as usize;
        assert!(
            if index <= admission::WINDOW { ahead == index } else { ahead >= index },
            "{ahead} ahead of {index}"
        );
    }
    let seen = ctx.snapshot().await;
    assert_eq!((seen.queue_length as usize, seen.queue.len()), (length, length));
    ctx.release("ann").await;
    for (index, name) in names.iter().enumerate() {
        if let Some(next) = names.get(index + 1) {
            blocked(ctx.acquire(&ctx.claim(next).queued()).await);
        }
        granted(ctx.acquire(&ctx.claim(name).queued()).await);
        ctx.send_release(&ReleaseRequest::new(ctx.reference(name))).await;
    }
}

async fn a_waiter_is_told_when_the_holder_expires(ctx: &TestContext) {
    let held = ctx.short_claim("ann");
    let before = ctx.target.now();
    granted(ctx.acquire(&held).await);
    let given = (before, ctx.target.now());
    let asked = ctx.target.now();
    let seen = queued_behind(ctx.acquire(&ctx.claim("bob").queued()).await, 0);
    let changes_in = seen.changes_in.expect("the holder's ttl will expire");
    ctx.assert_remaining(changes_in, held.ttl, given, (asked, ctx.target.now()));
}

async fn a_granted_waiter_leaves_the_queue(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim("ann")).await);
    queued_behind(ctx.acquire(&ctx.claim("bob").queued()).await, 0);
    ctx.release("ann").await;
    let grant = granted(ctx.acquire(&ctx.claim("bob").queued()).await);
    let seen = ctx.snapshot().await;
    assert_eq!((seen.queue_length, seen.holder_count), (0, 1));
    assert_eq!(granted(ctx.acquire(&ctx.claim("bob").queued()).await).token, grant.token);
    assert_eq!(ctx.release("bob").await, Released::Now);
    assert_eq!(
        ctx.release("bob").await,
        Released::AlreadyGone,
        "the grant has replaced the place in the queue"
    );
}

async fn b9_a_full_queue_refuses_new_waiters(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim("ann").queued()).await);
    for number in 0..ctx.backend().info().limits.queue {
        blocked(ctx.acquire(&ctx.claim(&format!("waiter {number}")).queued()).await);
    }
    let error = ctx.try_acquire(&ctx.claim("bob").queued()).await.expect_err("the queue is full");
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Limit, Effect::None));
    // The limit does not concern claims that hold, that are queued already, or that do not queue.
    granted(ctx.acquire(&ctx.claim("ann").queued()).await);
    blocked(ctx.acquire(&ctx.claim("waiter 0").queued()).await);
    blocked(ctx.acquire(&ctx.claim("bob")).await);
}
