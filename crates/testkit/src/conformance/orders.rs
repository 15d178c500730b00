//! The operator's orders and their audit trail.

use std::time::Duration;

use leasehold_core::{
    AuditRecord, CommandOutcome, ErrorKind, Eviction, FencingToken, GoneReason, Listing, OperatorAction,
    OperatorCommand, Page, Query, Released,
};

use super::{
    Test,
    desk::{Desk, LONG, blocked, buried, gone, granted, kept, placed},
    resize, share, test,
};

pub(super) const TESTS: &[Test] = &[
    test!(a_pause_grants_nothing_and_holders_stay, Orders),
    test!(a_pause_ends_by_itself, Orders),
    test!(a_resume_ends_a_pause, Orders),
    test!(a_pause_keeps_the_line, Orders, Line),
    test!(a_later_pause_replaces_the_first, Orders),
    test!(asking_reaches_the_holder, Orders),
    test!(what_was_asked_of_one_grant_is_not_asked_of_the_next, Orders, OwnTtl),
    test!(an_eviction_at_expiry_lets_it_run_out, Orders, OwnTtl),
    test!(an_eviction_now_ends_it_at_once, Orders),
    test!(the_evicted_do_not_come_back_with_the_same_claim, Orders),
    test!(an_order_means_one_grant_and_no_other, Orders),
    test!(an_order_to_nobody_is_not_done, Orders),
    test!(a_kept_seat_can_be_evicted, Orders, KeepFor),
    test!(resizing_admits_more, Orders, Shares),
    test!(resizing_takes_nothing_from_holders, Orders, Shares),
    test!(resizing_what_nobody_uses_is_not_done, Orders),
    test!(every_order_is_recorded, Orders),
    test!(the_audit_trail_comes_in_pages_newest_first, Orders),
    test!(the_audit_trail_keeps_odd_texts, Orders),
    test!(b9_nothing_is_there_without_an_end, Orders, Line),
];

const PAUSE: OperatorAction = OperatorAction::Pause { lasting: LONG };

async fn a_pause_grants_nothing_and_holders_stay(desk: &Desk) {
    granted(desk.ask(&desk.claim("ann")).await);
    assert_eq!(desk.order(PAUSE).await, CommandOutcome::Done);
    kept(desk.renew("ann", LONG).await);
    granted(desk.ask(&desk.claim("ann")).await);
    assert!(blocked(desk.ask(&desk.claim("bob")).await).paused);
    assert_eq!(desk.leave("ann").await, Released::Now);
    let seen = blocked(desk.ask(&desk.claim("bob")).await);
    assert!(seen.paused && seen.holders.is_empty());
    let lasts = desk.look().await.paused_for.expect("the pause is seen");
    assert!(lasts <= LONG && lasts > LONG / 2, "{lasts:?}");
}

async fn a_pause_ends_by_itself(desk: &Desk) {
    desk.order(OperatorAction::Pause { lasting: desk.short() }).await;
    let seen = blocked(desk.ask(&desk.claim("ann")).await);
    assert!(seen.changes_in.is_some_and(|at| at <= desk.short()), "the end of a pause is a change");
    desk.target.outlast(desk.short()).await;
    assert_eq!(desk.look().await.paused_for, None);
    granted(desk.ask(&desk.claim("ann")).await);
}

async fn a_resume_ends_a_pause(desk: &Desk) {
    desk.order(PAUSE).await;
    blocked(desk.ask(&desk.claim("ann")).await);
    assert_eq!(desk.order(OperatorAction::Resume).await, CommandOutcome::Done);
    granted(desk.ask(&desk.claim("ann")).await);
    assert_eq!(
        desk.order(OperatorAction::Resume).await,
        CommandOutcome::Done,
        "resuming what runs is no mistake"
    );
}

async fn a_pause_keeps_the_line(desk: &Desk) {
    desk.order(PAUSE).await;
    placed(desk.ask(&desk.claim("ann").queued()).await, 0);
    placed(desk.ask(&desk.claim("bob").queued()).await, 1);
    placed(desk.ask(&desk.claim("ann").queued()).await, 0);
    desk.order(OperatorAction::Resume).await;
    blocked(desk.ask(&desk.claim("bob").queued()).await);
    granted(desk.ask(&desk.claim("ann").queued()).await);
}

