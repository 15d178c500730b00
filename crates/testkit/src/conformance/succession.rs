//! Succession: taking over a seat or a place.

use leasehold_core::{Eviction, GoneReason, Handover, OperatorAction, Released, admission};

use super::{
    Test,
    desk::{Desk, LONG, blocked, buried, gone, granted, placed},
    test,
};

pub(super) const TESTS: &[Test] = &[
    test!(an_heir_takes_the_seat, Heirs),
    test!(an_heir_takes_the_seat_whatever_the_line, HandOver, Line),
    test!(an_heir_asks_twice_and_takes_over_once, Heirs),
    test!(an_heir_finds_whom_the_other_handle_let_go_and_granted_anew, Heirs, Twice),
    test!(an_heir_whose_place_the_other_handle_gave_up_takes_the_seat, Heirs, Line, Twice),
    test!(b8_a_predecessor_is_buried_if_flagged, Heirs),
    test!(a_predecessor_is_not_buried_unless_flagged, Heirs),
    test!(an_heir_starts_a_ttl_of_its_own, Heirs, OwnTtl),
    test!(an_heir_of_nobody_is_an_ordinary_claim),
    test!(an_heir_of_nobody_still_buries, Line),
    test!(an_heir_of_the_expired_is_an_ordinary_claim, Line, OwnTtl),
    test!(an_heir_of_the_kept_is_an_ordinary_claim, KeepFor),
    test!(b8_a_buried_heir_still_releases_its_predecessor, Heirs),
    test!(an_heir_takes_the_place, Line),
    test!(an_heir_of_a_place_buries_if_flagged, Line),
    test!(an_heir_who_leaves_gives_up_the_place, Line),
    test!(an_heir_with_a_place_keeps_its_own, Line),
    test!(hand_overs_are_bounded_while_others_wait, HandOver, Line),
    test!(hand_overs_are_not_bounded_while_nobody_waits, Heirs),
    test!(a_refused_heir_who_leaves_has_nothing, HandOver, Line),
    test!(a_seat_is_not_handed_over_during_a_pause, Heirs, Orders),
    test!(a_seat_that_is_to_run_out_is_not_handed_over, HandOver, Line, Orders),
    test!(without_hand_over_an_heir_joins_the_line, Line, NoHandOver),
];

fn from(desk: &Desk, name: &str) -> Handover {
    Handover::from(desk.owner(name))
}

fn with_tombstone(desk: &Desk, name: &str) -> Handover {
    Handover::with_tombstone(desk.owner(name), LONG * 2)
}

async fn an_heir_takes_the_seat(desk: &Desk) {
    let first = granted(desk.ask(&desk.claim("ann")).await);
    let second = granted(desk.ask(&desk.claim("bob").taking_over(from(desk, "ann"))).await);
    assert!(second.token > first.token, "a hand-over mints a new token");
    gone(&desk.renew("ann", LONG).await, GoneReason::NotThere);
    assert_eq!(desk.leave("ann").await, Released::AlreadyGone);
    let seen = desk.look().await;
    assert_eq!((seen.holder_count, seen.holders[0].holder.label.as_str()), (1, "bob"));
}

async fn an_heir_takes_the_seat_whatever_the_line(desk: &Desk) {
    granted(desk.ask(&desk.claim("ann")).await);
    placed(desk.ask(&desk.claim("cy").queued()).await, 0);
    granted(desk.ask(&desk.claim("bob").queued().taking_over(from(desk, "ann"))).await);
    placed(desk.ask(&desk.claim("cy").queued()).await, 0);
    assert_eq!(desk.look().await.holders[0].handovers, 1, "hand-overs are counted");
    desk.leave("bob").await;
    granted(desk.ask(&desk.claim("cy").queued()).await);
    assert_eq!(desk.look().await.holders[0].handovers, 0, "a grant out of the line starts anew");
}

async fn an_heir_asks_twice_and_takes_over_once(desk: &Desk) {
    granted(desk.ask(&desk.claim("ann")).await);
    let claim = desk.claim("bob").taking_over(from(desk, "ann"));
    let first = granted(desk.ask(&claim).await);
    let again = granted(desk.ask(&claim).await);
    assert_eq!(first.token, again.token);
    assert_eq!(desk.look().await.holder_count, 1);
}

async fn an_heir_finds_whom_the_other_handle_let_go_and_granted_anew(desk: &Desk) {
    granted(desk.ask_second(&desk.claim("ann")).await);
    assert_eq!(desk.leave("ann").await, Released::Now);
    granted(desk.ask(&desk.claim("ann")).await);
    granted(desk.ask_second(&desk.claim("bob").taking_over(from(desk, "ann"))).await);
    assert_eq!(desk.look().await.holders[0].holder.label, "bob");
}

async fn an_heir_whose_place_the_other_handle_gave_up_takes_the_seat(desk: &Desk) {
    granted(desk.ask(&desk.claim("ann")).await);
    placed(desk.ask_second(&desk.claim("bob").queued()).await, 0);
    assert_eq!(desk.leave("bob").await, Released::Now);
    granted(desk.ask_second(&desk.claim("bob").taking_over(from(desk, "ann"))).await);
    let seen = desk.look().await;
    assert_eq!((seen.holder_count, seen.queue_length), (1, 0));
}

