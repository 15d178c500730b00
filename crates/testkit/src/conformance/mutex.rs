//! Exclusion, idempotence, tokens and tombstones: the contract of every exclusive share.

use std::{future::Future, pin::pin, sync::Arc, task::Poll};

use leasehold_core::{
    BackendExt as _, Effect, ErrorKind, FencingToken, GoneReason, Query, ReleaseRequest, Released, Share,
    Verdict,
};

use super::{
    ConformanceTest,
    context::{LONG, TestContext, blocked, cancelled, gone, granted, renewed},
    share, test,
};

pub(super) const TESTS: &[ConformanceTest] = &[
    test!(b1_one_of_many_concurrent_claims_is_granted),
    test!(b1_a_handle_sees_the_changes_of_the_other_handle, SecondHandle),
    test!(a_release_by_one_handle_keeps_other_leases_of_the_other_handle, SecondHandle),
    test!(b2_a_repeated_acquire_returns_the_same_grant),
    test!(b2_a_second_release_returns_already_gone),
    test!(b2_releasing_an_unknown_claim_does_nothing),
    test!(b4_a_grant_reports_the_remaining_time),
    test!(b5_tokens_grow_across_releases),
    test!(b5_tokens_grow_across_expiry, OwnTtl),
    test!(b5_tokens_grow_across_a_restart, Reopen),
    test!(b5_a_token_is_above_the_floor),
    test!(b5_a_floor_far_ahead_is_refused_and_uses_no_tokens),
    test!(b6_another_capacity_is_a_mismatch, Shares),
    test!(b6_a_free_resource_accepts_any_capacity, Shares),
    test!(b7_a_dropped_acquire_can_be_cancelled),
    test!(b8_an_owner_with_a_tombstone_is_never_granted),
    test!(b8_a_tombstone_for_a_holder_releases_it),
    test!(b8_a_tombstone_concerns_one_owner_of_one_resource),
    test!(b8_a_tombstone_expires),
    test!(a_claim_for_a_held_resource_is_blocked_and_sees_the_holder),
    test!(a_blocked_claim_that_does_not_queue_leaves_no_trace),
    test!(a_released_resource_is_granted_to_the_next_claim),
    test!(a_release_needs_the_owner_token),
    test!(a_release_without_a_tombstone_leaves_none),
];

async fn b1_one_of_many_concurrent_claims_is_granted(ctx: &TestContext) {
    let claims: Vec<_> = (0..16).map(|number| ctx.claim(&format!("claim {number}"))).collect();
    let handles = [ctx.target.backend(), ctx.target.second()];
    let tasks: Vec<_> = claims
        .into_iter()
        .zip(handles.iter().cycle())
        .map(|(claim, &backend)| {
            let backend = Arc::clone(backend);
            tokio::spawn(async move { backend.acquire_one(&claim).await })
        })
        .collect();
    let mut grants = 0;
    for task in tasks {
        match task.await.expect("acquire does not panic") {
            Ok(Verdict::Granted(_)) => grants += 1,
            Ok(Verdict::Blocked(_)) => {}
            other => panic!("expected Granted or Blocked, got {other:?}"),
        }
    }
    assert_eq!(grants, 1, "exactly one claim is granted");
    assert_eq!(ctx.snapshot().await.holder_count, 1);
}

async fn b1_a_handle_sees_the_changes_of_the_other_handle(ctx: &TestContext) {
    let first = granted(ctx.acquire(&ctx.claim("ann")).await);
    let seen = blocked(ctx.acquire_second(&ctx.claim("bob")).await);
    assert_eq!(seen.holders[0].token, first.token);
    // The owner token is all that a release needs, through any handle.
    let request = ReleaseRequest::new(ctx.reference("ann"));
    assert_eq!(ctx.send_release_second(&request).await, Released::Now);
    let second = granted(ctx.acquire_second(&ctx.claim("bob")).await);
    assert!(second.token > first.token, "tokens grow, whichever handle grants");
    blocked(ctx.acquire(&ctx.claim("ann")).await);
}

