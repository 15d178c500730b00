//! Operator commands and their audit trail.

use std::time::Duration;

use leasehold_core::{
    AuditRecord, CommandOutcome, Effect, ErrorKind, Eviction, FencingToken, GoneReason, Listing,
    OperatorAction, OperatorCommand, Page, Query, Released, ValueHash,
};

use super::{
    ConformanceTest,
    context::{LONG, TestContext, blocked, cancelled, gone, granted, queued_behind, renewed},
    resize, share, test,
};

pub(super) const TESTS: &[ConformanceTest] = &[
    test!(a_pause_grants_nothing_and_keeps_holders, Orders),
    test!(a_pause_with_a_waiter_is_reported_with_its_own_end, Orders, Queue),
    test!(a_pause_ends_by_itself, Orders),
    test!(a_resume_ends_a_pause, Orders),
    test!(a_pause_keeps_the_queue, Orders, Queue),
    test!(a_later_pause_replaces_the_first, Orders),
    test!(a_finish_request_reaches_the_holder, Orders),
    test!(a_finish_request_does_not_reach_the_next_grant, Orders, OwnTtl),
    test!(an_eviction_at_expiry_lets_the_grant_expire, Orders, OwnTtl),
    test!(an_eviction_now_ends_the_grant_at_once, Orders),
    test!(an_evicted_owner_is_refused, Orders),
    test!(an_order_with_a_token_affects_only_that_grant, Orders),
    test!(an_order_without_a_holder_is_not_done, Orders),
    test!(evicting_a_foreign_lock_that_does_not_exist_changes_nothing, Orders),
    test!(a_kept_resource_can_be_opened_by_an_eviction, Orders, KeepFor),
    test!(resizing_admits_more, Orders, Shares),
    test!(resizing_takes_nothing_from_holders, Orders, Shares),
    test!(resizing_an_unused_resource_is_not_done, Orders),
    test!(every_order_is_recorded, Orders),
    test!(the_audit_trail_comes_in_pages_newest_first, Orders),
    test!(the_audit_trail_keeps_unusual_texts, Orders),
    test!(b9_every_stored_record_expires, Orders, Queue),
];

const PAUSE: OperatorAction = OperatorAction::Pause { lasting: LONG };

async fn a_pause_grants_nothing_and_keeps_holders(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim("ann")).await);
    assert_eq!(ctx.order(PAUSE).await, CommandOutcome::Done);
    renewed(ctx.renew("ann", LONG).await);
    granted(ctx.acquire(&ctx.claim("ann")).await);
    assert!(blocked(ctx.acquire(&ctx.claim("bob")).await).paused);
    assert_eq!(ctx.release("ann").await, Released::Now);
    let seen = blocked(ctx.acquire(&ctx.claim("bob")).await);
    assert!(seen.paused && seen.holders.is_empty());
    let lasts = ctx.snapshot().await.paused_for.expect("the snapshot shows the pause");
    assert!(lasts <= LONG && lasts > LONG / 2, "{lasts:?}");
    let ends_in = seen.pause_ends_in.expect("the verdict says when the pause ends");
    assert!(ends_in <= LONG && ends_in > LONG / 2, "{ends_in:?}");
}

/// The end of a place in the queue is no reason to tell a caller to retry: the resource is paused until later.
async fn a_pause_with_a_waiter_is_reported_with_its_own_end(ctx: &TestContext) {
    ctx.order(PAUSE).await;
    let mut waiting = ctx.claim("ann").queued();
    waiting.place_ttl = ctx.short_ttl();
    queued_behind(ctx.acquire(&waiting).await, 0);
    for claim in [ctx.claim("bob"), waiting] {
        let busy = blocked(ctx.acquire(&claim).await).into_busy();
        let retry_after = busy.retry_after.expect("the end of the pause is known");
        assert!(busy.paused && retry_after > LONG / 2, "{retry_after:?}");
    }
}

