//! What an operator says.

use std::time::Duration;

use leasehold_core::{
    Command, Eviction, Farewell, FencingToken, Gone, Order, Ordered, Renewal, Share, Verdict,
};

use crate::{
    both::{Both, reference, resize, resource},
    rules::{TTL, blocked, gone, granted, placed},
};

fn order(command: Command) -> Order {
    Order::new(resource(), command, "someone", "somehow")
}

impl Both {
    fn say(&mut self, command: Command) -> Ordered {
        self.order(&order(command))
    }
}

const NOBODY: Ordered = Ordered::NotThatOne { token: None };

#[test]
fn a_pause_grants_nothing_takes_nothing_and_ends() {
    let mut both = Both::new();
    granted(both.ask(0, Share::WHOLE));
    assert_eq!(both.say(Command::Pause { lasting: TTL / 2 }), Ordered::Done);
    granted(both.ask(0, Share::WHOLE));
    assert!(matches!(both.go_on(0, TTL), Renewal::Kept(_)));
    both.leave(0);
    let seen = blocked(both.ask(1, Share::WHOLE));
    assert_eq!((seen.paused, seen.changes_in), (true, Some(TTL / 2)));
    both.pass(TTL / 2);
    granted(both.ask(1, Share::WHOLE));
}

#[test]
fn a_resume_ends_a_pause_and_lets_the_line_move() {
    let mut both = Both::new();
    both.say(Command::Pause { lasting: TTL });
    placed(both.queue(0, Share::WHOLE), 0);
    assert_eq!(both.model.movers().count(), 0);
    both.say(Command::Resume);
    assert_eq!(both.model.movers().count(), 1);
    granted(both.queue(0, Share::WHOLE));
}

#[test]
fn asking_reaches_the_holder_and_takes_nothing() {
    let mut both = Both::new();
    assert_eq!(both.say(Command::Ask { within: TTL }), NOBODY);
    granted(both.ask(0, Share::WHOLE));
    assert_eq!(both.say(Command::Ask { within: TTL / 2 }), Ordered::Done);
    both.pass(TTL / 4);
    let Renewal::Kept(kept) = both.go_on(0, TTL) else { panic!("it holds") };
    let asked = kept.asked.expect("it was asked");
    assert_eq!((asked.within, &*asked.by, &*asked.why), (TTL / 4, "someone", "somehow"));
    both.pass(TTL / 2);
    let Renewal::Kept(kept) = both.go_on(0, TTL) else { panic!("it holds") };
    assert_eq!(kept.asked.map(|asked| asked.within), Some(Duration::ZERO));
}

#[test]
fn an_eviction_at_expiry_stops_renewals() {
    let mut both = Both::new();
    granted(both.ask(0, Share::WHOLE));
    both.say(Command::Evict(Eviction::AtExpiry));
    both.pass(TTL / 2);
    let Renewal::Kept(kept) = both.go_on(0, TTL * 10) else { panic!("it holds") };
    assert!(kept.evicting && kept.remaining == TTL / 2);
    blocked(both.ask(1, Share::WHOLE));
    both.pass(TTL / 2);
    gone(&both.go_on(0, TTL), Gone::NotThere);
    granted(both.ask(1, Share::WHOLE));
}

#[test]
fn an_eviction_now_ends_it_and_buries_it() {
    let mut both = Both::new();
    granted(both.ask(0, Share::WHOLE));
    assert_eq!(both.say(Command::Evict(Eviction::Now)), Ordered::Done);
    gone(&both.go_on(0, TTL), Gone::Evicted);
    assert!(matches!(both.ask(0, Share::WHOLE), Verdict::Buried));
    granted(both.ask(1, Share::WHOLE));
    both.leave(1);
    both.pass(Farewell::bury_for(TTL));
    granted(both.ask(0, Share::WHOLE));
}

#[test]
fn without_a_token_the_newest_grant_is_meant() {
    let mut both = Both::new();
    granted(both.ask(0, Share::READ));
    let newest = granted(both.ask(1, Share::READ)).token;
    both.say(Command::Evict(Eviction::Now));
    gone(&both.go_on(1, TTL), Gone::Evicted);
    assert!(matches!(both.go_on(0, TTL), Renewal::Kept(_)));
    let stale = both.order(&order(Command::Evict(Eviction::Now)).meaning(newest));
    assert!(matches!(stale, Ordered::NotThatOne { token: Some(_) }), "{stale:?}");
}

#[test]
fn a_token_that_is_not_there_stops_any_order() {
    let mut both = Both::new();
    let there = granted(both.ask(0, Share::WHOLE)).token;
    let other = FencingToken::new(there.get() + 5).unwrap();
    let commands = [
        Command::Pause { lasting: TTL },
        Command::Resume,
        resize(3),
        Command::Ask { within: TTL },
        Command::Evict(Eviction::Now),
        Command::Evict(Eviction::AtExpiry),
    ];
    for command in commands {
        let answer = both.order(&order(command).meaning(other));
        assert_eq!(answer, Ordered::NotThatOne { token: Some(there) }, "{command:?}");
    }
    let seen = both.look();
    assert_eq!((seen.capacity, seen.paused_for, seen.holders[0].evicting), (1, None, false));
}

#[test]
fn a_kept_seat_can_be_evicted() {
    let mut both = Both::new();
    granted(both.ask(0, Share::WHOLE));
    both.release(&Farewell::new(reference(0)).keeping(TTL));
    assert_eq!(both.say(Command::Evict(Eviction::Now)), Ordered::Done);
    granted(both.ask(1, Share::WHOLE));
}

#[test]
fn a_resize_admits_more_and_takes_nothing() {
    let share = |weight, capacity| Share::new(weight, capacity).unwrap();
    let mut both = Both::new();
    assert_eq!(both.say(resize(4)), NOBODY, "nobody uses it");
    granted(both.ask(0, share(2, 2)));
    placed(both.queue(1, share(2, 2)), 0);
    assert_eq!(both.say(resize(4)), Ordered::Done);
    assert!(matches!(both.queue(1, share(2, 2)), Verdict::Mismatch { capacity: 4 }));
    granted(both.queue(1, share(2, 4)));
    both.say(resize(1));
    assert_eq!(both.look().holder_count, 2);
    assert!(matches!(both.go_on(0, TTL), Renewal::Kept(_)));
    blocked(both.ask(2, Share::WHOLE));
    assert_eq!(both.look().capacity, 1);
}
