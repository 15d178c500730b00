//! The line: order, places and what becomes of them.

use leasehold_core::{Effect, ErrorKind, GoneReason, ReleaseRequest, Released, admission};

use super::{
    Test,
    desk::{Desk, LONG, blocked, buried, gone, granted, placed, queued},
    test,
};

pub(super) const TESTS: &[Test] = &[
    test!(grants_follow_the_line, Line),
    test!(asking_again_keeps_the_place, Line),
    test!(nobody_overtakes_not_even_who_would_leave, Line),
    test!(who_asks_to_leave_gives_up_its_place, Line),
    test!(the_line_moves_up_when_someone_leaves_it, Line),
    test!(b3_a_dead_waiter_costs_its_place_ttl, Line, OwnTtl),
    test!(a_place_is_kept_by_renewing, Line, OwnTtl),
    test!(a_place_is_kept_by_asking, Line, OwnTtl),
    test!(a_place_is_never_shortened, Line, OwnTtl),
    test!(a_lost_place_is_not_there, Line, OwnTtl),
    test!(the_holders_expiry_lets_the_head_in, Line, OwnTtl),
    test!(b8_a_buried_place_is_gone, Line),
    test!(b8_a_tombstone_bars_the_line, Line),
    test!(a_long_line_keeps_its_order, Line),
    test!(a_place_says_when_something_changes, Line, OwnTtl),
    test!(a_grant_out_of_the_line_leaves_the_line, Line),
    test!(b9_a_full_line_is_a_limit, Line, ShortLine),
];

async fn grants_follow_the_line(desk: &Desk) {
    let mut last = granted(desk.ask(&desk.claim("ann")).await).token;
    let names = ["bob", "cy", "dee", "eve"];
    for (ahead, name) in (0..).zip(names) {
        placed(desk.ask(&desk.claim(name).queued()).await, ahead);
    }
    desk.leave("ann").await;
    for (index, name) in names.into_iter().enumerate() {
        for (ahead, later) in (1..).zip(&names[index + 1..]) {
            placed(desk.ask(&desk.claim(later).queued()).await, desk.ahead(ahead, 1));
        }
        let grant = granted(desk.ask(&desk.claim(name).queued()).await);
        assert!(grant.token > last, "tokens follow the line");
        last = grant.token;
        assert_eq!(desk.leave(name).await, Released::Now);
    }
    assert_eq!(desk.look().await.queue_length, 0);
}

async fn asking_again_keeps_the_place(desk: &Desk) {
    granted(desk.ask(&desk.claim("ann")).await);
    placed(desk.ask(&desk.claim("bob").queued()).await, 0);
    placed(desk.ask(&desk.claim("cy").queued()).await, 1);
    placed(desk.ask(&desk.claim("bob").queued()).await, 0);
    placed(desk.ask(&desk.claim("cy").queued()).await, 1);
    let seen = desk.look().await;
    let labels: Vec<_> = seen.queue.iter().map(|place| place.holder.label.as_str()).collect();
    assert_eq!((seen.queue_length, labels), (2, vec!["bob", "cy"]), "one place each, in order");
}

async fn nobody_overtakes_not_even_who_would_leave(desk: &Desk) {
    granted(desk.ask(&desk.claim("ann")).await);
    placed(desk.ask(&desk.claim("bob").queued()).await, 0);
    desk.leave("ann").await;
    let seen = blocked(desk.ask(&desk.claim("cy")).await);
    // Bob can move; where the store seats by itself he holds already.
    assert_eq!((seen.queued, seen.ahead), (false, desk.ahead(1, 1)));
    assert_eq!(seen.holders.len(), 1 - desk.ahead(1, 1) as usize);
    placed(desk.ask(&desk.claim("dee").queued()).await, desk.ahead(1, 1));
    granted(desk.ask(&desk.claim("bob").queued()).await);
}

