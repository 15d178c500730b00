//! Exclusion, idempotence, tokens and tombstones: what any exclusive share promises.

use std::{future::Future, pin::pin, sync::Arc, task::Poll};

use leasehold_core::{
    Effect, ErrorKind, FencingToken, GoneReason, Query, ReleaseRequest, Released, Share, Verdict,
};

use super::{
    Test,
    desk::{Desk, LONG, blocked, buried, gone, granted, kept},
    share, test,
};

pub(super) const TESTS: &[Test] = &[
    test!(b1_of_many_at_once_one_is_granted),
    test!(b1_what_one_handle_did_the_other_sees, Twice),
    test!(what_one_handle_lets_go_the_other_does_not_lose, Twice),
    test!(b2_asking_again_returns_the_same_grant),
    test!(b2_releasing_twice_says_already_gone),
    test!(b2_releasing_what_was_never_there_does_nothing),
    test!(b4_a_grant_says_how_much_remains),
    test!(b5_tokens_grow_across_releases),
    test!(b5_tokens_grow_across_expiry, OwnTtl),
    test!(b5_tokens_grow_across_a_restart, Reopening),
    test!(b5_a_token_is_above_the_floor),
    test!(b5_an_absurd_floor_is_refused_and_uses_up_nothing),
    test!(b6_another_capacity_is_a_mismatch, Shares),
    test!(b6_when_nobody_is_there_any_capacity_will_do, Shares),
    test!(b7_a_dropped_claim_can_be_buried),
    test!(b8_a_buried_owner_is_never_granted),
    test!(b8_burying_a_holder_releases_it),
    test!(b8_burying_concerns_one_owner_of_one_resource),
    test!(b8_a_tombstone_ends),
    test!(a_held_resource_is_blocked_and_says_by_whom),
    test!(leaving_leaves_no_trace),
    test!(a_release_lets_the_next_one_in),
    test!(a_release_needs_the_owner_token),
    test!(a_plain_farewell_does_not_bury),
];

async fn b1_of_many_at_once_one_is_granted(desk: &Desk) {
    let claims: Vec<_> = (0..16).map(|number| desk.claim(&format!("rival {number}"))).collect();
    let handles = [desk.target.backend(), desk.target.second()];
    let tasks: Vec<_> = claims
        .into_iter()
        .zip(handles.iter().cycle())
        .map(|(claim, &backend)| {
            let backend = Arc::clone(backend);
            tokio::spawn(async move { backend.acquire(&claim).await })
        })
        .collect();
    let mut grants = 0;
    for task in tasks {
        match task.await.expect("acquire does not panic") {
            Ok(Verdict::Granted(_)) => grants += 1,
            Ok(Verdict::Blocked(_)) => {}
            other => panic!("one is granted, the others are blocked: {other:?}"),
        }
    }
    assert_eq!(grants, 1, "exactly one of the rivals holds it");
    assert_eq!(desk.look().await.holder_count, 1);
}

async fn b1_what_one_handle_did_the_other_sees(desk: &Desk) {
    let first = granted(desk.ask(&desk.claim("ann")).await);
    let seen = blocked(desk.ask_second(&desk.claim("bob")).await);
    assert_eq!(seen.holders[0].token, first.token);
    // The owner token is the capability, wherever it is used.
    let request = ReleaseRequest::new(desk.reference("ann"));
    assert_eq!(desk.bid_second(&request).await, Released::Now);
    let second = granted(desk.ask_second(&desk.claim("bob")).await);
    assert!(second.token > first.token, "tokens grow whichever handle grants");
    blocked(desk.ask(&desk.claim("ann")).await);
}

