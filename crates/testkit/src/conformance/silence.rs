//! B3: a waiter that can be granted and does not answer is passed over, and keeps its place. Or it is removed, and stands
//! at the end of the queue when it asks again.

use std::time::Duration;

use leasehold_core::{
    Blocked, Claim, ClientId, GoneReason, OperatorAction, Verdict, admission::ANSWER_WITHIN,
};

use super::{
    ConformanceTest,
    context::{LONG, TestContext, blocked, gone, granted, queued_behind, still_queued},
    test,
};

pub(super) const TESTS: &[ConformanceTest] = &[
    test!(b3_a_silent_waiter_is_passed_over, PassesOver),
    test!(b3_a_silent_waiter_that_answers_stands_where_it_stood, PassesOver),
    test!(b3_a_waiter_whose_place_is_renewed_is_not_silent, PassesOver),
    test!(b3_a_blocked_claim_is_told_when_the_one_ahead_is_passed_over, PassesOver),
    test!(b3_the_waiters_of_a_client_are_silent_together, PassesOver),
    test!(b3_a_hundred_silent_waiters_of_a_client_cost_one_second, PassesOver),
    test!(b3_after_a_silence_the_next_waiter_is_woken_by_any_verb, PassesOver),
    test!(b3_a_silent_waiter_is_listed_as_such, PassesOver),
    test!(b3_a_silent_waiter_may_leave, PassesOver),
    test!(b3_silent_waiters_do_not_open_the_resource_to_another_capacity, PassesOver, Shares),
    test!(b3_a_silent_waiter_is_removed_and_comes_back_at_the_end, RemovesSilent),
    test!(b3_silent_waiters_are_removed_together, RemovesSilent),
    test!(b3_a_waiter_behind_a_silent_one_that_answers_keeps_its_place, RemovesSilent),
    test!(b3_a_pause_makes_no_waiter_silent, RemovesSilent, Orders),
];

/// How long it may take to remove silent waiters, on a loaded machine. Their places last for longer.
const REMOVED_WITHIN: Duration = Duration::from_secs(20);

fn claim_of(ctx: &TestContext, name: &str, client: u64) -> Claim {
    let mut claim = ctx.claim(name).queued();
    claim.client = ClientId::from_number(client);
    claim
}

/// Ann holds. These wait behind her, in this order. Then she releases, and the first one is called.
async fn called(ctx: &TestContext, waiters: &[(&str, u64)]) {
    granted(ctx.acquire(&ctx.claim("ann")).await);
    for (ahead, (name, client)) in (0..).zip(waiters) {
        queued_behind(ctx.acquire(&claim_of(ctx, name, *client)).await, ahead);
    }
    // Now nobody was heard within the last second.
    ctx.target.let_expire(ANSWER_WITHIN).await;
    ctx.release("ann").await;
}

async fn b3_a_silent_waiter_is_passed_over(ctx: &TestContext) {
    called(ctx, &[("bob", 1), ("cy", 2)]).await;
    ctx.target.let_expire(ANSWER_WITHIN).await;
    granted(ctx.acquire(&claim_of(ctx, "cy", 2)).await);
}

async fn b3_a_silent_waiter_that_answers_stands_where_it_stood(ctx: &TestContext) {
    called(ctx, &[("bob", 1), ("cy", 2), ("dan", 3)]).await;
    ctx.target.let_expire(ANSWER_WITHIN).await;
    granted(ctx.acquire(&claim_of(ctx, "cy", 2)).await);
    queued_behind(ctx.acquire(&claim_of(ctx, "dan", 3)).await, 0);
    still_queued(&ctx.renew("bob", LONG).await);
    queued_behind(ctx.acquire(&claim_of(ctx, "dan", 3)).await, 1);
    ctx.release("cy").await;
    granted(ctx.acquire(&claim_of(ctx, "bob", 1)).await);
}

async fn b3_a_waiter_whose_place_is_renewed_is_not_silent(ctx: &TestContext) {
    called(ctx, &[("bob", 1), ("cy", 2)]).await;
    ctx.target.let_expire(ANSWER_WITHIN).await;
    // Nobody has noticed yet that bob is late.
    still_queued(&ctx.renew("bob", LONG).await);
    let seen: Blocked = queued_behind(ctx.acquire(&claim_of(ctx, "cy", 2)).await, 1);
    assert!(seen.changes_in.is_some_and(|changes_in| changes_in <= ANSWER_WITHIN), "{seen:?}");
    granted(ctx.acquire(&claim_of(ctx, "bob", 1)).await);
}