async fn a_release_by_one_handle_keeps_other_leases_of_the_other_handle(ctx: &TestContext) {
    let at = |name: &str| {
        let mut claim = ctx.claim(name);
        claim.resource = ctx.resource(name);
        claim
    };
    let (ann, bob, cy) = (ctx.claim("ann"), at("bob"), at("cy"));
    // Both handles know of ann's claim, and both learn that it has ended.
    granted(ctx.acquire_second(&ann).await);
    granted(ctx.acquire(&ann).await);
    assert_eq!(ctx.release("ann").await, Released::Now);
    assert_eq!(ctx.send_release_second(&ReleaseRequest::new(ann.reference())).await, Released::AlreadyGone);
    granted(ctx.acquire_second(&bob).await);
    granted(ctx.acquire(&cy).await);
    assert_eq!(
        ctx.send_release(&ReleaseRequest::new(cy.reference()).with_tombstone(LONG)).await,
        Released::Now
    );
    ctx.target.pass(ctx.short_ttl() / 2).await;
    let seen = ctx.inspect(&Query::One(bob.resource)).await.into_snapshots();
    assert_eq!(seen[0].holder_count, 1);
}

async fn b2_a_repeated_acquire_returns_the_same_grant(ctx: &TestContext) {
    let claim = ctx.claim("ann");
    let before = ctx.target.now();
    let first = granted(ctx.acquire(&claim).await);
    let given = (before, ctx.target.now());
    ctx.target.pass(ctx.short_ttl() / 2).await;
    for _ in 0..2 {
        let asked = ctx.target.now();
        let again = granted(ctx.acquire(&claim).await);
        assert_eq!(again.token, first.token, "the same grant");
        ctx.assert_remaining(again.remaining, claim.ttl, given, (asked, ctx.target.now()));
    }
    let seen = ctx.snapshot().await;
    assert_eq!((seen.holder_count, seen.queue_length), (1, 0), "a repeated acquire takes nothing more");
}

async fn b2_a_second_release_returns_already_gone(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim("ann")).await);
    assert_eq!(ctx.release("ann").await, Released::Now);
    assert_eq!(ctx.release("ann").await, Released::AlreadyGone);
    granted(ctx.acquire(&ctx.claim("bob")).await);
    assert_eq!(ctx.release("ann").await, Released::AlreadyGone, "the next holder is not affected");
    renewed(ctx.renew("bob", LONG).await);
}

async fn b2_releasing_an_unknown_claim_does_nothing(ctx: &TestContext) {
    assert_eq!(ctx.release("ann").await, Released::AlreadyGone);
    let seen = ctx.snapshot().await;
    assert_eq!((seen.holder_count, seen.queue_length), (0, 0));
    granted(ctx.acquire(&ctx.claim("ann")).await);
}

async fn b4_a_grant_reports_the_remaining_time(ctx: &TestContext) {
    let claim = ctx.claim("ann");
    let before = ctx.target.now();
    let grant = granted(ctx.acquire(&claim).await);
    let span = (before, ctx.target.now());
    ctx.assert_remaining(grant.remaining, claim.ttl, span, span);
}

async fn b5_tokens_grow_across_releases(ctx: &TestContext) {
    let mut last: Option<FencingToken> = None;
    for round in 0..8 {
        // The same owner and new ones. In between, the resource is free and the queue is empty.
        let name = if round % 2 == 0 { "ann".to_owned() } else { format!("owner {round}") };
        let claim = ctx.claim(&name);
        let grant = if round % 3 == 0 { ctx.acquire_second(&claim).await } else { ctx.acquire(&claim).await };
        let token = granted(grant).token;
        assert!(last.is_none_or(|last| last < token), "{token:?} follows {last:?}");
        last = Some(token);
        ctx.release(&name).await;
    }
}

async fn b5_tokens_grow_across_expiry(ctx: &TestContext) {
    let first = granted(ctx.acquire(&ctx.short_claim("ann")).await);
    ctx.target.let_expire(ctx.short_ttl()).await;
    let second = granted(ctx.acquire(&ctx.short_claim("bob")).await);
    assert!(second.token > first.token);
    ctx.target.let_expire(ctx.short_ttl()).await;
    let third = granted(ctx.acquire(&ctx.short_claim("ann")).await);
    assert!(third.token > second.token, "a second grant of the same owner is a new grant");
}

async fn b5_tokens_grow_across_a_restart(ctx: &TestContext) {
    let first = granted(ctx.acquire(&ctx.claim("ann")).await);
    let opened = ctx.target.reopen().await.expect("the target can be opened again");
    let seen = blocked(opened.acquire_one(&ctx.claim("bob")).await.expect("acquire answers"));
    assert_eq!(seen.holders[0].token, first.token, "the grant is still there");
    ctx.release("ann").await;
    let second = granted(opened.acquire_one(&ctx.claim("bob")).await.expect("acquire answers"));
    assert!(second.token > first.token);
    opened.release_one(&ReleaseRequest::new(ctx.reference("bob"))).await.expect("release answers");
    drop(opened);
    // The resource is free, and no handle that has seen a token is still open.
    let opened = ctx.target.reopen().await.expect("the target can be opened again");
    let third = granted(opened.acquire_one(&ctx.claim("cy")).await.expect("acquire answers"));
    assert!(third.token > second.token);
}