async fn what_one_handle_lets_go_the_other_does_not_lose(desk: &Desk) {
    let at = |name: &str| {
        let mut claim = desk.claim(name);
        claim.resource = desk.resource(name);
        claim
    };
    let (ann, bob, cy) = (desk.claim("ann"), at("bob"), at("cy"));
    // Both know of one claim, and both hear that it has ended.
    granted(desk.ask_second(&ann).await);
    granted(desk.ask(&ann).await);
    assert_eq!(desk.leave("ann").await, Released::Now);
    assert_eq!(desk.bid_second(&ReleaseRequest::new(ann.reference())).await, Released::AlreadyGone);
    granted(desk.ask_second(&bob).await);
    granted(desk.ask(&cy).await);
    assert_eq!(desk.bid(&ReleaseRequest::new(cy.reference()).with_tombstone(LONG)).await, Released::Now);
    desk.target.pass(desk.short() / 2).await;
    let seen = desk.page(&Query::One(bob.resource)).await.into_snapshots();
    assert_eq!(seen[0].holder_count, 1);
}

async fn b2_asking_again_returns_the_same_grant(desk: &Desk) {
    let claim = desk.claim("ann");
    let before = desk.target.now();
    let first = granted(desk.ask(&claim).await);
    let given = (before, desk.target.now());
    desk.target.pass(desk.short() / 2).await;
    for _ in 0..2 {
        let asked = desk.target.now();
        let again = granted(desk.ask(&claim).await);
        assert_eq!(again.token, first.token, "it is the same grant");
        desk.remains(again.remaining, claim.ttl, given, (asked, desk.target.now()));
    }
    let seen = desk.look().await;
    assert_eq!((seen.holder_count, seen.queue_length), (1, 0), "asking again takes nothing more");
}

async fn b2_releasing_twice_says_already_gone(desk: &Desk) {
    granted(desk.ask(&desk.claim("ann")).await);
    assert_eq!(desk.leave("ann").await, Released::Now);
    assert_eq!(desk.leave("ann").await, Released::AlreadyGone);
    granted(desk.ask(&desk.claim("bob")).await);
    assert_eq!(desk.leave("ann").await, Released::AlreadyGone, "and does not hurt the next holder");
    kept(desk.renew("bob", LONG).await);
}

async fn b2_releasing_what_was_never_there_does_nothing(desk: &Desk) {
    assert_eq!(desk.leave("ann").await, Released::AlreadyGone);
    let seen = desk.look().await;
    assert_eq!((seen.holder_count, seen.queue_length), (0, 0));
    granted(desk.ask(&desk.claim("ann")).await);
}

async fn b4_a_grant_says_how_much_remains(desk: &Desk) {
    let claim = desk.claim("ann");
    let before = desk.target.now();
    let grant = granted(desk.ask(&claim).await);
    let span = (before, desk.target.now());
    desk.remains(grant.remaining, claim.ttl, span, span);
}

async fn b5_tokens_grow_across_releases(desk: &Desk) {
    let mut last: Option<FencingToken> = None;
    for round in 0..8 {
        // The same owner and new ones, with the line empty and nobody there in between.
        let name = if round % 2 == 0 { "ann".to_owned() } else { format!("owner {round}") };
        let claim = desk.claim(&name);
        let grant = if round % 3 == 0 { desk.ask_second(&claim).await } else { desk.ask(&claim).await };
        let token = granted(grant).token;
        assert!(last.is_none_or(|last| last < token), "{token:?} follows {last:?}");
        last = Some(token);
        desk.leave(&name).await;
    }
}

async fn b5_tokens_grow_across_expiry(desk: &Desk) {
    let first = granted(desk.ask(&desk.brief("ann")).await);
    desk.target.outlast(desk.short()).await;
    let second = granted(desk.ask(&desk.brief("bob")).await);
    assert!(second.token > first.token);
    desk.target.outlast(desk.short()).await;
    let third = granted(desk.ask(&desk.brief("ann")).await);
    assert!(third.token > second.token, "a second grant of the same owner is a new grant");
}

async fn b5_tokens_grow_across_a_restart(desk: &Desk) {
    let first = granted(desk.ask(&desk.claim("ann")).await);
    let opened = desk.target.reopen().await.expect("the target can be opened again");
    let seen = blocked(opened.acquire(&desk.claim("bob")).await.expect("acquire answers"));
    assert_eq!(seen.holders[0].token, first.token, "what was held is held");
    desk.leave("ann").await;
    let second = granted(opened.acquire(&desk.claim("bob")).await.expect("acquire answers"));
    assert!(second.token > first.token);
    opened.release(&ReleaseRequest::new(desk.reference("bob"))).await.expect("release answers");
    drop(opened);
    // Nobody is there, and nobody who saw a token has stayed.
    let opened = desk.target.reopen().await.expect("the target can be opened again");
    let third = granted(opened.acquire(&desk.claim("cy")).await.expect("acquire answers"));
    assert!(third.token > second.token);
}

