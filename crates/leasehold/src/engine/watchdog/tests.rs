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
    dog.watch(to_watch(handle, sent, TTL), sent, NO_JITTER).0
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
        let mut sleep_for = dog.step(now, 100, &mut out);
        match out.as_slice() {
            [] => {}
            [WatchdogAction::Renew(..)] => {
                tries += 1;
                let failure = dog.failed(key, now, 7).expect("watched");
                assert_eq!((failure.failures, failure.left), (tries, now.until(stop_at)));
                if failure.wake {
                    sleep_for = dog.step(now, 100, &mut Vec::new());
                }
            }
            [WatchdogAction::Stop(_)] => break,
            other => panic!("{other:?}"),
        }
        now = now.after(sleep_for);
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

/// The driver, as it would run: it sleeps as long as it is told to, and counts how often it is woken.
struct FakeDriver {
    dog: Watchdog<FakeLease>,
    now: Timestamp,
    /// When its timer fires. A suspend moves it: timers stop meanwhile.
    timer: Timestamp,
    stopped: Vec<(&'static str, Timestamp)>,
    woken: u32,
    timers: u32,
}

impl FakeDriver {
    fn new() -> FakeDriver {
        let mut driver = FakeDriver {
            dog: Watchdog::new(),
            now: at(1000),
            timer: at(0),
            stopped: Vec::new(),
            woken: 0,
            timers: 0,
        };
        driver.step();
        driver
    }

    fn step(&mut self) {
        let mut out = Vec::new();
        self.timer = self.now.after(self.dog.step(self.now, 100, &mut out));
        for action in out {
            if let WatchdogAction::Stop(FakeLease(name, _)) = action {
                self.stopped.push((name, self.now));
            }
        }
    }

    fn wake_if(&mut self, wake: bool) {
        if wake {
            self.woken += 1;
            self.step();
        }
    }

    /// Lets the time pass.
    fn run(&mut self, by: Duration) {
        let goal = self.now.after(by);
        while self.timer <= goal {
            self.now = self.timer.max(self.now);
            self.timers += 1;
            self.step();
        }
        self.now = goal;
    }

    /// The clock goes on, timers do not.
    fn suspend(&mut self, by: Duration) {
        (self.now, self.timer) = (self.now.after(by), self.timer.after(by));
    }

    fn watch(&mut self, handle: FakeLease, ttl: Duration, renews: bool) -> WatchKey {
        let random = u64::from(self.woken + self.timers).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let to_watch = ToWatch { renews, ..to_watch(handle, self.now, ttl) };
        let (key, wake) = self.dog.watch(to_watch, self.now, random);
        self.wake_if(wake);
        key
    }