async fn a_pause_ends_by_itself(ctx: &TestContext) {
    ctx.order(OperatorAction::Pause { lasting: ctx.short_ttl() }).await;
    let seen = blocked(ctx.acquire(&ctx.claim("ann")).await);
    assert!(
        seen.changes_in.is_some_and(|at| at <= ctx.short_ttl()),
        "changes_in considers the end of the pause"
    );
    ctx.target.let_expire(ctx.short_ttl()).await;
    assert_eq!(ctx.snapshot().await.paused_for, None);
    granted(ctx.acquire(&ctx.claim("ann")).await);
}

async fn a_resume_ends_a_pause(ctx: &TestContext) {
    ctx.order(PAUSE).await;
    blocked(ctx.acquire(&ctx.claim("ann")).await);
    assert_eq!(ctx.order(OperatorAction::Resume).await, CommandOutcome::Done);
    granted(ctx.acquire(&ctx.claim("ann")).await);
    assert_eq!(
        ctx.order(OperatorAction::Resume).await,
        CommandOutcome::Done,
        "resuming a resource without a pause succeeds"
    );
}

async fn a_pause_keeps_the_queue(ctx: &TestContext) {
    ctx.order(PAUSE).await;
    queued_behind(ctx.acquire(&ctx.claim("ann").queued()).await, 0);
    queued_behind(ctx.acquire(&ctx.claim("bob").queued()).await, 1);
    queued_behind(ctx.acquire(&ctx.claim("ann").queued()).await, 0);
    ctx.order(OperatorAction::Resume).await;
    blocked(ctx.acquire(&ctx.claim("bob").queued()).await);
    granted(ctx.acquire(&ctx.claim("ann").queued()).await);
}

async fn a_later_pause_replaces_the_first(ctx: &TestContext) {
    ctx.order(PAUSE).await;
    ctx.order(OperatorAction::Pause { lasting: ctx.short_ttl() }).await;
    ctx.target.let_expire(ctx.short_ttl()).await;
    granted(ctx.acquire(&ctx.claim("ann")).await);
}

async fn a_finish_request_reaches_the_holder(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim("ann")).await);
    assert_eq!(renewed(ctx.renew("ann", LONG).await).asked, None);
    let within = Duration::from_secs(40);
    assert_eq!(ctx.order(OperatorAction::Ask { within }).await, CommandOutcome::Done);
    let answer = renewed(ctx.renew("ann", LONG).await);
    assert!(!answer.evicting, "a finish request takes nothing from the holder");
    let asked = answer.asked.expect("the renewal returns the finish request");
    assert_eq!((&*asked.by, &*asked.why), ("suite", "to see what happens"));
    assert!(asked.within <= within && asked.within > within / 2, "{:?} are left", asked.within);
    assert!(ctx.snapshot().await.holders[0].asked.is_some());
    ctx.target.pass(Duration::from_millis(50)).await;
    let later = renewed(ctx.renew("ann", LONG).await).asked.expect("the finish request stays");
    assert!(later.within < asked.within, "the time to finish decreases");
    ctx.release("ann").await;
    granted(ctx.acquire(&ctx.claim("bob")).await);
    assert_eq!(renewed(ctx.renew("bob", LONG).await).asked, None, "the next holder has no finish request");
}

async fn a_finish_request_does_not_reach_the_next_grant(ctx: &TestContext) {
    let first = ctx.short_claim("ann").with_note(*b"first");
    granted(ctx.acquire(&first).await);
    assert_eq!(ctx.order(OperatorAction::Ask { within: LONG }).await, CommandOutcome::Done);
    ctx.target.let_expire(ctx.short_ttl()).await;
    granted(ctx.acquire(&ctx.claim("ann").with_note(*b"second")).await);
    let seen = ctx.snapshot().await;
    assert_eq!(
        (seen.holders[0].note.as_deref(), seen.holders[0].asked.as_ref()),
        (Some(&b"second"[..]), None)
    );
    assert_eq!(renewed(ctx.renew("ann", LONG).await).asked, None);
}