async fn b5_a_token_is_above_the_floor(desk: &Desk) {
    let first = granted(desk.ask(&desk.claim("ann")).await).token;
    desk.leave("ann").await;
    let floor = FencingToken::new(first.get() + 1_000).expect("far from the limit");
    match desk.try_ask(&desk.claim("bob").above(floor)).await {
        // Where the token is the store's own counter, a floor above it cannot be met: refused, never undercut.
        Err(error) => assert_eq!(error.effect(), Effect::None, "{error:?}"),
        Ok(verdict) => assert!(granted(verdict).token > floor, "the token is above the floor"),
    }
}

/// A client that asks for a token above 2^53 - 2 must not take all tokens from the others.
async fn b5_an_absurd_floor_is_refused_and_uses_up_nothing(desk: &Desk) {
    let absurd = FencingToken::new(FencingToken::LIMIT - 2).expect("a token");
    for name in ["ann", "bob"] {
        // The first time the resource is new, the second time it has a last token.
        let refusal = desk.try_ask(&desk.claim(name).above(absurd)).await;
        let error = refusal.expect_err("the floor is years ahead of any clock");
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Invalid, Effect::None), "{error:?}");
        let token = granted(desk.ask(&desk.claim(name)).await).token;
        assert!(token < absurd, "{token:?}");
        desk.leave(name).await;
    }
}

/// Exclusive, with a capacity other than the test's.
fn another(desk: &Desk) -> Share {
    if desk.share == Share::WHOLE { share(1, 2) } else { Share::WHOLE }
}

async fn b6_another_capacity_is_a_mismatch(desk: &Desk) {
    granted(desk.ask(&desk.claim("ann")).await);
    for claim in [desk.claim_of("bob", another(desk)), desk.claim_of("bob", another(desk)).queued()] {
        let verdict = desk.ask(&claim).await;
        let Verdict::Mismatch { capacity } = verdict else { panic!("a mismatch was due, not {verdict:?}") };
        assert_eq!(capacity, desk.share.capacity(), "it says what others use");
    }
    let seen = desk.look().await;
    assert_eq!((seen.capacity, seen.queue_length), (desk.share.capacity(), 0), "a mismatch takes no place");
}

async fn b6_when_nobody_is_there_any_capacity_will_do(desk: &Desk) {
    granted(desk.ask(&desk.claim("ann")).await);
    desk.leave("ann").await;
    granted(desk.ask(&desk.claim_of("bob", another(desk))).await);
    assert_eq!(desk.look().await.capacity, another(desk).capacity());
}

/// Drops the future after it was polled this many times, with time for the driver in between.
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

async fn b7_a_dropped_claim_can_be_buried(desk: &Desk) {
    for polls in 0..8 {
        let claim = desk.claim(&format!("dropped after {polls}"));
        let acquire = desk.backend().acquire(&claim);
        drop_after(polls, acquire).await;
        let request =
            ReleaseRequest::new(claim.reference()).with_tombstone(ReleaseRequest::tombstone_ttl(claim.ttl));
        desk.bid(&request).await;
        let next = format!("next after {polls}");
        granted(desk.ask(&desk.claim(&next)).await);
        desk.leave(&next).await;
    }
    assert_eq!(desk.look().await.holder_count, 0);
}

async fn b8_a_buried_owner_is_never_granted(desk: &Desk) {
    assert_eq!(desk.tombstone("ann").await, Released::AlreadyGone);
    buried(&desk.ask(&desk.claim("ann")).await);
    buried(&desk.ask(&desk.claim("ann").queued()).await);
    gone(&desk.renew("ann", LONG).await, GoneReason::Cancelled);
    assert_eq!(desk.leave("ann").await, Released::AlreadyGone);
    buried(&desk.ask(&desk.claim("ann")).await);
    granted(desk.ask(&desk.claim("bob")).await);
}

