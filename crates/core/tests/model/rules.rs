//! Admission, the queue, expiry, renewal, tombstones and kept resources.

use std::time::Duration;

use leasehold_core::{
    Blocked, FencingToken, GoneReason, Grant, Model, ReleaseRequest, Released, RenewRequest, Renewal, Share,
    Verdict, admission,
};

use crate::both::{Both, claim, owner, reference, resource};

pub(crate) const TTL: Duration = Duration::from_secs(10);

#[track_caller]
#[expect(clippy::needless_pass_by_value, reason = "reads like its siblings: granted(both.ask(…))")]
pub(crate) fn granted(verdict: Verdict) -> Grant {
    if let Verdict::Granted(grant) = verdict { grant } else { panic!("a grant was due, not {verdict:?}") }
}

#[track_caller]
pub(crate) fn blocked(verdict: Verdict) -> Blocked {
    if let Verdict::Blocked(blocked) = verdict { blocked } else { panic!("it is not free, yet: {verdict:?}") }
}

#[track_caller]
pub(crate) fn placed(verdict: Verdict, ahead: u32) -> Blocked {
    let blocked = blocked(verdict);
    assert_eq!((blocked.queued, blocked.ahead), (true, ahead));
    blocked
}

#[track_caller]
pub(crate) fn gone(renewal: &Renewal, because: GoneReason) {
    assert!(matches!(renewal, Renewal::Gone { why } if *why == because), "{renewal:?}");
}

impl Both {
    pub(crate) fn ask(&mut self, number: u8, share: Share) -> Verdict {
        self.acquire(&claim(number, share, TTL))
    }

    pub(crate) fn queue(&mut self, number: u8, share: Share) -> Verdict {
        self.acquire(&claim(number, share, TTL).queued())
    }

    pub(crate) fn leave(&mut self, number: u8) -> Released {
        self.release(&ReleaseRequest::new(reference(number)))
    }

    pub(crate) fn go_on(&mut self, number: u8, ttl: Duration) -> Renewal {
        self.renew(&RenewRequest::new(reference(number), ttl))
    }
}

fn share(weight: u32, capacity: u32) -> Share {
    Share::new(weight, capacity).unwrap()
}

#[test]
fn a_claim_is_granted_iff_it_fits_with_holders_and_those_ahead() {
    let mut both = Both::new();
    granted(both.ask(0, share(2, 5)));
    placed(both.queue(1, share(4, 5)), 0);
    placed(both.queue(2, share(1, 5)), 1);
    blocked(both.ask(3, share(1, 5)));
    both.leave(0);
    granted(both.queue(2, share(1, 5)));
    granted(both.queue(1, share(4, 5)));
}

#[test]
fn a_claim_that_would_leave_never_overtakes() {
    let mut both = Both::new();
    granted(both.ask(0, Share::WHOLE));
    placed(both.queue(1, Share::WHOLE), 0);
    both.leave(0);
    assert_eq!(blocked(both.ask(2, Share::WHOLE)).ahead, 1);
    granted(both.queue(1, Share::WHOLE));
}

#[test]
fn asking_again_is_the_same_grant_with_what_remains() {
    let mut both = Both::new();
    let first = granted(both.ask(0, Share::WHOLE));
    both.pass(TTL / 4);
    let again = granted(both.ask(0, Share::WHOLE));
    assert_eq!((again.token, again.remaining), (first.token, TTL * 3 / 4));
}

#[test]
fn a_grant_ends_at_its_ttl_and_not_before() {
    let mut both = Both::new();
    granted(both.ask(0, Share::WHOLE));
    both.pass(TTL - Duration::from_nanos(1));
    assert_eq!(blocked(both.ask(1, Share::WHOLE)).changes_in, Some(Duration::from_nanos(1)));
    both.pass(Duration::from_nanos(1));
    granted(both.ask(1, Share::WHOLE));
    gone(&both.go_on(0, TTL), GoneReason::NotThere);
}

#[test]
fn tokens_grow_whatever_happens_in_between() {
    let mut both = Both::new();
    let mut last = None;
    for round in 0..20u8 {
        let grant = granted(both.ask(round % 3, Share::WHOLE));
        assert!(last < Some(grant.token));
        last = Some(grant.token);
        match round % 4 {
            0 => both.pass(TTL),
            1 => {
                let release = ReleaseRequest::new(reference(round % 3));
                both.release(&release.with_tombstone(Duration::from_nanos(1)));
            }
            _ => drop(both.leave(round % 3)),
        }
        both.pass(Duration::from_nanos(1));
    }
}