async fn who_asks_to_leave_gives_up_its_place(desk: &Desk) {
    granted(desk.ask(&desk.claim("ann")).await);
    placed(desk.ask(&desk.claim("bob").queued()).await, 0);
    placed(desk.ask(&desk.claim("cy").queued()).await, 1);
    assert!(!blocked(desk.ask(&desk.claim("bob")).await).queued);
    placed(desk.ask(&desk.claim("cy").queued()).await, 0);
    gone(&desk.renew("bob", LONG).await, GoneReason::NotThere);
}

async fn the_line_moves_up_when_someone_leaves_it(desk: &Desk) {
    granted(desk.ask(&desk.claim("ann")).await);
    for (ahead, name) in (0..).zip(["bob", "cy", "dee"]) {
        placed(desk.ask(&desk.claim(name).queued()).await, ahead);
    }
    assert_eq!(desk.leave("cy").await, Released::Now, "leaving the line is a request too");
    assert_eq!(desk.leave("cy").await, Released::AlreadyGone);
    placed(desk.ask(&desk.claim("dee").queued()).await, 1);
    placed(desk.ask(&desk.claim("cy").queued()).await, 2);
}

async fn b3_a_dead_waiter_costs_its_place_ttl(desk: &Desk) {
    granted(desk.ask(&desk.claim("ann")).await);
    let mut dead = desk.claim("bob").queued();
    dead.place_ttl = desk.short();
    placed(desk.ask(&dead).await, 0);
    placed(desk.ask(&desk.claim("cy").queued()).await, 1);
    desk.leave("ann").await;
    desk.target.outlast(desk.short()).await;
    granted(desk.ask(&desk.claim("cy").queued()).await);
}

async fn a_place_is_kept_by_renewing(desk: &Desk) {
    granted(desk.ask(&desk.claim("ann")).await);
    let mut claim = desk.claim("bob").queued();
    claim.place_ttl = desk.short();
    placed(desk.ask(&claim).await, 0);
    placed(desk.ask(&desk.claim("cy").queued()).await, 1);
    let before = desk.target.now();
    let remaining = queued(&desk.renew("bob", LONG).await);
    let span = (before, desk.target.now());
    desk.remains(remaining, LONG, span, span);
    desk.target.outlast(desk.short()).await;
    placed(desk.ask(&desk.claim("cy").queued()).await, 1);
}

async fn a_place_is_kept_by_asking(desk: &Desk) {
    granted(desk.ask(&desk.claim("ann")).await);
    let mut claim = desk.claim("bob").queued();
    claim.place_ttl = desk.short();
    placed(desk.ask(&claim).await, 0);
    placed(desk.ask(&desk.claim("cy").queued()).await, 1);
    claim.place_ttl = LONG;
    placed(desk.ask(&claim).await, 0);
    desk.target.outlast(desk.short()).await;
    placed(desk.ask(&desk.claim("cy").queued()).await, 1);
}

async fn a_place_is_never_shortened(desk: &Desk) {
    granted(desk.ask(&desk.claim("ann")).await);
    let mut claim = desk.claim("bob").queued();
    placed(desk.ask(&claim).await, 0);
    claim.place_ttl = desk.short();
    placed(desk.ask(&claim).await, 0);
    assert!(queued(&desk.renew("bob", desk.short()).await) > LONG / 2);
    desk.target.outlast(desk.short()).await;
    queued(&desk.renew("bob", desk.short()).await);
}

async fn a_lost_place_is_not_there(desk: &Desk) {
    granted(desk.ask(&desk.claim("ann")).await);
    let mut claim = desk.claim("bob").queued();
    claim.place_ttl = desk.short();
    placed(desk.ask(&claim).await, 0);
    placed(desk.ask(&desk.claim("cy").queued()).await, 1);
    desk.target.outlast(desk.short()).await;
    gone(&desk.renew("bob", LONG).await, GoneReason::NotThere);
    assert_eq!(desk.leave("bob").await, Released::AlreadyGone);
    placed(desk.ask(&claim).await, 1);
}

async fn the_holders_expiry_lets_the_head_in(desk: &Desk) {
    granted(desk.ask(&desk.brief("ann")).await);
    placed(desk.ask(&desk.claim("bob").queued()).await, 0);
    desk.target.outlast(desk.short()).await;
    blocked(desk.ask(&desk.claim("cy")).await);
    blocked(desk.ask(&desk.claim("ann")).await);
    granted(desk.ask(&desk.claim("bob").queued()).await);
}