async fn b3_a_blocked_claim_is_told_when_the_one_ahead_is_passed_over(ctx: &TestContext) {
    called(ctx, &[("bob", 1), ("cy", 2)]).await;
    let seen = blocked(ctx.acquire(&claim_of(ctx, "cy", 2)).await);
    assert!(seen.changes_in.is_some_and(|changes_in| changes_in <= ANSWER_WITHIN), "{seen:?}");
    ctx.target.let_expire(seen.changes_in.unwrap_or_default()).await;
    granted(ctx.acquire(&claim_of(ctx, "cy", 2)).await);
}

async fn b3_the_waiters_of_a_client_are_silent_together(ctx: &TestContext) {
    called(ctx, &[("bob", 1), ("cy", 2), ("dan", 1), ("eve", 3)]).await;
    ctx.target.let_expire(ANSWER_WITHIN).await;
    // Cy is not of that client: it is called next.
    queued_behind(ctx.acquire(&claim_of(ctx, "eve", 3)).await, 1);
    granted(ctx.acquire(&claim_of(ctx, "cy", 2)).await);
    ctx.release("cy").await;
    granted(ctx.acquire(&claim_of(ctx, "eve", 3)).await);
}

async fn b3_a_hundred_silent_waiters_of_a_client_cost_one_second(ctx: &TestContext) {
    let names: Vec<String> = (0..100).map(|number| format!("dead {number}")).collect();
    let mut waiters: Vec<_> = names.iter().map(|name| (name.as_str(), 1)).collect();
    waiters.push(("cy", 2));
    granted(ctx.acquire(&ctx.claim("ann")).await);
    for (name, client) in &waiters {
        blocked(ctx.acquire(&claim_of(ctx, name, *client)).await);
    }
    ctx.target.let_expire(ANSWER_WITHIN).await;
    ctx.release("ann").await;
    ctx.target.let_expire(ANSWER_WITHIN).await;
    granted(ctx.acquire(&claim_of(ctx, "cy", 2)).await);
}

async fn b3_after_a_silence_the_next_waiter_is_woken_by_any_verb(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim("ann")).await);
    queued_behind(ctx.acquire(&claim_of(ctx, "bob", 1)).await, 0);
    let cy = claim_of(ctx, "cy", 2);
    let seen = queued_behind(ctx.acquire(&cy).await, 1);
    queued_behind(ctx.acquire(&claim_of(ctx, "dan", 3)).await, 2);
    let waiting = ctx.wait(&cy, seen.cursor, LONG).await;
    ctx.target.let_expire(ANSWER_WITHIN).await;
    ctx.release("ann").await;
    ctx.target.let_expire(ANSWER_WITHIN).await;
    still_queued(&ctx.renew("dan", LONG).await);
    assert!(ctx.returns_within(&waiting, ANSWER_WITHIN * 5).await, "cy can be granted");
    granted(ctx.acquire(&cy).await);
}

async fn b3_a_silent_waiter_is_listed_as_such(ctx: &TestContext) {
    called(ctx, &[("bob", 1), ("cy", 2)]).await;
    ctx.target.let_expire(ANSWER_WITHIN).await;
    granted(ctx.acquire(&claim_of(ctx, "cy", 2)).await);
    let seen = ctx.snapshot().await;
    assert_eq!((seen.queue_length, seen.queue.len()), (1, 1));
    assert!(seen.queue[0].silent);
    still_queued(&ctx.renew("bob", LONG).await);
    assert!(!ctx.snapshot().await.queue[0].silent);
}

async fn b3_a_silent_waiter_may_leave(ctx: &TestContext) {
    called(ctx, &[("bob", 1), ("cy", 2)]).await;
    ctx.target.let_expire(ANSWER_WITHIN).await;
    granted(ctx.acquire(&claim_of(ctx, "cy", 2)).await);
    ctx.release("bob").await;
    ctx.release("cy").await;
    let seen = ctx.snapshot().await;
    assert_eq!((seen.queue_length, seen.holder_count), (0, 0));
    granted(ctx.acquire(&ctx.claim("dan")).await);
}

