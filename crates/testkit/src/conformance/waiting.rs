//! B3: `wait` is a hint that comes in time, and always ends.

use std::time::Duration;

use leasehold_core::{Claim, Cursor, Eviction, OperatorAction, ReleaseRequest, RenewRequest};

use super::{
    Test,
    desk::{Desk, LONG, blocked, granted, placed},
    test,
};

pub(super) const TESTS: &[Test] = &[
    test!(b3_a_wait_ends_by_at_most),
    test!(b3_a_wait_with_an_unknown_cursor_ends_by_at_most),
    test!(b3_a_release_wakes_the_head_of_the_line, Line),
    test!(b3_a_release_before_the_wait_is_not_missed, Line),
    test!(b3_a_place_that_is_gone_is_worth_asking, Line),
    test!(b3_a_change_wakes_who_has_no_place),
    test!(b3_a_change_before_the_wait_is_not_missed),
    test!(b3_someone_leaving_the_line_wakes_the_next, Line),
    test!(b3_an_eviction_wakes_the_head_of_the_line, Line, Orders),
    test!(b3_a_resume_wakes_the_head_of_the_line, Line, Orders),
    test!(b3_what_the_second_handle_does_wakes_too, Line, Twice),
    test!(b3_a_place_is_woken_where_it_is_waited_for, Line, Twice),
    test!(b3_an_observer_is_woken_by_whoever_comes),
    test!(b3_an_observer_is_woken_by_a_new_note),
    test!(b3_a_dropped_wait_leaves_nothing_behind, Line),
];

/// Soon, beside a wait that would last for [`LONG`].
const SOON: Duration = Duration::from_secs(5);

async fn b3_a_wait_ends_by_at_most(desk: &Desk) {
    granted(desk.ask(&desk.claim("ann")).await);
    let claim = desk.claim("bob");
    let seen = blocked(desk.ask(&claim).await);
    let at_most = Duration::from_millis(300);
    let waiting = desk.wait(&claim, seen.cursor, at_most).await;
    assert!(desk.ends(&waiting, at_most + Duration::from_secs(2)).await, "it returns after at_most");
    if desk.target.is_exact() {
        let took = waiting.began.until(desk.target.now());
        assert!(took <= at_most + Duration::from_millis(10), "it took {took:?}");
    }
}

async fn b3_a_wait_with_an_unknown_cursor_ends_by_at_most(desk: &Desk) {
    for cursor in [Cursor(0), Cursor(u64::MAX)] {
        let waiting = desk.wait(&desk.claim("ann"), cursor, Duration::from_millis(300)).await;
        assert!(desk.ends(&waiting, SOON).await, "it returns after at_most");
    }
}

/// Ann holds, Bob stands first in line and waits.
async fn ann_holds_and_bob_waits(desk: &Desk) -> (Claim, super::desk::Waiting) {
    granted(desk.ask(&desk.claim("ann")).await);
    let claim = desk.claim("bob").queued();
    let seen = placed(desk.ask(&claim).await, 0);
    let waiting = desk.wait(&claim, seen.cursor, LONG).await;
    (claim, waiting)
}

async fn b3_a_release_wakes_the_head_of_the_line(desk: &Desk) {
    let (claim, waiting) = ann_holds_and_bob_waits(desk).await;
    desk.leave("ann").await;
    assert!(desk.ends(&waiting, SOON).await, "the head of the line can move");
    granted(desk.ask(&claim).await);
}

async fn b3_a_release_before_the_wait_is_not_missed(desk: &Desk) {
    granted(desk.ask(&desk.claim("ann")).await);
    let claim = desk.claim("bob").queued();
    let seen = placed(desk.ask(&claim).await, 0);
    desk.leave("ann").await;
    let waiting = desk.wait(&claim, seen.cursor, LONG).await;
    assert!(desk.ends(&waiting, SOON).await, "it could move before it waited");
}

async fn b3_a_place_that_is_gone_is_worth_asking(desk: &Desk) {
    let (_, waiting) = ann_holds_and_bob_waits(desk).await;
    desk.leave("bob").await;
    assert!(desk.ends(&waiting, SOON).await, "its place is gone: it must ask again to learn so");
}

async fn b3_a_change_wakes_who_has_no_place(desk: &Desk) {
    granted(desk.ask(&desk.claim("ann")).await);
    let claim = desk.claim("bob");
    let seen = blocked(desk.ask(&claim).await);
    let waiting = desk.wait(&claim, seen.cursor, LONG).await;
    desk.leave("ann").await;
    assert!(desk.ends(&waiting, SOON).await, "something changed");
}

