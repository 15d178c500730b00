use super::*;

#[derive(Clone, Debug, PartialEq)]
struct FakeLease(&'static str, Timestamp);
impl Watched for FakeLease {
    fn hard_limit(&self) -> Timestamp {
        self.1
    }
}
fn lease(name: &'static str) -> FakeLease {
    FakeLease(name, Timestamp::NEVER)
}

const TTL: Duration = Duration::from_secs(30);
fn at(seconds: u64) -> Timestamp {
    Timestamp::from_nanos(seconds * 1_000_000_000)
}
fn step(dog: &mut Watchdog<FakeLease>, now: Timestamp) -> Vec<WatchdogAction<FakeLease>> {
    let mut out = Vec::new();
    dog.step(now, 100, &mut out);
    out
}
fn to_watch(handle: FakeLease, sent: Timestamp, ttl: Duration) -> ToWatch<FakeLease> {
    ToWatch { handle, times: LeaseTimes::of(sent, ttl, ttl), ttl, renews: true }
}
fn watch(dog: &mut Watchdog<FakeLease>, handle: FakeLease, sent: Timestamp) -> WatchKey {
    dog.watch(to_watch(handle, sent, TTL), NO_JITTER).0
}
fn reply(sent: Timestamp) -> RenewalReply {
    RenewalReply { sent, received: sent, remaining: TTL, new_ttl: None }
}

#[test]
fn a_lease_is_renewed_at_a_third_and_again_a_third_after_the_send() {
    let mut dog = Watchdog::new();
    let key = watch(&mut dog, lease("a"), at(0));
    assert!(step(&mut dog, at(9)).is_empty());
    assert_eq!(step(&mut dog, at(10)), [WatchdogAction::Renew(key, lease("a"), TTL)]);
    assert!(step(&mut dog, at(12)).is_empty(), "one renewal at a time");
    let record = dog.renewed(key, reply(at(10)), NO_JITTER).expect("watched");
    assert_eq!(record.times.expect("in order").renew_at, at(20));
    assert_eq!(step(&mut dog, at(20)), [WatchdogAction::Renew(key, lease("a"), TTL)]);
}

#[test]
fn a_failed_renewal_is_repeated_until_the_stop() {
    let mut dog = Watchdog::new();
    let key = watch(&mut dog, lease("a"), at(0));
    let stop_at = LeaseTimes::of(at(0), TTL, TTL).stop_at;
    let (mut now, mut tries) = (at(0), 0);
    loop {
        let mut out = Vec::new();
        let next = dog.step(now, 100, &mut out);
        match out.as_slice() {
            [] => {}
            [WatchdogAction::Renew(..)] => {
                tries += 1;
                let failure = dog.failed(key, now, 7).expect("watched");
                assert_eq!((failure.failures, failure.left), (tries, now.until(stop_at)));
            }
            [WatchdogAction::Stop(_)] => break,
            other => panic!("{other:?}"),
        }
        now = next.min(dog.sleeping_until);
    }
    assert!(tries > 5, "only {tries} tries");
    assert_eq!(now, stop_at, "stopped exactly on time");
    assert_eq!(dog.len(), 0, "and not watched any more");
}

#[test]
fn renewals_that_are_due_shortly_go_with_the_one_that_is_due() {
    let mut dog = Watchdog::new();
    for n in 0..10u64 {
        watch(&mut dog, lease("a"), at(0).after(Duration::from_millis(n * 100)));
    }
    assert_eq!(step(&mut dog, at(10)).len(), 6, "those of the next half second");
    assert!(step(&mut dog, at(10)).is_empty(), "the rest is not due");
}

#[test]
fn a_renewal_without_a_reply_does_not_delay_the_stop() {
    let mut dog = Watchdog::new();
    watch(&mut dog, lease("a"), at(0));
    assert_eq!(step(&mut dog, at(10)).len(), 1);
    assert_eq!(step(&mut dog, at(25)), [WatchdogAction::Stop(lease("a"))]);
}

#[test]
fn a_hard_limit_stops_a_lease_that_could_be_renewed() {
    let mut dog = Watchdog::new();
    let key = watch(&mut dog, FakeLease("a", at(15)), at(0));
    assert_eq!(step(&mut dog, at(10)).len(), 1);
    dog.renewed(key, reply(at(10)), NO_JITTER);
    assert_eq!(step(&mut dog, at(15)), [WatchdogAction::Stop(FakeLease("a", at(15)))]);
}

#[test]
fn a_hard_limit_that_is_near_does_not_delay_the_step() {
    let mut dog = Watchdog::new();
    let key = watch(&mut dog, lease("a"), at(0));
    // Its limit is within the slack of a renewal at 10 s, its own renewal is not.
    let limit = at(10).after(Duration::from_millis(100));
    watch(&mut dog, FakeLease("b", limit), at(5));
    assert_eq!(step(&mut dog, at(10)), [WatchdogAction::Renew(key, lease("a"), TTL)]);
    assert_eq!(step(&mut dog, limit), [WatchdogAction::Stop(FakeLease("b", limit))]);
}

#[test]
fn a_deadline_never_moves_back_when_replies_overtake_each_other() {
    let mut dog = Watchdog::new();
    let key = watch(&mut dog, lease("a"), at(0));
    let newer = dog.renewed(key, reply(at(12)), NO_JITTER).expect("watched").times.expect("newer");
    let older = dog.renewed(key, reply(at(10)), NO_JITTER).expect("watched");
    assert_eq!(older.times, None, "the older reply changes nothing");
    assert_eq!(dog.live(key).expect("watched").times.deadline, newer.deadline);
}

#[test]
fn a_record_says_how_close_to_the_stop_a_renewal_came() {
    let mut dog = Watchdog::new();
    let key = watch(&mut dog, lease("a"), at(0));
    let stop_at = LeaseTimes::of(at(0), TTL, TTL).stop_at;
    let slow = RenewalReply { received: at(18), ..reply(at(16)) };
    let record = dog.renewed(key, slow, NO_JITTER).expect("watched");
    assert_eq!((record.margin, record.late), (at(18).until(stop_at), true));
    let record = dog.renewed(key, reply(at(26)), NO_JITTER).expect("watched");
    assert!(!record.late, "10 s after the renewal before");
}

#[test]
fn the_key_of_a_forgotten_entry_does_not_find_the_next_entry_of_its_slot() {
    let mut dog = Watchdog::new();
    let old = watch(&mut dog, lease("a"), at(0));
    assert_eq!(dog.forget(old), Some(lease("a")));
    let new = watch(&mut dog, lease("b"), at(0));
    assert_eq!((dog.forget(old), dog.failed(old, at(1), 0)), (None, None));
    assert_eq!(dog.forget(new), Some(lease("b")));
}

#[test]
fn the_driver_is_woken_only_for_an_earlier_event() {
    let mut dog = Watchdog::new();
    assert!(dog.watch(to_watch(lease("a"), at(0), TTL), NO_JITTER).1, "nothing was planned");
    dog.step(at(0), 100, &mut Vec::new());
    assert!(!dog.watch(to_watch(lease("b"), at(1), TTL), NO_JITTER).1, "later");
    let short = Duration::from_secs(3);
    assert!(dog.watch(to_watch(lease("c"), at(1), short), NO_JITTER).1, "earlier");
}

#[test]
fn renewals_of_leases_taken_together_spread() {
    let mut dog = Watchdog::new();
    for n in 0..100u64 {
        dog.watch(to_watch(lease("a"), at(0), TTL), n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    }
    let dues: BTreeSet<_> = dog.events.iter().map(|(due, _)| due.as_nanos() / 100_000_000).collect();
    assert!(dues.len() > 4, "{dues:?}");
    assert!(dog.events.first().expect("some").0 >= at(9) && dog.events.last().expect("some").0 <= at(10));
}