async fn b3_silent_waiters_do_not_open_the_resource_to_another_capacity(ctx: &TestContext) {
    called(ctx, &[("bob", 1), ("cy", 2)]).await;
    ctx.target.let_expire(ANSWER_WITHIN).await;
    granted(ctx.acquire(&claim_of(ctx, "cy", 2)).await);
    ctx.release("cy").await;
    let other = super::share(1, 7);
    let verdict = ctx.acquire(&ctx.claim_of("dan", other)).await;
    assert!(matches!(verdict, Verdict::Mismatch { .. }), "bob still waits: {verdict:?}");
}

async fn b3_a_silent_waiter_is_removed_and_comes_back_at_the_end(ctx: &TestContext) {
    called(ctx, &[("bob", 1), ("cy", 2), ("dan", 3)]).await;
    let cy = claim_of(ctx, "cy", 2);
    let seen = queued_behind(ctx.acquire(&cy).await, 1);
    let waiting = ctx.wait(&cy, seen.cursor, LONG).await;
    assert!(ctx.returns_within(&waiting, REMOVED_WITHIN).await, "cy can be granted");
    let token = granted(ctx.acquire(&cy).await).token;
    // Bob lives after all, and asks again. Dan came after him, and is ahead now.
    gone(&ctx.renew("bob", LONG).await, GoneReason::NotThere);
    queued_behind(ctx.acquire(&claim_of(ctx, "bob", 1)).await, 1);
    ctx.release("cy").await;
    let next = granted(ctx.acquire(&claim_of(ctx, "dan", 3)).await).token;
    ctx.release("dan").await;
    let last = granted(ctx.acquire(&claim_of(ctx, "bob", 1)).await).token;
    assert!(token < next && next < last);
}

async fn b3_silent_waiters_are_removed_together(ctx: &TestContext) {
    const DEAD: u64 = 40;
    granted(ctx.acquire(&ctx.claim("ann")).await);
    for number in 0..DEAD {
        blocked(ctx.acquire(&claim_of(ctx, &format!("dead {number}"), number)).await);
    }
    let cy = claim_of(ctx, "cy", DEAD);
    let seen = blocked(ctx.acquire(&cy).await);
    let waiting = ctx.wait(&cy, seen.cursor, LONG).await;
    ctx.release("ann").await;
    assert!(ctx.returns_within(&waiting, REMOVED_WITHIN).await, "cy can be granted");
    granted(ctx.acquire(&cy).await);
}

async fn b3_a_waiter_behind_a_silent_one_that_answers_keeps_its_place(ctx: &TestContext) {
    called(ctx, &[("bob", 1), ("cy", 2), ("dan", 3)]).await;
    // Cy answers whatever it is asked, but does not look for silent waiters itself. Dan does.
    let (cy, dan) = (claim_of(ctx, "cy", 2), claim_of(ctx, "dan", 3));
    let seen = queued_behind(ctx.acquire(&dan).await, 2);
    let _looking = ctx.wait(&dan, seen.cursor, LONG).await;
    let until = ctx.target.now().after(REMOVED_WITHIN);
    while let Verdict::Blocked(seen) = ctx.acquire(&cy).await {
        assert!(seen.ahead <= 1, "cy keeps its place: {seen:?}");
        assert!(ctx.target.now() < until, "bob is removed");
        ctx.target.let_tasks_run().await;
    }
    queued_behind(ctx.acquire(&dan).await, 0);
}

async fn b3_a_pause_makes_no_waiter_silent(ctx: &TestContext) {
    called(ctx, &[("bob", 1), ("cy", 2)]).await;
    ctx.order(OperatorAction::Pause { lasting: LONG }).await;
    let cy = claim_of(ctx, "cy", 2);
    let seen = queued_behind(ctx.acquire(&cy).await, 1);
    let waiting = ctx.wait(&cy, seen.cursor, LONG).await;
    ctx.target.let_expire(ANSWER_WITHIN * 3).await;
    assert!(!waiting.task.is_finished(), "nobody can be granted");
    still_queued(&ctx.renew("bob", LONG).await);
}
