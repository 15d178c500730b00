//! Many processes, one file: exclusion, wake-ups, and what a crash leaves behind.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test is a program of its own")]

mod common;

use std::{
    path::Path,
    time::{Duration, Instant},
};

use common::{
    OtherProcess, SeededRandom, acquire_and_wait, check_file, claim, granted, open, read_line, report, role,
    start_process,
};
use leasehold_core::{
    Backend, BackendExt as _, Handover, OwnerToken, ReleaseRequest, RenewRequest, Share, Verdict,
};
use leasehold_sqlite::{Config, Sqlite};

/// What the other processes do. In the test run itself it does nothing.
#[tokio::test]
async fn the_other_process() {
    let Some((role, file)) = role() else { return };
    match role.as_str() {
        "enter" => enter(&file).await,
        "wait" => wait(&file).await,
        "idle" => idle(&file).await,
        "storm" => storm(&file).await,
        "hold" => hold(&file).await,
        role => panic!("unknown role: {role}"),
    }
}

/// How often each process enters the critical section.
const ENTRANCES: usize = 40;

/// Enters a critical section again and again. Inside it creates a file, which fails if another process is
/// inside too.
async fn enter(file: &Path) {
    let backend = open(Config::new(file));
    let marker = file.with_extension("marker");
    for _ in 0..ENTRANCES {
        let claim = claim("critical section").queued();
        let grant = acquire_and_wait(&backend, &claim).await;
        std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&marker)
            .expect("no other process is inside");
        report(grant.token);
        std::fs::remove_file(&marker).unwrap();
        backend.release_one(&ReleaseRequest::new(claim.reference())).await.unwrap();
    }
    report("done");
}

#[tokio::test]
async fn only_one_process_enters_at_a_time() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("leases.db");
    let others: Vec<OtherProcess> = (0..4).map(|_| start_process("enter", &file)).collect();
    let mut tokens = Vec::new();
    for other in &others {
        let lines = std::iter::from_fn(|| Some(other.next_line()).filter(|line| line != "done"));
        let mine: Vec<u64> = lines.map(|line| line.parse().unwrap()).collect();
        assert_eq!(mine.len(), ENTRANCES);
        assert!(mine.is_sorted_by(|a, b| a < b), "tokens grow");
        tokens.extend(mine);
    }
    tokens.sort_unstable();
    assert!(tokens.windows(2).all(|pair| pair[0] < pair[1]), "no token is given out twice");
    check_file(&file);
}

/// Waits in the queue, and reports when it was granted.
async fn wait(file: &Path) {
    let backend = open(Config::new(file));
    loop {
        let claim = claim("door").queued();
        let Verdict::Blocked(blocked) = backend.acquire_one(&claim).await.unwrap() else {
            panic!("it is free")
        };
        report("waiting");
        backend.wait(&claim.reference(), &blocked.cursor, Duration::from_secs(60)).await.unwrap();
        let Verdict::Granted(_) = backend.acquire_one(&claim).await.unwrap() else {
            panic!("woken without reason")
        };
        report("granted");
        backend.release_one(&ReleaseRequest::new(claim.reference())).await.unwrap();
        report("gone");
        if read_line() != "again" {
            return;
        }
    }
}

/// In much less than the second after which a waiter looks anyway. The benchmark has the real figures.
#[tokio::test]
async fn a_release_wakes_the_waiter_in_another_process() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("leases.db");
    let backend = open(Config::new(&file));
    let first = claim("door");
    granted(&backend, &first).await;
    let mut waiter = start_process("wait", &file);
    let mut reference = first.reference();
    let mut took = Vec::new();
    for _ in 0..20 {
        assert_eq!(waiter.next_line(), "waiting");
        std::thread::sleep(Duration::from_millis(5));
        let begin = Instant::now();
        backend.release_one(&ReleaseRequest::new(reference)).await.unwrap();
        assert_eq!(waiter.next_line(), "granted");
        took.push(begin.elapsed());
        assert_eq!(waiter.next_line(), "gone");
        let next = claim("door");
        granted(&backend, &next).await;
        reference = next.reference();
        waiter.send_line("again");
    }
    took.sort();
    assert!(took[took.len() / 2] < Duration::from_millis(250), "{took:?}");
}

/// Keeps a hundred claims waiting, and reports how much processor time that took.
async fn idle(file: &Path) {
    let backend = open(Config::new(file));
    let claims: Vec<_> = (0..100).map(|_| claim("busy").queued()).collect();
    let mut cursors = Vec::new();
    for claim in &claims {
        let Verdict::Blocked(blocked) = backend.acquire_one(claim).await.unwrap() else {
            panic!("it is free")
        };
        cursors.push(blocked.cursor);
    }
    let references: Vec<_> = claims.iter().map(|claim| claim.reference()).collect();
    let spent = || rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let three = Duration::from_secs(3);
    let mut waits: Vec<_> =
        references.iter().zip(&cursors).map(|(claim, cursor)| backend.wait(claim, cursor, three)).collect();
    let before = std::cell::Cell::new(None);
    for wait in &mut waits {
        std::future::poll_fn(|cx| {
            assert!(wait.as_mut().poll(cx).is_pending());
            std::task::Poll::Ready(())
        })
        .await;
    }
    tokio::time::sleep(Duration::from_millis(200)).await; // let it settle
    before.set(Some(spent()));
    for wait in waits {
        wait.await.unwrap();
    }
    let (before, after) = (before.get().unwrap(), spent());
    let nanos = (after.tv_sec - before.tv_sec) * 1_000_000_000 + after.tv_nsec - before.tv_nsec;
    report(nanos / 1000);
}