#[test]
fn a_token_is_minted_from_last_clock_and_floor() {
    let mut model = Model::new(0);
    let (now, mut asked) = (Both::new().now, claim(0, Share::WHOLE, TTL));
    assert_eq!(granted(model.acquire(now, &asked, 500).unwrap()).token.get(), 500);
    model.release(now, &ReleaseRequest::new(reference(0)));
    assert_eq!(granted(model.acquire(now, &asked, 3).unwrap()).token.get(), 501);
    model.release(now, &ReleaseRequest::new(reference(0)));
    asked.floor = Some(FencingToken::new(900).unwrap());
    assert_eq!(granted(model.acquire(now, &asked, 3).unwrap()).token.get(), 901);
    // Without a token left, nothing changes.
    model.release(now, &ReleaseRequest::new(reference(0)));
    let before = model.version();
    assert!(model.acquire(now, &asked, FencingToken::LIMIT).is_err());
    assert_eq!((model.version(), model.snapshot(now, &resource()).holder_count), (before, 0));
}

#[test]
fn the_first_claim_fixes_the_capacity_while_the_resource_is_in_use() {
    let mut both = Both::new();
    granted(both.ask(0, share(1, 2)));
    assert!(matches!(both.ask(1, Share::WHOLE), Verdict::Mismatch { capacity: 2 }));
    placed(both.queue(2, share(2, 2)), 0);
    both.leave(0);
    assert!(
        matches!(both.queue(1, Share::WHOLE), Verdict::Mismatch { capacity: 2 }),
        "a place counts as well"
    );
    both.leave(2);
    granted(both.ask(1, Share::WHOLE));
}

#[test]
fn renewing_never_revives_and_never_shortens() {
    let mut both = Both::new();
    granted(both.ask(0, Share::WHOLE));
    let Renewal::Renewed(kept) = both.go_on(0, TTL / 2) else { panic!("it holds") };
    assert_eq!(kept.remaining, TTL);
    both.pass(TTL / 2);
    let Renewal::Renewed(kept) = both.go_on(0, TTL) else { panic!("it holds") };
    assert_eq!(kept.remaining, TTL);
    both.pass(TTL);
    gone(&both.go_on(0, TTL), GoneReason::NotThere);
    assert_eq!(both.look().holder_count, 0);
}

#[test]
fn a_place_in_the_queue_expires_unless_it_is_renewed() {
    let mut both = Both::new();
    granted(both.acquire(&claim(0, Share::WHOLE, TTL * 10)));
    placed(both.queue(1, Share::WHOLE), 0);
    placed(both.queue(2, Share::WHOLE), 1);
    both.pass(TTL / 2);
    assert!(
        matches!(both.go_on(2, TTL / 4), Renewal::Queued { remaining } if remaining == TTL / 2),
        "never shortened"
    );
    assert!(matches!(both.go_on(2, TTL), Renewal::Queued { remaining } if remaining == TTL));
    both.pass(TTL / 2);
    gone(&both.go_on(1, TTL), GoneReason::NotThere);
    placed(both.queue(2, Share::WHOLE), 0);
    placed(both.queue(1, Share::WHOLE), 1);
}

#[test]
fn in_a_queue_longer_than_the_window_the_number_ahead_is_an_upper_bound() {
    let mut both = Both::new();
    granted(both.ask(200, Share::WHOLE));
    let last = u8::try_from(admission::WINDOW + 5).unwrap();
    for number in 0..=last {
        let seen = blocked(both.queue(number, Share::WHOLE));
        assert!(seen.queued && seen.ahead >= u32::from(number));
    }
    // A capacity for all of them does not help those behind the window.
    let mut readers = Both::new();
    granted(readers.ask(200, Share::WRITE));
    (0..=last).for_each(|number| drop(readers.queue(number, Share::READ)));
    readers.leave(200);
    blocked(readers.queue(last, Share::READ));
    granted(readers.queue(u8::try_from(admission::WINDOW).unwrap(), Share::READ));
}

#[test]
fn a_release_leaves_a_tombstone_if_asked() {
    let mut both = Both::new();
    both.release(&ReleaseRequest::new(reference(0)).with_tombstone(TTL));
    assert!(matches!(both.ask(0, Share::WHOLE), Verdict::Cancelled));
    gone(&both.go_on(0, TTL), GoneReason::Cancelled);
    granted(both.acquire(&claim(1, Share::WHOLE, TTL * 2)));
    both.pass(TTL);
    blocked(both.ask(0, Share::WHOLE));
}