async fn b8_burying_a_holder_releases_it(desk: &Desk) {
    granted(desk.ask(&desk.claim("ann")).await);
    assert_eq!(desk.tombstone("ann").await, Released::Now);
    assert_eq!(desk.tombstone("ann").await, Released::AlreadyGone);
    buried(&desk.ask(&desk.claim("ann")).await);
    granted(desk.ask(&desk.claim("bob")).await);
    buried(&desk.ask(&desk.claim("ann")).await);
}

async fn b8_burying_concerns_one_owner_of_one_resource(desk: &Desk) {
    desk.tombstone("ann").await;
    let mut elsewhere = desk.claim("ann");
    elsewhere.resource = desk.resource("elsewhere");
    granted(desk.ask(&elsewhere).await);
    granted(desk.ask(&desk.claim("bob")).await);
}

async fn b8_a_tombstone_ends(desk: &Desk) {
    desk.bid(&ReleaseRequest::new(desk.reference("ann")).with_tombstone(desk.short())).await;
    buried(&desk.ask(&desk.claim("ann")).await);
    desk.target.outlast(desk.short()).await;
    granted(desk.ask(&desk.claim("ann")).await);
}

async fn a_held_resource_is_blocked_and_says_by_whom(desk: &Desk) {
    let claim = desk.claim("ann");
    let before = desk.target.now();
    let grant = granted(desk.ask(&claim).await);
    let given = (before, desk.target.now());
    let asked = desk.target.now();
    let seen = blocked(desk.ask(&desk.claim("bob")).await);
    assert_eq!((seen.queued, seen.ahead, seen.paused), (false, 0, false));
    assert_eq!(seen.holders.len(), 1);
    let by = &seen.holders[0];
    assert_eq!((&by.holder, by.token, by.weight), (&claim.holder, grant.token, desk.share.weight()));
    assert_eq!((by.handovers, by.evicting, by.kept, &by.asked), (0, false, false, &None));
    if desk.backend().info().capabilities.own_ttl {
        desk.remains(by.remaining, claim.ttl, given, (asked, desk.target.now()));
    } else {
        // Others wait until the session is over, which is longer than its holder counts on.
        assert!(by.remaining >= grant.remaining, "{by:?}");
    }
}

async fn leaving_leaves_no_trace(desk: &Desk) {
    granted(desk.ask(&desk.claim("ann")).await);
    blocked(desk.ask(&desk.claim("bob")).await);
    assert_eq!(desk.look().await.queue_length, 0);
    gone(&desk.renew("bob", LONG).await, GoneReason::NotThere);
    desk.leave("ann").await;
    granted(desk.ask(&desk.claim("cy")).await);
}

async fn a_release_lets_the_next_one_in(desk: &Desk) {
    granted(desk.ask(&desk.claim("ann")).await);
    blocked(desk.ask(&desk.claim("bob")).await);
    assert_eq!(desk.leave("ann").await, Released::Now);
    granted(desk.ask(&desk.claim("bob")).await);
    blocked(desk.ask(&desk.claim("ann")).await);
}

async fn a_release_needs_the_owner_token(desk: &Desk) {
    let grant = granted(desk.ask(&desk.claim("ann")).await);
    assert_eq!(desk.leave("bob").await, Released::AlreadyGone);
    assert_eq!(desk.tombstone("cy").await, Released::AlreadyGone);
    assert_eq!(kept(desk.renew("ann", LONG).await).token, grant.token);
    blocked(desk.ask(&desk.claim("bob")).await);
}

async fn a_plain_farewell_does_not_bury(desk: &Desk) {
    let first = granted(desk.ask(&desk.claim("ann")).await);
    desk.leave("ann").await;
    gone(&desk.renew("ann", LONG).await, GoneReason::NotThere);
    let second = granted(desk.ask(&desk.claim("ann")).await);
    assert!(second.token > first.token, "it is a new grant");
}