async fn a_later_pause_replaces_the_first(desk: &Desk) {
    desk.order(PAUSE).await;
    desk.order(OperatorAction::Pause { lasting: desk.short() }).await;
    desk.target.outlast(desk.short()).await;
    granted(desk.ask(&desk.claim("ann")).await);
}

async fn asking_reaches_the_holder(desk: &Desk) {
    granted(desk.ask(&desk.claim("ann")).await);
    assert_eq!(kept(desk.renew("ann", LONG).await).asked, None);
    let within = Duration::from_secs(40);
    assert_eq!(desk.order(OperatorAction::Ask { within }).await, CommandOutcome::Done);
    let answer = kept(desk.renew("ann", LONG).await);
    assert!(!answer.evicting, "nothing is taken from it");
    let asked = answer.asked.expect("the wish is told");
    assert_eq!((&*asked.by, &*asked.why), ("suite", "to see what happens"));
    assert!(asked.within <= within && asked.within > within / 2, "{:?} are left", asked.within);
    assert!(desk.look().await.holders[0].asked.is_some());
    desk.target.pass(Duration::from_millis(50)).await;
    let later = kept(desk.renew("ann", LONG).await).asked.expect("the wish stands");
    assert!(later.within < asked.within, "the time it has runs");
    desk.leave("ann").await;
    granted(desk.ask(&desk.claim("bob")).await);
    assert_eq!(kept(desk.renew("bob", LONG).await).asked, None, "the next holder was not asked");
}

async fn what_was_asked_of_one_grant_is_not_asked_of_the_next(desk: &Desk) {
    let first = desk.brief("ann").with_note(*b"first");
    granted(desk.ask(&first).await);
    assert_eq!(desk.order(OperatorAction::Ask { within: LONG }).await, CommandOutcome::Done);
    desk.target.outlast(desk.short()).await;
    granted(desk.ask(&desk.claim("ann").with_note(*b"second")).await);
    let seen = desk.look().await;
    assert_eq!(
        (seen.holders[0].note.as_deref(), seen.holders[0].asked.as_ref()),
        (Some(&b"second"[..]), None)
    );
    assert_eq!(kept(desk.renew("ann", LONG).await).asked, None);
}

async fn an_eviction_at_expiry_lets_it_run_out(desk: &Desk) {
    granted(desk.ask(&desk.brief("ann")).await);
    assert_eq!(desk.order(OperatorAction::Evict(Eviction::AtExpiry)).await, CommandOutcome::Done);
    let answer = kept(desk.renew("ann", LONG).await);
    assert!(answer.evicting && answer.remaining <= desk.short(), "it is told, and not extended: {answer:?}");
    assert!(desk.look().await.holders[0].evicting);
    blocked(desk.ask(&desk.claim("bob")).await);
    desk.target.outlast(desk.short()).await;
    gone(&desk.renew("ann", LONG).await, GoneReason::NotThere);
    granted(desk.ask(&desk.claim("bob")).await);
    assert!(!kept(desk.renew("bob", LONG).await).evicting);
}

async fn an_eviction_now_ends_it_at_once(desk: &Desk) {
    let first = granted(desk.ask(&desk.claim("ann")).await);
    assert_eq!(desk.order(OperatorAction::Evict(Eviction::Now)).await, CommandOutcome::Done);
    gone(&desk.renew("ann", LONG).await, GoneReason::Evicted);
    let second = granted(desk.ask(&desk.claim("bob")).await);
    assert!(second.token > first.token);
    assert_eq!(desk.leave("ann").await, Released::AlreadyGone);
    kept(desk.renew("bob", LONG).await);
}

async fn the_evicted_do_not_come_back_with_the_same_claim(desk: &Desk) {
    granted(desk.ask(&desk.claim("ann")).await);
    desk.order(OperatorAction::Evict(Eviction::Now)).await;
    buried(&desk.ask(&desk.claim("ann")).await);
    buried(&desk.ask(&desk.claim("ann").queued()).await);
}

