//! Several claims, or several releases, in one call: each is one step of its own.

use leasehold_core::{Claim, Effect, ErrorKind, ReleaseRequest, Released, Resource, Result, Verdict};

use super::{
    ConformanceTest,
    context::{LONG, TestContext, blocked, cancelled, granted, queued_behind},
    share, test,
};

pub(super) const TESTS: &[ConformanceTest] = &[
    test!(no_claims_give_no_results),
    test!(each_claim_of_a_call_has_its_own_result, Gather),
    test!(a_whole_call_is_granted, Gather),
    test!(claims_on_one_resource_are_executed_in_their_order, Gather),
    test!(claims_on_one_resource_queue_in_their_order, Gather, Queue),
    test!(b2_a_claim_that_is_twice_in_a_call_is_granted_once, Gather),
    test!(b1_permits_of_one_call_never_exceed_the_capacity, Gather, Shares),
    test!(b7_a_refused_claim_does_not_harm_the_others, Gather),
    test!(b8_a_cancelled_claim_does_not_harm_the_others, Gather),
    test!(each_release_of_a_call_has_its_own_result, Gather),
    test!(releases_of_one_call_let_the_waiters_of_each_resource_go_on, Gather, Queue),
    test!(b8_releases_of_one_call_leave_their_tombstones, Gather),
];

/// The number of claims in a call of these tests.
const COUNT: usize = 4;

/// Resources of one failure domain.
fn resources(ctx: &TestContext, count: usize) -> Vec<Resource> {
    let domain = ctx.backend().failure_domain(&ctx.resource);
    let all = (0..).map(|number: u32| ctx.resource(&number.to_string()));
    all.filter(|resource| ctx.backend().failure_domain(resource) == domain).take(count).collect()
}

/// How many claims these tests send in one call.
fn call_size(ctx: &TestContext) -> usize {
    ctx.backend().info().limits.gather.min(COUNT)
}

fn on(mut claim: Claim, resource: &Resource) -> Claim {
    claim.resource = resource.clone();
    claim
}

/// One claim of another owner for each resource.
fn one_each(ctx: &TestContext, resources: &[Resource]) -> Vec<Claim> {
    let claim = |(number, resource): (usize, &Resource)| on(ctx.claim(&format!("owner {number}")), resource);
    resources.iter().enumerate().map(claim).collect()
}

async fn acquire_all(ctx: &TestContext, claims: &[Claim]) -> Vec<Result<Verdict>> {
    let results = ctx.backend().acquire(claims).await;
    assert_eq!(results.len(), claims.len(), "one result for each claim");
    results
}

async fn release_all(ctx: &TestContext, claims: &[Claim]) -> Vec<Released> {
    let requests: Vec<_> = claims.iter().map(|claim| ReleaseRequest::new(claim.reference())).collect();
    let results = ctx.backend().release(&requests).await;
    assert_eq!(results.len(), requests.len(), "one result for each request");
    results.into_iter().map(|result| result.expect("release succeeds")).collect()
}

fn all_granted(results: Vec<Result<Verdict>>) {
    for result in results {
        granted(result.expect("acquire succeeds"));
    }
}

async fn no_claims_give_no_results(ctx: &TestContext) {
    assert!(ctx.backend().acquire(&[]).await.is_empty());
    assert!(ctx.backend().release(&[]).await.is_empty());
}

async fn each_claim_of_a_call_has_its_own_result(ctx: &TestContext) {
    let resources = resources(ctx, call_size(ctx));
    let held = &resources[1];
    let holder = on(ctx.claim("holder"), held);
    granted(ctx.acquire(&holder).await);
    let claims = one_each(ctx, &resources);
    let results = acquire_all(ctx, &claims).await;
    for (claim, result) in claims.iter().zip(results) {
        let verdict = result.expect("acquire succeeds");
        if claim.resource == *held {
            let seen = blocked(verdict);
            assert!(!seen.queued && seen.holders.len() == 1, "{seen:?}");
        } else {
            let grant = granted(verdict);
            // Asking again returns the same grant: each result belongs to its own claim.
            assert_eq!(granted(ctx.acquire(claim).await).token, grant.token);
        }
    }
    assert_eq!(release_all(ctx, &[holder]).await, [Released::Now]);
}

async fn a_whole_call_is_granted(ctx: &TestContext) {
    let claims = one_each(ctx, &resources(ctx, ctx.backend().info().limits.gather));
    all_granted(acquire_all(ctx, &claims).await);
    assert!(release_all(ctx, &claims).await.iter().all(|released| *released == Released::Now));
}

async fn claims_on_one_resource_are_executed_in_their_order(ctx: &TestContext) {
    let claims = [ctx.claim("ann"), ctx.claim("bob")];
    let [first, second] = acquire_all(ctx, &claims).await.try_into().expect("two results");
    let token = granted(first.expect("acquire succeeds")).token;
    let seen = blocked(second.expect("acquire succeeds"));
    assert_eq!(seen.holders[0].token, token, "the second claim sees the first one hold");
    assert_eq!(ctx.snapshot().await.holder_count, 1);
    assert_eq!(release_all(ctx, &claims).await, [Released::Now, Released::AlreadyGone]);
}

