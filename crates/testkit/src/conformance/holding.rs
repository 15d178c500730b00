//! Expiry, renewal, notes and `keep_for`.

use std::time::Duration;

use leasehold_core::{GoneReason, ReleaseRequest, Released, RenewRequest};

use super::{
    ConformanceTest,
    context::{LONG, TestContext, blocked, cancelled, gone, granted, renewed},
    test,
};

pub(super) const TESTS: &[ConformanceTest] = &[
    test!(b4_an_expired_grant_frees_the_resource, OwnTtl),
    test!(b10_a_renewal_extends_the_grant, OwnTtl),
    test!(b10_a_renewal_reports_the_remaining_time),
    test!(b10_a_renewal_never_revives_an_expired_grant, OwnTtl),
    test!(b10_a_renewal_never_shortens_a_grant),
    test!(b10_a_repeated_acquire_does_not_extend_the_grant, OwnTtl),
    test!(b10_a_handle_sees_the_renewal_of_the_other_handle, OwnTtl, SecondHandle),
    test!(another_owner_cannot_renew),
    test!(a_late_release_does_not_affect_the_next_holder, OwnTtl),
    test!(the_replies_to_a_batch_are_in_its_order),
    test!(a_note_is_visible_and_can_be_replaced),
    test!(others_see_the_ttl_of_a_holder),
    test!(a_kept_resource_stays_closed, KeepFor),
    test!(a_kept_resource_opens_after_keep_for, KeepFor, OwnTtl),
    test!(a_kept_resource_has_no_owner_any_more, KeepFor),
    test!(keep_for_zero_is_a_plain_release, KeepFor),
    test!(only_a_holder_can_keep_a_resource_closed, KeepFor),
];

async fn b4_an_expired_grant_frees_the_resource(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.short_claim("ann")).await);
    blocked(ctx.acquire(&ctx.claim("bob")).await);
    ctx.target.let_expire(ctx.short_ttl()).await;
    assert_eq!(ctx.snapshot().await.holder_count, 0, "inspect considers expiry, too");
    granted(ctx.acquire(&ctx.claim("bob")).await);
    gone(&ctx.renew("ann", LONG).await, GoneReason::NotThere);
}

async fn b10_a_renewal_extends_the_grant(ctx: &TestContext) {
    let grant = granted(ctx.acquire(&ctx.short_claim("ann")).await);
    let answer = renewed(ctx.renew("ann", LONG).await);
    assert_eq!(answer.token, grant.token);
    assert_eq!((answer.asked, answer.evicting), (None, false));
    ctx.target.let_expire(ctx.short_ttl()).await;
    blocked(ctx.acquire(&ctx.claim("bob")).await);
    assert_eq!(granted(ctx.acquire(&ctx.claim("ann")).await).token, grant.token);
}

async fn b10_a_renewal_reports_the_remaining_time(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim("ann")).await);
    let before = ctx.target.now();
    let answer = renewed(ctx.renew("ann", LONG * 2).await);
    let span = (before, ctx.target.now());
    ctx.assert_remaining(answer.remaining, LONG * 2, span, span);
}

async fn b10_a_renewal_never_revives_an_expired_grant(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.short_claim("ann")).await);
    ctx.target.let_expire(ctx.short_ttl()).await;
    // An expired grant stays gone, although no other claim came in between.
    gone(&ctx.renew("ann", LONG).await, GoneReason::NotThere);
    assert_eq!(ctx.snapshot().await.holder_count, 0);
    assert_eq!(ctx.release("ann").await, Released::AlreadyGone);
}

async fn b10_a_renewal_never_shortens_a_grant(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim("ann")).await);
    let answer = renewed(ctx.renew("ann", ctx.short_ttl()).await);
    ctx.assert_most_remains(answer.remaining);
    ctx.target.let_expire(ctx.short_ttl()).await;
    blocked(ctx.acquire(&ctx.claim("bob")).await);
    renewed(ctx.renew("ann", ctx.short_ttl()).await);
}