async fn b5_a_token_is_above_the_floor(ctx: &TestContext) {
    let first = granted(ctx.acquire(&ctx.claim("ann")).await).token;
    ctx.release("ann").await;
    let floor = FencingToken::new(first.get() + 1_000).expect("far from the limit");
    match ctx.try_acquire(&ctx.claim("bob").above(floor)).await {
        // If the token is the store's own counter, a floor above it cannot be met. Then the claim is refused.
        Err(error) => assert_eq!(error.effect(), Effect::None, "{error:?}"),
        Ok(verdict) => assert!(granted(verdict).token > floor, "the token is above the floor"),
    }
}

/// A client that asks for a token above 2^53 - 2 must not use up all tokens of the other clients.
async fn b5_a_floor_far_ahead_is_refused_and_uses_no_tokens(ctx: &TestContext) {
    let far_ahead = FencingToken::new(FencingToken::LIMIT - 2).expect("a token");
    for name in ["ann", "bob"] {
        // For ann the resource is new, for bob it has a last token.
        let refusal = ctx.try_acquire(&ctx.claim(name).above(far_ahead)).await;
        let error = refusal.expect_err("the floor is years ahead of any clock");
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Invalid, Effect::None), "{error:?}");
        let token = granted(ctx.acquire(&ctx.claim(name)).await).token;
        assert!(token < far_ahead, "{token:?}");
        ctx.release(name).await;
    }
}

/// An exclusive share with another capacity than the test's.
fn other_capacity(ctx: &TestContext) -> Share {
    if ctx.share == Share::WHOLE { share(1, 2) } else { Share::WHOLE }
}

async fn b6_another_capacity_is_a_mismatch(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim("ann")).await);
    for claim in [ctx.claim_of("bob", other_capacity(ctx)), ctx.claim_of("bob", other_capacity(ctx)).queued()]
    {
        let verdict = ctx.acquire(&claim).await;
        let Verdict::Mismatch { capacity } = verdict else { panic!("expected Mismatch, got {verdict:?}") };
        assert_eq!(capacity, ctx.share.capacity(), "it reports the capacity in use");
    }
    let seen = ctx.snapshot().await;
    assert_eq!(
        (seen.capacity, seen.queue_length),
        (ctx.share.capacity(), 0),
        "a mismatch takes no place in the queue"
    );
}

async fn b6_a_free_resource_accepts_any_capacity(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim("ann")).await);
    ctx.release("ann").await;
    granted(ctx.acquire(&ctx.claim_of("bob", other_capacity(ctx))).await);
    assert_eq!(ctx.snapshot().await.capacity, other_capacity(ctx).capacity());
}

/// Polls the future this many times, with time for other tasks in between, and drops it.
async fn drop_after(polls: usize, future: impl Future) {
    let mut future = pin!(future);
    for _ in 0..polls {
        let ready = std::future::poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_ready())).await;
        if ready {
            return;
        }
        tokio::task::yield_now().await;
    }
}

async fn b7_a_dropped_acquire_can_be_cancelled(ctx: &TestContext) {
    for polls in 0..8 {
        let claim = ctx.claim(&format!("dropped after {polls}"));
        let acquire = ctx.backend().acquire_one(&claim);
        drop_after(polls, acquire).await;
        let request =
            ReleaseRequest::new(claim.reference()).with_tombstone(ReleaseRequest::tombstone_ttl(claim.ttl));
        ctx.send_release(&request).await;
        let next = format!("next after {polls}");
        granted(ctx.acquire(&ctx.claim(&next)).await);
        ctx.release(&next).await;
    }
    assert_eq!(ctx.snapshot().await.holder_count, 0);
}

async fn b8_an_owner_with_a_tombstone_is_never_granted(ctx: &TestContext) {
    assert_eq!(ctx.release_with_tombstone("ann").await, Released::AlreadyGone);
    cancelled(&ctx.acquire(&ctx.claim("ann")).await);
    cancelled(&ctx.acquire(&ctx.claim("ann").queued()).await);
    gone(&ctx.renew("ann", LONG).await, GoneReason::Cancelled);
    assert_eq!(ctx.release("ann").await, Released::AlreadyGone);
    cancelled(&ctx.acquire(&ctx.claim("ann")).await);
    granted(ctx.acquire(&ctx.claim("bob")).await);
}