async fn b8_a_predecessor_is_buried_if_flagged(desk: &Desk) {
    granted(desk.ask(&desk.claim("ann")).await);
    granted(desk.ask(&desk.claim("bob").taking_over(with_tombstone(desk, "ann"))).await);
    gone(&desk.renew("ann", LONG).await, GoneReason::Cancelled);
    desk.leave("bob").await;
    buried(&desk.ask(&desk.claim("ann")).await);
}

async fn a_predecessor_is_not_buried_unless_flagged(desk: &Desk) {
    granted(desk.ask(&desk.claim("ann")).await);
    granted(desk.ask(&desk.claim("bob").taking_over(from(desk, "ann"))).await);
    blocked(desk.ask(&desk.claim("ann")).await);
    desk.leave("bob").await;
    granted(desk.ask(&desk.claim("ann")).await);
}

async fn an_heir_starts_a_ttl_of_its_own(desk: &Desk) {
    granted(desk.ask(&desk.brief("ann")).await);
    let grant = granted(desk.ask(&desk.claim("bob").taking_over(from(desk, "ann"))).await);
    assert!(grant.remaining > LONG / 2);
    desk.target.outlast(desk.short()).await;
    blocked(desk.ask(&desk.claim("cy")).await);
    granted(desk.ask(&desk.brief("cy").taking_over(from(desk, "bob"))).await);
    desk.target.outlast(desk.short()).await;
    granted(desk.ask(&desk.claim("dee")).await);
}

async fn an_heir_of_nobody_is_an_ordinary_claim(desk: &Desk) {
    granted(desk.ask(&desk.claim("bob").taking_over(from(desk, "ann"))).await);
    blocked(desk.ask(&desk.claim("cy").taking_over(from(desk, "ann"))).await);
}

async fn an_heir_of_nobody_still_buries(desk: &Desk) {
    granted(desk.ask(&desk.claim("cy")).await);
    placed(desk.ask(&desk.claim("bob").queued().taking_over(with_tombstone(desk, "ann"))).await, 0);
    buried(&desk.ask(&desk.claim("ann").queued()).await);
}

async fn an_heir_of_the_expired_is_an_ordinary_claim(desk: &Desk) {
    granted(desk.ask(&desk.brief("ann")).await);
    placed(desk.ask(&desk.claim("cy").queued()).await, 0);
    desk.target.outlast(desk.short()).await;
    placed(desk.ask(&desk.claim("bob").queued().taking_over(from(desk, "ann"))).await, 1);
    granted(desk.ask(&desk.claim("cy").queued()).await);
}

async fn an_heir_of_the_kept_is_an_ordinary_claim(desk: &Desk) {
    granted(desk.ask(&desk.claim("ann")).await);
    desk.bid(&leasehold_core::ReleaseRequest::new(desk.reference("ann")).keeping(LONG)).await;
    let seen = blocked(desk.ask(&desk.claim("bob").taking_over(from(desk, "ann"))).await);
    assert!(seen.holders[0].kept, "it stays closed");
}

async fn b8_a_buried_heir_still_releases_its_predecessor(desk: &Desk) {
    granted(desk.ask(&desk.claim("ann")).await);
    desk.tombstone("bob").await;
    buried(&desk.ask(&desk.claim("bob").taking_over(from(desk, "ann"))).await);
    assert_eq!(desk.look().await.holder_count, 0, "ann wanted to go, and went");
    granted(desk.ask(&desk.claim("cy")).await);
}

async fn an_heir_takes_the_place(desk: &Desk) {
    granted(desk.ask(&desk.claim("ann")).await);
    placed(desk.ask(&desk.claim("bob").queued()).await, 0);
    placed(desk.ask(&desk.claim("cy").queued()).await, 1);
    placed(desk.ask(&desk.claim("dee").queued().taking_over(from(desk, "bob"))).await, 0);
    gone(&desk.renew("bob", LONG).await, GoneReason::NotThere);
    placed(desk.ask(&desk.claim("cy").queued()).await, 1);
    assert_eq!(desk.look().await.queue_length, 2);
    desk.leave("ann").await;
    blocked(desk.ask(&desk.claim("cy").queued()).await);
    granted(desk.ask(&desk.claim("dee").queued()).await);
}

async fn an_heir_of_a_place_buries_if_flagged(desk: &Desk) {
    granted(desk.ask(&desk.claim("ann")).await);
    placed(desk.ask(&desk.claim("bob").queued()).await, 0);
    placed(desk.ask(&desk.claim("cy").queued().taking_over(with_tombstone(desk, "bob"))).await, 0);
    buried(&desk.ask(&desk.claim("bob").queued()).await);
    // Unless flagged, it may come again, at the end.
    placed(desk.ask(&desk.claim("dee").queued().taking_over(from(desk, "cy"))).await, 0);
    placed(desk.ask(&desk.claim("cy").queued()).await, 1);
}