async fn an_eviction_at_expiry_lets_the_grant_expire(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.short_claim("ann")).await);
    assert_eq!(ctx.order(OperatorAction::Evict(Eviction::AtExpiry)).await, CommandOutcome::Done);
    let answer = renewed(ctx.renew("ann", LONG).await);
    assert!(
        answer.evicting && answer.remaining <= ctx.short_ttl(),
        "the renewal reports the eviction and extends nothing: {answer:?}"
    );
    assert!(ctx.snapshot().await.holders[0].evicting);
    blocked(ctx.acquire(&ctx.claim("bob")).await);
    ctx.target.let_expire(ctx.short_ttl()).await;
    gone(&ctx.renew("ann", LONG).await, GoneReason::NotThere);
    granted(ctx.acquire(&ctx.claim("bob")).await);
    assert!(!renewed(ctx.renew("bob", LONG).await).evicting);
}

async fn an_eviction_now_ends_the_grant_at_once(ctx: &TestContext) {
    let first = granted(ctx.acquire(&ctx.claim("ann")).await);
    assert_eq!(ctx.order(OperatorAction::Evict(Eviction::Now)).await, CommandOutcome::Done);
    gone(&ctx.renew("ann", LONG).await, GoneReason::Evicted);
    let second = granted(ctx.acquire(&ctx.claim("bob")).await);
    assert!(second.token > first.token);
    assert_eq!(ctx.release("ann").await, Released::AlreadyGone);
    renewed(ctx.renew("bob", LONG).await);
}

async fn an_evicted_owner_is_refused(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim("ann")).await);
    ctx.order(OperatorAction::Evict(Eviction::Now)).await;
    cancelled(&ctx.acquire(&ctx.claim("ann")).await);
    cancelled(&ctx.acquire(&ctx.claim("ann").queued()).await);
}

async fn an_order_with_a_token_affects_only_that_grant(ctx: &TestContext) {
    let first = granted(ctx.acquire(&ctx.claim("ann")).await).token;
    ctx.release("ann").await;
    let second = granted(ctx.acquire(&ctx.claim("bob")).await).token;
    let order =
        |command| OperatorCommand::new(ctx.resource.clone(), command, "suite", "mistaken").for_token(first);
    for command in [OperatorAction::Evict(Eviction::Now), OperatorAction::Evict(Eviction::AtExpiry), PAUSE] {
        assert_eq!(
            ctx.send_order(&order(command)).await,
            CommandOutcome::HolderChanged { token: Some(second) }
        );
    }
    let answer = renewed(ctx.renew("bob", LONG).await);
    assert!(!answer.evicting && ctx.snapshot().await.paused_for.is_none(), "the commands had no effect");
    let order =
        OperatorCommand::new(ctx.resource.clone(), OperatorAction::Evict(Eviction::Now), "suite", "meant")
            .for_token(second);
    assert_eq!(ctx.send_order(&order).await, CommandOutcome::Done);
    gone(&ctx.renew("bob", LONG).await, GoneReason::Evicted);
}

async fn an_order_without_a_holder_is_not_done(ctx: &TestContext) {
    let no_holder = CommandOutcome::HolderChanged { token: None };
    assert_eq!(ctx.order(OperatorAction::Ask { within: LONG }).await, no_holder);
    assert_eq!(ctx.order(OperatorAction::Evict(Eviction::Now)).await, no_holder);
    assert_eq!(ctx.order(OperatorAction::Evict(Eviction::AtExpiry)).await, no_holder);
    granted(ctx.acquire(&ctx.claim("ann")).await);
    assert!(!renewed(ctx.renew("ann", LONG).await).evicting, "the command does not affect a later holder");
}