async fn b3_a_change_before_the_wait_is_not_missed(desk: &Desk) {
    granted(desk.ask(&desk.claim("ann")).await);
    let claim = desk.claim("bob");
    let seen = blocked(desk.ask(&claim).await);
    desk.leave("ann").await;
    let waiting = desk.wait(&claim, seen.cursor, LONG).await;
    assert!(desk.ends(&waiting, SOON).await, "something changed since the cursor");
    // Someone came and went: the cursor is older still, and the state looks as before.
    granted(desk.ask(&desk.claim("cy")).await);
    let waiting = desk.wait(&claim, seen.cursor, LONG).await;
    assert!(desk.ends(&waiting, SOON).await, "it is held again, but not since the cursor");
}

async fn b3_someone_leaving_the_line_wakes_the_next(desk: &Desk) {
    granted(desk.ask(&desk.claim("ann")).await);
    placed(desk.ask(&desk.claim("bob").queued()).await, 0);
    let claim = desk.claim("cy").queued();
    let seen = placed(desk.ask(&claim).await, 1);
    let waiting = desk.wait(&claim, seen.cursor, LONG).await;
    desk.leave("ann").await;
    desk.leave("bob").await;
    assert!(desk.ends(&waiting, SOON).await, "nobody is ahead any more");
    granted(desk.ask(&claim).await);
}

async fn b3_an_eviction_wakes_the_head_of_the_line(desk: &Desk) {
    let (claim, waiting) = ann_holds_and_bob_waits(desk).await;
    desk.order(OperatorAction::Evict(Eviction::Now)).await;
    assert!(desk.ends(&waiting, SOON).await, "the seat is free");
    granted(desk.ask(&claim).await);
}

async fn b3_a_resume_wakes_the_head_of_the_line(desk: &Desk) {
    desk.order(OperatorAction::Pause { lasting: LONG * 2 }).await;
    let claim = desk.claim("bob").queued();
    let seen = placed(desk.ask(&claim).await, 0);
    let waiting = desk.wait(&claim, seen.cursor, LONG).await;
    desk.order(OperatorAction::Resume).await;
    assert!(desk.ends(&waiting, SOON).await, "the pause is over");
    granted(desk.ask(&claim).await);
}

async fn b3_what_the_second_handle_does_wakes_too(desk: &Desk) {
    let (claim, waiting) = ann_holds_and_bob_waits(desk).await;
    let request = ReleaseRequest::new(desk.reference("ann"));
    desk.bid_second(&request).await;
    assert!(desk.ends(&waiting, SOON).await, "the release came from another process");
    granted(desk.ask(&claim).await);
}

/// The claim took its place through one handle and waits through the other: a process hands its claim to another one.
async fn b3_a_place_is_woken_where_it_is_waited_for(desk: &Desk) {
    granted(desk.ask(&desk.claim("ann")).await);
    let claim = desk.claim("bob").queued();
    let seen = placed(desk.ask(&claim).await, 0);
    let mut waiting = desk.wait_second(&claim, seen.cursor, LONG).await;
    // A release before the backend knows of the wait is no question of who is woken. A hint without a reason is allowed.
    for _ in 0..10 {
        if !desk.ends(&waiting, Duration::from_millis(700)).await {
            break;
        }
        waiting = desk.wait_second(&claim, seen.cursor, LONG).await;
    }
    desk.leave("ann").await;
    assert!(desk.ends(&waiting, SOON).await, "the head of the line can move, and waits at the second handle");
    granted(desk.ask_second(&claim).await);
}

async fn b3_an_observer_is_woken_by_whoever_comes(desk: &Desk) {
    // Who looks has no claim: any name will do.
    let seen = desk.look().await;
    let waiting = desk.wait(&desk.claim("observer"), seen.cursor, LONG).await;
    granted(desk.ask(&desk.claim("ann")).await);
    assert!(desk.ends(&waiting, SOON).await, "someone holds it now");
    assert_eq!(desk.look().await.queue_length, 0, "watching takes no place");
}

async fn b3_an_observer_is_woken_by_a_new_note(desk: &Desk) {
    granted(desk.ask(&desk.claim("ann").with_note(*b"old")).await);
    let seen = desk.look().await;
    let waiting = desk.wait(&desk.claim("observer"), seen.cursor, LONG).await;
    desk.renew_one(RenewRequest::new(desk.reference("ann"), LONG).with_note(*b"new")).await;
    assert!(desk.ends(&waiting, SOON).await, "the leader says something else");
    assert_eq!(desk.look().await.holders[0].note.as_deref(), Some(b"new".as_slice()));
}

async fn b3_a_dropped_wait_leaves_nothing_behind(desk: &Desk) {
    let (claim, waiting) = ann_holds_and_bob_waits(desk).await;
    drop(waiting);
    desk.target.breathe().await;
    let seen = placed(desk.ask(&claim).await, 0);
    let waiting = desk.wait(&claim, seen.cursor, LONG).await;
    desk.leave("ann").await;
    assert!(desk.ends(&waiting, SOON).await, "the second wait is woken like the first");
    granted(desk.ask(&claim).await);
}