#[test]
fn a_kept_resource_is_closed_for_all_and_then_open() {
    let mut both = Both::new();
    granted(both.ask(0, Share::WHOLE));
    assert_eq!(both.release(&ReleaseRequest::new(reference(0)).keeping(TTL * 2)), Released::Now);
    assert!(matches!(both.ask(0, Share::WHOLE), Verdict::Cancelled), "its owner has said request");
    gone(&both.go_on(0, TTL), GoneReason::NotThere);
    assert_eq!(both.leave(0), Released::AlreadyGone);
    assert!(blocked(both.ask(1, Share::WHOLE)).holders[0].kept);
    both.pass(TTL * 2);
    granted(both.ask(0, Share::WHOLE));
}

#[test]
fn keeping_closed_needs_a_holder_and_a_time() {
    let mut both = Both::new();
    assert_eq!(both.release(&ReleaseRequest::new(reference(0)).keeping(TTL)), Released::AlreadyGone);
    granted(both.ask(0, Share::WHOLE));
    placed(both.queue(1, Share::WHOLE), 0);
    assert_eq!(
        both.release(&ReleaseRequest::new(reference(1)).keeping(TTL)),
        Released::Now,
        "a place just goes"
    );
    assert_eq!(both.release(&ReleaseRequest::new(reference(0)).keeping(Duration::ZERO)), Released::Now);
    granted(both.ask(2, Share::WHOLE));
}

#[test]
fn the_blocked_see_three_holders_soonest_first() {
    let mut both = Both::new();
    for number in 0..5u8 {
        granted(both.acquire(&claim(number, share(1, 5), TTL * (10 - u32::from(number)))));
    }
    let seen = blocked(both.ask(9, share(1, 5)));
    let pids: Vec<_> = seen.holders.iter().map(|by| by.holder.pid).collect();
    assert_eq!(pids, [4, 3, 2]);
}

#[test]
fn notes_belong_to_the_grant() {
    let mut both = Both::new();
    granted(both.acquire(&claim(0, Share::WHOLE, TTL).with_note(*b"one")));
    both.renew(&RenewRequest::new(reference(0), TTL));
    assert_eq!(both.look().holders[0].note.as_deref(), Some(b"one".as_slice()));
    both.renew(&RenewRequest::new(reference(0), TTL).with_note(*b"two"));
    assert_eq!(both.look().holders[0].note.as_deref(), Some(b"two".as_slice()));
    both.leave(0);
    granted(both.ask(1, Share::WHOLE));
    assert_eq!(both.look().holders[0].note, None);
}

#[test]
fn versions_count_changes_and_idle_means_nothing_to_remember() {
    let mut both = Both::new();
    assert!(both.model.is_idle());
    let start = both.model.version();
    granted(both.ask(0, Share::WHOLE));
    let granted_at = both.model.version();
    assert!(granted_at > start && !both.model.is_idle());
    blocked(both.ask(1, Share::WHOLE));
    assert_eq!(both.model.version(), granted_at, "a claim that leaves nothing behind changes nothing");
    both.go_on(0, TTL);
    assert_eq!(both.model.version(), granted_at, "a renewal lets nobody move");
    both.leave(0);
    assert!(both.model.version() > granted_at && both.model.is_idle());
    both.release(&ReleaseRequest::new(reference(0)).with_tombstone(TTL));
    assert!(!both.model.is_idle(), "a tombstone is to be remembered");
    both.pass(TTL);
    both.model.remove_expired(both.now);
    assert!(both.model.is_idle());
    assert_eq!(Model::new(77).version(), 77);
}

#[test]
fn a_waiter_should_ask_again_if_it_is_grantable_or_has_no_place() {
    let mut both = Both::new();
    granted(both.ask(0, Share::WHOLE));
    placed(both.queue(1, Share::WHOLE), 0);
    placed(both.queue(2, Share::WHOLE), 1);
    let worth = |both: &Both| [1, 2, 3].map(|number| both.model.is_worth_asking(owner(number)));
    assert_eq!(worth(&both), [false, false, true]);
    both.leave(0);
    assert_eq!(worth(&both), [true, false, true]);
    both.leave(1);
    assert_eq!(worth(&both), [true, true, true]);
    assert_eq!((both.model.is_queued(owner(1)), both.model.is_queued(owner(2))), (false, true));
    assert_eq!(both.model.queue_length(), 1);
}
