//! Going on and ending: expiry, renewal, notes, and staying closed.

use std::time::Duration;

use leasehold_core::{GoneReason, ReleaseRequest, Released, RenewRequest};

use super::{
    Test,
    desk::{Desk, LONG, blocked, buried, gone, granted, kept},
    test,
};

pub(super) const TESTS: &[Test] = &[
    test!(b4_what_expired_is_free, OwnTtl),
    test!(b10_renewing_goes_on, OwnTtl),
    test!(b10_renewing_says_what_remains),
    test!(b10_renewing_never_revives, OwnTtl),
    test!(b10_renewing_never_shortens),
    test!(b10_asking_again_does_not_extend, OwnTtl),
    test!(b10_what_one_handle_renewed_the_other_knows, OwnTtl, Twice),
    test!(a_stranger_cannot_renew),
    test!(a_late_farewell_does_not_hurt_the_next_holder, OwnTtl),
    test!(a_batch_is_answered_in_order),
    test!(a_note_is_seen_and_replaced),
    test!(a_kept_resource_stays_closed, KeepFor),
    test!(a_kept_resource_opens_by_itself, KeepFor, OwnTtl),
    test!(a_kept_seat_is_nobodys, KeepFor),
    test!(keeping_for_no_time_is_a_release, KeepFor),
    test!(only_a_holder_can_keep_it_closed, KeepFor),
];

async fn b4_what_expired_is_free(desk: &Desk) {
    granted(desk.ask(&desk.brief("ann")).await);
    blocked(desk.ask(&desk.claim("bob")).await);
    desk.target.outlast(desk.short()).await;
    assert_eq!(desk.look().await.holder_count, 0, "looking judges expiry too");
    granted(desk.ask(&desk.claim("bob")).await);
    gone(&desk.renew("ann", LONG).await, GoneReason::NotThere);
}

async fn b10_renewing_goes_on(desk: &Desk) {
    let grant = granted(desk.ask(&desk.brief("ann")).await);
    let answer = kept(desk.renew("ann", LONG).await);
    assert_eq!(answer.token, grant.token);
    assert_eq!((answer.asked, answer.evicting), (None, false));
    desk.target.outlast(desk.short()).await;
    blocked(desk.ask(&desk.claim("bob")).await);
    assert_eq!(granted(desk.ask(&desk.claim("ann")).await).token, grant.token);
}

async fn b10_renewing_says_what_remains(desk: &Desk) {
    granted(desk.ask(&desk.claim("ann")).await);
    let before = desk.target.now();
    let answer = kept(desk.renew("ann", LONG * 2).await);
    let span = (before, desk.target.now());
    desk.remains(answer.remaining, LONG * 2, span, span);
}

async fn b10_renewing_never_revives(desk: &Desk) {
    granted(desk.ask(&desk.brief("ann")).await);
    desk.target.outlast(desk.short()).await;
    // Nobody came in between: gone is gone all the same.
    gone(&desk.renew("ann", LONG).await, GoneReason::NotThere);
    assert_eq!(desk.look().await.holder_count, 0);
    assert_eq!(desk.leave("ann").await, Released::AlreadyGone);
}

async fn b10_renewing_never_shortens(desk: &Desk) {
    granted(desk.ask(&desk.claim("ann")).await);
    let answer = kept(desk.renew("ann", desk.short()).await);
    desk.lasts(answer.remaining);
    desk.target.outlast(desk.short()).await;
    blocked(desk.ask(&desk.claim("bob")).await);
    kept(desk.renew("ann", desk.short()).await);
}

async fn b10_asking_again_does_not_extend(desk: &Desk) {
    granted(desk.ask(&desk.brief("ann")).await);
    // Even if it asks for more this time: the grant is the one it got.
    let again = granted(desk.ask(&desk.claim("ann")).await);
    assert!(again.remaining <= desk.short() + Duration::from_millis(1), "{:?} remain", again.remaining);
    desk.target.outlast(desk.short()).await;
    granted(desk.ask(&desk.claim("bob")).await);
}

async fn b10_what_one_handle_renewed_the_other_knows(desk: &Desk) {
    let claim = desk.claim("ann");
    granted(desk.ask_second(&claim).await);
    desk.target.pass(desk.short() * 2).await;
    let before = desk.target.now();
    kept(desk.renew("ann", claim.ttl).await);
    let given = (before, desk.target.now());
    let shorter = RenewRequest::new(claim.reference(), desk.short());
    let answer = desk.target.second().renew(&[shorter]).await.remove(0).expect("renew answers");
    desk.remains(kept(answer).remaining, claim.ttl, given, (given.1, desk.target.now()));
    let asked = desk.target.now();
    let again = granted(desk.ask_second(&claim).await);
    desk.remains(again.remaining, claim.ttl, given, (asked, desk.target.now()));
}

async fn a_stranger_cannot_renew(desk: &Desk) {
    granted(desk.ask(&desk.claim("ann")).await);
    gone(&desk.renew("bob", LONG).await, GoneReason::NotThere);
    assert_eq!(desk.look().await.holder_count, 1);
}

