//! What an operator says.

use std::time::Duration;

use leasehold_core::{
    CommandOutcome, Eviction, FencingToken, GoneReason, OperatorAction, OperatorCommand, ReleaseRequest,
    Renewal, Share, Verdict,
};

use crate::{
    both::{Both, reference, resize, resource},
    rules::{TTL, blocked, gone, granted, placed},
};

fn order(command: OperatorAction) -> OperatorCommand {
    OperatorCommand::new(resource(), command, "someone", "somehow")
}

impl Both {
    fn say(&mut self, command: OperatorAction) -> CommandOutcome {
        self.order(&order(command))
    }
}

const NOBODY: CommandOutcome = CommandOutcome::HolderChanged { token: None };

#[test]
fn a_pause_grants_nothing_takes_nothing_and_ends() {
    let mut both = Both::new();
    granted(both.ask(0, Share::WHOLE));
    assert_eq!(both.say(OperatorAction::Pause { lasting: TTL / 2 }), CommandOutcome::Done);
    granted(both.ask(0, Share::WHOLE));
    assert!(matches!(both.go_on(0, TTL), Renewal::Renewed(_)));
    both.leave(0);
    let seen = blocked(both.ask(1, Share::WHOLE));
    assert_eq!((seen.paused, seen.changes_in), (true, Some(TTL / 2)));
    both.pass(TTL / 2);
    granted(both.ask(1, Share::WHOLE));
}

#[test]
fn a_resume_ends_a_pause_and_the_queue_is_granted() {
    let mut both = Both::new();
    both.say(OperatorAction::Pause { lasting: TTL });
    placed(both.queue(0, Share::WHOLE), 0);
    assert_eq!(both.model.grantable().count(), 0);
    both.say(OperatorAction::Resume);
    assert_eq!(both.model.grantable().count(), 1);
    granted(both.queue(0, Share::WHOLE));
}

#[test]
fn asking_reaches_the_holder_and_takes_nothing() {
    let mut both = Both::new();
    assert_eq!(both.say(OperatorAction::Ask { within: TTL }), NOBODY);
    granted(both.ask(0, Share::WHOLE));
    assert_eq!(both.say(OperatorAction::Ask { within: TTL / 2 }), CommandOutcome::Done);
    both.pass(TTL / 4);
    let Renewal::Renewed(kept) = both.go_on(0, TTL) else { panic!("it holds") };
    let asked = kept.asked.expect("it was asked");
    assert_eq!((asked.within, &*asked.by, &*asked.why), (TTL / 4, "someone", "somehow"));
    both.pass(TTL / 2);
    let Renewal::Renewed(kept) = both.go_on(0, TTL) else { panic!("it holds") };
    assert_eq!(kept.asked.map(|asked| asked.within), Some(Duration::ZERO));
}

#[test]
fn an_eviction_at_expiry_stops_renewals() {
    let mut both = Both::new();
    granted(both.ask(0, Share::WHOLE));
    both.say(OperatorAction::Evict(Eviction::AtExpiry));
    both.pass(TTL / 2);
    let Renewal::Renewed(kept) = both.go_on(0, TTL * 10) else { panic!("it holds") };
    assert!(kept.evicting && kept.remaining == TTL / 2);
    blocked(both.ask(1, Share::WHOLE));
    both.pass(TTL / 2);
    gone(&both.go_on(0, TTL), GoneReason::NotThere);
    granted(both.ask(1, Share::WHOLE));
}

#[test]
fn an_eviction_now_ends_the_lease_and_leaves_a_tombstone() {
    let mut both = Both::new();
    granted(both.ask(0, Share::WHOLE));
    assert_eq!(both.say(OperatorAction::Evict(Eviction::Now)), CommandOutcome::Done);
    gone(&both.go_on(0, TTL), GoneReason::Evicted);
    assert!(matches!(both.ask(0, Share::WHOLE), Verdict::Cancelled));
    granted(both.ask(1, Share::WHOLE));
    both.leave(1);
    both.pass(ReleaseRequest::tombstone_ttl(TTL));
    granted(both.ask(0, Share::WHOLE));
}

#[test]
fn without_a_token_the_newest_grant_is_meant() {
    let mut both = Both::new();
    granted(both.ask(0, Share::READ));
    let newest = granted(both.ask(1, Share::READ)).token;
    both.say(OperatorAction::Evict(Eviction::Now));
    gone(&both.go_on(1, TTL), GoneReason::Evicted);
    assert!(matches!(both.go_on(0, TTL), Renewal::Renewed(_)));
    let stale = both.order(&order(OperatorAction::Evict(Eviction::Now)).for_token(newest));
    assert!(matches!(stale, CommandOutcome::HolderChanged { token: Some(_) }), "{stale:?}");
}

#[test]
fn a_token_that_is_not_there_stops_any_order() {
    let mut both = Both::new();
    let there = granted(both.ask(0, Share::WHOLE)).token;
    let other = FencingToken::new(there.get() + 5).unwrap();
    let commands = [
        OperatorAction::Pause { lasting: TTL },
        OperatorAction::Resume,
        resize(3),
        OperatorAction::Ask { within: TTL },
        OperatorAction::Evict(Eviction::Now),
        OperatorAction::Evict(Eviction::AtExpiry),
    ];
    for command in commands {
        let answer = both.order(&order(command).for_token(other));
        assert_eq!(answer, CommandOutcome::HolderChanged { token: Some(there) }, "{command:?}");
    }
    let seen = both.look();
    assert_eq!((seen.capacity, seen.paused_for, seen.holders[0].evicting), (1, None, false));
}

#[test]
fn a_kept_resource_can_be_evicted() {
    let mut both = Both::new();
    granted(both.ask(0, Share::WHOLE));
    both.release(&ReleaseRequest::new(reference(0)).keeping(TTL));
    assert_eq!(both.say(OperatorAction::Evict(Eviction::Now)), CommandOutcome::Done);
    granted(both.ask(1, Share::WHOLE));
}

#[test]
fn a_resize_admits_more_and_takes_nothing() {
    let share = |weight, capacity| Share::new(weight, capacity).unwrap();
    let mut both = Both::new();
    assert_eq!(both.say(resize(4)), NOBODY, "nobody uses it");
    granted(both.ask(0, share(2, 2)));
    placed(both.queue(1, share(2, 2)), 0);
    assert_eq!(both.say(resize(4)), CommandOutcome::Done);
    assert!(matches!(both.queue(1, share(2, 2)), Verdict::Mismatch { capacity: 4 }));
    granted(both.queue(1, share(2, 4)));
    both.say(resize(1));
    assert_eq!(both.look().holder_count, 2);
    assert!(matches!(both.go_on(0, TTL), Renewal::Renewed(_)));
    blocked(both.ask(2, Share::WHOLE));
    assert_eq!(both.look().capacity, 1);
}