#[tokio::test]
async fn idle_waiters_use_next_to_no_processor_time() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("leases.db");
    let backend = open(Config::new(&file));
    granted(&backend, &claim("busy")).await;
    let micros: u64 = start_process("idle", &file).next_line().parse().unwrap();
    assert!(micros < 100_000, "a hundred waiters took {micros} µs in three seconds");
}

const STORM_TTL: Duration = Duration::from_millis(300);
const RESOURCES: u64 = 6;

/// Runs random verbs without pause, until it is killed.
async fn storm(file: &Path) {
    let backend = open(Config::new(file));
    report("open");
    let mut random = SeededRandom::fresh();
    let mut mine: Vec<leasehold_core::Claim> = Vec::new();
    loop {
        one_verb(&backend, &mut random, &mut mine).await;
        tokio::task::yield_now().await;
    }
}

async fn one_verb(backend: &Sqlite, random: &mut SeededRandom, mine: &mut Vec<leasehold_core::Claim>) {
    let some = |random: &mut SeededRandom, mine: &[leasehold_core::Claim]| {
        (!mine.is_empty()).then(|| mine[usize::try_from(random.below(mine.len() as u64)).unwrap()].clone())
    };
    match random.below(8) {
        0..4 => {
            let mut claim = claim(&random.below(RESOURCES).to_string());
            claim.share = if random.below(4) == 0 { Share::new(1, 3).unwrap() } else { Share::WHOLE };
            (claim.ttl, claim.place_ttl) = (STORM_TTL, STORM_TTL);
            if random.below(2) == 0 {
                claim = claim.queued();
            }
            if let Some(from) = some(random, mine).filter(|from| from.resource == claim.resource) {
                claim = claim.taking_over(Handover::with_tombstone(from.owner, STORM_TTL));
            }
            backend.acquire_one(&claim).await.unwrap();
            mine.push(claim);
        }
        4 => {
            let held: Vec<_> =
                mine.iter().map(|claim| RenewRequest::new(claim.reference(), STORM_TTL)).collect();
            backend.renew(&held).await.into_iter().for_each(|renewed| drop(renewed.unwrap()));
        }
        _ => {
            let Some(claim) = some(random, mine) else { return };
            mine.retain(|other| other.owner != claim.owner);
            let mut request = ReleaseRequest::new(claim.reference());
            if random.below(3) == 0 {
                request = request.with_tombstone(STORM_TTL);
            }
            if random.below(5) == 0 {
                request = request.keeping(STORM_TTL);
            }
            backend.release_one(&request).await.unwrap();
        }
    }
    if mine.len() > 20 {
        mine.remove(0); // never released: it runs out
    }
}

/// 250 kills, at random points of the work of two processes.
#[tokio::test]
async fn a_kill_at_any_moment_leaves_nothing_corrupt_and_nothing_held() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("leases.db");
    let mut random = SeededRandom::fresh();
    let backend = open(Config::new(&file));
    let mut others = [start_process("storm", &file), start_process("storm", &file)];
    let mut last_token = 0;
    let begin = Instant::now();
    for kill in 0..250 {
        let victim = &mut others[usize::try_from(random.below(2)).unwrap()];
        assert_eq!(victim.next_line(), "open");
        std::thread::sleep(Duration::from_micros(random.below(12_000)));
        victim.kill();
        *victim = start_process("storm", &file);
        if kill % 10 == 0 {
            check_file(&file);
            let mine = claim("survivor");
            let token = granted(&backend, &mine).await.token.get();
            assert!(token > last_token, "tokens grow");
            last_token = token;
            backend.release_one(&ReleaseRequest::new(mine.reference())).await.unwrap();
        }
        assert!(begin.elapsed() < Duration::from_secs(90), "{kill} kills took too long");
    }
    others.iter_mut().for_each(OtherProcess::kill);
    let killed = Instant::now();
    for id in 0..RESOURCES {
        let mine = claim(&id.to_string());
        while !matches!(backend.acquire_one(&mine).await.unwrap(), Verdict::Granted(_)) {
            assert!(killed.elapsed() < STORM_TTL + Duration::from_secs(2), "held beyond its ttl");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    check_file(&file);
}

#[tokio::test]
async fn a_kill_while_the_file_is_created_leaves_one_that_can_be_opened() {
    let mut random = SeededRandom::fresh();
    for _ in 0..50 {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("leases.db");
        let mut other = start_process("storm", &file);
        while !file.exists() {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_micros(random.below(4000)));
        other.kill();
        let backend = open(Config::new(&file));
        granted(&backend, &claim("mine")).await;
        check_file(&file);
    }
}

/// Holds a lease, reports its token, and never releases it.
async fn hold(file: &Path) {
    let backend = open(Config::new(file));
    let mut claim = claim("held");
    claim.ttl = STORM_TTL;
    claim.owner = OwnerToken::from_bytes([7; 16]);
    report(granted(&backend, &claim).await.token);
    read_line();
}

#[tokio::test]
async fn the_lease_of_a_killed_holder_ends_with_its_ttl_and_not_before() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("leases.db");
    let backend = open(Config::new(&file));
    let mut holder = start_process("hold", &file);
    let token: u64 = holder.next_line().parse().unwrap();
    holder.kill();
    let mine = claim("held").queued();
    let Verdict::Blocked(blocked) = backend.acquire_one(&mine).await.unwrap() else { panic!("too early") };
    assert!(blocked.changes_in.unwrap() <= STORM_TTL);
    let grant = acquire_and_wait(&backend, &mine).await;
    assert!(grant.token.get() > token);
}