async fn b8_a_tombstone_for_a_holder_releases_it(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim("ann")).await);
    assert_eq!(ctx.release_with_tombstone("ann").await, Released::Now);
    assert_eq!(ctx.release_with_tombstone("ann").await, Released::AlreadyGone);
    cancelled(&ctx.acquire(&ctx.claim("ann")).await);
    granted(ctx.acquire(&ctx.claim("bob")).await);
    cancelled(&ctx.acquire(&ctx.claim("ann")).await);
}

async fn b8_a_tombstone_concerns_one_owner_of_one_resource(ctx: &TestContext) {
    ctx.release_with_tombstone("ann").await;
    let mut elsewhere = ctx.claim("ann");
    elsewhere.resource = ctx.resource("elsewhere");
    granted(ctx.acquire(&elsewhere).await);
    granted(ctx.acquire(&ctx.claim("bob")).await);
}

async fn b8_a_tombstone_expires(ctx: &TestContext) {
    ctx.send_release(&ReleaseRequest::new(ctx.reference("ann")).with_tombstone(ctx.short_ttl())).await;
    cancelled(&ctx.acquire(&ctx.claim("ann")).await);
    ctx.target.let_expire(ctx.short_ttl()).await;
    granted(ctx.acquire(&ctx.claim("ann")).await);
}

async fn a_claim_for_a_held_resource_is_blocked_and_sees_the_holder(ctx: &TestContext) {
    let claim = ctx.claim("ann");
    let before = ctx.target.now();
    let grant = granted(ctx.acquire(&claim).await);
    let given = (before, ctx.target.now());
    let asked = ctx.target.now();
    let seen = blocked(ctx.acquire(&ctx.claim("bob")).await);
    assert_eq!((seen.queued, seen.ahead, seen.paused), (false, 0, false));
    assert_eq!(seen.holders.len(), 1);
    let by = &seen.holders[0];
    assert_eq!((&by.holder, by.token, by.weight), (&claim.holder, grant.token, ctx.share.weight()));
    assert_eq!((by.handovers, by.evicting, by.kept, &by.asked), (0, false, false, &None));
    if ctx.backend().info().capabilities.own_ttl {
        ctx.assert_remaining(by.remaining, claim.ttl, given, (asked, ctx.target.now()));
    } else {
        // Others wait until the session expires, which is later than the holder's own deadline.
        assert!(by.remaining >= grant.remaining, "{by:?}");
    }
}

async fn a_blocked_claim_that_does_not_queue_leaves_no_trace(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim("ann")).await);
    blocked(ctx.acquire(&ctx.claim("bob")).await);
    assert_eq!(ctx.snapshot().await.queue_length, 0);
    gone(&ctx.renew("bob", LONG).await, GoneReason::NotThere);
    ctx.release("ann").await;
    granted(ctx.acquire(&ctx.claim("cy")).await);
}

async fn a_released_resource_is_granted_to_the_next_claim(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim("ann")).await);
    blocked(ctx.acquire(&ctx.claim("bob")).await);
    assert_eq!(ctx.release("ann").await, Released::Now);
    granted(ctx.acquire(&ctx.claim("bob")).await);
    blocked(ctx.acquire(&ctx.claim("ann")).await);
}

async fn a_release_needs_the_owner_token(ctx: &TestContext) {
    let grant = granted(ctx.acquire(&ctx.claim("ann")).await);
    assert_eq!(ctx.release("bob").await, Released::AlreadyGone);
    assert_eq!(ctx.release_with_tombstone("cy").await, Released::AlreadyGone);
    assert_eq!(renewed(ctx.renew("ann", LONG).await).token, grant.token);
    blocked(ctx.acquire(&ctx.claim("bob")).await);
}

async fn a_release_without_a_tombstone_leaves_none(ctx: &TestContext) {
    let first = granted(ctx.acquire(&ctx.claim("ann")).await);
    ctx.release("ann").await;
    gone(&ctx.renew("ann", LONG).await, GoneReason::NotThere);
    let second = granted(ctx.acquire(&ctx.claim("ann")).await);
    assert!(second.token > first.token, "a new grant");
}