async fn b10_a_repeated_acquire_does_not_extend_the_grant(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.short_claim("ann")).await);
    // Also with a longer ttl than before: the grant keeps its first ttl.
    let again = granted(ctx.acquire(&ctx.claim("ann")).await);
    assert!(again.remaining <= ctx.short_ttl() + Duration::from_millis(1), "{:?} remain", again.remaining);
    ctx.target.let_expire(ctx.short_ttl()).await;
    granted(ctx.acquire(&ctx.claim("bob")).await);
}

async fn b10_a_handle_sees_the_renewal_of_the_other_handle(ctx: &TestContext) {
    let claim = ctx.claim("ann");
    granted(ctx.acquire_second(&claim).await);
    ctx.target.pass(ctx.short_ttl() * 2).await;
    let before = ctx.target.now();
    renewed(ctx.renew("ann", claim.ttl).await);
    let given = (before, ctx.target.now());
    let shorter = RenewRequest::new(claim.reference(), ctx.short_ttl());
    let answer = ctx.target.second().renew(&[shorter]).await.remove(0).expect("renew answers");
    ctx.assert_remaining(renewed(answer).remaining, claim.ttl, given, (given.1, ctx.target.now()));
    let asked = ctx.target.now();
    let again = granted(ctx.acquire_second(&claim).await);
    ctx.assert_remaining(again.remaining, claim.ttl, given, (asked, ctx.target.now()));
}

async fn another_owner_cannot_renew(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim("ann")).await);
    gone(&ctx.renew("bob", LONG).await, GoneReason::NotThere);
    assert_eq!(ctx.snapshot().await.holder_count, 1);
}

async fn a_late_release_does_not_affect_the_next_holder(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.short_claim("ann")).await);
    ctx.target.let_expire(ctx.short_ttl()).await;
    let grant = granted(ctx.acquire(&ctx.claim("bob")).await);
    assert_eq!(ctx.release("ann").await, Released::AlreadyGone);
    assert_eq!(ctx.release_with_tombstone("ann").await, Released::AlreadyGone);
    assert_eq!(renewed(ctx.renew("bob", LONG).await).token, grant.token);
}

async fn the_replies_to_a_batch_are_in_its_order(ctx: &TestContext) {
    let mut batch = Vec::new();
    let mut tokens = Vec::new();
    // A batch must stay within one failure domain: on Redis Cluster, within one shard.
    let failure_domain = ctx.backend().failure_domain(&ctx.resource);
    for number in 0..12 {
        let mut claim = ctx.claim(&format!("holder {number}"));
        claim.resource = ctx.resource(&format!("batch {number}"));
        if ctx.backend().failure_domain(&claim.resource) != failure_domain {
            continue;
        }
        // Every third claim is not acquired.
        let holds = number % 3 != 0;
        tokens.push(if holds { Some(granted(ctx.acquire(&claim).await).token) } else { None });
        batch.push(RenewRequest::new(claim.reference(), LONG));
    }
    let answers = ctx.backend().renew(&batch).await;
    assert_eq!(answers.len(), batch.len(), "one reply for each request");
    for (answer, token) in answers.into_iter().zip(tokens) {
        let answer = answer.expect("renew answers");
        match token {
            Some(token) => assert_eq!(renewed(answer).token, token),
            None => gone(&answer, GoneReason::NotThere),
        }
    }
    assert!(ctx.backend().renew(&[]).await.is_empty(), "an empty batch has no replies");
}

async fn a_note_is_visible_and_can_be_replaced(ctx: &TestContext) {
    let bytes: Vec<u8> = (0..=255).collect();
    granted(ctx.acquire(&ctx.claim("ann").with_note(bytes.clone())).await);
    assert_eq!(
        ctx.snapshot().await.holders[0].note.as_deref(),
        Some(bytes.as_slice()),
        "any bytes are valid"
    );
    assert_eq!(
        blocked(ctx.acquire(&ctx.claim("bob")).await).holders[0].note.as_deref(),
        Some(bytes.as_slice())
    );
    renewed(ctx.renew("ann", LONG).await);
    assert_eq!(
        ctx.snapshot().await.holders[0].note.as_deref(),
        Some(bytes.as_slice()),
        "a renewal without a note keeps it"
    );
    renewed(ctx.renew_one(RenewRequest::new(ctx.reference("ann"), LONG).with_note(*b"other")).await);
    assert_eq!(ctx.snapshot().await.holders[0].note.as_deref(), Some(b"other".as_slice()));
    ctx.release("ann").await;
    granted(ctx.acquire(&ctx.claim("bob")).await);
    assert_eq!(ctx.snapshot().await.holders[0].note, None, "the next holder has its own note");
}