    /// Leases that are held for a millisecond, one after the other, with as long a pause.
    fn short_leases(&mut self, count: u32, ttl: Duration) {
        for _ in 0..count {
            let key = self.watch(lease("short"), ttl, true);
            self.run(Duration::from_millis(1));
            assert!(self.dog.forget(key).is_some(), "it was not stopped");
            self.run(Duration::from_millis(1));
        }
    }
}

#[test]
fn the_driver_is_woken_only_for_an_event_before_its_next_look_at_the_clock() {
    let mut driver = FakeDriver::new();
    driver.watch(lease("a"), TTL, true);
    assert_eq!(driver.woken, 1, "nothing was watched, so it slept long");
    driver.watch(lease("b"), TTL, true);
    driver.watch(lease("c"), Duration::from_secs(3600), false);
    assert_eq!(driver.woken, 1, "it looks at the clock within a second");
    driver.watch(lease("d"), Duration::from_secs(2), true);
    assert_eq!(driver.woken, 2, "its renewal is due before");
    driver.watch(FakeLease("e", driver.now.after(Duration::from_millis(20))), TTL, true);
    assert_eq!(driver.woken, 3, "its limit comes before");
}

#[test]
fn leases_that_come_and_go_wake_the_driver_once() {
    for ttl in [50, 200, 1000, 3000, 30_000, 3_600_000] {
        let mut driver = FakeDriver::new();
        driver.short_leases(20_000, Duration::from_millis(ttl));
        // Once for the first lease. Jitter may make the first event of a later one come somewhat sooner.
        assert!(driver.woken <= 3, "ttl {ttl} ms: woken {} times by 20,000 leases", driver.woken);
        let beats = 40_000 / (ttl / 7).clamp(10, 1000) + 2;
        assert!(u64::from(driver.timers) <= beats, "ttl {ttl} ms: {} timers in 40 s", driver.timers);
    }
}

#[test]
fn leases_too_short_for_a_beat_wake_the_driver_each() {
    let mut driver = FakeDriver::new();
    for _ in 0..5 {
        let key = driver.watch(lease("a"), Duration::from_millis(15), true);
        driver.run(Duration::from_millis(1));
        driver.dog.forget(key);
        driver.run(Duration::from_millis(20));
    }
    assert_eq!(driver.woken, 5);
}

#[test]
fn the_driver_sleeps_long_again_a_minute_after_the_last_lease() {
    let mut driver = FakeDriver::new();
    driver.short_leases(10, TTL);
    driver.run(Duration::from_secs(150));
    let timers = driver.timers;
    assert!(timers <= 150, "at most once a second, and not for ever: {timers}");
    driver.run(Duration::from_secs(3600));
    assert_eq!(driver.timers - timers, 60, "once a minute");
    driver.watch(lease("a"), TTL, true);
    assert_eq!(driver.woken, 2, "the next lease wakes it");
}

#[test]
fn a_short_lease_does_not_make_the_driver_busy_for_ever() {
    let mut driver = FakeDriver::new();
    driver.watch(lease("long"), Duration::from_secs(3600), false);
    driver.short_leases(1, Duration::from_millis(100));
    driver.run(Duration::from_secs(120));
    let timers = driver.timers;
    driver.run(Duration::from_secs(60));
    assert_eq!(driver.timers - timers, 60, "once a second, for the lease that is held");
}

#[test]
fn a_lease_that_wakes_nobody_is_stopped_in_time_after_a_suspend() {
    for ttl in [100, 900, 3000, 30_000] {
        let ttl = Duration::from_millis(ttl);
        for asleep_for in [Duration::from_millis(0), ttl / 30, ttl / 7, Duration::from_millis(900)] {
            let mut driver = FakeDriver::new();
            driver.short_leases(100, ttl);
            let woken = driver.woken;
            // The machine is suspended between two looks at the clock, once before the grant and once after it.
            driver.run(asleep_for);
            driver.suspend(Duration::from_secs(3600));
            driver.watch(lease("a"), ttl, true);
            assert_eq!(driver.woken, woken, "{ttl:?}: nobody is woken");
            driver.suspend(Duration::from_secs(3600));
            let resumed = driver.now;
            driver.run(Duration::from_secs(2));
            let [("a", stopped)] = driver.stopped[..] else { panic!("{ttl:?}: {:?}", driver.stopped) };
            let late = resumed.until(stopped);
            assert!(late <= (ttl / 6).min(CLOCK_CHECK_EVERY), "{ttl:?}: stopped {late:?} after the resume");
        }
    }
}

#[test]
fn renewals_of_leases_taken_together_spread() {
    let mut dog = Watchdog::new();
    for n in 0..100u64 {
        dog.watch(to_watch(lease("a"), at(0), TTL), at(0), n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    }
    let dues: BTreeSet<_> = dog.events.iter().map(|(due, _)| due.as_nanos() / 100_000_000).collect();
    assert!(dues.len() > 4, "{dues:?}");
    assert!(dog.events.first().expect("some").0 >= at(9) && dog.events.last().expect("some").0 <= at(10));
}