async fn b8_a_buried_place_is_gone(desk: &Desk) {
    granted(desk.ask(&desk.claim("ann")).await);
    placed(desk.ask(&desk.claim("bob").queued()).await, 0);
    placed(desk.ask(&desk.claim("cy").queued()).await, 1);
    assert_eq!(desk.tombstone("bob").await, Released::Now);
    buried(&desk.ask(&desk.claim("bob").queued()).await);
    gone(&desk.renew("bob", LONG).await, GoneReason::Cancelled);
    placed(desk.ask(&desk.claim("cy").queued()).await, 0);
}

async fn b8_a_tombstone_bars_the_line(desk: &Desk) {
    granted(desk.ask(&desk.claim("ann")).await);
    desk.tombstone("bob").await;
    buried(&desk.ask(&desk.claim("bob").queued()).await);
    assert_eq!(desk.look().await.queue_length, 0);
}

async fn a_long_line_keeps_its_order(desk: &Desk) {
    let length = admission::WINDOW + 6;
    granted(desk.ask(&desk.claim("ann")).await);
    let names: Vec<_> = (0..length).map(|number| format!("waiter {number}")).collect();
    for (index, name) in names.iter().enumerate() {
        let seen = blocked(desk.ask(&desk.claim(name).queued()).await);
        assert!(seen.queued);
        let ahead = seen.ahead as usize;
        assert!(
            if index <= admission::WINDOW { ahead == index } else { ahead >= index },
            "{ahead} ahead of {index}"
        );
    }
    let seen = desk.look().await;
    assert_eq!((seen.queue_length as usize, seen.queue.len()), (length, length));
    desk.leave("ann").await;
    for (index, name) in names.iter().enumerate() {
        if let Some(next) = names.get(index + 1) {
            blocked(desk.ask(&desk.claim(next).queued()).await);
        }
        granted(desk.ask(&desk.claim(name).queued()).await);
        desk.bid(&ReleaseRequest::new(desk.reference(name))).await;
    }
}

async fn a_place_says_when_something_changes(desk: &Desk) {
    let held = desk.brief("ann");
    let before = desk.target.now();
    granted(desk.ask(&held).await);
    let given = (before, desk.target.now());
    let asked = desk.target.now();
    let seen = placed(desk.ask(&desk.claim("bob").queued()).await, 0);
    let changes_in = seen.changes_in.expect("the holder's ttl will end");
    desk.remains(changes_in, held.ttl, given, (asked, desk.target.now()));
}

async fn a_grant_out_of_the_line_leaves_the_line(desk: &Desk) {
    granted(desk.ask(&desk.claim("ann")).await);
    placed(desk.ask(&desk.claim("bob").queued()).await, 0);
    desk.leave("ann").await;
    let grant = granted(desk.ask(&desk.claim("bob").queued()).await);
    let seen = desk.look().await;
    assert_eq!((seen.queue_length, seen.holder_count), (0, 1));
    assert_eq!(granted(desk.ask(&desk.claim("bob").queued()).await).token, grant.token);
    assert_eq!(desk.leave("bob").await, Released::Now);
    assert_eq!(desk.leave("bob").await, Released::AlreadyGone, "seat and place went together");
}

async fn b9_a_full_line_is_a_limit(desk: &Desk) {
    granted(desk.ask(&desk.claim("ann").queued()).await);
    for number in 0..desk.backend().info().limits.queue {
        blocked(desk.ask(&desk.claim(&format!("waiter {number}")).queued()).await);
    }
    let error = desk.try_ask(&desk.claim("bob").queued()).await.expect_err("the line is full");
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Limit, Effect::None));
    // Who is there already is not one more.
    granted(desk.ask(&desk.claim("ann").queued()).await);
    blocked(desk.ask(&desk.claim("waiter 0").queued()).await);
    blocked(desk.ask(&desk.claim("bob")).await);
}