async fn an_heir_who_leaves_gives_up_the_place(desk: &Desk) {
    granted(desk.ask(&desk.claim("ann")).await);
    placed(desk.ask(&desk.claim("bob").queued()).await, 0);
    placed(desk.ask(&desk.claim("cy").queued()).await, 1);
    assert!(!blocked(desk.ask(&desk.claim("dee").taking_over(from(desk, "bob"))).await).queued);
    placed(desk.ask(&desk.claim("cy").queued()).await, 0);
}

async fn an_heir_with_a_place_keeps_its_own(desk: &Desk) {
    granted(desk.ask(&desk.claim("ann")).await);
    for (ahead, name) in (0..).zip(["bob", "cy", "dee"]) {
        placed(desk.ask(&desk.claim(name).queued()).await, ahead);
    }
    placed(desk.ask(&desk.claim("dee").queued().taking_over(from(desk, "bob"))).await, 1);
    placed(desk.ask(&desk.claim("cy").queued()).await, 0);
    assert_eq!(desk.look().await.queue_length, 2);
}

async fn hand_overs_are_bounded_while_others_wait(desk: &Desk) {
    granted(desk.ask(&desk.claim("turn 0")).await);
    placed(desk.ask(&desk.claim("cy").queued()).await, 0);
    for turn in 1..=admission::HANDOVERS_MAX {
        let heir = desk.claim(&format!("turn {turn}")).queued();
        granted(desk.ask(&heir.taking_over(from(desk, &format!("turn {}", turn - 1)))).await);
    }
    assert_eq!(desk.look().await.holders[0].handovers, admission::HANDOVERS_MAX);
    // One more is refused: the predecessor goes, the heir joins the line at its end.
    let last = format!("turn {}", admission::HANDOVERS_MAX);
    let heir = desk.claim("bob").queued();
    placed(desk.ask(&heir.clone().taking_over(from(desk, &last))).await, 1);
    gone(&desk.renew(&last, LONG).await, GoneReason::NotThere);
    assert_eq!(desk.look().await.holder_count, 0);
    granted(desk.ask(&desk.claim("cy").queued()).await);
    desk.leave("cy").await;
    granted(desk.ask(&heir).await);
}

async fn hand_overs_are_not_bounded_while_nobody_waits(desk: &Desk) {
    granted(desk.ask(&desk.claim("turn 0")).await);
    for turn in 1..=admission::HANDOVERS_MAX + 4 {
        let heir = desk.claim(&format!("turn {turn}"));
        granted(desk.ask(&heir.taking_over(from(desk, &format!("turn {}", turn - 1)))).await);
    }
}

async fn a_refused_heir_who_leaves_has_nothing(desk: &Desk) {
    granted(desk.ask(&desk.claim("turn 0")).await);
    placed(desk.ask(&desk.claim("cy").queued()).await, 0);
    for turn in 1..=admission::HANDOVERS_MAX {
        let heir = desk.claim(&format!("turn {turn}"));
        granted(desk.ask(&heir.taking_over(from(desk, &format!("turn {}", turn - 1)))).await);
    }
    let last = format!("turn {}", admission::HANDOVERS_MAX);
    assert!(!blocked(desk.ask(&desk.claim("bob").taking_over(from(desk, &last))).await).queued);
    granted(desk.ask(&desk.claim("cy").queued()).await);
}

async fn a_seat_is_not_handed_over_during_a_pause(desk: &Desk) {
    granted(desk.ask(&desk.claim("ann")).await);
    desk.order(OperatorAction::Pause { lasting: LONG }).await;
    let seen = blocked(desk.ask(&desk.claim("bob").taking_over(from(desk, "ann"))).await);
    assert!(seen.paused);
    assert_eq!(desk.look().await.holder_count, 0, "the predecessor is released all the same");
    desk.order(OperatorAction::Resume).await;
    granted(desk.ask(&desk.claim("bob").taking_over(from(desk, "ann"))).await);
}

async fn a_seat_that_is_to_run_out_is_not_handed_over(desk: &Desk) {
    granted(desk.ask(&desk.claim("ann")).await);
    placed(desk.ask(&desk.claim("cy").queued()).await, 0);
    desk.order(OperatorAction::Evict(Eviction::AtExpiry)).await;
    placed(desk.ask(&desk.claim("bob").queued().taking_over(from(desk, "ann"))).await, 1);
    granted(desk.ask(&desk.claim("cy").queued()).await);
}

/// Where a seat is handed over only if nobody waits: the predecessor goes, and the heir waits its turn.
async fn without_hand_over_an_heir_joins_the_line(desk: &Desk) {
    granted(desk.ask(&desk.claim("ann")).await);
    placed(desk.ask(&desk.claim("cy").queued()).await, 0);
    let heir = desk.claim("bob").queued().taking_over(from(desk, "ann"));
    placed(desk.ask(&heir).await, desk.ahead(1, 1));
    granted(desk.ask(&desk.claim("cy").queued()).await);
}
