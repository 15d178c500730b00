//! A tick runs once on all machines together, and its outcome is stored.
#![allow(clippy::unwrap_used, reason = "a test is a program of its own")]
#![expect(clippy::disallowed_methods, reason = "tests spawn what a program would")]

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use leasehold::{
    Backend, Client, Clock, Environment, ErrorKind, Memory, Timestamp, Verb, WallTime, testing::ManualTime,
};
use leasehold_patterns::schedule::{Cron, Missed, Overlap, Schedule, Tick, TickOutcome, TickTime, reports};
use leasehold_testkit::{
    faulty::{Fault, FaultPlan, Faulty},
    servers::{PostgresServer, RedisServer},
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const MINUTE: Duration = Duration::from_secs(60);

/// Machines that share a backend, and a list of the ticks that they ran.
struct Fleet {
    time: ManualTime,
    memory: Arc<Memory>,
    ran: Arc<Mutex<Vec<(&'static str, TickTime)>>>,
}

impl Fleet {
    fn new() -> Fleet {
        let time = ManualTime::new();
        let memory = Arc::new(Memory::in_environment(Arc::new(time.clone())));
        Fleet { time, memory, ran: Arc::default() }
    }

    fn client(&self) -> Client {
        self.client_in(Arc::new(self.time.clone()))
    }

    fn client_in(&self, environment: Arc<dyn Environment>) -> Client {
        let memory: Arc<dyn Backend> = self.memory.clone();
        Client::builder(memory).environment(environment).build()
    }

    fn cron(&self, expression: &str) -> Cron {
        Cron::new(&self.client(), "cleanup", Schedule::parse(expression).unwrap())
    }

    /// The same job on a machine with a wrong wall clock.
    fn skewed_cron(&self, expression: &str, skew: &SkewedClock) -> Cron {
        Cron::new(&self.client_in(Arc::new(skew.clone())), "cleanup", Schedule::parse(expression).unwrap())
    }

    fn skewed(&self, minutes: i64) -> SkewedClock {
        let skew = SkewedClock { time: self.time.clone(), minutes: Arc::default() };
        skew.set(minutes);
        skew
    }

    /// Starts a machine that runs the job. Each run takes `takes`.
    fn start(&self, name: &'static str, cron: Cron, takes: Duration) -> JoinHandle<()> {
        let (ran, time) = (Arc::clone(&self.ran), self.time.clone());
        tokio::spawn(async move {
            let ended = cron.run(async |tick| {
                ran.lock().unwrap().push((name, tick.at));
                leasehold::Environment::sleep(&time, takes).await;
                if name == "broken" { Err("no disk") } else { Ok(()) }
            });
            panic!("{name} ended: {:?}", ended.await.unwrap_err());
        })
    }

    fn ticks(&self) -> Vec<TickTime> {
        self.ran.lock().unwrap().iter().map(|(_, at)| *at).collect()
    }

    fn now(&self) -> TickTime {
        TickTime::of(self.time.wall())
    }
}

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The environment of a machine whose wall clock is wrong by some minutes.
#[derive(Clone, Debug)]
struct SkewedClock {
    time: ManualTime,
    minutes: Arc<AtomicI64>,
}

impl SkewedClock {
    fn set(&self, minutes: i64) {
        self.minutes.store(minutes, Ordering::SeqCst);
    }
}

impl Clock for SkewedClock {
    fn now(&self) -> Timestamp {
        self.time.now()
    }

    fn wall(&self) -> WallTime {
        let micros = self.minutes.load(Ordering::SeqCst) * 60_000_000;
        WallTime::from_micros(self.time.wall().as_micros().saturating_add_signed(micros))
    }
}

impl Environment for SkewedClock {
    fn fill(&self, bytes: &mut [u8]) {
        self.time.fill(bytes);
    }

    fn sleep(&self, duration: Duration) -> Task {
        self.time.sleep(duration)
    }

    fn spawn(&self, task: Task) {
        self.time.spawn(task);
    }
}

fn is_strictly_rising(ticks: &[TickTime]) -> bool {
    ticks.windows(2).all(|pair| pair[0] < pair[1])
}

#[tokio::test]
async fn of_many_machines_one_runs_each_tick() {
    let fleet = Fleet::new();
    let names = ["a", "b", "c", "d"];
    let machines = names.map(|name| fleet.start(name, fleet.cron("*/5 * * * *"), Duration::from_secs(3)));
    fleet.time.advance(60 * MINUTE).await;
    let ticks = fleet.ticks();
    assert_eq!(ticks.len(), 12);
    assert!(is_strictly_rising(&ticks), "{ticks:?}");
    machines.iter().for_each(JoinHandle::abort);
}

/// A machine whose clock is ahead runs the tick early. The others find it claimed.
#[tokio::test]
async fn a_tick_is_claimed_once_whatever_the_clocks_show() {
    let fleet = Fleet::new();
    let cron = fleet.cron("*/5 * * * *");
    let tick = cron.schedule().next_after(fleet.now()).unwrap();
    let early = cron.claim(tick).await.unwrap().expect("the tick is free");
    early.finish(TickOutcome::Succeeded).await;
    for late in [Duration::ZERO, 5 * MINUTE, 55 * MINUTE, 290 * MINUTE] {
        fleet.time.advance(late).await;
        assert!(fleet.cron("*/5 * * * *").claim(tick).await.unwrap().is_none(), "{late:?} later");
    }
}

#[tokio::test]
async fn machines_whose_clocks_are_hours_apart_run_each_tick_once() {
    for missed in [Missed::Skip, Missed::Last(100)] {
        let fleet = Fleet::new();
        let began = fleet.now();
        let machines = [("slow", -170), ("right", 0), ("fast", 170)].map(|(name, minutes)| {
            let cron = fleet.skewed_cron("*/5 * * * *", &fleet.skewed(minutes)).missed(missed);
            fleet.start(name, cron.overlap(Overlap::Wait(MINUTE)), Duration::from_secs(3))
        });
        fleet.time.advance(7 * 60 * MINUTE).await;
        let mut ticks = fleet.ticks();
        ticks.sort_unstable();
        assert!(is_strictly_rising(&ticks), "{missed:?}: a tick ran twice: {ticks:?}");
        let due: Vec<_> = fleet.cron("*/5 * * * *").schedule().between(began, fleet.now()).collect();
        assert!(due.iter().all(|tick| ticks.contains(tick)), "{missed:?}: a tick did not run");
        machines.iter().for_each(JoinHandle::abort);
    }
}

/// The clock is set to next year, and then set right.
#[tokio::test]
async fn a_clock_that_was_wrong_for_a_while_stops_no_job() {
    let fleet = Fleet::new();
    let clock = fleet.skewed(0);
    let machine = fleet.start("a", fleet.skewed_cron("*/5 * * * *", &clock), Duration::ZERO);
    fleet.time.advance(6 * MINUTE).await;
    clock.set(365 * 24 * 60);
    fleet.time.advance(10 * MINUTE).await;
    clock.set(0);
    let (now, before) = (fleet.now(), fleet.ticks().len());
    fleet.time.advance(30 * MINUTE).await;
    let ticks = fleet.ticks().split_off(before);
    assert!(ticks.len() >= 5 && ticks.iter().all(|tick| *tick > now), "{ticks:?}");
    machine.abort();
}

#[tokio::test]
async fn a_run_that_was_killed_is_not_repeated() {
    let fleet = Fleet::new();
    let cron = fleet.cron("*/5 * * * *");
    let machine = fleet.start("killed", cron.clone(), 2 * MINUTE);
    fleet.time.advance(6 * MINUTE).await;
    let tick = fleet.ticks()[0];
    machine.abort();
    assert!(machine.await.unwrap_err().is_cancelled());
    fleet.time.advance(30 * MINUTE).await;
    assert!(cron.claim(tick).await.unwrap().is_none());
    let listed = tokio::spawn({
        let client = fleet.client();
        async move { reports(&client).await.unwrap() }
    });
    fleet.time.advance(Duration::from_secs(1)).await;
    let report = &listed.await.unwrap()[0];
    assert_eq!((report.tick, &report.record.outcome), (tick, &TickOutcome::Vanished));
    assert_eq!(report.last_success, None);
    assert!(report.late_by.unwrap() > 20 * MINUTE, "{report:?}");
}

/// The machine that claimed the tick does not know that it did. Then the tick does not run, and the report
/// shows it. So it is if the release of the claim was refused: the tick was skipped without a word.
#[tokio::test]
async fn a_tick_whose_claim_got_no_reply_is_not_run_and_reported() {
    for fault in [Fault::LoseReply, Fault::Refuse] {
        unanswered_claim(fault).await;
    }
}

async fn unanswered_claim(fault: Fault) {
    let fleet = Fleet::new();
    let faulty = Arc::new(Faulty::new(fleet.memory.clone(), Arc::new(fleet.time.clone()), 1));
    let client = Client::builder(faulty.clone()).environment(Arc::new(fleet.time.clone())).build();
    let cron = Cron::new(&client, "cleanup", Schedule::parse("@hourly").unwrap());
    let tick = cron.schedule().next_after(fleet.now()).unwrap();
    fleet.time.advance(fleet.now().until(tick)).await;
    faulty.next(Verb::Release, fault);
    let claimed = tokio::spawn(async move { cron.claim(tick).await.map(|claimed| claimed.is_some()) });
    fleet.time.advance(2 * MINUTE).await;
    assert!(claimed.is_finished());
    let error = claimed.await.unwrap().unwrap_err();
    assert!(error.is_retryable() && error.to_string().contains("perhaps by an earlier request"), "{error}");
    assert!(fleet.cron("@hourly").claim(tick).await.unwrap().is_none(), "no machine runs it");
    let client = fleet.client();
    let listed = tokio::spawn(async move { reports(&client).await.unwrap() });
    fleet.time.advance(Duration::from_secs(1)).await;
    assert_eq!(listed.await.unwrap()[0].record.outcome, TickOutcome::Vanished);
}

/// It ended with `Unavailable` before its first tick.
#[tokio::test]
async fn a_schedule_that_starts_during_an_outage_begins_when_it_is_over() {
    for missed in [Missed::Skip, Missed::Latest] {
        let fleet = Fleet::new();
        let faulty = Arc::new(Faulty::new(fleet.memory.clone(), Arc::new(fleet.time.clone()), 1));
        let mut plan = FaultPlan::NONE;
        plan.refuse = 1000;
        faulty.plan(plan);
        let client = Client::builder(faulty.clone()).environment(Arc::new(fleet.time.clone())).build();
        let cron = Cron::new(&client, "cleanup", Schedule::parse("@hourly").unwrap()).missed(missed);
        let machine = fleet.start("late", cron, Duration::ZERO);
        fleet.time.advance(10 * MINUTE).await;
        assert!(!machine.is_finished(), "{missed:?}");
        faulty.plan(FaultPlan::NONE);
        fleet.time.advance(60 * MINUTE).await;
        assert_eq!(fleet.ticks().len(), 1, "{missed:?}");
        machine.abort();
    }
}

#[tokio::test]
async fn a_stop_lets_the_tick_finish_and_starts_no_other() {
    let fleet = Fleet::new();
    let (stop, cron, ran, time) =
        (CancellationToken::new(), fleet.cron("* * * * *"), Arc::clone(&fleet.ran), fleet.time.clone());
    let stopped = stop.clone();
    let machine = tokio::spawn(async move {
        let work = async |tick: Tick| {
            leasehold::Environment::sleep(&time, 30 * MINUTE).await;
            ran.lock().unwrap().push(("slow", tick.at));
            Ok::<(), String>(())
        };
        cron.run_until(stopped.cancelled(), work).await
    });
    fleet.time.advance(2 * MINUTE).await;
    stop.cancel();
    fleet.time.advance(MINUTE).await;
    assert!(!machine.is_finished(), "the tick runs to its end");
    fleet.time.advance(60 * MINUTE).await;
    machine.await.unwrap().unwrap();
    assert_eq!(fleet.ticks().len(), 1);
    assert_eq!(reports(&fleet.client()).await.unwrap()[0].record.outcome, TickOutcome::Succeeded);
}

#[tokio::test]
async fn a_stop_ends_a_schedule_that_waits_for_a_tick_or_for_the_backend() {
    let fleet = Fleet::new();
    let faulty = Arc::new(Faulty::new(fleet.memory.clone(), Arc::new(fleet.time.clone()), 1));
    let client = Client::builder(faulty.clone()).environment(Arc::new(fleet.time.clone())).build();
    for refuse in [0, 1000] {
        for missed in [Missed::Skip, Missed::Latest] {
            let mut plan = FaultPlan::NONE;
            plan.refuse = refuse;
            faulty.plan(plan);
            let cron = Cron::new(&client, "cleanup", Schedule::parse("@hourly").unwrap()).missed(missed);
            let stop = CancellationToken::new();
            let stopped = stop.clone();
            let machine = tokio::spawn(async move {
                cron.run_until(stopped.cancelled(), async |_| Ok::<(), String>(())).await.unwrap();
            });
            // Into the first minute of an hour: with the faults, it tries to claim the tick.
            let next = Schedule::parse("@hourly").unwrap().next_after(fleet.now()).unwrap();
            fleet.time.advance(fleet.now().until(next) + Duration::from_secs(10)).await;
            assert!(!machine.is_finished(), "{refuse} {missed:?}");
            stop.cancel();
            fleet.time.advance(Duration::from_secs(20)).await;
            assert!(machine.is_finished(), "{refuse} {missed:?}");
        }
    }
}

#[tokio::test]
async fn a_long_run_is_reported_as_running() {
    let fleet = Fleet::new();
    let machine = fleet.start("long", fleet.cron("@hourly"), 30 * MINUTE);
    fleet.time.advance(80 * MINUTE).await;
    let report = &reports(&fleet.client()).await.unwrap()[0];
    assert_eq!((&report.record.outcome, report.late_by), (&TickOutcome::Running, None));
    machine.abort();
}

#[tokio::test]
async fn the_next_tick_is_skipped_or_waits_while_a_run_lasts() {
    let fleet = Fleet::new();
    let long = fleet.start("long", fleet.cron("* * * * *"), 150 * Duration::from_secs(1));
    let other = fleet.start("other", fleet.cron("* * * * *"), 150 * Duration::from_secs(1));
    fleet.time.advance(2 * MINUTE + Duration::from_secs(30)).await;
    assert_eq!(fleet.ticks().len(), 1);
    let report = &reports(&fleet.client()).await.unwrap()[0];
    assert_eq!(report.record.outcome, TickOutcome::Skipped, "the second tick, while the first runs");
    [long, other].iter().for_each(JoinHandle::abort);
    let fleet = Fleet::new();
    let waiting = fleet.cron("* * * * *").overlap(Overlap::Wait(10 * MINUTE));
    let machines = ["a", "b"].map(|name| fleet.start(name, waiting.clone(), 90 * Duration::from_secs(1)));
    fleet.time.advance(4 * MINUTE).await;
    let ticks = fleet.ticks();
    assert!(ticks.len() >= 2 && ticks.windows(2).all(|pair| pair[0].until(pair[1]) == MINUTE), "{ticks:?}");
    machines.iter().for_each(JoinHandle::abort);
}

/// Counted from the beginning of a run, on whatever machine it ran and however short it was.
#[tokio::test]
async fn no_run_begins_within_at_least_of_another() {
    let fleet = Fleet::new();
    let cron = fleet.cron("* * * * *").at_least(150 * Duration::from_secs(1));
    let machines = ["a", "b"].map(|name| fleet.start(name, cron.clone(), Duration::from_secs(1)));
    fleet.time.advance(10 * MINUTE).await;
    let ticks = fleet.ticks();
    assert_eq!(ticks.len(), 4, "{ticks:?}");
    assert!(ticks.windows(2).all(|pair| pair[0].until(pair[1]) == 3 * MINUTE), "{ticks:?}");
    machines.iter().for_each(JoinHandle::abort);
}

/// Every machine was down for an hour.
#[tokio::test]
async fn missed_ticks_are_skipped_or_run_as_configured() {
    for (missed, expected) in
        [(Missed::Skip, 0), (Missed::Latest, 1), (Missed::Last(3), 3), (Missed::Last(100), 12)]
    {
        let fleet = Fleet::new();
        // The machine stops after a tick, and no machine sees the next ones.
        let cron = fleet.cron("*/5 * * * *").missed(missed);
        let first = cron.schedule().next_after(fleet.now()).unwrap();
        fleet.time.advance(fleet.now().until(first)).await;
        cron.claim(first).await.unwrap().unwrap().finish(TickOutcome::Succeeded).await;
        fleet.time.advance(62 * MINUTE).await;
        let machine = fleet.start("late", cron, Duration::ZERO);
        fleet.time.advance(Duration::from_secs(1)).await;
        let ticks = fleet.ticks();
        assert_eq!(ticks.len(), expected, "{missed:?}: {ticks:?}");
        assert!(is_strictly_rising(&ticks), "{ticks:?}");
        machine.abort();
    }
}

/// A run lasted beyond the next tick, and that one is too late now. The tick after it must not be returned
/// early.
#[tokio::test]
async fn after_a_long_run_the_next_tick_is_awaited() {
    let fleet = Fleet::new();
    let mut ticks = fleet.cron("*/5 * * * *").ticks().await.unwrap();
    fleet.time.advance(5 * MINUTE).await;
    let first = ticks.next().await.unwrap();
    fleet.time.advance(7 * MINUTE).await;
    let next = tokio::spawn(async move { ticks.next().await.unwrap() });
    fleet.time.advance(Duration::ZERO).await;
    assert!(!next.is_finished(), "none is due");
    fleet.time.advance(5 * MINUTE).await;
    assert!(next.is_finished());
    assert_eq!(first.until(next.await.unwrap()), 10 * MINUTE);
}

/// The machines were down for longer than most claims stay.
#[tokio::test]
async fn the_latest_missed_tick_is_run_even_after_days() {
    let fleet = Fleet::new();
    let machine = fleet.start("before", fleet.cron("*/5 * * * *"), Duration::ZERO);
    fleet.time.advance(20 * 60 * MINUTE).await;
    machine.abort();
    fleet.time.advance(3 * 24 * 60 * MINUTE + MINUTE).await;
    let before = fleet.ticks().len();
    let machine = fleet.start("late", fleet.cron("*/5 * * * *").missed(Missed::Latest), Duration::ZERO);
    fleet.time.advance(Duration::from_secs(1)).await;
    assert_eq!(fleet.ticks().len() - before, 1);
    machine.abort();
}

/// The ticks of a burst are close together, and the next burst is far away. The claim of each must stay for
/// as long as the tick could run late.
#[tokio::test]
async fn ticks_in_bursts_run_once_too() {
    let fleet = Fleet::new();
    let cron = fleet.cron("*/5 9 * * *").missed(Missed::Last(100));
    let machine = fleet.start("before", cron.clone(), Duration::ZERO);
    // From 8 o'clock to half past nine on the next day.
    fleet.time.advance((25 * 60 + 32) * MINUTE).await;
    machine.abort();
    assert_eq!(fleet.ticks().len(), 12 + 7);
    fleet.time.advance(8 * 60 * MINUTE).await;
    let machine = fleet.start("late", cron, Duration::ZERO);
    fleet.time.advance(Duration::from_secs(1)).await;
    let ticks = fleet.ticks();
    assert_eq!((ticks.len(), is_strictly_rising(&ticks)), (24, true), "{ticks:?}");
    machine.abort();
}

/// A suspended machine wakes up. Its timers do not count the time that has passed.
#[tokio::test]
async fn a_machine_that_slept_goes_on_with_the_next_tick() {
    let fleet = Fleet::new();
    let machine = fleet.start("laptop", fleet.cron("*/5 * * * *"), Duration::ZERO);
    fleet.time.advance(6 * MINUTE).await;
    let before = fleet.ticks().len();
    fleet.time.jump(3 * 60 * MINUTE);
    fleet.time.advance(11 * MINUTE).await;
    let after = fleet.ticks().split_off(before);
    assert!((2..=3).contains(&after.len()), "none of the 36 that were missed: {after:?}");
    machine.abort();
}

#[tokio::test]
async fn the_report_shows_how_the_last_tick_ended() {
    let fleet = Fleet::new();
    let machine = fleet.start("fine", fleet.cron("*/5 * * * *"), Duration::from_secs(7));
    fleet.time.advance(6 * MINUTE).await;
    machine.abort();
    let good = fleet.ticks()[0];
    let machine = fleet.start("broken", fleet.cron("*/5 * * * *"), Duration::from_secs(7));
    fleet.time.advance(5 * MINUTE).await;
    machine.abort();
    let report = &reports(&fleet.client()).await.unwrap()[0];
    assert_eq!(report.job, "cleanup");
    assert_eq!(report.record.outcome, TickOutcome::Failed("no disk".into()));
    assert_eq!((report.last_success, report.late_by), (Some(good), None));
    assert_eq!(report.next, Schedule::parse("*/5 * * * *").unwrap().next_after(fleet.now()));
    let took = report.record.ended.unwrap().as_micros() - report.record.began.as_micros();
    assert_eq!(took, 7_000_000);
}

/// A report shows for days, and for several times the period of the job, that the job has stopped.
#[tokio::test]
async fn a_job_that_stopped_is_reported_for_days() {
    const DAY: u32 = 24 * 60;
    for (expression, listed, removed) in [
        ("* * * * *", 2 * DAY, 4 * DAY),
        ("30 2 * * *", 60 * DAY, 110 * DAY),
        ("0 0 1 * *", 800 * DAY, 3100 * DAY),
        ("@yearly", 3000 * DAY, 4100 * DAY),
    ] {
        let fleet = Fleet::new();
        let cron = fleet.cron(expression);
        let until = "2029-01-02T00:00:00Z".parse().unwrap();
        for tick in cron.schedule().between(fleet.now(), until).take(125) {
            fleet.time.jump(fleet.now().until(tick));
            cron.claim(tick)
                .await
                .unwrap()
                .expect("no other machine runs")
                .finish(TickOutcome::Succeeded)
                .await;
        }
        fleet.time.jump(listed * MINUTE);
        let report = &reports(&fleet.client()).await.unwrap()[0];
        assert!(report.late_by.is_some() && report.last_success.is_some(), "{expression}: {report:?}");
        fleet.time.jump((removed - listed) * MINUTE);
        assert!(reports(&fleet.client()).await.unwrap().is_empty(), "{expression}: not listed for ever");
    }
}

/// The name of a job is a part of the names of its ticks.
#[tokio::test]
async fn a_job_with_a_bad_name_is_refused_at_the_start() {
    let client = Fleet::new().client();
    let schedule = || Schedule::parse("@yearly").unwrap();
    for name in ["", "a\nb", &"x".repeat(236)] {
        let refused = Cron::new(&client, name, schedule()).ticks().await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{name:?}");
    }
    for name in ["a@b/c d", &"x".repeat(235)] {
        let cron = Cron::new(&client, name, schedule());
        cron.ticks().await.unwrap();
        let tick = "2027-01-01T00:00:00Z".parse().unwrap();
        cron.claim(tick).await.unwrap().expect("the tick is new").finish(TickOutcome::Succeeded).await;
        assert!(reports(&client).await.unwrap().iter().any(|report| report.job == name), "{name:?}");
    }
}

/// Real stores keep the markers and their notes, too.
#[tokio::test(flavor = "multi_thread")]
async fn a_tick_is_claimed_once_on_real_stores() {
    let directory = tempfile::tempdir().unwrap();
    let (redis, postgres) = (RedisServer::start(), PostgresServer::start());
    let file = format!("sqlite:{}", directory.path().join("leases.db").display());
    for url in [file, redis.url(), postgres.url()] {
        // The claims of the second schedule stay for ten years.
        for (expression, tick) in
            [("30 2 * * *", "2026-11-15T02:30:00Z"), ("@yearly", "2026-01-01T00:00:00Z")]
        {
            let racers = race(&url, 16, expression, tick).await;
            assert_eq!(racers.iter().filter(|won| **won).count(), 1, "{url}");
            let client = leasehold::connect(&url).await.unwrap();
            let report = reports(&client).await.unwrap().into_iter().find(|report| report.job == expression);
            assert_eq!(report.unwrap().record.outcome, TickOutcome::Succeeded, "{url}");
        }
    }
}

/// This many clients try to claim one tick. Returns which of them succeeded.
async fn race(url: &str, racers: usize, expression: &'static str, tick: &str) -> Vec<bool> {
    let tick: TickTime = tick.parse().unwrap();
    let racers = (0..racers).map(|_| {
        let url = url.to_owned();
        tokio::spawn(async move {
            let client = leasehold::connect(&url).await.unwrap();
            let cron = Cron::new(&client, expression, Schedule::parse(expression).unwrap());
            let Some(claimed) = cron.claim(tick).await.unwrap() else { return false };
            claimed.finish(TickOutcome::Succeeded).await;
            true
        })
    });
    let mut won = Vec::new();
    for racer in racers.collect::<Vec<_>>() {
        won.push(racer.await.unwrap());
    }
    won
}