fn keeping(ctx: &TestContext, name: &str, keep_for: Duration) -> ReleaseRequest {
    ReleaseRequest::new(ctx.reference(name)).keeping(keep_for)
}

async fn others_see_the_ttl_of_a_holder(ctx: &TestContext) {
    let mut claim = ctx.claim("ann");
    claim.ttl = Duration::from_secs(80);
    granted(ctx.acquire(&claim).await);
    // Where a session keeps grants alive, the ttl of a claim has no meaning and need not be stored.
    let must_be_stored = ctx.backend().info().capabilities.own_ttl;
    let seen = ctx.snapshot().await.holders.remove(0);
    let is_right = |ttl: Option<Duration>| ttl.is_none_or(|ttl| ttl == claim.ttl);
    assert!(is_right(seen.ttl) && (seen.ttl.is_some() || !must_be_stored), "{seen:?}");
    assert_eq!(&*seen.holder.label, "ann");
    let seen = blocked(ctx.acquire(&ctx.claim("bob")).await).holders.remove(0);
    assert!(is_right(seen.ttl), "{seen:?}");
    assert_eq!(&*seen.holder.label, "ann");
}

async fn a_kept_resource_stays_closed(ctx: &TestContext) {
    let grant = granted(ctx.acquire(&ctx.claim("ann")).await);
    assert_eq!(ctx.send_release(&keeping(ctx, "ann", LONG)).await, Released::Now);
    let seen = blocked(ctx.acquire(&ctx.claim("bob")).await);
    assert_eq!((seen.holders[0].kept, seen.holders[0].token), (true, grant.token));
    let seen = ctx.snapshot().await;
    assert_eq!((seen.holder_count, seen.holders[0].kept), (1, true));
}

async fn a_kept_resource_opens_after_keep_for(ctx: &TestContext) {
    // The ttl of the grant is much longer: `keep_for` counts from the release.
    let first = granted(ctx.acquire(&ctx.claim("ann")).await);
    ctx.send_release(&keeping(ctx, "ann", ctx.short_ttl())).await;
    blocked(ctx.acquire(&ctx.claim("bob")).await);
    ctx.target.let_expire(ctx.short_ttl()).await;
    let second = granted(ctx.acquire(&ctx.claim("bob")).await);
    assert!(second.token > first.token);
}

async fn a_kept_resource_has_no_owner_any_more(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim("ann")).await);
    ctx.send_release(&keeping(ctx, "ann", LONG)).await;
    gone(&ctx.renew("ann", LONG).await, GoneReason::NotThere);
    cancelled(&ctx.acquire(&ctx.claim("ann")).await);
    assert_eq!(ctx.release("ann").await, Released::AlreadyGone);
    assert_eq!(ctx.send_release(&keeping(ctx, "ann", LONG)).await, Released::AlreadyGone);
    blocked(ctx.acquire(&ctx.claim("bob")).await);
}

async fn keep_for_zero_is_a_plain_release(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim("ann")).await);
    assert_eq!(ctx.send_release(&keeping(ctx, "ann", Duration::ZERO)).await, Released::Now);
    granted(ctx.acquire(&ctx.claim("bob")).await);
}

async fn only_a_holder_can_keep_a_resource_closed(ctx: &TestContext) {
    assert_eq!(ctx.send_release(&keeping(ctx, "ann", LONG)).await, Released::AlreadyGone);
    granted(ctx.acquire(&ctx.claim("bob")).await);
    assert_eq!(ctx.send_release(&keeping(ctx, "ann", LONG)).await, Released::AlreadyGone);
    ctx.release("bob").await;
    granted(ctx.acquire(&ctx.claim("cy")).await);
}