async fn an_order_means_one_grant_and_no_other(desk: &Desk) {
    let first = granted(desk.ask(&desk.claim("ann")).await).token;
    desk.leave("ann").await;
    let second = granted(desk.ask(&desk.claim("bob")).await).token;
    let order =
        |command| OperatorCommand::new(desk.resource.clone(), command, "suite", "mistaken").for_token(first);
    for command in [OperatorAction::Evict(Eviction::Now), OperatorAction::Evict(Eviction::AtExpiry), PAUSE] {
        assert_eq!(desk.say(&order(command)).await, CommandOutcome::HolderChanged { token: Some(second) });
    }
    let answer = kept(desk.renew("bob", LONG).await);
    assert!(!answer.evicting && desk.look().await.paused_for.is_none(), "nothing was done");
    let order =
        OperatorCommand::new(desk.resource.clone(), OperatorAction::Evict(Eviction::Now), "suite", "meant")
            .for_token(second);
    assert_eq!(desk.say(&order).await, CommandOutcome::Done);
    gone(&desk.renew("bob", LONG).await, GoneReason::Evicted);
}

async fn an_order_to_nobody_is_not_done(desk: &Desk) {
    let nobody = CommandOutcome::HolderChanged { token: None };
    assert_eq!(desk.order(OperatorAction::Ask { within: LONG }).await, nobody);
    assert_eq!(desk.order(OperatorAction::Evict(Eviction::Now)).await, nobody);
    assert_eq!(desk.order(OperatorAction::Evict(Eviction::AtExpiry)).await, nobody);
    granted(desk.ask(&desk.claim("ann")).await);
    assert!(!kept(desk.renew("ann", LONG).await).evicting, "it did not wait for someone to come");
}

async fn a_kept_seat_can_be_evicted(desk: &Desk) {
    granted(desk.ask(&desk.claim("ann")).await);
    desk.bid(&leasehold_core::ReleaseRequest::new(desk.reference("ann")).keeping(LONG)).await;
    blocked(desk.ask(&desk.claim("bob")).await);
    assert_eq!(desk.order(OperatorAction::Evict(Eviction::Now)).await, CommandOutcome::Done);
    granted(desk.ask(&desk.claim("bob")).await);
}

async fn resizing_admits_more(desk: &Desk) {
    granted(desk.ask(&desk.claim_of("ann", share(2, 2))).await);
    assert_eq!(desk.order(resize(4)).await, CommandOutcome::Done);
    assert_eq!(desk.look().await.capacity, 4);
    granted(desk.ask(&desk.claim_of("bob", share(2, 4))).await);
    blocked(desk.ask(&desk.claim_of("cy", share(1, 4))).await);
}

async fn resizing_takes_nothing_from_holders(desk: &Desk) {
    granted(desk.ask(&desk.claim_of("ann", share(2, 4))).await);
    granted(desk.ask(&desk.claim_of("bob", share(2, 4))).await);
    assert_eq!(desk.order(resize(2)).await, CommandOutcome::Done);
    kept(desk.renew("ann", LONG).await);
    kept(desk.renew("bob", LONG).await);
    blocked(desk.ask(&desk.claim_of("cy", share(1, 2))).await);
    desk.leave("ann").await;
    blocked(desk.ask(&desk.claim_of("cy", share(1, 2))).await);
    desk.leave("bob").await;
    granted(desk.ask(&desk.claim_of("cy", share(1, 2))).await);
}

async fn resizing_what_nobody_uses_is_not_done(desk: &Desk) {
    assert_eq!(desk.order(resize(7)).await, CommandOutcome::HolderChanged { token: None });
    granted(desk.ask(&desk.claim("ann")).await);
    assert_eq!(desk.look().await.capacity, 1);
}