async fn a_late_farewell_does_not_hurt_the_next_holder(desk: &Desk) {
    granted(desk.ask(&desk.brief("ann")).await);
    desk.target.outlast(desk.short()).await;
    let grant = granted(desk.ask(&desk.claim("bob")).await);
    assert_eq!(desk.leave("ann").await, Released::AlreadyGone);
    assert_eq!(desk.tombstone("ann").await, Released::AlreadyGone);
    assert_eq!(kept(desk.renew("bob", LONG).await).token, grant.token);
}

async fn a_batch_is_answered_in_order(desk: &Desk) {
    let mut batch = Vec::new();
    let mut tokens = Vec::new();
    let failure_domain = desk.backend().failure_domain(&desk.resource);
    for number in 0..12 {
        let mut claim = desk.claim(&format!("holder {number}"));
        claim.resource = desk.resource(&format!("batch {number}"));
        if desk.backend().failure_domain(&claim.resource) != failure_domain {
            continue;
        }
        // Every third one does not hold.
        let holds = number % 3 != 0;
        tokens.push(if holds { Some(granted(desk.ask(&claim).await).token) } else { None });
        batch.push(RenewRequest::new(claim.reference(), LONG));
    }
    let answers = desk.backend().renew(&batch).await;
    assert_eq!(answers.len(), batch.len(), "one answer each");
    for (answer, token) in answers.into_iter().zip(tokens) {
        let answer = answer.expect("each is answered");
        match token {
            Some(token) => assert_eq!(kept(answer).token, token),
            None => gone(&answer, GoneReason::NotThere),
        }
    }
    assert!(desk.backend().renew(&[]).await.is_empty(), "of nothing, nothing");
}

async fn a_note_is_seen_and_replaced(desk: &Desk) {
    let bytes: Vec<u8> = (0..=255).collect();
    granted(desk.ask(&desk.claim("ann").with_note(bytes.clone())).await);
    assert_eq!(desk.look().await.holders[0].note.as_deref(), Some(bytes.as_slice()), "any bytes will do");
    assert_eq!(
        blocked(desk.ask(&desk.claim("bob")).await).holders[0].note.as_deref(),
        Some(bytes.as_slice())
    );
    kept(desk.renew("ann", LONG).await);
    assert_eq!(desk.look().await.holders[0].note.as_deref(), Some(bytes.as_slice()), "a renewal leaves it");
    kept(desk.renew_one(RenewRequest::new(desk.reference("ann"), LONG).with_note(*b"other")).await);
    assert_eq!(desk.look().await.holders[0].note.as_deref(), Some(b"other".as_slice()));
    desk.leave("ann").await;
    granted(desk.ask(&desk.claim("bob")).await);
    assert_eq!(desk.look().await.holders[0].note, None, "the next holder has its own");
}

fn keeping(desk: &Desk, name: &str, keep_for: Duration) -> ReleaseRequest {
    ReleaseRequest::new(desk.reference(name)).keeping(keep_for)
}

async fn a_kept_resource_stays_closed(desk: &Desk) {
    let grant = granted(desk.ask(&desk.claim("ann")).await);
    assert_eq!(desk.bid(&keeping(desk, "ann", LONG)).await, Released::Now);
    let seen = blocked(desk.ask(&desk.claim("bob")).await);
    assert_eq!((seen.holders[0].kept, seen.holders[0].token), (true, grant.token));
    let seen = desk.look().await;
    assert_eq!((seen.holder_count, seen.holders[0].kept), (1, true));
}

async fn a_kept_resource_opens_by_itself(desk: &Desk) {
    // Its lease would have ended long after: `keep_for` counts from the farewell.
    let first = granted(desk.ask(&desk.claim("ann")).await);
    desk.bid(&keeping(desk, "ann", desk.short())).await;
    blocked(desk.ask(&desk.claim("bob")).await);
    desk.target.outlast(desk.short()).await;
    let second = granted(desk.ask(&desk.claim("bob")).await);
    assert!(second.token > first.token);
}

async fn a_kept_seat_is_nobodys(desk: &Desk) {
    granted(desk.ask(&desk.claim("ann")).await);
    desk.bid(&keeping(desk, "ann", LONG)).await;
    gone(&desk.renew("ann", LONG).await, GoneReason::NotThere);
    buried(&desk.ask(&desk.claim("ann")).await);
    assert_eq!(desk.leave("ann").await, Released::AlreadyGone);
    assert_eq!(desk.bid(&keeping(desk, "ann", LONG)).await, Released::AlreadyGone);
    blocked(desk.ask(&desk.claim("bob")).await);
}

async fn keeping_for_no_time_is_a_release(desk: &Desk) {
    granted(desk.ask(&desk.claim("ann")).await);
    assert_eq!(desk.bid(&keeping(desk, "ann", Duration::ZERO)).await, Released::Now);
    granted(desk.ask(&desk.claim("bob")).await);
}

async fn only_a_holder_can_keep_it_closed(desk: &Desk) {
    assert_eq!(desk.bid(&keeping(desk, "ann", LONG)).await, Released::AlreadyGone);
    granted(desk.ask(&desk.claim("bob")).await);
    assert_eq!(desk.bid(&keeping(desk, "ann", LONG)).await, Released::AlreadyGone);
    desk.leave("bob").await;
    granted(desk.ask(&desk.claim("cy")).await);
}
