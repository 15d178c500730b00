//! Succession, the bound on hand-overs, and downgrades.

use std::time::Duration;

use leasehold_core::{
    Eviction, GoneReason, Handover, OperatorAction, OperatorCommand, ReleaseRequest, Released, Renewal,
    Share, Verdict, admission,
};

use crate::{
    both::{Both, claim, owner, reference, resource},
    rules::{TTL, blocked, gone, granted, placed},
};

impl Both {
    /// Takes over from someone, and queues if that is refused.
    fn take_over(&mut self, successor: u8, from: u8, share: Share) -> Verdict {
        self.acquire(&claim(successor, share, TTL).queued().taking_over(Handover::from(owner(from))))
    }

    fn command(&mut self, command: OperatorAction) {
        self.order(&OperatorCommand::new(resource(), command, "someone", "somehow"));
    }
}

#[test]
fn a_successor_takes_the_grant_whatever_the_queue() {
    let mut both = Both::new();
    let first = granted(both.ask(0, Share::WHOLE));
    placed(both.queue(1, Share::WHOLE), 0);
    both.pass(TTL / 2);
    let second = granted(both.take_over(2, 0, Share::WHOLE));
    assert!(second.token > first.token && second.remaining == TTL, "a new token and a ttl of its own");
    gone(&both.go_on(0, TTL), GoneReason::NotThere);
    assert_eq!((both.look().holder_count, both.look().holders[0].handovers), (1, 1));
}

#[test]
fn a_successor_that_was_queued_leaves_the_queue() {
    let mut both = Both::new();
    granted(both.ask(0, Share::WHOLE));
    placed(both.queue(1, Share::WHOLE), 0);
    placed(both.queue(2, Share::WHOLE), 1);
    granted(both.take_over(2, 0, Share::WHOLE));
    assert_eq!(both.look().queue_length, 1);
}

#[test]
fn a_predecessor_gets_a_tombstone_only_if_asked() {
    for tombstone in [None, Some(TTL)] {
        let mut both = Both::new();
        granted(both.ask(0, Share::WHOLE));
        let mut from = Handover::from(owner(0));
        from.tombstone = tombstone;
        granted(both.acquire(&claim(1, Share::WHOLE, TTL).taking_over(from)));
        let verdict = both.ask(0, Share::WHOLE);
        assert_eq!(matches!(verdict, Verdict::Cancelled), tombstone.is_some(), "{verdict:?}");
    }
}

#[test]
fn hand_overs_are_bounded_while_others_wait() {
    let mut both = Both::new();
    granted(both.ask(0, Share::WHOLE));
    placed(both.queue(200, Share::WHOLE), 0);
    let most = u8::try_from(admission::HANDOVERS_MAX).unwrap();
    for successor in 1..=most {
        granted(both.take_over(successor, successor - 1, Share::WHOLE));
    }
    placed(both.take_over(most + 1, most, Share::WHOLE), 1);
    assert_eq!(both.look().holder_count, 0, "the predecessor is released");
    granted(both.queue(200, Share::WHOLE));
}

#[test]
fn handovers_are_counted_and_not_bounded_while_nothing_is_queued() {
    let mut both = Both::new();
    granted(both.ask(0, Share::WHOLE));
    for successor in 1..=40 {
        granted(both.take_over(successor, successor - 1, Share::WHOLE));
    }
    assert_eq!(both.look().holders[0].handovers, 40);
    // Now someone waits: the very next one is refused.
    placed(both.queue(200, Share::WHOLE), 0);
    placed(both.take_over(41, 40, Share::WHOLE), 1);
}

#[test]
fn a_paused_or_evicted_grant_is_not_handed_over() {
    for command in [OperatorAction::Pause { lasting: TTL }, OperatorAction::Evict(Eviction::AtExpiry)] {
        let mut both = Both::new();
        granted(both.ask(0, Share::WHOLE));
        placed(both.queue(1, Share::WHOLE), 0);
        both.command(command);
        placed(both.take_over(2, 0, Share::WHOLE), 1);
        assert_eq!(both.look().holder_count, 0);
    }
    // Without a queue, the successor of an evicted holder is an ordinary claim, and granted as one.
    let mut both = Both::new();
    granted(both.ask(0, Share::WHOLE));
    both.command(OperatorAction::Evict(Eviction::AtExpiry));
    granted(both.take_over(1, 0, Share::WHOLE));
    assert_eq!((both.look().holders[0].handovers, both.look().holders[0].evicting), (0, false));
}