async fn claims_on_one_resource_queue_in_their_order(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim("holder")).await);
    let names = ["ann", "bob"];
    let claims: Vec<_> = names.iter().map(|name| ctx.claim(name).queued()).collect();
    for (ahead, result) in (0..).zip(acquire_all(ctx, &claims).await) {
        queued_behind(result.expect("acquire succeeds"), ahead);
    }
    ctx.release("holder").await;
    queued_behind(ctx.acquire(&claims[1]).await, ctx.expected_ahead(1, 1));
    granted(ctx.acquire(&claims[0]).await);
}

async fn b2_a_claim_that_is_twice_in_a_call_is_granted_once(ctx: &TestContext) {
    let claim = ctx.claim("ann");
    let [first, second] =
        acquire_all(ctx, &[claim.clone(), claim.clone()]).await.try_into().expect("two results");
    let (first, second) = (granted(first.expect("granted")), granted(second.expect("granted")));
    assert_eq!(first.token, second.token);
    assert_eq!(release_all(ctx, &[claim.clone(), claim]).await, [Released::Now, Released::AlreadyGone]);
}

async fn b1_permits_of_one_call_never_exceed_the_capacity(ctx: &TestContext) {
    let count = call_size(ctx);
    let permit = share(1, u32::try_from(count).expect("few") - 1);
    let claims: Vec<_> = (0..count).map(|number| ctx.claim_of(&format!("owner {number}"), permit)).collect();
    let verdicts: Vec<_> =
        acquire_all(ctx, &claims).await.into_iter().map(|result| result.expect("acquire succeeds")).collect();
    let mut tokens: Vec<_> =
        verdicts[..count - 1].iter().map(|verdict| granted(verdict.clone()).token).collect();
    blocked(verdicts[count - 1].clone());
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), count - 1, "every permit has its own token");
}

async fn b7_a_refused_claim_does_not_harm_the_others(ctx: &TestContext) {
    let mut claims = one_each(ctx, &resources(ctx, call_size(ctx)));
    claims[1].note = Some(vec![b'x'; ctx.backend().info().limits.note + 1].into());
    let mut results = acquire_all(ctx, &claims).await;
    let refused = results.remove(1).expect_err("the note is too long");
    assert_eq!((refused.kind(), refused.effect()), (ErrorKind::Limit, Effect::None), "{refused}");
    assert!(refused.resource().is_none_or(|named| *named == claims[1].resource), "names its own: {refused}");
    all_granted(results);
}

async fn b8_a_cancelled_claim_does_not_harm_the_others(ctx: &TestContext) {
    let claims = one_each(ctx, &resources(ctx, call_size(ctx)));
    let tombstone =
        ReleaseRequest::new(claims[1].reference()).with_tombstone(ReleaseRequest::tombstone_ttl(LONG));
    ctx.send_release(&tombstone).await;
    let mut results = acquire_all(ctx, &claims).await;
    cancelled(&results.remove(1).expect("acquire succeeds"));
    all_granted(results);
}

async fn each_release_of_a_call_has_its_own_result(ctx: &TestContext) {
    let claims = one_each(ctx, &resources(ctx, call_size(ctx)));
    all_granted(acquire_all(ctx, &claims).await);
    ctx.send_release(&ReleaseRequest::new(claims[1].reference())).await;
    for (number, released) in release_all(ctx, &claims).await.into_iter().enumerate() {
        let expected = if number == 1 { Released::AlreadyGone } else { Released::Now };
        assert_eq!(released, expected, "release {number}");
    }
    // All of them are free.
    let again: Vec<_> = claims.iter().map(|claim| on(ctx.claim("again"), &claim.resource)).collect();
    all_granted(acquire_all(ctx, &again).await);
}

async fn releases_of_one_call_let_the_waiters_of_each_resource_go_on(ctx: &TestContext) {
    let resources = resources(ctx, 2);
    let claims = one_each(ctx, &resources);
    all_granted(acquire_all(ctx, &claims).await);
    let mut waits = Vec::new();
    for resource in &resources {
        let waiter = on(ctx.claim("waiter"), resource).queued();
        let seen = queued_behind(ctx.acquire(&waiter).await, 0);
        waits.push((ctx.wait(&waiter, seen.cursor, LONG).await, waiter));
    }
    release_all(ctx, &claims).await;
    for (wait, waiter) in waits {
        assert!(ctx.returns_within(&wait, LONG / 9).await, "the waiter for {} is woken", waiter.resource);
        granted(ctx.acquire(&waiter).await);
    }
}

async fn b8_releases_of_one_call_leave_their_tombstones(ctx: &TestContext) {
    let claims = one_each(ctx, &resources(ctx, 2));
    let requests: Vec<_> = claims
        .iter()
        .map(|claim| {
            ReleaseRequest::new(claim.reference()).with_tombstone(ReleaseRequest::tombstone_ttl(LONG))
        })
        .collect();
    assert!(ctx.backend().release(&requests).await.iter().all(Result::is_ok));
    for result in acquire_all(ctx, &claims).await {
        cancelled(&result.expect("acquire succeeds"));
    }
}