/// A backend whose store has no locks of other programs may also refuse the command.
async fn evicting_a_foreign_lock_that_does_not_exist_changes_nothing(ctx: &TestContext) {
    let evict = OperatorAction::EvictForeign { value: ValueHash::of(b"no such lock") };
    let command = OperatorCommand::new(ctx.resource.clone(), evict, "suite", "to see what happens");
    assert_not_done(ctx, &command, None).await;
    assert_eq!(ctx.snapshot().await.holder_count, 0);

    let token = granted(ctx.acquire(&ctx.claim("ann")).await).token;
    let has_queue = ctx.backend().info().capabilities.queue;
    if has_queue {
        queued_behind(ctx.acquire(&ctx.claim("bob").queued()).await, 0);
    }
    assert_not_done(ctx, &command, Some(token)).await;
    assert_not_done(ctx, &command.clone().for_token(token), Some(token)).await;
    let seen = ctx.snapshot().await;
    assert_eq!((seen.holder_count, seen.holders[0].token, seen.queue_length), (1, token, has_queue.into()));
    assert!(!seen.holders[0].evicting && seen.foreign.is_empty() && seen.paused_for.is_none(), "{seen:?}");
    let answer = renewed(ctx.renew("ann", LONG).await);
    assert!(answer.token == token && !answer.evicting && answer.asked.is_none(), "{answer:?}");
    assert_eq!(ctx.release("ann").await, Released::Now);
    granted(ctx.acquire(&ctx.claim("bob").queued()).await);
}

/// Asserts that the command is not done, and that the reply names the newest holder if it names one.
async fn assert_not_done(ctx: &TestContext, command: &OperatorCommand, newest: Option<FencingToken>) {
    match ctx.try_order(command).await {
        Ok(outcome) => assert_eq!(outcome, CommandOutcome::HolderChanged { token: newest }),
        Err(error) => {
            assert_eq!((error.kind(), error.effect()), (ErrorKind::Unsupported, Effect::None), "{error:?}");
        }
    }
}

async fn a_kept_resource_can_be_opened_by_an_eviction(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim("ann")).await);
    ctx.send_release(&leasehold_core::ReleaseRequest::new(ctx.reference("ann")).keeping(LONG)).await;
    blocked(ctx.acquire(&ctx.claim("bob")).await);
    assert_eq!(ctx.order(OperatorAction::Evict(Eviction::Now)).await, CommandOutcome::Done);
    granted(ctx.acquire(&ctx.claim("bob")).await);
}

async fn resizing_admits_more(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim_of("ann", share(2, 2))).await);
    assert_eq!(ctx.order(resize(4)).await, CommandOutcome::Done);
    assert_eq!(ctx.snapshot().await.capacity, 4);
    granted(ctx.acquire(&ctx.claim_of("bob", share(2, 4))).await);
    blocked(ctx.acquire(&ctx.claim_of("cy", share(1, 4))).await);
}

async fn resizing_takes_nothing_from_holders(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim_of("ann", share(2, 4))).await);
    granted(ctx.acquire(&ctx.claim_of("bob", share(2, 4))).await);
    assert_eq!(ctx.order(resize(2)).await, CommandOutcome::Done);
    renewed(ctx.renew("ann", LONG).await);
    renewed(ctx.renew("bob", LONG).await);
    blocked(ctx.acquire(&ctx.claim_of("cy", share(1, 2))).await);
    ctx.release("ann").await;
    blocked(ctx.acquire(&ctx.claim_of("cy", share(1, 2))).await);
    ctx.release("bob").await;
    granted(ctx.acquire(&ctx.claim_of("cy", share(1, 2))).await);
}

async fn resizing_an_unused_resource_is_not_done(ctx: &TestContext) {
    assert_eq!(ctx.order(resize(7)).await, CommandOutcome::HolderChanged { token: None });
    granted(ctx.acquire(&ctx.claim("ann")).await);
    assert_eq!(ctx.snapshot().await.capacity, 1);
}

/// All pages of this test's audit trail.
async fn audit(ctx: &TestContext, limit: u32) -> Vec<AuditRecord> {
    let (mut all, mut listing) = (Vec::new(), Listing::of(ctx.prefix()).limit(limit));
    loop {
        let Page::Audit { records, next } = ctx.inspect(&Query::Audit(listing)).await else {
            panic!("the query is for the audit trail");
        };
        assert!(limit == 0 || records.len() <= limit as usize, "a page is no longer than its limit");
        all.extend(records);
        match next {
            None => return all,
            Some(next) => listing = Listing::of(ctx.prefix()).limit(limit).after(next),
        }
        assert!(all.len() < 1_000, "a listing ends");
    }
}