/// Every page of this test's trail, and nothing of it twice.
async fn audit(desk: &Desk, limit: u32) -> Vec<AuditRecord> {
    let (mut all, mut listing) = (Vec::new(), Listing::of(desk.prefix()).limit(limit));
    loop {
        let Page::Audit { records, next } = desk.page(&Query::Audit(listing)).await else {
            panic!("the audit trail was asked for");
        };
        assert!(limit == 0 || records.len() <= limit as usize, "a page is no longer than asked for");
        all.extend(records);
        match next {
            None => return all,
            Some(next) => listing = Listing::of(desk.prefix()).limit(limit).after(next),
        }
        assert!(all.len() < 1_000, "a trail ends");
    }
}

async fn every_order_is_recorded(desk: &Desk) {
    let token = granted(desk.ask(&desk.claim("ann")).await).token;
    let wrong = FencingToken::new(token.get() - 1).ok();
    desk.order(PAUSE).await;
    desk.order(OperatorAction::Resume).await;
    desk.order(OperatorAction::Ask { within: LONG }).await;
    let evict = OperatorCommand::new(
        desk.resource.clone(),
        OperatorAction::Evict(Eviction::AtExpiry),
        "ops",
        "too long",
    );
    if let Some(wrong) = wrong {
        desk.say(&evict.clone().for_token(wrong)).await;
    }
    desk.say(&evict.for_token(token)).await;
    desk.order(OperatorAction::Evict(Eviction::Now)).await;
    let mut records = audit(desk, 0).await;
    records.reverse();
    let told: Vec<_> = records.iter().map(|record| (record.command.as_str(), record.done)).collect();
    let mut due = vec![("pause", true), ("resume", true), ("ask", true), ("evict", false), ("evict", true)];
    due.push(("evict-now", true));
    if wrong.is_none() {
        due.remove(3);
    }
    assert_eq!(told, due);
    assert!(records.iter().all(|record| record.resource == desk.resource));
    let evict = &records[records.len() - 2];
    assert_eq!((evict.token, evict.by.as_str(), evict.why.as_str()), (Some(token), "ops", "too long"));
    assert!(records.is_sorted_by_key(|record| record.at), "in the order in which it happened");
}

async fn the_audit_trail_comes_in_pages_newest_first(desk: &Desk) {
    for number in 0..7 {
        desk.say(&OperatorCommand::new(
            desk.resource.clone(),
            OperatorAction::Resume,
            "suite",
            &format!("order {number}"),
        ))
        .await;
    }
    let due: Vec<_> = (0..7).rev().map(|number| format!("order {number}")).collect();
    for limit in [1, 3, 7, 0] {
        let told: Vec<_> = audit(desk, limit).await.into_iter().map(|record| record.why).collect();
        assert_eq!(told, due, "in pages of {limit}");
    }
}

async fn the_audit_trail_keeps_odd_texts(desk: &Desk) {
    let (by, why) = ("o'neill \"the\" <b>|{op}", "naïve; DROP TABLE leases; -- 🦀\nsecond line");
    desk.say(&OperatorCommand::new(desk.resource.clone(), OperatorAction::Resume, by, why)).await;
    let record = audit(desk, 0).await.remove(0);
    assert_eq!((record.by.as_str(), record.why.as_str()), (by, why));
}

/// Whatever a resource has gone through, all that is left of it ends by itself, as far as the store can tell.
async fn b9_nothing_is_there_without_an_end(desk: &Desk) {
    granted(desk.ask(&desk.claim("ann")).await);
    placed(desk.ask(&desk.claim("bob").queued()).await, 0);
    desk.order(OperatorAction::Ask { within: LONG }).await;
    desk.order(PAUSE).await;
    desk.order(OperatorAction::Evict(Eviction::Now)).await;
    let mut listing = Some(Listing::of(desk.prefix()));
    while let Some(part) = listing.take() {
        match desk.backend().inspect(&Query::Leaks(part)).await {
            Ok(Page::Leaks { found, next }) => {
                assert_eq!(found, []);
                listing = next.map(|next| Listing::of(desk.prefix()).after(next));
            }
            Ok(other) => panic!("leaks were asked for: {other:?}"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unsupported),
        }
    }
}