#[test]
fn a_downgrade_is_never_refused_nor_counted_and_keeps_the_expiry() {
    let mut both = Both::new();
    granted(both.ask(0, Share::WRITE));
    placed(both.queue(1, Share::WRITE), 0);
    both.command(OperatorAction::Pause { lasting: TTL });
    both.pass(TTL / 2);
    let mut read = claim(2, Share::READ, TTL * 5).taking_over(Handover::from(owner(0)));
    read.ttl = TTL * 5;
    assert_eq!(granted(both.acquire(&read)).remaining, TTL / 2);
    assert_eq!(both.look().holders[0].handovers, 0);
}

#[test]
fn a_downgrade_does_not_escape_an_eviction() {
    let mut both = Both::new();
    granted(both.ask(0, Share::WRITE));
    both.command(OperatorAction::Ask { within: TTL });
    both.command(OperatorAction::Evict(Eviction::AtExpiry));
    both.pass(TTL / 2);
    granted(both.take_over(1, 0, Share::READ));
    let Renewal::Renewed(kept) = both.go_on(1, TTL * 10) else { panic!("it holds") };
    assert!(kept.evicting && kept.remaining == TTL / 2, "it still runs out: {kept:?}");
    assert_eq!(kept.asked.map(|asked| asked.within), Some(TTL / 2), "and is still asked");
}

#[test]
fn a_heavier_successor_releases_its_predecessor_and_queues_like_any_claim() {
    let mut both = Both::new();
    granted(both.ask(0, Share::READ));
    granted(both.ask(1, Share::READ));
    placed(both.take_over(2, 0, Share::WRITE), 0);
    assert_eq!(both.look().holder_count, 1);
    both.leave(1);
    granted(both.queue(2, Share::WRITE));
}

#[test]
fn a_successor_takes_the_place_in_the_queue() {
    let mut both = Both::new();
    granted(both.ask(0, Share::WHOLE));
    placed(both.queue(1, Share::WHOLE), 0);
    placed(both.queue(2, Share::WHOLE), 1);
    both.pass(TTL / 2);
    placed(both.take_over(3, 1, Share::WHOLE), 0);
    let place = &both.look().queue[0];
    assert_eq!(
        (place.waited, place.remaining),
        (TTL / 2, TTL),
        "since when it waits is inherited, the ttl is not"
    );
    assert_eq!(both.leave(1), Released::AlreadyGone);
    assert!(
        !blocked(both.acquire(&claim(4, Share::WHOLE, TTL).taking_over(Handover::from(owner(3))))).queued
    );
    placed(both.queue(2, Share::WHOLE), 0);
}

#[test]
fn a_successor_of_a_kept_expired_or_unknown_claim_is_an_ordinary_claim() {
    let mut both = Both::new();
    granted(both.ask(0, Share::WHOLE));
    both.release(&ReleaseRequest::new(reference(0)).keeping(TTL));
    placed(both.take_over(1, 0, Share::WHOLE), 0);
    assert!(both.look().holders[0].kept, "it stays closed");
    both.pass(TTL - Duration::from_nanos(1));
    placed(both.take_over(2, 99, Share::WHOLE), 1);
    both.go_on(1, TTL);
    both.pass(Duration::from_nanos(1));
    placed(both.take_over(3, 0, Share::WHOLE), 2);
    granted(both.queue(1, Share::WHOLE));
}

#[test]
fn a_cancelled_successor_still_releases_its_predecessor() {
    let mut both = Both::new();
    granted(both.ask(0, Share::WHOLE));
    placed(both.queue(2, Share::WHOLE), 0);
    both.release(&ReleaseRequest::new(reference(1)).with_tombstone(TTL));
    let from = Handover::with_tombstone(owner(0), TTL);
    assert!(matches!(both.acquire(&claim(1, Share::WHOLE, TTL).taking_over(from)), Verdict::Cancelled));
    gone(&both.go_on(0, TTL), GoneReason::Cancelled);
    granted(both.queue(2, Share::WHOLE));
}