async fn every_order_is_recorded(ctx: &TestContext) {
    let token = granted(ctx.acquire(&ctx.claim("ann")).await).token;
    let wrong = FencingToken::new(token.get() - 1).ok();
    ctx.order(PAUSE).await;
    ctx.order(OperatorAction::Resume).await;
    ctx.order(OperatorAction::Ask { within: LONG }).await;
    let evict = OperatorCommand::new(
        ctx.resource.clone(),
        OperatorAction::Evict(Eviction::AtExpiry),
        "ops",
        "too long",
    );
    if let Some(wrong) = wrong {
        ctx.send_order(&evict.clone().for_token(wrong)).await;
    }
    ctx.send_order(&evict.for_token(token)).await;
    ctx.order(OperatorAction::Evict(Eviction::Now)).await;
    let mut records = audit(ctx, 0).await;
    records.reverse();
    let recorded: Vec<_> = records.iter().map(|record| (record.command.as_str(), record.done)).collect();
    let mut expected =
        vec![("pause", true), ("resume", true), ("ask", true), ("evict", false), ("evict", true)];
    expected.push(("evict-now", true));
    if wrong.is_none() {
        expected.remove(3);
    }
    assert_eq!(recorded, expected);
    assert!(records.iter().all(|record| record.resource == ctx.resource));
    let evict = &records[records.len() - 2];
    assert_eq!((evict.token, evict.by.as_str(), evict.why.as_str()), (Some(token), "ops", "too long"));
    assert!(records.is_sorted_by_key(|record| record.at), "in the order of the commands");
}

async fn the_audit_trail_comes_in_pages_newest_first(ctx: &TestContext) {
    for number in 0..7 {
        ctx.send_order(&OperatorCommand::new(
            ctx.resource.clone(),
            OperatorAction::Resume,
            "suite",
            &format!("order {number}"),
        ))
        .await;
    }
    let expected: Vec<_> = (0..7).rev().map(|number| format!("order {number}")).collect();
    for limit in [1, 3, 7, 0] {
        let recorded: Vec<_> = audit(ctx, limit).await.into_iter().map(|record| record.why).collect();
        assert_eq!(recorded, expected, "in pages of {limit}");
    }
}

async fn the_audit_trail_keeps_unusual_texts(ctx: &TestContext) {
    let (by, why) = ("o'neill \"the\" <b>|{op}", "naïve; DROP TABLE leases; -- 🦀\nsecond line");
    ctx.send_order(&OperatorCommand::new(ctx.resource.clone(), OperatorAction::Resume, by, why)).await;
    let record = audit(ctx, 0).await.remove(0);
    assert_eq!((record.by.as_str(), record.why.as_str()), (by, why));
}

/// After all kinds of commands, every record of the resource has an expiry, as far as the store can report.
async fn b9_every_stored_record_expires(ctx: &TestContext) {
    granted(ctx.acquire(&ctx.claim("ann")).await);
    queued_behind(ctx.acquire(&ctx.claim("bob").queued()).await, 0);
    ctx.order(OperatorAction::Ask { within: LONG }).await;
    ctx.order(PAUSE).await;
    ctx.order(OperatorAction::Evict(Eviction::Now)).await;
    let mut listing = Some(Listing::of(ctx.prefix()));
    while let Some(part) = listing.take() {
        match ctx.backend().inspect(&Query::Leaks(part)).await {
            Ok(Page::Leaks { found, next }) => {
                assert_eq!(found, []);
                listing = next.map(|next| Listing::of(ctx.prefix()).after(next));
            }
            Ok(other) => panic!("the query is for leaks: {other:?}"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unsupported),
        }
    }
}
